"""The demo of LMNN."""

from __future__ import annotations

from collections.abc import Iterator

from .._demo import DemoRow
from ._demo_ditml import knn_row, noisy_digits
from ._lmnn import LMNN


def demo(verbose: int = 0) -> Iterator[DemoRow]:
    """Yield the row of LMNN."""
    yield knn_row(
        LMNN(max_iter=30, random_state=0, verbose=verbose),
        "digits with 20 columns of noise",
        noisy_digits,
        "Near rows of a digit are drawn near, and rows of other digits pushed out of the margin. "
        "The columns of noise do not help with that.",
    )
