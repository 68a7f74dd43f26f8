import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar, root
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.preprocessing import StandardScaler

from skdml.constraints import make_pairs
from skdml.linear import _newton
from skdml.linear._logdet import LogDetProblem
from skdml.linear._newton import solve_newton
from skdml.linear._projections import solve_parallel, solve_sequential
from skdml.utils._differences import PairDifferences

SOLVERS = [solve_sequential, solve_parallel, solve_newton]
every_solver = pytest.mark.parametrize("solve", SOLVERS)
every_gamma = pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0, np.inf])


def make_problem(C, signs, bounds, gamma, prior_inverse=None):
    C = np.asarray(C, dtype=float)
    n, d = C.shape
    pairs = np.column_stack([np.arange(n), np.full(n, n)])
    return LogDetProblem(
        PairDifferences(np.vstack([C, np.zeros((1, d))]), pairs),
        np.asarray(signs, dtype=float),
        np.asarray(bounds, dtype=float),
        gamma,
        np.eye(d) if prior_inverse is None else prior_inverse,
    )


def random_problem(gamma=1.0, prior="identity", n=8, d=4, seed=0):
    """Some pairs violate their bound under the prior, some do not."""
    rng = np.random.default_rng(seed)
    C = rng.standard_normal((n, d))
    signs = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    root = rng.standard_normal((d, 2 * d))
    prior_inverse = np.eye(d) if prior == "identity" else root @ root.T / (2 * d)
    distances = np.array([c @ np.linalg.inv(prior_inverse) @ c for c in C])
    bounds = distances * np.where(signs > 0, rng.uniform(0.3, 1.2, n), rng.uniform(0.8, 2, n))
    return make_problem(C, signs, bounds, gamma, prior_inverse)


def real_problem(load, n_constraints, gamma, seed=0):
    """Standardised; bounds at the 5th and 95th percentile of the squared distances."""
    X, y = load(return_X_y=True)
    X = StandardScaler().fit_transform(X[:, np.ptp(X, axis=0) > 0])
    pairs, labels = make_pairs(y, n_constraints, random_state=seed)
    i, j = np.random.default_rng(seed).integers(0, len(X), (2, 5000))
    near, far = np.percentile(((X[i] - X[j]) ** 2).sum(axis=1)[i != j], [5, 95])
    bounds, prior = np.where(labels > 0, near, far), np.eye(X.shape[1])
    return LogDetProblem(PairDifferences(X, pairs), labels * 1.0, bounds, gamma, prior)


def random_multipliers(problem, seed=0):
    """Some zero, the others small enough for the domain of the dual function."""
    rng, n = np.random.default_rng(seed), len(problem.signs)
    while True:
        lam = rng.exponential(0.2, n) * (rng.random(n) > 0.3)
        if np.isfinite(dual_value(problem, lam)):
            return lam


# A slow reference, from the definitions


def inverse_metric(problem, lam):
    inverse = problem.prior_inverse.copy()
    for k, c in enumerate(problem.differences.to_array()):
        inverse += problem.signs[k] * lam[k] * np.outer(c, c)
    return inverse


def distances_under(problem, A):
    return np.array([c @ A @ c for c in problem.differences.to_array()])


def dual_value(problem, lam):
    inverse = inverse_metric(problem, lam)
    ratio = 1 - problem.signs * lam * problem.bounds / problem.gamma
    if np.linalg.eigvalsh(inverse)[0] <= 0 or (ratio <= 0).any():
        return -np.inf
    value = np.linalg.slogdet(inverse)[1] - np.linalg.slogdet(problem.prior_inverse)[1]
    if np.isinf(problem.gamma):  # the limit of the sum below
        return value - np.sum(problem.signs * lam * problem.bounds)
    return value + problem.gamma * np.sum(np.log(ratio))


def dual_gradient(problem, lam):
    p = distances_under(problem, np.linalg.inv(inverse_metric(problem, lam)))
    ratio = 1 - problem.signs * lam * problem.bounds / problem.gamma
    return problem.signs * (p - problem.bounds / ratio)


def logdet_divergence(A, inverse):
    product = A @ inverse
    return np.trace(product) - np.linalg.slogdet(product)[1] - len(A)


def total_divergence(problem, A, xi, inverse, slack):
    if np.isinf(problem.gamma):
        return logdet_divergence(A, inverse)
    ratio = xi / slack
    return logdet_divergence(A, inverse) + problem.gamma * np.sum(ratio - np.log(ratio) - 1)


def primal_value(problem, A, xi):
    return total_divergence(problem, A, xi, problem.prior_inverse, problem.bounds)


def cyclic_projections(problem, sweeps):
    """Classic ITML: each pair in turn is projected onto its bound."""
    gamma, A, xi = problem.gamma, np.linalg.inv(problem.prior_inverse), problem.bounds.copy()
    lam = np.zeros(len(xi))
    for _ in range(sweeps):
        for k, c in enumerate(problem.differences.to_array()):
            sign, p = problem.signs[k], c @ A @ c
            alpha = min(lam[k], sign * gamma / (gamma + 1) * (1 / p - 1 / xi[k]))
            beta = sign * alpha / (1 - sign * alpha * p)
            xi[k] = gamma * xi[k] / (gamma + sign * alpha * xi[k])
            lam[k] -= alpha
            A = A + beta * A @ np.outer(c, c) @ A
    return A


def generic_optimum(problem):
    """Multipliers by general-purpose solvers: L-BFGS-B for the active set, then a root on it."""
    lam = np.zeros(len(problem.signs))
    lam = minimize(
        lambda at: min(-dual_value(problem, at), 1e6),
        lam,
        jac=lambda at: -dual_gradient(problem, at),
        method="L-BFGS-B",
        bounds=[(0, None)] * len(lam),
        options={"ftol": 1e-15},
    ).x
    free = np.flatnonzero(lam)

    def slope(at):
        lam[free] = at
        return dual_gradient(problem, lam)[free]

    lam[free] = root(slope, lam[free], tol=1e-12).x
    return lam


def central_differences(function, at, step=1e-6):
    steps = step * np.eye(len(at))
    return np.array([function(at + h) - function(at - h) for h in steps]) / (2 * step)


def relative_error(A, B):
    return np.linalg.norm(A - B) / np.linalg.norm(B)


# The dual function


@pytest.mark.parametrize("prior", ["identity", "random"])
@pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0])
def test_solvers_reach_the_optimum_of_two_slow_references(gamma, prior):
    problem = random_problem(gamma, prior)
    projected = cyclic_projections(problem, 500)
    generic = np.linalg.inv(inverse_metric(problem, generic_optimum(problem)))
    assert relative_error(generic, projected) < 1e-11
    assert relative_error(np.linalg.inv(problem.prior_inverse), projected) > 0.01
    sweeps = solve_sequential(problem, max_iter=3, tol=0).point.metric
    np.testing.assert_allclose(sweeps, cyclic_projections(problem, 3), rtol=1e-9, atol=1e-12)
    for solve in SOLVERS:
        result = solve(problem, tol=1e-7)
        assert result.converged
        assert relative_error(result.point.metric, projected) < 1e-6
        inverse = inverse_metric(problem, result.point.multipliers)
        np.testing.assert_allclose(result.point.metric @ inverse, np.eye(4), atol=1e-10)


@every_gamma
@pytest.mark.parametrize("prior", ["identity", "random"])
def test_value_slack_metric_and_distances_follow_the_definition(gamma, prior):
    problem = random_problem(gamma, prior)
    lam = random_multipliers(problem)
    point = problem.at(lam)
    A = np.linalg.inv(inverse_metric(problem, lam))
    xi = 1 / (1 / problem.bounds - problem.signs * lam / gamma)
    np.testing.assert_allclose(point.value, dual_value(problem, lam), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(point.metric, A, atol=1e-10)
    np.testing.assert_allclose(point.slack, xi, rtol=1e-10)
    np.testing.assert_allclose(point.distances, distances_under(problem, A), rtol=1e-9)


def test_outside_the_domain_there_is_no_point():
    # inv(A) = 1 - lambda along c: not positive definite from lambda = 1 on
    far = make_problem([[1.0, 0.0]], [-1], [1.0], 1.0)
    assert far.at(np.array([0.99])) is not None
    assert far.at(np.array([1.0])) is far.at(np.array([2.0])) is None
    # 1 / xi = 1 - lambda / gamma: not positive from lambda = gamma on
    near = make_problem([[1.0, 0.0]], [1], [1.0], 3.0)
    assert near.at(np.array([2.99])) is not None
    assert near.at(np.array([3.0])) is near.at(np.array([7.0])) is None


@every_solver
def test_a_prior_that_is_not_positive_definite_is_named(solve):
    problem = make_problem([[1.0, 0.0]], [1], [0.5], 1.0, np.diag([1.0, -1.0]))
    with pytest.raises(ValueError, match="prior is not positive definite"):
        solve(problem)


@every_gamma
def test_gradient_is_the_slope_of_the_value(gamma):
    problem = random_problem(gamma, "random")
    lam = random_multipliers(problem)
    slope = central_differences(lambda at: problem.at(at).value, lam)
    np.testing.assert_allclose(problem.at(lam).gradient, slope, rtol=1e-5, atol=1e-6)
    slope = central_differences(lambda at: dual_value(problem, at), lam)
    np.testing.assert_allclose(dual_gradient(problem, lam), slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0])
def test_weak_duality_and_the_gap(gamma):
    problem = random_problem(gamma, "random")
    b, signs, rng = problem.bounds, problem.signs, np.random.default_rng(3)
    best = solve_newton(problem, tol=1e-12).point
    assert abs(best.duality_gap) < 1e-9
    for seed in range(10):
        point = problem.at(random_multipliers(problem, seed))
        assert point.duality_gap > 1e-4
        # the gap is that to the primal objective with the best slack for this metric
        p = distances_under(problem, point.metric)
        xi = np.where(signs > 0, np.maximum(p, b), np.minimum(p, b))
        gap = primal_value(problem, point.metric, xi) - dual_value(problem, point.multipliers)
        np.testing.assert_allclose(point.duality_gap, gap, rtol=1e-8)
        # any metric with any slack that satisfies the constraints costs at least the value
        root = rng.standard_normal((4, 8))
        A = root @ root.T / 8
        xi = distances_under(problem, A) * np.exp(signs * rng.exponential(0.5, len(b)))
        assert primal_value(problem, A, xi) > best.value > point.value


def test_gap_with_hard_bounds_is_infinite_until_all_are_satisfied():
    problem = make_problem([[2.0, 0.0]], [1], [1.0], np.inf)
    assert problem.at(np.zeros(1)).duality_gap == np.inf
    # p = 4 / (1 + 4 lambda) = 1 at 3 / 4; there A = diag(1 / 4, 1)
    best = problem.at(np.array([0.75]))
    np.testing.assert_allclose(best.value, 0.25 + np.log(4) - 1)
    np.testing.assert_allclose(best.duality_gap, 0, atol=1e-12)


@every_gamma
def test_kkt_residual_vanishes_at_the_optimum_only(gamma):
    problem = random_problem(gamma, n=4)
    best = solve_newton(problem, tol=1e-12).point
    assert best.kkt_residual < 1e-11
    assert (best.multipliers > 0).any()
    for k, bound in enumerate(problem.bounds):
        moved = best.multipliers.copy()
        moved[k] += 1e-3 / bound
        assert problem.at(moved).kkt_residual > 1e-5
    assert problem.at(np.zeros(4)).kkt_residual > 0.01


def test_kkt_residual_is_the_relative_violation():
    # similar at 4 with bound 1; dissimilar at 9 with bound 4, satisfied
    problem = make_problem(np.diag([2.0, 3.0]), [1, -1], [1.0, 4.0], 1.0)
    assert problem.at(np.zeros(2)).kkt_residual == pytest.approx((4 - 1) / 1)
    # a multiplier on the satisfied pair counts as lambda xi, xi = 1 / (1 / 4 + 0.01)
    alone = make_problem([[0.0, 3.0]], [-1], [4.0], 1.0)
    assert alone.at(np.zeros(1)).kkt_residual == 0
    assert alone.at(np.array([0.01])).kkt_residual == pytest.approx(0.01 / 0.26)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 10.0, np.inf])
def test_projection_is_the_exact_maximum_along_its_multiplier(gamma):
    problem = random_problem(gamma, "random")
    lam = random_multipliers(problem, 20)
    after = lam - problem.at(lam).projections
    assert (after[lam > 0] == 0).any()  # some end at zero, some fall, some rise
    assert set(np.sign(after - lam)[after > 0]) == {-1, 1}
    for k, unit in enumerate(np.eye(len(lam))):
        best = minimize_scalar(
            lambda t, k=k, unit=unit: -dual_value(problem, lam + (t - lam[k]) * unit),
            bounds=(0, 2 * after[k] + 0.001),
            method="bounded",
            options={"xatol": 1e-10},
        )
        np.testing.assert_allclose(after[k], best.x, atol=1e-6)


@pytest.mark.parametrize("gamma", [0.3, 1.0, np.inf])
def test_divergence_from_the_optimum(gamma):
    problem = random_problem(gamma, "random", n=5)
    best = solve_newton(problem, tol=1e-12).point
    assert best.divergence_from(best.multipliers, best.value) == pytest.approx(0, abs=1e-12)
    for seed in range(5):
        point = problem.at(random_multipliers(problem, seed))
        inverse = inverse_metric(problem, point.multipliers)
        expected = total_divergence(problem, best.metric, best.slack, inverse, point.slack)
        found = best.divergence_from(point.multipliers, point.value)
        np.testing.assert_allclose(found, expected, rtol=1e-8)
        assert 0 < found <= best.value - point.value + 1e-12


# The Newton system


def without_dense_hessian(monkeypatch):
    monkeypatch.setattr(_newton, "_ALWAYS_DENSE", 0)
    monkeypatch.setattr(_newton, "_MOST_DENSE", 0)
    monkeypatch.setattr(_newton, "_MOST_NUMBERS", 0)
    monkeypatch.delattr(_newton, "cho_factor")


@pytest.mark.parametrize("gamma", [0.5, 10.0])
def test_newton_direction_solves_the_newton_system(gamma, monkeypatch):
    problem = random_problem(gamma, "random")
    lam = random_multipliers(problem)
    point, free = problem.at(lam), lam > 0
    H = -central_differences(lambda at: problem.at(at).gradient, lam)[np.ix_(free, free)]
    dense = _newton._newton_direction(problem, point, free)
    np.testing.assert_allclose(H @ dense, point.gradient[free], rtol=1e-5, atol=1e-6)

    without_dense_hessian(monkeypatch)
    point.kkt_residual = 1e-24  # the tolerance of conjugate gradients follows the residual
    iterative = _newton._newton_direction(problem, point, free)
    np.testing.assert_allclose(iterative, dense, rtol=1e-6, atol=1e-9)


@every_gamma
def test_newton_with_conjugate_gradients_reaches_the_same_metric(gamma, monkeypatch):
    problem = real_problem(load_wine, 10 if np.isinf(gamma) else 200, gamma)
    expected = solve_newton(problem, tol=1e-9)
    without_dense_hessian(monkeypatch)
    result = solve_newton(problem, tol=1e-9)
    assert (expected.converged, result.converged) == (True, True)
    assert relative_error(result.point.metric, expected.point.metric) < 1e-6


def test_many_pairs_in_few_dimensions_go_without_a_dense_hessian(monkeypatch):
    problem = random_problem(0.1, "random", n=9000, d=3)
    problem.bounds = np.where(problem.signs > 0, 0.3, 9.0)  # most are violated
    monkeypatch.delattr(_newton, "_newton_direction")
    expected, result = solve_parallel(problem, tol=1e-7), solve_newton(problem, tol=1e-7)
    assert relative_error(result.point.metric, expected.point.metric) < 1e-6


def contradicting_problem(gamma, seed=0, d=5):
    """Bounds that contradict each other: random pairs are similar, others dissimilar."""
    problem = random_problem(gamma, "random", n=600, d=d, seed=seed)
    problem.bounds = np.where(problem.signs > 0, 0.1, 10.0)
    return problem


@pytest.mark.parametrize("gamma", [10.0, 1e3, 1e5])
@pytest.mark.parametrize("seed", range(3))
def test_newton_converges_with_a_large_gamma(gamma, seed):
    result = solve_newton(contradicting_problem(gamma, seed), max_iter=100)
    assert result.converged
    assert result.point.kkt_residual < 1e-6
    assert abs(result.point.duality_gap) < 1e-8 * abs(result.point.value)
    # The dual value never falls, and idle pairs have a multiplier of 0.
    assert np.all(np.diff(result.history["value"]) >= -1e-9 * abs(result.point.value))
    assert np.sum(result.point.multipliers > 0) > 0


@pytest.mark.parametrize("gamma", [0.5, 10.0])
def test_steps_on_the_metric_reach_the_same_metric(gamma, monkeypatch):
    problem = contradicting_problem(gamma)
    expected = solve_parallel(problem, tol=1e-8, max_iter=20_000)
    assert expected.converged
    monkeypatch.delattr(_newton, "_newton_direction")
    result = solve_newton(problem, tol=1e-8)
    assert result.converged
    assert result.n_iter < 40
    assert relative_error(result.point.metric, expected.point.metric) < 1e-5


def test_newton_ends_where_rounding_forbids_the_tolerance():
    result = solve_newton(contradicting_problem(1e12), max_iter=100)
    assert not result.converged
    assert result.stop_reason


# Solvers


@pytest.mark.parametrize("gamma", [0.1, 1.0])
@pytest.mark.parametrize(
    ("load", "n_constraints"),
    [
        (load_wine, 200),
        (load_breast_cancer, 400),
        (load_digits, 1000),
        pytest.param(load_digits, 2000, marks=pytest.mark.slow),
    ],
)
def test_newton_and_parallel_agree_and_climb(load, n_constraints, gamma):
    problem = real_problem(load, n_constraints, gamma)
    newton, parallel = solve_newton(problem, tol=1e-8), solve_parallel(problem, tol=1e-8)
    for result in (newton, parallel):
        assert (result.converged, result.stop_reason) == (True, "converged")
        assert result.point.kkt_residual <= 1e-8
        value = np.array(result.history["value"])
        assert (np.diff(value) >= -2e-12 * max(1, value[-1])).all()
    assert newton.n_iter < 30
    assert relative_error(parallel.point.metric, newton.point.metric) < 1e-6


@pytest.mark.parametrize(
    ("load", "n_constraints", "gamma"),
    [
        (load_wine, 200, 0.1),
        (load_wine, 200, 1.0),
        (load_breast_cancer, 400, 0.1),
        (load_digits, 1000, 0.1),
        pytest.param(load_breast_cancer, 400, 1.0, marks=pytest.mark.slow),
        pytest.param(load_digits, 1000, 1.0, marks=pytest.mark.slow),
        pytest.param(load_digits, 2000, 0.1, marks=pytest.mark.slow),
    ],
)
def test_sequential_reaches_the_same_metric(load, n_constraints, gamma):
    problem = real_problem(load, n_constraints, gamma)
    expected = solve_newton(problem, tol=1e-10).point.metric
    result = solve_sequential(problem, tol=1e-5, max_iter=10_000)
    assert result.converged
    assert relative_error(result.point.metric, expected) < 1e-4


@every_solver
def test_recorded_divergence_falls_to_nothing(solve):
    result = solve(real_problem(load_wine, 60, 0.3), tol=1e-7, divergence=True)
    divergence, value = np.array(result.history["divergence"]), np.array(result.history["value"])
    assert len(divergence) == result.n_iter
    assert divergence[0] > 0.1 > 1e-7 > divergence[-2]
    assert divergence[-1] == 0
    assert ((divergence > -1e-12) & (divergence <= value[-1] - value + 1e-6)).all()


@every_solver
def test_stop_reasons_and_callback(solve):
    problem, seen = real_problem(load_wine, 60, 1.0), []
    result = solve(problem, max_iter=3, callback=seen.append)
    assert (result.converged, result.n_iter) == (False, 3)
    assert result.stop_reason == "max_iter=3 reached"
    assert [point.value for point in seen] == result.history["value"]
    assert [point.kkt_residual for point in seen] == result.history["kkt_residual"]
    assert seen[-1] is result.point
    assert "divergence" not in result.history
    calls = iter([False, True])
    stopped = solve(problem, callback=lambda point: next(calls))
    assert (stopped.converged, stopped.n_iter) == (False, 2)
    assert stopped.stop_reason == "a callback asked to stop"


@pytest.mark.parametrize("solve", [solve_parallel, solve_newton])
@pytest.mark.parametrize("seed", [53, 61, 65, 94])
def test_a_tight_tolerance_is_reached_though_the_value_no_longer_changes(solve, seed):
    result = solve(random_problem(10.0, "random", seed=seed), tol=1e-10, max_iter=5000)
    assert result.converged, result.stop_reason


# Degenerate and impossible problems


LINE = np.array([1.0, -2.0, 0.5])
ROWS = np.random.default_rng(0).standard_normal((6, 3))
NORMS = (ROWS**2).sum(axis=1)
SIGNS, BOUNDS = [1, 1, 1, -1, -1, -1], [0.1, 0.1, 0.1, 6.0, 6.0, 6.0]


@every_solver
@pytest.mark.parametrize(
    ("C", "signs", "bounds"),
    [
        pytest.param(ROWS[:, :1], SIGNS, BOUNDS, id="one feature"),
        pytest.param(ROWS[:, :1] * LINE, SIGNS, BOUNDS, id="rank one"),
        pytest.param(ROWS[:, [0, 1, 2, 0]], SIGNS, BOUNDS, id="collinear features"),
        pytest.param(np.tile(ROWS, (3, 1)), SIGNS * 3, BOUNDS * 3, id="duplicate pairs"),
        pytest.param([LINE, LINE], [1, -1], [0.1, 9.0], id="contradictory pair"),
        pytest.param([LINE], [-1], [90.0], id="one pair"),
        pytest.param(ROWS[:, :1] * LINE, [1] * 6, [1e-9] * 6, id="tiny bounds"),
    ],
)
def test_degenerate_pairs_give_a_metric(solve, C, signs, bounds):
    result = solve(make_problem(C, signs, bounds, 1.0), tol=1e-5)
    assert result.converged
    eigenvalues = np.linalg.eigvalsh(result.point.metric)
    assert 0 < eigenvalues[0] <= eigenvalues[-1] < np.inf


@pytest.mark.parametrize("gamma", [1e6, np.inf])
@every_solver
def test_hard_bounds_are_met_where_they_can_be(solve, gamma):
    problem = make_problem(ROWS[:4], [1, 1, -1, -1], NORMS[:4] * [0.5, 0.5, 2, 2], gamma)
    result = solve(problem, tol=1e-6)
    assert result.converged
    p = distances_under(problem, result.point.metric)
    assert (problem.signs * (p - problem.bounds) <= 1e-5 * problem.bounds).all()


@every_solver
def test_impossible_hard_bounds_show_in_a_value_that_grows_without_end(solve):
    rows, factor = [*range(6), 0], [0.5, 0.5, 0.5, 2, 2, 2, 2]  # the first is near and far
    problem = make_problem(ROWS[rows], [*SIGNS, -1], NORMS[rows] * factor, np.inf)
    result = solve(problem, max_iter=100)
    assert (result.converged, result.n_iter) == (False, 100)
    assert result.point.kkt_residual > 0.1
    value = result.history["value"]
    # until the multipliers are so large that rounding stops it
    assert value[-1] > 1e9 or value[-1] > 1.4 * value[50] > 2 * value[20] > 0
    assert np.isfinite(result.point.multipliers).all()
    assert np.linalg.eigvalsh(result.point.metric)[0] > 0
