import numpy as np
import pytest
from scipy.linalg import sqrtm
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from skdml.metrics import (
    frechet_distance,
    nearest_row_ratio,
    sample_quality,
    wasserstein_distance,
)


@pytest.fixture
def clouds():
    rng = np.random.default_rng(0)
    return rng.standard_normal((40, 3)), 0.5 + 0.7 * rng.standard_normal((40, 3))


def test_wasserstein_distance_is_that_of_the_best_pairing(clouds):
    pytest.importorskip("ot")
    X, Y = clouds
    costs = cdist(X, Y) ** 2
    best = np.sqrt(costs[linear_sum_assignment(costs)].mean())
    assert wasserstein_distance(X, Y) == pytest.approx(best)
    assert wasserstein_distance(X, X[::-1]) == pytest.approx(0, abs=1e-6)
    assert wasserstein_distance(X, X + np.array([0, 3, 4])) == pytest.approx(5)
    assert wasserstein_distance(np.repeat(X, 2, axis=0), X) == pytest.approx(0, abs=1e-6)


def test_frechet_distance_is_that_of_the_formula(clouds):
    X, Y = clouds
    A, B = np.cov(X.T), np.cov(Y.T)
    expected = ((X.mean(axis=0) - Y.mean(axis=0)) ** 2).sum()
    expected += np.trace(A + B - 2 * np.real(sqrtm(A @ B)))
    assert frechet_distance(X, Y) == pytest.approx(expected)
    assert frechet_distance(X, X) == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("k", [1, 4])
def test_sample_quality_is_that_of_the_definitions(clouds, k):
    real, made = clouds[0][:30], clouds[1][:25]

    def balls(rows):
        return np.sort(cdist(rows, rows), axis=1)[:, k]  # the first is the row itself

    inside = np.array(
        [
            [np.linalg.norm(r - g) <= size for g in made]
            for r, size in zip(real, balls(real), strict=True)
        ]
    )
    reached = np.array(
        [
            [np.linalg.norm(r - g) <= size for g, size in zip(made, balls(made), strict=True)]
            for r in real
        ]
    )
    expected = (
        np.mean([inside[:, j].any() for j in range(25)]),
        np.mean([reached[i].any() for i in range(30)]),
        inside.sum() / (k * 25),
        np.mean([inside[i].any() for i in range(30)]),
    )
    assert sample_quality(real, made, k=k) == pytest.approx(expected)


def test_sample_quality_sees_missing_and_wrong_rows():
    rng = np.random.default_rng(0)
    real = np.concatenate([rng.standard_normal((100, 2)), 9 + rng.standard_normal((100, 2))])
    half = rng.standard_normal((100, 2))
    dropped = sample_quality(real, half)
    assert dropped.precision > 0.9
    assert dropped.coverage < 0.6
    assert dropped.recall < 0.6
    wrong = sample_quality(real, np.concatenate([real[::2] + 0.01, 50 + half]))
    assert wrong.precision == pytest.approx(0.5)
    assert wrong.coverage > 0.9


def test_copies_of_training_rows_are_noticed():
    rng = np.random.default_rng(0)
    train, new, made = rng.standard_normal((3, 2000, 4))
    assert nearest_row_ratio(train, new, train[:50]) == 0
    assert nearest_row_ratio(train, new, made) == pytest.approx(1, abs=0.2)
    with pytest.raises(ValueError, match="nothing is new"):
        nearest_row_ratio(train, train, made)


def test_bad_input(clouds):
    X, Y = clouds
    for measure in (wasserstein_distance, frechet_distance):
        with pytest.raises(
            ValueError, match="X and Y must have the same number of features, got 3 and 2"
        ):
            measure(X, Y[:, :2])
        with pytest.raises(ValueError, match="Y"):
            measure(X, np.where(Y > 1, np.nan, Y))
    with pytest.raises(ValueError, match="generated must have more than k=5 rows, got 5"):
        sample_quality(X, Y[:5])
    with pytest.raises(ValueError, match="k must be at least 1"):
        sample_quality(X, Y, k=0)
