"""The demo of SSDMLEmbedder."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from sklearn.semi_supervised import LabelSpreading

from .._demo._baselines import logistic_regression
from .._demo._rows import DemoRow
from .._demo._runner import Stopwatch
from ..plot import AffinityDisplay, EmbeddingDisplay
from ._ssdml import SSDMLEmbedder


def demo(verbose: int = 0) -> Iterator[DemoRow]:
    """Yield the rows of SSDMLEmbedder."""
    X, y = load_digits(return_X_y=True)
    X = X / 16
    X_train, y_train, X_test, y_test = X[::2], y[::2], X[1::2], y[1::2]
    labelled = np.concatenate([np.flatnonzero(y_train == digit)[:5] for digit in range(10)])
    partly = np.full(len(y_train), -1)
    partly[labelled] = y_train[labelled]
    model = SSDMLEmbedder(
        module="convnet",
        module__channels=(16, 32),
        input_shape=(1, 8, 8),
        augment="affine",
        partition_size=425,
        epochs_per_partition=1,
        max_epochs=5,
        random_state=0,
        verbose=verbose,
    )
    with Stopwatch() as watch:
        model.fit(X_train, partly)
    given = X_train[labelled], y_train[labelled]
    embedding = EmbeddingDisplay.from_estimator(model, X_test, y_test)
    flow = AffinityDisplay.from_estimator(
        model, X_train, partly, max_samples=300, projection="tsne"
    )
    yield DemoRow(
        estimator="SSDMLEmbedder",
        task="899 digits, 50 of them with a label",
        measure="accuracy",
        baselines={
            "1-NN": KNeighborsClassifier(1).fit(*given).score(X_test, y_test),
            "logistic regression": logistic_regression().fit(*given).score(X_test, y_test),
            "label spreading": LabelSpreading("knn", n_neighbors=10)
            .fit(X_train, partly)
            .score(X_test, y_test),
        },
        learned=float(np.mean(model.predict(X_test) == y_test)),
        seconds=watch.seconds,
        explanation="The labels of 50 digits flow to the others along a graph of neighbours, and a "
        "network learns from what arrives. The measure is how often it names the digit of a "
        "test row.",
        figures=[
            ("Test rows along two leading axes, before and after.", embedding.figure_),
            ("Where the labels flowed: given labels, and propagated ones.", flow.figure_),
        ],
        explore={"estimator": model, "X": X_test, "y": y_test, "images": X_test.reshape(-1, 8, 8)},
    )
