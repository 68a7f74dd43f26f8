"""Coresets: few samples that represent many, by greedy facility location or by transport."""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.spatial.distance import cdist
from sklearn.cluster import MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import kneighbors_graph
from sklearn.utils import check_random_state, gen_batches

from .._optional import optional_import
from ..utils._sklearn import Interval, validate_params
from ..utils._typing import MatrixLike, RandomStateLike
from ..utils.validation import check_named_array, check_scale, check_vector, encode
from ._sinkhorn import check_cloud, check_transport, choose_eta, cost_matrices, make_divergence

# Numbers in an array of costs or distances.
_BLOCK_SIZE = 2**20
# Random pairs for the scale of the costs and of the proxy.
_SAMPLED_PAIRS = 500
# Rows whose gain is computed at once.
_AT_ONCE = 32
# All distances of a class are kept where it has no more rows.
_KEPT_ROWS = 2048
# Rough plans are enough to rank rows.
_TOL, _MAX_ITER = 1e-3, 100


class _Chosen(NamedTuple):
    indices: NDArray[np.intp]
    weights: NDArray[np.float64]


class Coreset(_Chosen):
    """Rows and weights of a coreset, which unpack as two; and how far it is from the rows."""

    epsilon: float


@validate_params(
    {
        "epsilon": [Interval(Real, 0, None, closed="left"), None],
        "n_candidates": [Interval(Integral, 1, None, closed="left"), None],
        "tol": [Interval(Real, 0, None, closed="left")],
        "random_state": ["random_state"],
    },
    prefer_skip_nested_validation=True,
)
def wasserstein_coreset(
    X: MatrixLike,
    y: ArrayLike | None = None,
    size: Any = 0.1,
    *,
    cloud: tuple[int, int] | None = None,
    p: int = 2,
    reg: float = 0.05,
    solver: str = "sinkhorn",
    n_candidates: int | None = 32,
    tol: float = 0.0,
    epsilon: float | None = None,
    random_state: RandomStateLike = None,
) -> Coreset:
    r"""Choose rows that represent all rows of their class, by greedy facility location.

    Maximises :math:`\sum_i \max_{j \in S} (d_{max} - d(i, j))` over subsets S of each class, where
    d is the Sinkhorn divergence of rows as clouds of points, or the (squared) Euclidean distance.
    The greedy choice reaches at least :math:`1 - 1/e` of the best value. It is made lazily: a
    row's gain is computed again only when it might be the largest.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        The rows.
    y : array-like of shape (n_samples,), default=None
        Classes, each represented by its share of the size; None: one class.
    size : int or float, default=0.1
        Rows to choose, or their share; each class has at least one, and there are as many as
        said, shared out among the classes by the largest remainders. With `epsilon`, at most.
    cloud : (int, int), default=None
        Points, and columns of each, that a row is cut into; None: a row is one point.
    p, reg, solver :
        The transport; see `sinkhorn_divergence`. ``p=1`` is for distances, ``p=2`` for squares.
    n_candidates : int or None, default=32
        Transport is solved between a row and this many nearest rows by a proxy; the other
        divergences are the proxy's: the distance of linear optimal transport embeddings, in the
        scale of some that are solved. None solves all pairs of a class.
    tol : float, default=0.0
        Stop in a class when the best gain is a smaller share of the value so far.
    epsilon : float, default=None
        Stop in a class when the coreset is as near as this to its rows.
    random_state : int, RandomState instance or None, default=None
        Draws the reference of the proxy.

    Returns
    -------
    indices : ndarray of shape (n_chosen,)
        The chosen rows, class by class in the order of the choice.
    weights : ndarray of shape (n_chosen,)
        How many rows each represents; they sum to n_samples.

        These two are a named tuple, whose attribute ``epsilon`` is the Wasserstein-1 distance of
        rows and weighted coreset, without transport between classes: the mean distance
        (:math:`d`, or :math:`\sqrt d` for ``p=2``) of a row and the one that represents it. The
        mean of any function that is 1-Lipschitz in this distance is within epsilon of its weighted
        mean over the coreset. Where divergences are those of a proxy, so is epsilon.

    Examples
    --------
    >>> import numpy as np
    >>> from skdml.transport import wasserstein_coreset
    >>> X = np.array([[0.0], [0.1], [0.2], [5.0], [5.1]])
    >>> indices, weights = wasserstein_coreset(X, size=2)
    >>> indices.tolist(), weights.tolist()
    ([2, 3], [3.0, 2.0])
    >>> near = wasserstein_coreset(X, size=5, p=1, epsilon=0.2)
    >>> len(near.indices), round(near.epsilon, 3)
    (2, 0.08)
    """
    X = check_named_array(X, "X", dtype=[np.float64, np.float32])
    check_scale(X, dtype=X.dtype)
    check_transport(p, reg, solver)
    if cloud is not None and check_cloud(cloud, X.shape[1], "X")[0] == 1:
        cloud = None  # of one point: the plain distance
    rng = check_random_state(random_state)
    groups = _split(y, len(X))
    budgets = _budgets(size, [len(group) for group in groups])
    chosen, weights, total = [], [], 0.0
    for group, budget in zip(groups, budgets, strict=True):
        divergences = _Divergences(X[group], cloud, p, reg, solver, n_candidates, rng)
        picked, won, distance = lazy_greedy(divergences, budget, tol, epsilon, p)
        chosen.append(group[picked])
        weights.append(won)
        total += distance * len(group)
    coreset = Coreset(np.concatenate(chosen), np.concatenate(weights))
    coreset.epsilon = total / len(X)
    return coreset


@validate_params(
    {
        "size": [Interval(Integral, 1, None, closed="left")],
        "p": [Interval(Integral, 1, 2, closed="both")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "random_state": ["random_state"],
    },
    prefer_skip_nested_validation=True,
)
def measure_coreset(
    X: MatrixLike,
    size: int,
    *,
    p: int = 2,
    max_iter: int = 50,
    tol: float = 1e-6,
    random_state: RandomStateLike = None,
) -> NDArray[np.float64]:
    """Return the points of equal weight with the smallest transport cost to the rows.

    Unlike `wasserstein_coreset` the points need not be rows: a free-support Wasserstein barycentre,
    by exact transport of the rows to the points, which move to the means of what they received, or,
    with ``p=1``, towards their medians. The cost falls in every step, to a point from where no such
    step lowers it; not all of them are as low.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        The rows.
    size : int
        Number of points.
    p : {1, 2}, default=2
        Whether the cost is the distance (Wasserstein-1) or its square (Wasserstein-2).
    max_iter : int, default=50
        Iterations at most.
    tol : float, default=1e-6
        Stop when the points move less, in the mean squared distance.
    random_state : int, RandomState instance or None, default=None
        Draws the rows to start from.

    Returns
    -------
    points : ndarray of shape (size, n_features)
        The points.

    Examples
    --------
    >>> from skdml.transport import measure_coreset
    >>> measure_coreset([[0.0], [2.0], [10.0], [12.0]], 2, random_state=0).ravel().tolist()
    [1.0, 11.0]
    """
    lp = optional_import("ot.lp", "measure_coreset")
    X = check_named_array(X, "X", dtype=np.float64)
    check_scale(X)
    if size > len(X):
        raise ValueError(f"size must be between 1 and the {len(X)} rows, got {size!r}.")
    start = np.sort(check_random_state(random_state).choice(len(X), int(size), replace=False))
    weights = np.full(len(X), 1 / len(X))
    points, log = lp.free_support_barycenter(
        [X], [weights], X[start], numItermax=max_iter, stopThr=tol, log=True
    )
    moved = (log["displacement_square_norms"] or [0.0])[-1]  # none, where tol is huge
    if p == 1:  # the means are a start off the rows, where the steps would stay
        points, moved = _medians(X, points, max_iter, tol)
    if moved > tol:
        warnings.warn(
            f"measure_coreset stopped after {max_iter} iterations, and the points still move by "
            f"{moved:.2g}, above tol={tol}: raise max_iter, or tol.",
            ConvergenceWarning,
            stacklevel=3,
        )
    return points[np.lexsort(points.T[::-1])]


def _medians(X, points, max_iter, tol):
    """Return points whose W1 to the rows no step lowers, and their last mean squared movement.

    Weiszfeld's step for the plan of the moment: the means with weights mass / distance.
    """
    lp = optional_import("ot.lp", "measure_coreset")
    moved, least = 0.0, np.finfo(np.float64).eps * max(np.ptp(X), np.finfo(np.float64).tiny)
    for _ in range(max_iter):
        distances = cdist(points, X)
        shares = lp.emd([], [], distances) / np.maximum(distances, least)
        arrived = shares @ X / shares.sum(axis=1, keepdims=True)
        moved, points = float(np.square(arrived - points).sum(axis=1).mean()), arrived
        if moved <= tol:
            break
    return points, moved


def lazy_greedy(
    divergences: Any, budget: int, tol: float = 0.0, epsilon: float | None = None, p: int = 1
) -> tuple[NDArray, NDArray, float]:
    """Choose rows by lazy greedy facility location: gains can only fall, so most need no update.

    Parameters
    ----------
    divergences : object
        ``len(divergences)`` rows; ``divergences[rows]`` has the distances of some to all, a row
        each, and ``divergences.total()`` their sums for every row; ``divergences.largest`` bounds
        all distances.
    budget : int
        Rows to choose.
    tol : float
        Stop when the gain is a smaller share of the value.
    epsilon : float or None
        Stop when the mean distance is not larger.
    p : int
        The power of distances that divergences are.

    Returns
    -------
    picked : ndarray of shape (n_picked,)
        In the order of the choice.
    weights : ndarray of shape (n_picked,)
        Rows that are nearest to each.
    distance : float
        Mean distance of a row from the nearest of the picked.
    """
    n_rows, largest = len(divergences), divergences.largest
    similar = np.zeros(n_rows)
    winner = np.zeros(n_rows, dtype=np.intp)
    # Bounds from above, where they are of an earlier round.
    gains = n_rows * largest - divergences.total()
    rounds = np.zeros(n_rows, dtype=np.intp)
    picked: list[int] = []
    least = np.full(n_rows, largest)
    while len(picked) < min(budget, n_rows):
        row = int(gains.argmax())  # of equal ones the first
        if rounds[row] < len(picked):
            promising = np.argsort(-gains)[:_AT_ONCE]
            promising = promising[rounds[promising] < len(picked)]
            rises = largest - similar - divergences[promising]
            gains[promising] = np.maximum(rises, 0, out=rises).sum(axis=1)
            rounds[promising] = len(picked)
            continue
        if picked and gains[row] <= tol * similar.sum():
            break
        found = divergences[np.array([row])][0]
        own = largest - found
        better = own > similar if picked else np.ones(n_rows, dtype=bool)
        similar[better], winner[better], least[better] = own[better], len(picked), found[better]
        winner[row] = len(picked)
        picked.append(row)
        gains[row] = -np.inf
        if epsilon is not None and np.mean(least ** (1 / p)) <= epsilon:
            break
    weights = np.bincount(winner, minlength=len(picked)).astype(np.float64)
    return np.array(picked, dtype=np.intp), weights, float(np.mean(least ** (1 / p)))


class _Divergences:
    """The matrix of divergences of some rows; of many, made row by row when asked for."""

    def __init__(self, X, cloud, p, reg, solver, n_candidates, rng):
        self._power = p
        self._vectors, self._scale = X.astype(np.float64), 1.0
        self._near = sparse.csr_array((len(X), len(X)))  # solved pairs
        if cloud is not None:
            self._embed(X.reshape(-1, *cloud), p, reg, solver, n_candidates, rng)
        self._squares = np.einsum("ij,ij->i", self._vectors, self._vectors)
        centre = self._vectors.mean(axis=0)
        radius = np.sqrt(np.max(((self._vectors - centre) ** 2).sum(axis=1)))
        self.largest = max(self._scale * (2 * radius) ** p, self._near.data.max(initial=0.0))
        self._kept = self._measure(np.arange(len(X))) if len(X) <= _KEPT_ROWS else None

    def _embed(self, clouds, p, reg, solver, n_candidates, rng):
        n_rows = len(clouds)
        pairs = rng.randint(n_rows, size=(2, _SAMPLED_PAIRS))
        eta = choose_eta(cost_matrices(clouds[pairs[0]], clouds[pairs[1]], p), reg)
        options = {"eta": None if solver == "exact" else eta, "tol": _TOL, "max_iter": _MAX_ITER}
        divergence = make_divergence(clouds.astype(np.float64), p=p, **options)
        self._vectors = linear_embedding(clouds, eta, rng)
        n_near = n_rows if n_candidates is None else min(n_candidates + 1, n_rows)
        proxy = ((self._vectors[pairs[0]] - self._vectors[pairs[1]]) ** 2).sum(axis=1) ** (p / 2)
        exact = np.maximum(divergence(pairs), 0)
        self._scale = float(exact.sum() / proxy.sum()) if proxy.sum() > 0 else 1.0
        graph = kneighbors_graph(self._vectors, n_near, include_self=True)
        low, high = sparse.triu(graph + graph.T, format="csr").sorted_indices().nonzero()
        values = np.where(low == high, 0.0, np.maximum(divergence(np.stack([low, high])), 0))
        ends = np.concatenate([low, high]), np.concatenate([high, low])
        self._near = sparse.coo_array((np.tile(values, 2), ends), (n_rows, n_rows)).tocsr()

    def __len__(self) -> int:
        return len(self._vectors)

    def __getitem__(self, rows):
        return self._measure(rows) if self._kept is None else self._kept[rows]

    def _measure(self, rows):
        squared = self._squares[rows][:, None] + self._squares
        squared -= 2 * self._vectors[rows] @ self._vectors.T
        np.maximum(squared, 0, out=squared)
        distances = squared if self._power == 2 else np.sqrt(squared)
        distances *= self._scale
        distances[np.arange(len(rows)), rows] = 0.0
        near = self._near[rows].tocoo()
        distances[near.coords] = near.data
        return distances

    def total(self):
        """Return for each row the sum of its distances, a block at a time."""
        blocks = gen_batches(len(self), max(1, _BLOCK_SIZE // len(self)))
        return np.concatenate([self[np.arange(len(self))[block]].sum(axis=1) for block in blocks])


def linear_embedding(clouds: NDArray, eta: float, rng: Any) -> NDArray[np.float64]:
    """Return linear optimal transport embeddings: Euclidean distances are about those of transport.

    Each cloud is transported to the same reference, and the vector has the barycentric projection
    of every point of the reference.

    Parameters
    ----------
    clouds : ndarray of shape (n_clouds, n_points, point_dim)
        The clouds.
    eta : float
        Weight of the entropy.
    rng : RandomState
        Draws the reference.

    Returns
    -------
    vectors : ndarray of shape (n_clouds, n_points * point_dim)
        Their squared distance is about the squared transport distance.
    """
    batch = optional_import("ot.batch", "wasserstein_coreset")
    torch = optional_import("torch", "wasserstein_coreset")
    n_clouds, n_points, point_dim = clouds.shape
    sample = clouds[rng.permutation(n_clouds)[:1000]].reshape(-1, point_dim)
    n_centres = min(n_points, len(np.unique(sample, axis=0)))
    kmeans = MiniBatchKMeans(n_centres, random_state=rng, n_init=3).fit(sample)
    reference = kmeans.cluster_centers_[None]
    vectors = np.empty((n_clouds, n_centres * point_dim))
    for block in gen_batches(n_clouds, max(1, _BLOCK_SIZE // n_points**2)):
        part = clouds[block].astype(np.float64)
        costs = cost_matrices(part, np.repeat(reference, len(part), axis=0), 2)
        costs = torch.from_numpy(costs)
        # The barycentric projection needs a rough plan only.
        weight = max(eta, 0.05 * float(costs.median()))
        plan = batch.solve_batch(
            costs, weight, max_iter=_MAX_ITER, tol=_TOL, method="log_sinkhorn", grad="detach"
        ).plan.numpy()
        arrived = plan.swapaxes(1, 2) @ part
        arrived /= plan.sum(axis=1)[:, :, None] * np.sqrt(n_centres)
        vectors[block] = arrived.reshape(len(part), -1)
    return vectors


def _split(y, n_rows):
    """Return the rows of each class."""
    if y is None:
        return [np.arange(n_rows)]
    _, codes = encode(check_vector(y, "y", n_rows), "y")
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.cumsum(np.bincount(codes))[:-1])


def _budgets(size, counts):
    n_rows = sum(counts)
    share = isinstance(size, Real) and 0 < float(size) < 1
    if not share and not (isinstance(size, Integral) and 1 <= int(size) <= n_rows):
        raise ValueError(
            f"size must be a number of rows from 1 to {n_rows}, or a share between 0 and 1, got "
            f"{size!r}."
        )
    number = max(len(counts), round(size * n_rows)) if share else int(size)
    if number < len(counts):
        raise ValueError(f"size={size!r} is less than the {len(counts)} classes: each needs a row.")
    # One for each class, and the rest by share; what rounding leaves, to the largest remainders.
    quotas = number * np.array(counts) / n_rows
    found = np.maximum(np.floor(quotas + 1e-9).astype(int), 1)
    while found.sum() > number:
        found[np.argmax(np.where(found > 1, found - quotas, -np.inf))] -= 1
    for place in np.argsort(found - quotas, kind="stable")[: number - found.sum()]:
        found[place] += 1
    return found.tolist()
