"""Weights of rows and pairs, triplets and grades."""

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import spearmanr
from sklearn.datasets import load_iris, load_wine
from sklearn.preprocessing import StandardScaler

from skdml import DITMLTransformer, GMMLTransformer
from skdml.constraints import make_pairs
from skdml.linear._graded import graded_factors, rank_correlation
from skdml.linear._logdet import LogDetProblem
from skdml.linear._newton import solve_newton
from skdml.linear._projections import solve_parallel, solve_sequential
from skdml.utils._differences import PairDifferences
from skdml.utils._supervision import merge_rows, signed_pairs, weighted_median

LEARNERS = [
    DITMLTransformer(gamma=0.5, tol=1e-10, random_state=0),
    DITMLTransformer(gamma=0.5, bound_percentiles="median", tol=1e-10, random_state=0),
    DITMLTransformer(random_state=0),
    DITMLTransformer(gamma=0.5, pairs="random", prior="covariance", tol=1e-10, random_state=0),
    GMMLTransformer(geodesic=0.3, random_state=0),
    GMMLTransformer(random_state=0),
    GMMLTransformer(geodesic=0.3, pairs="random", prior="covariance", random_state=0),
]
every_learner = pytest.mark.parametrize("learner", LEARNERS, ids=lambda e: str(e)[:60])


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X)[::2], y[::2]


def matrix(learner, X, *args, **kwargs):
    return type(learner)(**learner.get_params()).fit(X, *args, **kwargs).get_mahalanobis_matrix()


def assert_equal_metrics(first, second, tol=1e-5):
    np.testing.assert_allclose(first, second, atol=tol * np.abs(second).max())


# The problem


def weighted_problem(gamma=0.7):
    rng = np.random.default_rng(1)
    C = rng.standard_normal((30, 4))
    signs = np.where(np.arange(30) % 2, 1.0, -1.0)
    bounds = np.where(signs > 0, 1.5, 5.0)
    counts = rng.integers(1, 4, 30)
    rows, pairs = np.vstack([np.zeros(4), C]), np.column_stack([np.arange(1, 31), np.zeros(30)])

    def make(which, weights=None):
        differences = PairDifferences(rows, pairs.astype(int)[which])
        return LogDetProblem(differences, signs[which], bounds[which], gamma, np.eye(4), weights)

    return make(np.arange(30), counts.astype(float)), make(np.repeat(np.arange(30), counts)), counts


@pytest.mark.parametrize("solve", [solve_newton, solve_parallel, solve_sequential])
def test_a_weight_is_a_number_of_equal_pairs(solve):
    weighted, repeated, counts = weighted_problem()
    one = solve(weighted, tol=1e-9, max_iter=5000).point
    many = solve_newton(repeated, tol=1e-10).point
    assert_equal_metrics(one.metric, many.metric, 1e-7)
    assert one.value == pytest.approx(many.value, rel=1e-8)
    assert abs(one.duality_gap) < 1e-6
    sums = np.add.reduceat(many.multipliers, np.cumsum(counts) - counts)
    np.testing.assert_allclose(one.multipliers, sums, atol=1e-6)
    np.testing.assert_allclose(one.slack, many.slack[np.cumsum(counts) - counts], rtol=1e-6)


def test_gradient_of_the_weighted_dual():
    problem, *_ = weighted_problem()
    multipliers = np.random.default_rng(0).uniform(0, 0.02, 30)
    point = problem.at(multipliers)
    for k in range(0, 30, 7):
        step = np.zeros(30)
        step[k] = 1e-6
        rise = problem.at(multipliers + step).value - problem.at(multipliers - step).value
        assert rise / 2e-6 == pytest.approx(point.gradient[k], rel=1e-5, abs=1e-6)


# Pairs


@every_learner
def test_a_pair_weight_of_two_is_the_pair_twice_and_zero_is_none(learner, wine):
    X, y = wine
    pairs, labels = make_pairs(y, 120, random_state=0)
    weights = np.random.default_rng(0).integers(0, 4, len(pairs))
    weighted = matrix(learner, X, pairs=pairs, pair_labels=labels, pair_weight=weights)
    first = np.flatnonzero(weights)
    more = np.repeat(np.arange(len(pairs)), np.maximum(weights - 1, 0))
    order = np.concatenate([first, more])
    with pytest.warns(UserWarning, match="counts as often as it was given"):
        repeated = matrix(learner, X, pairs=pairs[order], pair_labels=labels[order])
    assert_equal_metrics(weighted, repeated)
    plain = matrix(learner, X, pairs=pairs, pair_labels=labels)
    if getattr(learner, learner._chosen) != "auto":
        assert np.abs(plain - weighted).max() > 1e-3 * np.abs(plain).max()


@every_learner
def test_rows_weigh_as_often_as_they_occur(learner, wine):
    X, y = wine
    rng = np.random.default_rng(3)
    weights = rng.integers(0, 4, len(y))
    order = rng.permutation(np.repeat(np.arange(len(y)), weights))
    weighted = matrix(learner, X, y, sample_weight=weights)
    assert_equal_metrics(weighted, matrix(learner, X[order], y[order]))


@every_learner
def test_rows_of_weight_zero_are_absent(learner, wine):
    X, y = wine
    weights = (np.arange(len(y)) % 5 > 0).astype(float)
    kept = weights > 0
    expected = matrix(learner, X[kept], y[kept])
    assert_equal_metrics(matrix(learner, X, y, sample_weight=weights), expected)


def test_pairs_have_the_product_of_the_weights_of_their_rows(wine):
    X, y = wine
    pairs, labels = make_pairs(y, 100, random_state=0)
    weights = np.random.default_rng(0).uniform(0.5, 2, len(y))
    for learner in (LEARNERS[1], LEARNERS[4]):
        by_rows = matrix(learner, X, pairs=pairs, pair_labels=labels, sample_weight=weights)
        product = weights[pairs].prod(axis=1)
        by_pairs = matrix(learner, X, pairs=pairs, pair_labels=labels, pair_weight=product)
        assert_equal_metrics(by_rows, by_pairs)


def test_weights_of_held_out_rows_decide():
    """Two halves of the rows ask for opposite metrics; the weights say which is right."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 2)) * [1, 8]
    y = (X[:, 0] > 0).astype(int)
    y[100:] = X[100:, 1] > 0
    X[:100, 0] += 3 * np.sign(X[:100, 0])
    learner = GMMLTransformer(random_state=0)
    first = matrix(learner, X, y, sample_weight=np.repeat([1, 0.01], 100))
    second = matrix(learner, X, y, sample_weight=np.repeat([0.01, 1], 100))
    assert first[0, 0] / first[1, 1] > 2 * second[0, 0] / second[1, 1]


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_equal_rows_of_a_class_are_one(kind):
    X = np.array([[0, 1.0], [2, 0], [0, 1], [-0.0, 1], [2, 0], [3, 3]])
    rows, weights = merge_rows(kind(X), np.array([0, 1, 0, 0, 0, 1]))
    found = {(*X[row], weight) for row, weight in zip(rows, weights, strict=True)}
    assert found == {(0, 1, 3), (2, 0, 1), (2, 0, 1), (3, 3, 1)}
    assert len(rows) == 4
    assert merge_rows(kind(X[[0, 1, 5]]), np.array([0, 0, 1]))[1] is None


def test_order_of_weighted_rows_is_that_of_their_values():
    X, codes = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(150)
    weights = np.arange(150) % 3
    rows, found = merge_rows(X, codes, weights)
    again, found_again = merge_rows(X[order], codes[order], weights[order])
    np.testing.assert_array_equal(X[rows], X[order][again])
    np.testing.assert_array_equal(found, found_again)


@pytest.mark.parametrize("seed", range(5))
def test_weighted_median_is_that_of_repeated_values(seed):
    rng = np.random.default_rng(seed)
    values, counts = rng.integers(0, 9, 12).astype(float), rng.integers(1, 4, 12)
    assert weighted_median(values, counts) == np.median(np.repeat(values, counts))


# Triplets and grades


@pytest.mark.parametrize("learner", [LEARNERS[1], LEARNERS[4]], ids=["DITML", "GMML"])
def test_triplets_are_their_pairs(learner, wine):
    X, _ = wine
    triplets = np.array([[0, 1, 60], [2, 3, 61], [40, 41, 5], [70, 71, 3], [2, 5, 62], [7, 9, 50]])
    pairs = np.vstack([triplets[:, :2], triplets[:, ::2]])
    labels = np.repeat([1, -1], 6)
    expected = matrix(learner, X, pairs=pairs, pair_labels=labels)
    assert_equal_metrics(matrix(learner, X, triplets=triplets), expected)
    weighted = matrix(learner, X, triplets=triplets, pair_weight=[1, 1, 1, 1, 0, 0])
    assert_equal_metrics(weighted, matrix(learner, X, triplets=triplets[:4]))


@pytest.mark.parametrize("learner", [LEARNERS[1], LEARNERS[4]], ids=["DITML", "GMML"])
def test_grades_are_weights(learner, wine):
    X, y = wine
    pairs, _ = make_pairs(y, 60, random_state=0)
    grades = np.random.default_rng(0).normal(size=60)
    centred = grades - grades.mean()
    centred /= np.abs(centred).mean()
    expected = matrix(
        learner, X, pairs=pairs, pair_labels=np.sign(centred), pair_weight=np.abs(centred)
    )
    assert_equal_metrics(matrix(learner, X, pairs=pairs, pair_similarity=grades), expected)
    for same in (grades + 7, 1e199 * grades):
        assert_equal_metrics(matrix(learner, X, pairs=pairs, pair_similarity=same), expected)


def test_rank_correlation_is_that_of_repeated_pairs():
    rng = np.random.default_rng(0)
    values, grades = rng.normal(size=20), rng.integers(0, 4, 20).astype(float)
    counts = rng.integers(1, 4, 20)
    expected = spearmanr(np.repeat(values, counts), np.repeat(grades, counts))[0]
    assert rank_correlation(values, grades, counts.astype(float)) == pytest.approx(expected)


def test_regression_of_grades_solves_its_problem(monkeypatch):
    """Against least squares over all entries of M, which are made explicit."""
    rng = np.random.default_rng(0)
    n, d = 40, 3
    first, second = rng.normal(size=(2, n, d))
    grades = np.einsum("ij,ij->i", first, second) + rng.normal(size=n)
    weights = rng.uniform(0.5, 2, n)
    products = np.einsum("ij,ij->i", first, second)
    root = np.sqrt(weights)
    design = np.column_stack([np.ones(n), products])
    line = np.linalg.lstsq(root[:, None] * design, root * grades, rcond=None)[0]
    rest = grades - design @ line
    outer = (first[:, :, None] * second[:, None] + second[:, :, None] * first[:, None]) / 2
    outer = outer.reshape(n, d * d)
    ridge = 3 * np.average((outer**2).sum(axis=1), weights=weights)
    system = (outer.T * weights) @ outer + ridge * np.eye(d * d)
    M = np.linalg.solve(system, outer.T @ (weights * rest)).reshape(d, d) / line[1]
    eigenvalues, vectors = np.linalg.eigh(np.eye(d) + M)
    expected = (vectors * np.maximum(eigenvalues, 1e-6 * eigenvalues[-1])) @ vectors.T
    (L,) = graded_factors(first, second, grades, weights, [3.0])
    np.testing.assert_allclose(L @ L.T, expected, atol=1e-9)
    monkeypatch.setattr("skdml.linear._graded._MOST_DENSE", 0)
    (L,) = graded_factors(first, second, grades, weights, [3.0])
    np.testing.assert_allclose(L @ L.T, expected, atol=1e-3)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("cls", [DITMLTransformer, GMMLTransformer])
def test_grades_teach_a_metric_that_orders_unseen_pairs(cls, metric):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 8))
    scale = np.where(np.arange(8) < 2, 3.0, 0.3)
    target = X * scale
    if metric == "cosine":
        target = target / np.linalg.norm(target, axis=1, keepdims=True)
    pairs = rng.integers(0, 300, (400, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    grades = -np.linalg.norm(target[pairs[:, 0]] - target[pairs[:, 1]], axis=1)
    model = cls(metric=metric, random_state=0)
    model.fit(X, pairs=pairs[:250], pair_similarity=grades[:250])
    plain = X / np.linalg.norm(X, axis=1, keepdims=True) if metric == "cosine" else X
    raw = -np.linalg.norm(plain[pairs[250:, 0]] - plain[pairs[250:, 1]], axis=1)
    learned = spearmanr(model.pair_score(pairs[250:], X), grades[250:])[0]
    assert learned > spearmanr(raw, grades[250:])[0] + 0.1
    assert set(model.path_["round"]) == {0, 1, 2}


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sample_weight": [-1.0] * 89}, "sample_weight must not be negative"),
        ({"sample_weight": [0.0] * 89}, "sample_weight is zero everywhere"),
        ({"sample_weight": [1e200] * 89}, "sample_weight must have its largest entry between"),
        ({"sample_weight": [1.0] * 3}, "sample_weight must have 89 entries, got 3"),
        ({"pair_weight": [1.0] * 3}, "pair_weight was given without pairs or triplets"),
        ({"pair_similarity": [1.0] * 3}, "pair_similarity was given without pairs"),
        ({"triplets": [[0, 1]]}, "triplets must be row indices"),
        ({"triplets": [[0, 1, 500]]}, "triplets names rows 0 to 500"),
        ({"pairs": [[0, 1], [1, 60]], "triplets": [[0, 1, 2]]}, "pairs and triplets were given"),
        ({"pairs": [[0, 1], [1, 60]], "pair_similarity": [1.0, 1.0]}, "is the same for all pairs"),
        ({"pairs": [[0, 1], [1, 60]], "pair_similarity": [1.0]}, "has 1 entries for 2 pairs"),
        (
            {"pairs": [[0, 1], [1, 60]], "pair_labels": [1, -1], "pair_weight": [1, np.nan]},
            "pair_weight must be finite",
        ),
    ],
)
def test_bad_weights_are_named(wine, arguments, message):
    for cls in (DITMLTransformer, GMMLTransformer):
        with pytest.raises(ValueError, match=message):
            cls().fit(*wine, **arguments)


def test_signed_pairs_keep_their_order():
    pairs, signed, _ = signed_pairs(
        [[3, 1], [0, 2], [1, 3]], [1, -1, 1], 4, pair_weight=[1.0, 2.0, 0.5]
    )
    np.testing.assert_array_equal(pairs, [[1, 3], [0, 2]])
    np.testing.assert_array_equal(signed, [1.5, -2])


def test_huge_weights_of_graded_pairs_are_no_failure_of_rounding():
    rng = np.random.RandomState(0)
    X, pairs = rng.randn(36, 1), rng.randint(36, size=(30, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    grades = np.abs(X[pairs[:, 0], 0] - X[pairs[:, 1], 0]) + rng.rand(len(pairs))
    model = GMMLTransformer(random_state=0)
    model.fit(X, pairs=pairs, pair_similarity=-grades, pair_weight=np.full(len(pairs), 1e24))
    assert np.isfinite(model.get_mahalanobis_matrix()).all()
