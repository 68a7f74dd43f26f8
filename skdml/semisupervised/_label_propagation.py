"""Graphs of nearest neighbours, and label propagation along them."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import bicgstab, splu
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import normalize

from ..metrics._neighbors import nearest_others

# An edge of two unit vectors weighs their cosine to this power.
_COSINE_POWER = 3
# Powers of class distributions that are tried on held-out labels; that without any held-out label;
# and the smallest probability of a class that counts.
_POWERS = 2.0 ** np.arange(-1, 6.5, 0.5)
DEFAULT_POWER = 4.0
_MIN_PROBABILITY = 1e-3
# Values of a block of differences, 16 MB.
_BLOCK = 2**22
# Labelled nodes that are held out, at most, and the largest error of propagated classes, beside a
# start of 1: a node has one part in some thousands of it. What a node gives to itself is larger,
# and conjugate gradients have it to the square of their error.
_PROBES, _CLASS_TOL, _OWN_TOL = 50, 1e-8, 1e-4
# The largest damping at which single precision is enough for the latter.
_MOST_SINGLE = 0.99
# Conjugate gradients take as many steps as the root of 1 / (1 - damping), some 100 at 0.999.
_MAX_STEPS = 1000
# A residual of rounding alone, and the error that is worth a warning, beside the largest value.
_ROUNDING = 1e-14
_MAX_ERROR = 1e-4


@dataclass
class Graph:
    """A graph of nearest neighbours.

    Parameters
    ----------
    neighbors : ndarray of shape (n_nodes, n_neighbors)
        The neighbours of each node, nearest first, without itself.
    flow : sparse array of shape (n_nodes, n_nodes)
        The matrix of one step of propagation; its spectral radius is at most 1.
    """

    neighbors: NDArray[np.intp]
    flow: sparse.csr_array


def make_graph(
    features: NDArray, n_neighbors: int, kind: str = "symmetric", unit_length: bool = True
) -> Graph:
    """Return the graph of nearest neighbours.

    Parameters
    ----------
    features : ndarray of shape (n_nodes, n_features)
        The rows.
    n_neighbors : int
        k, neighbours of each.
    kind : {"symmetric", "directed"}, default="symmetric"
        "symmetric": an edge where either is a neighbour of the other, heavier the more alike they
        are, W + W', scaled by the degrees of both ends. "directed": 1 / k on the neighbours, as in
        the paper.
    unit_length : bool, default=True
        Whether rows are scaled to unit length, and an edge weighs the cube of the cosine. Else
        distances are Euclidean, and an edge weighs a Gaussian of the distance whose width is that
        of the neighbourhoods of its ends.

    Returns
    -------
    graph : Graph
        Neighbours and propagation matrix.
    """
    n_nodes = len(features)
    features = np.ascontiguousarray(normalize(features) if unit_length else features, np.float32)
    neighbors = nearest_others(features, n_neighbors)
    distances = measure_neighbors(features, neighbors)
    starts = np.arange(0, n_nodes * n_neighbors + 1, n_neighbors)
    if kind == "directed":
        weights = np.full(neighbors.shape, 1 / n_neighbors)
    elif unit_length:
        weights = np.maximum(1 - distances**2 / 2, 0) ** _COSINE_POWER
    else:
        widths = distances.mean(axis=1)
        products = widths[:, None] * widths[neighbors]
        weights = np.exp(-(distances**2) / np.where(products > 0, products, 1))
    flow = sparse.csr_array((weights.ravel(), neighbors.ravel(), starts), (n_nodes, n_nodes))
    if kind == "symmetric":
        edges = (flow + flow.T).tocoo()
        degrees = edges.sum(axis=1)
        scale = 1 / np.sqrt(np.where(degrees > 0, degrees, 1))
        # In this order the product is symmetric to the last bit.
        edges.data *= scale[edges.row] * scale[edges.col]
        flow = edges.tocsr()
    return Graph(neighbors, flow)


def measure_neighbors(rows: NDArray, neighbors: NDArray[np.intp]) -> NDArray:
    """Return the Euclidean distances of rows to their neighbours, in double precision."""
    distances = np.empty(neighbors.shape)
    step = max(1, _BLOCK // max(1, neighbors.shape[1] * rows.shape[1]))
    for first in range(0, len(rows), step):
        block = slice(first, first + step)
        differences = rows[neighbors[block]] - rows[block, None]
        squares = np.einsum("ijk,ijk->ij", differences, differences, dtype=float)
        distances[block] = np.sqrt(squares)
    return distances


def propagate(
    flow: sparse.csr_array, start: NDArray, damping: float, tol: float = 1e-10, dtype: type = float
) -> NDArray:
    r"""Propagate values along a graph.

    .. math:: F = (1 - \gamma) (I - \gamma Q)^{-1} F_0

    by conjugate gradients where Q is symmetric, otherwise by BiCGSTAB. Where these do not converge,
    by a sparse factorisation.

    Parameters
    ----------
    flow : sparse array of shape (n_nodes, n_nodes)
        Q.
    start : ndarray of shape (n_nodes, n_columns)
        :math:`F_0`.
    damping : float
        :math:`\gamma`, between 0 and 1.
    tol : float, default=1e-10
        The largest error of an entry, relative to the largest of `start`.
    dtype : type, default=float
        Of the computation.

    Returns
    -------
    values : ndarray of shape (n_nodes, n_columns)
        F.
    """
    flow = flow.astype(dtype, copy=False)
    target = (1 - damping) * np.asarray(start, dtype=dtype)
    is_symmetric = abs(flow - flow.T).max() == 0
    solve = _conjugate_gradients if is_symmetric else _bicgstab
    with np.errstate(over="ignore", invalid="ignore"):  # a breakdown shows in the residual
        # The solver updates its residual, which drifts from the true one: hence a tenth of tol.
        values = solve(flow, target, damping, tol / 10)
        residual, limit = _residual(flow, target, values, damping, tol)
    if not residual <= limit:
        system = sparse.eye_array(len(target), format="csc") - damping * flow.tocsc()
        values = splu(system).solve(target)
        residual, _ = _residual(flow, target, values, damping, tol)
    # The inverse has no eigenvalue, or no sum of a row, above 1 / (1 - g).
    error = residual / (1 - damping)
    admitted = _MAX_ERROR * np.abs(values).max(initial=0), tol * np.abs(start).max(initial=0)
    if error > max(admitted):
        warnings.warn(
            f"label propagation along a graph of {len(target)} samples is exact to {error:.2g} "
            f"only (residual {residual:.2g}), after {solve.__name__[1:]} of at most {_MAX_STEPS} "
            f"steps: choose a smaller propagation than {damping}.",
            ConvergenceWarning,
        )
    return values


def _residual(flow, target, values, damping, tol):
    """Return the largest entry of the residual, and its limit: by `tol`, or by rounding."""
    residual = np.abs(target - values + damping * (flow @ values)).max(initial=0)
    rounding = _ROUNDING * np.abs(values).max(initial=0)
    return residual, max(tol * np.abs(target).max(initial=0), rounding)


def _bicgstab(flow, target, damping, tol):
    """Solve (I - g Q) F = target, column by column."""
    system = sparse.eye_array(len(target), format="csr") - damping * flow
    bound = tol * np.abs(target).max(initial=0)
    options = {"rtol": 0, "atol": bound, "maxiter": _MAX_STEPS}
    return np.stack([bicgstab(system, column, **options)[0] for column in target.T], axis=1)


def _conjugate_gradients(flow, target, damping, tol):
    """Solve (I - g Q) F = target, all columns at once, each with its own steps."""
    values = np.zeros_like(target)
    residual = target.copy()
    direction = residual.copy()
    squares = np.einsum("ij,ij->j", residual, residual)
    # The error is at most the residual divided by the smallest eigenvalue, which is >= 1 - g.
    bound = (tol * np.abs(target).max(initial=0)) ** 2
    for _ in range(_MAX_STEPS):
        if not (squares > bound).any():
            break
        moved = direction - damping * (flow @ direction)
        curvature = np.einsum("ij,ij->j", direction, moved)
        step = np.divide(squares, curvature, out=np.zeros_like(squares), where=squares > bound)
        values += step * direction
        residual -= step * moved
        before, squares = squares, np.einsum("ij,ij->j", residual, residual)
        ratio = np.divide(squares, before, out=np.zeros_like(squares), where=before > bound)
        direction = residual + ratio * direction
    return values


class ClassMass(NamedTuple):
    """Propagated labels of the nodes of a graph.

    Parameters
    ----------
    mass : ndarray of shape (n_nodes, n_classes)
        Rows sum to 1, or are 0 where no label arrived.
    probes : ndarray of shape (n_probes,)
        Some labelled nodes.
    held_out : ndarray of shape (n_probes, n_classes)
        Their rows of `mass`, as if they had no label.
    """

    mass: NDArray
    probes: NDArray
    held_out: NDArray


def propagate_classes(
    flow: sparse.csr_array,
    codes: NDArray,
    n_classes: int,
    damping: float,
    n_probes: int = _PROBES,
    weights: NDArray | None = None,
) -> ClassMass:
    """Propagate the labels of nodes along a graph.

    Parameters
    ----------
    flow : sparse array of shape (n_nodes, n_nodes)
        The matrix of propagation.
    codes : ndarray of shape (n_nodes,)
        The number of a node's class; -1 where it is not known.
    n_classes : int
        How many classes there are.
    damping : float
        The share that a node takes from its neighbours in each step.
    n_probes : int, default=50
        Labelled nodes that are held out, at most, to calibrate propagated classes.
    weights : ndarray of shape (n_nodes,), default=None
        What the label of each node counts; None is 1 for each.

    Returns
    -------
    mass : ClassMass
        Before rows are scaled, each class gets as much in all as its share of the labels,
        so that a class with well-connected labels does not take all. As propagation is linear, a
        node's own label is held out by subtracting what it gives to itself.
    """
    labelled = np.flatnonzero(codes >= 0)
    start = np.zeros((len(codes), n_classes))
    start[labelled, codes[labelled]] = 1 if weights is None else weights[labelled]
    shares = start.sum(axis=0)
    others = labelled[
        np.bincount(codes[labelled])[codes[labelled]] > 1
    ]  # held out, some of the class are left
    places = np.linspace(0, len(others) - 1, min(len(others), n_probes)).astype(int)
    probes = others[places]
    sources = np.zeros((len(codes), len(probes)))
    sources[probes, np.arange(len(probes))] = 1
    mass = np.maximum(propagate(flow, start, damping, _CLASS_TOL), 0)
    own, held_out = np.zeros(len(probes)), mass[probes]
    if len(probes):
        dtype = np.float32 if damping <= _MOST_SINGLE else float
        own = propagate(flow, sources, damping, _OWN_TOL, dtype)[probes, np.arange(len(probes))]
    own = own if weights is None else weights[probes] * own
    held_out[np.arange(len(probes)), codes[probes]] -= own
    totals = mass.sum(axis=0)
    scale = shares / np.where(totals > 0, totals, 1)
    held_out = np.maximum(held_out, 0)
    return ClassMass(normalize_rows(mass * scale), probes, normalize_rows(held_out * scale))


def class_mass(
    flow: sparse.csr_array,
    codes: NDArray,
    n_classes: int,
    damping: float,
    weights: NDArray | None = None,
) -> NDArray:
    """Return `mass` of `propagate_classes`, without any node held out."""
    return propagate_classes(flow, codes, n_classes, damping, 0, weights).mass


def class_distributions(
    masses: list[ClassMass], codes: NDArray, reference: ClassMass | None = None
) -> NDArray:
    """Return the distribution over classes at each node, from the mass on one or more graphs.

    Parameters
    ----------
    masses : list of ClassMass
        Of graphs of the same nodes.
    codes : ndarray of shape (n_nodes,)
        The number of a node's class; -1 where it is not known.
    reference : ClassMass, default=None
        Of a graph of features that have not seen the labels; the first of `masses` if None.

    Returns
    -------
    classes : ndarray of shape (n_nodes, n_classes)
        Rows sum to 1, or are 0 where no label arrived at all. Labelled nodes have their class.

    Notes
    -----
    With a damping near 1, the mass is nearly uniform and not calibrated. That of the reference is
    raised to the power that makes its held-out labels most likely. Other graphs may be of features
    that were trained with the labels, which cannot be held out there: each gets the power at which
    its mean confidence is that of the reference. The result is the geometric mean, so that a node
    on which graphs disagree has a low confidence.
    """
    unlabelled = codes < 0
    reference = masses[0] if reference is None else reference
    power = best_power(reference.held_out, codes[reference.probes])
    level = _confidence(sharpen(reference.mass, power)[unlabelled])

    def calibrate(mass):
        gaps = [abs(_confidence(sharpen(mass[unlabelled], power)) - level) for power in _POWERS]
        return sharpen(mass, _POWERS[int(np.argmin(gaps))])

    return set_labels(functools.reduce(_pool, [calibrate(one.mass) for one in masses]), codes)


def set_labels(classes: NDArray, codes: NDArray) -> NDArray:
    """Give labelled nodes their class, in place, and return all."""
    labelled = np.flatnonzero(codes >= 0)
    classes[labelled] = 0
    classes[labelled, codes[labelled]] = 1
    return classes


def sharpen(mass: NDArray, power: float) -> NDArray:
    """Raise distributions to a power and scale them again."""
    largest = mass.max(axis=1, keepdims=True)
    return normalize_rows((mass / np.where(largest > 0, largest, 1)) ** power)


def best_power(held_out: NDArray, codes: NDArray) -> float:
    """Return the power under which the classes of probes are most likely."""
    reached = held_out.any(axis=1)
    if not reached.any():
        return DEFAULT_POWER
    truth = np.flatnonzero(reached), codes[reached]
    likelihoods = [
        np.log(np.maximum(sharpen(held_out, power)[truth], _MIN_PROBABILITY)).mean()
        for power in _POWERS
    ]
    return _POWERS[int(np.argmax(likelihoods))]


def _confidence(classes):
    """Return the mean share of the largest class."""
    return classes.max(axis=1).mean() if len(classes) else 1.0


def _pool(first, second):
    """Return the geometric mean of distributions; where one is not known, the other."""
    pooled = normalize_rows(np.sqrt(first * second))
    unknown = ~pooled.any(axis=1)
    pooled[unknown] = normalize_rows(first + second)[unknown]
    return pooled


def normalize_rows(values: NDArray) -> NDArray:
    """Scale rows to sum 1; a row of zeros stays so."""
    sums = values.sum(axis=1, keepdims=True)
    return values / np.where(sums > 0, sums, 1)


def propagate_affinity(graph: Graph, codes: NDArray, damping: float) -> NDArray:
    r"""Return the paper's affinity of each node and its neighbours.

    .. math:: W^* = (1 - \gamma) (I - \gamma Q)^{-1} W^0, \qquad W = (W^* + W^{*T}) / 2

    with :math:`W^0` of 1 and -1 for labelled pairs of the same class and of different ones, and 1
    on the diagonal. The columns of unlabelled nodes are those of the diagonal alone, so that the
    affinity of two unlabelled nodes knows nothing of the labels.

    Parameters
    ----------
    graph : Graph
        Q is its `flow`.
    codes : ndarray of shape (n_nodes,)
        The number of a node's class; -1 where it is not known.
    damping : float
        :math:`\gamma`.

    Returns
    -------
    affinity : ndarray of shape (n_nodes, n_neighbors)
        W at the neighbours.

    Notes
    -----
    Walks between all pairs of neighbours are needed, and no column can be left out: this solves a
    dense system in single precision, 4 n^2 bytes.
    """
    n_nodes = len(codes)
    system = np.array(-damping * graph.flow.toarray(), dtype=np.float32, order="F")
    system[np.diag_indices(n_nodes)] += 1
    walks = linalg.inv(system, overwrite_a=True, check_finite=False)
    walks *= 1 - damping
    labelled = np.flatnonzero(codes >= 0)
    start = np.where(codes[labelled, None] == codes[labelled], 1, -1).astype(np.float32)
    walks[:, labelled] = walks[:, labelled] @ start
    rows = np.arange(n_nodes)[:, None]
    return (walks[rows, graph.neighbors] + walks[graph.neighbors, rows]) / 2


def describe_graph(graph: Graph, codes: NDArray, classes: NDArray) -> dict[str, float]:
    """Return statistics of a graph and of the labels propagated along it.

    Parameters
    ----------
    graph : Graph
        The graph.
    codes : ndarray of shape (n_nodes,)
        The number of a node's class; -1 where it is not known.
    classes : ndarray of shape (n_nodes, n_classes)
        From `class_distributions`.

    Returns
    -------
    figures : dict
        n_nodes, n_edges, n_components (connected parts), n_unreached (nodes without any label) and
        mean_confidence (of unlabelled nodes; the largest share of a class).
    """
    return {
        "n_nodes": len(codes),
        "n_edges": int(graph.flow.nnz),
        "n_components": int(connected_components(graph.flow, return_labels=False)),
        "n_unreached": int((~classes.any(axis=1)).sum()),
        "mean_confidence": float(_confidence(classes[codes < 0])),
    }
