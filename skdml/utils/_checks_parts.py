"""Stateful losses, miners, callbacks and networks, to check that fit copies its parameters."""

from __future__ import annotations

from typing import Any

import joblib
import torch
from torch import Tensor, nn
from torch.nn import functional

from ._checks_common import N_FEATURES

try:
    from skorch.callbacks import Callback
except ImportError:
    Callback = object


class LearnedLoss(nn.Module):
    """A loss with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compare the mean distances of samples of one class and of different ones."""
        same = labels[:, None] == labels
        distances = torch.cdist(embeddings, embeddings)
        return functional.softplus(self.scale * (distances[same].mean() - distances[~same].mean()))


class CountingMiner:
    """A miner that counts its calls, and takes other pairs in every one."""

    n_calls = 0

    def __call__(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Return pairs of one class, and pairs of different ones."""
        self.n_calls += 1
        same = labels[:, None] == labels
        positive = same.fill_diagonal_(False).nonzero().T
        negative = (labels[:, None] != labels).nonzero()[self.n_calls % 2 :: 2].T
        return *positive, *negative


class CountingChange:
    """Augmentation that counts its calls, and adds more in every one."""

    n_calls = 0

    def __call__(self, X: Tensor) -> Tensor:
        """Shift the first column."""
        self.n_calls += 1
        X = X.clone()
        X[:, 0] += 0.1 * self.n_calls
        return X


class CountingCallback(Callback):
    """A callback of skorch that halves the learning rate after each epoch, once in its life."""

    n_epochs = 0

    def on_epoch_begin(self, net: Any, **kwargs: Any) -> None:
        """Count."""
        self.n_epochs += 1
        if self.n_epochs == 1:
            for group in net.optimizer_.param_groups:
                group["lr"] /= 2


def objects_for(estimator: Any) -> list[dict[str, Any]]:
    """Return sets of parameters, each with an object or two, that the estimator takes."""
    constraints = getattr(estimator, "_parameter_constraints", {})
    names = estimator.get_params()

    def takes_objects(name):
        return name in names and callable in constraints.get(name, [])

    found: list[dict[str, Any]] = []
    if takes_objects("loss"):
        found.append({"loss": LearnedLoss()})
        if str in constraints["loss"]:  # by name, with parameters
            found.append({"loss": "contrastive", "loss__miner": CountingMiner()})
    if takes_objects("augment"):
        found.append({"augment": CountingChange()})
    if list in constraints.get("callbacks", []):
        found.append({"callbacks": [CountingCallback()]})
    if takes_objects("module"):
        sizes = (names["latent_dim"], N_FEATURES) if "latent_dim" in names else (N_FEATURES, 16)
        network = nn.Sequential(nn.Linear(*sizes), nn.ReLU(), nn.Linear(sizes[1], sizes[1]))
        found.append({"module": network})
        if "latent_dim" in names:
            found.append({"module": lambda: network})
    if takes_objects("critic_module"):
        found.append({"critic_module": nn.Linear(N_FEATURES, 4)})
    if "query_module" in names:
        sides = ("query_module", "database_module")
        found.append({side: nn.Linear(N_FEATURES, 3) for side in sides})
    return found


def state_of(params: dict[str, Any]) -> str | None:
    """Return a hash of the weights and counts of such objects."""
    states: list[Any] = []
    for value in params.values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, nn.Module):
                states += [tensor.numpy() for tensor in item.state_dict().values()]
            else:
                states.append(getattr(item, "__dict__", None))
    return joblib.hash(states)
