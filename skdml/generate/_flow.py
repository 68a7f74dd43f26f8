"""Flow matching: a velocity that carries noise to rows, its training, and samples along it.

Noise z and a row x, both scaled, are joined by a line, (1 - t) z + t x for t from 0 to 1. A network
learns the mean velocity x - z of the lines through a point. If rows were normal and their columns
independent, around the mean of their class if they have one, that velocity would be linear in the
point; the network learns what is left. So before the first update samples are normal, with means by
class and the spread of the rows.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import gen_batches
from torch import nn

from ..utils._fit import record
from ..utils._supervision import draw_weighted
from ..utils._torch import NotFinite, choose_device, seeded_torch
from ._generator_input import check_batch_size
from ._generator_networks import VelocityNetwork

_LR, _BATCH_SIZE = 0.003, 128
# Updates: so many for each row, as more would learn few rows by heart, within bounds.
_UPDATES_PER_ROW, _FEWEST_UPDATES, _MOST_UPDATES = 4, 150, 6500
# Of the time, as sines and cosines.
_N_WAVES = 4
# Steps of Heun's method from noise to a row.
_N_STEPS = 10
_N_WARM_UP = 50
# Weights are looked at after so many updates, and kept where they are finite.
_CHECK_EVERY = 20
_EMA_DECAY = 0.998
# Rows that are drawn, or carried, at a time: more leave the processor's cache.
_ROWS_AT_ONCE = 512
# Numbers of other rows that the expected velocity is taken over, and the most rows, for each point.
_MOST_NUMBERS, _MOST_OTHERS = 4096, 32
_N_POOL = 20_000
# Nearer to the end hardly any other row can have led to a point, and squares are not exact enough.
_END = 0.99
# A column whose spread is less than this share of the mean is as narrow as that.
_LEAST_SPREAD = 0.001
# The spread of a scaled column, at least: narrower ones would need more steps.
_LEAST_RATIO = 0.2
# So many rows more at the mean of all draw the mean of a class to it.
_RIDGE = 5.0


@dataclass(frozen=True)
class FlowPlan:
    """Parameters of a training by flow matching.

    Attributes
    ----------
    lr : float
        The learning rate, which falls to zero along a cosine.
    batch_size : int
        Rows of an update.
    max_iter : int
        Updates.
    seed : int
        Seeds all that is random.
    device : str, default="cpu"
        Where the network is trained.
    """

    lr: float
    batch_size: int
    max_iter: int
    seed: int
    device: str = "cpu"


def make_flow_plan(model: Any, n_rows: int, seed: int) -> FlowPlan:
    """Return the parameters of an estimator without "auto"."""
    max_iter = max(_FEWEST_UPDATES, min(_UPDATES_PER_ROW * n_rows, _MOST_UPDATES))
    return FlowPlan(
        lr=_LR if model.lr == "auto" else float(model.lr),
        batch_size=check_batch_size(model, n_rows, _BATCH_SIZE),
        max_iter=max_iter if model.max_iter == "auto" else int(model.max_iter),
        seed=seed,
        device=choose_device(model.device),
    )


@dataclass
class FlowTrained:
    """Result of a training.

    Attributes
    ----------
    network : nn.Module
        The network, with the EMA of its weights.
    history : dict of list
        "loss" and "seconds" of each update.
    error : NotFinite or None
        Why training ended early, if it did.
    """

    network: nn.Module
    history: dict[str, list] = field(default_factory=lambda: {"loss": [], "seconds": []})
    error: NotFinite | None = None


@dataclass(frozen=True)
class Moments:
    """Means, scales and spreads of columns.

    Attributes
    ----------
    means, scales : ndarray of shape (n_columns,)
        By which columns are centred and scaled.
    spreads : ndarray of shape (n_columns,)
        The standard deviations of scaled columns: 1 for numbers, and less for pixels that are
        seldom inked and for the indicators of rare categories, as those of a column share their
        scale.
    """

    means: NDArray
    scales: NDArray
    spreads: NDArray

    def scale(self, rows: NDArray) -> NDArray:
        """Return centred and scaled columns."""
        return (rows - self.means) / self.scales

    def unscale(self, rows: NDArray) -> NDArray:
        """Return columns as they were before they were scaled."""
        return rows * self.scales + self.means


def column_moments(rows: NDArray, blocks: Sequence[slice], is_common: bool = False) -> Moments:
    """Return the moments of encoded columns.

    Parameters
    ----------
    rows : ndarray of shape (n_samples, n_columns)
        The rows.
    blocks : sequence of slice
        Indicators of the same column, which share the scale of the widest.
    is_common : bool, default=False
        Whether the other columns are of one unit, such as pixels. Those that hardly vary within
        their range have a smaller spread then: an edge that is seldom inked would otherwise count
        as much as the middle.

    Returns
    -------
    moments : Moments
        By which rows are scaled.
    """
    spread, width = rows.std(axis=0), np.ptp(rows, axis=0)
    varying = spread[spread > 0]
    least = _LEAST_SPREAD * varying.mean() if len(varying) else 1.0
    scales = np.maximum(spread, least)
    if is_common:
        is_number = width > 0
        for block in blocks:
            is_number[block] = False
        shares = spread[is_number] / width[is_number]
        scales[is_number] = width[is_number] * shares.max(initial=0)
    for block in blocks:
        scales[block] = scales[block].max()
    spreads = np.maximum(spread / scales, _LEAST_RATIO)
    for block in blocks:
        spreads[block] = np.where(spread[block] > 0, spreads[block], _LEAST_RATIO)
    is_constant = spread == 0
    spreads[is_constant] = _LEAST_RATIO
    return Moments(*(part.astype(np.float32) for part in (rows.mean(axis=0), scales, spreads)))


def make_velocity(n_columns: int, n_codes: int, seed: int) -> nn.Module:
    """Return a new network of `velocity`, whose output is 0."""
    with seeded_torch(seed):
        return VelocityNetwork(n_columns, 2 * _N_WAVES + n_codes)


def add_normal(
    network: nn.Module, rows: NDArray, spreads: NDArray, codes: NDArray, weights: NDArray | None
) -> None:
    """Give a network the mean of rows as a linear function of their codes, and spreads around it.

    The mean of a class of few rows is drawn to that of all.
    """
    inputs = np.column_stack([codes, np.ones(len(codes))]).astype(np.float64)
    shares = np.ones(len(rows)) if weights is None else weights / weights.mean()
    ridge = np.diag([_RIDGE] * codes.shape[1] + [0.0])
    means = np.linalg.solve(inputs.T * shares @ inputs + ridge, inputs.T * shares @ rows)
    variances = np.average((rows - inputs @ means) ** 2, axis=0, weights=shares)
    widths = np.minimum(np.maximum(np.sqrt(variances), _LEAST_RATIO), spreads)
    for name, value in (("means", means), ("widths", widths)):
        network.register_buffer(name, torch.from_numpy(value.astype(np.float32)))


def find_normal(network: nn.Module) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return means and spreads of rows with codes, None if all rows have one mean."""
    if not hasattr(network, "means"):
        return None
    return network.means, network.widths  # type: ignore[return-value]


def _parts(points, times, spreads, codes, normal):
    """Return the inputs of the network, the linear velocity, and the scale of what is left of it.

    Of normal rows with these spreads, points have the variance (1 - t)^2 + t^2 s^2, and velocities
    have the variance s^2 over it around their mean given the point, which is linear. Where there
    are means by codes, rows are normal around these, with smaller spreads.
    """
    variance = (1 - times) ** 2 + (times * spreads) ** 2
    waves = torch.pi * torch.arange(1, _N_WAVES + 1, device=times.device) * times
    given = [waves.sin(), waves.cos()] + ([] if codes is None else [codes])
    inputs = points / variance.sqrt(), torch.cat(given, dim=1)
    means: torch.Tensor | float = 0.0
    if normal is not None:
        means, spreads = codes @ normal[0][:-1] + normal[0][-1], normal[1]
        variance = (1 - times) ** 2 + (times * spreads) ** 2
    linear = means + (points - times * means) * (times * spreads**2 - (1 - times)) / variance
    return inputs, linear, spreads / variance.sqrt()


def velocity(
    network: nn.Module,
    points: torch.Tensor,
    times: torch.Tensor,
    spreads: torch.Tensor,
    codes: torch.Tensor | None,
) -> torch.Tensor:
    """Return the velocity of points: the linear one of normal rows, and what the network adds."""
    inputs, linear, scale = _parts(points, times, spreads, codes, find_normal(network))
    return linear + scale * network(*inputs)


@dataclass(frozen=True)
class FlowBatch:
    """What the network of a flow learns from in an update.

    Attributes
    ----------
    points : torch.Tensor of shape (n_rows, n_columns)
        Scaled points of lines.
    given : torch.Tensor of shape (n_rows, n_given)
        Numbers that tell time and codes.
    target : torch.Tensor of shape (n_rows, n_columns)
        What is left of the velocity of the lines, scaled.
    """

    points: torch.Tensor
    given: torch.Tensor
    target: torch.Tensor


def make_batch(
    rows: torch.Tensor,
    noise: torch.Tensor,
    times: torch.Tensor,
    spreads: torch.Tensor,
    codes: torch.Tensor | None,
    normal: tuple[torch.Tensor, torch.Tensor] | None = None,
    change: torch.Tensor | float = 0.0,
) -> FlowBatch:
    """Return a batch of lines from noise to rows, whose velocities are changed by `change`."""
    points = torch.lerp(noise, rows, times)
    inputs, linear, scale = _parts(points, times, spreads, codes, normal)
    return FlowBatch(inputs[0], inputs[1], (rows - noise + change - linear) / scale)


def flow_loss(network: nn.Module, batch: FlowBatch, spreads: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error of the network.

    It is that of `velocity` over the scale of what is left of it, by which the errors of all times
    weigh the same, times the spreads of the columns.
    """
    return (spreads * (network(batch.points, batch.given) - batch.target).square()).mean()


def expected_change(
    rows: torch.Tensor, noise: torch.Tensor, times: torch.Tensor, others: torch.Tensor
) -> torch.Tensor:
    """Return by how much the velocity of a line differs from that expected at its point.

    The row of a line could be any of the set of itself and the others, of shape (n_rows, n_others,
    n_columns), if all were drawn alike. Given the point, each has a posterior probability, by the
    noise that it would take. The expected velocity under it has the same mean as that of the line,
    and less variance.
    """
    ratio = times / (1 - times)
    # Log densities of the noise that rows take, up to a constant of the point and by the ratio.
    places = noise + ratio * rows
    own = (places * rows).sum(1, keepdim=True) - 0.5 * ratio * rows.square().sum(1, keepdim=True)
    scores = (others @ places[:, :, None])[:, :, 0] - 0.5 * ratio * others.square().sum(2) - own
    shares = torch.softmax(nn.functional.pad(ratio * scores, (1, 0)), dim=1)
    mean = (shares[:, None, 1:] @ others)[:, 0] + shares[:, :1] * rows
    change = (mean - rows) / (1 - times)
    return torch.where(times < _END, change, 0.0)


def make_drawer(codes: NDArray | None, weights: NDArray | None, n_rows: int, seed: int) -> Any:
    """Return a function that draws rows with the codes of given ones, None if all codes differ.

    Parameters
    ----------
    codes : ndarray of shape (n_rows, n_codes) or None
        What the rows are conditioned on.
    weights : ndarray of shape (n_rows,) or None
        By which rows are drawn; None draws all alike.
    n_rows, seed : int
        How many rows there are, and what is random.
    """
    rng, groups, pool = np.random.default_rng([seed, 2]), np.zeros(n_rows, int), np.arange(n_rows)
    if codes is not None:
        groups = np.unique(codes, axis=0, return_inverse=True)[1].ravel()
    if 2 * (groups.max() + 1) > n_rows:
        return None
    if weights is not None:
        pool = draw_weighted(weights, max(n_rows, _N_POOL), rng)
    pool = pool[np.argsort(groups[pool], kind="stable")]
    counts = np.bincount(groups[pool], minlength=groups.max() + 1)
    starts = np.cumsum(counts) - counts

    def draw(chosen, n_others):
        own = groups[chosen, None]
        places = starts[own] + (rng.random((len(chosen), n_others)) * counts[own]).astype(int)
        return np.where(counts[own] > 0, pool[np.minimum(places, len(pool) - 1)], chosen[:, None])

    return draw


def draw_batches(
    rows: NDArray,
    spreads: NDArray,
    codes: NDArray | None,
    weights: NDArray | None,
    plan: FlowPlan,
    normal: tuple[torch.Tensor, torch.Tensor] | None,
) -> Iterator[FlowBatch]:
    """Yield the batches of a training, which are drawn some at a time."""
    rng, n, n_columns = np.random.default_rng([plan.seed, 1]), plan.batch_size, rows.shape[1]
    X, S = (torch.from_numpy(part).to(plan.device) for part in (rows, spreads))
    C = None if codes is None else torch.from_numpy(codes).to(plan.device)
    draw_others = make_drawer(codes, weights, len(rows), plan.seed)
    n_others = min(_MOST_OTHERS, _MOST_NUMBERS // n_columns)
    n_at_once = max(1, _ROWS_AT_ONCE // n)

    def draw():
        if weights is None:
            return rng.integers(len(rows), size=n)
        return rng.permutation(draw_weighted(weights, n, rng))

    while True:
        chosen = np.concatenate([draw() for _ in range(n_at_once)])
        noise = rng.standard_normal((len(chosen), n_columns), dtype=np.float32)
        # One time in each part of the range: less noise than independent ones.
        times = ((np.arange(n) + rng.random((n_at_once, n))) / n).astype(np.float32)
        found, starts = X[chosen], torch.from_numpy(noise).to(plan.device)
        at = torch.from_numpy(times.reshape(-1, 1)).to(plan.device)
        change: torch.Tensor | float = 0.0
        if draw_others and n_others:
            places = torch.from_numpy(draw_others(chosen, n_others)).to(plan.device)
            others = X.index_select(0, places.ravel()).view(*places.shape, n_columns)
            change = expected_change(found, starts, at, others)
        given = None if C is None else C[chosen]
        batch = make_batch(found, starts, at, S, given, normal, change)
        parts = (part.split(n) for part in (batch.points, batch.given, batch.target))
        for part in zip(*parts, strict=True):
            yield FlowBatch(*part)


def merge_weights(network: nn.Module) -> tuple[nn.Parameter, torch.Tensor]:
    """Make all weights of a network parts of one vector, their gradients of another; return both.

    An optimiser and an EMA take few steps with one vector, and many with many tensors.
    """
    weights = list(network.parameters())
    merged = nn.Parameter(nn.utils.parameters_to_vector(weights).detach())
    merged.grad = gradient = torch.zeros_like(merged)
    sizes = [weight.numel() for weight in weights]
    parts = merged.detach().split(sizes), gradient.split(sizes)
    for weight, value, slope in zip(weights, *parts, strict=True):
        weight.data, weight.grad = value.view_as(weight), slope.view_as(weight)
    return merged, gradient


def train_flow(
    rows: NDArray,
    spreads: NDArray,
    codes: NDArray | None,
    weights: NDArray | None,
    plan: FlowPlan,
    begin: Callable[[], None],
    report: Callable[[float, Callable[[], nn.Module]], Any],
) -> FlowTrained:
    """Train a network by flow matching.

    Parameters
    ----------
    rows : ndarray of shape (n_samples, n_columns)
        Rows with scaled columns, of float32.
    spreads : ndarray of shape (n_columns,)
        Their standard deviations.
    codes : ndarray of shape (n_samples, n_codes) or None
        What the rows are conditioned on.
    weights : ndarray of shape (n_samples,) or None
        By which rows are drawn; None draws all alike.
    plan : FlowPlan
        The parameters.
    begin : callable
        Called before each update.
    report : callable
        Called after each update with its loss and a function that returns the network as it would
        be if training stopped here; returns whether to stop.

    Returns
    -------
    trained : FlowTrained
        The network and its history.
    """
    network = make_velocity(rows.shape[1], 0 if codes is None else codes.shape[1], plan.seed)
    if codes is not None:
        add_normal(network, rows, spreads, codes, weights)
    network.to(plan.device)
    average = copy.deepcopy(network)
    (vector, gradient), (means, _) = merge_weights(network), merge_weights(average)
    means = means.detach()
    optimizer = torch.optim.Adam([vector], lr=plan.lr, betas=(0.9, 0.99), fused=True)
    trained, start = FlowTrained(average), time.perf_counter()
    S, kept, n_kept = torch.from_numpy(spreads).to(plan.device), means.clone(), 0
    batches = draw_batches(rows, spreads, codes, weights, plan, find_normal(network))
    try:
        for update in range(1, plan.max_iter + 1):
            begin()
            loss = flow_loss(network, next(batches), S)
            value = float(loss.detach())
            if not np.isfinite(value):
                raise NotFinite(f"the loss was not finite in update {update}")
            falling = 0.5 * (1 + np.cos(np.pi * (update - 1) / plan.max_iter))
            optimizer.param_groups[0]["lr"] = plan.lr * falling * min(1.0, update / _N_WARM_UP)
            gradient.zero_()
            loss.backward()
            optimizer.step()
            means.lerp_(vector.detach(), max(1 - _EMA_DECAY, 9 / (9 + update)))
            record(trained.history, start, loss=value)
            stops = report(value, lambda: copy.deepcopy(average).eval())
            if stops or update % _CHECK_EVERY == 0 or update == plan.max_iter:
                if not bool(torch.isfinite(means).all()):
                    raise NotFinite(f"the weights were not finite after update {update}")
                kept.copy_(means)
                n_kept = update
            if stops:
                break
    except NotFinite as error:
        trained.error = error
        means.copy_(kept)
        trained.history = {name: values[:n_kept] for name, values in trained.history.items()}
    # A copy, whose weights are not parts of a vector any more.
    trained.network = copy.deepcopy(average).cpu().eval()
    return trained


def integrate(
    network: nn.Module, noise: NDArray, spreads: NDArray, codes: NDArray | None
) -> NDArray:
    """Return where noise is carried to, by Heun's method.

    Parameters
    ----------
    network : nn.Module
        The network of `velocity`.
    noise : ndarray of shape (n_samples, n_columns)
        Of float32.
    spreads : ndarray of shape (n_columns,)
        The standard deviations of scaled columns.
    codes : ndarray of shape (n_samples, n_codes) or None
        What the samples are conditioned on.

    Returns
    -------
    samples : ndarray of shape (n_samples, n_columns)
        With scaled columns.
    """
    device, step = next(network.parameters()).device, 1 / _N_STEPS
    widths, found = torch.from_numpy(spreads).to(device), []
    for part in gen_batches(len(noise), _ROWS_AT_ONCE):
        points = torch.from_numpy(noise[part]).to(device)
        given = None if codes is None else torch.from_numpy(codes[part]).to(device)
        with torch.no_grad():
            for number in range(_N_STEPS):
                times = torch.full((len(points), 1), number * step, device=device)
                first = velocity(network, points, times, widths, given)
                second = velocity(network, points + step * first, times + step, widths, given)
                points = points + 0.5 * step * (first + second)
        found.append(points.numpy(force=True))
    return np.concatenate(found)
