"""Robust losses over the pairs of a batch: the worst weights that an uncertainty set allows.

A robust loss is the largest weighted sum of pair losses, max over p of sum p_ij l_ij, over a set of
distributions p. Its gradient is the sum of p*_ij grad l_ij with the optimal p*, which all sets here
have in closed form. The functions below take the losses of pairs to the value and p*.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ._core import SparseWeights, choose, masked_exp, signed_softmax, similarity_loss, zero_like
from ._pairs import PAIR_LOSSES

# A loss, and its derivative by S.
Weighed: TypeAlias = tuple[Tensor, Tensor | SparseWeights]


@lru_cache(maxsize=4)
def _upper_places(size: int, device: torch.device) -> Tensor:
    """Return the places of the upper triangle in a flattened matrix."""
    rows, columns = torch.triu_indices(size, size, 1, device=device)
    return rows * size + columns


def _largest(losses: Tensor, mask: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest losses over the unordered pairs of a mask, and their places."""
    places = _upper_places(len(losses), losses.device)
    values = torch.where(mask, losses, -math.inf).take(places)
    top = values.topk(min(k, len(values)), sorted=False)
    kept = top.values > -math.inf
    return top.values[kept], places[top.indices[kept]]


def _weigh(places: Tensor, weights: Tensor, derivative: Tensor) -> SparseWeights:
    """Return the derivative by S from the weights of pairs, which are of two equal ends."""
    size = len(derivative)
    rows = torch.div(places, size, rounding_mode="floor")
    return SparseWeights(
        rows, places - rows * size, weights * derivative.take(places), ordered=False
    )


def _mean_of_places(values, places, derivative):
    if len(values) == 0:
        return zero_like(derivative), _weigh(places, values, derivative)
    share = torch.full_like(values, 1 / len(values))
    return values.mean(), _weigh(places, share, derivative)


def top_k(
    losses: Tensor, derivative: Tensor, positive: Tensor, negative: Tensor, *, k: int | None
) -> Weighed:
    """Mean of the k largest: p <= 1/k."""
    k = 2 * len(losses) if k is None else k
    values, places = _largest(losses, positive | negative, k)
    return _mean_of_places(values, places, derivative)


def top_k_of_each_sign(
    losses: Tensor, derivative: Tensor, positive: Tensor, negative: Tensor, *, k: int | None
) -> Weighed:
    """Mean of the k/2 largest of each sign."""
    half = (2 * len(losses) if k is None else k + 1) // 2
    parts = [_largest(losses, mask, half) for mask in (positive, negative)]
    values, places = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return _mean_of_places(values, places, derivative)


def largest(losses: Tensor, derivative: Tensor, positive: Tensor, negative: Tensor) -> Weighed:
    """Return the largest loss: any p."""
    return top_k(losses, derivative, positive, negative, k=1)


def kl_weights(losses: Tensor, mask: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Maximise sum p l - gamma KL(p || uniform) over the pairs of the mask.

    Returns the maximum, gamma (logsumexp(l / gamma) - log n), and p as a matrix.
    """
    count = int(mask.sum())
    if count == 0:
        return zero_like(losses), torch.zeros_like(losses)
    top = torch.where(mask, losses, -math.inf).max()
    weights = masked_exp((losses - top).mul_(1 / gamma), mask)
    total = weights.sum()
    value = top + gamma * (total.log() - math.log(count))
    return value, weights.mul_(1 / total)


def kl(
    losses: Tensor,
    derivative: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    gamma: float,
    sample: int | None,
) -> Weighed:
    """Weights softmax(l / gamma) over all pairs with a loss."""
    value, weights = kl_weights(losses, (positive | negative) & (losses > 0), gamma)
    if sample is None:
        return value, weights.mul_(derivative)
    cumulative = weights.flatten().cumsum(0, dtype=torch.float64)
    if weights.numel() == 0 or cumulative[-1] == 0:
        return value, weights
    drawn = torch.rand(sample, dtype=torch.float64, device=weights.device) * cumulative[-1]
    places = torch.searchsorted(cumulative, drawn, right=True).clamp_max_(weights.numel() - 1)
    return _mean_of_places(losses.take(places), places, derivative)


def kl_of_groups(
    losses: Tensor,
    derivative: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    gamma: float | tuple[float, float],
    null_loss: float | None,
) -> Weighed:
    """Weights softmax(l / gamma) over the pairs with a loss of one anchor and one sign."""
    gammas = gamma if isinstance(gamma, (tuple, list)) else (gamma, gamma)
    active = losses > 0
    positive, negative = positive & active, negative & active
    one = losses.new_ones(())
    scores = losses * torch.where(positive, one / gammas[0], one / gammas[1])
    *totals, weights = signed_softmax(scores, positive, negative)
    value, lifts = zero_like(losses), []
    for mask, scale, total in zip((positive, negative), gammas, totals, strict=True):
        count = mask.sum(1, keepdim=True)
        if null_loss is not None:
            # One more pair in the group, of a given loss and without a gradient.
            null = torch.full_like(total, null_loss / scale)
            lifts.append((total - null).sigmoid_())
            total, count = torch.logaddexp(total, null), count + 1
        excess = (total - count.to(total.dtype).log()).masked_fill_(count == 0, 0)
        value = value + scale * excess.mean()
    if lifts:
        weights.mul_(torch.where(positive, lifts[0], lifts[1]))
    return value, weights.mul_(derivative).div_(len(losses))


def ball_weights(losses: Tensor, mask: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """Maximise sum p l over p with a chi-square divergence from uniform of at most the radius.

    The optimum is p proportional to [l - eta]_+. With the set of pairs above eta held, eta has a
    closed form; it only rises from one set to the next, so the loop ends at the exact optimum.
    """
    count = int(mask.sum())
    if count == 0:
        return zero_like(losses), torch.zeros_like(losses)
    losses = torch.where(mask, losses, 0)
    values, size = losses, count
    mean = losses.sum(dtype=torch.float64).item() / count
    spread = losses.square().sum(dtype=torch.float64).item() / count - mean**2
    while True:
        # The set must hold 1 / (1 + 2 radius) of the pairs, or the ball reaches beyond its corner.
        room = size / count * (1 + 2 * radius) - 1
        if room <= 0 or spread <= 1e-14 * mean**2:
            floor = losses.max() if values is losses else values.min()
            weights = (mask & (losses >= floor)).to(losses.dtype)
            break
        eta = mean - math.sqrt(spread / room)
        above = values > eta
        if values is losses:
            above &= mask
        if above.count_nonzero() == size:
            weights = torch.where(mask, losses - eta, 0).relu_()
            break
        values = values[above].double()
        size, mean, spread = len(values), values.mean().item(), values.var(correction=0).item()
    weights.mul_(1 / weights.sum())
    return (weights * losses).sum(), weights


def variance(
    losses: Tensor, derivative: Tensor, positive: Tensor, negative: Tensor, *, radius: float
) -> Weighed:
    """Weights of the chi-square ball over all pairs with a loss."""
    mask = (positive | negative) & (losses > 0)
    value, weights = ball_weights(losses, mask, radius)
    return value, weights.mul_(derivative)


def robust_loss(
    embeddings: Tensor,
    labels: Tensor,
    weigh: partial[Weighed],
    *,
    pair_loss: str,
    margin: float,
    threshold: float,
    positive_scale: float,
    negative_scale: float,
    miner: Any,
) -> Tensor:
    """Compute a robust loss: pair losses of S, weighed by a function of this module."""
    terms = choose(PAIR_LOSSES, pair_loss, "pair_loss")

    def term(similarities, positive, negative):
        if miner is not None and weigh.func is not kl_of_groups:
            # A miner may keep a pair from one of its ends only.
            positive, negative = positive | positive.T, negative | negative.T
        losses, derivative = terms(
            similarities,
            positive,
            margin=margin,
            threshold=threshold,
            positive_scale=positive_scale,
            negative_scale=negative_scale,
        )
        return weigh(losses, derivative, positive, negative)

    return similarity_loss(embeddings, labels, term, miner=miner)
