"""Learning to rank: documents of a query, ordered by learned distances."""

from ._local_gmml import LocalGMMLRanker

__all__ = ["LocalGMMLRanker"]
