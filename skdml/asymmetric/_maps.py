"""Two linear maps, one for queries and one for database rows: start, gradients, steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.covariance import ledoit_wolf
from sklearn.neighbors import NearestNeighbors

from .._optional import optional_import
from ..utils._fit import Adam
from ..utils.validation import check_named_array

# The mean squared distance of two rows at the start: the nearest are nearer than the costs, which
# are 1 by default, the others are not.
_MEAN_SQUARED_DISTANCE = 7.0
# Rounds of an alignment of queries with their nearest database rows.
_ALIGNMENTS = 10


@dataclass
class Pairs:
    """Queries and database rows whose squared distances, weighted, make up a loss.

    Attributes
    ----------
    query, row : ndarray of shape (n_pairs,)
        Positions among the queries and among the database rows of a batch.
    weight : ndarray of shape (n_pairs,)
        1 for members of the targeted set, -1 for members of the loss-augmented one, divided by
        the number of queries in the batch.
    """

    query: NDArray
    row: NDArray
    weight: NDArray


def norm_of_w(U: NDArray, V: NDArray) -> float:
    r"""Return the Frobenius norm of W = [U'U, -U'V; -V'U, V'V], which is that of UU' + VV'."""
    return float(np.linalg.norm(U @ U.T + V @ V.T))


def norm_gradients(U: NDArray, V: NDArray) -> tuple[NDArray, NDArray]:
    r"""Return the gradients of the norm of W by U and V, zero where all of it is zero.

    :math:`2 (UU^T + VV^T) U / \|W\|_F`, and likewise V. Equations 11 and 12 of the notes,
    :math:`2 UU^TU + 4 VV^TU`, are gradients of no norm of W, squared or not.
    """
    gram = U @ U.T + V @ V.T
    norm = np.linalg.norm(gram)
    gram = gram * (2 / norm) if norm else gram
    return gram @ U, gram @ V


def pair_gradients(
    U: NDArray, V: NDArray, queries: NDArray, database: NDArray, pairs: Pairs
) -> tuple[NDArray, NDArray]:
    """Return the gradients of the weighted sum of squared distances by U and V.

    Equations 9 and 10 of the notes, with the signs of a distance.
    """
    queries, database = queries[pairs.query], database[pairs.row]
    residuals = 2 * pairs.weight[:, None] * (queries @ U.T - database @ V.T)
    return residuals.T @ queries, -residuals.T @ database


class LinearMaps:
    """U and V, learned by Adam.

    Parameters
    ----------
    U, V : ndarray of shape (n_components, n_features)
        Where to start.
    symmetric : bool
        Whether U and V stay the same; they must be equal.
    """

    def __init__(self, U: NDArray, V: NDArray, symmetric: bool) -> None:
        self.symmetric = symmetric
        self._adam = Adam((U,) if symmetric else (U, V), eps=1e-12)

    @property
    def U(self) -> NDArray:
        """The map of queries."""
        return self._adam.parameters[0]

    @property
    def V(self) -> NDArray:
        """The map of database rows."""
        return self._adam.parameters[-1]

    def untied(self) -> LinearMaps:
        """Return two maps of their own that start where these are."""
        return LinearMaps(self.U, self.V, symmetric=False)

    def embed_queries(self, X: NDArray) -> NDArray:
        """Return the coordinates of queries."""
        return X @ self.U.T

    def embed_database(self, X: NDArray) -> NDArray:
        """Return the coordinates of database rows."""
        return X @ self.V.T

    def penalty(self) -> float:
        """Return the norm of W."""
        return norm_of_w(self.U, self.V)

    def step(
        self, queries: NDArray, database: NDArray, pairs: Pairs, penalty: float, lr: float
    ) -> None:
        """Go one step of Adam down the loss of the pairs plus `penalty` times the norm of W."""
        by_pairs = pair_gradients(self.U, self.V, queries, database, pairs)
        by_norm = norm_gradients(self.U, self.V)
        gradients = [a + penalty * b for a, b in zip(by_pairs, by_norm, strict=True)]
        if self.symmetric:
            gradients = [gradients[0] + gradients[1]]
        self._adam.step(gradients, lr)


def initial_map(init: str, X: NDArray, n_components: int) -> NDArray:
    """Return the map that both sides start from.

    Parameters
    ----------
    init : {"pca", "identity"}
        The principal axes of the rows, or their first features.
    X : ndarray of shape (n_rows, n_features)
        The database rows, centred.
    n_components : int
        Rows of the map.

    Returns
    -------
    V : ndarray of shape (n_components, n_features)
        Scaled to make distances comparable to costs.
    """
    if init == "identity":
        V = np.eye(int(n_components), X.shape[1])
    else:
        V = np.linalg.svd(X, full_matrices=False)[2][:n_components]
        largest = np.take_along_axis(V, np.abs(V).argmax(axis=1)[:, None], axis=1)
        V = V * np.where(largest < 0, -1.0, 1.0)
    mean = 2 * np.mean(np.sum((X @ V.T) ** 2, axis=1))
    return V * np.sqrt(_MEAN_SQUARED_DISTANCE / mean) if mean else V


def aligned_map(
    V: NDArray, database: NDArray, labels: NDArray, queries: NDArray, query_labels: NDArray, k: int
) -> NDArray:
    """Return a map of queries that regresses them on database rows of their classes.

    A query is drawn to the mean of its class first, then in turns to the mean of its k nearest
    rows of the class. The covariance of the queries is shrunk, by the rule of Ledoit and Wolf.

    Parameters
    ----------
    V : ndarray of shape (n_components, n_features)
        The map of database rows.
    database, labels : ndarray of shape (n_rows, n_features), ndarray of shape (n_rows,)
        The database rows, centred, and their classes.
    queries, query_labels : ndarray of shape (n_queries, n_features), ndarray of shape (n_queries,)
        The queries, centred, and their classes.
    k : int
        How many rows a query is drawn to.

    Returns
    -------
    U : ndarray of shape (n_components, n_features)
        The map of queries.
    """
    Z = database @ V.T
    classes = np.unique(query_labels)
    asked = [np.flatnonzero(query_labels == label) for label in classes]
    rows = [Z[labels == label] for label in classes]
    searches = [NearestNeighbors(n_neighbors=min(k, len(own))).fit(own) for own in rows]
    covariance = ledoit_wolf(queries, assume_centered=True)[0]
    regression = np.linalg.lstsq(covariance, queries.T / len(queries), rcond=None)[0]
    targets = np.empty((len(queries), len(V)))
    for numbers, own in zip(asked, rows, strict=True):
        targets[numbers] = own.mean(axis=0)
    for _ in range(_ALIGNMENTS):
        Z_queries = queries @ (regression @ targets)
        for numbers, own, search in zip(asked, rows, searches, strict=True):
            nearest = search.kneighbors(Z_queries[numbers], return_distance=False)
            targets[numbers] = own[nearest].mean(axis=1)
    return (regression @ targets).T


def given_maps(
    init: Any, n_components: int | None, n_features: int, symmetric: bool
) -> tuple[NDArray, NDArray]:
    """Return U and V from an array that a user gave as `init`."""
    init = check_named_array(init, "init", allow_nd=True, dtype=np.float64)
    rows = "n_components" if n_components is None else n_components
    wanted = f"({rows}, {n_features})" + ("" if symmetric else f" or (2, {rows}, {n_features})")
    both = np.stack([init, init]) if init.ndim == 2 else init
    fits = both.ndim == 3 and len(both) == 2 and both.shape[2] == n_features
    fits = fits and n_components in (None, both.shape[1])
    if not fits or (symmetric and init.ndim != 2):
        raise ValueError(f"init must be a name or an array of shape {wanted}, got {init.shape}.")
    return both[0], both[1]


def find_starts(
    init: Any, n_components: int | None, symmetric: bool, problem: Any, unit: float
) -> list[LinearMaps]:
    """Return the maps to start from, given rows that were divided by `unit`.

    A name gives one map for both sides and, where queries and database rows differ, aligned maps.
    """
    X, trained = problem.database, ~problem.held_out
    if not isinstance(init, str):
        U, V = given_maps(init, n_components, X.shape[1], symmetric)
        return [LinearMaps(U * unit, V * unit, symmetric)]
    most = min(X.shape) if init == "pca" else X.shape[1]
    if n_components is not None and n_components > most:
        raise ValueError(
            f"n_components={n_components} is more than init={init!r} has: X of shape {X.shape} "
            f"allows for {most}."
        )
    V = initial_map(init, X, n_components or most)
    starts = [LinearMaps(V, V, symmetric=True)]
    if not (symmetric or problem.same_rows):
        queries, labels = problem.queries[trained], problem.query_labels[trained]
        U = aligned_map(V, X, problem.labels, queries, labels, problem.n_neighbors)
        starts.append(LinearMaps(U, V, symmetric=False))
    return starts


def check_modules(query_module: Any, database_module: Any, symmetric: bool) -> bool:
    """Return whether modules take the place of the maps, and check that they fit together."""
    if query_module is None and database_module is None:
        return False
    torch = optional_import("torch", "query_module of AsymmetricMetricClassifier")
    for name, module in (("query_module", query_module), ("database_module", database_module)):
        if module is not None and not isinstance(module, torch.nn.Module):
            raise TypeError(
                f"{name} must be an instance of torch.nn.Module or None, got {module!r}."
            )
    if query_module is None:
        raise ValueError("database_module was given without query_module: pass both.")
    if symmetric != (database_module is None):
        raise ValueError(
            "symmetric=True uses query_module for both sides: leave database_module out."
            if symmetric
            else "query_module was given without database_module: pass both, or symmetric=True to "
            "use one module for both sides."
        )
    return True
