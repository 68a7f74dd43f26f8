"""Classical semi-supervised metrics in closed form, of rows and a graph."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from ._ssdml_losses import seraph_loss

# A ridge, in units of the mean eigenvalue, where a matrix must have an inverse.
_RIDGE = 1e-3
# Of a weight, or of a step, after which it is nothing.
_HALVINGS = 60


def scatter(X: NDArray, pairs: NDArray) -> NDArray:
    """Return the mean outer product of the differences of pairs of rows; 0 without any."""
    differences = X[pairs[:, 0]] - X[pairs[:, 1]]
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
        What was used: B must be positive definite, so it is halved until B is; 0 where no half
        is small enough.
    """
    base = add_ridge(graph + similar_weight * similar)
    floor = 1e-6 * np.linalg.eigvalsh(base)[0]
    for _ in range(_HALVINGS):
        eigenvalues, vectors = np.linalg.eigh(base - dissimilar_weight * dissimilar)
        if eigenvalues[0] > floor:
            break
        dissimilar_weight /= 2
    else:
        warnings.warn(
            f"LRML's metric with dissimilar pairs is not positive definite after {_HALVINGS} "
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
    ratio = np.linalg.inv(add_ridge(similar)) - np.linalg.inv(add_ridge(dissimilar))
    return clip_negative(ratio)


def propagated_metric(prior: NDArray, graph: NDArray, graph_weight: float) -> NDArray:
    r"""Draw a prior metric towards one that is small along a graph.

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
        G, what `laplacian_scatter` returns.
    graph_weight : float
        :math:`\gamma`, relative to the size of RGR: at 1, its mean eigenvalue counts as much as
        the prior.

    Returns
    -------
    metric : ndarray of shape (n_features, n_features)
        Positive semi-definite.
    """
    eigenvalues, vectors = np.linalg.eigh(prior)
    root = (vectors * np.sqrt(np.maximum(eigenvalues, 0))) @ vectors.T
    inner, axes = np.linalg.eigh(root @ graph @ root)
    inner = np.maximum(inner, 0)
    level = inner.mean()
    axes = root @ axes
    return (axes / (1 + graph_weight * inner / (level if level > 0 else 1.0))) @ axes.T


def factor_metric(metric: NDArray, covariance: NDArray, n_components: int) -> NDArray:
    """Return L of the directions along which rows vary most under a metric, ``M ~ L L'``.

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
    eigenvalues, vectors = np.linalg.eigh(metric)
    root = (vectors * np.sqrt(np.maximum(eigenvalues, 0))) @ vectors.T
    _, axes = np.linalg.eigh(root @ covariance @ root)
    return root @ axes[:, ::-1][:, :n_components]


def seraph_metric(
    labelled: NDArray,
    signs: NDArray,
    unlabelled: NDArray,
    entropy_weight: float,
    trace_weight: float,
    max_iter: int = 200,
) -> NDArray:
    r"""Return the metric of SERAPH, by projected gradients.

    Parameters
    ----------
    labelled, unlabelled : ndarray of shape (n_pairs, n_features)
        Differences of pairs.
    signs : ndarray of shape (n_pairs,)
        +1 for labelled pairs of one class, -1 for others.
    entropy_weight : float
        :math:`\mu`.
    trace_weight : float
        :math:`\lambda`, the price of the trace, in units of the mean squared difference of a
        feature.
    max_iter : int, default=200
        Steps at most.

    Returns
    -------
    metric : ndarray of shape (n_features, n_features)
        Positive semi-definite, in a scale in which the squared distance 1 divides similar from
        dissimilar pairs. The problem is not convex: a local minimum, from the Euclidean metric on.
    """
    n_features = labelled.shape[1]
    squares = np.concatenate([labelled, unlabelled]) ** 2
    unit = squares.mean()
    if unit == 0:  # all rows are the same: no direction is better than another
        return np.eye(n_features)
    pairs, others, truth = (torch.from_numpy(part) for part in (labelled, unlabelled, signs))

    def objective(metric):
        matrix = torch.from_numpy(metric).requires_grad_()
        near, wide = ((part @ matrix * part).sum(1) for part in (pairs, others))
        loss = seraph_loss(near, truth, wide, 1.0, entropy_weight)
        loss = loss + trace_weight * unit * matrix.trace()
        gradient = torch.autograd.grad(loss, matrix)[0].numpy()
        return loss.item(), (gradient + gradient.T) / 2

    metric = np.eye(n_features) / (unit * n_features)
    value, gradient = objective(metric)
    step = np.linalg.norm(metric) / max(np.linalg.norm(gradient), np.finfo(float).tiny)
    for _ in range(max_iter):
        step *= 2
        for _ in range(_HALVINGS):
            candidate = clip_negative(metric - step * gradient)
            new_value, new_gradient = objective(candidate)
            if new_value <= value - 1e-4 * np.sum(gradient * (metric - candidate)):
                break
            step /= 2
        else:  # no step improves any more: the value is exact to the last digits
            break
        done = value - new_value <= 1e-6 * abs(value)
        metric, decrease = candidate, value - new_value
        value, gradient = new_value, new_gradient
        if done:
            break
    else:
        if max_iter > 0:
            warnings.warn(
                f"SERAPH's projected gradients stopped after {max_iter} steps, the last of which "
                f"lowered the objective, {value:.2g}, by {decrease:.2g}: scale X, or raise "
                "loss__trace_weight.",
                ConvergenceWarning,
            )
    return metric


def clip_negative(matrix: NDArray) -> NDArray:
    """Return the positive semi-definite matrix nearest to a symmetric one."""
    eigenvalues, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(eigenvalues, 0)) @ vectors.T
