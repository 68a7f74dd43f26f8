"""Training of a generator against critics, wherever the critics live."""

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

from .._actors import Actors
from ..utils._fit import record
from ..utils._torch import NotFinite, average_weights, has_finite_weights, seeded_torch
from ._critics import Part, own_term
from ._generator_networks import make_optimizer
from ._potentials import ascend

# Critics send a checkpoint after so many updates, and the points' spread is looked at.
_CHECKPOINT_EVERY = 50
# Points that spread so many times as much as the rows come from a training that diverges.
_MAX_SPREAD = 3.0


@dataclass(frozen=True)
class TrainingPlan:
    """Parameters of a training, with "auto" resolved.

    Attributes
    ----------
    learned : bool
        Whether critics have networks.
    power : int
        A move costs its length to this power.
    debias : bool
        Whether the cost of rows to rows and of points to points is taken off.
    spread : float
        The mean standard deviation of a column of the rows.
    lr : float
        The learning rate of the generator; without networks of critics it falls along a cosine.
    batch_size : int
        Rows of each critic in an update.
    n_points, latent_dim : int
        Generated points of an update, and columns of their latent vectors.
    n_critic_steps : int
        Batches of points for the critics in an update.
    n_potential_steps : int or None
        Steps towards potentials that all critics share; None leaves each critic its own.
    max_iter : int
        Updates.
    seed : int
        Seeds all that is random.
    shares : list of float or None, default=None
        What each critic's part counts; None counts all alike.
    device : str, default="cpu"
        Where networks are trained.
    """

    learned: bool
    power: int
    debias: bool
    spread: float
    lr: float
    batch_size: int
    n_points: int
    latent_dim: int
    n_critic_steps: int
    n_potential_steps: int | None
    max_iter: int
    seed: int
    shares: list[float] | None = None
    device: str = "cpu"


@dataclass
class Trained:
    """Result of a training, beside the weights of the generator.

    Attributes
    ----------
    history : dict of list
        "wasserstein", the transport cost of each update, and "seconds".
    parts : list of Part
        Answers of the critics in the last update.
    error : NotFinite or None
        Why training ended early, if it did.
    """

    history: dict[str, list] = field(default_factory=lambda: {"wasserstein": [], "seconds": []})
    parts: list[Part] = field(default_factory=list)
    error: NotFinite | None = None


class Diverged(NotFinite):
    """Generated points spread much more than the rows, and ever more."""


class _Spread:
    """Looks at the spread of points now and then, and keeps weights from before it ran away.

    Parameters
    ----------
    expected : float
        That of the rows.
    weights : callable
        Returns a copy of the weights.
    """

    def __init__(self, expected: float, weights: Callable[[], dict[str, torch.Tensor]]) -> None:
        self._limit, self._weights = _MAX_SPREAD * expected, weights
        self._last = np.inf
        self.kept, self.n_kept = weights(), 0

    def look(self, points: NDArray, update: int) -> None:
        """Raise an error if the points spread too much, and more than the last time."""
        spread = column_spread(points)
        if self._limit and spread > max(self._limit, self._last):
            raise Diverged(
                f"training diverged: in update {update} the points spread "
                f"{_MAX_SPREAD * spread / self._limit:.2g} times as much as the rows"
            )
        if spread <= self._limit:
            self.kept, self.n_kept = self._weights(), update
        self._last = spread


def column_spread(X: NDArray) -> float:
    """Return the mean standard deviation of a column."""
    return float(X.std(axis=0).mean())


def train(
    generator: nn.Module,
    critics: Actors,
    plan: TrainingPlan,
    project: Callable[[NDArray], NDArray],
    begin: Callable[[], None],
    report: Callable[[float, Callable[[], nn.Module]], Any],
    draw_codes: Callable[[int, np.random.Generator], NDArray] | None = None,
) -> Trained:
    """Train a generator.

    In each update the generator sends points, every critic returns the gradient of its transport
    cost by the points, and the generator is trained by the mean of these gradients, weighted where
    the rows of critics are.

    Parameters
    ----------
    generator : nn.Module
        Trained in place; at the end it has the EMA of its weights, as those of a game go around
        their goal, and is on the CPU.
    critics : Actors
        The critics.
    plan : TrainingPlan
        The parameters.
    project : callable
        Moves points to values that their columns can have.
    begin : callable
        Called before each update.
    report : callable
        Called after each update with its value and a function that returns the generator as it
        would be if training stopped here; returns whether to stop.
    draw_codes : callable, default=None
        Returns so many codes that points are conditioned on. The generator gets them after its
        latent vectors, and critics after points, as their rows have them.

    Returns
    -------
    trained : Trained
        History and last update.
    """
    trained, start = Trained(), time.perf_counter()
    generator.to(plan.device)
    optimizer = make_optimizer(generator, plan.lr, is_game=plan.learned)
    average = average_weights(generator)
    spread = _Spread(plan.spread, lambda: copy.deepcopy(average.module.state_dict()))
    latents = np.random.default_rng([plan.seed, 0])
    generator.train()
    try:
        for update in range(1, plan.max_iter + 1):
            begin()
            shape = plan.n_critic_steps, plan.n_points, plan.latent_dim
            inputs = latents.standard_normal(shape, dtype=np.float32)
            if draw_codes is not None:
                codes = draw_codes(shape[0] * shape[1], latents).reshape(*shape[:2], -1)
                inputs = np.concatenate([inputs, codes], axis=-1)
            Z = torch.from_numpy(inputs).to(plan.device)
            with seeded_torch(plan.seed + update):
                with torch.no_grad():
                    points = [generator(z) for z in Z[:-1]]
                output = generator(Z[-1])
            # Critics see what users get; the gradient passes through as if it were the output.
            batches = project(torch.stack([*points, output.detach()]).numpy(force=True))
            if not np.isfinite(batches).all():
                raise NotFinite(f"the points were not finite in update {update}")
            if draw_codes is not None:
                batches = np.concatenate([batches, codes], axis=-1)
            parts = ask_critics(critics, update, batches, plan)
            gradient = np.average([part.gradient for part in parts], axis=0, weights=plan.shares)
            value = float(np.average([part.value for part in parts], weights=plan.shares))
            if plan.debias and not plan.learned:
                own_gradient, own_value = own_term(batches[-1].astype(np.float64), plan.power)
                gradient, value = gradient + own_gradient, value + own_value
            gradient = gradient[:, : output.shape[1]].astype(np.float32, copy=False)
            if not (np.isfinite(gradient).all() and np.isfinite(value)):
                raise NotFinite(f"the transport cost was not finite in update {update}")
            if not plan.learned:
                angle = np.pi * (update - 1) / plan.max_iter
                optimizer.param_groups[0]["lr"] = plan.lr * 0.5 * (1 + np.cos(angle))
            optimizer.zero_grad()
            output.backward(torch.from_numpy(gradient).to(plan.device))
            optimizer.step()
            if not has_finite_weights(generator):
                raise NotFinite(f"the weights were not finite after update {update}")
            average.update_parameters(generator)
            record(trained.history, start, wasserstein=value)
            trained.parts = parts
            if report(value, lambda: copy.deepcopy(average.module).eval()):
                break
            if update % _CHECKPOINT_EVERY == 0:
                critics.save()
                spread.look(batches[-1][:, : output.shape[1]], update)
    except Diverged as error:
        trained.error = error
        average.module.load_state_dict(spread.kept)
        trained.history = {
            name: values[: spread.n_kept] for name, values in trained.history.items()
        }
    except NotFinite as error:
        trained.error = error
    critics.save()
    generator.load_state_dict(average.module.state_dict())
    generator.cpu().eval()
    return trained


def ask_critics(critics: Actors, update: int, points: NDArray, plan: TrainingPlan) -> list[Part]:
    """Return the parts of all critics in an update, with potentials of their own or shared ones."""
    if plan.n_potential_steps is None:
        return critics.ask("step", update, points)
    starts = np.stack(critics.ask("start", update, points))

    def masses(potentials):
        found = critics.ask("masses", potentials.astype(np.float32), continues=True)
        return np.average(found, axis=0, weights=plan.shares)

    potentials = ascend(masses, starts, plan.n_potential_steps)
    return critics.ask("finish", potentials.astype(np.float32), continues=True)
