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
    A = RCA(shrinkage=0, strength=1).fit(X, chunks=chunks).get_mahalanobis_matrix()
    np.testing.assert_allclose(A @ inner_covariance(X, chunks), np.eye(13), atol=1e-9)


def test_whitens_rows_inside_chunks(wine, chunks):
    X, _ = wine
    Z = RCA(shrinkage=0, strength=1).fit(X, chunks=chunks).transform(X)
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
    model = RCA(strength=1).fit(X, y)
    assert model.shrinkage_ == pytest.approx(shrinkage)
    np.testing.assert_allclose(model.get_mahalanobis_matrix(), np.linalg.inv(covariance))


def test_components_are_those_that_vary_most_compared_with_chunks(wine, chunks):
    X, _ = wine
    model = RCA(n_components=2, shrinkage=0, strength=1).fit(X, chunks=chunks)
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
    model = RCA(shrinkage=0.3, strength=1).fit(X, y)
    C = inner_covariance(X, y)
    C = 0.7 * C + 0.3 * np.trace(C) / 50 * np.eye(50)
    np.testing.assert_allclose(model.get_mahalanobis_matrix(), np.linalg.inv(C), atol=1e-9)
    assert model.metric_.rank < 20
    same = RCA(shrinkage=0.3, strength=1).fit(sparse.csr_array(X), y)
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


def test_strength_is_a_power_of_the_metric(wine, chunks):
    X, _ = wine
    full, half = (RCA(strength=t).fit(X, chunks=chunks).get_mahalanobis_matrix() for t in (1, 0.5))
    np.testing.assert_allclose(half @ half, full, atol=1e-9 * np.abs(full).max())
    model = RCA(strength=0).fit(X, chunks=chunks)
    np.testing.assert_allclose(model.get_mahalanobis_matrix(), np.eye(13), atol=1e-12)
    Z = RCA(n_components=2, strength=0).fit(X, chunks=chunks).transform(X)
    np.testing.assert_allclose(
        np.sort(Z.var(axis=0)), np.linalg.eigvalsh(np.cov(X[chunks >= 0].T, bias=True))[-2:], 0.5
    )
    assert not hasattr(model, "path_")


def nuisance(scale, n_rows=240):
    """Rows whose class is in the first column, beside one that varies by `scale`."""
    rng = np.random.default_rng(0)
    y = np.arange(n_rows) % 3
    X = np.column_stack([y + 0.3 * rng.normal(size=n_rows), scale * rng.normal(size=n_rows)])
    return X, y


def test_strength_is_chosen_by_rows_that_are_held_out():
    X, y = nuisance(5.0)
    model = RCA().fit(X, y)
    assert model.strength_ >= 0.5
    assert model.path_["strength"] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert max(model.path_["score"]) > model.path_["score"][0] + 0.02
    # What varies inside of classes tells them apart: whitening does harm.
    rng = np.random.default_rng(0)
    sizes = np.array([1.0, 3.0])[y % 2]
    X = np.column_stack([sizes * np.cos(6 * rng.random(240)), sizes, rng.normal(size=240) / 20])
    X[:, 1] += 0.1 * rng.normal(size=240)
    X[:, 0] *= 3
    model = RCA().fit(X, y % 2)
    best = int(np.argmax(model.path_["score"]))
    assert model.path_["score"][best] >= model.path_["score"][0]


def test_random_labels_leave_rows_as_they_are():
    X = np.random.default_rng(1).normal(size=(300, 4)) * [1, 10, 100, 1000]
    y = (X[:, 3] > 0).astype(int)  # the widest column alone matters
    model = RCA().fit(X, y)
    assert model.strength_ == 0
    np.testing.assert_allclose(model.get_mahalanobis_matrix(), np.eye(4), atol=1e-12)


def test_many_chunks_are_held_out_whole():
    X, y = nuisance(5.0)
    chunks = 80 * y + np.arange(240) // 12
    model = RCA().fit(X, chunks=chunks)
    assert model.strength_ >= 0.25
    assert max(model.path_["score"]) > model.path_["score"][0]
    one = RCA().fit(X, chunks=np.zeros(240, dtype=int))
    assert one.strength_ == 1
