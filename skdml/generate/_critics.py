"""A critic: its share of the real rows, its network, and its part in one update."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from ._generator_networks import bound_slopes, seed_torch
from ._potentials import (
    cell_masses,
    cell_plan,
    costs_between,
    dual_value,
    exact_plan,
    transport_cost,
)

BETAS = (0.5, 0.9)


@dataclass(frozen=True)
class CriticSettings:
    """What all critics share.

    Attributes
    ----------
    make_network : callable or None
        Returns a new network; None for the Euclidean cost, which needs none.
    debias : bool
        Whether the cost of rows to rows and of points to points is taken off.
    batch_size : int
        Real rows of an update; all, if there are fewer.
    lr : float
        The learning rate of the network.
    seed : int
        Seeds weights and batches.
    """

    make_network: Callable[[], torch.nn.Module] | None
    debias: bool
    batch_size: int
    lr: float
    seed: int


class Part(NamedTuple):
    """What a critic returns of an update.

    Attributes
    ----------
    gradient : ndarray of shape (n_points, n_features)
        Of the transport cost, by the generated points.
    value : float
        The transport cost.
    potentials : ndarray of shape (n_points,)
        The potentials that the plans are of.
    masses : ndarray of shape (n_points,)
        The masses that the points received, in units of their weight.
    """

    gradient: np.ndarray
    value: float
    potentials: np.ndarray
    masses: np.ndarray


class Critic:
    """A critic and its rows, which nobody else sees.

    Batches depend on the seed, the number of the critic and of the update alone, so that an
    update can be repeated elsewhere.

    Parameters
    ----------
    number : int
        Which of the critics.
    rows : ndarray of shape (n_rows, n_features)
        Its share of the real rows, scaled, of float32.
    settings : CriticSettings
        What all critics share.
    checkpoint : bytes or None, default=None
        The state to go on from.
    """

    def __init__(
        self,
        number: int,
        rows: np.ndarray,
        settings: CriticSettings,
        checkpoint: bytes | None = None,
    ):
        self.number, self.settings = number, settings
        self.rows = torch.from_numpy(rows)
        self.network, self._optimizer = None, None
        if settings.make_network is None:
            return
        with torch.random.fork_rng(devices=[]):
            seed_torch(self._seed(0, 0))
            self.network = bound_slopes(settings.make_network()).train()
        self._optimizer = torch.optim.Adam(
            self.network.parameters(), lr=settings.lr, betas=BETAS, maximize=True
        )
        if checkpoint is not None:
            state = torch.load(io.BytesIO(checkpoint), weights_only=True)
            self.network.load_state_dict(state["network"])
            self._optimizer.load_state_dict(state["optimizer"])

    def checkpoint(self) -> bytes | None:
        """Return the state of the network and its optimiser; None without a network."""
        if self.network is None or self._optimizer is None:
            return None
        file = io.BytesIO()
        state = {"network": self.network.state_dict(), "optimizer": self._optimizer.state_dict()}
        torch.save(state, file)
        return file.getvalue()

    def _seed(self, update, step):
        source = np.random.SeedSequence([self.settings.seed, self.number, update, step])
        return int(source.generate_state(1, np.uint64)[0] >> 1)

    def _draw(self, update, step):
        """Draw a batch of rows, and seed what may be random inside the network."""
        seed = self._seed(update, step)
        seed_torch(seed)
        n_rows = min(self.settings.batch_size, len(self.rows))
        chosen = np.random.default_rng(seed).choice(len(self.rows), n_rows, replace=False)
        return self.rows[torch.from_numpy(chosen)]

    # An update

    def start(self, update: int, points: np.ndarray) -> np.ndarray:
        """Begin an update: compute costs and plans of the critic's own rows.

        Parameters
        ----------
        update : int
            Its number, from 1.
        points : ndarray of shape (n_critic_steps, n_points, n_features)
            Generated points, a batch for each step of the critic. The last is for the generator
            as well.

        Returns
        -------
        potentials : ndarray of shape (n_points,)
            The best for the rows of this critic.
        """
        with torch.random.fork_rng(devices=[]):
            for step, batch in enumerate(points[:-1], 1):
                self._compare(self._draw(update, step), torch.tensor(batch))
                self._ascend(self._objective(self._plans))
            self._points: Any = torch.tensor(points[-1], requires_grad=True)
            self._compare(self._draw(update, 0), self._points)
        return np.concatenate(self._potentials).astype(np.float32)

    def masses(self, potentials: np.ndarray) -> np.ndarray:
        """Return the masses of the cells of given potentials."""
        return np.concatenate(
            [
                cell_masses(costs, part)
                for costs, part in zip(self._plain, self._split(potentials), strict=True)
            ]
        ).astype(np.float32)

    def finish(self, potentials: np.ndarray | None = None) -> Part:
        """End an update: let the critic's network step, and return what the generator needs.

        Parameters
        ----------
        potentials : ndarray of shape (n_points,) or None, default=None
            Those of all critics together; None takes the plans of the critic's own rows.

        Returns
        -------
        part : Part
            Of the last batch of points.
        """
        plans = self._plans
        if potentials is not None:
            pairs = list(zip(self._plain, self._split(potentials), strict=True))
            plans = [cell_plan(*pair) for pair in pairs]
        objective = self._objective(plans)
        value = float(objective.detach())
        if potentials is not None:
            # Cells of unequal mass are no transport: the dual value takes the place of their cost.
            for (costs, part), plan in zip(pairs, plans, strict=True):
                value += (dual_value(costs, part) - float((costs * plan).sum())) / len(pairs)
        self._ascend(objective)
        masses = [plan.sum(axis=0) * plan.shape[1] for plan in plans]
        if potentials is None:
            potentials = np.concatenate(self._potentials).astype(np.float32)
        gradient = self._points.grad.numpy()
        return Part(gradient, value, potentials, np.concatenate(masses).astype(np.float32))

    def step(self, update: int, points: np.ndarray) -> Part:
        """Do an update at once, with the plans of the critic's own rows."""
        self.start(update, points)
        return self.finish()

    # Inside an update

    def _compare(self, rows, points):
        """Set costs, plans and potentials of rows to points, and the costs within both."""
        p = 2
        if self.network is not None:
            features = self.network(torch.cat([rows, points])).flatten(1)
            rows, points, p = features[: len(rows)], features[len(rows) :], 1
        pairs, self._within = [(rows, points)], []
        if self.settings.debias:
            row_halves, point_halves = _halves(rows), _halves(points)
            pairs = list(zip(row_halves, point_halves, strict=True))
            self._within = [costs_between(*row_halves, p), costs_between(*point_halves, p)]
        self._costs = [costs_between(A, B, p) for A, B in pairs]
        self._plain = [costs.numpy(force=True) for costs in self._costs]
        self._plans, self._potentials = zip(*map(exact_plan, self._plain), strict=True)

    def _objective(self, plans):
        """Return the transport cost, debiased if asked for."""
        value = sum(map(transport_cost, self._costs, plans))
        for costs in self._within:
            value = value - transport_cost(costs, exact_plan(costs.numpy(force=True))[0])
        return value / len(self._costs)

    def _ascend(self, objective):
        if self._optimizer is not None:
            self._optimizer.zero_grad()
        if objective.requires_grad:
            objective.backward()
        if self._optimizer is not None:
            self._optimizer.step()

    def _split(self, potentials):
        return np.split(potentials, [self._plain[0].shape[1]])[: len(self._plain)]


def _halves(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return batch[: len(batch) // 2], batch[len(batch) // 2 :]
