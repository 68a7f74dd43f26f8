"""Learners of few labels, their weights, and the classes of new samples."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("skorch")

from scipy.special import softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from skdml.semisupervised import _table_classes
from skdml.semisupervised._label_propagation import make_graph
from skdml.semisupervised._table_classes import (
    Weighing,
    choose_weights,
    is_better_by_column,
    label_folds,
    learn_classes,
    pool,
    regression_of_classes,
    scale_rows,
    table_classes,
    weigh,
    whiten_classes,
)


@pytest.fixture
def table():
    """Rows, of whose columns one tells the classes, and labels of some."""
    rng = np.random.default_rng(0)
    y = np.arange(150) % 3
    rows = rng.standard_normal((150, 6))
    rows[:, 0] = 6 * y + rng.standard_normal(150)
    return rows, np.where(np.arange(150) < 15, y, -1), y


def learners(rows, codes, n_classes=3, weights=None):
    graph = make_graph(rows, 6, unit_length=False)
    return learn_classes(rows, graph, codes, n_classes, 6, 0.99, weights)


def test_learners_return_distributions(table):
    rows, codes, y = table
    found = learners(rows, codes)
    assert found.shape == (7, 150, 3)
    np.testing.assert_allclose(found.sum(axis=2), 1)
    assert (found.argmax(axis=2) == y).mean(axis=1).min() > 0.5
    wide = np.hstack([rows, np.zeros((150, 995))])
    assert len(learners(wide, codes)) == 5  # without whitened rows


def test_a_class_that_is_missing_gets_nothing(table):
    rows, codes, _ = table
    found = learners(rows, np.where(codes == 1, -1, codes))
    assert (found[:, :, 1] == 0).all()


def test_weights_of_labels_count(table):
    rows, codes, _ = table
    weights = np.ones(150)
    weights[codes == 2] = 50
    plain, heavy = learners(rows, codes), learners(rows, codes, weights=weights)
    assert heavy[0, :, 2].mean() > plain[0, :, 2].mean()


def test_rows_are_whitened_within_classes(monkeypatch, table):
    rows, _, y = table
    mixed = rows @ np.random.default_rng(1).standard_normal((6, 6))
    monkeypatch.setattr(_table_classes, "_SHRINKAGE", 0)
    whitened, discriminant = whiten_classes(mixed, np.eye(4)[y])  # the fourth class is missing
    means = np.stack([whitened[y == label].mean(axis=0) for label in range(3)])
    np.testing.assert_allclose(np.cov((whitened - means[y]).T, bias=True), np.eye(6), atol=1e-6)
    assert discriminant.shape == (150, 2)
    expected = LinearDiscriminantAnalysis().fit(mixed, y).transform(mixed)
    products = [(Z - Z.mean(axis=0)) @ (Z - Z.mean(axis=0)).T for Z in (discriminant, expected)]
    np.testing.assert_allclose(products[0], products[1], atol=1e-5)
    monkeypatch.setattr(_table_classes, "_SHRINKAGE", 0.1)
    weights = np.repeat([1, 3], 75)
    repeated = whiten_classes(np.repeat(mixed, weights, axis=0), np.eye(3)[np.repeat(y, weights)])
    weighted = whiten_classes(mixed, weights[:, None] * np.eye(3)[y])
    for once, often in zip(weighted, repeated, strict=True):
        distances = np.linalg.norm(once[0] - once[1]), np.linalg.norm(often[0] - often[1])
        np.testing.assert_allclose(*distances, rtol=1e-8)
    constant = np.zeros((5, 2))
    assert np.isfinite(whiten_classes(constant, np.eye(5))[0]).all()


def test_folds_hold_out_no_class_as_a_whole():
    codes = np.array([0, 0, 0, 1, 1, 2, -1, -1, 0, 0, 0])
    folds = label_folds(codes, np.random.default_rng(0))
    assert sorted(np.concatenate(folds)) == [0, 1, 2, 3, 4, 8, 9, 10]
    for fold in folds:
        left = np.delete(codes, fold)
        assert set(left[left >= 0]) == {0, 1, 2}
    assert label_folds(np.array([0, 1, -1]), np.random.default_rng(0)) == []


def test_a_learner_that_is_right_gets_the_weight():
    rng = np.random.default_rng(0)
    codes = rng.integers(3, size=40)
    right = 0.8 * np.eye(3)[codes] + 0.2 / 3
    guess = rng.dirichlet(np.ones(3), 40)
    weighing = weigh(np.stack([guess, right, right]), codes, 2000)
    assert weighing.weights[0] < 0.01
    np.testing.assert_allclose(weighing.weights[1:], 0.5, atol=0.01)
    assert weighing.powers[1] > weighing.powers[0]
    for n_rows, times in ((100, 4), (400, 2), (1600, 0.5)):  # the regression, among few rows
        same = weigh(np.stack([right, right, right]), codes, n_rows)
        np.testing.assert_allclose(same.weights, np.array([times, 1, 1]) / (times + 2))


def test_columns_are_scaled_together_or_one_by_one():
    rows = np.random.default_rng(0).standard_normal((50, 3)) * [1, 10, 0] + 5
    apart = scale_rows(rows, True)
    np.testing.assert_allclose(apart.std(axis=0), [1, 1, 0], atol=1e-9)
    together = scale_rows(rows, False)
    np.testing.assert_allclose(np.mean(together.var(axis=0)), 1)
    ratios = np.divide(together[:, :2], (rows - rows.mean(axis=0))[:, :2])
    np.testing.assert_allclose(ratios, ratios[0, 0])


def test_held_out_labels_choose_how_columns_are_scaled(table):
    rows, codes, _ = table
    folds = label_folds(codes, np.random.default_rng(0))
    # Columns of another unit hide the one that tells the classes.
    units = rows * np.r_[1, np.full(5, 1e4)]
    assert is_better_by_column(units, codes, 3, None, folds)
    # Columns of little noise are louder when each has a variance of 1.
    quiet = np.hstack([rows, 1e-3 * np.random.default_rng(1).standard_normal((150, 400))])
    assert not is_better_by_column(quiet, codes, 3, None, folds)


def test_pooling_is_the_weighted_geometric_mean():
    rng = np.random.default_rng(0)
    classes = rng.dirichlet(np.ones(3), (2, 5))
    classes[0, 4] = 0
    found = pool(classes, Weighing(np.array([2.0, 1.0]), np.array([0.3, 0.7]), 1.5))
    for i in range(5):
        logarithms = 0.7 * np.log(classes[1, i] + 1e-4)
        if i < 4:
            squares = classes[0, i] ** 2
            logarithms = logarithms + 0.3 * np.log(squares / squares.sum() + 1e-4)
        expected = np.exp(1.5 * logarithms)
        np.testing.assert_allclose(found[i], expected / expected.sum(), rtol=1e-6)
    classes[1, 4] = 0
    found = pool(classes, Weighing(np.ones(2), np.array([0.5, 0.5]), 1.0))
    np.testing.assert_array_equal(found[4], 0)


def test_classes_of_a_table_are_better_than_its_graph(table):
    rows, codes, y = table
    rng = np.random.default_rng(0)
    weighing = choose_weights(rows, codes, 3, 6, 0.99, None, rng)
    graph = make_graph(rows, 6, unit_length=False)
    classes = table_classes(rows, graph, codes, 3, 6, 0.99, None, weighing)
    np.testing.assert_allclose(classes.sum(axis=1), 1)
    np.testing.assert_array_equal(classes[:15], np.eye(3)[y[:15]])
    assert np.mean(classes.argmax(axis=1) == y) > 0.9
    # One label of each class: nothing can be held out.
    few = np.where(np.arange(150) < 3, y, -1)
    assert choose_weights(rows, few, 3, 6, 0.99, None, rng) is None
    classes = table_classes(rows, graph, few, 3, 6, 0.99, None, None)
    np.testing.assert_allclose(classes.sum(axis=1), 1)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_regression_of_classes_is_that_of_scaled_rows(table, n_classes):
    rows, _, y = table
    rows, y = rows * np.arange(1, 7) + 3, np.minimum(y, n_classes - 1)
    classes = 0.8 * np.eye(n_classes)[y] + 0.2 / n_classes
    weighing = Weighing(np.ones(2), np.array([0.3, 0.7]), 1.0, True)
    share, coef, intercept = regression_of_classes(rows, classes, None, weighing)
    assert share == 0.3
    scaled = StandardScaler().fit_transform(rows)
    weights = np.full(len(y), classes.max())
    expected = LogisticRegression(max_iter=1000).fit(scaled, y, weights).predict_proba(scaled)
    np.testing.assert_allclose(softmax(rows @ coef + intercept, axis=1), expected, atol=1e-3)
