"""Optimal transport between point clouds: divergences, a metric of rows, and coresets."""

from __future__ import annotations

from ._cloud_metric import CloudMetric
from ._coreset import measure_coreset, wasserstein_coreset
from ._sinkhorn import sinkhorn_divergence

__all__ = ["CloudMetric", "measure_coreset", "sinkhorn_divergence", "wasserstein_coreset"]
