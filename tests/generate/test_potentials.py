"""Potentials, cells and plans against their definitions and against POT."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

ot = pytest.importorskip("ot")
pytest.importorskip("torch")

from skdml.generate._potentials import (  # noqa: E402
    ascend,
    assign_cells,
    cell_masses,
    cell_plan,
    costs_between,
    dual_value,
    exact_plan,
    soft_potentials,
    transport_gradient,
)


def make_costs(n_critics=4, n_rows=32, n_points=24, n_features=3, power=2, seed=0):
    """Costs of the rows of each critic to the same points, which are elsewhere."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n_critics, n_rows, n_features))
    points = rng.uniform(-1, 2, size=(n_points, n_features))
    return np.linalg.norm(rows[:, :, None] - points, axis=-1) ** power


def optimum(costs):
    n_rows, n_points = costs.shape
    return ot.emd2(np.full(n_rows, 1 / n_rows), np.full(n_points, 1 / n_points), costs)


def ascend_from_own(costs, n_steps):
    """The shared potentials, with the critics' blocks of costs in a list."""
    starts = np.stack([soft_potentials(block) for block in costs])

    def masses(potentials):
        return np.mean([cell_masses(block, potentials) for block in costs], axis=0)

    return ascend(masses, starts, n_steps)


def test_cells_are_those_of_the_definition():
    costs = make_costs()[0]
    potentials = np.random.default_rng(1).standard_normal(costs.shape[1])
    masses, value = np.zeros(costs.shape[1]), potentials.mean()
    for i, row in enumerate(costs):
        best = min(range(len(row)), key=lambda j: row[j] - potentials[j])
        assert assign_cells(costs, potentials)[i] == best
        masses[best] += costs.shape[1] / len(costs)
        value += (row[best] - potentials[best]) / len(costs)
    np.testing.assert_allclose(cell_masses(costs, potentials), masses)
    assert dual_value(costs, potentials) == pytest.approx(value)
    plan = cell_plan(costs, potentials)
    np.testing.assert_allclose(plan.sum(axis=1), 1 / len(costs))
    np.testing.assert_allclose(plan.sum(axis=0) * costs.shape[1], masses)


def test_exact_plan_and_its_potentials_agree():
    costs = make_costs(n_rows=20, n_points=13)[0]
    plan, potentials = exact_plan(costs)
    np.testing.assert_allclose(plan.sum(axis=0), 1 / 13)
    np.testing.assert_allclose(plan.sum(axis=1), 1 / 20)
    assert (plan * costs).sum() == pytest.approx(optimum(costs))
    assert dual_value(costs, potentials) == pytest.approx(optimum(costs))
    assert potentials.mean() == pytest.approx(0)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_soft_potentials_are_near_the_best(power, seed):
    costs = make_costs(power=power, seed=seed)[0]
    potentials = soft_potentials(costs)
    assert potentials.mean() == pytest.approx(0)
    assert dual_value(costs, potentials) > 0.95 * optimum(costs)
    assert dual_value(costs, np.zeros(costs.shape[1])) < 0.9 * optimum(costs)


def test_soft_potentials_of_strange_costs():
    np.testing.assert_array_equal(soft_potentials(np.zeros((3, 4))), 0)
    costs = make_costs()[0]
    for strange in (1e6 * costs, 1e-12 * costs):
        assert dual_value(strange, soft_potentials(strange)) > 0.95 * optimum(strange)
    costs[:, 3] += 1e8  # a point far from all rows
    costs[5] += 1e8
    assert np.isfinite(soft_potentials(costs)).all()


def test_no_potentials_exceed_the_transport_cost():
    costs, rng = make_costs()[0], np.random.default_rng(0)
    for scale in (0.0, 0.1, 1.0, 10.0):
        potentials = scale * rng.standard_normal(costs.shape[1])
        assert dual_value(costs, potentials) <= optimum(costs) + 1e-12


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_ascent_reaches_the_optimum_of_all_rows_together(power, seed):
    costs = make_costs(power=power, seed=seed)
    exact = optimum(np.concatenate(costs))
    assert dual_value(np.concatenate(costs), ascend_from_own(costs, 5)) >= 0.97 * exact
    assert dual_value(np.concatenate(costs), ascend_from_own(costs, 100)) >= 0.99 * exact


def test_every_step_of_the_ascent_follows_the_gradient_of_the_dual_value():
    costs = make_costs()[0]
    potentials = np.random.default_rng(0).standard_normal(costs.shape[1])
    step, n_points = 1e-6, costs.shape[1]
    for j in range(n_points):
        moved = potentials + step * (np.arange(n_points) == j)
        slope = (dual_value(costs, moved) - dual_value(costs, potentials)) / step
        expected = (1 - cell_masses(costs, potentials)[j]) / n_points
        assert slope == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("overwrite", [False, True])
def test_overwriting_the_weights_by_the_masses_stalls_below_the_optimum(overwrite):
    """Algorithm 5 of the thesis overwrites p by N; with p uniform the optimum is reached."""
    costs = make_costs()[0]
    potentials, weights = np.zeros(costs.shape[1]), 1
    for number in range(1, 2000):
        masses = cell_masses(costs, potentials)
        potentials = potentials + 0.2 / np.sqrt(number) * (weights - masses)
        weights = masses if overwrite else 1
    share = dual_value(costs, potentials) / optimum(costs)
    assert share < 0.95 if overwrite else share > 0.99


def test_shared_potentials_are_one_transport_and_separate_ones_a_mean_of_several():
    costs = make_costs()
    shared = optimum(np.concatenate(costs))
    separate = np.mean([optimum(block) for block in costs])
    assert shared < 0.95 * separate
    shared_potentials = ascend_from_own(costs, 300)
    assert np.mean([dual_value(block, shared_potentials) for block in costs]) == pytest.approx(
        shared, rel=0.01
    )
    own = [dual_value(block, exact_plan(block)[1]) for block in costs]
    assert np.mean(own) == pytest.approx(separate)


@pytest.mark.parametrize("p", [1, 2])
def test_gradient_with_the_plan_held_fixed_is_that_of_the_optimal_cost(p):
    rng = np.random.default_rng(0)
    both = [rng.standard_normal((9, 2)), rng.standard_normal((6, 2))]
    costs = costs_between(*both, p)
    np.testing.assert_allclose(costs, cdist(*both) ** p)
    plan = exact_plan(costs)[0]
    found = [
        transport_gradient(*both, costs, plan, p),
        transport_gradient(*both[::-1], costs.T, plan.T, p),
    ]
    step = 1e-6
    for side, gradient in enumerate(found):
        for place in np.ndindex(gradient.shape):
            ends = []
            for sign in (1, -1):
                moved = [both[0].copy(), both[1].copy()]
                moved[side][place] += sign * step
                ends.append(optimum(costs_between(*moved, p)))
            slope = (ends[0] - ends[1]) / (2 * step)
            assert gradient[place] == pytest.approx(slope, rel=1e-4, abs=1e-7)


def test_starts_beyond_all_numbers_leak_no_warning():
    starts = np.array([[1e200, -1e200], [3e200, 0.0]])
    with np.errstate(all="raise"):
        ascend(lambda potentials: np.ones(2), starts, 2)
