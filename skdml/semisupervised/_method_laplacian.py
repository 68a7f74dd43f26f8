"""LRML, ISDML, APLLR and APIT: labelled pairs, and a Laplacian of the graph."""

from __future__ import annotations

import warnings
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from ..constraints import make_pairs
from ..linear import DITMLTransformer
from ..utils._sklearn import Interval
from ._ssdml_methods import Partition, SemiSupervisedMethod, register_method

# A ridge, in units of the mean eigenvalue, where a matrix must have an inverse.
_RIDGE = 1e-3
# Of a weight, after which it is 0.
_MAX_HALVINGS = 60
# Labelled nodes whose pairs are listed.
_MAX_LABELLED = 500
REAL = Interval(Real, None, None, closed="neither")


@register_method("lrml")
class LRML(SemiSupervisedMethod):
    """Laplacian regularised metric learning.

    Parameters
    ----------
    similar_weight, dissimilar_weight, graph_weight : float
        Of similar pairs, dissimilar pairs and edges, which are means each.
    """

    _parameter_constraints = {
        "similar_weight": [REAL],
        "dissimilar_weight": [REAL],
        "graph_weight": [REAL],
    }

    def __init__(
        self, similar_weight: float = 1.0, dissimilar_weight: float = 0.5, graph_weight: float = 1.0
    ) -> None:
        self.similar_weight = similar_weight
        self.dissimilar_weight = dissimilar_weight
        self.graph_weight = graph_weight

    def begin(self, partition: Partition, rng: Generator) -> None:
        """Take the weights of the edges, and the labelled pairs."""
        flow = partition.graph.flow
        weights = self._weigh_edges(sparse.csr_array((flow + flow.T) / 2), partition.classes)
        mean = np.abs(weights.data).mean()
        self.weights = weights / (mean if mean > 0 else 1.0)
        self.codes, self.node_weights = partition.codes, partition.weights
        self.labelled, self.similar, self.dissimilar = labelled_pairs(partition.codes, rng)

    def loss(self, batch: NDArray, *embeddings: Tensor) -> Tensor:
        """Return the loss of samples and of one neighbour of each."""
        first, second = embeddings
        pairs, signs = batch_pairs(self.codes[batch[0]])
        distances = pair_distances(first, pairs.to(first.device))
        edges = (first - second).square().sum(1)
        weights = np.asarray(self.weights[batch[0], batch[1]], dtype=np.float32)
        weights = torch.from_numpy(weights).to(first.device)
        gammas = self.similar_weight, self.dissimilar_weight, self.graph_weight
        return graph_loss(distances[signs > 0], distances[signs < 0], edges, weights, *gammas)

    def find_metric(self, features: NDArray, factor: NDArray, rng: Generator) -> NDArray:
        """Return L of the metric in closed form."""
        similar, dissimilar = (
            scatter(features, pairs, self.node_weights) for pairs in (self.similar, self.dissimilar)
        )
        graph = laplacian_scatter(features, self.weights)
        metric = self._solve(features, graph, similar, dissimilar, rng)
        covariance = np.cov(features, rowvar=False).reshape(metric.shape)
        # The scale of the metric is arbitrary; embeddings keep the variance of the features.
        scale = np.trace(metric @ covariance) / max(np.trace(covariance), np.finfo(float).tiny)
        metric = metric / (scale if scale > 0 else 1.0)
        return factor_metric(metric, covariance, factor.shape[1])

    def _weigh_edges(self, weights: Any, classes: NDArray) -> Any:
        return weights

    def _solve(self, features, graph, similar, dissimilar, rng):
        weights = self.similar_weight, self.dissimilar_weight
        return lrml_metric(self.graph_weight * graph, similar, dissimilar, *weights)[0]


@register_method("isdml")
class ISDML(LRML):
    """LRML with edges weighted by the density around them."""

    def _weigh_edges(self, weights, classes):
        return density_weights(weights)


@register_method("apllr")
class APLLR(LRML):
    """Affinity propagation from a prior metric, by a log-likelihood ratio."""

    def _weigh_edges(self, weights, classes):
        edges = weights.tocoo()
        affinity = 2 * np.einsum("ij,ij->i", classes[edges.row], classes[edges.col]) - 1
        return sparse.csr_array((edges.data * affinity, (edges.row, edges.col)), weights.shape)

    def _solve(self, features, graph, similar, dissimilar, rng):
        prior = self._prior(features, similar, dissimilar, rng)
        return propagated_metric(prior, graph, self.graph_weight)

    def _prior(self, features, similar, dissimilar, rng):
        return likelihood_prior(similar, dissimilar)


@register_method("apit")
class APIT(APLLR):
    """Affinity propagation from a prior metric, by ITML."""

    def _prior(self, features, similar, dissimilar, rng):
        weights = None if self.node_weights is None else self.node_weights[self.labelled]
        return itml_prior(features[self.labelled], self.codes[self.labelled], rng, weights)


def labelled_pairs(
    codes: NDArray, rng: Generator | None = None
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
    return pairs, torch.where(torch.arange(len(pairs)) < len(similar), 1.0, -1.0)


def itml_prior(
    X: NDArray, codes: NDArray, rng: Generator, weights: NDArray | None = None
) -> NDArray:
    """Return the metric of information-theoretic metric learning on labelled rows."""
    pairs, labels = make_pairs(codes, random_state=int(rng.integers(2**31)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a prior need not be exact
        learner = DITMLTransformer(gamma=1.0, max_iter=50, random_state=0)
        try:
            learner.fit(X, pairs=pairs, pair_labels=labels, sample_weight=weights)
            return learner.get_mahalanobis_matrix()
        except ValueError as error:
            raise ValueError(
                f"method='apit' cannot learn its prior from the labelled rows: {error} Give more "
                "labels, or another method."
            ) from None


def pair_distances(embeddings: Tensor, pairs: Tensor) -> Tensor:
    """Return the squared distance of each pair of rows."""
    return (embeddings[pairs[:, 0]] - embeddings[pairs[:, 1]]).square().sum(1)


def graph_loss(
    similar: Tensor, dissimilar: Tensor, edges: Tensor, weights: Tensor, *gammas: float
) -> Tensor:
    r"""Loss of LRML: similar pairs and neighbours near each other, dissimilar pairs apart.

    .. math:: \gamma_S \langle d^2 \rangle_S - \gamma_D \langle d^2 \rangle_D
              + \gamma_L \langle w_{ij} d^2_{ij} \rangle

    with means over similar pairs, over dissimilar pairs and over the edges of a graph. ISDML, APLLR
    and APIT differ by the weights of the edges.

    Parameters
    ----------
    similar, dissimilar, edges : Tensor
        Squared distances; a kind may be empty.
    weights : Tensor
        One for each edge.
    *gammas : float
        :math:`\gamma_S`, :math:`\gamma_D` and :math:`\gamma_L`.

    Returns
    -------
    loss : Tensor
        A scalar.
    """
    by_similar, by_dissimilar, by_edges = (
        gamma * (values.sum() / max(len(values), 1))
        for gamma, values in zip(gammas, (similar, dissimilar, weights * edges), strict=True)
    )
    return by_similar - by_dissimilar + by_edges


def scatter(X: NDArray, pairs: NDArray, weights: NDArray | None = None) -> NDArray:
    """Return the mean outer product of the differences of pairs of rows; 0 without any.

    A pair counts the product of the weights of its rows, where they have weights.
    """
    differences = X[pairs[:, 0]] - X[pairs[:, 1]]
    if weights is not None and len(pairs):
        shares = weights[pairs].prod(axis=1)
        return differences.T @ (shares[:, None] * differences) / shares.sum()
    return differences.T @ differences / max(len(pairs), 1)


def laplacian_scatter(X: NDArray, weights: sparse.csr_array) -> NDArray:
    r"""Return the mean weighted outer product of the differences along the edges of a graph.

    :math:`\sum_{ij} w_{ij} (x_i - x_j)(x_i - x_j)^T / \sum_{ij} |w_{ij}|`, which is 2 X'LX with the
    graph's Laplacian L, made independent of the number of edges.

    Parameters
    ----------
    X : ndarray of shape (n_nodes, n_features)
        The rows.
    weights : sparse array of shape (n_nodes, n_nodes)
        Symmetric; weights may be negative.

    Returns
    -------
    matrix : ndarray of shape (n_features, n_features)
        Symmetric.
    """
    X = X - X.mean(axis=0)  # differences are the same, and large numbers do not cancel
    degrees = weights.sum(axis=1)
    products = X.T @ (degrees[:, None] * X) - X.T @ (weights @ X)
    total = abs(weights).sum()
    return (products + products.T) / (total if total > 0 else 1)


def density_weights(weights: sparse.csr_array) -> sparse.csr_array:
    """Scale the weight of an edge by the density around both ends.

    The density of a node is its mean weight to its neighbours, relative to the mean over nodes. The
    published definition of ISDML is not complete; this is a reconstruction.

    Parameters
    ----------
    weights : sparse array of shape (n_nodes, n_nodes)
        Symmetric, not negative.

    Returns
    -------
    weights : sparse array of shape (n_nodes, n_nodes)
        ``sqrt(density_i * density_j) * w_ij``.
    """
    counts = np.maximum(np.diff(weights.indptr), 1)
    density = weights.sum(axis=1) / counts
    mean = density.mean()
    root = sparse.diags_array(np.sqrt(density / (mean if mean > 0 else 1)))
    return sparse.csr_array(root @ weights @ root)


def add_ridge(matrix: NDArray) -> NDArray:
    """Add a small multiple of the identity, so that a semi-definite matrix has an inverse."""
    size = len(matrix)
    level = np.trace(matrix) / size
    return matrix + _RIDGE * (level if level > 0 else 1.0) * np.eye(size)


def lrml_metric(
    graph: NDArray,
    similar: NDArray,
    dissimilar: NDArray,
    similar_weight: float,
    dissimilar_weight: float,
) -> tuple[NDArray, float]:
    r"""Return the metric of LRML in closed form.

    .. math:: \min_M \operatorname{tr}(M B), \; \log\det M \ge 0: \quad
              M = \det(B)^{1/d} B^{-1}, \quad B = G + \gamma_S S - \gamma_D D

    Parameters
    ----------
    graph, similar, dissimilar : ndarray of shape (n_features, n_features)
        G, S and D: mean outer products of differences along the graph, of similar and of
        dissimilar pairs.
    similar_weight, dissimilar_weight : float
        :math:`\gamma_S` and :math:`\gamma_D`.

    Returns
    -------
    metric : ndarray of shape (n_features, n_features)
        M, positive definite, with determinant 1.
    dissimilar_weight : float
        The weight that was used: halved until B is positive definite; 0 where no half is small
        enough.
    """
    base = add_ridge(graph + similar_weight * similar)
    floor = 1e-6 * np.linalg.eigvalsh(base)[0]
    for _ in range(_MAX_HALVINGS):
        eigenvalues, vectors = np.linalg.eigh(base - dissimilar_weight * dissimilar)
        if eigenvalues[0] > floor:
            break
        dissimilar_weight /= 2
    else:
        warnings.warn(
            f"LRML's metric with dissimilar pairs is not positive definite after {_MAX_HALVINGS} "
            f"halvings of their weight (smallest eigenvalue {eigenvalues[0]:.2g}): these pairs are "
            "left out. Scale X, or give loss__dissimilar_weight=0.",
            ConvergenceWarning,
        )
        dissimilar_weight = 0.0
        eigenvalues, vectors = np.linalg.eigh(base)
        eigenvalues = np.maximum(eigenvalues, _RIDGE * eigenvalues[-1])
    scale = np.exp(np.log(eigenvalues).mean())
    return (vectors * (scale / eigenvalues)) @ vectors.T, dissimilar_weight


def likelihood_prior(similar: NDArray, dissimilar: NDArray) -> NDArray:
    r"""Return the metric of a log-likelihood ratio, :math:`S^{-1} - D^{-1}`, clipped at 0.

    Parameters
    ----------
    similar, dissimilar : ndarray of shape (n_features, n_features)
        S and D, mean outer products of differences of similar and of dissimilar pairs.

    Returns
    -------
    metric : ndarray of shape (n_features, n_features)
        Positive semi-definite.
    """
    return clip_negative(np.linalg.inv(add_ridge(similar)) - np.linalg.inv(add_ridge(dissimilar)))


def propagated_metric(prior: NDArray, graph: NDArray, graph_weight: float) -> NDArray:
    r"""Return a prior metric regularised by the Laplacian of a graph.

    .. math:: M = (M_0^{-1} + \gamma G)^{-1}
              = R (I + \gamma R G R)^{-1} R, \quad R = M_0^{1/2}

    The second form needs no inverse of the prior, which is often singular. With negative weights in
    the graph, negative eigenvalues of RGR count as 0. A reconstruction of APLLR and APIT, whose
    definition is not public in full.

    Parameters
    ----------
    prior : ndarray of shape (n_features, n_features)
        :math:`M_0`, positive semi-definite.
    graph : ndarray of shape (n_features, n_features)
        G, from `laplacian_scatter`.
    graph_weight : float
        :math:`\gamma`, relative to the size of RGR: at 1, its mean eigenvalue counts as much as
        the prior.

    Returns
    -------
    metric : ndarray of shape (n_features, n_features)
        Positive semi-definite.
    """
    root = clip_negative(prior, power=0.5)
    inner, axes = np.linalg.eigh(root @ graph @ root)
    inner = np.maximum(inner, 0)
    level = inner.mean()
    axes = root @ axes
    return (axes / (1 + graph_weight * inner / (level if level > 0 else 1.0))) @ axes.T


def factor_metric(metric: NDArray, covariance: NDArray, n_components: int) -> NDArray:
    """Return a factor of a metric, ``M ~ L L'``, along the directions of largest variance.

    Parameters
    ----------
    metric : ndarray of shape (n_features, n_features)
        M, positive semi-definite.
    covariance : ndarray of shape (n_features, n_features)
        Of the rows.
    n_components : int
        Columns of L.

    Returns
    -------
    factor : ndarray of shape (n_features, n_components)
        ``L L' = M`` where no direction is left out.
    """
    root = clip_negative(metric, power=0.5)
    _, axes = np.linalg.eigh(root @ covariance @ root)
    return root @ axes[:, ::-1][:, :n_components]


def clip_negative(matrix: NDArray, power: float = 1.0) -> NDArray:
    """Return the positive semi-definite matrix nearest to a symmetric one, or a power of it."""
    eigenvalues, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(eigenvalues, 0) ** power) @ vectors.T
