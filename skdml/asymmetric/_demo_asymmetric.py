"""The demo of AsymmetricMetricClassifier."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from .._demo._baselines import logistic_regression
from .._demo._rows import DemoRow
from .._demo._runner import Stopwatch
from ..plot import EmbeddingDisplay
from ._asymmetric import AsymmetricMetricClassifier


def demo(verbose: int = 0) -> Iterator[DemoRow]:
    """Yield the row of AsymmetricMetricClassifier."""
    X, y = load_digits(return_X_y=True)
    turned = np.rot90(X.reshape(-1, 8, 8), axes=(1, 2)).reshape(X.shape)
    turned = turned + np.random.RandomState(0).normal(scale=2, size=X.shape)
    X_train, y_train, y_test = X[::2], y[::2], y[1::2]
    model = AsymmetricMetricClassifier(n_components=16, max_iter=7, random_state=0, verbose=verbose)
    with Stopwatch() as watch:
        model.fit(X_train, y_train, X_query=turned[::2], y_query=y_train)
    display = EmbeddingDisplay.from_estimator(
        model, turned[1::2], y_test, gallery=X_train, gallery_labels=y_train
    )
    yield DemoRow(
        estimator="AsymmetricMetricClassifier",
        task="turned and noisy digits, searched among upright ones",
        measure="5-NN accuracy",
        baselines={
            "Euclidean": KNeighborsClassifier(5).fit(X_train, y_train).score(turned[1::2], y_test),
            "logistic regression on turned digits": logistic_regression()
            .fit(turned[::2], y_train)
            .score(turned[1::2], y_test),
        },
        learned=model.score(turned[1::2], y_test),
        seconds=watch.seconds,
        explanation="The stored digits are clean and upright. Those that are looked up lie on "
        "their side and are noisy. One map is learned for each, so that they meet.",
        figures=[
            (
                "Stored digits, pale, and test queries, strong, before and after: afterwards "
                "queries lie among the stored digits of their kind.",
                display.figure_,
            )
        ],
        explore={
            "estimator": model,
            "X": turned[1::2],
            "y": y_test,
            "gallery": X_train,
            "gallery_labels": y_train,
            "images": np.concatenate([turned[1::2], X_train]).reshape(-1, 8, 8),
        },
    )
