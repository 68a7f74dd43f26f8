"""Distances of many pairs of rows are those of their differences, and 0 for equal rows."""

import tracemalloc

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from skdml import GMMLTransformer
from skdml.linear import MahalanobisMetric
from skdml.linear._row_pairs import row_pair_distance


def make_rows(kind, rng):
    X = rng.standard_normal((60, 90 if kind == "wide" else 7))
    X[::9] = X[0]  # equal rows at other places
    if kind == "far away":
        X += 1e6
    if kind == "sparse":
        return sparse.csr_array(np.where(X > 0, X, 0))
    return X.astype(np.float32) if kind == "float32" else X


KINDS = ["dense", "wide", "far away", "sparse", "float32"]


@pytest.fixture(params=KINDS)
def rows(request):
    return make_rows(request.param, np.random.default_rng(0))


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("n_pairs", [20, 1000])
def test_distances_are_those_of_pairs_of_vectors(rows, metric, n_pairs):
    y = np.arange(60) % 3
    model = GMMLTransformer(geodesic=0.3, metric=metric, random_state=0).fit(rows, y)
    pairs = np.random.default_rng(1).integers(3, 58, size=(n_pairs, 2))  # not all rows
    dense = rows.toarray() if sparse.issparse(rows) else rows
    expected = [model.pair_distance(dense[None, pair])[0] for pair in pairs]
    found = model.pair_distance(pairs, rows)
    rtol = 1e-4 if rows.dtype == np.float32 else 1e-8
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)
    equal = (dense[pairs[:, 0]] == dense[pairs[:, 1]]).all(axis=1)
    assert equal.any() or n_pairs < 100
    assert (found[equal] == 0).all()


def test_near_rows_keep_their_digits():
    rng = np.random.default_rng(0)
    A = np.diag([1e8, 1.0, 1e-8])
    X = np.vstack([rng.standard_normal((20, 3)), 1e-7 * rng.standard_normal((20, 3))])
    pairs = rng.integers(40, size=(2000, 2))
    differences = X[pairs[:, 0]] - X[pairs[:, 1]]
    expected = np.sqrt(np.einsum("ij,jk,ik->i", differences, A, differences))
    found = row_pair_distance(MahalanobisMetric.from_matrix(A), X, pairs)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("weight", [8.0, -0.5])
def test_an_identity_plus_one_direction(weight):
    X = np.random.default_rng(0).standard_normal((20, 2))
    pairs = np.random.default_rng(1).integers(20, size=(500, 2))
    metric = MahalanobisMetric(2, 1.0, np.array([[0.6, 0.8]]), [weight])
    found = row_pair_distance(metric, X, pairs)
    expected = metric.pair_distance(X[pairs[:, 0]], X[pairs[:, 1]])
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("scale", [1e-200, 1e160])
def test_rows_of_extreme_scale(scale):
    X = np.random.default_rng(0).standard_normal((20, 3))
    pairs = np.random.default_rng(1).integers(20, size=(500, 2))
    metric = MahalanobisMetric.from_matrix(np.diag([3.0, 2.0, 1.0]))
    found = row_pair_distance(metric, X * scale, pairs)
    np.testing.assert_allclose(found, scale * row_pair_distance(metric, X, pairs), rtol=1e-12)


def test_no_pairs():
    model = GMMLTransformer(geodesic=0.3).fit(np.arange(6.0).reshape(3, 2) ** 2, [0, 0, 1])
    for metric in ("euclidean", "cosine"):
        model = clone(model).set_params(metric=metric).fit([[0, 1.0], [2, 3], [9, 5]], [0, 0, 1])
        assert model.pair_distance(np.empty((0, 2), dtype=int), [[0, 1.0]]).shape == (0,)


def test_memory_is_that_of_rows_and_a_block():
    X = np.random.default_rng(0).standard_normal((500, 200))
    pairs = np.random.default_rng(1).integers(500, size=(100_000, 2))
    metric = MahalanobisMetric.from_matrix(np.cov(X.T))
    tracemalloc.start()
    row_pair_distance(metric, X, pairs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6  # both sides of all pairs would be 320 MB
