"""Candidates and their tables, against a sort of all distances."""

import numpy as np
import pytest
from sklearn.metrics.pairwise import euclidean_distances

from skdml.asymmetric._neighbor_sets import NO_ROW, find_nearest, tabulate


def make_rows(n_rows=40, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n_rows, 3)), rng.integers(3, size=n_rows)


def search(queries, query_labels, database, labels, n_candidates, same_rows, k=2):
    rng = np.random.default_rng(0)
    excluded = np.arange(len(queries)) if same_rows else None
    return find_nearest(
        queries, query_labels, database, labels, k, n_candidates, rng, excluded=excluded
    )


@pytest.mark.parametrize("same_rows", [False, True])
def test_nearest_of_own_and_of_other_classes_and_some_at_random(same_rows):
    database, labels = make_rows()
    queries, query_labels = (database, labels) if same_rows else make_rows(25, seed=1)
    found = search(queries, query_labels, database, labels, 8, same_rows)
    distances = euclidean_distances(queries, database)
    if same_rows:
        np.fill_diagonal(distances, np.inf)
    for i, (line, label) in enumerate(zip(distances, query_labels, strict=True)):
        order, candidates = np.argsort(line), found.candidates[i]
        for r in range(3):
            np.testing.assert_allclose(found.table[i, r], np.sort(line[labels == r])[:2] ** 2)
        assert set(candidates[:4]) == set(order[labels[order] == label][:4])
        assert set(candidates[4:6]) == set(order[labels[order] != label][:2])
        drawn = candidates[6:][candidates[6:] != NO_ROW]
        assert (labels[drawn] != label).all()
        assert len(set(candidates[:6]) | set(drawn)) == 6 + len(drawn)
    assert len(np.unique(found.candidates[:, 6:])) > 20


def test_the_nearest_others_may_be_of_one_class():
    database = np.arange(40.0)[:, None]
    labels = np.repeat([0, 1], 20)
    found = search(np.zeros((1, 1)), np.array([1]), database, labels, 40, False)
    assert found.candidates[0, 20:30].tolist() == list(range(10))


def test_a_row_is_not_its_own_candidate_among_equal_rows():
    database, labels = np.zeros((20, 2)), np.arange(20) % 2
    found = search(database, labels, database, labels, 6, same_rows=True).candidates
    assert not (found == np.arange(20)[:, None]).any()
    assert (found[:, :5] != NO_ROW).all()
    assert all(len(set(line)) == 6 for line in found.tolist())


def test_places_of_rows_that_do_not_exist_are_marked():
    database, labels = make_rows(6)
    labels = np.array([0, 0, 0, 0, 1, 1])
    found = search(database, labels, database, labels, 16, same_rows=True, k=4)
    candidates = found.candidates
    assert (candidates == NO_ROW).sum(axis=1).tolist() == [11, 11, 11, 11, 11, 11]
    assert set(candidates[0]) == {NO_ROW, 1, 2, 3, 4, 5}
    assert set(candidates[5]) == {NO_ROW, 0, 1, 2, 3, 4}
    assert np.isfinite(found.table).sum(axis=2).tolist() == [[3, 2]] * 4 + [[4, 1]] * 2


def test_a_class_with_a_single_row_has_none_of_its_own():
    database, labels = make_rows(5)
    labels = np.array([0, 1, 1, 1, 1])
    found = search(database, labels, database, labels, 4, same_rows=True)
    assert found.candidates[0, :2].tolist() == [NO_ROW, NO_ROW]
    assert np.isinf(found.table[0, 0]).all()


def test_table_equals_a_loop():
    rng = np.random.default_rng(0)
    distances = rng.integers(5, size=(30, 12)).astype(float)
    distances[rng.random(distances.shape) < 0.2] = np.inf
    labels = rng.integers(4, size=distances.shape)
    table, columns = tabulate(distances, labels, 4, 3)
    for i in range(30):
        for r in range(4):
            nearest = np.sort(distances[i, labels[i] == r])[:3]
            expected = np.append(nearest, np.full(3 - len(nearest), np.inf))
            np.testing.assert_array_equal(table[i, r], expected)
            for entry, column in zip(table[i, r], columns[i, r], strict=True):
                assert entry == np.inf or (distances[i, column] == entry and labels[i, column] == r)
