"""Rows grouped by query, as they come and sorted by relevance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..metrics._validation import check_vector
from ..utils.validation import encode

CUTOFF = 10  # the measure that is learned and watched is NDCG at 10


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


@dataclass(frozen=True)
class RankedQueries:
    """Documents of queries that have more than one grade, sorted by query, then best grade first.

    Attributes
    ----------
    features : ndarray of shape (n_rows, n_features)
        The documents.
    grades : ndarray of shape (n_rows,)
        Their relevance.
    gains : ndarray of shape (n_rows,)
        ``2**grade - 1``, divided by the best DCG that their query can have.
    starts : ndarray of shape (n_queries + 1,)
        Where each query begins, and the end.
    lower : ndarray of shape (n_rows,)
        The first row of the same query with a lower grade; the end of the query if none has.
    """

    features: NDArray
    grades: NDArray
    gains: NDArray
    starts: NDArray
    lower: NDArray

    @property
    def n_queries(self) -> int:
        """The number of queries."""
        return len(self.starts) - 1

    @property
    def sizes(self) -> NDArray:
        """The number of rows of each query."""
        return np.diff(self.starts)

    def codes(self) -> NDArray:
        """Return the query of each row."""
        return np.repeat(np.arange(self.n_queries), self.sizes)

    def take(self, numbers: NDArray) -> RankedQueries:
        """Return some of the queries, in the order of `numbers`."""
        rows, starts, shift = self.locate(numbers)
        return RankedQueries(
            self.features[rows],
            self.grades[rows],
            self.gains[rows],
            starts,
            self.lower[rows] - shift,
        )

    def locate(self, numbers: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        """Return the rows of some queries, where each begins among them, and how far each moved."""
        sizes = self.sizes[numbers]
        starts = np.append(0, np.cumsum(sizes))
        shift = np.repeat(self.starts[numbers] - starts[:-1], sizes)
        return np.arange(starts[-1]) + shift, starts, shift


def sort_queries(
    features: NDArray, grades: NDArray, queries: Queries
) -> tuple[RankedQueries, NDArray]:
    """Sort the rows of queries with several grades, the only ones that can teach an order.

    Parameters
    ----------
    features : ndarray of shape (n_rows, n_features)
        The documents, query by query.
    grades : ndarray of shape (n_rows,)
        Their relevance, in the same order.
    queries : Queries
        Where each query begins.

    Returns
    -------
    ranked : RankedQueries
        The sorted rows.
    used : ndarray of int
        The positions in ``queries.ids`` of the queries that are kept.
    """
    codes = np.repeat(np.arange(len(queries.ids)), queries.sizes)
    best = np.maximum.reduceat(grades, queries.starts[:-1])
    worst = np.minimum.reduceat(grades, queries.starts[:-1])
    used = np.flatnonzero(best > worst)
    order = np.lexsort((-grades, codes))
    order = order[(best > worst)[codes[order]]]
    grades, codes = grades[order], codes[order]
    starts = np.append(0, np.cumsum(queries.sizes[used]))
    return RankedQueries(
        features[order],
        grades,
        _normalised_gains(grades, best[codes], starts),
        starts,
        _first_lower(grades, codes),
    ), used


def _normalised_gains(grades, best, starts):
    # (2^grade - 1) / 2^best: the ratio is the same, and large grades do not overflow.
    gains = -np.exp2(grades - best) * np.expm1(-grades * np.log(2))
    sizes = np.diff(starts)
    position = np.arange(len(grades)) - np.repeat(starts[:-1], sizes)
    discounted = np.where(position < CUTOFF, gains / np.log2(position + 2.0), 0.0)
    ideal = np.add.reduceat(discounted, starts[:-1]) if len(starts) > 1 else np.empty(0)
    return gains / np.repeat(ideal, sizes)


def _first_lower(grades, codes):
    """Return for each row the first row after it with another grade or query."""
    changes = (np.diff(grades) != 0) | (np.diff(codes) != 0)
    ends = np.append(np.flatnonzero(changes) + 1, len(grades))
    return np.repeat(ends, np.diff(ends, prepend=0))


def positions(scores: NDArray, starts: NDArray) -> NDArray:
    """Return the rank of each row in its query from 0, best score first, ties in row order."""
    sizes = np.diff(starts)
    codes = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((-scores, codes))
    position = np.empty(len(scores), dtype=np.intp)
    position[order] = np.arange(len(scores)) - np.repeat(starts[:-1], sizes)
    return position


def mean_ndcg_of(scores: NDArray, ranked: RankedQueries) -> float:
    """Return the mean NDCG at 10 of scores of sorted rows.

    The rows are sorted best grade first, so ties would count as right; they are broken against
    the model instead.
    """
    # Reversed, a stable sort puts the lower grade first where scores are equal.
    sizes = ranked.sizes
    mirrored = np.arange(len(scores)) - np.repeat(ranked.starts[:-1], sizes)
    back = np.repeat(ranked.starts[1:] - 1, sizes) - mirrored
    position = positions(scores[back], ranked.starts)[back]
    discount = np.where(position < CUTOFF, 1 / np.log2(position + 2.0), 0.0)
    return float(np.sum(ranked.gains * discount) / ranked.n_queries)
