"""Geometric-mean metric learning: the closed form, as functions of matrices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, eigh, solve_triangular


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
