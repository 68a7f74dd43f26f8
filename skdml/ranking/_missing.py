"""Missing cells of documents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ._documents import Queries

_MAX_ROWS = 20_000  # from which medians are taken


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
