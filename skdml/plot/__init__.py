"""Pictures of metrics, embeddings and rankings, as scikit-learn Display classes.

They need matplotlib.
"""

from ._affinity import AffinityDisplay
from ._embedding import EmbeddingDisplay
from ._matrix import MetricMatrixDisplay
from ._ranking import RankingDisplay

__all__ = ["AffinityDisplay", "EmbeddingDisplay", "MetricMatrixDisplay", "RankingDisplay"]
