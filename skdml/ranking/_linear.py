"""A linear ranker: least squares in closed form, refined by a listwise loss, chosen over queries.

Documents come query by query, as columns of mean 0 in every query: one row per column.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from ..utils._parallel import make_shards
from ._documents import Measure, Queries, RankedQueries, mean_ndcg_of
from ._local_gmml_training import pair_loss
from ._views import N_BASIS, Views, centre, fit_views, places

# Strengths of the penalty that are tried, in units of the mean eigenvalue of the scatter.
REGS = np.array([1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0])
LISTWISE_REGS = np.array([3.0, 1.0, 0.3])  # from strong to weak: each starts at the last
_STEPS = 8  # of L-BFGS, from the solution of the stronger penalty
# What is tried: the loss, and the views of a feature.
CANDIDATES = (
    ("squares", ("z",)),
    ("squares", ("value",)),
    ("squares", ("z", "rank")),
    ("squares", ("z", "rank", "value")),
    ("squares", ("z", "z hinges")),
    ("squares", ("z", "value", "z hinges", "value hinges")),
    ("listwise", ("z", "value", "z hinges", "value hinges")),
)
N_FOLDS = 4
# NDCG that is so much below the best, divided by the root of the number of queries, has a share of
# 1/e in the mean: about the standard error of the difference of two rankers.
_SOFTNESS = 0.08
_LEAST_SHARE = 0.05  # of the share of the best
_BLOCK = 4_000  # rows of a block of documents
_TEMPERATURES = np.exp2(np.arange(-6.0, 7.0))


class Sums(NamedTuple):
    """Sums over queries of the documents' scatter and of their products with the targets."""

    scatter: NDArray
    products: NDArray

    def part(self, keep: NDArray) -> Sums:
        """Return the sums of some of the columns."""
        return Sums(self.scatter[np.ix_(keep, keep)], self.products[keep])


def sum_all(terms: list[Sums]) -> Sums:
    """Return the sum of sums."""
    return Sums(*(np.sum(term, axis=0) for term in zip(*terms, strict=True)))


class Targets(NamedTuple):
    """What linear scores of documents are fitted to.

    Attributes
    ----------
    starts : ndarray of shape (n_queries + 1,)
        Where each query begins, and the end.
    gains : ndarray of shape (n_rows,)
        What a document is worth, in any unit of its query.
    weights : ndarray of shape (n_queries,)
        How much each query counts.
    """

    starts: NDArray
    gains: NDArray
    weights: NDArray

    def centred(self) -> NDArray:
        """Return gains with mean 0 and largest size 1 in every query."""
        t = centre(self.gains[None], self.starts)[0]
        largest = np.maximum.reduceat(np.abs(t), self.starts[:-1])
        return t / np.repeat(np.where(largest > 0, largest, 1.0), np.diff(self.starts))

    def part(self, first: int, last: int) -> Targets:
        """Return the queries from `first` to before `last`."""
        starts = self.starts[first : last + 1]
        rows = slice(starts[0], starts[-1])
        return Targets(starts - starts[0], self.gains[rows], self.weights[first:last])


def sums_of(columns: NDArray, targets: Targets) -> Sums:
    r"""Return the sums of least squares on differences within queries.

    .. math:: S = \sum_q \frac{w_q}{n_q} \sum_{i \in q} x_i x_i^T, \qquad
              b = \sum_q \frac{w_q}{n_q} \sum_{i \in q} t_i x_i

    Half the squared differences of all pairs of a query, divided by their number, are the squared
    differences to its mean: pairs are never formed.
    """
    sizes = np.diff(targets.starts)
    weight = np.repeat(targets.weights / sizes, sizes)
    scaled = columns * np.sqrt(weight)
    return Sums(scaled @ scaled.T, columns @ (weight * targets.centred()))


class Spectrum:
    """The eigendecomposition of a scatter, which solves for every penalty."""

    def __init__(self, scatter: NDArray) -> None:
        values, self.vectors = np.linalg.eigh(scatter)
        self.values = np.maximum(values, 0)
        mean = self.values.mean()
        self.unit = mean if mean > 0 else 1.0

    def solve(self, products: NDArray, regs: NDArray) -> NDArray:
        """Return ``(S + reg unit I)^-1 b``, a column for each penalty."""
        inner = (self.vectors.T @ products)[:, None]
        return self.vectors @ (inner / (self.values[:, None] + regs * self.unit))


def fit_listwise(
    columns: NDArray, targets: Targets, spectrum: Spectrum, regs: NDArray, n_steps: int = _STEPS
) -> NDArray:
    r"""Minimise the listwise softmax loss, a column of coefficients for each penalty.

    .. math:: -\sum_q w_q \sum_{i \in q} p_i \log \frac{e^{s_i}}{\sum_{j \in q} e^{s_j}}
              + \frac{reg\,unit}{2} \|c\|^2

    with the gains of a query, divided by their sum, as p. Its second derivative at zero is the
    scatter, so that steps in the coordinates of its spectrum are nearly Newton's: the first from
    zero is least squares.
    """
    starts, sizes = targets.starts[:-1], np.diff(targets.starts)
    total = np.add.reduceat(targets.gains, starts)
    weight = np.repeat(np.where(total > 0, targets.weights, 0.0), sizes)
    wanted = weight * targets.gains / np.repeat(np.where(total > 0, total, 1.0), sizes)
    rotated = spectrum.vectors.T @ columns
    coordinates = np.zeros(len(columns))
    found = []
    for reg in regs:
        penalty = reg * spectrum.unit
        step = 1 / np.sqrt(spectrum.values + penalty)

        def loss(point: NDArray, step: NDArray = step, penalty: float = penalty) -> tuple:
            c = step * point
            scores = c @ rotated
            scores -= np.repeat(np.maximum.reduceat(scores, starts), sizes)
            shares = np.exp(scores)
            sums = np.repeat(np.add.reduceat(shares, starts), sizes)
            value = -wanted @ (scores - np.log(sums)) + penalty / 2 * c @ c
            gradient = rotated @ (weight * shares / sums - wanted) + penalty * c
            return value, step * gradient

        options = {"maxiter": n_steps}
        result = minimize(loss, coordinates / step, jac=True, method="L-BFGS-B", options=options)
        coordinates = step * result.x
        found.append(spectrum.vectors @ coordinates)
    return np.array(found).T


class Member(NamedTuple):
    """A linear ranker that was tried.

    Attributes
    ----------
    loss : {"squares", "listwise"}
        What it minimises.
    views : tuple of str
        What it sees of each feature.
    reg : float
        Its penalty.
    ndcg : float
        NDCG on queries that it was not fitted to.
    share : float
        Its part of the mean of linear rankers.
    """

    loss: str
    views: tuple[str, ...]
    reg: float
    ndcg: float
    share: float = 0.0


@dataclass(frozen=True)
class LinearPart:
    """A linear ranker, and how it was found.

    Attributes
    ----------
    views : Views
        What it sees.
    coefficients : ndarray of shape (N_BASIS, n_features)
        Of each column of each feature.
    members : list of Member
        What was tried, best first.
    held_out : ndarray of shape (n_rows,)
        Scores of the training documents by rankers that were fitted to other queries.
    folds : ndarray of shape (n_folds + 1,)
        The queries of each fold, from one number to before the next.
    """

    views: Views
    coefficients: NDArray
    members: list[Member]
    held_out: NDArray
    folds: NDArray

    def scores(self, X: NDArray, starts: NDArray, documents: NDArray | None = None) -> NDArray:
        """Return the scores of documents, see `Views.scores`."""
        return self.views.scores(X, starts, self.coefficients, documents)

    def by_feature(self, X: NDArray, starts: NDArray, documents: NDArray | None = None) -> NDArray:
        """Return what each feature adds to the scores, see `Views.by_feature`."""
        return self.views.by_feature(X, starts, self.coefficients, documents)


def fit_linear(
    X: NDArray, ranked: RankedQueries, all_sums: Callable[..., Sums] | None = None
) -> LinearPart:
    """Fit linear rankers to views of documents and take the mean of those that do well.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features)
        The documents, query by query, the queries in random order.
    ranked : RankedQueries
        All of these queries, sorted by grade; their features are not used.
    all_sums : callable, default=None
        ``all_sums(views, used)`` returns the sums over more documents than these. Least squares
        are solved with them in the end.

    Returns
    -------
    part : LinearPart
        With one query there is no choice: the first candidate with the strongest penalty.
    """
    views = fit_views(X, ranked.starts)
    flat = views.columns(X, ranked.starts, np.arange(N_BASIS)).reshape(-1, len(X))
    targets = targets_of(ranked)
    folds = np.linspace(0, ranked.n_queries, min(N_FOLDS, ranked.n_queries) + 1).astype(int)
    parts = [
        (slice(ranked.starts[a], ranked.starts[b]), targets.part(a, b))
        for a, b in itertools.pairwise(folds)
    ]
    sums = [sums_of(flat[:, rows], part) for rows, part in parts]
    tried = _try_all(flat, targets, parts, sums) if len(parts) > 1 else _try_one(flat, sums[0])
    for found in tried:
        found.ndcg = mean_ndcg_of(found.scores[ranked.origin], ranked)
    shares = _shares([found.ndcg for found in tried], _SOFTNESS / np.sqrt(ranked.n_queries))
    chosen = [(one, share) for one, share in zip(tried, shares, strict=True) if share > 0]
    _solve_again([one for one, _ in chosen], views, sums, all_sums)
    coefficients, scores = np.zeros((N_BASIS, X.shape[1])), np.zeros(len(X))
    for one, share in chosen:
        size = np.sqrt(np.mean(one.scores**2)) or 1.0
        coefficients[one.used] += share / size * one.solution.reshape(-1, X.shape[1])
        scores += share / size * one.scores
    losses = [pair_loss(t * scores[ranked.origin], ranked) for t in _TEMPERATURES]
    unit = _TEMPERATURES[np.argmin(losses)]
    members = [
        Member(one.loss, one.views, one.reg, one.ndcg, float(share))
        for one, share in zip(tried, shares, strict=True)
    ]
    members.sort(key=lambda member: -member.ndcg)
    return LinearPart(views, unit * coefficients, members, unit * scores, folds)


def targets_of(ranked: RankedQueries) -> Targets:
    """Return the targets of queries, in the order that their rows had before they were sorted."""
    gains = np.empty(len(ranked.gains))
    gains[ranked.origin] = ranked.gains
    return Targets(ranked.starts, gains, np.broadcast_to(ranked.weights, ranked.n_queries))


@dataclass
class _Tried:
    """A linear ranker, its scores of queries that it was not fitted to, and its coefficients."""

    loss: str
    views: tuple[str, ...]
    reg: float
    scores: NDArray
    solution: NDArray
    ndcg: float = 0.0

    @property
    def used(self):
        return places(self.views)


def _try_one(flat, sums):
    """Fit without a choice."""
    (loss, names), reg = CANDIDATES[0], REGS[-1:]
    keep = _indices(places(names), len(flat) // N_BASIS)
    part = sums.part(keep)
    solution = Spectrum(part.scatter).solve(part.products, reg)[:, 0]
    return [_Tried(loss, names, float(reg[0]), solution @ flat[keep], solution)]


def _try_all(flat, targets, parts, sums):
    """Fit all candidates, once without each fold."""
    tried = []
    for names in dict.fromkeys(names for _, names in CANDIDATES):
        keep = _indices(places(names), len(flat) // N_BASIS)
        losses = [loss for loss, same in CANDIDATES if same == names]
        own = [term.part(keep) for term in sums]
        tried += [
            _Tried(loss, names, float(reg), scores, solution)
            for loss, reg, scores, solution in _cross_fit(flat[keep], targets, parts, own, losses)
        ]
    return tried


def _shares(ndcg, softness):
    """Return the part of each ranker in the mean."""
    shares = np.exp((np.asarray(ndcg) - np.max(ndcg)) / softness)
    shares[shares < _LEAST_SHARE] = 0.0
    return shares / shares.sum()


def _solve_again(chosen, views, sums, all_sums):
    """Solve least squares with the sums over all documents, of the columns that are needed."""
    squares = [one for one in chosen if one.loss == "squares"]
    if not squares:
        return
    n_features = len(views.centre)
    used = places(name for one in squares for name in one.views)
    if all_sums is None:
        total = sum_all(sums).part(_indices(used, n_features))
    else:
        total = all_sums(views, used)
    spectra: dict[tuple, tuple] = {}
    for one in squares:
        if one.views not in spectra:
            part = total.part(_indices(np.searchsorted(used, one.used), n_features))
            spectra[one.views] = Spectrum(part.scatter), part.products
        spectrum, products = spectra[one.views]
        one.solution = spectrum.solve(products, np.array([one.reg]))[:, 0]


def _indices(used, n_features):
    """Return the rows of flat columns that some of the columns of each feature have."""
    return (used[:, None] * n_features + np.arange(n_features)).ravel()


def _cross_fit(columns, targets, parts, sums, losses):
    """Return loss, penalty, held-out scores and mean solution of rankers with the same views."""
    regs = {"squares": REGS, "listwise": LISTWISE_REGS}
    scores = {name: np.empty((len(regs[name]), columns.shape[1])) for name in losses}
    means = {name: np.zeros((len(columns), len(regs[name]))) for name in losses}
    for fold, (rows, _) in enumerate(parts):
        others = sum_all([term for number, term in enumerate(sums) if number != fold])
        spectrum = Spectrum(others.scatter)
        for name in losses:
            if name == "squares":
                found = spectrum.solve(others.products, REGS)
            else:
                rest, without = _leave_out(columns, targets, rows)
                found = fit_listwise(rest, without, spectrum, LISTWISE_REGS)
            scores[name][:, rows] = found.T @ columns[:, rows]
            means[name] += found / len(parts)
    for name in losses:
        for place, reg in enumerate(regs[name]):
            yield name, reg, scores[name][place], means[name][:, place]


def _leave_out(columns, targets, rows):
    """Return the columns and targets of all queries but those of some rows."""
    first, last = np.searchsorted(targets.starts, [rows.start, rows.stop])
    before, after = targets.part(0, first), targets.part(last, len(targets.weights))
    starts = np.concatenate([before.starts, after.starts[1:] + before.starts[-1]])
    gains = np.concatenate([before.gains, after.gains])
    weights = np.concatenate([before.weights, after.weights])
    return np.delete(columns, rows, axis=1), Targets(starts, gains, weights)


def make_blocks(
    X: NDArray, y: NDArray, queries: Queries, weights: NDArray | None, measure: Measure
) -> list[tuple[NDArray, Targets]]:
    """Return documents in blocks of whole queries, with their targets; a view where it can be."""
    blocks, first = [], 0
    for chunk in queries.chunks(_BLOCK):
        rows, last = chunk.order, first + len(chunk.ids)
        adjacent = rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all()
        part = X[rows[0] : rows[-1] + 1] if adjacent else X[rows]
        best = np.repeat(np.maximum.reduceat(y[rows], chunk.starts[:-1]), chunk.sizes)
        own = np.ones(len(chunk.ids)) if weights is None else weights[first:last]
        blocks.append((part, Targets(chunk.starts, measure.worth(y[rows], best), own)))
        first = last
    return blocks


def sum_blocks(blocks: list, workers: dict[str, Any], views: Views, used: NDArray) -> Sums:
    """Return the sums over blocks of documents; `workers` are the options of `make_shards`."""
    with make_shards(blocks, **workers) as shards:
        total = shards.sum(_block_sums, views, used)
    return Sums(total[:, :-1], total[:, -1])


def _block_sums(block, views, used):
    X, targets = block
    columns = views.columns(X, targets.starts, used)
    scatter, products = sums_of(columns.reshape(-1, len(X)), targets)
    return np.column_stack([scatter, products])
