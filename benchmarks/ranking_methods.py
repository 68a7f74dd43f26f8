"""The methods of the benchmark `ranking`, and how one of them is chosen and scored on a fold."""

import itertools
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from catboost import CatBoostRanker, Pool
from lightgbm import LGBMRanker, early_stopping
from xgboost import XGBRanker

from benchmarks.data import data_home, load_letor
from benchmarks.harness import limited_threads
from skdml import LocalGMMLRanker
from skdml.metrics import mean_ndcg
from skdml.ranking._linear import Spectrum, Targets, sum_all, sums_of
from skdml.ranking._views import N_BASIS, fit_views, places, standardise

OURS, THESIS, LIGHTGBM, XGBOOST, CATBOOST, LINEAR, BLEND = (
    "LocalGMMLRanker",
    "as in the thesis",
    "LightGBM",
    "XGBoost",
    "CatBoost",
    "closed form",
    "LightGBM + closed form",
)
LETOR = ("mq2008", "ohsumed")
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


def join(*parts):
    """Return the documents of several parts, sorted by query."""
    X, y, qid = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("X", "y", "qid")
    )
    order = np.argsort(qid, kind="stable")
    return Documents(np.ascontiguousarray(X[order]), y[order], qid[order])


def load_all(name):
    """Return all documents of a set, and the fold of each, from 0 to 4.

    LETOR has its folds; queries of the others are drawn into five.
    """
    if name in LETOR:
        parts = [load_letor(name, fold, "test") for fold in range(1, 6)]
        X, y, qid = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        folds = np.repeat(np.arange(5), [len(part[1]) for part in parts])
    else:
        with np.load(data_home() / "ranking_extra" / f"ltr_{name}.npz") as stored:
            X, y, qid = stored["X"].astype(float), stored["y"].astype(int), stored["qid"]
        codes = np.unique(qid, return_inverse=True)[1]
        drawn = np.random.default_rng(5).permutation(codes.max() + 1) % 5
        folds = drawn[codes]
    return X, y, np.unique(qid, return_inverse=True)[1], folds


def load(name, fold, n_noise=0, n_queries=None):
    """Return the training, validation and test documents of a fold, from 0 to 4.

    The validation part, for early stopping and grids of trees, is a fifth of the queries that are
    not in the test part. In OHSUMED the order in the files tells the relevance, and so would the
    ranks of documents with equal scores: the order within a query is drawn at random, the same
    for all methods. `n_noise` standard normal features are added on the right.
    """
    X, y, qid, folds = load_all(name)
    rng = np.random.default_rng(fold)
    X = np.hstack([X, rng.standard_normal((len(X), n_noise))])
    order = rng.permutation(len(y))
    order = order[np.argsort(qid[order], kind="stable")]
    rest = np.unique(qid[folds != fold])
    validation = np.isin(qid, rng.choice(rest, len(rest) // 5, replace=False))
    subsets = ((folds != fold) & ~validation, validation, folds == fold)
    parts = []
    for subset in subsets:
        rows = order[subset[order]]
        part = Documents(np.ascontiguousarray(X[rows]), y[rows], qid[rows])
        parts.append(part if n_queries is None else part.head(n_queries))
    return parts


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


def fit_catboost(train, validation, **parameters):
    model = CatBoostRanker(
        loss_function="YetiRank",
        eval_metric=f"NDCG:top={CUTOFF};type=Exp",
        iterations=TREES,
        early_stopping_rounds=PATIENCE,
        thread_count=1,
        random_seed=0,
        verbose=False,
        allow_writing_files=False,
        **parameters,
    )
    return model.fit(
        train.X,
        train.y,
        group_id=train.qid,
        eval_set=catboost_pool(validation),
    )


def catboost_pool(documents):
    return Pool(documents.X, documents.y, group_id=documents.qid)


def fit_ranker(train, validation, seed=0, **parameters):
    """Fit to both parts: what is held out, it draws itself."""
    documents = join(train, validation)
    model = LocalGMMLRanker(random_state=seed, **parameters)
    return model.fit(documents.X, documents.y, documents.qid)


class ClosedForm:
    """Ridge on differences within queries; views and penalty by five folds over queries."""

    VIEWS = (("z",), ("rank",), ("value",), ("z", "rank"), ("z", "rank", "value"))
    REGS = np.array([1e-3, 1e-2, 1e-1, 1.0, 10.0])

    def fit(self, documents):
        X, y, qid = shuffled(documents)
        starts = starts_of(qid)
        self.views = fit_views(X, starts)
        gains = 2.0**y - 1
        n_queries = len(starts) - 1
        folds = np.linspace(0, n_queries, 6).astype(int)
        best = -1.0
        for names in self.VIEWS:
            columns = self.views.columns(X, starts, places(names)).reshape(-1, len(X))
            targets = Targets(starts, gains, varied(gains, starts))
            parts = [
                (slice(starts[a], starts[b]), targets.part(a, b))
                for a, b in itertools.pairwise(folds)
            ]
            sums = [sums_of(columns[:, rows], part) for rows, part in parts]
            total = sum_all(sums)
            scores = np.empty((len(self.REGS), len(X)))
            for (rows, _), own in zip(parts, sums, strict=True):
                spectrum = Spectrum(total.scatter - own.scatter)
                found = spectrum.solve(total.products - own.products, self.REGS)
                scores[:, rows] = found.T @ columns[:, rows]
            for reg, held_out in zip(self.REGS, scores, strict=True):
                value = mean_ndcg(y, held_out, qid, k=CUTOFF)
                if value > best:
                    best = value
                    found = Spectrum(total.scatter).solve(total.products, np.array([reg]))
                    self.coefficients = np.zeros((N_BASIS, X.shape[1]))
                    self.coefficients[places(names)] = found.reshape(len(names), -1)
        return self

    def predict(self, X, qid):
        """Score documents that are sorted by query."""
        return self.views.scores(X, starts_of(qid), self.coefficients)


def shuffled(documents):
    """Return documents with the queries in random order."""
    place = np.random.default_rng(0).permutation(documents.qid.max() + 1)[documents.qid]
    order = np.argsort(place, kind="stable")
    return documents.X[order], documents.y[order], documents.qid[order]


def starts_of(qid):
    """Return where each query begins, and the end."""
    return np.concatenate([[0], np.flatnonzero(np.diff(qid)) + 1, [len(qid)]])


def varied(gains, starts):
    """Return 1 for queries with several grades, 0 for others."""
    first = starts[:-1]
    return (np.maximum.reduceat(gains, first) > np.minimum.reduceat(gains, first)).astype(float)


def fit_linear(train, validation):
    return ClosedForm().fit(join(train, validation))


class Blend:
    """The sum of the z-scores, within the query, of the scores of two models."""

    def __init__(self, trees, linear):
        self.trees, self.linear = trees, linear

    def predict(self, X, qid):
        starts = starts_of(qid)
        scores = np.array([self.trees.predict(X), self.linear.predict(X, qid)])
        return standardise(scores, starts, 1.0).sum(axis=0)


def fit_blend(train, validation, **parameters):
    return Blend(fit_lightgbm(train, validation, **parameters), fit_linear(train, validation))


def fit_thesis(train, validation, **parameters):
    """Fit as the thesis does; the validation part chooses parameters, so it is left out."""
    return LocalGMMLRanker(random_state=0, **THESIS_SETTINGS, **parameters).fit(
        train.X, train.y, train.qid
    )


@dataclass
class Method:
    """How a model is fitted, and the candidates for its parameters."""

    learn: Any
    grid: dict[str, list]
    needs_queries: bool = False
    seeds: tuple[int, ...] = ()  # of a method whose fit draws at random
    then: dict[str, list] = field(default_factory=dict)  # tried with the best of the grid

    def candidates(self, quick=False):
        """Return all combinations of the grid, or the first of them."""
        combinations = [
            dict(zip(self.grid, values, strict=True))
            for values in itertools.product(*self.grid.values())
        ]
        return combinations[:1] if quick else combinations

    def later_candidates(self, chosen, quick=False):
        """Return the best of the grid with each of the values that are tried then."""
        values = (
            [] if quick else [(name, v) for name, several in self.then.items() for v in several]
        )
        return [{**chosen, name: value} for name, value in values]

    @property
    def n_candidates(self):
        """The number of fits of a search."""
        return len(self.candidates()) + len(self.later_candidates({}))

    def fit(self, train, validation, **parameters):
        """Return a fitted model."""
        return self.learn(train, validation, **parameters)

    def predict(self, model, documents):
        """Return the scores of documents."""
        if self.needs_queries:
            return model.predict(documents.X, qid=documents.qid)
        return model.predict(documents.X)


THESIS_SETTINGS = {
    "linear": False,
    "kernel": "damped",
    "loss": "warp",
    "query_weights": "per-query",
    "learn_anchors": False,
    "normalize": "column",
}
TREE_GRIDS = {
    LIGHTGBM: {"num_leaves": [7, 15, 31], "min_child_samples": [50], "learning_rate": [0.05]},
    XGBOOST: {"max_depth": [3, 4, 6], "min_child_weight": [10.0], "learning_rate": [0.05]},
    CATBOOST: {"depth": [4, 6], "learning_rate": [0.05]},
}
METHODS = {
    OURS: Method(fit_ranker, {}, needs_queries=True, seeds=SEEDS),
    LIGHTGBM: Method(fit_lightgbm, TREE_GRIDS[LIGHTGBM]),
    XGBOOST: Method(fit_xgboost, TREE_GRIDS[XGBOOST]),
    CATBOOST: Method(fit_catboost, TREE_GRIDS[CATBOOST]),
    LINEAR: Method(fit_linear, {}, needs_queries=True),
    BLEND: Method(fit_blend, TREE_GRIDS[LIGHTGBM], needs_queries=True),
    # The parameters of the thesis, tuned on the validation part.
    THESIS: Method(
        fit_thesis,
        {"n_metrics": [8], "margin": [0.1, 1.0], "initial_weight": [0.1, 1.0]},
        needs_queries=True,
        then={"n_metrics": [50, 500]},
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
    best, start = None, time.process_time()
    candidates = method.candidates(quick)
    n_first = len(candidates)
    for turn in itertools.count():
        if turn == n_first:
            candidates += method.later_candidates(best.chosen, quick)
        if turn == len(candidates):
            break
        candidate = candidates[turn]
        with limited_threads(1):
            before = time.process_time()  # of one thread: other programs do not count
            model = method.fit(train, validation, **candidate, **fixed)
            seconds = time.process_time() - before
            scores = method.predict(model, validation)
        value = mean_ndcg(validation.y, scores, validation.qid, k=CUTOFF)
        if best is None or value > best.validation:
            best = Fitted(model, candidate, value, seconds, 0.0)
    best.all_seconds = time.process_time() - start
    return best


def n_trees(model):
    """Return the number of trees that a model scores with, None if it has no trees."""
    if hasattr(model, "best_iteration_"):
        return int(model.best_iteration_)
    return int(model.best_iteration) + 1 if hasattr(model, "best_iteration") else None
