"""Documents by query: checks, grouping, missing cells, sorting by relevance, and NDCG."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from ..utils import validation as checks
from ..utils._parallel import computed, exceeds, gather_rows
from ..utils._sklearn import validate_rows
from ..utils._typing import MatrixLike

# Documents may be of any scale up to 2 to this power.
_MOST_EXPONENT = 950
# Rows from which medians are taken.
_MAX_ROWS = 20_000
# Local metrics, and the choice of the linear part, are learned from queries with so many cells.
_MAX_CELLS = 1_250_000
# Held out to choose the epoch of local metrics, unless the linear part has folds.
_HELD_OUT = 0.2
_MIN_HELD_OUT = 2


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

    def in_order(self) -> Queries:
        """Return the same queries of the rows in `order` alone."""
        return replace(self, order=np.arange(len(self.order)))


def check_rows(estimator: Any, X: MatrixLike, name: str = "X", **options: Any) -> NDArray:
    """Return documents as a dense matrix, in which cells may be missing."""
    options = {"ensure_all_finite": "allow-nan", **options}
    return checks.as_dense(validate_rows(estimator, X, name, **options), name)


def check_documents(
    ranker: Any, X: MatrixLike, y: Any, qid: Any, *, reset: bool = False, suffix: str = ""
) -> tuple[NDArray, NDArray, Queries]:
    """Return documents, their grades and their queries, for `fit` of a ranker."""
    _check_y_given(ranker, y, f"y{suffix}")
    least = 2 if reset else 1  # one document has no order
    X = check_rows(ranker, X, f"X{suffix}", reset=reset, ensure_min_samples=least)
    y = checks.check_grades(y, f"y{suffix}", len(X))
    return X, y, group_rows(qid, len(X), f"qid{suffix}")


def _check_y_given(ranker, y, name):
    checks.check_given(y, type(ranker).__name__, " Pass the relevance of each document.", name)


def stays_on_workers(X: Any) -> bool:
    """Tell whether a dense dask array has more cells than what is learned from here."""
    return exceeds(X, _MAX_CELLS)


def scan_documents(ranker: Any, X: Any, y: Any, qid: Any) -> tuple[NDArray, Queries, NDArray]:
    """Return grades, queries and the columns with missing cells of a dask array of documents."""
    import dask
    import dask.array as da

    _check_y_given(ranker, y, "y")
    y = checks.check_grades(computed(y), "y", len(X))
    queries = group_rows(computed(qid), len(X))
    gone = da.isnan(X)
    known = da.where(gone, 0, X)
    missing, *bounds = dask.compute(gone.any(axis=0), known.min(axis=0), known.max(axis=0))
    if not np.isfinite(bounds).all():
        raise ValueError("X contains infinity: replace such cells, or leave out these documents.")
    checks.check_scale(np.array(bounds), "X", exponent=_MOST_EXPONENT)
    return y, queries, np.flatnonzero(missing)


def gather_documents(
    ranker: Any, X: Any, rows: NDArray, columns: NDArray
) -> tuple[NDArray, Missing]:
    """Return some documents of a dask array, and what takes the place of missing cells in all."""
    found = gather_rows(X, rows)
    found = check_rows(ranker, found, reset=True, ensure_min_samples=2)
    return found, Missing(columns, fit_missing(found).medians)


def group_rows(qid: ArrayLike | None, n_rows: int, name: str = "qid") -> Queries:
    """Group rows by query id; None means that all are of one query."""
    if qid is None:
        return Queries(np.zeros(1, dtype=np.intp), np.arange(n_rows), np.array([0, n_rows]))
    ids, codes = checks.encode(checks.check_vector(qid, name, n_rows), name)
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
    """Return the mean NDCG of scores of sorted rows, by the weights of the queries."""
    return float(np.mean(ranked.weights * ndcg_of(scores, ranked)))


def ndcg_of(scores: NDArray, ranked: RankedQueries) -> NDArray:
    """Return the NDCG of each query, given scores of sorted rows.

    The rows are sorted best grade first, so ties would count as right; they are broken against
    the model instead.
    """
    # Reversed, a stable sort puts the lower grade first where scores are equal.
    position = positions(scores[::-1], len(scores) - ranked.starts[::-1])[::-1]
    return np.add.reduceat(ranked.gains * ranked.measure.counted(position), ranked.starts[:-1])


@dataclass(frozen=True)
class Missing:
    """What takes the place of missing cells.

    Attributes
    ----------
    columns : ndarray of int
        The features that had missing cells in training: each has an indicator of its own, which
        says where it is missing.
    medians : ndarray of shape (n_features,)
        Of the training documents.
    """

    columns: NDArray
    medians: NDArray

    def fill(self, X: NDArray, queries: Queries | None, name: str = "X") -> NDArray:
        """Return documents without missing cells, with indicators on the right.

        A cell gets the median of its query; where all of the query are missing, or without
        `queries`, that of the training documents. `name` is that of X in an error: numbers must
        not be too large to be squared.
        """
        X = self._filled(X, queries)
        checks.check_scale(X, name, exponent=_MOST_EXPONENT)
        return X

    def _filled(self, X, queries):
        missing = np.isnan(X)
        if not missing.any():
            if not len(self.columns):
                return X
            return np.hstack([X, np.zeros((len(X), len(self.columns)), X.dtype)])
        indicators = missing[:, self.columns].astype(X.dtype)
        X = X.copy()
        for column in np.flatnonzero(missing.any(axis=0)):
            values, gone = X[:, column], missing[:, column]
            for rows in [] if queries is None else _rows_with(gone, queries):
                if not gone[rows].all():
                    values[rows[gone[rows]]] = np.median(values[rows[~gone[rows]]])
            values[np.isnan(values)] = self.medians[column]
        return np.hstack([X, indicators])

    def join(self, by_feature: NDArray) -> NDArray:
        """Return what features add, with that of their indicators."""
        n_features = len(self.medians)
        joined = by_feature[:, :n_features].copy()
        joined[:, self.columns] += by_feature[:, n_features:]
        return joined


def _rows_with(gone, queries):
    """Yield the rows of queries that have a missing cell."""
    for number in np.unique(queries.codes()[gone[queries.order]]):
        yield queries.rows(number)


def fit_missing(X: NDArray) -> Missing:
    """Return what takes the place of missing cells of these documents and of others."""
    step = 1 + len(X) // _MAX_ROWS
    medians = np.median(X[::step], axis=0)
    columns = np.flatnonzero(np.isnan(np.min(X, axis=0)))
    for column in columns:
        values = X[:, column]
        known = values[~np.isnan(values)][::step]
        medians[column] = np.median(known) if len(known) else 0.0
    return Missing(columns, medians)


def repeat_documents(X: NDArray, y: NDArray, sample_weight: ArrayLike | None) -> NDArray:
    """Return the documents of the only query, as often as they count, in an order of their own."""
    # The same whatever the order of rows: a weight of 2 is the document twice.
    order = np.lexsort((*X.T, y))
    if sample_weight is None:
        return order
    weight = checks.check_numbers(sample_weight, "sample_weight", len(X))
    if (weight < 0).any() or (weight != np.round(weight)).any():
        raise ValueError(
            "sample_weight must be whole numbers, 0 or above, without qid: how often each document "
            "is in the only query. Pass qid for weights of queries."
        )
    if weight.sum() < 2:
        raise ValueError("sample_weight is zero for all documents, or for all but one.")
    checks.refuse_if_too_large(
        (int(min(weight.sum(), 2.0**60)), X.shape[1]),
        "sample_weight repeats documents",
        "Give smaller weights.",
    )
    return np.repeat(order, weight[order].astype(np.int64))


def check_query_weights(
    sample_weight: ArrayLike | None, queries: Queries
) -> tuple[Queries, NDArray | None]:
    """Return the queries that count and their weights, None where all are the same."""
    if sample_weight is None:
        return queries, None
    weight = checks.check_numbers(sample_weight, "sample_weight", len(queries.order))
    if (weight < 0).any():
        raise ValueError("sample_weight must not be negative.")
    weight = weight[queries.order]
    first = weight[queries.starts[:-1]]
    differs = np.flatnonzero(weight != np.repeat(first, queries.sizes))
    if len(differs):
        name = queries.ids[queries.codes()[differs[0]]]
        raise ValueError(
            f"sample_weight differs among the documents of query {name}: a weight is that of a "
            "query, the same for all of its documents."
        )
    counted = np.flatnonzero(first)
    if not len(counted):
        raise ValueError("sample_weight is zero for every query: there is nothing to learn from.")
    weights = first[counted]
    return queries.take(counted), None if (weights == weights[0]).all() else weights


class Training(NamedTuple):
    """Documents to learn from.

    Attributes
    ----------
    sample, everything : (array, array, Queries, array or None)
        Documents, grades, queries and their weights: of queries drawn at random, and of all that
        have documents of different grades.
    n_queries : int
        How many there are with those of a single grade.
    """

    sample: tuple[Any, NDArray, Queries, NDArray | None]
    everything: tuple[Any, NDArray, Queries, NDArray | None]
    n_queries: int


def draw_training(
    X: Any,
    y: NDArray,
    queries: Queries,
    weights: NDArray | None,
    n_features: int,
    rng: Generator,
) -> Training:
    """Return queries in random order, as many as have a limited number of cells, and all of them.

    With `n_features` of 0 the sample is all queries, in their order.
    """
    kept = np.flatnonzero(several_grades(y[queries.order], queries.starts))
    if len(kept) == 0:
        raise ValueError(
            "y: no query has documents of different relevance, so there is no order to learn."
        )
    drawn = kept
    if n_features:
        shuffled = rng.permutation(kept)
        n_cells = np.cumsum(queries.sizes[shuffled]) * n_features
        drawn = shuffled[: max(1, int(np.searchsorted(n_cells, _MAX_CELLS, side="right")))]

    def part(numbers):
        return X, y, queries.take(numbers), None if weights is None else weights[numbers]

    return Training(part(drawn), part(kept), len(queries.ids))


def hold_out(ranked: RankedQueries, rng: Generator) -> tuple[RankedQueries, RankedQueries | None]:
    """Return the queries to train on, and those to choose the epoch by, or None."""
    n_held_out = int(_HELD_OUT * ranked.n_queries)
    if n_held_out < _MIN_HELD_OUT:
        return ranked, None
    shuffled = rng.permutation(ranked.n_queries)
    held_out, rest = shuffled[:n_held_out], shuffled[n_held_out:]
    return ranked.take(np.sort(rest)), ranked.take(np.sort(held_out))
