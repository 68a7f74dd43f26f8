"""The span of the rows, coordinates in which a problem with many features is small, and priors.

A linear metric learned from pairs of rows differs from its prior only inside the span of those
rows. With fewer rows than features, the Gram matrix of the rows gives an orthonormal basis of
the span; the problem is solved in its coordinates, at most one per row, and no array of
n_features x n_features is ever made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import lapack, solve_triangular

from .._parallel import computed, is_dask_array, make_shards
from ..utils.validation import check_named_array, column_bounds
from ._metric import MahalanobisMetric, SparseRows

# Columns per block of the Gram matrix; a number of its own, so that the sum of the blocks does
# not depend on how many workers there are.
_BLOCK_BYTES = 2**25


@dataclass
class Span:
    """Rows in coordinates of an orthonormal basis of their span.

    Attributes
    ----------
    coordinates : ndarray or dask array of shape (n_rows, rank)
        The centred rows in the basis, float64. Distances are those of the rows.
    n_features : int
        The dimension of the space around.
    basis : tuple (mixing, rows, mean) or None
        The basis is ``mixing @ (rows - mean)``; None is the identity: rank = n_features.
    """

    coordinates: Any
    n_features: int
    basis: tuple | None

    @property
    def rank(self) -> int:
        """The number of coordinates."""
        return self.coordinates.shape[1]

    def second_moment(self) -> NDArray[np.float64]:
        """Return ``coordinates.T @ coordinates``."""
        return computed(self.coordinates.T @ self.coordinates)

    def metric(
        self, A: NDArray, scale: float, n_components: int | None, dtype: Any
    ) -> MahalanobisMetric:
        """Carry a metric in these coordinates over to the whole space.

        Parameters
        ----------
        A : ndarray of shape (rank, rank)
            Positive semi-definite, in coordinates of the span.
        scale : float
            What the metric does outside the span.
        n_components : int or None
            None keeps all of A. A number keeps that many directions: those along which the
            rows vary most under the metric, so that the learned distances of the rows change
            least.
        dtype : dtype
            Of the directions.

        Returns
        -------
        metric : MahalanobisMetric
            On the whole space.
        """
        eigenvalues, vectors = np.linalg.eigh(A)
        eigenvalues = np.maximum(eigenvalues, 0)
        if n_components is not None:
            eigenvalues, vectors = _leading(
                self.second_moment(), eigenvalues, vectors, n_components
            )
            scale = 0.0
        # A direction that the metric treats as everything outside the span needs no keeping.
        weights = eigenvalues - scale
        keep = np.abs(weights) > 1e-14 * max(eigenvalues.max(initial=0), scale)
        order = np.argsort(-eigenvalues[keep], kind="stable")
        weights, vectors = weights[keep][order], vectors[:, keep][:, order]
        return MahalanobisMetric(
            self.n_features, scale, self._directions(vectors.T, dtype), weights
        )

    def _directions(self, rotation, dtype):
        if self.basis is None:
            return rotation.astype(dtype, copy=False)
        mixing, rows, mean = self.basis
        mixing = rotation @ mixing
        if sparse.issparse(rows):
            return SparseRows(mixing, rows, mean)
        if is_dask_array(rows):
            return computed((mixing.astype(dtype) @ (rows - mean)).astype(dtype))
        mixing = mixing.astype(dtype)
        directions = np.empty((len(mixing), self.n_features), dtype=dtype)
        for cut in _column_blocks(rows.shape):  # never a second array of the size of the rows
            directions[:, cut] = mixing @ (rows[:, cut] - mean[cut]).astype(dtype, copy=False)
        return directions


def _leading(second_moment, eigenvalues, vectors, n_components):
    """Eigenpairs of the metric that keeps the `n_components` leading directions of the rows."""
    if n_components > len(second_moment):
        raise ValueError(
            f"n_components={n_components} is more than the {len(second_moment)} dimensions that "
            "the rows of the constraints span: choose a smaller number."
        )
    root = vectors * np.sqrt(eigenvalues)
    # The principal axes of the rows under the metric, in coordinates up to a rotation.
    _, axes = np.linalg.eigh(root.T @ second_moment @ root)
    kept = root @ axes[:, -n_components:]
    directions, singular, _ = np.linalg.svd(kept, full_matrices=False)
    return singular**2, directions


def find_span(
    X: Any,
    *,
    n_jobs: int | None = None,
    client: Any = None,
    full: bool = False,
    center: bool = True,
) -> Span:
    """Find coordinates for the rows of X in which distances are kept.

    Parameters
    ----------
    X : array, sparse matrix or dask array of shape (n_rows, n_features)
        The rows.
    n_jobs, client :
        Where the Gram matrix is computed, see `skdml._parallel`.
    full : bool, default=False
        Use all n_features coordinates even where the rows span fewer.
    center : bool, default=True
        Subtract the mean row. False for rows that are differences already.

    Returns
    -------
    span : Span
        With rank n_features where there are at least as many rows as features, otherwise the
        rank of the centred rows.
    """
    n_rows, n_features = X.shape
    mean = _column_mean(X) if center else np.zeros(n_features)
    if full or n_features <= n_rows:
        dense = X.toarray() if sparse.issparse(X) else X
        return Span(dense.astype(np.float64) - mean, n_features, None)

    gram = _centred_gram(X, mean, n_jobs, client)
    # Pivoted Cholesky: gram[p][:, p] = L L' with the rank revealed. A third of the work of one
    # product, where an eigendecomposition costs many; the rows p[:rank] carry the basis.
    tolerance = 1e-12 * n_rows * gram.diagonal().max(initial=0)
    factor, pivots, rank, _ = lapack.dpstrf(gram, tol=tolerance, lower=1, overwrite_a=1)
    pivots -= 1
    factor = np.tril(factor)[:, :rank]
    coordinates = np.empty((n_rows, rank))
    coordinates[pivots] = factor
    mixing = solve_triangular(factor[:rank], np.eye(rank), lower=True)
    if rank > 0.8 * n_rows and not sparse.issparse(X):  # nearly all rows: no copy of them
        rows, chosen = X, np.zeros((rank, n_rows))
        chosen[:, pivots[:rank]] = mixing
        mixing = chosen
    else:
        order = np.argsort(pivots[:rank])  # dask wants sorted rows
        rows, mixing = X[pivots[:rank][order]], mixing[:, order]
    return Span(coordinates, n_features, (mixing, rows, mean))


def _column_mean(X):
    if is_dask_array(X):  # in one pass; exact for constant columns
        first = X[:1].astype(np.float64)
        return computed(first[0] + (X - first).mean(axis=0))
    mean = np.asarray(X.mean(axis=0, dtype=np.float64)).ravel()
    # The mean of a constant column may be off by rounding, which would count as a direction.
    return np.clip(mean, *column_bounds(X))


def _centred_gram(X, mean, n_jobs, client):
    """Return ``(X - mean) @ (X - mean).T`` in float64, summed over blocks of columns."""
    if sparse.issparse(X):
        X = X.astype(np.float64)
        gram = (X @ X.T).toarray()
        offset = np.asarray(X @ mean)
        return gram - offset[:, None] - offset + mean @ mean
    slices = _column_blocks(X.shape)
    if is_dask_array(X):
        import dask

        blocks = [dask.delayed(_pair)(X[:, s].rechunk(-1), mean[s]) for s in slices]
    else:
        blocks = [(X[:, s], mean[s]) for s in slices]
    with make_shards(blocks, n_jobs=n_jobs, client=client) as shards:
        return shards.sum(_block_gram)


def _column_blocks(shape):
    # A block is not much smaller than the Gram matrix that it adds to.
    n_rows, n_features = shape
    step = max(1, _BLOCK_BYTES // (8 * n_rows), n_rows // 4)
    return [slice(start, start + step) for start in range(0, n_features, step)]


def _pair(block, mean):
    return block, mean


def _block_gram(block):
    columns, mean = block
    columns = columns.astype(np.float64) - mean
    return columns @ columns.T


def check_prior(prior: Any, n_features: int) -> str | NDArray[np.float64]:
    """Check a `prior` parameter.

    Parameters
    ----------
    prior : {"identity", "covariance"} or array-like of shape (n_features, n_features)
        The parameter.
    n_features : int
        The number of features of X.

    Returns
    -------
    prior : str or ndarray
        An array is checked to be symmetric and positive definite.
    """
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
    """Ledoit-Wolf shrinkage of a covariance from rows in coordinates of their span.

    Costs the rank of the data, not its dimension: scikit-learn's function goes through blocks
    of n_features x n_features.

    Parameters
    ----------
    coordinates : ndarray or dask array of shape (n_rows, rank)
        Centred rows.
    second_moment : ndarray of shape (rank, rank)
        ``coordinates.T @ coordinates``.
    n_features : int
        The dimension of the space around, >= rank.

    Returns
    -------
    shrinkage : float
        Between 0 and 1.
    variance : float
        The mean variance of a feature, towards which the covariance is shrunk.
    """
    n_rows = len(coordinates)
    squared_norms = computed((coordinates**2).sum(axis=1))
    variance = float(squared_norms.sum() / (n_rows * n_features))
    cov_norm = np.sum(second_moment**2) / n_rows**2
    beta = (np.sum(squared_norms**2) / n_rows - cov_norm) / (n_features * n_rows)
    delta = cov_norm / n_features - variance**2
    shrinkage = min(max(beta, 0.0), delta) / delta if delta > 0 else 1.0
    return float(shrinkage), variance
