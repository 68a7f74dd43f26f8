"""Rows grouped by query, and their features relative to the other documents of the query."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..metrics._validation import check_vector, encode

# Ranks lie between -1 and 1 and are spread evenly; so scaled, they vary as much as z-scores.
_RANK_SCALE = np.sqrt(3.0)


@dataclass(frozen=True)
class Queries:
    """Which rows belong to which query.

    Attributes
    ----------
    ids : ndarray of shape (n_queries,)
        The distinct query ids, in the order of their first rows.
    order : ndarray of shape (n_rows,)
        The rows, query by query; within a query as they came.
    starts : ndarray of shape (n_queries + 1,)
        Where each query begins in `order`, and the end.
    """

    ids: NDArray
    order: NDArray
    starts: NDArray

    @property
    def sizes(self) -> NDArray:
        """The number of rows of each query."""
        return np.diff(self.starts)

    def by_size(self) -> Queries:
        """Return the same queries, small ones first: what is sorted by size is faster to rank."""
        by_size = np.argsort(self.sizes, kind="stable")
        sizes = self.sizes[by_size]
        starts = np.append(0, np.cumsum(sizes))
        shift = np.repeat(self.starts[by_size] - starts[:-1], sizes)
        return Queries(self.ids[by_size], self.order[np.arange(starts[-1]) + shift], starts)

    def rows(self, query: int) -> NDArray:
        """Return the rows of the query at that position in `ids`."""
        return self.order[self.starts[query] : self.starts[query + 1]]


def group_rows(qid: ArrayLike | None, n_rows: int, name: str = "qid") -> Queries:
    """Group rows by query id; None means that all are of one query."""
    if qid is None:
        return Queries(np.zeros(1, dtype=np.intp), np.arange(n_rows), np.array([0, n_rows]))
    ids, codes = encode(check_vector(qid, name, n_rows), name)
    # Names of queries have no meaning: their order must not matter.
    first = np.full(len(ids), n_rows)
    np.minimum.at(first, codes, np.arange(n_rows))
    by_appearance = np.argsort(first)
    position = np.empty_like(by_appearance)
    position[by_appearance] = np.arange(len(ids))
    codes = position[codes]
    order = np.argsort(codes, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(codes)))
    return Queries(ids[by_appearance], order, starts)


def column_scale(X: NDArray) -> NDArray:
    """Return the root mean square of each column, 1 where it is zero."""
    largest = np.abs(X).max(axis=0)
    largest[largest == 0] = 1.0
    scale = largest * np.sqrt(np.mean((X / largest) ** 2, axis=0))
    return np.where(scale > 0, scale, 1.0)


def make_features(
    X: NDArray, queries: Queries, normalize: str | None, scale: NDArray | None
) -> NDArray:
    """Return the rows as the ranker sees them.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features)
        The documents.
    queries : Queries
        Their queries.
    normalize : {"query", "column", "both"} or None
        "query" gives z-scores and ranks among the documents of the query, "column" divides by
        `scale`, "both" gives all three side by side.
    scale : ndarray of shape (n_features,) or None
        What `column_scale` found in the training rows.

    Returns
    -------
    features : ndarray of shape (n_rows, n_features * (1, 2 or 3))
        In the order of ``queries.order``.
    """
    X = X[queries.order]
    if normalize is None:
        return X
    if normalize == "column":
        return X / scale
    # One row per feature: what is worked on together lies together.
    values = np.ascontiguousarray(X.T)
    n_features = len(values)
    features = np.empty(((3 if normalize == "both" else 2) * n_features, len(X)))
    features[:n_features] = standardise(values, queries.starts)
    np.multiply(
        rank_values(values, queries.starts), _RANK_SCALE, out=features[n_features : 2 * n_features]
    )
    if normalize == "both" and scale is not None:
        np.divide(values, scale[:, None], out=features[2 * n_features :])
    return features.T


def standardise(values: NDArray, starts: NDArray) -> NDArray:
    """Return z-scores within segments of each row; values that are all the same give zeros."""
    sizes = np.diff(starts)
    # Huge values must not overflow when they are squared.
    largest = np.maximum.reduceat(np.abs(values), starts[:-1], axis=1)
    scaled = values / np.repeat(np.where(largest > 0, largest, 1.0), sizes, axis=1)
    scaled -= np.repeat(np.add.reduceat(scaled, starts[:-1], axis=1) / sizes, sizes, axis=1)
    deviation = np.sqrt(np.add.reduceat(scaled * scaled, starts[:-1], axis=1) / sizes)
    with np.errstate(divide="ignore"):
        factor = np.where(deviation > 8 * np.finfo(float).eps, 1 / deviation, 0.0)
    scaled *= np.repeat(factor, sizes, axis=1)
    return scaled


def rank_values(values: NDArray, starts: NDArray) -> NDArray:
    """Return ranks within segments of each row, between -1 and 1; equal values share a mean rank.

    Parameters
    ----------
    values : ndarray of shape (n_features, n_rows)
        One row per feature.
    starts : ndarray of shape (n_segments + 1,)
        Where the segments begin, and the end.

    Returns
    -------
    ranks : ndarray of shape (n_features, n_rows)
        -1 would be below all, 1 above all.
    """
    n_features, n_rows = values.shape
    order = _argsort_segments(values, starts)
    order += (np.arange(n_features) * n_rows)[:, None]
    order = order.ravel()
    ordered = values.ravel()[order]
    # Runs of equal values, over all features and segments at once.
    begins_run = np.empty(len(ordered), dtype=bool)
    begins_run[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=begins_run[1:])
    begins_run.reshape(n_features, n_rows)[:, starts[:-1]] = True
    begin = np.flatnonzero(begins_run)
    length = np.diff(begin, append=len(ordered))
    middle = np.repeat(begin + length / 2, length).reshape(n_features, n_rows)
    # From places in the whole array to places in the segment, and to the range -1 to 1.
    sizes = np.diff(starts)
    middle -= (np.arange(n_features) * n_rows)[:, None] + np.repeat(starts[:-1], sizes)
    middle *= np.repeat(2 / sizes, sizes)
    middle -= 1
    ranks = np.empty_like(middle)
    ranks.ravel()[order] = middle.ravel()
    return ranks


def _argsort_segments(values, starts):
    """Return for each row the positions that sort each of its segments."""
    order = np.empty(values.shape, dtype=np.intp)
    sizes = np.diff(starts)
    # Segments of one size that are neighbours are sorted in one call.
    firsts = np.append(np.flatnonzero(np.diff(sizes, prepend=-1)), len(sizes))
    for first, last in itertools.pairwise(firsts):
        begin, end, size = starts[first], starts[last], sizes[first]
        block = values[:, begin:end].reshape(len(values), -1, size)
        found = np.argsort(block, axis=-1)
        found += np.arange(begin, end, size)[:, None]
        order[:, begin:end] = found.reshape(len(values), -1)
    return order


class Candidates:
    """The documents of one query, among which another one can be placed.

    Parameters
    ----------
    documents : ndarray of shape (n_documents, n_features)
        The documents.
    """

    def __init__(self, documents: NDArray):
        largest = np.abs(documents).max(axis=0)
        self._unit = np.where(largest > 0, largest, 1.0)  # huge values are not squared
        scaled = documents / self._unit
        self._mean, deviation = scaled.mean(axis=0), scaled.std(axis=0)
        self._varies = deviation > 8 * np.finfo(float).eps
        self._deviation = np.where(self._varies, deviation, 1.0)
        self._ordered = np.sort(documents, axis=0)

    def place(self, X: NDArray, normalize: str | None, scale: NDArray | None) -> NDArray:
        """Return the features of rows, relative to these documents.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_features)
            The rows; they do not change each other's features.
        normalize, scale
            As in `make_features`, which gives the same for the documents themselves.

        Returns
        -------
        features : ndarray of shape (n_rows, n_features * (1, 2 or 3))
            The features.
        """
        if normalize in (None, "column"):
            return X if normalize is None else X / scale
        z_scores = (X / self._unit - self._mean) / self._deviation
        z_scores[:, ~self._varies] = 0.0
        ranks = np.empty_like(X)
        for column, values, ordered in zip(ranks.T, X.T, self._ordered.T, strict=True):
            below = np.searchsorted(ordered, values, side="left")
            not_above = np.searchsorted(ordered, values, side="right")
            column[:] = (below + not_above) / len(ordered) - 1
        parts = [z_scores, _RANK_SCALE * ranks]
        return np.hstack(parts if normalize == "query" else [*parts, X / scale])
