"""The demo of GMMLTransformer."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits, load_wine, make_classification
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from .._demo._rows import DemoRow
from .._demo._runner import Stopwatch
from ..plot import EmbeddingDisplay, MetricMatrixDisplay
from ._gmml import GMMLTransformer


def demo(verbose=0):
    """Yield the rows of GMMLTransformer."""
    X, y = load_wine(return_X_y=True)
    yield _row(
        "wine, 13 scaled measurements",
        X,
        y,
        scaler=StandardScaler(),
        explanation="Three kinds of wine. The picture shows how rows of one kind move together; "
        "the matrix shows which measurements count, and which are read together.",
        verbose=verbose,
    )
    X, y = load_digits(return_X_y=True)
    noise = np.random.RandomState(0).normal(scale=6, size=(len(X), 30))
    yield _row(
        "digits with 30 columns of noise",
        np.hstack([X, noise]),
        y,
        geodesic=0.25,
        explanation="The last 30 of 94 columns say nothing about the digit. The metric learns "
        "from pairs of equal and of different digits to look away from them.",
        verbose=verbose,
    )
    X, y = make_classification(
        160, 5000, n_informative=60, n_redundant=200, n_classes=3, class_sep=3.0, random_state=0
    )
    yield _row(
        "80 rows with 5,000 features",
        X,
        y,
        explanation="Many more features than rows, as in gene expression. The metric is kept as "
        "a few directions; the matrix of 5,000 x 5,000 is never made.",
        verbose=verbose,
    )


def _row(task, X, y, explanation, verbose, scaler=None, **parameters):
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=0.5, stratify=y, random_state=0
    )
    if scaler is not None:
        X_train, X_test = scaler.fit_transform(X_train), scaler.transform(X_test)
    model = GMMLTransformer(**parameters, random_state=0, verbose=verbose)
    with Stopwatch() as watch:
        model.fit(X_train, y_train)
    Z_train, Z_test = model.transform(X_train), model.transform(X_test)
    knn = KNeighborsClassifier(3)
    return DemoRow(
        estimator="GMMLTransformer",
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
            (
                "The learned metric.",
                MetricMatrixDisplay.from_estimator(model).figure_,
            ),
        ],
    )
