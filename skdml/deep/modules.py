"""Networks: a backbone, and a linear head that gives the embedding."""

from __future__ import annotations

import fnmatch
import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..utils._fit import copy_part
from ..utils.validation import refuse_if_too_large
from ._hog import N_ORIENTATIONS, OrientedGradients

# The channels of the blocks of `ConvNet`.
CHANNELS = (32, 64, 128)
# With fewer columns for every place of the map, its head is over the whole map.
_COLUMNS_PER_PLACE = 4
# How far an adapter begins on the way to white classes, with this share of the mean variance added
# to all; with more columns, eigenvectors take too long.
_WHITENED, _SHRINKAGE, _MOST_COLUMNS = 0.25, 0.1, 4096


def _make_head(width, n_components):
    refuse_if_too_large(
        (n_components, width), "the last layer would have weights", "Give fewer dimensions."
    )
    return nn.Linear(width, n_components)


class MLP(nn.Module):
    """A network for tables: hidden layers with batch norm, then a linear head.

    Parameters
    ----------
    n_features : int
        Columns of the input.
    n_components : int
        Columns of the output.
    hidden : sequence of int, default=(256, 256)
        Widths of the hidden layers; empty makes the map linear.
    dropout : float, default=0.0
        The share of hidden units that are dropped in training.
    """

    def __init__(
        self,
        n_features: int,
        n_components: int,
        hidden: Sequence[int] = (256, 256),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = n_features
        for n_units in hidden:
            layers += [nn.Linear(width, n_units), nn.BatchNorm1d(n_units), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
            width = n_units
        self.backbone = nn.Sequential(*layers)
        self.head = _make_head(width, n_components)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of rows."""
        return self.head(self.backbone(X.flatten(1)))


def map_shape(input_shape: tuple[int, ...], channels: Sequence[int]) -> tuple[int, int]:
    """Return height and width of the map that the blocks of `ConvNet` make of an image."""
    _, height, width = input_shape
    factor = 2 ** len(channels)
    if min(height, width) < factor:
        raise ValueError(
            f"images of {height} x {width} are too small for {len(channels)} blocks, which "
            f"halve them each: give fewer module__channels, or module='mlp'."
        )
    return height // factor, width // factor


def map_cloud(
    input_shape: tuple[int, ...], channels: Sequence[int], n_components: int
) -> tuple[int, int]:
    """Return the points of that map, and the columns that the embedding has for each."""
    height, width = map_shape(input_shape, channels)
    n_points = height * width
    if n_components % n_points:
        below = n_components // n_points * n_points
        works = f"{below} or {below + n_points}" if below else str(n_points)
        raise ValueError(
            f"n_components={n_components} is not divisible into the {n_points} points of the "
            f"{height} x {width} feature map: use a multiple of {n_points}, such as {works}; or, "
            f"for a head over the whole map, loss__cloud=(n_points, point_dim)."
        )
    return n_points, n_components // n_points


class ConvNet(nn.Module):
    """A small network for images: blocks of convolution, batch norm and pooling, then a head.

    The head is the same for every place of the last map, where each can have some columns of the
    embedding. On characters of new alphabets this is better than a head over the whole map, which
    has many more weights.

    Parameters
    ----------
    input_shape : tuple (channels, height, width)
        The shape of an image.
    n_components : int
        Columns of the output.
    channels : sequence of int, default=(32, 64, 128)
        The channels of the blocks; each halves height and width.
    head : {"auto", "map", "points", "dense"}, default="auto"
        "map" is a convolution of 1 x 1, whose output is cut to `n_components` where that is not a
        multiple of the places; "points" is the same with one place after the other, row by row,
        for a multiple only; "dense" is linear in the whole map. "auto" is "map" with at least four
        columns for every place, and "dense" below.
    gradients : bool, default=False
        Whether oriented gradients take the place of the first block, whose channels do not count
        then: for few labels, as there is nothing to learn about edges.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        n_components: int,
        channels: Sequence[int] = CHANNELS,
        head: str = "auto",
        gradients: bool = False,
    ) -> None:
        super().__init__()
        depth = input_shape[0]
        height, width = map_shape(input_shape, channels)
        n_places = height * width
        blocks: list[nn.Module] = []
        if gradients:
            blocks.append(OrientedGradients())
            depth, channels = N_ORIENTATIONS, channels[1:]
        for n_channels in channels:
            blocks += [
                nn.Conv2d(depth, n_channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(n_channels),
                nn.MaxPool2d(2),  # before the ReLU, which then has a quarter to do
                nn.ReLU(),
            ]
            depth = n_channels
        self.backbone = nn.Sequential(*blocks)
        if head == "auto":
            head = "map" if n_components >= _COLUMNS_PER_PLACE * n_places else "dense"
        self.kind, self.n_components = head, n_components
        self.head: nn.Module
        if head == "dense":
            self.head = _make_head(depth * n_places, n_components)
        elif head == "map":
            self.head = nn.Conv2d(depth, math.ceil(n_components / n_places), 1)
        elif head == "points":
            self.head = nn.Conv2d(depth, map_cloud(input_shape, channels, n_components)[1], 1)
        else:
            raise ValueError(
                f"module__head must be 'auto', 'map', 'points' or 'dense', got {head!r}."
            )
        # Channels last in memory: a training step takes two thirds of the time on a CPU.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of images."""
        features = self.backbone(X.contiguous(memory_format=torch.channels_last))
        if self.kind == "dense":
            return self.head(features.flatten(1))
        output = self.head(features)
        if self.kind == "points":
            output = output.permute(0, 2, 3, 1)
        return output.flatten(1)[:, : self.n_components]


class Adapter(nn.Module):
    """A small change of vectors that come from another network, which they begin at.

    Rows are scaled to unit length; the output is x + W x, or with hidden units x + B relu(A x),
    where W and B begin at zero. Trained on classes, x + W x begins a quarter of the way to where
    classes are white, which makes directions that vary within classes a little shorter.

    Parameters
    ----------
    n_features : int
        Columns of the input and of the output.
    hidden : int or None, default=None
        Hidden units; None makes the change linear.
    start : {"whitened", "identity"}, default="whitened"
        Where a linear change begins if there are classes.
    """

    def __init__(self, n_features: int, hidden: int | None = None, start: str = "whitened") -> None:
        super().__init__()
        if start not in ("whitened", "identity"):
            raise ValueError(f"module__start must be 'whitened' or 'identity', got {start!r}.")
        refuse_if_too_large(
            (n_features, n_features if hidden is None else hidden),
            "the adapter would have weights",
            "Reduce the columns first, or give fewer module__hidden.",
        )
        self.change: nn.Module = nn.Linear(n_features, n_features, bias=False)
        last = self.change
        if hidden is not None:
            last = nn.Linear(hidden, n_features)
            self.change = nn.Sequential(nn.Linear(n_features, hidden), nn.ReLU(), last)
        for weights in last.parameters():
            nn.init.zeros_(weights)
        self.whitens = start == "whitened" and hidden is None and n_features <= _MOST_COLUMNS

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Return the changed rows."""
        X = nn.functional.normalize(X.flatten(1))
        return X + self.change(X)

    def begin(self, rows: Any, labels: torch.Tensor, weights: Any = None) -> None:
        """Go to where training on classes begins.

        Parameters
        ----------
        rows : tensor of shape (n_samples, ...) or Rows
            The training samples.
        labels : tensor of shape (n_samples,)
            Their classes, from 0.
        weights : ndarray of shape (n_samples,), default=None
            Their weights; None is 1 for each.
        """
        if self.whitens:
            start = whiten_within(rows, labels, _WHITENED, weights)
            with torch.no_grad():
                self.change.weight.copy_(start - torch.eye(len(start)))  # type: ignore[operator]


def whiten_within(
    rows: Any, labels: torch.Tensor, share: float, weights: Any = None
) -> torch.Tensor:
    """Return a map that goes some way to where the rows of a class vary alike in all directions.

    Parameters
    ----------
    rows : tensor of shape (n_samples, ...) or Rows
        Samples, which are scaled to unit length.
    labels : tensor of shape (n_samples,)
        Their classes, from 0.
    share : float
        How far to go: the metric is the inverse of the scatter within classes to this power.
    weights : ndarray of shape (n_samples,), default=None
        Weights of the samples; None is 1 for each.

    Returns
    -------
    matrix : tensor of shape (n_features, n_features)
        Symmetric; the mean square of its eigenvalues is one.
    """
    n_features = rows[:1].flatten(1).shape[1]
    moments = torch.zeros(n_features, n_features, dtype=torch.float64)
    sums = torch.zeros(int(labels.max()) + 1, n_features, dtype=torch.float64)
    share_of = torch.ones(len(rows)) if weights is None else torch.from_numpy(weights)
    for some in torch.arange(len(rows)).split(1024):
        part = nn.functional.normalize(rows[some].flatten(1).double())
        weighted = share_of[some, None].double() * part
        moments += part.T @ weighted
        sums.index_add_(0, labels[some], weighted)
    totals = torch.bincount(labels, share_of.double())
    scatter = (moments - sums.T @ (sums / totals[:, None])) / totals.sum()
    values, vectors = torch.linalg.eigh(scatter)
    values = values.clamp(min=0)
    if values.mean() < 1e-12:  # nothing varies within classes
        return torch.eye(n_features)
    factors = (values + _SHRINKAGE * values.mean()) ** (-share / 2)
    factors = factors / factors.square().mean().sqrt()
    return ((vectors * factors) @ vectors.T).float()


class Unchanged(nn.Module):
    """Returns samples as rows, as they are."""

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Return the rows."""
        return X.flatten(1)


NAMED = {"mlp": MLP, "convnet": ConvNet, "adapter": Adapter}


def find_module(module: Any) -> Any:
    """Return the class of a network that is given by its name or as a class, or a copy of it.

    Parameters
    ----------
    module : str, class or nn.Module
        A name in `NAMED`, a subclass of ``nn.Module``, or a network.

    Returns
    -------
    module : class or nn.Module
        The subclass; of a network, a copy to train.
    """
    if isinstance(module, nn.Module):
        return copy_part("module", module)
    if isinstance(module, str):
        module = NAMED.get(module, module)
    if not (inspect.isclass(module) and issubclass(module, nn.Module)):
        raise TypeError(
            "module must be 'auto', 'mlp', 'convnet', 'adapter', a subclass of torch.nn.Module or "
            f"a network, got {module!r}."
        )
    return module


def module_arguments(
    module: Any, sample_shape: tuple[int, ...], n_components: int, given: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of the constructor of a module.

    Parameters
    ----------
    module : class or nn.Module
        A subclass of ``nn.Module``, or a network, which takes none.
    sample_shape : tuple of int
        The shape of one sample.
    n_components : int
        The number of columns that the user asked for.
    given : dict
        What the user gave as ``module__...``.

    Returns
    -------
    arguments : dict
        What was given, and those of `n_features`, `input_shape` and `n_components` that its
        signature has.
    """
    if isinstance(module, nn.Module):
        if given:
            raise TypeError(
                f"module__{next(iter(given))}: module is a network already. Give its class to set "
                "parameters of it."
            )
        return {}
    known = {
        "n_features": math.prod(sample_shape),
        "input_shape": tuple(sample_shape),
        "n_components": n_components,
    }
    accepted = inspect.signature(module).parameters
    return {**{name: value for name, value in known.items() if name in accepted}, **given}


def check_embeddings(output: Any, n_samples: int, module: Any) -> torch.Tensor:
    """Return the output of a module, or say what is wrong with it."""
    name = getattr(module, "__name__", type(module).__name__)
    if not isinstance(output, torch.Tensor) or output.ndim != 2 or len(output) != n_samples:
        found = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise ValueError(
            f"module: {name} must return one embedding per sample, a tensor of shape "
            f"({n_samples}, n_components), got {found}."
        )
    return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output


def freeze_parts(module: nn.Module, freeze: str | Sequence[str]) -> list[str]:
    """Leave parameters out of the training by their names.

    Parameters
    ----------
    module : nn.Module
        The network, whose parameters are marked.
    freeze : str or sequence of str
        Names or patterns of parameters, such as "encoder.*", or names of parts of the network.

    Returns
    -------
    parts : list of str
        Names of the parts that have nothing to train, for which evaluation mode is right.
    """
    patterns = [freeze] if isinstance(freeze, str) else list(freeze)
    names = [name for name, _ in [*module.named_parameters(), *module.named_buffers()]]

    def matches(name, pattern):
        return fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")

    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            raise ValueError(
                f"freeze={pattern!r} is the name of no parameter of the network. Its names are "
                f"such as {', '.join(names[:1] + names[-2:])}."
            )
    frozen = {name for name in names if any(matches(name, pattern) for pattern in patterns)}
    for name, parameter in module.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(f"freeze={freeze!r} leaves no parameter of the network to train.")
    parts = []
    for part, _ in module.named_modules():
        inside = [name for name in names if name.startswith(f"{part}.")]
        if part and inside and frozen.issuperset(inside):
            parts.append(part)
    return parts
