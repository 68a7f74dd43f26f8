"""Optimal transport between clouds of points, and what is built on it."""

from __future__ import annotations

from ._coreset import measure_coreset, wasserstein_coreset
from ._metric import CloudMetric
from ._sinkhorn import sinkhorn_divergence

__all__ = ["CloudMetric", "measure_coreset", "sinkhorn_divergence", "wasserstein_coreset"]
