"""Training of two maps: inference on batches of queries, then a gradient step."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from sklearn.utils import gen_batches

from ..utils._fit import Progress, record
from ..utils._supervision import weighted_rows
from ..utils.validation import check_named_array, encode_several
from ._maps import Pairs
from ._neighbor_sets import NO_ROW, find_nearest, infer_sets, tabulate, vote_costs

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
    """Training data and constants of one fit.

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
    C : float, default=1.0
        The weight of the losses.
    n_candidates : int, default=64
        Database rows that a query is compared with.
    max_iter : int, default=15
        Iterations at most.
    tol : float, default=1e-4
        Training stops when the objective has not fallen by this share of it in some iterations.
    n_jobs : int or None, default=None
        Workers of the search for candidates.
    own_rows : ndarray of shape (n_queries,) or None, default=None
        With `same_rows`, the database row that each query is, where queries are only some of the
        rows; None where they are all, in the same order.
    weights : ndarray of shape (n_queries,) or None, default=None
        What the losses and the votes of queries count; None is 1 for each.
    """

    queries: NDArray
    query_labels: NDArray
    database: NDArray
    labels: NDArray
    same_rows: bool
    held_out: NDArray
    costs: NDArray
    n_neighbors: int
    C: float = 1.0
    n_candidates: int = 64
    max_iter: int = 15
    tol: float = 1e-4
    n_jobs: int | None = None
    own_rows: NDArray | None = None
    weights: NDArray | None = None

    def __post_init__(self) -> None:
        if self.weights is not None:  # so that C means the same with weights and without
            self.weights = self.weights / self.weights[~self.held_out].mean()

    def search(self, maps: Any, rng: Generator) -> Search:
        """Find the nearest rows of all queries under the maps."""
        queries, database = maps.embed_queries(self.queries), maps.embed_database(self.database)
        if not np.isfinite([np.vdot(queries, queries), np.vdot(database, database)]).all():
            raise ValueError("the coordinates are not finite: is X scaled? Try a smaller lr.")
        parts = []
        own_rows = np.arange(len(queries)) if self.own_rows is None else self.own_rows
        # With more, it has all rows of each kind.
        n_candidates = min(self.n_candidates, 4 * len(database))
        for block in gen_batches(len(queries), _BLOCK):
            labels = self.query_labels[block]
            excluded = own_rows[block] if self.same_rows else None
            rows = queries[block], labels, database, self.labels
            nearest = find_nearest(
                *rows, self.n_neighbors, n_candidates, rng, excluded=excluded, n_jobs=self.n_jobs
            )
            sets = infer_sets(nearest.table, labels, self.costs)
            costs = vote_costs(nearest.table, labels, self.costs)
            parts.append((nearest.candidates, sets.loss, sets.feasible, costs))
        candidates, loss, feasible, costs = map(np.concatenate, zip(*parts, strict=True))
        active = loss > 0
        judges = self.held_out if self.held_out.any() else ~self.held_out
        weights = None if self.weights is None else self.weights[judges]
        if self.weights is not None:
            loss = self.weights * loss
        vote_cost, vote_error = mean_and_error(costs[judges], weights)
        return Search(
            candidates,
            active,
            feasible,
            loss=float(loss[~self.held_out].sum()),
            n_infeasible=int(np.count_nonzero(~feasible)),
            vote_cost=vote_cost,
            vote_error=vote_error,
        )


@dataclass
class Search:
    """Result of a search among all database rows, for all queries.

    Attributes
    ----------
    candidates : ndarray of shape (n_queries, n_candidates)
        Rows to compare each query with until the next search.
    active, feasible : ndarray of shape (n_queries,)
        Which queries have a loss, and which have a set of neighbours that their class wins.
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
    active: NDArray
    feasible: NDArray
    loss: float
    n_infeasible: int
    vote_cost: float
    vote_error: float


def mean_and_error(values: NDArray, weights: NDArray | None) -> tuple[float, float]:
    """Return the weighted mean of values, and its standard error."""
    if weights is None:
        return float(values.mean()), float(values.std() / np.sqrt(len(values)))
    shares = weights / weights.sum()
    mean = shares @ values
    return float(mean), float(np.linalg.norm(shares * (values - mean)))


def hold_out(labels: NDArray, fraction: float | None, rng: Generator) -> NDArray:
    """Draw the queries that are held out, a share of each class, as a mask."""
    held_out = np.zeros(len(labels), dtype=bool)
    if fraction is not None:
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            held_out[members[: int(fraction * len(members))]] = True
    return held_out


def check_costs(cost_matrix: Any, n_classes: int) -> NDArray:
    """Return the costs of wrong answers, 1 each if none are given."""
    if cost_matrix is None:
        return 1.0 - np.eye(n_classes)
    costs = check_named_array(cost_matrix, "cost_matrix", dtype=np.float64)
    if costs.shape != (n_classes, n_classes):
        raise ValueError(
            f"cost_matrix must have one row and one column for each of the {n_classes} classes, "
            f"in the order of classes_: the shape ({n_classes}, {n_classes}), got {costs.shape}."
        )
    if costs.diagonal().any() or (costs + np.eye(n_classes) <= 0).any():
        raise ValueError(
            "cost_matrix must be 0 on the diagonal, where the answer is right, and positive "
            "everywhere else."
        )
    return costs


def find_voters(
    X: NDArray, codes: NDArray, sample_weight: Any, n_neighbors: int, n_candidates: int
) -> tuple[NDArray, NDArray | None, int]:
    """Return the distinct rows that count, their weights, and how many of them vote.

    Parameters
    ----------
    X : array or sparse matrix of shape (n_rows, n_features)
        The rows.
    codes : ndarray of shape (n_rows,)
        Their classes, numbers from 0.
    sample_weight : array-like of shape (n_rows,) or None
        As `fit` was given it.
    n_neighbors, n_candidates : int
        The parameters.

    Returns
    -------
    rows, weights : ndarray, ndarray or None
        See `weighted_rows`.
    n_neighbors : int
        Fewer than were asked for where rows have weights or are equal, and every class has fewer
        distinct ones.
    """
    rows, weights = weighted_rows(X, codes, sample_weight)
    encode_several(codes[rows])
    counted = codes if sample_weight is None else codes[np.asarray(sample_weight) > 0]
    largest = int(np.bincount(counted).max())
    if weights is None and n_neighbors > largest:
        raise ValueError(
            f"n_neighbors={n_neighbors} is larger than every class of y: the largest has {largest} "
            "rows. Choose fewer neighbours."
        )
    if n_candidates < 4 * n_neighbors:
        raise ValueError(
            f"n_candidates={n_candidates} must be at least 4 * n_neighbors = {4 * n_neighbors}: "
            "a quarter of them are the nearest rows of other classes."
        )
    if weights is not None or len(rows) < len(counted):
        n_neighbors = min(n_neighbors, max(1, int(np.bincount(codes[rows]).max()) - 1))
    return rows, weights, int(n_neighbors)


def check_feasible(n_infeasible: int, problem: Problem) -> None:
    """Check that there was a query to learn from."""
    if n_infeasible == len(problem.queries):
        raise ValueError(
            f"n_neighbors={problem.n_neighbors}: no training query has a set of neighbours "
            "that its class would win. Choose fewer neighbours."
        )


@dataclass
class Batch:
    """The losses of some queries, and the pairs that their gradient consists of."""

    queries: NDArray
    database: NDArray
    pairs: Pairs
    loss: NDArray


def compare(
    maps: Any,
    problem: Problem,
    numbers: NDArray,
    candidates: NDArray,
    n_feasible: int | None = None,
) -> Batch:
    """Infer the sets of some queries.

    Parameters
    ----------
    maps : LinearMaps or ModuleMaps
        The maps.
    problem : Problem
        The training data.
    numbers : ndarray of shape (n_batch,)
        The queries.
    candidates : ndarray of shape (n_batch, n_candidates)
        Their candidates.
    n_feasible : int, default=None
        Queries of the batch that can be right, with those that are left out as they are; None
        counts these.

    Returns
    -------
    batch : Batch
        Losses, and what `maps.step` takes.
    """
    used, place = np.unique(candidates, return_inverse=True)  # NO_ROW is the last row, for a while
    place = place.reshape(candidates.shape)
    queries, database = problem.queries[numbers], problem.database[used]
    Z, Z_database = maps.embed_queries(queries), maps.embed_database(database)
    differences = Z_database[place]
    differences -= Z[:, None]
    distances = np.einsum("ijk,ijk->ij", differences, differences)
    distances[candidates == NO_ROW] = np.inf
    k = problem.n_neighbors
    table, columns = tabulate(distances, problem.labels[candidates], len(problem.costs), k)
    sets = infer_sets(table, problem.query_labels[numbers], problem.costs)
    nearest = np.arange(k)
    weight = (nearest < sets.targeted[:, :, None]).astype(int)
    weight -= nearest < sets.augmented[:, :, None]
    entry = np.nonzero(weight)
    if n_feasible is None:
        n_feasible = np.count_nonzero(sets.feasible)
    shares = weight[entry] / max(1, n_feasible)
    if problem.weights is not None:
        shares = shares * problem.weights[numbers[entry[0]]]
    pairs = Pairs(entry[0], place[entry[0], columns[entry]], shares)
    return Batch(queries, database, pairs, sets.loss)


@dataclass
class Training:
    """Result of a training.

    Attributes
    ----------
    maps : LinearMaps or ModuleMaps
        Those of the lowest "validation", or of the last iteration if no queries are held out.
    history : dict of str to list
        At the start and after each iteration: "objective", exact; "validation", the mean cost of
        the votes for held-out queries; "seconds" since the start.
    n_infeasible : int
        Queries without a set of neighbours that their class wins.
    vote_cost, vote_error : float
        The "validation" of the maps that are kept, and its standard error.
    """

    maps: Any
    history: dict[str, list[float]]
    n_infeasible: int
    vote_cost: float
    vote_error: float


def train(
    maps: Any,
    problem: Problem,
    lr: float,
    rng: Generator,
    progress: Progress,
    attributes: Callable[[Any], dict[str, Any]],
    n_tied: int | None = None,
    n_free: int = 0,
    to_beat: float = np.inf,
) -> Training:
    """Minimise the norm of the maps plus C times the sum of the losses.

    An iteration is some passes over the queries that the last search found to have a loss, and a
    search, which gives the objective and the next candidates. If the objective is not lower than
    before, the iteration is rejected and the learning rate is halved, but for the first `n_free`.
    Held-out queries choose among the maps of all iterations, and stop the training early.

    Parameters
    ----------
    maps : LinearMaps or ModuleMaps
        Where to start.
    problem : Problem
        The training data and constants.
    lr : float
        The learning rate at the beginning; it falls to zero along a cosine.
    rng : Generator
        Shuffles the queries and draws candidates.
    progress : Progress
        Where iterations are reported; may ask to stop.
    attributes : callable
        The fitted attributes of the estimator with the given maps, for callbacks.
    n_tied : int, default=None
        Iterations after which the two maps, until then one, are untied; None leaves the maps as
        they are.
    n_free : int, default=0
        Iterations at the beginning that are never rejected. Networks with random weights have
        nearly all points in one place, where the loss is as large as one error and any way out of
        it goes up first.
    to_beat : float, default=inf
        The cost of the votes that another start has reached: an iteration that does not fall below
        is one without better votes.

    Returns
    -------
    training : Training
        The maps, and the history.
    """
    start, C, max_iter = time.perf_counter(), problem.C, problem.max_iter
    penalty = 1 / (C * np.count_nonzero(~problem.held_out))
    search = problem.search(maps, rng)
    objective = maps.penalty() + C * search.loss
    training = Training(maps, {}, search.n_infeasible, search.vote_cost, search.vote_error)
    record(training.history, start, objective=objective, validation=search.vote_cost)
    judged = problem.held_out.any()
    n_idle = n_worse = 0
    for iteration in range(max_iter):
        progress.begin()
        if iteration == n_tied:
            maps, n_idle, n_worse = maps.untied(), 0, 0
        changed = copy.deepcopy(maps)
        decayed = lr * (1 + np.cos(np.pi * iteration / max_iter)) / 2
        for numbers in draw_batches(np.flatnonzero(~problem.held_out), rng):
            active = numbers[search.active[numbers]]
            if not len(active):  # a batch without a loss moves nothing
                continue
            if len(active) == 1:  # batch norm needs two rows; one without a loss has no gradient
                active = np.append(active, numbers[numbers != active][:1])
            n_feasible = int(np.count_nonzero(search.feasible[numbers]))
            batch = compare(changed, problem, active, search.candidates[active], n_feasible)
            changed.step(batch.queries, batch.database, batch.pairs, penalty, decayed)
        found = problem.search(changed, rng)
        reached = changed.penalty() + C * found.loss
        free = iteration < n_free
        n_idle = 0 if free or reached < (1 - problem.tol) * objective else n_idle + 1
        if free or reached < objective:
            maps, search, objective = changed, found, reached
        else:
            lr /= 2
        is_better = not judged or search.vote_cost < training.vote_cost
        if is_better:
            training.maps = maps
            training.vote_cost, training.vote_error = search.vote_cost, search.vote_error
        n_worse = 0 if is_better and search.vote_cost < to_beat else n_worse + 1
        record(training.history, start, objective=objective, validation=search.vote_cost)
        stuck = max(n_idle, n_worse) >= _PATIENCE and iteration >= max(n_tied or 0, n_free)
        if progress.step(partial(attributes, training.maps), objective=objective) or stuck:
            break
    return training


def draw_batches(queries: NDArray, rng: Generator) -> Iterator[NDArray]:
    """Yield the batches of an iteration: passes over the queries, each in a random order."""
    size = int(np.clip(len(queries) // _STEPS, _MIN_BATCH, _MAX_BATCH))
    places = np.arange(size, len(queries), size)
    for _ in range(max(_PASSES, _MIN_STEPS // (len(places) + 1))):
        yield from np.split(rng.permutation(queries), places)
