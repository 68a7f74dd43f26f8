"""Pairs as samples: arrays of two vectors each, or indices of rows that are kept elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ..utils.validation import as_array, check_named_array, naming


def check_pair_array(pairs: Any) -> NDArray:
    """Return pairs as an array of shape (n_pairs, 2, n_features) or (n_pairs, 2)."""
    wanted = "an array of shape (n_pairs, 2, n_features), or (n_pairs, 2) with indices of rows"
    if sparse.issparse(pairs):
        raise TypeError(
            "pairs is a sparse matrix: give sparse rows as preprocessor, and pairs of indices."
        )
    with naming("pairs"):
        pairs = as_array(pairs)
    if pairs.ndim not in (2, 3) or pairs.shape[1] != 2 or not pairs.shape[-1]:
        raise ValueError(f"pairs must be {wanted}, got shape {pairs.shape}.")
    if not len(pairs):
        raise ValueError(f"pairs is empty: it must be {wanted}.")
    if pairs.ndim == 3:
        pairs = check_named_array(
            pairs, "pairs", dtype=[np.float64, np.float32], allow_nd=True, ensure_2d=False
        )
    return pairs


def find_rows(
    pairs: NDArray, preprocessor: Any = None, *, distinct: bool = True
) -> tuple[Any, NDArray]:
    """Return the distinct rows of pairs, in the order in which they come, and index pairs.

    Parameters
    ----------
    pairs : ndarray of shape (n_pairs, 2, n_features) or (n_pairs, 2)
        As `check_pair_array` returns them.
    preprocessor : {array-like, sparse matrix, callable}, default=None
        The rows that indices refer to.
    distinct : bool, default=True
        False may leave equal vectors apart, to save the search for them.

    Returns
    -------
    rows : {ndarray, sparse matrix} of shape (n_rows, n_features)
        The rows.
    places : ndarray of shape (n_pairs, 2)
        The two rows of each pair.
    """
    if pairs.ndim == 3 and not distinct:
        return pairs.reshape(-1, pairs.shape[2]), np.arange(2 * len(pairs)).reshape(-1, 2)
    first, codes = find_entities(pairs)
    if pairs.ndim == 3:
        return pairs.reshape(-1, pairs.shape[2])[first], codes
    if preprocessor is None:
        raise ValueError(
            f"pairs of shape {pairs.shape} are indices of rows: give the rows as preprocessor, or "
            "pairs of shape (n_pairs, 2, n_features)."
        )
    return _take(preprocessor, pairs.ravel()[first]), codes


def find_entities(pairs: NDArray, name: str = "pairs") -> tuple[NDArray, NDArray]:
    """Return where each distinct side of pairs comes first, and its number for all sides.

    Sides are vectors, or indices; they are numbered in the order in which they come.
    """
    sides = pairs.reshape(-1, *pairs.shape[2:])
    with naming(name):
        first, codes = _number_rows(sides) if sides.ndim == 2 else number_in_order(sides)
    return first, codes.reshape(-1, 2)


def _number_rows(rows):
    """Give numbers to distinct rows, in the order in which they come."""
    rows = np.ascontiguousarray(rows + 0.0)  # no negative zeros
    bits = rows.view(np.uint32 if rows.itemsize == 4 else np.uint64).astype(np.uint64)
    bits ^= bits >> np.uint64(32)  # the lower half of short numbers is 0
    factors = np.random.default_rng(0).integers(2**64, size=rows.shape[1], dtype=np.uint64)
    first, codes = number_in_order(bits @ (factors | np.uint64(1)))
    if not np.array_equal(rows[first][codes], rows):  # different rows with one hash
        as_bytes = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))
        first, codes = number_in_order(as_bytes[:, 0])
    return first, codes


def number_in_order(values: NDArray) -> tuple[NDArray, NDArray]:
    """Give numbers to distinct values, in the order in which they come.

    Parameters
    ----------
    values : ndarray of shape (n_values,)
        What can be sorted.

    Returns
    -------
    first : ndarray of shape (n_distinct,)
        Where each comes first.
    codes : ndarray of shape (n_values,)
        Numbers from 0.
    """
    _, first, codes = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), dtype=np.intp)
    rank[order] = np.arange(len(order))
    return first[order], rank[codes]


def _take(preprocessor, indices):
    """Return the rows of indices, checked."""
    options = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}
    if callable(preprocessor):
        rows = check_named_array(preprocessor(indices), "preprocessor", **options)
        if rows.shape[0] != len(indices):
            raise ValueError(
                f"preprocessor returned {rows.shape[0]} rows for {len(indices)} indices: one row "
                "per index is needed."
            )
        return rows
    if indices.dtype.kind not in "iu":
        raise TypeError(
            f"pairs must hold integer indices of the rows of preprocessor, got dtype "
            f"{indices.dtype}."
        )
    with naming("preprocessor"):
        rows = preprocessor.tocsr() if sparse.issparse(preprocessor) else as_array(preprocessor)
    if rows.ndim != 2:
        raise ValueError(f"preprocessor must be rows in two dimensions, got shape {rows.shape}.")
    if indices.min() < 0 or indices.max() >= rows.shape[0]:
        raise ValueError(
            f"pairs names rows {indices.min()} to {indices.max()}, but preprocessor has "
            f"{rows.shape[0]} rows (0 to {rows.shape[0] - 1})."
        )
    return check_named_array(rows[indices], "preprocessor", **options)
