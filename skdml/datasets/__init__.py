"""Readers of common file formats, and generators of data with local structure."""

from __future__ import annotations

from skdml.datasets._generators import make_local_clusters, make_ranking
from skdml.datasets._readers import read_idx, read_letor, read_npz

__all__ = ["make_local_clusters", "make_ranking", "read_idx", "read_letor", "read_npz"]
