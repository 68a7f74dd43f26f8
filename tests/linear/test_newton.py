"""Newton steps on the metric, against a dense Hessian, and the path along gamma."""

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.preprocessing import scale

from skdml.constraints import make_pairs
from skdml.linear import _newton
from skdml.linear._logdet import LogDetProblem
from skdml.linear._newton import follow_gamma, solve_newton, suits_primal
from skdml.utils._differences import PairDifferences


def make_problem(gamma=1.0, n_pairs=300):
    X, y = load_wine(return_X_y=True)
    X = scale(X)[:, :5]
    pairs, labels = make_pairs(y, n_pairs, random_state=0)
    bounds = np.where(labels > 0, 2.0, 15.0)
    return LogDetProblem(PairDifferences(X, pairs), labels * 1.0, bounds, gamma, np.eye(5))


def objective(problem, A, gamma):
    """Primal objective with the best slack for A, pair by pair."""
    total = np.trace(A @ problem.prior_inverse) - np.linalg.slogdet(A)[1]
    for c, sign, bound in zip(
        problem.differences.to_array(), problem.signs, problem.bounds, strict=True
    ):
        ratio = c @ A @ c / bound
        if sign * (ratio - 1) > 0:
            total += gamma * (ratio - np.log(ratio) - 1)
    return total


def symmetric_basis(d):
    for i in range(d):
        for j in range(i + 1):
            E = np.zeros((d, d))
            E[i, j] = E[j, i] = 1.0
            yield E


def test_a_primal_step_is_a_newton_step():
    """Gradient and Hessian by finite differences, in coordinates where A is the identity."""
    problem, gamma = make_problem(), 0.7
    rng = np.random.default_rng(0)
    L = np.eye(5) + 0.1 * rng.standard_normal((5, 5))
    Z, p, violation = _newton._violations(problem, L)
    moved, decrement = _newton._primal_step(problem, L, Z, p, violation, gamma)

    def value(Y):
        return objective(problem, L @ (np.eye(5) + Y) @ L.T, gamma)

    basis, h = list(symmetric_basis(5)), 1e-4
    gradient = np.array([(value(h * E) - value(-h * E)) / (2 * h) for E in basis])
    hessian = np.array(
        [
            [
                (value(h * (E + F)) - value(h * (E - F)) - value(h * (F - E)) + value(-h * (E + F)))
                / (4 * h * h)
                for F in basis
            ]
            for E in basis
        ]
    )
    newton = -np.linalg.solve(hessian, gradient)
    # Conjugate gradients stop at a tenth of the residual.
    assert decrement == pytest.approx(-gradient @ newton, rel=0.05)
    before, after = (objective(problem, M @ M.T, gamma) for M in (L, moved))
    assert after < before - 1


def test_the_direction_needs_few_products(monkeypatch):
    problem = make_problem(n_pairs=2000)
    L = np.eye(5)
    Z, p, violation = _newton._violations(problem, L)
    is_violated = violation > 0
    Z = Z[is_violated] / np.sqrt(p[is_violated])[:, None]
    gradient = np.random.default_rng(0).standard_normal((5, 5))
    gradient = gradient + gradient.T
    monkeypatch.setattr(_newton, "_MOST_PRODUCTS", 5)
    move = _newton._primal_direction(Z, gradient, 10.0)
    bent = move + 10.0 * (Z.T * np.einsum("ij,ij->i", Z @ move, Z)) @ Z
    assert np.linalg.norm(bent + gradient) < 0.15 * np.linalg.norm(gradient)


def test_the_path_ends_at_the_solutions():
    problem = make_problem()
    gammas = [0.01, 0.1, 1.0, 10.0]
    for gamma, L in zip(gammas, follow_gamma(problem, gammas, tol=1e-10), strict=True):
        exact = solve_newton(make_problem(gamma), tol=1e-9)
        assert exact.converged
        np.testing.assert_allclose(L @ L.T, exact.point.metric, rtol=1e-3, atol=1e-4)


def test_a_start_at_the_solution_stays_there():
    problem = make_problem()
    (L,) = follow_gamma(problem, [1.0], tol=1e-12)
    (again,) = follow_gamma(problem, [1.0], L, tol=1e-6)
    np.testing.assert_array_equal(again, L)


def test_few_pairs_and_hard_bounds_are_solved_by_the_dual():
    assert suits_primal(make_problem())
    assert not suits_primal(make_problem(np.inf))
    assert not suits_primal(make_problem(n_pairs=4))
