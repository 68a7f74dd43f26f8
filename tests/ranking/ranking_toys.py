"""Small ranking problems, and the slow and obvious way to derivatives and NDCG."""

import math

import numpy as np

from skdml.linear import MahalanobisMetric
from skdml.ranking._anchor_model import LocalMetric, build_model
from skdml.ranking._documents import group_rows, sort_queries


def make_documents(sizes=(7, 4, 9), n_features=3, n_grades=3, seed=0):
    """X, y and qid with rows of the queries mixed; every query has more than one grade."""
    rng = np.random.default_rng(seed)
    qid = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    X = rng.standard_normal((len(qid), n_features))
    y = rng.integers(0, n_grades, len(qid)).astype(float)
    for query in range(len(sizes)):
        y[np.flatnonzero(qid == query)[:2]] = [0, n_grades - 1]
    return X, y, qid


def sort_documents(X, y, qid):
    """Documents as sorted queries; those with a single grade are left out."""
    queries = group_rows(qid, len(X))
    return sort_queries(X[queries.order], np.asarray(y, dtype=float)[queries.order], queries)[0]


def make_ranked(*args, **kwargs):
    """Documents of `make_documents` as sorted queries."""
    return sort_documents(*make_documents(*args, **kwargs))


def random_metric(n_features, rank=None, scale=None, seed=0):
    """A metric with random directions."""
    rng = np.random.default_rng(seed)
    rank = n_features if rank is None else rank
    scale = float(rng.uniform(0.2, 1)) if scale is None else scale
    directions = np.linalg.qr(rng.standard_normal((n_features, n_features)))[0][:rank]
    return MahalanobisMetric(n_features, scale, directions, rng.uniform(0.1, 2, rank))


def random_model(kernel="gaussian", n_features=3, ranks=(3, 2, 1, 2), n_ideal=2, **kwargs):
    """A model with random anchors, metrics, weights and widths."""
    rng = np.random.default_rng(kwargs.pop("seed", 0))
    locals_ = [
        LocalMetric(random_metric(n_features, rank, seed=r), rng.standard_normal(n_features))
        for r, rank in enumerate(ranks)
    ]
    model = build_model(kernel, locals_, len(ranks) if kernel == "damped" else n_ideal, **kwargs)
    model.weights = rng.uniform(0.2, 1.5, len(ranks))
    model.widths = rng.standard_normal(len(ranks))
    return model


def query_slices(ranked):
    """The rows of each query of sorted queries."""
    return [slice(a, b) for a, b in zip(ranked.starts[:-1], ranked.starts[1:], strict=True)]


def finite_differences(function, at, step=1e-6):
    """The gradient of a function of an array, by central differences."""
    at = np.asarray(at, dtype=float)
    gradient = np.empty_like(at)
    for index in np.ndindex(at.shape):
        above, below = at.copy(), at.copy()
        above[index] += step
        below[index] -= step
        gradient[index] = (function(above) - function(below)) / (2 * step)
    return gradient


def ndcg_of_order(grades, k=10):
    """NDCG of the grades of one query in the order in which they are shown."""

    def dcg(ordered):
        return sum((2**g - 1) / math.log2(i + 2) for i, g in enumerate(ordered[:k]))

    return dcg(list(grades)) / dcg(sorted(grades, reverse=True))
