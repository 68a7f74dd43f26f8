"""Histograms of oriented gradients: where an image has edges, and which way they run."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

N_ORIENTATIONS = 8


def oriented_gradients(X: Tensor, cell: int) -> Tensor:
    r"""Return how strong the edges of each direction are in each cell of an image.

    The gradient of a pixel counts for the two directions next to its own, in proportion, and for
    the cells around by a Gaussian window. Square roots let weak edges count beside strong ones.

    Parameters
    ----------
    X : Tensor of shape (n_images, channels, height, width)
        Images; the edges of all channels are added up.
    cell : int
        Pixels along the side of a cell.

    Returns
    -------
    maps : Tensor of shape (n_images, N_ORIENTATIONS, height // cell, width // cell)
        Not negative. A direction and its opposite are the same.
    """
    padded = functional.pad(X, (1, 1, 1, 1), mode="replicate")
    across = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]
    down = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
    strength = torch.hypot(across, down)
    place = torch.atan2(down, across) * (N_ORIENTATIONS / math.pi)
    below = place.floor()
    direction, share = below.long() % N_ORIENTATIONS, place - below
    maps = X.new_zeros(len(X), N_ORIENTATIONS, *X.shape[2:])
    maps.scatter_add_(1, direction, strength * (1 - share))
    maps.scatter_add_(1, (direction + 1) % N_ORIENTATIONS, strength * share)
    height, width = (_windows(size, cell).to(X) for size in X.shape[2:])
    return (height @ maps @ width.T).sqrt()


def _windows(size, cell):
    """Return the weights of pixels in the cells of one axis, a Gaussian around each centre."""
    centres = torch.arange(size // cell)[:, None] * cell + (cell - 1) / 2
    weights = torch.exp(-2 * ((torch.arange(size) - centres) / cell) ** 2)
    return weights / (cell * math.sqrt(math.pi / 2))


class OrientedGradients(nn.Module):
    """A first layer without weights: oriented gradients in cells of 2 x 2 pixels, standardised."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.BatchNorm2d(N_ORIENTATIONS, affine=False)

    def forward(self, X: Tensor) -> Tensor:
        """Return the maps of images; gradients end here."""
        with torch.no_grad():
            maps = oriented_gradients(X, cell=2)
        return self.scale(maps)
