"""Where the maps start."""

import numpy as np
import pytest

from skdml.asymmetric._maps import aligned_map, initial_map


@pytest.fixture
def turned():
    """Rows of three classes, and the same kind of rows turned at random, both centred."""
    rng = np.random.default_rng(0)
    y = np.arange(600) % 3
    X = rng.standard_normal((600, 4)) * [1.0, 1.0, 0.3, 0.1] + 6 * np.eye(3, 4)[y]
    X -= X.mean(axis=0)
    turn = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    return X[::2], y[::2], X[1::2] @ turn, y[1::2], turn


@pytest.mark.parametrize("init", ["pca", "identity"])
def test_rows_start_at_a_known_mean_distance(init, turned):
    X = turned[0]
    Z = X @ initial_map(init, X, 4).T
    assert np.mean(np.sum((Z[:, None] - Z) ** 2, axis=2)) == pytest.approx(7, rel=1e-3)


def test_one_component_may_be_a_boolean(turned):
    np.testing.assert_array_equal(
        initial_map("identity", turned[0], True), initial_map("identity", turned[0], 1)
    )


def test_aligned_queries_meet_the_rows_of_their_class(turned):
    X, y, queries, y_query, _ = turned
    V = initial_map("pca", X, 3)
    U = aligned_map(V, X, y, queries, y_query, k=5)
    assert U.shape == V.shape

    def misfit(query_map):
        Z, Z_query = X @ V.T, queries @ query_map.T
        gaps = [Z_query[y_query == c].mean(axis=0) - Z[y == c].mean(axis=0) for c in range(3)]
        return np.linalg.norm(gaps)

    assert misfit(U) < 0.4 * misfit(V)


def test_alignment_turns_queries_back(turned):
    """Without a word on which query belongs to which row."""
    X, y, queries, y_query, turn = turned
    V = initial_map("pca", X, 2)
    expected = queries @ turn.T @ V.T
    found = queries @ aligned_map(V, X, y, queries, y_query, k=5).T
    assert np.sum((found - expected) ** 2) < 0.05 * np.sum(expected**2)
    assert np.sum((queries @ V.T - expected) ** 2) > np.sum(expected**2)


def test_a_class_may_have_fewer_rows_than_neighbours(turned):
    X, y, queries, y_query, _ = turned
    few = np.append(np.flatnonzero(y != 2), np.flatnonzero(y == 2)[:2])
    U = aligned_map(np.eye(4), X[few], y[few], queries, y_query, k=5)
    assert np.isfinite(U).all()
