"""Checks of bad input: the error names the problem and the parameter."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError

from ._checks_common import (
    ROW_METHODS,
    Data,
    assert_close,
    assert_raises,
    calls,
    fit,
    fresh,
    make_data,
    parameter,
    requires_target,
    takes_classes,
    with_qid,
)


def check_nan_and_infinity(estimator: Any) -> None:
    """NaN or infinity in X: an error that names it, from fit and from every method."""
    data = make_data()
    fitted = fit(fresh(estimator), data)
    for value, problem in ((np.nan, "NaN"), (np.inf, "infinity|inf")):
        bad = data.X.copy()
        bad[3, 2] = value
        for name, call in _row_calls(fitted, bad).items():
            assert_raises(call, f"{name} of X with {value}", parameter("X"), problem)
        call = partial(fit, fresh(estimator), data._replace(X=bad))
        assert_raises(call, f"fit on X with {value}", parameter("X"), problem)


def check_no_rows(estimator: Any) -> None:
    """X without rows: an error that says so."""
    call = partial(fit, fresh(estimator), make_data().take(slice(0)))
    assert_raises(call, "fit on X without rows", parameter("X"), r"\b(0|no) (sample|row)|empty")


def check_no_features(estimator: Any) -> None:
    """X without columns: an error that says so."""
    data = make_data()
    call = partial(fit, fresh(estimator), data._replace(X=data.X[:, :0]))
    assert_raises(call, "fit on X without columns", parameter("X"), r"\b(0|no) (feature|column)")


def check_one_sample(estimator: Any) -> None:
    """X of a single row: an error that says so."""
    call = partial(fit, fresh(estimator), make_data().take(slice(1)))
    problem = r"\b(1|one|single) (sample|row)|n_samples ?= ?1\b"
    assert_raises(call, "fit on one row", parameter("X"), problem)


def check_rows_of_one_dimension(estimator: Any) -> None:
    """X of one dimension: an error that says that two are needed."""
    data = make_data()
    call = partial(fit, fresh(estimator), data._replace(X=data.X[:, 0]))
    assert_raises(call, "fit on a 1-d X", parameter("X"), "(?i)2-?d|dimension")


def check_one_class(estimator: Any) -> None:
    """All rows of one class, or of one relevance: an error that says so."""
    data = make_data()
    call = partial(fit, fresh(estimator), data._replace(y=np.zeros_like(data.y)))
    problem = "class" if takes_classes(estimator) else "relevance|grade|level"
    assert_raises(call, "fit on one class", parameter("y"), problem)


def check_missing_target(estimator: Any) -> None:
    """No y where it is needed: an error that names it."""
    call = partial(fit, fresh(estimator), make_data()._replace(y=None))
    assert_raises(call, "fit without y", parameter("y"))


def check_mixed_labels(estimator: Any) -> None:
    """Numbers and strings among the labels: an error that names y, not strings in their place."""
    data = make_data()
    mixed = ["one" if label == 1 else int(label) for label in data.y]
    for y in (mixed, np.array(mixed, dtype=object)):
        call = partial(fit, fresh(estimator), data._replace(y=y))
        what = f"fit on a {type(y).__name__} of numbers and strings"
        assert_raises(call, what, parameter("y"), "number", error=(TypeError, ValueError))


def check_nan_in_target(estimator: Any) -> None:
    """NaN in y: an error that names it."""
    data = make_data()
    y = data.y.astype(float)
    y[4] = np.nan
    call = partial(fit, fresh(estimator), data._replace(y=y))
    assert_raises(call, "fit on y with NaN", parameter("y"), "NaN")


def check_length_of_target(estimator: Any) -> None:
    """Longer or shorter than X, y gives an error that names it."""
    X, y, qid = make_data()
    for wrong in (y[:-1], np.append(y, 0)):
        call = partial(fit, fresh(estimator), Data(X, wrong, qid))
        assert_raises(call, f"fit on {len(X)} rows and {len(wrong)} labels", parameter("y"))


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


def checks_of_input(estimator: Any) -> Iterator[Callable[[Any], None]]:
    """Yield the checks of this module that concern the estimator."""
    yield from (
        check_nan_and_infinity,
        check_no_rows,
        check_no_features,
        check_one_sample,
        check_rows_of_one_dimension,
        check_number_of_features,
        check_not_fitted,
    )
    if _frame_packages():
        yield check_frames
    if requires_target(estimator):
        yield from (
            check_one_class,
            check_missing_target,
            check_nan_in_target,
            check_length_of_target,
            check_mixed_labels,
        )
