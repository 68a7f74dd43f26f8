r"""The dual problem of information-theoretic metric learning.

Pairs with differences c_k and signs delta_k (+1 similar, -1 dissimilar) have bounds b_k on their
squared distances. The metric A is the solution of

    min_{A, xi}  D(A, A0) + sum_k gamma_k D(xi_k, b_k)
    subject to   c_k' A c_k <= xi_k (similar),  >= xi_k (dissimilar)

with the LogDet divergence D(A, A0) = tr(A inv(A0)) - logdet(A inv(A0)) - d. For multipliers
lambda >= 0, the minimiser of the Lagrangian is

    inv(A) = inv(A0) + sum_k delta_k lambda_k c_k c_k'
    1 / xi_k = 1 / b_k - delta_k lambda_k / gamma_k

and the dual function, smooth and concave, is

    g(lambda) = logdet(inv(A)) - logdet(inv(A0))
                + sum_k gamma_k log(1 - delta_k lambda_k b_k / gamma_k)
                (gamma = inf: the last term is -sum_k delta_k lambda_k b_k)
    dg / dlambda_k = delta_k (p_k - xi_k),      p_k = c_k' A c_k

The price of a pair is gamma_k = gamma w_k, with its weight w_k. A weight of 2 is the pair twice:
two equal pairs have the same best slack, as their terms are the same convex function, and cost
2 gamma D(xi, b) together; in the dual, the pair of weight 2 has the sum of their multipliers.

Every solver reaches its maximum, and the same metric. This module evaluates it; the solvers are in
`_newton` and `_projections`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from ..utils._differences import PairDifferences, map_rows
from ..utils._fit import record

_MIN_STEP = 1e-14


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
    weights : ndarray of shape (n_pairs,), default=None
        w_k > 0; None is 1 for each.
    """

    differences: PairDifferences
    signs: NDArray[np.float64]
    bounds: NDArray[np.float64]
    gamma: float
    prior_inverse: NDArray[np.float64]
    weights: NDArray[np.float64] | None = None

    @cached_property
    def prices(self) -> NDArray[np.float64]:
        """gamma_k."""
        return self.gamma * (np.ones(len(self.signs)) if self.weights is None else self.weights)

    @cached_property
    def _prior_logdet(self) -> float:
        factor = _cholesky(self.prior_inverse)
        if factor is None:
            raise ValueError("the prior is not positive definite.")
        return _logdet(factor)

    @cached_property
    def projection_share(self) -> NDArray[np.float64]:
        """The share of each projection that A takes; the slack takes the rest."""
        return 1 / (1 + 1 / self.prices)

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
        used = signed * self.bounds / self.prices
        if (used >= 1).any():
            return None
        if inverse is None:
            inverse = self.prior_inverse
            if signed.any():
                inverse = inverse + self.differences.scatter(signed)
        factor = _cholesky(inverse)
        if factor is None:
            return None
        value = _logdet(factor) - prior_logdet
        if np.isfinite(self.gamma):
            value += self.prices @ np.log1p(-used)
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
    def _is_identity(self) -> bool:
        return bool(np.count_nonzero(self.factor) == np.sum(np.diagonal(self.factor) == 1))

    @cached_property
    def whitened(self) -> NDArray[np.float64]:
        """Differences mapped so that A is the identity, shape (n_pairs, rank)."""
        if self._is_identity:
            return self.problem.differences.to_array()
        return map_rows(self.problem.differences.to_array(), self.inverse_factor)

    @cached_property
    def distances(self) -> NDArray[np.float64]:
        """p: squared distances of the pairs under A."""
        if "whitened" in vars(self):
            return np.einsum("ij,ij->i", self.whitened, self.whitened)
        factor = None if self._is_identity else self.inverse_factor
        return self.problem.differences.squared_norms(factor)

    @cached_property
    def gradient(self) -> NDArray[np.float64]:
        """Gradient of the dual function."""
        return self.problem.signs * (self.distances - self.slack)

    @cached_property
    def projections(self) -> NDArray[np.float64]:
        """How far each multiplier falls if its pair alone is projected onto its bound.

        alpha = min(lambda, delta gamma_k / (gamma_k + 1) (1 / p - 1 / xi)).
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
        slack = ratio - np.log(ratio) - 1
        if np.isfinite(problem.gamma):
            primal += problem.prices @ slack
        elif slack.sum() > 1e-9 * len(b):
            return float("inf")
        return float(primal - self.value)

    def divergence_from(self, multipliers: NDArray, value: float) -> float:
        """Bregman divergence from this point, the optimum, to an earlier iterate.

        D(A*, A) + sum gamma_k D(xi*, xi), from the multipliers and the dual value of the other.
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
    start : ndarray of shape (n_pairs,), default=None
        The first multipliers; None, and any that are outside of the domain, start at the prior.
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
        start: NDArray | None = None,
    ) -> None:
        self._max_iter, self._tol = max_iter, tol
        self._before_round, self._callback = before_round, callback
        self._iterates: list | None = [] if divergence else None
        self._start = time.perf_counter()
        self._reason: str | None = None
        self._history: dict[str, list] = {"value": [], "kkt_residual": [], "seconds": []}
        self._n_iter = 0
        point = problem.at(start) if start is not None and start.any() else None
        self.is_warm = point is not None
        if point is None:
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


def slack_curvature(point: DualPoint) -> NDArray:
    """Return the slack's part of the Hessian; with hard bounds a little of the metric's part."""
    if np.isinf(point.problem.gamma):
        return 1e-10 * point.distances**2
    with np.errstate(over="ignore"):  # a tiny gamma: the multipliers stay where they are
        return np.minimum(point.slack**2 / point.problem.prices, 1e200)


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
