"""Pairs that come in batches, for the ITML dual: the multipliers of earlier pairs stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..utils._differences import PairDifferences


@dataclass(frozen=True)
class PairStream:
    """All pairs so far.

    Attributes
    ----------
    bounds : tuple of two floats
        u and l, of the first batch.
    dtype : dtype
        Of the rows.
    n_rows : int
        Rows in all batches.
    pairs : ndarray of shape (n_pairs, 2)
        Row indices, counted through the batches.
    differences : ndarray of shape (n_pairs, n_features)
        Of the pairs, float64.
    signed : ndarray of shape (n_pairs,)
        Weights, negative for dissimilar pairs.
    multipliers : ndarray of shape (n_pairs,)
        Of the last solution; 0 for pairs that are new.
    """

    bounds: Any
    dtype: Any
    n_rows: int
    pairs: NDArray
    differences: NDArray
    signed: NDArray
    multipliers: NDArray

    @classmethod
    def begin(cls, bounds: Any, n_features: int, dtype: Any) -> PairStream:
        """Return a stream without pairs."""
        pairs, none = np.empty((0, 2), dtype=np.int64), np.empty(0)
        return cls(bounds, dtype, 0, pairs, np.empty((0, n_features)), none, none)

    def join(self, X: NDArray, pairs: NDArray, signed: NDArray) -> PairStream:
        """Return the stream with the pairs of a batch that differ at all."""
        differences = X[pairs[:, 0]].astype(np.float64) - X[pairs[:, 1]]
        squares = np.einsum("ij,ij->i", differences, differences)
        keep = squares > 1e-14 * squares.max(initial=0)
        return PairStream(
            self.bounds,
            self.dtype,
            self.n_rows + len(X),
            np.concatenate([self.pairs, self.n_rows + pairs[keep]]),
            np.concatenate([self.differences, differences[keep]]),
            np.concatenate([self.signed, signed[keep]]),
            np.concatenate([self.multipliers, np.zeros(keep.sum())]),
        )

    def limits(self) -> NDArray[np.float64]:
        """Return the bound of each pair."""
        return np.where(self.signed > 0, *self.bounds)

    def pair_differences(self) -> PairDifferences:
        """Return the differences as the solvers take them: of each from a row of zeros."""
        n_pairs, n_features = self.differences.shape
        rows = np.concatenate([self.differences, np.zeros((1, n_features))])
        return PairDifferences(
            rows, np.column_stack([np.arange(n_pairs), np.full(n_pairs, n_pairs)])
        )


def kept_multipliers(
    before: tuple[NDArray, NDArray, NDArray], pairs: NDArray, labels: NDArray
) -> NDArray[np.float64]:
    """Return the multipliers of pairs that were in a fit before, 0 for others.

    Parameters
    ----------
    before : tuple of ndarray
        Pairs, labels and multipliers of that fit.
    pairs : ndarray of shape (n_pairs, 2)
        Row indices.
    labels : ndarray of shape (n_pairs,)
        +1 or -1.

    Returns
    -------
    multipliers : ndarray of shape (n_pairs,)
        Where to start.
    """
    n_rows = 1 + max(int(pairs.max(initial=0)), int(before[0].max(initial=0)))

    def numbers(pairs, labels):
        return 2 * (pairs[:, 0] * n_rows + pairs[:, 1]) + (labels > 0)

    known, now = numbers(*before[:2]), numbers(pairs, labels)
    _, old, new = np.intersect1d(known, now, return_indices=True)
    multipliers = np.zeros(len(now))
    multipliers[new] = before[2][old]
    return multipliers
