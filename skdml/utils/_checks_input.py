"""Checks of bad input: the error names the problem and the parameter."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError

from ._checks_common import (
    ROW_METHODS,
    Data,
    assert_close,
    assert_fit_refuses,
    assert_raises,
    calls,
    fit,
    fresh,
    make_data,
    only_for,
    parameter,
    requires_target,
    takes_classes,
    with_qid,
)


def check_nan_and_infinity(estimator: Any) -> None:
    """NaN or infinity in X: an error that names it, from fit and from every method."""
    fitted = fit(fresh(estimator))
    for value, problem in ((np.nan, "NaN"), (np.inf, "infinity|inf")):
        bad = make_data().X
        bad[3, 2] = value
        for name, call in _row_calls(fitted, bad).items():
            assert_raises(call, f"{name} of X with {value}", parameter("X"), problem)
        assert_fit_refuses(estimator, f"X with {value}", parameter("X"), problem, X=bad)


def check_no_rows(estimator: Any) -> None:
    """X without rows: an error that says so."""
    problem = r"\b(0|no) (sample|row)|empty"
    nothing = make_data().take(slice(0))
    assert_fit_refuses(estimator, "X without rows", parameter("X"), problem, data=nothing)


def check_no_features(estimator: Any) -> None:
    """X without columns: an error that says so."""
    problem = r"\b(0|no) (feature|column)"
    empty = make_data().X[:, :0]
    assert_fit_refuses(estimator, "X without columns", parameter("X"), problem, X=empty)


def check_one_sample(estimator: Any) -> None:
    """X of a single row: an error that says so."""
    problem = r"\b(1|one|single) (sample|row)|n_samples ?= ?1\b"
    single = make_data().take(slice(1))
    assert_fit_refuses(estimator, "one row", parameter("X"), problem, data=single)


def check_rows_of_one_dimension(estimator: Any) -> None:
    """X of one dimension: an error that says that two are needed."""
    column = make_data().X[:, 0]
    assert_fit_refuses(estimator, "a 1-d X", parameter("X"), "(?i)2-?d|dimension", X=column)


@only_for(requires_target)
def check_one_class(estimator: Any) -> None:
    """All rows of one class, or of one relevance: an error that says so."""
    problem = "class" if takes_classes(estimator) else "relevance|grade|level"
    same = np.zeros_like(make_data().y)
    assert_fit_refuses(estimator, "one class", parameter("y"), problem, y=same)


@only_for(requires_target)
def check_missing_target(estimator: Any) -> None:
    """No y where it is needed: an error that names it."""
    assert_fit_refuses(estimator, "X without y", parameter("y"), y=None)


@only_for(requires_target)
def check_mixed_labels(estimator: Any) -> None:
    """Numbers and strings among the labels: an error that names y, not strings in their place."""
    mixed = ["one" if label == 1 else int(label) for label in make_data().y]
    for y in (mixed, np.array(mixed, dtype=object)):
        what = f"a {type(y).__name__} of numbers and strings"
        errors = (TypeError, ValueError)
        assert_fit_refuses(estimator, what, parameter("y"), "number", error=errors, y=y)


@only_for(requires_target)
def check_nan_in_target(estimator: Any) -> None:
    """NaN in y: an error that names it."""
    y = make_data().y.astype(float)
    y[4] = np.nan
    assert_fit_refuses(estimator, "y with NaN", parameter("y"), "NaN", y=y)


@only_for(requires_target)
def check_length_of_target(estimator: Any) -> None:
    """Longer or shorter than X, y gives an error that names it."""
    y = make_data().y
    for wrong in (y[:-1], np.append(y, 0)):
        what = f"{len(y)} rows and {len(wrong)} labels"
        assert_fit_refuses(estimator, what, parameter("y"), y=wrong)


def check_number_of_features(estimator: Any) -> None:
    """Rows with more or fewer columns than in fit: an error that says so."""
    X = make_data().X
    fitted = fit(fresh(estimator))
    for wrong in (X[:, :-1], np.hstack([X, X])):
        what = f"rows with {wrong.shape[1]} columns in place of {X.shape[1]}"
        for name, call in _row_calls(fitted, wrong).items():
            assert_raises(call, f"{name} of {what}", parameter("X"), "feature")
        if hasattr(fitted, "pair_distance"):
            named = "|".join(map(parameter, ("pairs", "queries", "database", "X")))
            assert_raises(calls(fitted, wrong)["pair_distance"], f"pair_distance of {what}", named)


@only_for(lambda estimator: bool(_frame_packages()))
def check_frames(estimator: Any) -> None:
    """Frames of pandas and polars give what arrays give, and their names of columns are kept."""
    data = make_data()
    expected = fit(fresh(estimator), data)
    columns = [f"column{i}" for i in range(data.X.shape[1])]
    for package in _frame_packages():
        frames = importlib.import_module(package)
        polars = package == "polars"
        X = frames.DataFrame(data.X, **{"schema" if polars else "columns": columns})
        own = Data(X, frames.Series(data.y), frames.Series(data.qid))
        model = fit(fresh(estimator), own)
        names = getattr(model, "feature_names_in_", [])
        assert list(names) == columns, f"the names of the columns of {package}: {list(names)}"
        for name in _row_calls(expected, data.X):
            method = getattr(model, name)
            actual = method(X, **with_qid(method, own.qid))
            wanted = getattr(expected, name)(data.X, **with_qid(method, data.qid))
            assert_close(actual, wanted, f"{name} of a frame of {package}")


def check_not_fitted(estimator: Any) -> None:
    """Every method of an estimator without a fit raises NotFittedError."""
    for name, call in calls(fresh(estimator)).items():
        assert_raises(call, f"{name} before fit", error=NotFittedError)


def _frame_packages():
    return [name for name in ("pandas", "polars") if importlib.util.find_spec(name) is not None]


def _row_calls(model, X):
    return {name: call for name, call in calls(model, X).items() if name in ROW_METHODS}
