"""Flow matching: a velocity that carries noise to rows, its training, and samples along it.

Noise z and a row x, both scaled, are joined by a line, (1 - t) z + t x for t from 0 to 1. A network
learns the mean velocity x - z of the lines through a point. If rows were normal and their columns
independent, that velocity would be linear in the point; the network learns what is left. So before
the first update samples are normal, with the spread of the rows.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..utils._fit import record
from ..utils._supervision import draw_weighted
from ..utils._torch import (
    NotFinite,
    average_weights,
    choose_device,
    has_finite_weights,
    seeded_torch,
)
from ._generator_input import check_batch_size
from ._generator_networks import VelocityNetwork

_LR, _BATCH_SIZE = 0.003, 128
# Updates: so many for each row, as more would learn few rows by heart, within bounds.
_UPDATES_PER_ROW, _FEWEST_UPDATES, _MOST_UPDATES = 4, 150, 5000
# Of the time, as sines and cosines.
_N_WAVES = 4
# Steps of Heun's method from noise to a row.
_N_STEPS = 10
_N_WARM_UP = 50
# Weights are looked at after so many updates, and kept where they are finite.
_CHECK_EVERY = 20
_EMA_DECAY = 0.998
# Numbers of other rows that the expected velocity is taken over, and the most rows, for each point.
_MOST_NUMBERS, _MOST_OTHERS = 4096, 32
_N_POOL = 20_000
# Nearer to the end no other row can have led to a point.
_END = 0.999
# A column whose spread is less than this share of the mean is as narrow as that.
_LEAST_SPREAD = 0.001
# The spread of a scaled column, at least: narrower ones would need more steps.
_LEAST_RATIO = 0.2


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


def _parts(points, times, spreads, codes):
    """Return the inputs of the network, the linear velocity, and the scale of what is left of it.

    Of normal rows with these spreads, points have the variance (1 - t)^2 + t^2 s^2, and velocities
    have the variance s^2 over it around their mean given the point, which is linear.
    """
    variance = (1 - times) ** 2 + (times * spreads) ** 2
    linear = points * (times * spreads**2 - (1 - times)) / variance
    waves = torch.pi * torch.arange(1, _N_WAVES + 1, device=times.device) * times
    given = [waves.sin(), waves.cos()] + ([] if codes is None else [codes])
    inputs = points / variance.sqrt(), torch.cat(given, dim=1)
    return inputs, linear, spreads / variance.sqrt()


def velocity(
    network: nn.Module,
    points: torch.Tensor,
    times: torch.Tensor,
    spreads: torch.Tensor,
    codes: torch.Tensor | None,
) -> torch.Tensor:
    """Return the velocity of points: the linear one of normal rows, and what the network adds."""
    inputs, linear, scale = _parts(points, times, spreads, codes)
    return linear + scale * network(*inputs)


def flow_loss(
    network: nn.Module,
    rows: torch.Tensor,
    noise: torch.Tensor,
    times: torch.Tensor,
    spreads: torch.Tensor,
    codes: torch.Tensor | None,
    others: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the mean squared error of the network.

    It is that of `velocity` over the scale of what is left of it, by which the errors of all times
    weigh the same, times the spreads of the columns. With `others`, of shape (n_rows, n_others,
    n_columns), rows that were drawn like those of `rows`, the target is the expected one.
    """
    points = (1 - times) * noise + times * rows
    inputs, linear, scale = _parts(points, times, spreads, codes)
    target = rows - noise - linear
    if others is not None:
        target += expected_change(rows, noise, times, others)
    target /= scale
    return (spreads * (network(*inputs) - target) ** 2).mean()


def expected_change(
    rows: torch.Tensor, noise: torch.Tensor, times: torch.Tensor, others: torch.Tensor
) -> torch.Tensor:
    """Return by how much the velocity of a line differs from that expected at its point.

    The row of a line could be any of the set of itself and the others, if all were drawn alike.
    Given the point, each has a posterior probability, by the noise that it would take. The expected
    velocity under it has the same mean as that of the line, and less variance.
    """
    gaps = others - rows[:, None]
    ratio = times / (1 - times)
    scores = ratio * (gaps @ noise[:, :, None])[:, :, 0] - 0.5 * ratio**2 * gaps.square().sum(2)
    shares = torch.softmax(nn.functional.pad(scores, (1, 0)), dim=1)[:, None, 1:]
    change = (shares @ gaps)[:, 0] / (1 - times)
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
    network.to(plan.device)
    average = average_weights(network, _EMA_DECAY)
    optimizer = torch.optim.Adam(network.parameters(), lr=plan.lr, betas=(0.9, 0.99), fused=True)
    trained, start = FlowTrained(average.module), time.perf_counter()
    X, S = (torch.from_numpy(part).to(plan.device) for part in (rows, spreads))
    C = None if codes is None else torch.from_numpy(codes).to(plan.device)
    rng, n = np.random.default_rng([plan.seed, 1]), plan.batch_size
    draw = make_drawer(codes, weights, len(rows), plan.seed)
    n_others = min(_MOST_OTHERS, _MOST_NUMBERS // rows.shape[1])
    kept, n_kept = copy.deepcopy(average.module.state_dict()), 0
    try:
        for update in range(1, plan.max_iter + 1):
            begin()
            chosen = rng.integers(len(rows), size=n)
            if weights is not None:
                chosen = rng.permutation(draw_weighted(weights, n, rng))
            noise = torch.from_numpy(rng.standard_normal((n, rows.shape[1]), dtype=np.float32))
            # One time in each part of the range: less noise than independent ones.
            times = torch.from_numpy(((np.arange(n) + rng.random(n)) / n).astype(np.float32))
            noise, times = noise.to(plan.device), times[:, None].to(plan.device)
            given = None if C is None else C[chosen]
            others = X[draw(chosen, n_others)] if draw and n_others else None
            loss = flow_loss(network, X[chosen], noise, times, S, given, others)
            value = float(loss.detach())
            if not np.isfinite(value):
                raise NotFinite(f"the loss was not finite in update {update}")
            falling = 0.5 * (1 + np.cos(np.pi * (update - 1) / plan.max_iter))
            optimizer.param_groups[0]["lr"] = plan.lr * falling * min(1.0, update / _N_WARM_UP)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update_parameters(network)
            record(trained.history, start, loss=value)
            stops = report(value, lambda: copy.deepcopy(average.module).eval())
            if stops or update % _CHECK_EVERY == 0 or update == plan.max_iter:
                if not has_finite_weights(average.module):
                    raise NotFinite(f"the weights were not finite after update {update}")
                kept, n_kept = copy.deepcopy(average.module.state_dict()), update
            if stops:
                break
    except NotFinite as error:
        trained.error = error
        average.module.load_state_dict(kept)
        trained.history = {name: values[:n_kept] for name, values in trained.history.items()}
    trained.network.cpu().eval()
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
    points, widths = (torch.from_numpy(part).to(device) for part in (noise, spreads))
    given = None if codes is None else torch.from_numpy(codes).to(device)
    with torch.no_grad():
        for number in range(_N_STEPS):
            times = torch.full((len(noise), 1), number * step, device=device)
            first = velocity(network, points, times, widths, given)
            second = velocity(network, points + step * first, times + step, widths, given)
            points = points + 0.5 * step * (first + second)
    return points.numpy(force=True)
