r"""The dual problem of information-theoretic metric learning.

Pairs with differences c_k and signs delta_k (+1 similar, -1 dissimilar) have bounds b_k on their
squared distances. The metric A is the solution of

    min_{A, xi}  D(A, A0) + gamma sum_k D(xi_k, b_k)
    subject to   c_k' A c_k <= xi_k (similar),  >= xi_k (dissimilar)

with the LogDet divergence D(A, A0) = tr(A inv(A0)) - logdet(A inv(A0)) - d. For multipliers
lambda >= 0, the minimiser of the Lagrangian is

    inv(A) = inv(A0) + sum_k delta_k lambda_k c_k c_k'
    1 / xi_k = 1 / b_k - delta_k lambda_k / gamma

and the dual function, smooth and concave, is

    g(lambda) = logdet(inv(A)) - logdet(inv(A0)) + gamma sum_k log(1 - delta_k lambda_k b_k / gamma)
                (gamma = inf: the last term is -sum_k delta_k lambda_k b_k)
    dg / dlambda_k = delta_k (p_k - xi_k),      p_k = c_k' A c_k

Every solver maximises g. This module evaluates it, and has the Newton solver; the solvers by
projections are in `_projections`. All reach the same metric.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, lapack
from scipy.sparse.linalg import LinearOperator, cg

from ..utils._fit import record
from ._base import PairDifferences, map_rows

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


@dataclass
class LogDetProblem:
    """The data of one problem.

    Attributes
    ----------
    differences : PairDifferences
        c_k, in coordinates of their span.
    signs : ndarray of shape (n_pairs,)
        delta_k: +1.0 similar, -1.0 dissimilar.
    bounds : ndarray of shape (n_pairs,)
        b_k > 0, on squared distances.
    gamma : float
        Price of slack; inf allows none.
    prior_inverse : ndarray of shape (rank, rank)
        inv(A0), positive definite.
    """

    differences: PairDifferences
    signs: NDArray[np.float64]
    bounds: NDArray[np.float64]
    gamma: float
    prior_inverse: NDArray[np.float64]

    @cached_property
    def _prior_logdet(self) -> float:
        factor = _cholesky(self.prior_inverse)
        if factor is None:
            raise ValueError("the prior is not positive definite.")
        return _logdet(factor)

    @property
    def projection_share(self) -> float:
        """The share of a projection that A takes; the slack takes the rest."""
        return 1.0 if np.isinf(self.gamma) else self.gamma / (self.gamma + 1)

    def at(self, multipliers: NDArray, inverse: NDArray | None = None) -> DualPoint | None:
        """Evaluate the dual function.

        Parameters
        ----------
        multipliers : ndarray of shape (n_pairs,)
            lambda >= 0.
        inverse : ndarray of shape (rank, rank), default=None
            inv(A) where the caller knows it; it is linear in the multipliers.

        Returns
        -------
        point : DualPoint or None
            None outside the domain: where inv(A) is not positive definite or a slack variable
            is not positive, the dual function is minus infinity.
        """
        prior_logdet = self._prior_logdet
        signed = self.signs * multipliers
        used = signed * self.bounds / self.gamma
        if (used >= 1).any():
            return None
        if inverse is None:
            inverse = self.prior_inverse + self.differences.scatter(signed)
        factor = _cholesky(inverse)
        if factor is None:
            return None
        value = _logdet(factor) - prior_logdet
        if np.isfinite(self.gamma):
            value += self.gamma * np.log1p(-used).sum()
        else:  # the limit: no slack to pay for
            value -= signed @ self.bounds
        return DualPoint(self, multipliers, factor, self.bounds / (1 - used), float(value))


@dataclass
class DualPoint:
    """The dual function at one point, with what follows from it on demand.

    Attributes
    ----------
    problem : LogDetProblem
        The problem.
    multipliers : ndarray of shape (n_pairs,)
        lambda.
    factor : ndarray of shape (rank, rank)
        Lower Cholesky factor of inv(A).
    slack : ndarray of shape (n_pairs,)
        xi.
    value : float
        g(lambda), a lower bound of the problem's optimum.
    """

    problem: LogDetProblem
    multipliers: NDArray[np.float64]
    factor: NDArray[np.float64]
    slack: NDArray[np.float64]
    value: float

    @cached_property
    def inverse_factor(self) -> NDArray[np.float64]:
        """F with F' F = A."""
        return lapack.dtrtri(self.factor, lower=1)[0]

    @cached_property
    def whitened(self) -> NDArray[np.float64]:
        """Differences mapped so that A is the identity, shape (n_pairs, rank)."""
        return map_rows(self.problem.differences.to_array(), self.inverse_factor)

    @cached_property
    def distances(self) -> NDArray[np.float64]:
        """p: squared distances of the pairs under A."""
        if "whitened" in vars(self):
            return np.einsum("ij,ij->i", self.whitened, self.whitened)
        return self.problem.differences.squared_norms(self.inverse_factor)

    @cached_property
    def gradient(self) -> NDArray[np.float64]:
        """Gradient of the dual function."""
        return self.problem.signs * (self.distances - self.slack)

    @cached_property
    def projections(self) -> NDArray[np.float64]:
        """How far each multiplier falls if its pair alone is projected onto its bound.

        alpha = min(lambda, delta gamma / (gamma + 1) (1 / p - 1 / xi)).
        """
        signs, share = self.problem.signs, self.problem.projection_share
        return np.minimum(self.multipliers, signs * share * (1 / self.distances - 1 / self.slack))

    @cached_property
    def kkt_residual(self) -> float:
        """Largest relative violation of the optimality conditions.

        |p - xi| / xi for pairs with a multiplier; for pairs that are satisfied with room to
        spare, the smaller of that and lambda xi, which vanishes with the multiplier.
        """
        relative = self.gradient / self.slack
        idle = np.minimum(-relative, self.multipliers * self.slack)
        return float(np.max(np.where(relative > 0, relative, idle), initial=0.0))

    @cached_property
    def metric(self) -> NDArray[np.float64]:
        """A, in coordinates of the span."""
        return self.inverse_factor.T @ self.inverse_factor

    @cached_property
    def duality_gap(self) -> float:
        """Primal objective at A with the best slack for it, less the dual value; >= 0.

        That primal point satisfies every constraint, so the optimum lies within the gap. With
        gamma = inf there is no slack to choose: the gap is infinite until A satisfies all bounds
        up to rounding, and may then fall short of 0 by as much.
        """
        problem = self.problem
        p, b = self.distances, problem.bounds
        rank = len(self.factor)
        primal = (
            np.sum(self.metric * problem.prior_inverse)
            + _logdet(self.factor)
            - problem._prior_logdet
            - rank
        )
        ratio = np.where(problem.signs > 0, np.maximum(p, b), np.minimum(p, b)) / b
        slack = np.sum(ratio - np.log(ratio) - 1)
        if np.isfinite(problem.gamma):
            primal += problem.gamma * slack
        elif slack > 1e-9 * len(b):
            return float("inf")
        return float(primal - self.value)

    def divergence_from(self, multipliers: NDArray, value: float) -> float:
        """Bregman divergence from this point, the optimum, to an earlier iterate.

        D(A*, A) + gamma sum D(xi*, xi), from the multipliers and the dual value of the other.
        """
        problem = self.problem
        move = problem.signs * (multipliers - self.multipliers)
        # tr(A* inv(A)) - rank = sum_k delta_k (lambda_k - lambda*_k) p*_k, likewise for slack;
        # the log terms are the difference of the dual values.
        return float(self.value - value + move @ (self.distances - self.slack))


@dataclass
class DualResult:
    """What a solver returns.

    Attributes
    ----------
    point : DualPoint
        The last point, with the multipliers, the metric, the residual and the gap.
    n_iter : int
        Rounds (parallel), sweeps (sequential) or Newton steps.
    converged : bool
        Whether the residual fell below the tolerance.
    stop_reason : str
        Why it stopped, in words.
    history : dict of str to list
        Per round: "value" (of the dual), "kkt_residual", "seconds" since the start, and
        "divergence" (Bregman divergence of the optimum to the round's point, if recorded).
    """

    point: DualPoint
    n_iter: int
    converged: bool
    stop_reason: str
    history: dict[str, list]


def _cholesky(matrix):
    factor, info = lapack.dpotrf(matrix, lower=1, clean=1)
    return factor if info == 0 else None


def _logdet(factor):
    return 2 * float(np.log(np.diagonal(factor)).sum())


class Iteration:
    """Iteration state and stopping rule of a solver.

    Parameters
    ----------
    problem : LogDetProblem
        The problem.
    max_iter : int, default=1000
        Most rounds.
    tol : float, default=1e-6
        Stops when the KKT residual is below.
    before_round : callable, default=None
        Called before every round.
    callback : callable, default=None
        Called with the point after every round; True stops.
    divergence : bool, default=False
        Whether to keep the iterates, for the divergence of the optimum to each.
    """

    def __init__(
        self,
        problem: LogDetProblem,
        *,
        max_iter: int = 1000,
        tol: float = 1e-6,
        before_round: Callable[[], None] | None = None,
        callback: Callable[[DualPoint], Any] | None = None,
        divergence: bool = False,
    ) -> None:
        self._max_iter, self._tol = max_iter, tol
        self._before_round, self._callback = before_round, callback
        self._iterates: list | None = [] if divergence else None
        self._start = time.perf_counter()
        self._reason: str | None = None
        self._history: dict[str, list] = {"value": [], "kkt_residual": [], "seconds": []}
        self._n_iter = 0
        point = problem.at(np.zeros(len(problem.signs)))
        assert point is not None  # the prior is positive definite
        self.point = point
        self._check()

    @property
    def done(self) -> bool:
        """Whether to stop."""
        return self._reason is not None

    def begin(self) -> DualPoint:
        """Begin a round; return the present point."""
        if self._before_round is not None:
            self._before_round()
        return self.point

    def stop(self, reason: str) -> None:
        """End the iteration for a reason of the solver."""
        self._reason = reason

    def add(self, point: DualPoint) -> None:
        """End a round at a point."""
        self.point = point
        self._n_iter += 1
        record(self._history, self._start, value=point.value, kkt_residual=point.kkt_residual)
        if self._iterates is not None:
            self._iterates.append((point.multipliers, point.value))
        if self._callback is not None and self._callback(point):
            self.stop("a callback asked to stop")
        self._check()

    def _check(self):
        if self.point.kkt_residual <= self._tol:
            self._reason = "converged"
        elif self._n_iter >= self._max_iter and not self.done:
            self._reason = f"max_iter={self._max_iter} reached"

    def result(self) -> DualResult:
        """Return the last point and the history."""
        if self._iterates is not None:
            self._history["divergence"] = [
                self.point.divergence_from(*iterate) for iterate in self._iterates
            ]
        converged, reason = self._reason == "converged", self._reason or "not started"
        return DualResult(self.point, self._n_iter, converged, reason, self._history)


def solve_newton(problem: LogDetProblem, **options: Any) -> DualResult:
    """Maximise the dual by Newton steps on the multipliers that are free to move.

    A multiplier at zero with a negative gradient stays out of the step. The Newton system is solved
    by Cholesky where the Hessian is small enough, otherwise by conjugate gradients, for which
    a product with the Hessian is one scatter and one set of quadratic forms. Where that takes too
    many steps, as with a large gamma, Newton steps on the metric itself take over. The options are
    those of `Iteration`.
    """
    log = Iteration(problem, **options)
    stalled = _dual_newton(problem, log, _DUAL_STEPS)
    if not log.done and np.isfinite(problem.gamma) and len(problem.signs) <= _MOST_PRIMAL:
        _primal_newton(problem, log)
        stalled = True
    while not (log.done or stalled):
        stalled = _dual_newton(problem, log, _DUAL_STEPS)
    if not log.done:
        log.stop("no step improves the dual function any more")
    return log.result()


def _dual_newton(problem, log, n_steps):
    """Take Newton steps on the free multipliers; return whether none improves the dual."""

    def evaluate(multipliers, step):
        return problem.at(multipliers)

    for _ in range(n_steps):
        if log.done:
            break
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
        log.add(after)
    return False


def _primal_newton(problem, log):
    """Take Newton steps on A, in which the problem has no constraints; ends where none is possible.

    With the best slack for A, a violated pair costs gamma (p / b - log(p / b) - 1), and its
    multiplier is gamma |1 / b - 1 / p|. That is convex, and smooth but for the pairs that pass
    their bounds: these bend the objective the more, the larger gamma is, so gamma grows from stage
    to stage. In the dual, thousands of multipliers would have to hold the balance at every step.
    """
    C, bounds, signs = problem.differences.to_array(), problem.bounds, problem.signs
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


def slack_curvature(point: DualPoint) -> NDArray:
    """Return the slack's part of the Hessian; with hard bounds a little of the metric's part."""
    if np.isinf(point.problem.gamma):
        return 1e-10 * point.distances**2
    with np.errstate(over="ignore"):  # a tiny gamma: the multipliers stay where they are
        return np.minimum(point.slack**2 / point.problem.gamma, 1e200)


def line_search(
    evaluate: Callable[[NDArray, float], DualPoint | None],
    point: DualPoint,
    direction: NDArray,
    step: float,
) -> tuple[DualPoint | None, float]:
    """Backtrack until the dual function rises enough (Armijo); None if it never does.

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
