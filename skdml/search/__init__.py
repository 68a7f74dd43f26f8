"""Search for the nearest rows under a learned metric, exact or by a library for vector search."""

from __future__ import annotations

from ._vector_index import VectorIndex

__all__ = ["VectorIndex"]
