"""NeighborhoodGerrymandering: what it learns, what it leaves alone and what it refuses."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_wine
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from skdml import AsymmetricMetricClassifier, NeighborhoodGerrymandering
from skdml.asymmetric._asymmetric_solver import Problem
from skdml.asymmetric._maps import LinearMaps
from skdml.linear import _base, _gerrymandering


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def make_striped(n_rows=300, seed=0):
    """Rows of two classes that differ in the first of ten columns, which varies least."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_rows) % 2
    X = rng.standard_normal((n_rows, 10))
    X[:, 0] = 0.3 * X[:, 0] + 0.8 * y
    return X, y


def fit(X, y, **params):
    return NeighborhoodGerrymandering(**{"max_iter": 4, "random_state": 0, **params}).fit(X, y)


class TestAgreement:
    @pytest.mark.parametrize("n_components", [None, 3])
    def test_is_the_symmetric_classifier_as_a_transformer(self, wine, n_components, monkeypatch):
        X, y = wine
        # From the rows alone, without the start from ITML.
        monkeypatch.setattr(NeighborhoodGerrymandering, "_find_starts", lambda *given: [])
        model = fit(X, y, n_components=n_components)
        other = AsymmetricMetricClassifier(
            symmetric=True, n_components=n_components, max_iter=4, random_state=0
        ).fit(X, y)
        for name in ("objective", "validation"):
            np.testing.assert_allclose(model.history_[name], other.history_[name], rtol=1e-6)
        ours, theirs = model.transform(X), other.transform(X)
        ratio = np.linalg.norm(ours - ours.mean(axis=0)) / np.linalg.norm(theirs)
        np.testing.assert_allclose(
            euclidean_distances(ours), ratio * euclidean_distances(theirs), rtol=1e-5, atol=1e-6
        )

    def test_more_features_than_rows_are_learned_in_their_span(self):
        X, y = make_striped(60)
        basis = np.linalg.qr(np.random.default_rng(0).standard_normal((100, 10)))[0]
        wide, narrow = fit(X @ basis.T, y), fit(X, y)
        starts = [model.history_["objective"][0] for model in (wide, narrow)]
        assert starts[0] == pytest.approx(starts[1])
        assert wide.history_["objective"][-1] < 0.6 * starts[0]
        assert wide.metric_.rank <= 10
        outside = np.linalg.qr(np.column_stack([basis, np.ones(100)]))[0][:, -1]
        assert wide.pair_distance([[outside, 0 * outside]]) == pytest.approx(1)

    def test_sparse_rows_give_the_same_as_dense_ones(self, wine):
        X, y = wine
        X = np.where(X > 0, X, 0.0)
        dense, rows = fit(X, y), sparse.csr_array(X)
        np.testing.assert_allclose(fit(rows, y).transform(rows), dense.transform(X), atol=1e-6)


class TestMetric:
    def test_transform_gives_the_distances_of_the_metric(self, wine):
        X, y = wine
        for n_components in (None, 2):
            model = fit(X, y, n_components=n_components)
            Z = model.transform(X)
            assert Z.shape[1] == (n_components or X.shape[1])
            np.testing.assert_allclose(Z, X @ model.components_.T, atol=1e-10)
            np.testing.assert_allclose(
                model.get_metric().pairwise(X), euclidean_distances(Z), atol=1e-6
            )
            pairs = np.array([[0, 1], [5, 100], [7, 7]])
            expected = np.linalg.norm(Z[pairs[:, 0]] - Z[pairs[:, 1]], axis=1)
            np.testing.assert_allclose(model.pair_distance(pairs, X=X), expected, atol=1e-7)
            A = model.get_mahalanobis_matrix()
            np.testing.assert_allclose(A, model.components_.T @ model.components_, atol=1e-10)

    def test_finds_the_column_that_tells_classes_apart(self):
        model = fit(*make_striped())
        assert np.diagonal(model.get_mahalanobis_matrix()).argmax() == 0

    def test_is_better_than_the_input_on_new_rows(self):
        (X, y), (X_new, y_new) = make_striped(), make_striped(seed=1)
        model = fit(X, y)
        plain = KNeighborsClassifier().fit(X, y).score(X_new, y_new)
        learned = KNeighborsClassifier().fit(model.transform(X), y)
        assert learned.score(model.transform(X_new), y_new) > plain + 0.05


class TestDoNoHarm:
    def test_the_start_is_the_input(self, wine):
        X, y = wine
        model = fit(X, y, max_iter=1, lr=1e-12, validation_fraction=None)
        np.testing.assert_allclose(model.transform(X), X, atol=1e-8)

    @pytest.mark.parametrize("seed", range(3))
    def test_labels_at_random_leave_the_input_as_it_is(self, seed):
        rng = np.random.default_rng(seed)
        X, y = rng.standard_normal((300, 6)), rng.integers(2, size=300)
        model = fit(X, y, max_iter=8, random_state=seed)
        np.testing.assert_allclose(model.transform(X), X)
        assert model.n_iter_ > 0

    def test_without_held_out_rows_the_last_metric_is_kept(self):
        rng = np.random.default_rng(0)
        X, y = rng.standard_normal((300, 6)), rng.integers(2, size=300)
        model = fit(X, y, validation_fraction=None)
        assert not np.allclose(model.get_mahalanobis_matrix(), np.eye(6), atol=0.01)


class TestManyRows:
    def test_queries_that_are_some_of_the_rows_do_not_find_themselves(self):
        rng = np.random.default_rng(0)
        X, y = rng.standard_normal((40, 3)), np.arange(40) % 2
        maps, shared = LinearMaps(np.eye(3), np.eye(3), symmetric=True), (1 - np.eye(2), 3)
        some = np.array([3, 8, 21, 30])
        whole = Problem(X, y, X, y, True, ~np.isin(np.arange(40), some), *shared)
        part = Problem(X[some], y[some], X, y, True, np.zeros(4, bool), *shared, own_rows=some)
        found = part.search(maps, np.random.default_rng(0))
        expected = whole.search(maps, np.random.default_rng(0))
        assert found.loss == pytest.approx(expected.loss)
        assert not (found.candidates == some[:, None]).any()

    def test_some_of_the_rows_teach_what_all_teach(self, monkeypatch):
        (X, y), (X_new, y_new) = make_striped(600), make_striped(600, seed=1)
        whole = fit(X, y)
        monkeypatch.setattr(_gerrymandering, "_MOST_QUERIES", 200)
        monkeypatch.setattr(_base, "_MOST_ROWS", 400)
        part = fit(X, y)
        scores = [
            KNeighborsClassifier().fit(model.transform(X), y).score(model.transform(X_new), y_new)
            for model in (whole, part)
        ]
        assert scores[1] > scores[0] - 0.03

    def test_a_class_that_is_not_drawn_is_no_error(self, monkeypatch):
        X, y = make_striped(200)
        y = np.where(np.arange(200) == 100, 2, y * 3)
        monkeypatch.setattr(_base, "_MOST_ROWS", 50)
        assert fit(X, y).metric_.n_features == 10


class TestErrors:
    @pytest.mark.parametrize(
        ("params", "message"),
        [
            ({"n_neighbors": 0}, "'n_neighbors' parameter"),
            ({"n_neighbors": 72}, "n_neighbors=72 is larger than every class of y: .* 71 rows"),
            ({"n_components": 14}, "n_components=14 is more than the 13 features of X"),
            ({"C": 0}, "'C' parameter"),
            ({"max_iter": 0}, "'max_iter' parameter"),
            ({"lr": 0.0}, "'lr' parameter"),
            ({"lr": 1e300}, "smaller lr"),
            ({"tol": -1}, "'tol' parameter"),
            ({"validation_fraction": 1.0}, "'validation_fraction' parameter"),
        ],
    )
    def test_errors_name_the_parameter(self, wine, params, message):
        with pytest.raises(ValueError, match=message):
            fit(*wine, **params)

    def test_more_components_than_the_rows_span(self, wine):
        X, y = wine
        with pytest.raises(ValueError, match="n_components=9 is more than the 7 dimensions"):
            fit(X[::23], y[::23], n_components=9, n_neighbors=1)

    def test_labels_are_needed(self, wine):
        with pytest.raises(ValueError, match="NeighborhoodGerrymandering requires y"):
            fit(wine[0], None)
        with pytest.raises(ValueError, match="y has only one class"):
            fit(wine[0], np.zeros(len(wine[0])))

    def test_no_query_that_its_class_could_win(self):
        with pytest.raises(ValueError, match="n_neighbors=2: no training query"):
            fit(*make_striped(4), n_neighbors=2)


def test_a_start_from_itml_is_chosen_where_it_is_better():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((240, 8)) * ([1.0] + [30.0] * 7)
    y = (X[:, 0] > 0).astype(int) + (X[:, 0] > 0.7)
    model = NeighborhoodGerrymandering(max_iter=2, random_state=0).fit(X, y)
    alone = NeighborhoodGerrymandering(max_iter=2, random_state=0)
    alone._find_starts = lambda *given: []
    alone.fit(X, y)
    assert min(model.history_["validation"]) < min(alone.history_["validation"]) - 0.1
