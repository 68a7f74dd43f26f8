"""Checks of estimators whose samples are pairs of rows."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
from sklearn.model_selection import GridSearchCV, KFold, cross_validate

from ._checks_common import (
    assert_close,
    assert_raises,
    assert_same,
    fit,
    fresh,
    index_pairs,
    learned,
    make_data,
    only_for,
    outputs,
)


def _samples(seed=0):
    """Return pairs of vectors and their labels."""
    data = make_data(seed)
    pairs, labels = index_pairs(data)
    return data.X[pairs], labels


def _pair_methods(model):
    names = ("predict", "decision_function", "predict_proba", "pair_distance", "pair_score")
    return {name: getattr(model, name) for name in names if hasattr(model, name)}


@only_for(lambda estimator: "preprocessor" in estimator.get_params())
def check_index_pairs_are_their_rows(estimator: Any) -> None:
    """Pairs of indices teach and give what the pairs of their rows do."""
    data = make_data()
    pairs, labels = index_pairs(data)
    model = fit(fresh(estimator), data)
    for what, preprocessor in (
        ("an array", data.X),
        ("a list", data.X.tolist()),
        ("a function", lambda indices: data.X[indices]),
    ):
        other = fresh(estimator, preprocessor=preprocessor).fit(pairs, labels)
        for name, method in _pair_methods(other).items():
            expected = _pair_methods(model)[name](data.X[pairs])
            assert_close(method(pairs), expected, f"{name} of index pairs with {what}")
            assert_close(method(data.X[pairs]), expected, f"{name} of vectors with {what}")


def check_order_in_a_pair(estimator: Any) -> None:
    """Which row of a pair comes first does not matter."""
    pairs, labels = _samples()
    model = fit(fresh(estimator))
    for name, method in _pair_methods(model).items():
        assert_close(method(pairs[:, ::-1]), method(pairs), f"{name} of pairs the other way round")
    turned = pairs.copy()
    turned[::2] = turned[::2, ::-1]
    other = outputs(fresh(estimator).fit(turned, labels))
    assert_same(other, outputs(model), "fitted on pairs of which half are the other way round")


def check_folds_of_pairs(estimator: Any) -> None:
    """Cross-validation and searches score what a fit on the same pairs scores."""
    pairs, labels = _samples()
    folds = KFold(2, shuffle=True, random_state=0)
    model = fresh(estimator)
    expected = []
    with warnings.catch_warnings():  # pairs of a row that is left alone
        warnings.simplefilter("ignore")
        for train, test in folds.split(pairs):
            part = fresh(estimator).fit(pairs[train], labels[train])
            expected.append(part.score(pairs[test], labels[test]))
        options = {"cv": folds, "error_score": "raise"}
        scores = cross_validate(model, pairs, labels, **options)["test_score"]
        seeds = {"random_state": [0]} if "random_state" in model.get_params() else {}
        search = GridSearchCV(model, seeds, **options).fit(pairs, labels)
    assert_close(scores, expected, "scores of cross_validate")
    assert_close(search.best_score_, np.mean(expected), "the score of a search")
    assert_same(outputs(search.best_estimator_), learned(estimator), "of a search")


def check_labels_and_scores(estimator: Any) -> None:
    """Predictions are +1 and -1, and agree with decisions, probabilities and distances."""
    pairs, labels = _samples()
    model = fit(fresh(estimator))
    predicted, score = model.predict(pairs), model.score(pairs, labels)
    assert model.classes_.tolist() == [-1, 1], f"classes_ is {model.classes_}, not [-1, 1]"
    assert predicted.shape == labels.shape, f"predict gives shape {predicted.shape}"
    assert np.isin(predicted, [-1, 1]).all(), "predict gives other labels than +1 and -1"
    assert 0.5 < score <= 1, f"the score of the training pairs is {score}"
    decisions = model.decision_function(pairs)
    order = np.argsort(decisions, kind="stable")
    assert (np.diff(predicted[order]) >= 0).all(), "predict does not rise with decision_function"
    if hasattr(model, "predict_proba"):
        shares = model.predict_proba(pairs)
        assert_close(shares.sum(axis=1), np.ones(len(pairs)), "the sum of probabilities")
        assert (shares >= 0).all(), "a probability is negative"
        rising = (np.diff(shares[order, 1]) >= -1e-12).all()
        assert rising, "predict_proba does not rise with decision_function"
    if hasattr(model, "pair_distance"):
        distances = model.pair_distance(pairs)
        assert (distances >= 0).all(), "a distance is negative"
        same = np.stack([pairs[:, 0], pairs[:, 0]], axis=1)
        assert_close(model.pair_distance(same), np.zeros(len(same)), "of a row to itself")
        falling = (np.diff(distances[order]) <= 1e-9 * distances.max()).all()
        assert falling, "decision_function does not fall with pair_distance"


@only_for(lambda estimator: hasattr(estimator, "set_threshold"))
def check_threshold(estimator: Any) -> None:
    """Pairs up to the threshold, and only they, are similar."""
    pairs, labels = _samples()
    model = fit(fresh(estimator))
    distances = np.sort(model.pair_distance(pairs))
    middle = (distances[20] + distances[21]) / 2
    assert model.set_threshold(middle) is model, "set_threshold does not return the estimator"
    assert model.threshold_ == middle, "set_threshold does not set threshold_"
    n_similar = np.sum(model.predict(pairs) == 1)
    assert n_similar == 21, f"{n_similar} pairs are similar up to the distance of the 21st"
    own = model.pair_distance(pairs)
    best = max(np.mean((own <= d) == (labels > 0)) for d in distances)
    model.calibrate_threshold(pairs, labels)
    found = np.mean(model.predict(pairs) == labels)
    assert found >= best, f"calibrate_threshold gives an accuracy of {found}, where {best} is best"


def check_bad_labels_of_pairs(estimator: Any) -> None:
    """Labels other than +1 and -1, of one kind or of another number give an error that says y."""
    pairs, labels = _samples()
    with_nan = labels.astype(float)
    with_nan[3] = np.nan
    model = fit(fresh(estimator))
    for what, y in (
        ("labels of 0 and 1", (labels > 0).astype(int)),
        ("labels of 2", labels * 2),
        ("words as labels", np.where(labels > 0, "same", "other")),
        ("labels of one kind", np.ones_like(labels)),
        ("too few labels", labels[:-1]),
        ("a label of NaN", with_nan),
        ("no labels", None),
    ):
        for name, call in (("fit", fresh(estimator).fit), ("score", model.score)):
            error = (ValueError, TypeError)
            assert_raises(partial(call, pairs, y), f"{name} with {what}", "y", error=error)


def check_bad_arrays_of_pairs(estimator: Any) -> None:
    """Pairs of another shape, or that are not finite, give an error that names them."""
    pairs, labels = _samples()
    with_nan = pairs.copy()
    with_nan[3, 1, 2] = np.nan
    model = fit(fresh(estimator))
    for what, bad in (
        ("rows", pairs[:, 0]),
        ("triplets", np.concatenate([pairs, pairs[:, :1]], axis=1)),
        ("four dimensions", pairs[None]),
        ("one dimension", pairs[:, 0, 0]),
        ("no features", pairs[:, :, :0]),
        ("NaN", with_nan),
        ("indices without rows", np.zeros((len(pairs), 2), dtype=int)),
    ):
        calls = {"fit": partial(fresh(estimator).fit, bad, labels)}
        calls |= {n: partial(method, bad) for n, method in _pair_methods(model).items()}
        for name, call in calls.items():
            assert_raises(call, f"{name} of {what}", "pairs", error=(ValueError, TypeError))


def check_features_of_pairs(estimator: Any) -> None:
    """Rows with another number of features than in fit are refused, with both numbers."""
    pairs, _ = _samples()
    model = fit(fresh(estimator))
    n_features = pairs.shape[2]
    assert model.n_features_in_ == n_features, "n_features_in_ is wrong"
    numbers = (rf"\b{n_features - 1}\b", rf"\b{n_features}\b")
    for name, method in _pair_methods(model).items():
        call = partial(method, pairs[:, :, 1:])
        assert_raises(call, f"{name} of pairs with a feature less", "features", *numbers)
