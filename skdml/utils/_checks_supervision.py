"""Checks of supervision: class labels, unlabelled rows, pairs, queries."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np

from ..constraints import make_pairs
from ._checks_common import (
    N_SAMPLES,
    assert_close,
    assert_fit_refuses,
    assert_raises,
    assert_same,
    assert_valid,
    collect_warnings,
    fit,
    fresh,
    learned,
    make_data,
    only_for,
    outputs,
    parameter,
    takes_classes,
    takes_pairs,
    takes_qid,
)

# Class labels


def _where_minus_one_means(meaning):
    """Choose estimators of classes by what -1 in y is to them: see `estimator_checks`."""
    return only_for(
        lambda estimator: (
            takes_classes(estimator) and getattr(estimator, "_accepts_unlabelled", None) is meaning
        )
    )


@only_for(
    lambda estimator: (
        takes_classes(estimator)  # strings cannot stand beside -1
        and not getattr(estimator, "_accepts_unlabelled", False)
    )
)
def check_labels_are_names(estimator: Any) -> None:
    """Strings as class labels, in the same order, teach the same."""
    y = make_data().y
    _assert_renaming_changes_nothing(estimator, np.array(["ant", "bee", "cat"])[y])


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
    assert any(not np.array_equal(results[name], others[name]) for name in results), (
        "the unlabelled rows make no difference: other values of theirs gave the same model"
    )


@_where_minus_one_means(True)
def check_too_few_labels(estimator: Any) -> None:
    """No labelled row, or rows of one class only beside unlabelled ones: an error that says so."""
    y = np.full(N_SAMPLES, -1)
    assert_fit_refuses(estimator, "y = -1 everywhere", parameter("y"), "label|class", y=y)
    y = np.where(make_data().y == 0, 0, -1)
    assert_fit_refuses(estimator, "one class and y = -1", parameter("y"), "class", y=y)


@_where_minus_one_means(False)
def check_unlabelled_rows_are_refused(estimator: Any) -> None:
    """-1 in y: an error that names an estimator for unlabelled rows."""
    from .estimator_checks import all_estimators

    y = make_data().y
    y[::2] = -1
    able = [n for n, cls in all_estimators() if getattr(cls, "_accepts_unlabelled", False)]
    named = ["|".join(able)] if able else []
    assert_fit_refuses(estimator, "y with -1", parameter("y"), "-1", *named, y=y)


# Pairs


def _drawn_pairs(estimator):
    return make_pairs(make_data().y, estimator.get_params().get("n_constraints"), random_state=0)


@only_for(lambda estimator: takes_pairs(estimator) and "n_constraints" in estimator.get_params())
def check_pairs_teach_what_labels_teach(estimator: Any) -> None:
    """Labels, and the pairs that are drawn from them with the same seed, give one model."""
    pairs, labels = _drawn_pairs(estimator)
    actual, expected = learned(estimator, pairs=pairs, pair_labels=labels), learned(estimator)
    assert_same(actual, expected, "the pairs of make_pairs teach something else than y")


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
        assert_fit_refuses(estimator, what, parameter(name), error=error, **changes)


@only_for(takes_pairs)
def check_zero_difference_pairs(estimator: Any) -> None:
    """Equal rows as a pair do no harm; rows paired with themselves are counted in a warning."""
    data = make_data()
    data.X[1] = data.X[0]
    more = [[0, 1], [4, 4], [7, 7]], [1, 1, -1]
    _assert_counted(estimator, 2, "rows paired with themselves", *more, data)


@only_for(takes_pairs)
def check_duplicated_pairs(estimator: Any) -> None:
    """Pairs given again, in either order, change nothing and are counted in a warning."""
    pairs, labels = _drawn_pairs(estimator)
    again = np.vstack([pairs[:3], pairs[3:7, ::-1]]), labels[:7]
    model = _assert_counted(estimator, 7, "pairs that were given before", *again)
    expected = learned(estimator, pairs=pairs, pair_labels=labels)
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
    messages = collect_warnings(partial(fit, model, data, pairs=pairs, pair_labels=labels))
    assert any(re.search(rf"\b{count}\b.*pairs", message) for message in messages), (
        f"no warning counts the {count} {what}, got {messages}"
    )
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
            assert_raises(call, f"{name} with {what}", parameter("qid"), problem)
