"""Base of the linear learners that learn from rows and their targets, without pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..utils._sklearn import validate_rows
from ..utils._supervision import check_weights, merge_rows
from ..utils._typing import MatrixLike
from ..utils.validation import check_scale, check_varies, column_bounds
from ._base import LinearMetricLearner
from ._mahalanobis import Span, find_span


class RowMetricLearner(LinearMetricLearner):
    """Base of LMNN, MLKR, RCA and LFDA: one metric from rows, in their span."""

    metric = "euclidean"  # of rows as they are, for the base class

    def _check_rows(self, X: MatrixLike) -> Any:
        """Return valid rows that vary."""
        X = validate_rows(self, X, ensure_min_samples=2)
        bounds = column_bounds(X)
        check_scale(bounds)
        check_varies(bounds)
        if self.n_components is not None and self.n_components > X.shape[1]:
            raise ValueError(
                f"n_components={self.n_components} is more than the {X.shape[1]} features of X."
            )
        return X

    def _find_span(self, X: Any, weights: NDArray | None = None) -> Span:
        """Return the rows in coordinates of their span, about their weighted mean."""
        span = find_span(X, weights=weights)
        if self.n_components is not None and self.n_components > span.rank:
            raise ValueError(
                f"n_components={self.n_components} is more than the {span.rank} dimensions that "
                "the rows of X span: choose a smaller number."
            )
        return span


def merge_weighted(
    X: Any, codes: NDArray, sample_weight: ArrayLike | None
) -> tuple[Any, NDArray, NDArray[np.float64]]:
    """Take equal rows of a class, or of a target, as one row.

    Returns
    -------
    X, codes : array, ndarray
        The distinct rows with a weight, and what they were given with.
    weights : ndarray
        The sums of the weights of equal rows.
    """
    weights = None
    if sample_weight is not None:
        weights = check_weights(sample_weight, "sample_weight", X.shape[0])
        kept = np.flatnonzero(weights)
        X, codes, weights = X[kept], codes[kept], weights[kept]
    if codes.dtype.kind in "iu":  # classes from 0 without gaps, -1 for none
        codes = np.unique(codes, return_inverse=True)[1] + min(int(codes.min()), 0)
    rows, weights = merge_rows(X, codes, weights)
    if len(rows) < 2:
        raise ValueError("X has one row left that counts: two different ones are needed.")
    if len(rows) < X.shape[0] or weights is not None:
        X, codes = X[rows], codes[rows]
    if sample_weight is not None:
        check_varies(X)
    return X, codes, np.ones(len(rows)) if weights is None else weights


def principal_axes(
    rows: NDArray, n_components: int | None, weights: NDArray | None = None
) -> NDArray[np.float64]:
    """Return the leading principal axes of centred rows, or the identity for all of them."""
    if n_components is None or n_components == rows.shape[1]:
        return np.eye(rows.shape[1])
    weighted = rows if weights is None else weights[:, None] * rows
    return np.linalg.eigh(rows.T @ weighted)[1][:, : -n_components - 1 : -1].T
