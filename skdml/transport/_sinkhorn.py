"""Sinkhorn divergences of point clouds, in batches; POT solves the transport problems."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import gen_batches

from .._optional import optional_import
from ..utils.validation import check_named_array, check_scale, naming

# exp(-cost / eta) does not underflow in float64 below this quotient.
_LARGEST_EXPONENT = 500.0
# Iterations grow as the entropy falls: this over `reg`.
_ITERATIONS = 100
# Limits of the iterations, for many and for few costs, and costs in all, which take seconds.
_ITERATION_LIMITS, _COST_LIMIT = (2000, 20_000), 10**9
_TOL = 1e-7
# Iterations of the network simplex, which warns by itself if these are not enough.
_MOST_PIVOTS = 10_000_000
# Error of the marginals of a plan that gives a warning, absolute and in tolerances.
_FAR_OFF, _FAR_OFF_TOLS = 1e-3, 100
# Added below the square root of p = 1, whose slope at 0 is infinite.
_TINY = 1e-24
_SOLVERS = ("sinkhorn", "exact")
# Numbers in an array of costs between the points of clouds.
_BLOCK_SIZE = 2**20


def sinkhorn_divergence(
    A: Any,
    B: Any,
    *,
    a: Any = None,
    b: Any = None,
    p: int = 2,
    reg: float = 0.05,
    eta: float | None = None,
    solver: str = "sinkhorn",
) -> Any:
    r"""Compute the Sinkhorn divergences of pairs of point clouds.

    .. math:: SD(A, B) = OT_\eta(A, B) - \tfrac{1}{2} (OT_\eta(A, A) + OT_\eta(B, B))

    where :math:`OT_\eta` is the cheapest transport of one cloud to the other, with an entropy of
    weight :math:`\eta` that makes it smooth and quick to find. It is symmetric, at least 0, 0 for
    equal clouds, and tends to the exact transport cost as :math:`\eta` falls. Differentiable by
    the points.

    Parameters
    ----------
    A : array or tensor of shape (n_clouds, n_points, n_features) or (n_points, n_features)
        Clouds; numpy arrays or torch tensors.
    B : array or tensor of the same kind
        As many clouds; they may have another number of points.
    a, b : array or tensor of shape (n_clouds, n_points), default=None
        Weights of the points, which sum to 1 in each cloud; None: equal weights.
    p : {1, 2}, default=2
        Cost of moving a unit of weight: its distance, or its squared distance.
    reg : float, default=0.05
        :math:`\eta` in units of the median cost between points of A and B.
    eta : float, default=None
        :math:`\eta` itself, where divergences of several calls are to be compared; None: by
        `reg`. Gradients count it as a constant.
    solver : {"sinkhorn", "exact"}, default="sinkhorn"
        "exact" gives the exact cost, without entropy, by a linear program for each pair.

    Returns
    -------
    divergence : array or tensor of shape (n_clouds,), or a scalar
        In the units of the cost: for p = 2 it is a squared distance.

    Examples
    --------
    >>> import numpy as np
    >>> from skdml.transport import sinkhorn_divergence
    >>> A = np.array([[0.0, 0.0], [1.0, 0.0]])
    >>> round(float(sinkhorn_divergence(A, A + [0.0, 2.0], solver="exact")), 6)
    4.0
    """
    with naming("A"):
        single = np.ndim(A) == 2
    A, B = _check_clouds(A, "A"), _check_clouds(B, "B")
    if len(A) != len(B) or A.shape[2] != B.shape[2] or type(A) is not type(B):
        raise ValueError(
            f"A and B must be of the same kind, with as many clouds and features, got "
            f"{type(A).__name__} of shape {tuple(A.shape)} and {type(B).__name__} of shape "
            f"{tuple(B.shape)}."
        )
    A, B = _same_precision(A, B)
    check_transport(p, reg, solver)
    largest = float(np.finfo(_plain(A).dtype).max) ** 0.5
    if eta is not None and not (isinstance(eta, Real) and 0 < float(eta) < largest):
        raise ValueError(
            f"eta must be a number above 0 and below {largest:.1g}, whose square the numbers of A "
            f"and B can hold, or None, got {eta!r}."
        )
    a, b = _check_weights(a, A, "a", single), _check_weights(b, B, "b", single)
    fixed = B.detach() if hasattr(B, "detach") else B
    centre = fixed.mean(1)[:, None]  # far from the origin, squares cancel
    A, B = A - centre, B - centre
    cross = cost_matrices(A, B, p)
    if solver == "exact":
        values = _exact_values(cross, a, b)
    else:
        eta = choose_eta(cross, reg) if eta is None else float(eta)
        values = _debias(
            _entropic_values(cross, eta, a, b),
            _entropic_values(cost_matrices(A, A, p), eta, a, a),
            _entropic_values(cost_matrices(B, B, p), eta, b, b),
        )
    return values[0] if single else values


def _same_precision(A, B):
    """Return both in the wider of their types: the values of the one may leave the other."""
    if hasattr(A, "detach"):
        return (A.double(), B.double()) if A.dtype != B.dtype else (A, B)
    dtype = np.result_type(A, B)
    return A.astype(dtype, copy=False), B.astype(dtype, copy=False)


def _debias(values, own_first, own_second):
    """Return Sinkhorn divergences of transport values and of those of clouds to themselves."""
    return values - (own_first + own_second) / 2


def _as_floats(values, name):
    """Return a tensor of floats, or an array of float64 or float32."""
    if hasattr(values, "detach"):
        return values if values.is_floating_point() else values.double()
    any_shape = {"allow_nd": True, "ensure_2d": False, "ensure_min_samples": 0}
    any_shape |= {"ensure_min_features": 0, "ensure_all_finite": False}
    return check_named_array(values, name, dtype=[np.float64, np.float32], **any_shape)


def _check_clouds(clouds, name):
    """Return clouds of floats; a single cloud becomes a batch of one."""
    clouds = _as_floats(clouds, name)
    clouds = clouds[None] if clouds.ndim == 2 else clouds
    if clouds.ndim != 3 or 0 in clouds.shape:
        raise ValueError(
            f"{name} must have shape (n_clouds, n_points, n_features), all at least 1, got "
            f"{tuple(clouds.shape)}."
        )
    plain = _plain(clouds)
    if not np.isfinite(plain).all():
        raise ValueError(f"{name} must have no NaN and no infinity.")
    check_scale(plain, name, np.float64 if plain.dtype == np.float64 else np.float32)
    return clouds


def check_cloud(cloud: Any, n_features: int, holder: str) -> tuple[int, int]:
    """Return (n_points, point_dim), which must make up the columns of `holder`."""
    is_pair = isinstance(cloud, (tuple, list)) and len(cloud) == 2
    if not is_pair or not all(isinstance(number, Integral) for number in cloud):
        raise ValueError(f"cloud must be (n_points, point_dim), two whole numbers, got {cloud!r}.")
    n_points, point_dim = cloud
    if n_points * point_dim != n_features or n_points < 1:
        raise ValueError(
            f"cloud={tuple(cloud)} makes {n_points * point_dim} columns, but {holder} has "
            f"{n_features}, which n_points * point_dim must be."
        )
    return n_points, point_dim


def check_transport(p: Any, reg: Any, solver: Any, name: str = "reg") -> None:
    """Check the parameters of a transport problem; `name` is that of the entropy's weight."""
    if not isinstance(p, Real) or p not in (1, 2):
        raise ValueError(f"p must be 1 (distance) or 2 (squared distance), got {p!r}.")
    if not (isinstance(reg, Real) and 0 < float(reg) < np.inf):
        raise ValueError(
            f"{name} must be a number above 0, got {reg!r}; for transport without entropy use "
            f"solver='exact'."
        )
    if not isinstance(solver, str) or solver not in _SOLVERS:
        raise ValueError(f"solver must be 'sinkhorn' or 'exact', got {solver!r}.")


def _check_weights(weights, clouds, name, single=False):
    """Return the weights of the points of each cloud as (n_clouds, n_points)."""
    n_clouds, n_points = clouds.shape[:2]
    backend = optional_import("ot.backend", "skdml.transport").get_backend(clouds)
    if weights is None:
        return backend.full((n_clouds, n_points), 1 / n_points, type_as=clouds)
    weights = _as_floats(weights, name)
    weights = weights[None] if single else weights
    if tuple(weights.shape) != (n_clouds, n_points):
        raise ValueError(
            f"{name} must have one weight for each point, shape {(n_clouds, n_points)}, got "
            f"{tuple(weights.shape)}."
        )
    plain = _plain(weights)
    if (plain < 0).any():
        raise ValueError(f"{name} must have no negative weight.")
    wrong = ~(np.abs(plain.sum(axis=1) - 1) <= 1e-4)  # NaN too
    if wrong.any():
        raise ValueError(
            f"{name} must sum to 1 in each cloud; {wrong.sum()} of {n_clouds} do not. Divide the "
            f"weights of a cloud by their sum."
        )
    return weights if hasattr(clouds, "detach") else plain


def cost_matrices(A: Any, B: Any, p: int) -> Any:
    """Return the costs between the points of A and B, shape (n_clouds, n_points, n_points)."""
    squares = (A**2).sum(-1)[:, :, None] + (B**2).sum(-1)[:, None, :]
    costs = squares - 2 * A @ B.swapaxes(1, 2)
    costs = costs * (costs > 0)  # rounding may go below 0
    return costs if p == 2 else (costs + _TINY) ** 0.5


def choose_eta(costs: Any, reg: float) -> float:
    """Return the weight of the entropy, `reg` times the median cost."""
    typical = float(np.median(_plain(costs))) or float(_plain(costs).max())
    return reg * typical if typical > 0 else 1.0


def _entropic_values(costs, eta, a, b, tol=_TOL, max_iter=None, warn=True):
    """Return the optimal values of the transport problems with entropy.

    The gradient by the costs is the plan, by the envelope theorem: that the plan changes as well
    counts for nothing at an optimum. With `warn`, a plan whose marginals are far off after the last
    iteration gives a warning.
    """
    batch = optional_import("ot.batch", "skdml.transport")
    torch = optional_import("torch", "skdml.transport")
    # Tensors, also of numpy's arrays: torch is several times quicker here.
    constant = torch.as_tensor(costs).detach().double()
    # The plain kernel is many times quicker than logarithms, where it cannot underflow.
    small = float(constant.max()) <= _LARGEST_EXPONENT * eta
    if max_iter is None:
        typical = float(np.median(_plain(constant)))
        most = np.clip(_COST_LIMIT / constant.numel(), *_ITERATION_LIMITS)
        max_iter = int(np.clip(_ITERATIONS * typical / eta, _ITERATIONS, most))
    a, b = _like(a, constant), _like(b, constant)
    options = {"max_iter": max_iter, "tol": tol, "grad": "detach"}
    method = "sinkhorn" if small else "log_sinkhorn"
    result = batch.solve_batch(constant, eta, a=a, b=b, method=method, **options)
    error = float((result.plan.sum(2) - a).norm(dim=1).max())
    if warn and not error <= max(_FAR_OFF, _FAR_OFF_TOLS * tol):
        warnings.warn(
            f"Sinkhorn's algorithm stopped after {max_iter} iterations, and the sums of a plan are "
            f"off by {error:.2g}: the entropy, eta={eta:.2g} beside costs up to "
            f"{float(constant.max()):.2g}, is too small for it. Raise reg or eta, or use "
            "solver='exact'.",
            ConvergenceWarning,
            stacklevel=3,
        )
    plan = _like(result.plan, costs)
    entropy = _like(result.value - result.value_linear, costs)
    return (plan * costs).sum(-1).sum(-1) + entropy


def _exact_values(costs, a, b):
    """Return the optimal costs without entropy; the gradient by the costs is the plan."""
    ot = optional_import("ot", "skdml.transport")
    plain = _plain(costs).astype(np.float64)
    weights = [_plain(side).astype(np.float64) for side in (a, b)]
    weights = [side / side.sum(axis=1, keepdims=True) for side in weights]
    plain = plain / (plain.max() or 1.0)  # POT's tolerance is absolute
    problems = zip(*weights, plain, strict=True)
    plans = [ot.emd(*problem, numItermax=_MOST_PIVOTS) for problem in problems]
    return (_like(np.stack(plans), costs) * costs).sum(-1).sum(-1)


def make_divergence(
    clouds: Any, *, p: int, eta: float | None, **options: Any
) -> Callable[[Any], Any]:
    """Return the Sinkhorn divergence of pairs of some clouds, as a function of their indices.

    The terms of clouds with themselves are solved once, in the first call.

    Parameters
    ----------
    clouds : array or tensor of shape (n_clouds, n_points, point_dim)
        The clouds, of points of equal weight.
    p : {1, 2}
        The power of the distance that is the cost.
    eta : float or None
        The weight of the entropy; None is the exact transport cost.
    **options
        `tol`, `max_iter` and `warn` of Sinkhorn's algorithm.

    Returns
    -------
    divergence : callable
        Takes indices of shape (2, n_pairs), and returns n_pairs divergences.
    """
    # Arrays in blocks; tensors, of a batch in training, at once.
    step = None if hasattr(clouds, "detach") else max(1, _BLOCK_SIZE // clouds.shape[1] ** 2)

    def solve(pairs):
        first, second = pairs
        blocks = []
        for chosen in gen_batches(len(first), step or len(first)):
            costs = cost_matrices(clouds[first[chosen]], clouds[second[chosen]], p)
            weights = _check_weights(None, costs, "weights")
            if eta is None:
                blocks.append(_exact_values(costs, weights, weights))
            else:
                blocks.append(_entropic_values(costs, eta, weights, weights, **options))
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    @functools.cache
    def own():
        return solve([np.arange(len(clouds))] * 2)

    return solve if eta is None else lambda pairs: _debias(solve(pairs), *own()[pairs])


def _plain(values):
    return values.numpy(force=True) if hasattr(values, "numpy") else values


def _like(values, other):
    """Return values as the kind of array that `other` is."""
    if not hasattr(other, "detach"):
        return np.asarray(values, dtype=other.dtype)
    torch = optional_import("torch", "skdml.transport")
    return torch.as_tensor(values, dtype=other.dtype, device=other.device)
