"""Training of a generator against critics: one loop, wherever the critics live."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..utils._torch import has_finite_weights, seeded_torch
from ._critics import Part
from ._generator_networks import make_optimizer
from ._generator_workers import Crew
from ._potentials import ascend

# Critics send their state after so many updates.
_CHECKPOINT_EVERY = 50
# How much of the running mean of the weights is left after an update, at most.
_DECAY = 0.99


@dataclass
class Trained:
    """What a training leaves, beside the weights of the generator.

    Attributes
    ----------
    values : list of float
        The transport cost of each update.
    seconds : list of float
        From the start of training to the end of each update.
    parts : list of Part
        What the critics returned in the last update.
    stopped : str or None
        Why training ended early, if it did for a bad reason.
    """

    values: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    stopped: str | None = None


def train(
    generator: nn.Module,
    crew: Crew,
    *,
    latent_dim: int,
    n_points: int,
    n_critic_steps: int,
    n_potential_steps: int | None,
    lr: float,
    max_iter: int,
    seed: int,
    begin: Any,
    report: Any,
) -> Trained:
    """Train a generator.

    In each update the generator sends points, every critic returns the gradient of its transport
    cost by the points, and their mean goes back through the generator.

    Parameters
    ----------
    generator : nn.Module
        Trained in place; at the end it has the running mean of its weights.
    crew : Crew
        The critics.
    latent_dim : int
        Columns of a latent vector.
    n_points : int
        Points of an update.
    n_critic_steps : int
        Batches of points for the critics in an update.
    n_potential_steps : int or None
        Steps towards the potentials of all critics together; None leaves each critic its own.
    lr : float
        The learning rate.
    max_iter : int
        Updates.
    seed : int
        Seeds the latent vectors.
    begin : callable
        Called before each update.
    report : callable
        Called after each update with its value and a function that returns the generator as it
        would be if training stopped here; returns whether to stop.

    Returns
    -------
    trained : Trained
        What there is to tell.
    """
    trained, start = Trained(), time.perf_counter()
    optimizer = make_optimizer(generator, lr)
    mean = RunningMean(generator)
    latents = np.random.default_rng([seed, 0])
    generator.train()
    for update in range(1, max_iter + 1):
        begin()
        shape = n_critic_steps, n_points, latent_dim
        Z = torch.from_numpy(latents.standard_normal(shape, dtype=np.float32))
        with seeded_torch(seed + update):
            with torch.no_grad():
                points = [generator(z) for z in Z[:-1]]
            output = generator(Z[-1])
        batches = torch.stack([*points, output.detach()]).numpy()
        if not np.isfinite(batches).all():
            trained.stopped = f"the points were not finite in update {update}"
            break
        parts = ask_critics(crew, update, batches, n_potential_steps)
        gradient = np.mean([part.gradient for part in parts], axis=0)
        value = float(np.mean([part.value for part in parts]))
        if not (np.isfinite(gradient).all() and np.isfinite(value)):
            trained.stopped = f"the transport cost was not finite in update {update}"
            break
        optimizer.zero_grad()
        output.backward(torch.from_numpy(gradient))
        optimizer.step()
        if not has_finite_weights(generator):
            trained.stopped = f"the weights were not finite after update {update}"
            break
        mean.add()
        trained.values.append(value)
        trained.seconds.append(time.perf_counter() - start)
        trained.parts = parts
        if report(value, mean.network):
            break
        if update % _CHECKPOINT_EVERY == 0:
            crew.keep_checkpoints()
    crew.keep_checkpoints()
    generator.load_state_dict(mean.state)
    generator.eval()
    return trained


def ask_critics(
    crew: Crew, update: int, points: NDArray, n_potential_steps: int | None
) -> list[Part]:
    """Return the parts of all critics in an update, with potentials of their own or shared ones."""
    if n_potential_steps is None:
        return crew.ask("step", update, points)
    starts = np.stack(crew.ask("start", update, points))

    def masses(potentials):
        return np.mean(crew.ask("masses", potentials.astype(np.float32)), axis=0)

    potentials = ascend(masses, starts, n_potential_steps)
    return crew.ask("finish", potentials.astype(np.float32))


class RunningMean:
    """The mean of a network's weights over its latest updates.

    Weights of a game go around their goal; their mean is nearer to it. Whole numbers, such as the
    counts of batch norm, are taken as they are.

    Parameters
    ----------
    network : nn.Module
        The network that is trained; the mean starts from its weights.

    Attributes
    ----------
    state : dict
        The mean, as a state dict of the network.
    """

    def __init__(self, network: nn.Module) -> None:
        self.state = {name: value.clone() for name, value in network.state_dict().items()}
        self._network = network
        self._n_added = 0

    def add(self) -> None:
        """Count the weights of another update."""
        self._n_added += 1
        weight = max(1 - _DECAY, 9 / (9 + self._n_added))
        for name, value in self._network.state_dict().items():
            if value.is_floating_point():
                self.state[name].lerp_(value, weight)
            else:
                self.state[name].copy_(value)

    def network(self) -> nn.Module:
        """Return a copy of the network that has the mean of its weights."""
        network = copy.deepcopy(self._network)
        network.load_state_dict(self.state)
        return network.eval()
