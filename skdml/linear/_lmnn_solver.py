"""LMNN: the loss of target neighbours and impostors, its gradient, and the training.

Target neighbours are fixed. Impostors are found in blocks of rows and kept in a list, which is
longer than needed, so that it serves several steps. A sum of outer products of differences of
rows is a Laplacian between two products with the rows: no triplet is visited alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize
from sklearn.metrics.pairwise import euclidean_distances

from ..utils._fit import Progress, record
from ..utils._neighbors import near_rows

# Distances in a block, and impostors in a list.
_BLOCK_SIZE = 2**22
_MOST_IMPOSTORS = 2**24
# Gathered numbers at a time.
_GATHERED = 2**20
# Rows whose losses choose the scale of the start.
_SCALE_ROWS = 100
# Steps between two searches for impostors: short ones first, as the metric changes most then.
_STEPS = (2, 3, 5, 10)
# Impostors are listed up to this multiple of the radius within which they count.
_SLACK = 1.2


@dataclass(frozen=True)
class Neighbors:
    """Rows, their classes and target neighbours.

    Attributes
    ----------
    rows : ndarray of shape (n_rows, n_features)
        The rows.
    codes : ndarray of shape (n_rows,)
        Their classes, numbers from 0.
    targets : ndarray of shape (n_rows, n_neighbors)
        Near rows of the same class, as row numbers; -1 where there are fewer.
    pull : float
        The share of the pull term, beside ``1 - pull`` of the push term.
    weights : ndarray of shape (n_rows,)
        Of the rows.
    """

    rows: NDArray[np.float64]
    codes: NDArray[np.int64]
    targets: NDArray[np.int64]
    pull: float
    weights: NDArray[np.float64]


def find_neighbors(
    rows: NDArray,
    codes: NDArray,
    n_neighbors: int,
    pull: float = 0.5,
    L: NDArray | None = None,
    weights: NDArray | None = None,
) -> Neighbors:
    """Find the target neighbours of all rows: the nearest ones of the same class, under a map."""
    Z = rows if L is None else rows @ L.T
    targets, _ = near_rows(Z, codes, np.arange(len(rows)), n_neighbors)
    weights = np.ones(len(rows)) if weights is None else weights
    return Neighbors(rows, codes, targets, pull, weights)


def target_distances(Z: NDArray, targets: NDArray) -> NDArray[np.float64]:
    """Return squared distances to target neighbours, -inf where there is none."""
    squared = np.empty(targets.shape)
    for column, others in enumerate(targets.T):
        squared[:, column] = np.sum((Z - Z[others]) ** 2, axis=1)
    squared[targets < 0] = -np.inf
    return squared


def find_impostors(Z: NDArray, codes: NDArray, radii: NDArray) -> tuple[NDArray, NDArray]:
    """Find the rows of other classes within a squared radius of each row.

    Parameters
    ----------
    Z : ndarray of shape (n_rows, n_components)
        Rows under the metric.
    codes : ndarray of shape (n_rows,)
        Their classes.
    radii : ndarray of shape (n_rows,)
        Squared distances.

    Returns
    -------
    rows, impostors : ndarray of shape (n_found,)
        Row numbers, sorted by both. Of very many, the nearest of each row are kept.
    """
    n_rows = len(Z)
    most = max(1, _MOST_IMPOSTORS // n_rows)
    found = []
    step = max(1, _BLOCK_SIZE // n_rows)
    for start in range(0, n_rows, step):
        cut = slice(start, start + step)
        distances = euclidean_distances(Z[cut], Z, squared=True)
        is_near = distances < radii[cut, None]
        is_near &= codes[cut, None] != codes
        if is_near.shape[1] > most and is_near.sum(axis=1).max() > most:
            distances[~is_near] = np.inf
            limits = np.partition(distances, most - 1, axis=1)[:, most - 1]
            is_near &= distances <= limits[:, None]
        rows, impostors = np.nonzero(is_near)
        found.append((rows + start, impostors))
    rows, impostors = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return rows, impostors


class Triplets:
    """The loss over a list of impostors.

    Parameters
    ----------
    problem : Neighbors
        Rows and their target neighbours.
    rows, impostors : ndarray of shape (n_listed,)
        As `find_impostors` returns them.
    """

    def __init__(self, problem: Neighbors, rows: NDArray, impostors: NDArray) -> None:
        self.problem = problem
        self.rows, self.impostors = rows, impostors

    def joined(self, rows: NDArray, impostors: NDArray) -> Triplets:
        """Return the loss over this list and another."""
        n_rows = len(self.problem.rows)
        keys = np.union1d(self.rows * n_rows + self.impostors, rows * n_rows + impostors)
        return Triplets(self.problem, *np.divmod(keys, n_rows))

    def loss(self, L: NDArray) -> tuple[float, NDArray[np.float64]]:
        r"""Return the loss of a map and its gradient.

        .. math:: \mu \sum_{ij} w_i d_{ij} + (1 - \mu) \sum_{ijl} w_i w_l [1 + d_{ij} - d_{il}]_+

        Parameters
        ----------
        L : ndarray of shape (n_components, n_features)
            The map.

        Returns
        -------
        loss : float
            With squared distances d of rows i, their targets j and their impostors l, and the
            weights w of rows.
        gradient : ndarray of shape (n_components, n_features)
            By L.
        """
        problem, n_rows = self.problem, len(self.problem.rows)
        Z = problem.rows @ L.T
        pull = target_distances(Z, problem.targets)
        known = problem.targets >= 0
        distances = self._distances(Z)
        push, counts = 0.0, np.zeros(len(distances))
        both = problem.weights[self.rows] * problem.weights[self.impostors]
        weights = np.where(known, problem.pull * problem.weights[:, None], 0.0)
        for column in range(pull.shape[1]):
            hinge = np.maximum(1 + pull[self.rows, column] - distances, 0)
            active = both * (hinge > 0)
            push += float(hinge @ both)
            counts += active
            weights[:, column] += (1 - problem.pull) * np.bincount(self.rows, active, n_rows)
        near = sparse.csr_array(
            (weights[known], problem.targets[known], np.append(0, known.sum(axis=1).cumsum())),
            shape=(n_rows, n_rows),
        )
        used = np.flatnonzero(counts)
        starts = np.searchsorted(self.rows[used], np.arange(n_rows + 1))
        far = sparse.csr_array(
            ((problem.pull - 1) * counts[used], self.impostors[used], starts),
            shape=(n_rows, n_rows),
        )
        pull[~known] = 0
        loss = problem.pull * float(problem.weights @ pull.sum(axis=1)) + (1 - problem.pull) * push
        forces = _laplacian_product(near, Z) + _laplacian_product(far, Z)
        return loss, 2 * forces.T @ problem.rows

    def _distances(self, Z):
        squared = np.sum(Z**2, axis=1)
        products = np.empty(len(self.rows))
        step = max(1, _GATHERED // Z.shape[1])
        for start in range(0, len(products), step):
            cut = slice(start, start + step)
            np.einsum("ij,ij->i", Z[self.rows[cut]], Z[self.impostors[cut]], out=products[cut])
        return squared[self.rows] + squared[self.impostors] - 2 * products


def _laplacian_product(W, Z):
    """Return (D - W - W') Z, D the sums of the rows and columns of W."""
    degrees = W.sum(axis=1) + W.sum(axis=0)
    return degrees[:, None] * Z - W @ Z - W.T @ Z


def list_triplets(problem: Neighbors, L: NDArray, slack: float = 1.0) -> Triplets:
    """List the impostors under a map; with `slack` above 1, those that are nearly so."""
    Z = problem.rows @ L.T
    radii = slack * (1 + target_distances(Z, problem.targets).max(axis=1))
    return Triplets(problem, *find_impostors(Z, problem.codes, radii))


def exact_loss(problem: Neighbors, L: NDArray) -> float:
    """Return the loss over all impostors."""
    return list_triplets(problem, L).loss(L)[0]


def scaled_start(problem: Neighbors, L: NDArray, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the multiple of a map with the least loss, by the losses of some rows."""
    Z = problem.rows @ L.T
    chosen = rng.permutation(len(Z))[:_SCALE_ROWS]
    near = target_distances(Z, problem.targets)[chosen]
    far = euclidean_distances(Z[chosen], Z, squared=True)
    far[problem.codes[chosen, None] == problem.codes] = np.inf
    known = np.isfinite(near)
    own = problem.weights[chosen]
    unit = np.mean(np.minimum(far.min(axis=1), 1e300)) or 1.0
    far /= unit
    near[known] /= unit

    def loss(scale):
        total = problem.pull * scale * (own @ np.where(known, near, 0).sum(axis=1))
        for column in near.T:
            hinge = 1 + scale * (np.where(np.isfinite(column), column, -1e300)[:, None] - far)
            total += (1 - problem.pull) * (own @ np.maximum(hinge, 0) @ problem.weights)
        return total

    scales = 2.0 ** np.arange(-4, 9)
    return L * np.sqrt(min(scales, key=loss) / unit)


@dataclass
class Training:
    """The map of a training, and how it came.

    Attributes
    ----------
    map : ndarray of shape (n_components, n_features)
        That of the last step.
    history : dict of str to list
        At the start and after each search for impostors: "objective" and "seconds".
    n_iter : int
        Steps.
    converged : bool
        Whether the loss has stopped falling.
    """

    map: NDArray[np.float64]
    history: dict[str, list[float]]
    n_iter: int = 0
    converged: bool = False


def train(problem: Neighbors, start: NDArray, max_iter: int, tol: float) -> Training:
    """Minimise the loss by L-BFGS; the exact loss never rises from a search to the next.

    Parameters
    ----------
    problem : Neighbors
        Rows and their target neighbours.
    start : ndarray of shape (n_components, n_features)
        The map to start from.
    max_iter : int
        Steps at most.
    tol : float
        Stop when the loss falls by less than this share of it in a step, on average between two
        searches.

    Returns
    -------
    training : Training
        The map and its history.
    """
    began, shape = time.perf_counter(), start.shape
    triplets = list_triplets(problem, start, _SLACK)
    training = Training(start, {})
    loss = triplets.loss(start)[0]
    record(training.history, began, objective=loss)
    n_searches = 0
    while training.n_iter < max_iter and not training.converged:
        n_steps = min(_STEPS[min(n_searches, len(_STEPS) - 1)], max_iter - training.n_iter)
        found = minimize(
            lambda flat, listed: _flat_loss(listed, flat, shape),
            training.map.ravel(),
            args=(triplets,),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": n_steps, "maxcor": 20, "ftol": 0, "gtol": 0},
        )
        L = found.x.reshape(shape)
        n_searches += 1
        training.n_iter += max(1, found.nit)
        fresh = list_triplets(problem, L, _SLACK)
        fresh_loss = fresh.loss(L)[0]
        gain = loss - fresh_loss
        training.converged = 0 <= gain <= tol * n_steps * abs(loss)
        if gain < 0:  # impostors came that were not listed: once more, with them
            triplets = triplets.joined(fresh.rows, fresh.impostors)
        else:
            training.map, loss, triplets = L, fresh_loss, fresh
        record(training.history, began, objective=loss)
    return training


def _flat_loss(triplets, flat, shape):
    loss, gradient = triplets.loss(flat.reshape(shape))
    return loss, gradient.ravel()


@dataclass
class Passes:
    """Passes of a training, each with the targets under the map of the one before.

    Attributes
    ----------
    maps : list of ndarray of shape (n_components, n_features)
        The start, scaled, and the map of each pass.
    history : dict of str to list
        Those of the passes, one after the other, with the number of the "pass" from 1.
    n_iter : int
        Steps.
    """

    maps: list[NDArray[np.float64]]
    history: dict[str, list[float]]
    n_iter: int = 0


def train_passes(
    rows: NDArray,
    codes: NDArray,
    start: NDArray,
    n_passes: int,
    *,
    n_neighbors: int = 3,
    pull: float = 0.5,
    max_iter: int = 100,
    tol: float = 1e-3,
    seed: int = 0,
    weights: NDArray | None = None,
    progress: Progress | None = None,
    attributes: Callable[[NDArray], dict[str, Any]] = lambda L: {},
) -> Passes:
    """Find target neighbours and train, in turns.

    Parameters
    ----------
    rows, codes : ndarray of shape (n_rows, n_features), ndarray of shape (n_rows,)
        The rows and their classes.
    start : ndarray of shape (n_components, n_features)
        The map to start from; it is scaled to the margin.
    n_passes : int
        How often.
    n_neighbors, pull, max_iter, tol :
        See `find_neighbors` and `train`.
    seed : int, default=0
        Draws the rows that choose the scale of the start.
    weights : ndarray of shape (n_rows,), default=None
        Of the rows; None is 1 for each.
    progress : Progress, default=None
        Where passes are reported.
    attributes : callable
        From a map to the fitted attributes, for `progress`.

    Returns
    -------
    passes : Passes
        Maps and history; fewer maps where a callback asks to stop.
    """
    progress = progress or Progress()
    problem = find_neighbors(rows, codes, n_neighbors, pull, weights=weights)
    found = Passes([scaled_start(problem, start, np.random.default_rng(seed))], {})
    for number in range(1, n_passes + 1):
        progress.begin()
        if number > 1:
            problem = find_neighbors(rows, codes, n_neighbors, pull, found.maps[-1], weights)
        training = train(problem, found.maps[-1], max_iter, tol)
        for name, values in training.history.items():
            found.history.setdefault(name, []).extend(values)
        n_entries = len(training.history["objective"])
        found.history.setdefault("pass", []).extend([number] * n_entries)
        found.maps.append(training.map)
        found.n_iter += training.n_iter
        loss = training.history["objective"][-1]
        if progress.step(lambda: attributes(found.maps[-1]), objective=loss):
            break
    return found
