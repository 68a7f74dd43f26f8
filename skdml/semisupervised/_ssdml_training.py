"""Training loop of SSDMLEmbedder: epochs of batches on one partition after the other."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from ..deep._data import augmented
from ..deep._train import embed
from ..deep.modules import check_embeddings
from ..utils._fit import Progress, record
from ..utils._supervision import draw_weighted, shuffle
from ..utils._torch import LastGood, NotFinite
from ._label_propagation import describe_graph
from ._partitions import Partitions
from ._ssdml_methods import Partition, SemiSupervisedMethod

# Batches of an epoch at least: small data sets are passed several times.
_MIN_BATCHES = 30
# Batches of a fit, from which the number of epochs follows, and epochs of a partition: images that
# are new to the network are worth more than another epoch; classes of a table cost more.
_IMAGE_BATCHES, _IMAGE_EPOCHS = 300, 1
_TABLE_BATCHES, _TABLE_EPOCHS = 500, 5
# With the paper's recipe.
_PAPER_EPOCHS, _PAPER_EPOCHS_PER_PARTITION = 50, 10
# Unlabelled samples of a partition, where it is not given: for tables, one graph of all rows is
# best.
_IMAGES, _ROWS = 9000, 20_000
# Labelled samples are added to each batch: the batch size over this.
_LABELLED_SHARE = 8
# Logits of pretraining are cosines times this.
_LOGIT_SCALE = 16.0


class MetricModel(nn.Module):
    """A network, its output at unit length, and the linear map L behind it; or L alone.

    Parameters
    ----------
    backbone : nn.Module or None
        The network; None leaves rows as they are.
    width : int
        Columns of its output.
    n_components : int
        Columns of L.
    orthogonal : bool
        Whether L is kept orthonormal while it is trained by gradients.
    """

    def __init__(self, backbone: Any, width: int, n_components: int, orthogonal: bool) -> None:
        super().__init__()
        self.backbone = backbone
        self.projection = nn.Linear(width, int(n_components), bias=False)  # True is a number, too
        nn.init.orthogonal_(self.projection.weight)
        if orthogonal:
            parametrizations.orthogonal(self.projection, orthogonal_map="cayley")

    def features(self, X: Tensor) -> Tensor:
        """Return the input of L."""
        if self.backbone is None:
            return X.flatten(1)
        output = check_embeddings(self.backbone(X), len(X), self.backbone)
        return functional.normalize(output, dim=1)

    def forward(self, X: Tensor) -> Tensor:
        """Return the embeddings of samples."""
        return self.projection(self.features(X))

    @property
    def factor(self) -> NDArray:
        """L, as an array of shape (width, n_components)."""
        return self.projection.weight.detach().cpu().numpy().astype(float).T

    @factor.setter
    def factor(self, value: NDArray) -> None:
        with torch.no_grad():
            weight = torch.from_numpy(np.ascontiguousarray(value.T))
            self.projection.weight.copy_(weight)

    def embed_features(self, X: Tensor, device: str) -> NDArray:
        """Return the input of L for many samples, without gradients."""
        if self.backbone is None:
            return X.flatten(1).numpy().astype(float)
        return embed(self.backbone, X, device).astype(float)


@dataclass(frozen=True)
class Plan:
    """Parameters of SSDMLEmbedder that the training loop needs."""

    n_neighbors: int
    propagation: float
    paper: bool
    partition_size: int
    epochs_per_partition: int
    max_epochs: int
    pretrain_epochs: int
    batch_size: int
    lr: float
    make_optimizer: Callable[[list], torch.optim.Optimizer]
    augment: Callable[[Tensor], Tensor] | None
    n_workers: int
    device: str

    def load(self, X: Tensor) -> Tensor:
        """Return samples for a training step: augmented, on the device."""
        return (X if self.augment is None else augmented(self.augment, X)).to(self.device)


def choose_partition_size(has_images: bool, paper: bool) -> int:
    """Return the unlabelled samples of a partition, where the number is not given."""
    return _IMAGES if has_images or paper else _ROWS


def count_batches(n_nodes: int, batch_size: int) -> int:
    """Return the batches of an epoch."""
    return max(_MIN_BATCHES, -(-n_nodes // batch_size))


def choose_epochs(n_nodes: int, batch_size: int, has_images: bool, paper: bool) -> tuple[int, int]:
    """Return the number of epochs, and that of a partition, where they are not given.

    Parameters
    ----------
    n_nodes : int
        Samples of a partition.
    batch_size : int
        Samples of a batch.
    has_images : bool
        Whether they are images.
    paper : bool
        Whether the recipe is the paper's.

    Returns
    -------
    max_epochs, epochs_per_partition : int
        The parameters of SSDMLEmbedder.
    """
    if paper:
        return _PAPER_EPOCHS, _PAPER_EPOCHS_PER_PARTITION
    n_batches = _IMAGE_BATCHES if has_images else _TABLE_BATCHES
    max_epochs = -(-n_batches // count_batches(n_nodes, batch_size))
    return max_epochs, _IMAGE_EPOCHS if has_images else _TABLE_EPOCHS


def train(
    partitions: Partitions,
    method: SemiSupervisedMethod,
    progress: Progress,
    attributes: Callable[[MetricModel], dict[str, Any]],
) -> tuple[dict[str, list], list[dict[str, float]]]:
    """Train a model on one partition after the other.

    Parameters
    ----------
    partitions : Partitions
        Samples, labels, parameters, and the model, which is trained in place. If a loss or a weight
        is not finite, it keeps the weights of the last good epoch, with a warning.
    method : SemiSupervisedMethod
        Loss and metric.
    progress : Progress
        Where epochs are reported; may ask to stop.
    attributes : callable
        The fitted attributes of the estimator with the given model, for callbacks.

    Returns
    -------
    history : dict of list
        Figures of the epochs.
    graphs : list of dict
        Statistics of the graphs.
    """
    model, samples, codes = partitions.model, partitions.samples, partitions.codes
    weights, plan, rng = partitions.weights, partitions.plan, partitions.rng
    start, good = time.perf_counter(), LastGood(model)
    history: dict[str, list] = {}
    graphs: list[dict[str, float]] = []
    model.to(plan.device)
    if plan.pretrain_epochs:
        _pretrain(model, samples, codes, weights, plan, rng)
    n_partitions = -(-plan.max_epochs // plan.epochs_per_partition)
    queue = partitions.draw(n_partitions)
    model.projection.requires_grad_(method.metric == "gradient")
    optimizer = schedule = None
    parameters = [p for p in model.parameters() if p.requires_grad]
    n_nodes = min(len(codes), int((codes >= 0).sum()) + plan.partition_size)
    n_batches = count_batches(n_nodes, plan.batch_size)
    if parameters:
        optimizer = plan.make_optimizer(parameters)
        n_steps = plan.max_epochs * n_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    for epoch in range(1, plan.max_epochs + 1):
        progress.begin()
        if (epoch - 1) % plan.epochs_per_partition == 0:
            rows, partition = next(queue)
            method.begin(partition, rng)
            graphs.append(describe_graph(partition.graph, partition.codes, partition.classes))
        figures = {}
        try:
            if method.metric != "gradient":
                features = model.embed_features(samples[rows], plan.device)
                if not np.isfinite(features).all():
                    raise NotFinite(f"the features were not finite in epoch {epoch}")
                model.factor = method.find_metric(features, model.factor, rng)
            if optimizer is not None:
                batches = draw_batches(method, partition, plan, n_batches, rng)
                figures["loss"] = _train_epoch(
                    epoch, model, samples[rows], method, batches, plan, optimizer, schedule
                )
            if not good.save():  # after the last step, which no loss sees
                raise NotFinite(f"the weights were not finite in epoch {epoch}, batch {n_batches}")
        except NotFinite as error:
            good.restore(error, plan.lr, stacklevel=8)
            break
        record(history, start, partition=len(graphs), **figures)
        if progress.step(lambda: attributes(copy.deepcopy(model)), **figures):
            break
    return history, graphs


def _train_epoch(epoch, model, samples, method, batches, plan, optimizer, schedule):
    """Train on the batches, and return the mean loss."""
    model.train()
    total = 0.0
    for number, batch in enumerate(batches, start=1):
        # All samples of a batch go through the network at once.
        embeddings = model(plan.load(samples[batch.ravel()]))
        loss = method.loss(batch, *embeddings.chunk(len(batch)))
        if not torch.isfinite(loss):
            raise NotFinite(f"the loss was not finite in epoch {epoch}, batch {number}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.item()
    return total / number


def _pretrain(model, samples, codes, weights, plan, rng):
    """Train the network to classify the labelled samples, with a linear layer of its own."""
    labelled = np.flatnonzero(codes >= 0)
    proxies = nn.Linear(model.projection.in_features, int(codes.max()) + 1, bias=False)
    proxies.to(plan.device)
    optimizer = plan.make_optimizer([*model.backbone.parameters(), *proxies.parameters()])
    model.train()
    # batch norm needs two samples
    n_batches = min(-(-len(labelled) // plan.batch_size), len(labelled) // 2)
    for _ in range(plan.pretrain_epochs):
        for rows in np.array_split(rng.permutation(labelled), n_batches):
            targets = torch.from_numpy(codes[rows]).to(plan.device)
            features = model.features(plan.load(samples[rows]))
            cosines = features @ functional.normalize(proxies.weight, dim=1).T
            optimizer.zero_grad()
            logits = _LOGIT_SCALE * cosines
            if weights is None:
                loss = functional.cross_entropy(logits, targets)
            else:
                losses = functional.cross_entropy(logits, targets, reduction="none")
                loss = (torch.from_numpy(weights[rows]).to(losses) * losses).mean()
            loss.backward()
            optimizer.step()


def draw_batches(
    method: SemiSupervisedMethod, partition: Partition, plan: Plan, n_batches: int, rng: Generator
) -> Iterator[NDArray]:
    """Yield the batches of an epoch: nodes and their partners, or triplets, one kind in a row.

    Batches are of nearly equal size, so that none is too small for batch norm. Some labelled nodes
    are added to each, because they are few and certain. With weights, nodes are drawn as often as
    these say, and triplets by the weights of their anchors.
    """
    if method.batches == "triplets":
        triplets = method.triplets  # type: ignore[attr-defined]
        anchors = None if partition.weights is None else partition.weights[triplets[:, 0]]
        triplets = triplets[shuffle(len(triplets), anchors, rng)]
        for part in np.array_split(triplets[: n_batches * plan.batch_size], n_batches):
            yield part.T
        return
    n_nodes = len(partition.codes)
    n_parts = -(-n_nodes // plan.batch_size)
    labelled = np.flatnonzero(partition.codes >= 0)
    n_extra = min(len(labelled), plan.batch_size // _LABELLED_SHARE)
    neighbors = partition.graph.neighbors
    drawn = 0
    while drawn < n_batches:
        order = shuffle(n_nodes, partition.weights, rng)
        for nodes in np.array_split(order, n_parts)[: n_batches - drawn]:
            if partition.weights is None or not n_extra:
                extra = rng.choice(labelled, n_extra, replace=False)
            else:
                extra = labelled[draw_weighted(partition.weights[labelled], n_extra, rng)]
            nodes = np.concatenate([nodes, extra])
            drawn += 1
            if method.batches == "samples":
                yield nodes[None]
                continue
            partners = nodes
            if plan.augment is None or method.batches == "neighbours":
                partners = neighbors[nodes, rng.integers(neighbors.shape[1], size=len(nodes))]
            yield np.stack([nodes, partners])
