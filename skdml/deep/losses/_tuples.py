"""Losses that compare a positive pair with many negatives: lifted structure and N-pair."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ._core import (
    LINEAR,
    check_batch,
    masked_softmax,
    signed_softmax,
    similarity_loss,
    unit_distances,
    unit_rows,
)


def lifted_structure(
    embeddings: Tensor, labels: Tensor, *, margin: float = 0.0, miner: Any = None
) -> Tensor:
    r"""Compare the soft-hardest positive of each anchor with its soft-hardest negative.

    .. math:: \frac{1}{B} \sum_i [m + \log \sum_{P_i} e^{\lambda - S_{ik}} +
              \log \sum_{N_i} e^{S_{ik} - \lambda}]_+

    Parameters
    ----------
    embeddings : Tensor of shape (batch, features)
        Any length; they are scaled to unit vectors.
    labels : Tensor of shape (batch,)
        The classes, whole numbers.
    margin : float
        m. The paper's threshold :math:`\lambda` is no parameter: it cancels.
    miner : None, str or callable
        Which pairs to look at: a name of `miner_names`, or a miner of pytorch-metric-learning.

    Returns
    -------
    loss : Tensor
        A scalar. An anchor without positives, or without negatives, has no loss.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import lifted_structure
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(lifted_structure(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.1867
    """

    def term(similarities, positive, negative):
        one = similarities.new_ones(())
        sign = torch.where(positive, -one, one)
        low, high, weights = signed_softmax(similarities.mul_(sign), positive, negative)
        losses = (low + high + margin).nan_to_num_(neginf=0.0).relu_()
        return losses.mean(), weights.mul_(sign).mul_((losses > 0) * one / len(losses))

    return similarity_loss(embeddings, labels, term, miner=miner)


def lifted_structure_pairs(
    embeddings: Tensor, labels: Tensor, *, margin: float = 1.0, miner: Any = None
) -> Tensor:
    r"""Compare each positive pair with the negatives of both its ends, in distances.

    .. math:: \frac{1}{2 |P|} \sum_{(i,j) \in P} [d_{ij} + \log(\sum_{N_i} e^{m - d_{ik}} +
              \sum_{N_j} e^{m - d_{jk}})]_+^2

    the first form of the lifted-structure loss.

    Parameters
    ----------
    embeddings : Tensor of shape (batch, features)
        Any length; they are scaled to unit vectors.
    labels : Tensor of shape (batch,)
        The classes, whole numbers.
    margin : float
        m.
    miner : None, str or callable
        Which pairs to look at: a name of `miner_names`, or a miner of pytorch-metric-learning.

    Returns
    -------
    loss : Tensor
        A scalar.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import lifted_structure_pairs
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(lifted_structure_pairs(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    2.3008
    """

    def term(similarities, positive, negative):
        distances, slope = unit_distances(similarities)
        high, push = masked_softmax(margin - distances, negative)
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

    return similarity_loss(embeddings, labels, term, miner=miner)


def n_pair_tuplet(
    embeddings: Tensor,
    labels: Tensor,
    *,
    scale: float = 1.0,
    normalize: bool = True,
    miner: Any = None,
) -> Tensor:
    r"""Compare each positive pair with all negatives of its anchor: the (N+1)-tuplet loss.

    .. math:: \frac{1}{|P|} \sum_{(a,p) \in P} \log(1 + \sum_{n \in N_a}
              e^{S_{an} - S_{ap}})

    Parameters
    ----------
    embeddings : Tensor of shape (batch, features)
        Any length.
    labels : Tensor of shape (batch,)
        The classes, whole numbers.
    scale : float
        A factor of S; above 1 the nearest negatives count more.
    normalize : bool
        If S is of unit vectors, or of the embeddings as they are.
    miner : None, str or callable
        Which pairs to look at: a name of `miner_names`, or a miner of pytorch-metric-learning.

    Returns
    -------
    loss : Tensor
        A scalar.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import n_pair_tuplet
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(n_pair_tuplet(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.8437
    """

    def term(similarities, positive, negative):
        similarities.mul_(scale)
        high, push = masked_softmax(similarities, negative)
        count = positive.sum().clamp_min(1)
        gaps = (high - similarities).masked_fill_(~positive, -math.inf)
        value = softplus(gaps, threshold=LINEAR).sum() / count
        gaps.sigmoid_().mul_(scale).div_(count)
        return value, push.mul_(gaps.sum(1, keepdim=True)).sub_(gaps)

    return similarity_loss(embeddings, labels, term, miner=miner, normalize=normalize)


def _class_pairs(embeddings, labels, scale, normalize):
    """Return f_i' f_j+ of the first two rows of every class that has two, as a matrix."""
    embeddings, labels = check_batch(embeddings, labels)
    vectors = unit_rows(embeddings) if normalize else embeddings
    _, codes, counts = labels.unique(return_inverse=True, return_counts=True)
    first = (counts.cumsum(0) - counts)[counts > 1]
    order = codes.argsort(stable=True)
    scores = vectors[order[first]] @ vectors[order[first + 1]].T
    return scores * scale


def n_pair_multi_class(
    embeddings: Tensor, labels: Tensor, *, scale: float = 1.0, normalize: bool = True
) -> Tensor:
    r"""Compare one pair per class with the positives of the other classes, in one softmax.

    .. math:: \frac{1}{N} \sum_i \log(1 + \sum_{j \ne i} e^{f_i' f_j^+ - f_i' f_i^+})

    over the first two rows of each class of the batch; a class with one row takes no part.

    Parameters
    ----------
    embeddings : Tensor of shape (batch, features)
        Any length.
    labels : Tensor of shape (batch,)
        The classes, whole numbers.
    scale : float
        A factor of the products; above 1 the nearest negatives count more.
    normalize : bool
        If products are of unit vectors, or of the embeddings as they are.

    Returns
    -------
    loss : Tensor
        A scalar.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import n_pair_multi_class
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])
    >>> round(n_pair_multi_class(embeddings, torch.tensor([0, 0, 1, 1])).item(), 4)
    0.6634
    """
    scores = _class_pairs(embeddings, labels, scale, normalize)
    losses = scores.logsumexp(1) - scores.diagonal()
    return losses.sum() / max(len(losses), 1)


def n_pair_one_vs_one(
    embeddings: Tensor, labels: Tensor, *, scale: float = 1.0, normalize: bool = True
) -> Tensor:
    r"""Compare one pair per class with the positives of the other classes, one by one.

    .. math:: \frac{1}{N} \sum_i \sum_{j \ne i} \log(1 + e^{f_i' f_j^+ - f_i' f_i^+})

    over the first two rows of each class of the batch; a class with one row takes no part.

    Parameters
    ----------
    embeddings : Tensor of shape (batch, features)
        Any length.
    labels : Tensor of shape (batch,)
        The classes, whole numbers.
    scale : float
        A factor of the products; above 1 the nearest negatives count more.
    normalize : bool
        If products are of unit vectors, or of the embeddings as they are.

    Returns
    -------
    loss : Tensor
        A scalar.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import n_pair_one_vs_one
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])
    >>> round(n_pair_one_vs_one(embeddings, torch.tensor([0, 0, 1, 1])).item(), 4)
    0.6634
    """
    scores = _class_pairs(embeddings, labels, scale, normalize)
    gaps = scores - scores.diagonal()[:, None]
    others = ~torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    return (softplus(gaps, threshold=LINEAR) * others).sum() / max(len(scores), 1)
