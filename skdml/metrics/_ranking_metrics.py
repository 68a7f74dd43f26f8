"""Measures of rankings of documents by query."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._queries import NoRelevant, check_cutoff, mean_over_queries, rank, ratio, relevant


def ndcg_by_query(
    y_true: ArrayLike, y_score: ArrayLike, qid: ArrayLike | None = None, k: int | None = 10
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
    cutoff = check_cutoff(k)
    ranking = rank(y_true, y_score, qid, ideal=True)
    best = ranking.maxima(ranking.grades)
    discount = np.where(ranking.position < cutoff, 1 / np.log2(ranking.position + 2.0), 0.0)

    def gain(grades: NDArray) -> NDArray:
        # (2^grade - 1) / 2^best: the ratio is the same, and large grades do not overflow.
        return -np.exp2(grades - best[ranking.segment]) * np.expm1(-grades * math.log(2))

    achieved = ranking.sums(gain(ranking.grades) * discount)
    possible = ranking.sums(gain(ranking.ideal) * discount)
    return ranking.queries, ratio(achieved, possible)


def mean_ndcg(
    y_true: ArrayLike,
    y_score: ArrayLike,
    qid: ArrayLike | None = None,
    k: int | None = 10,
    *,
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
    The gain of a grade is ``2**grade - 1`` and the discount of rank i, from 1, ``1 / log2(i + 1)``.
    Documents of equal score rank in the order of the input, whereas scikit-learn takes the mean
    over all their orders.

    Examples
    --------
    >>> from skdml.metrics import mean_ndcg
    >>> round(mean_ndcg([0, 1, 2, 0], [3, 2, 1, 0], qid=[1, 1, 2, 3]), 4)
    0.8155
    >>> round(mean_ndcg([0, 1, 2, 0], [3, 2, 1, 0], qid=[1, 1, 2, 3], no_relevant="zero"), 4)
    0.5436
    """
    return mean_over_queries(ndcg_by_query(y_true, y_score, qid, k)[1], no_relevant)


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
    cutoff = check_cutoff(k)
    ranking = rank(y_true, y_score, qid)
    hits = relevant(ranking, threshold)
    so_far = np.cumsum(hits)
    before = (so_far - hits)[ranking.starts]
    precision = (so_far - before[ranking.segment]) / (ranking.position + 1)
    achieved = ranking.sums(np.where(hits & (ranking.position < cutoff), precision, 0.0))
    n_relevant = ranking.sums(hits.astype(np.int64))
    return ranking.queries, ratio(achieved, np.minimum(n_relevant, cutoff))


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
    return mean_over_queries(by_query[1], no_relevant)


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
    cutoff = check_cutoff(k)
    ranking = rank(y_true, y_score, qid)
    hits = relevant(ranking, threshold)
    reciprocal = np.where(hits & (ranking.position < cutoff), 1 / (ranking.position + 1), 0.0)
    return ranking.queries, ratio(ranking.maxima(reciprocal), ranking.maxima(hits).astype(float))


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
    return mean_over_queries(by_query[1], no_relevant)
