"""The demo of LFDA."""

from __future__ import annotations

from collections.abc import Iterator

from .._demo import DemoRow
from ._demo_ditml import knn_row, noisy_digits
from ._lfda import LFDA


def demo(verbose: int = 0) -> Iterator[DemoRow]:
    """Yield the row of LFDA."""
    yield knn_row(
        LFDA(),
        "digits with 20 columns of noise",
        noisy_digits,
        "Digits apart, and near rows of a digit together, in closed form.",
    )
