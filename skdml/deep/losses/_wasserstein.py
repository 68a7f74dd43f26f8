"""Losses whose distance is that of optimal transport between clouds of points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...transport._sinkhorn import (
    check_cloud,
    check_transport,
    choose_eta,
    cost_matrices,
    make_divergence,
)
from ._core import Loss, check_batch, gram, pair_masks, param, register_loss, unit_rows

# Columns of a point where the user names no cloud.
POINT_DIM = 4
# The plans of a training step are not exact: the next step has other ones. Iterations over `reg`.
_TOL, _ITERATIONS = 1e-3, 10

# Losses over clouds, by name.
TRANSPORT = ("wcontrastive", "wtriplet")

Cloud = tuple[int, int]


def choose_cloud(cloud: Any, n_features: int) -> Cloud:
    """Return (n_points, point_dim), whose product is the number of features."""
    if cloud is None:
        if n_features % POINT_DIM:
            raise ValueError(
                f"the embedding of {n_features} columns is not divisible into points of "
                f"{POINT_DIM}: give cloud=(n_points, point_dim)."
            )
        cloud = n_features // POINT_DIM, POINT_DIM
    n_points, point_dim = check_cloud(cloud, n_features, "the embedding")
    if n_points == 1:
        raise ValueError(
            f"cloud={tuple(cloud)} has clouds of one point, whose transport is the plain distance: "
            f"use loss='triplet' or 'contrastive', or more points."
        )
    return n_points, point_dim


def make_clouds(embeddings: Tensor, cloud: Cloud) -> Tensor:
    """Return clouds of unit vectors cut into points, of mean squared length 1."""
    n_points, point_dim = cloud
    return math.sqrt(n_points) * unit_rows(embeddings).reshape(-1, n_points, point_dim)


@dataclass(eq=False, repr=False)
class TransportLoss(Loss):
    """Base of losses over the divergences of clouds.

    Parameters
    ----------
    margin : float
        On divergences, of which those of unit vectors are at most 4 with p = 2.
    cloud : (int, int) or None
        Points, and columns of each; their product is the number of features. None: 4 columns.
    p, reg, solver :
        The transport; see `skdml.transport.sinkhorn_divergence`.
    """

    cloud: Cloud | None = None
    margin: float = param(0.5)
    p: int = 2
    reg: float = 0.05
    solver: str = "sinkhorn"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_transport(self.p, self.reg, self.solver)
        if self.cloud is not None:
            n_features = math.prod(self.cloud) if isinstance(self.cloud, (tuple, list)) else 0
            choose_cloud(self.cloud, n_features)

    def prepare(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Return clouds, their similarities as unit vectors, and masks of both kinds of pairs."""
        embeddings, labels = check_batch(embeddings, labels)
        clouds = make_clouds(embeddings, choose_cloud(self.cloud, embeddings.shape[1]))
        similarities = gram(clouds.detach().flatten(1)) / clouds.shape[1]
        return clouds, similarities, *pair_masks(labels.to(clouds.device))

    def divergences(self, clouds: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return the divergences of pairs of clouds, given by their indices.

        A pair that occurs twice, in any order, is solved once; so is the term of a cloud with
        itself, however many pairs it is in.
        """
        codes = torch.minimum(first, second) * len(clouds) + torch.maximum(first, second)
        codes, place = codes.unique(return_inverse=True)
        ends = torch.cat([codes // len(clouds), codes % len(clouds)])
        used, index = ends.unique(return_inverse=True)
        clouds, pairs, eta = clouds[used], index.reshape(2, -1), None
        if self.solver != "exact":
            left, right = clouds.detach()[pairs]
            eta = choose_eta(cost_matrices(left, right, self.p), self.reg)
        options: Any = {"tol": _TOL, "max_iter": int(_ITERATIONS / self.reg) + 1, "warn": False}
        return make_divergence(clouds, p=self.p, eta=eta, **options)(pairs)[place]


@register_loss("wcontrastive")
class WassersteinContrastiveLoss(TransportLoss):
    r"""Draw clouds of the same class together and push others beyond a margin, by transport.

    The mean of :math:`d_w` over positive pairs and of :math:`[m - d_w]_+` over negative ones,
    with the Sinkhorn divergence :math:`d_w`. Negatives are the nearest of each anchor in
    Euclidean distance, as many as it has positives.

    Parameters
    ----------
    cloud : (int, int) or None
        Points, and columns of each; their product is the number of features. None: 4 columns.
    margin : float
        m, on divergences, of which those of unit vectors are at most 4 with p = 2.
    p, reg, solver :
        The transport; see `skdml.transport.sinkhorn_divergence`.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import WassersteinContrastiveLoss
    >>> loss = WassersteinContrastiveLoss(cloud=(2, 2))
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).shape
    torch.Size([])
    """

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        clouds, similarities, positive, negative = self.prepare(embeddings, labels)
        if not positive.any():
            return 0 * embeddings.sum()  # with a gradient, of zeros
        counts = positive.sum(1, keepdim=True)
        most = min(int(counts.max()), len(labels))
        nearest = similarities.masked_fill(~negative, -math.inf).topk(most, dim=1)
        wanted = (torch.arange(most, device=labels.device) < counts) & (nearest.values > -math.inf)
        anchors, ranks = wanted.nonzero(as_tuple=True)
        first, second = positive.triu().nonzero(as_tuple=True)
        distances = self.divergences(
            clouds,
            torch.cat([first, anchors]),
            torch.cat([second, nearest.indices[anchors, ranks]]),
        )
        n_positive = len(first)
        pulled, pushed = distances[:n_positive], (self.margin - distances[n_positive:]).relu()
        return torch.cat([pulled, pushed]).mean()


@register_loss("wtriplet")
@dataclass(eq=False, repr=False)
class WassersteinTripletLoss(TransportLoss):
    r"""Ask of each anchor that its negatives cost more transport than its positives.

    The mean of :math:`[d_w(a, p) - d_w(a, n) + m]_+` with the Sinkhorn divergence :math:`d_w`,
    over all positive pairs, each with the nearest negative beyond the positive in Euclidean
    distance, or the nearest one where none is beyond: few transport problems are solved.

    Parameters
    ----------
    cloud : (int, int) or None
        Points, and columns of each; their product is the number of features. None: 4 columns.
    margin : float
        m, on divergences, of which those of unit vectors are at most 4 with p = 2.
    p, reg, solver :
        The transport; see `skdml.transport.sinkhorn_divergence`.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import WassersteinTripletLoss
    >>> loss = WassersteinTripletLoss(cloud=(2, 2))
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).shape
    torch.Size([])
    """

    margin: float = param(0.2)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        clouds, similarities, positive, negative = self.prepare(embeddings, labels)
        anchors, positives = positive.nonzero(as_tuple=True)
        known = negative[anchors].any(1)
        anchors, positives = anchors[known], positives[known]
        if not len(anchors):
            return 0 * embeddings.sum()  # with a gradient, of zeros
        others = similarities[anchors].masked_fill_(~negative[anchors], -math.inf)
        to_positive = similarities[anchors, positives][:, None]
        beyond = others.masked_fill(others >= to_positive, -math.inf)
        best, negatives = beyond.max(1)
        negatives = torch.where(best > -math.inf, negatives, others.argmax(1))
        distances = self.divergences(
            clouds, torch.cat([anchors, anchors]), torch.cat([positives, negatives])
        )
        near, far = distances.chunk(2)
        return (near - far + self.margin).relu().mean()
