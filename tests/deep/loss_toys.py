"""Batches, and the losses written out as loops over pairs and triplets."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from skdml.deep.losses import get_loss  # noqa: E402

# Small tensors: threads would only wait for one another.
torch.set_num_threads(1)

LABELS = (0, 0, 0, 1, 1, 2, 2, 2, 3)


def make_batch(labels=LABELS, features=5, seed=0, spread=1.0):
    """Embeddings of any length around one centre per class, float64, and their labels."""
    rng = np.random.default_rng(seed)
    labels = np.asarray(labels)
    centres = rng.standard_normal((labels.max() + 1, features)) if len(labels) else labels[:, None]
    embeddings = centres[labels] + spread * rng.standard_normal((len(labels), features))
    return torch.tensor(embeddings, requires_grad=True), torch.tensor(labels)


def similarities_of(embeddings):
    vectors = embeddings.detach().numpy()
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors @ vectors.T


def pairs_of(labels):
    """All ordered pairs of two rows, positives and negatives apart."""
    labels = np.asarray(labels)
    both = [(i, j) for i in range(len(labels)) for j in range(len(labels)) if i != j]
    return (
        [(i, j) for i, j in both if labels[i] == labels[j]],
        [(i, j) for i, j in both if labels[i] != labels[j]],
    )


def triplets_of(labels):
    positive, negative = pairs_of(labels)
    return [(a, p, n) for a, p in positive for b, n in negative if a == b]


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else 0.0


def hinge(value):
    return max(value, 0.0)


def distances_of(embeddings):
    return np.sqrt(np.maximum(2 - 2 * similarities_of(embeddings), 0))


def value_of(name, embeddings, labels, **params):
    return get_loss(name, **params)(embeddings, labels)


def gradient_of(loss, embeddings, labels):
    leaf = embeddings.detach().clone().requires_grad_()
    loss(leaf, labels).backward()
    return leaf.grad


def margin_loss(similarity, sign, margin=0.2, threshold=0.5):
    return hinge(margin + sign * (threshold - similarity))


def binomial_loss(similarity, sign, positive_scale=2.0, negative_scale=40.0, threshold=0.5):
    scale = positive_scale if sign == 1 else negative_scale
    return 2 / scale * math.log1p(math.exp(-sign * scale * (similarity - threshold)))


PAIR_LOSSES = {"margin": margin_loss, "binomial": binomial_loss}


def losses_of_pairs(embeddings, labels, pair_loss="margin", **params):
    """The loss of every ordered pair, positives and negatives apart."""
    S, function = similarities_of(embeddings), PAIR_LOSSES[pair_loss]
    positive, negative = pairs_of(labels)
    return (
        {(i, j): function(S[i, j], 1, **params) for i, j in positive},
        {(i, j): function(S[i, j], -1, **params) for i, j in negative},
    )
