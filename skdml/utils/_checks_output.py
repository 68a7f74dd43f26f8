"""Checks of what a fitted estimator returns: distances, coordinates, samples and their dtype."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.neighbors import KNeighborsClassifier
from sklearn.utils import get_tags

from ._checks_common import (
    N_FEATURES,
    N_SAMPLES,
    accepts,
    assert_close,
    assert_raises,
    assert_valid,
    fit,
    fresh,
    make_data,
    only_for,
)


def _having(*methods):
    return only_for(lambda estimator: all(hasattr(estimator, name) for name in methods))


# Metrics


@_having("get_metric")
def check_metric_axioms(estimator: Any) -> None:
    """Distances are >= 0, 0 from a point to itself, symmetric, and never longer than a detour."""
    metric = fit(fresh(estimator)).get_metric()
    for u, v, w in np.random.default_rng(0).standard_normal((30, 3, N_FEATURES)):
        there, back = metric(u, v), metric(v, u)
        assert there >= 0, f"a distance is negative: {there}"
        assert metric(u, u) == 0, f"a point is {metric(u, u)} from itself"
        assert abs(there - back) <= 1e-10 * there, f"not symmetric: {there} there, {back} back"
        detour = metric(u, w) + metric(w, v)
        assert there <= detour * (1 + 1e-10), f"a detour is shorter: {detour} < {there}"


@_having("get_metric")
def check_metric_in_nearest_neighbours(estimator: Any) -> None:
    """`get_metric` in KNeighborsClassifier finds the neighbours that `transform` has."""
    X, y, _ = make_data()
    model = fit(fresh(estimator))
    knn = KNeighborsClassifier(3, metric=model.get_metric()).fit(X, y)
    transformed = KNeighborsClassifier(3).fit(model.transform(X), y)
    queries = make_data(seed=1).X
    actual, expected = knn.kneighbors(queries), transformed.kneighbors(model.transform(queries))
    for i, what in enumerate(("distances to", "indices of")):
        assert_close(actual[i], expected[i], f"{what} neighbours by get_metric and by transform")


@_having("get_metric", "pair_distance")
def check_pair_distance(estimator: Any) -> None:
    """Pairs of vectors, pairs of indices and `transform` tell one distance."""
    X = make_data().X
    model = fit(fresh(estimator))
    pairs = np.random.default_rng(0).integers(N_SAMPLES, size=(20, 2))
    left, right = model.transform(X)[pairs].transpose(1, 0, 2)
    distances = model.pair_distance(X[pairs])
    assert_close(distances, np.linalg.norm(left - right, axis=1), "pair_distance and transform")
    if accepts(model.pair_distance, "X"):
        by_index = model.pair_distance(pairs, X=X)
        assert_close(by_index, distances, "pair_distance of indices and of vectors")
        for wrong in (N_SAMPLES, -1):
            call = partial(model.pair_distance, np.array([[0, wrong]]), X=X)
            assert_raises(call, f"pair_distance of row {wrong} of X", "pairs")


@_having("transform_database", "pair_distance")
def check_asymmetric_pair_distance(estimator: Any) -> None:
    """Distances of queries to database rows are those of their coordinates."""
    queries, database = make_data(seed=1).X, make_data().X
    model = fit(fresh(estimator))
    difference = model.transform(queries) - model.transform_database(database)
    actual, expected = model.pair_distance(queries, database), np.linalg.norm(difference, axis=1)
    assert_close(actual, expected, "pair_distance against transform and transform_database")
    call = partial(model.pair_distance, queries[:-1], database)
    assert_raises(call, "fewer queries than database rows", "queries|database")


@_having("get_mahalanobis_matrix")
def check_mahalanobis_matrix(estimator: Any) -> None:
    """Symmetric, positive semi-definite, the matrix gives the learned distances."""
    model = fit(fresh(estimator))
    assert_valid(model, "after fit")
    X = make_data().X
    difference = X[:-1] - X[1:]
    A = model.get_mahalanobis_matrix()
    actual = np.sqrt(np.einsum("ij,jk,ik->i", difference, A, difference))
    expected = np.linalg.norm(model.transform(X[:-1]) - model.transform(X[1:]), axis=1)
    assert_close(actual, expected, "distances by get_mahalanobis_matrix and by transform")


# Coordinates


@only_for(lambda e: hasattr(e, "transform") and get_tags(e).transformer_tags is not None)
def check_dtype(estimator: Any) -> None:
    """Output has the dtype of X where the tags say so; float32 and float64 tell the same."""
    data = make_data()
    names = [name for name in ("transform", "transform_database") if hasattr(estimator, name)]
    distances: dict[str, dict[str, Any]] = {name: {} for name in names}
    for dtype in get_tags(estimator).transformer_tags.preserves_dtype:
        X = data.X.astype(dtype)
        model = fit(fresh(estimator), data._replace(X=X))
        for name in names:
            got = getattr(model, name)(X)
            wrong = f"{name} turned {dtype} into {got.dtype}, against the estimator's tags"
            assert got.dtype == dtype, wrong
            distances[name][dtype] = euclidean_distances(got)  # coordinates may be rotated
    for name, of in distances.items():
        if {"float32", "float64"} <= of.keys():
            what = f"{name} of float32 and of float64"
            assert_close(of["float32"], of["float64"], what, tolerance=1e-2)


# Samples


@_having("sample")
def check_sample(estimator: Any) -> None:
    """Like rows in shape, samples depend on the seed; a bad number of them is an error."""
    model = fit(fresh(estimator))
    rows = model.sample(7, random_state=0)
    assert rows.shape == (7, N_FEATURES), f"7 samples have the shape {rows.shape}"
    assert np.isfinite(rows).all(), "samples are not finite"
    assert_close(model.sample(7, random_state=0), rows, "the same seed gives other samples")
    assert not np.array_equal(model.sample(7, random_state=1), rows), "the seed has no effect"
    assert_raises(partial(model.sample, 0), "sample(0)", "n_samples")
