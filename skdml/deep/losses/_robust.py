"""The robust losses by name: pair losses under the worst weights, which `_dro` finds."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from ._dro import (
    kl,
    kl_of_groups,
    largest,
    robust_loss,
    top_k,
    top_k_of_each_sign,
    variance,
)


def dro_topk(
    embeddings: Tensor,
    labels: Tensor,
    *,
    k: int | None = None,
    pair_loss: str = "margin",
    margin: float = 0.2,
    threshold: float = 0.5,
    positive_scale: float = 2.0,
    negative_scale: float = 40.0,
    miner: Any = None,
) -> Tensor:
    """Take the mean of the K largest pair losses of the batch.

    The worst weights that are at most 1/K each. Outliers weigh less than in `dro_max`, easy pairs
    less than in a mean.

    Parameters
    ----------
    embeddings : Tensor of shape (batch, features)
        Any length; they are scaled to unit vectors.
    labels : Tensor of shape (batch,)
        The classes, whole numbers.
    k : int or None
        K, of unordered pairs; None is twice the batch size.
    pair_loss : {"margin", "binomial"}
        The loss of a pair; see `margin` and `binomial`.
    margin, threshold, positive_scale, negative_scale : float
        Parameters of the pair loss.
    miner : None, str or callable
        Which pairs to look at. The weights are a miner already, so the default is all.

    Returns
    -------
    loss : Tensor
        A scalar.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import dro_topk
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(dro_topk(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.42
    """
    return robust_loss(
        embeddings,
        labels,
        partial(top_k, k=k),
        pair_loss=pair_loss,
        margin=margin,
        threshold=threshold,
        positive_scale=positive_scale,
        negative_scale=negative_scale,
        miner=miner,
    )


def dro_topk_pn(
    embeddings: Tensor,
    labels: Tensor,
    *,
    k: int | None = None,
    pair_loss: str = "margin",
    margin: float = 0.2,
    threshold: float = 0.5,
    positive_scale: float = 2.0,
    negative_scale: float = 40.0,
    miner: Any = None,
) -> Tensor:
    """Take the mean of the K/2 largest losses of positive and of negative pairs.

    As `dro_topk`, with both signs in the same number however rare positive pairs are.

    Parameters
    ----------
    embeddings : Tensor of shape (batch, features)
        Any length; they are scaled to unit vectors.
    labels : Tensor of shape (batch,)
        The classes, whole numbers.
    k : int or None
        K, of unordered pairs, half for each sign; None is twice the batch size.
    pair_loss : {"margin", "binomial"}
        The loss of a pair; see `margin` and `binomial`.
    margin, threshold, positive_scale, negative_scale : float
        Parameters of the pair loss.
    miner : None, str or callable
        Which pairs to look at. The weights are a miner already, so the default is all.

    Returns
    -------
    loss : Tensor
        A scalar.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import dro_topk_pn
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(dro_topk_pn(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.42
    """
    return robust_loss(
        embeddings,
        labels,
        partial(top_k_of_each_sign, k=k),
        pair_loss=pair_loss,
        margin=margin,
        threshold=threshold,
        positive_scale=positive_scale,
        negative_scale=negative_scale,
        miner=miner,
    )


def dro_kl(
    embeddings: Tensor,
    labels: Tensor,
    *,
    gamma: float = 0.1,
    sample: int | None = None,
    pair_loss: str = "margin",
    margin: float = 0.2,
    threshold: float = 0.5,
    positive_scale: float = 2.0,
    negative_scale: float = 40.0,
    miner: Any = None,
) -> Tensor:
    r"""Weigh pair losses by their softmax: the worst weights with a penalty on their divergence.

    .. math:: \max_p \sum p\,l - \gamma\,\mathrm{KL}(p \| 1/n) =
              \gamma \log \frac{1}{n} \sum e^{l / \gamma}

    over the n pairs with a loss; the weights are :math:`p \propto e^{l/\gamma}`.

    Parameters
    ----------
    embeddings : Tensor of shape (batch, features)
        Any length; they are scaled to unit vectors.
    labels : Tensor of shape (batch,)
        The classes, whole numbers.
    gamma : float
        :math:`\gamma`. Small: the largest losses alone. Large: the mean.
    sample : int or None
        Draw so many pairs from p, with torch's global generator, and take their mean loss.
    pair_loss : {"margin", "binomial"}
        The loss of a pair; see `margin` and `binomial`.
    margin, threshold, positive_scale, negative_scale : float
        Parameters of the pair loss.
    miner : None, str or callable
        Which pairs to look at. The weights are a miner already, so the default is all.

    Returns
    -------
    loss : Tensor
        A scalar.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import dro_kl
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(dro_kl(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.5688
    """
    return robust_loss(
        embeddings,
        labels,
        partial(kl, gamma=gamma, sample=sample),
        pair_loss=pair_loss,
        margin=margin,
        threshold=threshold,
        positive_scale=positive_scale,
        negative_scale=negative_scale,
        miner=miner,
    )


def dro_kl_g(
    embeddings: Tensor,
    labels: Tensor,
    *,
    gamma: float | tuple[float, float] = (0.5, 0.02),
    null_loss: float | None = None,
    pair_loss: str = "margin",
    margin: float = 0.2,
    threshold: float = 0.5,
    positive_scale: float = 2.0,
    negative_scale: float = 40.0,
    miner: Any = None,
) -> Tensor:
    r"""Weigh pair losses by their softmax within the pairs of one anchor and one sign.

    The mean over anchors of :math:`\gamma \log \frac{1}{n} \sum e^{l/\gamma}` over the anchor's
    positive pairs with a loss, plus the same over its negative pairs with a loss.

    Two other losses are special cases, up to a constant, when all pairs have a loss: with gamma=1
    `lifted_structure`, and with a null pair and gamma=(1/a, 1/b) `multi_similarity` with the scales
    a and b. The default has the scales that are usual there; the literature on robust losses takes
    0.1 for both signs.

    Parameters
    ----------
    embeddings : Tensor of shape (batch, features)
        Any length; they are scaled to unit vectors.
    labels : Tensor of shape (batch,)
        The classes, whole numbers.
    gamma : float or (float, float)
        :math:`\gamma`, or one for positive and one for negative pairs.
    null_loss : float or None
        The loss of one more pair in every group, which has no gradient; None adds none. A group
        whose pairs have smaller losses is then weighed down.
    pair_loss : {"margin", "binomial"}
        The loss of a pair; see `margin` and `binomial`.
    margin, threshold, positive_scale, negative_scale : float
        Parameters of the pair loss.
    miner : None, str or callable
        Which pairs to look at. The weights are a miner already, so the default is all.

    Returns
    -------
    loss : Tensor
        A scalar.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import dro_kl_g
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(dro_kl_g(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.6687
    """
    return robust_loss(
        embeddings,
        labels,
        partial(kl_of_groups, gamma=gamma, null_loss=null_loss),
        pair_loss=pair_loss,
        margin=margin,
        threshold=threshold,
        positive_scale=positive_scale,
        negative_scale=negative_scale,
        miner=miner,
    )


def dro_max(
    embeddings: Tensor,
    labels: Tensor,
    *,
    pair_loss: str = "margin",
    margin: float = 0.2,
    threshold: float = 0.5,
    positive_scale: float = 2.0,
    negative_scale: float = 40.0,
    miner: Any = None,
) -> Tensor:
    """Take the largest pair loss of the batch.

    The worst weights without a limit. One outlier decides.

    Parameters
    ----------
    embeddings : Tensor of shape (batch, features)
        Any length; they are scaled to unit vectors.
    labels : Tensor of shape (batch,)
        The classes, whole numbers.
    pair_loss : {"margin", "binomial"}
        The loss of a pair; see `margin` and `binomial`.
    margin, threshold, positive_scale, negative_scale : float
        Parameters of the pair loss.
    miner : None, str or callable
        Which pairs to look at. The weights are a miner already, so the default is all.

    Returns
    -------
    loss : Tensor
        A scalar.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import dro_max
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(dro_max(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.66
    """
    return robust_loss(
        embeddings,
        labels,
        partial(largest),
        pair_loss=pair_loss,
        margin=margin,
        threshold=threshold,
        positive_scale=positive_scale,
        negative_scale=negative_scale,
        miner=miner,
    )


def dro_variance(
    embeddings: Tensor,
    labels: Tensor,
    *,
    radius: float = 1.0,
    pair_loss: str = "margin",
    margin: float = 0.2,
    threshold: float = 0.5,
    positive_scale: float = 2.0,
    negative_scale: float = 40.0,
    miner: Any = None,
) -> Tensor:
    r"""Take the worst mean of pair losses over weights within a ball around the uniform ones.

    .. math:: \max_p \sum p\,l \quad \text{with} \quad
              \frac{1}{2n} \sum (n p - 1)^2 \le \rho

    over the n pairs with a loss. As long as no weight of it is zero, this is the mean of the losses
    plus :math:`\sqrt{2 \rho}` times their standard deviation.

    Parameters
    ----------
    embeddings : Tensor of shape (batch, features)
        Any length; they are scaled to unit vectors.
    labels : Tensor of shape (batch,)
        The classes, whole numbers.
    radius : float
        :math:`\rho`, of the chi-square divergence. Some papers call n times this number rho.
    pair_loss : {"margin", "binomial"}
        The loss of a pair; see `margin` and `binomial`.
    margin, threshold, positive_scale, negative_scale : float
        Parameters of the pair loss.
    miner : None, str or callable
        Which pairs to look at. The weights are a miner already, so the default is all.

    Returns
    -------
    loss : Tensor
        A scalar.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import dro_variance
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(dro_variance(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.66
    """
    return robust_loss(
        embeddings,
        labels,
        partial(variance, radius=radius),
        pair_loss=pair_loss,
        margin=margin,
        threshold=threshold,
        positive_scale=positive_scale,
        negative_scale=negative_scale,
        miner=miner,
    )
