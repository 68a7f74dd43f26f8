"""Plots of metrics, searches, verification, training and generated samples, as Display classes.

They need matplotlib. `explore` needs a browser instead, in which to open the page that it writes.
"""

from __future__ import annotations

from ._convergence import ConsensusDisplay, ConvergenceDisplay
from ._embedding import AffinityDisplay, EmbeddingDisplay
from ._explore import explore
from ._generated import GeneratedSamplesDisplay, GeneratorTrainingDisplay
from ._matrix import MetricMatrixDisplay
from ._path import PathDisplay
from ._ranking_display import RankingDisplay
from ._retrieval_display import RecallCurveDisplay, RetrievalDisplay
from ._verification_display import VerificationDisplay

__all__ = [
    "AffinityDisplay",
    "ConsensusDisplay",
    "ConvergenceDisplay",
    "EmbeddingDisplay",
    "GeneratedSamplesDisplay",
    "GeneratorTrainingDisplay",
    "MetricMatrixDisplay",
    "PathDisplay",
    "RankingDisplay",
    "RecallCurveDisplay",
    "RetrievalDisplay",
    "VerificationDisplay",
    "explore",
]
