"""Optimal transport of real rows to generated points by potentials, as plain functions.

A cost matrix has a row for each real row and a column for each generated point; all rows weigh the
same, and so do all points. A potential is a number for each point. Real rows go to the point with
the smallest cost less potential: these rows are the point's cell. At the best potentials all cells
weigh the same, and the dual value is the transport cost.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .._optional import optional_import
from ..transport._sinkhorn import cost_matrices

# Of the soft potentials: the weight of the entropy, in mean costs, and how many sweeps there are.
_SOFTNESS = 0.05
_N_SWEEPS = 20
# The first step of the ascent moves an empty cell by this share of the spread of the potentials.
_FIRST_STEP = 0.1


def exact_plan(costs: NDArray) -> tuple[NDArray, NDArray]:
    """Return the cheapest transport plan and the best potentials, by POT's network simplex.

    Parameters
    ----------
    costs : ndarray of shape (n_rows, n_points)
        The costs.

    Returns
    -------
    plan : ndarray of shape (n_rows, n_points)
        The mass that goes from each row to each point.
    potentials : ndarray of shape (n_points,)
        Of the points, with mean 0.
    """
    ot = optional_import("ot", "skdml.generate")
    weights = [np.full(n, 1 / n) for n in costs.shape]
    costs = np.ascontiguousarray(costs, dtype=np.float64)
    plan, log = ot.emd(*weights, costs, log=True, check_marginals=False)
    return plan, log["v"] - log["v"].mean()


def soft_potentials(costs: NDArray) -> NDArray:
    """Return potentials near the best ones, by sweeps of Sinkhorn's algorithm.

    They are a start for `ascend`, and several times as quick as those of the exact plan.

    Parameters
    ----------
    costs : ndarray of shape (n_rows, n_points)
        The costs.

    Returns
    -------
    potentials : ndarray of shape (n_points,)
        Of the points, with mean 0.
    """
    n_rows, n_points = costs.shape
    entropy = _SOFTNESS * costs.mean()
    if entropy == 0:
        return np.zeros(n_points)
    # With the least cost of each point and then of each row taken off, all have a kernel of 1.
    nearest = costs.min(axis=0)
    excess = costs - nearest
    kernel = np.exp((excess - excess.min(axis=1)[:, None]) / -entropy)
    weights = np.ones(n_points)
    for _ in range(_N_SWEEPS):
        weights = n_rows / n_points / ((1 / (kernel @ weights)) @ kernel)
    potentials = nearest + entropy * np.log(weights)
    return potentials - potentials.mean()


def assign_cells(costs: NDArray, potentials: NDArray) -> NDArray:
    """Return the point to whose cell each row belongs."""
    return np.argmin(costs - potentials, axis=1)


def cell_masses(costs: NDArray, potentials: NDArray) -> NDArray:
    """Return the mass of each cell, 1 where it has its share of the rows."""
    n_rows, n_points = costs.shape
    counts = np.bincount(assign_cells(costs, potentials), minlength=n_points)
    return counts * (n_points / n_rows)


def cell_plan(costs: NDArray, potentials: NDArray) -> NDArray:
    """Return the plan that sends each row to the point of its cell."""
    plan = np.zeros(costs.shape)
    plan[np.arange(len(costs)), assign_cells(costs, potentials)] = 1 / len(costs)
    return plan


def dual_value(costs: NDArray, potentials: NDArray) -> float:
    """Return the dual value, which no potentials bring above the transport cost."""
    return float(potentials.mean() + (costs - potentials).min(axis=1).mean())


def ascend(masses: Callable[[NDArray], NDArray], starts: NDArray, n_steps: int) -> NDArray:
    """Improve potentials by steps along the gradient of the dual value.

    That gradient is the weight of a point less the mass of its cell. The ascent starts from the
    mean of what the workers found for their own rows, which is near where all rows together lead.

    Parameters
    ----------
    masses : callable
        Takes potentials and returns the mass of each cell, in units of the weight of its point.
    starts : ndarray of shape (n_workers, n_points)
        Potentials for the rows of each worker.
    n_steps : int
        How many steps; each calls `masses` once.

    Returns
    -------
    potentials : ndarray of shape (n_points,)
        After the last step.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # training that diverges ends elsewhere
        potentials = starts.mean(axis=0)
        first_step = _FIRST_STEP * starts.std()
        for number in range(1, n_steps + 1):
            potentials = potentials + first_step / np.sqrt(number) * (1 - masses(potentials))
    return potentials


def costs_between(A: NDArray, B: NDArray, p: int) -> NDArray:
    """Return Euclidean distances (p = 1) or their squares (p = 2) of the rows of A and B."""
    return cost_matrices(A[None], B[None], p)[0]


def transport_gradient(A: NDArray, B: NDArray, costs: NDArray, plan: NDArray, p: int) -> NDArray:
    """Return the gradient of the cost of a plan, by the rows of A.

    It holds the plan fixed. At the best plan it is that of the optimal cost: by the envelope
    theorem a small change of the plan counts for nothing there.

    Parameters
    ----------
    A, B : ndarray of shape (n_A, n_features) and (n_B, n_features)
        Source and target, or target and source.
    costs : ndarray of shape (n_A, n_B)
        Those of `costs_between`.
    plan : ndarray of shape (n_A, n_B)
        The mass that goes from each row of A to each of B.
    p : int
        1 for distances and 2 for their squares.

    Returns
    -------
    gradient : ndarray of shape (n_A, n_features)
        In the order of A.
    """
    pull = 2 * plan if p == 2 else plan / costs
    return pull.sum(axis=1)[:, None] * A - pull @ B
