"""Measures of generated tables: columns, pairs of columns, and what classifiers make of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import ks_2samp
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.multiclass import type_of_target

from ..utils._typing import RandomStateLike
from ..utils.validation import check_count
from ._generation import check_both

_N_BINS = 10


def _table(values: Any, name: str) -> list[NDArray]:
    """Return the columns of a frame or an array: float64, or objects of categories."""
    if hasattr(values, "columns"):
        columns = [np.asarray(values[label]) for label in values.columns]
    else:
        array = np.asarray(values)
        if array.ndim != 2:
            raise ValueError(f"{name} must be a frame or an array with two dimensions.")
        columns = list(array.T)
    if not columns or not len(columns[0]):
        raise ValueError(f"{name} must have a row and a column.")
    return [_column(column) for column in columns]


def _column(values):
    if values.dtype.kind in "mM":
        missing = np.isnat(values)
        return np.where(missing, np.nan, values.astype(np.int64).astype(np.float64))
    if values.dtype.kind in "iuf":
        return values.astype(np.float64)
    if values.dtype.kind == "O":
        try:  # numbers in a column of objects, as of an array of mixed columns
            if not any(isinstance(value, str | bool | np.bool_) for value in values):
                return values.astype(np.float64)
        except (TypeError, ValueError):
            pass
    return np.array([_text(value) for value in values], dtype=object)


def _text(value):
    """Return a category as text; all kinds of missing values are one."""
    is_missing = value is None or value != value or str(value) in ("nan", "<NA>", "NaT")
    return "" if is_missing else str(value)


def _both(real, generated):
    """Return the columns of two tables of the same shape and kind."""
    tables = _table(real, "real"), _table(generated, "generated")
    if len(tables[0]) != len(tables[1]):
        raise ValueError(
            "real and generated must have the same number of columns, got "
            f"{len(tables[0])} and {len(tables[1])}."
        )
    pairs = []
    for first, second in zip(*tables, strict=True):
        if first.dtype != second.dtype:  # numbers beside categories
            first, second = (np.array([_text(v) for v in side], dtype=object)
                             for side in (first, second))  # fmt: skip
        pairs.append((first, second))
    return pairs


def _shares(*columns):
    """Return the share of each category, or pair of categories, in the columns of both tables."""
    codes = np.unique(np.concatenate(columns), return_inverse=True)[1]
    parts = np.split(codes, [len(columns[0])])
    return [np.bincount(part, minlength=codes.max() + 1) / len(part) for part in parts]


def _is_number(column):
    return column.dtype.kind == "f"


def column_similarity(real: Any, generated: Any) -> NDArray[np.float64]:
    """Compute how alike the columns of two tables are, one by one.

    As SDMetrics defines it: for numbers and dates 1 less the Kolmogorov-Smirnov statistic, without
    missing cells; for categories and booleans 1 less the total variation distance.

    Parameters
    ----------
    real : array-like or frame of shape (n_real, n_features)
        Real rows.

    generated : array-like or frame of shape (n_generated, n_features)
        Generated rows.

    Returns
    -------
    similarity : ndarray of shape (n_features,)
        Between 0 and 1, which is that of equal columns. NaN where a table has no number in it.

    Examples
    --------
    >>> from skdml.metrics import column_similarity
    >>> column_similarity([[0.0, 1], [1.0, 1]], [[0.0, 1], [0.0, 1]]).tolist()
    [0.5, 1.0]
    """
    return np.array([_similar(*pair) for pair in _both(real, generated)])


def _similar(first, second):
    if not _is_number(first):
        return 1 - 0.5 * np.abs(np.subtract(*_shares(first, second))).sum()
    first, second = (side[~np.isnan(side)] for side in (first, second))
    if not len(first) or not len(second):
        return np.nan
    return 1 - ks_2samp(first, second, method="asymp").statistic


def pair_similarity(real: Any, generated: Any) -> NDArray[np.float64]:
    """Compute how alike pairs of columns of two tables depend on each other.

    As SDMetrics defines it: for two columns of numbers 1 less half of the difference of their
    correlations; for other pairs 1 less the total variation distance of the table of both, where
    numbers are in ten bins of equal width of the real column.

    Parameters
    ----------
    real : array-like or frame of shape (n_real, n_features)
        Real rows.

    generated : array-like or frame of shape (n_generated, n_features)
        Generated rows.

    Returns
    -------
    similarity : ndarray of shape (n_features, n_features)
        Between 0 and 1, symmetric, 1 on the diagonal. NaN where a correlation has no value, as
        that of a constant column.

    Examples
    --------
    >>> from skdml.metrics import pair_similarity
    >>> pair_similarity([[0.0, 0], [1.0, 1]], [[0.0, 1], [1.0, 0]]).round(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    columns = _both(real, generated)
    bins = [_binned(*pair) if _is_number(pair[0]) else pair for pair in columns]
    similarity = np.eye(len(columns))
    for i in range(len(columns)):
        for j in range(i):
            if _is_number(columns[i][0]) and _is_number(columns[j][0]):
                sides = zip(columns[i], columns[j], strict=True)
                value = 1 - abs(np.subtract(*(_correlation(a, b) for a, b in sides))) / 2
            else:
                joint = [
                    np.array([f"{a}\0{b}" for a, b in zip(*sides, strict=True)], dtype=object)
                    for sides in zip(bins[i], bins[j], strict=True)
                ]
                value = 1 - 0.5 * np.abs(np.subtract(*_shares(*joint))).sum()
            similarity[i, j] = similarity[j, i] = value
    return similarity


def _correlation(first, second):
    known = ~(np.isnan(first) | np.isnan(second))
    first, second = first[known], second[known]
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return np.nan
    return float(np.corrcoef(first, second)[0, 1])


def _binned(first, second):
    """Return numbers as the bins of the first column; missing cells are a bin of their own."""
    known = first[~np.isnan(first)]
    if not len(known):
        return np.zeros(len(first), dtype=int), np.zeros(len(second), dtype=int)
    inner = np.linspace(known.min(), known.max(), _N_BINS + 1)[1:-1]
    return tuple(np.where(np.isnan(side), -1, np.digitize(side, inner)) for side in (first, second))


def _numbers(columns):
    """Return columns of one or two tables as numbers; categories are numbered."""
    return np.column_stack(
        [c if _is_number(c) else np.unique(c, return_inverse=True)[1] for c in columns]
    )


def c2st(
    real: Any,
    generated: Any,
    *,
    estimator: Any = None,
    cv: int = 5,
    random_state: RandomStateLike = None,
) -> float:
    """Compute the AUC of a classifier that tells real from generated rows.

    The classifier two-sample test: the classifier is scored on rows that were held out.

    Parameters
    ----------
    real : array-like or frame of shape (n_real, n_features)
        Real rows, best such that the generator was not fitted on.

    generated : array-like or frame of shape (n_generated, n_features)
        Generated rows.

    estimator : classifier, default=None
        Has `predict_proba`. None is a random forest of 200 trees.

    cv : int, default=5
        Folds.

    random_state : int, RandomState instance or None, default=None
        Seeds folds and forest.

    Returns
    -------
    auc : float
        About 0.5 for rows that cannot be told apart, 1 for rows that always can.

    Examples
    --------
    >>> import numpy as np
    >>> from skdml.metrics import c2st
    >>> rng = np.random.default_rng(0)
    >>> real = rng.standard_normal((100, 2))
    >>> c2st(real, rng.standard_normal((100, 2)) + 5, random_state=0)
    1.0
    """
    cv = check_count(cv, "cv")
    columns = [np.concatenate(pair) for pair in _both(real, generated)]
    n_real = len(_table(real, "real")[0])
    is_generated = np.arange(len(columns[0])) >= n_real
    if min(n_real, len(is_generated) - n_real) < max(cv, 2) or cv < 2:
        raise ValueError(
            f"real and generated must have cv={cv} rows at least, and cv be 2 or more."
        )
    seed = int(check_random_state(random_state).randint(2**31))
    if estimator is None:
        estimator = RandomForestClassifier(200, random_state=seed)
    folds = StratifiedKFold(cv, shuffle=True, random_state=seed)
    found = cross_val_predict(
        clone(estimator), _numbers(columns), is_generated, cv=folds, method="predict_proba"
    )
    return float(roc_auc_score(is_generated, found[:, 1]))


def tstr(
    generated: Any,
    generated_targets: ArrayLike,
    real: Any,
    real_targets: ArrayLike,
    *,
    estimator: Any = None,
    random_state: RandomStateLike = None,
) -> float:
    """Compute the score of a model that was trained on generated rows, on real rows.

    Train on synthetic, test on real. Compare it with the score of the same model trained on real
    rows.

    Parameters
    ----------
    generated : array-like or frame of shape (n_generated, n_features)
        Generated rows, to train on.

    generated_targets : array-like of shape (n_generated,)
        Their classes or numbers.

    real : array-like or frame of shape (n_real, n_features)
        Real rows that the generator was not fitted on.

    real_targets : array-like of shape (n_real,)
        Their classes or numbers.

    estimator : estimator, default=None
        Has `fit` and `score`. None is a random forest of 200 trees.

    random_state : int, RandomState instance or None, default=None
        Seeds the forest.

    Returns
    -------
    score : float
        That of the estimator: for classes the accuracy, for numbers R^2.

    Examples
    --------
    >>> from skdml.metrics import tstr
    >>> tstr([[0.0], [1.0]], ["a", "b"], [[0.1], [0.9]], ["a", "b"], random_state=0)
    1.0
    """
    targets = np.asarray(generated_targets), np.asarray(real_targets)
    n_real = len(_table(real, "real")[0])
    X = _numbers([np.concatenate(pair) for pair in _both(real, generated)])
    X_test, X = X[:n_real], X[n_real:]
    check_consistent_length(X, targets[0])
    check_consistent_length(X_test, targets[1])
    if estimator is None:
        is_number = type_of_target(targets[0], input_name="generated_targets") == "continuous"
        forest = RandomForestRegressor if is_number else RandomForestClassifier
        estimator = forest(200, random_state=check_random_state(random_state).randint(2**31))
    return float(clone(estimator).fit(X, targets[0]).score(X_test, targets[1]))


def membership_auc(train: Any, real: Any, generated: Any) -> float:
    """Compute how well an attack tells training rows from other real rows.

    The attack takes a row for a training row the more, the nearer its nearest generated row is.

    Parameters
    ----------
    train : array-like of shape (n_train, n_features)
        The rows that the generator was fitted on.

    real : array-like of shape (n_real, n_features)
        Real rows that it has not seen.

    generated : array-like of shape (n_generated, n_features)
        Rows that it generated.

    Returns
    -------
    auc : float
        About 0.5 where the attack learns nothing, 1 for copies of the training rows. It is one
        attack: a value of 0.5 is no proof of privacy.

    Examples
    --------
    >>> from skdml.metrics import membership_auc
    >>> membership_auc([[0.0], [4.0]], [[1.0], [3.0]], [[0.0], [4.0]])
    1.0
    """
    distances = []
    for rows, name in ((train, "train"), (real, "real")):
        X, Y, unit = check_both(rows, generated, (name, "generated"))
        distances.append(unit * NearestNeighbors(n_neighbors=1).fit(Y).kneighbors(X)[0][:, 0])
    is_member = np.repeat([1, 0], [len(part) for part in distances])
    return float(roc_auc_score(is_member, -np.concatenate(distances)))
