"""Inference against its definition: every set of k neighbours, one by one."""

import itertools

import numpy as np
import pytest

from skdml.asymmetric._neighbor_sets import infer_sets, vote_costs, winning_costs, winning_members


def brute_force(table, y, costs):
    """Return the costs of the targeted and of the loss-augmented set of one sample."""
    n_classes, k = table.shape
    labels, columns = np.nonzero(np.isfinite(table))
    sets = np.array(list(itertools.combinations(range(len(labels)), k)), dtype=int).reshape(-1, k)
    cost = table[labels, columns][sets].sum(axis=1)
    members = (labels[sets][:, :, None] == np.arange(n_classes)).sum(axis=1)
    wins = members == members.max(axis=1, keepdims=True)
    # of classes that are level, the one whose answer would cost most
    delta = np.where(wins, costs[y], 0).max(axis=1)
    won = wins[:, y] & (wins.sum(axis=1) == 1)
    return cost[won].min(initial=np.inf), (cost - delta).min(initial=np.inf)


def random_table(rng, n_classes, k, most_rows, ties):
    table = np.full((n_classes, k), np.inf)
    for line in table:
        n_rows = rng.integers(min(k, most_rows) + 1)
        line[:n_rows] = np.sort(rng.integers(4, size=n_rows) if ties else rng.random(n_rows) * 3)
    return table


def random_costs(rng, n_classes):
    return rng.uniform(0.1, 3, (n_classes, n_classes)) * (1 - np.eye(n_classes))


def cost_of(table, members):
    return sum(line[:n].sum() for line, n in zip(table, members, strict=True))


@pytest.mark.parametrize("k", range(1, 8))
@pytest.mark.parametrize("n_classes", [2, 3, 4])
@pytest.mark.parametrize("ties", [False, True])
def test_sets_equal_brute_force(k, n_classes, ties):
    rng = np.random.default_rng(10 * k + n_classes)
    # all rows of 4 classes at k = 7 would have a million sets
    most_rows = min(k, 4)
    tables = [random_table(rng, n_classes, k, most_rows, ties) for _ in range(12)]
    y = rng.integers(n_classes, size=len(tables))
    for costs in (1 - np.eye(n_classes), random_costs(rng, n_classes)):
        sets = infer_sets(np.array(tables), y, costs)
        for i, table in enumerate(tables):
            targeted, augmented = brute_force(table, y[i], costs)
            assert sets.feasible[i] == np.isfinite(targeted)
            if not sets.feasible[i]:
                assert sets.loss[i] == 0
                assert sets.targeted[i].sum() == sets.augmented[i].sum() == 0
                continue
            assert sets.loss[i] == pytest.approx(targeted - augmented, abs=1e-12)
            assert sets.targeted[i].sum() == sets.augmented[i].sum() == k
            assert cost_of(table, sets.targeted[i]) == pytest.approx(targeted)
            members = sets.augmented[i]
            delta = costs[y[i], members == members.max()].max()
            assert cost_of(table, members) - delta == pytest.approx(augmented)


@pytest.mark.parametrize("margin", [0, 1])
def test_each_class_wins_its_set(margin):
    rng = np.random.default_rng(0)
    table = np.sort(rng.random((50, 4, 5)), axis=2)
    cost, size = winning_costs(table, np.tile(np.arange(4), (50, 1)), margin)
    for winner in range(4):
        members = winning_members(table, np.full(50, winner), size[:, winner], margin)
        others = np.delete(members, winner, axis=1)
        assert (members[:, winner] >= others.max(axis=1) + margin).all()
        found = [cost_of(t, m) for t, m in zip(table, members, strict=True)]
        np.testing.assert_allclose(found, cost[:, winner])


def test_more_classes_than_neighbours():
    """Only the k classes with the nearest rows are looked at: nothing is lost by it."""
    rng = np.random.default_rng(1)
    tables = np.sort(rng.random((20, 9, 3)), axis=2)
    costs, y = random_costs(rng, 9), rng.integers(9, size=20)
    sets = infer_sets(tables, y, costs)
    expected = [brute_force(table, label, costs) for table, label in zip(tables, y, strict=True)]
    np.testing.assert_allclose(sets.loss, [target - best for target, best in expected])


def test_nearest_rows_are_not_always_members():
    # Two of class 0 at 1 each; of class 1 three at 0. Class 0 wins with 2 + 1, not with 1.
    table = np.array([[[1.0, 1.0, 5.0], [0.0, 0.0, 0.0]]])
    sets = infer_sets(table, np.array([0]), 1 - np.eye(2))
    assert sets.targeted.tolist() == [[2, 1]]
    assert sets.augmented.tolist() == [[0, 3]]
    assert sets.loss.tolist() == [3.0]


def test_ties_are_forbidden_to_the_target_and_allowed_to_its_rivals():
    table = np.array([[[0.0, 9.0], [0.1, 9.0]]])
    sets = infer_sets(table, np.array([0]), 1 - np.eye(2))
    assert sets.targeted.tolist() == [[2, 0]]
    assert sets.augmented.tolist() == [[1, 1]]
    assert sets.loss[0] == pytest.approx(9.0 - 0.1 + 1)


def test_a_dearer_class_is_chosen_by_its_cost():
    table = np.array([[[0.0], [1.0], [1.5]]])
    costs = np.array([[0.0, 1.5, 4.0], [1, 0, 1], [1, 1, 0]])
    assert infer_sets(table, np.array([0]), costs).augmented.tolist() == [[0, 0, 1]]
    assert infer_sets(table, np.array([0]), 1 - np.eye(3)).loss.tolist() == [0.0]


def test_vote_costs_equal_a_loop():
    rng = np.random.default_rng(0)
    table = np.sort(rng.random((20, 3, 4)), axis=2)
    y, costs = rng.integers(3, size=20), rng.random((3, 3))
    for i, cost in enumerate(vote_costs(table, y, costs)):
        rows = sorted((table[i, r, j], r) for r in range(3) for j in range(4))
        assert cost == pytest.approx(np.mean([costs[y[i], r] for _, r in rows[:4]]))
