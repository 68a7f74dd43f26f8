"""What a ranker sees of a document: views of its features, most of them relative to its query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.special import stdtr
from scipy.stats import false_discovery_control, rankdata

from ._documents import NDCG_AT_10, Measure, Queries, RankedQueries, sort_queries

# Knots of the hinges of a feature, at evenly spaced quantiles.
N_KNOTS = 4
# The views in their order, and how many columns each has for a feature.
VIEWS = {"z": 1, "rank": 1, "value": 1, "hinges": N_KNOTS}
N_BASIS = sum(VIEWS.values())
_FIRST_HINGE = N_BASIS - N_KNOTS
_PLAIN = ("z", "ranks", "values")  # attributes of `Seen` that are the columns before
# Beyond these, z-scores have no further hinges; global values are clipped.
_Z_RANGE = -3.0, 4.0
_VALUE_RANGE = -5.0, 5.0
# Ranks lie between -1 and 1 and are spread evenly; so scaled, they vary as much as z-scores.
_RANK_SCALE = np.sqrt(3.0)
# Rows from which scales and knots are taken.
_MAX_ROWS = 20_000
# False discovery rate of the choice of features.
_FALSE_SHARE = 0.05
# With fewer queries, all features are used.
_MIN_QUERIES = 10
# Documents that are further than this from those of fit are as far as can be: squares stay finite.
_FAR = 1e60
# Features of larger or smaller powers of two are divided by the largest value before squaring.
_EXPONENT = 400


def places(names: Iterable[str]) -> NDArray:
    """Return which of the `N_BASIS` columns of a feature belong to views."""
    names = set(names)
    return np.flatnonzero(np.repeat([view in names for view in VIEWS], list(VIEWS.values())))


@dataclass(frozen=True)
class Views:
    """Views of features, with the scales and knots of the training documents.

    Attributes
    ----------
    centre, scale : ndarray of shape (n_features,)
        Mean and deviation of each feature; its "value" is the clipped z-score by these.
    knots : ndarray of shape (N_KNOTS, n_features)
        Where the hinges ``max(z - knot, 0)`` of z-scores within the query begin.
    """

    centre: NDArray
    scale: NDArray
    knots: NDArray

    def columns(self, X: NDArray, starts: NDArray, used: NDArray) -> NDArray:
        """Return columns of documents that come query by query, each with mean 0 in every query.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_features)
            The documents.
        starts : ndarray of shape (n_queries + 1,)
            Where each query begins, and the end.
        used : ndarray of int
            Which of the `N_BASIS` columns of each feature, in increasing order.

        Returns
        -------
        columns : ndarray of shape (len(used), n_features, n_rows)
            One row per column: contiguous in memory.
        """
        out = np.empty((len(used), X.shape[1], len(X)))
        seen = Seen(self, X, starts)
        for row, (_, column) in zip(out, seen.columns(used), strict=True):
            row[:] = centre(column, starts)
        return out

    def factors(self, X: NDArray, starts: NDArray) -> NDArray:
        """Return what products are made of: clipped z-scores, then values, (2 n_features, n_rows).

        X and `starts` are those of `columns`.
        """
        return Seen(self, X, starts).factors(np.arange(2 * X.shape[1]))

    def scores(
        self,
        X: NDArray,
        starts: NDArray,
        coefficients: NDArray,
        interactions: NDArray | None = None,
        documents: NDArray | None = None,
    ) -> NDArray:
        """Return scores of documents.

        Parameters
        ----------
        X, starts
            As in `columns`.
        coefficients : ndarray of shape (N_BASIS, n_features)
            Of the columns.
        interactions : ndarray of shape (2 n_features, 2 n_features), default=None
            Q of a quadratic form ``v' Q v`` of the `factors`, symmetric.
        documents : ndarray, default=None
            The documents to which the rows are relative, all of one query: then the rows do not
            change each other's scores. Without it, scores have the mean 0 in every query.
        """
        total = Seen(self, X, starts, documents).scores(coefficients, interactions)
        return total if documents is not None else centre(total[None], starts)[0]

    def by_feature(
        self,
        X: NDArray,
        starts: NDArray,
        coefficients: NDArray,
        interactions: NDArray | None = None,
        documents: NDArray | None = None,
    ) -> NDArray:
        """Return what each feature adds to the `scores` of documents, (n_rows, n_features).

        Half of a product is added by each of its factors.
        """
        seen = Seen(self, X, starts, documents)
        total = np.zeros(X.shape[::-1])
        for place, column in seen.columns(np.flatnonzero(coefficients.any(axis=1))):
            total += coefficients[place][:, None] * column
        if interactions is not None:
            v = seen.factors(np.arange(len(interactions)))
            total += np.sum(((interactions @ v) * v).reshape(2, *total.shape), axis=0)
        return (total if documents is not None else centre(total, starts)).T


class Seen:
    """What views see of documents, each thing computed once; one row per feature.

    Z-scores within the query are computed in double precision, all else in `dtype`.
    """

    def __init__(
        self,
        views: Views,
        X: NDArray,
        starts: NDArray,
        documents: NDArray | None = None,
        dtype: DTypeLike = np.float64,
    ) -> None:
        self.views, self.starts, self.documents, self.dtype = views, starts, documents, dtype
        self.raw = np.ascontiguousarray(X.T, dtype=np.float64)

    @cached_property
    def z(self) -> NDArray:
        """Z-scores within the query."""
        if self.documents is None:
            return standardise(self.raw, self.starts, 1.0)
        return np.ascontiguousarray(place_z_scores(self.raw.T, self.documents).T)

    @cached_property
    def clipped_z(self) -> NDArray:
        """The same, without extremes."""
        return np.clip(self.z.astype(self.dtype, copy=False), *_Z_RANGE)

    @cached_property
    def values(self) -> NDArray:
        """Global z-scores, clipped."""
        views = self.views
        with np.errstate(over="ignore"):
            values = self.raw - views.centre[:, None]
            values /= views.scale[:, None]
        return np.clip(values, *_VALUE_RANGE, out=values).astype(self.dtype, copy=False)

    @property
    def ranks(self) -> NDArray:
        """Ranks within the query."""
        if self.documents is None:
            return rank_values(self.raw, self.starts, _RANK_SCALE)
        return _RANK_SCALE * place_ranks(self.raw.T, self.documents).T

    def scores(self, coefficients: NDArray, interactions: NDArray | None) -> NDArray:
        """Return scores, see `Views.scores`; within a query, they have any mean."""
        total = np.zeros(self.raw.shape[1])
        for place, column in self.columns(np.flatnonzero(coefficients.any(axis=1))):
            total += coefficients[place] @ column
        if interactions is not None:
            kept = np.flatnonzero(interactions.any(axis=0))
            v = self.factors(kept)
            total += np.einsum("in,in->n", interactions[np.ix_(kept, kept)] @ v, v)
        return total

    def columns(self, used: NDArray) -> Iterator[tuple[int, NDArray]]:
        """Yield the place of a column and the column, which the next one may overwrite."""
        hinges = None
        for place in used:
            if place < _FIRST_HINGE:
                yield place, getattr(self, _PLAIN[place])
            else:
                hinges = self.hinges(place, hinges)
                yield place, hinges

    def hinges(self, place: int, out: NDArray | None = None) -> NDArray:
        """Return a column of hinges."""
        knots = self.views.knots[place - _FIRST_HINGE].astype(self.dtype)
        out = np.subtract(self.clipped_z, knots[:, None], out=out)
        return np.maximum(out, 0, out=out)

    def stacked(self, used: NDArray) -> NDArray:
        """Return columns, one below the other, of shape (len(used) n_features, n_rows)."""
        out = np.empty((len(used), *self.raw.shape), dtype=self.dtype)
        for row, place in zip(out, used, strict=True):
            if place < _FIRST_HINGE:
                row[:] = getattr(self, _PLAIN[place])
            else:
                self.hinges(place, row)
        return out.reshape(-1, out.shape[2])

    def factors(self, kept: NDArray) -> NDArray:
        n_features = len(self.raw)
        first = np.searchsorted(kept, n_features)
        return np.concatenate(
            [self.clipped_z[kept[:first]], self.values[kept[first:] - n_features]]
        )


def centre(values: NDArray, starts: NDArray) -> NDArray:
    """Return the rows of an array less their means in each segment."""
    sizes = np.diff(starts)
    return values - np.repeat(np.add.reduceat(values, starts[:-1], axis=1) / sizes, sizes, axis=1)


def fit_views(X: NDArray, starts: NDArray) -> Views:
    """Return the views of documents that come query by query.

    Scales and knots are those of the first queries, up to 20,000 documents: shuffle the queries.
    """
    n_queries = max(1, int(np.searchsorted(starts, _MAX_ROWS, side="right")) - 1)
    starts = starts[: n_queries + 1]
    values = np.ascontiguousarray(X[: starts[-1]].T, dtype=np.float64)
    largest = np.abs(values).max(axis=1)
    unit = np.where(largest > 0, largest, 1.0)[:, None]  # huge values are not squared
    mean, scale = (values / unit).mean(axis=1), (values / unit).std(axis=1)
    scale = np.where(scale > 8 * np.finfo(float).eps, scale, 1.0)
    z = np.clip(standardise(values, starts, 1.0), *_Z_RANGE)
    at = np.arange(1, N_KNOTS + 1) / (N_KNOTS + 1)
    return Views(mean * unit[:, 0], scale * unit[:, 0], np.quantile(z, at, axis=1))


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
        if used[1].any():
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
    ranks: bool = True,
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
    ranks : bool, default=True
        Whether a feature may be seen as its rank.
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
    within = normalize in ("query", "both")
    start = np.ones((3 if normalize == "both" else 2, X.shape[1]), dtype=bool)
    start[1] = ranks
    normalizer = Normalizer(normalize, scale, used=start if within else None)
    features = normalizer.unclipped(X, queries)
    ranked, _ = sort_queries(features, y[queries.order], queries, measure)
    if within:
        used = choose_views(ranked, start)
        chosen = used[start]
        features = features.compress(chosen, axis=1)
        ranked = replace(ranked, features=ranked.features.compress(chosen, axis=1))
        normalizer = replace(normalizer, used=used)
    unit = 1.0
    if has_unit:
        unit = _unit_of(features, queries)
    elif normalize == "column":
        unit = 1 / np.sqrt(len(features))  # the columns have a root mean square of 1
    ranked = replace(ranked, features=ranked.features * unit)
    return replace(normalizer, unit=unit), ranked


def sort_validation(
    normalizer: Normalizer, measure: Measure, X: NDArray, y: NDArray, queries: Queries
) -> RankedQueries:
    """Return the validation queries that a user gave."""
    features = normalizer.features(X, queries)
    validation, _ = sort_queries(features, y[queries.order], queries, measure)
    if validation.n_queries == 0:
        raise ValueError(
            "y_val: no query has documents of different relevance, so early_stopping has "
            "nothing to go by."
        )
    return validation


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
    sizes, first = np.diff(starts), starts[:-1]
    largest = np.maximum(values.max(axis=1), -values.min(axis=1))
    extreme = (largest > 0) & (np.abs(np.log2(np.where(largest > 0, largest, 1.0))) > _EXPONENT)
    if extreme.any():
        values = values / np.where(extreme, largest, 1.0)[:, None]
    mean = np.add.reduceat(values, first, axis=1) / sizes
    out = values - np.repeat(mean, sizes, axis=1)
    deviation = np.sqrt(np.add.reduceat(out * out, first, axis=1) / sizes)
    varies = deviation > 8 * np.finfo(float).eps * np.abs(mean)
    out *= np.repeat(np.where(varies, unit / np.where(varies, deviation, 1.0), 0.0), sizes, axis=1)
    return out


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


def choose_views(ranked: RankedQueries, known: NDArray) -> NDArray:
    """Choose the features that have to do with relevance, and a view of each.

    In each query, the grades are correlated with a column and with its square; over queries, the
    mean of such a correlation is zero for noise. Features are chosen by the t-tests of this, with
    the false discovery rate of Benjamini and Hochberg. Z-score and rank say nearly the same: the
    one with the larger t is used.

    Parameters
    ----------
    ranked : RankedQueries
        Documents with the z-scores of all features, then perhaps their ranks, then perhaps other
        views. A feature that never varies has zeros as z-scores and ranks.
    known : ndarray of shape (n_views, n_features), dtype=bool
        Which columns there are: all z-scores, all or no ranks.

    Returns
    -------
    used : ndarray of shape (n_views, n_features), dtype=bool
        All that are known, if there are few queries or if no feature would be chosen.
    """
    if ranked.n_queries < _MIN_QUERIES:
        return known
    n_features = known.shape[1]
    sizes, starts = ranked.sizes, ranked.starts[:-1]
    highest, lowest = ranked.grades[starts], ranked.grades[ranked.starts[1:] - 1]
    grades = (ranked.grades - np.repeat(lowest, sizes)) / np.repeat(highest - lowest, sizes)
    grades -= np.repeat(np.add.reduceat(grades, starts) / sizes, sizes)
    grades /= np.repeat(np.sqrt(np.add.reduceat(grades**2, starts) * sizes), sizes)
    columns = ranked.features[:, : known[:2].sum()]
    tests = []
    for power in (1, 2):
        found = np.add.reduceat(columns**power * grades[:, None], starts)
        error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
        tests.append(np.abs(found.mean(axis=0)) / np.maximum(error, np.finfo(float).eps))
    t = np.maximum(*tests).reshape(-1, n_features)
    chance = 2 * stdtr(ranked.n_queries - 1, -t.max(axis=0))
    chosen = false_discovery_control(np.minimum(chance, 1.0)) <= _FALSE_SHARE
    if not chosen.any():
        return known
    used = known & chosen
    better_ranks = t[-1] > t[0]
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
