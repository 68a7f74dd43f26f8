"""Coresets: greedy against brute force and the plain greedy, the proxy against all pairs."""

import itertools
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

pytest.importorskip("ot")

from skdml.transport import _coreset, measure_coreset, sinkhorn_divergence, wasserstein_coreset
from skdml.transport._coreset import lazy_greedy

CLOUD = (5, 2)


class Matrix:
    """A matrix of distances, as `lazy_greedy` asks for it."""

    def __init__(self, distances):
        self.distances = distances
        self.largest = distances.max()

    def __len__(self):
        return len(self.distances)

    def __getitem__(self, rows):
        return self.distances[rows]

    def total(self):
        return self.distances.sum(axis=1)


def make_distances(seed, n_rows=9):
    points = np.random.default_rng(seed).standard_normal((n_rows, 2))
    return ((points[:, None] - points) ** 2).sum(-1)


def value(distances, chosen):
    return (distances.max() - distances[:, list(chosen)].min(axis=1)).sum()


def make_rows(seed=0, n_rows=60):
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((4, *CLOUD))
    kinds = rng.integers(4, size=n_rows)
    clouds = centres[kinds] + 0.3 * rng.standard_normal((n_rows, *CLOUD))
    return rng.permuted(clouds, axis=1).reshape(n_rows, -1), kinds


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("budget", [1, 2, 4])
def test_greedy_reaches_its_share_of_the_best_subset(seed, budget):
    distances = make_distances(seed)
    picked, *_ = lazy_greedy(Matrix(distances), budget)
    subsets = itertools.combinations(range(len(distances)), budget)
    best = max(value(distances, subset) for subset in subsets)
    assert value(distances, picked) >= (1 - 1 / np.e) * best
    assert len(set(picked)) == budget


@pytest.mark.parametrize("seed", range(4))
def test_lazy_is_the_plain_greedy(seed):
    distances = make_distances(seed, 20)
    picked, weights, distance = lazy_greedy(Matrix(distances), 6)
    plain = []
    for _ in range(6):
        rest = [row for row in range(20) if row not in plain]
        plain.append(max(rest, key=lambda row: value(distances, [*plain, row])))
    assert picked.tolist() == plain
    nearest = distances[:, picked].argmin(axis=1)
    np.testing.assert_array_equal(weights, np.bincount(nearest, minlength=6))
    assert distance == pytest.approx(distances[:, picked].min(axis=1).mean())


def test_a_tolerance_stops_early():
    points = np.repeat([0.0, 1.0, 10.0], 5)
    distances = (points[:, None] - points) ** 2
    assert len(lazy_greedy(Matrix(distances), 15, tol=1e-6)[0]) == 3
    assert len(lazy_greedy(Matrix(distances), 15)[0]) <= 4  # nothing more to gain


def test_budgets_by_class_and_weights_that_sum_to_the_rows():
    X, kinds = make_rows()
    y = np.array(["b", "a"])[(kinds > 0).astype(int)]
    indices, weights = wasserstein_coreset(X, y, 0.2, cloud=CLOUD, random_state=0)
    assert len(set(indices)) == len(indices)
    assert weights.sum() == len(X)
    assert len(indices) == round(0.2 * len(X))
    for label in "ab":
        assert abs((y[indices] == label).sum() - 0.2 * (y == label).sum()) < 1
        assert weights[y[indices] == label].sum() == (y == label).sum()


def test_as_many_rows_as_asked_for():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 2)), rng.permutation(np.repeat(np.arange(7), 300)[::7])[:300]
    for size in (7, 8, 50, 180, 299, 300):
        indices, _ = wasserstein_coreset(X, y, size)
        assert len(indices) == size
        assert len(np.unique(y[indices])) == 7
    assert len(wasserstein_coreset(X, y, 0.001)[0]) == 7
    rare = np.repeat([0, 1, 2], [290, 6, 4])
    assert rare[wasserstein_coreset(X, rare, 4)[0]].tolist() == [0, 0, 1, 2]
    with pytest.raises(ValueError, match="each needs a row"):
        wasserstein_coreset(X, y, 6)


def test_few_candidates_choose_nearly_as_well_as_all_pairs():
    X, _ = make_rows(1, 50)
    first, second = np.divmod(np.arange(50**2), 50)
    clouds = X.reshape(-1, *CLOUD)
    distances = sinkhorn_divergence(clouds[first], clouds[second], solver="exact").reshape(50, 50)
    few, _ = wasserstein_coreset(X, size=6, cloud=CLOUD, n_candidates=16, random_state=0)
    every, _ = wasserstein_coreset(X, size=6, cloud=CLOUD, n_candidates=None, random_state=0)
    assert value(distances, few) > 0.98 * value(distances, every)
    drawn = [np.random.default_rng(seed).permutation(50)[:6] for seed in range(5)]
    assert value(distances, few) > max(value(distances, rows) for rows in drawn)


@pytest.mark.parametrize("p", [1, 2])
def test_without_clouds_the_distance_is_euclidean(p):
    X = np.random.default_rng(2).standard_normal((30, 3))
    squared = ((X[:, None] - X) ** 2).sum(-1)
    wanted, *_ = lazy_greedy(Matrix(squared if p == 2 else np.sqrt(squared)), 5)
    assert wasserstein_coreset(X, size=5, p=p)[0].tolist() == wanted.tolist()
    one_point = wasserstein_coreset(X, size=5, p=p, cloud=(1, 3))[0]
    assert one_point.tolist() == wanted.tolist()


def test_exact_transport_and_same_seed_same_choice():
    X, _ = make_rows(3)
    first = wasserstein_coreset(X, size=6, cloud=CLOUD, solver="exact", random_state=1)
    again = wasserstein_coreset(X, size=6, cloud=CLOUD, solver="exact", random_state=1)
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])


def test_identical_rows_are_one_choice():
    X = np.ones((6, 10))
    indices, weights = wasserstein_coreset(X, size=3, cloud=CLOUD)
    assert len(indices) >= 1
    assert weights.sum() == 6


def test_measure_coreset_is_a_cheaper_place_than_rows():
    ot = pytest.importorskip("ot")
    X = np.random.default_rng(0).standard_normal((80, 2))
    points = measure_coreset(X, 8, random_state=0)
    assert points.shape == (8, 2)

    def cost(points):
        return ot.emd2([], [], ot.dist(X, points))

    drawn = [X[np.random.default_rng(seed).permutation(80)[:8]] for seed in range(5)]
    assert cost(points) < 0.8 * min(cost(rows) for rows in drawn)
    np.testing.assert_array_equal(points, measure_coreset(X, 8, random_state=0))


def lipschitz_functions(X, rng, n=50):
    """Yield values at the rows of functions with a Lipschitz constant of 1."""
    directions = rng.standard_normal((n, X.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    yield from (X @ directions.T).T
    yield from np.linalg.norm(X - X[rng.integers(len(X), size=n)][:, None], axis=2)
    yield from np.sin(X @ directions.T).T


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("classes", [1, 3])
def test_means_over_a_coreset_are_within_epsilon(p, classes):
    """Proposition 1 of the paper: W1 bounds the error of every 1-Lipschitz loss."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((120, 3)), rng.integers(classes, size=120)
    coreset = wasserstein_coreset(X, y, 12, p=p)
    indices, weights = coreset
    worst = 0.0
    for values in lipschitz_functions(X, rng):
        error = abs(values.mean() - weights @ values[indices] / weights.sum())
        assert error <= coreset.epsilon + 1e-12
        worst = max(worst, error)
    assert worst > 0.05 * coreset.epsilon
    # The function whose error is epsilon: the distance from the nearest of the coreset.
    if classes == 1:
        nearest = np.linalg.norm(X[:, None] - X[indices], axis=2).min(axis=1)
        assert nearest.mean() == pytest.approx(coreset.epsilon)


@pytest.mark.parametrize("p", [1, 2])
def test_epsilon_is_the_exact_w1_of_rows_and_coreset(p):
    ot = pytest.importorskip("ot")
    X = np.random.default_rng(1).standard_normal((60, 2))
    coreset = wasserstein_coreset(X, size=7, p=p)
    costs = ot.dist(X, X[coreset.indices], metric="euclidean")
    exact = ot.emd2(np.full(60, 1 / 60), coreset.weights / 60, costs)
    assert coreset.epsilon == pytest.approx(exact)
    # Between classes there is no transport: as if they were infinitely far from one another.
    y = (X[:, 0] > 0.3).astype(int)
    coreset = wasserstein_coreset(X, y, 7, p=p)
    costs = ot.dist(X, X[coreset.indices], metric="euclidean")
    costs[y[:, None] != y[coreset.indices]] = 1e6
    exact = ot.emd2(np.full(60, 1 / 60), coreset.weights / 60, costs)
    assert coreset.epsilon == pytest.approx(exact)


def test_a_coreset_ends_at_epsilon():
    X = np.random.default_rng(2).standard_normal((80, 2))
    y = np.repeat([0, 1], 40)
    found = [wasserstein_coreset(X, y, 80, p=1, epsilon=epsilon) for epsilon in (1.0, 0.5, 0.2)]
    for coreset, epsilon in zip(found, (1.0, 0.5, 0.2), strict=True):
        assert coreset.epsilon <= epsilon
        # With one row less, its class is not near enough.
        own = y[coreset.indices] == 0
        rows, kept = X[y == 0], coreset.indices[own][:-1]
        if len(kept):
            gaps = np.linalg.norm(rows[:, None] - X[kept], axis=2).min(axis=1)
            assert gaps.mean() > epsilon
    assert len(found[0].indices) < len(found[1].indices) < len(found[2].indices) < 80
    # The size is the most.
    assert len(wasserstein_coreset(X, y, 6, p=1, epsilon=1e-9).indices) == 6
    assert wasserstein_coreset(X, y, 80, epsilon=0).epsilon == 0
    with pytest.raises(ValueError, match="epsilon"):
        wasserstein_coreset(X, epsilon=-1)


def test_epsilon_of_clouds_is_their_mean_distance():
    X, _ = make_rows()
    settings = {"cloud": CLOUD, "p": 2, "solver": "exact", "n_candidates": None}
    coreset = wasserstein_coreset(X, size=6, random_state=0, **settings)
    first, second = np.meshgrid(np.arange(len(X)), coreset.indices, indexing="ij")
    parts = (X[rows.ravel()].reshape(-1, *CLOUD) for rows in (first, second))
    costs = sinkhorn_divergence(*parts, p=2, solver="exact").reshape(first.shape)
    assert coreset.epsilon == pytest.approx(np.sqrt(costs.min(axis=1)).mean(), rel=1e-3)


def test_measure_coresets_by_distance_are_medians():
    X = np.array([[0.0], [1.0], [5.0], [100.0], [101.0], [105.0]])
    points = measure_coreset(X, 2, p=1, max_iter=500, tol=1e-12, random_state=0)
    assert np.allclose(points.ravel(), [1, 101], atol=1e-2)
    assert np.allclose(measure_coreset(X, 2, random_state=0).ravel(), [2, 102])


def test_measure_coresets_by_distance_have_the_lower_w1():
    ot = pytest.importorskip("ot")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 2)) * rng.exponential(size=(80, 1)) ** 2

    def cost(points):
        return ot.emd2([], [], ot.dist(X, points, metric="euclidean"))

    squares = measure_coreset(X, 8, random_state=0)
    costs = [cost(squares)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for max_iter in (60, 100, 200):
            costs.append(cost(measure_coreset(X, 8, p=1, max_iter=max_iter, random_state=0)))
    assert costs[0] > costs[1] + 1e-3
    assert costs[1] >= costs[2] - 1e-12 >= costs[3] - 2e-12
    with pytest.raises(ValueError, match="'p' parameter"):
        measure_coreset(X, 8, p=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 0}, "size must be"),
        ({"size": 61}, "size must be"),
        ({"size": 1.5}, "size must be"),
        ({"cloud": (3, 2)}, "makes 6 columns, but X has 10"),
        ({"cloud": 5}, "cloud must be"),
        ({"n_candidates": 0}, "n_candidates"),
        ({"n_candidates": "all"}, "n_candidates"),
        ({"tol": -1.0}, "tol"),
        ({"y": np.zeros(3)}, "y must have one entry per row"),
        ({"y": np.full(60, np.nan)}, "y must not contain NaN"),
        ({"p": 0}, "p must be"),
        ({"X": np.zeros(3)}, "X: Expected 2D array"),
        ({"X": np.full((60, 10), np.nan)}, "X contains NaN"),
    ],
)
def test_wrong_input_is_named(change, message):
    X, _ = make_rows()
    with pytest.raises(ValueError, match=message):
        wasserstein_coreset(**{"X": X, "size": 5, "cloud": CLOUD, **change})


@pytest.mark.parametrize("size", [0, 2.5, "few", 61])
def test_wrong_sizes_of_measure_coresets_are_named(size):
    with pytest.raises(ValueError, match="size"):
        measure_coreset(make_rows()[0], size)


def test_wrong_rows_of_measure_coresets_are_named():
    with pytest.raises(ValueError, match="X: Expected 2D array"):
        measure_coreset([1.0, 2.0], 1)


def test_a_huge_tolerance_ends_at_once():
    X, _ = make_rows()
    assert measure_coreset(X, 5, tol=1e300, random_state=0).shape == (5, X.shape[1])


def test_many_rows_are_chosen_as_few_are(monkeypatch):
    X, kinds = make_rows()
    kept = wasserstein_coreset(X, kinds, 0.3, cloud=CLOUD, random_state=0)
    monkeypatch.setattr(_coreset, "_KEPT_ROWS", 0)
    asked = wasserstein_coreset(X, kinds, 0.3, cloud=CLOUD, random_state=0)
    np.testing.assert_array_equal(asked[0], kept[0])
    np.testing.assert_array_equal(asked[1], kept[1])


def test_points_that_still_move_are_told_of():
    X = np.random.default_rng(0).standard_normal((200, 2))
    with pytest.warns(ConvergenceWarning, match=r"after 1 iterations.* move by .*raise max_iter"):
        measure_coreset(X, 20, max_iter=1, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        measure_coreset(X, 20, random_state=0)
