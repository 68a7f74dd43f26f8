"""Base class of the estimators that learn one linear metric from pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from .._parallel import find_client, is_dask_array
from ..constraints import check_pairs, make_pairs
from ..utils._bases import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from ..utils._pairs import check_index_pairs
from ..utils._sklearn import EstimatorMixin, Interval, StrOptions, validate_data
from ..utils._typing import MatrixLike, RandomStateLike, Request
from ..utils.validation import (
    as_array,
    check_named_array,
    check_scale,
    check_varies,
    column_bounds,
    naming,
)
from ._metric import MahalanobisMetric
from ._pairs import PairDifferences
from ._span import Span, check_prior, find_span, prior_inverse


@dataclass(frozen=True)
class TrainingPairs:
    """Pairs of rows in coordinates of their span, with the prior in the same coordinates.

    Attributes
    ----------
    pairs : ndarray of shape (n_pairs, 2)
        Row indices into X.
    labels : ndarray of shape (n_pairs,)
        +1 for similar pairs, -1 for dissimilar ones.
    places : ndarray of shape (n_pairs, 2)
        Row indices into the coordinates of the span.
    span : Span
        Of the rows that are in pairs.
    prior_inverse : ndarray of shape (rank, rank)
        The inverse of the prior inside the span.
    outside : float
        The inverse of the prior is this multiple of the identity outside the span.
    parallel : dict
        `n_jobs` and `client` of this fit.
    """

    pairs: NDArray
    labels: NDArray
    places: NDArray
    span: Span
    prior_inverse: NDArray
    outside: float
    parallel: dict[str, Any]

    def differences(self, places: NDArray | None = None) -> PairDifferences:
        """Return the differences of the pairs, or of other pairs of the same rows."""
        places = self.places if places is None else places
        return PairDifferences(self.span.coordinates, places, **self.parallel)

    def select(self, keep: NDArray) -> TrainingPairs:
        """Return some of the pairs."""
        return replace(
            self, pairs=self.pairs[keep], labels=self.labels[keep], places=self.places[keep]
        )


class LinearMetricLearner(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, EstimatorMixin, BaseEstimator
):
    """Base of the estimators that learn one Mahalanobis metric.

    The `fit` of a subclass calls `_check_supervision` and `_prepare`, and sets `metric_`, a
    `MahalanobisMetric`; everything that uses the metric is here.
    """

    _parameter_constraints: dict = {
        "prior": [StrOptions({"identity", "covariance"}), "array-like"],
        "n_constraints": [Interval(Integral, 2, None, closed="left"), None],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    n_components: int | None
    n_constraints: int | None
    n_jobs: int | None
    prior: str | ArrayLike
    random_state: RandomStateLike
    metric_: MahalanobisMetric

    if TYPE_CHECKING:  # scikit-learn makes these from the signatures, for metadata routing

        def set_fit_request(
            self, *, pairs: Request = None, pair_labels: Request = None
        ) -> Self: ...

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _check_supervision(self, X, y, pairs, pair_labels):
        """Validate the input of `fit` and turn it into X, index pairs and labels of +1 / -1."""
        name = type(self).__name__
        if pairs is None and pair_labels is not None:
            raise ValueError("pair_labels was given without pairs: pass both.")
        if pairs is None and y is None:
            raise ValueError(
                f"{name} requires y to be passed, but the target y is None. Pass class labels "
                "y, or index pairs with pairs= and pair_labels=."
            )
        if is_dask_array(X):
            X = self._check_dask_array(X, reset=True)
        else:
            X = validate_data(
                self,
                X,
                accept_sparse="csr",
                dtype=[np.float64, np.float32],
                ensure_min_samples=2,
            )
        bounds = column_bounds(X)
        if not np.isfinite(bounds).all():  # of dask arrays; others were looked at before
            raise ValueError("Input X contains NaN or infinity.")
        check_scale(bounds)
        check_varies(bounds)
        n_samples, n_features = X.shape
        if self.n_components is not None and self.n_components > n_features:
            raise ValueError(
                f"n_components={self.n_components} is more than the {n_features} features of X."
            )
        if pairs is not None:
            return X, *check_pairs(pairs, pair_labels, n_samples)
        with naming("y"):
            y = as_array(y)  # a dask array of labels is small
        if y.shape[:1] != (n_samples,):
            raise ValueError(
                f"y has {y.shape[0] if y.ndim else 'no'} entries for {n_samples} samples of X: "
                "one class label per row is needed."
            )
        n_constraints = self.n_constraints or self._default_constraints(n_samples)
        return X, *make_pairs(y, n_constraints, random_state=self.random_state)

    def _prepare(self, X, pairs, labels):
        """Express the pairs and the prior in coordinates of the span of the rows in pairs."""
        prior = check_prior(self.prior, X.shape[1])
        parallel = {"n_jobs": self.n_jobs, "client": find_client(None, X)}
        rows, places = np.unique(pairs, return_inverse=True)
        if len(rows) < X.shape[0]:
            X = X[rows]
            check_varies(X)
        span = find_span(X, full=not isinstance(prior, str), **parallel)
        inverse, outside = prior_inverse(prior, span)
        return TrainingPairs(pairs, labels, places.reshape(-1, 2), span, inverse, outside, parallel)

    @staticmethod
    def _default_constraints(n_samples):
        """How many pairs to draw where the user does not say; None leaves it to `make_pairs`."""
        return None

    def _check_dask_array(self, X, reset):
        if X.ndim != 2 or np.isnan(X.shape).any():
            raise ValueError(
                f"X is a dask array of shape {X.shape}: two known dimensions are needed "
                "(compute_chunk_sizes() finds them)."
            )
        if X.dtype not in (np.float32, np.float64):
            X = X.astype(np.float64)
        if reset:
            self.n_features_in_ = X.shape[1]
        elif X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input."
            )
        return X

    def transform(self, X: MatrixLike) -> NDArray:
        """Map rows into the space where plain Euclidean distance is the learned metric.

        Parameters
        ----------
        X : {array-like, sparse matrix, dask array} of shape (n_samples, n_features)
            The rows.

        Returns
        -------
        X_new : ndarray or dask array of shape (n_samples, n_features or n_components)
            ``X @ sqrtm(A)``; with `n_components`, one column per kept direction. A dask array
            gives a dask array, computed when it is needed.
        """
        check_is_fitted(self)
        if is_dask_array(X):
            X = self._check_dask_array(X, reset=False).rechunk({1: -1})
            return X.map_blocks(
                self.metric_.transform, dtype=X.dtype, chunks=(X.chunks[0], (self._n_features_out,))
            )
        X = self._check_rows(X)
        return self.metric_.transform(X)

    def _check_rows(self, X):
        return validate_data(
            self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False
        )

    @property
    def _n_features_out(self):
        return self.metric_.n_outputs

    def pair_distance(self, pairs: ArrayLike, X: MatrixLike | None = None) -> NDArray:
        """Return the learned distance of each pair.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features) or (n_pairs, 2)
            Pairs of vectors; with `X`, pairs of row indices into it, as in `fit`.
        X : {array-like, sparse matrix} of shape (n_samples, n_features), default=None
            The rows that index pairs refer to.

        Returns
        -------
        distances : ndarray of shape (n_pairs,)
            Not squared; 0 for equal vectors.
        """
        check_is_fitted(self)
        if X is not None:
            X = self._check_rows(X)
            pairs = check_index_pairs(pairs, X.shape[0])
            return self.metric_.pair_distance(X[pairs[:, 0]], X[pairs[:, 1]])
        if sparse.issparse(pairs):
            raise TypeError("sparse pairs are given as index pairs: pair_distance(pairs, X=rows).")
        pairs = check_named_array(
            pairs, "pairs", allow_nd=True, ensure_2d=False, dtype=[np.float64, np.float32]
        )
        if pairs.ndim != 3 or pairs.shape[1:] != (2, self.n_features_in_):
            raise ValueError(
                f"pairs must have shape (n_pairs, 2, {self.n_features_in_}), got {pairs.shape}. "
                "For index pairs, pass the rows as X."
            )
        return self.metric_.pair_distance(pairs[:, 0], pairs[:, 1])

    def get_metric(self) -> MahalanobisMetric:
        """Return the learned metric as a callable of two vectors.

        Returns
        -------
        metric : MahalanobisMetric
            ``metric(u, v)`` is the distance; fits ``KNeighborsClassifier(metric=metric)``, and
            does not depend on the estimator or its training data.
        """
        check_is_fitted(self)
        return self.metric_

    def get_mahalanobis_matrix(self) -> NDArray:
        """Return the matrix A of the learned metric, n_features x n_features.

        Returns
        -------
        A : ndarray of shape (n_features, n_features)
            Symmetric, positive semi-definite. MemoryError, with the size, if it cannot fit.
        """
        check_is_fitted(self)
        return self.metric_.matrix()
