"""Where the two linear maps start."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.covariance import ledoit_wolf
from sklearn.neighbors import NearestNeighbors

from ..utils.validation import check_named_array

# The mean squared distance of two rows at the start: the nearest are nearer than the costs, which
# are 1 by default, the others are not.
_MEAN_SQUARED_DISTANCE = 7.0
# Rounds of an alignment of queries with their nearest database rows.
_ALIGNMENTS = 10


def initial_map(init: str | ArrayLike, X: NDArray, n_components: int) -> NDArray:
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


def aligned_map(
    V: NDArray,
    database: NDArray,
    labels: NDArray,
    queries: NDArray,
    query_labels: NDArray,
    k: int,
) -> NDArray:
    """Return a map of queries that regresses them on database rows of their classes.

    A query is drawn to the mean of its class first, then in turns to the mean of its k nearest
    rows of the class. The covariance of the queries is shrunk, by the rule of Ledoit and Wolf.

    Parameters
    ----------
    V : ndarray of shape (n_components, n_features)
        The map of database rows.
    database, labels : ndarray of shape (n_rows, n_features), ndarray of shape (n_rows,)
        The database rows, centred, and their classes.
    queries, query_labels : ndarray of shape (n_queries, n_features), ndarray of shape (n_queries,)
        The queries, centred, and their classes.
    k : int
        How many rows a query is drawn to.

    Returns
    -------
    U : ndarray of shape (n_components, n_features)
        The map of queries.
    """
    Z = database @ V.T
    classes = np.unique(query_labels)
    asked = [np.flatnonzero(query_labels == label) for label in classes]
    rows = [Z[labels == label] for label in classes]
    searches = [NearestNeighbors(n_neighbors=min(k, len(own))).fit(own) for own in rows]
    covariance = ledoit_wolf(queries, assume_centered=True)[0]
    regression = np.linalg.lstsq(covariance, queries.T / len(queries), rcond=None)[0]
    targets = np.empty((len(queries), len(V)))
    for numbers, own in zip(asked, rows, strict=True):
        targets[numbers] = own.mean(axis=0)
    for _ in range(_ALIGNMENTS):
        Z_queries = queries @ (regression @ targets)
        for numbers, own, search in zip(asked, rows, searches, strict=True):
            nearest = search.kneighbors(Z_queries[numbers], return_distance=False)
            targets[numbers] = own[nearest].mean(axis=1)
    return (regression @ targets).T


def given_maps(
    init: Any, n_components: int | None, n_features: int, symmetric: bool
) -> tuple[NDArray, NDArray]:
    """Return U and V from an array that a user gave as `init`."""
    init = check_named_array(init, "init", allow_nd=True, dtype=np.float64)
    rows = "n_components" if n_components is None else n_components
    wanted = f"({rows}, {n_features})" + ("" if symmetric else f" or (2, {rows}, {n_features})")
    both = np.stack([init, init]) if init.ndim == 2 else init
    fits = both.ndim == 3 and len(both) == 2 and both.shape[2] == n_features
    if fits and n_components is not None:
        fits = both.shape[1] == n_components
    if not fits or (symmetric and init.ndim != 2):
        raise ValueError(f"init must be a name or an array of shape {wanted}, got {init.shape}.")
    return both[0], both[1]
