"""The span of rows, in which linear metrics are learned.

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
from scipy.linalg import eigh, lapack, solve_triangular

from ..utils._parallel import computed, is_dask_array, make_shards
from ..utils.validation import column_bounds
from ._mahalanobis import CombinedRows, MahalanobisMetric

# Columns per block of the Gram matrix; a number of its own, so that the sum of the blocks does
# not depend on how many workers there are.
_BLOCK_BYTES = 2**25
# Above this many products, directions stay combinations of rows: less memory than minutes of work.
_MOST_PRODUCTS = 1e12


@dataclass
class Span:
    """Rows in coordinates of an orthonormal basis of their span.

    Attributes
    ----------
    coordinates : ndarray or dask array of shape (n_rows, rank)
        The centred rows in the basis, float64. Distances are those of the rows.
    n_features : int
        The dimension of the space around.
    basis : tuple (mixing, rows) or None
        The basis is ``mixing @ (rows - mean)``; None is the identity: rank = n_features.
    mean : ndarray of shape (n_features,)
        Of the rows.
    weights : ndarray of shape (n_rows,), default=None
        Of the rows; None is 1 for each.
    owns_rows : bool, default=True
        Whether the rows of the basis are a copy of those of the user.
    """

    coordinates: Any
    n_features: int
    basis: tuple | None
    mean: NDArray
    weights: NDArray | None = None
    owns_rows: bool = True

    @property
    def rank(self) -> int:
        """The number of coordinates."""
        return self.coordinates.shape[1]

    @property
    def total_weight(self) -> float:
        """The number of rows, each as often as its weight says."""
        return len(self.coordinates) if self.weights is None else float(self.weights.sum())

    def second_moment(self, from_origin: bool = False) -> NDArray[np.float64]:
        """Return ``coordinates.T @ coordinates``, with the weights.

        Of rows about their mean, or about the origin.
        """
        weighted = self.coordinates
        if self.weights is not None:
            weighted = self.weights[:, None] * weighted
        moment = computed(self.coordinates.T @ weighted)
        if from_origin:
            mean, _ = self.offset()
            moment = moment + self.total_weight * np.outer(mean, mean)
        return moment

    def offset(self) -> tuple[NDArray[np.float64], float]:
        """Return the mean of the rows in these coordinates, and its length outside of the span."""
        if self.basis is None:
            return self.mean, 0.0
        mixing, rows = self.basis
        inside = mixing @ (np.asarray(computed(rows @ self.mean)) - self.mean @ self.mean)
        return inside, float(np.sqrt(max(self.mean @ self.mean - inside @ inside, 0.0)))

    def metric(
        self,
        A: NDArray,
        scale: float,
        n_components: int | None,
        dtype: Any,
        from_origin: bool = False,
    ) -> MahalanobisMetric:
        """Extend a metric from the span to the whole space.

        Parameters
        ----------
        A : ndarray of shape (rank, rank)
            Positive semi-definite, in coordinates of the span.
        scale : float
            The eigenvalue of the metric outside the span.
        n_components : int or None
            None keeps all of A. A number keeps that many directions: those along which the
            rows vary most under the metric, so that the learned distances of the rows change
            least.
        dtype : dtype
            Of the directions.
        from_origin : bool, default=False
            Whether rows vary from the origin or from their mean, where `n_components` is given.

        Returns
        -------
        metric : MahalanobisMetric
            On the whole space.
        """
        eigenvalues, vectors = np.linalg.eigh(A)
        eigenvalues = np.maximum(eigenvalues, 0)
        if n_components is not None:
            root = vectors * np.sqrt(eigenvalues)
            eigenvalues, vectors = _leading(self.second_moment(from_origin), root, n_components)
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
        (mixing, rows), mean = self.basis, self.mean
        mixing = rotation @ mixing
        if sparse.issparse(rows):
            return CombinedRows(mixing, rows, mean)
        if is_dask_array(rows):
            return computed((mixing.astype(dtype) @ (rows - mean)).astype(dtype))
        if mixing.size * self.n_features > _MOST_PRODUCTS:
            own = rows if self.owns_rows else np.array(rows, dtype=dtype)
            return CombinedRows(mixing, own, mean)
        mixing = mixing.astype(dtype)
        directions = np.empty((len(mixing), self.n_features), dtype=dtype)
        for cut in _column_blocks(rows.shape):  # never a second array of the size of the rows
            directions[:, cut] = mixing @ (rows[:, cut] - mean[cut]).astype(dtype, copy=False)
        return directions


def _leading(second_moment, root, n_components):
    """Eigenpairs of the metric that keeps the `n_components` leading directions of the rows."""
    if n_components > len(second_moment):
        raise ValueError(
            f"n_components={n_components} is more than the {len(second_moment)} dimensions that "
            "the rows of the constraints span: choose a smaller number."
        )
    kept = shorten(root, second_moment, n_components)
    directions, singular, _ = np.linalg.svd(kept, full_matrices=False)
    # Directions of equal eigenvalues, such as those of a prior, are any basis of their space: take
    # the principal axes of the rows in it.
    steps = np.flatnonzero(singular[1:] < (1 - 1e-9) * singular[:-1]) + 1
    for group in np.split(np.arange(n_components), steps):
        if len(group) > 1:
            basis = directions[:, group]
            directions[:, group] = basis @ eigh(basis.T @ second_moment @ basis)[1][:, ::-1]
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=0)[None], axis=0)
    return singular**2, directions * np.where(largest < 0, -1.0, 1.0)


def find_span(
    X: Any,
    *,
    n_jobs: int | None = None,
    client: Any = None,
    full: bool = False,
    weights: NDArray | None = None,
    owned: bool = False,
) -> Span:
    """Find coordinates for the rows of X in which distances are kept.

    Parameters
    ----------
    X : array, sparse matrix or dask array of shape (n_rows, n_features)
        The rows.
    n_jobs, client :
        Where the Gram matrix is computed, see `skdml.utils._parallel`.
    full : bool, default=False
        Use all n_features coordinates even where the rows span fewer.
    weights : ndarray of shape (n_rows,), default=None
        Of the rows, for their mean and moments.
    owned : bool, default=False
        Whether X is a copy that may be kept.

    Returns
    -------
    span : Span
        With rank n_features where there are at least as many rows as features, otherwise the
        rank of the centred rows.
    """
    n_rows, n_features = X.shape
    mean = _column_mean(X, weights)
    if full or n_features <= n_rows:
        dense = X.toarray() if sparse.issparse(X) else X
        return Span(dense.astype(np.float64) - mean, n_features, None, mean, weights)

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
        rows, mixing, owned = X[pivots[:rank][order]], mixing[:, order], True
    return Span(coordinates, n_features, (mixing, rows), mean, weights, owned)


def _column_mean(X, weights=None):
    if weights is not None:
        mean = np.asarray(computed(X.T @ weights), dtype=np.float64) / weights.sum()
        return np.clip(mean, *column_bounds(X))
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


def shorten(root: NDArray, second_moment: NDArray, n_components: int) -> NDArray[np.float64]:
    """Keep what a map, ``rows @ root``, has along the principal axes of the mapped rows."""
    size = root.shape[1]
    moment = root.T @ second_moment @ root
    return root @ eigh(moment, subset_by_index=(size - n_components, size - 1))[1]
