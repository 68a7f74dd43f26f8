"""RCA: the definition, chunks and classes, wide rows, and what it refuses."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.covariance import ledoit_wolf
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

from skdml import RCA


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X), y


@pytest.fixture(scope="module")
def chunks(wine):
    numbers = 3 * (np.random.default_rng(0).permutation(178) // 20) + wine[1]
    numbers[:30] = -1
    return numbers


def inner_covariance(X, chunks):
    """The covariance around the means of chunks, row by row."""
    C, n = np.zeros((X.shape[1], X.shape[1])), 0
    for chunk in np.unique(chunks[chunks >= 0]):
        members = X[chunks == chunk]
        for row in members:
            C += np.outer(row - members.mean(axis=0), row - members.mean(axis=0))
            n += 1
    return C / n


def test_without_shrinkage_is_the_inverse_covariance_inside_chunks(wine, chunks):
    X, _ = wine
    A = RCA(shrinkage=0).fit(X, chunks=chunks).get_mahalanobis_matrix()
    np.testing.assert_allclose(A @ inner_covariance(X, chunks), np.eye(13), atol=1e-9)


def test_whitens_rows_inside_chunks(wine, chunks):
    X, _ = wine
    Z = RCA(shrinkage=0).fit(X, chunks=chunks).transform(X)
    np.testing.assert_allclose(inner_covariance(Z, chunks), np.eye(13), atol=1e-9)


def test_each_class_is_a_chunk(wine):
    X, y = wine
    expected = RCA().fit(X, chunks=y).get_mahalanobis_matrix()
    names = np.array(["a", "b", "c"])[y]
    np.testing.assert_array_equal(RCA().fit(X, names).get_mahalanobis_matrix(), expected)


def test_automatic_shrinkage_is_that_of_ledoit_and_wolf(wine):
    X, y = wine
    centred = X - np.array([X[y == code].mean(axis=0) for code in range(3)])[y]
    covariance, shrinkage = ledoit_wolf(centred, assume_centered=True)
    model = RCA().fit(X, y)
    assert model.shrinkage_ == pytest.approx(shrinkage)
    np.testing.assert_allclose(model.get_mahalanobis_matrix(), np.linalg.inv(covariance))


def test_components_are_those_that_vary_most_compared_with_chunks(wine, chunks):
    X, _ = wine
    model = RCA(n_components=2, shrinkage=0).fit(X, chunks=chunks)
    Z = model.transform(X)
    assert Z.shape == (178, 2)
    np.testing.assert_allclose(inner_covariance(Z, chunks), np.eye(2), atol=1e-9)
    known = X[chunks >= 0]
    ratios = np.linalg.eigvals(
        np.linalg.solve(inner_covariance(X, chunks), np.cov(known.T, bias=True))
    )
    total = np.trace(np.cov(Z[chunks >= 0].T, bias=True))
    assert total == pytest.approx(np.sort(ratios.real)[-2:].sum())


def test_wide_rows_have_the_metric_of_the_whole_space(wine):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 50)), np.arange(20) % 4
    model = RCA(shrinkage=0.3).fit(X, y)
    C = inner_covariance(X, y)
    C = 0.7 * C + 0.3 * np.trace(C) / 50 * np.eye(50)
    np.testing.assert_allclose(model.get_mahalanobis_matrix(), np.linalg.inv(C), atol=1e-9)
    assert model.metric_.rank < 20
    same = RCA(shrinkage=0.3).fit(sparse.csr_array(X), y)
    np.testing.assert_allclose(same.get_mahalanobis_matrix(), np.linalg.inv(C), atol=1e-9)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (np.full(178, -1), ValueError, "chunks has no chunk of two rows"),
        (np.arange(178), ValueError, "chunks has no chunk of two rows"),
        (np.full(178, -2), ValueError, "chunks must be numbers from 0"),
        (np.zeros(178), TypeError, "chunks must be integers"),
        ([0, 0], ValueError, "chunks must have one entry per row"),
    ],
)
def test_wrong_chunks_are_refused(wine, wrong, error, message):
    with pytest.raises(error, match=message):
        RCA().fit(wine[0], chunks=wrong)


def test_a_singular_covariance_is_refused_by_name(wine):
    X, y = wine
    with pytest.raises(ValueError, match="shrinkage=0 leaves the covariance singular"):
        RCA(shrinkage=0).fit(np.column_stack([X, X[:, 0]]), y)
    with pytest.raises(ValueError, match="shrinkage=0 leaves the covariance singular"):
        RCA(shrinkage=0).fit(X[:10], np.arange(10) % 2)
    with pytest.raises(ValueError, match="X is the same in all rows of a chunk"):
        RCA().fit(X[[0, 0, 1, 1]], [0, 0, 1, 1])
    with pytest.raises(ValueError, match="chunks="):
        RCA().fit(X)
