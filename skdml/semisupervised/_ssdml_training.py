"""Training loop of SSDMLEmbedder: partitions, their graphs, and epochs of batches on them."""

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
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from ..deep._data import Shuffled, augmented
from ..deep._hog import oriented_gradients
from ..deep._train import embed
from ..deep.modules import check_embeddings
from ..utils._fit import Progress, record
from ..utils._supervision import draw_weighted, shuffle
from ..utils._torch import LastGood, NotFinite
from ._label_propagation import class_distributions, describe_graph, make_graph, propagate_classes
from ._method_laplacian import LRML
from ._ssdml_methods import Partition, SemiSupervisedMethod

# Batches of an epoch at least: small data sets are passed several times.
_MIN_BATCHES = 30
# Labelled samples are added to each batch: the batch size over this.
_LABELLED_SHARE = 8
# Cells of oriented gradients along the shorter side of an image, about.
_CELLS = 7
# With more columns, a table has the graph of its columns alone.
_MAX_COLUMNS = 500
# Of LRML for the graph of a table: dissimilar pairs are nearly all, and say little of a column.
_DISSIMILAR_WEIGHT = 0.1
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
    device: str

    def load(self, X: Tensor) -> Tensor:
        """Return samples for a training step: augmented, on the device."""
        return (X if self.augment is None else augmented(self.augment, X)).to(self.device)


def train(
    model: MetricModel,
    samples: Tensor,
    codes: NDArray,
    method: SemiSupervisedMethod,
    plan: Plan,
    rng: Generator,
    progress: Progress,
    attributes: Callable[[MetricModel], dict[str, Any]],
    weights: NDArray | None = None,
) -> tuple[dict[str, list], list[dict[str, float]]]:
    """Train a model on one partition after the other.

    Parameters
    ----------
    model : MetricModel
        Trained in place. If a loss or a weight is not finite, it keeps the weights of the last
        good epoch, with a warning.
    samples : Tensor of shape (n_samples, ...)
        All samples.
    codes : ndarray of shape (n_samples,)
        The numbers of their classes; -1 where unknown.
    method : SemiSupervisedMethod
        Loss and metric.
    plan : Plan
        The parameters.
    rng : numpy Generator
        Draws partitions and batches.
    progress : Progress
        Where epochs are reported; may ask to stop.
    attributes : callable
        The fitted attributes of the estimator with the given model, for callbacks.
    weights : ndarray of shape (n_samples,), default=None
        Of the samples; None where all count alike.

    Returns
    -------
    history : dict of list
        Figures of the epochs.
    graphs : list of dict
        Statistics of the graphs.
    """
    start, good = time.perf_counter(), LastGood(model)
    history: dict[str, list] = {}
    graphs: list[dict[str, float]] = []
    model.to(plan.device)
    if plan.pretrain_epochs:
        _pretrain(model, samples, codes, weights, plan, rng)
    partitions = draw_partitions(codes, plan.partition_size, rng)
    model.projection.requires_grad_(method.metric == "gradient")
    optimizer = schedule = None
    parameters = [p for p in model.parameters() if p.requires_grad]
    n_nodes = min(len(codes), int((codes >= 0).sum()) + plan.partition_size)
    n_batches = max(_MIN_BATCHES, -(-n_nodes // plan.batch_size))
    if parameters:
        optimizer = plan.make_optimizer(parameters)
        n_steps = plan.max_epochs * n_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    for epoch in range(1, plan.max_epochs + 1):
        progress.begin()
        if (epoch - 1) % plan.epochs_per_partition == 0:
            rows = next(partitions)
            given = samples, rows, codes, weights
            partition = _make_partition(model, *given, plan, rng, epoch == 1)
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


# Partitions


def draw_partitions(codes: NDArray, partition_size: int, rng: Generator) -> Iterator[NDArray]:
    """Yield the rows of one partition after the other: all labelled rows, and some others.

    Unlabelled rows come in random order, and again when all have had their turn.
    """
    labelled, unlabelled = np.flatnonzero(codes >= 0), np.flatnonzero(codes < 0)
    queue = Shuffled(unlabelled, rng)
    while True:
        chosen = queue.take(min(partition_size, len(unlabelled)))
        yield np.sort(np.concatenate([labelled, chosen]))


def input_features(
    samples: Tensor,
    codes: NDArray,
    n_neighbors: int,
    rng: Generator,
    weights: NDArray | None = None,
) -> list[tuple[NDArray, bool]]:
    """Return features for graphs of the input, each with whether to scale it to unit length.

    For images, their oriented gradients. For tables, the rows as they are, and mapped by NCA and by
    LRML, which weigh the columns by the labels; the rows alone if there are too many columns, or no
    class has two labels. NCA sees labelled rows of small weights in some of its calls alone.
    """
    if samples.ndim > 2:
        cell = max(1, round(min(samples.shape[2:]) / _CELLS))
        parts = [oriented_gradients(part, cell).flatten(1) for part in samples.split(1000)]
        return [(torch.cat(parts).numpy().astype(float), True)]
    rows = samples.flatten(1).numpy().astype(float)
    features = [(rows, False)]
    n_columns = rows.shape[1]
    if n_columns <= _MAX_COLUMNS and np.bincount(codes[codes >= 0]).max() > 1:
        graph = make_graph(rows, n_neighbors, unit_length=False)
        lrml = LRML(dissimilar_weight=_DISSIMILAR_WEIGHT)
        lrml.begin(Partition(codes, graph, np.empty((0, 0)), 0.0, weights), rng)
        factor = lrml.find_metric(rows, np.empty((n_columns, n_columns)), rng)
        nca = NeighborhoodComponentsAnalysis(init="identity")
        seen = lrml.labelled
        if weights is not None:
            seen = seen[np.unique(draw_weighted(weights[seen], len(seen), rng))]
        nca.fit(rows[seen], codes[seen])
        features += [(nca.transform(rows), False), (rows @ factor, False)]
    return features


def _make_partition(model, samples, rows, codes, weights, plan, rng, is_first=False):
    """Make a graph of some samples, and propagate the labels.

    The first graph is of the input, later ones are of the network, with graphs of the input beside
    them. With the paper's recipe all graphs are of the network, and directed.
    """
    some, known = samples[rows], codes[rows]
    weights = None if weights is None else weights[rows]

    def join(features, unit_length=True):
        kind = "directed" if plan.paper else "symmetric"
        return make_graph(features, plan.n_neighbors, kind, unit_length)

    def spread(graph, n_probes=100):
        n_classes = int(codes.max()) + 1
        labels = known, n_classes
        return propagate_classes(graph.flow, *labels, plan.propagation, n_probes, weights)

    graphs, masses, reference = [], [], None
    if not plan.paper or model.backbone is None:
        features = input_features(some, known, plan.n_neighbors, rng, weights)
        graphs = [join(*one) for one in features]
        reference = spread(graphs[0])
        masses = [spread(graph, n_probes=0) for graph in graphs[1:]] or [reference]
    if model.backbone is not None and not (is_first and graphs):
        graphs.append(join(model.embed_features(some, plan.device)))
        masses.append(spread(graphs[-1], n_probes=0 if masses else 100))
    classes = class_distributions(masses, known, reference)
    return Partition(known, graphs[-1], classes, plan.propagation, weights)


def propagate_all(
    model: MetricModel,
    samples: Tensor,
    codes: NDArray,
    plan: Plan,
    rng: Generator,
    weights: NDArray | None = None,
) -> NDArray:
    """Return the class distribution of every row, by graphs of the trained model.

    Each unlabelled row is in one partition.
    """
    n_unlabelled = int((codes < 0).sum())
    classes = np.zeros((len(codes), int(codes.max()) + 1))
    partitions = draw_partitions(codes, plan.partition_size, rng)
    for _ in range(max(1, -(-n_unlabelled // plan.partition_size))):
        rows = next(partitions)
        classes[rows] = _make_partition(model, samples, rows, codes, weights, plan, rng).classes
    return classes


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
            if partition.weights is None:
                extra = rng.choice(labelled, n_extra, replace=False)
            else:
                extra = labelled[draw_weighted(partition.weights[labelled], n_extra, rng)]
            nodes = np.concatenate([nodes, extra])
            partners = nodes
            if plan.augment is None or method.batches == "neighbours":
                partners = neighbors[nodes, rng.integers(neighbors.shape[1], size=len(nodes))]
            yield np.stack([nodes, partners])
            drawn += 1
