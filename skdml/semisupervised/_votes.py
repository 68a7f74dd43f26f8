"""Classes of embedded samples by the training samples that are near."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils import gen_batches

# Temperatures that are tried, beside the mean squared distance to the nearest other sample.
_TEMPERATURES = 2.0 ** np.arange(-6, 5)
_MIN_PROBABILITY = 1e-6
# Distances of a block, 32 MB.
_BLOCK = 2**22


def vote(embeddings: NDArray, known: NDArray, classes: NDArray, temperature: float) -> NDArray:
    r"""Return class distributions of samples by their distances to samples with a class.

    .. math:: p_i = \frac{\sum_j c_j e^{-d_{ij}^2 / t}}{\sum_j e^{-d_{ij}^2 / t}}

    Parameters
    ----------
    embeddings : ndarray of shape (n_samples, n_components)
        The samples.
    known : ndarray of shape (n_known, n_components)
        Samples with a class.
    classes : ndarray of shape (n_known, n_classes)
        :math:`c_j`, their distributions over classes.
    temperature : float
        t.

    Returns
    -------
    probabilities : ndarray of shape (n_samples, n_classes)
        Rows sum to 1.
    """
    found = np.empty((len(embeddings), classes.shape[1]))
    for block in gen_batches(len(embeddings), max(1, _BLOCK // len(known))):
        squares = _squared_distances(embeddings[block], known)
        found[block] = softmax(-squares / temperature, axis=1) @ classes
    return found


def choose_temperature(
    embeddings: NDArray, wanted: NDArray, known: NDArray, classes: NDArray, own: NDArray
) -> float:
    """Return the temperature under which `vote` is nearest to given distributions.

    Parameters
    ----------
    embeddings : ndarray of shape (n_samples, n_components)
        Samples.
    wanted : ndarray of shape (n_samples, n_classes)
        Their distributions. The cross-entropy with them is smallest.
    known, classes
        As of `vote`.
    own : ndarray of bool, of shape (n_samples, n_known)
        Which known sample is the sample itself: it does not count.

    Returns
    -------
    temperature : float
        Above 0.
    """
    squares = np.where(own, np.inf, _squared_distances(embeddings, known))
    usable = wanted.any(axis=1) & np.isfinite(squares).any(axis=1)
    squares, wanted = squares[usable], wanted[usable]
    unit = float(squares.min(axis=1).mean()) if len(squares) else 0.0
    if not unit > 0:
        return 1.0
    losses = []
    for scale in _TEMPERATURES:
        shares = softmax(-squares / (scale * unit), axis=1) @ classes
        losses.append(-np.sum(wanted * np.log(np.maximum(shares, _MIN_PROBABILITY))))
    return float(_TEMPERATURES[int(np.argmin(losses))] * unit)


def _squared_distances(embeddings, known):
    rows, others = embeddings.astype(np.float64), known.astype(np.float64)
    return euclidean_distances(rows, others, squared=True)
