"""The methods of the benchmark `ranking`, and how one of them is chosen and scored on a fold."""

import itertools
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from lightgbm import LGBMRanker, early_stopping
from scipy.stats import rankdata
from xgboost import XGBRanker

from benchmarks.data import load_letor
from benchmarks.harness import limited_threads
from skdml import LocalGMMLRanker
from skdml.metrics import mean_ndcg

OURS, THESIS, LIGHTGBM, XGBOOST, LINEAR = (
    "LocalGMMLRanker",
    "as in the thesis",
    "LightGBM",
    "XGBoost",
    "linear",
)
NORMALISED = tuple(f"{name} normalised" for name in (LIGHTGBM, XGBOOST))
SUBSETS = ("train", "validation", "test")
CUTOFF = 10
TREES, PATIENCE = 500, 50
SEEDS = (0, 1, 2, 3, 4)


@dataclass
class Documents:
    """Documents sorted by query, those of a query in random order."""

    X: np.ndarray
    y: np.ndarray
    qid: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """The number of documents of each query, in order."""
        return np.unique(self.qid, return_counts=True)[1]

    def head(self, n_queries: int) -> "Documents":
        """Return the documents of the first queries alone."""
        rows = slice(int(self.sizes[:n_queries].sum()))
        return Documents(self.X[rows], self.y[rows], self.qid[rows])


def load(name, fold, n_noise=0, n_queries=None):
    """Return the training, validation and test documents of a fold.

    In OHSUMED the order in the files tells the relevance, and so would the ranks of documents
    with equal scores: the order within a query is drawn at random, the same for all methods.
    `n_noise` standard normal features are added on the right.
    """
    parts = []
    for number, subset in enumerate(SUBSETS):
        X, y, qid = load_letor(name, fold, subset)
        rng = np.random.RandomState(10 * fold + number)
        order = rng.permutation(len(y))
        order = order[np.argsort(qid[order], kind="stable")]
        X = np.hstack([X[order], rng.standard_normal((len(X), n_noise))])
        part = Documents(np.ascontiguousarray(X), y[order], qid[order])
        parts.append(part if n_queries is None else part.head(n_queries))
    return parts


def normalised(documents):
    """Return documents with z-scores and ranks within the query, as LocalGMMLRanker sees them."""
    X = np.empty((len(documents.X), 2 * documents.X.shape[1]))
    stops = np.cumsum(documents.sizes)
    for start, stop in zip(stops - documents.sizes, stops, strict=True):
        part = documents.X[start:stop]
        scale = part.std(axis=0)
        scale[scale == 0] = 1.0
        ranks = rankdata(part, axis=0) / len(part)
        X[start:stop] = np.hstack([(part - part.mean(axis=0)) / scale, ranks])
    return Documents(X, documents.y, documents.qid)


def fit_lightgbm(train, validation, **parameters):
    model = LGBMRanker(
        objective="lambdarank",
        n_estimators=TREES,
        label_gain=gains(train, validation),
        n_jobs=1,
        random_state=0,
        verbose=-1,
        force_col_wise=True,  # without it, LightGBM times both ways before each fit
        **parameters,
    )
    with warnings.catch_warnings():
        # From 4.7 on, `eval_set` has another name, which releases before do not know.
        warnings.filterwarnings("ignore", message="The argument 'eval_set' is deprecated")
        return model.fit(
            train.X,
            train.y,
            group=train.sizes,
            eval_set=[(validation.X, validation.y)],
            eval_group=[validation.sizes],
            eval_metric="ndcg",
            eval_at=[CUTOFF],
            callbacks=[early_stopping(PATIENCE, verbose=False)],
        )


def gains(*parts):
    """Return the gain of each grade, 2^grade - 1."""
    return [2**grade - 1 for grade in range(1 + max(int(part.y.max()) for part in parts))]


def fit_xgboost(train, validation, **parameters):
    model = XGBRanker(
        objective="rank:ndcg",  # gains are 2^grade - 1
        eval_metric=f"ndcg@{CUTOFF}",
        n_estimators=TREES,
        early_stopping_rounds=PATIENCE,
        tree_method="hist",
        n_jobs=1,
        random_state=0,
        **parameters,
    )
    return model.fit(
        train.X,
        train.y,
        qid=train.qid,
        eval_set=[(validation.X, validation.y)],
        eval_qid=[validation.qid],
        verbose=False,
    )


def fit_ranker(train, validation, seed=0, **parameters):
    model = LocalGMMLRanker(random_state=seed, **parameters)
    return model.fit(
        train.X,
        train.y,
        train.qid,
        X_val=validation.X,
        y_val=validation.y,
        qid_val=validation.qid,
    )


class PairwiseLeastSquares:
    """Linear scores by least squares on the differences of documents of the same query."""

    def __init__(self, alpha):
        self.alpha = alpha

    def fit(self, documents):
        # Differences to the query's mean stand for those of its pairs.
        sizes = documents.sizes
        starts = np.cumsum(sizes) - sizes

        def centred(values):
            means = np.add.reduceat(values, starts) / sizes.reshape(-1, *[1] * (values.ndim - 1))
            return values - np.repeat(means, sizes, axis=0)

        X, y = centred(documents.X), centred(2.0**documents.y)
        self.scale = X.std(axis=0)
        self.scale[self.scale == 0] = 1.0
        X /= self.scale
        ridge = self.alpha * len(X) * np.eye(X.shape[1])
        self.coefficients = np.linalg.solve(X.T @ X + ridge, X.T @ y) / self.scale
        return self

    def predict(self, X):
        return X @ self.coefficients


def fit_linear(train, validation, alpha):
    return PairwiseLeastSquares(alpha).fit(train)


@dataclass
class Method:
    """How a model is fitted, the candidates for its parameters, and what it sees of documents."""

    learn: Any
    grid: dict[str, list]
    needs_queries: bool = False
    prepare: Any = None
    seeds: tuple[int, ...] = ()  # of a method whose fit draws at random

    def candidates(self, quick=False):
        """Return all combinations of the grid, or the first of them."""
        combinations = [
            dict(zip(self.grid, values, strict=True))
            for values in itertools.product(*self.grid.values())
        ]
        return combinations[:1] if quick else combinations

    def fit(self, train, validation, **parameters):
        """Return a fitted model."""
        if self.prepare is not None:
            train, validation = self.prepare(train), self.prepare(validation)
        return self.learn(train, validation, **parameters)

    def predict(self, model, documents):
        """Return the scores of documents."""
        if self.prepare is not None:
            documents = self.prepare(documents)
        if self.needs_queries:
            return model.predict(documents.X, qid=documents.qid)
        return model.predict(documents.X)


THESIS_SETTINGS = {
    "kernel": "damped",
    "loss": "warp",
    "query_weights": "per-query",
    "learn_anchors": False,
    "normalize": "column",
}
METHODS = {
    OURS: Method(fit_ranker, {}, needs_queries=True, seeds=SEEDS),
    LIGHTGBM: Method(
        fit_lightgbm,
        {
            "num_leaves": [4, 8, 16, 31],
            "min_child_samples": [20, 50, 100],
            "learning_rate": [0.03, 0.1],
        },
    ),
    XGBOOST: Method(
        fit_xgboost,
        {
            "max_depth": [2, 3, 4, 6],
            "min_child_weight": [1.0, 10.0, 50.0],
            "learning_rate": [0.03, 0.1],
        },
    ),
    # As a reference, on a small grid: they have twice the features.
    NORMALISED[0]: Method(
        fit_lightgbm,
        {"num_leaves": [4, 8, 16, 31], "min_child_samples": [20], "learning_rate": [0.1]},
        prepare=normalised,
    ),
    NORMALISED[1]: Method(
        fit_xgboost,
        {"max_depth": [2, 3, 4, 6], "min_child_weight": [1.0], "learning_rate": [0.1]},
        prepare=normalised,
    ),
    LINEAR: Method(fit_linear, {"alpha": [0.001, 0.01, 0.1, 1.0]}),
    THESIS: Method(
        fit_ranker, {name: [value] for name, value in THESIS_SETTINGS.items()}, needs_queries=True
    ),
}


@dataclass
class Fitted:
    """The model that was best on the validation part, its parameters and the seconds it took."""

    model: Any
    chosen: dict[str, Any]
    validation: float
    fit_seconds: float
    all_seconds: float


def search(method, train, validation, quick=False, **fixed):
    """Fit all candidates of a method and return the one that is best on the validation part."""
    best, start = None, time.perf_counter()
    for candidate in method.candidates(quick):
        with limited_threads(1):
            before = time.perf_counter()
            model = method.fit(train, validation, **candidate, **fixed)
            seconds = time.perf_counter() - before
            scores = method.predict(model, validation)
        value = mean_ndcg(validation.y, scores, validation.qid, k=CUTOFF)
        if best is None or value > best.validation:
            best = Fitted(model, candidate, value, seconds, 0.0)
    best.all_seconds = time.perf_counter() - start
    return best


def n_trees(model):
    """Return the number of trees that a model scores with, None if it has no trees."""
    if hasattr(model, "best_iteration_"):
        return int(model.best_iteration_)
    return int(model.best_iteration) + 1 if hasattr(model, "best_iteration") else None
