"""Optimal transport between clouds of points, and what is built on it."""

from ._coreset import measure_coreset, wasserstein_coreset
from ._sinkhorn import sinkhorn_divergence

__all__ = ["measure_coreset", "sinkhorn_divergence", "wasserstein_coreset"]
