"""A metric of rows as point clouds, by optimal transport, for search and neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics.pairwise import euclidean_distances

from ..utils.validation import check_named_array, check_scale
from ._sinkhorn import check_cloud, check_transport, choose_eta, cost_matrices, make_divergence

# Plans exact enough for distances of three digits.
_TOL, _MAX_ITER = 1e-4, 500
# Random pairs for the scale of the costs.
_SAMPLED_PAIRS = 500


@dataclass(frozen=True)
class CloudMetric:
    r"""The Wasserstein distance of rows that are clouds of points.

    The p-th root of the Sinkhorn divergence, or of the exact transport cost. Points are multiplied
    by the square root of their number. So the exact distance of two rows is at most the Euclidean
    one, which it is where every point stays in its place.

    The object is a callable of two rows, so it can be given to
    ``KNeighborsClassifier(metric=...)``. As `metric` of the measures in :mod:`skdml.metrics` it
    orders the nearest rows only; see `pairwise`.

    Parameters
    ----------
    cloud : (int, int)
        Points, and columns of each, that a row is cut into.
    eta : float, default=0.05
        Weight of the entropy, in the units of the costs between points.
    p : {1, 2}, default=2
        Cost of moving a unit of weight: its distance, or its squared distance.
    solver : {"sinkhorn", "exact"}, default="sinkhorn"
        "exact" has no entropy.
    n_candidates : int or None, default=20
        The rows, nearest by Euclidean distance, to which `pairwise` computes the transport; a
        query that is one of the rows counts, too. None is all.

    Examples
    --------
    >>> from skdml.transport import CloudMetric
    >>> metric = CloudMetric((2, 1), solver="exact")
    >>> metric([0.0, 1.0], [1.0, 0.0]), metric([0.0, 1.0], [3.0, 5.0])
    (0.0, 5.0)
    """

    cloud: tuple[int, int]
    eta: float = 0.05
    p: int = 2
    solver: str = "sinkhorn"
    n_candidates: int | None = 20

    def __post_init__(self) -> None:
        check_transport(self.p, self.eta, self.solver, "eta")
        n = self.n_candidates
        if n is not None and not (isinstance(n, Integral) and n >= 1):
            raise ValueError(
                f"n_candidates must be a number of rows, at least 1, or None for all, got {n!r}."
            )

    def __call__(self, u: ArrayLike, v: ArrayLike) -> float:
        """Return the distance of two rows."""
        return float(self.pair_distance(np.array([u]), np.array([v]))[0])

    def pair_distance(self, A: ArrayLike, B: ArrayLike) -> NDArray[np.float64]:
        """Return the distance of each row of A to the row of B beside it.

        Parameters
        ----------
        A, B : array-like of shape (n_pairs, n_features)
            The rows.

        Returns
        -------
        distances : ndarray of shape (n_pairs,)
            At least 0.
        """
        A, B = self._check(A, "A"), self._check(B, "B")
        if len(A) != len(B):
            raise ValueError(f"A and B must have as many rows, got {len(A)} and {len(B)}.")
        rows = np.concatenate([A, B])
        first = np.arange(len(A))
        return self._distances(rows, first, first + len(A))

    def pairwise(self, X: ArrayLike, Y: ArrayLike) -> NDArray[np.float64]:
        """Return distances of all rows of X to all rows of Y, exact for the nearest ones.

        For each row of X, transport is computed to the `n_candidates` rows of Y that are nearest
        by Euclidean distance. The others come behind them, in the order of their Euclidean
        distance.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            The queries.
        Y : array-like of shape (n_others, n_features)
            The rows to search.

        Returns
        -------
        distances : ndarray of shape (n_rows, n_others)
            Those of transport, and for others than the candidates larger numbers.
        """
        X, Y = self._check(X, "X"), self._check(Y, "Y")
        n_near = len(Y) if self.n_candidates is None else min(self.n_candidates, len(Y))
        distances = euclidean_distances(X, Y)
        near = np.argpartition(distances, n_near - 1, axis=1)[:, :n_near]
        used, place = np.unique(near, return_inverse=True)
        first = np.repeat(np.arange(len(X)), n_near)
        found = self._distances(np.concatenate([X, Y[used]]), first, len(X) + place.ravel())
        found = found.reshape(near.shape)
        distances += found.max(axis=1, keepdims=True)
        np.put_along_axis(distances, near, found, axis=1)
        return distances

    def _check(self, rows, name):
        rows = check_named_array(rows, name, dtype=np.float64)
        check_cloud(self.cloud, rows.shape[1], name)
        check_scale(rows, name)
        return rows

    def _distances(self, rows, first, second):
        clouds = np.sqrt(self.cloud[0]) * rows.reshape(-1, *self.cloud)
        eta = None if self.solver == "exact" else self.eta
        divergence = make_divergence(clouds, p=self.p, eta=eta, tol=_TOL, max_iter=_MAX_ITER)
        values = divergence(np.stack([first, second]))
        values[(rows[first] == rows[second]).all(axis=1)] = 0  # to the last digit
        return np.maximum(values, 0) ** (1 / self.p)


def metric_of_rows(
    rows: NDArray, cloud: tuple[int, int], *, reg: float = 0.05, seed: int = 0, **options: Any
) -> CloudMetric:
    """Return the metric whose entropy is relative to the costs between some rows.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        The rows.
    cloud : (int, int)
        Points, and columns of each.
    reg : float
        The entropy in units of the median cost between points of two rows.
    seed : int
        Draws pairs of rows.
    **options
        `p` and `solver` of `CloudMetric`.

    Returns
    -------
    metric : CloudMetric
        The metric.
    """
    pairs = np.random.default_rng(seed).integers(len(rows), size=(2, _SAMPLED_PAIRS))
    clouds = np.sqrt(cloud[0]) * rows.reshape(-1, *cloud).astype(np.float64)
    costs = cost_matrices(clouds[pairs[0]], clouds[pairs[1]], options.get("p", 2))
    return CloudMetric(cloud, choose_eta(costs, reg), **options)
