"""Objectives of semi-supervised metric learning, as functions of embeddings or of distances."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

_LEAST_SHARE = 1e-6


def angular_loss(
    anchors: Tensor, positives: Tensor, negatives: Tensor, angle: float, scale: float = 1.0
) -> Tensor:
    r"""Keep the angle at the negative of each triplet small.

    .. math:: \log(1 + e^{s m}), \quad
              m = d^2(a, p) - 4 \tan^2 \alpha \; d^2\left(n, \tfrac{a + p}{2}\right)

    Parameters
    ----------
    anchors, positives, negatives : Tensor of shape (n_triplets, n_components)
        Embeddings.
    angle : float
        :math:`\alpha`, in degrees.
    scale : float, default=1.0
        s, how sharply the loss bends at m = 0; 1 is the paper's.

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
    r"""Tell each row by its partner from the rows that may be different.

    .. math:: -\log \frac{e^{f_i' g_i / t}}
              {e^{f_i' g_i / t} + \sum_{j \ne i, \, j \not\sim i} e^{f_i' g_j / t}}

    with unit vectors f and g: a row and its partner, which is the same sample changed at random, or
    one of its neighbours.

    Parameters
    ----------
    first, second : Tensor of shape (n_rows, n_components)
        Embeddings of rows and of their partners, of any length.
    alike : Tensor of bool, of shape (n_rows, n_rows)
        Pairs that are left out of the sum, because they are taken to be of one class.
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
    r"""Let each row find its class among the labelled rows.

    .. math:: -\sum_c p_i(c) \log \frac{\sum_{j : y_j = c} e^{-d_{ij}^2 / t}}
              {\sum_j e^{-d_{ij}^2 / t}}

    This is the objective of neighbourhood components analysis, with propagated classes p.

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
    return -(classes * shares.clamp_min(_LEAST_SHARE).log()).sum(1).mean()


def pair_distances(embeddings: Tensor, pairs: Tensor) -> Tensor:
    """Return the squared distance of each pair of rows."""
    return (embeddings[pairs[:, 0]] - embeddings[pairs[:, 1]]).square().sum(1)


def graph_loss(
    similar: Tensor,
    dissimilar: Tensor,
    edges: Tensor,
    weights: Tensor,
    similar_weight: float,
    dissimilar_weight: float,
    graph_weight: float,
) -> Tensor:
    r"""Draw similar pairs and neighbours together, and dissimilar pairs apart.

    .. math:: \gamma_S \langle d^2 \rangle_S - \gamma_D \langle d^2 \rangle_D
              + \gamma_L \langle w_{ij} d^2_{ij} \rangle

    with means over similar pairs, over dissimilar pairs and over the edges of a graph: the
    objective of LRML, with which ISDML, APLLR and APIT share all but the weights of the edges.

    Parameters
    ----------
    similar, dissimilar, edges : Tensor
        Squared distances; a kind may be empty.
    weights : Tensor
        One for each edge.
    similar_weight, dissimilar_weight, graph_weight : float
        :math:`\gamma_S`, :math:`\gamma_D` and :math:`\gamma_L`.

    Returns
    -------
    loss : Tensor
        A scalar.
    """

    def mean(values):
        return values.sum() / max(len(values), 1)

    return (
        similar_weight * mean(similar)
        - dissimilar_weight * mean(dissimilar)
        + graph_weight * mean(weights * edges)
    )


def seraph_loss(
    labelled: Tensor,
    signs: Tensor,
    unlabelled: Tensor,
    threshold: float,
    entropy_weight: float,
) -> Tensor:
    r"""SERAPH: likely labels of labelled pairs, and sure guesses on unlabelled ones.

    .. math:: -\langle \log p(y_{ij}) \rangle
              - \mu \langle \sum_y p(y) \log p(y) \rangle,
              \quad p(y) = \frac{1}{1 + e^{y (d^2 - \eta)}}

    Parameters
    ----------
    labelled, unlabelled : Tensor
        Squared distances of pairs of labelled and of unlabelled rows; either may be empty.
    signs : Tensor
        +1 for labelled pairs of one class, -1 for others.
    threshold : float
        :math:`\eta`, the squared distance at which both answers are equally likely.
    entropy_weight : float
        :math:`\mu`.

    Returns
    -------
    loss : Tensor
        A scalar, without the trace of the metric.
    """
    likelihood = functional.softplus(signs * (labelled - threshold)).sum() / max(len(labelled), 1)
    logits = threshold - unlabelled
    chance = torch.sigmoid(logits)
    entropy = chance * functional.softplus(-logits) + (1 - chance) * functional.softplus(logits)
    return likelihood + entropy_weight * entropy.sum() / max(len(unlabelled), 1)
