"""The demo of LocalGMMLRanker."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics.pairwise import paired_distances

from .._demo._baselines import logistic_regression, ridge_scores
from .._demo._rows import DemoRow
from .._demo._runner import Stopwatch
from ..datasets import make_ranking
from ..metrics import mean_average_precision, mean_ndcg
from ..plot import RankingDisplay
from ._local_gmml import LocalGMMLRanker


def demo(verbose: int = 0) -> Iterator[DemoRow]:
    """Yield the rows of LocalGMMLRanker."""
    yield _search_row(verbose)
    yield _example_row(verbose)


def _search_row(verbose):
    X, y, qid = make_ranking(n_queries=300, n_features=20, n_centers=3, random_state=0)
    X = np.hstack([X, np.random.default_rng(0).standard_normal((len(X), 20))])
    train, test = qid < 200, qid >= 200
    model = LocalGMMLRanker(8, normalize=None, linear=False, random_state=0, verbose=verbose)
    with Stopwatch() as watch:
        model.fit(X[train], y[train], qid=qid[train])
    quality = [
        mean_ndcg(y[train], sign * column, qid[train]) for column in X[train].T for sign in (1, -1)
    ]
    best = int(np.argmax(quality))
    baseline = (1, -1)[best % 2] * X[test, best // 2]
    scores = model.predict(X[test], qid=qid[test])
    ridge = ridge_scores(X[train], y[train], qid[train], X[test])
    display = RankingDisplay.from_predictions(
        y[test], scores, qid[test], other=ridge, name="learned", other_name="ridge"
    )
    return DemoRow(
        estimator="LocalGMMLRanker",
        task="100 unseen queries, 40 features",
        measure="NDCG@10",
        baselines={
            "best single feature": mean_ndcg(y[test], baseline, qid[test]),
            "ridge regression of grades": mean_ndcg(y[test], ridge, qid[test]),
        },
        learned=mean_ndcg(y[test], scores, qid[test]),
        seconds=watch.seconds,
        explanation="Relevant documents are near one of three ideal documents, each with a notion "
        "of near of its own; half of the features say nothing. The ideal documents and their "
        "metrics are learned from other queries.",
        figures=[
            (
                "NDCG@10 of the test queries. Bars above zero are queries that the learned order "
                "answers better than a ridge regression.",
                display.figure_,
            )
        ],
        explore={"estimator": model, "X": X[test], "y": y[test], "qid": qid[test]},
    )


def _example_row(verbose):
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    X = np.hstack([X, rng.normal(scale=6, size=(len(X), 30))])
    order = rng.permutation(len(X))
    queries, rest = order[:200], order[200:]
    candidates = np.array([rng.choice(rest, 60, replace=False) for _ in queries])
    relevance = (y[candidates] == y[queries, None]).astype(int)
    qid = np.repeat(np.arange(len(queries)), candidates.shape[1])
    rows, grades = candidates.ravel(), relevance.ravel()
    examples = np.repeat(queries, candidates.shape[1])
    train, test = qid < 100, qid >= 100
    model = LocalGMMLRanker(
        n_metrics=4, normalize=None, linear=False, random_state=0, verbose=verbose
    )
    with Stopwatch() as watch:
        model.fit(X[rows[train]], grades[train], qid=qid[train])
    scores = model.predict(X[rows[test]], qid=qid[test], query=X[examples[test]])
    squares = (X[examples] - X[rows]) ** 2
    simple = logistic_regression().fit(squares[train], grades[train])
    plain = -paired_distances(X[examples[test]], X[rows[test]])
    return DemoRow(
        estimator="LocalGMMLRanker",
        task="digits by example, 30 columns of noise",
        measure="mean average precision",
        baselines={
            "Euclidean": mean_average_precision(grades[test], plain, qid[test]),
            "logistic regression of squared differences": mean_average_precision(
                grades[test], simple.decision_function(squares[test]), qid[test]
            ),
        },
        learned=mean_average_precision(grades[test], scores, qid[test]),
        seconds=watch.seconds,
        explanation="The query is itself a digit, given at prediction time, and takes the place of "
        "the ideal documents. The local metrics learned from other queries say what is near.",
    )
