r"""A metric from graded pairs, by least squares.

Similarities of pairs are compared with inner products x' A y of their rows (or, for distances, with
-c' A c of their differences). With A = I + M, the grades g are fitted in two steps: a + b x' y by
least squares, then what is left by x' M y with a ridge,

    min_M  sum_k w_k (r_k - b x_k' M y_k)^2 + ridge |M|^2,      r = g - a - b x' y.

The ridge draws A towards the identity, the prior. The solution is a combination of the pairs,
b M = sum_k alpha_k (x_k y_k' + y_k x_k') / 2, with one linear system for alpha.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve
from scipy.sparse.linalg import LinearOperator, cg

# Of the ridge, in units of the mean squared product of a pair with itself.
RIDGES = (10.0, 3.0, 1.0, 0.3, 0.1)
# With more pairs the system is solved by conjugate gradients.
_MOST_DENSE = 4000
# Eigenvalues of A are at least this part of the largest.
_LEAST = 1e-6


def graded_factors(
    first: NDArray, second: NDArray, grades: NDArray, weights: NDArray, ridges: Sequence[float]
) -> Iterator[NDArray]:
    """Yield L of the metric A = L L' for one ridge after the other.

    Parameters
    ----------
    first, second : ndarray of shape (n_pairs, n_features)
        The two rows of each pair, whose products are compared with the grades.
    grades : ndarray of shape (n_pairs,)
        How similar the pairs are.
    weights : ndarray of shape (n_pairs,)
        Of the pairs.
    ridges : sequence of float
        In units of the mean squared product of a pair with itself.

    Yields
    ------
    factor : ndarray of shape (n_features, n_features)
        L. The identity where grades do not rise with the products.
    """
    n_features = first.shape[1]
    products = np.einsum("ij,ij->i", first, second)
    centred = products - np.average(products, weights=weights)
    rest = grades - np.average(grades, weights=weights)
    spread = weights @ centred**2
    slope = weights @ (centred * rest) / spread if spread > 0 else 0.0
    if not slope > 0:
        yield from (np.eye(n_features) for _ in ridges)
        return
    rest = rest - slope * centred
    own = (np.einsum("ij,ij->i", first, first) * np.einsum("ij,ij->i", second, second)
           + products**2) / 2  # fmt: skip
    unit = np.average(own, weights=weights)
    if len(rest) <= _MOST_DENSE:
        kernel = (first @ first.T) * (second @ second.T)
        crossed = first @ second.T
        kernel = (kernel + crossed * crossed.T) / 2

    def multiply(alpha):
        return np.einsum("ij,ij->i", first @ _combine(first, second, alpha), second)

    for ridge in ridges:
        # Below the second, the system is singular by rounding.
        penalty = np.maximum(ridge * unit / weights, 1e-12 * len(own) * own.max())
        if len(rest) <= _MOST_DENSE:
            alpha = solve(kernel + np.diag(penalty), rest, assume_a="pos")
        else:
            system = LinearOperator(
                (len(rest),) * 2, lambda v, penalty=penalty: multiply(v) + penalty * v, dtype=float
            )
            alpha, _ = cg(system, rest, rtol=1e-4, maxiter=200)
        A = np.eye(n_features) + _combine(first, second, alpha) / slope
        eigenvalues, vectors = np.linalg.eigh(A)
        yield vectors * np.sqrt(np.maximum(eigenvalues, _LEAST * eigenvalues[-1]))


def _combine(first, second, alpha):
    M = (first.T * alpha) @ second
    return (M + M.T) / 2


def rank_correlation(values: NDArray, grades: NDArray, weights: NDArray) -> float:
    """Return Spearman's correlation of pairs that occur as often as their weights say.

    Examples
    --------
    >>> import numpy as np
    >>> from skdml.linear._graded import rank_correlation
    >>> rank_correlation(np.array([1.0, 5.0, 9.0]), np.array([0.1, 0.2, 0.3]), np.ones(3))
    1.0
    """
    ranks = [_centred_ranks(part, weights) for part in (values, grades)]
    sizes = [weights @ part**2 for part in ranks]
    if min(sizes) == 0:
        return 0.0
    return float(weights @ (ranks[0] * ranks[1]) / np.sqrt(sizes[0] * sizes[1]))


def _centred_ranks(values, weights):
    _, places = np.unique(values, return_inverse=True)
    totals = np.bincount(places, weights)
    ranks = (np.cumsum(totals) - totals / 2)[places]
    return ranks - np.average(ranks, weights=weights)
