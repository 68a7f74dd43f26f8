"""What the losses over pairs share: unit vectors, one similarity matrix, masks and one gradient.

A loss of this family is a function ``term(S, positive, negative)`` of the similarities of all
ordered pairs of a batch. It returns its value and its derivative by S, so that the gradient by the
embeddings takes one matrix product, and memory does not grow with the steps of the computation.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ._miners import mine_masks

# Above this softplus(x) is x to the last bit of float64.
LINEAR = 40.0
# exp(x) below this is 0, beside a sum of at least 1: near underflow exp is many times slower.
FLOOR = -50.0
# Rows of a block of F F'.
BLOCK = 128
# A derivative by S with a smaller part of it other than zero is taken as sparse.
SPARSE = 0.04


# The rows that count as anchors, a slice of the batch; None: all.
_ANCHORS: ContextVar[slice | None] = ContextVar("anchors", default=None)


class SparseWeights(NamedTuple):
    """A derivative by S that is zero but for some pairs; a pair may be listed more than once.

    Where pairs have no order, both ends are anchors, whichever is listed first.
    """

    rows: Tensor
    columns: Tensor
    values: Tensor
    ordered: bool = True


Weights = Tensor | SparseWeights
# (S, positive, negative) -> (value, derivative by S); S is the caller's to overwrite.
Term = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Weights]]


def check_batch(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Check the shapes of a batch; bring half precision to single."""
    if embeddings.ndim != 2:
        raise ValueError(
            f"embeddings must have two dimensions, (batch, features), got {tuple(embeddings.shape)}"
        )
    if labels.shape != embeddings.shape[:1]:
        raise ValueError(
            f"labels must have one entry for each of the {len(embeddings)} embeddings, "
            f"got the shape {tuple(labels.shape)}"
        )
    if embeddings.dtype in (torch.float16, torch.bfloat16):
        embeddings = embeddings.float()
    return embeddings, labels.to(embeddings.device)


class _UnitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, embeddings):
        norms = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True)
        scales = 1 / norms.masked_fill_(norms == 0, math.inf)
        units = embeddings * scales
        ctx.save_for_backward(units, scales)
        return units

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        units, scales = ctx.saved_tensors
        along = torch.linalg.vecdot(grad, units)[:, None]
        return torch.addcmul(grad, units, along, value=-1).mul_(scales)


def unit_rows(embeddings: Tensor) -> Tensor:
    """Scale rows to length one; a row of zeros stays, and has no gradient."""
    return _UnitRows.apply(embeddings)


def gram(rows: Tensor) -> Tensor:
    """Return F F'. On a CPU only the blocks of one triangle are computed, and mirrored."""
    size = len(rows)
    if size <= BLOCK or rows.device.type != "cpu":
        return rows @ rows.T
    products = rows.new_empty(size, size)
    for start in range(0, size, BLOCK):
        own = slice(start, min(start + BLOCK, size))
        torch.mm(rows[own], rows[start:].T, out=products[own, start:])
        products[own.stop :, own] = products[own, own.stop :].T
    return products


def pair_masks(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the masks of positive and of negative ordered pairs; no row is paired with itself."""
    same = labels[:, None] == labels
    negative = ~same
    return same.fill_diagonal_(False), negative


def _sparse(rows: Tensor, columns: Tensor, values: Tensor, size: int) -> Tensor:
    places = torch.stack([rows, columns])
    return torch.sparse_coo_tensor(places, values, (size, size), check_invariants=True)


@contextlib.contextmanager
def anchors_within(rows: slice | None) -> Iterator[None]:
    """Let losses of the pair family have gradients for the pairs of some anchors only.

    The value of a loss stays that of the whole batch. So one rank of many takes the share of its
    own anchors, among the rows of all.

    Parameters
    ----------
    rows : slice or None
        Which rows of a batch are anchors; None: all.
    """
    token = _ANCHORS.set(rows)
    try:
        yield
    finally:
        _ANCHORS.reset(token)


def _of_anchors(weights: Weights) -> Weights:
    """Drop the derivative by the pairs whose anchor does not count."""
    anchors = _ANCHORS.get()
    if anchors is None:
        return weights
    if isinstance(weights, Tensor):
        kept = torch.zeros_like(weights)
        kept[anchors] = weights[anchors]
        return kept
    rows, columns, values, ordered = weights
    if not ordered:
        rows, columns = torch.cat([rows, columns]), torch.cat([columns, rows])
        values = torch.cat([values, values]) / 2
    kept = (rows >= anchors.start) & (rows < anchors.stop)
    return SparseWeights(rows[kept], columns[kept], values[kept])


class _OfSimilarities(torch.autograd.Function):
    """The value of a function of S = F F', with the derivative by S that the function gives."""

    @staticmethod
    def forward(ctx, units, function):
        value, weights = function(gram(units))
        ctx.is_sparse = isinstance(weights, SparseWeights)
        ctx.save_for_backward(units, *(weights[:3] if ctx.is_sparse else (weights,)))
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        units, *weights = ctx.saved_tensors
        # S_ij is a product of row i and row j: the derivative counts for both.
        if ctx.is_sparse:
            rows, columns, values = weights
            rows, columns = torch.cat([rows, columns]), torch.cat([columns, rows])
            both = _sparse(rows, columns, torch.cat([values, values]), len(units))
            return torch.sparse.mm(both, units).mul_(grad), None
        both = weights[0] + weights[0].T
        if both.count_nonzero() < SPARSE * both.numel():
            rows, columns = both.nonzero(as_tuple=True)
            both = _sparse(rows, columns, both[rows, columns], len(units))
            return torch.sparse.mm(both, units).mul_(grad), None
        return torch.mm(both, units).mul_(grad), None


def similarity_loss(
    embeddings: Tensor, labels: Tensor, term: Term, *, miner: Any = None, normalize: bool = True
) -> Tensor:
    """Compute a loss of the pair family.

    Parameters
    ----------
    embeddings : Tensor of shape (batch, features)
        As the network gives them.
    labels : Tensor of shape (batch,)
        Whole numbers, the classes.
    term : callable
        The loss as a function ``(S, positive, negative) -> (value, derivative by S)``.
    miner : None, str or callable
        What chooses among the pairs; see `skdml.deep.losses.get_miner`.
    normalize : bool
        If S is of unit vectors.

    Returns
    -------
    loss : Tensor
        A scalar.
    """
    embeddings, labels = check_batch(embeddings, labels)
    positive, negative = pair_masks(labels)
    units = unit_rows(embeddings) if normalize else embeddings

    def function(similarities):
        masks = mine_masks(miner, similarities, positive, negative, embeddings, labels)
        value, weights = term(similarities, *masks)
        return value, _of_anchors(weights)

    return _OfSimilarities.apply(units, function)


def masked_softmax(scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-sum-exp of the masked scores of each row, as a column, and their softmax.

    A row without any has a log-sum-exp of minus infinity and weights of zero.
    """
    largest = torch.where(mask, scores, -math.inf).amax(1, keepdim=True)
    largest.masked_fill_(largest == -math.inf, 0)
    weights = masked_exp(scores - largest, mask)
    total = weights.sum(1, keepdim=True)
    weights.mul_(1 / total.masked_fill(total == 0, 1))
    return largest.add_(total.log_()), weights


def masked_exp(scores: Tensor, mask: Tensor) -> Tensor:
    """Return exp of scores that are at most 0, and 0 outside of the mask; overwrites the scores."""
    kept = mask & (scores > FLOOR)
    return torch.where(kept, scores.clamp_(FLOOR, 0).exp_(), 0)


def signed_softmax(
    scores: Tensor, positive: Tensor, negative: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return `masked_softmax` of the positives and of the negatives of each row.

    The weights of both are in one matrix; it is scarcely slower than that of one sign.
    """
    tops = [
        torch.where(mask, scores, -math.inf).amax(1, keepdim=True) for mask in (positive, negative)
    ]
    tops = [top.masked_fill(top == -math.inf, 0) for top in tops]
    weights = masked_exp(scores - torch.where(positive, tops[0], tops[1]), positive | negative)
    totals = [torch.where(mask, weights, 0).sum(1, keepdim=True) for mask in (positive, negative)]
    shares = [1 / total.masked_fill(total == 0, 1) for total in totals]
    weights.mul_(torch.where(positive, shares[0], shares[1]))
    near, far = (top.add_(total.log_()) for top, total in zip(tops, totals, strict=True))
    return near, far, weights


def unit_distances(similarities: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distances of unit vectors and their derivative by S; at 0 that derivative is 0."""
    distances = (2 - 2 * similarities).clamp_min_(0).sqrt_()
    # Within rounding of S the direction of the gradient is noise.
    tiny = math.sqrt(torch.finfo(similarities.dtype).eps)
    return distances, -(1 / distances.masked_fill(distances < tiny, math.inf))


def zero_like(similarities: Tensor) -> Tensor:
    """Return a scalar zero of the same dtype, on the same device."""
    return similarities.new_zeros(())


def choose(options: dict, value: str, parameter: str) -> Any:
    """Look up the value of a parameter that is a string."""
    if value not in options:
        raise ValueError(
            f"{parameter} must be one of {', '.join(map(repr, options))}, got {value!r}"
        )
    return options[value]
