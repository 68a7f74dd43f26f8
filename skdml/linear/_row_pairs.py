"""Distances of many pairs of rows: each row is mapped once, pairs are gathered in blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ..utils.validation import unit_for_squares
from ._mahalanobis import MahalanobisMetric

# Numbers in a block of pairs.
_BLOCK_SIZE = 2**20
# Pairs nearer than this share of the largest distance possible are computed from the differences
# of their rows: those of mapped rows would be rounding, and not zero for equal rows.
_NEAR = 1e-4

Direct = Callable[[Any, Any], NDArray]


def row_pair_distance(
    metric: MahalanobisMetric, X: Any, pairs: NDArray, direct: Direct | None = None
) -> NDArray[np.float64]:
    """Return the distances of pairs of rows under a metric.

    Parameters
    ----------
    metric : MahalanobisMetric
        The metric.
    X : {ndarray, sparse matrix} of shape (n_rows, n_features)
        The rows.
    pairs : ndarray of shape (n_pairs, 2)
        Row indices.
    direct : callable, default=None
        Distances of rows on the one side to those on the other; None is that of `metric`.

    Returns
    -------
    distances : ndarray of shape (n_pairs,)
        Exactly 0 for equal rows.
    """
    direct = metric.pair_distance if direct is None else direct
    X, pairs = _used_rows(X, pairs)
    if 2 * X.shape[0] >= len(pairs) or unit_for_squares(X) != 1:
        return _in_blocks(X, pairs, lambda first, second: direct(X[first], X[second]))
    along, reach = _along(metric, X)
    nearest = _NEAR * reach * np.sqrt(np.abs(metric.weights).max(initial=0))

    def distances(first, second):
        squared = (along[first] - along[second]) ** 2 @ metric.weights
        if metric.scale:
            squared += metric.scale * _squared_norms(X[first] - X[second])
        found = np.sqrt(np.maximum(squared, 0))
        return _mend(found, nearest, X, first, second, direct)

    return _in_blocks(X, pairs, distances)


def embedded_pair_distance(
    X: Any, pairs: NDArray, embed: Callable[[Any], tuple[NDArray, float]], direct: Direct
) -> NDArray[np.float64]:
    """Return the distances of embeddings of pairs of rows.

    Parameters
    ----------
    X : {ndarray, sparse matrix} of shape (n_rows, n_features)
        The rows.
    pairs : ndarray of shape (n_pairs, 2)
        Row indices.
    embed : callable
        Returns the embeddings of rows, and the size of their rounding in units of that of 1.
    direct : callable
        Distances of rows on the one side to those on the other.

    Returns
    -------
    distances : ndarray of shape (n_pairs,)
        Exactly 0 for equal rows.
    """
    X, pairs = _used_rows(X, pairs)
    if 2 * X.shape[0] >= len(pairs):
        return _in_blocks(X, pairs, lambda first, second: direct(X[first], X[second]))
    Z, rounding = embed(X)

    def distances(first, second):
        found = np.linalg.norm(Z[first] - Z[second], axis=1)
        return _mend(found, _NEAR * rounding, X, first, second, direct)

    return _in_blocks(X, pairs, distances)


def _used_rows(X, pairs):
    """Return the rows that pairs name, and pairs of these."""
    used = np.zeros(X.shape[0], dtype=bool)
    used[pairs] = True
    if used.all():
        return X, pairs
    return X[used], (np.cumsum(used) - 1)[pairs]


def _in_blocks(X, pairs, distances):
    step = max(1, _BLOCK_SIZE // max(1, X.shape[1]))
    blocks = [distances(*pairs[i : i + step].T) for i in range(0, len(pairs), step)]
    return np.concatenate(blocks) if blocks else np.empty(0)


def _along(metric, X):
    """Return coordinates of rows along the directions, and how far rows are from the origin."""
    if sparse.issparse(X):
        return metric._project(X), np.sqrt(_squared_norms(X).max(initial=0))
    origin = X.mean(axis=0, dtype=np.float64)
    step = max(1, _BLOCK_SIZE // max(1, X.shape[1]))
    along, reach = np.empty((len(X), metric.rank)), 0.0
    for i in range(0, len(X), step):
        centred = X[i : i + step] - origin
        along[i : i + step] = metric._project(centred)
        reach = max(reach, float(_squared_norms(centred).max(initial=0)))
    return along, np.sqrt(reach)


def _squared_norms(X):
    if sparse.issparse(X):
        return np.asarray(X.multiply(X).sum(axis=1), dtype=np.float64).ravel()
    return np.einsum("ij,ij->i", X, X, dtype=np.float64)


def _mend(found, nearest, X, first, second, direct):
    """Compute near pairs from the differences of their rows."""
    near = np.flatnonzero(~(found > nearest))
    if len(near):
        found[near] = direct(X[first[near]], X[second[near]])
    return found
