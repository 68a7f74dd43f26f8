"""MLKR: the leave-one-out error of kernel regression, its gradient, and the training."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from ..utils._fit import record

# Kernel values in a block, which stays in the cache of a processor.
_BLOCK_SIZE = 2**17
# Rows whose errors choose the scale of the start.
_SCALE_ROWS = 300


def loss_and_gradient(
    L: NDArray, X: NDArray, y: NDArray, weights: NDArray | None = None
) -> tuple[float, NDArray[np.float64]]:
    r"""Return the leave-one-out error of kernel regression and its gradient.

    .. math:: \sum_i w_i (\hat y_i - y_i)^2, \qquad
              \hat y_i = \frac{\sum_{j \ne i} w_j k_{ij} y_j}{\sum_{j \ne i} w_j k_{ij}}, \qquad
              k_{ij} = \exp(-\|L x_i - L x_j\|^2).

    Parameters
    ----------
    L : ndarray of shape (n_components, n_features)
        The map.
    X : ndarray of shape (n_rows, n_features)
        The rows.
    y : ndarray of shape (n_rows,)
        Their targets.
    weights : ndarray of shape (n_rows,), default=None
        w; None is 1 for each.

    Returns
    -------
    loss : float
        The error.
    gradient : ndarray of shape (n_components, n_features)
        By L.
    """
    Z = X @ L.T
    n_rows, p = Z.shape
    # Each sum over rows that the gradient needs is a product with the kernel.
    w = np.ones((n_rows, 1)) if weights is None else weights[:, None]
    right = w * np.column_stack([np.ones(n_rows), y, Z, y[:, None] * Z])
    loss, forces, back = 0.0, np.empty_like(Z), np.zeros((n_rows, 2 * p + 2))
    for cut, kernel in _kernel_blocks(Z):
        sums = kernel @ right
        total = sums[:, :1].copy()
        sums /= total
        predicted, mean, weighted = sums[:, 1:2], sums[:, 2 : 2 + p], sums[:, 2 + p :]
        errors = predicted - y[cut, None]
        loss += float(np.sum(w[cut] * errors**2))
        errors *= w[cut]
        # By the squared distance of i and j, the loss changes by c_i k_ij w_j (y_j - predicted_i).
        forces[cut] = 2 * errors * (weighted - predicted * mean)
        c = -2 * errors / total
        left = np.hstack([c, c * Z[cut], c * predicted, c * predicted * Z[cut]])
        back += kernel.T @ left
    sums_back = y * back[:, 0] - back[:, 1 + p]
    drawn = y[:, None] * back[:, 1 : 1 + p] - back[:, 2 + p :]
    # The weights of a row sum to zero, those of a column do not.
    forces += w * (sums_back[:, None] * Z - drawn)
    return loss, 2 * forces.T @ X


def _kernel_blocks(Z, queries=None):
    """Yield rows and their kernel values with all rows, 0 with themselves.

    The largest value of a line is 1, so that no line is 0 where the kernel is narrow.
    """
    n_rows = len(Z)
    queries = np.arange(n_rows) if queries is None else queries
    # Squared distances but for the norm of the line's own row, which is the same for all of it.
    left = np.column_stack([2 * Z, np.ones(n_rows)])
    right = np.vstack([Z.T, -np.sum(Z**2, axis=1)])
    step = max(1, _BLOCK_SIZE // n_rows)
    for start in range(0, len(queries), step):
        cut = queries[start : start + step]
        kernel = left[cut] @ right
        kernel[np.arange(len(cut)), cut] = -np.inf
        kernel -= kernel.max(axis=1, keepdims=True)
        # Numbers below the normal range make products slow, and add nothing to a sum with a 1.
        np.maximum(kernel, -100, out=kernel)
        np.exp(kernel, out=kernel)
        kernel[np.arange(len(cut)), cut] = 0
        yield cut, kernel


def scaled_start(
    L: NDArray, X: NDArray, y: NDArray, rng: np.random.Generator, weights: NDArray | None = None
) -> NDArray[np.float64]:
    """Return the multiple of a map with the least error of some rows."""
    chosen = rng.permutation(len(X))[:_SCALE_ROWS]
    w = np.ones(len(X)) if weights is None else weights
    Z = X @ L.T
    mean = np.average(Z, axis=0, weights=w)
    unit = np.sqrt(np.average(np.sum((Z - mean) ** 2, axis=1), weights=w)) or 1.0

    def loss(scale):
        blocks = _kernel_blocks(Z * scale / unit, chosen)
        return sum(
            float(w[cut] @ (kernel @ (w * y) / (kernel @ w) - y[cut]) ** 2)
            for cut, kernel in blocks
        )

    return L * min(2.0 ** np.arange(-1, 4.5, 0.5), key=loss) / unit


@dataclass
class Regression:
    """The map of a training, and how it came.

    Attributes
    ----------
    map : ndarray of shape (n_components, n_features)
        The map with the least error.
    history : dict of str to list
        At the start and after each step: "loss" and "seconds".
    converged : bool
        Whether the error has stopped falling.
    """

    map: NDArray[np.float64]
    history: dict[str, list[float]]
    converged: bool


def train(
    X: NDArray,
    y: NDArray,
    start: NDArray,
    max_iter: int,
    tol: float,
    visit: Callable[[NDArray, float], bool] = lambda L, loss: False,
    weights: NDArray | None = None,
) -> Regression:
    """Minimise the error by L-BFGS.

    Parameters
    ----------
    X, y : ndarray of shape (n_rows, n_features), ndarray of shape (n_rows,)
        Rows and targets.
    start : ndarray of shape (n_components, n_features)
        The map to start from.
    max_iter : int
        Steps at most.
    tol : float
        Stop when a step lowers the error by less than this share of it.
    visit : callable
        Called with the map and its error after each step; True stops.
    weights : ndarray of shape (n_rows,), default=None
        Of the rows; None is 1 for each.

    Returns
    -------
    regression : Regression
        The map and its history.
    """
    began, shape = time.perf_counter(), start.shape
    history: dict[str, list[float]] = {}

    def flat(values):
        loss, gradient = loss_and_gradient(values.reshape(shape), X, y, weights)
        if not history:
            record(history, began, loss=loss)
        return loss, gradient.ravel()

    def after(intermediate_result):
        record(history, began, loss=float(intermediate_result.fun))
        if visit(intermediate_result.x.reshape(shape).copy(), history["loss"][-1]):
            raise StopIteration

    found = minimize(
        flat,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        callback=after,
        options={"maxiter": max_iter, "ftol": min(tol, 1.0), "gtol": 0},
    )
    return Regression(found.x.reshape(shape), history, found.status == 0)
