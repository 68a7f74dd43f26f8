"""The demo of DITMLTransformer, and 3-NN with and without a learned metric."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits, make_classification
from sklearn.neighbors import KNeighborsClassifier

from .._demo._baselines import halves, knn_baselines
from .._demo._rows import DemoRow
from .._demo._runner import Stopwatch
from ..plot import EmbeddingDisplay, MetricMatrixDisplay
from ._ditml import DITMLTransformer


def demo(verbose: int = 0) -> Iterator[DemoRow]:
    """Yield the rows of DITMLTransformer."""
    ditml = DITMLTransformer(random_state=0, verbose=verbose)
    yield knn_row(
        ditml.set_params(n_constraints=1500),
        "digits with 20 columns of noise",
        noisy_digits,
        "1,500 pairs of digits that lie near each other, each with a bound on its distance. The "
        "metric turns the columns of noise down, which are the last 20.",
    )
    yield knn_row(
        ditml.set_params(n_constraints=None),
        "80 rows with 5,000 features",
        many_features,
        "The exact optimum in the span of the rows; outside it the metric is Euclidean distance.",
    )


def noisy_digits() -> tuple[NDArray, NDArray]:
    """Digits with 20 columns that say nothing about them."""
    X, y = load_digits(return_X_y=True)
    return np.hstack([X, np.random.RandomState(0).normal(scale=6, size=(len(X), 20))]), y


def many_features() -> tuple[NDArray, NDArray]:
    """160 rows of three classes with 5,000 features."""
    return make_classification(
        160, 5000, n_informative=60, n_redundant=200, n_classes=3, class_sep=3.0, random_state=0
    )


def knn_row(
    model: Any,
    task: str,
    make: Callable[[], tuple],
    explanation: str,
    is_scaled: bool = False,
    **explore: Any,
) -> DemoRow:
    """Fit on one half of the rows, and compare nearest neighbours on the other."""
    X_train, X_test, y_train, y_test = halves(make, is_scaled)
    with Stopwatch() as watch:
        model.fit(X_train, y_train)
    Z_train, Z_test = model.transform(X_train), model.transform(X_test)
    knn = KNeighborsClassifier(3).fit(Z_train, y_train)
    metric = MetricMatrixDisplay.from_estimator(model, X_test)
    return DemoRow(
        estimator=type(model).__name__,
        task=task,
        measure="3-NN accuracy",
        baselines=knn_baselines(make, is_scaled),
        learned=knn.score(Z_test, y_test),
        seconds=watch.seconds,
        explanation=explanation,
        figures=[
            (
                "Test rows along their two leading axes, before and after: classes that lie apart "
                "on the right are told apart by distance.",
                EmbeddingDisplay.from_estimator(model, X_test, y_test).figure_,
            ),
            (
                "The learned metric. In the middle, the part of each column in the distances of "
                "test rows: columns in orange were turned down."
                if len(metric.axes_) > 1
                else "The learned metric: along few directions rows differ more than along others.",
                metric.figure_,
            ),
        ],
        # The demo may fit the model again, before the page is written.
        explore={"estimator": copy.copy(model), "X": X_test, "y": y_test, **explore},
    )
