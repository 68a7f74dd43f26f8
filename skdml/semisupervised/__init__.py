"""Semi-supervised metric learning: few labels, and many samples without one.

Needs the extra `deep`.
"""

from __future__ import annotations

from .._optional import optional_import

for _package in ("torch", "skorch"):
    optional_import(_package, "skdml.semisupervised")

from ._split import PartiallyLabelledKFold  # noqa: E402
from ._ssdml import SSDMLEmbedder  # noqa: E402

__all__ = ["PartiallyLabelledKFold", "SSDMLEmbedder"]
