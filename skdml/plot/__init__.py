"""Pictures of metrics, searches, trainings and generated rows, as scikit-learn Display classes.

They need matplotlib.
"""

from __future__ import annotations

from ._affinity import AffinityDisplay
from ._consensus import ConsensusDisplay
from ._convergence import ConvergenceDisplay
from ._embedding import EmbeddingDisplay
from ._generated import GeneratedSamplesDisplay, GeneratorTrainingDisplay
from ._matrix import MetricMatrixDisplay
from ._ranking import RankingDisplay
from ._recall import RecallCurveDisplay
from ._retrieval import RetrievalDisplay

__all__ = [
    "AffinityDisplay",
    "ConsensusDisplay",
    "ConvergenceDisplay",
    "EmbeddingDisplay",
    "GeneratedSamplesDisplay",
    "GeneratorTrainingDisplay",
    "MetricMatrixDisplay",
    "RankingDisplay",
    "RecallCurveDisplay",
    "RetrievalDisplay",
]
