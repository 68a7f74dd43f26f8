"""What the leaderboard compares: estimators and simple alternatives, all at their defaults.

A track is a kind of task. Its methods are functions of a `Split` and a seed that return one score
for each unit of the test part, a row, a pair or a query: larger is better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import train_test_split
from sklearn.neighbors import (
    KNeighborsClassifier,
    KNeighborsRegressor,
    NearestNeighbors,
    NeighborhoodComponentsAnalysis,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler, normalize

import skdml
from benchmarks.leaderboard_sets import DataSet
from skdml._optional import optional_import
from skdml.metrics import ndcg_by_query

# Rows for training and for the test, at most, and of these principal components.
MOST_ROWS, MOST_QUERIES, MOST_DOCUMENTS, MOST_PAIRS, MOST_COLUMNS = 1000, 300, 6000, 400, 50
N_LABELLED = 5
CUTOFF = 10
# Prefixed to the names of our own.
OURS = "skdml."


@dataclass
class Split:
    """Training and test part; X are rows of numbers, `raw` images or frames as they came."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    raw: Any = None
    raw_test: Any = None
    qid: np.ndarray | None = None
    qid_test: np.ndarray | None = None
    encode: Callable[[Any], np.ndarray] | None = None


def encoder(X: Any) -> Any:
    """Return the transformer to scaled numbers that all methods share; of many, to components."""
    if not hasattr(X, "columns"):
        scaled = make_pipeline(SimpleImputer(), StandardScaler())
        n_columns = min(MOST_COLUMNS, len(X) - 1)
        if X[0].size <= n_columns:
            return scaled
        return make_pipeline(scaled, PCA(n_columns, random_state=0))
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    words = OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=20)
    words.set_params(sparse_output=False)
    return ColumnTransformer(
        [
            ("numbers", numbers, make_column_selector(dtype_include="number")),
            ("words", words, make_column_selector(dtype_exclude="number")),
        ]
    )


def flat(X: Any) -> Any:
    """Return images as rows; others as they are."""
    return X.reshape(len(X), -1) if isinstance(X, np.ndarray) and X.ndim > 2 else X


def split_rows(data: DataSet, seed: int, most: int = MOST_ROWS) -> Split:
    """Return parts of at most `most` rows each; of small sets halves. Classes keep their shares."""
    rows, y = np.arange(len(data.y)), data.y
    if data.kind != "numbers":
        classes, counts = np.unique(y, return_counts=True)
        rows = rows[np.isin(y, classes[counts >= 4])]
    size = min(most, len(rows) // 2)
    strata = y[rows] if data.kind != "numbers" else None
    train, test = train_test_split(
        rows, train_size=size, test_size=size, random_state=seed, stratify=strata
    )
    X = data.X
    raw, raw_test = (X.iloc[train], X.iloc[test]) if hasattr(X, "iloc") else (X[train], X[test])
    shared = encoder(raw)
    rows_train = shared.fit_transform(flat(raw))
    return Split(
        rows_train,
        y[train],
        shared.transform(flat(raw_test)),
        y[test],
        raw,
        raw_test,
        encode=lambda some: shared.transform(flat(some)),
    )


def split_classes(data: DataSet, seed: int) -> Split:
    """Return rows of half of the classes, and of the others; rows as they come, in no scale."""
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.unique(data.y))
    parts = []
    for chosen in (classes[: len(classes) // 2], classes[len(classes) // 2 :]):
        rows = np.flatnonzero(np.isin(data.y, chosen))
        if len(rows) > 4 * MOST_ROWS:  # classes of fewer rows
            rows = np.sort(rng.choice(rows, 4 * MOST_ROWS, replace=False))
        parts.append(rows)
    (train, test), X = parts, data.X
    rows, rows_test = flat(X[train]), flat(X[test])
    if X[0].size > 2 * MOST_COLUMNS:  # nearly the same products of rows
        short = TruncatedSVD(2 * MOST_COLUMNS, random_state=0).fit(rows)
        rows, rows_test = short.transform(rows), short.transform(rows_test)
    return Split(rows, data.y[train], rows_test, data.y[test], X[train], X[test])


def split_queries(data: DataSet, seed: int) -> Split:
    """Return documents of at most `MOST_QUERIES` queries with grades for each part."""
    queries = np.array([q for q in np.unique(data.qid) if len(set(data.y[data.qid == q])) > 1])
    queries = np.random.default_rng(seed).permutation(queries)
    parts = []
    size = min(MOST_QUERIES, len(queries) // 2)
    for chosen in (queries[:size], queries[size : 2 * size]):
        rows = np.flatnonzero(np.isin(data.qid, chosen))
        parts.append(rows[rows < rows[min(len(rows), MOST_DOCUMENTS) - 1]])
    train, test = parts
    X, y, qid = data.X, data.y, data.qid
    return Split(X[train], y[train], X[test], y[test], qid=qid[train], qid_test=qid[test])


# Tracks


def nca(rows: np.ndarray, seed: int) -> Any:
    return NeighborhoodComponentsAnalysis(random_state=seed)


def right(model, split):
    return (model.predict(split.X_test) == split.y_test).astype(float)


def by_neighbors(make):
    """Return a method: nearest neighbours on what a transformer learned."""

    def method(split, seed):
        model = make_pipeline(make(split.X, seed), KNeighborsClassifier())
        return right(model.fit(split.X, split.y), split)

    return method


def classifier(make):
    return lambda split, seed: right(make(split.X, seed).fit(split.X, split.y), split)


def learner(name, **params):
    """Return a function that makes an estimator of ours."""
    cls = getattr(skdml, name)
    takes = cls().get_params()

    def make(rows, seed):
        return cls(**params, **({"random_state": seed} if "random_state" in takes else {}))

    return make


def forest(seed, number=False):
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    return (RandomForestRegressor if number else RandomForestClassifier)(random_state=seed)


def logistic(rows=None, seed=0):
    return LogisticRegression(max_iter=1000)


CLASSES = {
    "nearest neighbours": classifier(lambda rows, seed: KNeighborsClassifier()),
    "NCA, neighbours": by_neighbors(nca),
    "logistic regression": classifier(logistic),
    "random forest": classifier(lambda rows, seed: forest(seed)),
    **{
        f"{OURS}{name}, neighbours": by_neighbors(learner(name))
        for name in ("GMMLTransformer", "DITMLTransformer", "LMNN", "RCA", "LFDA")
    },
    f"{OURS}NeighborhoodGerrymandering, neighbours": by_neighbors(
        learner("NeighborhoodGerrymandering")
    ),
    f"{OURS}AsymmetricMetricClassifier": classifier(learner("AsymmetricMetricClassifier")),
    f"{OURS}DeepMetricEmbedder, neighbours": by_neighbors(learner("DeepMetricEmbedder")),
}


def few_labels(split, seed):
    """Return the labels of training rows as codes, -1 but for a few of each class."""
    codes = np.unique(split.y, return_inverse=True)[1]
    rng, partly = np.random.default_rng(seed), np.full(len(codes), -1)
    for code in range(codes.max() + 1):
        own = rng.permutation(np.flatnonzero(codes == code))[:N_LABELLED]
        partly[own] = code
    return partly


def partial_classifier(make, labelled_only=False):
    """Return a method that learns from few labels and all training rows."""

    def method(split, seed):
        partly = few_labels(split, seed)
        kept = partly >= 0 if labelled_only else np.ones(len(partly), dtype=bool)
        model = make(seed).fit(split.X[kept], partly[kept])
        truth = np.searchsorted(np.unique(split.y), split.y_test)
        return (model.predict(split.X_test) == truth).astype(float)

    return method


def _self_training(seed):
    from sklearn.semi_supervised import SelfTrainingClassifier

    return SelfTrainingClassifier(logistic())


def _label_spreading(seed):
    from sklearn.semi_supervised import LabelSpreading

    return LabelSpreading()


FEW_LABELS = {
    "nearest neighbour": partial_classifier(lambda seed: KNeighborsClassifier(1), True),
    "logistic regression": partial_classifier(lambda seed: logistic(), True),
    "random forest": partial_classifier(forest, True),
    "LabelSpreading": partial_classifier(_label_spreading),
    "self-training": partial_classifier(_self_training),
    f"{OURS}SSDMLEmbedder": partial_classifier(lambda seed: skdml.SSDMLEmbedder(random_state=seed)),
    f"{OURS}PartiallyLabelledClassifier, propagate": partial_classifier(
        lambda seed: skdml.semisupervised.PartiallyLabelledClassifier(propagate=True)
    ),
}


def searched(Z, y):
    """Tell for every row whether its nearest other row is of its class, by the cosine."""
    found = NearestNeighbors(n_neighbors=1, metric="cosine").fit(Z).kneighbors()[1][:, 0]
    return (y[found] == y).astype(float)


def search(make):
    """Return a method: a search among unseen classes, by the cosine of rows or of their map."""

    def method(split, seed):
        model = make(split.X, seed)
        return searched(model.fit(split.X, split.y).transform(split.X_test), split.y_test)

    return method


def deep_search(split, seed):
    """Search by the network: images as images, vectors as rows of unit length."""
    model = skdml.DeepMetricEmbedder(random_state=seed)
    is_image = split.raw.ndim > 2
    parts = split.raw, split.raw_test
    rows, test = parts if is_image else map(normalize, parts)
    return searched(model.fit(rows, split.y).transform(test), split.y_test)


def _whitened(rows, seed):
    return PCA(min(64, *rows.shape), whiten=True, random_state=seed)


def _discriminant(rows, seed):
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    return LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto")


UNSEEN = {
    "rows as they come": lambda split, seed: searched(flat(split.raw_test), split.y_test),
    "PCA whitening": search(_whitened),
    "discriminant analysis": search(_discriminant),
    "NCA": search(lambda rows, seed: nca(rows, seed)),
    **{
        f"{OURS}{name}": search(learner(name))
        for name in ("GMMLTransformer", "DITMLTransformer", "LMNN", "RCA", "LFDA")
    },
    f"{OURS}DeepMetricEmbedder": deep_search,
}


def ranker(make):
    """Return a method: NDCG of the test queries by a model of grades, whatever their query."""

    def method(split, seed):
        model = make(seed).fit(split.X, split.y)
        return by_query(split, model.predict(split.X_test))

    return method


def by_query(split, scores):
    return ndcg_by_query(split.y_test, scores, split.qid_test, k=CUTOFF)[1]


def _trees(split, seed):
    LGBMRanker = optional_import("lightgbm", "the leaderboard").LGBMRanker
    sizes = np.unique(split.qid, return_counts=True)[1]
    model = LGBMRanker(random_state=seed, n_jobs=1, verbose=-1)
    return by_query(split, model.fit(split.X, split.y, group=sizes).predict(split.X_test))


def _local(split, seed):
    model = skdml.LocalGMMLRanker(random_state=seed).fit(split.X, split.y, qid=split.qid)
    return by_query(split, model.predict(split.X_test, qid=split.qid_test))


RANKING = {
    "ridge regression": ranker(lambda seed: make_pipeline(StandardScaler(), Ridge())),
    "random forest": ranker(lambda seed: forest(seed, number=True)),
    "LightGBM ranker": _trees,
    f"{OURS}LocalGMMLRanker": _local,
}


def regressor(make):
    """Return a method: minus the squared error of a row, in variances of the target."""

    def method(split, seed):
        found = make(seed).fit(split.X, split.y).predict(split.X_test)
        return -np.square(found - split.y_test) / split.y_test.var()

    return method


NUMBERS = {
    "nearest neighbours": regressor(lambda seed: KNeighborsRegressor()),
    "ridge regression": regressor(lambda seed: Ridge()),
    "random forest": regressor(lambda seed: forest(seed, number=True)),
    f"{OURS}MLKR, neighbours": regressor(
        lambda seed: make_pipeline(skdml.MLKR(random_state=seed), KNeighborsRegressor())
    ),
}


def pair_rows(y, n_pairs, seed):
    from skdml.constraints import make_pairs

    return make_pairs(y, n_pairs, random_state=seed)


def pair_task(make):
    """Return a method that tells pairs of rows of a class from others; half of them are."""

    def method(split, seed):
        predict = make(split, seed)
        pairs, kinds = pair_rows(split.y_test, MOST_PAIRS, seed)
        return (predict(split.X_test, pairs) == kinds).astype(float)

    return method


def _pair_classifier(split, seed):
    pairs, kinds = pair_rows(split.y, MOST_PAIRS, seed)
    model = skdml.PairClassifier(random_state=seed).fit(
        np.stack([split.X[p] for p in pairs]), kinds
    )
    return lambda rows, test: model.predict(rows[test])


def _threshold(split, seed):
    pairs, kinds = pair_rows(split.y, MOST_PAIRS, seed)

    def distance(rows, some):
        return np.linalg.norm(rows[some[:, 0]] - rows[some[:, 1]], axis=1)

    model = LogisticRegression().fit(distance(split.X, pairs)[:, None], kinds)
    return lambda rows, test: model.predict(distance(rows, test)[:, None])


def _of_differences(make):
    def build(split, seed):
        pairs, kinds = pair_rows(split.y, MOST_PAIRS, seed)

        def gaps(rows, some):
            return np.abs(rows[some[:, 0]] - rows[some[:, 1]])

        model = make(seed).fit(gaps(split.X, pairs), kinds)
        return lambda rows, test: model.predict(gaps(rows, test))

    return build


PAIRS = {
    "distance, threshold": pair_task(_threshold),
    "logistic regression of differences": pair_task(_of_differences(lambda seed: logistic())),
    "random forest of differences": pair_task(_of_differences(forest)),
    f"{OURS}PairClassifier": pair_task(_pair_classifier),
}


def generated(make):
    """Return a method: a forest that is trained on generated rows, on the test rows."""

    def method(split, seed):
        rows = make(split, seed)
        if rows is None:
            rows = split.X
        made = replace(split, X=rows)
        return right(forest(seed).fit(made.X, split.y), made)

    return method


def _generator(split, seed):
    raw = split.raw if hasattr(split.raw, "columns") else flat(split.raw)
    model = skdml.WassersteinGenerator(random_state=seed).fit(raw, split.y)
    assert split.encode is not None
    return split.encode(model.sample(len(split.y), random_state=seed, y=split.y))


def _by_class(fit):
    """Return a function that draws the rows of every class from a density of its own."""

    def make(split, seed):
        rows = np.empty_like(split.X)
        for one in np.unique(split.y):
            own = split.y == one
            drawn = fit(split.X[own], seed).sample(own.sum())
            rows[own] = drawn[0] if isinstance(drawn, tuple) else drawn
        return rows

    return make


def _mixture(rows, seed):
    from sklearn.mixture import GaussianMixture

    return GaussianMixture(random_state=seed).fit(rows)


class _Kernel(BaseEstimator):
    def __init__(self, rows, seed):
        self.rows, self.rng = rows, np.random.default_rng(seed)
        self.width = len(rows) ** (-1 / (rows.shape[1] + 4))

    def sample(self, n):
        noise = self.rng.normal(size=(n, self.rows.shape[1]))
        spread = self.width * self.rows.std(axis=0)
        return self.rows[self.rng.integers(len(self.rows), size=n)] + noise * spread


GENERATED = {
    "Gaussian mixture": generated(_by_class(_mixture)),
    "kernel density": generated(_by_class(_Kernel)),
    f"{OURS}WassersteinGenerator": generated(_generator),
}


@dataclass(frozen=True)
class Track:
    """A task: the kind of its sets, how they are split, methods, measure, and most features."""

    kind: str
    split: Callable[[DataSet, int], Split]
    methods: dict[str, Callable[[Split, int], np.ndarray]]
    measure: str
    most_features: float = np.inf

    def takes(self, data: DataSet) -> bool:
        """Tell whether a set is one for this task."""
        return data.kind == self.kind and data.n_features <= self.most_features


TRACKS = {
    "classes": Track("classes", split_rows, CLASSES, "accuracy"),
    "few labels": Track(
        "classes", split_rows, FEW_LABELS, f"accuracy, {N_LABELLED} labels of a class"
    ),
    "pairs": Track("classes", split_rows, PAIRS, "accuracy, half of the pairs similar"),
    "generated rows": Track(
        "classes", split_rows, GENERATED, "accuracy on real rows of a forest of generated ones", 100
    ),
    "ranking": Track("ranking", split_queries, RANKING, f"NDCG@{CUTOFF}"),
    "numbers": Track("numbers", split_rows, NUMBERS, "minus the squared error, in variances"),
    "unseen classes": Track("many classes", split_classes, UNSEEN, "recall@1 by the cosine"),
}
