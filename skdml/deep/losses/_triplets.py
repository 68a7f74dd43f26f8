"""Losses over triplets of an anchor, a positive and a negative."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ._core import (
    LINEAR,
    SimilarityLoss,
    SparseWeights,
    Term,
    Weights,
    check_batch,
    param,
    register_loss,
    unit_distances,
)

TRIPLETS = ("semi-hard", "all", "hard")


def class_partners(labels: Tensor) -> Iterator[Tensor]:
    """Yield, for each shift within the classes, the partner of every row.

    Over all shifts, each ordered positive pair is met once; a row whose class is too small for a
    shift is its own partner.
    """
    _, codes, counts = labels.unique(return_inverse=True, return_counts=True)
    order = codes.argsort(stable=True)
    sizes = counts[codes[order]]
    starts = (counts.cumsum(0) - counts)[codes[order]]
    places = torch.arange(len(labels), device=labels.device) - starts
    for shift in range(1, int(counts.max()) if len(counts) else 1):
        ahead = torch.where(shift < sizes, (places + shift) % sizes, places)
        yield torch.empty_like(order).scatter_(0, order, order[starts + ahead])


def _triplet_windows(distances, slope, positive, negative, labels, margin, semi_hard):
    """Sum [margin + d(a, p) - d(a, n)]_+ over triplets, without a list of them."""
    beyond = distances.masked_fill(~negative, math.inf)
    total = distances.new_zeros((), dtype=torch.float64)
    pushed = torch.zeros_like(distances)
    pulled = torch.zeros_like(distances)
    for partners in class_partners(labels):
        partners = partners[:, None]
        reach = (distances.gather(1, partners) + margin).masked_fill(
            ~positive.gather(1, partners), -math.inf
        )
        losses = (reach - beyond).relu_()
        if semi_hard:
            # A negative nearer than the positive has more loss than the margin.
            losses.mul_(losses < margin)
        active = (losses > 0).to(losses.dtype)
        total += losses.sum()
        pushed.add_(active)
        pulled.scatter_add_(1, partners, active.sum(1, keepdim=True))
    return total, pulled.sub_(pushed).mul_(slope), pushed.sum(dtype=torch.float64)


def _hardest_triplets(distances, slope, positive, negative, margin):
    near, negatives = distances.masked_fill(~negative, math.inf).min(1)
    far, positives = distances.masked_fill(~positive, -math.inf).max(1)
    losses = (far - near + margin).nan_to_num_(nan=0.0, neginf=0.0).relu_()
    active = (losses > 0).to(losses.dtype)
    anchors = torch.arange(len(distances), device=distances.device)
    weights = SparseWeights(
        torch.cat([anchors, anchors]),
        torch.cat([positives, negatives]),
        torch.cat([active * slope[anchors, positives], -active * slope[anchors, negatives]]),
    )
    usable = (far > -math.inf) & (near < math.inf)
    return losses.sum(), weights, active.sum(), usable.sum()


@register_loss("triplet")
@dataclass(eq=False, repr=False)
class TripletLoss(SimilarityLoss):
    r"""Ask of each anchor that its negatives are farther than its positives, by a margin.

    :math:`[d(a, p) - d(a, n) + m]_+` over triplets of an anchor, a positive and a negative.

    Parameters
    ----------
    margin : float
        m.
    triplets : {"semi-hard", "all", "hard"}
        "all" triplets; "semi-hard": all those whose negative is farther than the positive, by less
        than the margin; "hard": for each anchor its farthest positive and nearest negative.
    distance : {"euclidean", "cosine"}
        The Euclidean distance of unit vectors, or 1 - S, which is half its square.
    reduction : {"active", "mean"}
        The mean over triplets with a loss, or over all mined triplets.
    miner : None, str or callable
        As `triplets`; a miner of pairs, such as "multi-similarity", leaves triplets of kept pairs.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import TripletLoss
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(TripletLoss(triplets="all")(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.6368
    """

    margin: float = param(0.2)
    triplets: str = param("semi-hard", TRIPLETS)
    distance: str = param("euclidean", ("euclidean", "cosine"))
    reduction: str = param("active", ("active", "mean"))
    miner: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.miner, str) and self.miner in TRIPLETS:
            self.triplets, self.miner = self.miner, None
        super().__post_init__()

    def term(self, S: Tensor, positive: Tensor, negative: Tensor, labels: Tensor) -> Term:
        if self.distance == "euclidean":
            distances, slope = unit_distances(S)
        else:
            distances, slope = 1 - S, -torch.ones_like(S)
        weights: Weights
        if self.triplets == "hard":
            total, weights, count, usable = _hardest_triplets(
                distances, slope, positive, negative, self.margin
            )
        else:
            semi_hard = self.triplets == "semi-hard"
            total, weights, count = _triplet_windows(
                distances, slope, positive, negative, labels, self.margin, semi_hard
            )
            # Semi-hard triplets are those with a loss; the others were not mined.
            usable = count
            if not semi_hard:
                usable = (positive.sum(1, dtype=torch.float64) * negative.sum(1)).sum()
        divisor = count if self.reduction == "active" else usable
        divisor = divisor.clamp_min(1).to(S.dtype)
        if isinstance(weights, SparseWeights):
            weights = weights._replace(values=weights.values / divisor)
        else:
            weights.div_(divisor)
        return total.to(S.dtype) / divisor, weights


@register_loss("class-anchor")
@dataclass(eq=False, repr=False)
class ClassAnchorLoss(SimilarityLoss):
    r"""Compare the hardest positive and the hardest negative of one anchor per class.

    .. math:: \frac{1}{|C|} \sum_{a \in C} \log(1 + e^{f_a' f_n - f_a' f_p}) +
              \frac{\lambda}{B} \sum_i \|x_i\|^2

    with unit vectors f of the embeddings x; p and n are the farthest positive and the nearest
    negative of a in the batch. The loss of the thesis on distributed distance learning.

    Parameters
    ----------
    anchors : {"random", "all"}
        One anchor for each class, drawn with torch's global generator; or every row.
    norm_weight : float
        :math:`\lambda`. This term is of the embeddings as they are: of unit vectors it would be
        constant.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import ClassAnchorLoss
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(ClassAnchorLoss(anchors="all")(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.8447
    """

    anchors: str = param("random", ("random", "all"))
    norm_weight: float = param(1e-3, "a number of at least 0")

    def term(self, S: Tensor, positive: Tensor, negative: Tensor, labels: Tensor) -> Term:
        rows = torch.arange(len(S), device=S.device)
        rows = rows[positive.any(1) & negative.any(1)]
        if self.anchors == "random":
            # The first of each class in a random order.
            rows = rows[torch.randperm(len(rows), device=rows.device)]
            _, codes = labels[rows].unique(return_inverse=True)
            order = codes.argsort(stable=True)
            ends = torch.ones_like(order, dtype=torch.bool)
            ends[1:] = codes[order][1:] != codes[order][:-1]
            rows = rows[order[ends]]
        if len(rows) == 0:
            return S.new_zeros(()), SparseWeights(rows, rows, S.new_zeros(0))
        chosen = S[rows]
        low, positives = chosen.masked_fill(~positive[rows], math.inf).min(1)
        high, negatives = chosen.masked_fill(~negative[rows], -math.inf).max(1)
        share = (high - low).sigmoid() / len(rows)
        weights = SparseWeights(
            torch.cat([rows, rows]), torch.cat([positives, negatives]), torch.cat([-share, share])
        )
        return softplus(high - low, threshold=LINEAR).mean(), weights

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch, with the penalty on the length of its embeddings."""
        embeddings, labels = check_batch(embeddings, labels)
        loss = super().forward(embeddings, labels)
        return loss + self.norm_weight * embeddings.square().sum() / max(len(embeddings), 1)
