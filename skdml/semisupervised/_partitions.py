"""Partitions of the samples of SSDMLEmbedder: their graphs, and the labels along them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from ..deep._data import Shuffled
from ..deep._hog import oriented_gradients
from ..utils._cluster import find_workers
from ..utils._parallel import make_shards
from ._label_propagation import (
    ClassMass,
    Graph,
    class_distributions,
    make_graph,
    propagate_classes,
)
from ._ssdml_methods import Partition
from ._table_classes import Weighing, choose_weights, scale_rows, table_classes

if TYPE_CHECKING:
    from ._ssdml_training import MetricModel, Plan

# Labels are propagated along graphs of so many partitions, and others are predicted.
_MAX_PARTITIONS = 8
# Cells of oriented gradients along the shorter side of an image, about.
_CELLS = 7


class Settings(NamedTuple):
    """How labels are propagated in a partition.

    Parameters
    ----------
    kind : {"table", "images", "network", "rows"}
        "network" and "rows" are the directed graphs of the paper's recipe.
    n_classes : int
        How many classes there are.
    n_neighbors : int
        Of a graph.
    damping : float
        Of propagation.
    weighing : Weighing or None
        Of the learners of a table.
    """

    kind: str
    n_classes: int
    n_neighbors: int
    damping: float
    weighing: Weighing | None


class Block(NamedTuple):
    """What a partition is made from.

    Parameters
    ----------
    features : tuple of ndarray
        Rows of the samples; for images, of their gradients and, if it has been trained, of the
        network.
    codes : ndarray of shape (n_nodes,)
        The numbers of classes; -1 where unknown.
    weights : ndarray of shape (n_nodes,) or None
        Of the samples.
    """

    features: tuple[NDArray, ...]
    codes: NDArray
    weights: NDArray | None


def spread_labels(block: Block, settings: Settings) -> tuple[Graph, NDArray]:
    """Return the graph of a partition, and the class distributions of its nodes.

    Parameters
    ----------
    block : Block
        Features and labels.
    settings : Settings
        The parameters.

    Returns
    -------
    graph : Graph
        Of the last features.
    classes : ndarray of shape (n_nodes, n_classes)
        Rows sum to 1, or are 0 where no label arrived.
    """
    features, codes, weights = block
    kind, n_classes, n_neighbors, damping, weighing = settings
    if kind == "table":
        by_column = weighing is not None and weighing.by_column
        table = scale_rows(features[0].astype(float), by_column)
        graph = make_graph(table, n_neighbors, unit_length=False)
        given = codes, n_classes, n_neighbors, damping, weights
        return graph, table_classes(table, graph, *given, weighing)
    masses: list[ClassMass] = []
    for some in features:
        if kind == "images":
            graph = make_graph(some, n_neighbors)
        else:
            graph = make_graph(some, n_neighbors, "directed", unit_length=kind == "network")
        # Features of the network have seen the labels, which cannot be held out there.
        probes: dict[str, Any] = {"n_probes": 0} if masses else {}
        given = codes, n_classes, damping
        masses.append(propagate_classes(graph.flow, *given, weights=weights, **probes))
    return graph, class_distributions(masses, codes)


def spread_classes(block: Block, settings: Settings) -> NDArray:
    """Return the class distributions of `spread_labels` alone."""
    return spread_labels(block, settings)[1]


def draw_partitions(codes: NDArray, partition_size: int, rng: Generator) -> Iterator[NDArray]:
    """Yield the rows of one partition after the other: all labelled rows, and some others.

    Unlabelled rows come in random order, and again when all have had their turn.
    """
    labelled, unlabelled = np.flatnonzero(codes >= 0), np.flatnonzero(codes < 0)
    queue = Shuffled(unlabelled, rng)
    while True:
        chosen = queue.take(min(partition_size, len(unlabelled)))
        yield np.sort(np.concatenate([labelled, chosen]))


def input_gradients(samples: Tensor) -> NDArray:
    """Return the oriented gradients of images as rows."""
    cell = max(1, round(min(samples.shape[2:]) / _CELLS))
    parts = [oriented_gradients(part, cell).flatten(1) for part in samples.split(1000)]
    return torch.cat(parts).numpy()


class Partitions:
    """Graphs of samples, and the labels that are propagated along them.

    Images: the first graph is of their oriented gradients, later ones are of the network, with one
    of the gradients beside it. Tables: one graph of the rows, and classes by `table_classes`, which
    do not depend on the network. With the paper's recipe all graphs are of the network, directed.

    Parameters
    ----------
    model : MetricModel
        Makes the features of a graph.
    samples : Tensor of shape (n_samples, ...)
        All samples.
    codes : ndarray of shape (n_samples,)
        The numbers of their classes; -1 where unknown.
    weights : ndarray of shape (n_samples,) or None
        Of the samples.
    plan : Plan
        The parameters.
    rng : numpy Generator
        Draws partitions.
    client : distributed.Client, default=None
        The cluster on which partitions are worked on, beside `n_workers` of the plan. Results do
        not depend on it: what is drawn at random is drawn here.
    """

    def __init__(
        self,
        model: MetricModel,
        samples: Tensor,
        codes: NDArray,
        weights: NDArray | None,
        plan: Plan,
        rng: Generator,
        client: Any = None,
    ) -> None:
        self.model, self.samples, self.codes, self.weights = model, samples, codes, weights
        self.plan, self.rng, self.client = plan, rng, client
        self.has_images = samples.ndim > 2
        kind = "images" if self.has_images else "table"
        if plan.paper:
            kind = "rows" if model.backbone is None else "network"
        options = int(codes.max()) + 1, plan.n_neighbors, plan.propagation
        self.settings = Settings(kind, *options, None)
        if kind == "table":
            given = samples.numpy(), codes, *options, weights, rng
            weighing = choose_weights(*given, n_jobs=plan.n_workers, client=client)
            self.settings = self.settings._replace(weighing=weighing)
        self.n_made = 0
        self.kept: Partition | None = None

    @property
    def n_parallel(self) -> int:
        """How many partitions are worked on at a time."""
        if self.client is None:
            return self.plan.n_workers
        return len(find_workers(self.client))

    def draw(self, n_partitions: int) -> Iterator[tuple[NDArray, Partition]]:
        """Yield the rows of partitions, and these; of tables, some are made at a time."""
        drawn = draw_partitions(self.codes, self.plan.partition_size, self.rng)
        at_once = self.n_parallel if self.settings.kind == "table" else 1
        for first in range(0, n_partitions, at_once):
            several = [next(drawn) for _ in range(min(at_once, n_partitions - first))]
            yield from zip(several, self.make(several), strict=True)

    def make(self, several: list[NDArray]) -> list[Partition]:
        """Make graphs of some samples each, and propagate the labels."""
        # A table that is one partition is made once.
        is_whole = self.settings.kind == "table" and len(several[0]) == len(self.codes)
        if self.kept is not None and is_whole:
            return [self.kept] * len(several)
        blocks = [self._block(rows) for rows in (several[:1] if is_whole else several)]
        made = []
        for block, (graph, classes) in zip(blocks, self._map(spread_labels, blocks), strict=True):
            options = self.plan.propagation, block.weights, self.has_images
            made.append(Partition(block.codes, graph, classes, *options))
        self.n_made += 1
        if is_whole:
            self.kept = made[0]
            return made * len(several)
        return made

    def _map(self, function, blocks):
        with make_shards(blocks, n_jobs=self.plan.n_workers, client=self.client) as shards:
            return shards.map(function, self.settings)

    def _block(self, rows):
        samples, kind = self.samples[rows], self.settings.kind
        if kind == "table":
            features = [samples.numpy()]
        elif kind == "images":
            features = [input_gradients(samples)]
            if self.n_made and self.model.backbone is not None:
                features.append(self.model.embed_features(samples, self.plan.device))
        else:
            features = [self.model.embed_features(samples, self.plan.device)]
        weights = None if self.weights is None else self.weights[rows]
        return Block(tuple(features), self.codes[rows], weights)

    def propagate_all(self) -> tuple[NDArray, NDArray]:
        """Propagate labels to the samples, each unlabelled one in one partition.

        Returns
        -------
        classes : ndarray of shape (n_samples, n_classes)
            Their distributions.
        left : ndarray
            Numbers of samples that are in no partition, as there would be too many of these.
        """
        classes = np.zeros((len(self.codes), self.settings.n_classes))
        is_left = np.ones(len(self.codes), dtype=bool)
        if self.kept is not None:
            return self.kept.classes.copy(), np.flatnonzero(~is_left)
        n_unlabelled = int((self.codes < 0).sum())
        drawn = draw_partitions(self.codes, self.plan.partition_size, self.rng)
        n_partitions = max(1, -(-n_unlabelled // self.plan.partition_size))
        every = [next(drawn) for _ in range(min(n_partitions, _MAX_PARTITIONS))]
        at_once = self.n_parallel
        for first in range(0, len(every), at_once):
            several = every[first : first + at_once]
            found = self._map(spread_classes, [self._block(rows) for rows in several])
            for rows, some in zip(several, found, strict=True):
                classes[rows] = some
                is_left[rows] = False
        return classes, np.flatnonzero(is_left)
