"""Calibration of generated columns: each gets the distribution of the real one, on its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ._tables import TableEncoder

_N_KNOTS = 1025
_N_OFFSET_STEPS = 40


@dataclass
class Calibration:
    """A map of encoded samples that keeps the order in each column.

    Attributes
    ----------
    made, real : ndarray of shape (n_knots, n_numbers)
        Quantiles of generated and of real columns of numbers. Samples end where rows do.
    offsets : list of ndarray
        What is added to the indicators of categories before the largest is taken.
    """

    made: NDArray
    real: NDArray
    offsets: list[NDArray]

    def apply(self, Z: NDArray, encoder: TableEncoder) -> NDArray:
        """Return calibrated samples."""
        found = Z.astype(np.float64)
        for j in range(self.made.shape[1]):
            found[:, j] = np.interp(Z[:, j], self.made[:, j], self.real[:, j])
        for part, offset in zip(encoder.blocks, self.offsets, strict=True):
            found[:, part] += offset
        return found.astype(np.float32)


def calibrate(Z: NDArray, rows: NDArray, encoder: TableEncoder) -> Calibration:
    """Learn the calibration of a generator.

    Parameters
    ----------
    Z : ndarray of shape (n_samples, width)
        Encoded samples.
    rows : ndarray of shape (n_rows, width)
        Encoded training rows.
    encoder : TableEncoder
        Knows which columns are numbers, and which are indicators.

    Returns
    -------
    calibration : Calibration
        The map.
    """
    levels = np.linspace(0, 1, _N_KNOTS)
    numbers = slice(0, encoder.n_numbers)
    made = np.quantile(Z[:, numbers].astype(np.float64), levels, axis=0)
    # A value of a row at each level: the mean of two may be one that no row has.
    real = np.quantile(rows[:, numbers].astype(np.float64), levels, axis=0, method="inverted_cdf")
    offsets = [
        _offsets(Z[:, part].astype(np.float64) * scale + center, rows[:, part] * scale + center)
        / scale
        for part, center, scale in zip(encoder.blocks, encoder.centers, encoder.scales, strict=True)
    ]
    return Calibration(made, real, offsets)


def _offsets(made, real):
    """Return what to add to indicators, so that the largest are as often as those of rows."""
    n_categories, n = made.shape[1], len(made)
    expected = np.bincount(real.argmax(axis=1), minlength=n_categories) / len(real)
    offset = best = np.zeros(n_categories)
    least = np.inf
    for step in range(_N_OFFSET_STEPS):
        found = np.bincount((made + offset).argmax(axis=1), minlength=n_categories) / n
        error = float(np.abs(found - expected).sum())
        if error < least:
            least, best = error, offset
        ratio = np.log((expected + 0.5 / n) / (found + 0.5 / n))
        offset = offset + 0.15 / (1 + step / 8) * ratio
    return best
