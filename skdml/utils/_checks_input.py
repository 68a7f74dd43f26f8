"""Checks of input: rows, class labels, unlabelled rows, pairs, queries; and errors of bad ones."""

from __future__ import annotations

import importlib
import importlib.util
import re
import warnings
from functools import partial
from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags
from sklearn.utils.validation import has_fit_parameter

from ..constraints import make_pairs
from ._checks_common import (
    N_SAMPLES,
    ROW_METHODS,
    Data,
    assert_close,
    assert_raises,
    assert_refused,
    assert_same,
    assert_valid,
    calls,
    fit,
    fresh,
    learned,
    make_data,
    only_for,
    outputs,
    requires_target,
    takes_classes,
    takes_pairs,
    takes_qid,
    with_qid,
)

# Rows


def check_nan_and_infinity(estimator: Any) -> None:
    """NaN or infinity in X: an error that names it, from fit and from every method.

    NaN is no error for an estimator whose tag `allow_nan` says so.
    """
    fitted = fit(fresh(estimator))
    values = [(np.nan, "NaN"), (np.inf, "infinity|inf")]
    for value, problem in values[1:] if get_tags(estimator).input_tags.allow_nan else values:
        bad = make_data().X
        bad[3, 2] = value
        for name, call in _row_calls(fitted, bad).items():
            assert_raises(call, f"{name} of X with {value}", "X", problem)
        assert_refused(estimator, f"X with {value}", "X", problem, X=bad)


def check_no_rows(estimator: Any) -> None:
    """X without rows: an error that says so."""
    problem = r"\b(0|no) (sample|row)|empty"
    assert_refused(estimator, "X without rows", "X", problem, data=make_data().take(slice(0)))


def check_no_features(estimator: Any) -> None:
    """X without columns: an error that says so."""
    problem = r"\b(0|no) (feature|column)"
    assert_refused(estimator, "X without columns", "X", problem, X=make_data().X[:, :0])


def check_one_sample(estimator: Any) -> None:
    """X of a single row: an error that says so."""
    problem = r"\b(1|one|single) (sample|row)|n_samples ?= ?1\b"
    assert_refused(estimator, "one row", "X", problem, data=make_data().take(slice(1)))


def check_rows_of_one_dimension(estimator: Any) -> None:
    """X of one dimension: an error that says that two are needed."""
    column = make_data().X[:, 0]
    assert_refused(estimator, "a 1-d X", "X", "(?i)2-?d|dimension", X=column)


@only_for(requires_target)
def check_one_class(estimator: Any) -> None:
    """All rows of one class, of one relevance or of one number: an error that says so."""
    problem = "class" if takes_classes(estimator) else "relevance|grade|level|same number"
    assert_refused(estimator, "one class", "y", problem, y=np.zeros(N_SAMPLES, dtype=int))


@only_for(requires_target)
def check_missing_target(estimator: Any) -> None:
    """No y where it is needed: an error that names it."""
    assert_refused(estimator, "X without y", "y", y=None)


@only_for(requires_target)
def check_mixed_labels(estimator: Any) -> None:
    """Numbers and strings among the labels: an error that names y, not strings in their place."""
    mixed = ["one" if label == 1 else int(label) for label in make_data().y]
    for y in (mixed, np.array(mixed, dtype=object)):
        what, error = f"a {type(y).__name__} of numbers and strings", (TypeError, ValueError)
        assert_refused(estimator, what, "y", "number", error=error, y=y)


@only_for(requires_target)
def check_nan_in_target(estimator: Any) -> None:
    """NaN in y: an error that names it."""
    y = make_data().y.astype(float)
    y[4] = np.nan
    assert_refused(estimator, "y with NaN", "y", "NaN", y=y)


@only_for(requires_target)
def check_length_of_target(estimator: Any) -> None:
    """Longer or shorter than X, y gives an error that names it."""
    y = make_data().y
    for wrong in (y[:-1], np.append(y, 0)):
        assert_refused(estimator, f"{len(y)} rows and {len(wrong)} labels", "y", y=wrong)


def check_number_of_features(estimator: Any) -> None:
    """Rows with more or fewer columns than in fit: an error that says so."""
    X = make_data().X
    fitted = fit(fresh(estimator))
    for wrong in (X[:, :-1], np.hstack([X, X])):
        what = f"rows with {wrong.shape[1]} columns in place of {X.shape[1]}"
        for name, call in _row_calls(fitted, wrong).items():
            assert_raises(call, f"{name} of {what}", "X", "feature")
        if hasattr(fitted, "pair_distance"):
            call = calls(fitted, wrong)["pair_distance"]
            assert_raises(call, f"pair_distance of {what}", "pairs|queries|database|X")


@only_for(lambda estimator: bool(_frame_packages()))
def check_frames(estimator: Any) -> None:
    """Frames of pandas and polars give what arrays give, and their names of columns are kept."""
    data = make_data()
    expected = fit(fresh(estimator), data)
    columns = [f"column{i}" for i in range(data.X.shape[1])]
    for package in _frame_packages():
        frames = importlib.import_module(package)
        X = frames.DataFrame(dict(zip(columns, data.X.T, strict=True)))
        own = Data(X, frames.Series(data.y), frames.Series(data.qid))
        model = fit(fresh(estimator), own)
        names = list(getattr(model, "feature_names_in_", []))
        assert names == columns, f"the names of the columns of {package}: {names}"
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


# Class labels


def _where_minus_one_means(*meaning):
    """Choose estimators of classes by what -1 in y is to them: see `estimator_checks`."""
    return only_for(
        lambda e: takes_classes(e) and getattr(e, "_accepts_unlabelled", None) in meaning
    )


@_where_minus_one_means(None, False)  # strings cannot stand beside -1
def check_labels_are_names(estimator: Any) -> None:
    """Strings as class labels, in the same order, teach the same."""
    names = np.array(["ant", "bee", "cat"])
    _assert_renaming_changes_nothing(estimator, names[make_data().y])


@_where_minus_one_means(None)
def check_minus_one_is_a_class(estimator: Any) -> None:
    """-1 is a label like any other, unless the class says what it means."""
    y = make_data().y
    _assert_renaming_changes_nothing(estimator, np.where(y == 0, -1, y))


def _assert_renaming_changes_nothing(estimator, names):
    expected = learned(estimator)
    if "predict" in expected:
        first = np.unique(make_data().y, return_index=True)[1]
        expected["predict"] = names[first][expected["predict"]]
    actual = learned(estimator, y=names)
    assert_same(actual, expected, f"the labels {np.unique(names).tolist()} teach something else")


@_where_minus_one_means(True)
def check_unlabelled_rows(estimator: Any) -> None:
    """Rows with y = -1 are used, and -1 is not a class."""
    data = make_data()
    unlabelled = np.arange(len(data.y)) % 2 == 0
    data.y[unlabelled] = -1
    model = fit(fresh(estimator), data)
    assert_valid(model, "after a fit with unlabelled rows")
    assert -1 not in getattr(model, "classes_", ()), "-1 is in classes_"
    results = outputs(model)
    assert -1 not in results.get("predict", ()), "-1 was predicted"
    moved = data._replace(X=np.where(unlabelled[:, None], data.X[:, ::-1], data.X))
    others = learned(estimator, moved)
    same = all(np.array_equal(results[name], others[name]) for name in results)
    assert not same, "the unlabelled rows make no difference: others gave the same model"


@_where_minus_one_means(True)
def check_too_few_labels(estimator: Any) -> None:
    """No labelled row, or rows of one class only beside unlabelled ones: an error that says so."""
    y = np.full(N_SAMPLES, -1)
    assert_refused(estimator, "y = -1 everywhere", "y", "label|class", y=y)
    y = np.where(make_data().y == 0, 0, -1)
    assert_refused(estimator, "one class and y = -1", "y", "class", y=y)


@_where_minus_one_means(False)
def check_unlabelled_rows_are_refused(estimator: Any) -> None:
    """-1 in y: an error that names an estimator for unlabelled rows."""
    from .estimator_checks import all_estimators

    y = make_data().y
    y[::2] = -1
    able = [n for n, cls in all_estimators() if getattr(cls, "_accepts_unlabelled", False)]
    assert_refused(estimator, "y with -1", "y", "-1", "|".join(able), y=y)


# Pairs


def _drawn_pairs(estimator):
    return make_pairs(make_data().y, estimator.get_params().get("n_constraints"), random_state=0)


@only_for(takes_pairs)
def check_pairs_as_lists(estimator: Any) -> None:
    """Pairs in lists are as good as in arrays."""
    pairs, labels = _drawn_pairs(estimator)
    expected = learned(estimator, pairs=pairs, pair_labels=labels)
    actual = learned(estimator, pairs=pairs.tolist(), pair_labels=labels.tolist())
    assert_same(actual, expected, "lists of pairs teach something else than arrays")


@only_for(takes_pairs)
def check_bad_pairs(estimator: Any) -> None:
    """Malformed pairs or labels of pairs: an error that names the parameter."""
    pairs, labels = _drawn_pairs(estimator)
    outside, negative = pairs.copy(), pairs.copy()
    outside[2, 1], negative[2, 0] = N_SAMPLES, -1
    cases = {
        "pairs of one dimension": ("pairs", pairs.ravel(), labels),
        "pairs of three rows": ("pairs", np.hstack([pairs, pairs[:, :1]]), labels),
        "pairs of feature vectors": ("pairs", make_data().X[pairs], labels),
        "pairs of floats": ("pairs", pairs + 0.5, labels),
        "pairs with a row that X does not have": ("pairs", outside, labels),
        "pairs with a negative row": ("pairs", negative, labels),
        "no pairs at all": ("pairs", pairs[:0], labels[:0]),
        "pair_labels of 0 and 1": ("pair_labels", pairs, (labels > 0).astype(int)),
        "pair_labels with NaN": ("pair_labels", pairs, np.where(labels > 0, 1, np.nan)),
        "pair_labels of two dimensions": ("pair_labels", pairs, np.stack([labels, labels], 1)),
        "pair_labels of one kind": ("pair_labels", pairs, np.ones_like(labels)),
        "one label too few": ("pair_labels", pairs, labels[:-1]),
        "pairs without labels": ("pair_labels", pairs, None),
        "labels without pairs": ("pairs", None, labels),
    }
    for what, (name, *arguments) in cases.items():
        error = (ValueError, TypeError) if what == "pairs of floats" else ValueError
        changes = dict(zip(("pairs", "pair_labels"), arguments, strict=True))
        assert_refused(estimator, what, name, error=error, **changes)


@only_for(takes_pairs)
def check_zero_difference_pairs(estimator: Any) -> None:
    """Equal rows as a pair do no harm; rows paired with themselves are counted in a warning."""
    data = make_data()
    data.X[1] = data.X[0]
    more = [[0, 1], [4, 4], [7, 7]], [1, 1, -1]
    _assert_counted(estimator, 2, "rows paired with themselves", *more, data)


@only_for(takes_pairs)
def check_duplicated_pairs(estimator: Any) -> None:
    """Pairs given again, in either order, are counted in a warning.

    They have twice the weight where `fit` takes weights of pairs, otherwise they change nothing.
    """
    pairs, labels = _drawn_pairs(estimator)
    again = np.vstack([pairs[:3], pairs[3:7, ::-1]]), labels[:7]
    model = _assert_counted(estimator, 7, "pairs that were given before", *again)
    weights: dict[str, Any] = {}
    if has_fit_parameter(estimator, "pair_weight"):
        weights["pair_weight"] = np.where(np.arange(len(labels)) < 7, 2, 1)
    expected = learned(estimator, pairs=pairs, pair_labels=labels, **weights)
    assert_same(outputs(model), expected, "pairs given twice teach something else")


@only_for(takes_pairs)
def check_contradictory_pairs(estimator: Any) -> None:
    """Pairs labelled both similar and dissimilar do no harm and are counted in a warning."""
    pairs, labels = _drawn_pairs(estimator)
    _assert_counted(estimator, 3, "pairs with both labels", pairs[:3], -labels[:3])


def _assert_counted(estimator, count, what, more_pairs, more_labels, data=None):
    """Fit with more pairs, and see that the model is sound and a warning counts such pairs."""
    model = fresh(estimator)
    pairs, labels = _drawn_pairs(estimator)
    pairs, labels = np.vstack([pairs, more_pairs]), np.append(labels, more_labels)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(model, data, pairs=pairs, pair_labels=labels)
    messages = [str(warning.message) for warning in caught]
    counted = any(re.search(rf"\b{count}\b.*pairs", message) for message in messages)
    assert counted, f"no warning counts the {count} {what}, got {messages}"
    assert_valid(model, f"after a fit with {what}")
    return model


# Queries


def _predict(model, data):
    return model.predict(data.X, qid=data.qid)


@only_for(takes_qid)
def check_order_of_rows_of_queries(estimator: Any) -> None:
    """Rows of a query need not be neighbours, neither in fit nor in predict."""
    data = make_data()
    model = fit(fresh(estimator), data)
    expected = _predict(model, data)
    order = np.random.default_rng(0).permutation(N_SAMPLES)
    actual = _predict(model, data.take(order))
    assert_close(actual, expected[order], "permuted rows get other predictions")
    # one row of each query in turn: the queries first appear in the same order
    turns = np.argsort(np.arange(N_SAMPLES) % 5, kind="stable")
    actual = _predict(fit(fresh(estimator), data.take(turns)), data)
    assert_close(actual, expected, "fit treats the scattered rows of a query as several queries")
    assert np.isfinite(model.score(data.X, data.y, qid=data.qid)), "score is not finite"


@only_for(takes_qid)
def check_one_query_at_a_time(estimator: Any) -> None:
    """Predictions for a query do not depend on the other queries that are asked with it."""
    data = make_data()
    model = fit(fresh(estimator), data)
    together = _predict(model, data)
    alone = [_predict(model, data.take(data.qid == query)) for query in np.unique(data.qid)]
    assert_close(np.concatenate(alone), together, "a query alone gets other predictions")


@only_for(takes_qid)
def check_query_ids_are_names(estimator: Any) -> None:
    """Strings, or numbers with gaps, name queries as well as 0, 1, 2, ... do."""
    data = make_data()
    expected = _predict(fit(fresh(estimator), data), data)
    for qid in (np.char.add("query ", data.qid.astype(str)), data.qid * 10 + 3):
        renamed = data._replace(qid=qid)
        actual = _predict(fit(fresh(estimator), renamed), renamed)
        assert_close(actual, expected, f"qid of {qid.dtype} such as {qid[0]!r} teaches otherwise")


@only_for(takes_qid)
def check_no_qid_is_one_query(estimator: Any) -> None:
    """Without qid, all rows are of one query."""
    data = make_data()
    without = fit(fresh(estimator), qid=None).predict(data.X)
    one = data._replace(qid=np.zeros_like(data.qid))
    assert_close(without, _predict(fit(fresh(estimator), one), one), "no qid is not one query")


@only_for(takes_qid)
def check_bad_qid(estimator: Any) -> None:
    """With the wrong length or NaN, qid gives an error that names it."""
    data = make_data()
    model = fit(fresh(estimator), data)
    missing = np.where(data.qid == 3, np.nan, data.qid)
    for what, qid, problem in (
        ("a qid that is too short", data.qid[:-1], ""),
        ("a qid that is too long", np.append(data.qid, 0), ""),
        ("a qid with NaN", missing, "NaN"),
    ):
        for name, call in (
            ("fit", partial(fit, fresh(estimator), qid=qid)),
            ("predict", partial(model.predict, data.X, qid=qid)),
            ("score", partial(model.score, data.X, data.y, qid=qid)),
        ):
            assert_raises(call, f"{name} with {what}", "qid", problem)
