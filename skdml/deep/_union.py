"""The loss of the union of all ranks' batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..utils._torch import seeded_torch
from ._ranks import Ranks
from .losses._core import anchors_within


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, factor):
        ctx.factor = factor
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


class UnionLoss(nn.Module):
    """A loss of the rows of all ranks, or of this rank alone.

    Every rank computes the loss of the union of the batches, with the rows of the others as
    constants. The gradient by its own rows is then exact, although nothing is sent back: what
    the others' loss terms say of these rows is in the union on this rank, too. The gradient by
    the weights is the sum over ranks. As gradients are averaged over ranks later, they are scaled
    by the number of ranks here.

    Parameters
    ----------
    loss : callable
        Of embeddings and labels.
    ranks : Ranks
        The processes.
    mining : {"global", "local"}
        The union, or the own batch.
    remote_grad : bool
        Whether a row gets a gradient as a partner of other ranks' anchors. If not, losses of the
        pair family count the own anchors only; the others know no anchors and are not changed.
    seed : int
        Seeds what a loss draws at random, the same on all ranks.
    """

    def __init__(self, loss: Any, ranks: Ranks, mining: str, remote_grad: bool, seed: int) -> None:
        super().__init__()
        self.loss = loss
        self._ranks, self._mining, self._remote_grad, self._seed = ranks, mining, remote_grad, seed
        self.step = 0

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss."""
        self.step += 1
        if self._mining == "local":
            return self.loss(embeddings, labels)
        rows, labels, own = self._ranks.gather(embeddings, labels)
        scaled = _ScaleGradient.apply(embeddings, self._ranks.size)
        rows = torch.cat([rows[: own.start], scaled, rows[own.stop :]])
        anchors = None if self._remote_grad else own
        with seeded_torch(self._seed + self.step), anchors_within(anchors):
            return self.loss(rows, labels)
