"""Documents by query: grouping, sorting by relevance, and features relative to their query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr
from scipy.stats import false_discovery_control, rankdata

from ..utils.validation import check_vector, encode

# Ranks lie between -1 and 1 and are spread evenly; so scaled, they vary as much as z-scores.
_RANK_SCALE = np.sqrt(3.0)
# False discovery rate of the choice of features.
_FALSE_SHARE = 0.05
# With fewer queries, all features are used.
_MIN_QUERIES = 10
# Documents that are further than this from those of fit are as far as can be: squares stay finite.
_FAR = 1e60


class Measure(NamedTuple):
    """Which NDCG is meant.

    Attributes
    ----------
    gains : {"exponential", "linear"}
        What a grade is worth: ``2**grade - 1`` or the grade itself.
    cutoff : int or None
        The number of ranks that count; None stands for all.
    """

    gains: str = "exponential"
    cutoff: int | None = 10

    def counted(self, position: NDArray) -> NDArray:
        """Return the discounts of ranks, counted from 0; zero beyond the cut-off."""
        cutoff = np.inf if self.cutoff is None else self.cutoff
        return np.where(position < cutoff, discounts(position), 0.0)

    def worth(self, grades: NDArray, best: NDArray) -> NDArray:
        """Return the gains of grades, divided by what the query's best grade is worth, nearly."""
        if self.gains == "linear":
            return grades / np.where(best > 0, best, 1.0)
        # (2^grade - 1) / 2^best: the ratio is the same, and large grades do not overflow.
        return -np.exp2(grades - best) * np.expm1(-grades * np.log(2))


NDCG_AT_10 = Measure()


class _ByQuery:
    """Rows that come query by query."""

    starts: NDArray

    @property
    def sizes(self) -> NDArray:
        """The number of rows of each query."""
        return np.diff(self.starts)

    def codes(self) -> NDArray:
        """Return the query of each row."""
        return np.repeat(np.arange(len(self.starts) - 1), self.sizes)

    def ends(self) -> NDArray:
        """Return for each row where its query ends."""
        return np.repeat(self.starts[1:], self.sizes)


@dataclass(frozen=True)
class Queries(_ByQuery):
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

    def take(self, numbers: NDArray) -> Queries:
        """Return some of the queries, in the order of `numbers`."""
        rows, starts, _ = _locate(self.starts, numbers)
        return Queries(self.ids[numbers], self.order[rows], starts)

    def chunks(self, n_rows: int) -> Iterator[Queries]:
        """Yield the queries in parts of about that many rows; a longer one is a part of its own."""
        begin = 0
        while begin < len(self.ids):
            limit = self.starts[begin] + n_rows
            end = max(begin + 1, int(np.searchsorted(self.starts, limit, side="right")) - 1)
            yield self.take(np.arange(begin, end))
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
    by_appearance = np.argsort(np.unique(codes, return_index=True)[1])
    codes = np.argsort(by_appearance)[codes]
    order = np.argsort(codes, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(codes)))
    return Queries(ids[by_appearance], order, starts)


@dataclass(frozen=True)
class RankedQueries(_ByQuery):
    """Documents of queries that have more than one grade, sorted by query, then best grade first.

    Attributes
    ----------
    features : ndarray of shape (n_rows, n_features)
        The documents.
    grades : ndarray of shape (n_rows,)
        Their relevance.
    gains : ndarray of shape (n_rows,)
        What their grades are worth, divided by the best DCG that their query can have.
    starts : ndarray of shape (n_queries + 1,)
        Where each query begins, and the end.
    lower : ndarray of shape (n_rows,)
        The first row of the same query with a lower grade; the end of the query if none has.
    origin : ndarray of shape (n_rows,)
        Where each row was before the rows were sorted.
    weights : ndarray of shape (n_queries,) or float, default=1.0
        How much each query counts, 1 on average.
    offsets : ndarray of shape (n_rows,) or float, default=0.0
        Scores to which those of a model are added.
    measure : Measure, default=NDCG_AT_10
        The NDCG that is meant.
    """

    features: NDArray
    grades: NDArray
    gains: NDArray
    starts: NDArray
    lower: NDArray
    origin: NDArray
    weights: NDArray | float = 1.0
    offsets: NDArray | float = 0.0
    measure: Measure = NDCG_AT_10

    @property
    def n_queries(self) -> int:
        """The number of queries."""
        return len(self.starts) - 1

    def take(self, numbers: NDArray) -> RankedQueries:
        """Return some of the queries, in the order of `numbers`."""
        rows, starts, shift = _locate(self.starts, numbers)
        by_row = {
            name: getattr(self, name)[rows] for name in ("features", "grades", "gains", "origin")
        }
        weights, offsets = self.weights, self.offsets
        return replace(
            self,
            **by_row,
            starts=starts,
            lower=self.lower[rows] - shift,
            weights=weights[numbers] if isinstance(weights, np.ndarray) else weights,
            offsets=offsets[rows] if isinstance(offsets, np.ndarray) else offsets,
        )

    def row_weights(self) -> NDArray:
        """Return how much the query of each row counts."""
        return np.repeat(np.broadcast_to(self.weights, self.n_queries), self.sizes)

    def rows(self, numbers: NDArray) -> NDArray:
        """Return the rows of some queries."""
        return _locate(self.starts, numbers)[0]


def _locate(starts, numbers):
    """Return the rows of some queries, where each begins among them, and how far each moved."""
    sizes = np.diff(starts)[numbers]
    new_starts = np.append(0, np.cumsum(sizes))
    shift = np.repeat(starts[numbers] - new_starts[:-1], sizes)
    return np.arange(new_starts[-1]) + shift, new_starts, shift


def several_grades(grades: NDArray, starts: NDArray) -> NDArray:
    """Tell which queries have documents of different relevance, given rows query by query."""
    return np.maximum.reduceat(grades, starts[:-1]) > np.minimum.reduceat(grades, starts[:-1])


def sort_queries(
    features: NDArray, grades: NDArray, queries: Queries, measure: Measure = NDCG_AT_10
) -> tuple[RankedQueries, NDArray]:
    """Sort the rows of queries with several grades; those with one have no order to learn.

    The rows come query by query. Also returns the positions in ``queries.ids`` of the queries that
    are kept.
    """
    codes = queries.codes()
    best = np.maximum.reduceat(grades, queries.starts[:-1])
    keep = several_grades(grades, queries.starts)
    used = np.flatnonzero(keep)
    order = np.lexsort((-grades, codes))
    order = order[keep[codes[order]]]
    grades, codes = grades[order], codes[order]
    starts = np.append(0, np.cumsum(queries.sizes[used]))
    gains = _normalised_gains(grades, best[codes], starts, measure)
    lower = _first_lower(grades, codes)
    ranked = RankedQueries(features[order], grades, gains, starts, lower, order, measure=measure)
    return ranked, used


def _normalised_gains(grades, best, starts, measure):
    gains = measure.worth(grades, best)
    sizes = np.diff(starts)
    position = np.arange(len(grades)) - np.repeat(starts[:-1], sizes)
    discounted = gains * measure.counted(position)
    return gains / np.repeat(np.add.reduceat(discounted, starts[:-1]), sizes)


def _first_lower(grades, codes):
    """Return for each row the first row after it with another grade or query."""
    changes = (np.diff(grades) != 0) | (np.diff(codes) != 0)
    ends = np.append(np.flatnonzero(changes) + 1, len(grades))
    return np.repeat(ends, np.diff(ends, prepend=0))


def discounts(position: NDArray) -> NDArray:
    """Return the discount of DCG at a rank, counted from 0."""
    return 1 / np.log2(position + 2.0)


def positions(scores: NDArray, starts: NDArray) -> NDArray:
    """Return the rank of each row in its query from 0, best score first, ties in row order."""
    sizes = np.diff(starts)
    codes = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((-scores, codes))
    position = np.empty(len(scores), dtype=np.intp)
    position[order] = np.arange(len(scores)) - np.repeat(starts[:-1], sizes)
    return position


def mean_ndcg_of(scores: NDArray, ranked: RankedQueries) -> float:
    """Return the mean NDCG of scores of sorted rows.

    The rows are sorted best grade first, so ties would count as right; they are broken against
    the model instead.
    """
    # Reversed, a stable sort puts the lower grade first where scores are equal.
    position = positions(scores[::-1], len(scores) - ranked.starts[::-1])[::-1]
    achieved = ranked.gains * ranked.measure.counted(position) * ranked.row_weights()
    return float(np.sum(achieved) / ranked.n_queries)


@dataclass(frozen=True)
class Normalizer:
    """Features of documents relative to the other documents of their query.

    Attributes
    ----------
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
    """

    normalize: str | None
    scale: NDArray | None
    unit: float = 1.0
    used: NDArray | None = None

    def features(self, X: NDArray, queries: Queries) -> NDArray:
        """Return the features of the documents of queries, in the order of ``queries.order``."""
        return np.clip(self.unclipped(X, queries), -_FAR, _FAR)

    def unclipped(self, X: NDArray, queries: Queries) -> NDArray:
        """Return the features of documents of any scale, before there is a unit for them."""
        X = X[queries.order].astype(np.float64, copy=False)
        if self.normalize is None:
            return X * self.unit
        if self.normalize == "column":
            return X * self.unit / self.scale
        # One row per feature: contiguous in memory.
        values = np.ascontiguousarray(X.T)
        used = self.used
        if used is None:
            used = np.ones((3 if self.normalize == "both" else 2, len(values)), dtype=bool)
        views = [standardise(values[used[0]], queries.starts, self.unit)]
        views.append(rank_values(values[used[1]], queries.starts, _RANK_SCALE * self.unit))
        if self.scale is not None:
            views.append(values[used[2]] * (self.unit / self.scale[used[2]])[:, None])
        return np.concatenate(views).T

    def place(self, X: NDArray, documents: NDArray) -> NDArray:
        """Return the features of rows relative to the documents of one query.

        The rows do not change each other's features; the documents themselves get what `features`
        returns.
        """
        with np.errstate(over="ignore"):
            parts = []
            if self.normalize in ("query", "both"):
                parts = [place_z_scores(X, documents), _RANK_SCALE * place_ranks(X, documents)]
            if self.normalize != "query":
                parts.append(X if self.normalize is None else X / self.scale)
            features = np.hstack(parts)
            if self.used is not None:
                features = features[:, self.used.ravel()]
            return np.clip(features * self.unit, -_FAR, _FAR)


def fit_normalizer(
    X: NDArray,
    y: NDArray,
    queries: Queries,
    normalize: str | None,
    *,
    has_unit: bool,
    measure: Measure = NDCG_AT_10,
) -> tuple[Normalizer, RankedQueries]:
    """Choose scale, features and unit from the training documents.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features)
        The documents.
    y : ndarray of shape (n_rows,)
        Their relevance.
    queries : Queries
        Their queries.
    normalize : {"query", "column", "both"} or None
        See `Normalizer`.
    has_unit : bool
        Whether distances are made of order one; if not, columns have the 2-norm 1 with "column",
        and features are as they are otherwise.
    measure : Measure, default=NDCG_AT_10
        The NDCG that is meant.

    Returns
    -------
    normalizer : Normalizer
        For other documents.
    ranked : RankedQueries
        The training documents of queries with several grades.
    """
    rows = X if len(queries.order) == len(X) else X[queries.order]
    scale = column_scale(rows) if normalize in ("column", "both") else None
    normalizer = Normalizer(normalize, scale)
    features = normalizer.unclipped(X, queries)
    ranked, _ = sort_queries(features, y[queries.order], queries, measure)
    if normalize in ("query", "both"):
        used = choose_views(ranked, X.shape[1])
        features = features.compress(used.ravel(), axis=1)
        ranked = replace(ranked, features=ranked.features.compress(used.ravel(), axis=1))
        normalizer = replace(normalizer, used=used)
    unit = 1.0
    if has_unit:
        unit = _unit_of(features, queries)
    elif normalize == "column":
        unit = 1 / np.sqrt(len(features))  # the columns have a root mean square of 1
    ranked = replace(ranked, features=ranked.features * unit)
    return replace(normalizer, unit=unit), ranked


def _unit_of(features, queries):
    """Return the factor that makes the distance of a document to its query's mean 1, on average."""
    means = np.add.reduceat(features, queries.starts[:-1]) / queries.sizes[:, None]
    centred = features - np.repeat(means, queries.sizes, axis=0)
    largest = np.abs(centred).max()
    if largest == 0:
        return 1.0
    return 1 / (largest * np.sqrt(np.mean(np.sum((centred / largest) ** 2, axis=1))))


def column_scale(X: NDArray) -> NDArray:
    """Return the root mean square of each column, 1 where it is zero."""
    largest = np.abs(X).max(axis=0)
    largest[largest == 0] = 1.0
    scale = largest * np.sqrt(np.mean((X / largest) ** 2, axis=0))
    return np.where(scale > 0, scale, 1.0)


def standardise(values: NDArray, starts: NDArray, unit: float) -> NDArray:
    """Return z-scores within segments of each row, times `unit`.

    Values that are all the same give zeros.
    """
    sizes = np.diff(starts)
    # Huge values must not overflow when they are squared.
    largest = np.maximum.reduceat(np.abs(values), starts[:-1], axis=1)
    largest[largest == 0] = 1.0
    out = values / np.repeat(largest, sizes, axis=1)
    out -= np.repeat(np.add.reduceat(out, starts[:-1], axis=1) / sizes, sizes, axis=1)
    deviation = np.sqrt(np.add.reduceat(out * out, starts[:-1], axis=1) / sizes)
    with np.errstate(divide="ignore"):
        factor = np.where(deviation > 8 * np.finfo(float).eps, unit / deviation, 0.0)
    return out * np.repeat(factor, sizes, axis=1)


def rank_values(values: NDArray, starts: NDArray, unit: float) -> NDArray:
    """Return ranks within segments of each row; equal values share a mean rank.

    Ranks lie between ``-unit``, which would be below all, and ``unit``, above all.
    """
    sizes, ranks = np.diff(starts), np.empty_like(values)
    for size in np.unique(sizes):  # all segments of a size at once
        columns = starts[:-1][sizes == size, None] + np.arange(size)
        found = rankdata(values[:, columns], axis=-1)
        ranks[:, columns] = (found - (size + 1) / 2) * (2 * unit / size)
    return ranks


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


def place_z_scores(X: NDArray, documents: NDArray) -> NDArray:
    """Return z-scores of rows, by the mean and the deviation of the documents of a query."""
    largest = np.abs(documents).max(axis=0)
    unit = np.where(largest > 0, largest, 1.0)  # huge values are not squared
    scaled = documents / unit
    deviation = scaled.std(axis=0)
    varies = deviation > 8 * np.finfo(float).eps
    z_scores = (X / unit - scaled.mean(axis=0)) / np.where(varies, deviation, 1.0)
    return np.where(varies, z_scores, 0.0)


def place_ranks(X: NDArray, documents: NDArray) -> NDArray:
    """Return ranks of rows among the documents of a query, between -1 and 1."""
    ranks = np.empty_like(X)
    for column, values, ordered in zip(ranks.T, X.T, np.sort(documents, axis=0).T, strict=True):
        below = np.searchsorted(ordered, values, side="left")
        not_above = np.searchsorted(ordered, values, side="right")
        column[:] = (below + not_above) / len(ordered) - 1
    return ranks
