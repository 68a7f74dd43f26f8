"""Base of the linear learners that learn from rows and their targets, without pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..utils._sklearn import validate_rows
from ..utils._supervision import check_weights, merge_rows
from ..utils._typing import MatrixLike
from ..utils.validation import check_scale, check_varies, column_bounds
from ._base import LinearMetricLearner
from ._mahalanobis import MahalanobisMetric
from ._selection import choose_strength, metric_power
from ._span import Span, find_span

# Candidates of the strength beside 0.
STRENGTHS = (0.25, 0.5, 0.75, 1.0)


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


class StrengthMixin(RowMetricLearner):
    """Base of RCA and LFDA: how far to go from X as it is to the metric in closed form."""

    strength: float | str
    strength_: float

    def _choose_strength(
        self,
        rows: NDArray,
        codes: NDArray,
        weights: NDArray,
        learn: Callable[[NDArray, NDArray, NDArray], NDArray],
        select: str,
    ) -> None:
        """Set `strength_`, by rows that are held out where it is "auto".

        ``learn(rows, codes, weights)`` returns the metric of some rows.
        """
        vars(self).pop("path_", None)
        if not isinstance(self.strength, str):
            self.strength_ = float(self.strength)
            return
        classes, codes = np.unique(codes, return_inverse=True)
        if len(classes) < 2:  # nothing tells one metric from another
            self.strength_ = 1.0
            return

        def learn_part(*part):
            try:
                return learn(*part)
            except ValueError:  # too few different rows
                return None

        prior = principal_axes(rows, self.n_components, weights).T
        choice = choose_strength(rows, codes, learn_part, STRENGTHS, prior, select, weights)
        self.strength_ = choice.values[0] if choice.values else 0.0
        self.path_ = {"strength": choice.path["value"], "score": choice.path["score"]}

    def _span_metric(
        self, span: Span, A: NDArray, scale: float, rows: NDArray, weights: NDArray, dtype: Any
    ) -> MahalanobisMetric:
        """Return the power of a metric A, which is `scale` outside the span."""
        if self.strength_ == 0:
            axes = principal_axes(rows, self.n_components, weights)
            return span.metric(axes.T @ axes, 1.0, self.n_components, dtype)
        if self.strength_ < 1:
            root = metric_power(A, self.strength_)
            A, scale = root @ root.T, scale**self.strength_
        return span.metric(A, scale, self.n_components, dtype)


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
