"""Neighbours of queries: exact inference of sets that a class wins, and the search for candidates.

A set of k neighbours costs the sum of their squared distances, and is won by the class that most
of them have. Among the sets with n members of the winner, the cheapest one has the n nearest of
that class and the nearest others, at most n - 1 of any other class if ties are forbidden and n if
they are allowed. So it is enough to try every n from 1 to k.

What is known of a sample is a table of its k nearest rows of each class: squared distances in
ascending order, infinite where the class has fewer rows. All functions here work on the tables of
many samples at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

# In the place of a candidate that does not exist.
NO_ROW = -1


@dataclass
class NeighborSets:
    """The two sets of neighbours that the loss of each sample compares.

    Attributes
    ----------
    targeted : ndarray of shape (n_samples, n_classes)
        h*, the cheapest set that the sample's own class wins, as its members of each class.
    augmented : ndarray of shape (n_samples, n_classes)
        The set of the largest similarity plus cost, likewise.
    loss : ndarray of shape (n_samples,)
        L(x, y), never negative; 0 where `feasible` is false.
    feasible : ndarray of shape (n_samples,)
        Whether there is a set that the sample's own class wins.
    """

    targeted: NDArray
    augmented: NDArray
    loss: NDArray
    feasible: NDArray


def infer_sets(table: NDArray, y: NDArray, costs: NDArray) -> NeighborSets:
    """Find the targeted and the loss-augmented set of each sample.

    Parameters
    ----------
    table : ndarray of shape (n_samples, n_classes, k)
        Squared distances to the k nearest rows of each class, ascending.
    y : ndarray of shape (n_samples,)
        The classes of the samples.
    costs : ndarray of shape (n_classes, n_classes)
        Delta, the cost of answering the class of the column for one of the row.

    Returns
    -------
    sets : NeighborSets
        Members and losses. A sample without a feasible targeted set has no members.
    """
    rows = np.arange(len(table))
    found = winning_costs(table, y[:, None], margin=1)
    target_cost, target_size = found[0][:, 0], found[1][:, 0]
    feasible = np.isfinite(target_cost)
    classes = np.broadcast_to(np.arange(len(costs)), (len(table), len(costs)))
    cost, size = winning_costs(table, classes, margin=0)
    cost = cost - costs[y]
    winner = cost.argmin(axis=1)
    loss = np.zeros(len(table))
    np.subtract(target_cost, cost[rows, winner], out=loss, where=feasible)
    targeted = winning_members(table, y, target_size, margin=1)
    augmented = winning_members(table, winner, size[rows, winner], margin=0)
    targeted[~feasible] = augmented[~feasible] = 0
    loss = np.maximum(loss, 0.0)  # below by rounding only
    return NeighborSets(targeted, augmented, loss, feasible)


def vote_costs(table: NDArray, y: NDArray, costs: NDArray) -> NDArray:
    """Return the mean cost of the votes of the k nearest rows of each sample.

    With costs of 1 it is the share of wrong votes. The arguments are those of `infer_sets`.
    """
    n_samples, _, k = table.shape
    nearest = np.argsort(table.reshape(n_samples, -1), axis=1, kind="stable")[:, :k]
    return costs[y[:, None], nearest // k].mean(axis=1)


def winning_costs(table: NDArray, winners: NDArray, margin: int) -> tuple[NDArray, NDArray]:
    """Return what the cheapest set costs that a class wins.

    Parameters
    ----------
    table : ndarray of shape (n_samples, n_classes, k)
        Squared distances to the k nearest rows of each class, ascending.
    winners : ndarray of shape (n_samples, n_winners)
        The classes that are to win, for each sample.
    margin : {0, 1}
        tau, by how many members the winner must be ahead of every other class: 0 allows ties.

    Returns
    -------
    cost : ndarray of shape (n_samples, n_winners)
        Minus the similarity S of the best set; infinite if there is none.
    size : ndarray of shape (n_samples, n_winners)
        The number of its members that are of the winning class.
    """
    n_samples, n_classes, k = table.shape
    rows = np.arange(n_samples)[:, None]  # numpy's take_along_axis is slow for small arrays
    own = np.cumsum(table[rows, winners], axis=2)
    # The others are k - 1 rows at most. They are of the k - 1 classes whose nearest rows are
    # nearest; of the first k, in case the winner is one of them.
    classes = np.argsort(table[:, :, 0], axis=1, kind="stable")[:, :k]
    others = table[rows, classes]
    best, best_size = np.full(winners.shape, np.inf), np.zeros(winners.shape, dtype=int)
    for size in range(1, k + 1):
        needed, cap = k - size, size - margin
        if needed > cap * (n_classes - 1):
            continue
        cost = own[:, :, size - 1]
        if needed:
            cost = cost + _cheapest_others(others[:, :, :cap], classes, winners, needed)
        better = cost < best
        best[better], best_size[better] = cost[better], size
    return best, best_size


def _cheapest_others(others, classes, winners, needed):
    """Sum the `needed` smallest entries that are not of a winner, for every winner."""
    n_samples, _, cap = others.shape
    flat = others.reshape(n_samples, -1)
    # Of these, at most `cap` are of the class itself.
    order = np.argsort(flat, axis=1, kind="stable")[:, : needed + cap]
    rows = np.arange(n_samples)[:, None]
    values, labels = flat[rows, order][:, None], classes[rows, order // cap][:, None]
    other = labels != winners[:, :, None]
    chosen = other & (np.cumsum(other, axis=2) <= needed)
    return np.where(chosen, values, 0.0).sum(axis=2)


def winning_members(table: NDArray, winner: NDArray, size: NDArray, margin: int) -> NDArray:
    """Return the members of the cheapest set that one class wins with a known size.

    Parameters
    ----------
    table : ndarray of shape (n_samples, n_classes, k)
        Squared distances to the k nearest rows of each class, ascending.
    winner, size : ndarray of shape (n_samples,)
        The winning class of each sample and how many members it has.
    margin : {0, 1}
        As in `winning_costs`.

    Returns
    -------
    members : ndarray of shape (n_samples, n_classes)
        How many members are of each class: always its nearest rows. Rows sum to k.
    """
    n_samples, n_classes, k = table.shape
    rows = np.arange(n_samples)
    allowed = np.arange(k) < (size - margin)[:, None, None]
    flat = np.where(allowed, table, np.inf)
    flat[rows, winner] = np.inf
    order = np.argsort(flat.reshape(n_samples, -1), axis=1, kind="stable")[:, :k]
    taken = np.arange(order.shape[1]) < (k - size)[:, None]
    members = np.zeros((n_samples, n_classes), dtype=int)
    np.add.at(members, (np.nonzero(taken)[0], order[taken] // k), 1)
    members[rows, winner] += size
    return members


@dataclass
class Nearest:
    """Database rows that some queries are compared with.

    Attributes
    ----------
    table : ndarray of shape (n_queries, n_classes, k)
        Squared distances to the k nearest rows of each class, ascending, infinite where there are
        fewer. Exact inference needs no more.
    candidates : ndarray of shape (n_queries, n_candidates)
        Rows of the database, none twice for a query; `NO_ROW` where there are fewer.
    """

    table: NDArray
    candidates: NDArray


def find_nearest(
    queries: NDArray,
    query_labels: NDArray,
    database: NDArray,
    labels: NDArray,
    k: int,
    n_candidates: int,
    rng: np.random.Generator,
    *,
    excluded: NDArray | None = None,
    n_jobs: int | None = None,
) -> Nearest:
    """Return the nearest rows of each class, and rows to compare with while the maps change.

    One half of the candidates are the nearest of the query's class, a quarter the nearest of
    other classes, and a quarter are drawn from these: without them, rows that are far could come
    near unseen.

    Parameters
    ----------
    queries : ndarray of shape (n_queries, n_components)
        Coordinates of the queries.
    query_labels : ndarray of shape (n_queries,)
        Their classes, numbers from 0.
    database : ndarray of shape (n_rows, n_components)
        Coordinates of the database rows.
    labels : ndarray of shape (n_rows,)
        Their classes, each of which has rows.
    k : int
        How many rows of each class are in a table.
    n_candidates : int
        How many rows to find for each query.
    rng : Generator
        Draws rows.
    excluded : ndarray of shape (n_queries,) or None, default=None
        For each query the row that it is itself.
    n_jobs : int or None, default=None
        Workers of the search, as in joblib.

    Returns
    -------
    nearest : Nearest
        Tables and candidates.
    """
    n_classes = int(labels.max()) + 1
    n_own, n_drawn = n_candidates // 2, n_candidates // 4
    n_near = n_candidates - n_own - n_drawn
    depth = max(k, -(-n_near // (n_classes - 1)))
    distances = np.empty((len(queries), n_classes, depth))
    rows = np.empty(distances.shape, dtype=np.intp)
    candidates = np.full((len(queries), n_candidates), NO_ROW)
    for label in range(n_classes):
        members = np.flatnonzero(labels == label)
        found = _nearest_rows(queries, database, members, depth, excluded, n_jobs)
        distances[:, label], rows[:, label] = found
        asked = np.flatnonzero(query_labels == label)
        if not len(asked):
            continue
        itself = None if excluded is None else excluded[asked]
        own = _nearest_rows(queries[asked], database, members, n_own, itself, n_jobs)[1]
        drawn = _draw_rows(np.flatnonzero(labels != label), len(asked), n_drawn, rng)
        candidates[asked, :n_own] = own
        candidates[asked, n_own + n_near : n_own + n_near + drawn.shape[1]] = drawn
    table = distances[:, :, :k].copy()
    distances[np.arange(len(queries)), query_labels] = np.inf
    shape = len(queries), -1
    _, near = _smallest(distances.reshape(shape), rows.reshape(shape), n_near)
    candidates[:, n_own : n_own + n_near] = near
    drawn = candidates[:, n_own + n_near :]
    drawn[(drawn[:, :, None] == near[:, None]).any(axis=2)] = NO_ROW
    return Nearest(table, candidates)


def _draw_rows(rows, n_lines, n_drawn, rng):
    """Draw rows for each line, none twice: neighbours in a shuffled circle."""
    rows = rng.permutation(rows)
    places = rng.integers(len(rows), size=(n_lines, 1)) + np.arange(min(n_drawn, len(rows)))
    return rows[places % len(rows)]


def _nearest_rows(queries, database, rows, n_wanted, excluded, n_jobs):
    """Return the squared distances and the numbers of the nearest of some rows, ascending."""
    n_found = min(n_wanted + (excluded is not None), len(rows))
    search = NearestNeighbors(n_neighbors=n_found, n_jobs=n_jobs).fit(database[rows])
    distances, places = search.kneighbors(queries)
    distances, found = distances**2, rows[places]
    if excluded is not None:
        distances[found == excluded[:, None]] = np.inf
    missing = ((0, 0), (0, max(0, n_wanted - n_found)))
    distances = np.pad(distances, missing, constant_values=np.inf)
    found = np.pad(found, missing, constant_values=NO_ROW)
    return _smallest(distances, found, n_wanted)


def _smallest(distances, rows, n_wanted):
    """Return the smallest distances of each query and their rows, `NO_ROW` for infinite ones."""
    order = np.argsort(distances, axis=1, kind="stable")[:, :n_wanted]
    distances = np.take_along_axis(distances, order, axis=1)
    rows = np.take_along_axis(rows, order, axis=1)
    return distances, np.where(np.isfinite(distances), rows, NO_ROW)


def tabulate(distances: NDArray, labels: NDArray, n_classes: int, k: int) -> tuple:
    """Sort the candidates of each query into a table by class and distance.

    The squared distances are infinite where a candidate does not exist.

    Returns
    -------
    table : ndarray of shape (n_queries, n_classes, k)
        The k smallest distances of each class, ascending, infinite where there are fewer.
    columns : ndarray of shape (n_queries, n_classes, k)
        Their columns in `distances`; any where the entry of the table is infinite.
    """
    n_queries, n_candidates = distances.shape
    order = np.lexsort((distances, labels))
    labels = np.take_along_axis(labels, order, axis=1)
    place = np.arange(n_candidates)
    first = np.ones(labels.shape, dtype=bool)
    first[:, 1:] = labels[:, 1:] != labels[:, :-1]
    rank = place - np.maximum.accumulate(np.where(first, place, 0), axis=1)
    row, column = np.nonzero(rank < k)
    entry = row, labels[row, column], rank[row, column]
    table = np.full((n_queries, n_classes, k), np.inf)
    columns = np.zeros(table.shape, dtype=np.intp)
    columns[entry] = order[row, column]
    table[entry] = distances[row, order[row, column]]
    return table, columns
