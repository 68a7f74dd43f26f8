"""Flow matching: a velocity that carries noise to rows, its training, and samples along it.

Noise z and a row x, both of unit variance, are joined by a line, (1 - t) z + t x for t from 0 to 1.
A network learns the mean velocity x - z of the lines through a point. If rows were normal and
their columns independent, that velocity would be linear in the point; the network learns what is
left. So before the first update samples are normal, with the spread of the rows.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..utils._fit import record
from ..utils._supervision import draw_weighted
from ..utils._torch import NotFinite, average_weights, has_finite_weights, seeded_torch
from ._generator_networks import mlp_velocity

# Of the time, as sines and cosines.
_N_WAVES = 4
# Steps of Heun's method from noise to a row.
_N_STEPS = 16
_N_WARM_UP = 50
_EMA_DECAY = 0.995
# A column whose spread is less than this share of the mean is as narrow as that.
_LEAST_SPREAD = 0.1


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
    """

    lr: float
    batch_size: int
    max_iter: int
    seed: int


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


def column_scales(rows: NDArray) -> NDArray:
    """Return the spread of each column, by which rows have unit variance."""
    spread = rows.std(axis=0)
    varying = spread[spread > 0]
    least = _LEAST_SPREAD * varying.mean() if len(varying) else 1.0
    return np.maximum(spread, least).astype(np.float32)


def make_velocity(n_columns: int, n_codes: int, seed: int) -> nn.Module:
    """Return a new network of `velocity`, whose output is 0."""
    with seeded_torch(seed):
        return mlp_velocity(n_columns + 2 * _N_WAVES + n_codes, n_columns)


def _inputs(points, times, variance, codes):
    waves = torch.pi * torch.arange(1, _N_WAVES + 1) * times
    parts = [points / variance.sqrt(), waves.sin(), waves.cos()]
    return torch.cat(parts if codes is None else [*parts, codes], dim=1)


def velocity(
    network: nn.Module, points: torch.Tensor, times: torch.Tensor, codes: torch.Tensor | None
) -> torch.Tensor:
    """Return the velocity of points: the linear one of normal rows, and what the network adds."""
    variance = (1 - times) ** 2 + times**2
    linear = points * (2 * times - 1) / variance
    return linear + network(_inputs(points, times, variance, codes)) / variance.sqrt()


def flow_loss(
    network: nn.Module,
    rows: torch.Tensor,
    noise: torch.Tensor,
    times: torch.Tensor,
    codes: torch.Tensor | None,
) -> torch.Tensor:
    """Return the mean squared error of the network.

    It is that of `velocity` times the variance of the points of a time, by which the errors of all
    times weigh the same.
    """
    points = (1 - times) * noise + times * rows
    variance = (1 - times) ** 2 + times**2
    linear = points * (2 * times - 1) / variance
    target = (rows - noise - linear) * variance.sqrt()
    return ((network(_inputs(points, times, variance, codes)) - target) ** 2).mean()


def train_flow(
    rows: NDArray,
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
        Rows with columns of unit variance, of float32.
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
    average = average_weights(network, _EMA_DECAY)
    optimizer = torch.optim.Adam(network.parameters(), lr=plan.lr, betas=(0.9, 0.99), fused=True)
    trained, start = FlowTrained(average.module), time.perf_counter()
    X, C = torch.from_numpy(rows), None if codes is None else torch.from_numpy(codes)
    rng, n = np.random.default_rng([plan.seed, 1]), plan.batch_size
    try:
        for update in range(1, plan.max_iter + 1):
            begin()
            chosen = rng.integers(len(rows), size=n)
            if weights is not None:
                chosen = rng.permutation(draw_weighted(weights, n, rng))
            noise = torch.from_numpy(rng.standard_normal((n, rows.shape[1]), dtype=np.float32))
            # One time in each part of the range: less noise than independent ones.
            times = torch.from_numpy(((np.arange(n) + rng.random(n)) / n).astype(np.float32))
            batch = X[chosen], noise, times[:, None], None if C is None else C[chosen]
            loss = flow_loss(network, *batch)
            value = float(loss.detach())
            if not np.isfinite(value):
                raise NotFinite(f"the loss was not finite in update {update}")
            falling = 0.5 * (1 + np.cos(np.pi * (update - 1) / plan.max_iter))
            optimizer.param_groups[0]["lr"] = plan.lr * falling * min(1.0, update / _N_WARM_UP)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not has_finite_weights(network):
                raise NotFinite(f"the weights were not finite after update {update}")
            average.update_parameters(network)
            record(trained.history, start, loss=value)
            if report(value, lambda: copy.deepcopy(average.module).eval()):
                break
    except NotFinite as error:
        trained.error = error
    trained.network.eval()
    return trained


def integrate(network: nn.Module, noise: NDArray, codes: NDArray | None) -> NDArray:
    """Return where noise is carried to, by Heun's method.

    Parameters
    ----------
    network : nn.Module
        The network of `velocity`.
    noise : ndarray of shape (n_samples, n_columns)
        Of float32.
    codes : ndarray of shape (n_samples, n_codes) or None
        What the samples are conditioned on.

    Returns
    -------
    samples : ndarray of shape (n_samples, n_columns)
        With columns of unit variance.
    """
    points, step = torch.from_numpy(noise), 1 / _N_STEPS
    given = None if codes is None else torch.from_numpy(codes)
    with torch.no_grad():
        for number in range(_N_STEPS):
            times = torch.full((len(points), 1), number * step)
            first = velocity(network, points, times, given)
            second = velocity(network, points + step * first, times + step, given)
            points = points + 0.5 * step * (first + second)
    return points.numpy()
