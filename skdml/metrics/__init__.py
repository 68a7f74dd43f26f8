"""Measures of retrieval, clustering, verification, ranking by query and generated samples."""

from __future__ import annotations

from ._clustering import cluster_f1, cluster_nmi
from ._generation import (
    SampleQuality,
    energy_distance,
    frechet_distance,
    nearest_row_ratio,
    sample_quality,
    wasserstein_distance,
)
from ._ranking_metrics import (
    average_precision_by_query,
    mean_average_precision,
    mean_ndcg,
    mrr,
    ndcg_by_query,
    reciprocal_rank_by_query,
)
from ._retrieval_metrics import map_at_r, precision_at_k, r_precision, recall_at_k
from ._table_metrics import c2st, column_similarity, membership_auc, pair_similarity, tstr
from ._verification_metrics import equal_error_rate

__all__ = [
    "SampleQuality",
    "average_precision_by_query",
    "c2st",
    "cluster_f1",
    "cluster_nmi",
    "column_similarity",
    "energy_distance",
    "equal_error_rate",
    "frechet_distance",
    "map_at_r",
    "mean_average_precision",
    "mean_ndcg",
    "membership_auc",
    "mrr",
    "ndcg_by_query",
    "nearest_row_ratio",
    "pair_similarity",
    "precision_at_k",
    "r_precision",
    "recall_at_k",
    "reciprocal_rank_by_query",
    "sample_quality",
    "tstr",
    "wasserstein_distance",
]
