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
from typing import Any

import torch
from torch import Tensor

from ._core import (
    SimilarityLoss,
    SparseWeights,
    Term,
    check_param,
    masked_exp,
    register_loss,
    signed_softmax,
)
from ._pairs import binomial_terms, margin_terms

# Halvings of an interval of logarithms: enough for double precision.
_BISECTIONS = 60


@lru_cache(maxsize=4)
def _upper_places(size, device):
    """Return the places of the upper triangle in a flattened matrix."""
    rows, columns = torch.triu_indices(size, size, 1, device=device)
    return rows * size + columns


def _largest(losses, mask, k):
    """Return the k largest losses over the unordered pairs of a mask, and their places."""
    places = _upper_places(len(losses), losses.device)
    values = torch.where(mask, losses, -math.inf).take(places)
    top = values.topk(min(k, len(values)), sorted=False)
    kept = top.values > -math.inf
    return top.values[kept], places[top.indices[kept]]


def _weigh(places, weights, derivative):
    """Return the derivative by S from the weights of pairs, which are of two equal ends."""
    rows = torch.div(places, len(derivative), rounding_mode="floor")
    columns = places - rows * len(derivative)
    return SparseWeights(rows, columns, weights * derivative.take(places), ordered=False)


def _mean_of_places(values, places, derivative):
    if len(values) == 0:
        return derivative.new_zeros(()), _weigh(places, values, derivative)
    share = torch.full_like(values, 1 / len(values))
    return values.mean(), _weigh(places, share, derivative)


# Weights by name: functions of the losses of all pairs, their derivative, and the masks of pairs.
# What comes behind the star is a parameter of the loss.


def _top_k(losses, derivative, positive, negative, *, k=None):
    """Mean of the k largest: p <= 1/k."""
    k = 2 * len(losses) if k is None else k
    values, places = _largest(losses, positive | negative, k)
    return _mean_of_places(values, places, derivative)


def _top_k_of_each_sign(losses, derivative, positive, negative, *, k=None):
    """Mean of the k/2 largest of each sign."""
    half = (2 * len(losses) if k is None else k + 1) // 2
    parts = [_largest(losses, mask, half) for mask in (positive, negative)]
    values, places = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return _mean_of_places(values, places, derivative)


def _maximum(losses, derivative, positive, negative):
    """Return the largest loss: any p."""
    return _top_k(losses, derivative, positive, negative, k=1)


def kl_weights(losses: Tensor, mask: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Maximise sum p l - gamma KL(p || uniform) over the pairs of the mask.

    Returns the maximum, gamma (logsumexp(l / gamma) - log n), and p as a matrix.
    """
    count = int(mask.sum())
    if count == 0:
        return losses.new_zeros(()), torch.zeros_like(losses)
    top = torch.where(mask, losses, -math.inf).max()
    weights = masked_exp((losses - top).mul_(1 / gamma), mask)
    total = weights.sum()
    value = top + gamma * (total.log() - math.log(count))
    return value, weights.mul_(1 / total)


def _kl(losses, derivative, positive, negative, *, gamma=0.1, sample=None):
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


def _kl_of_groups(losses, derivative, positive, negative, *, gamma=(0.5, 0.02), null_loss=None):
    """Weights softmax(l / gamma) over the pairs with a loss of one anchor and one sign."""
    active = losses > 0
    positive, negative = positive & active, negative & active
    each = gamma if isinstance(gamma, (tuple, list)) else (gamma, gamma)
    masks = (positive, negative)
    gammas = [_gamma_of_anchors(one, losses, mask) for one, mask in zip(each, masks, strict=True)]
    scores = losses * torch.where(positive, 1 / gammas[0], 1 / gammas[1])
    *totals, weights = signed_softmax(scores, positive, negative)
    value, lifts = losses.new_zeros(()), []
    for mask, scale, total in zip((positive, negative), gammas, totals, strict=True):
        count = mask.sum(1, keepdim=True)
        if null_loss is not None:
            # One more pair in the group, of a given loss and without a gradient.
            null = (null_loss / scale).expand_as(total)
            lifts.append((total - null).sigmoid_())
            total, count = torch.logaddexp(total, null), count + 1
        excess = (total - count.to(total.dtype).log()).masked_fill_(count == 0, 0)
        value = value + (scale * excess).mean()
    if lifts:
        weights.mul_(torch.where(positive, lifts[0], lifts[1]))
    return value, weights.mul_(derivative).div_(len(losses))


def _gamma_of_anchors(gamma, losses, mask):
    """Return gamma as a column, one for each anchor; a function finds them from its losses."""
    if not callable(gamma):
        return losses.new_full((), gamma)
    wanted = f"gamma must return one number above 0 for each of the {len(losses)} anchors"
    found = _checked(gamma(losses, mask), losses.shape[:1], wanted).detach().to(losses)
    if not bool((found > 0).all()):
        raise ValueError(f"{wanted}, got {found.min().item():g}")
    return found[:, None]


def ball_weights(losses: Tensor, mask: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """Maximise sum p l over p with a chi-square divergence from uniform of at most the radius.

    The optimum is p proportional to [l - eta]_+. With the set of pairs above eta held, eta has a
    closed form; it only rises from one set to the next, so the loop ends at the exact optimum.
    """
    count = int(mask.sum())
    if count == 0:
        return losses.new_zeros(()), torch.zeros_like(losses)
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


def _variance(losses, derivative, positive, negative, *, radius=1.0):
    """Weights of the chi-square ball over all pairs with a loss."""
    mask = (positive | negative) & (losses > 0)
    value, weights = ball_weights(losses, mask, radius)
    return value, weights.mul_(derivative)


def kl_ball_weights(losses: Tensor, mask: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """Maximise sum p l over p with KL(p || uniform) of at most the radius.

    The optimum is p proportional to exp(l / gamma) with the gamma at which the divergence, which
    falls with gamma, is the radius; equal weights of the largest losses, where they are inside.
    """
    weights = torch.zeros_like(losses)
    values = losses[mask].double()
    if len(values) == 0:
        return losses.new_zeros(()), weights
    gaps = values - values.max()
    shares = (gaps == 0) / (gaps == 0).sum(dtype=torch.float64)

    def divergence(shares):
        return torch.special.xlogy(shares, shares * len(shares)).sum().item()

    if divergence(shares) > radius:
        # Between these, on a logarithmic scale: the divergence is at most (range / gamma)^2 / 8.
        scale = -gaps.min().item()
        low, high = math.log(scale) - 40, math.log(scale) - 0.5 * math.log(8 * radius)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            inside = divergence(torch.softmax(gaps / math.exp(middle), 0)) <= radius
            low, high = (low, middle) if inside else (middle, high)
        shares = torch.softmax(gaps / math.exp(high), 0)
    weights[mask] = shares.to(losses.dtype)
    return (shares @ values).to(losses.dtype), weights


def _kl_ball(losses, derivative, positive, negative, *, radius=1.0):
    """Weights of the ball of a Kullback-Leibler divergence over all pairs with a loss."""
    mask = (positive | negative) & (losses > 0)
    value, weights = kl_ball_weights(losses, mask, radius)
    return value, weights.mul_(derivative)


def _by_function(losses, derivative, positive, negative, *, weights):
    """Weights of a user's function of pair losses."""
    rows, columns = (positive | negative).triu(1).nonzero(as_tuple=True)
    values = losses[rows, columns]
    shares = weights(values)
    wanted = (
        f"weights must return one weight for each of the {len(values)} pair losses that it gets"
    )
    shares = _checked(shares, values.shape, wanted).detach().to(values.dtype)
    slopes = shares * derivative[rows, columns]
    return (shares * values).sum(), SparseWeights(rows, columns, slopes, ordered=False)


def _checked(found, shape, wanted):
    """Return a tensor that a user's function returned, if its shape is right."""
    if not isinstance(found, Tensor) or found.shape != shape:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise TypeError(f"{wanted}, got {got}")
    return found


WEIGHTS: dict[str, Callable[..., Term]] = {
    "topk": _top_k,
    "topk-pn": _top_k_of_each_sign,
    "kl": _kl,
    "kl-ball": _kl_ball,
    "kl-g": _kl_of_groups,
    "max": _maximum,
    "variance": _variance,
}
PAIR_LOSSES = {"margin": margin_terms, "binomial": binomial_terms}


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
        - "kl-ball": the same weights, with the gamma at which their divergence
          :math:`\sum p \log(n p)` is `radius` (1): a set of weights, where "kl" is a penalty.
        - "kl-g": as "kl" within the pairs of one anchor and one sign, mean over anchors; `gamma`
          is one number or one for each sign, (0.5, 0.02). `null_loss` is the loss of one more
          pair in every group, which has no gradient: a group with smaller losses weighs less. When
          all pairs have a loss, gamma=1 is the lifted-structure loss up to a constant, and with a
          null pair gamma=(1/a, 1/b) the multi-similarity loss of the scales a and b. In the place
          of a number, a function finds the gamma of each anchor: it gets the losses, a matrix with
          a row for each anchor, and the mask of the pairs of one sign with a loss, and returns a
          vector.
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
            check_param("weights", weights, WEIGHTS)
        if not callable(pair_loss):
            check_param("pair_loss", pair_loss, PAIR_LOSSES)
        check_param("margin", margin)
        check_param("threshold", threshold)
        check_param("positive_scale", positive_scale, "a number above 0")
        check_param("negative_scale", negative_scale, "a number above 0")
        own = [] if callable(weights) else [p.name for p in _own_parameters(WEIGHTS[weights])]
        _check_own(params, own, weights)
        self.weights, self.pair_loss, self.params = weights, pair_loss, params
        self.margin, self.threshold = margin, threshold
        self.positive_scale, self.negative_scale = positive_scale, negative_scale

    def term(self, S: Tensor, positive: Tensor, negative: Tensor, labels: Tensor) -> Term:
        if self.miner is not None and self.weights != "kl-g":
            # A miner may keep a pair from one of its ends only.
            positive, negative = positive | positive.T, negative | negative.T
        if callable(self.weights):
            weigh: Any = partial(_by_function, weights=self.weights)
        else:
            weigh = partial(WEIGHTS[self.weights], **self.params)
        return weigh(*self._pair_losses(S, positive), positive, negative)

    def _pair_losses(self, S, positive):
        """Return the loss of every entry of S, and its derivative by S."""
        if not callable(self.pair_loss):
            return PAIR_LOSSES[self.pair_loss](S, positive, self)
        wanted = (
            f"pair_loss must return a loss for each of the similarities, of shape {(*S.shape,)}"
        )
        with torch.enable_grad():
            S = S.detach().requires_grad_()
            losses = _checked(self.pair_loss(S, positive), S.shape, wanted)
            (derivative,) = torch.autograd.grad(losses.sum(), S)
        return losses.detach(), derivative


# What parameters of weights must be; the others are a number.
_ALLOWED = dict.fromkeys(("gamma", "radius"), "a number above 0") | dict.fromkeys(
    ("k", "sample"), "a whole number of at least 1"
)


def _check_own(params, own, weights):
    for name, value in params.items():
        if name not in own:
            takes = f"it has: {', '.join(own)}" if own else "it has none"
            raise TypeError(f"weights={weights!r} have no parameter {name!r}; {takes}")
        values = [value]
        if name == "gamma" and weights == "kl-g" and isinstance(value, (tuple, list)):
            if len(value) != 2:
                raise ValueError(f"gamma must be one number or two, got {value!r}")
            values = value
        for each in values:
            if name == "gamma" and weights == "kl-g" and callable(each):
                continue
            if each is not None or name in ("gamma", "radius"):
                check_param(name, each, _ALLOWED.get(name, "a number"))


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
