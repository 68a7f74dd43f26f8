"""Libraries for approximate search, each as a function that builds an index of vectors.

An index here is a function of vectors and k that returns the positions of neighbours, -1 where the
library has found none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._optional import optional_import

Search = Callable[[NDArray, int], NDArray]


class Faiss:
    """An index of faiss, by its factory."""

    defaults = {"factory": "HNSW32", "ef_search": 64}

    def __init__(self, n_columns: int, options: dict[str, Any]) -> None:
        faiss = optional_import("faiss", 'VectorIndex(backend="faiss")')
        self._index = faiss.index_factory(n_columns, options["factory"], faiss.METRIC_L2)
        if hasattr(self._index, "hnsw"):
            self._index.hnsw.efSearch = options["ef_search"]

    def add(self, vectors: NDArray) -> None:
        """Add vectors behind those that are there; the first train the index if it needs that."""
        if not self._index.is_trained:
            self._index.train(vectors)
        self._index.add(vectors)

    def search(self, queries: NDArray, k: int) -> NDArray:
        """Return the positions of the neighbours of each query."""
        if hasattr(self._index, "hnsw"):
            self._index.hnsw.efSearch = max(self._index.hnsw.efSearch, k)
        return self._index.search(queries, k)[1]


class Hnswlib:
    """A graph of hnswlib."""

    defaults = {"M": 16, "ef_construction": 200, "ef": 64}

    def __init__(self, n_columns: int, options: dict[str, Any]) -> None:
        hnswlib = optional_import("hnswlib", 'VectorIndex(backend="hnswlib")')
        self._index, self._ef = hnswlib.Index(space="l2", dim=n_columns), options["ef"]
        size = {name: options[name] for name in ("M", "ef_construction")}
        self._index.init_index(max_elements=1, random_seed=0, **size)

    def add(self, vectors: NDArray) -> None:
        """Add vectors behind those that are there."""
        n_there = self._index.get_current_count()
        self._index.resize_index(n_there + len(vectors))
        self._index.add_items(vectors, np.arange(n_there, n_there + len(vectors)))

    def search(self, queries: NDArray, k: int) -> NDArray:
        """Return the positions of the neighbours of each query."""
        self._index.set_ef(max(self._ef, k))
        try:
            found = self._index.knn_query(queries, k)[0]
        except RuntimeError:  # a query has fewer than k neighbours in the graph
            return np.full((len(queries), k), -1)
        return found.astype(np.intp)


class Usearch:
    """A graph of usearch."""

    defaults = {"connectivity": 16, "expansion_add": 128, "expansion_search": 64}

    def __init__(self, n_columns: int, options: dict[str, Any]) -> None:
        usearch = optional_import("usearch.index", 'VectorIndex(backend="usearch")')
        self._index = usearch.Index(ndim=n_columns, metric="l2sq", dtype="f32", **options)

    def add(self, vectors: NDArray) -> None:
        """Add vectors behind those that are there."""
        n_there = len(self._index)
        self._index.add(np.arange(n_there, n_there + len(vectors)), vectors)

    def search(self, queries: NDArray, k: int) -> NDArray:
        """Return the positions of the neighbours of each query."""
        self._index.expansion_search = max(self._index.expansion_search, k)
        matches = self._index.search(queries, k)
        keys = np.asarray(matches.keys).reshape(len(queries), -1)
        counts = np.atleast_1d(getattr(matches, "counts", len(keys[0])))
        found = np.full((len(queries), k), -1)
        found[:, : keys.shape[1]] = keys.astype(np.intp)
        found[np.arange(k) >= counts[:, None]] = -1
        return found


BACKENDS: dict[str, Any] = {"faiss": Faiss, "hnswlib": Hnswlib, "usearch": Usearch}
