"""The demo of DeepMetricEmbedder."""

from __future__ import annotations

from collections.abc import Iterator

from .._demo._baselines import logistic_regression
from .._demo._rows import DemoRow
from .._demo._runner import Stopwatch
from ..linear._demo_ditml import noisy_digits
from ..metrics import recall_at_k
from ..plot import EmbeddingDisplay
from ._embedder import DeepMetricEmbedder


def demo(verbose: int = 0) -> Iterator[DemoRow]:
    """Yield the rows of DeepMetricEmbedder."""
    X, y = noisy_digits()
    X = X / 16
    X_test, y_test = X[1::2], y[1::2]
    model = DeepMetricEmbedder(max_epochs=5, random_state=0, verbose=verbose)
    with Stopwatch() as watch:
        model.fit(X[::2], y[::2])
    simple = logistic_regression().fit(X[::2], y[::2]).decision_function(X_test)
    display = EmbeddingDisplay.from_estimator(model, X_test, y_test)
    yield DemoRow(
        estimator="DeepMetricEmbedder",
        task="digits with 20 columns of noise",
        measure="recall@1",
        baselines={
            "Euclidean": float(recall_at_k(X_test, y_test, k=1)),
            "outputs of a logistic regression": float(recall_at_k(simple, y_test, k=1)),
        },
        learned=model.score(X_test, y_test),
        seconds=watch.seconds,
        explanation="A network with two hidden layers maps digits of one kind near each other. "
        "Recall@1 is the share of test digits whose nearest other test digit is of their kind.",
        figures=[
            (
                "Test rows along two leading axes, before and after: digits of one kind gather.",
                display.figure_,
            )
        ],
        explore={
            "estimator": model,
            "X": X_test,
            "y": y_test,
            "images": X_test[:, :64].reshape(-1, 8, 8),
        },
    )
