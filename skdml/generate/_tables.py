"""Tables of mixed columns as scaled numbers for the networks, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import gen_batches

from ._columns import Columns, learn_columns
from ._frames import Layout, write_table

# Rows that are encoded at a time: many columns are slow beyond the processor's cache.
_BLOCK = 512


@dataclass
class TableEncoder:
    """Encodes the columns of a table as scaled numbers.

    Numbers come first. Blocks of indicators follow: for each column of numbers with missing cells
    whether a cell is missing, then for each column of categories which of them it is.

    Attributes
    ----------
    layout : Layout
        What the table looks like from outside.
    columns : Columns
        Scales, bounds and kinds of the numbers.
    numbers : list of int
        Which columns of the table are numbers or dates.
    middles : ndarray of shape (n_numbers,)
        The medians of the numbers that have missing cells, and a value of the others.
    gaps : list of int
        Which of the numbers have missing cells.
    categories : dict of int to list
        The categories of the other columns; None stands for missing cells.
    centers : list of ndarray
        The shares of the categories, by block.
    scales : list of float
        Of each block, such that its variances add up to 1.
    """

    layout: Layout
    columns: Columns
    numbers: list[int]
    middles: NDArray
    gaps: list[int]
    categories: dict[int, list]
    centers: list[NDArray]
    scales: list[float]

    @property
    def n_numbers(self) -> int:
        """How many of the encoded columns are numbers."""
        return len(self.numbers)

    @property
    def blocks(self) -> list[slice]:
        """The encoded columns of each block."""
        ends = np.cumsum([self.n_numbers, *map(len, self.centers)]).tolist()
        return [slice(start, end) for start, end in pairwise(ends)]

    @property
    def width(self) -> int:
        """How many encoded columns there are."""
        return self.n_numbers + sum(map(len, self.centers))

    def encode(self, table: Sequence[NDArray]) -> NDArray:
        """Return the columns of a table as scaled numbers, float32."""
        n_rows = len(table[0])
        numbers = np.empty((n_rows, self.n_numbers), dtype=np.float32)
        for part in gen_batches(n_rows, _BLOCK) if self.numbers else ():
            X = np.column_stack([table[j][part] for j in self.numbers])
            missing = np.isnan(X)
            if missing.any():
                # A missing number is in the middle; the mark of its own says that it is missing.
                X = np.where(missing, self.middles, X)
            numbers[part] = self.columns.encode(X)
        parts = [numbers]
        codes = [np.isnan(table[self.numbers[j]]).astype(int) for j in self.gaps]
        for j, categories in self.categories.items():
            places = {_key(category): place for place, category in enumerate(categories)}
            codes.append(np.array([places.get(_key(value), -1) for value in table[j]], dtype=int))
        parts += [self._indicators(block, code) for block, code in enumerate(codes)]
        return np.concatenate(parts, axis=1)

    def _indicators(self, block, codes):
        """Return scaled indicators of codes of any shape."""
        center, scale = self.centers[block], self.scales[block]
        found = codes[..., None] == np.arange(len(center))
        return ((found - center) / scale).astype(np.float32)

    def _codes(self, Z):
        """Return the most likely code of each block."""
        return [
            (Z[..., part] * scale + center).argmax(axis=-1)
            for part, center, scale in zip(self.blocks, self.centers, self.scales, strict=True)
        ]

    def decode(self, Z: NDArray) -> list[NDArray]:
        """Return the columns of scaled numbers, in the units and of the kinds of the table."""
        found: list[Any] = [None] * (len(self.numbers) + len(self.categories))
        codes = self._codes(Z)
        if self.numbers:
            X = self.columns.decode(Z[:, : self.n_numbers])
            for gap, code in zip(self.gaps, codes, strict=False):
                X[code == 1, gap] = np.nan
            for place, j in enumerate(self.numbers):
                found[j] = X[:, place]
        for (j, categories), code in zip(
            self.categories.items(), codes[len(self.gaps) :], strict=True
        ):
            values = np.empty(len(categories), dtype=object)
            values[:] = categories
            if self.layout.kinds[j] != "category":
                values = np.array([np.nan if v is None else v for v in categories])
            found[j] = values[code]
        return found

    def project(self, Z: NDArray) -> NDArray:
        """Return scaled numbers moved to values that their columns can have."""
        parts = []
        if self.numbers:
            parts.append(self.columns.project(Z[..., : self.n_numbers]))
        parts += [self._indicators(block, code) for block, code in enumerate(self._codes(Z))]
        return np.concatenate(parts, axis=-1)

    def write(self, Z: NDArray) -> Any:
        """Return scaled numbers as a table like the one that was learned from."""
        return write_table(self.layout, self.decode(Z))


def _key(value):
    """Return what tells categories apart: True is not 1, and missing cells are all alike."""
    is_missing = value is None or value != value
    return None if is_missing else (isinstance(value, bool | np.bool_), value)


def learn_table(
    layout: Layout,
    table: Sequence[NDArray],
    scaling: str = "auto",
    categorical: Sequence[int] = (),
) -> TableEncoder:
    """Learn how to encode a table.

    Parameters
    ----------
    layout : Layout
        What the table looks like from outside.
    table : sequence of ndarray of shape (n_samples,)
        Its columns, as `read_table` returns them.
    scaling : {"auto", "common", "columns", "quantile"}, default="auto"
        Of numbers. "auto" is "columns" where there are dates, categories or missing cells.
    categorical : sequence of int, default=()
        Columns of numbers whose values are categories.

    Returns
    -------
    encoder : TableEncoder
        The encoder.
    """
    is_category = [kind == "category" or j in categorical for j, kind in enumerate(layout.kinds)]
    numbers = [j for j, category in enumerate(is_category) if not category]
    X = np.column_stack([table[j] for j in numbers]) if numbers else np.empty((len(table[0]), 0))
    missing = np.isnan(X)
    gaps = np.flatnonzero(missing.any(axis=0)).tolist()
    if gaps:
        X = X.copy()
        for j in gaps:
            known = X[~missing[:, j], j]
            # Values of other rows leave the spread of the column as it is.
            X[missing[:, j], j] = np.resize(known, missing[:, j].sum()) if len(known) else 0.0
    if scaling == "auto" and (gaps or any(kind != "number" for kind in layout.kinds)):
        scaling = "columns"
    categories, counts = {}, [np.bincount(missing[:, j], minlength=2) for j in gaps]
    for j, category in enumerate(is_category):
        if category:
            categories[j], count = _count(table[j])
            counts.append(count)
    centers = [count / count.sum() for count in counts]
    spreads = [float(np.sqrt((center * (1 - center)).sum())) for center in centers]
    scales = [spread if spread > 0 else 1.0 for spread in spreads]
    columns = learn_columns(X, scaling)
    # Values that the columns have; those of the first row, where no cell is missing.
    middles = X[0].copy()
    middles[gaps] = np.quantile(X[:, gaps], 0.5, axis=0, method="lower")
    return TableEncoder(layout, columns, numbers, middles, gaps, categories, centers, scales)


def _count(values):
    """Return the categories of a column and how often each occurs, in a fixed order."""
    found: dict[Any, list] = {}
    for value in values.tolist():
        key = _key(value)
        found.setdefault(key, [None if key is None else value, 0])[1] += 1
    # By their text, as values of several types have no order.
    ordered = sorted(found.values(), key=lambda pair: (pair[0] is None, str(pair[0])))
    return [value for value, _ in ordered], np.array([count for _, count in ordered])
