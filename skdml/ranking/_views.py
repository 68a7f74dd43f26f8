"""What a ranker sees of a document: missing cells filled, and views of features."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ._documents import Queries, place_ranks, place_z_scores, rank_values, standardise

# Knots of the hinges of a feature, at evenly spaced quantiles.
N_KNOTS = 4
# The views in their order, and how many columns each has for a feature.
VIEWS = {"z": 1, "rank": 1, "value": 1, "hinges": N_KNOTS}
N_BASIS = sum(VIEWS.values())
_FIRST_HINGE = N_BASIS - N_KNOTS
# Beyond these, z-scores have no further hinges; global values are clipped.
_Z_RANGE = -3.0, 4.0
_VALUE_RANGE = -5.0, 5.0
_RANK_SCALE = np.sqrt(3.0)  # ranks that vary as much as z-scores
# Rows from which medians, scales and knots are taken.
_MAX_ROWS = 20_000


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
        for row, (_, column) in zip(out, self._basis(X, starts, used), strict=True):
            row[:] = centre(column, starts)
        return out

    def factors(self, X: NDArray, starts: NDArray, documents: NDArray | None = None) -> NDArray:
        """Return what products are made of: clipped z-scores, then values, (2 n_features, n_rows).

        The arguments are those of `scores`.
        """
        values = np.ascontiguousarray(X.T, dtype=np.float64)
        z = _z_scores(values, starts, documents)
        return np.concatenate([np.clip(z, *_Z_RANGE, out=z), self._scaled(values)])

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
        total = np.zeros(len(X))
        used = np.flatnonzero(coefficients.any(axis=1))
        for place, column in self._basis(X, starts, used, documents):
            total += coefficients[place] @ column
        if interactions is not None:
            # only those that are in a product: trees have few interactions as well
            v = self.factors(X, starts, documents)
            kept = np.flatnonzero(interactions.any(axis=0))
            v = v[kept]
            total += np.einsum("in,in->n", interactions[np.ix_(kept, kept)] @ v, v)
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
        total = np.zeros(X.shape[::-1])
        used = np.flatnonzero(coefficients.any(axis=1))
        for place, column in self._basis(X, starts, used, documents):
            total += coefficients[place][:, None] * column
        if interactions is not None:
            v = self.factors(X, starts, documents)
            total += np.sum(((interactions @ v) * v).reshape(2, *total.shape), axis=0)
        return (total if documents is not None else centre(total, starts)).T

    def _basis(self, X, starts, used, documents=None):
        """Yield place and column of all features, (n_features, n_rows), one after the other."""
        values = np.ascontiguousarray(X.T, dtype=np.float64)
        z = clipped = None
        for place in used:
            if place in (0, *range(_FIRST_HINGE, N_BASIS)) and z is None:
                z = _z_scores(values, starts, documents)
            if place == 0:
                yield place, z
            elif place == 1 and documents is None:
                yield place, rank_values(values, starts, _RANK_SCALE)
            elif place == 1:
                yield place, _RANK_SCALE * place_ranks(values.T, documents).T
            elif place == 2:
                yield place, self._scaled(values)
            else:
                clipped = np.clip(z, *_Z_RANGE) if clipped is None else clipped
                yield place, np.maximum(clipped - self.knots[place - _FIRST_HINGE][:, None], 0)

    def _scaled(self, values):
        with np.errstate(over="ignore"):
            scaled = (values - self.centre[:, None]) / self.scale[:, None]
        return np.clip(scaled, *_VALUE_RANGE)


def _z_scores(values, starts, documents):
    if documents is None:
        return standardise(values, starts, 1.0)
    return np.ascontiguousarray(place_z_scores(values.T, documents).T)


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

    def fill(self, X: NDArray, queries: Queries | None) -> NDArray:
        """Return documents without missing cells, with indicators on the right.

        A cell gets the median of its query; where all of the query are missing, or without
        `queries`, that of the training documents.
        """
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
    medians = np.zeros(X.shape[1])
    has_missing = np.zeros(X.shape[1], dtype=bool)
    for column, values in enumerate(X.T):
        missing = np.isnan(values)
        has_missing[column] = missing.any()
        known = values[~missing][:: 1 + len(values) // _MAX_ROWS]
        medians[column] = np.median(known) if len(known) else 0.0
    return Missing(np.flatnonzero(has_missing), medians)
