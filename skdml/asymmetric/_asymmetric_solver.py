"""Training of two maps: inference on batches of queries, then a step down the gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._candidates import NO_ROW, find_candidates, tabulate
from ._inference import infer_sets
from ._maps import Pairs

# Queries in a batch: those of so many steps in an epoch, within bounds.
_STEPS, _MIN_BATCH, _MAX_BATCH = 50, 16, 256
# Candidates are searched anew in each of the first epochs, when the maps change most, and then
# every few.
_FIRST_SEARCHES, _SEARCH_EVERY = 5, 3
# Epochs without a lower objective after which training stops. It rises when a search finds rows
# that have come near, so this is several searches.
_PATIENCE = 10


@dataclass
class Problem:
    """What is learned from.

    Attributes
    ----------
    queries : ndarray of shape (n_queries, n_features)
        The training queries.
    query_labels : ndarray of shape (n_queries,)
        Their classes, numbers from 0.
    database : ndarray of shape (n_rows, n_features)
        The database rows.
    labels : ndarray of shape (n_rows,)
        Their classes.
    same_rows : bool
        Whether the queries are the database rows.
    costs : ndarray of shape (n_classes, n_classes)
        Delta.
    n_neighbors : int
        k.
    """

    queries: NDArray
    query_labels: NDArray
    database: NDArray
    labels: NDArray
    same_rows: bool
    costs: NDArray
    n_neighbors: int

    def search(
        self, maps: Any, n_candidates: int, rng: np.random.Generator, n_jobs: int | None = None
    ) -> NDArray:
        """Return the candidates of every query under the maps."""
        return find_candidates(
            maps.embed_queries(self.queries),
            self.query_labels,
            maps.embed_database(self.database),
            self.labels,
            n_candidates,
            rng,
            same_rows=self.same_rows,
            n_jobs=n_jobs,
        )


@dataclass
class Batch:
    """The losses of some queries, and the pairs that their gradient consists of."""

    queries: NDArray
    database: NDArray
    pairs: Pairs
    loss: NDArray
    feasible: NDArray


def compare(maps: Any, problem: Problem, numbers: NDArray, candidates: NDArray) -> Batch:
    """Infer the sets of some queries.

    Parameters
    ----------
    maps : LinearMaps or ModuleMaps
        The maps.
    problem : Problem
        What is learned from.
    numbers : ndarray of shape (n_batch,)
        The queries.
    candidates : ndarray of shape (n_batch, n_candidates)
        Their candidates.

    Returns
    -------
    batch : Batch
        Losses, and what `maps.step` takes.
    """
    k, n_classes = problem.n_neighbors, len(problem.costs)
    used, place = np.unique(candidates, return_inverse=True)  # NO_ROW is the last row, for a while
    place = place.reshape(candidates.shape)
    queries, database = problem.queries[numbers], problem.database[used]
    Z, Z_database = maps.embed_queries(queries), maps.embed_database(database)
    distances = np.sum((Z[:, None] - Z_database[place]) ** 2, axis=2)
    distances[candidates == NO_ROW] = np.inf
    labels = problem.labels[candidates]
    table, columns = tabulate(distances, labels, n_classes, k)
    sets = infer_sets(table, problem.query_labels[numbers], problem.costs)
    nearest = np.arange(k)
    weight = (nearest < sets.targeted[:, :, None]).astype(int)
    weight -= nearest < sets.augmented[:, :, None]
    entry = np.nonzero(weight)
    n_feasible = max(1, np.count_nonzero(sets.feasible))
    pairs = Pairs(entry[0], place[entry[0], columns[entry]], weight[entry] / n_feasible)
    return Batch(queries, database, pairs, sets.loss, sets.feasible)


@dataclass
class Training:
    """How training went.

    Attributes
    ----------
    objective_curve : list of float
        The objective in each epoch, each query under the maps of its step.
    n_infeasible : int
        Queries that were skipped in the last epoch: no set of neighbours is won by their class.
    """

    objective_curve: list[float]
    n_infeasible: int


def train(
    maps: Any,
    problem: Problem,
    *,
    C: float,
    n_candidates: int,
    max_iter: int,
    lr: float,
    tol: float,
    rng: np.random.Generator,
    n_jobs: int | None,
    report: Callable[..., bool],
) -> Training:
    """Minimise the norm of the maps plus C times the sum of the losses.

    Parameters
    ----------
    maps : LinearMaps or ModuleMaps
        Where to start; changed by every step.
    problem : Problem
        What is learned from.
    C : float
        The weight of the losses.
    n_candidates : int
        Database rows that a query is compared with.
    max_iter : int
        Passes over the queries at most.
    lr : float
        The learning rate at the beginning; it falls to zero along a cosine.
    tol : float
        Stop when the objective has not fallen by this share of it in some epochs.
    rng : Generator
        Shuffles the queries and draws candidates.
    n_jobs : int or None
        Workers of the search for candidates.
    report : callable
        Called after every epoch with the objective; true asks to stop.

    Returns
    -------
    training : Training
        How it went.
    """
    n_queries = len(problem.queries)
    batch_size = int(np.clip(n_queries // _STEPS, _MIN_BATCH, _MAX_BATCH))
    batches = np.arange(batch_size, n_queries, batch_size)
    n_steps = max_iter * (len(batches) + 1)
    training = Training([], 0)
    lowest, lowest_epoch, step = np.inf, 0, 0
    for epoch in range(max_iter):
        if epoch < _FIRST_SEARCHES or epoch % _SEARCH_EVERY == 0:
            candidates = problem.search(maps, n_candidates, rng, n_jobs)
        loss, n_feasible = 0.0, 0
        for numbers in np.split(rng.permutation(n_queries), batches):
            batch = compare(maps, problem, numbers, candidates[numbers])
            loss += batch.loss.sum()
            n_feasible += int(np.count_nonzero(batch.feasible))
            decayed = lr * (1 + np.cos(np.pi * step / n_steps)) / 2
            # the objective, divided by C and by the number of queries
            maps.step(batch.queries, batch.database, batch.pairs, 1 / (C * n_queries), decayed)
            step += 1
        objective = maps.penalty() + C * loss
        if not np.isfinite(objective):
            raise ValueError(
                f"the objective is not finite in iteration {epoch + 1}: is X scaled? Try a smaller "
                "lr."
            )
        training.objective_curve.append(objective)
        training.n_infeasible = n_queries - n_feasible
        if objective < (1 - tol) * lowest:
            lowest, lowest_epoch = objective, epoch
        if report(objective=objective) or epoch - lowest_epoch >= _PATIENCE:
            break
    return training
