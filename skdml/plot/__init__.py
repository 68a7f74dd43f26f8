"""Pictures of metrics, embeddings and rankings, as scikit-learn Display classes.

They need matplotlib.
"""

from ._embedding import EmbeddingDisplay
from ._matrix import MetricMatrixDisplay
from ._ranking import RankingDisplay

__all__ = ["EmbeddingDisplay", "MetricMatrixDisplay", "RankingDisplay"]
