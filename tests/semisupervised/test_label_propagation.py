"""Graphs and propagation, against dense matrices written out."""

import tracemalloc

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import normalize

pytest.importorskip("torch")
pytest.importorskip("skorch")

from skdml.semisupervised import _label_propagation
from skdml.semisupervised._label_propagation import (
    ClassMass,
    class_distributions,
    describe_graph,
    make_graph,
    propagate,
    propagate_affinity,
    propagate_classes,
)

K = 4
CODES = np.full(60, -1)
CODES[[3, 10, 20]], CODES[[5, 40]], CODES[7] = 0, 1, 2


@pytest.fixture
def rows():
    return np.random.default_rng(0).standard_normal((60, 5)) + 2


@pytest.fixture
def codes():
    return CODES.copy()


def slow_neighbors(rows, i):
    order = sorted(range(len(rows)), key=lambda j: np.linalg.norm(rows[i] - rows[j]))
    return [j for j in order if j != i][:K]


def dense_solution(flow, start, damping):
    system = np.eye(len(start)) - damping * flow.toarray()
    return (1 - damping) * np.linalg.inv(system) @ start


def classes_of(graph, codes, n_classes):
    return class_distributions([propagate_classes(graph.flow, codes, n_classes, 0.99)], codes)


def test_directed_graph_has_equal_weights_of_the_nearest_others(rows):
    graph = make_graph(rows, K, "directed")
    units = normalize(rows)
    for i in range(len(rows)):
        assert list(graph.neighbors[i]) == slow_neighbors(units, i)
        row = np.zeros(len(rows))
        row[graph.neighbors[i]] = 1 / K
        np.testing.assert_allclose(graph.flow.toarray()[i], row)


@pytest.mark.parametrize("unit_length", [True, False])
def test_symmetric_graph_is_that_of_the_formula(rows, unit_length):
    graph = make_graph(rows, K, "symmetric", unit_length)
    points = normalize(rows) if unit_length else rows
    neighbors = [slow_neighbors(points, i) for i in range(len(rows))]
    widths = [
        np.mean([np.linalg.norm(points[i] - points[j]) for j in near])
        for i, near in enumerate(neighbors)
    ]
    weights = np.zeros((len(rows), len(rows)))
    for i, near in enumerate(neighbors):
        for j in near:
            if unit_length:
                weights[i, j] = max(points[i] @ points[j], 0) ** 3
            else:
                distance = np.linalg.norm(points[i] - points[j])
                weights[i, j] = np.exp(-(distance**2) / (widths[i] * widths[j]))
    weights = weights + weights.T
    degrees = weights.sum(axis=1)
    np.testing.assert_allclose(
        graph.flow.toarray(), weights / np.sqrt(np.outer(degrees, degrees)), atol=1e-6
    )


def test_flow_never_grows(rows):
    for kind in ("symmetric", "directed"):
        flow = make_graph(rows, K, kind).flow.toarray()
        assert np.abs(np.linalg.eigvals(flow)).max() <= 1 + 1e-12


def test_equal_rows_and_rows_of_zeros_make_a_graph():
    rows = np.zeros((8, 3))
    rows[4:] = 1
    for unit_length in (True, False):
        flow = make_graph(rows, 2, "symmetric", unit_length).flow
        assert np.isfinite(flow.toarray()).all()


@pytest.mark.parametrize("kind", ["symmetric", "directed"])
@pytest.mark.parametrize("damping", [0.3, 0.99])
def test_propagation_is_the_dense_closed_form(rows, kind, damping):
    flow = make_graph(rows, K, kind).flow
    start = np.random.default_rng(1).standard_normal((60, 7))
    start[:, 3] = 0
    actual = propagate(flow, start, damping)
    np.testing.assert_allclose(actual, dense_solution(flow, start, damping), atol=1e-8)


def slow_mass(flow, codes, damping):
    start = np.where(codes[:, None] == np.arange(3), 1.0, 0.0)
    mass = dense_solution(flow, start, damping)
    totals = dense_solution(flow, np.where(CODES[:, None] == np.arange(3), 1.0, 0.0), damping)
    mass *= np.array([3, 2, 1]) / totals.sum(axis=0)
    return mass / mass.sum(axis=1, keepdims=True)


def test_mass_is_scaled_by_class_and_held_out_labels_are_as_if_unknown(rows, codes):
    flow = make_graph(rows, K).flow
    result = propagate_classes(flow, codes, 3, 0.9)
    np.testing.assert_allclose(result.mass, slow_mass(flow, codes, 0.9), atol=1e-7)
    assert list(result.probes) == [3, 5, 10, 20, 40]  # the third class has one label
    for probe, held_out in zip(result.probes, result.held_out, strict=True):
        without = codes.copy()
        without[probe] = -1
        # In single precision: it serves to choose a power.
        np.testing.assert_allclose(held_out, slow_mass(flow, without, 0.9)[probe], atol=1e-5)


def test_distributions_are_sharpened_until_held_out_labels_are_most_likely():
    rng = np.random.default_rng(0)
    codes = np.where(np.arange(100) < 60, np.arange(100) % 3, -1)
    chances = rng.dirichlet([0.3] * 3, 60)
    drawn = np.array([rng.choice(3, p=chance) for chance in chances])
    flat = (chances + 1e-9) ** 0.125
    flat /= flat.sum(axis=1, keepdims=True)
    codes[:60] = drawn
    mass = np.full((100, 3), 1 / 3)
    mass[60:] = [0.4, 0.35, 0.25]
    result = class_distributions([ClassMass(mass, np.arange(60), flat)], codes)
    sharpened = np.array([0.4, 0.35, 0.25])
    powers = [4, 4 * 2**0.5, 8, 8 * 2**0.5, 16]
    expected = [sharpened**power / (sharpened**power).sum() for power in powers]
    assert any(np.allclose(result[60], one) for one in expected)
    np.testing.assert_array_equal(result[:60], np.eye(3)[drawn])


def test_graphs_are_as_sure_as_the_first_and_pooled_where_they_are_known():
    first = np.array([[0.5, 0.5], [0.8, 0.2], [0.9, 0.1], [1, 0], [0, 0]])
    second = first[[0, 2, 1, 4, 3]] ** 0.25
    second = second / np.maximum(second.sum(axis=1, keepdims=True), 1e-9)
    codes, none = np.full(5, -1), np.empty(0, dtype=int)
    masses = [ClassMass(mass, none, np.empty((0, 2))) for mass in (first, second)]
    alone = class_distributions(masses[:1], codes)
    expected = first**4
    expected[:4] /= expected[:4].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(alone, expected)
    # The second has the same rows in another order: raised to the 16th, it is as sure.
    pooled = np.sqrt(expected[1] * expected[2])
    pooled = np.array([[0.5, 0.5], *[pooled / pooled.sum()] * 2, [1, 0], [1, 0]])
    np.testing.assert_allclose(class_distributions(masses, codes), pooled)
    against = class_distributions([masses[0], masses[0]._replace(mass=first[:, ::-1])], codes)
    np.testing.assert_allclose(against[:4], 0.5)


def test_a_graph_that_knows_the_labels_is_as_sure_as_one_that_does_not():
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1, -1], [20, 20, 40])
    even = np.column_stack([np.full(80, 0.55), np.full(80, 0.45)])
    sharp = rng.dirichlet([0.3, 0.3], 80)
    # Held-out labels of the first are as good as drawn at random: it is not sure of anything.
    unsure = ClassMass(even, np.arange(40), even[:40])
    seen = ClassMass(sharp, np.empty(0, dtype=int), np.empty((0, 2)))
    classes = class_distributions([seen], codes, reference=unsure)
    assert classes[40:].max(axis=1).mean() < sharp[40:].max(axis=1).mean()
    np.testing.assert_array_equal(classes[40:].argmax(axis=1), sharp[40:].argmax(axis=1))


def test_nodes_that_no_label_reaches_have_no_class():
    rows = np.concatenate([np.linspace(0, 1, 10), np.linspace(50, 51, 6)])[:, None]
    codes = np.full(16, -1)
    codes[[0, 9]] = 0, 1
    graph = make_graph(rows, 2, unit_length=False)
    classes = classes_of(graph, codes, 2)
    np.testing.assert_array_equal(classes[10:], 0)
    figures = describe_graph(graph, codes, classes)
    assert figures["n_nodes"] == 16
    assert figures["n_components"] == 2
    assert figures["n_unreached"] == 6
    assert 0 < figures["mean_confidence"] < 1


def test_two_clusters_take_the_label_of_their_own():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((100, 3)) + np.repeat([[0, 0, 0], [9, 9, 9]], 50, axis=0)
    codes = np.full(100, -1)
    codes[[0, 99]] = 0, 1
    for kind in ("symmetric", "directed"):
        classes = classes_of(make_graph(rows, 6, kind, unit_length=False), codes, 2)
        np.testing.assert_array_equal(classes.argmax(axis=1), np.repeat([0, 1], 50))


@pytest.mark.parametrize("kind", ["symmetric", "directed"])
def test_affinity_is_the_dense_closed_form(rows, codes, kind):
    graph = make_graph(rows, K, kind)
    start = np.eye(60)
    for i in range(60):
        for j in range(60):
            if i != j and codes[i] >= 0 and codes[j] >= 0:
                start[i, j] = 1 if codes[i] == codes[j] else -1
    full = dense_solution(graph.flow, start, 0.9)
    full = (full + full.T) / 2
    actual = propagate_affinity(graph, codes, 0.9)
    for i in range(60):
        np.testing.assert_allclose(actual[i], full[i, graph.neighbors[i]], atol=1e-6)


def test_columns_of_labelled_rows_are_enough_for_the_papers_affinity(rows, codes):
    """The labels are in their columns alone: the rest of W* is that of the diagonal."""
    flow = make_graph(rows, K, "directed").flow
    labelled = np.flatnonzero(codes >= 0)
    start = np.zeros((60, len(labelled)))
    start[labelled] = np.where(codes[labelled, None] == codes[labelled], 1, -1)
    whole = np.eye(60)
    whole[np.ix_(labelled, labelled)] = start[labelled]
    expected = dense_solution(flow, whole, 0.9)
    np.testing.assert_allclose(propagate(flow, start, 0.9), expected[:, labelled], atol=1e-8)
    unlabelled = codes < 0
    without = dense_solution(flow, np.eye(60), 0.9)
    np.testing.assert_allclose(expected[:, unlabelled], without[:, unlabelled])


@pytest.mark.parametrize("kind", ["symmetric", "directed"])
def test_propagation_needs_little_memory(kind):
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((10, 16))
    rows = centres[np.arange(3000) % 10] + 0.7 * rng.standard_normal((3000, 16))
    codes = np.where(np.arange(3000) < 100, np.arange(3000) % 10, -1)
    graph = make_graph(rows.astype(np.float32), 10, kind)
    tracemalloc.start()
    classes = classes_of(graph, codes, 10)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30e6  # a dense matrix of 3,000 x 3,000 has 72 MB
    assert np.mean(classes.argmax(axis=1) == np.arange(3000) % 10) > 0.9


def test_flow_is_sparse(rows):
    flow = make_graph(rows, K).flow
    assert isinstance(flow, sparse.csr_array)
    assert flow.nnz <= 2 * K * len(rows)


@pytest.mark.parametrize("kind", ["symmetric", "directed"])
@pytest.mark.parametrize("damping", [0.9999999, 1 - 1e-10])
def test_propagation_near_1_ends_and_is_right(rows, kind, damping):
    flow = make_graph(rows, 4, kind).flow
    start = np.eye(len(rows))[:, :3]
    values = propagate(flow, start, damping)
    dense = (1 - damping) * np.linalg.solve(np.eye(len(rows)) - damping * flow.toarray(), start)
    np.testing.assert_allclose(values, dense, atol=1e-4 * np.abs(dense).max())


def test_propagation_beyond_precision_warns(rows):
    flow = make_graph(rows, 4, "directed").flow
    with pytest.warns(ConvergenceWarning, match=r"residual .* 1000 steps: choose a smaller propag"):
        propagate(flow, np.eye(len(rows))[:, :3], 1 - 1e-15)


@pytest.mark.parametrize("kind", ["symmetric", "directed"])
def test_a_factorisation_takes_over_from_steps_that_end(rows, kind, monkeypatch):
    flow = make_graph(rows, 4, kind).flow
    expected = propagate(flow, np.eye(len(rows))[:, :3], 0.9)
    for name in ("_conjugate_gradients", "_bicgstab"):
        monkeypatch.setattr(_label_propagation, name, lambda flow, target, damping, tol: 0 * target)
    np.testing.assert_allclose(propagate(flow, np.eye(len(rows))[:, :3], 0.9), expected, atol=1e-9)
