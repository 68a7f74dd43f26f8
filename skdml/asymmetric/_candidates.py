"""The database rows that a query is compared with, and their tables of nearest rows by class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

# In the place of a candidate that does not exist.
NO_ROW = -1


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
        distances[:, label], rows[:, label] = _nearest_rows(
            queries, database, members, depth, excluded, n_jobs
        )
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
    near = _smallest(distances, rows, n_near)
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
    order = np.argsort(distances, axis=1, kind="stable")[:, :n_wanted]
    distances = np.take_along_axis(distances, order, axis=1)
    found = np.take_along_axis(found, order, axis=1)
    return distances, np.where(np.isfinite(distances), found, NO_ROW)


def _smallest(distances, rows, n_wanted):
    """Return the rows of the smallest distances of each query, `NO_ROW` for infinite ones."""
    distances, rows = distances.reshape(len(rows), -1), rows.reshape(len(rows), -1)
    order = np.argsort(distances, axis=1, kind="stable")[:, :n_wanted]
    finite = np.isfinite(np.take_along_axis(distances, order, axis=1))
    return np.where(finite, np.take_along_axis(rows, order, axis=1), NO_ROW)


def tabulate(distances: NDArray, labels: NDArray, n_classes: int, k: int) -> tuple:
    """Sort the candidates of each query into a table by class and distance.

    Parameters
    ----------
    distances : ndarray of shape (n_queries, n_candidates)
        Squared distances, infinite where a candidate does not exist.
    labels : ndarray of shape (n_queries, n_candidates)
        Classes of the candidates.
    n_classes, k : int
        The size of a table.

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
