"""Strong simple methods, beside which the demos show what a learned metric gains."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

Split = tuple[NDArray, NDArray, NDArray, NDArray]


@cache
def halves(make: Callable[[], tuple], is_scaled: bool = False) -> Split:
    """Return the rows and classes of data as halves: X_train, X_test, y_train, y_test."""
    X, y = make()
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=0.5, stratify=y, random_state=0
    )
    if is_scaled:
        scaler = StandardScaler().fit(X_train)
        X_train, X_test = scaler.transform(X_train), scaler.transform(X_test)
    return X_train, X_test, y_train, y_test


@cache
def knn_baselines(make: Callable[[], tuple], is_scaled: bool = False) -> dict[str, float]:
    """Return the accuracy of 3-NN, of 3-NN after NCA and of logistic regression.

    They are cached, as several demos have the same data.
    """
    X_train, X_test, y_train, y_test = halves(make, is_scaled)
    # NCA works on all pairs of columns: with very many, on their principal axes.
    first = [PCA(min(len(X_train) // 2, 60), random_state=0)] if X_train.shape[1] > 500 else []
    nca = make_pipeline(
        *first, NeighborhoodComponentsAnalysis(random_state=0), KNeighborsClassifier(3)
    )
    models = {
        "Euclidean": KNeighborsClassifier(3),
        "NCA": nca,
        "logistic regression": logistic_regression(),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NCA may stop at its last iteration
        return {
            name: float(model.fit(X_train, y_train).score(X_test, y_test))
            for name, model in models.items()
        }


def logistic_regression() -> LogisticRegression:
    """Return a pipeline of scaled columns and a logistic regression."""
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))


def ridge_scores(X: NDArray, y: NDArray, qid: NDArray, X_test: NDArray) -> NDArray:
    """Return scores by a ridge regression of grades, less the mean grade of their query."""
    _, codes = np.unique(qid, return_inverse=True)
    means = np.bincount(codes, y) / np.bincount(codes)
    return make_pipeline(StandardScaler(), Ridge()).fit(X, y - means[codes]).predict(X_test)
