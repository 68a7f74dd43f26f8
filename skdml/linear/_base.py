"""Base class of the estimators that learn one linear metric: pairs, their prior and differences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg import blas
from sklearn.utils.validation import check_is_fitted

from ..constraints import make_pairs
from ..utils._bases import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from ..utils._parallel import computed, find_client, is_dask_array, make_shards
from ..utils._sklearn import EstimatorMixin, Interval, StrOptions, validate_rows
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
)
from ._mahalanobis import MahalanobisMetric, Span, find_span

# Pairs per block: a number of its own, so that the sums are the same for any n_jobs.
_BLOCK_PAIRS = 50_000
# Numbers in the rows of a tile, so that a tile of pairs stays in the cache.
_TILE_SIZE = 2**16
# Numbers in a temporary array of differences.
_CHUNK_SIZE = 2**16


class LinearMetricLearner(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, EstimatorMixin, BaseEstimator
):
    """Base of the estimators that learn one Mahalanobis metric.

    The `fit` of a subclass calls `_check_supervision` and `_prepare`, and sets `metric_`, a
    `MahalanobisMetric`; everything that uses the metric is here.
    """

    _most_constraints = 1_000_000  # pairs that are drawn where `n_constraints` is None

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
        if pairs is None:
            if pair_labels is not None:
                raise ValueError("pair_labels was given without pairs: pass both.")
            hint = " Pass class labels y, or index pairs with pairs= and pair_labels=."
            check_given(y, type(self).__name__, hint)
        if is_dask_array(X):
            X = self._check_dask_array(X, reset=True)
        else:
            X = validate_rows(self, X, ensure_min_samples=2)
        bounds = column_bounds(X)
        if not np.isfinite(bounds).all():  # of dask arrays; others were checked above
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
        y = check_row_labels(y, n_samples)
        n_constraints = self.n_constraints or min(20 * n_samples, self._most_constraints)
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
        return self.metric_.transform(validate_rows(self, X, reset=False))

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


@dataclass(frozen=True)
class TrainingPairs:
    """Pairs of rows in coordinates of their span, with the prior in the same coordinates.

    A context manager: the blocks of differences are freed at the end.

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

    @cached_property
    def differences(self) -> PairDifferences:
        """The differences of the pairs."""
        return self.differences_of(self.places)

    def differences_of(self, places: NDArray) -> PairDifferences:
        """Return the differences of other pairs of the same rows."""
        return PairDifferences(self.span.coordinates, places, **self.parallel)

    def select(self, keep: NDArray) -> TrainingPairs:
        """Return some of the pairs."""
        if keep.all():
            return self
        return replace(
            self, pairs=self.pairs[keep], labels=self.labels[keep], places=self.places[keep]
        )

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


class PairDifferences:
    """The differences ``c_k = coordinates[i_k] - coordinates[j_k]``, in blocks of pairs.

    Linear learners use their pairs in two ways only: a weighted sum of outer products, and
    quadratic forms with a small matrix. Blocks of pairs stay in this process or on the workers of
    a cluster; only weights, matrices of rank x rank and one number per pair travel.

    A context manager: the blocks are freed at the end.

    Parameters
    ----------
    coordinates : ndarray or dask array of shape (n_rows, rank)
        Rows, best centred: a common offset cancels only up to rounding.
    pairs : ndarray of shape (n_pairs, 2)
        Row indices.
    n_jobs, client :
        Where the work is done, see `skdml.utils._parallel`.
    """

    def __init__(
        self,
        coordinates: Any,
        pairs: NDArray[np.integer],
        *,
        n_jobs: int | None = None,
        client: Any = None,
    ) -> None:
        self.n_pairs = len(pairs)
        self.rank = coordinates.shape[1]
        self._cuts = [
            slice(start, start + _BLOCK_PAIRS) for start in range(0, self.n_pairs, _BLOCK_PAIRS)
        ]
        self._order = _tile_order(pairs, len(coordinates), self.rank)
        pairs = pairs[self._order]
        blocks = [_make_block(coordinates, pairs[cut]) for cut in self._cuts]
        self._shards = make_shards(blocks, n_jobs=n_jobs, client=client)
        self._differences: NDArray | None = None

    def scatter(self, weights: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return ``sum_k w_k c_k c_k'``; for each row of `weights` if it has several."""
        rows = np.atleast_2d(weights)[:, self._order]
        total = self._shards.sum(_scatter, each=[rows[:, cut] for cut in self._cuts])
        return total if np.ndim(weights) == 2 else total[0]

    def squared_norms(self, factor: NDArray | None) -> NDArray[np.float64]:
        """Return ``|factor @ c_k|²``, of a lower triangular factor; None is the identity."""
        return self._in_order(self._shards.map(_squared_norms, factor))

    def quadratic_forms(self, matrix: NDArray) -> NDArray[np.float64]:
        """Return ``c_k' @ matrix @ c_k`` for every pair; the matrix is symmetric."""
        return self._in_order(self._shards.map(_quadratic_forms, matrix))

    def to_array(self) -> NDArray[np.float64]:
        """Return all differences as one array of shape (n_pairs, rank), made once."""
        if self._differences is None:
            self._differences = self._in_order(self._shards.map(_differences))
        return self._differences

    def _in_order(self, parts):
        """Put what came from the blocks into the order of the pairs."""
        parts = np.concatenate(parts)
        out = np.empty_like(parts)
        out[self._order] = parts
        return out

    @property
    def is_local(self) -> bool:
        """Whether the blocks are in this process, and not on a cluster."""
        return not hasattr(self._shards, "bytes_moved")

    @property
    def bytes_moved(self) -> int:
        """Bytes sent to and from the workers of a cluster so far, without the blocks."""
        return getattr(self._shards, "bytes_moved", 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._shards.__exit__(*exc_info)
        self._differences = None


def _tile_order(pairs, n_rows, rank):
    """Order pairs by tiles of rows that fit a core's cache, so that gathering rows is quick."""
    tile = max(1, _TILE_SIZE // rank)
    n_tiles = n_rows // tile + 1
    return np.argsort(pairs[:, 0] // tile * n_tiles + pairs[:, 1] // tile, kind="stable")


def _make_block(coordinates, pairs):
    """Return (rows, pairs of places in them), or (differences, None) where those are few."""
    rows, local = np.unique(pairs, return_inverse=True)
    local = local.reshape(pairs.shape)
    if is_dask_array(coordinates):
        import dask

        return dask.delayed(_finish_block)(coordinates[rows], local)
    whole = len(rows) == len(coordinates)  # then rows is 0 .. n - 1, and a copy is saved
    return _finish_block(coordinates if whole else coordinates[rows], local)


def _finish_block(rows, pairs):
    rows = np.asarray(rows, dtype=np.float64)
    if 1.5 * len(rows) > len(pairs):  # products with differences cost less than with rows
        return rows[pairs[:, 0]] - rows[pairs[:, 1]], None
    return rows, pairs


def _scatter(block, weights):
    rows, pairs = block
    out = np.empty((len(weights), rows.shape[1], rows.shape[1]))
    for k, w in enumerate(weights):
        if pairs is None:
            # Two products of a matrix with itself, which cost half of one with another.
            scaled = np.sqrt(np.abs(w))[:, None] * rows
            up, down = scaled[w > 0], scaled[w < 0]
            product = up.T @ up - down.T @ down
        else:
            # sum_k w_k c_k c_k' = rows' laplacian rows, with the Laplacian of the pairs' graph:
            # one product over the rows, however many pairs there are.
            adjacency = sparse.coo_array((w, tuple(pairs.T)), shape=(len(rows), len(rows))).tocsr()
            adjacency = adjacency + adjacency.T
            degree = np.asarray(adjacency.sum(axis=1)).ravel()
            product = rows.T @ (degree[:, None] * rows - adjacency @ rows)
        out[k] = (product + product.T) / 2
    return out


def _squared_norms(block, factor):
    rows, pairs = block
    mapped = rows if factor is None else map_rows(rows, factor)
    if pairs is None:
        return np.einsum("ij,ij->i", mapped, mapped)
    out = np.empty(len(pairs))
    for cut, c, other in _gather(pairs, mapped, mapped):
        c -= other
        np.einsum("ij,ij->i", c, c, out=out[cut])
    return out


def map_rows(rows: NDArray, factor: NDArray) -> NDArray:
    """Return ``rows @ factor.T`` for a lower triangular factor, at half the cost."""
    # In Fortran's order rows.T is what lies in memory: factor @ rows.T, in place of a copy.
    return blas.dtrmm(1.0, factor, rows.T, side=0, lower=1).T


def _quadratic_forms(block, matrix):
    rows, pairs = block
    mapped = rows @ matrix
    if pairs is None:
        return np.einsum("ij,ij->i", rows, mapped)
    # c' M c = x_i' M x_i + x_j' M x_j - 2 x_i' M x_j: one product per pair. Some digits are lost
    # for pairs much nearer than the rows are long, where `squared_norms` loses none.
    own = np.einsum("ij,ij->i", rows, mapped)
    out = own[pairs[:, 0]] + own[pairs[:, 1]]
    for cut, left, right in _gather(pairs, rows, mapped):
        out[cut] -= 2 * np.einsum("ij,ij->i", left, right)
    return out


def _differences(block):
    rows, pairs = block
    return rows if pairs is None else rows[pairs[:, 0]] - rows[pairs[:, 1]]


def _gather(pairs, first, second):
    """Yield (slice of pairs, their rows of `first`, their rows of `second`), a few at a time.

    Into the same two buffers: where memory is given back at every free, as dask tells its
    workers to, new arrays for every chunk would take several times as long.
    """
    step = max(1, min(len(pairs), _CHUNK_SIZE // first.shape[1]))
    buffers = np.empty((2, step, first.shape[1]))
    for start in range(0, len(pairs), step):
        cut = slice(start, min(start + step, len(pairs)))
        left, right = buffers[:, : cut.stop - start]
        np.take(first, pairs[cut, 0], axis=0, out=left, mode="clip")
        np.take(second, pairs[cut, 1], axis=0, out=right, mode="clip")
        yield cut, left, right
