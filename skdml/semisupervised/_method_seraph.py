"""SERAPH: likelihood of labelled pairs, and entropy of unlabelled ones."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor
from torch.nn import functional

from ..utils._supervision import shuffle
from ._method_laplacian import (
    REAL,
    batch_pairs,
    clip_negative,
    factor_metric,
    labelled_pairs,
    pair_distances,
)
from ._ssdml_methods import Partition, SemiSupervisedMethod, register_method

# Labelled pairs, and as many unlabelled ones, of the metric.
_MAX_PAIRS = 5000
# Of a step, after which no step is better.
_MAX_HALVINGS = 60


@register_method("seraph")
class SERAPH(SemiSupervisedMethod):
    """SERAPH: likelihood of labelled pairs, and entropy of unlabelled ones.

    Parameters
    ----------
    entropy_weight : float, default=0.1
        Of the entropy.
    trace_weight : float, default=0.01
        Of the trace of the metric.
    """

    _parameter_constraints = {"entropy_weight": [REAL], "trace_weight": [REAL]}

    def __init__(self, entropy_weight: float = 0.1, trace_weight: float = 0.01) -> None:
        self.entropy_weight = entropy_weight
        self.trace_weight = trace_weight

    def begin(self, partition: Partition, rng: Generator) -> None:
        """Take labelled pairs, and draw pairs of unlabelled samples."""
        self.codes = partition.codes
        _, similar, dissimilar = labelled_pairs(partition.codes, rng)
        pairs = np.concatenate([similar, dissimilar])
        signs = np.repeat([1.0, -1.0], [len(similar), len(dissimilar)])
        weights = partition.weights
        shares = None if weights is None else weights[pairs].prod(axis=1)
        chosen = shuffle(len(pairs), shares, rng)[:_MAX_PAIRS]
        self.pairs, self.signs = pairs[chosen], signs[chosen]
        unlabelled = np.flatnonzero(partition.codes < 0)
        self.others = np.empty((0, 2), dtype=int)
        if len(unlabelled):
            self.others = rng.choice(unlabelled, (_MAX_PAIRS, 2))

    def loss(self, batch: NDArray, *embeddings: Tensor) -> Tensor:
        """Return the loss of a batch; partners are not used."""
        first, codes = embeddings[0], self.codes[batch[0]]
        pairs, signs = batch_pairs(codes)
        unlabelled = first[torch.from_numpy(codes < 0).to(first.device)]
        distances = pair_distances(first, pairs.to(first.device))
        others = (unlabelled - unlabelled.roll(1, 0)).square().sum(1)
        return seraph_loss(distances, signs.to(first), others, 1.0, self.entropy_weight)

    def find_metric(self, features: NDArray, factor: NDArray, rng: Generator) -> NDArray:
        """Return L of the metric that projected gradients find."""
        pairs, others = (features[p[:, 0]] - features[p[:, 1]] for p in (self.pairs, self.others))
        metric = seraph_metric(pairs, self.signs, others, self.entropy_weight, self.trace_weight)
        covariance = np.cov(features, rowvar=False).reshape(metric.shape)
        return factor_metric(metric, covariance, factor.shape[1])


def seraph_loss(
    labelled: Tensor, signs: Tensor, unlabelled: Tensor, threshold: float, entropy_weight: float
) -> Tensor:
    r"""Loss of SERAPH: likelihood of labelled pairs, and entropy of unlabelled ones.

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


def seraph_metric(
    labelled: NDArray, signs: NDArray, unlabelled: NDArray, *weights: float, max_iter: int = 200
) -> NDArray:
    r"""Return the metric of SERAPH, by projected gradients.

    Parameters
    ----------
    labelled, unlabelled : ndarray of shape (n_pairs, n_features)
        Differences of pairs.
    signs : ndarray of shape (n_pairs,)
        +1 for labelled pairs of one class, -1 for others.
    *weights : float
        :math:`\mu` of the entropy, and :math:`\lambda`, the price of the trace, in units of the
        mean squared difference of a feature.
    max_iter : int, default=200
        Steps at most.

    Returns
    -------
    metric : ndarray of shape (n_features, n_features)
        Positive semi-definite, in a scale in which the squared distance 1 divides similar from
        dissimilar pairs. The problem is not convex: a local minimum, from the Euclidean metric on.
    """
    n_features, (entropy_weight, trace_weight) = labelled.shape[1], weights
    unit = np.mean(np.concatenate([labelled, unlabelled]) ** 2)
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
        for _ in range(_MAX_HALVINGS):
            candidate = clip_negative(metric - step * gradient)
            new_value, new_gradient = objective(candidate)
            if new_value <= value - 1e-4 * np.sum(gradient * (metric - candidate)):
                break
            step /= 2
        else:  # no step improves any more: the value is exact to the last digits
            break
        decrease, least = value - new_value, 1e-6 * abs(value)
        metric, value, gradient = candidate, new_value, new_gradient
        if decrease <= least:
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
