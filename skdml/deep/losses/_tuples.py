"""Losses that compare a positive pair with many negatives: lifted structure and N-pair."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ._core import (
    LINEAR,
    Loss,
    SimilarityLoss,
    Term,
    check_batch,
    masked_softmax,
    param,
    register_loss,
    signed_softmax,
    unit_distances,
    unit_rows,
)
from ._pairs import by_sign


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
