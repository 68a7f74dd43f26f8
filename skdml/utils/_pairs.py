"""Pairs of rows by index, as `pair_distance` takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .validation import naming


def check_index_pairs(pairs: Any, n_rows: int) -> NDArray:
    """Return pairs of row indices as an array, or say what is wrong with them."""
    with naming("pairs"):
        pairs = np.asarray(pairs)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise ValueError(
            f"with X, pairs must be row indices of shape (n_pairs, 2), got shape {pairs.shape} "
            f"and dtype {pairs.dtype}."
        )
    if len(pairs) and (pairs.min() < 0 or pairs.max() >= n_rows):
        raise ValueError(
            f"pairs names rows {pairs.min()} to {pairs.max()}, but X has {n_rows} samples (rows "
            f"0 to {n_rows - 1})."
        )
    return pairs
