"""Rows grouped by query, and their features relative to the other documents of the query."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..metrics._validation import check_vector
from ..utils.validation import encode

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

    def chunks(self, n_rows: int) -> Iterator[Queries]:
        """Yield the queries in parts of about that many rows; a longer one is a part of its own."""
        begin = 0
        while begin < len(self.ids):
            limit = self.starts[begin] + n_rows
            end = max(begin + 1, int(np.searchsorted(self.starts, limit, side="right")) - 1)
            starts = self.starts[begin : end + 1]
            yield Queries(
                self.ids[begin:end], self.order[starts[0] : starts[-1]], starts - starts[0]
            )
            begin = end

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
    X: NDArray,
    queries: Queries,
    normalize: str | None,
    scale: NDArray | None,
    unit: float = 1.0,
    used: NDArray | None = None,
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
    unit : float, default=1.0
        A factor of all features.
    used : ndarray of shape (2 or 3, n_features), dtype=bool, default=None
        With "query" and "both": which z-scores, ranks and scaled values there shall be. None means
        all.

    Returns
    -------
    features : ndarray of shape (n_rows, n_features * (1, 2 or 3)) or fewer columns
        In the order of ``queries.order``.
    """
    X = X[queries.order]
    if normalize is None:
        return X * unit
    if normalize == "column":
        return X * unit / scale
    # One row per feature: what is worked on together lies together.
    values = np.ascontiguousarray(X.T)
    if used is None:
        used = np.ones((3 if normalize == "both" else 2, len(values)), dtype=bool)
    counts = used.sum(axis=1)
    features = np.empty((counts.sum(), len(X)))
    z_scores, ranks, *scaled = np.split(features, np.cumsum(counts)[:-1])
    standardise(values[used[0]], queries.starts, unit, out=z_scores)
    rank_values(values[used[1]], queries.starts, _RANK_SCALE * unit, out=ranks)
    if normalize == "both" and scale is not None:
        np.multiply(values[used[2]], (unit / scale[used[2]])[:, None], out=scaled[0])
    return features.T


def standardise(values: NDArray, starts: NDArray, unit: float, out: NDArray) -> None:
    """Write z-scores within segments of each row, times `unit`, to `out`.

    Values that are all the same give zeros.
    """
    sizes = np.diff(starts)
    # Huge values must not overflow when they are squared.
    largest = np.maximum.reduceat(np.abs(values), starts[:-1], axis=1)
    largest[largest == 0] = 1.0
    np.divide(values, np.repeat(largest, sizes, axis=1), out=out)
    out -= np.repeat(np.add.reduceat(out, starts[:-1], axis=1) / sizes, sizes, axis=1)
    deviation = np.sqrt(np.add.reduceat(out * out, starts[:-1], axis=1) / sizes)
    with np.errstate(divide="ignore"):
        factor = np.where(deviation > 8 * np.finfo(float).eps, unit / deviation, 0.0)
    out *= np.repeat(factor, sizes, axis=1)


def rank_values(values: NDArray, starts: NDArray, unit: float, out: NDArray) -> None:
    """Write ranks within segments of each row to `out`; equal values share a mean rank.

    Parameters
    ----------
    values : ndarray of shape (n_features, n_rows)
        One row per feature.
    starts : ndarray of shape (n_segments + 1,)
        Where the segments begin, and the end.
    unit : float
        Ranks lie between ``-unit``, which would be below all, and ``unit``, above all.
    out : ndarray of shape (n_features, n_rows)
        For the ranks, contiguous.
    """
    order = _sort_quickly(values, starts)
    ordered = values.reshape(-1)[order]
    if _neighbours(np.less, ordered, starts, False).any():
        order = _sort_exactly(values, starts)
        ordered = values.reshape(-1)[order]
    # Runs of equal values, over all features and segments at once.
    begin = np.flatnonzero(_neighbours(np.not_equal, ordered, starts, True))
    length = np.diff(begin, append=values.size)
    middle = np.repeat(begin + length / 2, length).reshape(values.shape)
    # From places in the whole array to places beside the middle of the segment.
    sizes = np.diff(starts)
    middle -= np.arange(0, values.size, values.shape[1])[:, None]
    middle -= np.repeat(starts[:-1] + sizes / 2, sizes)
    middle *= np.repeat(2 * unit / sizes, sizes)
    out.reshape(-1)[order] = middle


def _sort_quickly(values, starts):
    """Return positions in the whole array that sort each segment, if its values differ enough.

    A sort of numbers is much faster than one of positions. So the last bits of each number are
    replaced by its position; numbers that differ in these bits alone may be misplaced.
    """
    last_bits = (1 << int(values.size).bit_length()) - 1
    keys = np.arange(values.size, dtype=np.int64).reshape(values.shape)
    keys |= values.view(np.int64) & ~last_bits
    for block in _blocks(keys.view(np.float64), starts):
        block.sort(axis=-1)
    keys &= last_bits
    return keys


def _sort_exactly(values, starts):
    """Return positions in the whole array that sort each segment."""
    order = np.arange(values.size).reshape(values.shape)
    for block, found in zip(_blocks(values, starts), _blocks(order, starts), strict=True):
        found[...] = np.take_along_axis(found, np.argsort(block, axis=-1), axis=-1)
    return order


def _blocks(array, starts):
    """Yield views of shape (n_features, n_segments, size): neighbouring segments of one size."""
    sizes = np.diff(starts)
    firsts = np.append(np.flatnonzero(np.diff(sizes, prepend=-1)), len(sizes))
    for first, last in itertools.pairwise(firsts):
        block = array[:, starts[first] : starts[last]]
        yield block.reshape(len(array), last - first, sizes[first])


def _neighbours(compare, ordered, starts, at_start):
    """Compare each value with the one before it; those that begin a segment get `at_start`."""
    found = np.empty(ordered.shape, dtype=bool)
    flat = ordered.reshape(-1)
    compare(flat[1:], flat[:-1], out=found.reshape(-1)[1:])
    found[:, starts[:-1]] = at_start
    return found


class Candidates:
    """The documents of one query, among which another one can be placed.

    Parameters
    ----------
    documents : ndarray of shape (n_documents, n_features)
        The documents.
    """

    def __init__(self, documents: NDArray) -> None:
        largest = np.abs(documents).max(axis=0)
        self._unit = np.where(largest > 0, largest, 1.0)  # huge values are not squared
        scaled = documents / self._unit
        self._mean, deviation = scaled.mean(axis=0), scaled.std(axis=0)
        self._varies = deviation > 8 * np.finfo(float).eps
        self._deviation = np.where(self._varies, deviation, 1.0)
        self._ordered = np.sort(documents, axis=0)

    def place(
        self,
        X: NDArray,
        normalize: str | None,
        scale: NDArray | None,
        used: NDArray | None = None,
    ) -> NDArray:
        """Return the features of rows, relative to these documents.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_features)
            The rows; they do not change each other's features.
        normalize, scale, used
            As in `make_features`, which gives the same for the documents themselves.

        Returns
        -------
        features : ndarray of shape (n_rows, n_features * (1, 2 or 3)) or fewer columns
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
        features = np.hstack(parts if normalize == "query" else [*parts, X / scale])
        return features if used is None else features[:, used.ravel()]
