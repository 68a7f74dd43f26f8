"""Losses of a ranking, training of the model by them, and its weight beside a linear ranker."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import expit

from ..utils._fit import Adam, Progress, record
from ._anchor_model import AnchorModel
from ._documents import RankedQueries, discounts, mean_ndcg_of, ndcg_of, positions

# Queries of a batch: fewer where there are few, so that an epoch has some steps.
_MIN_BATCH, _MAX_BATCH = 8, 32
_MIN_STEPS = 4
_LEARNING_RATE = 0.003
_AVERAGE = 0.98  # EMA decay of the parameters that are evaluated and kept
# Factors of the local scores at the start, and of the trained ones in the end.
_AMPLITUDES = np.array([1.0, 0.5, 0.25, 0.1, 0.03, 0.01])
_WEIGHTS = np.array([0.0, 0.25, 0.5, 1.0, 1.5])


def train(
    model: AnchorModel,
    ranked: RankedQueries,
    validation: RankedQueries | None,
    learned: tuple[str, ...],
    loss: str,
    max_epochs: int,
    rng: Generator,
    progress: Progress,
    attributes: Callable[[AnchorModel], dict[str, Any]],
    patience: int = 10,
    margin: float = 1.0,
) -> tuple[AnchorModel, dict[str, list]]:
    """Fit the parameters by Adam on batches of queries.

    Parameters
    ----------
    model : AnchorModel
        Where to start.
    ranked : RankedQueries
        The training queries.
    validation : RankedQueries or None
        Queries to choose the epoch by; None takes the last.
    learned : tuple of str
        The attributes of the model that are learned.
    loss : {"lambda", "warp"}
        What is minimised.
    max_epochs : int
        The number of passes over the queries at most.
    rng : Generator
        Shuffles the queries and draws violators.
    progress : Progress
        Where epochs are reported; may ask to stop.
    attributes : callable
        The fitted attributes of the estimator with the given model, for callbacks.
    patience : int, default=10
        The number of epochs without a lower validation loss after which it stops.
    margin : float, default=1.0
        zeta of the "warp" loss.

    Returns
    -------
    model : AnchorModel
        The best one: parameters averaged over the last steps. With `validation`, the start is one
        of the candidates.
    history : dict of str to list
        Per epoch: the mean "loss", with `validation` the "validation_loss" and "ndcg" there, and
        the "seconds" since the start.
    """
    start = time.perf_counter()
    fixed = "factors" not in learned
    quadratic = model.quadratic(ranked.features) if fixed else None
    watched = model.quadratic(validation.features) if fixed and validation is not None else None
    adam = Adam([getattr(model, name) for name in learned], eps=1e-8)
    present: list[Any] = adam.parameters
    average = list(present)
    batch_size = int(np.clip(-(-ranked.n_queries // _MIN_STEPS), _MIN_BATCH, _MAX_BATCH))
    history: dict[str, list] = {}
    best, lowest, best_epoch = model, np.inf, 0
    if validation is not None:
        start_scores = model.scores(validation.features, watched) + validation.offsets
        lowest = pair_loss(start_scores, validation)
    for epoch in range(max_epochs):
        progress.begin()
        total = 0.0
        order = rng.permutation(ranked.n_queries)
        for first in range(0, len(order), batch_size):
            numbers = order[first : first + batch_size]
            current = replace(model, **dict(zip(learned, present, strict=True)))
            known = None if quadratic is None else quadratic[ranked.rows(numbers)]
            value, gradient = _gradients(
                current, ranked.take(numbers), known, learned, loss, rng, margin
            )
            _descend(adam, gradient, average, model.kernel)
            total += value * len(numbers)
        current = replace(model, **dict(zip(learned, average, strict=True)))
        figures = {"loss": total / ranked.n_queries}
        if validation is not None:
            scores = current.scores(validation.features, watched) + validation.offsets
            figures["validation_loss"] = pair_loss(scores, validation)
            figures["ndcg"] = mean_ndcg_of(scores, validation)
        record(history, start, **figures)
        if validation is None or figures["validation_loss"] < lowest:
            best, lowest, best_epoch = current, figures.get("validation_loss", np.inf), epoch
        if progress.step(partial(attributes, best), **figures) or epoch - best_epoch >= patience:
            break
    return best, history


def _gradients(model, batch, quadratic, learned, loss, rng, margin=1.0):
    """Return the loss of a batch of queries and its gradient by the learned attributes."""
    squared = model.squared_distances(batch.features, quadratic)
    scores, partials = model.evaluate(squared, model.weights)
    scores = scores + batch.offsets
    if loss == "lambda":
        value, by_score = lambda_loss(scores, batch)
    else:
        value, by_score = warp_loss(scores, batch, rng, margin)
    by_squared = by_score[:, None] * partials.by_squared
    compute = {
        "weights": lambda: by_score @ partials.by_weight,
        "widths": lambda: by_score @ partials.by_width,
        "anchors": lambda: model.anchor_gradient(batch.features, by_squared),
        "factors": lambda: model.factor_gradient(batch.features, by_squared),
    }
    return value, {name: compute[name]() for name in learned}


def _descend(adam, gradient, average, kernel):
    """Take a step, and update the moving average of the parameters; damped weights stay >= 0."""
    adam.step(list(gradient.values()), _LEARNING_RATE)
    keep = min(_AVERAGE, adam.n_steps / (adam.n_steps + 10))  # the first steps fade sooner
    for place, name in enumerate(gradient):
        if name == "weights" and kernel == "damped":
            adam.parameters[place] = np.maximum(adam.parameters[place], 0)
        average[place] = keep * average[place] + (1 - keep) * adam.parameters[place]


def fit_query_weights(
    model: AnchorModel,
    ranked: RankedQueries,
    loss: str,
    n_rounds: int,
    rng: Generator,
    step: float = 0.1,
    margin: float = 1.0,
) -> NDArray:
    """Learn weights of their own for every query, from the shared ones on.

    With the "damped" kernel and the "warp" loss, this is Algorithm 3 of the thesis: each query
    draws one document and a violator and moves its weights, down to zero at most. The queries do
    not depend on each other, so one round updates them all.

    `n_rounds` is the number of updates of each query, `step` is mu, and `margin` is zeta of the
    "warp" loss. Returns weights of shape (n_queries, n_anchors), as the kernel takes them.
    """
    codes, first, ends = ranked.codes(), ranked.starts[:-1], ranked.starts[1:]
    n_better = np.add.reduceat((ranked.lower < ranked.ends()).astype(np.intp), first)
    squared = model.squared_distances(ranked.features)
    weights = np.tile(model.weights, (ranked.n_queries, 1))
    scores, partials = model.evaluate(squared, weights[codes])
    by_weight = partials.by_weight
    for turn in range(n_rounds):
        if turn and model.kernel == "damped":  # linear in the weights
            scores = np.einsum("na,na->n", by_weight, weights[codes])
        elif turn:
            scores, partials = model.evaluate(squared, weights[codes])
            by_weight = partials.by_weight
        scores = scores + ranked.offsets
        if loss == "lambda":
            by_score = lambda_loss(scores, ranked)[1] * ranked.n_queries
            gradient = np.add.reduceat(by_score[:, None] * by_weight, first)
        else:
            # a document of each query that has less relevant ones, and a violator of its margin
            better = first + (rng.random(ranked.n_queries) * n_better).astype(np.intp)
            lower = ranked.lower[better]
            worse, rank_error = draw_violators(scores, better, lower, ends, rng, margin)
            weight = rank_weight(rank_error)[:, None]
            gradient = weight * (by_weight[worse] - by_weight[better])
        weights = weights - step * gradient
        if model.kernel == "damped":
            weights = np.maximum(weights, 0)
    return weights


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
        Their queries, grades and gains; its features are not used.

    Returns
    -------
    loss : float
        The mean over the queries.
    gradient : ndarray of shape (n_rows,)
        By the scores.
    """
    discount = discounts(positions(scores, batch.starts))
    better, worse = _pairs(batch)
    weight = (batch.gains[better] - batch.gains[worse]) * np.abs(discount[better] - discount[worse])
    weight *= batch.row_weights()[better]
    softplus, slope = _logistic(scores[worse] - scores[better])
    pull = weight * slope
    gradient = np.bincount(worse, pull, len(scores)) - np.bincount(better, pull, len(scores))
    return float(weight @ softplus) / batch.n_queries, gradient / batch.n_queries


def _logistic(x):
    """Return ``log(1 + exp(x))`` and its derivative, with one exponential for both."""
    slope = expit(x)
    return np.maximum(x, 0) - np.log(np.maximum(slope, 1 - slope)), slope


def pair_loss(scores: NDArray, queries: RankedQueries) -> float:
    """Compute the pairwise logistic loss with weights that do not depend on the scores.

    Pairs count by the difference of their gains, and every query counts the same. It judges a
    model more steadily than NDCG, which jumps when two documents change places. Returns the mean
    over the queries.
    """
    better, worse = _pairs(queries)
    weight = queries.gains[better] - queries.gains[worse]
    codes = queries.codes()[better]
    total = np.bincount(codes, weight, queries.n_queries)
    loss = weight * _logistic(scores[worse] - scores[better])[0]
    by_query = np.bincount(codes, loss, queries.n_queries) / total
    return float(np.mean(queries.weights * by_query))


def _pairs(batch):
    """Return all pairs of rows of a query with different grades, the better row first."""
    counts = batch.ends() - batch.lower
    better = np.repeat(np.arange(len(counts)), counts)
    # the partners of a row are neighbours: from its first lower row to the end of the query
    worse = np.arange(len(better)) - np.repeat(np.cumsum(counts) - counts - batch.lower, counts)
    return better, worse


def warp_loss(
    scores: NDArray, batch: RankedQueries, rng: Generator, margin: float = 1.0
) -> tuple[float, NDArray]:
    r"""Estimate the weighted approximate-rank pairwise loss by sampled violators.

    For each document, less relevant ones of its query are drawn with replacement until one
    violates the margin, :math:`\zeta + f(p^-) > f(p^+)`. If it took N draws, the document is
    about :math:`k = \lfloor |D^-| / N \rfloor` ranks too low, and the pair costs
    :math:`L(k) (\zeta - f(p^+) + f(p^-))` with :math:`L(k) = \sum_{i \le k} 1/\log_2(i + 1)`.
    After :math:`|D^-|` draws without a violator there is none. Returns what
    `lambda_loss` does.
    """
    better = np.flatnonzero(batch.ends() > batch.lower)
    lower, ends = batch.lower[better], batch.ends()[better]
    worse, rank_error = draw_violators(scores, better, lower, ends, rng, margin)
    found = rank_error > 0
    better, worse, weight = better[found], worse[found], rank_weight(rank_error[found])
    weight *= batch.row_weights()[better]
    gradient = np.bincount(worse, weight, len(scores)) - np.bincount(better, weight, len(scores))
    loss = float(weight @ (margin - scores[better] + scores[worse]))
    return loss / batch.n_queries, gradient / batch.n_queries


def draw_violators(
    scores: NDArray, better: NDArray, lower: NDArray, ends: NDArray, rng: Generator, margin: float
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
    worse, rank_error = np.zeros((2, len(better)), dtype=np.intp)
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
    table = np.cumsum(discounts(np.arange(k.max(initial=1))))
    return np.append(0.0, table)[k]


@dataclass(frozen=True)
class LocalPart:
    """Local metrics beside a linear ranker.

    Attributes
    ----------
    model : AnchorModel
        All of them.
    weight : float
        The factor of their scores.
    ndcg : dict of str to float
        Of queries held out: "linear" alone, "local" alone, and "sum" with the weight.
    history : dict of str to list
        Of the training.
    """

    model: AnchorModel
    weight: float
    ndcg: dict[str, float]
    history: dict[str, list]

    def contributions(self, members: list) -> dict[str, Any]:
        """Return what each part contributes, given the linear rankers that were tried."""
        best = members[0]
        ndcg = self.ndcg or {"linear": best.ndcg, "sum": best.ndcg}
        described = {"views": best.views, "reg": best.reg, "loss": best.loss}
        tried = [member._asdict() for member in members]
        return {**ndcg, "weight": self.weight, **described, "members": tried}


def start_beside(model: AnchorModel, ranked: RankedQueries) -> AnchorModel:
    """Return the model with the amplitude at which it helps most beside the offsets."""
    scores = model.scores(ranked.features)
    losses = [pair_loss(ranked.offsets + a * scores, ranked) for a in _AMPLITUDES]
    return replace(model, amplitude=float(_AMPLITUDES[np.argmin(losses)]))


def choose_weight(scores: NDArray, ranked: RankedQueries) -> tuple[float, dict[str, float]]:
    """Return the weight of local scores beside the offsets, and the NDCG of either and the sum.

    A weight counts only if its NDCG is above that of no local scores by two standard errors, and
    its loss is not higher.
    """
    sums = [ranked.offsets + weight * scores for weight in _WEIGHTS]
    ndcg = np.array([ranked.weights * ndcg_of(values, ranked) for values in sums])
    gains = ndcg - ndcg[0]
    means = gains.mean(axis=1)
    errors = gains.std(axis=1) / np.sqrt(ranked.n_queries)
    losses = np.array([pair_loss(values, ranked) for values in sums])
    best = int(np.argmax(np.where((losses <= losses[0]) & (means >= 2 * errors), means, -1.0)))
    found = {
        "linear": float(ndcg[0].mean()),
        "local": mean_ndcg_of(scores, ranked),
        "sum": float(ndcg[best].mean()),
    }
    return float(_WEIGHTS[best]), found
