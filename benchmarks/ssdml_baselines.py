"""What else learns from a few labelled images: SimCLR with neighbours, and a FixMatch.

Both have the network of `SSDMLEmbedder`'s plain default, its optimiser with a rate that falls
along a cosine, and as many seconds of the processor as they are given. Embeddings are the outputs
of the network at unit length.
"""

import time

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import nn
from torch.nn import functional

from skdml.deep._data import augment_affine
from skdml.deep.modules import ConvNet

RATE = 1e-3
# Columns of embeddings, as wide as the network's output in SSDMLEmbedder.
WIDTH = 128
# SimCLR: images of a batch, temperature, and the width of what is compared.
SIMCLR_BATCH, SIMCLR_TEMPERATURE, SIMCLR_HEAD = 256, 0.2, 64
# FixMatch: labelled and unlabelled images of a batch, and the least probability of a pseudo-label.
LABELLED_BATCH, UNLABELLED_BATCH, THRESHOLD = 64, 192, 0.95


def train(network, step, seconds):
    """Take steps for so many seconds of the processor, at a rate that falls to zero by time."""
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    network.train()
    start, n_steps, share = time.process_time(), 0, 0.0
    while share < 1:
        optimizer.param_groups[0]["lr"] = RATE * 0.5 * (1 + np.cos(np.pi * share))
        loss = step()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        n_steps += 1
        share = (time.process_time() - start) / seconds
    network.eval()
    return n_steps


def changed_strongly(images):
    """Return images after two affine changes, at another contrast, with a square left out."""
    images = augment_affine(augment_affine(images))
    images = images * torch.empty(len(images), 1, 1, 1).uniform_(0.5, 1.5)
    side = images.shape[-1]
    corners = torch.randint(-side // 4, side, (len(images), 2, 1))
    inside = (torch.arange(side) >= corners) & (torch.arange(side) < corners + side // 3)
    hole = inside[:, 0, :, None] & inside[:, 1, None, :]
    return images.masked_fill(hole[:, None], 0.0)


def embed(network, images):
    """Return embeddings at unit length."""
    with torch.no_grad():
        parts = [functional.normalize(network(part), dim=1) for part in images.split(1000)]
    return torch.cat(parts).numpy()


def simclr(images, partly, seconds, seed):
    """Return a network trained to tell images apart, and labels by the nearest labelled image."""
    torch.manual_seed(seed)
    network = ConvNet(images.shape[1:], WIDTH, gradients=True)
    head = nn.Sequential(nn.ReLU(), nn.Linear(WIDTH, SIMCLR_HEAD))
    both = nn.Sequential(network, head)
    own = torch.eye(2 * SIMCLR_BATCH, dtype=torch.bool)
    others = torch.arange(2 * SIMCLR_BATCH).roll(SIMCLR_BATCH)

    def step():
        chosen = images[torch.randint(len(images), (SIMCLR_BATCH,))]
        views = torch.cat([changed_strongly(chosen), changed_strongly(chosen)])
        vectors = functional.normalize(both(views), dim=1)
        cosines = (vectors @ vectors.T / SIMCLR_TEMPERATURE).masked_fill(own, -torch.inf)
        return functional.cross_entropy(cosines, others)

    n_steps = train(both, step, seconds)
    known = partly != -1
    nearest = KNeighborsClassifier(1).fit(embed(network, images[known]), partly[known])
    return network, nearest.predict(embed(network, images)), n_steps


def fixmatch(images, partly, seconds, seed):
    """Return a network trained on labels and on its own confident ones, and its labels."""
    torch.manual_seed(seed)
    network = ConvNet(images.shape[1:], WIDTH, gradients=True)
    head = nn.Sequential(nn.ReLU(), nn.Linear(WIDTH, int(partly.max()) + 1))
    both = nn.Sequential(network, head)
    known = torch.from_numpy(np.flatnonzero(partly != -1))
    labels = torch.from_numpy(partly)

    def step():
        chosen = known[torch.randint(len(known), (LABELLED_BATCH,))]
        more = images[torch.randint(len(images), (UNLABELLED_BATCH,))]
        weak = torch.cat([augment_affine(images[chosen]), augment_affine(more)])
        outputs = both(torch.cat([weak, changed_strongly(more)]))
        first, second, third = outputs.split([LABELLED_BATCH, len(more), len(more)])
        likely, found = functional.softmax(second.detach(), dim=1).max(dim=1)
        losses = functional.cross_entropy(third, found, reduction="none")
        return (
            functional.cross_entropy(first, labels[chosen]) + (losses * (likely > THRESHOLD)).mean()
        )

    n_steps = train(both, step, seconds)
    with torch.no_grad():
        predicted = torch.cat([both(part).argmax(dim=1) for part in images.split(1000)]).numpy()
    return network, predicted, n_steps


BASELINES = {"SimCLR, nearest label": simclr, "FixMatch": fixmatch}


def fit_baseline(method, X, partly, X_test, shape, seconds, seed):
    """Return embeddings of test images, labels of training images, and the number of steps."""
    images, test = (torch.from_numpy(rows).float().reshape(-1, *shape) for rows in (X, X_test))
    network, labels, n_steps = BASELINES[method](images, partly, seconds, seed)
    return embed(network, test), labels, n_steps
