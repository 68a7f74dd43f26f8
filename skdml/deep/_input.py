"""Checks of what deep learners are given."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..utils.validation import encode, label_vector


def flat_shape(n_features: int, input_shape: Any, module: Any) -> tuple[int, ...]:
    """Return the shape of a sample that came as a row."""
    if input_shape is None:
        if module == "convnet":
            raise ValueError(
                "module='convnet' needs images: pass X of shape (n, channels, height, width), or "
                f"input_shape to say what the {n_features} columns are."
            )
        return (n_features,)
    shape = tuple(input_shape)
    is_image = len(shape) == 3 or (len(shape) == 1 and module != "convnet")
    if not is_image or not all(isinstance(size, Integral) and int(size) > 0 for size in shape):
        raise ValueError(
            f"input_shape must be (channels, height, width), three whole numbers above 0, or None "
            f"for rows that are no images, got {input_shape!r}."
        )
    if math.prod(shape) != n_features:
        raise ValueError(
            f"input_shape={shape} has {math.prod(shape)} values, but X has {n_features} columns."
        )
    return shape


def check_changes(sample_shape: tuple[int, ...], augment: Any, class_rotations: bool) -> None:
    """Check that samples are images where images are to be changed."""
    if len(sample_shape) != 3:
        for name, value, wanted in (
            ("augment", augment, isinstance(augment, str)),
            ("class_rotations", class_rotations, class_rotations),
        ):
            if wanted:
                raise ValueError(
                    f"{name}={value!r} changes images: pass X of shape (n, channels, height, "
                    "width), or input_shape."
                )
    elif class_rotations and sample_shape[1] != sample_shape[2]:
        raise ValueError(f"class_rotations=True needs square images, got {sample_shape[1:]}.")


def check_coreset(share: float, codes: NDArray) -> None:
    """Check that a share of the largest class has two samples, from which similarity is learned."""
    largest = int(np.bincount(codes).max())
    if share * largest <= 1:
        raise ValueError(
            f"coreset={share} leaves one sample of each class, of which the largest has {largest}: "
            f"nothing tells what is similar. Take more than {1 / largest:.3g}, or None."
        )


def encode_labels(y: Any, n_samples: int, name: str) -> tuple[NDArray, NDArray]:
    """Return the classes, sorted, and the number of each sample's class.

    Parameters
    ----------
    y : array-like or None
        Class labels.
    n_samples : int
        How many there should be.
    name : str
        The estimator, named in errors.

    Returns
    -------
    classes : ndarray of shape (n_classes,)
        The distinct labels.
    codes : ndarray of shape (n_samples,)
        Positions in `classes`.
    """
    if y is None:
        raise ValueError(f"{name} requires y to be passed, but the target y is None.")
    y = label_vector(y, n_samples)
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise ValueError("y contains NaN or infinity: every sample needs a class label.")
    if y.dtype.kind in "iuf" and (y == -1).any():
        raise ValueError(
            f"y has -1 for {int(np.sum(y == -1))} samples, which stands for no label. {name} "
            "learns from labelled samples: leave them out, or use SSDMLEmbedder."
        )
    classes, codes = encode(y, "y")
    if len(classes) < 2:
        raise ValueError(
            "y has only one class: at least two are needed to learn what is different."
        )
    if np.bincount(codes).max() < 2:
        raise ValueError("y has no class with two samples: nothing tells what is similar.")
    return classes, codes
