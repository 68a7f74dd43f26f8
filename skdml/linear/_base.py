"""Base class of the estimators that learn one linear metric: rows, pairs, their prior."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.preprocessing import normalize
from sklearn.utils import check_random_state
from sklearn.utils.extmath import row_norms
from sklearn.utils.validation import check_is_fitted

from ..constraints import make_pairs
from ..utils._bases import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from ..utils._differences import PairDifferences
from ..utils._parallel import computed, find_client, is_dask_array
from ..utils._sklearn import EstimatorMixin, Interval, StrOptions, validate_rows
from ..utils._split_pairs import refuse_split_indices
from ..utils._typing import MatrixLike, RandomStateLike, Request
from ..utils.validation import (
    check_given,
    check_index_pairs,
    check_named_array,
    check_pairs,
    check_row_labels,
    check_scale,
    check_varies,
    column_bounds,
    encode_for_pairs,
)
from ._mahalanobis import MahalanobisMetric, Span, find_span, shorten
from ._selection import N_ROUNDS, Choice, choose_for_pairs, choose_value, near_pairs

# Rows among which local pairs are found.
_MOST_ROWS = 10_000


class LinearMetricLearner(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, EstimatorMixin, BaseEstimator
):
    """Base of the estimators that learn one Mahalanobis metric.

    The `fit` of a subclass calls `_check_supervision` and `_prepare`, and sets `metric_`, a
    `MahalanobisMetric`; everything that uses the metric is here.
    """

    _chosen: str  # the parameter that "auto" chooses along a path
    _candidates: tuple[float, ...]
    _most_rank = 2000  # dimensions that local pairs may span where there are more columns

    _parameter_constraints: dict = {
        "prior": [StrOptions({"identity", "covariance"}), "array-like"],
        "metric": [StrOptions({"euclidean", "cosine"})],
        "pairs": [StrOptions({"auto", "local", "random"})],
        "select": [StrOptions({"samples", "classes"})],
        "n_constraints": [Interval(Integral, 2, None, closed="left"), None],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    metric: str
    pairs: str
    select: str
    n_components: int | None
    n_constraints: int | None
    n_jobs: int | None
    prior: str | ArrayLike
    random_state: RandomStateLike
    metric_: MahalanobisMetric
    path_: dict[str, list[float]]

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
        """Return X with either the numbers of the classes, or index pairs and labels of +1 / -1."""
        if pairs is None:
            if pair_labels is not None:
                raise ValueError("pair_labels was given without pairs: pass both.")
            hint = " Pass class labels y, or index pairs with pairs= and pair_labels=."
            check_given(y, type(self).__name__, hint)
        else:
            refuse_split_indices(pairs)
        if is_dask_array(X):
            X = self._check_dask_array(X, reset=True)
        else:
            X = validate_rows(self, X, ensure_min_samples=2)
        bounds = column_bounds(X)
        if not np.isfinite(bounds).all():  # of dask arrays; others were checked above
            raise ValueError("Input X contains NaN or infinity.")
        check_scale(bounds)
        check_varies(bounds)
        X = self._scale_rows(X)
        n_samples, n_features = X.shape
        if self.n_components is not None and self.n_components > n_features:
            raise ValueError(
                f"n_components={self.n_components} is more than the {n_features} features of X."
            )
        if pairs is not None:
            return X, None, *check_pairs(pairs, pair_labels, n_samples)
        y = check_row_labels(y, n_samples)
        if self._is_random() and getattr(self, self._chosen) != "auto":
            n_pairs = self.n_constraints or self._n_pairs(*X.shape)
            return X, None, *make_pairs(y, n_pairs, random_state=self.random_state)
        return X, encode_for_pairs(y), None, None

    def _prepare(self, X, codes, pairs, labels):
        """Express the rows and the prior in coordinates of the span of the rows."""
        prior = check_prior(self.prior, X.shape[1])
        parallel = {"n_jobs": self.n_jobs, "client": find_client(None, X)}
        if pairs is None:
            rows, places = self._draw_rows(X, codes), np.empty((0, 2), dtype=int)
            codes, labels = codes[rows], np.empty(0, dtype=int)
        else:
            rows, places = np.unique(pairs, return_inverse=True)
            places = places.reshape(-1, 2)
        if len(rows) < X.shape[0]:
            X = X[rows]
            check_varies(X)
        span = find_span(X, full=not isinstance(prior, str), **parallel)
        inverse, outside = prior_inverse(prior, span)
        return TrainingPairs(rows, codes, places, labels, span, inverse, outside, parallel)

    def _draw_rows(self, X, codes):
        """Return the rows among which local pairs are found: all, or some of each class."""
        n_rows, n_features = X.shape
        most = _MOST_ROWS if n_features <= 2 * self._most_rank else self._most_rank
        if n_rows <= most:
            return np.arange(n_rows)
        order = check_random_state(self.random_state).permutation(n_rows)
        # Rows at equal steps through the rows in the order of their classes: each class has its
        # share.
        by_class = order[np.argsort(codes[order], kind="stable")]
        return np.sort(by_class[np.linspace(0, n_rows - 1, most).astype(int)])

    def _find_pairs(self, training, learn, rng):
        """Return the pairs to learn from, and the value of the parameter that is chosen for them.

        Parameters
        ----------
        training : TrainingPairs
            The rows, with pairs or with classes.
        learn : callable
            See `_selection`.
        rng : RandomState
            Draws pairs and folds.

        Returns
        -------
        training : TrainingPairs
            With pairs.
        value : float or None
            Of the parameter; None where the prior is best.
        """
        value, values = getattr(self, self._chosen), list(self._candidates)
        is_auto = isinstance(value, str)
        if training.codes is None and not is_auto:
            return training, value
        rows, prior = computed(training.span.coordinates), training.prior_factor
        is_cosine = self.metric == "cosine"
        offset = training.span.offset() if is_cosine else None
        moment = None
        if self.n_components is not None and self.n_components < rows.shape[1]:
            moment = training.span.second_moment(from_origin=is_cosine)

        def embed(rows, factor):
            if moment is not None:
                factor = shorten(factor, moment, self.n_components)
            return _embed(rows, factor, offset)

        if training.codes is None:
            given = training.places, training.labels
            choice = choose_for_pairs(rows, *given, learn, embed, values, prior, rng)
        else:
            n_pairs = self.n_constraints or self._n_pairs(*rows.shape)
            n_rounds = 1 if self._is_random() or value == np.inf else N_ROUNDS

            def draw(rows, codes):
                if self._is_random():
                    return make_pairs(codes, n_pairs, random_state=rng)
                return near_pairs(rows, codes, n_pairs, rng)

            if is_auto:
                choice = choose_value(
                    rows, training.codes, draw, learn, embed, values, prior, self.select,
                    n_rounds, rng,
                )  # fmt: skip
            else:
                choice = Choice([value] * n_rounds)
        if is_auto:
            self.path_ = {self._chosen if k == "value" else k: v for k, v in choice.path.items()}
        value = choice.values[-1] if choice.values else None
        if training.codes is None:
            return training, value
        factor = prior
        for number in range(max(1, len(choice.values))):
            places, labels = draw(embed(rows, factor), training.codes)
            if number < len(choice.values) - 1:
                (factor,) = learn(rows, places, labels, choice.values[number : number + 1], factor)
        # The rows are here now, so that the work is, too.
        training = replace(training, span=replace(training.span, coordinates=rows), parallel={})
        return training.with_pairs(places, labels), value

    def _is_random(self):
        """Return whether pairs are random: local ones are of no use among unseen classes."""
        return self.pairs == "random" or (self.pairs == "auto" and self.select == "classes")

    def _n_pairs(self, n_rows, rank):
        """Return how many pairs are taken at most where `n_constraints` is None."""
        return min(20 * n_rows, 1_000_000)

    def _scale_rows(self, X):
        """Scale rows to unit length with the cosine metric."""
        if self.metric == "euclidean":
            return X
        if is_dask_array(X):
            norms = (X**2).sum(axis=1) ** 0.5
        else:
            norms = row_norms(X)
        if not computed(norms).all():
            raise ValueError(
                "X has a row of zeros, which has no direction: metric='cosine' cannot use it."
            )
        if sparse.issparse(X):
            return normalize(X)
        return X / norms[:, None]

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
            X = self._scale_rows(self._check_dask_array(X, reset=False)).rechunk({1: -1})
            X_new = X.map_blocks(
                self.metric_.transform, dtype=X.dtype, chunks=(X.chunks[0], (self._n_features_out,))
            )
        else:
            X_new = self.metric_.transform(self._scale_rows(validate_rows(self, X, reset=False)))
        return self._scale_rows(X_new)

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
            X = validate_rows(self, X, reset=False)
            pairs = check_index_pairs(pairs, X.shape[0])
            return self._distance(X[pairs[:, 0]], X[pairs[:, 1]])
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
        return self._distance(pairs[:, 0], pairs[:, 1])

    def _distance(self, first, second):
        if self.metric == "euclidean":
            return self.metric_.pair_distance(first, second)
        sides = [
            self._scale_rows(self.metric_.transform(self._scale_rows(X))) for X in (first, second)
        ]
        return np.linalg.norm(sides[0] - sides[1], axis=1)

    def get_metric(self) -> MahalanobisMetric:
        """Return the learned metric as a callable of two vectors.

        Returns
        -------
        metric : MahalanobisMetric
            ``metric(u, v)`` is the distance; fits ``KNeighborsClassifier(metric=metric)``, and
            does not depend on the estimator or its training data. With ``metric="cosine"``, it is
            that of rows of unit length, before what `transform` returns is scaled again.
        """
        check_is_fitted(self)
        return self.metric_

    def get_mahalanobis_matrix(self) -> NDArray:
        """Return the matrix A of the learned metric, n_features x n_features.

        Returns
        -------
        A : ndarray of shape (n_features, n_features)
            Symmetric, positive semi-definite. MemoryError, with the size, if it cannot fit. With
            ``metric="cosine"``, as `get_metric` says.
        """
        check_is_fitted(self)
        return self.metric_.matrix()


@dataclass(frozen=True)
class TrainingPairs:
    """Rows in coordinates of their span, their pairs, and the prior in the same coordinates.

    A context manager: the blocks of differences are freed at the end.

    Attributes
    ----------
    rows : ndarray of shape (n_rows,)
        Row indices into X.
    codes : ndarray of shape (n_rows,) or None
        Their classes; None where pairs were given.
    places : ndarray of shape (n_pairs, 2)
        Pairs, as indices into the coordinates of the span.
    labels : ndarray of shape (n_pairs,)
        +1 for similar pairs, -1 for dissimilar ones.
    span : Span
        Of the rows.
    prior_inverse : ndarray of shape (rank, rank)
        The inverse of the prior inside the span.
    outside : float
        The inverse of the prior is this multiple of the identity outside the span.
    parallel : dict
        `n_jobs` and `client` of this fit.
    """

    rows: NDArray
    codes: NDArray | None
    places: NDArray
    labels: NDArray
    span: Span
    prior_inverse: NDArray
    outside: float
    parallel: dict[str, Any]

    @property
    def pairs(self) -> NDArray:
        """The pairs, as row indices into X."""
        return self.rows[self.places]

    @cached_property
    def prior_factor(self) -> NDArray:
        """L of the prior inside the span, L L'."""
        return np.linalg.inv(np.linalg.cholesky(self.prior_inverse)).T

    @cached_property
    def differences(self) -> PairDifferences:
        """The differences of the pairs."""
        return self.differences_of(self.places)

    def differences_of(self, places: NDArray) -> PairDifferences:
        """Return the differences of other pairs of the same rows."""
        return PairDifferences(self.span.coordinates, places, **self.parallel)

    def with_pairs(self, places: NDArray, labels: NDArray) -> TrainingPairs:
        """Return the same rows with other pairs."""
        return replace(self, places=places, labels=labels)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if "differences" in vars(self):
            self.differences.__exit__(*exc_info)


def check_prior(prior: Any, n_features: int) -> str | NDArray[np.float64]:
    """Check a `prior` parameter: a name, or a symmetric positive definite matrix."""
    if isinstance(prior, str):
        return prior
    prior = check_named_array(prior, "prior", dtype=np.float64)
    if prior.shape != (n_features, n_features):
        raise ValueError(
            f"prior has shape {prior.shape}, expected ({n_features}, {n_features}) for X with "
            f"{n_features} features."
        )
    if not np.allclose(prior, prior.T, rtol=1e-8, atol=1e-12 * np.abs(prior).max()):
        raise ValueError("prior must be symmetric.")
    smallest = np.linalg.eigvalsh(prior)[0]
    if smallest <= 0:
        raise ValueError(
            f"prior must be positive definite, its smallest eigenvalue is {smallest:.3g}."
        )
    return (prior + prior.T) / 2


def prior_inverse(prior: str | NDArray, span: Span) -> tuple[NDArray[np.float64], float]:
    """Express the inverse of a prior metric in coordinates of a span.

    Parameters
    ----------
    prior : {"identity", "covariance"} or ndarray
        As `check_prior` returns it. "covariance" is the covariance of the rows, shrunk to a
        multiple of the identity (Ledoit-Wolf), in units of the mean variance of a feature, so
        that all priors have the same scale. An array needs a span of full rank.
    span : Span
        The coordinates.

    Returns
    -------
    inverse : ndarray of shape (rank, rank)
        Inside the span.
    outside : float
        The inverse is this multiple of the identity outside the span.
    """
    if isinstance(prior, np.ndarray):
        return np.linalg.inv(prior), 1.0
    if prior == "identity":
        return np.eye(span.rank), 1.0
    moment = span.second_moment()
    n_rows = len(span.coordinates)
    shrinkage, variance = ledoit_wolf_shrinkage(span.coordinates, moment, span.n_features)
    covariance = (1 - shrinkage) / (n_rows * variance) * moment
    # A little more where the estimate shrinks nothing, so that a constant feature is no failure.
    shrinkage = max(shrinkage, 1e-6)
    covariance[np.diag_indices_from(covariance)] += shrinkage
    return covariance, shrinkage


def ledoit_wolf_shrinkage(
    coordinates: Any, second_moment: NDArray, n_features: int
) -> tuple[float, float]:
    """Return the Ledoit-Wolf shrinkage of a covariance, and the mean variance of a feature.

    Of centred rows in coordinates of their span: costs the rank of the data, where scikit-learn's
    function goes through blocks of n_features x n_features.
    """
    n_rows = len(coordinates)
    squared_norms = computed((coordinates**2).sum(axis=1))
    variance = float(squared_norms.sum() / (n_rows * n_features))
    cov_norm = np.sum(second_moment**2) / n_rows**2
    beta = (np.sum(squared_norms**2) / n_rows - cov_norm) / (n_features * n_rows)
    delta = cov_norm / n_features - variance**2
    shrinkage = min(max(beta, 0.0), delta) / delta if delta > 0 else 1.0
    return float(shrinkage), variance


def _embed(rows, factor, offset=None):
    """Map rows by a factor; with an offset of the origin, to unit length."""
    if offset is None:
        return rows @ factor
    inside, outside = offset
    E = np.column_stack([(rows + inside) @ factor, np.full(len(rows), outside)])
    return E / np.linalg.norm(E, axis=1, keepdims=True)
