"""Losses that are a sum over pairs, each by itself or within the group of its anchor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ._core import LINEAR, choose, signed_softmax, similarity_loss, unit_distances


def margin_terms(
    similarities: Tensor,
    positive: Tensor,
    *,
    margin: float,
    threshold: float,
    positive_scale: float = 0.0,
    negative_scale: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the margin loss of every entry of S and its derivative by S; overwrites S.

    What is not positive counts as negative. The scales, of the other pair loss, are not used.
    """
    one = similarities.new_ones(())
    sign = torch.where(positive, -one, one)
    losses = similarities.sub_(threshold).mul_(sign).add_(margin).relu_()
    return losses, sign.mul_(losses > 0)


def binomial_terms(
    similarities: Tensor,
    positive: Tensor,
    *,
    threshold: float,
    positive_scale: float,
    negative_scale: float,
    margin: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the binomial deviance of every entry of S and its derivative by S; overwrites S.

    What is not positive counts as negative. The margin, of the other pair loss, is not used.
    """
    one = similarities.new_ones(())
    scale = torch.where(positive, -positive_scale * one, negative_scale * one)
    scores = similarities.sub_(threshold).mul_(scale)
    losses = softplus(scores, threshold=LINEAR).div_(scale.abs()).mul_(2)
    return losses, scores.sigmoid_().mul_(scale.sign_()).mul_(2)


PAIR_LOSSES: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "margin": margin_terms,
    "binomial": binomial_terms,
}


def _mean(losses, derivative, positive, negative):
    kept = positive | negative
    count = kept.sum().clamp_min(1)
    return (losses * kept).sum() / count, derivative.mul_(kept).div_(count)


def _mean_of_active(losses, derivative, positive, negative):
    kept = (positive | negative) & (losses > 0)
    count = kept.sum().clamp_min(1)
    return (losses * kept).sum() / count, derivative.mul_(kept).div_(count)


def _balanced(losses, derivative, positive, negative):
    value, weights = _mean_of_active(
        losses, derivative.clone(), positive, torch.zeros_like(negative)
    )
    other, more = _mean_of_active(losses, derivative, torch.zeros_like(positive), negative)
    return value + other, weights.add_(more)


REDUCTIONS = {"mean": _mean, "active": _mean_of_active, "balanced": _balanced}


def contrastive(
    embeddings: Tensor,
    labels: Tensor,
    *,
    positive_margin: float = 0.0,
    negative_margin: float = 1.0,
    reduction: str = "balanced",
    miner: Any = None,
) -> Tensor:
    r"""Draw positive pairs together and push negative pairs apart, up to a margin.

    :math:`[d - m_+]_+` for positive and :math:`[m_- - d]_+` for negative pairs, with the
    Euclidean distance d of unit vectors.

    Parameters
    ----------
    embeddings : Tensor of shape (batch, features)
        Any length; they are scaled to unit vectors.
    labels : Tensor of shape (batch,)
        The classes, whole numbers.
    positive_margin, negative_margin : float
        Distances at which a positive, and a negative, pair has no loss any more.
    reduction : {"balanced", "mean", "active"}
        "balanced": the mean over positive pairs with a loss, plus the same of negative pairs.
        "mean": over all pairs. "active": over all pairs with a loss.
    miner : None, str or callable
        Which pairs to look at: a name of `miner_names`, or a miner of pytorch-metric-learning.

    Returns
    -------
    loss : Tensor
        A scalar.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import contrastive
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(contrastive(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    1.4368
    """
    reduce = choose(REDUCTIONS, reduction, "reduction")

    def term(similarities, positive, negative):
        distances, slope = unit_distances(similarities)
        losses = torch.where(positive, distances - positive_margin, negative_margin - distances)
        losses.relu_()
        derivative = torch.where(positive, slope, -slope).mul_(losses > 0)
        return reduce(losses, derivative, positive, negative)

    return similarity_loss(embeddings, labels, term, miner=miner)


def margin(
    embeddings: Tensor,
    labels: Tensor,
    *,
    margin: float = 0.2,
    threshold: float = 0.5,
    reduction: str = "mean",
    miner: Any = None,
) -> Tensor:
    r"""Ask of each pair to be on its side of a threshold, by a margin.

    :math:`[m + y (\lambda - S)]_+` with y = 1 for positive and y = -1 for negative pairs.

    Parameters
    ----------
    embeddings : Tensor of shape (batch, features)
        Any length; they are scaled to unit vectors.
    labels : Tensor of shape (batch,)
        The classes, whole numbers.
    margin : float
        m.
    threshold : float
        :math:`\lambda`, a cosine similarity.
    reduction : {"mean", "active", "balanced"}
        The mean over all pairs, over pairs with a loss, or for each sign over pairs with a loss.
    miner : None, str or callable
        Which pairs to look at: a name of `miner_names`, or a miner of pytorch-metric-learning.

    Returns
    -------
    loss : Tensor
        A scalar.

    Notes
    -----
    Papers print the labels as 0 and 1. With a 0 for y a negative pair would have the loss m
    whatever its similarity, and no gradient.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import margin
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(margin(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.42
    """
    reduce = choose(REDUCTIONS, reduction, "reduction")

    def term(similarities, positive, negative):
        terms = margin_terms(similarities, positive, margin=margin, threshold=threshold)
        return reduce(*terms, positive, negative)

    return similarity_loss(embeddings, labels, term, miner=miner)


def binomial(
    embeddings: Tensor,
    labels: Tensor,
    *,
    positive_scale: float = 2.0,
    negative_scale: float = 40.0,
    threshold: float = 0.5,
    reduction: str = "mean",
    miner: Any = None,
) -> Tensor:
    r"""Compute the binomial deviance of pairs: a smooth hinge, steeper for negatives.

    :math:`\frac{2}{\beta} \log(1 + e^{-\beta (S - \lambda)})` for positive and
    :math:`\frac{2}{\alpha} \log(1 + e^{\alpha (S - \lambda)})` for negative pairs.

    Parameters
    ----------
    embeddings : Tensor of shape (batch, features)
        Any length; they are scaled to unit vectors.
    labels : Tensor of shape (batch,)
        The classes, whole numbers.
    positive_scale, negative_scale : float
        :math:`\beta` and :math:`\alpha`.
    threshold : float
        :math:`\lambda`, a cosine similarity.
    reduction : {"mean", "active", "balanced"}
        The mean over all pairs, over pairs with a loss, or for each sign over pairs with a loss.
    miner : None, str or callable
        Which pairs to look at: a name of `miner_names`, or a miner of pytorch-metric-learning.

    Returns
    -------
    loss : Tensor
        A scalar.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import binomial
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(binomial(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.706
    """
    reduce = choose(REDUCTIONS, reduction, "reduction")

    def term(similarities, positive, negative):
        terms = binomial_terms(
            similarities,
            positive,
            threshold=threshold,
            positive_scale=positive_scale,
            negative_scale=negative_scale,
        )
        return reduce(*terms, positive, negative)

    return similarity_loss(embeddings, labels, term, miner=miner)


def multi_similarity(
    embeddings: Tensor,
    labels: Tensor,
    *,
    positive_scale: float = 2.0,
    negative_scale: float = 50.0,
    threshold: float = 0.5,
    miner: Any = None,
) -> Tensor:
    r"""Weigh each pair by its similarity and by those of the other pairs of its anchor.

    .. math:: \frac{1}{B} \sum_i \frac{1}{\alpha} \log(1 + \sum_{P_i} e^{-\alpha (S_{ik} -
              \lambda)}) + \frac{1}{\beta} \log(1 + \sum_{N_i} e^{\beta (S_{ik} -
              \lambda)})

    Parameters
    ----------
    embeddings : Tensor of shape (batch, features)
        Any length; they are scaled to unit vectors.
    labels : Tensor of shape (batch,)
        The classes, whole numbers.
    positive_scale, negative_scale : float
        :math:`\alpha` and :math:`\beta`.
    threshold : float
        :math:`\lambda`, a cosine similarity.
    miner : None, str or callable
        Which pairs to look at: a name of `miner_names`, or a miner of pytorch-metric-learning. The
        paper's is "multi-similarity".

    Returns
    -------
    loss : Tensor
        A scalar.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import multi_similarity
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(multi_similarity(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.606
    """

    def term(similarities, positive, negative):
        one = similarities.new_ones(())
        scales = torch.where(positive, -positive_scale * one, negative_scale * one)
        scores = similarities.sub_(threshold).mul_(scales)
        near, far, weights = signed_softmax(scores, positive, negative)
        value = softplus(near, threshold=LINEAR).mean() / positive_scale
        value = value + softplus(far, threshold=LINEAR).mean() / negative_scale
        # The derivative of log(1 + e^total) / scale, with the sign of the scale.
        weights.mul_(torch.where(positive, -near.sigmoid_(), far.sigmoid_())).div_(len(scores))
        return value, weights

    return similarity_loss(embeddings, labels, term, miner=miner)


def histogram(embeddings: Tensor, labels: Tensor, *, bins: int = 100, miner: Any = None) -> Tensor:
    r"""Estimate how probable it is that a negative pair is more similar than a positive pair.

    .. math:: \sum_r h^-_r \sum_{q \le r} h^+_q

    with the histograms of the similarities of positive and of negative pairs; a pair shares its
    weight between the two nodes beside it.

    Parameters
    ----------
    embeddings : Tensor of shape (batch, features)
        Any length; they are scaled to unit vectors.
    labels : Tensor of shape (batch,)
        The classes, whole numbers.
    bins : int
        Parts of equal width, from -1 to 1.
    miner : None, str or callable
        Which pairs to look at: a name of `miner_names`, or a miner of pytorch-metric-learning.

    Returns
    -------
    loss : Tensor
        A scalar.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import histogram
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(histogram(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    1.0
    """

    def term(similarities, positive, negative):
        places = (similarities + 1).mul_(bins / 2)
        left = places.floor().clamp_(0, bins - 1)
        shares, left = places.sub_(left).clamp_(0, 1), left.long()
        counts = [mask.sum().clamp_min(1) for mask in (positive, negative)]
        near, far = (
            (_node_weights(shares, left, mask, bins) / count).to(similarities.dtype)
            for mask, count in zip((positive, negative), counts, strict=True)
        )
        value = (far * near.cumsum(0)).sum()
        # With S both nodes of a pair change, and with them what one of the sums runs over.
        pull = far.take(left).mul_(positive).div_(counts[0])
        push = near.take(left + 1).mul_(negative).div_(counts[1])
        return value, push.sub_(pull).mul_(bins / 2)

    return similarity_loss(embeddings, labels, term, miner=miner)


def _node_weights(shares, left, mask, bins):
    """Return the sums of the pairs of a mask at the nodes of a histogram."""
    shares, left = shares[mask].double(), left[mask]
    return left.bincount(1 - shares, minlength=bins + 1) + (left + 1).bincount(
        shares, minlength=bins + 1
    )
