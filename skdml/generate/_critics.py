"""A critic: its share of the real rows, its network, and its gradient in an update."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..utils._supervision import draw_weighted
from ..utils._torch import seeded_torch
from ._generator_networks import bound_slopes, make_optimizer
from ._potentials import (
    cell_masses,
    cell_plan,
    costs_between,
    dual_value,
    exact_plan,
    soft_potentials,
    transport_gradient,
)

# Pairs of batches of rows whose mean transport cost is that of rows to rows.
_N_OWN_DRAWS = 8


@dataclass(frozen=True)
class CriticSettings:
    """Parameters of all critics.

    Attributes
    ----------
    make_network : callable or None
        Returns a new network; None for a cost of the rows as they are.
    power : int
        A move costs its length to this power.
    debias : bool
        Whether the cost of rows to rows and of points to points is taken off. Without a network
        the points' own cost is the same for all critics: the generator takes it off.
    batch_size : int
        Real rows of an update; all, if there are fewer.
    lr : float
        The learning rate of the network.
    seed : int
        Seeds weights and batches.
    n_codes : int, default=0
        The last so many columns of rows and points are codes that these are conditioned on. A
        network does not see them; they are compared as they are, beside its features.
    device : str, default="cpu"
        Where the network is.
    """

    make_network: Callable[[], torch.nn.Module] | None
    power: int
    debias: bool
    batch_size: int
    lr: float
    seed: int
    n_codes: int = 0
    device: str = "cpu"


class Part(NamedTuple):
    """Answer of a critic in an update.

    Attributes
    ----------
    gradient : ndarray of shape (n_points, n_features)
        Of the transport cost, by the generated points.
    value : float
        The transport cost.
    potentials : ndarray of shape (n_points,)
        The potentials of the plans.
    masses : ndarray of shape (n_points,)
        Masses of the points' cells, in units of their weight.
    """

    gradient: NDArray
    value: float
    potentials: NDArray
    masses: NDArray


class Term(NamedTuple):
    """One transport cost of an objective.

    Attributes
    ----------
    A, B : slice
        Source and target, as slices of the rows and points of a batch.
    share : float
        The weight of the cost in the objective.
    costs : ndarray of shape (n_A, n_B)
        The costs.
    """

    A: slice
    B: slice
    share: float
    costs: NDArray


class Critic:
    """A critic and its rows, which stay with it.

    Batches depend on the seed, the number of the critic and of the update alone, so that an
    update can be repeated elsewhere.

    Parameters
    ----------
    number : int
        Which of the critics.
    rows : ndarray of shape (n_rows, n_features)
        Its share of the real rows, scaled, of float32.
    settings : CriticSettings
        Parameters of all critics.
    weights : ndarray of shape (n_rows,) or None, default=None
        By which rows are drawn; None draws all alike.
    checkpoint : bytes or None, default=None
        Weights and state of the optimiser, from `checkpoint`.
    """

    def __init__(
        self,
        number: int,
        rows: NDArray,
        settings: CriticSettings,
        weights: NDArray | None = None,
        checkpoint: bytes | None = None,
    ) -> None:
        self.number, self.settings, self.rows, self.weights = number, settings, rows, weights
        self.network: Any = None
        self._optimizer: Any = None
        self._p = settings.power
        if settings.make_network is None:
            return
        with seeded_torch(self._seed(0, 0)):
            self.network = bound_slopes(settings.make_network()).to(settings.device).train()
        self._optimizer = make_optimizer(self.network, settings.lr, maximize=True)
        if checkpoint is not None:
            file = io.BytesIO(checkpoint)
            state = torch.load(file, map_location=settings.device, weights_only=True)
            self.network.load_state_dict(state["network"])
            self._optimizer.load_state_dict(state["optimizer"])

    def checkpoint(self) -> bytes | None:
        """Return the state of the network and its optimiser; None without a network."""
        if self.network is None:
            return None
        state = {"network": self.network.state_dict(), "optimizer": self._optimizer.state_dict()}
        file = io.BytesIO()
        torch.save(state, file)
        return file.getvalue()

    def _seed(self, update, step):
        source = np.random.SeedSequence([self.settings.seed, self.number, update, step])
        return int(source.generate_state(1, np.uint64)[0] >> 1)

    def _draw(self, seed):
        n_rows, rng = min(self.settings.batch_size, len(self.rows)), np.random.default_rng(seed)
        if self.weights is None:
            return rng.choice(self.rows, n_rows, replace=False)
        return self.rows[rng.permutation(draw_weighted(self.weights, n_rows, rng))]

    @cached_property
    def _own_value(self):
        """Minus half of the mean transport cost of two batches of rows, without a network."""
        if self.network is not None or not self.settings.debias:
            return 0.0
        values = []
        for draw in range(_N_OWN_DRAWS):
            rows = self._draw(self._seed(0, 1 + draw)).astype(np.float64)
            middle = len(rows) // 2
            values.append(_solve(costs_between(rows[:middle], rows[middle:], self._p))[2])
        return -0.5 * float(np.mean(values))

    # An update

    def start(self, update: int, points: NDArray) -> NDArray:
        """Begin an update, and propose potentials.

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
            Good ones for the rows of this critic.
        """
        self._begin(update, points)
        return _join(soft_potentials(term.costs) for term in self._crossed)

    def masses(self, potentials: NDArray) -> NDArray:
        """Return the masses of the cells of given potentials."""
        return _join(cell_masses(term.costs, part) for term, part in self._split(potentials))

    def finish(self, potentials: NDArray) -> Part:
        """End an update: train the critic's network by a step, and return the critic's part.

        Parameters
        ----------
        potentials : ndarray of shape (n_points,)
            Those of all critics together.

        Returns
        -------
        part : Part
            Of the last batch of points.
        """
        crossed = self._split(potentials)
        # Cells of unequal mass are no transport: the dual value takes the place of their cost.
        return self._end(
            [(cell_plan(t.costs, part), part, dual_value(t.costs, part)) for t, part in crossed]
        )

    def step(self, update: int, points: NDArray) -> Part:
        """Do an update at once, with the exact plans of the critic's own rows."""
        self._begin(update, points)
        return self._end([_solve(term.costs) for term in self._crossed])

    # Inside an update

    def _split(self, potentials):
        """Return the terms of rows and points, each with the potentials of its points."""
        first = self._crossed[0].costs.shape[1]
        return list(zip(self._crossed, (potentials[:first], potentials[first:]), strict=False))

    def _begin(self, update, points):
        """Train the network on all batches of points but the last, which is for the generator."""
        for step, batch in enumerate(points[:-1], 1):
            self._set_terms(update, step, batch)
            self._step_network([_solve(term.costs)[0] for term in self._terms])
        self._set_terms(update, 0, points[-1])

    def _end(self, crossed):
        """Train the network by a step, given plan, potentials and value of the crossed terms."""
        solved = crossed + [_solve(term.costs) for term in self._terms[len(crossed) :]]
        plans, _, values = zip(*solved, strict=True)
        return Part(
            self._step_network(plans),
            self._own_value
            + sum(term.share * value for term, value in zip(self._terms, values, strict=True)),
            _join(potentials for _, potentials, _ in crossed),
            _join(plan.sum(axis=0) * plan.shape[1] for plan, _, _ in crossed),
        )

    def _set_terms(self, update, step, points):
        """Draw rows, and set the terms of the objective."""
        seed = self._seed(update, step)
        rows = self._draw(seed)
        self._batch = self._features_of(rows, points, seed)
        self._n_rows = n_rows = len(rows)
        n = len(self._batch)
        pairs = [(slice(0, n_rows), slice(n_rows, n), 1.0)]
        if self.settings.debias:
            R, R2 = slice(0, n_rows // 2), slice(n_rows // 2, n_rows)
            middle = n_rows + (n - n_rows) // 2
            G, G2 = slice(n_rows, middle), slice(middle, n)
            pairs = [(R, G, 0.5), (R2, G2, 0.5)]
            if self.network is not None:
                pairs += [(R, R2, -0.5), (G, G2, -0.5)]
        self._terms = [
            Term(A, B, share, costs_between(self._batch[A], self._batch[B], self._p))
            for A, B, share in pairs
        ]
        self._crossed = [term for term in self._terms if term.share > 0]

    def _features_of(self, rows, points, seed):
        """Return features of rows and points, or without a network the two as they are."""
        if self.network is None:
            return np.concatenate([rows, points], dtype=np.float64)
        device = self.settings.device
        self._points: Any = torch.tensor(points, device=device, requires_grad=True)
        inputs = torch.cat([torch.from_numpy(rows).to(device), self._points])
        n_columns = inputs.shape[1] - self.settings.n_codes
        with seeded_torch(seed):  # for random layers, such as dropout
            features = self.network(inputs[:, :n_columns]).flatten(1)
        self._features: Any = torch.cat([features, inputs[:, n_columns:]], dim=1)
        return self._features.numpy(force=True).astype(np.float64)

    def _step_network(self, plans):
        """Train the network by a gradient step; return the gradient by the points."""
        slopes = np.zeros_like(self._batch)
        for term, plan in zip(self._terms, plans, strict=True):
            sides = (term.A, term.B, term.costs, plan), (term.B, term.A, term.costs.T, plan.T)
            for own, other, costs, masses in sides:
                if self.network is None and own.start < self._n_rows:
                    continue  # rows stay where they are
                A, B = self._batch[own], self._batch[other]
                slopes[own] += term.share * transport_gradient(A, B, costs, masses, self._p)
        slopes = slopes.astype(np.float32)
        if self.network is None:
            return slopes[self._n_rows :]
        self._optimizer.zero_grad()
        self._features.backward(torch.from_numpy(slopes).to(self._features.device))
        self._optimizer.step()
        return self._points.grad.numpy(force=True)


def _join(parts):
    return np.concatenate(list(parts)).astype(np.float32)


def own_term(points: NDArray, power: int) -> tuple[NDArray, float]:
    """Return minus half of the transport cost of one half of the points to the other.

    Parameters
    ----------
    points : ndarray of shape (n_points, n_features)
        Generated points.
    power : int
        A move costs its length to this power.

    Returns
    -------
    gradient : ndarray of shape (n_points, n_features)
        By the points.
    value : float
        The term.
    """
    G, G2 = points[: len(points) // 2], points[len(points) // 2 :]
    costs = costs_between(G, G2, power)
    plan, _, value = _solve(costs)
    sides = (G, G2, costs, plan), (G2, G, costs.T, plan.T)
    gradient = np.concatenate([transport_gradient(*side, power) for side in sides])
    return -0.5 * gradient, -0.5 * value


def _solve(costs):
    """Return the cheapest plan, the best potentials, and the cost."""
    plan, potentials = exact_plan(costs)
    return plan, potentials, float((costs * plan).sum())
