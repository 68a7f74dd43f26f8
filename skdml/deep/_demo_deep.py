"""The demo of DeepMetricEmbedder."""

from __future__ import annotations

from collections.abc import Iterator

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
    display = EmbeddingDisplay.from_estimator(model, X_test, y_test)
    yield DemoRow(
        estimator="DeepMetricEmbedder",
        task="digits with 30 columns of noise",
        measure="recall@1",
        baseline=float(recall_at_k(X_test, y_test, k=1)),
        learned=model.score(X_test, y_test),
        seconds=watch.seconds,
        explanation="A network with two hidden layers maps digits of one kind near each other. "
        "Recall@1 is the share of test digits whose nearest other test digit is of their kind.",
        figures=[("Test rows along two leading axes, before and after.", display.figure_)],
    )
