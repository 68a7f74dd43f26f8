"""Decisions from distances: the best threshold, and a probability."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

STRATEGIES = ("accuracy", "f_beta", "max_tpr", "max_tnr")


def best_threshold(
    distances: NDArray,
    labels: NDArray,
    weights: NDArray,
    strategy: str = "accuracy",
    beta: float = 1.0,
    min_rate: float = 0.0,
) -> float:
    """Find the largest distance of pairs that count as similar.

    Parameters
    ----------
    distances : ndarray of shape (n_pairs,)
        Distances.
    labels : ndarray of shape (n_pairs,)
        +1 and -1, both.
    weights : ndarray of shape (n_pairs,)
        How often each pair counts.
    strategy : {"accuracy", "f_beta", "max_tpr", "max_tnr"}
        What is greatest: the share of right decisions; the F-score of similar pairs; the share of
        similar pairs that are accepted, or of dissimilar pairs that are rejected, where the other
        share is `min_rate` at least.
    beta : float
        How much recall counts beside precision in the F-score.
    min_rate : float
        See `strategy`.

    Returns
    -------
    threshold : float
        In the middle between two distances; just below the least one if all pairs are rejected.
    """
    values, codes = np.unique(distances, return_inverse=True)
    # Entry i: similar and dissimilar pairs that are accepted if the i least values are.
    accepted, wrong = (
        np.append(0.0, np.cumsum(np.bincount(codes[kind], weights[kind], len(values))))
        for kind in (labels > 0, labels < 0)
    )
    if strategy == "accuracy":
        best = int(np.argmax(accepted - wrong))
    elif strategy == "f_beta":
        both = wrong + accepted + beta**2 * accepted[-1]
        score = np.divide(accepted, both, out=np.zeros_like(both), where=both > 0)
        best = int(np.argmax(score))
    else:
        rates = [accepted / accepted[-1], (wrong[-1] - wrong) / wrong[-1]]
        rate, other = rates if strategy == "max_tpr" else rates[::-1]
        # Of equal rates, the one with the greatest other rate.
        best = int(np.lexsort((other, np.where(other >= min_rate, rate, -1.0)))[-1])
    if best == 0:
        return float(np.nextafter(values[0], -np.inf))
    below = values[best - 1]
    if best == len(values):
        return float(below)
    middle = below + (values[best] - below) / 2
    return float(middle if middle < values[best] else below)


def fit_sigmoid(distances: NDArray, labels: NDArray, weights: NDArray) -> tuple[float, float]:
    """Fit the probability that a pair is similar, given its distance, by Platt's method.

    Parameters
    ----------
    distances : ndarray of shape (n_pairs,)
        Distances.
    labels : ndarray of shape (n_pairs,)
        +1 and -1, both.
    weights : ndarray of shape (n_pairs,)
        How often each pair counts.

    Returns
    -------
    slope, intercept : float
        The probability is ``1 / (1 + exp(-(intercept + slope * distance)))``. The slope is never
        positive: where larger distances are of similar pairs, it is 0.
    """
    positive = labels > 0
    n_positive, n_negative = weights[positive].sum(), weights[~positive].sum()
    # Platt's targets, which keep the slope finite where a threshold is always right.
    target = np.where(positive, (n_positive + 1) / (n_positive + 2), 1 / (n_negative + 2))
    scale = np.average(distances, weights=weights) or 1.0
    model = LogisticRegression(C=1e10, solver="newton-cholesky", tol=1e-10, max_iter=1000)
    model.fit(
        np.concatenate([distances, distances])[:, None] / scale,
        np.repeat([1, 0], len(distances)),
        sample_weight=np.concatenate([weights * target, weights * (1 - target)]),
    )
    slope, intercept = float(model.coef_[0, 0] / scale), float(model.intercept_[0])
    if slope > 0:
        share = np.average(target, weights=weights)
        slope, intercept = 0.0, float(np.log(share / (1 - share)))
    return slope, intercept
