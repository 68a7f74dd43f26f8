"""The demo of GMMLTransformer."""

from __future__ import annotations

from collections.abc import Iterator

from numpy.typing import NDArray
from sklearn.datasets import load_wine

from .._demo import DemoRow
from ._demo_ditml import knn_row, many_features, noisy_digits
from ._gmml import GMMLTransformer


def wine() -> tuple[NDArray, NDArray]:
    """Three kinds of wine, by 13 measurements."""
    return load_wine(return_X_y=True)


def demo(verbose: int = 0) -> Iterator[DemoRow]:
    """Yield the rows of GMMLTransformer."""
    gmml = GMMLTransformer(random_state=0, verbose=verbose)
    yield knn_row(
        gmml,
        "wine, 13 scaled measurements",
        wine,
        "Three kinds of wine. The picture shows how rows of one kind move together; the matrix "
        "shows which measurements count, and which are read together.",
        is_scaled=True,
        feature_names=load_wine().feature_names,
    )
    yield knn_row(
        gmml.set_params(geodesic=0.25),
        "digits with 20 columns of noise",
        noisy_digits,
        "The last 20 of 84 columns say nothing about the digit. The metric learns from pairs of "
        "equal and of different digits to look away from them.",
    )
    yield knn_row(
        gmml.set_params(geodesic=0.5),
        "80 rows with 5,000 features",
        many_features,
        "Many more features than rows, as in gene expression. The metric is kept as a few "
        "directions; the matrix of 5,000 x 5,000 is never made.",
    )
