"""What a network and its metric are trained for, by method: a step for the metric, and a loss."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from ..constraints import make_pairs
from ..linear import DITMLTransformer
from ._affinity import Graph, propagate_affinity
from ._mining import affinity_triplets, neighbourhood_triplets
from ._ssdml_baselines import (
    density_weights,
    factor_metric,
    laplacian_scatter,
    likelihood_prior,
    lrml_metric,
    propagated_metric,
    scatter,
    seraph_metric,
)
from ._ssdml_losses import (
    angular_loss,
    graph_loss,
    instance_loss,
    labelled_loss,
    pair_distances,
    seraph_loss,
)
from ._stiefel import conjugate_gradient

# How sharply the angular loss bends, with triplets by affinity.
_SCALE = 4.0
# Affinity above which two rows are taken to be alike.
_ALIKE = 0.5
_TEMPERATURE = 0.2
# Squared distances are divided by this where a row looks for its class among the labelled ones; and
# it does not find itself.
_WIDTH = 0.1
_AWAY = 1e6
# Rows of the sample on which L is moved in alternating training, and pairs of SERAPH's metric.
_SAMPLE = 1000
_MAX_PAIRS = 5000
# Labelled rows whose pairs are listed.
_MAX_LABELLED = 500


class Partition(NamedTuple):
    """Rows that were joined by a graph.

    Parameters
    ----------
    rows : ndarray of shape (n_nodes,)
        Positions in X.
    codes : ndarray of shape (n_nodes,)
        The numbers of their classes; -1 where unknown.
    graph : Graph
        The newest graph of them.
    classes : ndarray of shape (n_nodes, n_classes)
        The propagated distributions over classes.
    """

    rows: NDArray
    codes: NDArray
    graph: Graph
    classes: NDArray


class AffinityTriplets:
    """SSDML with triplets by propagated affinity, rows near their partners and labelled rows.

    Parameters
    ----------
    angle : float
        Of the angular loss, in degrees.
    instance_weight : float
        The weight of the loss of partners.
    """

    has_gradient_metric = True
    partners = "changed"

    def __init__(self, angle: float, instance_weight: float) -> None:
        self.angle = angle
        self.instance_weight = instance_weight

    def begin(self, partition: Partition, rng: np.random.Generator) -> None:
        """Take a new partition."""
        self.codes = partition.codes
        self.classes = torch.from_numpy(partition.classes.astype(np.float32))

    def loss(self, batch: NDArray, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return the loss of the embeddings of a batch and of its partners."""
        affinity = self.classes[batch[0]] @ self.classes[batch[1]].T
        affinity = affinity.to(first.device)
        distances = torch.cdist(first.detach(), second.detach())
        anchors, positives, negatives = affinity_triplets(affinity, distances, similar=_ALIKE)
        loss = angular_loss(
            first[anchors], second[positives], second[negatives], self.angle, _SCALE
        )
        loss = loss + self._find_labels(batch[0], first)
        if self.instance_weight:
            term = instance_loss(first, second, affinity > _ALIKE, _TEMPERATURE)
            loss = loss + self.instance_weight * term
        return loss

    def _find_labels(self, nodes, embeddings):
        places = np.flatnonzero(self.codes[nodes] >= 0)
        own = torch.from_numpy(nodes[:, None] == nodes[places]).to(embeddings.device)
        distances = torch.cdist(embeddings, embeddings[places]).square().masked_fill(own, _AWAY)
        labels = torch.from_numpy(self.codes[nodes[places]]).to(embeddings.device)
        return labelled_loss(distances, self.classes[nodes].to(embeddings), labels, _WIDTH)

    def move_metric(self, features: NDArray, factor: NDArray, rng: np.random.Generator) -> NDArray:
        """Return L after some steps of conjugate gradients on the triplets of a sample of rows."""
        nodes = rng.permutation(len(features))[:_SAMPLE]
        embeddings = torch.from_numpy(features[nodes] @ factor)
        classes = self.classes[nodes]
        triplets = affinity_triplets(
            classes @ classes.T, torch.cdist(embeddings, embeddings), similar=_ALIKE
        )
        return _descend(features[nodes], triplets, factor, self.angle, _SCALE)


class NeighbourhoodTriplets:
    """SSDML with the paper's triplets, halves of the neighbourhoods.

    Parameters
    ----------
    angle : float
        Of the angular loss, in degrees.
    damping : float
        Of the propagation of affinities.
    """

    has_gradient_metric = True
    partners = "triplets"

    def __init__(self, angle: float, damping: float) -> None:
        self.angle = angle
        self.damping = damping

    def begin(self, partition: Partition, rng: np.random.Generator) -> None:
        """Take a new partition."""
        graph = partition.graph
        affinity = propagate_affinity(graph.flow, partition.codes, self.damping, graph.neighbors)
        self.triplets = neighbourhood_triplets(graph.neighbors, affinity)

    def loss(
        self,
        batch: NDArray,
        anchors: torch.Tensor,
        positives: torch.Tensor,
        negatives: torch.Tensor,
    ) -> torch.Tensor:
        """Return the loss of the embeddings of triplets."""
        return angular_loss(anchors, positives, negatives, self.angle)

    def move_metric(self, features: NDArray, factor: NDArray, rng: np.random.Generator) -> NDArray:
        """Return L after some steps of conjugate gradients on a sample of triplets."""
        chosen = self.triplets[rng.permutation(len(self.triplets))[:_SAMPLE]]
        return _descend(features, torch.from_numpy(chosen).T, factor, self.angle, 1.0)


def _descend(features, triplets, factor, angle, scale):
    anchors, positives, negatives = (torch.from_numpy(features)[part] for part in triplets)

    def objective(point):
        weights = torch.from_numpy(point).requires_grad_()
        loss = angular_loss(
            anchors @ weights, positives @ weights, negatives @ weights, angle, scale
        )
        return loss.item(), torch.autograd.grad(loss, weights)[0].numpy()

    return conjugate_gradient(objective, factor)


class GraphObjective:
    """LRML, ISDML, APLLR and APIT: labelled pairs, and the edges of the graph.

    Parameters
    ----------
    method : {"lrml", "isdml", "apllr", "apit"}
        Which of them.
    similar_weight, dissimilar_weight, graph_weight : float
        Of similar pairs, dissimilar pairs and edges, which are means each.
    """

    has_gradient_metric = False
    partners = "neighbours"

    def __init__(
        self,
        method: str,
        similar_weight: float = 1.0,
        dissimilar_weight: float = 0.5,
        graph_weight: float = 1.0,
    ) -> None:
        self.method = method
        self.similar_weight = similar_weight
        self.dissimilar_weight = dissimilar_weight
        self.graph_weight = graph_weight

    def begin(self, partition: Partition, rng: np.random.Generator) -> None:
        """Take a new partition: the weights of the edges, and the labelled pairs."""
        graph = partition.graph
        weights = sparse.csr_array((graph.flow + graph.flow.T) / 2)
        if self.method == "isdml":
            weights = density_weights(weights)
        elif self.method in ("apllr", "apit"):
            edges = weights.tocoo()
            ends = partition.classes[edges.row], partition.classes[edges.col]
            affinity = 2 * np.einsum("ij,ij->i", *ends) - 1
            weights = sparse.csr_array(
                (edges.data * affinity, (edges.row, edges.col)), weights.shape
            )
        mean = np.abs(weights.data).mean()
        self.weights = weights / (mean if mean > 0 else 1.0)
        self.codes = partition.codes
        self.labelled, self.similar, self.dissimilar = labelled_pairs(partition.codes, rng)

    def loss(self, batch: NDArray, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return the loss of the embeddings of a batch and of its partners."""
        pairs, signs = batch_pairs(self.codes[batch[0]])
        distances = pair_distances(first, pairs.to(first.device))
        weights = np.asarray(self.weights[batch[0], batch[1]], dtype=np.float32)
        return graph_loss(
            distances[signs > 0],
            distances[signs < 0],
            (first - second).square().sum(1),
            torch.from_numpy(weights).to(first.device),
            self.similar_weight,
            self.dissimilar_weight,
            self.graph_weight,
        )

    def move_metric(self, features: NDArray, factor: NDArray, rng: np.random.Generator) -> NDArray:
        """Return L of the metric in closed form."""
        similar, dissimilar = scatter(features, self.similar), scatter(features, self.dissimilar)
        graph = laplacian_scatter(features, self.weights)
        if self.method in ("lrml", "isdml"):
            weights = self.similar_weight, self.dissimilar_weight
            metric, _ = lrml_metric(self.graph_weight * graph, similar, dissimilar, *weights)
        else:
            if self.method == "apllr":
                prior = likelihood_prior(similar, dissimilar)
            else:
                prior = itml_prior(features[self.labelled], self.codes[self.labelled], rng)
            metric = propagated_metric(prior, graph, self.graph_weight)
        covariance = np.cov(features, rowvar=False).reshape(metric.shape)
        # The scale of the metric means nothing; embeddings keep the variance of the features.
        scale = np.trace(metric @ covariance) / max(np.trace(covariance), np.finfo(float).tiny)
        metric = metric / (scale if scale > 0 else 1.0)
        return factor_metric(metric, covariance, factor.shape[1])


class SeraphObjective:
    """SERAPH: likelihood of labelled pairs, entropy of unlabelled ones.

    Parameters
    ----------
    entropy_weight : float
        Of the entropy.
    trace_weight : float
        Of the trace of the metric.
    """

    has_gradient_metric = False
    partners = "neighbours"

    def __init__(self, entropy_weight: float = 0.1, trace_weight: float = 0.01) -> None:
        self.entropy_weight = entropy_weight
        self.trace_weight = trace_weight

    def begin(self, partition: Partition, rng: np.random.Generator) -> None:
        """Take a new partition: labelled pairs, and pairs of unlabelled rows."""
        self.codes = partition.codes
        _, similar, dissimilar = labelled_pairs(partition.codes, rng)
        pairs = np.concatenate([similar, dissimilar])
        signs = np.repeat([1.0, -1.0], [len(similar), len(dissimilar)])
        chosen = rng.permutation(len(pairs))[:_MAX_PAIRS]
        self.pairs, self.signs = pairs[chosen], signs[chosen]
        unlabelled = np.flatnonzero(partition.codes < 0)
        if len(unlabelled):
            self.others = rng.choice(unlabelled, (_MAX_PAIRS, 2))
        else:
            self.others = np.empty((0, 2), dtype=int)

    def loss(self, batch: NDArray, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return the loss of the embeddings of a batch."""
        codes = self.codes[batch[0]]
        pairs, signs = batch_pairs(codes)
        unlabelled = first[torch.from_numpy(codes < 0).to(first.device)]
        return seraph_loss(
            pair_distances(first, pairs.to(first.device)),
            signs.to(first),
            (unlabelled - unlabelled.roll(1, 0)).square().sum(1),
            1.0,
            self.entropy_weight,
        )

    def move_metric(self, features: NDArray, factor: NDArray, rng: np.random.Generator) -> NDArray:
        """Return L of the metric that projected gradients find."""
        metric = seraph_metric(
            features[self.pairs[:, 0]] - features[self.pairs[:, 1]],
            self.signs,
            features[self.others[:, 0]] - features[self.others[:, 1]],
            self.entropy_weight,
            self.trace_weight,
        )
        covariance = np.cov(features, rowvar=False).reshape(metric.shape)
        return factor_metric(metric, covariance, factor.shape[1])


def make_objective(
    method: str,
    mining: str,
    angle: float,
    damping: float,
    instance_weight: float,
    params: dict[str, Any],
) -> Any:
    """Return the objective of a method.

    Parameters
    ----------
    method, mining : str
        As in SSDMLEmbedder.
    angle, damping, instance_weight : float
        Of SSDML.
    params : dict
        Parameters of the other methods.

    Returns
    -------
    objective : object
        With `begin(partition, rng)`, which takes a new partition; ``loss(batch, *embeddings)`` of
        nodes and their partners, or of triplets, as its attribute `partners` says; and
        `move_metric(features, factor, rng)`, a new L for given features. `has_gradient_metric`
        tells whether L may be trained by the gradients of the loss as well.
    """
    if method != "ssdml":
        known = {"seraph": SeraphObjective}.get(method)
        try:
            return known(**params) if known else GraphObjective(method, **params)
        except TypeError as error:
            raise TypeError(f"loss__...: {error}") from None
    if params:
        raise TypeError(f"loss__{next(iter(params))}: method='ssdml' has no such parameters.")
    if mining == "affinity":
        return AffinityTriplets(angle, instance_weight)
    return NeighbourhoodTriplets(angle, damping)


def labelled_pairs(
    codes: NDArray, rng: np.random.Generator | None = None
) -> tuple[NDArray, NDArray, NDArray]:
    """Return the labelled nodes, and all their pairs of one class and of different ones.

    With a generator, of at most `_MAX_LABELLED` nodes, drawn at random.
    """
    labelled = np.flatnonzero(codes >= 0)
    if rng is not None and len(labelled) > _MAX_LABELLED:
        labelled = np.sort(rng.choice(labelled, _MAX_LABELLED, replace=False))
    left, right = np.triu_indices(len(labelled), 1)
    pairs = labelled[np.column_stack([left, right])]
    same = codes[pairs[:, 0]] == codes[pairs[:, 1]]
    return labelled, pairs[same], pairs[~same]


def batch_pairs(codes: NDArray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pairs of labelled rows of a batch, with +1 for one class and -1 for two."""
    _, similar, dissimilar = labelled_pairs(codes)
    pairs = torch.from_numpy(np.concatenate([similar, dissimilar]))
    signs = torch.ones(len(pairs))
    signs[len(similar) :] = -1
    return pairs, signs


def itml_prior(X: NDArray, codes: NDArray, rng: np.random.Generator) -> NDArray:
    """Return the metric of information-theoretic metric learning on labelled rows."""
    pairs, labels = make_pairs(codes, random_state=int(rng.integers(2**31)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a prior need not be exact
        learner = DITMLTransformer(max_iter=50, random_state=0)
        return learner.fit(X, pairs=pairs, pair_labels=labels).get_mahalanobis_matrix()
