"""How distances to ideal documents become a score, with partial derivatives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit


class Partials(NamedTuple):
    """Partial derivatives of the scores, per row and anchor."""

    by_squared: NDArray  # by the squared distance
    by_weight: NDArray  # by the entry of `weights`
    by_width: NDArray  # by the entry of `widths`


def gaussian_scores(
    squared: NDArray, weights: NDArray, widths: NDArray, signs: NDArray, derive: bool = True
) -> tuple[NDArray, Partials | None]:
    r"""Score by a soft minimum of distances to ideal documents, less that to anti-ideal ones.

    .. math:: f = \log \sum_{r\ ideal} \Phi_r e^{-\rho_r d_r^2}
                - \log \sum_{r\ anti} \Phi_r e^{-\rho_r d_r^2}

    which falls with every distance to an ideal document and rises with every distance to an
    anti-ideal one.

    Parameters
    ----------
    squared : ndarray of shape (n_rows, n_anchors)
        Squared distances.
    weights : ndarray of shape (n_anchors,) or (n_rows, n_anchors)
        The logarithms of Phi.
    widths : ndarray of shape (n_anchors,)
        rho as its softplus: ``log(1 + exp(widths))``.
    signs : ndarray of shape (n_anchors,)
        +1 for ideal documents, which come first, -1 for anti-ideal ones.
    derive : bool, default=True
        Whether to compute the derivatives.

    Returns
    -------
    scores : ndarray of shape (n_rows,)
        f.
    partials : Partials or None
        Its derivatives.
    """
    rho = np.logaddexp(0, widths)
    exponents = weights - rho * squared
    scores = np.zeros(len(squared))
    n_ideal = int(np.sum(signs > 0))
    for part, sign in ((slice(0, n_ideal), 1.0), (slice(n_ideal, None), -1.0)):
        terms = exponents[:, part]  # a view: the exponents become signed shares of the sum
        if terms.shape[1] == 0:
            continue
        largest = terms.max(axis=1, keepdims=True)
        terms -= largest
        np.exp(terms, out=terms)
        total = terms.sum(axis=1, keepdims=True)
        scores += sign * (largest + np.log(total))[:, 0]
        if derive:
            terms *= sign / total
    if not derive:
        return scores, None
    shares = exponents
    return scores, Partials(-rho * shares, shares, -shares * squared * expit(widths))


def thesis_scores(
    squared: NDArray, weights: NDArray, widths: NDArray, signs: NDArray, derive: bool = True
) -> tuple[NDArray, Partials | None]:
    r"""Score by the evaluation function of the thesis, equation 4.12.

    .. math:: f = -\sum_r \Phi_r\, e^{-d_r} d_r

    It is not monotone: :math:`d e^{-d}` falls again beyond d = 1, so a document far from every
    ideal one scores as well as a perfect one. Its derivative by Phi is
    :math:`-e^{-d_r} d_r`; equation 4.21 has the other sign.

    Parameters
    ----------
    squared : ndarray of shape (n_rows, n_anchors)
        Squared distances.
    weights : ndarray of shape (n_anchors,) or (n_rows, n_anchors)
        Phi itself, >= 0.
    widths, signs : ndarray of shape (n_anchors,)
        Not used: this kernel has no widths and no anti-ideal documents.
    derive : bool, default=True
        Whether to compute the derivatives.

    Returns
    -------
    scores : ndarray of shape (n_rows,)
        f.
    partials : Partials or None
        Its derivatives.
    """
    distance = np.sqrt(squared)
    decay = np.exp(-distance)
    scores = -np.sum(weights * decay * distance, axis=1)
    if not derive:
        return scores, None
    # the derivative of the root has a pole at zero distance, where an anchor is its own document
    slope = decay * (1 - distance) / (2 * np.maximum(distance, 1e-6))
    return scores, Partials(-weights * slope, -decay * distance, np.zeros_like(squared))


KERNELS = {"gaussian": gaussian_scores, "thesis": thesis_scores}
