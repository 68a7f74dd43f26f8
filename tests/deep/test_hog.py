"""Tests of histograms of oriented gradients."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from skdml.deep._hog import N_ORIENTATIONS, OrientedGradients, oriented_gradients  # noqa: E402
from skdml.deep.modules import ConvNet  # noqa: E402


def slow_gradients(image, cell):
    """One image, pixel by pixel."""
    n_channels, height, width = image.shape
    cells = np.zeros((N_ORIENTATIONS, height // cell, width // cell))
    for channel, row, column in np.ndindex(n_channels, height, width):
        plane = image[channel]
        across = plane[row, min(column + 1, width - 1)] - plane[row, max(column - 1, 0)]
        down = plane[min(row + 1, height - 1), column] - plane[max(row - 1, 0), column]
        place = (np.arctan2(down, across) % np.pi) / np.pi * N_ORIENTATIONS
        for i, j in np.ndindex(*cells.shape[1:]):
            gaps = row - (i * cell + (cell - 1) / 2), column - (j * cell + (cell - 1) / 2)
            weight = np.exp(-2 * (gaps[0] ** 2 + gaps[1] ** 2) / cell**2) / (cell**2 * np.pi / 2)
            low = int(place) % N_ORIENTATIONS
            share = place - int(place)
            strength = weight * np.hypot(across, down)
            cells[low, i, j] += strength * (1 - share)
            cells[(low + 1) % N_ORIENTATIONS, i, j] += strength * share
    return np.sqrt(cells)


@pytest.mark.parametrize(
    ("shape", "cell"), [((1, 8, 8), 2), ((1, 9, 7), 3), ((3, 6, 8), 1), ((2, 10, 9), 4)]
)
def test_maps_are_those_of_a_loop_over_pixels(shape, cell):
    images = np.random.default_rng(0).random((2, *shape))
    maps = oriented_gradients(torch.from_numpy(images), cell).numpy()
    assert maps.shape == (2, N_ORIENTATIONS, shape[1] // cell, shape[2] // cell)
    np.testing.assert_allclose(maps, [slow_gradients(image, cell) for image in images], atol=1e-9)


def test_edges_are_found_by_their_direction():
    image = torch.zeros(1, 1, 16, 16)
    image[..., 8:] = 1  # an edge that runs down: the gradient is across
    maps = oriented_gradients(image, 4)[0].sum((1, 2))
    assert maps[0] > 0
    assert maps[1:].max() == 0
    turned = oriented_gradients(image.transpose(2, 3), 4)[0].sum((1, 2))
    assert turned.argmax() == N_ORIENTATIONS // 2
    torch.testing.assert_close(maps, oriented_gradients(1 - image, 4)[0].sum((1, 2)))


def test_an_even_image_has_none():
    assert oriented_gradients(torch.full((1, 1, 8, 8), 0.7), 2).abs().max() == 0


def test_network_on_gradients_has_no_first_block_to_train():
    network = ConvNet((3, 16, 16), 32, channels=(5, 6), gradients=True)
    assert isinstance(network.backbone[0], OrientedGradients)
    first = next(network.parameters())
    assert first.shape == (6, N_ORIENTATIONS, 3, 3)
    assert network(torch.rand(4, 3, 16, 16)).shape == (4, 32)
