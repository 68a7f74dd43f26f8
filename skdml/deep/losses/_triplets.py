"""Losses over triplets of an anchor, a positive and a negative, and over larger tuples."""

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
    Loss,
    SimilarityLoss,
    SparseWeights,
    Term,
    Weights,
    check_batch,
    masked_softmax,
    param,
    register_loss,
    signed_softmax,
    unit_distances,
    unit_rows,
)
from ._pairs import by_sign

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

    with unit vectors f of the embeddings x; p is the farthest positive of a in the batch, and n a
    negative: the loss of the thesis on distributed distance learning.

    Parameters
    ----------
    anchors : {"random", "all"}
        One anchor for each class, drawn with torch's global generator; or every row.
    negatives : {"semi-hard", "hardest"}
        The nearest negative of those that are farther than p, or the farthest of all where none
        is; or the nearest of all. With the nearest of all, networks that start from random weights
        often end with all embeddings in one point.
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
    negatives: str = param("semi-hard", ("semi-hard", "hardest"))
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
        kept = negative[rows]
        if self.negatives == "semi-hard":
            least = chosen.masked_fill(~kept, math.inf).amin(1, keepdim=True)
            # Those farther than p, and the farthest.
            kept = kept & ((chosen < low[:, None]) | (chosen == least))
        high, negatives = chosen.masked_fill(~kept, -math.inf).max(1)
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


# One positive pair against many negatives: lifted structure and N-pair


@register_loss("lifted-structure")
@dataclass(eq=False, repr=False)
class LiftedStructureLoss(SimilarityLoss):
    r"""Compare the soft-hardest positive of each anchor with its soft-hardest negative.

    .. math:: \frac{1}{B} \sum_i [m + \log \sum_{P_i} e^{\lambda - S_{ik}} +
              \log \sum_{N_i} e^{S_{ik} - \lambda}]_+

    An anchor without positives, or without negatives, has no loss.

    Parameters
    ----------
    margin : float
        m. The paper's threshold :math:`\lambda` is no parameter: it cancels.
    miner : None, str or callable
        Which pairs to look at: a name of `miner_names`, or a miner of pytorch-metric-learning.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import LiftedStructureLoss
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(LiftedStructureLoss()(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.1867
    """

    margin: float = param(0.0)
    miner: Any = None

    def term(self, S: Tensor, positive: Tensor, negative: Tensor, labels: Tensor) -> Term:
        sign = by_sign(positive, S, -1, 1)
        low, high, weights = signed_softmax(S.mul_(sign), positive, negative)
        losses = (low + high + self.margin).nan_to_num_(neginf=0.0).relu_()
        return losses.mean(), weights.mul_(sign).mul_((losses > 0).to(S.dtype) / len(losses))


@register_loss("lifted-structure-pairs")
@dataclass(eq=False, repr=False)
class LiftedStructurePairsLoss(SimilarityLoss):
    r"""Compare each positive pair with the negatives of both its ends, in distances.

    .. math:: \frac{1}{2 |P|} \sum_{(i,j) \in P} [d_{ij} + \log(\sum_{N_i} e^{m - d_{ik}} +
              \sum_{N_j} e^{m - d_{jk}})]_+^2

    the first form of the lifted-structure loss.

    Parameters
    ----------
    margin : float
        m.
    miner : None, str or callable
        Which pairs to look at: a name of `miner_names`, or a miner of pytorch-metric-learning.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import LiftedStructurePairsLoss
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(LiftedStructurePairsLoss()(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    2.3008
    """

    margin: float = param(1.0)
    miner: Any = None

    def term(self, S: Tensor, positive: Tensor, negative: Tensor, labels: Tensor) -> Term:
        distances, slope = unit_distances(S)
        high, push = masked_softmax(self.margin - distances, negative)
        usable = positive & ((high > -math.inf) | (high > -math.inf).T)
        count = positive.sum().clamp_min(1)
        losses = torch.logaddexp(high, high.T).add_(distances)
        losses = losses.masked_fill_(~usable, 0).relu_()
        value = losses.square().sum() / (2 * count)
        losses.div_(count)
        # Which of the two ends the log-sum-exp of a pair follows.
        follow = losses * (high - high.T).nan_to_num_(nan=0.0).sigmoid_()
        other = (losses - follow).sum(0)[:, None]
        weights = losses.sub_(push.mul_(follow.sum(1, keepdim=True) + other))
        return value, weights.mul_(slope)


@register_loss("n-pair-tuplet")
@dataclass(eq=False, repr=False)
class NPairTupletLoss(SimilarityLoss):
    r"""Compare each positive pair with all negatives of its anchor: the (N+1)-tuplet loss.

    .. math:: \frac{1}{|P|} \sum_{(a,p) \in P} \log(1 + \sum_{n \in N_a}
              e^{S_{an} - S_{ap}})

    Parameters
    ----------
    scale : float
        A factor of S; above 1 the nearest negatives count more.
    normalize : bool
        If S is of unit vectors, or of the embeddings as they are.
    miner : None, str or callable
        Which pairs to look at: a name of `miner_names`, or a miner of pytorch-metric-learning.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import NPairTupletLoss
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(NPairTupletLoss()(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.8437
    """

    scale: float = param(1.0, "a number above 0")
    normalize: bool = True
    miner: Any = None

    def term(self, S: Tensor, positive: Tensor, negative: Tensor, labels: Tensor) -> Term:
        S.mul_(self.scale)
        high, push = masked_softmax(S, negative)
        count = positive.sum().clamp_min(1)
        gaps = (high - S).masked_fill_(~positive, -math.inf)
        value = softplus(gaps, threshold=LINEAR).sum() / count
        gaps.sigmoid_().mul_(self.scale).div_(count)
        return value, push.mul_(gaps.sum(1, keepdim=True)).sub_(gaps)


@dataclass(eq=False, repr=False)
class ClassPairsLoss(Loss):
    """Base of losses over one pair per class.

    Parameters
    ----------
    scale : float
        A factor of the products; above 1 the nearest negatives count more.
    normalize : bool
        If products are of unit vectors, or of the embeddings as they are.
    """

    scale: float = param(1.0, "a number above 0")
    normalize: bool = True

    def scores(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return f_i' f_j+ of the first two rows of every class that has two, as a matrix."""
        embeddings, labels = check_batch(embeddings, labels)
        vectors = unit_rows(embeddings) if self.normalize else embeddings
        _, codes, counts = labels.unique(return_inverse=True, return_counts=True)
        first = (counts.cumsum(0) - counts)[counts > 1]
        order = codes.argsort(stable=True)
        return self.scale * (vectors[order[first]] @ vectors[order[first + 1]].T)


@register_loss("n-pair-multi-class")
class NPairMultiClassLoss(ClassPairsLoss):
    r"""Compare one pair per class with the positives of the other classes, in one softmax.

    .. math:: \frac{1}{N} \sum_i \log(1 + \sum_{j \ne i} e^{f_i' f_j^+ - f_i' f_i^+})

    over the first two rows of each class of the batch; a class with one row takes no part.

    Parameters
    ----------
    scale : float
        A factor of the products; above 1 the nearest negatives count more.
    normalize : bool
        If products are of unit vectors, or of the embeddings as they are.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import NPairMultiClassLoss
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])
    >>> round(NPairMultiClassLoss()(embeddings, torch.tensor([0, 0, 1, 1])).item(), 4)
    0.6634
    """

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        scores = self.scores(embeddings, labels)
        losses = scores.logsumexp(1) - scores.diagonal()
        return losses.sum() / max(len(losses), 1)


@register_loss("n-pair-one-vs-one")
class NPairOneVsOneLoss(ClassPairsLoss):
    r"""Compare one pair per class with the positives of the other classes, one by one.

    .. math:: \frac{1}{N} \sum_i \sum_{j \ne i} \log(1 + e^{f_i' f_j^+ - f_i' f_i^+})

    over the first two rows of each class of the batch; a class with one row takes no part.

    Parameters
    ----------
    scale : float
        A factor of the products; above 1 the nearest negatives count more.
    normalize : bool
        If products are of unit vectors, or of the embeddings as they are.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import NPairOneVsOneLoss
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])
    >>> round(NPairOneVsOneLoss()(embeddings, torch.tensor([0, 0, 1, 1])).item(), 4)
    0.6634
    """

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        scores = self.scores(embeddings, labels)
        gaps = scores - scores.diagonal()[:, None]
        others = ~torch.eye(len(scores), dtype=torch.bool, device=scores.device)
        return (softplus(gaps, threshold=LINEAR) * others).sum() / max(len(scores), 1)
