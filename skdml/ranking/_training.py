"""The training queries as arrays: rows of a query together, best grade first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr
from scipy.stats import false_discovery_control

from ._queries import Queries

CUTOFF = 10  # the measure that is learned and watched is NDCG at 10
# Of the features that are chosen, about so many may be there by chance.
_FALSE_SHARE = 0.05
# With fewer queries, all features are used.
_MIN_QUERIES = 10


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


def choose_views(ranked: RankedQueries, n_features: int) -> NDArray:
    """Choose the features that have to do with relevance, and a view of each.

    In each query, the grades are correlated with a column and with its square; over queries, the
    mean of such a correlation is zero for noise. Features are chosen by the t-tests of this, with
    the false discovery rate of Benjamini and Hochberg. Z-score and rank say nearly the same: the
    one with the larger t is used.

    Parameters
    ----------
    ranked : RankedQueries
        Documents with the z-scores of all features, then their ranks, then perhaps other views. A
        feature that never varies has zeros as z-scores and ranks.
    n_features : int
        The number of features.

    Returns
    -------
    used : ndarray of shape (n_views, n_features), dtype=bool
        All, if there are few queries or if no feature would be chosen.
    """
    used = np.ones((ranked.features.shape[1] // n_features, n_features), dtype=bool)
    if ranked.n_queries < _MIN_QUERIES:
        return used
    sizes, starts = ranked.sizes, ranked.starts[:-1]
    highest, lowest = ranked.grades[starts], ranked.grades[ranked.starts[1:] - 1]
    grades = (ranked.grades - np.repeat(lowest, sizes)) / np.repeat(highest - lowest, sizes)
    grades -= np.repeat(np.add.reduceat(grades, starts) / sizes, sizes)
    grades /= np.repeat(np.sqrt(np.add.reduceat(grades**2, starts) * sizes), sizes)
    columns = ranked.features[:, : 2 * n_features]
    tests = []
    for power in (1, 2):
        found = np.add.reduceat(columns**power * grades[:, None], starts)
        error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
        tests.append(np.abs(found.mean(axis=0)) / np.maximum(error, np.finfo(float).eps))
    t = np.maximum(*tests).reshape(2, n_features)
    chance = 2 * stdtr(ranked.n_queries - 1, -t.max(axis=0))
    chosen = false_discovery_control(np.minimum(chance, 1.0)) <= _FALSE_SHARE
    if not chosen.any():
        return used
    used[:] = chosen
    better_ranks = t[1] > t[0]
    used[0] &= ~better_ranks
    used[1] &= better_ranks
    return used


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
