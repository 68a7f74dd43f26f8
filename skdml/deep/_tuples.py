"""Training on pairs and triplets: their batches, their loss, the score of those held out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional

from ..utils._supervision import pairs_of_triplets, signed_pairs
from ._data import MIN_BATCHES, Shuffled


@dataclass(frozen=True)
class Tuples:
    """Pairs or triplets of samples.

    Attributes
    ----------
    rows : ndarray of shape (n_tuples, 2) or (n_tuples, 3)
        Row indices: two samples, or anchor, near and far one.
    grades : ndarray of shape (n_tuples,)
        How similar the samples of a pair are, +1 and -1 or any grade; of triplets ones.
    weights : ndarray of shape (n_tuples,)
        What each counts.
    """

    rows: NDArray
    grades: NDArray
    weights: NDArray

    def choose(self, chosen: NDArray) -> Tuples:
        """Return some of them."""
        return Tuples(self.rows[chosen], self.grades[chosen], self.weights[chosen])

    def targets(self) -> Tensor:
        """Return grades and weights as columns."""
        columns = np.column_stack([self.grades, self.weights])
        return torch.from_numpy(columns.astype(np.float32))

    def score(self, embeddings: NDArray) -> float:
        """Return how well similarities of the samples follow the grades.

        The share of triplets in the right order, the ROC AUC of two grades, or Spearman's rank
        correlation of more.
        """
        first, *others = (embeddings[self.rows[:, side]] for side in range(self.rows.shape[1]))
        near, *far = ((first * other).sum(axis=1) for other in others)
        if far:
            return float(np.average(near > far[0], weights=self.weights))
        values = np.unique(self.grades)
        if len(values) == 2:
            return float(roc_auc_score(self.grades == values[1], near, sample_weight=self.weights))
        return float(np.nan_to_num(spearmanr(self.grades, near).statistic))


def check_tuples(
    n_samples: int,
    pairs: Any,
    labels: Any,
    similarity: Any,
    triplets: Any,
    weights: Any,
    sample_weight: NDArray | None = None,
) -> Tuples:
    """Check pairs with labels or grades, or triplets, that `fit` was given."""
    if triplets is not None:
        near, _, both = pairs_of_triplets(triplets, n_samples, weights)
        rows = np.column_stack(np.split(near, 2))[:, [0, 1, 3]]
        shares = both[: len(rows)]
        if sample_weight is not None:
            shares = shares * sample_weight[rows].prod(axis=1)
            if not shares.any():
                raise ValueError("sample_weight is zero for a row of every triplet: none is left.")
        keep = shares > 0
        return Tuples(rows[keep], np.ones(keep.sum()), shares[keep])
    rows, signed, grades = signed_pairs(
        pairs, labels, n_samples, weights, sample_weight, similarity
    )
    if grades is None:
        return Tuples(rows, np.sign(signed), np.abs(signed))
    return Tuples(rows, *grades.T)


def split_tuples(tuples: Tuples, fraction: float, seed: int) -> tuple[Tuples, Tuples]:
    """Return tuples to train on and tuples that are held out, two at least with two grades."""
    n_tuples = len(tuples.rows)
    order = np.random.default_rng(seed).permutation(n_tuples)
    n_held_out = max(2, int(fraction * n_tuples))
    parts = tuples.choose(order[n_held_out:]), tuples.choose(order[:n_held_out])
    is_pairs = tuples.rows.shape[1] == 2
    if any(len(part.rows) < 2 or (is_pairs and not np.ptp(part.grades)) for part in parts):
        raise ValueError(
            f"{n_tuples} {'pairs' if is_pairs else 'triplets'} are too few to hold some out: give "
            "more, or validation_fraction=None and early_stopping=False."
        )
    return parts


@dataclass(eq=False, repr=False)
class TupleBatches:
    """Batches of tuples in random order: the first samples of all, then the second, the third.

    Parameters
    ----------
    X : tensor of shape (n_samples, ...) or Rows
        The samples.
    tuples : Tuples
        To train on.
    batch_size : int
        Tuples in a batch.
    rng : numpy Generator
        Draws.
    transform : callable, default=None
        ``transform(X, y)`` changes a batch.
    """

    X: Any
    tuples: Tuples
    batch_size: int
    rng: np.random.Generator
    transform: Any = None

    def __len__(self) -> int:
        return max(MIN_BATCHES, -(-len(self.tuples.rows) // self.batch_size))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        n_tuples, targets = len(self.tuples.rows), self.tuples.targets()
        queue = Shuffled(np.arange(n_tuples), self.rng)
        for _ in range(len(self)):
            chosen = queue.take(min(self.batch_size, n_tuples))
            X = self.X[torch.from_numpy(self.tuples.rows[chosen].T.ravel())]
            y = targets[torch.from_numpy(chosen)]
            if self.transform is not None:
                X, _ = self.transform(X, None)
            yield X, y


class RankingLoss(nn.Module):
    r"""A loss of pairs by their order: the more similar pair should have the larger cosine.

    With the cosines s of the pairs of a batch, their grades g and weights w,

    .. math:: \log\Big(1 + \sum_{g_i > g_j} w_i w_j e^{a (s_j - s_i)}\Big);

    of triplets, the weighted mean of :math:`\log(1 + e^{a (s_{far} - s_{near})})`.

    Parameters
    ----------
    scale : float, default=20.0
        a, how sharply cosines are told apart.
    """

    def __init__(self, scale: float = 20.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, embeddings: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch of `TupleBatches`."""
        grades, weights = targets.T
        first, *others = functional.normalize(embeddings).chunk(len(embeddings) // len(targets))
        near, *far = (self.scale * (first * other).sum(dim=1) for other in others)
        if far:
            return (weights * functional.softplus(far[0] - near)).sum() / weights.sum()
        gaps = near - near[:, None] + torch.log(weights * weights[:, None])
        gaps = gaps[grades[:, None] > grades]
        return torch.logsumexp(torch.cat([gaps.new_zeros(1), gaps]), dim=0)
