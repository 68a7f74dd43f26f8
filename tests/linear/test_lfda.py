"""LFDA: the scatters by their definition, embeddings, wide rows, and what it learns."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_wine
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.preprocessing import StandardScaler

from skdml import LFDA
from skdml.linear import _lfda
from skdml.linear._lfda import local_scatters


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def slow_scatters(X, y, k):
    """The sums over all pairs of rows."""
    n, (inside, between) = len(X), np.zeros((2, X.shape[1], X.shape[1]))
    distances = euclidean_distances(X)
    scales = np.empty(n)
    for i in range(n):
        own = np.sort(distances[i, y == y[i]])
        scales[i] = own[min(k, len(own) - 1)]
    for i in range(n):
        for j in range(n):
            outer = np.outer(X[i] - X[j], X[i] - X[j]) / 2
            if y[i] != y[j]:
                between += outer / n
                continue
            size = scales[i] * scales[j]
            affinity = np.exp(-(distances[i, j] ** 2) / size) if size else 0.0
            inside += affinity / np.sum(y == y[i]) * outer
            between += affinity * (1 / n - 1 / np.sum(y == y[i])) * outer
    return inside, between


@pytest.mark.parametrize("block_size", [2**22, 100])
def test_scatters_are_those_of_the_definition(block_size, monkeypatch):
    monkeypatch.setattr(_lfda, "_BLOCK_SIZE", block_size)
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 4)) + 3, rng.integers(0, 3, 40)
    X[y == 2] = np.where(rng.random((np.sum(y == 2), 1)) < 0.6, X[y == 2][:1], X[y == 2])
    y[:2] = 3, 3  # fewer rows than neighbours
    for actual, expected in zip(local_scatters(X, y, 4), slow_scatters(X, y, 4), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-9)


def test_directions_solve_the_eigenproblem_of_the_paper(wine):
    X, y = wine
    inside, between = slow_scatters(X, y, 7)
    expected = np.sort(np.linalg.eigvals(np.linalg.solve(inside, between)).real)[::-1]
    for n_components in (None, 3):
        model = LFDA(n_components, shrinkage=0, strength=1).fit(X, y)
        np.testing.assert_allclose(model.eigenvalues_, expected[:n_components], rtol=1e-8)
        Z = model.transform(X)
        assert Z.shape[1] == (n_components or 13)
        # Weighted directions: the scatters are the eigenvalues and their squares.
        A = model.get_mahalanobis_matrix()
        assert np.trace(A @ inside) == pytest.approx(expected[:n_components].sum())
        assert np.trace(A @ between) == pytest.approx((expected[:n_components] ** 2).sum())


def test_embeddings_span_the_same_space(wine):
    X, y = wine
    plain, orthonormal = (
        LFDA(2, embedding_type=kind, shrinkage=0, strength=1).fit(X, y).get_mahalanobis_matrix()
        for kind in ("plain", "orthonormalized")
    )
    np.testing.assert_allclose(orthonormal @ orthonormal, orthonormal, atol=1e-10)
    np.testing.assert_allclose(orthonormal @ plain, plain, atol=1e-10)
    inside, _ = slow_scatters(X, y, 7)
    assert np.trace(plain @ inside) == pytest.approx(2)


def test_all_orthonormalized_directions_are_euclidean_distance(wine):
    X, y = wine
    model = LFDA(embedding_type="orthonormalized", strength=1).fit(X, y)
    np.testing.assert_allclose(model.get_mahalanobis_matrix(), np.eye(13), atol=1e-9)


@pytest.mark.parametrize("kind", ["weighted", "plain", "orthonormalized"])
def test_wide_rows_have_the_metric_of_the_whole_space(kind):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((24, 40)), np.arange(24) % 3
    wide = LFDA(embedding_type=kind, shrinkage=0.2, strength=1).fit(X, y)
    assert wide.metric_.rank < 24
    A = wide.get_mahalanobis_matrix()
    if kind == "plain":
        inside, _ = slow_scatters(X, y, 7)
        shrunk = 0.8 * inside + 0.2 * np.trace(inside) / 40 * np.eye(40)
        np.testing.assert_allclose(A, np.linalg.inv(shrunk), atol=1e-8)
    model = LFDA(embedding_type=kind, shrinkage=0.2, strength=1).fit(sparse.csr_array(X), y)
    same = model.get_mahalanobis_matrix()
    np.testing.assert_allclose(same, A, atol=1e-8 * np.abs(A).max())


def test_keeps_clusters_of_a_class_where_fisher_would_join_them():
    rng = np.random.default_rng(0)
    y = np.arange(300) % 2
    X = 0.3 * rng.standard_normal((300, 3))
    X[:, 0] += np.where(y == 1, 0, np.where(np.arange(300) % 4 < 2, 3, -3))
    A = LFDA(1, embedding_type="orthonormalized", strength=1).fit(X, y).get_mahalanobis_matrix()
    assert A[0, 0] > 0.95


def test_errors_name_the_parameter(wine):
    X, y = wine
    with pytest.raises(ValueError, match="shrinkage=0 leaves the covariance singular"):
        LFDA(shrinkage=0).fit(np.column_stack([X, X[:, 0]]), y)
    with pytest.raises(ValueError, match="X has no two different rows of one class"):
        LFDA().fit(X[[0, 0, 1, 1]], [0, 0, 1, 1])
    with pytest.raises(ValueError, match="n_components=14"):
        LFDA(14).fit(X, y)


def test_one_neighbor_may_be_a_boolean():
    X, y = np.random.RandomState(0).randn(20, 3), np.arange(20) % 2
    np.testing.assert_array_equal(
        LFDA(n_neighbors=True).fit(X, y).transform(X), LFDA(n_neighbors=1).fit(X, y).transform(X)
    )


def test_strength_is_a_power_of_the_metric(wine):
    X, y = wine
    full, half = (LFDA(4, strength=t).fit(X, y).get_mahalanobis_matrix() for t in (1, 0.5))
    np.testing.assert_allclose(half @ half, full, atol=1e-9 * np.abs(full).max())
    plain = LFDA(strength=0).fit(X, y).get_mahalanobis_matrix()
    np.testing.assert_allclose(plain, np.eye(13), atol=1e-12)


def test_strength_is_chosen_by_rows_that_are_held_out():
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    X = np.column_stack([y + 0.3 * rng.normal(size=240), 5 * rng.normal(size=240)])
    model = LFDA().fit(X, y)
    assert model.strength_ >= 0.5
    assert max(model.path_["score"]) > model.path_["score"][0] + 0.02
    X = rng.normal(size=(60, 20))
    X[:, 0] += 6 * (y[:60] > 0)
    assert LFDA().fit(X, y[:60] > 0).path_["score"][0] > 0.8
    noise = LFDA().fit(rng.normal(size=(100, 3)), np.arange(100) % 2)
    best = noise.path_["score"][noise.path_["strength"].index(noise.strength_)]
    assert best >= noise.path_["score"][0]
