"""Networks: generators, critics, and the bound on a critic's slope."""

from __future__ import annotations

import inspect
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from ..utils._fit import copy_part

_FEATURES, _WIDTH, _MOST_WIDTH = 64, 256, 512
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d)


def mlp_generator(latent_dim: int, n_features: int) -> nn.Module:
    """Return the default generator: three hidden layers."""
    return _mlp(latent_dim, n_features, max(_WIDTH, n_features), 3, nn.SiLU())


def mlp_critic(n_features: int) -> nn.Module:
    """Return the default critic: two hidden layers, then the features that are compared."""
    return _mlp(n_features, _FEATURES, max(64, 4 * n_features), 2, nn.LeakyReLU(0.2))


class VelocityNetwork(nn.Module):
    """The network of a flow: hidden layers that time and codes scale and shift.

    Each hidden layer but the first adds to what is there. The output is 0 at first. Layers have 256
    units, and of more than 128 columns twice as many as these, up to 512.

    Parameters
    ----------
    n_columns : int
        Columns of points.
    n_given : int
        Numbers that tell time and codes.
    """

    def __init__(self, n_columns: int, n_given: int) -> None:
        super().__init__()
        width = min(_MOST_WIDTH, max(_WIDTH, 2 * n_columns))
        self.first = nn.Linear(n_columns + n_given, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.given = nn.ModuleList(nn.Linear(n_given, 2 * width) for _ in range(2))
        self.last = nn.Linear(width, n_columns)
        for weights in self.last.parameters():
            nn.init.zeros_(weights)

    def forward(self, points: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        """Return what is left of the velocity of points, scaled."""
        units = nn.functional.silu(self.first(torch.cat([points, given], dim=1)))
        for layer, change in zip(self.hidden, self.given, strict=True):
            scale, shift = change(given).chunk(2, dim=1)
            found = layer(units)
            units = units + nn.functional.silu(torch.addcmul(found + shift, found, scale))
        return self.last(units)


def _mlp(n_inputs, n_outputs, width, n_hidden, activation):
    sizes = [n_inputs] + n_hidden * [min(_MOST_WIDTH, width)]
    hidden = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), activation)]
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], n_outputs))


def make_network(maker: Any, name: str, **sizes: int) -> nn.Module:
    """Call the maker of a network with those of the sizes that it has parameters for.

    Parameters
    ----------
    maker : callable
        A subclass of ``nn.Module``, a function that returns a module, or a module, to be copied.
    name : str
        The parameter of the estimator that it came from, named in errors.
    **sizes : int
        Sizes by name.

    Returns
    -------
    network : nn.Module
        A new one.
    """
    if isinstance(maker, nn.Module):
        return copy_part(name, maker)
    accepted = inspect.signature(maker).parameters
    network = maker(**{size: value for size, value in sizes.items() if size in accepted})
    if not isinstance(network, nn.Module):
        raise TypeError(
            f"{name} must be a torch.nn.Module, a subclass of it, or a function that returns one, "
            f"but it returned {type(network).__name__}."
        )
    return copy_part(name, network)  # a function may return the same one again


def try_network(network: nn.Module, n_inputs: int, name: str, n_outputs: int | None = None) -> None:
    """Check a network by a forward pass of two rows.

    Parameters
    ----------
    network : nn.Module
        The network; in evaluation mode afterwards.
    n_inputs : int
        Columns of its input.
    name : str
        The parameter of the estimator that it came from.
    n_outputs : int or None, default=None
        Columns of its output; None for any.
    """
    if not any(weights.requires_grad for weights in network.parameters()):
        raise ValueError(f"{name} has no weights to learn.")
    with torch.no_grad():
        try:
            output = network.eval()(torch.zeros(2, n_inputs))
        except Exception as error:
            raise ValueError(
                f"{name} fails on a tensor of shape (2, {n_inputs}): {error}"
            ) from error
    found = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if n_outputs is not None and found != (2, n_outputs):
        raise ValueError(
            f"{name} must map a tensor of shape (2, {n_inputs}) to one of shape (2, {n_outputs}), "
            f"got {found}."
        )


def bound_slopes(network: nn.Module) -> nn.Module:
    """Bound the slope of a critic, by spectral norms of its linear and convolution layers.

    Without a bound a critic only scales all distances up. Layers with a parametrization are left
    as they are.
    """
    for layer in network.modules():
        if isinstance(layer, _LAYERS) and not parametrize.is_parametrized(layer):
            parametrizations.spectral_norm(layer)
    return network


def fix_weights(network: nn.Module) -> nn.Module:
    """Replace parametrizations by the weights that they give, so that the network can be stored."""
    for layer in network.modules():
        if parametrize.is_parametrized(layer):
            for name in list(layer.parametrizations):  # type: ignore[arg-type]
                parametrize.remove_parametrizations(layer, name)
    return network.eval()


def make_optimizer(
    network: nn.Module, lr: float, maximize: bool = False, is_game: bool = True
) -> torch.optim.Optimizer:
    """Return fused Adam; both betas are small where two networks are trained against each other."""
    betas = (0.5, 0.9 if is_game else 0.99)
    return torch.optim.Adam(network.parameters(), lr=lr, betas=betas, maximize=maximize, fused=True)
