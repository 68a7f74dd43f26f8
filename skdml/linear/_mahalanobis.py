"""Mahalanobis metrics, and means of matrices on their geodesic."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg import LinAlgError, cholesky, eigh, solve_triangular
from sklearn.metrics.pairwise import euclidean_distances

from ..utils._typing import MatrixLike
from ..utils.validation import (
    check_named_array,
    refuse_if_too_large,
    unit_for_squares,
)


class CombinedRows:
    """Directions as combinations of rows: ``mixing @ (rows - mean)``, never multiplied out.

    For sparse rows, and for so many dense ones that the product would take minutes.

    Parameters
    ----------
    mixing : ndarray of shape (rank, n_rows)
        Coefficients.
    rows : array or sparse matrix of shape (n_rows, n_features)
        The rows that are combined.
    mean : ndarray of shape (n_features,)
        Subtracted from every row.
    """

    def __init__(self, mixing: NDArray, rows: Any, mean: NDArray) -> None:
        self.mixing = mixing
        self.rows = rows
        self.mean = mean
        self.shape = (mixing.shape[0], rows.shape[1])
        self.dtype = rows.dtype

    def project(self, X: Any) -> NDArray:
        """Return ``X @ directions.T``."""
        offset = np.asarray(X @ self.mean)
        products = X @ self.rows.T
        products = products.toarray() if sparse.issparse(products) else np.asarray(products)
        return products @ self.mixing.T - np.multiply.outer(offset, self.mixing.sum(axis=1))

    def expand(self, along: NDArray) -> NDArray:
        """Return ``along @ directions``."""
        combined = along @ self.mixing
        out = np.asarray(combined.astype(self.dtype, copy=False) @ self.rows)
        out -= np.multiply.outer(combined.sum(axis=1), self.mean)
        return out

    def toarray(self) -> NDArray:
        """Return the directions as a dense array."""
        return self.expand(np.eye(len(self.mixing)))


class MahalanobisMetric:
    r"""The distance :math:`\sqrt{(u - v)^T A (u - v)}` with A a scaled identity plus low rank.

    .. math:: A = \text{scale} \cdot I + U^T \operatorname{diag}(\text{weights})\, U

    where the rows of U are orthonormal. A has n_features² entries, this form only
    rank × n_features, which fits into memory with 50,000 features. The object is a callable, so it
    can be given to ``KNeighborsClassifier(metric=...)``.

    Parameters
    ----------
    n_features : int
        The dimension of the space.
    scale : float, default=1.0
        The eigenvalue of A outside the span of `directions`.
    directions : array of shape (rank, n_features), default=None
        Orthonormal rows. None with `weights` None is a scaled identity.
    weights : ndarray of shape (rank,), default=None
        ``scale + weights`` are the eigenvalues of A along the directions, all >= 0.

    Examples
    --------
    >>> import numpy as np
    >>> from skdml.linear import MahalanobisMetric
    >>> metric = MahalanobisMetric(2, scale=1.0, directions=np.array([[1.0, 0.0]]),
    ...                            weights=np.array([8.0]))
    >>> metric.matrix()
    array([[9., 0.], [0., 1.]])
    >>> metric([0, 0], [1, 0])
    3.0
    """

    def __init__(
        self,
        n_features: int,
        scale: float = 1.0,
        directions: Any = None,
        weights: ArrayLike | None = None,
    ) -> None:
        if directions is None:
            directions = np.empty((0, n_features))
            weights = np.empty(0)
        weights = np.asarray(weights, dtype=float)
        if directions.shape != (len(weights), n_features):
            raise ValueError(
                f"directions has shape {directions.shape}, expected ({len(weights)}, {n_features})"
                ": one row per weight."
            )
        eigenvalues = scale + weights
        if scale < 0 or (eigenvalues < 0).any():
            raise ValueError(
                "scale and scale + weights are eigenvalues of the metric and must be >= 0."
            )
        self.n_features = n_features
        self.scale = float(scale)
        self.directions = directions
        self.weights = weights

    @classmethod
    def from_matrix(cls, matrix: ArrayLike) -> MahalanobisMetric:
        """Build the metric of a positive semi-definite matrix.

        Parameters
        ----------
        matrix : array-like of shape (n_features, n_features)
            A, symmetric.

        Returns
        -------
        metric : MahalanobisMetric
            With the eigenvectors of `matrix` as directions.
        """
        matrix = check_named_array(matrix, "matrix")
        if matrix.shape[0] != matrix.shape[1] or not np.allclose(matrix, matrix.T):
            raise ValueError(f"matrix must be square and symmetric, got shape {matrix.shape}.")
        eigenvalues, vectors = np.linalg.eigh(matrix)
        if eigenvalues[0] < -1e-10 * max(eigenvalues[-1], 0):
            raise ValueError(
                "matrix must be positive semi-definite, its smallest eigenvalue is "
                f"{eigenvalues[0]:.3g}."
            )
        return cls(len(matrix), 0.0, vectors.T, np.maximum(eigenvalues, 0))

    @property
    def rank(self) -> int:
        """The number of directions."""
        return len(self.weights)

    @property
    def n_outputs(self) -> int:
        """The number of columns that `transform` returns."""
        return self.n_features if self.scale > 0 else self.rank

    def _check_rows(self, name, X):
        """Return rows as an array of numbers or a sparse matrix of the right width."""
        if not sparse.issparse(X):
            X = np.asarray(X)
            X = X if X.dtype.kind == "f" else X.astype(float)
        if X.ndim != 2 or X.shape[1] != self.n_features:
            raise ValueError(
                f"{name} must have shape (n_samples, {self.n_features}), got {X.shape}."
            )
        return X

    def _project(self, X):
        if isinstance(self.directions, CombinedRows):
            return self.directions.project(X)
        return np.asarray(X @ self.directions.T)

    def _expand(self, along):
        if isinstance(self.directions, CombinedRows):
            return self.directions.expand(along)
        return along @ self.directions

    def _dense_directions(self):
        if isinstance(self.directions, CombinedRows):
            return self.directions.toarray()
        return self.directions

    def transform(self, X: MatrixLike) -> NDArray:
        """Map rows so that plain Euclidean distance between them is this metric.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples, n_features)
            The rows.

        Returns
        -------
        X_new : ndarray of shape (n_samples, n_outputs)
            ``X @ sqrtm(A)``, or one column per direction where `scale` is 0.
        """
        X = self._check_rows("X", X)
        along = self._project(X)
        root = np.sqrt(self.scale + self.weights)
        if self.scale == 0:
            # No identity part: the coordinates along the directions say everything.
            return (along * root).astype(_float_dtype(X), copy=False)
        refuse_if_too_large(
            X.shape,
            "transform would return a dense array",
            "Set n_components for a small output, or use pair_distance / get_metric().",
        )
        dense = X.toarray() if sparse.issparse(X) else X
        X_new = np.sqrt(self.scale) * dense + self._expand(along * (root - np.sqrt(self.scale)))
        return X_new.astype(_float_dtype(X), copy=False)

    def __call__(self, u: ArrayLike, v: ArrayLike, squared: bool = False) -> float:
        """Return the distance of two vectors, or its square."""
        difference = np.asarray(u, dtype=float) - np.asarray(v, dtype=float)
        if difference.shape != (self.n_features,):
            raise ValueError(
                f"expected two vectors with {self.n_features} features, their difference has "
                f"shape {difference.shape}."
            )
        distance = float(self._norms(difference[None])[0])
        return distance**2 if squared else distance

    def pair_distance(self, X: MatrixLike, Y: MatrixLike) -> NDArray:
        """Return the distance of each row of X to the same row of Y.

        Parameters
        ----------
        X, Y : arrays or sparse matrices of shape (n_pairs, n_features)
            The two sides of the pairs.

        Returns
        -------
        distances : ndarray of shape (n_pairs,)
            Not squared.
        """
        X, Y = self._check_rows("X", X), self._check_rows("Y", Y)
        if X.shape != Y.shape:
            raise ValueError(
                f"X has {X.shape[0]} rows and Y has {Y.shape[0]}: pairs need as many of both."
            )
        return self._norms(X - Y)

    def _norms(self, differences):
        with np.errstate(over="ignore"):
            if sparse.issparse(differences):
                squared = np.asarray(differences.multiply(differences).sum(axis=1)).ravel()
            else:
                squared = np.einsum("ij,ij->i", differences, differences)
        if not 1e-30 < squared.max(initial=0) < 1e30:  # seldom, so that other calls are fast
            unit = unit_for_squares(differences)
            if unit != 1:  # an exact power of two
                return unit * self._norms(differences.astype(np.float64) / unit)
        along = self._project(differences)
        squared = squared.astype(np.float64, copy=False)  # the scale may be beyond single precision
        return np.sqrt(np.maximum(self.scale * squared + along**2 @ self.weights, 0))

    def pairwise(self, X: MatrixLike, Y: MatrixLike | None = None) -> NDArray:
        """Return the distances of all rows of X to all rows of Y.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples_X, n_features)
            The first rows.
        Y : array or sparse matrix of shape (n_samples_Y, n_features), default=None
            The second rows; None means X.

        Returns
        -------
        distances : ndarray of shape (n_samples_X, n_samples_Y)
            Not squared.
        """
        X = self._check_rows("X", X)
        Y = None if Y is None else self._check_rows("Y", Y)
        unit = max(unit_for_squares(rows) for rows in (X, Y) if rows is not None)
        if unit != 1:
            Y = None if Y is None else Y.astype(np.float64) / unit
            return unit * self.pairwise(X.astype(np.float64) / unit, Y)
        if self.scale == 0 or not (sparse.issparse(X) or sparse.issparse(Y)):
            return euclidean_distances(self.transform(X), None if Y is None else self.transform(Y))
        # Sparse rows would be dense after `transform`; the low-rank part is small.
        along_X = self._project(X)
        along_Y = along_X if Y is None else self._project(Y)
        squared = self.scale * euclidean_distances(X, Y, squared=True)
        squared += (along_X**2 @ self.weights)[:, None] + along_Y**2 @ self.weights
        squared -= 2 * (along_X * self.weights) @ along_Y.T
        if Y is None:
            np.fill_diagonal(squared, 0)
        return np.sqrt(np.maximum(squared, 0, out=squared), out=squared)

    def matrix(self) -> NDArray:
        """Build A, with its n_features² entries.

        Returns
        -------
        A : ndarray of shape (n_features, n_features)
            Symmetric, positive semi-definite.
        """
        refuse_if_too_large(
            (self.n_features, self.n_features),
            "The Mahalanobis matrix is an array",
            "Use transform, pair_distance or get_metric(), which never build it.",
        )
        directions = self._dense_directions()
        A = (directions.T * self.weights) @ directions
        A = (A + A.T) / 2
        A[np.diag_indices_from(A)] += self.scale
        return A

    def components(self) -> NDArray:
        """Build the map L of `transform`, ``X @ L.T``.

        Returns
        -------
        L : ndarray of shape (n_outputs, n_features)
            ``L.T @ L`` is A.
        """
        refuse_if_too_large(
            (self.n_outputs, self.n_features), "The map is an array", "Use transform."
        )
        directions, root = self._dense_directions(), np.sqrt(self.scale + self.weights)
        if self.scale == 0:
            return root[:, None] * directions
        L = (directions.T * (root - np.sqrt(self.scale))) @ directions
        L[np.diag_indices_from(L)] += np.sqrt(self.scale)
        return L

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(n_features={self.n_features}, scale={self.scale:.4g}, "
            f"rank={self.rank})"
        )


def _float_dtype(X):
    return np.float32 if X.dtype == np.float32 else np.float64


def geometric_mean(S: NDArray, D: NDArray, geodesic: float = 0.5) -> NDArray:
    r"""Compute the point :math:`S^{-1} \#_t D` on the geodesic from :math:`S^{-1}` to D.

    .. math:: S^{-1} \#_t D = L^{-T} (L^T D L)^t L^{-1}, \qquad S = L L^T

    At t = 1/2 it is the only positive definite A with ``A S A = D``, and the minimiser of
    ``trace(A S) + trace(inv(A) D)``.

    Parameters
    ----------
    S : ndarray of shape (n, n)
        Scatter of the similar pairs, positive definite.
    D : ndarray of shape (n, n)
        Scatter of the dissimilar pairs, positive definite.
    geodesic : float, default=0.5
        t: 0 gives the inverse of S, 1 gives D.

    Returns
    -------
    A : ndarray of shape (n, n)
        Symmetric positive definite.

    Raises
    ------
    LinAlgError
        If S is not positive definite, or so nearly singular that its inverse is rounding alone.
    """
    L = cholesky(S, lower=True)
    pivots = np.diagonal(L)
    if pivots.min() <= 1e-7 * np.sqrt(len(L)) * pivots.max():
        raise LinAlgError("S is singular to working precision")
    eigenvalues, vectors = eigh(L.T @ D @ L)
    eigenvalues = np.maximum(eigenvalues, 0)
    factor = solve_triangular(L, vectors * eigenvalues ** (geodesic / 2), lower=True, trans="T")
    return factor @ factor.T
