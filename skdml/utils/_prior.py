"""Priors of linear metrics: checked, and in coordinates of a span."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._parallel import computed
from .validation import check_named_array


def check_prior(prior: Any, n_features: int) -> str | NDArray[np.float64]:
    """Check a `prior` parameter: a name, or a symmetric positive definite matrix."""
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
    smallest, largest = np.linalg.eigvalsh(prior)[[0, -1]]
    if smallest <= 1e-15 * len(prior) * abs(largest):
        raise ValueError(
            f"prior must be positive definite, its smallest eigenvalue is {smallest:.3g} and its "
            f"largest {largest:.3g}. A matrix of full rank is needed: add a little to the diagonal."
        )
    return (prior + prior.T) / 2


def prior_inverse(prior: str | NDArray, span: Any) -> tuple[NDArray[np.float64], float]:
    """Express the inverse of a prior metric in coordinates of a span.

    Parameters
    ----------
    prior : {"identity", "covariance"} or ndarray
        As `check_prior` returns it. "covariance" is the covariance of the rows, shrunk to a
        multiple of the identity (Ledoit-Wolf), in units of the mean variance of a feature, so
        that all priors have the same scale. An array needs a span of full rank.
    span : Span of `skdml.linear`
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
    shrinkage, variance = ledoit_wolf_shrinkage(
        span.coordinates, moment, span.n_features, span.weights
    )
    covariance = (1 - shrinkage) / (span.total_weight * variance) * moment
    # A little more where the estimate shrinks nothing, so that a constant feature is no failure.
    shrinkage = max(shrinkage, 1e-6)
    covariance[np.diag_indices_from(covariance)] += shrinkage
    return covariance, shrinkage


def ledoit_wolf_shrinkage(
    coordinates: Any, second_moment: NDArray, n_features: int, weights: NDArray | None = None
) -> tuple[float, float]:
    """Return the Ledoit-Wolf shrinkage of a covariance, and the mean variance of a feature.

    Of centred rows in coordinates of their span: costs the rank of the data, where scikit-learn's
    function goes through blocks of n_features x n_features.
    """
    weights = np.ones(len(coordinates)) if weights is None else weights
    n_rows = weights.sum()
    squared_norms = computed((coordinates**2).sum(axis=1))
    variance = float(weights @ squared_norms / (n_rows * n_features))
    cov_norm = np.sum(second_moment**2) / n_rows**2
    beta = (weights @ squared_norms**2 / n_rows - cov_norm) / (n_features * n_rows)
    delta = cov_norm / n_features - variance**2
    shrinkage = min(max(beta, 0.0), delta) / delta if delta > 0 else 1.0
    return float(shrinkage), variance
