"""Robust losses over the pairs of a batch: the worst weights that an uncertainty set allows.

A robust loss is the largest weighted sum of pair losses, max over p of sum p_ij l_ij, over a set of
distributions p. Its gradient is the sum of p*_ij grad l_ij with the optimal p*, which all sets here
have in closed form. The functions below take the losses of pairs to the value and p*.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ._core import (
    SimilarityLoss,
    SparseWeights,
    check_choice,
    check_numbers,
    masked_exp,
    register_loss,
    signed_softmax,
    zero_like,
)
from ._pairs import binomial_terms, margin_terms

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
    losses: Tensor, derivative: Tensor, positive: Tensor, negative: Tensor, *, k: int | None = None
) -> Weighed:
    """Mean of the k largest: p <= 1/k."""
    k = 2 * len(losses) if k is None else k
    values, places = _largest(losses, positive | negative, k)
    return _mean_of_places(values, places, derivative)


def top_k_of_each_sign(
    losses: Tensor, derivative: Tensor, positive: Tensor, negative: Tensor, *, k: int | None = None
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
    gamma: float = 0.1,
    sample: int | None = None,
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
    gamma: float | tuple[float, float] = (0.5, 0.02),
    null_loss: float | None = None,
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
    losses: Tensor, derivative: Tensor, positive: Tensor, negative: Tensor, *, radius: float = 1.0
) -> Weighed:
    """Weights of the chi-square ball over all pairs with a loss."""
    mask = (positive | negative) & (losses > 0)
    value, weights = ball_weights(losses, mask, radius)
    return value, weights.mul_(derivative)


def _by_function(weights):
    """Return a user's function of pair losses as one of this module."""

    def weigh(losses, derivative, positive, negative):
        rows, columns = (positive | negative).triu(1).nonzero(as_tuple=True)
        values = losses[rows, columns]
        shares = weights(values)
        if not isinstance(shares, Tensor) or shares.shape != values.shape:
            got = tuple(shares.shape) if isinstance(shares, Tensor) else type(shares).__name__
            raise TypeError(
                f"weights must return one weight for each of the {len(values)} pair losses that "
                f"it gets, got {got}"
            )
        shares = shares.detach().to(values.dtype)
        return (shares * values).sum(), SparseWeights(
            rows, columns, shares * derivative[rows, columns], ordered=False
        )

    return weigh


WEIGHTS: dict[str, Callable[..., Weighed]] = {
    "topk": top_k,
    "topk-pn": top_k_of_each_sign,
    "kl": kl,
    "kl-g": kl_of_groups,
    "max": largest,
    "variance": variance,
}
PAIR_LOSSES: dict[str, tuple[Callable[..., tuple[Tensor, Tensor]], tuple[str, ...]]] = {
    "margin": (margin_terms, ("margin", "threshold")),
    "binomial": (binomial_terms, ("threshold", "positive_scale", "negative_scale")),
}


def _own_parameters(weights):
    """Return the parameters of the function that finds the weights."""
    parameters = inspect.signature(weights).parameters.values()
    return [p for p in parameters if p.kind is p.KEYWORD_ONLY]


class DROLoss(SimilarityLoss):
    r"""Take the worst weighted mean of pair losses that an uncertainty set allows.

    :math:`\max_p \sum p_{ij} l_{ij}` over a set of weights p, which have a closed form.

    Parameters
    ----------
    weights : str or callable, default="topk"
        - "topk": the mean of the `k` largest losses of unordered pairs; None is twice the batch
          size. Outliers weigh less than with "max", easy pairs less than in a mean.
        - "topk-pn": the `k` / 2 largest of positive and of negative pairs.
        - "kl": weights :math:`e^{l/\gamma}` over all pairs with a loss, whose value is
          :math:`\gamma \log \frac{1}{n} \sum e^{l/\gamma}`. A small `gamma` (0.1) looks at the
          largest losses alone, a large one at the mean. With `sample`, so many pairs are drawn from
          these weights with torch's global generator.
        - "kl-g": the same within the pairs of one anchor and one sign, mean over anchors; `gamma`
          is one number or one for each sign, (0.5, 0.02). `null_loss` is the loss of one more
          pair in every group, which has no gradient: a group with smaller losses weighs less. When
          all pairs have a loss, gamma=1 is the lifted-structure loss up to a constant, and with a
          null pair gamma=(1/a, 1/b) the multi-similarity loss of the scales a and b.
        - "max": the largest loss. One outlier decides.
        - "variance": weights with :math:`\frac{1}{2n} \sum (n p - 1)^2 \le \rho` over the n pairs
          with a loss, :math:`\rho` = `radius` (1); some papers call n times this number rho. As
          long as no weight is zero, the mean plus :math:`\sqrt{2 \rho}` standard deviations.
        - A function from the losses of unordered pairs, a vector, to their weights.
    pair_loss : {"margin", "binomial"} or callable, default="margin"
        The loss of a pair; see `MarginLoss` and `BinomialLoss`. A function takes the similarities
        and the mask of positive pairs, and returns a loss for each pair, not negative.
    margin, threshold, positive_scale, negative_scale : float
        Parameters of the pair loss.
    miner : None, str or callable, default=None
        Which pairs to look at. The weights are a miner already, so the default is all.
    **params
        Parameters of the weights, named above: `k`, `gamma`, `sample`, `null_loss`, `radius`.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import DROLoss
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> labels = torch.tensor([0, 0, 1])
    >>> round(DROLoss("max")(embeddings, labels).item(), 4)
    0.66
    >>> round(DROLoss(lambda losses: torch.softmax(losses / 0.1, 0))(embeddings, labels).item(), 4)
    0.6315
    """

    def __init__(
        self,
        weights: str | Callable[..., Any] = "topk",
        pair_loss: str | Callable[..., Any] = "margin",
        margin: float = 0.2,
        threshold: float = 0.5,
        positive_scale: float = 2.0,
        negative_scale: float = 40.0,
        miner: Any = None,
        **params: Any,
    ) -> None:
        super().__init__(miner)
        if not callable(weights):
            check_choice(WEIGHTS, weights, "weights")
        if not callable(pair_loss):
            check_choice(PAIR_LOSSES, pair_loss, "pair_loss")
        check_numbers(margin=margin, threshold=threshold)
        check_numbers(above=0, positive_scale=positive_scale, negative_scale=negative_scale)
        own = [] if callable(weights) else [p.name for p in _own_parameters(WEIGHTS[weights])]
        _check_own(params, own, weights)
        self.weights, self.pair_loss, self.params = weights, pair_loss, params
        self.margin, self.threshold = margin, threshold
        self.positive_scale, self.negative_scale = positive_scale, negative_scale

    def term(
        self, similarities: Tensor, positive: Tensor, negative: Tensor, labels: Tensor
    ) -> Weighed:
        if self.miner is not None and self.weights != "kl-g":
            # A miner may keep a pair from one of its ends only.
            positive, negative = positive | positive.T, negative | negative.T
        if callable(self.weights):
            weigh = _by_function(self.weights)
        else:
            weigh = partial(WEIGHTS[self.weights], **self.params)
        return weigh(*self._pair_losses(similarities, positive), positive, negative)

    def _pair_losses(self, similarities, positive):
        """Return the loss of every entry of S, and its derivative by S."""
        if not callable(self.pair_loss):
            terms, names = PAIR_LOSSES[self.pair_loss]
            return terms(similarities, positive, **{name: getattr(self, name) for name in names})
        with torch.enable_grad():
            similarities = similarities.detach().requires_grad_()
            losses = self.pair_loss(similarities, positive)
            if not isinstance(losses, Tensor) or losses.shape != similarities.shape:
                got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
                raise TypeError(
                    "pair_loss must return a loss for each of the similarities, of shape "
                    f"{tuple(similarities.shape)}, got {got}"
                )
            (derivative,) = torch.autograd.grad(losses.sum(), similarities)
        return losses.detach(), derivative


def _check_own(params, own, weights):
    for name, value in params.items():
        if name not in own:
            takes = f"it has: {', '.join(own)}" if own else "it has none"
            raise TypeError(f"weights={weights!r} have no parameter {name!r}; {takes}")
        if name == "gamma" and weights == "kl-g" and isinstance(value, (tuple, list)):
            if len(value) != 2:
                raise ValueError(f"gamma must be one number or two, got {value!r}")
            for number in value:
                check_numbers(above=0, gamma=number)
        elif name in ("gamma", "radius"):
            check_numbers(above=0, **{name: value})
        elif value is not None:
            check_numbers(whole=name in ("k", "sample"), **{name: value})


def _named(weights):
    """Return a function that makes a `DROLoss` of given weights, with their parameters alone."""

    def make(**params):
        return DROLoss(weights, **params)

    shared = list(inspect.signature(DROLoss).parameters.values())[1:-1]
    parameters = [*_own_parameters(WEIGHTS[weights]), *shared]
    make.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=p.KEYWORD_ONLY) for p in parameters]
    )
    return make


for _name in WEIGHTS:
    register_loss(f"dro-{_name}", _named(_name))
