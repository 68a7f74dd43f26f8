"""Pair differences in blocks, local or on dask workers."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import blas

from ._parallel import is_dask_array, make_shards

# Pairs per block: a number of its own, so that the sums are the same for any n_jobs.
_BLOCK_PAIRS = 50_000
# Numbers in the rows of a tile, so that a tile of pairs stays in the cache.
_TILE_SIZE = 2**16
# Numbers in a temporary array of differences.
_CHUNK_SIZE = 2**16


class PairDifferences:
    """The differences ``c_k = coordinates[i_k] - coordinates[j_k]``, in blocks of pairs.

    Linear learners use their pairs in two ways only: a weighted sum of outer products, and
    quadratic forms with a small matrix. Blocks of pairs stay in this process or on the workers of
    a cluster; only weights, matrices of rank x rank and one number per pair travel.

    A context manager: the blocks are freed at the end.

    Parameters
    ----------
    coordinates : ndarray or dask array of shape (n_rows, rank)
        Rows, best centred: a common offset cancels only up to rounding.
    pairs : ndarray of shape (n_pairs, 2)
        Row indices.
    n_jobs, client :
        Where the work is done, see `skdml.utils._parallel`.
    """

    def __init__(
        self,
        coordinates: Any,
        pairs: NDArray[np.integer],
        *,
        n_jobs: int | None = None,
        client: Any = None,
    ) -> None:
        self.n_pairs = len(pairs)
        self.rank = coordinates.shape[1]
        self._cuts = [
            slice(start, start + _BLOCK_PAIRS) for start in range(0, self.n_pairs, _BLOCK_PAIRS)
        ]
        self._order = _tile_order(pairs, len(coordinates), self.rank)
        pairs = pairs[self._order]
        blocks = [_make_block(coordinates, pairs[cut]) for cut in self._cuts]
        self._shards = make_shards(blocks, n_jobs=n_jobs, client=client)
        self._differences: NDArray | None = None

    def scatter(self, weights: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return ``sum_k w_k c_k c_k'``; for each row of `weights` if it has several."""
        rows = np.atleast_2d(weights)[:, self._order]
        total = self._shards.sum(_scatter, each=[rows[:, cut] for cut in self._cuts])
        return total if np.ndim(weights) == 2 else total[0]

    def squared_norms(self, factor: NDArray | None) -> NDArray[np.float64]:
        """Return ``|factor @ c_k|²``, of a lower triangular factor; None is the identity."""
        return self._in_order(self._shards.map(_squared_norms, factor))

    def quadratic_forms(self, matrix: NDArray) -> NDArray[np.float64]:
        """Return ``c_k' @ matrix @ c_k`` for every pair; the matrix is symmetric."""
        return self._in_order(self._shards.map(_quadratic_forms, matrix))

    def to_array(self) -> NDArray[np.float64]:
        """Return all differences as one array of shape (n_pairs, rank), made once."""
        if self._differences is None:
            self._differences = self._in_order(self._shards.map(_differences))
        return self._differences

    def _in_order(self, parts):
        """Put what came from the blocks into the order of the pairs."""
        parts = np.concatenate(parts)
        out = np.empty_like(parts)
        out[self._order] = parts
        return out

    @property
    def is_local(self) -> bool:
        """Whether the blocks are in this process, and not on a cluster."""
        return not hasattr(self._shards, "bytes_moved")

    @property
    def bytes_moved(self) -> int:
        """Bytes sent to and from the workers of a cluster so far, without the blocks."""
        return getattr(self._shards, "bytes_moved", 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._shards.__exit__(*exc_info)
        self._differences = None


def _tile_order(pairs, n_rows, rank):
    """Order pairs by tiles of rows that fit a core's cache, so that gathering rows is quick."""
    tile = max(1, _TILE_SIZE // rank)
    n_tiles = n_rows // tile + 1
    return np.argsort(pairs[:, 0] // tile * n_tiles + pairs[:, 1] // tile, kind="stable")


def _make_block(coordinates, pairs):
    """Return (rows, pairs of places in them), or (differences, None) where those are few."""
    rows, local = np.unique(pairs, return_inverse=True)
    local = local.reshape(pairs.shape)
    if is_dask_array(coordinates):
        import dask

        return dask.delayed(_finish_block)(coordinates[rows], local)
    whole = len(rows) == len(coordinates)  # then rows is 0 .. n - 1, and a copy is saved
    return _finish_block(coordinates if whole else coordinates[rows], local)


def _finish_block(rows, pairs):
    rows = np.asarray(rows, dtype=np.float64)
    if 1.5 * len(rows) > len(pairs):  # products with differences cost less than with rows
        return rows[pairs[:, 0]] - rows[pairs[:, 1]], None
    return rows, pairs


def _scatter(block, weights):
    rows, pairs = block
    out = np.empty((len(weights), rows.shape[1], rows.shape[1]))
    for k, w in enumerate(weights):
        if pairs is None:
            # Two products of a matrix with itself, which cost half of one with another.
            scaled = np.sqrt(np.abs(w))[:, None] * rows
            up, down = scaled[w > 0], scaled[w < 0]
            product = up.T @ up - down.T @ down
        else:
            # sum_k w_k c_k c_k' = rows' laplacian rows, with the Laplacian of the pairs' graph:
            # one product over the rows, however many pairs there are.
            adjacency = sparse.coo_array((w, tuple(pairs.T)), shape=(len(rows), len(rows))).tocsr()
            adjacency = adjacency + adjacency.T
            degree = np.asarray(adjacency.sum(axis=1)).ravel()
            product = rows.T @ (degree[:, None] * rows - adjacency @ rows)
        out[k] = (product + product.T) / 2
    return out


def _squared_norms(block, factor):
    rows, pairs = block
    mapped = rows if factor is None else map_rows(rows, factor)
    if pairs is None:
        return np.einsum("ij,ij->i", mapped, mapped)
    out = np.empty(len(pairs))
    for cut, c, other in _gather(pairs, mapped, mapped):
        c -= other
        np.einsum("ij,ij->i", c, c, out=out[cut])
    return out


def map_rows(rows: NDArray, factor: NDArray) -> NDArray:
    """Return ``rows @ factor.T`` for a lower triangular factor, at half the cost."""
    # In Fortran's order rows.T is what lies in memory: factor @ rows.T, in place of a copy.
    return blas.dtrmm(1.0, factor, rows.T, side=0, lower=1).T


def _quadratic_forms(block, matrix):
    rows, pairs = block
    mapped = rows @ matrix
    if pairs is None:
        return np.einsum("ij,ij->i", rows, mapped)
    # c' M c = x_i' M x_i + x_j' M x_j - 2 x_i' M x_j: one product per pair. Some digits are lost
    # for pairs much nearer than the rows are long, where `squared_norms` loses none.
    own = np.einsum("ij,ij->i", rows, mapped)
    out = own[pairs[:, 0]] + own[pairs[:, 1]]
    for cut, left, right in _gather(pairs, rows, mapped):
        out[cut] -= 2 * np.einsum("ij,ij->i", left, right)
    return out


def _differences(block):
    rows, pairs = block
    return rows if pairs is None else rows[pairs[:, 0]] - rows[pairs[:, 1]]


def _gather(pairs, first, second):
    """Yield (slice of pairs, their rows of `first`, their rows of `second`), a few at a time.

    Into the same two buffers: where memory is given back at every free, as dask tells its
    workers to, new arrays for every chunk would take several times as long.
    """
    step = max(1, min(len(pairs), _CHUNK_SIZE // first.shape[1]))
    buffers = np.empty((2, step, first.shape[1]))
    for start in range(0, len(pairs), step):
        cut = slice(start, min(start + step, len(pairs)))
        left, right = buffers[:, : cut.stop - start]
        np.take(first, pairs[cut, 0], axis=0, out=left, mode="clip")
        np.take(second, pairs[cut, 1], axis=0, out=right, mode="clip")
        yield cut, left, right
