"""Measures of verification: whether two things are of the same kind."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import roc_curve

from ..utils.validation import check_numbers


def equal_error_rate(y_true: ArrayLike, y_score: ArrayLike) -> float:
    """Equal error rate: that of the threshold where both kinds of errors are equally frequent.

    Parameters
    ----------
    y_true : array-like of shape (n_pairs,)
        1 for similar pairs; -1 or 0 for dissimilar ones.
    y_score : array-like of shape (n_pairs,)
        The higher the more similar, such as distances with their signs changed.

    Returns
    -------
    rate : float
        The share of dissimilar pairs that are accepted, which is that of similar pairs that are
        rejected. Between two thresholds, both shares are interpolated.

    Examples
    --------
    >>> from skdml.metrics import equal_error_rate
    >>> equal_error_rate([1, 1, 1, 1, -1, -1, -1, -1], [9, 8, 7, 3, 4, 3, 2, 1])
    0.25
    """
    positive, scores = check_verification(y_true, y_score)
    return find_equal_errors(*roc_curve(positive, scores, drop_intermediate=False)[:2])


def check_verification(
    y_true: ArrayLike, y_score: ArrayLike, name: str = "y_score"
) -> tuple[NDArray, NDArray]:
    """Return which pairs are similar, and their scores; both kinds must be there."""
    labels = check_numbers(y_true, "y_true")
    scores = check_numbers(y_score, name)
    if len(labels) != len(scores):
        raise ValueError(f"y_true has {len(labels)} labels for {len(scores)} entries of {name}.")
    kinds = np.unique(labels)
    if kinds.tolist() not in ([-1, 1], [0, 1]):
        raise ValueError(
            "y_true must have 1 (similar) and either -1 or 0 (dissimilar), both kinds, got "
            f"{kinds[:5].tolist()}."
        )
    return labels == 1, scores


def find_equal_errors(accepted: NDArray, found: NDArray) -> float:
    """Return the rate at which an ROC curve, from (0, 0) to (1, 1), has equal errors."""
    gap = accepted - (1 - found)  # rises from -1 to 1
    after = int(np.argmax(gap >= 0))
    share = gap[after] / (gap[after] - gap[after - 1])
    return float(accepted[after] - share * (accepted[after] - accepted[after - 1]))
