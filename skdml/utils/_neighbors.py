"""Nearest rows of the same class and of others, in blocks of bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics.pairwise import euclidean_distances

# Distances in a block.
_BLOCK_SIZE = 2**23


def near_rows(
    X: Any, codes: NDArray, anchors: NDArray, n_neighbors: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the nearest rows of the own class and of the others.

    Parameters
    ----------
    X : array or sparse matrix of shape (n_rows, n_features)
        The rows.
    codes : ndarray of shape (n_rows,)
        Their classes, numbers from 0.
    anchors : ndarray of shape (n_anchors,)
        Rows whose neighbours are wanted.
    n_neighbors : int
        How many of each kind.

    Returns
    -------
    same, others : ndarray of shape (n_anchors, n_neighbors)
        Row indices in any order, -1 where there are fewer.
    """
    by_class = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes))
    place = np.empty_like(by_class)
    place[by_class] = np.arange(len(by_class))
    columns = X[by_class]
    n_neighbors = min(int(n_neighbors), len(codes))
    found = np.full((2, len(anchors), n_neighbors), -1)
    step = max(1, _BLOCK_SIZE // len(codes))
    for start in range(0, len(anchors), step):
        chunk = anchors[start : start + step]
        distances = euclidean_distances(X[chunk], columns, squared=True)
        distances[np.arange(len(chunk)), place[chunk]] = np.inf
        same, others = found[:, start : start + step]
        for code in np.unique(codes[chunk]):
            rows = np.flatnonzero(codes[chunk] == code)
            own = slice(ends[code - 1] if code else 0, ends[code])
            same[rows] = _smallest(distances[rows, own], by_class[own], n_neighbors)
            distances[rows, own] = np.inf
        others[:] = _smallest(distances, by_class, n_neighbors)
    return found[0], found[1]


def _smallest(distances, rows, n_wanted):
    """Return the rows of the smallest finite entries of each line, -1 where there are fewer."""
    out = np.full((len(distances), n_wanted), -1)
    k = min(n_wanted, distances.shape[1])
    columns = np.argpartition(distances, k - 1, axis=1)[:, :k]
    finite = np.isfinite(np.take_along_axis(distances, columns, axis=1))
    out[:, :k] = np.where(finite, rows[columns], -1)
    return out


def vote_hits(
    queries: NDArray, query_codes: NDArray, X: NDArray, codes: NDArray, is_same: bool = False
) -> NDArray[np.float64]:
    """Return for each query whether the votes of its nearest and of 5 near rows are right.

    Parameters
    ----------
    queries : ndarray of shape (n_queries, n_features)
        The queries.
    query_codes : ndarray of shape (n_queries,)
        Their classes.
    X, codes : ndarray
        The rows that vote, and their classes.
    is_same : bool, default=False
        Whether the queries are the rows, so that each is left out of its own vote.

    Returns
    -------
    hits : ndarray of shape (n_queries, 2)
        0 or 1. Of classes with as many votes, that of the nearest row wins.
    """
    k = min(5, len(X) - is_same)
    hits = np.empty((len(queries), 2))
    step = max(1, _BLOCK_SIZE // len(X))
    for start in range(0, len(queries), step):
        cut = slice(start, min(start + step, len(queries)))
        distances = euclidean_distances(queries[cut], X, squared=True)
        if is_same:
            distances[np.arange(cut.stop - start), np.arange(start, cut.stop)] = np.inf
        near = np.argpartition(distances, k - 1, axis=1)[:, :k]
        order = np.argsort(np.take_along_axis(distances, near, axis=1), axis=1)
        votes = codes[np.take_along_axis(near, order, axis=1)]
        counts = (votes[:, :, None] == votes[:, None, :]).sum(axis=2)
        winner = np.take_along_axis(votes, counts.argmax(axis=1)[:, None], axis=1)[:, 0]
        hits[cut] = np.column_stack([votes[:, 0], winner]) == query_codes[cut, None]
    return hits


def retrieval_hits(X: NDArray, codes: NDArray) -> NDArray[np.float64]:
    """Return for each row whether the nearest other is of its class, and its average precision.

    The second is that of MAP@R: among as many near rows as there are others of the class.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features)
        The rows.
    codes : ndarray of shape (n_rows,)
        Their classes, numbers from 0.

    Returns
    -------
    hits : ndarray of shape (n_rows, 2)
        Of rows that are not alone in their class, in their order.
    """
    n_others = np.bincount(codes)[codes] - 1
    rows = np.flatnonzero(n_others)
    k = min(int(n_others.max()), len(X) - 1)
    ranks = np.arange(1, k + 1)
    hits = np.empty((len(rows), 2))
    step = max(1, _BLOCK_SIZE // len(X))
    for start in range(0, len(rows), step):
        chunk = rows[start : start + step]
        distances = euclidean_distances(X[chunk], X, squared=True)
        distances[np.arange(len(chunk)), chunk] = np.inf
        near = np.argpartition(distances, k - 1, axis=1)[:, :k]
        order = np.argsort(np.take_along_axis(distances, near, axis=1), axis=1)
        match = codes[np.take_along_axis(near, order, axis=1)] == codes[chunk, None]
        counted = match & (ranks <= n_others[chunk, None])
        precision = (match.cumsum(axis=1) / ranks * counted).sum(axis=1) / n_others[chunk]
        hits[start : start + step] = np.column_stack([match[:, 0], precision])
    return hits
