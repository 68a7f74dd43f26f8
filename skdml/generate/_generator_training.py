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
from ._critics import Part
from ._generator_networks import make_optimizer
from ._potentials import ascend

# Critics send a checkpoint after so many updates.
_CHECKPOINT_EVERY = 50


@dataclass(frozen=True)
class TrainingPlan:
    """Parameters of a training, with "auto" resolved.

    Attributes
    ----------
    learned : bool
        Whether critics have networks.
    debias : bool
        Whether the cost of rows to rows and of points to points is taken off.
    lr : float
        The learning rate of the generator.
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
    """

    learned: bool
    debias: bool
    lr: float
    n_points: int
    latent_dim: int
    n_critic_steps: int
    n_potential_steps: int | None
    max_iter: int
    seed: int
    shares: list[float] | None = None


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


def train(
    generator: nn.Module,
    critics: Actors,
    plan: TrainingPlan,
    begin: Callable[[], None],
    report: Callable[[float, Callable[[], nn.Module]], Any],
) -> Trained:
    """Train a generator.

    In each update the generator sends points, every critic returns the gradient of its transport
    cost by the points, and the generator is trained by the mean of these gradients, weighted where
    the rows of critics are.

    Parameters
    ----------
    generator : nn.Module
        Trained in place; at the end it has the EMA of its weights, as those of a game go around
        their goal.
    critics : Actors
        The critics.
    plan : TrainingPlan
        The parameters.
    begin : callable
        Called before each update.
    report : callable
        Called after each update with its value and a function that returns the generator as it
        would be if training stopped here; returns whether to stop.

    Returns
    -------
    trained : Trained
        History and last update.
    """
    trained, start = Trained(), time.perf_counter()
    optimizer = make_optimizer(generator, plan.lr)
    average = average_weights(generator)
    latents = np.random.default_rng([plan.seed, 0])
    generator.train()
    try:
        for update in range(1, plan.max_iter + 1):
            begin()
            shape = plan.n_critic_steps, plan.n_points, plan.latent_dim
            Z = torch.from_numpy(latents.standard_normal(shape, dtype=np.float32))
            with seeded_torch(plan.seed + update):
                with torch.no_grad():
                    points = [generator(z) for z in Z[:-1]]
                output = generator(Z[-1])
            batches = torch.stack([*points, output.detach()]).numpy()
            if not np.isfinite(batches).all():
                raise NotFinite(f"the points were not finite in update {update}")
            parts = ask_critics(critics, update, batches, plan)
            gradient = np.average([part.gradient for part in parts], axis=0, weights=plan.shares)
            gradient = gradient.astype(np.float32, copy=False)
            value = float(np.average([part.value for part in parts], weights=plan.shares))
            if not (np.isfinite(gradient).all() and np.isfinite(value)):
                raise NotFinite(f"the transport cost was not finite in update {update}")
            optimizer.zero_grad()
            output.backward(torch.from_numpy(gradient))
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
    except NotFinite as error:
        trained.error = error
    critics.save()
    generator.load_state_dict(average.module.state_dict())
    generator.eval()
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
