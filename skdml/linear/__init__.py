"""One metric for the whole space."""

from __future__ import annotations

from ._ditml import DITMLTransformer
from ._gerrymandering import NeighborhoodGerrymandering
from ._gmml import GMMLTransformer
from ._mahalanobis import MahalanobisMetric

__all__ = [
    "DITMLTransformer",
    "GMMLTransformer",
    "MahalanobisMetric",
    "NeighborhoodGerrymandering",
]
