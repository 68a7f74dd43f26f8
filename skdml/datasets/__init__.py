"""Data sets: fetchers of real data, readers of their file formats, and generators."""

from __future__ import annotations

from skdml.datasets._base import get_data_home
from skdml.datasets._fetch_images import (
    fetch_fashion_mnist,
    fetch_mnist,
    fetch_omniglot,
    fetch_usps,
)
from skdml.datasets._fetch_tables import (
    fetch_cub_features,
    fetch_letor,
    fetch_microarray,
    fetch_uci,
)
from skdml.datasets._generators import make_local_clusters, make_ranking
from skdml.datasets._readers import read_idx, read_letor, read_npz

__all__ = [
    "fetch_cub_features",
    "fetch_fashion_mnist",
    "fetch_letor",
    "fetch_microarray",
    "fetch_mnist",
    "fetch_omniglot",
    "fetch_uci",
    "fetch_usps",
    "get_data_home",
    "make_local_clusters",
    "make_ranking",
    "read_idx",
    "read_letor",
    "read_npz",
]
