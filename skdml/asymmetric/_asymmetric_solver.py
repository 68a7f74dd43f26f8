"""Training of two maps: inference on batches of queries, then a step down the gradient."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._candidates import NO_ROW, find_nearest, tabulate
from ._inference import infer_sets, vote_costs
from ._maps import Pairs

# Queries in a batch: those of so many steps in a pass, within bounds.
_STEPS, _MIN_BATCH, _MAX_BATCH = 50, 16, 256
# Passes over the queries between two searches among all database rows: so many, and more where
# queries are too few for this number of steps.
_PASSES, _MIN_STEPS = 2, 100
# Iterations without a lower objective, or without better votes for held-out queries, after which
# training stops.
_PATIENCE = 5
# Queries of one search, which bounds its memory.
_BLOCK = 4096


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
    held_out : ndarray of shape (n_queries,)
        Which queries are not trained on, but choose among the maps of all iterations.
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
    held_out: NDArray
    costs: NDArray
    n_neighbors: int

    def search(
        self, maps: Any, n_candidates: int, rng: np.random.Generator, n_jobs: int | None = None
    ) -> Search:
        """Find the nearest rows of all queries under the maps."""
        queries, database = maps.embed_queries(self.queries), maps.embed_database(self.database)
        if not (np.isfinite(queries).all() and np.isfinite(database).all()):
            raise ValueError("the coordinates are not finite: is X scaled? Try a smaller lr.")
        parts = []
        n_candidates = min(n_candidates, 4 * len(database))  # where it has all rows of each kind
        for first in range(0, len(queries), _BLOCK):
            numbers = np.arange(first, min(first + _BLOCK, len(queries)))
            nearest = find_nearest(
                queries[numbers],
                self.query_labels[numbers],
                database,
                self.labels,
                self.n_neighbors,
                n_candidates,
                rng,
                excluded=numbers if self.same_rows else None,
                n_jobs=n_jobs,
            )
            sets = infer_sets(nearest.table, self.query_labels[numbers], self.costs)
            costs = vote_costs(nearest.table, self.query_labels[numbers], self.costs)
            parts.append((nearest.candidates, sets.loss, sets.feasible, costs))
        candidates, loss, feasible, costs = map(np.concatenate, zip(*parts, strict=True))
        judges = self.held_out if self.held_out.any() else ~self.held_out
        return Search(
            candidates,
            loss=float(loss[~self.held_out].sum()),
            n_infeasible=int(np.count_nonzero(~feasible)),
            vote_cost=float(costs[judges].mean()),
            vote_error=float(costs[judges].std() / np.sqrt(np.count_nonzero(judges))),
        )


@dataclass
class Search:
    """What a search among all database rows finds for all queries.

    Attributes
    ----------
    candidates : ndarray of shape (n_queries, n_candidates)
        Rows to compare each query with until the next search.
    loss : float
        The exact sum of the losses of the training queries.
    n_infeasible : int
        Queries without a set of neighbours that their class wins.
    vote_cost : float
        The mean cost of the votes for held-out queries; for training queries if there are none.
    vote_error : float
        The standard error of this mean.
    """

    candidates: NDArray
    loss: float
    n_infeasible: int
    vote_cost: float
    vote_error: float


def hold_out(labels: NDArray, fraction: float | None, rng: np.random.Generator) -> NDArray:
    """Draw the queries that are held out, a share of each class, as a mask."""
    held_out = np.zeros(len(labels), dtype=bool)
    if fraction is not None:
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            held_out[members[: int(fraction * len(members))]] = True
    return held_out


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
    maps : LinearMaps or ModuleMaps
        Those of the lowest `vote_curve`, or of the last iteration if no queries are held out.
    objective_curve : list of float
        The exact objective, at the start and after each iteration.
    vote_curve : list of float
        The mean cost of the votes for held-out queries, likewise.
    seconds_curve : list of float
        Seconds since the start, likewise.
    n_infeasible : int
        Queries without a set of neighbours that their class wins.
    vote_cost, vote_error : float
        What is in `vote_curve` for the maps that are kept, and its standard error.
    """

    maps: Any
    objective_curve: list[float]
    vote_curve: list[float]
    seconds_curve: list[float]
    n_infeasible: int
    vote_cost: float
    vote_error: float


def train(
    maps: Any,
    problem: Problem,
    *,
    C: float,
    n_candidates: int,
    max_iter: int,
    n_tied: int | None,
    n_free: int,
    lr: float,
    tol: float,
    rng: np.random.Generator,
    n_jobs: int | None,
    begin: Callable[[], None],
    report: Callable[..., bool],
) -> Training:
    """Minimise the norm of the maps plus C times the sum of the losses.

    An iteration is some passes over the queries and a search, which gives the objective and the
    next candidates. If the objective is not lower than before, the iteration is taken back and
    the learning rate is halved, but for the first `n_free`. Held-out queries tell which of all the
    maps are kept, and end the training when these are not the latest for some iterations.

    Parameters
    ----------
    maps : LinearMaps or ModuleMaps
        Where to start.
    problem : Problem
        What is learned from.
    C : float
        The weight of the losses.
    n_candidates : int
        Database rows that a query is compared with.
    max_iter : int
        Iterations at most.
    n_tied : int or None
        Iterations after which the two maps, until then one, go apart; None leaves the maps as
        they are.
    n_free : int
        Iterations at the beginning that are never taken back. Networks with random weights have
        nearly all points in one place, where the loss is as large as one error and any way out of
        it goes up first.
    lr : float
        The learning rate at the beginning; it falls to zero along a cosine.
    tol : float
        Stop when the objective has not fallen by this share of it in some iterations.
    rng : Generator
        Shuffles the queries and draws candidates.
    n_jobs : int or None
        Workers of the search for candidates.
    begin : callable
        Called before every iteration.
    report : callable
        Called after every iteration with the training so far and the objective; true asks to stop.

    Returns
    -------
    training : Training
        How it went.
    """
    start = time.perf_counter()
    penalty = 1 / (C * np.count_nonzero(~problem.held_out))
    search = problem.search(maps, n_candidates, rng, n_jobs)
    objective = maps.penalty() + C * search.loss
    cost = search.vote_cost
    training = Training(
        maps,
        objective_curve=[objective],
        vote_curve=[cost],
        seconds_curve=[time.perf_counter() - start],
        n_infeasible=search.n_infeasible,
        vote_cost=cost,
        vote_error=search.vote_error,
    )
    judged = problem.held_out.any()
    n_idle = n_worse = 0
    for iteration in range(max_iter):
        begin()
        if iteration == n_tied:
            maps, n_idle, n_worse = maps.untied(), 0, 0
        changed = copy.deepcopy(maps)
        decayed = lr * (1 + np.cos(np.pi * iteration / max_iter)) / 2
        for numbers in draw_batches(np.flatnonzero(~problem.held_out), rng):
            batch = compare(changed, problem, numbers, search.candidates[numbers])
            changed.step(batch.queries, batch.database, batch.pairs, penalty, decayed)
        found = problem.search(changed, n_candidates, rng, n_jobs)
        reached = changed.penalty() + C * found.loss
        free = iteration < n_free
        n_idle = 0 if free or reached < (1 - tol) * objective else n_idle + 1
        if free or reached < objective:
            maps, search, objective = changed, found, reached
        else:
            lr /= 2
        if not judged or search.vote_cost < training.vote_cost:
            training.maps, n_worse = maps, 0
            training.vote_cost, training.vote_error = search.vote_cost, search.vote_error
        else:
            n_worse += 1
        training.objective_curve.append(objective)
        training.vote_curve.append(search.vote_cost)
        training.seconds_curve.append(time.perf_counter() - start)
        stuck = max(n_idle, n_worse) >= _PATIENCE and iteration >= max(n_tied or 0, n_free)
        if report(training, objective=objective) or stuck:
            break
    return training


def draw_batches(queries: NDArray, rng: np.random.Generator) -> Iterator[NDArray]:
    """Yield the batches of an iteration: passes over the queries, each in a random order."""
    size = int(np.clip(len(queries) // _STEPS, _MIN_BATCH, _MAX_BATCH))
    places = np.arange(size, len(queries), size)
    for _ in range(max(_PASSES, _MIN_STEPS // (len(places) + 1))):
        yield from np.split(rng.permutation(queries), places)
