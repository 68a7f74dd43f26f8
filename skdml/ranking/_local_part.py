"""What local metrics add to a linear ranker, fitted and weighted on queries that are held out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ._anchor_model import AnchorModel
from ._documents import RankedQueries, mean_ndcg_of
from ._local_gmml_training import pair_loss

# Factors of the local scores at the start, and of the trained ones in the end.
_AMPLITUDES = np.array([1.0, 0.5, 0.25, 0.1, 0.03, 0.01])
_WEIGHTS = np.array([0.0, 0.25, 0.5, 1.0, 1.5])

Trainer = Callable[[RankedQueries, "RankedQueries | None"], tuple[AnchorModel, dict[str, list]]]


@dataclass(frozen=True)
class LocalPart:
    """Local metrics beside a linear ranker.

    Attributes
    ----------
    models : list of AnchorModel
        Their mean counts.
    weight : float
        The factor of their mean.
    ndcg : dict of str to float
        Of queries held out: "linear" alone, "local" alone, and "sum" with the weight.
    history : dict of str to list
        Of the trainings, one after the other, and the "fold" of each epoch.
    """

    models: list[AnchorModel]
    weight: float
    ndcg: dict[str, float]
    history: dict[str, list]


def start_beside(model: AnchorModel, ranked: RankedQueries) -> AnchorModel:
    """Return the model with the amplitude at which it helps most beside the offsets."""
    scores = model.scores(ranked.features)
    losses = [pair_loss(ranked.offsets + a * scores, ranked) for a in _AMPLITUDES]
    return replace(model, amplitude=float(_AMPLITUDES[np.argmin(losses)]))


def cross_fit(ranked: RankedQueries, folds: NDArray, fit: Trainer) -> LocalPart:
    """Fit local metrics to what a linear ranker leaves, once without each fold of queries.

    Parameters
    ----------
    ranked : RankedQueries
        The training queries, with the scores of a linear ranker that was fitted to other queries
        as offsets.
    folds : ndarray of shape (n_folds + 1,)
        The queries of each fold, from one number to before the next.
    fit : callable
        Trains on queries, and chooses the epoch by others.

    Returns
    -------
    part : LocalPart
        All models, and the weight of their mean that is best on the queries each has not seen.
    """
    numbers = np.arange(ranked.n_queries)
    scores = np.empty(len(ranked.gains))
    models: list[AnchorModel] = []
    history: dict[str, list] = {}
    for fold, (first, last) in enumerate(itertools.pairwise(folds)):
        inside = (numbers >= first) & (numbers < last)
        held_out = ranked.take(numbers[inside])
        model, epochs = fit(ranked.take(numbers[~inside]), held_out)
        scores[ranked.rows(numbers[inside])] = model.scores(held_out.features)
        models.append(model)
        for name, values in epochs.items():
            history.setdefault(name, []).extend(values)
        history.setdefault("fold", []).extend([fold] * len(epochs["seconds"]))
    weight, ndcg = choose_weight(scores, ranked)
    return LocalPart(models, weight, ndcg, history)


def choose_weight(scores: NDArray, ranked: RankedQueries) -> tuple[float, dict[str, float]]:
    """Return the weight of local scores beside the offsets, and the NDCG of either and the sum.

    A weight counts only if it has both a higher NDCG and a lower loss than no local scores.
    """
    sums = [ranked.offsets + weight * scores for weight in _WEIGHTS]
    ndcg = np.array([mean_ndcg_of(values, ranked) for values in sums])
    losses = np.array([pair_loss(values, ranked) for values in sums])
    best = int(np.argmax(np.where(losses <= losses[0], ndcg, -1.0)))
    found = {
        "linear": float(ndcg[0]),
        "local": mean_ndcg_of(scores, ranked),
        "sum": float(ndcg[best]),
    }
    return float(_WEIGHTS[best]), found
