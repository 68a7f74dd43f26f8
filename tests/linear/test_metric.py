import pickle

import numpy as np
import pytest
from scipy import sparse
from scipy.spatial.distance import cdist

from skdml.linear import MahalanobisMetric
from skdml.linear._mahalanobis import CombinedRows


def random_metric(n_features=7, rank=3, scale=0.8, seed=0):
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.standard_normal((n_features, rank)))[0].T
    return MahalanobisMetric(n_features, scale, directions, rng.uniform(-0.7, 3, rank) * scale)


@pytest.fixture
def X():
    return np.random.default_rng(1).standard_normal((12, 7))


@pytest.mark.parametrize("scale", [0.0, 0.8])
def test_all_views_agree_with_the_matrix(X, scale):
    metric = (
        random_metric(scale=scale)
        if scale
        else MahalanobisMetric.from_matrix(random_metric().matrix())
    )
    A = metric.matrix()
    expected = cdist(X, X, "mahalanobis", VI=A)
    assert np.linalg.eigvalsh(A)[0] >= -1e-12
    Z = metric.transform(X)
    np.testing.assert_allclose(cdist(Z, Z), expected, atol=1e-10)
    np.testing.assert_allclose(metric.pairwise(X), expected, atol=1e-7)
    np.testing.assert_allclose(metric.pairwise(X[:3], X[3:]), expected[:3, 3:], atol=1e-10)
    np.testing.assert_allclose(metric.pair_distance(X[:6], X[6:]), np.diag(expected[:6, 6:]))
    assert metric(X[0], X[1]) == pytest.approx(expected[0, 1])
    assert metric(X[0], X[0]) == 0


def test_identity():
    metric = MahalanobisMetric(4)
    X = np.arange(8.0).reshape(2, 4)
    assert np.array_equal(metric.transform(X), X)
    assert metric(X[0], X[1]) == 8


def test_without_identity_part_one_column_per_direction(X):
    metric = MahalanobisMetric(7, 0.0, np.eye(7)[:2], np.array([4.0, 1.0]))
    np.testing.assert_allclose(metric.transform(X), X[:, :2] * [2, 1])
    assert metric.n_outputs == 2


def test_sparse_rows_equal_their_dense_product(X):
    rng = np.random.default_rng(0)
    rows = sparse.random(5, 7, density=0.6, random_state=0, format="csr")
    mean = rng.standard_normal(7)
    implicit = CombinedRows(rng.standard_normal((3, 5)), rows, mean)
    dense = implicit.mixing @ (rows.toarray() - mean)
    np.testing.assert_allclose(implicit.toarray(), dense)
    np.testing.assert_allclose(implicit.project(X), X @ dense.T)
    np.testing.assert_allclose(implicit.project(sparse.csr_array(X)), X @ dense.T)
    along = rng.standard_normal((4, 3))
    np.testing.assert_allclose(implicit.expand(along), along @ dense)


def test_sparse_input_gives_the_dense_result(X):
    metric = random_metric()
    Xs = sparse.csr_array(X)
    np.testing.assert_allclose(metric.transform(Xs), metric.transform(X))
    np.testing.assert_allclose(metric.pairwise(Xs), metric.pairwise(X), atol=1e-6)
    np.testing.assert_allclose(metric.pairwise(Xs[:3], Xs[3:]), metric.pairwise(X[:3], X[3:]))
    np.testing.assert_allclose(
        metric.pair_distance(Xs[:6], Xs[6:]), metric.pair_distance(X[:6], X[6:])
    )


def test_float32_stays_float32(X):
    assert random_metric().transform(X.astype(np.float32)).dtype == np.float32


def test_too_large_a_matrix_is_refused_with_its_size():
    metric = MahalanobisMetric(10_000_000)
    with pytest.raises(MemoryError, match=r"10000000 x 10000000 numbers .*pair_distance"):
        metric.matrix()
    with pytest.raises(MemoryError, match="n_components"):
        metric.transform(sparse.csr_array((1_000_000, 10_000_000)))


def test_pickle_round_trip(X):
    metric = random_metric()
    again = pickle.loads(pickle.dumps(metric))
    assert np.array_equal(again.transform(X), metric.transform(X))
    assert "rank=3" in repr(again)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 1.0, np.eye(2), np.ones(2)), "directions has shape"),
        ((2, -1.0, np.eye(2), np.ones(2)), "must be >= 0"),
        ((2, 1.0, np.eye(2), np.array([-2.0, 0])), "must be >= 0"),
    ],
)
def test_bad_parts(arguments, message):
    with pytest.raises(ValueError, match=message):
        MahalanobisMetric(*arguments)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [(np.ones((2, 3)), "square"), ([[1, 2], [0, 1]], "symmetric"), ([[1, 0], [0, -1]], "semi")],
)
def test_bad_matrix(matrix, message):
    with pytest.raises(ValueError, match=message):
        MahalanobisMetric.from_matrix(matrix)


def test_vectors_of_the_wrong_length():
    with pytest.raises(ValueError, match="7 features"):
        random_metric()(np.zeros(3), np.zeros(3))


def test_rows_as_lists_and_of_the_wrong_shape(X):
    metric = random_metric()
    np.testing.assert_allclose(metric.transform(X.tolist()), metric.transform(X))
    np.testing.assert_allclose(metric.pairwise(X.tolist()), metric.pairwise(X), atol=1e-7)
    for wrong in (X[:, :3], X[0]):
        with pytest.raises(ValueError, match=r"X must have shape \(n_samples, 7\)"):
            metric.transform(wrong)
        with pytest.raises(ValueError, match=r"Y must have shape \(n_samples, 7\)"):
            metric.pair_distance(X, wrong)
    with pytest.raises(ValueError, match="X has 12 rows and Y has 5"):
        metric.pair_distance(X, X[:5])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_distances_of_any_scale(dtype, make, scale):
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.standard_normal((3, 2)))[0].T
    metric = MahalanobisMetric(3, scale, directions, np.array([1.0, 2.0]))
    X, Y = rng.standard_normal((2, 5, 3)).astype(dtype)
    for exponent in (-100, 100) if dtype == np.float32 else (-600, 600):
        unit = 2.0**exponent
        far_X, far_Y = make((X * unit).astype(dtype)), make((Y * unit).astype(dtype))
        expected = metric.pair_distance(X.astype(float), Y.astype(float))
        np.testing.assert_allclose(metric.pair_distance(far_X, far_Y) / unit, expected, rtol=1e-5)
        one = metric(X[0] * unit, Y[0] * unit)
        np.testing.assert_allclose(one / unit, expected[0], rtol=1e-5)
        expected = metric.pairwise(X.astype(float), Y.astype(float))
        np.testing.assert_allclose(metric.pairwise(far_X, far_Y) / unit, expected, rtol=1e-5)


def test_distances_to_missing_values_are_missing():
    metric = MahalanobisMetric(2)
    assert np.isnan(metric([np.nan, 0], [1, 2]))
    np.testing.assert_equal(
        metric.pair_distance([[0, 0], [0, np.nan]], [[3, 4], [0, 0]]), [5, np.nan]
    )
