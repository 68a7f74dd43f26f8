"""Scaling of the columns of a table for the networks, and back."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

# Scaled values whose difference is less than this share are the same in float32.
_SAME_VALUE = 2e-7
_MOST_LOOKED_AT = 5000
# Of a column, by quantiles.
_N_KNOTS = 1000
# With scaling="auto", columns share a scale unless the widest is so much wider than the median.
_SAME_UNIT = 10.0


@dataclass
class Columns:
    """Scales, bounds and kinds of the columns of the training rows.

    Attributes
    ----------
    center, scale : ndarray of shape (n_features,)
        A column is scaled as (x - center) / scale.
    lower, upper : ndarray of shape (n_features,)
        Bounds, infinite where a column has none.
    is_integer : ndarray of shape (n_features,)
        Columns of whole numbers.
    unit : float
        The scale if all columns share it, 1 otherwise.
    knots : list of (ndarray, ndarray), default=None
        With the scaling by quantiles, values of each column in ascending order, and the normal
        scores that take their place.
    repeated : dict of int to ndarray
        Of columns that are not of whole numbers, the values that two rows share, such as 0.
    """

    center: NDArray
    scale: NDArray
    lower: NDArray
    upper: NDArray
    is_integer: NDArray
    unit: float
    knots: list[tuple[NDArray, NDArray]] | None = None
    repeated: dict[int, NDArray] = field(default_factory=dict)

    @property
    def is_common(self) -> bool:
        """Whether all columns share a scale."""
        return bool(len(self.scale)) and bool((self.scale == self.scale[0]).all())

    def encode(self, X: NDArray) -> NDArray:
        """Return scaled rows, as float32."""
        if self.knots is not None:
            X = _through(X, self.knots)
        return ((X - self.center) / self.scale).astype(np.float32)

    def decode(self, Z: NDArray) -> NDArray:
        """Return scaled rows in the units of the training rows, and of the same kind."""
        X = self._in_units(Z)
        for j, values in self.repeated.items():
            size = np.maximum(1, np.abs(Z[..., j])) * self.scale[j]
            X[..., j] = _snap(X[..., j], values, _SAME_VALUE * size)
        return X

    def _in_units(self, Z):
        """Return scaled rows in the units of the training rows, up to rounding in float32."""
        X = Z.astype(np.float64) * self.scale + self.center
        if self.knots is not None:
            X = _through(X, [(scores, values) for values, scores in self.knots])
        return np.clip(np.where(self.is_integer, np.round(X), X), self.lower, self.upper)

    def project(self, Z: NDArray) -> NDArray:
        """Return scaled rows moved to values that their columns can have."""
        return self.encode(self._in_units(Z))


def _snap(x, values, tolerance):
    """Return numbers with those that are values but for rounding in float32 replaced by these."""
    places = np.searchsorted(values, x).clip(1, len(values) - 1) if len(values) > 1 else 0
    below, above = values[places - 1], values[places]
    nearest = np.where(x - below < above - x, below, above)
    return np.where(np.abs(x - nearest) <= tolerance, nearest, x)


def _through(X, knots):
    """Return every column along the line through its knots, which ends with them."""
    return np.stack([np.interp(X[..., j], *pair) for j, pair in enumerate(knots)], axis=-1)


def normal_scores(X: NDArray) -> list[tuple[NDArray, NDArray]]:
    """Return for each column values in ascending order, and the normal scores of their ranks.

    Equal values have the mean of their ranks. Of many values, a thousand quantiles are kept.
    """
    knots = []
    for column in X.T:
        values, counts = np.unique(column, return_counts=True)
        ranks = (np.cumsum(counts) - counts / 2) / len(column)
        if len(values) > _N_KNOTS:
            kept = np.unique(np.linspace(0, len(values) - 1, _N_KNOTS).round().astype(int))
            values, ranks = values[kept], ranks[kept]
        knots.append((values, ndtri(ranks)))
    return knots


def mean_deviation(X: NDArray) -> float:
    """Return the mean absolute deviation from the median of each column, over all columns.

    Of many rows, some that are spread over all are looked at.
    """
    X = X[:: max(1, len(X) // _MOST_LOOKED_AT)]
    return float(np.abs(X - np.median(X, axis=0)).mean())


def learn_columns(X: NDArray, scaling: str = "auto") -> Columns:
    """Learn scales and kinds of columns.

    An end of a column's range that two rows share is a bound. Zero is a bound for columns that
    never cross it, and a constant column has two.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        The training rows.
    scaling : {"auto", "common", "columns", "quantile"}, default="auto"
        One scale for all columns, which takes all values to [-1, 1]; or mean 0 and variance 1 for
        each; or the normal scores of its quantiles. "auto" is the first if no column is ten times
        as wide as the median column, and the second otherwise.

    Returns
    -------
    columns : Columns
        Scales, bounds and kinds.
    """
    X = np.asarray(X, dtype=np.float64)
    low, high = X.min(axis=0), X.max(axis=0)
    width = high - low
    varies = width > 0
    if scaling == "auto":
        same_unit = not varies.any() or width.max() <= _SAME_UNIT * np.median(width[varies])
        scaling = "common" if same_unit else "columns"
    knots = None
    if scaling == "quantile":
        knots = normal_scores(X)
        scores = _through(X, knots)
        unit, center = 1.0, np.zeros(len(low))
        scale = np.where(varies, scores.std(axis=0), 1)
    elif scaling == "common" and varies.any():
        lowest, highest = low[varies].min(), high[varies].max()
        unit = float(highest - lowest) / 2
        # A constant column out of the range of all others maps to an end of it.
        near = np.clip(low, lowest, highest)
        center, scale = (lowest + highest) / 2 + (low - near) * ~varies, np.full(len(low), unit)
    else:
        unit = 1.0
        center, scale = np.where(varies, X.mean(axis=0), low), np.where(varies, X.std(axis=0), 1)
    is_integer = (np.round(X[:_MOST_LOOKED_AT]) == X[:_MOST_LOOKED_AT]).all(axis=0)
    is_integer[is_integer] = (np.round(X[:, is_integer]) == X[:, is_integer]).all(axis=0)
    repeated = _repeated(X, is_integer) if knots is None else {}
    lower = np.where((low == X).sum(axis=0) > 1, low, np.where(low >= 0, 0.0, -np.inf))
    upper = np.where((high == X).sum(axis=0) > 1, high, np.where(high <= 0, 0.0, np.inf))
    return Columns(center, scale, lower, upper, is_integer, unit, knots, repeated)


def _repeated(X, is_integer):
    """Return the values that two rows share, by column."""
    found = {}
    for j in np.flatnonzero(~is_integer).tolist():
        values, counts = np.unique(X[:, j], return_counts=True)
        if (counts > 1).any():
            found[j] = values[counts > 1]
    return found
