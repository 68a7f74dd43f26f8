"""Batches of samples by class, coresets, and augmentation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ..utils._supervision import draw_weighted

# Batches of an epoch, at least: small data sets are gone through several times.
MIN_BATCHES = 60


def check_changes(augment: Any, sample_shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the changes that `augment` names, as a tuple, if samples can be changed that way."""
    changes = tuple(augment) if isinstance(augment, (list, tuple)) else (augment,)
    changes = tuple(change for change in changes if change is not None)
    for change in changes:
        if not callable(change) and change not in ("affine", "class-rotations"):
            raise ValueError(
                f"augment must be 'affine', 'class-rotations', a function or a list of these, got "
                f"{augment!r}."
            )
        if isinstance(change, str) and len(sample_shape) != 3:
            raise ValueError(
                f"augment={change!r} changes images: pass X of shape (n, channels, height, "
                "width), or input_shape."
            )
        if change == "class-rotations" and sample_shape[1] != sample_shape[2]:
            raise ValueError(f"augment={change!r} needs square images, got {sample_shape[1:]}.")
    return changes


class Coreset(NamedTuple):
    """The share of samples to train on, and after how many epochs it is chosen again."""

    fraction: float
    every: int = 5


def check_coreset(coreset: Any, codes: NDArray) -> Coreset | None:
    """Return the coreset that is asked for, if the largest class has two samples in it."""
    if coreset is None:
        return None
    parts = coreset if isinstance(coreset, (list, tuple)) else (coreset,)
    is_valid = len(parts) in (1, 2) and isinstance(parts[0], Real) and 0 < float(parts[0]) < 1
    if not is_valid or not all(isinstance(n, Integral) and int(n) > 0 for n in parts[1:]):
        raise ValueError(
            "coreset must be a share between 0 and 1, or a pair (share, epochs after which the "
            f"samples are chosen again), got {coreset!r}."
        )
    chosen, largest = Coreset(*parts), int(np.bincount(codes).max())
    if chosen.fraction * largest <= 1:
        raise ValueError(
            f"coreset={coreset} leaves one sample of each class, of which the largest has "
            f"{largest}: nothing tells what is similar. Take more than {1 / largest:.3g}, or None."
        )
    return chosen


@dataclass(eq=False, repr=False)
class ClassBatches:
    """Batches of some samples of each of some classes, drawn anew in every pass.

    Every pass goes through the classes in random order, then again, until the samples of one
    epoch are drawn. The samples of a class come in random order too and start over when they are
    used up, so that rare classes take part as often as frequent ones. A class with one sample
    gives that one, as a negative for the others. With weights, the samples of a class are drawn as
    often as their weights say, in each batch.

    Parameters
    ----------
    X : tensor of shape (n_samples, ...) or Rows
        The samples.
    y : tensor of shape (n_samples,)
        Class numbers from 0.
    classes_per_batch, samples_per_class : int
        P and M.
    rng : numpy Generator
        Draws.
    transform : callable, default=None
        ``transform(X, y)`` changes a batch, such as `augment_affine`.
    classes : callable, default=None
        ``classes(number)`` returns the classes of a pass by its number from 0, where they are not
        all.
    n_batches : int, default=None
        Batches of a pass, where they are not as many as hold the samples.
    every : int, default=1
        Passes after which ``choose()`` is asked again for the rows to draw from.
    choose : callable, default=None
        Returns rows; None: all.
    weights : ndarray of shape (n_samples,), default=None
        Of the samples; None: all count alike.
    """

    X: Any
    y: torch.Tensor
    classes_per_batch: int
    samples_per_class: int
    rng: np.random.Generator
    transform: Callable | None = None
    classes: Callable[[int], NDArray] | None = None
    n_batches: int | None = None
    every: int = 1
    choose: Callable[[], NDArray] | None = None
    weights: NDArray | None = None

    def __post_init__(self) -> None:
        labels = self.y.numpy()
        if self.n_batches is None:
            self.n_batches = count_batches(labels, self.classes_per_batch, self.samples_per_class)
        order = np.argsort(labels, kind="stable")
        self._rows = np.split(order, np.cumsum(np.bincount(labels))[:-1])
        self.classes_per_batch = min(self.classes_per_batch, len(self._rows))
        self._passes = 0

    def __len__(self) -> int:
        return self.n_batches or 0

    @property
    def state(self) -> dict:
        """What the next pass depends on: the state of the generator and the passes before."""
        return {"generator": dict(self.rng.bit_generator.state), "passes": self._passes}

    @state.setter
    def state(self, state: dict) -> None:
        self.rng.bit_generator.state = state["generator"]
        self._passes = state["passes"]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        if self.choose is not None and self._passes % self.every == 0:
            rows = self.choose()
            labels = self.y.numpy()[rows]
            self._rows = [rows[labels == label] for label in np.unique(labels)]
        for rows in self.draw():
            index = torch.from_numpy(rows)
            batch = self.X[index], self.y[index]
            yield self.transform(*batch) if self.transform is not None else batch

    def draw(self) -> Iterator[NDArray]:
        """Yield the rows of one batch after the other."""
        queues: list[Any] = [Shuffled(rows, self.rng) for rows in self._rows]
        if self.weights is not None:
            queues = [WeightedDraws(rows, self.weights[rows], self.rng) for rows in self._rows]
        numbers = np.arange(len(queues)) if self.classes is None else self.classes(self._passes)
        classes = Shuffled(numbers, self.rng)
        self._passes += 1
        for _ in range(len(self)):
            chosen = classes.take(self.classes_per_batch)
            sizes = [min(self.samples_per_class, len(self._rows[label])) for label in chosen]
            yield np.concatenate(
                [queues[label].take(size) for label, size in zip(chosen, sizes, strict=True)]
            )


def count_batches(
    y: NDArray, classes_per_batch: int, samples_per_class: int, copies: int = 1, n_ranks: int = 1
) -> int:
    """Return the batches of a pass: those of all ranks together hold the samples.

    Parameters
    ----------
    y : array of shape (n_samples,)
        Class numbers from 0.
    classes_per_batch, samples_per_class : int
        Of a batch of one rank.
    copies : int, default=1
        How many samples are made of one: four, where rotated images are new classes.
    n_ranks : int, default=1
        Ranks that train together.

    Returns
    -------
    n_batches : int
        At least `MIN_BATCHES`.
    """
    batch = min(classes_per_batch, int(y.max()) + 1) * samples_per_class * n_ranks
    return max(MIN_BATCHES, -(-copies * len(y) // batch))


def classes_of_rank(n_classes: int, rank: int, n_ranks: int, seed: int, number: int) -> NDArray:
    """Return the classes that one of several ranks draws its batches of a pass from.

    Every pass deals them out anew, so that no replica is trained for some classes alone.

    Parameters
    ----------
    n_classes : int
        All classes.
    rank, n_ranks : int
        Which of how many.
    seed : int
        The same on all ranks.
    number : int
        Of the pass.

    Returns
    -------
    classes : array of int
        Classes of this rank alone.
    """
    order = np.random.default_rng([seed, number]).permutation(n_classes)
    return np.sort(order[rank::n_ranks])


class Shuffled:
    """An endless sequence of shuffled passes over some items, without repeats in one `take`."""

    def __init__(self, items: NDArray, rng: np.random.Generator) -> None:
        self._items, self._rng = items, rng
        self._left = items[:0]

    def take(self, n_items: int) -> NDArray:
        """Return the next items."""
        if len(self._left) < n_items:
            # what is left comes first, then others of a new pass
            fresh = self._rng.permutation(self._items)
            rest = fresh[~np.isin(fresh, self._left)]
            self._left = np.concatenate([self._left, rest, fresh[np.isin(fresh, self._left)]])
        taken, self._left = self._left[:n_items], self._left[n_items:]
        return taken


class WeightedDraws:
    """Items that are drawn as often as their weights say, in every `take`."""

    def __init__(self, items: NDArray, weights: NDArray, rng: np.random.Generator) -> None:
        self._items, self._weights, self._rng = items, weights, rng

    def take(self, n_items: int) -> NDArray:
        """Return the next items."""
        return self._items[draw_weighted(self._weights, n_items, self._rng)]


def augmented(augment: Callable[..., Any], X: torch.Tensor) -> torch.Tensor:
    """Return changed samples, or say that a user's function did not return them.

    Parameters
    ----------
    augment : callable
        Takes and returns a tensor.
    X : tensor of shape (n_samples, ...)
        The samples.

    Returns
    -------
    X : tensor of shape (n_samples, ...)
        What `augment` returned.
    """
    changed = augment(X)
    if not isinstance(changed, torch.Tensor) or len(changed) != len(X):
        got = f"{len(changed)}" if isinstance(changed, torch.Tensor) else type(changed).__name__
        raise TypeError(f"augment must return a tensor of the {len(X)} samples it gets, got {got}.")
    return changed


def augment_affine(X: torch.Tensor) -> torch.Tensor:
    """Turn, scale, shear and shift images at random.

    Parameters
    ----------
    X : tensor of shape (n_images, channels, height, width)
        The images.

    Returns
    -------
    X : tensor of the same shape
        Each turned by up to 14 degrees, scaled by up to 15%, sheared by up to 0.2 and shifted by
        up to a twentieth of its size; what comes in from outside is zero.
    """
    n_images = len(X)
    if n_images == 0:
        return X

    def uniform(half_range, *shape):
        return (2 * torch.rand(n_images, *shape) - 1) * half_range

    angle, scale, shear = uniform(0.25), 1 + uniform(0.15), uniform(0.2)
    maps = torch.zeros(n_images, 2, 3)
    maps[:, 0, 0] = maps[:, 1, 1] = torch.cos(angle) * scale
    maps[:, 0, 1] = -torch.sin(angle) * scale + shear
    maps[:, 1, 0] = torch.sin(angle) * scale
    maps[:, :, 2] = uniform(0.1, 2)
    maps = maps.to(X.dtype)
    grid = functional.affine_grid(maps, list(X.shape), align_corners=False)
    return functional.grid_sample(X, grid, align_corners=False)


def rotate_classes(X: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn the images of each class by a random multiple of 90 degrees: a new class for each turn.

    Parameters
    ----------
    X : tensor of shape (n_images, channels, size, size)
        Square images.
    y : tensor of shape (n_images,)
        Class numbers from 0.

    Returns
    -------
    X : tensor of the same shape
        The turned images.
    y : tensor of shape (n_images,)
        ``4 * y`` plus the number of quarter turns.
    """
    labels, position = torch.unique(y, return_inverse=True)
    turns = torch.randint(4, (len(labels),))[position]
    X = X.clone()
    for turn in (1, 2, 3):
        chosen = turns == turn
        X[chosen] = torch.rot90(X[chosen], turn, (2, 3))
    return X, 4 * y + turns
