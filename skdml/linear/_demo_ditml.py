"""The demo of DITMLTransformer."""

from __future__ import annotations

from collections.abc import Iterator

from .._demo import DemoRow
from ._ditml import DITMLTransformer
from ._knn_demo import knn_row, many_features, noisy_digits


def demo(verbose: int = 0) -> Iterator[DemoRow]:
    """Yield the rows of DITMLTransformer."""
    model = DITMLTransformer(random_state=0, verbose=verbose)
    X, y = noisy_digits()
    yield knn_row(
        model,
        "digits with 30 columns of noise",
        X,
        y,
        "1,000 pairs with bounds on their distances. The spectrum shows how the metric turns the "
        "columns of noise down.",
    )
    X, y = many_features()
    yield knn_row(
        model,
        "80 rows with 5,000 features",
        X,
        y,
        "The exact optimum in the span of the rows; outside it the metric is Euclidean distance.",
    )
