"""The demo of DITMLTransformer, and 3-NN with and without a learned metric."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits, make_classification
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

from .._demo._rows import DemoRow
from .._demo._runner import Stopwatch
from ..plot import EmbeddingDisplay, MetricMatrixDisplay
from ._ditml import DITMLTransformer


def demo(verbose: int = 0) -> Iterator[DemoRow]:
    """Yield the rows of DITMLTransformer."""
    ditml = DITMLTransformer(random_state=0, verbose=verbose)
    yield knn_row(
        ditml,
        "digits with 30 columns of noise",
        noisy_digits(),
        "1,000 pairs with bounds on their distances. The spectrum shows how the metric turns the "
        "columns of noise down.",
    )
    yield knn_row(
        ditml,
        "80 rows with 5,000 features",
        many_features(),
        "The exact optimum in the span of the rows; outside it the metric is Euclidean distance.",
    )


def noisy_digits() -> tuple[NDArray, NDArray]:
    """Digits with 30 columns that say nothing about them."""
    X, y = load_digits(return_X_y=True)
    return np.hstack([X, np.random.RandomState(0).normal(scale=6, size=(len(X), 30))]), y


def many_features() -> tuple[NDArray, NDArray]:
    """160 rows of three classes with 5,000 features."""
    return make_classification(
        160, 5000, n_informative=60, n_redundant=200, n_classes=3, class_sep=3.0, random_state=0
    )


def knn_row(model: Any, task: str, data: tuple, explanation: str, scaler: Any = None) -> DemoRow:
    """Fit on one half of the rows, and compare nearest neighbours on the other."""
    X_train, X_test, y_train, y_test = train_test_split(
        *data, test_size=0.5, stratify=data[1], random_state=0
    )
    if scaler is not None:
        X_train, X_test = scaler.fit_transform(X_train), scaler.transform(X_test)
    with Stopwatch() as watch:
        model.fit(X_train, y_train)
    Z_train, Z_test = model.transform(X_train), model.transform(X_test)
    knn = KNeighborsClassifier(3)
    return DemoRow(
        estimator=type(model).__name__,
        task=task,
        measure="3-NN accuracy",
        baseline=knn.fit(X_train, y_train).score(X_test, y_test),
        learned=knn.fit(Z_train, y_train).score(Z_test, y_test),
        seconds=watch.seconds,
        explanation=explanation,
        figures=[
            (
                "Test rows along their two leading axes, before and after.",
                EmbeddingDisplay.from_estimator(model, X_test, y_test).figure_,
            ),
            ("The learned metric.", MetricMatrixDisplay.from_estimator(model).figure_),
        ],
    )
