"""Pictures of metrics, embeddings, rankings and generated rows, as scikit-learn Display classes.

They need matplotlib.
"""

from ._embedding import EmbeddingDisplay
from ._generated import GeneratedSamplesDisplay, GeneratorTrainingDisplay
from ._matrix import MetricMatrixDisplay
from ._ranking import RankingDisplay

__all__ = [
    "EmbeddingDisplay",
    "GeneratedSamplesDisplay",
    "GeneratorTrainingDisplay",
    "MetricMatrixDisplay",
    "RankingDisplay",
]
