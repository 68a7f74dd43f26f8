"""Measures of retrieval: how many of an item's nearest neighbours share its label."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..utils._typing import MatrixLike
from ..utils.validation import check_count, check_embeddings, check_vector, encode
from ._neighbors import Metric, nearest


@dataclass
class _Task:
    """Queries and a gallery with labels as integers."""

    X: NDArray
    Y: NDArray
    query_codes: NDArray
    gallery_codes: NDArray
    n_candidates: int
    n_matching: NDArray  # for each query, the candidates that have its label

    def matches(
        self, k: int | NDArray, metric: Metric, working_memory: float | None
    ) -> Iterator[tuple[NDArray, NDArray]]:
        """Yield queries and, nearest first, whether their neighbours have their label."""
        for rows, found in nearest(self.X, self.Y, k, metric=metric, working_memory=working_memory):
            yield rows, self.gallery_codes[found] == self.query_codes[rows, None]


def _task(
    embeddings: MatrixLike,
    labels: ArrayLike,
    gallery: MatrixLike | None,
    gallery_labels: ArrayLike | None,
) -> _Task:
    X = check_embeddings(embeddings, "embeddings", min_samples=2 if gallery is None else 1)
    query_labels = check_vector(labels, "labels", len(X))
    if gallery is None or gallery_labels is None:
        if gallery is not gallery_labels:
            raise ValueError("gallery and gallery_labels must be given together.")
        Y = X
        query_codes = gallery_codes = encode(query_labels, "labels")[1]
    else:
        Y = check_embeddings(gallery, "gallery")
        if X.shape[1] != Y.shape[1]:
            raise ValueError(
                f"gallery must have as many features as embeddings ({X.shape[1]}), got "
                f"{Y.shape[1]}."
            )
        dtype = np.result_type(X, Y)
        # A view, so that a gallery which is the same object still counts as a gallery.
        X, Y = X.astype(dtype, copy=False), Y.astype(dtype, copy=False)[:]
        query_codes, gallery_codes = _encode_both(
            query_labels, check_vector(gallery_labels, "gallery_labels", len(Y))
        )
    alone = int(gallery is None)
    n_matching = np.bincount(gallery_codes, minlength=query_codes.max() + 1)[query_codes] - alone
    if not n_matching.any():
        where = "other item" if gallery is None else "item of the gallery"
        raise ValueError(f"labels: no query shares its label with any {where}.")
    return _Task(X, Y, query_codes, gallery_codes, len(Y) - alone, n_matching)


def _encode_both(labels: NDArray, gallery_labels: NDArray) -> tuple[NDArray, NDArray]:
    # Joined arrays of numbers and of strings become strings, where 1 and "1" are the same.
    kinds = {
        next((kind for kind in ("biuf", "mM", "V") if array.dtype.kind in kind), "strings")
        for array in (labels, gallery_labels)
    }
    if len(kinds) > 1:
        raise TypeError(
            f"labels (dtype {labels.dtype}) and gallery_labels (dtype {gallery_labels.dtype}) "
            "must be of the same kind."
        )
    if kinds == {"V"}:
        raise TypeError(f"labels must be all numbers or all strings, got dtype {labels.dtype}.")
    codes = encode(np.concatenate((labels, gallery_labels)), "labels")[1]
    return codes[: len(labels)], codes[len(labels) :]


def _check_ks(k: int | Sequence[int] | NDArray, n_candidates: int) -> NDArray:
    values = [k] if np.ndim(k) == 0 else list(k)  # type: ignore[arg-type]
    if not values:
        raise ValueError("k must not be empty.")
    ks = [check_count(value, "k") for value in values]
    if max(ks) > n_candidates:
        raise ValueError(
            f"k must not exceed the number of candidates of a query, {n_candidates}, got {max(ks)}."
        )
    return np.array(ks)


def _at(curve: NDArray, ks: NDArray, k: object) -> float | NDArray:
    """Return the values of a curve over 1, 2, ... in the form in which k was given."""
    values = curve[ks - 1]
    return float(values[0]) if isinstance(k, numbers.Integral) else values


@overload
def recall_at_k(
    embeddings: MatrixLike,
    labels: ArrayLike,
    k: int = 1,
    *,
    gallery: MatrixLike | None = None,
    gallery_labels: ArrayLike | None = None,
    metric: Metric = "euclidean",
    working_memory: float | None = None,
) -> float: ...


@overload
def recall_at_k(
    embeddings: MatrixLike,
    labels: ArrayLike,
    k: Sequence[int] | NDArray,
    *,
    gallery: MatrixLike | None = None,
    gallery_labels: ArrayLike | None = None,
    metric: Metric = "euclidean",
    working_memory: float | None = None,
) -> NDArray: ...


def recall_at_k(
    embeddings: MatrixLike,
    labels: ArrayLike,
    k: int | Sequence[int] | NDArray = 1,
    *,
    gallery: MatrixLike | None = None,
    gallery_labels: ArrayLike | None = None,
    metric: Metric = "euclidean",
    working_memory: float | None = None,
) -> float | NDArray:
    """Share of the queries that have an item of their label among their k nearest.

    Parameters
    ----------
    embeddings : array-like of shape (n_queries, n_features)
        The queries. Without `gallery` each is searched among all the others.

    labels : array-like of shape (n_queries,)
        Labels of the queries, numbers or strings.

    k : int or sequence of int, default=1
        Number of neighbours. A sequence is answered from one search.

    gallery : array-like of shape (n_gallery, n_features), default=None
        Items to search instead. No item is left out then, not even one equal to the query.

    gallery_labels : array-like of shape (n_gallery,), default=None
        Labels of the gallery.

    metric : str, callable or object, default="euclidean"
        A name that :func:`sklearn.metrics.pairwise_distances` knows, a callable ``f(u, v)`` that
        returns a number, or an object with a method ``pairwise(X, Y)`` that returns the matrix
        of distances, which is preferred to calls pair by pair.

    working_memory : float, default=None
        MiB for the temporary arrays. By default scikit-learn's ``working_memory`` setting, but
        no more than 64.

    Returns
    -------
    recall : float or ndarray of shape (len(k),)
        A float for an int, an array for a sequence.

    See Also
    --------
    precision_at_k : Share of the k nearest items that have the query's label.
    map_at_r : Takes the order of the neighbours into account.

    Notes
    -----
    The search is exact. Without a gallery the query itself is left out by its position, so a
    duplicate of the query is an ordinary neighbour. Of two items at the same distance the one
    that comes first in the gallery is nearer. For the euclidean and the cosine distance this
    holds whatever the size of the chunks, and single precision input gives the result of double
    precision; for other metrics it holds for the values that the metric returns.

    A query whose label no candidate has counts as a miss. If that is so for all queries, the
    labels are at fault and a ValueError is raised.

    Examples
    --------
    >>> from skdml.metrics import recall_at_k
    >>> embeddings = [[0.0], [1.0], [1.5], [3.0]]
    >>> labels = ["a", "a", "b", "b"]
    >>> recall_at_k(embeddings, labels)
    0.5
    >>> recall_at_k(embeddings, labels, [1, 2, 3])
    array([0.5 , 0.75, 1.  ])
    """
    task = _task(embeddings, labels, gallery, gallery_labels)
    ks = _check_ks(k, task.n_candidates)
    first_hits = np.zeros(ks.max(), dtype=np.int64)
    for _, match in task.matches(int(ks.max()), metric, working_memory):
        first = match.argmax(axis=1)[match.any(axis=1)]
        first_hits += np.bincount(first, minlength=len(first_hits))
    return _at(np.cumsum(first_hits) / len(task.X), ks, k)


@overload
def precision_at_k(
    embeddings: MatrixLike,
    labels: ArrayLike,
    k: int = 1,
    *,
    gallery: MatrixLike | None = None,
    gallery_labels: ArrayLike | None = None,
    metric: Metric = "euclidean",
    working_memory: float | None = None,
) -> float: ...


@overload
def precision_at_k(
    embeddings: MatrixLike,
    labels: ArrayLike,
    k: Sequence[int] | NDArray,
    *,
    gallery: MatrixLike | None = None,
    gallery_labels: ArrayLike | None = None,
    metric: Metric = "euclidean",
    working_memory: float | None = None,
) -> NDArray: ...


def precision_at_k(
    embeddings: MatrixLike,
    labels: ArrayLike,
    k: int | Sequence[int] | NDArray = 1,
    *,
    gallery: MatrixLike | None = None,
    gallery_labels: ArrayLike | None = None,
    metric: Metric = "euclidean",
    working_memory: float | None = None,
) -> float | NDArray:
    """Share of the k nearest items that have the query's label, mean over the queries.

    Parameters
    ----------
    embeddings : array-like of shape (n_queries, n_features)
        The queries. Without `gallery` each is searched among all the others.

    labels : array-like of shape (n_queries,)
        Labels of the queries, numbers or strings.

    k : int or sequence of int, default=1
        Number of neighbours. A sequence is answered from one search.

    gallery : array-like of shape (n_gallery, n_features), default=None
        Items to search instead. No item is left out then, not even one equal to the query.

    gallery_labels : array-like of shape (n_gallery,), default=None
        Labels of the gallery.

    metric : str, callable or object, default="euclidean"
        The distance, as in :func:`recall_at_k`.

    working_memory : float, default=None
        MiB for the temporary arrays, as in :func:`recall_at_k`.

    Returns
    -------
    precision : float or ndarray of shape (len(k),)
        A float for an int, an array for a sequence.

    See Also
    --------
    recall_at_k : Notes there on ties, duplicates and queries without a match hold here too.
    r_precision : The number of neighbours follows the size of the query's class.

    Examples
    --------
    >>> from skdml.metrics import precision_at_k
    >>> embeddings = [[0.0], [1.0], [1.5], [3.0]]
    >>> labels = ["a", "a", "b", "b"]
    >>> precision_at_k(embeddings, labels, 2)
    0.375
    """
    task = _task(embeddings, labels, gallery, gallery_labels)
    ks = _check_ks(k, task.n_candidates)
    hits = np.zeros(ks.max(), dtype=np.int64)
    for _, match in task.matches(int(ks.max()), metric, working_memory):
        hits += match.sum(axis=0)
    return _at(np.cumsum(hits) / (len(task.X) * np.arange(1, len(hits) + 1)), ks, k)


def r_precision(
    embeddings: MatrixLike,
    labels: ArrayLike,
    *,
    gallery: MatrixLike | None = None,
    gallery_labels: ArrayLike | None = None,
    metric: Metric = "euclidean",
    working_memory: float | None = None,
) -> float:
    """Share of the R nearest items that have the query's label, mean over the queries.

    R is the number of candidates that have the query's label, so 1 is always reachable.

    Parameters
    ----------
    embeddings : array-like of shape (n_queries, n_features)
        The queries. Without `gallery` each is searched among all the others.

    labels : array-like of shape (n_queries,)
        Labels of the queries, numbers or strings.

    gallery : array-like of shape (n_gallery, n_features), default=None
        Items to search instead. No item is left out then, not even one equal to the query.

    gallery_labels : array-like of shape (n_gallery,), default=None
        Labels of the gallery.

    metric : str, callable or object, default="euclidean"
        The distance, as in :func:`recall_at_k`.

    working_memory : float, default=None
        MiB for the temporary arrays, as in :func:`recall_at_k`.

    Returns
    -------
    r_precision : float
        The mean over the queries with R > 0; the others are left out.

    See Also
    --------
    map_at_r : The same neighbours, weighted by their rank.

    Examples
    --------
    >>> from skdml.metrics import r_precision
    >>> embeddings = [[0.0], [1.0], [1.5], [3.0]]
    >>> labels = ["a", "a", "b", "b"]
    >>> r_precision(embeddings, labels)
    0.5
    """
    task = _task(embeddings, labels, gallery, gallery_labels)
    total = 0.0
    for rows, match in task.matches(task.n_matching, metric, working_memory):
        r = task.n_matching[rows]
        total += (_within_r(match, r).sum(axis=1) / r).sum()
    return float(total / np.count_nonzero(task.n_matching))


def map_at_r(
    embeddings: MatrixLike,
    labels: ArrayLike,
    *,
    gallery: MatrixLike | None = None,
    gallery_labels: ArrayLike | None = None,
    metric: Metric = "euclidean",
    working_memory: float | None = None,
) -> float:
    """Mean average precision at R (MAP@R).

    For one query it is the sum of precision@i over the ranks i <= R at which an item has the
    query's label, divided by R, the number of candidates that have the query's label [1]_.

    Parameters
    ----------
    embeddings : array-like of shape (n_queries, n_features)
        The queries. Without `gallery` each is searched among all the others.

    labels : array-like of shape (n_queries,)
        Labels of the queries, numbers or strings.

    gallery : array-like of shape (n_gallery, n_features), default=None
        Items to search instead. No item is left out then, not even one equal to the query.

    gallery_labels : array-like of shape (n_gallery,), default=None
        Labels of the gallery.

    metric : str, callable or object, default="euclidean"
        The distance, as in :func:`recall_at_k`.

    working_memory : float, default=None
        MiB for the temporary arrays, as in :func:`recall_at_k`.

    Returns
    -------
    map_at_r : float
        The mean over the queries with R > 0; the others are left out.

    See Also
    --------
    r_precision : The same neighbours without regard to their order.
    recall_at_k : Notes there on ties and duplicates hold here too.

    References
    ----------
    .. [1] Musgrave, K., Belongie, S. and Lim, S.-N., "A Metric Learning Reality Check", ECCV 2020.

    Examples
    --------
    >>> from skdml.metrics import map_at_r
    >>> embeddings = [[0.0], [1.0], [1.2], [3.0], [9.0]]
    >>> labels = ["a", "a", "b", "a", "b"]
    >>> round(map_at_r(embeddings, labels), 4)
    0.2
    """
    task = _task(embeddings, labels, gallery, gallery_labels)
    total = 0.0
    for rows, match in task.matches(task.n_matching, metric, working_memory):
        r = task.n_matching[rows]
        match = _within_r(match, r)
        precision = np.cumsum(match, axis=1) / np.arange(1, match.shape[1] + 1)
        total += ((precision * match).sum(axis=1) / r).sum()
    return float(total / np.count_nonzero(task.n_matching))


def _within_r(match: NDArray, r: NDArray) -> NDArray:
    """Keep the matches at the first r ranks of each row."""
    return match & (np.arange(match.shape[1]) < r[:, None])
