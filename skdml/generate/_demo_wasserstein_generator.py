"""The demo of WassersteinGenerator."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits

from .._demo._rows import DemoRow
from .._demo._runner import Stopwatch
from ..metrics import wasserstein_distance
from ..plot import GeneratedSamplesDisplay, GeneratorTrainingDisplay
from ._generator import WassersteinGenerator


def demo(verbose: int = 0) -> Iterator[DemoRow]:
    """Yield the rows of WassersteinGenerator."""
    X = load_digits().data
    X_train, X_test = X[::2], X[1::2]
    model = WassersteinGenerator(max_iter=300, random_state=0, verbose=verbose)
    with Stopwatch() as watch:
        model.fit(X_train)
    gaussian = np.random.default_rng(0).multivariate_normal(
        X_train.mean(axis=0), np.cov(X_train, rowvar=False), len(X_test)
    )
    samples = GeneratedSamplesDisplay.from_estimator(
        model, X_test, image_shape=(8, 8), random_state=0
    )
    training = GeneratorTrainingDisplay.from_estimator(model)
    yield DemoRow(
        estimator="WassersteinGenerator",
        task="new digits",
        measure="score, minus the distance to test digits",
        baseline=-wasserstein_distance(X_test, gaussian),
        learned=model.score(X_test),
        baseline_name="Gaussian",
        seconds=watch.seconds,
        explanation="A network with two hidden layers draws digits that look like those of the "
        "training half. The distance is how far samples have to move to become the other half; the "
        "baseline is a Gaussian with the mean and the covariance of the training digits.",
        figures=[
            ("Test digits, and digits that the network has drawn.", samples.figure_),
            ("The distance in training; how many rows each point stands for.", training.figure_),
        ],
    )
