"""Learning to rank: documents of a query, ordered by learned distances."""

from __future__ import annotations

from ._local_gmml import LocalGMMLRanker

__all__ = ["LocalGMMLRanker"]
