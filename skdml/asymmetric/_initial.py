"""Where the two linear maps start."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array

# The mean squared distance of two rows at the start: the nearest are nearer than the costs, which
# are 1 by default, the others are not.
_MEAN_SQUARED_DISTANCE = 7.0


def initial_map(init: str, X: NDArray, n_components: int) -> NDArray:
    """Return the map that both sides start from.

    Parameters
    ----------
    init : {"pca", "identity"}
        The principal axes of the rows, or their first features.
    X : ndarray of shape (n_rows, n_features)
        The database rows, centred.
    n_components : int
        Rows of the map.

    Returns
    -------
    V : ndarray of shape (n_components, n_features)
        Scaled to make distances comparable to costs.
    """
    if init == "identity":
        V = np.eye(n_components, X.shape[1])
    else:
        V = principal_axes(X, n_components)
    mean = 2 * np.mean(np.sum((X @ V.T) ** 2, axis=1))
    return V * np.sqrt(_MEAN_SQUARED_DISTANCE / mean) if mean else V


def principal_axes(X: NDArray, n_components: int) -> NDArray:
    """Return the leading principal axes of centred rows, each with its largest entry positive."""
    axes = np.linalg.svd(X, full_matrices=False)[2][:n_components]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    return axes * np.where(largest < 0, -1.0, 1.0)


def given_maps(
    init: Any, n_components: int | None, n_features: int, symmetric: bool
) -> tuple[NDArray, NDArray]:
    """Return U and V from an array that a user gave as `init`."""
    init = check_array(init, allow_nd=True, dtype=np.float64, input_name="init")
    rows = "n_components" if n_components is None else n_components
    wanted = f"({rows}, {n_features})" + ("" if symmetric else f" or (2, {rows}, {n_features})")
    both = np.stack([init, init]) if init.ndim == 2 else init
    fits = both.ndim == 3 and len(both) == 2 and both.shape[2] == n_features
    if fits and n_components is not None:
        fits = both.shape[1] == n_components
    if not fits or (symmetric and init.ndim != 2):
        raise ValueError(f"init must be a name or an array of shape {wanted}, got {init.shape}.")
    return both[0], both[1]
