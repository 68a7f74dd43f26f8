"""Measures of retrieval: how many of an item's nearest neighbours share its label."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..utils._parallel import computed, find_client, is_dask_array, make_shards
from ..utils._typing import MatrixLike
from ..utils.validation import check_count, check_vector, encode
from ._neighbors import Metric, check_sides, nearest


class _Search(TypedDict, total=False):
    """Keyword arguments of all measures of retrieval."""

    gallery: MatrixLike | None
    gallery_labels: ArrayLike | None
    metric: Metric
    working_memory: float | None


class _Task:
    """Queries and a gallery with labels as integers, and the search among them.

    Queries of a dask array are searched block by block, on its cluster if there is one: every
    worker has the whole gallery.
    """

    def __init__(self, embeddings, labels, gallery, gallery_labels, metric, working_memory):
        alone = int(gallery is None)
        self._blocks, self._client = None, find_client(None, embeddings)
        gallery = computed(gallery)
        if is_dask_array(embeddings):
            self._blocks = embeddings.rechunk({1: -1})
            embeddings = computed(embeddings) if alone else embeddings[:1].compute()
        X, Y = check_sides(embeddings, gallery, "embeddings", min_samples=1 + alone)
        n_queries = len(X) if self._blocks is None else self._blocks.shape[0]
        query_labels = check_vector(labels, "labels", n_queries)
        if gallery is None or gallery_labels is None:
            if gallery is not gallery_labels:
                raise ValueError("gallery and gallery_labels must be given together.")
            query_codes = gallery_codes = encode(query_labels, "labels")[1]
        else:
            gallery_labels = check_vector(gallery_labels, "gallery_labels", len(Y))
            query_codes, gallery_codes = _encode_both(query_labels, gallery_labels)
        # For each query, the number of candidates that have its label.
        counts = np.bincount(gallery_codes, minlength=query_codes.max() + 1)
        self.n_matching = counts[query_codes] - alone
        if not self.n_matching.any():
            where = "other item" if alone else "item of the gallery"
            raise ValueError(f"labels: no query shares its label with any {where}.")
        self.n_queries, self.n_candidates = n_queries, len(Y) - alone
        self._sides, self._codes, self._alone = (X, Y), (query_codes, gallery_codes), bool(alone)
        self._options = {"metric": metric, "working_memory": working_memory}

    def total(self, k: int | NDArray, score: Callable[[NDArray, NDArray], Any]) -> Any:
        """Return the sum of `score(rows, match)` over chunks of queries.

        `match` says of the neighbours of the queries `rows`, nearest first, whether they have their
        label.
        """
        X, Y = self._sides
        query_codes, gallery_codes = self._codes
        if self._blocks is None:
            found = nearest(X, Y, k, **self._options)
            return sum(
                score(rows, gallery_codes[near] == query_codes[rows, None]) for rows, near in found
            )
        ends = np.cumsum(self._blocks.chunks[0])
        needed = np.broadcast_to(k, self.n_queries)
        own = [
            (np.arange(end - size, end), needed[end - size : end], query_codes[end - size : end])
            for end, size in zip(ends, self._blocks.chunks[0], strict=True)
        ]
        with make_shards(self._blocks.to_delayed()[:, 0], client=self._client) as shards:
            return shards.sum(
                _total_of_block, Y, gallery_codes, score, self._alone, self._options, each=own
            )

    def mean_at_k(self, k: Any, count: Callable[[NDArray], NDArray], over_k: bool) -> Any:
        """Return the mean of `count(match)`, a number for each rank, summed up to rank k.

        It is a number for an int, an array for a sequence; divided by k if `over_k`.
        """
        ks = np.array([check_count(value, "k") for value in np.atleast_1d(np.asarray(k, object))])
        if not len(ks):
            raise ValueError("k must not be empty.")
        if ks.max() > self.n_candidates:
            most = f"the number of candidates of a query, {self.n_candidates}"
            raise ValueError(f"k must not exceed {most}, got {ks.max()}.")
        by_rank = self.total(int(ks.max()), lambda rows, match: count(match))
        means = np.cumsum(by_rank)[ks - 1] / (self.n_queries * (ks if over_k else 1))
        return float(means[0]) if isinstance(k, numbers.Integral) else means

    def mean_at_r(self, score: Callable[[NDArray], NDArray]) -> float:
        """Return the mean over the queries with R > 0 of `score(match)`, summed over ranks, over R.

        R is the number of candidates that have the query's label.
        """
        n_matching = self.n_matching

        def mean(rows, match):
            r = n_matching[rows]
            match &= np.arange(match.shape[1]) < r[:, None]
            return (score(match).sum(axis=1) / r).sum()

        return float(self.total(n_matching, mean) / np.count_nonzero(n_matching))


def _total_of_block(block, own, gallery, gallery_codes, score, alone, options):
    """Return the sum over the queries of a block; `alone` leaves out a query's own place."""
    rows, needed, codes = own
    X, gallery = check_sides(block, gallery, "embeddings")
    needed = np.where(needed > 0, needed + alone, 0)
    total = 0
    for some, near in nearest(X, gallery, needed, **options):
        if alone:
            left_out = near == rows[some][:, None]
            left_out[~left_out.any(axis=1), -1] = True  # hidden behind as many duplicates
            near = near[~left_out].reshape(len(some), -1)
        total = total + score(rows[some], gallery_codes[near] == codes[some][:, None])
    return total


def _encode_both(labels: NDArray, gallery_labels: NDArray) -> tuple[NDArray, NDArray]:
    # Joined arrays of numbers and of strings become strings, where 1 and "1" are the same.
    groups = {kind: group for group in ("biuf", "m", "M", "V") for kind in group}
    kinds = {groups.get(array.dtype.kind, "strings") for array in (labels, gallery_labels)}
    if len(kinds) > 1:
        raise TypeError(
            f"labels (dtype {labels.dtype}) and gallery_labels (dtype {gallery_labels.dtype}) "
            "must be of the same kind."
        )
    if kinds == {"V"}:
        raise TypeError(f"labels must be all numbers or all strings, got dtype {labels.dtype}.")
    codes = encode(np.concatenate((labels, gallery_labels)), "labels")[1]
    return codes[: len(labels)], codes[len(labels) :]


@overload
def recall_at_k(
    embeddings: MatrixLike, labels: ArrayLike, k: int = 1, **search: Unpack[_Search]
) -> float: ...


@overload
def recall_at_k(
    embeddings: MatrixLike, labels: ArrayLike, k: Sequence[int] | NDArray, **search: Unpack[_Search]
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
    embeddings : array-like or dask array of shape (n_queries, n_features)
        The queries. Without `gallery` each is searched among all the others. Those of a dask array
        are searched block by block, on its cluster if there is one.

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
        no more than 128.

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
    task = _Task(embeddings, labels, gallery, gallery_labels, metric, working_memory)

    def first_matches(match: NDArray) -> NDArray:
        return np.bincount(match.argmax(axis=1)[match.any(axis=1)], minlength=match.shape[1])

    return task.mean_at_k(k, first_matches, over_k=False)


@overload
def precision_at_k(
    embeddings: MatrixLike, labels: ArrayLike, k: int = 1, **search: Unpack[_Search]
) -> float: ...


@overload
def precision_at_k(
    embeddings: MatrixLike, labels: ArrayLike, k: Sequence[int] | NDArray, **search: Unpack[_Search]
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
    task = _Task(embeddings, labels, gallery, gallery_labels, metric, working_memory)
    return task.mean_at_k(k, lambda match: match.sum(axis=0), over_k=True)


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
    task = _Task(embeddings, labels, gallery, gallery_labels, metric, working_memory)
    return task.mean_at_r(lambda match: match)


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
    task = _Task(embeddings, labels, gallery, gallery_labels, metric, working_memory)
    return task.mean_at_r(
        lambda match: match * np.cumsum(match, axis=1) / np.arange(1, match.shape[1] + 1)
    )
