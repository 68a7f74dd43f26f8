"""Weights of rows: 2 is the row twice, 0 is absence, and a common factor changes nothing."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_wine
from sklearn.preprocessing import scale

from skdml import LFDA, LMNN, MLKR, RCA
from skdml.linear._lfda import local_scatters
from skdml.linear._lmnn_solver import find_neighbors, list_triplets
from skdml.linear._mlkr_solver import loss_and_gradient
from tests.linear.test_lfda import slow_scatters

LEARNERS = [
    RCA(),
    RCA(strength=1),
    RCA(n_components=3, strength=0.5),
    LFDA(n_components=4),
    LFDA(n_components=4, strength=1),
    LFDA(embedding_type="plain", shrinkage=0.1, strength=1),
    MLKR(random_state=0),
    MLKR(n_components=2, random_state=0),
    LMNN(random_state=0),
    LMNN(n_components=2, n_passes=1, validation_fraction=None),
]
every_learner = pytest.mark.parametrize("model", LEARNERS, ids=str)


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(y))[:80]
    return scale(X)[chosen], y[chosen], rng.integers(0, 4, 80)


def matrix(model, X, y, **options):
    return model.fit(X, y, **options).get_mahalanobis_matrix()


def assert_same(A, B, rtol=1e-6):
    np.testing.assert_allclose(A, B, rtol=rtol, atol=rtol * np.abs(B).max())


@every_learner
@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_a_weight_is_a_number_of_rows(wine, model, convert):
    X, y, weights = wine
    order = np.random.default_rng(1).permutation(weights.sum())
    twice = matrix(model, convert(X.repeat(weights, axis=0)[order]), y.repeat(weights)[order])
    assert_same(matrix(model, convert(X), y, sample_weight=weights), twice)
    some = weights > 0
    assert not np.allclose(matrix(model, X[some], y[some]), twice, rtol=1e-3)


@every_learner
def test_more_features_than_rows(wine, model):
    X, y, weights = wine[0][:12], wine[1][:12], wine[2][:12]
    X = np.hstack([X, X**2])
    twice = matrix(model, X.repeat(weights, axis=0), y.repeat(weights))
    assert_same(matrix(model, X, y, sample_weight=weights), twice, rtol=1e-5)


@every_learner
def test_weights_of_one_change_nothing(wine, model):
    X, y, _ = wine
    ones = matrix(model, X, y, sample_weight=np.ones(80))
    np.testing.assert_array_equal(ones, matrix(model, X, y))


@pytest.mark.parametrize("model", [RCA(shrinkage=0, strength=1), *LEARNERS[-4:]], ids=str)
def test_a_common_factor_changes_nothing(wine, model):
    X, y, weights = wine
    first = matrix(model, X, y, sample_weight=weights)
    assert_same(matrix(model, X, y, sample_weight=weights / 7), first, rtol=1e-4)


@every_learner
def test_a_class_without_weight_is_absent(wine, model):
    X, y, weights = wine
    weights = np.where(y == 0, 0, weights + 1)
    some = weights > 0
    present = matrix(model, X[some], y[some], sample_weight=weights[some])
    assert_same(matrix(model, X, y, sample_weight=weights), present)


def test_chunks_have_weights(wine):
    X, y, weights = wine
    chunks = np.where(np.arange(80) % 4, y, -1)
    model = RCA(shrinkage=0, strength=1)
    weighted = matrix(model, X, None, chunks=chunks, sample_weight=weights)
    X, chunks = X.repeat(weights, axis=0), chunks.repeat(weights)
    assert_same(weighted, matrix(model, X, None, chunks=chunks))
    inside = [X[chunks == c] - X[chunks == c].mean(axis=0) for c in range(3)]
    assert_same(weighted, np.linalg.inv(np.cov(np.vstack(inside).T, bias=True)))
    with pytest.raises(ValueError, match="nothing to learn from"):
        RCA().fit(X, chunks=chunks, sample_weight=chunks < 0)


def test_weighted_scatters_are_those_of_the_slow_reference(wine):
    X, y, weights = wine
    weights = weights + 0.5
    for found, expected in zip(
        local_scatters(X, y, 4, weights), slow_weighted(X, y, 4, weights), strict=True
    ):
        assert_same(found, expected, rtol=1e-10)
    assert_same(slow_weighted(X, y, 4, np.ones(80))[1], slow_scatters(X, y, 4)[1], rtol=1e-10)


def slow_weighted(X, y, k, weights):
    inside, between = np.zeros((2, X.shape[1], X.shape[1]))
    scales = []
    for x, c in zip(X, y, strict=True):
        scales.append(np.sort(np.linalg.norm(X[y == c] - x, axis=1))[k])
    for i in range(len(X)):
        for j in range(len(X)):
            gap = X[i] - X[j]
            product = 0.5 * weights[i] * weights[j] * np.outer(gap, gap)
            affinity = np.exp(-(gap @ gap) / (scales[i] * scales[j])) if y[i] == y[j] else 0.0
            size = weights[y == y[i]].sum()
            inside += affinity / size * product
            between -= affinity / size * product
            between += (affinity if y[i] == y[j] else 1.0) / weights.sum() * product
    return inside, between


def test_the_weighted_error_and_its_gradient():
    rng = np.random.default_rng(0)
    X, y, w = rng.standard_normal((12, 3)), rng.standard_normal(12), rng.random(12) + 0.1
    L = rng.standard_normal((2, 3))

    def slow(L):
        total = 0.0
        for i in range(12):
            kernel = w * np.exp(-np.sum((X @ L.T - L @ X[i]) ** 2, axis=1))
            kernel[i] = 0
            total += w[i] * (kernel @ y / kernel.sum() - y[i]) ** 2
        return total

    loss, gradient = loss_and_gradient(L, X, y, w)
    assert loss == pytest.approx(slow(L), rel=1e-10)
    for place in np.ndindex(2, 3):
        step = np.zeros((2, 3))
        step[place] = 1e-5
        slope = (slow(L + step) - slow(L - step)) / 2e-5
        assert gradient[place] == pytest.approx(slope, rel=1e-6, abs=1e-7)


@every_learner
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros(80), "sample_weight is zero everywhere"),
        (np.eye(80)[3], "one row left that counts"),
        (-np.ones(80), "sample_weight must not be negative"),
        (np.ones(5), "sample_weight must have 80 entries, got 5"),
        (np.full(80, np.nan), "sample_weight"),
    ],
)
def test_bad_weights(wine, model, weights, message):
    with pytest.raises(ValueError, match=message):
        model.fit(*wine[:2], sample_weight=weights)


def test_the_weighted_loss_of_lmnn_and_its_gradient():
    rng = np.random.default_rng(0)
    X, y, w = rng.standard_normal((14, 3)), np.arange(14) % 3, rng.random(14) + 0.1
    L = rng.standard_normal((2, 3))
    problem = find_neighbors(X, y, 2, 0.3, weights=w)

    def slow(L):
        total, Z = 0.0, X @ L.T
        for i in range(14):
            for j in problem.targets[i]:
                near = np.sum((Z[i] - Z[j]) ** 2)
                total += 0.3 * w[i] * near
                for other in np.flatnonzero(y != y[i]):
                    hinge = 1 + near - np.sum((Z[i] - Z[other]) ** 2)
                    total += 0.7 * w[i] * w[other] * max(hinge, 0)
        return total

    loss, gradient = list_triplets(problem, L).loss(L)
    assert loss == pytest.approx(slow(L), rel=1e-10)
    for place in np.ndindex(2, 3):
        step = np.zeros((2, 3))
        step[place] = 1e-5
        slope = (slow(L + step) - slow(L - step)) / 2e-5
        assert gradient[place] == pytest.approx(slope, rel=1e-6, abs=1e-6)


def test_targets_of_rows_that_count_must_differ(wine):
    X, y, _ = wine
    with pytest.raises(ValueError, match="y is the same number for all rows that count"):
        MLKR().fit(X, y, sample_weight=y == 1)
