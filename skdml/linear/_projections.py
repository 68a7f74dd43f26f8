"""Solvers of the ITML dual by Bregman projections onto the pairs.

Both take a `LogDetProblem` and the options of `Iteration`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import blas

from ._logdet import DualResult, Iteration, LogDetProblem, line_search, slack_curvature


def solve_sequential(problem: LogDetProblem, **options: Any) -> DualResult:
    """Project onto one pair after the other, as the original ITML does; a round is a sweep.

    The reference: every projection changes A by rank one and is exact for its pair.
    """
    C = problem.differences.to_array()
    log = Iteration(problem, **options)
    share = problem.projection_share
    while not log.done:
        point = log.begin()
        A = np.asfortranarray(point.metric)
        multipliers, slack = point.multipliers.copy(), point.slack
        for k, c in enumerate(C):
            sign = problem.signs[k]
            z = blas.dsymv(1.0, A, c, lower=1)
            p = c @ z
            alpha = min(multipliers[k], sign * share[k] * (1 / p - 1 / slack[k]))
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


def solve_parallel(problem: LogDetProblem, **options: Any) -> DualResult:
    """Project onto all pairs at once from the same A, and take a safe step along the sum.

    The sum of the single projections is an ascent direction, since each has the sign of the
    gradient. A line search on the dual function keeps A positive definite and every round better
    than the last; without it the sum of undamped projections leaves the cone.
    """
    log = Iteration(problem, **options)
    step, previous = 1.0, None
    inverse = problem.prior_inverse.copy()
    if log.is_warm:
        inverse = log.point.factor @ log.point.factor.T
    while not log.done:
        point = log.begin()
        direction = -point.projections
        if previous is not None:
            step = _spectral_step(point, previous, step)
        # No multiplier falls below 0 on the way, so inv(A) is linear in the step: one pass over
        # the pairs serves all trials.
        change = problem.differences.scatter(problem.signs * direction)

        def evaluate(multipliers, step, inverse=inverse, change=change):
            return problem.at(multipliers, inverse + step * change)

        after, taken = line_search(evaluate, point, direction, min(step, 1.0))
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
    scale = point.distances**2 + slack_curvature(point)
    return float((move * scale) @ move / curvature)
