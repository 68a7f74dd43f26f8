"""SSDML: losses by propagated classes, and the paper's triplets with their angular loss."""

from __future__ import annotations

import math
from numbers import Real

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ..utils._sklearn import Interval
from ..utils._supervision import shuffle
from ._label_propagation import propagate_affinity
from ._ssdml_methods import Partition, SemiSupervisedMethod, register_method
from ._stiefel import conjugate_gradient

# Slope of the softplus of the angular loss, with triplets by affinity.
_SCALE = 4.0
# Affinity above which two samples count as likely positives, and the temperature of InfoNCE.
_ALIKE, _INSTANCE_TEMPERATURE = 0.5, 0.2
# The weight of the instance term for images.
_INSTANCE_WEIGHT = 0.5
# NCA temperature, and the squared distance of a sample to itself, which is masked.
_NCA_TEMPERATURE, _MASKED = 0.1, 1e6
_MIN_SHARE = 1e-6
# Triplets on which L is moved in alternating training.
_MAX_TRIPLETS = 1000


class NeighbourhoodTriplets(SemiSupervisedMethod):
    """SSDML as printed in the paper: triplets from halves of the neighbourhoods.

    L is moved by conjugate gradients on the Stiefel manifold, in turn with the network.

    Parameters
    ----------
    angle : float, default=40
        Of the angular loss, in degrees.
    """

    metric = "steps"
    orthogonal = True
    batches = "triplets"
    needs_pairs = False
    _parameter_constraints = {"angle": [Interval(Real, 0, 90, closed="neither")]}

    def __init__(self, angle: float = 40) -> None:
        self.angle = angle

    def begin(self, partition: Partition, rng: Generator) -> None:
        """Propagate affinities, and take triplets by them."""
        graph = partition.graph
        affinity = propagate_affinity(graph, partition.codes, partition.propagation)
        self.triplets = neighbourhood_triplets(graph.neighbors, affinity)
        weights = partition.weights
        self.anchor_weights = None if weights is None else weights[self.triplets[:, 0]]

    def loss(self, batch: NDArray, *embeddings: Tensor) -> Tensor:
        """Return the angular loss of triplets."""
        anchors, positives, negatives = embeddings
        return angular_loss(anchors, positives, negatives, self.angle)

    def find_metric(self, features: NDArray, factor: NDArray, rng: Generator) -> NDArray:
        """Return L after some steps of conjugate gradients on a sample of triplets."""
        order = shuffle(len(self.triplets), self.anchor_weights, rng)
        chosen = self.triplets[order[:_MAX_TRIPLETS]]
        triplets = [torch.from_numpy(features[nodes]) for nodes in chosen.T]

        def objective(point):
            weights = torch.from_numpy(point).requires_grad_()
            anchors, positives, negatives = (nodes @ weights for nodes in triplets)
            loss = angular_loss(anchors, positives, negatives, self.angle)
            return loss.item(), torch.autograd.grad(loss, weights)[0].numpy()

        return conjugate_gradient(objective, factor)


@register_method("ssdml", paper=NeighbourhoodTriplets)
class PropagatedClasses(SemiSupervisedMethod):
    """SSDML by propagated classes: an NCA term, an instance term and, if wanted, triplets.

    Parameters
    ----------
    angle : float, default=None
        Of the angular loss of triplets by propagated affinity, in degrees; None leaves it out.
    instance_weight : float, default=None
        The weight of the instance term; None is 0.5 for images, and 0 for tables.
    orthogonal : bool, default=True
        Whether L has orthonormal columns.
    """

    metric = "gradient"
    batches = "views"
    needs_pairs = False
    _parameter_constraints = {
        "angle": [Interval(Real, 0, 90, closed="neither"), None],
        "instance_weight": [Interval(Real, 0, None, closed="left"), None],
        "orthogonal": ["boolean"],
    }

    def __init__(
        self,
        angle: float | None = None,
        instance_weight: float | None = None,
        orthogonal: bool = True,
    ) -> None:
        self.angle = angle
        self.instance_weight = instance_weight
        self.orthogonal = orthogonal

    def begin(self, partition: Partition, rng: Generator) -> None:
        """Take labels and propagated classes."""
        self.codes = partition.codes
        self.classes = torch.from_numpy(partition.classes.astype(np.float32))
        self.weight = self.instance_weight
        if self.weight is None:
            self.weight = _INSTANCE_WEIGHT if partition.has_images else 0.0
        self.batches = "views" if self.weight or self.angle is not None else "samples"

    def loss(self, batch: NDArray, *embeddings: Tensor) -> Tensor:
        """Return the loss of samples and, where terms need them, of their other views."""
        first, second = embeddings[0], embeddings[-1]
        loss = self._nca_loss(batch[0], first)
        if len(batch) == 1:
            return loss
        affinity = (self.classes[batch[0]] @ self.classes[batch[1]].T).to(first.device)
        if self.angle is not None:
            distances = torch.cdist(first.detach(), second.detach())
            anchors, positives, negatives = affinity_triplets(affinity, distances, similar=_ALIKE)
            triplets = first[anchors], second[positives], second[negatives]
            loss = loss + angular_loss(*triplets, self.angle, _SCALE)
        if self.weight:
            term = instance_loss(first, second, affinity > _ALIKE, _INSTANCE_TEMPERATURE)
            loss = loss + self.weight * term
        return loss

    def _nca_loss(self, nodes, embeddings):
        places = np.flatnonzero(self.codes[nodes] >= 0)
        own = torch.from_numpy(nodes[:, None] == nodes[places]).to(embeddings.device)
        distances = torch.cdist(embeddings, embeddings[places]).square().masked_fill(own, _MASKED)
        labels = torch.from_numpy(self.codes[nodes[places]]).to(embeddings.device)
        classes = self.classes[nodes].to(embeddings)
        return labelled_loss(distances, classes, labels, _NCA_TEMPERATURE)


def neighbourhood_triplets(neighbors: NDArray, affinity: NDArray) -> NDArray:
    """Return triplets from the halves of each neighbourhood by affinity, paired in order.

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
    """Return a random positive and the hardest negative of each anchor, by propagated affinity.

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


def angular_loss(
    anchors: Tensor, positives: Tensor, negatives: Tensor, angle: float, scale: float = 1.0
) -> Tensor:
    r"""Angular loss of triplets, smooth at its margin.

    .. math:: \log(1 + e^{s m}), \quad
              m = d^2(a, p) - 4 \tan^2 \alpha \; d^2\left(n, \tfrac{a + p}{2}\right)

    Parameters
    ----------
    anchors, positives, negatives : Tensor of shape (n_triplets, n_components)
        Embeddings.
    angle : float
        :math:`\alpha`, in degrees.
    scale : float, default=1.0
        s, the slope of the softplus; 1 is the paper's.

    Returns
    -------
    loss : Tensor
        The mean; 0 without a triplet.
    """
    factor = 4 * math.tan(math.radians(angle)) ** 2
    middle = (anchors + positives) / 2
    margin = (anchors - positives).square().sum(1) - factor * (negatives - middle).square().sum(1)
    return functional.softplus(scale * margin).sum() / max(len(margin), 1)


def instance_loss(first: Tensor, second: Tensor, alike: Tensor, temperature: float) -> Tensor:
    r"""InfoNCE of samples and partners, with likely positives masked.

    .. math:: -\log \frac{e^{f_i' g_i / t}}
              {e^{f_i' g_i / t} + \sum_{j \ne i, \, j \not\sim i} e^{f_i' g_j / t}}

    with unit vectors f and g: a sample, and its partner, which is another augmented view of it or
    one of its neighbours.

    Parameters
    ----------
    first, second : Tensor of shape (n_rows, n_components)
        Embeddings of samples and of their partners, of any length.
    alike : Tensor of bool, of shape (n_rows, n_rows)
        Likely positives, which are left out of the sum.
    temperature : float
        t.

    Returns
    -------
    loss : Tensor
        The mean over rows.
    """
    logits = functional.normalize(first, dim=1) @ functional.normalize(second, dim=1).T
    own = torch.eye(len(first), dtype=torch.bool, device=first.device)
    logits = (logits / temperature).masked_fill(alike & ~own, -torch.inf)
    return functional.cross_entropy(logits, torch.arange(len(first), device=first.device))


def labelled_loss(distances: Tensor, classes: Tensor, labels: Tensor, temperature: float) -> Tensor:
    r"""NCA loss: the class of each sample by its distances to labelled samples.

    .. math:: -\sum_c p_i(c) \log \frac{\sum_{j : y_j = c} e^{-d_{ij}^2 / t}}
              {\sum_j e^{-d_{ij}^2 / t}}

    with propagated classes p.

    Parameters
    ----------
    distances : Tensor of shape (n_rows, n_labelled)
        Squared distances to labelled rows; very large where it is the row itself.
    classes : Tensor of shape (n_rows, n_classes)
        The distributions of the rows over classes.
    labels : Tensor of shape (n_labelled,)
        The numbers of the classes of labelled rows.
    temperature : float
        t.

    Returns
    -------
    loss : Tensor
        The mean over rows. A class that is not found counts as if its share were one in a million.
    """
    members = functional.one_hot(labels, classes.shape[1]).to(distances)
    shares = functional.softmax(-distances / temperature, dim=1) @ members
    return -(classes * shares.clamp_min(_MIN_SHARE).log()).sum(1).mean()
