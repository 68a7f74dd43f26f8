"""Fit of a generator by critics: parameters against each other, networks, and the result."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from .._actors import start_actors
from ..utils._parallel import find_client
from ..utils._torch import choose_device, seeded_torch
from ._critics import Critic, CriticSettings
from ._generator_input import check_batch_size
from ._generator_networks import fix_weights, make_network, mlp_critic, mlp_generator, try_network
from ._generator_training import Trained, TrainingPlan, column_spread, train

# Of each cost: the learning rate, and the rows of a critic in an update; chosen on held-out rows.
_LR = {"euclidean": 0.002, "squared": 0.004, "learned": 0.002}
_BATCH_SIZE = {"euclidean": 256, "squared": 64, "learned": 64}
_MAX_ITER = 1500
# Of the squared cost, which is not debiased.
_POINTS_PER_ROW = 3
# Critics have a smaller rate: with equal rates they run ahead, and the generator learns slower.
_CRITIC_LR_FACTOR = 0.25


def count_latents(model: Any, n_codes: int) -> int:
    """Return how many columns of the input of a generator are random; codes are the others.

    The input of a network that was given has `latent_dim` columns in all.
    """
    n_random = int(model.latent_dim) - (0 if model.module is None else n_codes)  # True is a number
    if n_random < 1:
        raise ValueError(
            f"latent_dim={model.latent_dim} must be more than {n_codes}, for with module the last "
            f"{n_codes} of its columns say of which class of y a row is."
        )
    return n_random


def make_plan(model: Any, rows: NDArray, n_codes: int, seed: int) -> TrainingPlan:
    """Check parameters of an estimator against each other, and return them without "auto".

    Parameters
    ----------
    model : WassersteinGenerator
        Has the parameters.
    rows : ndarray of shape (n_samples, n_columns)
        The encoded rows.
    n_codes : int
        How many columns the codes of y have.
    seed : int
        Seeds all that is random.

    Returns
    -------
    plan : TrainingPlan
        The parameters of the training.
    """
    n_rows = len(rows)
    cost = model.cost
    if cost == "auto":
        cost = "euclidean" if model.critic_module is None else "learned"
    debias = cost != "squared" if model.debias == "auto" else bool(model.debias)
    if debias and cost == "squared":
        raise ValueError(
            "debias=True with cost='squared' sees little but the means of the columns, so that "
            "the spread of the samples runs away: use cost='euclidean', or debias=False."
        )
    coupling = model.coupling
    if coupling == "auto":
        coupling = "separate" if debias and cost == "euclidean" else "shared"
    learned = cost == "learned"
    for name, default, is_used, other in (
        ("critic_module", None, learned, "cost='learned'"),
        ("n_critic_steps", 1, learned, "cost='learned'"),
        ("n_potential_steps", 5, coupling == "shared", "coupling='shared'"),
    ):
        if not is_used and getattr(model, name) != default:
            raise ValueError(
                f"{name}={getattr(model, name)!r} has no effect with cost={model.cost!r} and "
                f"coupling={model.coupling!r}: leave it at {default!r}, or give {other}."
            )
    n_least = 2 if debias else 1
    if model.n_critics * n_least > n_rows:
        raise ValueError(
            f"n_critics={model.n_critics} critics need {n_least} of the rows of X each, but X "
            f"has {n_rows}: give fewer critics."
        )
    batch_size = check_batch_size(model, n_rows, _BATCH_SIZE[cost])
    n_points = _POINTS_PER_ROW * batch_size if cost == "squared" else batch_size
    if debias:
        n_points = min(batch_size, n_rows // model.n_critics)
    is_shared = coupling == "shared" and model.n_critics > 1
    return TrainingPlan(
        learned=learned,
        power=2 if cost == "squared" else 1,
        debias=debias,
        spread=column_spread(rows),
        lr=_LR[cost] if model.lr == "auto" else float(model.lr),
        batch_size=batch_size,
        n_points=n_points,
        latent_dim=count_latents(model, n_codes),
        n_critic_steps=int(model.n_critic_steps),
        n_potential_steps=model.n_potential_steps if is_shared else None,
        max_iter=_MAX_ITER if model.max_iter == "auto" else model.max_iter,
        seed=seed,
        device=choose_device(model.device),
    )


def fit_critics(
    model: Any,
    plan: TrainingPlan,
    rows: NDArray,
    codes: NDArray | None,
    weights: NDArray | None,
    begin: Callable[[], None],
    report: Callable[[float, Callable[[], nn.Module]], Any],
) -> tuple[nn.Module, Trained, dict[str, Any]]:
    """Train a generator against critics.

    Parameters
    ----------
    model : WassersteinGenerator
        Has the networks, the number of critics and where they work.
    plan : TrainingPlan
        From `make_plan`.
    rows : ndarray of shape (n_samples, n_columns)
        The encoded rows.
    codes : ndarray of shape (n_samples, n_codes) or None
        What the rows are conditioned on.
    weights : ndarray of shape (n_samples,) or None
        By which rows are drawn; None draws all alike.
    begin, report : callable
        As in `train`.

    Returns
    -------
    generator : nn.Module
        The trained network.
    trained : Trained
        Its history.
    attributes : dict
        Fitted attributes of the estimator.
    """
    whole = rows if codes is None else np.concatenate([rows, codes], axis=1)
    order = np.random.default_rng(plan.seed).permutation(len(whole))
    shards = np.array_split(whole[order], model.n_critics)
    parts: list[Any] = [None] * len(shards)
    if weights is not None:
        parts = np.array_split(weights[order], model.n_critics)
        plan = dataclasses.replace(plan, shares=[float(part.sum()) for part in parts])
    n_codes = whole.shape[1] - rows.shape[1]
    settings = _critic_settings(model, plan, rows.shape[1], n_codes)
    given_to_each = [
        (number, shard, settings, part)
        for number, (shard, part) in enumerate(zip(shards, parts, strict=True))
    ]
    workers = {"n_jobs": model.n_jobs, "client": find_client(model.client)}
    critics = start_actors(Critic, given_to_each, name="critics", **workers)
    generator = _make_generator(model, settings, plan, rows.shape[1], n_codes)
    shares = None if weights is None else weights / weights.sum()

    def draw_codes(n: int, rng: np.random.Generator) -> Any:
        return None if codes is None else codes[rng.choice(len(codes), n, p=shares)]

    given = None if codes is None else draw_codes
    with critics:
        trained = train(generator, critics, plan, model._encoder.project, begin, report, given)
    return generator, trained, _attributes(generator, trained, critics, settings, plan, model)


def _critic_settings(model, plan, n_columns, n_codes):
    make = None
    if plan.learned:
        maker = mlp_critic if model.critic_module is None else model.critic_module
        make = functools.partial(make_network, maker, "critic_module", n_features=n_columns)
    lr = _CRITIC_LR_FACTOR * plan.lr
    return CriticSettings(
        make, plan.power, plan.debias, plan.batch_size, lr, plan.seed, n_codes, plan.device
    )


def _make_generator(model, settings, plan, n_columns, n_codes):
    """Return a new generator, after a forward pass of both kinds of networks."""
    with seeded_torch(plan.seed):
        maker = mlp_generator if model.module is None else model.module
        n_inputs = plan.latent_dim + n_codes
        sizes = {"latent_dim": n_inputs, "n_features": n_columns}
        generator = make_network(maker, "module", **sizes)
        try_network(generator, n_inputs, "module", n_columns)
        if settings.make_network is not None:
            try_network(settings.make_network(), n_columns, "critic_module")
    return generator


def _attributes(generator, trained, critics, settings, plan, model):
    """Return fitted attributes that only critics have."""
    networks = [
        Critic(number, np.empty((0, 0)), settings, checkpoint=checkpoint).network
        for number, checkpoint in enumerate(critics.checkpoints)
    ]
    networks = [fix_weights(network.cpu()) for network in networks if network is not None]
    if not plan.learned:
        values = np.array(trained.history["wasserstein"])
        values = values if plan.power == 1 else np.sqrt(np.maximum(values, 0))
        trained.history["wasserstein"] = (values * model._encoder.columns.unit).tolist()
    potentials = [part.potentials for part in trained.parts]
    is_shared = plan.n_potential_steps is not None
    traffic = dict(critics.traffic)
    checkpoints = traffic.pop("checkpoint", 0)
    n_weights = sum(p.numel() for p in generator.parameters())
    if networks:
        n_weights += plan.n_critic_steps * sum(p.numel() for p in networks[0].parameters())
    n_done = max(1, len(trained.history["seconds"]))
    return {
        "critics_": networks,
        "potentials_": (potentials[0] if is_shared else np.stack(potentials))
        if potentials
        else None,
        "masses_": np.average([part.masses for part in trained.parts], axis=0, weights=plan.shares)
        if trained.parts
        else None,
        "traffic_": {
            "update": sum(traffic.values()) / n_done,
            "checkpoint": checkpoints / n_done,
            # Gradients of float32 go out, and their mean comes back.
            "all_reduce": 2 * 4 * n_weights,
        },
    }
