"""Classes of the rows of a table from few labels: several learners, weighed by held-out labels."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from ..utils._parallel import make_shards
from ._label_propagation import (
    DEFAULT_POWER,
    Graph,
    best_power,
    class_mass,
    make_graph,
    normalize_rows,
    propagate,
    set_labels,
    sharpen,
)

# How far logits of a regression flow along the graph of the rows, and how much farther than
# `propagation` says labels flow along it: the share that a row keeps is divided by this.
_SMOOTHING, _FARTHER = 0.9, 5.0
# Of the logistic regression: with five labels of a class, a weak penalty has the better logits.
_INVERSE_PENALTY = 10.0
# Whitened rows need the eigenvectors of a matrix of all columns. Its mean variance, times this, is
# added to its diagonal.
_WHITENED_COLUMNS, _SHRINKAGE, _MIN_VARIANCE = 1000, 0.1, 1e-12
# Labels are held out in so many folds, among so many rows.
_FOLDS, _TRIAL_ROWS = 5, 3000
# The weight of a learner is the exponential of this times its mean log-likelihood: a difference of
# 0.1, which five labels of a class cannot tell from chance, is a factor of e. The regression counts
# more among few rows, where graphs are poor: so many times at most, and once among so many rows.
_CHOICE = 10.0
_REGRESSIONS, _ROWS = 4.0, 800
# Columns are scaled one by one where this makes held-out labels so much more likely, by the mean
# logarithm: else columns of noise, such as the last principal components, count as others do.
_SCALING_GAIN = 0.2
_MIN_PROBABILITY = 1e-4
# Columns of a right-hand side that is solved at a time have this many values at most.
_SOLVED = 2**24


class Weighing(NamedTuple):
    """How to pool the class distributions of learners.

    Attributes
    ----------
    powers : ndarray of shape (n_learners,)
        Distributions of each are raised to its power.
    weights : ndarray of shape (n_learners,)
        Of their logarithms; they sum to 1.
    power : float
        To which the pooled distributions are raised.
    by_column : bool
        Whether columns of the rows are scaled one by one.
    """

    powers: NDArray
    weights: NDArray
    power: float
    by_column: bool = False


def learn_classes(
    rows: NDArray,
    graph: Graph,
    codes: NDArray,
    n_classes: int,
    n_neighbors: int,
    damping: float,
    weights: NDArray | None,
) -> NDArray:
    """Return the class distributions of rows by each of the learners.

    A logistic regression of the labelled rows; labels propagated along the graph of the rows, as
    far as `damping` says and farther; along one of the logits, and one of logits that were smoothed
    along the graph of the rows. What these say, pooled with equal weights, makes two more graphs:
    of rows whitened within classes, and of their part that tells the classes apart. These are left
    out with too many columns.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)
        All rows, from `scale_rows`.
    graph : Graph
        Of the rows.
    codes : ndarray of shape (n_rows,)
        The numbers of their classes; -1 where unknown. A class may be missing.
    n_classes : int
        How many classes there are.
    n_neighbors : int
        Of the other graphs.
    damping : float
        Of propagation.
    weights : ndarray of shape (n_rows,) or None
        Of the rows.

    Returns
    -------
    classes : ndarray of shape (n_learners, n_rows, n_classes)
        Rows sum to 1, or are 0 where a learner knows nothing.
    """
    regression, found = regress(rows, codes, n_classes, weights)
    logits = regression.decision_function(rows).reshape(len(rows), -1)

    def spread(flow, damping=damping):
        return class_mass(flow, codes, n_classes, damping, weights)

    def join(features):
        return make_graph(features, n_neighbors, unit_length=False).flow

    learners = [found, spread(graph.flow), spread(graph.flow, 1 - (1 - damping) / _FARTHER)]
    smooth = propagate_in_parts(graph, logits, _SMOOTHING)
    learners += [spread(join(features)) for features in (logits, smooth)]
    if rows.shape[1] <= _WHITENED_COLUMNS:
        classes = set_labels(pool(np.stack(learners), equal_weights(len(learners))), codes)
        classes = classes if weights is None else weights[:, None] * classes
        learners += [spread(join(features)) for features in whiten_classes(rows, classes)]
    return np.stack(learners)


def regress(
    rows: NDArray, codes: NDArray, n_classes: int, weights: NDArray | None
) -> tuple[LogisticRegression, NDArray]:
    """Return a logistic regression of the labelled rows, and its class distributions of all."""
    labelled = np.flatnonzero(codes >= 0)
    regression = LogisticRegression(C=_INVERSE_PENALTY, max_iter=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a candidate among others
        some = None if weights is None else weights[labelled]
        regression.fit(rows[labelled], codes[labelled], sample_weight=some)
    found = np.zeros((len(rows), n_classes))
    found[:, regression.classes_] = regression.predict_proba(rows)
    return regression, found


def scale_rows(rows: NDArray, by_column: bool) -> NDArray:
    """Centre rows, and scale their columns to a variance of 1: each, or the mean of all."""
    return (rows - rows.mean(axis=0)) / column_scales(rows, by_column)


def column_scales(rows: NDArray, by_column: bool) -> NDArray:
    """Return what `scale_rows` divides each column by."""
    variances = rows.var(axis=0)
    if not by_column:
        variances = np.full(len(variances), variances.mean())
    varies = variances > _MIN_VARIANCE * variances.max()
    return np.sqrt(np.where(varies, variances, 1))


def is_better_by_column(
    rows: NDArray, codes: NDArray, n_classes: int, weights: NDArray | None, folds: list[NDArray]
) -> bool:
    """Return whether columns should be scaled one by one, by labels that were held out."""
    likely = []
    for by_column in (False, True):
        scaled, logarithms = scale_rows(rows, by_column), []
        for fold in folds:
            known = codes.copy()
            known[fold] = -1
            found = regress(scaled, known, n_classes, weights)[1][fold, codes[fold]]
            logarithms.append(np.log(np.maximum(found, _MIN_PROBABILITY)))
        likely.append(np.concatenate(logarithms).mean())
    return bool(likely[1] > likely[0] + _SCALING_GAIN)


def whiten_classes(rows: NDArray, classes: NDArray) -> tuple[NDArray, NDArray]:
    """Map rows so that the covariance within classes is nearly the identity.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)
        The rows.
    classes : ndarray of shape (n_rows, n_classes)
        How much each row counts for each class. A class may be missing.

    Returns
    -------
    whitened : ndarray of shape (n_rows, n_columns)
        All directions, as in linear discriminant analysis with a shrunken covariance.
    discriminant : ndarray of shape (n_rows, n_directions)
        Those in which the means of the classes lie.
    """
    counts = classes.sum(axis=0)
    classes, counts = classes[:, counts > 0], counts[counts > 0]
    means = classes.T @ rows / counts[:, None]
    weighted = classes.sum(axis=1)[:, None] * rows
    within = (weighted.T @ rows - (counts * means.T) @ means) / counts.sum()
    width = len(within)
    within += max(_SHRINKAGE * np.trace(within) / width, _MIN_VARIANCE) * np.eye(width)
    variances, axes = np.linalg.eigh(within)
    axes = axes / np.sqrt(variances)
    means = (means - means.mean(axis=0)) @ axes
    directions = np.linalg.svd(means, full_matrices=False)[2][: max(1, len(means) - 1)]
    whitened = rows @ axes
    return whitened, whitened @ directions.T


def propagate_in_parts(graph: Graph, values: NDArray, damping: float) -> NDArray:
    """Propagate columns of values, some at a time."""
    n_parts = -(-values.size // _SOLVED)
    parts = np.array_split(values, n_parts, axis=1) if n_parts > 1 else [values]
    return np.hstack([propagate(graph.flow, part, damping, tol=1e-4) for part in parts])


def weigh(held_out: NDArray, codes: NDArray, n_rows: int) -> Weighing:
    """Return how to pool learners, by what they say of labels that they have not seen.

    Parameters
    ----------
    held_out : ndarray of shape (n_learners, n_rows, n_classes)
        Class distributions of rows whose label was held out; the first by a regression.
    codes : ndarray of shape (n_rows,)
        The numbers of their classes.
    n_rows : int
        How many rows there are in all.

    Returns
    -------
    weighing : Weighing
        Each learner is calibrated. Those that are clearly better get nearly all of the weight, and
        those that few labels cannot tell apart share it.
    """
    powers = np.array([best_power(one, codes) for one in held_out])
    calibrated = np.stack([sharpen(*pair) for pair in zip(held_out, powers, strict=True)])
    likely = calibrated[:, np.arange(len(codes)), codes]
    scores = np.log(np.maximum(likely, _MIN_PROBABILITY)).mean(axis=1)
    weights = np.exp(_CHOICE * (scores - scores.max()))
    weights[0] *= min(_REGRESSIONS, _ROWS / n_rows)
    weighing = Weighing(powers, weights / weights.sum(), 1.0)
    return weighing._replace(power=best_power(pool(held_out, weighing), codes))


def pool(classes: NDArray, weighing: Weighing) -> NDArray:
    """Return the weighted geometric mean of class distributions.

    Parameters
    ----------
    classes : ndarray of shape (n_learners, n_rows, n_classes)
        By each learner.
    weighing : Weighing
        Powers and weights.

    Returns
    -------
    pooled : ndarray of shape (n_rows, n_classes)
        Rows sum to 1, or are 0 where no learner knows anything. A learner that knows nothing of a
        row has no say there.
    """
    logarithms = np.zeros(classes.shape[1:])
    for one, power, weight in zip(classes, weighing.powers, weighing.weights, strict=True):
        known = one.any(axis=1, keepdims=True)
        logarithms += known * weight * np.log(sharpen(one, power) + _MIN_PROBABILITY)
    logarithms -= logarithms.max(axis=1, keepdims=True)
    known = classes.sum(axis=(0, 2))[:, None] > 0
    return normalize_rows(np.exp(weighing.power * logarithms) * known)


def equal_weights(n_learners: int) -> Weighing:
    """Return how to pool learners of which nothing is known, the first a regression."""
    powers = np.array([1.0, *[DEFAULT_POWER] * (n_learners - 1)])
    return Weighing(powers, np.full(n_learners, 1 / n_learners), 1.0)


def choose_weights(
    rows: NDArray,
    codes: NDArray,
    n_classes: int,
    n_neighbors: int,
    damping: float,
    weights: NDArray | None,
    rng: Generator,
    *,
    n_jobs: int | None = None,
    client: Any = None,
) -> Weighing | None:
    """Return how to pool learners, found by cross-validation over the labels of some rows.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)
        All rows, as they are.
    codes, n_classes, n_neighbors, damping, weights
        As of `learn_classes`.
    rng : numpy Generator
        Draws rows and folds.
    n_jobs, client
        As of `make_shards`: where folds are worked on.

    Returns
    -------
    weighing : Weighing or None
        None where no class has two labels.
    """
    labelled, others = np.flatnonzero(codes >= 0), np.flatnonzero(codes < 0)
    if len(labelled) > _TRIAL_ROWS // 2:
        labelled = rng.permutation(labelled)[: _TRIAL_ROWS // 2]
    chosen = rng.permutation(others)[: _TRIAL_ROWS - len(labelled)]
    some = np.sort(np.concatenate([labelled, chosen]))
    rows, codes = rows[some], codes[some]
    weights = None if weights is None else weights[some]
    folds = label_folds(codes, rng)
    if not folds:
        return None
    by_column = is_better_by_column(rows, codes, n_classes, weights, folds)
    rows = scale_rows(rows, by_column)
    graph = make_graph(rows, min(n_neighbors, len(rows) - 1), unit_length=False)
    given = rows, graph, codes, n_classes, graph.neighbors.shape[1], damping, weights
    with make_shards(folds, n_jobs=n_jobs, client=client) as shards:
        parts = shards.map(learn_without, *given)
    weighing = weigh(np.concatenate(parts, axis=1), codes[np.concatenate(folds)], len(codes))
    return weighing._replace(by_column=by_column)


def learn_without(
    fold: NDArray, rows: NDArray, graph: Graph, codes: NDArray, *options: Any
) -> NDArray:
    """Return what learners that do not know some labels say of these rows."""
    known = codes.copy()
    known[fold] = -1
    return learn_classes(rows, graph, known, *options)[:, fold]


def label_folds(codes: NDArray, rng: Generator) -> list[NDArray]:
    """Return folds of labelled rows, stratified, such that no class is held out as a whole.

    Parameters
    ----------
    codes : ndarray of shape (n_rows,)
        Numbers of classes; -1 where unknown.
    rng : numpy Generator
        Shuffles the rows of a class.

    Returns
    -------
    folds : list of ndarray
        Row numbers; the only row of a class is in none.
    """
    numbers = np.full(len(codes), -1)
    for label in np.unique(codes[codes >= 0]):
        members = rng.permutation(np.flatnonzero(codes == label))
        if len(members) > 1:
            numbers[members] = np.arange(len(members)) % min(_FOLDS, len(members))
    return [np.flatnonzero(numbers == fold) for fold in range(numbers.max() + 1)]


def table_classes(
    rows: NDArray,
    graph: Graph,
    codes: NDArray,
    n_classes: int,
    n_neighbors: int,
    damping: float,
    weights: NDArray | None,
    weighing: Weighing | None,
) -> NDArray:
    """Return the class distribution of each row.

    Parameters
    ----------
    rows, graph, codes, n_classes, n_neighbors, damping, weights
        As of `learn_classes`.
    weighing : Weighing or None
        Of `choose_weights`. None takes all learners alike.

    Returns
    -------
    classes : ndarray of shape (n_rows, n_classes)
        Rows sum to 1. Labelled rows have their class.
    """
    found = learn_classes(rows, graph, codes, n_classes, n_neighbors, damping, weights)
    return set_labels(pool(found, weighing or equal_weights(len(found))), codes)


def regression_of_classes(
    rows: NDArray, classes: NDArray, weights: NDArray | None, weighing: Weighing
) -> tuple[float, NDArray, NDArray]:
    """Return a logistic regression of given classes, for other rows.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)
        Rows, as they are.
    classes : ndarray of shape (n_rows, n_classes)
        Their distributions; each class is the likeliest of some row.
    weights : ndarray of shape (n_rows,) or None
        Of the rows.
    weighing : Weighing
        Of `choose_weights`.

    Returns
    -------
    share : float
        The weight of the regression among the learners.
    coef : ndarray of shape (n_columns, n_classes)
        Of the rows as they are.
    intercept : ndarray of shape (n_classes,)
        The softmax of both gives the distribution.
    """
    scaled = scale_rows(rows, weighing.by_column)
    counts = classes.max(axis=1) if weights is None else weights * classes.max(axis=1)
    regression = LogisticRegression(max_iter=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a part of the prediction
        regression.fit(scaled, classes.argmax(axis=1), sample_weight=counts)
    coef, intercept = regression.coef_.T, regression.intercept_
    if classes.shape[1] == 2:
        coef, intercept = np.hstack([-coef, coef]) / 2, np.r_[-intercept, intercept] / 2
    scales = column_scales(rows, weighing.by_column)
    coef = coef / scales[:, None]
    return float(weighing.weights[0]), coef, intercept - rows.mean(axis=0) @ coef
