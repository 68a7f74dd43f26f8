"""The demo of PairClassifier."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from .._demo import DemoRow
from .._demo._baselines import logistic_regression
from .._demo._runner import Stopwatch
from ..constraints import make_pairs
from ..linear import DITMLTransformer
from ..plot import VerificationDisplay
from ._pair_classifier import PairClassifier


def demo(verbose: int = 0) -> Iterator[DemoRow]:
    """Yield the row of PairClassifier."""
    X, digit = load_digits(return_X_y=True)
    train, test = np.arange(0, len(X), 2), np.arange(1, len(X), 2)
    (pairs, y), (test_pairs, y_test) = (
        make_pairs(digit[rows], 2000, random_state=0) for rows in (train, test)
    )
    learner = DITMLTransformer(gamma=1.0, random_state=0, verbose=verbose)
    model = PairClassifier(learner, preprocessor=X, random_state=0)
    with Stopwatch() as watch:
        model.fit(train[pairs], y)
    test_pairs = test[test_pairs]
    pixels = np.linalg.norm(X[test_pairs[:, 0]] - X[test_pairs[:, 1]], axis=1)

    def squares(of):
        return (X[of[:, 0]] - X[of[:, 1]]) ** 2

    simple = logistic_regression().fit(squares(train[pairs]), y)
    yield DemoRow(
        estimator="PairClassifier",
        task="are two images of the same digit?",
        measure="ROC AUC",
        baselines={
            "Euclidean": float(roc_auc_score(y_test, -pixels)),
            "logistic regression of squared differences": float(
                roc_auc_score(y_test, simple.decision_function(squares(test_pairs)))
            ),
        },
        learned=model.score(test_pairs, y_test),
        seconds=watch.seconds,
        explanation="Learned from 2,000 pairs of images, and asked about images that were in none "
        "of them. The threshold comes from pairs that were held out.",
        figures=[
            (
                "Errors by threshold, and distances of both kinds of pairs.",
                VerificationDisplay.from_estimator(model, test_pairs, y_test).figure_,
            )
        ],
        explore={
            "estimator": model,
            "X": X[test],
            "y": digit[test],
            "images": X[test].reshape(-1, 8, 8),
        },
    )
