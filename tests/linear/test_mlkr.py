"""MLKR: its error against loops and differences, and what it learns."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils import get_tags

from skdml import MLKR
from skdml.linear import _mlkr, _mlkr_solver
from skdml.linear._mlkr_solver import loss_and_gradient, scaled_start, train


def make_wave(n_rows=150, n_features=6, seed=0):
    """Rows of which the first column alone tells the target."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, n_features))
    return X, np.sin(2 * X[:, 0]) + 0.05 * rng.standard_normal(n_rows)


def slow_loss(L, X, y):
    """The error by its definition, row by row."""
    loss = 0.0
    for i in range(len(X)):
        others = np.arange(len(X)) != i
        kernel = np.exp(-np.sum(((X[others] - X[i]) @ L.T) ** 2, axis=1))
        loss += (kernel @ y[others] / kernel.sum() - y[i]) ** 2
    return loss


class TestLoss:
    @pytest.mark.parametrize("block_size", [2**17, 100])
    def test_is_that_of_the_definition(self, block_size, monkeypatch):
        monkeypatch.setattr(_mlkr_solver, "_BLOCK_SIZE", block_size)
        X, y = make_wave(40)
        L = np.random.default_rng(0).standard_normal((3, 6))
        assert loss_and_gradient(L, X, y)[0] == pytest.approx(slow_loss(L, X, y), rel=1e-10)

    @pytest.mark.parametrize("block_size", [2**17, 100])
    def test_gradient_is_that_of_differences(self, block_size, monkeypatch):
        monkeypatch.setattr(_mlkr_solver, "_BLOCK_SIZE", block_size)
        X, y = make_wave(40)
        L = 0.5 * np.random.default_rng(0).standard_normal((3, 6))
        gradient = loss_and_gradient(L, X, y)[1]
        for place in np.ndindex(L.shape):
            step = np.zeros_like(L)
            step[place] = 1e-5
            slope = (slow_loss(L + step, X, y) - slow_loss(L - step, X, y)) / 2e-5
            assert gradient[place] == pytest.approx(slope, rel=1e-5, abs=1e-6)

    def test_of_a_narrow_kernel_is_that_of_the_nearest_row(self):
        X, y = make_wave(40)
        loss, gradient = loss_and_gradient(1e4 * np.eye(6), X, y)
        distances = euclidean_distances(X)
        np.fill_diagonal(distances, np.inf)
        assert loss == pytest.approx(np.sum((y[distances.argmin(axis=1)] - y) ** 2))
        assert np.isfinite(gradient).all()


class TestTraining:
    def test_start_has_the_best_width(self):
        X, y = make_wave()
        best = slow_loss(scaled_start(np.eye(6), X, y, np.random.default_rng(0)), X, y)
        losses = [slow_loss(scale * np.eye(6), X, y) for scale in np.geomspace(0.1, 10, 15)]
        assert best < 1.1 * min(losses)

    def test_ends_where_the_gradient_is_zero(self):
        X, y = make_wave(80, 3)
        found = train(X, y, np.eye(3), 1000, 1e-14)
        assert found.converged
        assert (np.diff(found.history["loss"]) <= 0).all()
        first = np.linalg.norm(loss_and_gradient(np.eye(3), X, y)[1])
        assert np.linalg.norm(loss_and_gradient(found.map, X, y)[1]) < 1e-3 * first


class TestEstimator:
    def test_learns_the_column_that_tells_the_target(self):
        X, y = make_wave()
        model = MLKR(random_state=0).fit(X, y)
        A = model.get_mahalanobis_matrix()
        assert A[0, 0] > 20 * A.diagonal()[1:].max()
        assert model.history_["loss"][-1] < 0.2 * model.history_["loss"][0]
        # The kernel is that of the learned distances, the loss in units of the variance.
        loss = slow_loss(model.components_, X, y) / np.sum((y - y.mean()) ** 2)
        assert model.history_["loss"][-1] == pytest.approx(loss, rel=1e-6)

    def test_unit_and_origin_of_targets_change_nothing(self):
        X, y = make_wave()
        A = MLKR(random_state=0).fit(X, y).get_mahalanobis_matrix()
        B = MLKR(random_state=0).fit(X, 1e6 - 1e3 * y).get_mahalanobis_matrix()
        np.testing.assert_allclose(B, A, atol=1e-2 * A.max())

    def test_components_and_wide_rows(self):
        X, y = make_wave(60)
        basis = np.linalg.qr(np.random.default_rng(0).standard_normal((100, 6)))[0]
        wide = MLKR(n_components=2, random_state=0).fit(X @ basis.T, y)
        narrow = MLKR(n_components=2, random_state=0).fit(X, y)
        assert wide.transform(X @ basis.T).shape == (60, 2)
        assert wide.history_["loss"][-1] == pytest.approx(narrow.history_["loss"][-1], rel=0.05)

    def test_target_is_a_number(self):
        X, _ = make_wave(30)
        tags = get_tags(MLKR())
        assert tags.regressor_tags is not None
        assert tags.target_tags.required
        with pytest.raises(TypeError, match="y must hold numbers"):
            MLKR().fit(X, np.array(["a", "b"] * 15))
        with pytest.raises(ValueError, match="y is the same number for all rows"):
            MLKR().fit(X, np.ones(30))

    def test_of_many_rows_some_are_drawn(self, monkeypatch):
        monkeypatch.setattr(_mlkr, "_MOST_ROWS", 50)
        X, y = make_wave()
        assert MLKR(tol=0.1, random_state=0).fit(X, y).transform(X).shape == X.shape

    def test_warns_where_it_does_not_converge(self):
        with pytest.warns(ConvergenceWarning, match="max_iter=1"):
            MLKR(max_iter=1, random_state=0).fit(*make_wave())


def test_a_huge_tolerance_stops_at_once_without_a_warning():
    rng = np.random.RandomState(0)
    with np.errstate(over="raise"):
        model = MLKR(tol=1e300, random_state=0).fit(rng.randn(32, 5), rng.randn(32))
    assert model.n_iter_ <= 1
