"""The model of the ranker: anchors with local metrics, and how distances become scores.

Local metrics and the first ideal documents are closed forms, of one group of queries each.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import expit

from ..linear._mahalanobis import MahalanobisMetric, geometric_mean
from ..utils._parallel import make_shards
from ._documents import Queries, RankedQueries

# Rank budget shared by all local metrics, which bounds the time to score a document, and the least
# rank of each.
RANK_BUDGET = 64
_MIN_RANK = 8
# So many documents of a group are tried as its ideal document.
_MAX_CANDIDATES = 100
# Queries of a group: enough to estimate a metric from, and no more than that takes.
_MIN_QUERIES, _MAX_QUERIES = 20, 1000
# With more, nothing but the identity is left.
_LARGE_REG = 1e30
# Training queries whose weights an unseen query takes.
_NEIGHBOURS = 10


class Partials(NamedTuple):
    """Partial derivatives of the scores, per row and anchor."""

    by_squared: NDArray  # by the squared distance
    by_weight: NDArray  # by the entry of `weights`
    by_width: NDArray  # by the entry of `widths`


def gaussian_scores(
    squared: NDArray, weights: NDArray, widths: NDArray, signs: NDArray
) -> tuple[NDArray, Partials]:
    r"""Score by a soft minimum of distances to ideal documents, less that to anti-ideal ones.

    .. math:: f = \log \sum_{r\ ideal} \Phi_r e^{-\rho_r d_r^2}
                - \log \sum_{r\ anti} \Phi_r e^{-\rho_r d_r^2}

    which falls with every distance to an ideal document and rises with every distance to an
    anti-ideal one.

    Parameters
    ----------
    squared : ndarray of shape (n_rows, n_anchors)
        Squared distances.
    weights : ndarray of shape (n_anchors,) or (n_rows, n_anchors)
        The logarithms of Phi.
    widths : ndarray of shape (n_anchors,)
        rho as its softplus: ``log(1 + exp(widths))``.
    signs : ndarray of shape (n_anchors,)
        +1 for ideal documents, which come first, -1 for anti-ideal ones.

    Returns
    -------
    scores : ndarray of shape (n_rows,)
        f.
    partials : Partials
        Its derivatives.
    """
    rho = np.logaddexp(0, widths)
    exponents = weights - rho * squared
    scores = np.zeros(len(squared))
    n_ideal = int(np.sum(signs > 0))
    for part, sign in ((slice(0, n_ideal), 1.0), (slice(n_ideal, None), -1.0)):
        terms = exponents[:, part]  # a view: the exponents become signed shares of the sum
        if terms.shape[1] == 0:
            continue
        largest = terms.max(axis=1, keepdims=True)
        np.exp(terms - largest, out=terms)
        total = terms.sum(axis=1, keepdims=True)
        scores += sign * (largest + np.log(total))[:, 0]
        terms *= sign / total
    shares = exponents
    return scores, Partials(-rho * shares, shares, -shares * squared * expit(widths))


def damped_scores(
    squared: NDArray, weights: NDArray, widths: NDArray, signs: NDArray
) -> tuple[NDArray, Partials]:
    r"""Score by distances that are damped by their exponential, equation 4.12 of the thesis.

    .. math:: f = -\sum_r \Phi_r\, e^{-d_r} d_r

    It is not monotone: :math:`d e^{-d}` falls again beyond d = 1, so a document far from every
    ideal one scores as well as a perfect one. Its derivative by Phi is
    :math:`-e^{-d_r} d_r`; equation 4.21 has the other sign.

    The arguments are those of `gaussian_scores`, with Phi itself, >= 0, as `weights`. This kernel
    has no widths and no anti-ideal documents.
    """
    distance = np.sqrt(squared)
    decay = np.exp(-distance)
    scores = -np.sum(weights * decay * distance, axis=1)
    # the derivative of the root has a pole at zero distance, where an anchor is its own document
    slope = decay * (1 - distance) / (2 * np.maximum(distance, 1e-6))
    return scores, Partials(-weights * slope, -decay * distance, np.zeros_like(squared))


KERNELS = {"gaussian": gaussian_scores, "damped": damped_scores}


@dataclass
class AnchorModel:
    """Ideal documents, their metrics and weights: all that scores a document.

    Attributes
    ----------
    kernel : {"gaussian", "damped"}
        How distances become a score.
    anchors : ndarray of shape (n_anchors, n_features)
        Ideal documents first, then anti-ideal ones.
    signs : ndarray of shape (n_anchors,)
        +1 for ideal, -1 for anti-ideal.
    weights, widths : ndarray of shape (n_anchors,)
        As the kernel takes them.
    scale : ndarray of shape (n_anchors,)
        The factor of the identity in each metric.
    factors : ndarray of shape (n_anchors, rank, n_features)
        The other part of each metric, ``M = scale I + F' F``.
    amplitude : float, default=1.0
        A factor of the scores.
    """

    kernel: str
    anchors: NDArray
    signs: NDArray
    weights: NDArray
    widths: NDArray
    scale: NDArray
    factors: NDArray
    amplitude: float = 1.0

    def phi_of(self, weights: NDArray) -> NDArray:
        """Return Phi, given weights as the kernel takes them."""
        return weights if self.kernel == "damped" else np.exp(weights)

    def metrics(self) -> list[MahalanobisMetric]:
        """Return the metrics one by one."""
        n_features = self.anchors.shape[1]
        found = []
        for scale, factor in zip(self.scale, self.factors, strict=True):
            spectrum = np.sum(factor**2, axis=1)
            if scale > 0:  # a truncated metric: the rows are orthogonal
                factor, spectrum = factor[spectrum > 0], spectrum[spectrum > 0]
                directions = factor / np.sqrt(spectrum)[:, None]
                found.append(MahalanobisMetric(n_features, scale, directions, spectrum))
            else:
                found.append(MahalanobisMetric.from_matrix(factor.T @ factor))
        return found

    def quadratic(self, X: NDArray) -> NDArray:
        """Return ``x' M_r x`` for each row and anchor."""
        return self._norms(self.factors.reshape(-1, X.shape[1]) @ X.T, X).T

    def _norms(self, images, X):
        # One row per anchor: what is added up lies in long rows.
        images = images.reshape(*self.factors.shape[:2], len(X))
        norms = np.einsum("crn,crn->cn", images, images)
        if self.scale.any():
            norms += np.multiply.outer(self.scale, np.einsum("dn,dn->n", X.T, X.T))
        return norms

    def apply(self, V: NDArray) -> NDArray:
        """Return ``M_r v_r``, one row of V for each anchor."""
        inner = np.einsum("crd,cd->cr", self.factors, V)
        return self.scale[:, None] * V + np.einsum("crd,cr->cd", self.factors, inner)

    def squared_distances(self, X: NDArray, quadratic: NDArray | None = None) -> NDArray:
        """Return squared distances of rows to anchors; `quadratic` saves most of the work."""
        images = self.apply(self.anchors)
        if quadratic is None:
            # One product for the quadratic and the linear terms.
            n_images = self.factors.size // X.shape[1]
            products = np.vstack([self.factors.reshape(n_images, X.shape[1]), images]) @ X.T
            sizes, linear = self._norms(products[:n_images], X), products[n_images:]
        else:
            sizes, linear = quadratic.T.copy(), images @ X.T
        sizes += np.sum(images * self.anchors, axis=1)[:, None]
        squared = sizes - 2 * linear
        # What is left of nearly equal numbers is rounding: a document that is an anchor itself.
        squared[squared < 32 * np.finfo(float).eps * sizes] = 0.0
        return squared.T

    def scores(
        self, X: NDArray, quadratic: NDArray | None = None, weights: NDArray | None = None
    ) -> NDArray:
        """Return the scores of rows; `weights` may differ from row to row."""
        weights = self.weights if weights is None else weights
        return self.evaluate(self.squared_distances(X, quadratic), weights)[0]

    def evaluate(self, squared: NDArray, weights: NDArray) -> tuple[NDArray, Partials]:
        """Return scores and their partial derivatives, given squared distances."""
        scores, partials = KERNELS[self.kernel](squared, weights, self.widths, self.signs)
        if self.amplitude == 1:
            return scores, partials
        return self.amplitude * scores, Partials(*(self.amplitude * part for part in partials))

    def parts(self, X: NDArray, weights: NDArray) -> NDArray:
        """Return what each anchor adds to the scores of rows, (n_rows, n_anchors).

        The logarithm of a sum is split by the shares of its terms.
        """
        squared = self.squared_distances(X)
        if self.kernel == "damped":
            distance = np.sqrt(squared)
            return -self.amplitude * weights * np.exp(-distance) * distance
        _, partials = self.evaluate(squared, np.broadcast_to(weights, squared.shape))
        added = np.zeros_like(squared)
        for sign in (1.0, -1.0):
            own = self.signs == sign
            if own.any():
                alone = replace(
                    self, signs=self.signs[own], widths=self.widths[own], anchors=self.anchors[own]
                )
                values, _ = alone.evaluate(
                    squared[:, own], np.broadcast_to(weights, squared.shape)[:, own]
                )
                # the derivatives by log Phi are the shares, with sign and amplitude
                shares = partials.by_weight[:, own] * (sign / self.amplitude)
                added[:, own] = shares * values[:, None]
        return added

    def scores_by_example(self, X: NDArray, examples: NDArray) -> NDArray:
        """Score rows by their negative squared distance to their query, a row of features each.

        The metric at the query q is a mixture of the local ones (equations 4.1 and 4.2 of the
        thesis), those whose ideal documents are near it the most: with weights
        ``Phi_r exp(-d_r(q)^2 / min_r d_r(q)^2)``, which do not depend on the unit of distance.
        """
        ideal = self.signs > 0
        squared = self.squared_distances(examples)[:, ideal]
        tiny = np.finfo(float).tiny
        # a query may be an ideal document itself, and weights may all be zero
        nearest = np.maximum(squared.min(axis=1), 1e-12 * squared.max(axis=1) + tiny)
        closeness = np.exp(1 - squared / nearest[:, None])
        shares = closeness * np.maximum(self.phi_of(self.weights[ideal]), tiny)
        shares /= shares.sum(axis=1, keepdims=True)
        return -np.sum(shares * self.quadratic(X - examples)[:, ideal], axis=1)

    def anchor_gradient(self, X: NDArray, by_squared: NDArray) -> NDArray:
        """Return the gradient by the anchors, given that of each squared distance."""
        # sum over rows of g 2 M (p - x), as one matrix product
        return 2 * self.apply(by_squared.sum(axis=0)[:, None] * self.anchors - by_squared.T @ X)

    def factor_gradient(self, X: NDArray, by_squared: NDArray) -> NDArray:
        """Return the gradient by the factors, given that of each squared distance."""
        gradient = np.empty_like(self.factors)
        for r, factor in enumerate(self.factors):
            difference = X - self.anchors[r]
            weighted = difference * by_squared[:, r, None]
            gradient[r] = 2 * (factor @ difference.T) @ weighted
        return gradient


def build_model(
    kernel: str, locals_: list, n_ideal: int, learn_metrics: bool = False
) -> AnchorModel:
    """Return a model of local metrics, the ideal ones first, with equal weights.

    With `learn_metrics` the metrics are full factors, which can be trained.
    """
    metrics = [local.metric for local in locals_]
    n_anchors = len(metrics)
    if learn_metrics:
        spectra = [np.linalg.eigh(metric.matrix()) for metric in metrics]
        factors = np.array([np.sqrt(np.maximum(w, 0))[:, None] * v.T for w, v in spectra])
        scale = np.zeros(n_anchors)
    else:
        rank = max(metric.rank for metric in metrics)
        factors = np.zeros((n_anchors, rank, metrics[0].n_features))
        for factor, metric in zip(factors, metrics, strict=True):
            factor[: metric.rank] = np.sqrt(metric.weights)[:, None] * metric.directions
        scale = np.array([metric.scale for metric in metrics])
    anchors = np.array([local.anchor for local in locals_])
    signs = np.where(np.arange(n_anchors) < n_ideal, 1.0, -1.0)
    weights = np.full(n_anchors, 1.0 if kernel == "damped" else 0.0)
    return AnchorModel(kernel, anchors, signs, weights, np.zeros(n_anchors), scale, factors)


@dataclass(frozen=True)
class QueryWeights:
    """Weights of single queries, beside the shared ones.

    Attributes
    ----------
    shared : ndarray of shape (n_anchors,)
        Of queries that have no weights of their own.
    own : dict
        Weights by query id.
    centres : ndarray of shape (n_queries, n_features), default=None
        The mean documents of these queries, by which an unseen query finds its neighbours.
    scale : ndarray of shape (n_features,), default=None
        The unit of each feature in that search.
    """

    shared: NDArray
    own: dict[Any, NDArray] = field(default_factory=dict)
    centres: NDArray | None = None
    scale: NDArray | None = None

    def of_rows(self, X: NDArray, queries: Queries, ids: list) -> NDArray | None:
        """Return the weights of each row of some queries, or None where all share theirs."""
        if not self.own:
            return None
        weights = [
            self.own[name] if name in self.own else self._unseen(X[queries.rows(number)])
            for number, name in enumerate(ids)
        ]
        return np.repeat(weights, queries.sizes, axis=0)

    def _unseen(self, documents):
        if self.centres is None:
            return self.shared
        difference = (self.centres - documents.mean(axis=0)) / self.scale
        difference /= max(np.abs(difference).max(), 1.0)  # huge ones are not squared
        nearest = np.argsort(np.sum(difference**2, axis=1), kind="stable")[:_NEIGHBOURS]
        return np.mean([list(self.own.values())[n] for n in nearest], axis=0)


class LocalMetric(NamedTuple):
    """The metric of a group of queries and its ideal (or anti-ideal) document."""

    metric: MahalanobisMetric
    anchor: NDArray


def learn_local_metrics(
    ranked: RankedQueries,
    n_metrics: int,
    reg: float,
    rng: Generator,
    anti: bool,
    rank_budget: int = RANK_BUDGET,
    **workers: Any,
) -> list[LocalMetric]:
    """Learn so many local metrics, and with `anti` as many of anti-ideal documents.

    They share the rank budget, and are learned in parallel; `workers` are the options of
    `make_shards`.
    """
    kinds = [False, True] if anti else [False]
    groups = [group for _ in kinds for group in draw_groups(ranked, n_metrics, rng)]
    seeds = rng.integers(2**31, size=len(groups)).tolist()
    own = list(zip(np.repeat(kinds, n_metrics).tolist(), seeds, strict=True))
    rank = max(_MIN_RANK, rank_budget // n_metrics)
    with make_shards([ranked.take(group) for group in groups], **workers) as shards:
        return shards.map(_learn_one, reg, rank, each=own)


def _learn_one(group, own, reg, rank):
    anti, seed = own
    return learn_local_metric(group, anti, seed, reg, rank)


def draw_groups(ranked: RankedQueries, n_groups: int, rng: Generator) -> list[NDArray]:
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
    distances = [np.sum((centres - centre) ** 2, axis=1) for centre in centres[first]]
    return [np.sort(np.argsort(distance, kind="stable")[:size]) for distance in distances]


def top_and_bottom(ranked: RankedQueries) -> tuple[NDArray, NDArray]:
    """Return for each row, as 0 or 1, whether its grade is the highest, the lowest of its query."""
    highest = np.repeat(ranked.grades[ranked.starts[:-1]], ranked.sizes)
    lowest = np.repeat(ranked.grades[ranked.starts[1:] - 1], ranked.sizes)
    return (ranked.grades == highest) * 1.0, (ranked.grades == lowest) * 1.0


def group_scatter(group: RankedQueries, anti: bool) -> tuple[NDArray, NDArray]:
    """Return S and D, the mean outer products of differences within queries.

    Documents of the top grade are similar to each other, and dissimilar to those of the lowest
    grade; with `anti`, the two grades are exchanged.
    """
    near, far = top_and_bottom(group)[:: -1 if anti else 1]
    starts, sizes = group.starts[:-1], group.sizes
    X = group.features
    # Differences do not change with the origin; small numbers lose fewer digits.
    X = X - np.repeat(np.add.reduceat(X, starts) / sizes[:, None], sizes, axis=0)
    n_near, n_far = np.add.reduceat(near, starts), np.add.reduceat(far, starts)
    # a weighted row counts by the root of its query's weight in each factor of a product
    root = np.sqrt(group.row_weights())
    sum_near = np.add.reduceat(X * (root * near)[:, None], starts)
    sum_far = np.add.reduceat(X * (root * far)[:, None], starts)
    # sum over i, j of (x_i - x_j)(x_i - x_j)', query by query, without a loop over pairs
    weight = root**2 * near * np.repeat(n_near, sizes)
    similar = 2 * (_weighted_gram(X, weight) - sum_near.T @ sum_near)
    cross = sum_near.T @ sum_far
    weight = root**2 * (near * np.repeat(n_far, sizes) + far * np.repeat(n_near, sizes))
    dissimilar = _weighted_gram(X, weight) - cross - cross.T
    n_near_weighted = n_near * group.weights
    return similar / (n_near_weighted @ n_near), dissimilar / (n_near_weighted @ n_far)


def _weighted_gram(X, weight):
    X = X[weight > 0] * np.sqrt(weight[weight > 0])[:, None]
    return X.T @ X


def learn_local_metric(
    group: RankedQueries, anti: bool, seed: int, reg: float, rank: int
) -> LocalMetric:
    """Learn the metric of a group of queries and choose its ideal document.

    The metric is the geometric mean of S^-1 and D, scaled to trace n_features; the document is the
    one that ranks its group best, of some that are drawn by `seed`. `reg` is how much of the
    identity is added to S and D, in units of the mean of D's diagonal: LinAlgError if too small.
    `rank` directions are kept beside a scaled identity.
    """
    S, D = group_scatter(group, anti)
    n_features = len(S)
    unit = np.trace(D) / n_features
    if unit <= 0:  # no dissimilar pair differs: no direction is better than another
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
    weights = np.broadcast_to(group.weights, group.n_queries)
    for start, end, weight in zip(group.starts[:-1], group.starts[1:], weights, strict=True):
        order = np.argsort(-scores[start:end], axis=0, kind="stable")[: group.measure.cutoff]
        counted = group.measure.counted(np.arange(len(order)))
        ndcg += weight * (counted @ group.gains[start:end][order])
    return group.features[candidates[np.argmax(ndcg)]]
