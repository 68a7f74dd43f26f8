"""The index of vectors: exact neighbours, both sides of a metric, ids, backends, bad input."""

import importlib.util
import pickle
import re

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from skdml import GMMLTransformer, LocalGMMLRanker, NeighborhoodGerrymandering
from skdml.asymmetric import AsymmetricMetricClassifier
from skdml.search import VectorIndex
from skdml.search._backends import BACKENDS

APPROXIMATE = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            importlib.util.find_spec(name) is None, reason=f"{name} is not installed"
        ),
    )
    for name in BACKENDS
]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 300)
    return rng.normal(size=(300, 6)) + 2 * np.eye(4, 6)[y], y


@pytest.fixture(scope="module")
def metric(data):
    return GMMLTransformer(geodesic=0.5).fit(*data)


def brute_force(queries, rows, k):
    D = np.linalg.norm(queries[:, None] - rows[None], axis=2)
    order = np.argsort(D, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(D, order, axis=1), order


def test_neighbours_are_those_of_the_learned_metric(data, metric):
    X, _ = data
    distances, ids = VectorIndex(metric).fit(X).query(X[:50], 7)
    D = np.array([metric.pair_distance(np.stack([np.tile(x, (300, 1)), X], 1)) for x in X[:50]])
    np.testing.assert_array_equal(ids, np.argsort(D, axis=1, kind="stable")[:, :7])
    np.testing.assert_allclose(distances, np.sort(D, axis=1)[:, :7], rtol=1e-4, atol=1e-5)
    assert distances.dtype == np.float64


def test_without_a_metric_vectors_are_taken_as_they_come(data):
    X = data[0].astype(np.float32)
    expected = NearestNeighbors(n_neighbors=5).fit(X).kneighbors(X)
    distances, ids = VectorIndex().fit(X).query(X, 5)
    np.testing.assert_array_equal(ids, expected[1])
    np.testing.assert_allclose(distances, expected[0], rtol=1e-5, atol=1e-6)


def test_a_cosine_learner_is_searched_by_cosine(data):
    X, y = data
    metric = GMMLTransformer(geodesic=0.5, metric="cosine").fit(X, y)
    Z = metric.transform(X)
    np.testing.assert_allclose(np.linalg.norm(Z, axis=1), 1)
    _, ids = VectorIndex(metric).fit(X).query(X[:40], 4)
    np.testing.assert_array_equal(ids, np.argsort(-Z[:40] @ Z.T, axis=1, kind="stable")[:, :4])


def test_an_asymmetric_metric_puts_its_database_side_in(data):
    X, y = data
    metric = AsymmetricMetricClassifier(max_iter=3, random_state=0).fit(X, y)
    metric.query_components_ = metric.query_components_ * [1, 2, 3, 4, 5, 6]
    distances, ids = VectorIndex(metric).fit(X).query(X[:30], 3)
    expected = brute_force(metric.transform(X[:30]), metric.transform_database(X), 3)
    np.testing.assert_array_equal(ids, expected[1])
    np.testing.assert_allclose(distances, expected[0], rtol=1e-4, atol=1e-5)
    assert (expected[1] != brute_force(*[metric.transform(X)] * 2, 3)[1][:30]).any()


@pytest.mark.parametrize("backend", ["exact", "Brute", *APPROXIMATE])
def test_rows_that_are_added_are_found(data, metric, backend):
    X, _ = data
    index = VectorIndex(metric, backend).add(X[:100])
    index.query(X[:1], 1)  # so that the index is built before the others come
    index.add(X[100:250]).add(X[250:], ids=np.arange(1000, 1050))
    assert len(index) == 300
    _, ids = index.query(X, 1)
    expected = np.r_[:250, 1000:1050]
    assert np.mean(ids[:, 0] == expected) > 0.99
    again = VectorIndex(metric, backend).fit(X, ids=expected)
    np.testing.assert_array_equal(again.ids_, index.ids_)
    np.testing.assert_array_equal(again.vectors_, index.vectors_)


@pytest.mark.parametrize("backend", APPROXIMATE)
def test_a_backend_finds_what_exact_search_finds(data, metric, backend):
    X, _ = data
    exact = VectorIndex(metric).fit(X)
    index = VectorIndex(metric, backend).fit(X)
    for k in (1, 10, 100):
        distances, ids = index.query(X[:60], k)
        expected = exact.query(X[:60], k)
        same = ids == expected[1]
        assert same.mean() > 0.9
        np.testing.assert_array_equal(distances[same], expected[0][same])
        assert (np.diff(distances) >= 0).all()
        assert 0.9 < index.recall(X[:60], k) <= 1


@pytest.mark.parametrize("backend", APPROXIMATE)
def test_all_rows_can_be_asked_for(backend):
    X = np.random.default_rng(2).normal(size=(40, 3))
    _, ids = VectorIndex(backend=backend).fit(X).query(X[:5], 40)
    np.testing.assert_array_equal(np.sort(ids, axis=1), np.tile(np.arange(40), (5, 1)))


@pytest.mark.parametrize("backend", APPROXIMATE)
def test_options_reach_the_backend(backend):
    X = np.random.default_rng(1).normal(size=(3000, 16))
    poor = {
        "faiss": {"factory": "IVF64,Flat"},
        "hnswlib": {"M": 2, "ef_construction": 2, "ef": 1},
        "usearch": {"connectivity": 2, "expansion_add": 1, "expansion_search": 1},
    }
    index = VectorIndex(backend=backend, options=poor[backend]).fit(X)
    assert index.recall(X[:200] + 0.1, 5) < VectorIndex(backend=backend).fit(X).recall(
        X[:200] + 0.1, 5
    )


class Brute:
    """A backend that needs no library; those below it miss neighbours."""

    defaults: dict = {}

    def __init__(self, n_columns, options):
        self.vectors = np.empty((0, n_columns), dtype=np.float32)

    def add(self, vectors):
        self.vectors = np.concatenate([self.vectors, vectors])

    def search(self, queries, k):
        return brute_force(queries, self.vectors, k)[1]


class Half(Brute):
    def search(self, queries, k):
        found = super().search(queries, len(self.vectors))
        return np.hstack([found[:, : k // 2], found[:, -(k - k // 2) :]])


class Nothing(Brute):
    def search(self, queries, k):
        return np.full((len(queries), k), -1)


@pytest.fixture(autouse=True)
def more_backends(monkeypatch):
    for cls in (Brute, Half, Nothing):
        monkeypatch.setitem(BACKENDS, cls.__name__, cls)


def test_recall_is_the_share_of_exact_neighbours(data):
    X, _ = data
    assert VectorIndex(backend="Half").fit(X).recall(X[:20], 10) == 0.5
    assert VectorIndex(backend="Brute").fit(X).recall(X[:20], 10) == 1
    assert VectorIndex().fit(X).recall(X[:20], 10) == 1


def test_queries_with_too_few_results_are_answered_exactly(data):
    found = VectorIndex(backend="Nothing").fit(data[0]).query(data[0], 3)
    expected = VectorIndex().fit(data[0]).query(data[0], 3)
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[0], expected[0])


def test_ids_may_be_strings(data):
    X, _ = data
    index = VectorIndex().fit(X[:3], ids=["a", "b", "c"])
    index.add(X[3:5], ids=np.array(["longer", "e"], dtype=object))
    assert index.query(X[[3, 1]], 1)[1].ravel().tolist() == ["longer", "b"]


def test_pickle_and_repr(data, metric):
    X, _ = data
    index = VectorIndex(metric).fit(X)
    index.query(X, 2)
    again = pickle.loads(pickle.dumps(index))
    np.testing.assert_array_equal(again.query(X, 2)[0], index.query(X, 2)[0])
    assert "300 rows" in repr(again)


def test_a_missing_backend_says_how_to_install_it(monkeypatch, data):
    monkeypatch.setitem(__import__("sys").modules, "hnswlib", None)
    with pytest.raises(ImportError, match=re.escape('pip install "skdml[search]"')):
        VectorIndex(backend="hnswlib").fit(data[0]).query(data[0], 1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"backend": "annoy"}, ValueError, "backend must be one of 'exact', 'faiss'"),
        ({"options": {"ef": 3}}, ValueError, "options has 'ef', but 'exact' takes none"),
        ({"backend": "hnswlib", "options": {"m": 3}}, ValueError, "takes only M, ef_con"),
        ({"backend": ["exact"]}, ValueError, "backend must be one of"),
        ({"options": 3}, TypeError, "options must be a dict"),
        ({"metric": "cosine"}, TypeError, "metric must be a fitted learner"),
        ({"metric": GMMLTransformer}, TypeError, "metric must be a fitted learner"),
        ({"metric": LocalGMMLRanker()}, TypeError, "metric must be a fitted learner"),
        ({"metric": NeighborhoodGerrymandering()}, ValueError, "not fitted"),
    ],
)
def test_wrong_parameters(arguments, error, message):
    with pytest.raises(error, match=message):
        VectorIndex(**arguments)


def test_wrong_calls(data, metric):
    X, _ = data
    index = VectorIndex(metric)
    with pytest.raises(ValueError, match="empty: call fit or add"):
        index.query(X, 1)
    index.fit(X)
    for k, error in [(0, ValueError), (301, ValueError), (1.5, TypeError), (True, TypeError)]:
        with pytest.raises(error, match="k must be"):
            index.query(X, k)
    with pytest.raises(ValueError, match="features"):
        index.query(X[:, :3], 1)
    with pytest.raises(ValueError, match="X has 3 columns, but the index has 6"):
        VectorIndex().fit(X).query(X[:, :3], 1)
    with pytest.raises(ValueError, match=r"ids must be distinct.* 5 occurs twice"):
        index.add(X[:2], ids=[300, 5])
    with pytest.raises(ValueError, match=r"ids must have shape \(2,\)"):
        index.add(X[:2], ids=[300])
    with pytest.raises(TypeError, match="ids must be integers or strings"):
        index.add(X[:2], ids=[0.5, 1.5])
    with pytest.raises(TypeError, match="of the kind that is in the index"):
        index.add(X[:2], ids=["a", "b"])
    with pytest.raises(ValueError, match="too large for single precision"):
        VectorIndex().fit(1e300 * X)
    assert len(index) == 300
