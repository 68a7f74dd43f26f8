"""Deep metric learning: networks trained by skorch, as scikit-learn transformers.

Needs the extra `deep`.
"""

from __future__ import annotations

from .._optional import optional_import

for _package in ("torch", "skorch"):
    optional_import(_package, "skdml.deep")

from ._embedder import DeepMetricEmbedder  # noqa: E402
from .distributed import Distributed  # noqa: E402

__all__ = ["DeepMetricEmbedder", "Distributed"]
