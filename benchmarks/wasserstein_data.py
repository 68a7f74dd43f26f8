"""Data of the benchmark of transport losses: images, changed images, and clouds."""

import functools

import numpy as np
from scipy import ndimage

from benchmarks import data

# Fashion-MNIST: images of each class, to train and to test.
N_TRAIN, N_TEST = 600, 400
# How a query differs from the drawing that it was: kind and strength.
CHANGES = {
    "none": ("shift", 0),
    "shifted 2": ("shift", 2),
    "shifted 4": ("shift", 4),
    "shifted 6": ("shift", 6),
    "cluttered": ("clutter", 0.25),
    "cluttered more": ("clutter", 0.4),
    "bent": ("bend", 2.0),
    "bent more": ("bend", 4.0),
}


@functools.cache
def load_omniglot(subset):
    """Return drawings of 28 x 28 pixels and their characters."""
    X, y = data.load_omniglot(subset)
    return X.reshape(-1, 1, 28, 28), y


@functools.cache
def load_fashion(subset):
    """Return images of the first five classes to train, or of the last five to test."""
    X, y = data.load_fashion_mnist(subset)
    classes, n_images = (range(5), N_TRAIN) if subset == "train" else (range(5, 10), N_TEST)
    rows = np.concatenate([np.flatnonzero(y == label)[:n_images] for label in classes])
    return X[rows].reshape(-1, 1, 28, 28), y[rows]


def load_training(name, seed):
    """Return samples and classes to train and to test, and parameters of the embedder."""
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    if name == "letter":
        X, y = data.load_uci("letter")
        parts = train_test_split(X, y, test_size=0.5, random_state=seed, stratify=y)
        scaler = StandardScaler().fit(parts[0])
        return scaler.transform(parts[0]), parts[2], scaler.transform(parts[1]), parts[3], {}
    X, y = data.load_fashion_mnist("train")
    rows = np.random.default_rng(seed).permutation(len(X))[:10_000]
    X_test, y_test = data.load_fashion_mnist("test")
    shape = (-1, 1, 28, 28)
    params = {"module": "convnet", "max_epochs": 10, "classes_per_batch": 10}
    return X[rows].reshape(shape), y[rows], X_test[:5000].reshape(shape), y_test[:5000], params


def change_images(images, change, others, seed):
    """Return images that are shifted, cluttered with parts of others, or bent.

    Parameters
    ----------
    images : array of shape (n_images, 1, side, side)
        The images.
    change : str
        A name of `CHANGES`.
    others : array of the same kind
        Where clutter comes from.
    seed : int
        Draws directions, parts and bends.

    Returns
    -------
    images : array of the same shape
        The changed images.
    """
    kind, strength = CHANGES[change]
    rng = np.random.default_rng(seed)
    if kind == "shift":
        directions = rng.choice([-1, 1], size=(len(images), 2))
        moved = [
            ndimage.shift(image[0], strength * d, order=1)
            for image, d in zip(images, directions, strict=True)
        ]
        return np.stack(moved)[:, None].astype(images.dtype)
    if kind == "clutter":
        return np.stack([_clutter(image, others, strength, rng) for image in images])
    return np.stack([_bend(image, strength, rng) for image in images]).astype(images.dtype)


def _clutter(image, others, share, rng):
    """Draw a square part of another image over a corner."""
    side = image.shape[-1]
    size = round(side * share**0.5)
    other = others[rng.integers(len(others)), 0]
    top, left = rng.integers(side - size + 1, size=2)
    part = other[top : top + size, left : left + size]
    rows, columns = (
        slice(0, size) if first else slice(side - size, side) for first in rng.integers(2, size=2)
    )
    image = image.copy()
    image[0, rows, columns] = np.maximum(image[0, rows, columns], part)
    return image


def _bend(image, pixels, rng):
    """Move every pixel by a smooth field of about so many pixels."""
    shape = image.shape[1:]
    field = np.stack([ndimage.gaussian_filter(rng.standard_normal(shape), 4) for _ in range(2)])
    field *= pixels / np.sqrt((field**2).sum(axis=0).mean())
    return ndimage.map_coordinates(image[0], np.indices(shape) + field, order=1)[None]


def make_clouds(n_clouds, cloud, n_kinds):
    """Return clouds as rows, their points in any order: some kinds with noise, or noise alone."""
    rng = np.random.default_rng(0)
    clouds = rng.standard_normal((n_clouds, *cloud))
    if n_kinds is not None:
        kinds = rng.standard_normal((n_kinds, *cloud))
        clouds = kinds[rng.integers(n_kinds, size=n_clouds)] + 0.5 * clouds
    order = rng.permuted(np.tile(np.arange(cloud[0]), (n_clouds, 1)), axis=1)
    return np.take_along_axis(clouds, order[:, :, None], axis=1).reshape(n_clouds, -1)


def mean_of(results):
    """Return the means of dictionaries of numbers."""
    return {key: float(np.mean([one[key] for one in results])) for key in results[0]}
