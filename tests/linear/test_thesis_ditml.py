"""Formulas of the thesis (chapter 3) that do not hold as printed, next to the right ones.

The thesis writes c for the difference of a pair, p = c' A c, d (here xi) for its bound with
slack, lambda for its multiplier and gamma for the price of slack. Similar and dissimilar pairs
have the same formulas but for a sign, delta = +1 and -1.
"""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.preprocessing import StandardScaler

from skdml.constraints import make_pairs
from skdml.linear._logdet import LogDetProblem
from skdml.linear._newton import solve_newton
from skdml.linear._projections import solve_parallel
from skdml.utils._differences import PairDifferences


def make_problem(X, pairs, labels, bounds, gamma):
    differences = PairDifferences(X, np.asarray(pairs))
    signs = np.asarray(labels, dtype=float)
    return LogDetProblem(differences, signs, bounds, gamma, np.eye(X.shape[1]))


def one_pair(sign, bound, gamma):
    """One pair at a squared distance of 4."""
    X = np.array([[2.0, 0.0], [0.0, 0.0]])
    return make_problem(X, [[0, 1]], [sign], np.array([bound]), gamma)


def two_pairs():
    """A similar pair that is too far and a dissimilar one that is too near."""
    X = np.array([[2.0, 0.5, 0.0], [0.3, 1.0, 0.2], [0.0, 0.0, 0.0]])
    return make_problem(X, [[0, 2], [1, 2]], [1, -1], np.array([1.2, 3.5]), 1.0)


def standard_data(load, n_constraints=200, seed=0):
    X, y = load(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    pairs, labels = make_pairs(y, n_constraints, random_state=seed)
    squared = ((X[:, None] - X) ** 2).sum(axis=-1)[np.triu_indices(len(X), 1)]
    own = ((X[pairs[:, 0]] - X[pairs[:, 1]]) ** 2).sum(axis=1)
    return X, pairs, labels, squared, own


def percentile_problem(load, gamma=1.0, seed=0):
    X, pairs, labels, squared, _ = standard_data(load, seed=seed)
    near, far = np.percentile(squared, [5, 95])
    return make_problem(X, pairs, labels, np.where(labels > 0, near, far), gamma)


def phi(A):
    return -np.linalg.slogdet(A)[1]


def divergence(A, B):
    return np.trace(A @ np.linalg.inv(B)) - len(A) + phi(A) - phi(B)


def smallest_eigenvalue(A):
    return np.linalg.eigvalsh(A)[0]


def printed_projection(point):
    signs, gamma = point.problem.signs, point.problem.gamma
    printed = signs / 2 * (1 / point.distances - gamma / point.slack)
    return np.minimum(point.multipliers, printed)


def undamped_rounds(problem, n_rounds, how):
    """A, beta and lambda after every round; a round projects all pairs exactly from the same A.

    how="restart" is eq. 3.7, A = I + sum of beta z z' with z = A c; "add" is eq. 3.11, with A in
    place of I; "add inverse" puts the same projections into the inverse of A.
    """
    C, signs, gamma = problem.differences.to_array(), problem.signs, problem.gamma
    A, multipliers, xi = np.eye(C.shape[1]), np.zeros(len(C)), problem.bounds
    for _ in range(n_rounds):
        Z = C @ A
        p = np.einsum("ij,ij->i", C, Z)
        alpha = np.minimum(multipliers, signs * gamma / (gamma + 1) * (1 / p - 1 / xi))
        beta = signs * alpha / (1 - signs * alpha * p)
        multipliers, xi = multipliers - alpha, 1 / (1 / xi + signs * alpha / gamma)
        if how == "restart":
            A = np.eye(len(A)) + (Z.T * beta) @ Z
        elif how == "add":
            A = A + (Z.T * beta) @ Z
        else:
            A = np.linalg.inv(np.linalg.inv(A) - (C.T * (signs * alpha)) @ C)
        yield A, beta, multipliers


# The projection


@pytest.mark.parametrize(("sign", "bound"), [(1, 1.0), (-1, 9.0)])
@pytest.mark.parametrize("gamma", [0.5, 1.0, 10.0, 100.0])
def test_projection_formula_holds_at_gamma_one_only(sign, bound, gamma):
    """Printed: alpha = min(lambda, delta / 2 (1 / p - gamma / xi)).

    A projection ends where p = xi. From 1 / p and 1 / xi changing by -delta alpha and
    +delta alpha / gamma follows alpha = min(lambda, delta gamma / (gamma + 1) (1 / p - 1 / xi)),
    the same at gamma = 1. At gamma = 100, which the thesis uses, the printed one overshoots a
    hundredfold for a similar pair and leaves a dissimilar one where it is.
    """
    problem = one_pair(sign, bound, gamma)
    start = problem.at(np.zeros(1))
    right = problem.at(start.multipliers - start.projections)
    np.testing.assert_allclose(right.distances, right.slack, rtol=1e-12)
    assert right.kkt_residual < 1e-12

    printed = printed_projection(start)
    if gamma == 1:
        np.testing.assert_allclose(printed, start.projections, rtol=1e-12)
        return
    after = problem.at(np.maximum(start.multipliers - printed, 0))
    assert after is None or after.kkt_residual > 0.1
    if gamma == 100 and sign > 0:
        np.testing.assert_allclose(after.slack, 100 * after.distances, rtol=1e-10)


@pytest.mark.parametrize("gamma", [0.5, 10.0])
def test_the_optimum_is_no_fixed_point_of_the_printed_projection(gamma):
    """At the optimum p = xi for a pair with a multiplier, where the printed alpha is not zero."""
    best = solve_newton(percentile_problem(load_wine, gamma), tol=1e-10).point
    held = best.multipliers > 1e-3
    np.testing.assert_allclose(best.projections[held], 0, atol=1e-9)
    signs = best.problem.signs[held]
    expected = np.minimum(best.multipliers[held], signs * (1 - gamma) / 2 / best.distances[held])
    np.testing.assert_allclose(printed_projection(best)[held], expected, atol=1e-9)
    assert np.abs(expected).max() > 0.01


# Algorithm 1


@pytest.mark.parametrize("problem", [one_pair(1, 1.0, 1.0), two_pairs()], ids=["one", "two"])
def test_algorithm_1_returns_the_identity_when_it_converges(problem):
    """Printed: A = I + sum_k beta_k z_k z_k' with the beta of the last round (eq. 3.7).

    It stops when beta does not change, which is at beta = 0, and then A = I whatever the
    pairs are: every round has to start from the A of the last.
    """
    best = solve_newton(problem, tol=1e-10).point.metric
    assert np.linalg.norm(best - np.eye(len(best))) > 0.3
    *_, (A, beta, _) = undamped_rounds(problem, 400, "restart")
    assert np.abs(beta).max() < 1e-12
    np.testing.assert_allclose(A, np.eye(len(best)), atol=1e-10)
    *_, (A, beta, _) = undamped_rounds(problem, 400, "add inverse")
    assert np.abs(beta).max() < 1e-12
    np.testing.assert_allclose(A, best, atol=1e-8)


def test_projections_add_up_in_the_inverse_only():
    """Printed: A + sum_k beta_k A c_k c_k' A for all pairs at once (eq. 3.11).

    For one pair that is inv(inv(A) - delta alpha c c'), for several it is not. Then the
    invariant inv(A) = I + sum_k delta_k lambda_k c_k c_k' is lost, and the rounds end at a
    metric that is not the optimum, even where they stay in the cone.
    """
    problem = two_pairs()
    best = solve_newton(problem, tol=1e-10).point
    for how, is_right in [("add", False), ("add inverse", True)]:
        *_, (A, beta, multipliers) = undamped_rounds(problem, 400, how)
        assert np.abs(beta).max() < 1e-12
        inverse = np.eye(3) + problem.differences.scatter(problem.signs * multipliers)
        lost = np.linalg.norm(np.linalg.inv(A) - inverse)
        error = np.linalg.norm(A - best.metric) / np.linalg.norm(best.metric)
        if is_right:
            assert max(lost, error) < 1e-8
        else:
            assert min(lost, error) > 0.03
            assert smallest_eigenvalue(A) > 0


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer])
@pytest.mark.parametrize("seed", range(4))
def test_the_sum_of_undamped_projections_leaves_the_cone(load, seed):
    """Printed: A + sum_k beta_k A c_k c_k' A (eq. 3.11), "to hold" positive semi-definiteness.

    One projection keeps A positive definite, their sum does not. The solver takes as much of
    the sum as raises the dual function, and stays inside.
    """
    problem = percentile_problem(load, seed=seed)
    ((A, beta, _),) = undamped_rounds(problem, 1, "add")
    assert smallest_eigenvalue(A) < -1
    for b, c in zip(beta, problem.differences.to_array(), strict=True):
        assert smallest_eigenvalue(np.eye(len(c)) + b * np.outer(c, c)) > 0

    seen = []
    result = solve_parallel(
        problem, max_iter=20, callback=lambda at: seen.append(smallest_eigenvalue(at.metric))
    )
    assert len(seen) == result.n_iter
    assert min(seen) > 0
    assert result.point.value > 0


# The bounds


@pytest.mark.parametrize("gamma", [0.1, 1.0, 100.0, np.inf])
@pytest.mark.parametrize("rule", ["own distance", "median"])
def test_printed_bounds_ask_for_nothing(rule, gamma):
    """Printed: u and l are the pair's own distance, or its maximum, minimum with the median.

    The Euclidean metric satisfies all of these, so the nearest metric that does is A = I.
    """
    X, pairs, labels, squared, own = standard_data(load_wine)
    bounds = own
    if rule == "median":
        median = np.median(squared)
        bounds = np.where(labels > 0, np.maximum(own, median), np.minimum(own, median))
    result = solve_newton(make_problem(X, pairs, labels, bounds, gamma))
    assert (result.converged, result.n_iter) == (True, 0)
    np.testing.assert_allclose(result.point.metric, np.eye(X.shape[1]), atol=1e-12)
    np.testing.assert_allclose(result.point.value, 0, atol=1e-12)


@pytest.mark.parametrize("rule", ["percentiles", "swapped median"])
def test_bounds_that_ask_for_something(rule):
    """Percentiles of the squared distances, or the median rule with maximum and minimum swapped."""
    X, pairs, labels, squared, own = standard_data(load_wine)
    near, far = np.percentile(squared, [5, 95])
    if rule == "swapped median":
        near, far = np.minimum(own, np.median(squared)), np.maximum(own, np.median(squared))
    result = solve_newton(make_problem(X, pairs, labels, np.where(labels > 0, near, far), 1.0))
    assert result.converged
    assert result.n_iter > 0
    assert np.linalg.norm(result.point.metric - np.eye(X.shape[1])) > 0.5


# Theorem 1: sum_t D(A_t, A*) <= D(A*, I) / beta_min + L Omega / 2


def test_beta_min_of_theorem_1_is_negative():
    """The theorem divides by the smallest step, beta_min, as if all steps were positive.

    beta is negative for a similar pair that is too far and zero for a pair that is satisfied.
    """
    problem = percentile_problem(load_wine)
    ((_, beta, _),) = undamped_rounds(problem, 1, "restart")
    start = problem.at(np.zeros(len(beta)))
    violated = start.gradient > 0
    similar = problem.signs > 0
    assert (violated & similar).any()
    assert (beta[violated & similar] < 0).all()
    assert (beta[~violated] == 0).all()
    assert (~violated).any()


def test_first_step_of_the_proof_of_theorem_1():
    """Printed: D(A_t, A*) <= phi(A_t) - phi(A*), "from the convexity of phi".

    The term that is left out, -tr(grad phi(A*)' (A_t - A*)) = tr(inv(A*) A_t) - rank, may have
    either sign; here it is positive at the start, A_0 = I.
    """
    best = solve_newton(percentile_problem(load_wine), tol=1e-10).point.metric
    start = np.eye(len(best))
    left_out = np.trace(np.linalg.inv(best)) - len(best)
    exact = phi(start) - phi(best) + left_out
    np.testing.assert_allclose(divergence(start, best), exact)
    assert left_out > 1
    assert divergence(start, best) > phi(start) - phi(best)


def test_regret_of_algorithm_1_grows_with_every_round():
    """Printed: sum_t D(A_t, A*) is bounded by constants of the path, L and Omega.

    Algorithm 1 ends at I (see above), so each further round adds D(I, A*), while its path, the
    sum of all |beta|, has come to an end. The damped rounds of the solver do come to A*.
    """
    problem = two_pairs()
    best = solve_newton(problem, tol=1e-12).point.metric
    rounds = list(undamped_rounds(problem, 400, "restart"))
    path = np.cumsum([np.abs(beta).sum() for _, beta, _ in rounds])
    regret = np.cumsum([divergence(A, best) for A, _, _ in rounds])
    assert path[-1] - path[200] < 1e-9
    np.testing.assert_allclose(regret[-1] - regret[200], 199 * divergence(np.eye(3), best))
    assert divergence(np.eye(3), best) > 0.1

    seen = []
    solve_parallel(problem, tol=1e-9, callback=lambda at: seen.append(divergence(at.metric, best)))
    assert abs(seen[-1]) < 1e-9
    assert sum(seen[len(seen) // 2 :]) < 1e-3
