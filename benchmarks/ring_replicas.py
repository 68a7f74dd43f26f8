"""Replicas of a ring in one process, to see what their distance does to global mining.

The steps are those of four ranks in the hybrid mode: backbones are mixed with those of the left
neighbour, gradients of heads are averaged, and every replica computes the loss of its own anchors
in the gathered batch. `Plan` says what is changed.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch.func import functional_call
from torch.nn import functional

from benchmarks.distributed_fit import load
from skdml.deep._data import ClassBatches, augment_affine, classes_of_rank, count_batches
from skdml.deep._train import embed
from skdml.deep.losses import get_loss
from skdml.deep.losses._core import anchors_within
from skdml.deep.modules import ConvNet
from skdml.metrics import recall_at_k

RANKS, CLASSES, SAMPLES = 4, 4, 5
N_COMPONENTS, LR = 64, 1e-3
MIX = 0.5
# Rows that all replicas embed, to align their embeddings by.
PROBE = 128


@dataclass
class Plan:
    """How replicas are trained.

    Attributes
    ----------
    sync : {"ring", "allreduce"}
        What is done with the backbones.
    rows : {"as sent", "own", "average", "aligned", None}
        The gathered rows of other replicas: their embeddings as they are; embedded by the own
        replica; by running averages of the replicas; turned by the orthogonal map that takes the
        sender's embeddings of a common probe to the own. None: the local batch alone.
    warm_up : float
        The share of steps, at first, with averaged gradients in place of the ring.
    ema : float
        Decay of a running average of the weights, which is the model at the end; 0: none.
    rounds : int
        How often backbones go around the ring in a step.
    """

    sync: str = "ring"
    rows: str | None = "as sent"
    warm_up: float = 0.0
    ema: float = 0.0
    rounds: int = 1


class _Replica:
    def __init__(self, module, batches, steps):
        self.module, self.draws = module, iter(batches)
        self.batches = batches
        self.optimizer = torch.optim.Adam(module.parameters(), lr=LR)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        self.average = copy.deepcopy(module)

    def next(self):
        try:
            return next(self.draws)
        except StopIteration:
            self.draws = iter(self.batches)
            return next(self.draws)


def train(plan, epochs, seed):
    """Train replicas, and return recall@1 of their average on unseen characters, and curves."""
    X, y = load("train")
    X, codes = torch.from_numpy(X.astype(np.float32)), np.unique(y, return_inverse=True)[1]
    labels = torch.from_numpy(codes)
    n_classes = int(codes.max()) + 1
    n_batches = count_batches(codes, CLASSES, SAMPLES, n_ranks=RANKS)
    torch.manual_seed(seed)
    start = ConvNet(tuple(X.shape[1:]), N_COMPONENTS)
    replicas = []
    for rank in range(RANKS):
        batches = ClassBatches(
            X,
            labels,
            CLASSES,
            SAMPLES,
            np.random.default_rng([seed, rank]),
            lambda X, y: (augment_affine(X), y),
            lambda number, rank=rank: classes_of_rank(n_classes, rank, RANKS, seed, number),
            n_batches,
        )
        replicas.append(_Replica(copy.deepcopy(start), batches, epochs * n_batches))
    probe = X[torch.from_numpy(np.random.default_rng(seed).permutation(len(X))[:PROBE])]
    loss, losses, distances = get_loss("multi-similarity"), [], []
    for _ in range(epochs):
        values = [
            _step(replicas, loss, plan, probe, number < plan.warm_up * epochs * n_batches)
            for number in range(len(losses) * n_batches, (len(losses) + 1) * n_batches)
        ]
        losses.append(float(np.mean(values)))
        distances.append(_distance(replicas))
    model = _mean([one.average if plan.ema else one.module for one in replicas])
    X_test, y_test = load("test")
    found = embed(model, torch.from_numpy(X_test.astype(np.float32)))
    return {
        "recall": 100 * float(recall_at_k(found, y_test, k=1)),
        "losses": losses,
        "distances": distances,
    }


def _step(replicas, loss, plan, probe, is_warming):
    batches = [replica.next() for replica in replicas]
    embeddings = [
        replica.module.train()(X) for replica, (X, _) in zip(replicas, batches, strict=True)
    ]
    values = []
    for rank in range(RANKS):
        if plan.rows is None:
            rows, labels, own = embeddings[rank], batches[rank][1], None
        else:
            others = [
                embeddings[other]
                if other == rank
                else _rows(plan.rows, replicas, rank, other, batches, embeddings, probe)
                for other in range(RANKS)
            ]
            sizes = np.cumsum([0, *map(len, others)])
            own = slice(int(sizes[rank]), int(sizes[rank + 1]))
            rows, labels = torch.cat(others), torch.cat([labels for _, labels in batches])
        with anchors_within(own):
            value = loss(rows, labels)
        # as in the gathered batch of ranks: averaged over ranks, so scaled by their number
        scale = 1 if plan.rows is None else RANKS
        (scale * value).backward()
        values.append(value.item())
    is_mixed = plan.sync == "ring" and not is_warming
    _average_gradients([r.module.head if is_mixed else r.module for r in replicas])
    if is_mixed:
        _mix([r.module.backbone for r in replicas], plan.rounds)
    for replica in replicas:
        replica.optimizer.step()
        replica.optimizer.zero_grad()
        replica.schedule.step()
        decay = plan.ema or 0.9
        _blend(replica.average, replica.module, 1 - decay)
    return np.mean(values)


def _rows(kind, replicas, rank, other, batches, embeddings, probe):
    """Return the rows of another rank as this one sees them."""
    if kind == "as sent":
        return embeddings[other].detach()
    with torch.no_grad():
        if kind == "own":
            return _frozen(replicas[rank].module, batches[other][0])
        if kind == "average":
            return _frozen(replicas[other].average, batches[other][0])
        theirs, ours = (
            functional.normalize(_frozen(replicas[i].module, probe), dim=1) for i in (other, rank)
        )
        U, _, Vt = torch.linalg.svd(theirs.T @ ours)
        return embeddings[other].detach() @ (U @ Vt)


def _frozen(module, X):
    """Embed rows with the statistics of their batch, and leave the running ones as they are."""
    kept = {name: buffer.clone() for name, buffer in module.named_buffers()}
    return functional_call(module.train(), kept, (X,))


def _average_gradients(modules):
    for group in zip(*(module.parameters() for module in modules), strict=True):
        mean = torch.stack([parameter.grad for parameter in group]).mean(0)
        for parameter in group:
            parameter.grad = mean.clone()


@torch.no_grad()
def _mix(modules, rounds):
    for _ in range(rounds):
        states = [[p.clone() for p in _floats(module)] for module in modules]
        for rank, module in enumerate(modules):
            for own, left in zip(_floats(module), states[rank - 1], strict=True):
                own.lerp_(left, 1 - MIX)


@torch.no_grad()
def _blend(average, module, share):
    for own, new in zip(_floats(average), _floats(module), strict=True):
        own.lerp_(new, share)


@torch.no_grad()
def _mean(modules):
    model = copy.deepcopy(modules[0])
    for group in zip(_floats(model), *map(_floats, modules), strict=True):
        group[0].copy_(torch.stack(group[1:]).mean(0))
    return model


@torch.no_grad()
def _distance(replicas):
    flat = [torch.cat([p.reshape(-1) for p in r.module.backbone.parameters()]) for r in replicas]
    return float(np.mean([torch.dist(flat[i], flat[i - 1]).item() for i in range(len(flat))]))


def _floats(module):
    return [
        *module.parameters(),
        *(buffer for buffer in module.buffers() if buffer.is_floating_point()),
    ]
