"""Triplets of an anchor, a row that should be near it and a row that should not."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def neighbourhood_triplets(neighbors: NDArray, affinity: NDArray) -> NDArray:
    """Cut each neighbourhood in two halves by affinity, and pair them in order.

    Parameters
    ----------
    neighbors : ndarray of shape (n_nodes, n_neighbors)
        The neighbours of each node, an even number.
    affinity : ndarray of shape (n_nodes, n_neighbors)
        Their affinity to the node.

    Returns
    -------
    triplets : ndarray of shape (n_nodes * n_neighbors / 2, 3)
        Anchor, positive, negative: the most affine neighbour with the first of the lower half, and
        so on. Ties keep the order of the neighbours.
    """
    n_nodes, n_neighbors = neighbors.shape
    half = n_neighbors // 2
    ranked = np.take_along_axis(neighbors, np.argsort(-affinity, axis=1, kind="stable"), axis=1)
    anchors = np.repeat(np.arange(n_nodes), half)
    return np.column_stack([anchors, ranked[:, :half].ravel(), ranked[:, half:].ravel()])


def affinity_triplets(
    affinity: Tensor, distances: Tensor, similar: float = 0.5, different: float = 0.05
) -> tuple[Tensor, Tensor, Tensor]:
    """Give each anchor of a batch a random similar row, and the nearest row that is different.

    Parameters
    ----------
    affinity : Tensor of shape (n_anchors, n_others)
        The inner products of class distributions, between 0 and 1.
    distances : Tensor of shape (n_anchors, n_others)
        By which a different row is near.
    similar, different : float
        Rows of more and of less affinity are candidates; the others take no part.

    Returns
    -------
    anchors, positives, negatives : Tensor of shape (n_triplets,)
        Positions in the batch; anchors without a candidate of either kind are left out. A row that
        is at the same position among the others is no candidate. The draw is by torch's global
        generator.
    """
    others = ~torch.eye(*affinity.shape, dtype=torch.bool, device=affinity.device)
    near = (affinity > similar) & others
    far = (affinity < different) & others
    anchors = torch.nonzero(near.any(1) & far.any(1)).squeeze(1)
    positives = torch.rand_like(affinity).masked_fill(~near, -1).argmax(1)
    negatives = distances.masked_fill(~far, torch.inf).argmin(1)
    return anchors, positives[anchors], negatives[anchors]
