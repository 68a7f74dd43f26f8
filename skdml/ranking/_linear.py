"""A linear ranker: least squares in closed form, refined by a listwise loss, chosen over queries.

Documents come query by query, as columns of mean 0 in every query: one row per column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from ._views import N_BASIS, Views, centre, places

# Strengths of the penalty that are tried, in units of the mean eigenvalue of the scatter.
REGS = np.array([1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0])
LISTWISE_REGS = np.array([10.0, 3.0, 1.0, 0.3])  # from strong to weak: each starts at the last
_STEPS = 12  # of L-BFGS, from the solution of the stronger penalty
# What is tried: the loss, and the views of a feature.
CANDIDATES = (
    ("squares", ("z",)),
    ("squares", ("value",)),
    ("squares", ("z", "rank")),
    ("squares", ("z", "rank", "value")),
    ("squares", ("z", "z hinges")),
    ("squares", ("z", "value", "z hinges", "value hinges")),
    ("listwise", ("z", "rank", "value")),
    ("listwise", ("z", "z hinges")),
    ("listwise", ("z", "value", "z hinges", "value hinges")),
)
N_FOLDS = 4
# Members of the mean: NDCG that is so much below the best has a share of 1/e.
_SOFTNESS = 0.005
_TEMPERATURES = np.exp2(np.arange(-6.0, 7.0))


class Sums(NamedTuple):
    """Sums over queries of the documents' scatter and of their products with the targets."""

    scatter: NDArray
    products: NDArray


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


def fit_linear(
    views: Views,
    columns: NDArray,
    targets: Targets,
    measure: Callable[[NDArray], float],
    loss: Callable[[NDArray], float],
    all_sums: Callable[[NDArray], Sums] | None = None,
) -> LinearPart:
    """Fit linear rankers to views of documents and take the mean of those that do well.

    Parameters
    ----------
    views : Views
        What made the columns.
    columns : ndarray of shape (N_BASIS, n_features, n_rows)
        All views of the documents; queries are in random order.
    targets : Targets
        Their queries and gains.
    measure : callable
        NDCG of scores of these documents.
    loss : callable
        A loss of the scores, which sets their unit.
    all_sums : callable, default=None
        The sums over more documents than these, given which of the columns are used. Least
        squares are solved with them in the end.

    Returns
    -------
    part : LinearPart
        With few queries, one, there is no choice: the first candidate with the strongest penalty.
    """
    n_queries = len(targets.weights)
    n_features = columns.shape[1]
    n_folds = min(N_FOLDS, n_queries)
    folds = np.linspace(0, n_queries, n_folds + 1).astype(int)
    flat = columns.reshape(-1, columns.shape[2])
    parts = [
        (slice(targets.starts[a], targets.starts[b]), targets.part(a, b))
        for a, b in zip(folds[:-1], folds[1:], strict=True)
    ]
    sums = [sums_of(flat[:, rows], part) for rows, part in parts]
    total = Sums(*(np.sum(term, axis=0) for term in zip(*sums, strict=True)))
    if n_folds == 1:
        used = places(CANDIDATES[0][1])
        keep = _indices(used, n_features)
        found = Spectrum(total.scatter[np.ix_(keep, keep)]).solve(total.products[keep], REGS[-1:])
        coefficients = np.zeros((N_BASIS, n_features))
        coefficients[used] = found.reshape(len(used), n_features)
        scores = coefficients.ravel() @ flat
        member = Member(*CANDIDATES[0], float(REGS[-1]), measure(scores), 1.0)
        return LinearPart(views, coefficients, [member], scores, folds)
    members, held_out, solutions = [], [], []
    for views_used in dict.fromkeys(names for _, names in CANDIDATES):
        used = places(views_used)
        keep = _indices(used, n_features)
        losses = [name for name, names in CANDIDATES if names == views_used]
        found = _cross_fit(flat[keep] if len(keep) < len(flat) else flat, targets, parts, sums,
                           keep, losses)
        for name, reg, scores, solution in found:
            members.append(Member(name, views_used, float(reg), measure(scores)))
            held_out.append(scores)
            solutions.append((used, solution))
    return _combine(views, members, held_out, solutions, total, folds, loss, all_sums)


def _indices(used, n_features):
    """Return the rows of flat columns that some of the columns of each feature have."""
    return (used[:, None] * n_features + np.arange(n_features)).ravel()


def _cross_fit(columns, targets, parts, sums, keep, losses):
    """Return loss, penalty, held-out scores and mean solution of rankers with the same views."""
    regs = {"squares": REGS, "listwise": LISTWISE_REGS}
    scores = {name: np.empty((len(regs[name]), columns.shape[1])) for name in losses}
    means = {name: np.zeros((len(columns), len(regs[name]))) for name in losses}
    grid = np.ix_(keep, keep)
    for fold, (rows, _) in enumerate(parts):
        others = [term for number, term in enumerate(sums) if number != fold]
        spectrum = Spectrum(np.sum([term.scatter[grid] for term in others], axis=0))
        for name in losses:
            if name == "squares":
                products = np.sum([term.products[keep] for term in others], axis=0)
                found = spectrum.solve(products, REGS)
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


def _combine(views, members, held_out, solutions, total, folds, loss, all_sums):
    """Return the mean of the rankers, weighted by their NDCG, each in units of its own scores."""
    n_features = len(views.centre)
    ndcg = np.array([member.ndcg for member in members])
    shares = np.exp((ndcg - ndcg.max()) / _SOFTNESS)
    shares[shares < 0.01] = 0.0
    shares /= shares.sum()
    coefficients, scores = np.zeros((N_BASIS, n_features)), np.zeros(len(held_out[0]))
    solved: dict = {}
    for number in np.flatnonzero(shares):
        member, (used, solution) = members[number], solutions[number]
        size = np.sqrt(np.mean(held_out[number] ** 2))
        if size == 0:
            continue
        if member.loss == "squares":
            keep = _indices(used, n_features)
            if member.views not in solved:
                found = total if all_sums is None else all_sums(used)
                if all_sums is None:
                    found = Sums(total.scatter[np.ix_(keep, keep)], total.products[keep])
                solved[member.views] = Spectrum(found.scatter), found.products
            spectrum, products = solved[member.views]
            solution = spectrum.solve(products, np.array([member.reg]))[:, 0]
        coefficients[used] += shares[number] / size * solution.reshape(len(used), n_features)
        scores += shares[number] / size * held_out[number]
    temperature = _TEMPERATURES[np.argmin([loss(t * scores) for t in _TEMPERATURES])]
    members = [m._replace(share=float(share)) for m, share in zip(members, shares, strict=True)]
    members.sort(key=lambda member: -member.ndcg)
    return LinearPart(views, temperature * coefficients, members, temperature * scores, folds)
