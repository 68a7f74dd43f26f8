"""Three ways up the dual of information-theoretic metric learning.

Each solver is a function of a `LogDetProblem` and returns a `DualResult`; all reach the same
metric. `before_round()` is called before every round, and `callback(point)` after it, which may
return True to stop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, blas, cho_factor, cho_solve
from scipy.sparse.linalg import LinearOperator, cg

from ._logdet import DualPoint, DualResult, LogDetProblem

# Up to this many free multipliers the Hessian is always built; above the second, never.
_ALWAYS_DENSE = 500
_MOST_DENSE = 12_000
_MIN_STEP = 1e-14
# After so many steps of the dual, Newton steps on the metric take over, with up to so many pairs.
_DUAL_STEPS = 30
_MOST_PRIMAL = 4000
# They follow the optimum from this gamma to the problem's, by this factor at a time.
_FIRST_GAMMA = 0.1
_GAMMA_FACTOR = 4.0


def solve_sequential(
    problem: LogDetProblem,
    *,
    max_iter: int = 1000,
    tol: float = 1e-6,
    before_round: Callable[[], None] | None = None,
    callback: Callable[[DualPoint], bool] | None = None,
    record: bool = False,
) -> DualResult:
    """Project onto one pair after the other, as the original ITML does.

    The reference: every projection changes A by rank one and is exact for its pair.

    Parameters
    ----------
    problem : LogDetProblem
        The problem.
    max_iter : int, default=1000
        Most sweeps over all pairs.
    tol : float, default=1e-6
        Stops when the KKT residual is below.
    before_round : callable, default=None
        Called before every sweep.
    callback : callable, default=None
        Called with the point after every sweep; True stops.
    record : bool, default=False
        Keep the divergence to the optimum per sweep.

    Returns
    -------
    result : DualResult
        With one entry of history per sweep.
    """
    C = problem.differences.differences()
    log = _Log(problem, max_iter, tol, before_round, callback, record)
    share = 1.0 if np.isinf(problem.gamma) else problem.gamma / (problem.gamma + 1)
    while not log.done:
        point = log.begin()
        A = np.asfortranarray(point.metric)
        multipliers, slack = point.multipliers.copy(), point.slack
        for k, c in enumerate(C):
            sign = problem.signs[k]
            z = blas.dsymv(1.0, A, c, lower=1)
            p = c @ z
            alpha = min(multipliers[k], sign * share * (1 / p - 1 / slack[k]))
            if alpha == 0:
                continue
            multipliers[k] -= alpha
            beta = sign * alpha / (1 - sign * alpha * p)
            A = blas.dsyr(beta, z, lower=1, a=A, overwrite_a=1)
        # From the multipliers alone: rounding of thousands of updates does not pile up.
        after = problem.at(multipliers)
        if after is None:
            log.stop("a projection left the cone by rounding: the problem is ill-conditioned")
        else:
            log.add(after)
    return log.result()


def solve_parallel(
    problem: LogDetProblem,
    *,
    max_iter: int = 1000,
    tol: float = 1e-6,
    before_round: Callable[[], None] | None = None,
    callback: Callable[[DualPoint], bool] | None = None,
    record: bool = False,
) -> DualResult:
    """Project onto all pairs at once from the same A, and walk along the sum with a safe step.

    The sum of the single projections points uphill, since each has the sign of the gradient. A
    line search on the dual function keeps A positive definite and every round better than the
    last; without it the sum of undamped projections leaves the cone.

    Parameters
    ----------
    problem, max_iter, tol, before_round, callback, record :
        As in `solve_sequential`, with rounds in place of sweeps.

    Returns
    -------
    result : DualResult
        With one entry of history per round.
    """
    log = _Log(problem, max_iter, tol, before_round, callback, record)
    step, previous = 1.0, None
    inverse = problem.prior_inverse.copy()
    while not log.done:
        point = log.begin()
        direction = -point.projections
        if previous is not None:
            step = _spectral_step(point, previous, step)
        # No multiplier falls below 0 on the way, so inv(A) is linear in the step: one pass over
        # the pairs serves all trials.
        change = problem.differences.scatter(problem.signs * direction)
        after, taken = _line_search(
            lambda multipliers, step, inverse=inverse, change=change: problem.at(
                multipliers, inverse + step * change
            ),
            point,
            direction,
            min(step, 1.0),
        )
        if after is None:
            log.stop("no step along the projections improves the dual function any more")
            continue
        inverse += taken * change
        previous, step = point, 2 * taken
        log.add(after)
    return log.result()


def _spectral_step(point, previous, fallback):
    """Barzilai-Borwein step length in units of the projections, from the last move."""
    move = point.multipliers - previous.multipliers
    bend = previous.gradient - point.gradient
    curvature = move @ bend
    if curvature <= 0:
        return fallback
    # The projection of a pair is its gradient times about 1 / (its own curvature).
    scale = point.distances**2 + _slack_curvature(point)
    return float((move * scale) @ move / curvature)


def solve_newton(
    problem: LogDetProblem,
    *,
    max_iter: int = 1000,
    tol: float = 1e-6,
    before_round: Callable[[], None] | None = None,
    callback: Callable[[DualPoint], bool] | None = None,
    record: bool = False,
) -> DualResult:
    """Climb with Newton steps on the multipliers that are free to move.

    A multiplier at zero that wants to fall stays out of the step. The Newton system is solved
    by Cholesky where the Hessian is small enough, otherwise by conjugate gradients, for which
    a product with the Hessian is one scatter and one set of quadratic forms. Where that takes too
    many steps, as with a large gamma, Newton steps on the metric itself take over.

    Parameters
    ----------
    problem, max_iter, tol, before_round, callback, record :
        As in `solve_sequential`, with Newton steps in place of sweeps.

    Returns
    -------
    result : DualResult
        With one entry of history per step.
    """
    log = _Log(problem, max_iter, tol, before_round, callback, record)
    stalled = _climb(problem, log, _DUAL_STEPS)
    if not log.done and np.isfinite(problem.gamma) and len(problem.signs) <= _MOST_PRIMAL:
        _descend(problem, log)
        stalled = True
    while not (log.done or stalled):
        stalled = _climb(problem, log, _DUAL_STEPS)
    if not log.done:
        log.stop("no step improves the dual function any more")
    return log.result()


def _climb(problem, log, n_steps):
    """Take Newton steps on the free multipliers; return whether none improves any more."""

    def evaluate(multipliers, step):
        return problem.at(multipliers)

    for _ in range(n_steps):
        if log.done:
            break
        point = log.begin()
        free = (point.multipliers > 0) | (point.gradient > 0)
        direction = np.zeros_like(point.multipliers)
        direction[free] = _newton_direction(problem, point, free)
        after, _ = _line_search(evaluate, point, direction, 1.0)
        if after is None:
            # Bent too sharply at the border of the free set: the projections always go up.
            after, _ = _line_search(evaluate, point, -point.projections, 1.0)
        if after is None:
            return True
        log.add(after)
    return False


def _descend(problem, log):
    """Take Newton steps on A, in which the problem has no constraints; ends where none is possible.

    With the best slack for A, a violated pair costs gamma (p / b - log(p / b) - 1), and its
    multiplier is gamma |1 / b - 1 / p|. That is convex, and smooth but for the pairs that pass
    their bounds: these bend the objective the more, the larger gamma is, so gamma grows from stage
    to stage. In the dual, thousands of multipliers would have to hold the balance at every step.
    """
    C, bounds, signs = problem.differences.differences(), problem.bounds, problem.signs
    gamma = min(_FIRST_GAMMA, problem.gamma)
    L = np.linalg.inv(np.linalg.cholesky(problem.prior_inverse)).T  # A = L L'
    while not log.done:
        log.begin()
        Z = C @ L
        p = np.einsum("ij,ij->i", Z, Z)
        violation = np.maximum(signs * (1 / bounds - 1 / p), 0)
        after = None
        if gamma == problem.gamma:
            after = problem.at(gamma * violation)
        # Near the optimum, where values differ by rounding alone, the last step is the best.
        rounding = 1e-10 * abs(log.point.value)
        is_lower = after is None or after.value < log.point.value - rounding
        log.add(log.point if is_lower else after)
        if log.done:
            return
        prior = L.T @ problem.prior_inverse @ L
        gradient = prior + gamma * (Z.T * (signs * violation)) @ Z - np.eye(len(L))
        try:
            move = _primal_direction(Z[violation > 0], p[violation > 0], gradient, gamma)
        except LinAlgError:
            return
        slope = np.sum(gradient * move)
        if not slope < 0:
            return
        spectrum = np.linalg.eigvalsh(move)
        shift = np.einsum("ij,ij->i", Z @ move, Z)
        trace = np.sum(prior * move)

        def slope_at(step, gamma=gamma, p=p, shift=shift, spectrum=spectrum, trace=trace):
            violation = np.maximum(signs * (1 / bounds - 1 / (p + step * shift)), 0)
            force = gamma * (signs * violation) @ shift
            return trace - np.sum(spectrum / (1 + step * spectrum)) + force

        step = _flat_step(slope_at, min(1.0, -0.99 / min(spectrum[0], -0.99)), -0.1 * slope)
        try:
            L = L @ np.linalg.cholesky(np.eye(len(L)) + step * move)
        except LinAlgError:
            return
        if -slope < 0.3:
            gamma = min(_GAMMA_FACTOR * gamma, problem.gamma)


def _primal_direction(Z, p, gradient, gamma):
    """Return Y with A + L Y L' the Newton step; the violated pairs are Z where A is the identity.

    The Hessian is the identity and gamma z z' z z' / p^2 for each pair: solved for the pairs.
    """
    Z = Z / np.sqrt(p)[:, None]
    H = Z @ Z.T
    H *= H
    H[np.diag_indices_from(H)] += 1 / gamma
    forces = cho_solve(cho_factor(H), np.einsum("ij,ij->i", Z @ gradient, Z))
    move = (Z.T * forces) @ Z - gradient
    return (move + move.T) / 2


def _flat_step(slope_at, longest, flat):
    """Return the longest step, or one at which the slope of a convex function is nearly 0."""
    low, high, step = 0.0, longest, longest
    slope = slope_at(step)
    while abs(slope) > flat and (slope > 0 or step < longest) and high - low > _MIN_STEP:
        low, high = (low, step) if slope > 0 else (step, high)
        step = (low + high) / 2
        slope = slope_at(step)
    return step


def _newton_direction(problem, point, free):
    """Solve ``H x = gradient`` for the free multipliers, H the negative Hessian."""
    n_free, rank = int(free.sum()), problem.differences.rank
    diagonal = _slack_curvature(point)[free]
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


def _slack_curvature(point):
    """Return the slack's part of the Hessian; with hard bounds a little of the metric's part."""
    if np.isinf(point.problem.gamma):
        return 1e-10 * point.distances**2
    with np.errstate(over="ignore"):  # a tiny gamma: the multipliers stay where they are
        return np.minimum(point.slack**2 / point.problem.gamma, 1e200)


def _line_search(evaluate, point, direction, step):
    """Halve the step until the dual function rises as promised; None if it never does.

    `evaluate(multipliers, step)` returns the point there, or None outside the domain.
    """
    while step > _MIN_STEP:
        multipliers = np.maximum(point.multipliers + step * direction, 0)
        promised = point.gradient @ (multipliers - point.multipliers)
        after = evaluate(multipliers, step) if promised > 0 else None
        if after is not None:
            if after.value >= point.value + 1e-4 * promised:
                return after, step
            # At the optimum the rise drowns in rounding; there the slope decides.
            flat = abs(after.value - point.value) <= 1e-12 * max(1.0, abs(point.value))
            if flat and after.gradient @ (multipliers - point.multipliers) >= -0.9998 * promised:
                return after, step
        step /= 2
    return None, 0.0


class _Log:
    """Where a solver is, what it has seen, and whether to stop."""

    def __init__(
        self,
        problem: Any,
        max_iter: int,
        tol: float,
        before_round: Callable[[], None] | None,
        callback: Callable[..., Any] | None,
        record: bool,
    ) -> None:
        self._max_iter, self._tol = max_iter, tol
        self._before_round, self._callback = before_round, callback
        self._iterates: list | None = [] if record else None
        self._start = time.perf_counter()
        self._reason: str | None = None
        self.history: dict[str, list] = {"value": [], "kkt_residual": [], "seconds": []}
        self.n_iter = 0
        self.point = problem.at(np.zeros(len(problem.signs)))
        self._check()

    @property
    def done(self):
        return self._reason is not None

    def begin(self):
        if self._before_round is not None:
            self._before_round()
        return self.point

    def stop(self, reason):
        self._reason = reason

    def add(self, point):
        self.point = point
        self.n_iter += 1
        self.history["value"].append(point.value)
        self.history["kkt_residual"].append(point.kkt_residual)
        self.history["seconds"].append(time.perf_counter() - self._start)
        if self._iterates is not None:
            self._iterates.append((point.multipliers, point.value))
        if self._callback is not None and self._callback(point):
            self.stop("a callback asked to stop")
        self._check()

    def _check(self):
        if self.point.kkt_residual <= self._tol:
            self._reason = "converged"
        elif self.n_iter >= self._max_iter and not self.done:
            self._reason = f"max_iter={self._max_iter} reached"

    def result(self):
        if self._iterates is not None:
            self.history["divergence"] = [
                self.point.divergence_from(*iterate) for iterate in self._iterates
            ]
        return DualResult(
            self.point.multipliers,
            self.point,
            self.n_iter,
            self._reason == "converged",
            self._reason or "not started",
            self.history,
        )
