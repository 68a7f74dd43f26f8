"""Pictures of metrics, embeddings, rankings and generated rows, as scikit-learn Display classes.

They need matplotlib.
"""

from ._affinity import AffinityDisplay
from ._embedding import EmbeddingDisplay
from ._generated import GeneratedSamplesDisplay, GeneratorTrainingDisplay
from ._matrix import MetricMatrixDisplay
from ._ranking import RankingDisplay

__all__ = [
    "AffinityDisplay",
    "EmbeddingDisplay",
    "GeneratedSamplesDisplay",
    "GeneratorTrainingDisplay",
    "MetricMatrixDisplay",
    "RankingDisplay",
]
