"""Newton solvers for the ITML problem: on the metric itself, or on the multipliers of its dual.

With the best slack for A, a violated pair costs gamma w (p / b - log(p / b) - 1), and its
multiplier is gamma w |1 / b - 1 / p|, so that the problem in A has no constraints:

    min_A  tr(A inv(A0)) - logdet(A) + gamma sum_violated w_k (p_k / b_k - log(p_k / b_k) - 1)

It is convex, and smooth but for the pairs that pass their bounds. Where there are more pairs than
dimensions, a Newton step on A costs least: its system has rank x rank unknowns, however many pairs
there are. With fewer pairs the dual is smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.sparse.linalg import LinearOperator, cg

from ._logdet import DualResult, Iteration, LogDetProblem, line_search, slack_curvature

# Up to this many free multipliers the Hessian of the dual is always built; above the second, never.
_ALWAYS_DENSE = 500
_MOST_DENSE = 12_000
_MIN_STEP = 1e-14
# Steps on the metric hold a few arrays of differences of at most so many numbers.
_MOST_NUMBERS = 30_000_000
_MANY_DIMENSIONS = 1000
# They follow the optimum from this gamma to the problem's, by this factor at a time.
_FIRST_GAMMA = 0.1
_GAMMA_FACTOR = 10.0
# A stage ends when the squared Newton decrement is below.
_STAGE_END = 0.3
_MOST_PRODUCTS = 100
# A path ends here: what a larger gamma changes is lost in rounding.
_MOST_GAMMA = 1e8


def solve_newton(problem: LogDetProblem, **options: Any) -> DualResult:
    """Solve the problem by Newton steps.

    On the metric where there are more pairs than dimensions, in stages of a growing `gamma`;
    otherwise, and where those steps end early, on the multipliers that are free to move. The
    options are those of `Iteration`.
    """
    log = Iteration(problem, **options)
    if suits_primal(problem):
        _primal_newton(problem, log)
    stalled = False
    while not (log.done or stalled):
        stalled = _dual_step(problem, log)
    if not log.done:
        log.stop("no step improves the dual function any more")
    return log.result()


def suits_primal(problem: LogDetProblem) -> bool:
    """Return whether steps on the metric are cheaper than on the multipliers."""
    n_pairs, rank = problem.differences.n_pairs, problem.differences.rank
    # Many dimensions: eigenvalues cost more than the Hessian of a few pairs per dimension.
    n_least = rank if rank <= _MANY_DIMENSIONS else 4 * rank
    is_small = n_least < n_pairs and n_pairs * rank <= _MOST_NUMBERS
    return is_small and problem.differences.is_local and np.isfinite(problem.gamma)


def follow_gamma(
    problem: LogDetProblem,
    gammas: list[float],
    factor: NDArray | None = None,
    tol: float = 1e-2,
    max_steps: int = 30,
) -> Iterator[NDArray]:
    """Yield the metric for one gamma after the other, each started from the last.

    Parameters
    ----------
    problem : LogDetProblem
        The problem; its own gamma is not used.
    gammas : list of float
        Rising.
    factor : ndarray of shape (rank, rank), default=None
        L of the first metric, A = L L'; None starts at the prior.
    tol : float, default=1e-2
        The objective is this near to its optimum, by the Newton decrement.
    max_steps : int, default=30
        Most steps for a gamma.

    Yields
    ------
    factor : ndarray of shape (rank, rank)
        L.
    """
    L = _prior_factor(problem) if factor is None else factor
    for gamma in np.minimum(gammas, _MOST_GAMMA):
        for _ in range(max_steps):
            Z, p, violation = _violations(problem, L)
            moved, decrement = _primal_step(problem, L, Z, p, violation, gamma)
            if moved is None or decrement < tol:
                break
            L = moved
        yield L


def _prior_factor(problem):
    return np.linalg.inv(np.linalg.cholesky(problem.prior_inverse)).T


def _violations(problem, L):
    """Return the differences and squared distances under L L', and w |1/b - 1/p| where violated."""
    Z = problem.differences.to_array() @ L
    p = np.einsum("ij,ij->i", Z, Z)
    return Z, p, np.maximum(_weighted_signs(problem) * (1 / problem.bounds - 1 / p), 0)


def _weighted_signs(problem):
    return problem.signs if problem.weights is None else problem.signs * problem.weights


def _primal_newton(problem, log):
    """Take Newton steps on A until the residual is small, or no step is possible."""
    gamma, L = min(_FIRST_GAMMA, problem.gamma), None
    if log.is_warm:  # near the optimum: no stages
        gamma, L = problem.gamma, log.point.inverse_factor.T
    L = _prior_factor(problem) if L is None else L
    while not log.done:
        log.begin()
        Z, p, violation = _violations(problem, L)
        after = problem.at(gamma * violation) if gamma == problem.gamma else None
        # Near the optimum, where values differ by rounding alone, the last step is the best.
        rounding = 1e-10 * abs(log.point.value)
        is_lower = after is None or after.value < log.point.value - rounding
        log.add(log.point if is_lower else after)
        if log.done:
            return
        moved, decrement = _primal_step(problem, L, Z, p, violation, gamma)
        if moved is None:
            return
        L = moved
        if decrement < _STAGE_END:
            gamma = min(_GAMMA_FACTOR * gamma, problem.gamma)


def _primal_step(problem, L, Z, p, violation, gamma):
    """Return L after a Newton step with a line search, or None, and the squared decrement."""
    signs, bounds, weighted = problem.signs, problem.bounds, _weighted_signs(problem)
    prior = L.T @ problem.prior_inverse @ L
    is_violated = violation > 0
    violated, force = Z[is_violated], (signs * violation)[is_violated]
    gradient = prior + gamma * (violated.T * force) @ violated - np.eye(len(L))
    violated /= np.sqrt(p[is_violated])[:, None]
    if problem.weights is not None:  # the Hessian has products of four
        violated *= problem.weights[is_violated, None] ** 0.25
    move = _primal_direction(violated, gradient, gamma)
    slope = np.sum(gradient * move)
    if not slope < 0:
        return None, 0.0
    spectrum = np.linalg.eigvalsh(move)
    shift = np.einsum("ij,ij->i", Z @ move, Z)
    trace = np.sum(prior * move)

    def slope_at(step):
        force = np.maximum(weighted * (1 / bounds - 1 / (p + step * shift)), 0)
        return trace - np.sum(spectrum / (1 + step * spectrum)) + gamma * (signs * force) @ shift

    step = _flat_step(slope_at, min(1.0, -0.99 / min(spectrum[0], -0.99)), -0.1 * slope)
    try:
        return L @ np.linalg.cholesky(np.eye(len(L)) + step * move), -slope
    except LinAlgError:
        return None, 0.0


def _primal_direction(Z, gradient, gamma):
    """Return Y with A + L Y L' the Newton step, where A is the identity and violated pairs are Z.

    Z has rows of length w^(1/4), and the Hessian is Y + gamma sum_k z z' Y z z'. By conjugate
    gradients in the principal axes of Z, where entries off the diagonal hardly meet: the
    preconditioner is exact for the diagonal, and has the own curvature of each other entry.
    """
    _, axes = np.linalg.eigh(Z.T @ Z)
    Z = Z @ axes
    residual = -axes.T @ gradient @ axes
    squares = Z * Z
    curvature = gamma * squares.T @ squares
    floor = max(1.0, 1e-12 * np.trace(curvature))  # below it, Cholesky fails by rounding
    diagonal = cho_factor(floor * np.eye(len(axes)) + curvature)
    curvature = 1 + 2 * curvature

    def precondition(R):
        out = R / curvature
        np.fill_diagonal(out, cho_solve(diagonal, R.diagonal()))
        return out

    norm = np.linalg.norm(residual)
    target = min(0.1, np.sqrt(norm)) * norm
    out = np.zeros_like(residual)
    direction = scaled = precondition(residual)
    product = np.sum(residual * scaled)
    for _ in range(_MOST_PRODUCTS):
        if not product > 0:  # nothing to move, but for what is lost in rounding
            break
        bent = direction + gamma * (Z.T * np.einsum("ij,ij->i", Z @ direction, Z)) @ Z
        step = product / np.sum(direction * bent)
        out += step * direction
        residual = residual - step * bent
        if np.linalg.norm(residual) <= target:
            break
        scaled = precondition(residual)
        last, product = product, np.sum(residual * scaled)
        direction = scaled + product / last * direction
    out = axes @ out @ axes.T
    return (out + out.T) / 2


def _flat_step(slope_at, longest, flat):
    """Return the longest step, or one at which the slope of a convex function is nearly 0."""
    low, high, step = 0.0, longest, longest
    slope = slope_at(step)
    while abs(slope) > flat and (slope > 0 or step < longest) and high - low > _MIN_STEP:
        low, high = (low, step) if slope > 0 else (step, high)
        step = (low + high) / 2
        slope = slope_at(step)
    return step


def _dual_step(problem, log):
    """Take a Newton step on the free multipliers; return whether none improves the dual.

    A multiplier at zero with a negative gradient stays out of the step. The system is solved by
    Cholesky where the Hessian is small enough, otherwise by conjugate gradients, for which
    a product with the Hessian is one scatter and one set of quadratic forms.
    """

    def evaluate(multipliers, step):
        return problem.at(multipliers)

    point = log.begin()
    free = (point.multipliers > 0) | (point.gradient > 0)
    direction = np.zeros_like(point.multipliers)
    direction[free] = _newton_direction(problem, point, free)
    after, _ = line_search(evaluate, point, direction, 1.0)
    if after is None:
        # Bent too sharply at the border of the free set: the projections always go up.
        after, _ = line_search(evaluate, point, -point.projections, 1.0)
    if after is None:
        return True
    if "whitened" in vars(point):  # the next Hessian needs it, too: the distances come from it
        _ = after.whitened
    log.add(after)
    return False


def _newton_direction(problem, point, free):
    """Solve ``H x = gradient`` for the free multipliers, H the negative Hessian."""
    n_free, rank = int(free.sum()), problem.differences.rank
    diagonal = slack_curvature(point)[free]
    dense = n_free**2 * rank + n_free**3 / 3
    # About 30 products with the Hessian, each two passes over the pairs.
    iterative = 30 * 4 * min(problem.differences.n_pairs, 10 * rank) * rank**2
    if n_free <= _ALWAYS_DENSE or (n_free <= _MOST_DENSE and dense <= iterative):
        Z = point.whitened[free]
        H = Z @ Z.T
        H *= H
        H *= problem.signs[free, None]
        H *= problem.signs[free]
        H[np.diag_indices_from(H)] += diagonal
        try:
            factor = cho_factor(H)
        except LinAlgError:  # singular but for a slack that is lost in rounding
            H[np.diag_indices_from(H)] += 1e-10 * point.distances[free] ** 2
            try:
                factor = cho_factor(H)
            except LinAlgError:  # no direction: the projections remain
                return np.zeros(n_free)
        return cho_solve(factor, point.gradient[free])

    signs, metric = problem.signs, point.metric

    def multiply(v):
        full = np.zeros_like(point.multipliers)
        full[free] = v
        spread = metric @ problem.differences.scatter(signs * full) @ metric
        return (signs * problem.differences.quadratic_forms(spread))[free] + diagonal * v

    preconditioner = 1 / (point.distances[free] ** 2 + diagonal)
    shape = (n_free, n_free)
    solution, _ = cg(
        LinearOperator(shape, matvec=multiply, dtype=float),
        point.gradient[free],
        rtol=min(0.3, np.sqrt(point.kkt_residual)),
        maxiter=200,
        M=LinearOperator(shape, matvec=lambda v: preconditioner * v, dtype=float),
    )
    return solution
