"""Descent among matrices with orthonormal columns."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("skorch")

from skdml.semisupervised._stiefel import (
    conjugate_gradient,
    orthonormal,
    tangent,
)


@pytest.fixture
def start():
    return orthonormal(np.random.default_rng(0).standard_normal((8, 3)))


def test_nearest_orthonormal_matrix():
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((6, 3))
    nearest = orthonormal(matrix)
    np.testing.assert_allclose(nearest.T @ nearest, np.eye(3), atol=1e-12)
    for _ in range(20):
        other = np.linalg.qr(rng.standard_normal((6, 3)))[0]
        assert np.linalg.norm(matrix - nearest) <= np.linalg.norm(matrix - other)


def test_a_tangent_keeps_orthonormality_to_first_order(start):
    direction = tangent(start, np.random.default_rng(2).standard_normal(start.shape))
    np.testing.assert_allclose(start.T @ direction + direction.T @ start, 0, atol=1e-12)
    np.testing.assert_allclose(tangent(start, direction), direction)


def test_the_smallest_eigenvectors_are_found(start):
    A = np.diag([1.0, 2, 3, 10, 20, 30, 40, 50])
    values = []

    def objective(L):
        np.testing.assert_allclose(L.T @ L, np.eye(3), atol=1e-10)
        values.append(np.trace(L.T @ A @ L))
        return values[-1], 2 * A @ L

    L = conjugate_gradient(objective, start, max_iter=500)
    assert np.trace(L.T @ A @ L) == pytest.approx(6, rel=1e-8)
    np.testing.assert_allclose((L @ L.T)[:3, :3], np.eye(3), atol=1e-3)


def test_a_few_steps_go_down_and_a_minimum_stays(start):
    A = np.diag(np.arange(8.0))

    def objective(L):
        return float(np.trace(L.T @ A @ L)), 2 * A @ L

    before = objective(start)[0]
    assert objective(conjugate_gradient(objective, start, max_iter=3))[0] < before
    best = np.eye(8)[:, :3]
    np.testing.assert_array_equal(conjugate_gradient(objective, best), best)
