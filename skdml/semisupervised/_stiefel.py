"""Conjugate gradients on the Stiefel manifold, matrices with orthonormal columns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_ARMIJO = 1e-4
_TOL = 1e-8  # of the norm of the gradient


def orthonormal(matrix: NDArray) -> NDArray:
    """Return the matrix with orthonormal columns that is nearest to a given one."""
    left, _, right = np.linalg.svd(np.asarray(matrix, dtype=float), full_matrices=False)
    return left @ right


def tangent(point: NDArray, direction: NDArray) -> NDArray:
    """Project a direction onto the tangent space of the Stiefel manifold at a point."""
    product = point.T @ direction
    return direction - point @ (product + product.T) / 2


def conjugate_gradient(
    objective: Callable[[NDArray], tuple[float, NDArray]], start: NDArray, max_iter: int = 10
) -> NDArray:
    """Minimise a function of a matrix with orthonormal columns.

    Parameters
    ----------
    objective : callable
        Returns value and Euclidean gradient at a matrix.
    start : ndarray of shape (n_rows, n_columns)
        With orthonormal columns.
    max_iter : int, default=10
        Steps at most.

    Returns
    -------
    point : ndarray of shape (n_rows, n_columns)
        The last point; its value is never above that of `start`.

    Notes
    -----
    Riemannian conjugate gradients: Polak and Ribiere's rule, restarted where it does not descend;
    Armijo's line search; retraction to the nearest orthonormal matrix,
    vector transport by projection.
    """
    point = start
    value, gradient = objective(point)
    gradient = tangent(point, gradient)
    direction, step = -gradient, 1.0
    for _ in range(max_iter):
        slope = float(np.sum(gradient * direction))
        if slope >= 0:
            direction, slope = -gradient, -float(np.sum(gradient**2))
        if -slope <= _TOL**2:
            break
        step *= 2
        while True:
            candidate = orthonormal(point + step * direction)
            new_value, new_gradient = objective(candidate)
            if new_value <= value + _ARMIJO * step * slope:
                break
            step /= 2
            if step < 1e-14:
                return point
        point, value = candidate, new_value
        new_gradient = tangent(point, new_gradient)
        change = new_gradient - tangent(point, gradient)
        ratio = max(0.0, float(np.sum(new_gradient * change)) / float(np.sum(gradient**2)))
        direction = -new_gradient + ratio * tangent(point, direction)
        gradient = new_gradient
    return point
