"""Networks: a backbone, and a linear head that gives the embedding."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import nn


class MLP(nn.Module):
    """A network for tables: hidden layers with batch norm, then a linear head.

    Parameters
    ----------
    n_features : int
        Columns of the input.
    embedding_dim : int
        Columns of the output.
    hidden : sequence of int, default=(256, 256)
        Widths of the hidden layers; empty makes the map linear.
    dropout : float, default=0.0
        The share of hidden units that are dropped in training.
    """

    def __init__(self, n_features, embedding_dim, hidden=(256, 256), dropout=0.0):
        super().__init__()
        layers: list[nn.Module] = []
        width = n_features
        for n_units in hidden:
            layers += [nn.Linear(width, n_units), nn.BatchNorm1d(n_units), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
            width = n_units
        self.backbone = nn.Sequential(*layers)
        self.head = nn.Linear(width, embedding_dim)

    def forward(self, X):
        """Return the embeddings of rows."""
        return self.head(self.backbone(X.flatten(1)))


class ConvNet(nn.Module):
    """A small network for images: blocks of convolution, batch norm and pooling, then a head.

    Parameters
    ----------
    input_shape : tuple (channels, height, width)
        The shape of an image.
    embedding_dim : int
        Columns of the output.
    channels : sequence of int, default=(32, 64, 128)
        The channels of the blocks; each halves height and width.
    """

    def __init__(self, input_shape, embedding_dim, channels=(32, 64, 128)):
        super().__init__()
        depth, height, width = input_shape
        if min(height, width) < 2 ** len(channels):
            raise ValueError(
                f"images of {height} x {width} are too small for {len(channels)} blocks, which "
                f"halve them each: give fewer module__channels, or module='mlp'."
            )
        blocks: list[nn.Module] = []
        for n_channels in channels:
            blocks += [
                nn.Conv2d(depth, n_channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(n_channels),
                nn.MaxPool2d(2),  # before the ReLU, which then has a quarter to do
                nn.ReLU(),
            ]
            depth, height, width = n_channels, height // 2, width // 2
        self.backbone = nn.Sequential(*blocks, nn.Flatten())
        self.head = nn.Linear(depth * height * width, embedding_dim)
        # Channels last in memory: a training step takes two thirds of the time on a CPU.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, X):
        """Return the embeddings of images."""
        X = X.contiguous(memory_format=torch.channels_last)
        return self.head(self.backbone(X))


NAMED = {"mlp": MLP, "convnet": ConvNet}


def find_module(module: Any) -> Any:
    """Return the class of a module that is given by its name, or as a class.

    Parameters
    ----------
    module : str or class
        A name in `NAMED`, or a subclass of ``nn.Module``.

    Returns
    -------
    module : class
        The subclass.
    """
    if isinstance(module, str):
        module = NAMED.get(module, module)
    if not (inspect.isclass(module) and issubclass(module, nn.Module)):
        raise TypeError(
            f"module must be 'mlp', 'convnet' or a subclass of torch.nn.Module, got {module!r}."
        )
    return module


def module_arguments(module: Any, sample_shape: tuple[int, ...], embedding_dim: int) -> dict:
    """Return what the constructor of a module wants to know of the data.

    Parameters
    ----------
    module : class
        A subclass of ``nn.Module``.
    sample_shape : tuple of int
        The shape of one sample.
    embedding_dim : int
        The number of columns that the user asked for.

    Returns
    -------
    arguments : dict
        Those of `n_features`, `input_shape` and `embedding_dim` that its signature has.
    """
    known = {
        "n_features": math.prod(sample_shape),
        "input_shape": tuple(sample_shape),
        "embedding_dim": embedding_dim,
    }
    accepted = inspect.signature(module).parameters
    return {name: value for name, value in known.items() if name in accepted}


def check_embeddings(output: Any, n_samples: int, module: Any) -> torch.Tensor:
    """Return the output of a module, or say what is wrong with it."""
    name = getattr(module, "__name__", type(module).__name__)
    if not isinstance(output, torch.Tensor) or output.ndim != 2 or len(output) != n_samples:
        found = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise ValueError(
            f"module: {name} must return one embedding per sample, a tensor of shape "
            f"({n_samples}, embedding_dim), got {found}."
        )
    return output
