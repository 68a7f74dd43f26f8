"""Learners of few labels, their weights, and the classes of new samples."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("skorch")

from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from skdml.semisupervised import _table_classes
from skdml.semisupervised._label_propagation import make_graph
from skdml.semisupervised._nearest_labels import choose_temperature, nearest_label_classes
from skdml.semisupervised._table_classes import (
    Weighing,
    choose_weights,
    label_folds,
    learn_classes,
    pool,
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
    weighing = weigh(np.stack([guess, right, right]), codes)
    assert weighing.weights[0] < 0.01
    np.testing.assert_allclose(weighing.weights[1:], 0.5, atol=0.01)
    assert weighing.powers[1] > weighing.powers[0]


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


def test_nearest_labels_by_hand():
    rng = np.random.default_rng(0)
    samples, labelled = rng.standard_normal((7, 2)), rng.standard_normal((4, 2))
    codes = np.array([0, 1, 1, 0])
    found = nearest_label_classes(samples, labelled, codes, 0.5)
    for i, sample in enumerate(samples):
        votes = np.exp(-np.sum((labelled - sample) ** 2, axis=1) / 0.5)
        expected = [votes[codes == c].sum() / votes.sum() for c in (0, 1)]
        np.testing.assert_allclose(found[i], expected, rtol=1e-8)


def test_temperature_is_that_of_the_wanted_classes():
    rng = np.random.default_rng(0)
    samples, labelled = rng.standard_normal((300, 2)), rng.standard_normal((8, 2))
    codes, none = np.arange(8) % 2, np.zeros((300, 8), dtype=bool)
    for temperature in (0.05, 5.0):
        wanted = nearest_label_classes(samples, labelled, codes, temperature)
        found = choose_temperature(samples, labelled, codes, wanted, none)
        assert temperature / 2 < found < temperature * 2
    own = np.eye(8, dtype=bool)  # labelled samples do not vote for themselves
    found = choose_temperature(labelled, labelled, codes, np.eye(2)[codes], own)
    assert found > 0.1
