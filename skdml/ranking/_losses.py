"""Losses of a ranking: functions of scores that return a value and its gradient."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from ._queries import RankedQueries, positions


def lambda_loss(scores: NDArray, batch: RankedQueries) -> tuple[float, NDArray]:
    r"""Compute the pairwise logistic loss, weighted by what a swap would change in NDCG.

    .. math:: \frac{1}{n_q} \sum_q \sum_{y_i > y_j} |g_i - g_j|\,
              |\frac{1}{\log_2(\pi_i + 1)} - \frac{1}{\log_2(\pi_j + 1)}|\,
              \log(1 + e^{f_j - f_i})

    with the ranks :math:`\pi` of the present scores, which count as constants: the gradient is
    that of the loss with the weights held fixed.

    Parameters
    ----------
    scores : ndarray of shape (n_rows,)
        f, the scores of the rows of the batch.
    batch : RankedQueries
        Their queries, grades and gains; its features are not looked at.

    Returns
    -------
    loss : float
        The mean over the queries.
    gradient : ndarray of shape (n_rows,)
        By the scores.
    """
    discount = 1 / np.log2(positions(scores, batch.starts) + 2.0)
    better, worse = _pairs(batch)
    weight = (batch.gains[better] - batch.gains[worse]) * np.abs(discount[better] - discount[worse])
    margin = scores[better] - scores[worse]
    pull = weight * expit(-margin)
    gradient = np.bincount(worse, pull, len(scores)) - np.bincount(better, pull, len(scores))
    loss = float(weight @ np.logaddexp(0, -margin))
    return loss / batch.n_queries, gradient / batch.n_queries


def pair_loss(scores: NDArray, queries: RankedQueries) -> float:
    """Compute the pairwise logistic loss with weights that do not depend on the scores.

    Pairs count by the difference of their gains, and every query counts the same. It judges a
    model more steadily than NDCG, which jumps when two documents change places.

    Parameters
    ----------
    scores : ndarray of shape (n_rows,)
        The scores of the rows.
    queries : RankedQueries
        Their queries, grades and gains.

    Returns
    -------
    loss : float
        The mean over the queries.
    """
    better, worse = _pairs(queries)
    weight = queries.gains[better] - queries.gains[worse]
    codes = queries.codes()[better]
    total = np.bincount(codes, weight, queries.n_queries)
    loss = weight * np.logaddexp(0, scores[worse] - scores[better])
    return float(np.mean(np.bincount(codes, loss, queries.n_queries) / total))


def _pairs(batch):
    """Return all pairs of rows of a query with different grades, the better row first."""
    ends = np.repeat(batch.starts[1:], batch.sizes)
    counts = ends - batch.lower
    better = np.repeat(np.arange(len(counts)), counts)
    # the partners of a row are neighbours: from its first lower row to the end of the query
    worse = np.arange(len(better)) - np.repeat(np.cumsum(counts) - counts - batch.lower, counts)
    return better, worse


def warp_loss(
    scores: NDArray, batch: RankedQueries, rng: np.random.Generator, margin: float = 1.0
) -> tuple[float, NDArray]:
    r"""Estimate the weighted approximate-rank pairwise loss by sampled violators.

    For each document, less relevant ones of its query are drawn with replacement until one
    violates the margin, :math:`\zeta + f(p^-) > f(p^+)`. If it took N draws, the document is
    about :math:`k = \lfloor |D^-| / N \rfloor` ranks too low, and the pair costs
    :math:`L(k) (\zeta - f(p^+) + f(p^-))` with :math:`L(k) = \sum_{i \le k} 1/\log_2(i + 1)`.
    After :math:`|D^-|` draws without a violator there is none.

    Parameters
    ----------
    scores : ndarray of shape (n_rows,)
        f, the scores of the rows of the batch.
    batch : RankedQueries
        Their queries and grades.
    rng : Generator
        Draws the documents.
    margin : float, default=1.0
        zeta.

    Returns
    -------
    loss : float
        The mean over the queries.
    gradient : ndarray of shape (n_rows,)
        By the scores.
    """
    ends = np.repeat(batch.starts[1:], batch.sizes)
    better = np.flatnonzero(ends > batch.lower)
    worse, rank_error = draw_violators(
        scores, better, batch.lower[better], ends[better], rng, margin
    )
    found = rank_error > 0
    better, worse, weight = better[found], worse[found], rank_weight(rank_error[found])
    gradient = np.bincount(worse, weight, len(scores)) - np.bincount(better, weight, len(scores))
    loss = float(weight @ (margin - scores[better] + scores[worse]))
    return loss / batch.n_queries, gradient / batch.n_queries


def draw_violators(
    scores: NDArray,
    better: NDArray,
    lower: NDArray,
    ends: NDArray,
    rng: np.random.Generator,
    margin: float,
) -> tuple[NDArray, NDArray]:
    """Draw rows from ``lower[i]:ends[i]`` until one scores within the margin of ``better[i]``.

    Returns
    -------
    worse : ndarray of int
        The violators; meaningless where there is none.
    rank_error : ndarray of int
        The number of lower rows, divided by the number of draws and rounded down; 0 where none
        was found.
    """
    n_lower = ends - lower
    worse, rank_error = np.zeros(len(better), dtype=np.intp), np.zeros(len(better), dtype=np.intp)
    open_ = np.arange(len(better))
    n_draws = 0
    while len(open_):
        n_draws += 1
        drawn = lower[open_] + (rng.random(len(open_)) * n_lower[open_]).astype(np.intp)
        violates = margin + scores[drawn] > scores[better[open_]]
        hit = open_[violates]
        worse[hit], rank_error[hit] = drawn[violates], n_lower[hit] // n_draws
        open_ = open_[~violates & (n_draws < n_lower[open_])]
    return worse, rank_error


def rank_weight(k: NDArray) -> NDArray:
    """Return L(k), the sum of ``1 / log2(i + 1)`` for i = 1 to k."""
    k = np.asarray(k)
    table = np.cumsum(1 / np.log2(np.arange(k.max(initial=1)) + 2.0))
    return np.append(0.0, table)[k]
