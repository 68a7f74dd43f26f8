"""Linear rankers: least squares in closed form, and a listwise loss with products of features.

Documents come query by query, as columns of mean 0 in every query: one row per column.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from ..utils._parallel import make_shards
from ._documents import RankedQueries, mean_ndcg_of
from ._local_gmml_training import pair_loss
from ._views import N_BASIS, Views, centre, fit_views, places

# Strengths of the penalty that are tried, in units of the mean eigenvalue of the scatter.
REGS = np.array([1e-2, 0.1, 0.3, 1.0, 3.0, 10.0])
LISTWISE_REGS = np.array([3.0, 1.0, 0.3])  # from strong to weak: each starts at the last
_STEPS = 8  # of L-BFGS, from the solution of the stronger penalty
# Least squares are tried on these views of a feature.
CANDIDATES = (("z",), ("value",), ("z", "rank"), ("z", "hinges"))
# The listwise loss is on these, with products of z-scores and values: so many, but not more than
# this share of the number of queries.
LISTWISE_VIEWS = ("z", "value", "hinges")
_MAX_PRODUCTS, _PRODUCTS_SHARE = 200, 0.25
_PRODUCT_SCALE = 0.5
_SCREENING_REG = 0.3  # of the least squares whose residuals choose the products
N_FOLDS = 4
# NDCG that is so much below the best, divided by the root of the number of queries, has a share of
# 1/e in the mean: about the standard error of the difference of two rankers.
_SOFTNESS = 0.08
_LEAST_SHARE = 0.05  # of the share of the best
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

    def listwise(self) -> Callable[[NDArray], tuple[float, NDArray]]:
        """Return the listwise softmax loss and its gradient, as a function of scores."""
        starts, sizes = self.starts[:-1], np.diff(self.starts)
        total = np.add.reduceat(self.gains, starts)
        weight = np.repeat(np.where(total > 0, self.weights, 0.0), sizes)
        wanted = weight * self.gains / np.repeat(np.where(total > 0, total, 1.0), sizes)

        def loss(scores: NDArray) -> tuple[float, NDArray]:
            scores = scores.astype(np.float64)
            scores -= np.repeat(np.maximum.reduceat(scores, starts), sizes)
            shares = np.exp(scores)
            sums = np.repeat(np.add.reduceat(shares, starts), sizes)
            return float(-wanted @ (scores - np.log(sums))), weight * shares / sums - wanted

        return loss

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
    scaled = columns * np.sqrt(weight).astype(columns.dtype)
    wanted = (weight * targets.centred()).astype(columns.dtype)
    return Sums(scaled @ scaled.T, columns @ wanted)


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
    zero is least squares. Products are of the precision of `columns`.
    """
    vectors, dtype, listwise = spectrum.vectors, columns.dtype, targets.listwise()
    coordinates = np.zeros(len(columns))
    found = []
    for reg in regs:
        penalty = reg * spectrum.unit
        step = 1 / np.sqrt(spectrum.values + penalty)

        def loss(point: NDArray, step: NDArray = step, penalty: float = penalty) -> tuple:
            c = step * point
            value, by_score = listwise((vectors @ c).astype(dtype) @ columns)
            gradient = vectors.T @ (columns @ by_score.astype(dtype)) + penalty * c
            return value + penalty / 2 * c @ c, step * gradient

        options = {"maxiter": n_steps}
        result = minimize(loss, coordinates / step, jac=True, method="L-BFGS-B", options=options)
        coordinates = step * result.x
        found.append(vectors @ coordinates)
    return np.array(found).T


def choose_products(
    factors: NDArray, residuals: NDArray, targets: Targets, n_products: int
) -> tuple[NDArray, NDArray]:
    """Return the pairs of factors whose products tell most about residuals.

    Parameters
    ----------
    factors : ndarray of shape (n_factors, n_rows)
        What is multiplied.
    residuals : ndarray of shape (n_rows,)
        What is left to explain, with mean 0 in every query.
    targets : Targets
        The queries and their weights.
    n_products : int
        How many pairs are wanted.

    Returns
    -------
    first, second : ndarray of int
        The factors of each product; a factor may be multiplied by itself.
    """
    sizes = np.diff(targets.starts)
    residuals = residuals * np.repeat(targets.weights / sizes, sizes)
    # sums over rows of r v_i v_j and of their squares: products are never formed
    squares = factors**2
    sums = (factors * residuals) @ factors.T
    deviations = np.sqrt((squares * residuals**2) @ squares.T)
    upper = np.triu_indices(len(factors))
    t = np.abs(sums[upper]) / np.maximum(deviations[upper], np.finfo(float).tiny)
    chosen = np.sort(np.argsort(-t, kind="stable")[:n_products])
    return upper[0][chosen], upper[1][chosen]


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
    interactions : ndarray of shape (2 n_features, 2 n_features) or None
        Of products of z-scores and values, see `Views.scores`.
    members : list of Member
        What was tried, best first.
    held_out : ndarray of shape (n_rows,)
        Scores of the training documents by rankers that were fitted to other queries.
    folds : ndarray of shape (n_folds + 1,)
        The queries of each fold, from one number to before the next.
    """

    views: Views
    coefficients: NDArray
    interactions: NDArray | None
    members: list[Member]
    held_out: NDArray
    folds: NDArray

    def scores(self, X: NDArray, starts: NDArray, documents: NDArray | None = None) -> NDArray:
        """Return the scores of documents, see `Views.scores`."""
        return self.views.scores(X, starts, self.coefficients, self.interactions, documents)

    def by_feature(self, X: NDArray, starts: NDArray, documents: NDArray | None = None) -> NDArray:
        """Return what each feature adds to the scores, see `Views.by_feature`."""
        return self.views.by_feature(X, starts, self.coefficients, self.interactions, documents)


def fit_linear(X: NDArray, ranked: RankedQueries, n_jobs: int | None = None) -> LinearPart:
    """Fit linear rankers to views of documents and take the mean of those that do well.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features)
        The documents, query by query, the queries in random order.
    ranked : RankedQueries
        All of these queries, sorted by grade; their features are not used.
    n_jobs : int, default=None
        How many folds are left out at a time, as in joblib.

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
    if len(parts) > 1:
        tried = _try_squares(flat, parts, sums, n_jobs)
        factors = views.factors(X, ranked.starts)
        tried += _try_listwise(flat, factors, targets, parts, sums, n_jobs)
    else:
        tried = _try_one(flat, sums[0])
    for found in tried:
        found.ndcg = mean_ndcg_of(found.scores[ranked.origin], ranked)
    shares = _shares(tried, _SOFTNESS / np.sqrt(ranked.n_queries))
    chosen = [(one, share) for one, share in zip(tried, shares, strict=True) if share > 0]
    _solve_again([one for one, _ in chosen], sum_all(sums), X.shape[1])
    coefficients, scores = np.zeros((N_BASIS, X.shape[1])), np.zeros(len(X))
    interactions = None
    for one, share in chosen:
        factor = share / (np.sqrt(np.mean(one.scores**2)) or 1.0)
        coefficients[one.used] += factor * one.solution.reshape(-1, X.shape[1])
        scores += factor * one.scores
        if one.interactions is not None:
            before = 0.0 if interactions is None else interactions
            interactions = before + factor * one.interactions
    unit = _temperature(scores[ranked.origin], ranked)
    coefficients *= unit
    interactions = None if interactions is None else unit * interactions
    members = [
        Member(one.loss, one.views, one.reg, one.ndcg, float(share))
        for one, share in zip(tried, shares, strict=True)
    ]
    members.sort(key=lambda member: -member.ndcg)
    return LinearPart(views, coefficients, interactions, members, unit * scores, folds)


def _temperature(scores, ranked):
    """Return the factor of scores that has the least loss; the loss is convex in it."""
    place = len(_TEMPERATURES) // 2

    def loss(place):
        return pair_loss(_TEMPERATURES[place] * scores, ranked)

    lowest, step = loss(place), 1
    if loss(place + 1) >= lowest:
        step = -1
    while 0 <= place + step < len(_TEMPERATURES) and (value := loss(place + step)) < lowest:
        place, lowest = place + step, value
    return _TEMPERATURES[place]


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
    interactions: NDArray | None = None
    ndcg: float = 0.0

    @property
    def used(self):
        return places(self.views)


def _try_one(flat, sums):
    """Fit without a choice."""
    names, reg = CANDIDATES[0], REGS[-1:]
    keep = _indices(places(names), len(flat) // N_BASIS)
    part = sums.part(keep)
    solution = Spectrum(part.scatter).solve(part.products, reg)[:, 0]
    return [_Tried("squares", names, float(reg[0]), solution @ flat[keep], solution)]


def _try_squares(flat, parts, sums, n_jobs):
    """Fit least squares to all candidates, once without each fold."""

    def solve(fold, keep):
        others = _others(sums, fold).part(keep)
        found = Spectrum(others.scatter).solve(others.products, REGS)
        return found, found.T @ flat[keep, parts[fold][0]]

    tried = []
    with make_shards(range(len(parts)), n_jobs=n_jobs) as folds:
        for names in CANDIDATES:
            solutions, scores = zip(
                *folds.map(solve, _indices(places(names), len(flat) // N_BASIS)), strict=True
            )
            both = zip(np.hstack(scores), np.mean(solutions, axis=0).T, strict=True)
            tried += [
                _Tried("squares", names, float(reg), *one)
                for reg, one in zip(REGS, both, strict=True)
            ]
    return tried


def _others(sums, fold):
    return sum_all([term for number, term in enumerate(sums) if number != fold])


def _try_listwise(flat, factors, targets, parts, sums, n_jobs):
    """Fit the listwise loss to columns and products, once without each fold.

    The products are chosen without the fold, too.
    """
    keep = _indices(places(LISTWISE_VIEWS), len(flat) // N_BASIS)
    base, wanted = flat[keep], targets.centred()
    n_queries, n_base = len(targets.weights), len(keep)
    n_products = min(_MAX_PRODUCTS, int(_PRODUCTS_SHARE * n_queries))

    def solve(fold):
        rows = parts[fold][0]
        others = _others(sums, fold).part(keep)
        first, last = np.searchsorted(targets.starts, [rows.start, rows.stop])
        inside = np.arange(n_queries)
        inside = (inside >= first) & (inside < last)
        without = targets._replace(weights=np.where(inside, 0.0, targets.weights))
        solution = Spectrum(others.scatter).solve(others.products, np.array([_SCREENING_REG]))
        pairs = choose_products(factors, wanted - solution[:, 0] @ base, without, n_products)
        products = _PRODUCT_SCALE * centre(factors[pairs[0]] * factors[pairs[1]], targets.starts)
        columns = np.concatenate([base, products], dtype=np.float32, casting="same_kind")
        spectrum = Spectrum(_join_scatter(others.scatter, base, products, without))
        found = fit_listwise(columns, without, spectrum, LISTWISE_REGS)
        return pairs, found, found.T @ columns[:, rows]

    with make_shards(range(len(parts)), n_jobs=n_jobs) as folds:
        pairs, solutions, scores = zip(*folds.map(solve), strict=True)
    interactions = np.zeros((len(LISTWISE_REGS), len(factors), len(factors)))
    for cells, found in zip(pairs, solutions, strict=True):
        for place, half in enumerate(_PRODUCT_SCALE / 2 / len(parts) * found[n_base:].T):
            np.add.at(interactions[place], cells, half)
            np.add.at(interactions[place], cells[::-1], half)
    mean = np.mean([found[:n_base] for found in solutions], axis=0)
    names = (*LISTWISE_VIEWS, "products")
    tried = zip(LISTWISE_REGS, np.hstack(scores), mean.T, interactions, strict=True)
    return [_Tried("listwise", names, float(reg), *found) for reg, *found in tried]


def _join_scatter(scatter, base, products, targets):
    """Return the scatter of columns and products, given that of the columns."""
    sizes = np.diff(targets.starts)
    weighted = products * np.repeat(targets.weights / sizes, sizes)
    cross, own = weighted @ base.T, weighted @ products.T
    return np.block([[scatter, cross.T], [cross, (own + own.T) / 2]])


def _shares(tried, softness):
    """Return the part of each ranker in the mean.

    To score by ranks, every feature is sorted: they count if they are ahead by a standard error.
    """
    ndcg = np.array([one.ndcg for one in tried])
    ranks = np.array(["rank" in one.views for one in tried])
    if ranks.any() and ndcg[ranks].max() < ndcg[~ranks].max() + softness:
        ndcg = np.where(ranks, -np.inf, ndcg)
    shares = np.exp((ndcg - np.max(ndcg)) / softness)
    shares[shares < _LEAST_SHARE] = 0.0
    return shares / shares.sum()


def _solve_again(chosen, total, n_features):
    """Solve least squares with the sums over all folds."""
    spectra: dict[tuple, tuple] = {}
    for one in (one for one in chosen if one.loss == "squares"):
        if one.views not in spectra:
            part = total.part(_indices(one.used, n_features))
            spectra[one.views] = Spectrum(part.scatter), part.products
        spectrum, products = spectra[one.views]
        one.solution = spectrum.solve(products, np.array([one.reg]))[:, 0]


def _indices(used, n_features):
    """Return the rows of flat columns that some of the columns of each feature have."""
    return (used[:, None] * n_features + np.arange(n_features)).ravel()
