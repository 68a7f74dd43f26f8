"""Dask arrays of database rows that are larger than what the maps are learned from."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..utils._parallel import exceeds

# The maps of a larger dask array are learned from so many cells; rows of each class at least.
_MAX_CELLS, _MIN_OF_CLASS = 2**23, 20


def stays_on_workers(X: Any) -> bool:
    """Tell whether a dense dask array has more cells than maps are learned from."""
    return exceeds(X, _MAX_CELLS)


def draw_rows(n_columns: int, y: NDArray, weights: NDArray | None, rng: Generator) -> NDArray:
    """Return numbers of rows to learn from, sorted: at random, and some of each class at least."""
    rows = np.arange(len(y)) if weights is None else np.flatnonzero(weights > 0)
    rows = rng.permutation(rows)
    size = max(1, _MAX_CELLS // n_columns)
    chosen = [rows[:size]]
    codes = np.unique(y[rows], return_inverse=True)[1]
    by_class = rows[np.argsort(codes, kind="stable")]
    starts = np.append(0, np.cumsum(np.bincount(codes)))
    for start, stop in itertools.pairwise(starts):
        chosen.append(by_class[start : min(stop, start + _MIN_OF_CLASS)])
    return np.unique(np.concatenate(chosen))
