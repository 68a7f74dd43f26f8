"""The demo of SSDMLEmbedder."""

from __future__ import annotations

import numpy as np

from .._demo._rows import DemoRow
from .._demo._runner import Stopwatch
from ..linear._knn_demo import noisy_digits
from ..metrics import recall_at_k
from ..plot import AffinityDisplay, EmbeddingDisplay
from ._ssdml import SSDMLEmbedder


def demo(verbose=0):
    """Yield the rows of SSDMLEmbedder."""
    X, y = noisy_digits()
    X = X / 16
    X_train, y_train, X_test, y_test = X[::2], y[::2], X[1::2], y[1::2]
    labelled = np.concatenate([np.flatnonzero(y_train == digit)[:5] for digit in range(10)])
    partly = np.full(len(y_train), -1)
    partly[labelled] = y_train[labelled]
    model = SSDMLEmbedder(max_epochs=10, epochs_per_partition=2, random_state=0, verbose=verbose)
    with Stopwatch() as watch:
        model.fit(X_train, partly)
    embedding = EmbeddingDisplay.from_estimator(model, X_test, y_test)
    flow = AffinityDisplay.from_estimator(model, X_train, partly)
    yield DemoRow(
        estimator="SSDMLEmbedder",
        task="digits with 30 columns of noise, 50 labels",
        measure="recall@1",
        baseline=float(recall_at_k(X_test, y_test, k=1)),
        learned=float(recall_at_k(model.transform(X_test), y_test, k=1)),
        seconds=watch.seconds,
        explanation="Of 899 digits, 50 have a label. The labels flow to the others along a graph "
        "of neighbours, and a network learns from what arrives. Recall@1 is the share of test "
        "digits whose nearest other test digit is of their kind.",
        figures=[
            ("Test rows along two leading axes, before and after.", embedding.figure_),
            ("Where the labels flowed: given labels, and propagated ones.", flow.figure_),
        ],
    )
