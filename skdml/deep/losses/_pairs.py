"""Losses that are a sum over pairs, each by itself or within the group of its anchor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ._core import (
    LINEAR,
    SimilarityLoss,
    Term,
    param,
    register_loss,
    signed_softmax,
    unit_distances,
)


def by_sign(positive: Tensor, like: Tensor, of_positive: float, of_negative: float) -> Tensor:
    """Return one number at the positive pairs, another one elsewhere, in the dtype of `like`."""
    return torch.where(positive, like.new_tensor(of_positive), like.new_tensor(of_negative))


def margin_terms(S: Tensor, positive: Tensor, loss: Any) -> tuple[Tensor, Tensor]:
    """Return the margin loss of every entry of S and its derivative by S; overwrites S.

    What is not positive counts as negative. `loss` has the parameters.
    """
    sign = by_sign(positive, S, -1, 1)
    losses = S.sub_(loss.threshold).mul_(sign).add_(loss.margin).relu_()
    return losses, sign.mul_(losses > 0)


def binomial_terms(S: Tensor, positive: Tensor, loss: Any) -> tuple[Tensor, Tensor]:
    """Return the binomial deviance of every entry of S and its derivative by S; overwrites S.

    What is not positive counts as negative. `loss` has the parameters.
    """
    scale = by_sign(positive, S, -loss.positive_scale, loss.negative_scale)
    scores = S.sub_(loss.threshold).mul_(scale)
    losses = softplus(scores, threshold=LINEAR).div_(scale.abs()).mul_(2)
    return losses, scores.sigmoid_().mul_(scale.sign_()).mul_(2)


def _mean(losses, derivative, positive, negative):
    kept = positive | negative
    count = kept.sum().clamp_min(1)
    return (losses * kept).sum() / count, derivative.mul_(kept).div_(count)


def _mean_of_active(losses, derivative, positive, negative):
    active = losses > 0
    return _mean(losses, derivative, positive & active, negative & active)


def _balanced(losses, derivative, positive, negative):
    none = torch.zeros_like(positive)
    value, weights = _mean_of_active(losses, derivative.clone(), positive, none)
    other, more = _mean_of_active(losses, derivative, none, negative)
    return value + other, weights.add_(more)


REDUCTIONS = {"mean": _mean, "active": _mean_of_active, "balanced": _balanced}


@register_loss("contrastive")
@dataclass(eq=False, repr=False)
class ContrastiveLoss(SimilarityLoss):
    r"""Draw positive pairs together and push negative pairs apart, up to a margin.

    :math:`[d - m_+]_+` for positive and :math:`[m_- - d]_+` for negative pairs, with the
    Euclidean distance d of unit vectors.

    Parameters
    ----------
    positive_margin, negative_margin : float
        Distances at which a positive, and a negative, pair has no loss any more.
    reduction : {"balanced", "mean", "active"}
        "balanced": the mean over positive pairs with a loss, plus the same of negative pairs.
        "mean": over all pairs. "active": over all pairs with a loss.
    miner : None, str or callable
        Which pairs to look at: a name of `miner_names`, or a miner of pytorch-metric-learning.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import ContrastiveLoss
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(ContrastiveLoss()(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    1.4368
    """

    positive_margin: float = param(0.0)
    negative_margin: float = param(1.0)
    reduction: str = param("balanced", REDUCTIONS)
    miner: Any = None

    def term(self, S: Tensor, positive: Tensor, negative: Tensor, labels: Tensor) -> Term:
        distances, slope = unit_distances(S)
        losses = torch.where(
            positive, distances - self.positive_margin, self.negative_margin - distances
        ).relu_()
        derivative = torch.where(positive, slope, -slope).mul_(losses > 0)
        return REDUCTIONS[self.reduction](losses, derivative, positive, negative)


@register_loss("margin")
@dataclass(eq=False, repr=False)
class MarginLoss(SimilarityLoss):
    r"""Ask of each pair to be on its side of a threshold, by a margin.

    :math:`[m + y (\lambda - S)]_+` with y = 1 for positive and y = -1 for negative pairs.

    Parameters
    ----------
    margin : float
        m.
    threshold : float
        :math:`\lambda`, a cosine similarity.
    reduction : {"mean", "active", "balanced"}
        The mean over all pairs, over pairs with a loss, or for each sign over pairs with a loss.
    miner : None, str or callable
        Which pairs to look at: a name of `miner_names`, or a miner of pytorch-metric-learning.

    Notes
    -----
    Papers print the labels as 0 and 1. With a 0 for y a negative pair would have the loss m
    whatever its similarity, and no gradient.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import MarginLoss
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(MarginLoss()(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.42
    """

    margin: float = param(0.2)
    threshold: float = param(0.5)
    reduction: str = param("mean", REDUCTIONS)
    miner: Any = None

    def term(self, S: Tensor, positive: Tensor, negative: Tensor, labels: Tensor) -> Term:
        losses, derivative = margin_terms(S, positive, self)
        return REDUCTIONS[self.reduction](losses, derivative, positive, negative)


@register_loss("binomial")
@dataclass(eq=False, repr=False)
class BinomialLoss(SimilarityLoss):
    r"""Compute the binomial deviance of pairs: a smooth hinge, steeper for negatives.

    :math:`\frac{2}{\beta} \log(1 + e^{-\beta (S - \lambda)})` for positive and
    :math:`\frac{2}{\alpha} \log(1 + e^{\alpha (S - \lambda)})` for negative pairs.

    Parameters
    ----------
    positive_scale, negative_scale : float
        :math:`\beta` and :math:`\alpha`.
    threshold : float
        :math:`\lambda`, a cosine similarity.
    reduction : {"mean", "active", "balanced"}
        The mean over all pairs, over pairs with a loss, or for each sign over pairs with a loss.
    miner : None, str or callable
        Which pairs to look at: a name of `miner_names`, or a miner of pytorch-metric-learning.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import BinomialLoss
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(BinomialLoss()(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.706
    """

    positive_scale: float = param(2.0, "a number above 0")
    negative_scale: float = param(40.0, "a number above 0")
    threshold: float = param(0.5)
    reduction: str = param("mean", REDUCTIONS)
    miner: Any = None

    def term(self, S: Tensor, positive: Tensor, negative: Tensor, labels: Tensor) -> Term:
        losses, derivative = binomial_terms(S, positive, self)
        return REDUCTIONS[self.reduction](losses, derivative, positive, negative)


@register_loss("multi-similarity")
@dataclass(eq=False, repr=False)
class MultiSimilarityLoss(SimilarityLoss):
    r"""Weigh each pair by its similarity and by those of the other pairs of its anchor.

    .. math:: \frac{1}{B} \sum_i \frac{1}{\alpha} \log(1 + \sum_{P_i} e^{-\alpha (S_{ik} -
              \lambda)}) + \frac{1}{\beta} \log(1 + \sum_{N_i} e^{\beta (S_{ik} -
              \lambda)})

    Parameters
    ----------
    positive_scale, negative_scale : float
        :math:`\alpha` and :math:`\beta`.
    threshold : float
        :math:`\lambda`, a cosine similarity.
    miner : None, str or callable
        Which pairs to look at: a name of `miner_names`, or a miner of pytorch-metric-learning. The
        paper's is "multi-similarity".

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import MultiSimilarityLoss
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(MultiSimilarityLoss()(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.606
    """

    positive_scale: float = param(2.0, "a number above 0")
    negative_scale: float = param(50.0, "a number above 0")
    threshold: float = param(0.5)
    miner: Any = None

    def term(self, S: Tensor, positive: Tensor, negative: Tensor, labels: Tensor) -> Term:
        scales = by_sign(positive, S, -self.positive_scale, self.negative_scale)
        scores = S.sub_(self.threshold).mul_(scales)
        near, far, weights = signed_softmax(scores, positive, negative)
        value = softplus(near, threshold=LINEAR).mean() / self.positive_scale
        value = value + softplus(far, threshold=LINEAR).mean() / self.negative_scale
        # The derivative of log(1 + e^total) / scale, with the sign of the scale.
        weights.mul_(torch.where(positive, -near.sigmoid_(), far.sigmoid_())).div_(len(scores))
        return value, weights


@register_loss("histogram")
@dataclass(eq=False, repr=False)
class HistogramLoss(SimilarityLoss):
    r"""Estimate how probable it is that a negative pair is more similar than a positive pair.

    .. math:: \sum_r h^-_r \sum_{q \le r} h^+_q

    with the histograms of the similarities of positive and of negative pairs; a pair shares its
    weight between the two nodes beside it.

    Parameters
    ----------
    bins : int
        Parts of equal width, from -1 to 1.
    miner : None, str or callable
        Which pairs to look at: a name of `miner_names`, or a miner of pytorch-metric-learning.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import HistogramLoss
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(HistogramLoss()(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    1.0
    """

    bins: int = param(100, "a whole number of at least 1")
    miner: Any = None

    def term(self, S: Tensor, positive: Tensor, negative: Tensor, labels: Tensor) -> Term:
        bins = self.bins
        places = (S + 1).mul_(bins / 2)
        left = places.floor().clamp_(0, bins - 1)
        shares, left = places.sub_(left).clamp_(0, 1), left.long()
        counts = [mask.sum().clamp_min(1) for mask in (positive, negative)]
        near, far = (
            (_node_weights(shares, left, mask, bins) / count).to(S.dtype)
            for mask, count in zip((positive, negative), counts, strict=True)
        )
        value = (far * near.cumsum(0)).sum()
        # With S both nodes of a pair change, and with them what one of the sums runs over.
        pull = far.take(left).mul_(positive).div_(counts[0])
        push = near.take(left + 1).mul_(negative).div_(counts[1])
        return value, push.sub_(pull).mul_(bins / 2)


def _node_weights(shares, left, mask, bins):
    """Return the sums of the pairs of a mask at the nodes of a histogram."""
    shares, left = shares[mask].double(), left[mask]
    return left.bincount(1 - shares, minlength=bins + 1) + (left + 1).bincount(
        shares, minlength=bins + 1
    )
