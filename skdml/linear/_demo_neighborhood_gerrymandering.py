"""The demo of NeighborhoodGerrymandering."""

from __future__ import annotations

from collections.abc import Iterator

from .._demo import DemoRow
from ._demo_ditml import knn_row, noisy_digits
from ._gerrymandering import NeighborhoodGerrymandering


def demo(verbose: int = 0) -> Iterator[DemoRow]:
    """Yield the row of NeighborhoodGerrymandering."""
    yield knn_row(
        # Rows that are held out would try the metric of DITMLTransformer as a start, too.
        NeighborhoodGerrymandering(
            max_iter=10, validation_fraction=None, random_state=0, verbose=verbose
        ),
        "digits with 20 columns of noise",
        noisy_digits,
        "Sets of five neighbours that the right class wins are drawn near, and sets that another "
        "class wins are pushed away. The columns of noise help nobody to win.",
    )
