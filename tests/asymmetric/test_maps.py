"""Gradients against finite differences, and equations of the notes that do not hold."""

import numpy as np
import pytest

from skdml.asymmetric._maps import (
    LinearMaps,
    Pairs,
    norm_gradients,
    norm_of_w,
    pair_gradients,
)


@pytest.fixture
def maps():
    rng = np.random.default_rng(0)
    return rng.standard_normal((3, 5)), rng.standard_normal((3, 5))


@pytest.fixture
def rows():
    rng = np.random.default_rng(1)
    return rng.standard_normal((4, 5)), rng.standard_normal((6, 5))


def finite_differences(function, A, step=1e-6):
    gradient = np.empty_like(A)
    for entry in np.ndindex(A.shape):
        change = np.zeros_like(A)
        change[entry] = step
        gradient[entry] = (function(A + change) - function(A - change)) / (2 * step)
    return gradient


def w_matrix(U, V):
    return np.block([[U.T @ U, -U.T @ V], [-V.T @ U, V.T @ V]])


def squared_distance(U, V, x, z):
    both = np.concatenate([x, z])
    return both @ w_matrix(U, V) @ both


def weighted_sum(U, V, queries, database, pairs):
    return sum(
        weight * np.sum((U @ queries[q] - V @ database[r]) ** 2)
        for q, r, weight in zip(pairs.query, pairs.row, pairs.weight, strict=True)
    )


def random_pairs():
    rng = np.random.default_rng(2)
    return Pairs(rng.integers(4, size=9), rng.integers(6, size=9), rng.standard_normal(9))


def test_distance_is_the_quadratic_form_of_w(maps, rows):
    U, V = maps
    x, z = rows[0][0], rows[1][0]
    assert squared_distance(U, V, x, z) == pytest.approx(np.sum((U @ x - V @ z) ** 2))


def test_norm_of_w(maps):
    assert norm_of_w(*maps) == pytest.approx(np.linalg.norm(w_matrix(*maps)))


def test_norm_gradients(maps):
    U, V = maps
    by_U, by_V = norm_gradients(U, V)
    np.testing.assert_allclose(by_U, finite_differences(lambda A: norm_of_w(A, V), U), rtol=1e-6)
    np.testing.assert_allclose(by_V, finite_differences(lambda A: norm_of_w(U, A), V), rtol=1e-6)


def test_norm_gradient_of_zero_maps_is_zero():
    by_U, by_V = norm_gradients(np.zeros((2, 3)), np.zeros((2, 3)))
    assert not by_U.any()
    assert not by_V.any()


def test_pair_gradients(maps, rows):
    U, V = maps
    pairs = random_pairs()
    by_U, by_V = pair_gradients(U, V, *rows, pairs)
    expected = finite_differences(lambda A: weighted_sum(A, V, *rows, pairs), U)
    np.testing.assert_allclose(by_U, expected, rtol=1e-6, atol=1e-6)
    expected = finite_differences(lambda A: weighted_sum(U, A, *rows, pairs), V)
    np.testing.assert_allclose(by_V, expected, rtol=1e-6, atol=1e-6)


class TestNotes:
    """The equations as printed in the notes."""

    def test_equations_9_and_10_hold(self, maps, rows):
        U, V = maps
        x, database = rows[0][0], rows[1]
        by_U = -2 * sum(U @ np.outer(x, x) - np.outer(V @ z, x) for z in database)
        by_V = -2 * sum(V @ np.outer(z, z) - np.outer(U @ x, z) for z in database)
        # S is minus the sum of squared distances
        similarity = Pairs(np.zeros(6, dtype=int), np.arange(6), np.full(6, -1.0))
        ours = pair_gradients(U, V, *rows, similarity)
        np.testing.assert_allclose(by_U, ours[0], rtol=1e-10)
        np.testing.assert_allclose(by_V, ours[1], rtol=1e-10)

    @pytest.mark.parametrize("power", [1, 2])
    def test_equations_11_and_12_are_no_gradients_at_any_scale(self, maps, power):
        U, V = maps
        printed = {
            "U": 2 * U @ U.T @ U + 4 * V @ V.T @ U,
            "V": 2 * V @ V.T @ V + 4 * U @ U.T @ V,
        }
        true = {
            "U": finite_differences(lambda A: norm_of_w(A, V) ** power, U),
            "V": finite_differences(lambda A: norm_of_w(U, A) ** power, V),
        }
        for name, found in printed.items():
            # the multiple of the printed gradient that is nearest to the true one
            best = np.sum(found * true[name]) / np.sum(found**2) * found
            error = np.linalg.norm(best - true[name]) / np.linalg.norm(true[name])
            assert error > 0.05, f"the gradient by {name} is right up to a factor"

    def test_squared_norm_has_a_factor_of_four_for_both_terms(self, maps):
        U, V = maps
        expected = finite_differences(lambda A: norm_of_w(A, V) ** 2, U)
        np.testing.assert_allclose(4 * (U @ U.T + V @ V.T) @ U, expected, rtol=1e-6)


def test_a_step_goes_down(maps, rows):
    pairs, penalty = random_pairs(), 0.1
    pairs.weight = np.abs(pairs.weight)
    for symmetric in (False, True):
        U, V = maps
        learned = LinearMaps(U, U if symmetric else V, symmetric)

        def value(learned):
            return weighted_sum(learned.U, learned.V, *rows, pairs) + penalty * learned.penalty()

        before = value(learned)
        learned.step(*rows, pairs, penalty, 1e-3)
        assert value(learned) < before


def test_symmetric_maps_stay_equal_and_follow_the_sum_of_both_gradients(maps, rows):
    U, _ = maps
    pairs = random_pairs()
    learned = LinearMaps(U, U, symmetric=True)
    learned.step(*rows, pairs, 0.1, 1e-3)
    assert learned.U is learned.V
    total = finite_differences(
        lambda A: weighted_sum(A, A, *rows, pairs) + 0.1 * norm_of_w(A, A), U
    )
    # the first step of Adam has the sign of the gradient, and the length of the learning rate
    np.testing.assert_allclose(learned.U, U - 1e-3 * np.sign(total), atol=1e-6)
