"""Measures of embeddings (retrieval, clustering) and of rankings by query."""

from ._clustering import cluster_f1, cluster_nmi
from ._ranking import (
    average_precision_by_query,
    mean_average_precision,
    mean_ndcg,
    mrr,
    ndcg_by_query,
    reciprocal_rank_by_query,
)
from ._retrieval import map_at_r, precision_at_k, r_precision, recall_at_k

__all__ = [
    "average_precision_by_query",
    "cluster_f1",
    "cluster_nmi",
    "map_at_r",
    "mean_average_precision",
    "mean_ndcg",
    "mrr",
    "ndcg_by_query",
    "precision_at_k",
    "r_precision",
    "recall_at_k",
    "reciprocal_rank_by_query",
]
