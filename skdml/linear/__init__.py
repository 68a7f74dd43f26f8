"""One metric for the whole space."""

from __future__ import annotations

from ._ditml import DITMLTransformer
from ._gerrymandering import NeighborhoodGerrymandering
from ._gmml import GMMLTransformer
from ._lfda import LFDA
from ._lmnn import LMNN
from ._mahalanobis import MahalanobisMetric
from ._mlkr import MLKR
from ._rca import RCA

__all__ = [
    "LFDA",
    "LMNN",
    "MLKR",
    "RCA",
    "DITMLTransformer",
    "GMMLTransformer",
    "MahalanobisMetric",
    "NeighborhoodGerrymandering",
]
