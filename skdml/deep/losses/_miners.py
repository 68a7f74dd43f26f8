"""Miners: which pairs of a batch a loss looks at."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..._optional import optional_import

Masks = tuple[Tensor, Tensor]
# Distance-weighted: distances below count as this one, and those beyond the other are not drawn.
_CUTOFF, _FARTHEST = 0.5, 1.4


def _mine_all(similarities, positive, negative):
    """Keep every pair."""
    return positive, negative


def _mine_hard(similarities, positive, negative):
    """Keep, for each anchor, its least similar positive and its most similar negative."""
    hardest_positive = similarities.masked_fill(~positive, math.inf).argmin(1, keepdim=True)
    hardest_negative = similarities.masked_fill(~negative, -math.inf).argmax(1, keepdim=True)
    return (
        torch.zeros_like(positive).scatter_(1, hardest_positive, True) & positive,
        torch.zeros_like(negative).scatter_(1, hardest_negative, True) & negative,
    )


def _mine_semi_hard(similarities, positive, negative, margin=0.2):
    """Keep the pairs of triplets with a negative beyond the positive, by less than the margin.

    In distances of unit vectors, ``0 < d(a, n) - d(a, p) <= margin`` for at least one partner.
    """
    distances = (2 - 2 * similarities).clamp_min_(0).sqrt_()
    return (
        _has_partner(distances, positive, negative, 0.0, margin),
        _has_partner(distances, negative, positive, -margin, 0.0),
    )


def _has_partner(distances, mask, partner_mask, low, high):
    """Keep (a, i) of mask if some d(a, j) of the partners is in the window above d(a, i).

    The window is ]0, margin] for negatives around a positive, [-margin, 0[ the other way round.
    """
    # Sorted rows turn "is there a partner within the margin" into two searches.
    ordered = distances.masked_fill(~partner_mask, math.inf).sort(1).values
    before, upto = (
        torch.searchsorted(ordered, distances + end, right=low >= 0) for end in (low, high)
    )
    return mask & (upto > before)


def _mine_multi_similarity(similarities, positive, negative, epsilon=0.1):
    """Keep positives below the best negative, and negatives above the worst positive.

    Below and above in similarity to the anchor, with the tolerance epsilon.
    """
    hardest_negative = similarities.masked_fill(~negative, -math.inf).amax(1, keepdim=True)
    hardest_positive = similarities.masked_fill(~positive, math.inf).amin(1, keepdim=True)
    return (
        positive & (similarities - epsilon < hardest_negative),
        negative & (similarities + epsilon > hardest_positive),
    )


def _mine_distance_weighted(similarities, positive, negative, dimension):
    """Keep all positives and, for each anchor, as many negatives, drawn evenly over distances.

    A negative at distance d is drawn with the inverse of the density of distances on the sphere,
    ``d^(n-2) (1 - d^2/4)^((n-3)/2)``.
    """
    distances = (2 - 2 * similarities).clamp_min_(0).sqrt_()
    far = ~negative | (distances >= _FARTHEST)
    distances.clamp_(_CUTOFF, 2 - 1e-6)
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


# Name -> its function over masks, and its class of pytorch-metric-learning with parameters.
MINERS: dict[str, tuple[Any, str | None, dict[str, Any]]] = {
    "all": (_mine_all, None, {}),
    "hard": (_mine_hard, "BatchHardMiner", {}),
    "semi-hard": (_mine_semi_hard, "TripletMarginMiner", {"type_of_triplets": "semihard"}),
    "distance-weighted": (_mine_distance_weighted, "DistanceWeightedMiner", {}),
    "multi-similarity": (_mine_multi_similarity, "MultiSimilarityMiner", {}),
}


def unknown_name(kinds: str, name: str, known: Iterable[str], n_near: int = 3) -> ValueError:
    """Return the error of an unknown name, with the known ones; `kinds` is "losses" or "miners"."""
    near = difflib.get_close_matches(name.lower().replace("_", "-"), known, n_near, cutoff=0.5)
    hint = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
    kind = {"losses": "loss", "miners": "miner"}[kinds]
    return ValueError(f"unknown {kind} {name!r}. {hint}The {kinds} are: {', '.join(known)}")


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
        raise unknown_name("miners", miner, MINERS, n_near=1)


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
    if not isinstance(miner, str):
        return miner
    _, name, params = MINERS[miner]
    if name is None:
        return None
    miners = optional_import("pytorch_metric_learning.miners", f"the miner {miner!r}")
    return getattr(miners, name)(**params)


def mine_masks(
    miner: Any, similarities: Tensor, masks: Masks, embeddings: Tensor, labels: Tensor
) -> Masks:
    """Apply a miner, a name or an object, to the masks of a batch."""
    if isinstance(miner, str):
        dimension = (embeddings.shape[1],) if miner == "distance-weighted" else ()
        return MINERS[miner][0](similarities, *masks, *dimension)
    indices = miner(embeddings.detach(), labels)
    if not isinstance(indices, (tuple, list)) or len(indices) not in (3, 4):
        raise TypeError(
            "miner must return three index tensors (anchors, positives, negatives) or four "
            f"(anchors, positives, anchors, negatives), got {type(indices).__name__}."
        )
    anchors, positives, *others = indices
    positive, negative = masks
    kept_positive, kept_negative = torch.zeros_like(positive), torch.zeros_like(negative)
    kept_positive[anchors, positives] = True
    kept_negative[tuple(others) if len(others) == 2 else (anchors, others[0])] = True
    return kept_positive & positive, kept_negative & negative
