"""The database rows that a query is compared with, and their tables of nearest rows by class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

# In the place of a candidate that does not exist.
NO_ROW = -1


def find_candidates(
    queries: NDArray,
    query_labels: NDArray,
    database: NDArray,
    labels: NDArray,
    n_candidates: int,
    rng: np.random.Generator,
    *,
    same_rows: bool,
    n_jobs: int | None = None,
) -> NDArray:
    """Return database rows to compare each query with.

    One half are the nearest of its class, a quarter the nearest of other classes, and a quarter
    are drawn from other classes: without these, rows that are far could come near unseen.

    Parameters
    ----------
    queries : ndarray of shape (n_queries, n_components)
        Coordinates of the queries.
    query_labels : ndarray of shape (n_queries,)
        Their classes, numbers from 0.
    database : ndarray of shape (n_rows, n_components)
        Coordinates of the database rows.
    labels : ndarray of shape (n_rows,)
        Their classes.
    n_candidates : int
        How many rows to find for each query.
    rng : Generator
        Draws rows.
    same_rows : bool
        Whether the queries are the database rows themselves: none is its own candidate.
    n_jobs : int or None, default=None
        Workers of the search, as in joblib.

    Returns
    -------
    candidates : ndarray of shape (n_queries, n_candidates)
        Rows of the database, none twice for a query; `NO_ROW` where there are fewer.
    """
    found = np.full((len(queries), n_candidates), NO_ROW)
    n_own, n_drawn = n_candidates // 2, n_candidates // 4
    n_near = n_candidates - n_own - n_drawn
    for label in np.unique(query_labels):
        asked = np.flatnonzero(query_labels == label)
        own, others = np.flatnonzero(labels == label), np.flatnonzero(labels != label)
        rows = _nearest_rows(queries[asked], database, own, n_own + same_rows, n_jobs)
        if same_rows:
            rows = _without(rows, asked)
        found[asked, : rows.shape[1]] = rows
        near = _nearest_rows(queries[asked], database, others, n_near, n_jobs)
        found[asked, n_own : n_own + near.shape[1]] = near
        drawn = _draw_rows(others, len(asked), n_drawn, rng)
        again = (drawn[:, :, None] == near[:, None]).any(axis=2)
        found[asked, n_own + n_near : n_own + n_near + drawn.shape[1]] = np.where(
            again, NO_ROW, drawn
        )
    return found


def _draw_rows(rows, n_lines, n_drawn, rng):
    """Draw rows for each line, none twice: neighbours in a shuffled circle."""
    rows = rng.permutation(rows)
    places = rng.integers(len(rows), size=(n_lines, 1)) + np.arange(min(n_drawn, len(rows)))
    return rows[places % len(rows)]


def _nearest_rows(queries, database, rows, n_wanted, n_jobs):
    search = NearestNeighbors(n_neighbors=min(n_wanted, len(rows)), n_jobs=n_jobs)
    return rows[search.fit(database[rows]).kneighbors(queries, return_distance=False)]


def _without(rows, excluded):
    """Take one entry from each line: the excluded row, or the last if that is not there."""
    place = rows == excluded[:, None]
    place[~place.any(axis=1), -1] = True  # as many equal rows are nearer
    return rows[~place].reshape(len(rows), -1)


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
