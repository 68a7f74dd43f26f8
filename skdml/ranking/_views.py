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
VIEWS = {"z": 1, "rank": 1, "value": 1, "z hinges": N_KNOTS, "value hinges": N_KNOTS}
N_BASIS = sum(VIEWS.values())
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
    z_knots, value_knots : ndarray of shape (N_KNOTS, n_features)
        Where the hinges ``max(v - knot, 0)`` of z-scores within the query, and of values, begin.
    """

    centre: NDArray
    scale: NDArray
    z_knots: NDArray
    value_knots: NDArray

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
        for place, column in enumerate(self._basis(X, starts, used)):
            out[place] = centre(column, starts)
        return out

    def scores(
        self,
        X: NDArray,
        starts: NDArray,
        coefficients: NDArray,
        documents: NDArray | None = None,
    ) -> NDArray:
        """Return linear scores of documents.

        `coefficients` has the shape (N_BASIS, n_features). Scores have the mean 0 in every query,
        unless the `documents` are given to which the rows are relative, all of one query: then the
        rows do not change each other's scores.
        """
        used = np.flatnonzero(coefficients.any(axis=1))
        total = np.zeros(len(X))
        for place, column in zip(used, self._basis(X, starts, used, documents), strict=True):
            total += coefficients[place] @ column
        return total if documents is not None else centre(total[None], starts)[0]

    def by_feature(
        self,
        X: NDArray,
        starts: NDArray,
        coefficients: NDArray,
        documents: NDArray | None = None,
    ) -> NDArray:
        """Return what each feature adds to the `scores` of documents, (n_rows, n_features)."""
        used = np.flatnonzero(coefficients.any(axis=1))
        total = np.zeros(X.shape[::-1])
        for place, column in zip(used, self._basis(X, starts, used, documents), strict=True):
            total += coefficients[place][:, None] * column
        return (total if documents is not None else centre(total, starts)).T

    def _basis(self, X, starts, used, documents=None):
        """Yield one column of all features after the other, (n_features, n_rows) each."""
        values = np.ascontiguousarray(X.T, dtype=np.float64)
        names = np.repeat(list(VIEWS), list(VIEWS.values()))[used]
        z = clipped_z = scaled = None
        if any(name.startswith("z") for name in names):
            if documents is None:
                z = standardise(values, starts, 1.0)
            else:
                z = place_z_scores(values.T, documents).T
            clipped_z = np.clip(z, *_Z_RANGE)
        if any(name.startswith("value") for name in names):
            scaled = self._scaled(values)
        for place, name in zip(used, names, strict=True):
            if name == "z":
                yield z
            elif name == "rank" and documents is None:
                yield rank_values(values, starts, _RANK_SCALE)
            elif name == "rank":
                yield _RANK_SCALE * place_ranks(values.T, documents).T
            elif name == "value":
                yield scaled
            elif name == "z hinges":
                yield np.maximum(clipped_z - self.z_knots[place - 3][:, None], 0)
            else:
                yield np.maximum(scaled - self.value_knots[place - 3 - N_KNOTS][:, None], 0)

    def _scaled(self, values):
        with np.errstate(over="ignore"):
            scaled = (values - self.centre[:, None]) / self.scale[:, None]
        return np.clip(scaled, *_VALUE_RANGE)


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
    views = Views(mean * unit[:, 0], scale * unit[:, 0], np.empty(0), np.empty(0))
    at = np.arange(1, N_KNOTS + 1) / (N_KNOTS + 1)
    z = np.clip(standardise(values, starts, 1.0), *_Z_RANGE)
    knots = [np.quantile(columns, at, axis=1) for columns in (z, views._scaled(values))]
    return Views(views.centre, views.scale, *knots)


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
