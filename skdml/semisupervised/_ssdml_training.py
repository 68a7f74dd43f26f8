"""The training loop: partitions, their graphs, and epochs of batches on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from ..deep._data import _Shuffled, augmented
from ..deep._hog import oriented_gradients
from ..deep._train import NotFinite, embed
from ..deep.modules import check_embeddings
from ..utils._torch import has_finite_weights
from ._affinity import class_distributions, describe_graph, make_graph, propagate_classes
from ._ssdml_objectives import GraphObjective, Partition
from ._stiefel import orthonormal

# An epoch has at least so many batches: small data sets are gone through several times.
_MIN_BATCHES = 30
# Labelled rows that come with each batch, beside those that are in it: one in so many.
_LABELLED_SHARE = 8
# About so many cells of oriented gradients along the shorter side of an image.
_CELLS = 7
# A graph of a table with more columns is of the columns as they are.
_MAX_COLUMNS = 500
# Of the dissimilar pairs in its metric: they are nearly all pairs, and say little of a column.
_DISSIMILAR_WEIGHT = 0.1
# Logits of pretraining are cosines times this.
_LOGIT_SCALE = 16.0


class MetricModel(nn.Module):
    """A network, its output at unit length, and L behind it; or L alone.

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
        """Return what comes before L."""
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
        """Return what comes before L, for many samples, without gradients."""
        if self.backbone is None:
            return X.flatten(1).numpy().astype(float)
        return embed(self.backbone, X, device).astype(float)


@dataclass
class Plan:
    """How to train: the parameters of the estimator that the loop needs."""

    n_neighbors: int
    damping: float
    graph: str
    initial_graph: str
    partition_size: int
    epochs_per_partition: int
    max_epochs: int
    batch_size: int
    alternating: bool
    augment: Callable[[Tensor], Tensor] | None
    device: str
    pretrain_epochs: int = 0


@dataclass
class Training:
    """What came out: history of the epochs, and figures of the graphs."""

    history: list[dict[str, Any]] = field(default_factory=list)
    graphs: list[dict[str, float]] = field(default_factory=list)
    failure: NotFinite | None = None


def train(
    model: MetricModel,
    samples: Tensor,
    codes: NDArray,
    objective: Any,
    plan: Plan,
    make_optimizer: Callable[[list], torch.optim.Optimizer],
    rng: np.random.Generator,
    begin: Callable[[], None],
    report: Callable[..., bool],
) -> Training:
    """Train a model on one partition after the other.

    Parameters
    ----------
    model : MetricModel
        Trained in place.
    samples : Tensor of shape (n_samples, ...)
        All rows.
    codes : ndarray of shape (n_samples,)
        The numbers of their classes; -1 where unknown.
    objective : object
        What `make_objective` returned.
    plan : Plan
        How.
    make_optimizer : callable
        Makes an optimiser of parameters.
    rng : numpy Generator
        Draws partitions and batches.
    begin : callable
        Called before each epoch.
    report : callable
        Called after each epoch with its figures; true asks to stop.

    Returns
    -------
    training : Training
        With `failure` where the loss was not finite; the model then has the weights of the last
        epoch that was.
    """
    model.to(plan.device)
    if plan.pretrain_epochs and model.backbone is not None:
        pretrain(model, samples, codes, plan, make_optimizer, rng)
    partitions = draw_partitions(codes, plan.partition_size, rng)
    # The metric has a step of its own: by a closed form, or by descent on the Stiefel manifold.
    by_steps = plan.alternating or not objective.has_gradient_metric
    model.projection.requires_grad_(not by_steps)
    optimizer = schedule = None
    parameters = [p for p in model.parameters() if p.requires_grad]
    n_batches = count_batches(samples, codes, plan)
    if parameters:
        optimizer = make_optimizer(parameters)
        n_steps = plan.max_epochs * n_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    result, good = Training(), None
    for epoch in range(1, plan.max_epochs + 1):
        begin()
        start = time.perf_counter()
        if (epoch - 1) % plan.epochs_per_partition == 0:
            rows = next(partitions)
            partition = make_partition(model, samples, rows, codes, plan, rng, epoch == 1)
            objective.begin(partition, rng)
            result.graphs.append(
                describe_graph(partition.graph, partition.codes, partition.classes)
            )
        if by_steps:
            features = model.embed_features(samples[partition.rows], plan.device)
            model.factor = objective.move_metric(features, model.factor, rng)
        figures = {}
        if optimizer is not None:
            batches = draw_batches(objective, partition, plan, n_batches, rng)
            some = samples[partition.rows]
            try:
                figures["loss"] = train_epoch(
                    epoch, model, some, objective, batches, plan, optimizer, schedule
                )
                if not has_finite_weights(model):  # by the last step, which no loss sees
                    raise NotFinite(epoch, n_batches, "the weights were")
            except NotFinite as error:
                result.failure = error
                if good is not None:
                    model.load_state_dict(good)
                break
        good = {name: value.clone() for name, value in model.state_dict().items()}
        seconds = time.perf_counter() - start
        result.history.append(
            {"epoch": epoch, "partition": len(result.graphs), **figures, "seconds": seconds}
        )
        if report(**figures):
            break
    return result


def train_epoch(
    epoch: int,
    model: MetricModel,
    samples: Tensor,
    objective: Any,
    batches: Iterable[NDArray],
    plan: Plan,
    optimizer: torch.optim.Optimizer,
    schedule: Any,
) -> float:
    """Go through the batches, and return the mean loss."""
    model.train()
    total = 0.0
    for number, batch in enumerate(batches, start=1):
        # All samples of a batch go through the network at once.
        embeddings = model(change(samples[batch.ravel()], plan))
        loss = objective.loss(batch, *embeddings.chunk(len(batch)))
        if not torch.isfinite(loss):
            raise NotFinite(epoch, number)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.item()
    return total / number


def pretrain(
    model: MetricModel,
    samples: Tensor,
    codes: NDArray,
    plan: Plan,
    make_optimizer: Callable[..., torch.optim.Optimizer],
    rng: np.random.Generator,
) -> None:
    """Train the network to tell the classes of the labelled rows, with a layer of its own."""
    labelled = np.flatnonzero(codes >= 0)
    width = model.projection.in_features
    proxies = nn.Linear(width, int(codes.max()) + 1, bias=False).to(plan.device)
    optimizer = make_optimizer([*model.backbone.parameters(), *proxies.parameters()])
    model.train()
    n_batches = -(-len(labelled) // plan.batch_size)
    n_batches = min(n_batches, len(labelled) // 2)  # batch norm needs two rows
    for _ in range(plan.pretrain_epochs):
        for rows in np.array_split(rng.permutation(labelled), n_batches):
            X = change(samples[rows], plan)
            targets = torch.from_numpy(codes[rows]).to(plan.device)
            cosines = model.features(X) @ functional.normalize(proxies.weight, dim=1).T
            optimizer.zero_grad()
            functional.cross_entropy(_LOGIT_SCALE * cosines, targets).backward()
            optimizer.step()


# Partitions


def draw_partitions(
    codes: NDArray, partition_size: int, rng: np.random.Generator
) -> Iterator[NDArray]:
    """Yield the rows of one partition after the other: all labelled rows, and some others.

    Unlabelled rows come in random order, and again when all have had their turn.
    """
    labelled, unlabelled = np.flatnonzero(codes >= 0), np.flatnonzero(codes < 0)
    queue = _Shuffled(unlabelled, rng)
    while True:
        chosen = queue.take(min(partition_size, len(unlabelled)))
        yield np.sort(np.concatenate([labelled, chosen]))


def input_features(
    samples: Tensor, codes: NDArray, n_neighbors: int, rng: np.random.Generator
) -> list[tuple[NDArray, bool]]:
    """Return the features of graphs of the input, and whether they are meant at unit length.

    Images are compared by their oriented gradients. Columns of a table are of unequal importance:
    there are the rows as they are, mapped by neighbourhood components analysis of the labels, and
    mapped by the metric of LRML, which the labels and the first graph give; unless there are too
    many columns, or no class has two labels.
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
        objective = GraphObjective("lrml", dissimilar_weight=_DISSIMILAR_WEIGHT)
        objective.begin(Partition(np.arange(len(rows)), codes, graph, np.empty((0, 0))), rng)
        factor = objective.move_metric(rows, np.empty((n_columns, n_columns)), rng)
        labelled = objective.labelled
        nca = NeighborhoodComponentsAnalysis(init="identity")
        nca.fit(rows[labelled], codes[labelled])
        features += [(nca.transform(rows), False), (rows @ factor, False)]
    return features


def make_partition(
    model: MetricModel,
    samples: Tensor,
    rows: NDArray,
    codes: NDArray,
    plan: Plan,
    rng: np.random.Generator,
    is_first: bool = False,
) -> Partition:
    """Join rows by a graph and let the labels flow.

    The first graph is of the input, or of the network as `initial_graph` says. Later ones are of
    the network; with initial_graph="input" what flows along graphs of the input counts too.
    """
    some, known = samples[rows], codes[rows]
    n_classes = int(codes.max()) + 1

    def join(features, unit_length=True):
        return make_graph(features, plan.n_neighbors, plan.graph, unit_length)

    def flow_along(graph, **params):
        return propagate_classes(graph.flow, known, n_classes, plan.damping, **params)

    graphs, masses, reference = [], [], None
    if plan.initial_graph == "input" or model.backbone is None:
        features = input_features(some, known, plan.n_neighbors, rng)
        graphs = [join(*one) for one in features]
        reference = flow_along(graphs[0])
        masses = [flow_along(graph, n_probes=0) for graph in graphs[1:]] or [reference]
    if model.backbone is not None and not (is_first and graphs):
        graphs.append(join(model.embed_features(some, plan.device)))
        masses.append(flow_along(graphs[-1], n_probes=0 if masses else 100))
    return Partition(rows, known, graphs[-1], class_distributions(masses, known, reference))


def propagate_all(
    model: MetricModel, samples: Tensor, codes: NDArray, plan: Plan, rng: np.random.Generator
) -> NDArray:
    """Return the class distribution of every row, by graphs of the trained model.

    Each unlabelled row is in one partition.
    """
    n_unlabelled = int((codes < 0).sum())
    classes = np.zeros((len(codes), int(codes.max()) + 1))
    partitions = draw_partitions(codes, plan.partition_size, rng)
    for _ in range(max(1, -(-n_unlabelled // plan.partition_size))):
        rows = next(partitions)
        classes[rows] = make_partition(model, samples, rows, codes, plan, rng).classes
    return classes


# Batches


def count_batches(samples: Tensor, codes: NDArray, plan: Plan) -> int:
    """Return the batches of an epoch."""
    n_labelled = int((codes >= 0).sum())
    n_nodes = min(len(samples), n_labelled + plan.partition_size)
    return max(_MIN_BATCHES, -(-n_nodes // plan.batch_size))


def draw_batches(
    objective: Any, partition: Partition, plan: Plan, n_batches: int, rng: np.random.Generator
) -> Iterator[NDArray]:
    """Yield the batches of an epoch: nodes and their partners, or triplets, one kind in a row.

    A partner is the node itself, to be changed anew, where samples are changed at random; else one
    of its neighbours. Batches are of nearly equal size, so that none is too small for batch norm.
    Some labelled nodes come with each, because they are few and sure.
    """
    if objective.partners == "triplets":
        triplets = objective.triplets[rng.permutation(len(objective.triplets))]
        for part in np.array_split(triplets[: n_batches * plan.batch_size], n_batches):
            yield part.T
        return
    n_nodes = len(partition.rows)
    n_parts = -(-n_nodes // plan.batch_size)
    labelled = np.flatnonzero(partition.codes >= 0)
    n_extra = min(len(labelled), plan.batch_size // _LABELLED_SHARE)
    neighbors = partition.graph.neighbors
    drawn = 0
    while drawn < n_batches:
        for nodes in np.array_split(rng.permutation(n_nodes), n_parts)[: n_batches - drawn]:
            nodes = np.concatenate([nodes, rng.choice(labelled, n_extra, replace=False)])
            partners = nodes
            if plan.augment is None or objective.partners == "neighbours":
                partners = neighbors[nodes, rng.integers(neighbors.shape[1], size=len(nodes))]
            yield np.stack([nodes, partners])
            drawn += 1


def change(X: Tensor, plan: Plan) -> Tensor:
    """Augment samples, and bring them to where the model is."""
    X = X if plan.augment is None else augmented(plan.augment, X)
    return X.to(plan.device)


def final_factor(model: MetricModel, orthogonal: bool) -> NDArray:
    """Return L in double precision, orthonormal to the last digits where it is to be."""
    return orthonormal(model.factor) if orthogonal else model.factor
