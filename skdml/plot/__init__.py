"""Pictures of metrics and embeddings, as scikit-learn Display classes (needs matplotlib)."""

from ._embedding import EmbeddingDisplay
from ._matrix import MetricMatrixDisplay

__all__ = ["EmbeddingDisplay", "MetricMatrixDisplay"]
