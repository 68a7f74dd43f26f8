"""The demo of MLKR."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.datasets import make_friedman1
from sklearn.linear_model import Ridge
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsRegressor

from .._demo import DemoRow
from .._demo._runner import Stopwatch
from ..plot import EmbeddingDisplay, MetricMatrixDisplay
from ._mlkr import MLKR


def demo(verbose: int = 0) -> Iterator[DemoRow]:
    """Yield the row of MLKR."""
    X, y = make_friedman1(800, 10, noise=0.5, random_state=0)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=0)
    model = MLKR(random_state=0, verbose=verbose)
    with Stopwatch() as watch:
        model.fit(X_train, y_train)
    Z_train, Z_test = model.transform(X_train), model.transform(X_test)
    knn = KNeighborsRegressor(5)
    yield DemoRow(
        estimator="MLKR",
        task="a number that five of ten columns tell",
        measure="R2",
        baselines={
            "Euclidean": knn.fit(X_train, y_train).score(X_test, y_test),
            "ridge regression": Ridge().fit(X_train, y_train).score(X_test, y_test),
        },
        learned=knn.fit(Z_train, y_train).score(Z_test, y_test),
        seconds=watch.seconds,
        explanation="The target is predicted from near rows, and the metric makes these "
        "predictions right. The five columns that say nothing have hardly any weight left.",
        figures=[
            (
                "Test rows along their two leading axes, before and after; the two halves of the "
                "targets as classes.",
                EmbeddingDisplay.from_estimator(
                    model, X_test, np.where(y_test > 14, "high", "low")
                ).figure_,
            ),
            (
                "The learned metric. In the middle, the part of each column in the distances of "
                "test rows: the last five, which say nothing, have hardly any left.",
                MetricMatrixDisplay.from_estimator(model, X_test).figure_,
            ),
        ],
        explore={"estimator": model, "X": X_test, "y": y_test},
    )
