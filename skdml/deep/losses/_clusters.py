"""Losses of a whole clustering of the batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from ._core import (
    Loss,
    SimilarityLoss,
    SparseWeights,
    Term,
    check_batch,
    param,
    register_loss,
    unit_distances,
    unit_rows,
)


def _x_log_x(counts):
    return torch.xlogy(counts, counts)


def _nmi(cells, clusters, classes, size):
    """Return the NMI from the sums of n log n over cells, clusters and classes."""
    log_size = math.log(size)
    mutual = (cells - clusters - classes) / size + log_size
    entropies = 2 * log_size - (clusters + classes) / size  # not both zero: there are two classes
    return 2 * mutual / entropies.clamp_min(1e-12)


class _Facilities:
    """A clustering that grows by one medoid at a time, chosen to be the worst for the loss."""

    def __init__(self, distances: Tensor, codes: Tensor) -> None:
        self.distances, self.codes = distances, codes
        size = len(codes)
        self.one_hot = torch.nn.functional.one_hot(codes).to(distances.dtype)
        self.nearest = distances.new_full((size,), math.inf)
        self.clusters = torch.full_like(codes, -1)
        self.medoids: list[int] = []
        self.of_classes = _x_log_x(self.one_hot.sum(0)).sum()

    def divergence_after(self, moves: Tensor) -> Tensor:
        """Return 1 - NMI for every candidate, a row of `moves`: which rows it would take."""
        size, own = len(self.codes), moves.to(self.distances.dtype)
        new_cells = own @ self.one_hot
        cells = _x_log_x(new_cells).sum(1)
        clusters = _x_log_x(new_cells.sum(1))
        if self.medoids:
            # What stays in the cells and clusters that there are.
            cell_codes = self.clusters * self.one_hot.shape[1] + self.codes
            _, ids = cell_codes.unique(return_inverse=True)
            for groups, total in ((ids, cells), (self.clusters, clusters)):
                stay = (1 - own) @ torch.nn.functional.one_hot(groups).to(own.dtype)
                total += _x_log_x(stay).sum(1)
        return 1 - _nmi(cells, clusters, self.of_classes, size)

    def add_worst(self, weight: float) -> None:
        """Add the medoid with the largest score, -sum of distances + weight (1 - NMI)."""
        moves = (self.distances < self.nearest[:, None]).T
        closest = torch.minimum(self.distances, self.nearest[:, None]).sum(0)
        scores = weight * self.divergence_after(moves) - closest
        scores[self.medoids] = -math.inf
        medoid = int(scores.argmax())
        taken = moves[medoid]
        self.clusters[taken] = len(self.medoids)
        self.nearest = torch.where(taken, self.distances[:, medoid], self.nearest)
        self.medoids.append(medoid)


@register_loss("facility-location")
@dataclass(eq=False, repr=False)
class FacilityLocationLoss(SimilarityLoss):
    r"""Compare the classes, each around its medoid, with the worst clustering of the batch.

    .. math:: \frac{1}{B} [\max_C \{F(C) + \gamma\,(1 - \mathrm{NMI}(C, y))\} -
              \tilde F(y)]_+

    F(C) is minus the sum of distances to the nearest of as many medoids C as there are classes,
    :math:`\tilde F(y)` the same with one medoid for each class that serves this class alone. The
    medoids of C are chosen one by one, the best first. The gradient takes medoids and clusters as
    they are.

    Parameters
    ----------
    nmi_weight : float
        :math:`\gamma`, what a clustering scores for its disagreement with the classes.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import FacilityLocationLoss
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(FacilityLocationLoss()(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.4459
    """

    nmi_weight: float = param(1.0, "a number of at least 0")

    def term(self, S: Tensor, positive: Tensor, negative: Tensor, labels: Tensor) -> Term:
        classes, codes = labels.unique(return_inverse=True)
        rows = torch.arange(len(codes), device=codes.device)
        if len(classes) < 2 or not bool(positive.any()):
            return S.new_zeros(()), SparseWeights(rows[:0], rows[:0], S.new_zeros(0))
        distances, slope = unit_distances(S)
        distances.fill_diagonal_(0)
        slope.fill_diagonal_(0)
        # For each class the row with the smallest sum of distances to the rows of the class.
        within = (distances * ~negative).sum(1)
        smallest = within.new_full((len(classes),), math.inf)
        smallest.scatter_reduce_(0, codes, within, "amin")
        own = torch.empty_like(classes, dtype=torch.long)
        best = rows[within == smallest[codes]].flip(0)
        own[codes[best]] = best
        facilities = _Facilities(distances, codes)
        for _ in classes:
            facilities.add_worst(self.nmi_weight)
        medoids = torch.tensor(facilities.medoids, device=codes.device)[facilities.clusters]
        nmi = normalized_mutual_info_score(codes.cpu(), facilities.clusters.cpu())
        gap = distances[rows, own[codes]].sum() - facilities.nearest.sum()
        gap += self.nmi_weight * (1 - nmi)
        share = torch.full_like(facilities.nearest, float(gap > 0) / len(rows))
        weights = SparseWeights(
            torch.cat([rows, rows]),
            torch.cat([own[codes], medoids]),
            torch.cat([share * slope[rows, own[codes]], -share * slope[rows, medoids]]),
        )
        return gap.relu() / len(rows), weights


@register_loss("spectral")
@dataclass(eq=False, repr=False)
class SpectralLoss(Loss):
    r"""Compare the span of the embeddings with the span of the classes' indicators.

    .. math:: \frac{1}{B} \| F (F'F + r I)^{-1} F' - Y (Y'Y)^{-1} Y' \|_F^2

    with the matrix F of the embeddings and the 0/1 matrix Y of the classes: what k-means finds in
    the embeddings, relaxed, against the classes. There should be fewer features than rows:
    otherwise the embeddings span all, and only the ridge leaves a gradient.

    Parameters
    ----------
    ridge : float
        r. Directions with a smaller sum of squares count less; 0 is the exact projection.
    normalize : bool
        If F is of unit vectors, or of the embeddings as they are.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import SpectralLoss
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> round(SpectralLoss()(embeddings, torch.tensor([0, 0, 1])).item(), 4)
    0.6335
    """

    ridge: float = param(1e-3, "a number of at least 0")
    normalize: bool = True

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        embeddings, labels = check_batch(embeddings, labels)
        vectors = unit_rows(embeddings) if self.normalize else embeddings
        size, features = vectors.shape
        same = (labels[:, None] == labels).to(vectors.dtype)
        target = same / same.sum(1, keepdim=True).clamp_min(1)
        if features <= size:
            gram = vectors.T @ vectors
            gram = gram + self.ridge * torch.eye(features, dtype=gram.dtype, device=gram.device)
            span = vectors @ torch.linalg.solve(gram, vectors.T)
        else:
            gram = vectors @ vectors.T
            shifted = gram + self.ridge * torch.eye(size, dtype=gram.dtype, device=gram.device)
            span = torch.linalg.solve(shifted, gram)
        return (span - target).square().sum() / max(size, 1)
