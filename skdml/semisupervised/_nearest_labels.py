"""Classes of embedded samples by the labelled ones that are near."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils import gen_batches

# Temperatures that are tried, beside the mean squared distance to the nearest labelled sample.
_TEMPERATURES = 2.0 ** np.arange(-6, 5)
_MIN_PROBABILITY = 1e-6
# Distances of a block, 32 MB.
_BLOCK = 2**22


def nearest_label_classes(
    embeddings: NDArray, labelled: NDArray, codes: NDArray, temperature: float
) -> NDArray:
    r"""Return class distributions of samples by their distances to labelled ones.

    .. math:: p_i(c) = \frac{\sum_{j : y_j = c} e^{-d_{ij}^2 / t}}{\sum_j e^{-d_{ij}^2 / t}}

    Parameters
    ----------
    embeddings : ndarray of shape (n_samples, n_components)
        The samples.
    labelled : ndarray of shape (n_labelled, n_components)
        Labelled samples.
    codes : ndarray of shape (n_labelled,)
        The numbers of their classes; each class has one.
    temperature : float
        t.

    Returns
    -------
    classes : ndarray of shape (n_samples, n_classes)
        Rows sum to 1.
    """
    classes = np.empty((len(embeddings), int(codes.max()) + 1))
    for block in gen_batches(len(embeddings), max(1, _BLOCK // len(labelled))):
        squares = _squared_distances(embeddings[block], labelled)
        classes[block] = _shares(squares, codes, temperature)
    return classes


def choose_temperature(
    embeddings: NDArray,
    labelled: NDArray,
    codes: NDArray,
    classes: NDArray,
    own: NDArray,
) -> float:
    """Return the temperature under which `nearest_label_classes` is nearest to given classes.

    Parameters
    ----------
    embeddings, labelled, codes
        As of `nearest_label_classes`.
    classes : ndarray of shape (n_samples, n_classes)
        The distributions that are wanted. The cross-entropy with them is smallest.
    own : ndarray of bool, of shape (n_samples, n_labelled)
        Which labelled sample is the sample itself: it does not count.

    Returns
    -------
    temperature : float
        Above 0.
    """
    squares = np.where(own, np.inf, _squared_distances(embeddings, labelled))
    known = classes.any(axis=1) & np.isfinite(squares).any(axis=1)
    squares, classes = squares[known], classes[known]
    unit = float(squares.min(axis=1).mean()) if len(squares) else 0.0
    if not unit > 0:
        return 1.0
    losses = []
    for scale in _TEMPERATURES:
        shares = np.maximum(_shares(squares, codes, scale * unit), _MIN_PROBABILITY)
        losses.append(-np.sum(classes * np.log(shares)))
    return float(_TEMPERATURES[int(np.argmin(losses))] * unit)


def _squared_distances(embeddings, labelled):
    rows, others = embeddings.astype(np.float64), labelled.astype(np.float64)
    return euclidean_distances(rows, others, squared=True)


def _shares(squares, codes, temperature):
    members = np.eye(int(codes.max()) + 1)[codes]
    return softmax(-squares / temperature, axis=1) @ members
