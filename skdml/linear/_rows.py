"""Base of the linear learners that learn from rows and their targets, without pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..utils._sklearn import validate_rows
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

    def _find_span(self, X: Any) -> Span:
        """Return the rows in coordinates of their span."""
        span = find_span(X)
        if self.n_components is not None and self.n_components > span.rank:
            raise ValueError(
                f"n_components={self.n_components} is more than the {span.rank} dimensions that "
                "the rows of X span: choose a smaller number."
            )
        return span


def principal_axes(rows: NDArray, n_components: int | None) -> NDArray[np.float64]:
    """Return the leading principal axes of centred rows, or the identity for all of them."""
    if n_components is None or n_components == rows.shape[1]:
        return np.eye(rows.shape[1])
    return np.linalg.eigh(rows.T @ rows)[1][:, : -n_components - 1 : -1].T
