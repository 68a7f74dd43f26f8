"""Checks of the arguments that the measures share."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..utils._typing import MatrixLike
from ..utils.validation import as_array, check_named_array, naming


def check_embeddings(values: MatrixLike, name: str, min_samples: int = 1) -> NDArray:
    """Return a finite 2-d float32 or float64 array, or say what is wrong with `name`."""
    X = check_named_array(
        values,
        name,
        dtype=[np.float64, np.float32],
        order="C",
        ensure_2d=False,
        allow_nd=True,
        ensure_min_samples=0,
        ensure_min_features=0,
    )
    if X.ndim != 2:
        raise ValueError(
            f"{name} must have two dimensions (items by features), got shape {X.shape}; "
            "reshape a single feature with .reshape(-1, 1)."
        )
    if X.shape[0] < min_samples or X.shape[1] < 1:
        raise ValueError(
            f"{name} must have at least {min_samples} row(s) and one feature, got shape {X.shape}."
        )
    return X


def check_vector(values: ArrayLike, name: str, length: int | None = None) -> NDArray:
    """Return a non-empty one-dimensional array of the given length."""
    with naming(name):
        vector = as_array(values)
    if vector.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {vector.shape}.")
    if length is not None and len(vector) != length:
        raise ValueError(
            f"{name} must have one entry per row: expected {length}, got {len(vector)}."
        )
    if len(vector) == 0:
        raise ValueError(f"{name} must not be empty.")
    return vector


def check_numbers(values: ArrayLike, name: str, length: int | None = None) -> NDArray:
    """Return a non-empty one-dimensional float64 array without NaN or infinity."""
    vector = check_vector(values, name, length)
    try:
        if vector.dtype.kind == "O":
            vector = np.asarray(vector.tolist())  # of the numbers' own type
        if vector.dtype.kind == "c":
            raise TypeError("complex numbers have no order")
        vector = vector.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must hold numbers, got dtype {vector.dtype}.") from error
    if not np.isfinite(vector).all():
        raise ValueError(f"{name} must be finite, but it contains NaN or infinity.")
    return vector


def check_count(value: Any, name: str) -> int:
    """Return a positive int."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be a positive integer, got {value!r}.")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value!r}.")
    return int(value)
