"""Plots of metrics, retrieval, training and generated samples, as scikit-learn Display classes.

They need matplotlib.
"""

from __future__ import annotations

from ._affinity_display import AffinityDisplay
from ._consensus import ConsensusDisplay
from ._convergence import ConvergenceDisplay
from ._embedding import EmbeddingDisplay
from ._generated import GeneratedSamplesDisplay, GeneratorTrainingDisplay
from ._matrix import MetricMatrixDisplay
from ._ranking_display import RankingDisplay
from ._recall import RecallCurveDisplay
from ._retrieval_display import RetrievalDisplay

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
