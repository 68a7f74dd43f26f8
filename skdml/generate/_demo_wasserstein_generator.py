"""The demo of WassersteinGenerator."""

from __future__ import annotations

from collections.abc import Iterator

from sklearn.datasets import load_digits
from sklearn.mixture import GaussianMixture

from .._demo._rows import DemoRow
from .._demo._runner import Stopwatch
from ..metrics import energy_distance
from ..plot import ConvergenceDisplay, GeneratedSamplesDisplay
from ._generator import WassersteinGenerator


def demo(verbose: int = 0) -> Iterator[DemoRow]:
    """Yield the rows of WassersteinGenerator."""
    X, y = load_digits(return_X_y=True)
    X_train, X_test = X[::2], X[1::2]
    model = WassersteinGenerator(max_iter=500, random_state=0, verbose=verbose)
    with Stopwatch() as watch:
        model.fit(X_train, y[::2])
    mixture = GaussianMixture(10, reg_covar=0.1, random_state=0).fit(X_train)
    baseline = energy_distance(X_test, mixture.sample(len(X_test))[0])
    learned = energy_distance(X_test, model.sample(len(X_test), random_state=0))
    samples = GeneratedSamplesDisplay.from_estimator(
        model, X_test, image_shape=(8, 8), random_state=0
    )
    training = ConvergenceDisplay.from_estimator(model)
    yield DemoRow(
        estimator="WassersteinGenerator",
        task="new digits",
        measure="minus the energy distance to test digits",
        baselines={"Gaussian mixture": -baseline},
        learned=-learned,
        seconds=watch.seconds,
        explanation="A flow draws digits that look like those of the training half. The energy "
        "distance to the other half is 0 for digits of the same distribution; the baseline is a "
        "mixture of ten Gaussians.",
        figures=[
            ("Test digits, and digits that the network has drawn.", samples.figure_),
            ("The loss of the flow in training.", training.figure_),
        ],
        explore={"estimator": model, "X": X_test[:500], "y": y[1::2][:500], "images": (8, 8)},
    )
