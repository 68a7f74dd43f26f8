"""Constant rows, and numbers whose squares leave the range: an error by name, or a good result."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning

pytest.importorskip("torch")

from skdml import (
    AsymmetricMetricClassifier,
    DeepMetricEmbedder,
    DITMLTransformer,
    GMMLTransformer,
    LocalGMMLRanker,
    SSDMLEmbedder,
    WassersteinGenerator,
)
from skdml.constraints import make_local_pairs
from skdml.metrics import (
    cluster_nmi,
    frechet_distance,
    nearest_row_ratio,
    recall_at_k,
    sample_quality,
    wasserstein_distance,
)
from skdml.transport import (
    CloudMetric,
    measure_coreset,
    sinkhorn_divergence,
    wasserstein_coreset,
)

X, Y = make_blobs(60, n_features=4, centers=3, random_state=0)
PARTLY = np.where(np.arange(60) < 30, Y, -1)
ESTIMATORS = [
    (GMMLTransformer(random_state=0), Y),
    (GMMLTransformer(prior="covariance", geodesic=1.0, random_state=0), Y),
    (DITMLTransformer(random_state=0), Y),
    (DITMLTransformer(solver="parallel", max_iter=20, random_state=0), Y),
    (AsymmetricMetricClassifier(max_iter=2, random_state=0), Y),
    (DeepMetricEmbedder(max_epochs=1, random_state=0), Y),
    (SSDMLEmbedder(max_epochs=1, random_state=0), PARTLY),
    (SSDMLEmbedder(module=None, method="seraph", random_state=0), PARTLY),
    (WassersteinGenerator(max_iter=2, random_state=0), None),
    (WassersteinGenerator(max_iter=2, scaling="columns", random_state=0), None),
]
NAMES = [f"{type(estimator).__name__}-{number}" for number, (estimator, _) in enumerate(ESTIMATORS)]
LINEAR = [GMMLTransformer(random_state=0), DITMLTransformer(random_state=0)]


@pytest.fixture(autouse=True)
def no_numerical_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


@pytest.mark.parametrize(("estimator", "y"), ESTIMATORS, ids=NAMES)
@pytest.mark.parametrize("factor", [1e-300, 1e-200, 1e-80, 1e80, 1e200, 1e300])
def test_estimators_refuse_extreme_scales_by_name(estimator, y, factor):
    with pytest.raises(ValueError, match=r"X has .* leave the range of float"):
        estimator.fit(X * factor, y)


@pytest.mark.parametrize("factor", [1e-200, 1e200])
@pytest.mark.parametrize("normalize", ["both", "column", None])
def test_the_ranker_does_not_mind_the_scale(factor, normalize):
    qid = np.repeat(np.arange(6), 10)
    ranker = LocalGMMLRanker(max_epochs=1, normalize=normalize, random_state=0)
    expected = ranker.fit(X, Y, qid=qid).score(X, Y, qid=qid)
    scaled = X * factor
    assert ranker.fit(scaled, Y, qid=qid).score(scaled, Y, qid=qid) == pytest.approx(expected)


@pytest.mark.parametrize("estimator", LINEAR)
@pytest.mark.parametrize("shape", [(30, 4), (6, 40), (43, 1)])
@pytest.mark.parametrize("constant", [0.0, 3.7, 1 / 3, 1e8, -1e-9])
def test_linear_learners_refuse_constant_rows(estimator, shape, constant):
    rows, y = np.full(shape, constant), np.arange(shape[0]) % 2
    noisy = rows * (1 + np.finfo(float).eps * (np.arange(shape[0]) % 3)[:, None])
    for wrong in (rows, noisy, sparse.csr_array(rows), rows.astype(np.float32)):
        with pytest.raises(ValueError, match="X has the same values in every row"):
            estimator.fit(wrong, y)


@pytest.mark.parametrize("estimator", LINEAR)
def test_linear_learners_refuse_pairs_of_equal_rows(estimator):
    rows = np.repeat(np.random.default_rng(0).standard_normal((20, 3)) + 3.7, 3, axis=0)
    first = 3 * np.arange(20)
    pairs = np.vstack([np.column_stack([first, first + 1]), np.column_stack([first, first + 2])])
    labels = np.repeat([1, -1], 20)
    warnings.simplefilter("ignore", UserWarning)
    with pytest.raises(ValueError, match=r"zero difference|no similar pair with a difference"):
        estimator.fit(rows, pairs=pairs, pair_labels=labels)


@pytest.mark.parametrize("estimator", LINEAR)
@pytest.mark.parametrize("n_rows", [60, 4])
def test_a_constant_column_far_away_changes_nothing(estimator, n_rows):
    some, y = X[::15] if n_rows == 4 else X, np.arange(n_rows) % 2
    expected = estimator.fit(np.column_stack([some, np.zeros(n_rows)]), y).metric_
    found = estimator.fit(np.column_stack([some, np.full(n_rows, 1e8 / 3)]), y).metric_
    assert_allclose(found.matrix(), expected.matrix(), rtol=1e-9, atol=1e-9)


def test_other_estimators_refuse_constant_rows():
    rows = np.full((60, 4), 3.7)
    for estimator in (
        AsymmetricMetricClassifier(max_iter=1),
        SSDMLEmbedder(max_epochs=1),
        SSDMLEmbedder(module=None, method="seraph"),
    ):
        with pytest.raises(ValueError, match="X has the same values in every row"):
            estimator.fit(rows, PARTLY if isinstance(estimator, SSDMLEmbedder) else Y)


@pytest.mark.parametrize("estimator", [DeepMetricEmbedder(), SSDMLEmbedder()])
def test_networks_refuse_rows_that_single_precision_cannot_tell_apart(estimator):
    y = PARTLY if isinstance(estimator, SSDMLEmbedder) else Y
    with pytest.raises(ValueError, match="float32, in which it is worked on"):
        estimator.fit(X + 1e8, y)


# Measures and transport


@pytest.mark.parametrize("factor", [1e-250, 1e-30, 1e30, 1e250])
def test_measures_do_not_mind_the_scale(factor):
    A, B = X[:30], X[30:]
    a, b = A * factor, B * factor
    assert_allclose(wasserstein_distance(a, b), wasserstein_distance(A, B) * factor)
    assert_allclose(sample_quality(a, b), sample_quality(A, B))
    assert_allclose(nearest_row_ratio(a, b, b[::2]), nearest_row_ratio(A, B, B[::2]))
    assert recall_at_k(X * factor, Y) == recall_at_k(X, Y)


def test_measures_do_not_mind_an_offset():
    A, B = np.round(X[:30], 2), np.round(X[30:], 2)
    for measure in (wasserstein_distance, frechet_distance):
        assert_allclose(measure(A + 1e8, B + 1e8), measure(A, B), rtol=1e-5)


def test_the_frechet_distance_is_a_square():
    A, B = X[:30], X[30:]
    assert_allclose(frechet_distance(A * 1e60, B * 1e60), frechet_distance(A, B) * 1e120)
    with pytest.raises(ValueError, match=r"X or Y has .* leave the range"):
        frechet_distance(A * 1e200, B * 1e200)


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_transport_refuses_extreme_scales_by_name(factor):
    wrong = X * factor
    for call, name in (
        (lambda: sinkhorn_divergence(wrong, X), "A"),
        (lambda: sinkhorn_divergence(X, wrong, solver="exact"), "B"),
        (lambda: CloudMetric((2, 2)).pairwise(wrong, X), "X"),
        (lambda: CloudMetric((2, 2)).pair_distance(X, wrong), "B"),
        (lambda: wasserstein_coreset(wrong, 5), "X"),
        (lambda: measure_coreset(wrong, 5), "X"),
    ):
        with pytest.raises(ValueError, match=rf"{name} has .* leave the range of float64"):
            call()


@pytest.mark.parametrize("solver", ["sinkhorn", "exact"])
def test_the_divergence_does_not_mind_offset_and_scale(solver):
    A, B = np.round(X[:20], 2), np.round(X[20:40], 2)
    expected = sinkhorn_divergence(A, B, solver=solver)
    assert_allclose(sinkhorn_divergence(A + 1e8, B + 1e8, solver=solver), expected, rtol=1e-5)
    for factor in (2.0**-200, 2.0**200):
        found = sinkhorn_divergence(A * factor, B * factor, solver=solver)
        assert_allclose(found, expected * factor**2, rtol=1e-9)


@pytest.mark.parametrize("params", [{"reg": 1e-7}, {"eta": 1e-13}])
def test_an_entropy_that_is_too_small_ends_with_a_warning(params):
    rng = np.random.default_rng(3)
    A, B, weights = rng.random((6, 2)), rng.random((5, 2)), rng.random(5)
    with pytest.warns(ConvergenceWarning, match=r"Sinkhorn.* after \d+ .* off by .*'exact'"):
        value = sinkhorn_divergence(A, B, b=weights / weights.sum(), **params)
    assert np.isfinite(value)


@pytest.mark.parametrize("normalize", ["both", "query", "column", None])
@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_documents_far_from_those_of_fit_are_ranked(factor, normalize):
    qid = np.repeat(np.arange(6), 10)
    ranker = LocalGMMLRanker(
        max_epochs=1, normalize=normalize, query_weights="neighbours", random_state=0
    )
    ranker.fit(X, Y, qid)
    assert np.isfinite(ranker.predict(factor * X, qid)).all()
    assert np.isfinite(ranker.predict(factor * X, qid, query=X[:1])).all()
    with pytest.raises(ValueError, match=r"X has .* leave the range"):
        ranker.predict(1e300 * X, qid)


def test_clusters_and_local_pairs_of_any_scale():
    expected = cluster_nmi(X, Y, random_state=0), make_local_pairs(X, Y, 20, random_state=0)[0]
    for far in (1e-200 * X, 1e200 * X, (1e30 * X).astype(np.float32)):
        assert cluster_nmi(far, Y, random_state=0) == pytest.approx(expected[0])
        np.testing.assert_array_equal(make_local_pairs(far, Y, 20, random_state=0)[0], expected[1])


def test_a_step_that_is_too_long_is_an_error_without_a_warning():
    model = AsymmetricMetricClassifier(max_iter=2, lr=1e300, random_state=0)
    with pytest.raises(ValueError, match=r"not finite.*smaller lr"):
        model.fit(X, np.arange(len(X)) % 2)  # labels with a loss, so that there are steps
    fitted = AsymmetricMetricClassifier(max_iter=1, random_state=0).fit(X, Y)
    with pytest.raises(ValueError, match=r"queries has .* leave the range"):
        fitted.pair_distance(1e300 * X, X)


def test_sparse_rows_whose_squares_leave_single_precision():
    wide = np.random.default_rng(0).standard_normal((6, 40))
    large = sparse.csr_array((wide * 1e25).astype(np.float32))
    y = [0, 0, 0, 1, 1, 1]
    for model in LINEAR:
        distances = model.fit(large, y).pair_distance([[0, 1], [0, 5]], X=large)
        expected = model.fit(wide * 1e25, y).pair_distance([[0, 1], [0, 5]], X=wide * 1e25)
        assert_allclose(distances, expected, rtol=1e-3)


def test_numbers_next_to_zero_have_distances():
    model = GMMLTransformer(random_state=0).fit(X, Y)
    tiny = X * 1e-320
    for rows in (tiny, sparse.csr_array(tiny)):
        distances = model.pair_distance([[0, 1], [2, 2]], X=rows)
        assert np.isfinite(distances).all()
        assert distances[0] > 0
        assert distances[1] == 0


def test_more_candidates_than_rows_are_all_rows():
    few = AsymmetricMetricClassifier(max_iter=2, n_candidates=4 * len(X), random_state=0)
    many = AsymmetricMetricClassifier(max_iter=2, n_candidates=2**31, random_state=0)
    assert_allclose(many.fit(X, Y).transform(X), few.fit(X, Y).transform(X))


@pytest.mark.parametrize("factor", [1e-80, 1e80])
def test_queries_of_extreme_scales_are_refused_by_name(factor):
    with pytest.raises(ValueError, match=r"X_query has .* leave the range of float"):
        AsymmetricMetricClassifier(max_iter=2).fit(X, Y, X_query=X * factor, y_query=Y)


def test_a_huge_reg_of_the_ranker_leaves_the_identity():
    qid = np.repeat(np.arange(6), 10)
    for reg in (1e12, 1e300):
        model = LocalGMMLRanker(max_epochs=1, reg=reg, random_state=0).fit(X, Y, qid=qid)
        A = model.metrics_[0].matrix()
        assert_allclose(A, np.eye(len(A)), atol=1e-8)


def test_coresets_of_clouds_in_single_precision_are_of_a_good_scale():
    with pytest.raises(ValueError, match="leave the range of float32"):
        wasserstein_coreset((X * 1e25).astype(np.float32), size=5, cloud=(2, 2))


def test_a_tiny_gamma_leaves_the_prior():
    rows = X * [1e8, 1.0, 1e-3, 1e8]
    A = DITMLTransformer(gamma=1e-300, random_state=0).fit(rows, Y).get_mahalanobis_matrix()
    assert_allclose(A, np.eye(4), atol=1e-8)


def test_labels_that_are_records_are_named():
    records = np.zeros(60, dtype=[("a", float), ("b", int)])
    with pytest.raises(TypeError, match="labels must be all numbers or all strings"):
        recall_at_k(X, np.zeros(60, dtype="V4"), gallery=X, gallery_labels=records)
