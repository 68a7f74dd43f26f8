"""Closed forms of the classical methods, against definitions and optimality."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

torch = pytest.importorskip("torch")
pytest.importorskip("skorch")

from skdml.semisupervised import _method_seraph  # noqa: E402
from skdml.semisupervised._label_propagation import make_graph  # noqa: E402
from skdml.semisupervised._method_laplacian import (  # noqa: E402
    clip_negative,
    density_weights,
    factor_metric,
    itml_prior,
    laplacian_scatter,
    likelihood_prior,
    lrml_metric,
    propagated_metric,
    scatter,
)
from skdml.semisupervised._method_seraph import seraph_loss, seraph_metric  # noqa: E402


@pytest.fixture
def rows():
    return np.random.default_rng(0).standard_normal((40, 4)) * [1, 2, 3, 4]


def random_psd(seed, rank=4):
    root = np.random.default_rng(seed).standard_normal((4, rank))
    return root @ root.T


def test_scatter_is_the_mean_of_outer_products(rows):
    pairs = np.array([[0, 1], [2, 3], [5, 9]])
    expected = np.mean([np.outer(rows[i] - rows[j], rows[i] - rows[j]) for i, j in pairs], axis=0)
    np.testing.assert_allclose(scatter(rows, pairs), expected)
    np.testing.assert_array_equal(scatter(rows, pairs[:0]), 0)


def test_laplacian_scatter_is_a_sum_over_edges(rows):
    weights = make_graph(rows, 4).flow
    signed = weights.copy()
    signed.data = signed.data * np.where(signed.data > np.median(signed.data), 1, -0.5)
    for graph in (weights, signed):
        dense = graph.toarray()
        expected = np.zeros((4, 4))
        for i in range(40):
            for j in range(40):
                difference = rows[i] - rows[j]
                expected += dense[i, j] * np.outer(difference, difference)
        expected /= np.abs(dense).sum()
        np.testing.assert_allclose(laplacian_scatter(rows, graph), expected, atol=1e-12)


def test_density_weights_favour_dense_places():
    dense = np.zeros((4, 4))
    dense[0, 1] = dense[1, 0] = 0.9
    dense[2, 3] = dense[3, 2] = 0.1
    scaled = density_weights(sparse.csr_array(dense)).toarray()
    np.testing.assert_allclose(scaled[0, 1], 0.9 * 0.9 / 0.5)
    np.testing.assert_allclose(scaled[2, 3], 0.1 * 0.1 / 0.5)
    np.testing.assert_allclose(scaled, scaled.T, rtol=1e-12)


def test_lrml_metric_minimises_its_objective_among_unit_determinants():
    graph, similar, dissimilar = random_psd(0), random_psd(1), random_psd(2, rank=2)
    metric, weight = lrml_metric(graph, similar, dissimilar, 2.0, 0.05)
    assert np.linalg.det(metric) == pytest.approx(1)

    def objective(M):
        return np.trace(M @ (graph + 2.0 * similar - weight * dissimilar))

    rng = np.random.default_rng(3)
    for _ in range(50):
        step = 0.1 * rng.standard_normal((4, 4))
        other = (np.eye(4) + step) @ metric @ (np.eye(4) + step).T
        other /= np.linalg.det(other) ** 0.25
        assert objective(metric) <= objective(other) * (1 + 1e-3)


def test_lrml_takes_less_of_dissimilar_pairs_until_the_metric_exists():
    graph, similar = random_psd(0), random_psd(1)
    metric, weight = lrml_metric(graph, similar, 100 * random_psd(2), 1.0, 1.0)
    assert weight < 1
    assert np.linalg.eigvalsh(metric)[0] > 0


def test_likelihood_prior_is_a_clipped_difference_of_inverses():
    wide, narrow = np.diag([4.0, 1.0]), np.diag([1.0, 4.0])
    prior = likelihood_prior(narrow, wide)
    ridge = 1e-3 * 2.5  # a thousandth of the mean of the diagonal
    expected = np.diag([1 / (1 + ridge) - 1 / (4 + ridge), 0])
    np.testing.assert_allclose(prior, expected, atol=1e-12)


def test_propagated_metric_is_the_formula_and_needs_no_inverse_of_the_prior():
    prior, graph = random_psd(0), random_psd(1)
    root = np.linalg.cholesky(prior)
    level = np.trace(root.T @ graph @ root) / 4
    expected = np.linalg.inv(np.linalg.inv(prior) + 0.7 / level * graph)
    np.testing.assert_allclose(propagated_metric(prior, graph, 0.7), expected)
    singular = propagated_metric(random_psd(0, rank=2), graph, 0.7)
    assert np.linalg.matrix_rank(singular, tol=1e-8) == 2
    negative = propagated_metric(prior, -graph, 0.7)
    np.testing.assert_allclose(negative, prior)


def test_factor_has_the_directions_of_most_variance_under_the_metric(rows):
    metric, covariance = random_psd(0), np.cov(rows, rowvar=False)
    full = factor_metric(metric, covariance, 4)
    np.testing.assert_allclose(full @ full.T, metric, atol=1e-10)
    part = factor_metric(metric, covariance, 2)
    variances = np.var(rows @ full, axis=0, ddof=1)
    np.testing.assert_allclose(variances, np.sort(variances)[::-1])
    np.testing.assert_allclose(np.abs(part), np.abs(full[:, :2]))


def test_clipped_matrix_is_the_nearest():
    matrix = np.array([[1.0, 3.0], [3.0, 1.0]])
    np.testing.assert_allclose(clip_negative(matrix), [[2, 2], [2, 2]])


def test_seraph_finds_the_column_that_tells_classes_apart():
    rng = np.random.default_rng(0)
    signs = np.repeat([1.0, -1.0], 40)
    labelled = rng.standard_normal((80, 3))
    labelled[:, 0] = np.where(signs > 0, 0.1, 2.0) * rng.standard_normal(80)
    unlabelled = rng.standard_normal((100, 3))
    metric = seraph_metric(labelled, signs, unlabelled, 0.1, 0.01)
    assert np.linalg.eigvalsh(metric)[0] >= -1e-12
    assert metric[0, 0] > 5 * max(metric[1, 1], metric[2, 2])

    def value(M):
        squares = [np.einsum("ij,jk,ik->i", part, M, part) for part in (labelled, unlabelled)]
        tensors = [torch.from_numpy(part) for part in (squares[0], signs, squares[1])]
        return seraph_loss(*tensors, 1.0, 0.1).item()

    start = np.eye(3) / (np.concatenate([labelled, unlabelled]) ** 2).mean() / 3
    assert value(metric) < value(start)


def test_the_scatter_of_a_graph_does_not_mind_an_offset():
    rng = np.random.default_rng(0)
    X = np.round(rng.standard_normal((40, 3)), 2)
    weights = sparse.random_array((40, 40), density=0.2, rng=rng)
    weights = sparse.csr_array(weights + weights.T)
    expected = laplacian_scatter(X, weights)
    np.testing.assert_allclose(laplacian_scatter(X + 1e8, weights), expected, rtol=1e-5)


def test_lrml_ends_where_no_weight_of_dissimilar_pairs_will_do():
    indefinite = np.diag([1.0, -2.0])
    with pytest.warns(ConvergenceWarning, match="after 60 halvings.*left out"):
        metric, weight = lrml_metric(indefinite, np.zeros((2, 2)), np.eye(2), 1.0, 0.5)
    assert weight == 0
    assert np.linalg.eigvalsh(metric)[0] > 0


def test_seraph_ends_where_no_step_improves():
    zeros, signs = np.zeros((5, 2)), np.array([1.0, 1.0, -1.0, -1.0, 1.0])
    np.testing.assert_array_equal(seraph_metric(zeros, signs, zeros, 0.1, 0.01), np.eye(2))
    # A value that jumps: every step is refused.
    start = seraph_metric(zeros + 1, signs, zeros, 0.1, 0.01, max_iter=0)
    with pytest.MonkeyPatch.context() as patch:
        values = iter(np.arange(1000.0))
        patch.setattr(
            _method_seraph, "seraph_loss", lambda near, *rest: next(values) + 0 * near.sum()
        )
        found = seraph_metric(zeros + 1, signs, zeros, 0.1, 0.01)
    np.testing.assert_array_equal(found, start)


def test_seraph_tells_of_steps_that_were_not_enough():
    rng = np.random.default_rng(0)
    pairs, signs = rng.standard_normal((50, 4)), np.where(np.arange(50) % 2, 1.0, -1.0)
    with pytest.warns(ConvergenceWarning, match=r"after 2 steps.* lowered the objective"):
        seraph_metric(pairs, signs, rng.standard_normal((50, 4)), 0.1, 0.01, max_iter=2)


def test_itml_prior_of_rows_with_one_distance_is_named():
    X, codes = np.eye(4), np.array([0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"'apit' cannot learn .*same distance.*more labels"):
        itml_prior(X, codes, np.random.default_rng(0))
