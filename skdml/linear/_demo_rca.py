"""The demo of RCA."""

from __future__ import annotations

from collections.abc import Iterator

from .._demo import DemoRow
from ._demo_ditml import knn_row, noisy_digits
from ._rca import RCA


def demo(verbose: int = 0) -> Iterator[DemoRow]:
    """Yield the row of RCA."""
    yield knn_row(
        RCA(),
        "digits with 20 columns of noise",
        noisy_digits,
        "Directions in which rows of a digit differ count little. In closed form.",
    )
