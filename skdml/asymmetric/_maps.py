"""Two linear maps, one for queries and one for database rows, with their gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..utils._adam import Adam


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
    def weights(self) -> tuple[NDArray, ...]:
        """U and V, or U alone if they are the same."""
        return tuple(self._adam.parameters)

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
        gradients = [
            by_pairs + penalty * by_norm
            for by_pairs, by_norm in zip(
                pair_gradients(self.U, self.V, queries, database, pairs),
                norm_gradients(self.U, self.V),
                strict=True,
            )
        ]
        if self.symmetric:
            gradients = [gradients[0] + gradients[1]]
        self._adam.step(gradients, lr)
