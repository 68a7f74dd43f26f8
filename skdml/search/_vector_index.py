"""An index of vectors under a learned metric."""

from __future__ import annotations

from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from ..metrics._neighbors import prepare, search
from ..utils._typing import MatrixLike
from ..utils.validation import check_embeddings
from ._backends import BACKENDS

# Elements of the temporary arrays in which the distances of neighbours are worked out.
_BLOCK = 2**20


class VectorIndex:
    """Finds the rows that are nearest under a learned metric.

    Rows are mapped by the metric when they are added, queries when they are asked, and compared by
    Euclidean distance. Embeddings of unit length need no other setting: the order of their
    Euclidean distances is that of their cosines.

    Parameters
    ----------
    metric : estimator or None, default=None
        A fitted learner with `transform`. One with `transform_database`, such as
        `AsymmetricMetricClassifier`, maps the rows of the index by that and the queries by
        `transform`. None takes the vectors as they come.
    backend : {"exact", "faiss", "hnswlib", "usearch"}, default="exact"
        How neighbours are found: exactly, by blocks of matrix products, or approximately, by one
        of the libraries (``pip install "skdml[search]"``).
    options : dict, default=None
        Settings of the backend. faiss: ``factory`` ("HNSW32"), the string of its index factory,
        and ``ef_search`` (64). hnswlib: ``M`` (16), ``ef_construction`` (200) and ``ef`` (64).
        usearch: ``connectivity`` (16), ``expansion_add`` (128) and ``expansion_search`` (64).

    Attributes
    ----------
    ids_ : ndarray of shape (n_rows,)
        The ids of the rows in the index.
    vectors_ : ndarray of shape (n_rows, n_columns)
        What the metric makes of the rows, in single precision.

    See Also
    --------
    skdml.metrics.recall_at_k : Quality of a search, by classes.
    skdml.io.save : Stores an index with its metric.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skdml import GMMLTransformer
    >>> from skdml.search import VectorIndex
    >>> X, y = load_iris(return_X_y=True)
    >>> index = VectorIndex(GMMLTransformer(geodesic=0.5).fit(X, y)).fit(X)
    >>> distances, ids = index.query(X[:2], k=3)
    >>> ids
    array([[ 0, 17, 28],
           [ 1,  9, 45]])
    """

    ids_: NDArray
    vectors_: NDArray
    _exact: Any
    _approximate: Any

    def __init__(
        self,
        metric: Any = None,
        backend: str = "exact",
        options: dict[str, Any] | None = None,
    ) -> None:
        self.metric, self.backend, self.options = metric, backend, options
        self._check_parameters()

    def _check_parameters(self):
        if not isinstance(self.backend, str) or self.backend not in ("exact", *BACKENDS):
            names = ", ".join(repr(name) for name in ("exact", *BACKENDS))
            raise ValueError(f"backend must be one of {names}, got {self.backend!r}.")
        known = {} if self.backend == "exact" else BACKENDS[self.backend].defaults
        if self.options is not None and not isinstance(self.options, dict):
            raise TypeError(f"options must be a dict or None, got {self.options!r}.")
        for name in self.options or {}:
            if name not in known:
                wanted = f"only {', '.join(known)}" if known else "none"
                raise ValueError(f"options has {name!r}, but {self.backend!r} takes {wanted}.")
        if self.metric is None:
            return
        if isinstance(self.metric, type) or not hasattr(self.metric, "transform"):
            raise TypeError(
                "metric must be a fitted learner with a method transform, or None, got "
                f"{self.metric!r}."
            )
        check_is_fitted(self.metric)
        if not isinstance(getattr(self.metric, "metric_", ""), str) and hasattr(
            self.metric.metric_, "cloud"
        ):
            raise ValueError(
                "metric compares embeddings by transport, and an index compares them by Euclidean "
                "distance: use a learner with another loss."
            )

    def __repr__(self) -> str:
        n_rows = len(self.ids_) if hasattr(self, "ids_") else 0
        return f"<VectorIndex of {n_rows} rows, backend={self.backend!r}, metric={self.metric!r}>"

    def __len__(self) -> int:
        return len(self.ids_) if hasattr(self, "ids_") else 0

    def fit(self, X: MatrixLike, y: Any = None, *, ids: ArrayLike | None = None) -> Self:
        """Make the index anew.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            The rows.
        y : ignored
            For pipelines.
        ids : array-like of shape (n_rows,), default=None
            Their ids, integers or strings; None numbers them from 0.

        Returns
        -------
        self : VectorIndex
            Itself.
        """
        vectors = self._embed(X, "database")
        ids = self._check_ids(ids, len(vectors), None)
        self.vectors_, self.ids_ = vectors, ids
        self._exact = self._approximate = None
        return self

    def add(self, X: MatrixLike, ids: ArrayLike | None = None) -> Self:
        """Add rows to those that are there.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            The rows.
        ids : array-like of shape (n_rows,), default=None
            Their ids, which no other row has; None goes on numbering.

        Returns
        -------
        self : VectorIndex
            Itself.
        """
        if not hasattr(self, "vectors_"):
            return self.fit(X, ids=ids)
        vectors = self._embed(X, "database")
        self._check_columns(vectors, "X")
        ids = self._check_ids(ids, len(vectors), self.ids_)
        self.vectors_ = np.concatenate([self.vectors_, vectors])
        self.ids_ = np.concatenate([self.ids_, ids])
        self._exact = None
        if self._approximate is not None:
            self._approximate.add(vectors)
        return self

    def query(self, X: MatrixLike, k: int = 10) -> tuple[NDArray, NDArray]:
        """Return the nearest rows of queries.

        Parameters
        ----------
        X : array-like of shape (n_queries, n_features)
            The queries.
        k : int, default=10
            How many rows to find for each.

        Returns
        -------
        distances : ndarray of shape (n_queries, k)
            The learned distances, not squared, nearest first.
        ids : ndarray of shape (n_queries, k)
            The ids of the rows; equal distances in the order of the index.
        """
        self._check_built()
        queries = self._embed(X, "query")
        self._check_columns(queries, "X")
        k = self._check_k(k)
        if self.backend == "exact":
            positions = self._search_exact(queries, k)
            return self._distances(queries, positions), self.ids_[positions]
        positions = self._search(queries, k)
        distances = self._distances(queries, positions)
        order = np.lexsort((positions, distances), axis=1)
        positions = np.take_along_axis(positions, order, axis=1)
        return np.take_along_axis(distances, order, axis=1), self.ids_[positions]

    def recall(self, X: MatrixLike, k: int = 10) -> float:
        """Return the share of the exact nearest rows that `query` finds.

        Parameters
        ----------
        X : array-like of shape (n_queries, n_features)
            Queries to try; some hundred are enough.
        k : int, default=10
            How many rows to find for each.

        Returns
        -------
        recall : float
            Between 0 and 1; 1 with ``backend="exact"``. A row as near as the last of the exact
            ones counts as one of them.
        """
        self._check_built()
        queries = self._embed(X, "query")
        self._check_columns(queries, "X")
        k = self._check_k(k)
        if self.backend == "exact":
            return 1.0
        exact = self._distances(queries, self._search_exact(queries, k))
        found = self._distances(queries, self._search(queries, k))
        return float(np.mean(found <= exact[:, -1:]))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the index, with its metric, to one file.

        Parameters
        ----------
        path : path
            The file; see `skdml.io.save`. Graphs of backends are not in it: they are built again
            from the vectors.
        """
        from ..io import save

        save(self, path)

    @classmethod
    def load(cls, path: str | PathLike[str], *, module: Any = None) -> VectorIndex:
        """Read an index; no code of the file is executed.

        Parameters
        ----------
        path : path
            The file.
        module : class or list of classes, default=None
            Networks of your own in the metric; see `skdml.io.load`.

        Returns
        -------
        index : VectorIndex
            The index.
        """
        from ..io import load

        index = load(path, module=module)
        if not isinstance(index, cls):
            raise ValueError(f"{path} holds a {type(index).__name__}, not a VectorIndex.")
        return index

    def __getstate__(self) -> dict[str, Any]:
        # Graphs are made of the vectors again.
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _exact=None, _approximate=None)

    # Checks

    def _check_built(self):
        if not hasattr(self, "vectors_"):
            raise ValueError("This VectorIndex is empty: call fit or add with rows first.")

    def _embed(self, X, side):
        """Return what the metric makes of rows, in single precision."""
        if self.metric is None:
            Z = check_embeddings(X, "X")
        elif side == "database" and hasattr(self.metric, "transform_database"):
            Z = self.metric.transform_database(X)
        else:
            Z = self.metric.transform(X)
        with np.errstate(over="ignore"):
            Z = np.ascontiguousarray(Z, dtype=np.float32)
        if not np.isfinite(Z).all():
            raise ValueError("X has values too large for single precision: scale it first.")
        return Z

    def _check_columns(self, vectors, name):
        expected = self.vectors_.shape[1]
        if vectors.shape[1] != expected:
            raise ValueError(
                f"{name} has {vectors.shape[1]} columns, but the index has {expected}."
            )

    def _check_k(self, k):
        if isinstance(k, bool) or not isinstance(k, int | np.integer):
            raise TypeError(f"k must be an integer, got {k!r}.")
        if not 1 <= k <= len(self.ids_):
            raise ValueError(f"k must be between 1 and the {len(self.ids_)} rows, got {k}.")
        return int(k)

    def _check_ids(self, ids, n_rows, known):
        if ids is None:
            start = 0 if known is None else len(known)
            ids = np.arange(start, start + n_rows)
        ids = np.asarray(ids)
        if ids.dtype.kind == "O" and all(isinstance(name, str) for name in ids.ravel()):
            ids = ids.astype(str)
        if ids.dtype.kind not in "iuU":
            raise TypeError(f"ids must be integers or strings, got dtype {ids.dtype}.")
        if ids.shape != (n_rows,):
            raise ValueError(f"ids must have shape ({n_rows},), one for each row, got {ids.shape}.")
        if known is not None and (known.dtype.kind == "U") != (ids.dtype.kind == "U"):
            raise TypeError("ids must be of the kind that is in the index, integers or strings.")
        together = ids if known is None else np.concatenate([known, ids])
        names, counts = np.unique(together, return_counts=True)
        if len(names) < len(together):
            twice = names[counts.argmax()].item()
            raise ValueError(
                f"ids must be distinct, also from those in the index: {twice!r} occurs twice."
            )
        return ids

    # Search

    def _search_exact(self, queries, k):
        if self._exact is None:
            self._exact = prepare(self.vectors_)
        positions = np.empty((len(queries), k), dtype=np.intp)
        for rows, found in search(self._exact.ask(queries), k):
            positions[rows] = found
        return positions

    def _search(self, queries, k):
        if self._approximate is None:
            backend = BACKENDS[self.backend]
            options = {**backend.defaults, **(self.options or {})}
            approximate = backend(self.vectors_.shape[1], options)
            approximate.add(self.vectors_)
            self._approximate = approximate
        positions = self._approximate.search(queries, k)
        short = (positions < 0).any(axis=1)
        if short.any():  # the library has found fewer than k
            positions[short] = self._search_exact(queries[short], k)
        return positions

    def _distances(self, queries, positions):
        """Return the distances of queries to the vectors at positions, in double precision."""
        distances = np.empty(positions.shape)
        step = max(1, _BLOCK // (positions.shape[1] * self.vectors_.shape[1]))
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            difference = self.vectors_[positions[part]].astype(np.float64)
            difference -= queries[part, None]
            distances[part] = np.sqrt(np.einsum("ijk,ijk->ij", difference, difference))
        return distances
