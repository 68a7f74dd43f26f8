"""Measures of rankings of documents by query."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..utils.validation import check_count, check_grades, check_numbers, check_vector, encode

NoRelevant = Literal["skip", "zero", "one"]
Gains = Literal["exponential", "linear"]


@dataclass
class _Ranking:
    """Documents grouped by query and, within a query, best score first."""

    queries: NDArray  # the distinct query ids
    starts: NDArray  # where each query begins
    segment: NDArray  # for each document, the position of its query
    position: NDArray  # for each document, its rank in the query from 0
    grades: NDArray
    ideal: NDArray  # the grades of each query, best grade first

    def sums(self, values: NDArray) -> NDArray:
        """Return the sum of the values of each query."""
        return np.add.reduceat(values, self.starts)

    def maxima(self, values: NDArray) -> NDArray:
        """Return the largest value of each query."""
        return np.maximum.reduceat(values, self.starts)


def _rank(y_true, y_score, qid, ideal=False):
    """Check the input and sort it; `ideal` says whether the best order is needed too."""
    grades = check_grades(y_true, "y_true")
    scores = check_numbers(y_score, "y_score", len(grades))
    if qid is None:
        queries, codes = np.zeros(1, dtype=np.intp), np.zeros(len(grades), dtype=np.intp)
    else:
        queries, codes = encode(check_vector(qid, "qid", len(grades)), "qid")
    order = np.lexsort((-scores, codes))
    segment = codes[order]
    starts = np.flatnonzero(np.diff(segment, prepend=-1))
    position = np.arange(len(grades)) - starts[segment]
    best = grades[np.lexsort((-grades, codes))] if ideal else np.empty(0)
    return _Ranking(queries, starts, segment, position, grades[order], best)


def _rank_binary(y_true, y_score, qid, k, threshold):
    """Return the ranking, which documents are relevant, and which of them are above the cut-off."""
    cutoff = _check_cutoff(k)
    ranking = _rank(y_true, y_score, qid)
    if not isinstance(threshold, numbers.Real) or not math.isfinite(threshold):
        raise ValueError(f"threshold must be a finite number, got {threshold!r}.")
    hits = ranking.grades > threshold
    return ranking, hits, hits & (ranking.position < cutoff)


def _check_cutoff(k: int | None) -> float:
    """Return the number of ranks that count."""
    return math.inf if k is None else check_count(k, "k")


def _mean(values, no_relevant):
    """Return the mean; NaN stands for a query without relevant document."""
    if not isinstance(no_relevant, str) or no_relevant not in ("skip", "zero", "one"):
        raise ValueError(f"no_relevant must be 'skip', 'zero' or 'one', got {no_relevant!r}.")
    missing = np.isnan(values)
    if no_relevant != "skip":
        return float(np.where(missing, float(no_relevant == "one"), values).mean())
    if missing.all():
        raise ValueError(
            "y_true: no query has a relevant document, so there is nothing to average; "
            "no_relevant='zero' or 'one' gives such queries a value."
        )
    return float(values[~missing].mean())


def _ratio(numerator, denominator):
    """Divide; NaN where the denominator is zero."""
    result = np.full(len(numerator), np.nan)
    return np.divide(numerator, denominator, out=result, where=denominator > 0)


def ndcg_by_query(
    y_true: ArrayLike,
    y_score: ArrayLike,
    qid: ArrayLike | None = None,
    k: int | None = 10,
    *,
    gains: Gains = "exponential",
) -> tuple[NDArray, NDArray]:
    """NDCG of each query (normalized discounted cumulative gain).

    Parameters
    ----------
    y_true : array-like of shape (n_documents,)
        Grades of relevance, 0 or above; they need not be integers.

    y_score : array-like of shape (n_documents,)
        Scores, the higher the better.

    qid : array-like of shape (n_documents,), default=None
        The query of each document, numbers or strings. The documents of a query need not be
        adjacent. None means that there is one query, which gets the id 0.

    k : int or None, default=10
        Only the first k ranks count; None stands for all.

    gains : {"exponential", "linear"}, default="exponential"
        What a grade is worth: ``2**grade - 1`` or the grade itself.

    Returns
    -------
    queries : ndarray of shape (n_queries,)
        The distinct query ids, sorted.

    ndcg : ndarray of shape (n_queries,)
        A value between 0 and 1 for each of them, NaN if no document of the query is relevant.

    See Also
    --------
    mean_ndcg : The mean over the queries, with notes on the definition.

    Examples
    --------
    >>> from skdml.metrics import ndcg_by_query
    >>> queries, ndcg = ndcg_by_query([0, 1, 2, 0], [3, 2, 1, 0], ["a", "a", "b", "c"])
    >>> queries
    array(['a', 'b', 'c'], dtype='<U1')
    >>> ndcg.round(4)
    array([0.6309, 1.    ,    nan])
    """
    cutoff = _check_cutoff(k)
    ranking = _rank(y_true, y_score, qid, ideal=True)
    best = ranking.maxima(ranking.grades)
    discount = np.where(ranking.position < cutoff, 1 / np.log2(ranking.position + 2.0), 0.0)

    if gains not in ("exponential", "linear"):
        raise ValueError(f"gains must be 'exponential' or 'linear', got {gains!r}.")

    def gain(grades: NDArray) -> NDArray:
        if gains == "linear":
            return grades / np.where(best > 0, best, 1.0)[ranking.segment]
        # (2^grade - 1) / 2^best: the ratio is the same, and large grades do not overflow.
        return -np.exp2(grades - best[ranking.segment]) * np.expm1(-grades * math.log(2))

    achieved = ranking.sums(gain(ranking.grades) * discount)
    possible = ranking.sums(gain(ranking.ideal) * discount)
    return ranking.queries, _ratio(achieved, possible)


def mean_ndcg(
    y_true: ArrayLike,
    y_score: ArrayLike,
    qid: ArrayLike | None = None,
    k: int | None = 10,
    *,
    gains: Gains = "exponential",
    no_relevant: NoRelevant = "skip",
) -> float:
    """NDCG at k (normalized discounted cumulative gain), mean over the queries.

    Parameters
    ----------
    y_true : array-like of shape (n_documents,)
        Grades of relevance, 0 or above; they need not be integers.

    y_score : array-like of shape (n_documents,)
        Scores, the higher the better.

    qid : array-like of shape (n_documents,), default=None
        The query of each document, numbers or strings. The documents of a query need not be
        adjacent. None means that there is one query.

    k : int or None, default=10
        Only the first k ranks count; None stands for all.

    gains : {"exponential", "linear"}, default="exponential"
        What a grade is worth: ``2**grade - 1`` or the grade itself.

    no_relevant : {"skip", "zero", "one"}, default="skip"
        What becomes of a query without relevant document: it is left out of the mean, or counts
        as 0 or as 1. Tools differ in this.

    Returns
    -------
    ndcg : float
        Between 0 and 1.

    See Also
    --------
    ndcg_by_query : The values of the queries.
    sklearn.metrics.ndcg_score : Takes gains instead of grades, and a matrix of queries.

    Notes
    -----
    The discount of rank i, from 1, is ``1 / log2(i + 1)``. Documents of equal score
    rank in the order of the input, whereas scikit-learn takes the mean over all their orders.

    Examples
    --------
    >>> from skdml.metrics import mean_ndcg
    >>> round(mean_ndcg([0, 1, 2, 0], [3, 2, 1, 0], qid=[1, 1, 2, 3]), 4)
    0.8155
    >>> round(mean_ndcg([0, 1, 2, 0], [3, 2, 1, 0], qid=[1, 1, 2, 3], no_relevant="zero"), 4)
    0.5436
    """
    return _mean(ndcg_by_query(y_true, y_score, qid, k, gains=gains)[1], no_relevant)


def average_precision_by_query(
    y_true: ArrayLike,
    y_score: ArrayLike,
    qid: ArrayLike | None = None,
    *,
    k: int | None = None,
    threshold: float = 0,
) -> tuple[NDArray, NDArray]:
    """Average precision of each query.

    Parameters
    ----------
    y_true : array-like of shape (n_documents,)
        Grades of relevance, 0 or above.

    y_score : array-like of shape (n_documents,)
        Scores, the higher the better.

    qid : array-like of shape (n_documents,), default=None
        The query of each document, numbers or strings, in any order. None means that there is
        one query, which gets the id 0.

    k : int or None, default=None
        Only the first k ranks count; None stands for all.

    threshold : float, default=0
        Documents with a grade above it are relevant.

    Returns
    -------
    queries : ndarray of shape (n_queries,)
        The distinct query ids, sorted.

    average_precision : ndarray of shape (n_queries,)
        A value between 0 and 1 for each of them, NaN if no document of the query is relevant.

    See Also
    --------
    mean_average_precision : The mean over the queries, with notes on the definition.

    Examples
    --------
    >>> from skdml.metrics import average_precision_by_query
    >>> average_precision_by_query([0, 1, 1, 1], [3, 2, 1, 0], ["a", "a", "a", "b"])[1].round(4)
    array([0.5833, 1.    ])
    """
    ranking, hits, counted = _rank_binary(y_true, y_score, qid, k, threshold)
    so_far = np.cumsum(hits)
    before = (so_far - hits)[ranking.starts]
    precision = (so_far - before[ranking.segment]) / (ranking.position + 1)
    achieved = ranking.sums(np.where(counted, precision, 0.0))
    n_relevant = ranking.sums(hits.astype(np.int64))
    return ranking.queries, _ratio(achieved, np.minimum(n_relevant, _check_cutoff(k)))


def mean_average_precision(
    y_true: ArrayLike,
    y_score: ArrayLike,
    qid: ArrayLike | None = None,
    *,
    k: int | None = None,
    threshold: float = 0,
    no_relevant: NoRelevant = "skip",
) -> float:
    """Average precision, mean over the queries (MAP).

    Parameters
    ----------
    y_true : array-like of shape (n_documents,)
        Grades of relevance, 0 or above.

    y_score : array-like of shape (n_documents,)
        Scores, the higher the better.

    qid : array-like of shape (n_documents,), default=None
        The query of each document, numbers or strings, in any order. None means that there is
        one query.

    k : int or None, default=None
        Only the first k ranks count; None stands for all.

    threshold : float, default=0
        Documents with a grade above it are relevant.

    no_relevant : {"skip", "zero", "one"}, default="skip"
        What becomes of a query without relevant document: it is left out of the mean, or counts
        as 0 or as 1.

    Returns
    -------
    mean_average_precision : float
        Between 0 and 1.

    See Also
    --------
    average_precision_by_query : The values of the queries.
    mrr : Looks at the first relevant document alone.

    Notes
    -----
    The average precision of a query is the sum of the precision at the ranks of its relevant
    documents among the first k, divided by the number of relevant documents or by k, whichever
    is smaller, so that 1 is reachable. Documents of equal score rank in the order of the input.

    Examples
    --------
    >>> from skdml.metrics import mean_average_precision
    >>> round(mean_average_precision([0, 1, 1, 1], [3, 2, 1, 0], qid=[1, 1, 1, 2]), 4)
    0.7917
    """
    by_query = average_precision_by_query(y_true, y_score, qid, k=k, threshold=threshold)
    return _mean(by_query[1], no_relevant)


def reciprocal_rank_by_query(
    y_true: ArrayLike,
    y_score: ArrayLike,
    qid: ArrayLike | None = None,
    *,
    k: int | None = None,
    threshold: float = 0,
) -> tuple[NDArray, NDArray]:
    """Reciprocal rank of the first relevant document of each query.

    Parameters
    ----------
    y_true : array-like of shape (n_documents,)
        Grades of relevance, 0 or above.

    y_score : array-like of shape (n_documents,)
        Scores, the higher the better.

    qid : array-like of shape (n_documents,), default=None
        The query of each document, numbers or strings, in any order. None means that there is
        one query, which gets the id 0.

    k : int or None, default=None
        A first relevant document below rank k gives 0; None stands for no limit.

    threshold : float, default=0
        Documents with a grade above it are relevant.

    Returns
    -------
    queries : ndarray of shape (n_queries,)
        The distinct query ids, sorted.

    reciprocal_rank : ndarray of shape (n_queries,)
        A value between 0 and 1 for each of them, NaN if no document of the query is relevant.

    See Also
    --------
    mrr : The mean over the queries.

    Examples
    --------
    >>> from skdml.metrics import reciprocal_rank_by_query
    >>> reciprocal_rank_by_query([0, 1, 1, 1], [3, 2, 1, 0], ["a", "a", "a", "b"])[1]
    array([0.5, 1. ])
    """
    ranking, hits, counted = _rank_binary(y_true, y_score, qid, k, threshold)
    reciprocal = np.where(counted, 1 / (ranking.position + 1), 0.0)
    return ranking.queries, _ratio(ranking.maxima(reciprocal), ranking.maxima(hits).astype(float))


def mrr(
    y_true: ArrayLike,
    y_score: ArrayLike,
    qid: ArrayLike | None = None,
    *,
    k: int | None = None,
    threshold: float = 0,
    no_relevant: NoRelevant = "skip",
) -> float:
    """Reciprocal rank of the first relevant document, mean over the queries.

    Parameters
    ----------
    y_true : array-like of shape (n_documents,)
        Grades of relevance, 0 or above.

    y_score : array-like of shape (n_documents,)
        Scores, the higher the better.

    qid : array-like of shape (n_documents,), default=None
        The query of each document, numbers or strings, in any order. None means that there is
        one query.

    k : int or None, default=None
        A first relevant document below rank k gives 0; None stands for no limit.

    threshold : float, default=0
        Documents with a grade above it are relevant.

    no_relevant : {"skip", "zero", "one"}, default="skip"
        What becomes of a query without relevant document: it is left out of the mean, or counts
        as 0 or as 1.

    Returns
    -------
    mrr : float
        Between 0 and 1.

    See Also
    --------
    reciprocal_rank_by_query : The values of the queries.

    Notes
    -----
    Documents of equal score rank in the order of the input.

    Examples
    --------
    >>> from skdml.metrics import mrr
    >>> mrr([0, 1, 1, 1], [3, 2, 1, 0], qid=[1, 1, 1, 2])
    0.75
    """
    by_query = reciprocal_rank_by_query(y_true, y_score, qid, k=k, threshold=threshold)
    return _mean(by_query[1], no_relevant)
