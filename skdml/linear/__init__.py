"""One metric for the whole space."""

from ._gmml import GMMLTransformer
from ._metric import MahalanobisMetric

__all__ = ["GMMLTransformer", "MahalanobisMetric"]
