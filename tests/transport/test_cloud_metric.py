"""The distance of rows as clouds: against exact transport, and inside searches."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

ot = pytest.importorskip("ot")

from skdml.metrics import map_at_r, recall_at_k  # noqa: E402
from skdml.transport import CloudMetric  # noqa: E402
from skdml.transport._cloud_metric import metric_of_rows  # noqa: E402

CLOUD = (4, 3)


def make_rows(n_rows=12, seed=0):
    rng = np.random.default_rng(seed)
    kinds = np.arange(n_rows) % 3
    clouds = rng.standard_normal((3, *CLOUD))[kinds] + 0.4 * rng.standard_normal((n_rows, *CLOUD))
    rows = rng.permuted(clouds, axis=1).reshape(n_rows, -1)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), kinds


def by_hand(u, v, p):
    clouds = [np.sqrt(CLOUD[0]) * np.reshape(row, CLOUD) for row in (u, v)]
    costs = ot.dist(*clouds, metric={1: "euclidean", 2: "sqeuclidean"}[p])
    return ot.emd2([], [], costs) ** (1 / p)


@pytest.mark.parametrize("p", [1, 2])
def test_distance_is_the_root_of_the_transport_cost(p):
    rows, _ = make_rows()
    exact = CloudMetric(CLOUD, p=p, solver="exact")
    near = metric_of_rows(rows, CLOUD, p=p, reg=0.02)
    for u, v in zip(rows[:6], rows[6:], strict=True):
        assert exact(u, v) == pytest.approx(by_hand(u, v, p))
        assert exact(u, v) <= np.linalg.norm(u - v) + 1e-12
        assert near(u, v) == pytest.approx(by_hand(u, v, p), rel=0.1)


@pytest.mark.parametrize("solver", ["sinkhorn", "exact"])
def test_distance_is_symmetric_and_zero_for_shuffled_points(solver):
    rows, _ = make_rows()
    metric = CloudMetric(CLOUD, 0.05, solver=solver)
    shuffled = rows.reshape(-1, *CLOUD)[:, ::-1].reshape(len(rows), -1)
    np.testing.assert_allclose(metric.pair_distance(rows, shuffled), 0, atol=1e-2)
    assert not metric.pair_distance(rows, rows).any()
    there, back = (metric.pair_distance(*sides) for sides in ((rows[1:], rows[:-1]),) * 2)
    np.testing.assert_allclose(there, back)
    # not exact: the iterations end at a marginal error of 1e-4
    np.testing.assert_allclose(there, metric.pair_distance(rows[:-1], rows[1:]), rtol=5e-3)


def test_entropy_is_in_the_scale_of_the_rows():
    rows, _ = make_rows()
    one, ten = (metric_of_rows(scale * rows, CLOUD) for scale in (1, 10))
    assert ten.eta == pytest.approx(100 * one.eta)
    assert ten(10 * rows[0], 10 * rows[1]) == pytest.approx(10 * one(rows[0], rows[1]))
    assert metric_of_rows(rows, CLOUD, reg=0.1).eta == pytest.approx(2 * one.eta)


def test_pairwise_is_transport_for_candidates_and_behind_them_euclidean():
    rows, _ = make_rows()
    metric = CloudMetric(CLOUD, solver="exact", n_candidates=5)
    found = metric.pairwise(rows[:4], rows)
    euclidean = np.linalg.norm(rows[:4, None] - rows, axis=2)
    for row in range(4):
        order = np.argsort(euclidean[row])
        near, far = order[:5], order[5:]
        wanted = [by_hand(rows[row], rows[other], 2) for other in near]
        np.testing.assert_allclose(found[row, near], wanted, atol=1e-7)
        assert (np.diff(found[row, far]) > 0).all()
        assert found[row, far].min() > found[row, near].max()
    every = replace(metric, n_candidates=None).pairwise(rows[:4], rows)
    wanted = [[by_hand(u, v, 2) for v in rows] for u in rows[:4]]
    np.testing.assert_allclose(every, wanted, atol=1e-7)


def test_searches_and_neighbours_use_it():
    rows, kinds = make_rows(30)
    metric = CloudMetric(CLOUD, solver="exact", n_candidates=None)
    distances = metric.pairwise(rows, rows)
    np.fill_diagonal(distances, np.inf)
    right = kinds[distances.argmin(axis=1)] == kinds
    assert recall_at_k(rows, kinds, metric=metric) == right.mean()
    # Points come in any order: transport does not mind, Euclidean distance does.
    assert map_at_r(rows, kinds, metric=metric) > map_at_r(rows, kinds) + 0.1
    knn = KNeighborsClassifier(1, metric=metric).fit(rows[:15], kinds[:15])
    nearest = metric.pairwise(rows[15:], rows[:15]).argmin(axis=1)
    np.testing.assert_array_equal(knn.predict(rows[15:]), kinds[nearest])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CloudMetric(CLOUD, eta=0.0), "eta must be a number above 0"),
        (lambda: CloudMetric(CLOUD, p=3), "p must be"),
        (lambda: CloudMetric(CLOUD, solver="simplex"), "solver must be"),
        (lambda: CloudMetric(CLOUD, n_candidates=0), "n_candidates must be"),
        (lambda: CloudMetric(CLOUD, n_candidates="all"), "n_candidates must be"),
        (lambda: CloudMetric(CLOUD, n_candidates=np.ones(2)), "n_candidates must be"),
        (lambda: CloudMetric(CLOUD)([1.0, 2.0], [1.0, 2.0]), "makes 12 columns, but A has 2"),
        (lambda: CloudMetric((2, 1)).pair_distance([[1, 2]], [[1, 2]] * 2), "as many rows"),
        (lambda: CloudMetric((2, 1)).pairwise([[1, 2]], [1, 2]), "Y: Expected 2D array"),
    ],
)
def test_wrong_parameters_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
