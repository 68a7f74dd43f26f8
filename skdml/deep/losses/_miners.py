"""Miners: which pairs of a batch a loss looks at."""

from __future__ import annotations

import difflib
import math
from typing import Any

import torch
from torch import Tensor

from ..._optional import optional_import

Masks = tuple[Tensor, Tensor]


def mine_all(similarities: Tensor, positive: Tensor, negative: Tensor) -> Masks:
    """Keep every pair."""
    return positive, negative


def mine_hard(similarities: Tensor, positive: Tensor, negative: Tensor) -> Masks:
    """Keep, for each anchor, its least similar positive and its most similar negative."""
    hardest_positive = similarities.masked_fill(~positive, math.inf).argmin(1, keepdim=True)
    hardest_negative = similarities.masked_fill(~negative, -math.inf).argmax(1, keepdim=True)
    return (
        torch.zeros_like(positive).scatter_(1, hardest_positive, True) & positive,
        torch.zeros_like(negative).scatter_(1, hardest_negative, True) & negative,
    )


def mine_semi_hard(
    similarities: Tensor, positive: Tensor, negative: Tensor, margin: float = 0.2
) -> Masks:
    """Keep the pairs of triplets with a negative beyond the positive, by less than the margin.

    In distances of unit vectors, ``0 < d(a, n) - d(a, p) <= margin`` for at least one partner.
    """
    distances = (2 - 2 * similarities).clamp_min_(0).sqrt_()
    # Sorted rows turn "is there a partner within the margin" into two searches.
    return (
        _has_partner(distances, positive, negative, 0.0, margin),
        _has_partner(distances, negative, positive, -margin, 0.0),
    )


def _has_partner(distances, mask, partner_mask, low, high):
    """Keep (a, i) of mask if some d(a, j) of the partners is in the window above d(a, i).

    The window is ]0, margin] for negatives around a positive, [-margin, 0[ the other way round.
    """
    ordered = distances.masked_fill(~partner_mask, math.inf).sort(1).values
    first, last = distances + low, distances + high
    if low < 0:
        before = torch.searchsorted(ordered, first)
        upto = torch.searchsorted(ordered, last)
    else:
        before = torch.searchsorted(ordered, first, right=True)
        upto = torch.searchsorted(ordered, last, right=True)
    return mask & (upto > before)


def mine_multi_similarity(
    similarities: Tensor, positive: Tensor, negative: Tensor, epsilon: float = 0.1
) -> Masks:
    """Keep positives below the best negative, and negatives above the worst positive.

    Below and above in similarity to the anchor, with the tolerance epsilon.
    """
    hardest_negative = similarities.masked_fill(~negative, -math.inf).amax(1, keepdim=True)
    hardest_positive = similarities.masked_fill(~positive, math.inf).amin(1, keepdim=True)
    return (
        positive & (similarities - epsilon < hardest_negative),
        negative & (similarities + epsilon > hardest_positive),
    )


def mine_distance_weighted(
    similarities: Tensor,
    positive: Tensor,
    negative: Tensor,
    dimension: int,
    cutoff: float = 0.5,
    farthest: float = 1.4,
) -> Masks:
    """Keep all positives and, for each anchor, as many negatives, drawn evenly over distances.

    A negative at distance d is drawn with the inverse of the density of distances on the sphere,
    ``d^(n-2) (1 - d^2/4)^((n-3)/2)``; distances below the cutoff count as the cutoff, and those
    beyond the farthest are not drawn.
    """
    distances = (2 - 2 * similarities).clamp_min_(0).sqrt_()
    far = ~negative | (distances >= farthest)
    distances.clamp_(cutoff, 2 - 1e-6)
    log_weights = (2 - dimension) * distances.log()
    log_weights -= (dimension - 3) / 2 * torch.log1p(-(distances**2) / 4)
    # The Gumbel trick: the largest of noisy log-weights are a draw without replacement.
    uniform = torch.rand_like(log_weights).clamp_min_(torch.finfo(log_weights.dtype).tiny)
    scores = (log_weights - (-uniform.log()).log()).masked_fill_(far, -math.inf)
    most = int(positive.sum(1).max()) if len(positive) else 0
    if most == 0:
        return positive, torch.zeros_like(negative)
    top = scores.topk(min(most, scores.shape[1]), dim=1)
    rank = torch.arange(top.values.shape[1], device=scores.device)
    wanted = (rank < positive.sum(1, keepdim=True)) & (top.values > -math.inf)
    return positive, torch.zeros_like(negative).scatter_(1, top.indices, wanted)


# Name -> its function over masks; None where the function needs more than the masks.
MINERS: dict[str, Any] = {
    "all": mine_all,
    "hard": mine_hard,
    "semi-hard": mine_semi_hard,
    "distance-weighted": mine_distance_weighted,
    "multi-similarity": mine_multi_similarity,
}
_PEERS: dict[str, tuple[str, dict[str, Any]] | None] = {
    "all": None,
    "hard": ("BatchHardMiner", {}),
    "semi-hard": ("TripletMarginMiner", {"type_of_triplets": "semihard"}),
    "distance-weighted": ("DistanceWeightedMiner", {}),
    "multi-similarity": ("MultiSimilarityMiner", {}),
}


def miner_names() -> list[str]:
    """Return the names of all miners.

    Examples
    --------
    >>> from skdml.deep.losses import miner_names
    >>> miner_names()
    ['all', 'hard', 'semi-hard', 'distance-weighted', 'multi-similarity']
    """
    return list(MINERS)


def check_miner(miner: Any) -> None:
    """Raise an error that helps if this is no miner."""
    if miner is None or callable(miner):
        return
    if not isinstance(miner, str):
        raise TypeError(f"a miner is a name, a callable or None, got {miner!r}")
    if miner not in MINERS:
        near = difflib.get_close_matches(miner, MINERS, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"unknown miner {miner!r}. {hint}The miners are: {', '.join(MINERS)}")


def get_miner(miner: Any) -> Any:
    """Return a miner of pytorch-metric-learning, for losses that take tuples of indices.

    Parameters
    ----------
    miner : None, str or callable
        A name of `miner_names`; another object is returned as it is.

    Returns
    -------
    miner : None or callable
        ``miner(embeddings, labels)`` gives a tuple of indices; None where every pair counts.

    Examples
    --------
    >>> from skdml.deep.losses import get_miner
    >>> type(get_miner("hard")).__name__
    'BatchHardMiner'
    """
    check_miner(miner)
    if not isinstance(miner, str) or _PEERS[miner] is None:
        return None if isinstance(miner, str) else miner
    name, params = _PEERS[miner]  # type: ignore[misc]
    miners = optional_import("pytorch_metric_learning.miners", f"the miner {miner!r}")
    return getattr(miners, name)(**params)


def mine_masks(
    miner: Any,
    similarities: Tensor,
    positive: Tensor,
    negative: Tensor,
    embeddings: Tensor,
    labels: Tensor,
) -> Masks:
    """Apply a miner, a name or an object, to the masks of a batch."""
    if miner is None:
        return positive, negative
    check_miner(miner)
    if miner == "distance-weighted":
        dimension = embeddings.shape[1]
        return mine_distance_weighted(similarities, positive, negative, dimension)
    if isinstance(miner, str):
        return MINERS[miner](similarities, positive, negative)
    indices = miner(embeddings.detach(), labels)
    if not isinstance(indices, (tuple, list)) or len(indices) not in (3, 4):
        raise TypeError(
            "miner must return three index tensors (anchors, positives, negatives) or four "
            f"(anchors, positives, anchors, negatives), got {type(indices).__name__}."
        )
    anchors, positives, *others = indices
    negative_anchors, negatives = others if len(others) == 2 else (anchors, others[0])
    kept_positive, kept_negative = torch.zeros_like(positive), torch.zeros_like(negative)
    kept_positive[anchors, positives] = True
    kept_negative[negative_anchors, negatives] = True
    return kept_positive & positive, kept_negative & negative
