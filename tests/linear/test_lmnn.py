"""LMNN: its loss against loops and differences, the training, and what it learns."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_wine
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.preprocessing import StandardScaler

from skdml import LMNN
from skdml.linear import _base, _lmnn_solver
from skdml.linear._lmnn_solver import (
    Triplets,
    exact_loss,
    find_impostors,
    find_neighbors,
    list_triplets,
    scaled_start,
    train,
)


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def make_striped(n_rows=200, seed=0):
    """Rows of two classes that differ in the first of eight columns, which varies least."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_rows) % 2
    X = rng.standard_normal((n_rows, 8))
    X[:, 0] = 0.3 * X[:, 0] + 0.9 * y
    return X, y


def make_problem(n_rows=30, pull=0.3, n_neighbors=2):
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((n_rows, 4)), np.arange(n_rows) % 3
    return find_neighbors(X, y, n_neighbors, pull), rng.standard_normal((3, 4))


def slow_loss(problem, L):
    """The loss by its definition, triplet by triplet."""
    X, y = problem.rows, problem.codes
    loss = 0.0
    for i in range(len(X)):
        for j in problem.targets[i]:
            if j < 0:
                continue
            near = np.sum((L @ (X[i] - X[j])) ** 2)
            loss += problem.pull * near
            for other in np.flatnonzero(y != y[i]):
                far = np.sum((L @ (X[i] - X[other])) ** 2)
                loss += (1 - problem.pull) * max(0.0, 1 + near - far)
    return loss


class TestLoss:
    def test_is_that_of_the_definition(self):
        problem, L = make_problem()
        assert exact_loss(problem, L) == pytest.approx(slow_loss(problem, L), rel=1e-10)

    def test_of_rows_with_fewer_targets_is_that_of_the_definition(self):
        problem, L = make_problem(8, n_neighbors=3)
        assert (problem.targets < 0).any()
        assert exact_loss(problem, L) == pytest.approx(slow_loss(problem, L), rel=1e-10)

    def test_gradient_is_that_of_differences(self):
        problem, L = make_problem()
        triplets = list_triplets(problem, L, 2.0)
        gradient = triplets.loss(L)[1]
        for place in np.ndindex(L.shape):
            step = np.zeros_like(L)
            step[place] = 1e-6
            slope = (triplets.loss(L + step)[0] - triplets.loss(L - step)[0]) / 2e-6
            assert gradient[place] == pytest.approx(slope, rel=1e-5, abs=1e-5)

    def test_a_longer_list_changes_nothing(self):
        problem, L = make_problem()
        short, long = list_triplets(problem, L), list_triplets(problem, L, 3.0)
        assert len(long.rows) > len(short.rows)
        assert short.loss(L)[0] == pytest.approx(long.loss(L)[0], rel=1e-12)
        both = Triplets(problem, short.rows[::2], short.impostors[::2])
        both = both.joined(long.rows, long.impostors)
        np.testing.assert_array_equal(both.impostors, long.impostors)

    def test_impostors_are_found_in_blocks(self, monkeypatch):
        problem, L = make_problem()
        Z, radii = problem.rows @ L.T, np.full(30, 4.0)
        monkeypatch.setattr(_lmnn_solver, "_BLOCK_SIZE", 100)
        rows, impostors = find_impostors(Z, problem.codes, radii)
        near = euclidean_distances(Z, squared=True) < 4
        near &= problem.codes[:, None] != problem.codes
        np.testing.assert_array_equal([rows, impostors], np.nonzero(near))

    def test_of_very_many_impostors_the_nearest_are_kept(self, monkeypatch):
        problem, L = make_problem()
        Z = problem.rows @ L.T
        monkeypatch.setattr(_lmnn_solver, "_MOST_IMPOSTORS", 90)
        rows, impostors = find_impostors(Z, problem.codes, np.full(30, np.inf))
        np.testing.assert_array_equal(np.bincount(rows), 3)
        distances = euclidean_distances(Z)
        distances[problem.codes[:, None] == problem.codes] = np.inf
        np.testing.assert_array_equal(impostors[:3], np.sort(distances[0].argsort()[:3]))


class TestTraining:
    def test_start_has_the_best_scale(self):
        problem, L = make_problem()
        best = exact_loss(problem, scaled_start(problem, L, np.random.default_rng(0)))
        losses = [exact_loss(problem, scale * L) for scale in np.geomspace(0.1, 3, 30)]
        assert best < 1.15 * min(losses)

    def test_loss_never_rises_and_ends_where_no_direction_lowers_it(self):
        X, y = make_striped()
        problem = find_neighbors(X, y, 3)
        start = scaled_start(problem, np.eye(8), np.random.default_rng(0))
        found = train(problem, start, 500, 1e-6)
        losses = found.history["objective"]
        assert found.converged
        assert (np.diff(losses) <= 0).all()
        assert losses[0] == pytest.approx(exact_loss(problem, start))
        assert losses[-1] == pytest.approx(exact_loss(problem, found.map))
        rng = np.random.default_rng(0)
        for _ in range(20):
            step = 0.01 * np.linalg.norm(found.map) * rng.standard_normal((8, 8)) / 8
            assert exact_loss(problem, found.map + step) > losses[-1] * (1 - 1e-3)

    def test_impostors_that_were_not_listed_do_no_harm(self, monkeypatch):
        X, y = make_striped()
        problem = find_neighbors(X, y, 3)
        start = scaled_start(problem, np.eye(8), np.random.default_rng(0))
        expected = train(problem, start, 300, 1e-5).history["objective"][-1]
        monkeypatch.setattr(_lmnn_solver, "_SLACK", 1.0)
        monkeypatch.setattr(_lmnn_solver, "_STEPS", (50,))
        losses = train(problem, start, 300, 1e-5).history["objective"]
        assert (np.diff(losses) <= 0).all()
        assert losses[-1] < 1.02 * expected


class TestEstimator:
    def test_learns_the_column_that_tells_classes_apart(self):
        X, y = make_striped()
        model = LMNN(random_state=0).fit(X, y)
        A = model.get_mahalanobis_matrix()
        assert A[0, 0] > 3 * A.diagonal()[1:].max()
        assert model.n_passes_ > 0
        assert model.validation_scores_[model.n_passes_] == model.validation_scores_.max()

    def test_one_pass_is_the_problem_of_the_paper(self, wine):
        X, y = wine
        model = LMNN(n_passes=1, validation_fraction=None, random_state=0).fit(X, y)
        loss = exact_loss(find_neighbors(X, y, 3), model.components_)
        assert model.history_["objective"][-1] == pytest.approx(loss, rel=1e-6)
        assert set(model.history_["pass"]) == {1}
        assert not hasattr(model, "validation_scores_")

    def test_labels_that_say_nothing_leave_rows_as_they_are(self):
        X = np.random.default_rng(0).standard_normal((100, 5))
        for seed in range(20):
            y = np.random.default_rng(seed).integers(0, 2, 100)
            model = LMNN(random_state=0).fit(X, y)
            if model.n_passes_ == 0:
                break
        A = model.get_mahalanobis_matrix()
        np.testing.assert_allclose(A, A[0, 0] * np.eye(5), atol=1e-12 * A[0, 0])

    @pytest.mark.parametrize("n_components", [None, 2])
    def test_components_are_those_of_transform_and_of_distances(self, wine, n_components):
        X, y = wine
        model = LMNN(n_components=n_components, random_state=0).fit(X, y)
        Z = model.transform(X)
        assert Z.shape[1] == (n_components or X.shape[1])
        np.testing.assert_allclose(Z, X @ model.components_.T, atol=1e-10)
        pairs = np.stack([X[:5], X[5:10]], axis=1)
        expected = np.linalg.norm(Z[:5] - Z[5:10], axis=1)
        np.testing.assert_allclose(model.pair_distance(pairs), expected)

    def test_more_features_than_rows_are_learned_in_their_span(self):
        X, y = make_striped(60)
        basis = np.linalg.qr(np.random.default_rng(0).standard_normal((100, 8)))[0]
        wide = LMNN(random_state=0).fit(X @ basis.T, y)
        narrow = LMNN(random_state=0).fit(X, y)
        expected = euclidean_distances(narrow.transform(X))
        actual = euclidean_distances(wide.transform(X @ basis.T))
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)
        assert wide.metric_.rank <= 8

    def test_sparse_rows_give_the_same_as_dense_ones(self, wine):
        X, y = wine
        X = np.where(X > 0, X, 0.0)
        dense = LMNN(random_state=0).fit(X, y).transform(X)
        rows = sparse.csr_array(X)
        np.testing.assert_allclose(LMNN(random_state=0).fit(rows, y).transform(rows), dense)

    def test_of_many_rows_some_are_drawn(self, wine, monkeypatch):
        X, y = wine
        monkeypatch.setattr(_base, "_MOST_ROWS", 90)
        model = LMNN(n_passes=1, random_state=0).fit(X, y)
        assert model.transform(X).shape == X.shape

    def test_errors_name_the_parameter(self, wine):
        X, y = wine
        with pytest.raises(ValueError, match="n_components=20 is more than the 13 features"):
            LMNN(n_components=20).fit(X, y)
        with pytest.raises(ValueError, match="n_components=12 is more than the 9 dimensions"):
            LMNN(n_components=12).fit(X[:60:6], np.arange(10) % 2)
        with pytest.raises(ValueError, match="y has no class with two"):
            LMNN().fit(X[:10], np.arange(10))
