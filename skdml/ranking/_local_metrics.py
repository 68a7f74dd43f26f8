"""Local metrics and the first ideal documents: closed forms of one group of queries each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..linear import MahalanobisMetric
from ..linear._gmml_solver import geometric_mean
from ._queries import CUTOFF, RankedQueries

# A local metric is a scaled identity plus some directions: so many for all metrics together,
# which bounds the time to score a document, and at least so many for each.
_DIRECTIONS = 64
_MIN_DIRECTIONS = 8
# So many documents of a group are tried as its ideal document.
_MAX_CANDIDATES = 100
# Queries of a group: enough to estimate a metric from, and no more than that takes.
_MIN_QUERIES = 20
# With more, nothing but the identity is left.
_LARGE_REG = 1e30
_MAX_QUERIES = 1000


class LocalMetric(NamedTuple):
    """The metric of a group of queries and its ideal (or anti-ideal) document."""

    metric: MahalanobisMetric
    anchor: NDArray


def choose_rank(n_metrics: int) -> int:
    """Return the number of directions of each local metric."""
    return max(_MIN_DIRECTIONS, _DIRECTIONS // n_metrics)


def draw_groups(ranked: RankedQueries, n_groups: int, rng: np.random.Generator) -> list[NDArray]:
    """Draw groups of queries: one at random and those whose best documents are like its own.

    Several groups have up to twice their share, so that they overlap; a single group is of all
    queries, or of a thousand of them.
    """
    n_queries = ranked.n_queries
    size = int(np.clip(-(-2 * n_queries // (n_groups + 1)), _MIN_QUERIES, _MAX_QUERIES))
    if size >= n_queries:
        return [np.arange(n_queries)] * n_groups
    if n_groups == 1:
        return [np.sort(rng.choice(n_queries, size, replace=False))]
    best, _ = top_and_bottom(ranked)
    counts = np.add.reduceat(best, ranked.starts[:-1])
    sums = np.add.reduceat(ranked.features * best[:, None], ranked.starts[:-1])
    centres = sums / counts[:, None]
    first = rng.choice(n_queries, n_groups, replace=n_groups > n_queries)
    groups = []
    for query in first:
        distance = np.sum((centres - centres[query]) ** 2, axis=1)
        groups.append(np.sort(np.argsort(distance, kind="stable")[:size]))
    return groups


def top_and_bottom(ranked: RankedQueries) -> tuple[NDArray, NDArray]:
    """Return for each row, as 0 or 1, whether its grade is the highest, the lowest of its query."""
    highest = np.repeat(ranked.grades[ranked.starts[:-1]], ranked.sizes)
    lowest = np.repeat(ranked.grades[ranked.starts[1:] - 1], ranked.sizes)
    return (ranked.grades == highest) * 1.0, (ranked.grades == lowest) * 1.0


def group_scatter(group: RankedQueries, anti: bool) -> tuple[NDArray, NDArray]:
    """Return the mean outer products of differences within queries.

    Parameters
    ----------
    group : RankedQueries
        The queries.
    anti : bool
        False: documents of the top grade are similar to each other, and dissimilar to those of
        the lowest grade. True: with the parts of the two grades exchanged.

    Returns
    -------
    S, D : ndarray of shape (n_features, n_features)
        Of similar and of dissimilar pairs.
    """
    near, far = top_and_bottom(group)[:: -1 if anti else 1]
    starts, sizes = group.starts[:-1], group.sizes
    X = group.features
    # Differences do not change with the origin; small numbers lose fewer digits.
    X = X - np.repeat(np.add.reduceat(X, starts) / sizes[:, None], sizes, axis=0)
    n_near, n_far = np.add.reduceat(near, starts), np.add.reduceat(far, starts)
    sum_near = np.add.reduceat(X * near[:, None], starts)
    sum_far = np.add.reduceat(X * far[:, None], starts)
    # sum over i, j of (x_i - x_j)(x_i - x_j)', query by query, without a loop over pairs
    similar = 2 * (_weighted_gram(X, near * np.repeat(n_near, sizes)) - sum_near.T @ sum_near)
    cross = sum_near.T @ sum_far
    weight = near * np.repeat(n_far, sizes) + far * np.repeat(n_near, sizes)
    dissimilar = _weighted_gram(X, weight) - cross - cross.T
    return similar / (n_near @ n_near), dissimilar / (n_near @ n_far)


def _weighted_gram(X, weight):
    used = weight > 0
    X = X[used] * np.sqrt(weight[used])[:, None]
    return X.T @ X


def learn_local_metric(
    group: RankedQueries, anti: bool, seed: int, reg: float, rank: int
) -> LocalMetric:
    """Learn the metric of a group of queries and choose its ideal document.

    Parameters
    ----------
    group : RankedQueries
        The queries of the group.
    anti : bool
        Whether to look for an anti-ideal document.
    seed : int
        Draws the documents that are tried as the ideal one.
    reg : float
        How much of the identity is added to S and D, in units of the mean of D's diagonal.
    rank : int
        The number of directions to keep beside a scaled identity.

    Returns
    -------
    local : LocalMetric
        The geometric mean of S^-1 and D, scaled to trace n_features, and the document that
        ranks its group best.

    Raises
    ------
    LinAlgError
        If `reg` is too small for the geometric mean.
    """
    S, D = group_scatter(group, anti)
    n_features = len(S)
    unit = np.trace(D) / n_features
    if unit <= 0:  # the group tells nothing: no direction is better than another
        metric = MahalanobisMetric(n_features)
    else:
        ridge = min(reg, _LARGE_REG) * unit * np.eye(n_features)
        metric = low_rank_metric(geometric_mean(S + ridge, D + ridge), rank)
    return LocalMetric(metric, choose_anchor(group, metric, anti, seed))


def low_rank_metric(A: NDArray, rank: int) -> MahalanobisMetric:
    """Return A, scaled to trace n_features, with its smaller eigenvalues replaced by their mean."""
    n_features = len(A)
    eigenvalues, vectors = np.linalg.eigh(A)
    eigenvalues = np.maximum(eigenvalues, 0) * (n_features / np.trace(A))
    rest = n_features - rank
    if rest <= 1:
        return MahalanobisMetric(n_features, 0.0, vectors.T, eigenvalues)
    scale = float(eigenvalues[:rest].mean())
    return MahalanobisMetric(n_features, scale, vectors[:, rest:].T, eigenvalues[rest:] - scale)


def choose_anchor(
    group: RankedQueries, metric: MahalanobisMetric, anti: bool, seed: int
) -> NDArray:
    """Return the document from which the distances rank the group best, by mean NDCG.

    Nearer documents rank first; for an anti-ideal document, farther ones.
    """
    candidates = np.flatnonzero(top_and_bottom(group)[1 if anti else 0])
    if len(candidates) > _MAX_CANDIDATES:
        rng = np.random.default_rng(seed)
        candidates = np.sort(rng.choice(candidates, _MAX_CANDIDATES, replace=False))
    Z = metric.transform(group.features)
    scores = Z @ Z[candidates].T - np.sum(Z**2, axis=1)[:, None] / 2  # nearer is higher
    if anti:
        scores = -scores
    ndcg = np.zeros(len(candidates))
    for start, end in zip(group.starts[:-1], group.starts[1:], strict=True):
        order = np.argsort(-scores[start:end], axis=0, kind="stable")[:CUTOFF]
        discount = 1 / np.log2(np.arange(len(order)) + 2.0)
        ndcg += discount @ group.gains[start:end][order]
    return group.features[candidates[np.argmax(ndcg)]]
