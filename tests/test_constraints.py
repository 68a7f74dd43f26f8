import itertools
import tracemalloc
import warnings

import numpy as np
import pytest

from skdml.constraints import check_pairs, make_local_pairs, make_pairs, make_triplets

LABELS = np.array(["a", "b", "a", "c", "b", "a", "d"])


def all_pairs(y, same):
    return {(i, j) for i, j in itertools.combinations(range(len(y)), 2) if (y[i] == y[j]) == same}


def test_pairs_have_the_right_labels_and_no_duplicates():
    y = np.random.RandomState(0).randint(0, 5, 60)
    pairs, labels = make_pairs(y, 300, random_state=0)
    assert np.array_equal(y[pairs[:, 0]] == y[pairs[:, 1]], labels == 1)
    assert len(set(map(tuple, pairs.tolist()))) == len(pairs) == 300
    assert (pairs[:, 0] < pairs[:, 1]).all()
    assert (labels == 1).sum() == (labels == -1).sum() == 150


@pytest.mark.parametrize("n_constraints", [10_000, 3, 2])
def test_all_pairs_when_there_are_fewer_than_asked(n_constraints):
    pairs, labels = make_pairs(LABELS, n_constraints, random_state=1)
    similar = set(map(tuple, pairs[labels == 1].tolist()))
    dissimilar = set(map(tuple, pairs[labels == -1].tolist()))
    assert similar <= all_pairs(LABELS, same=True)
    assert dissimilar <= all_pairs(LABELS, same=False)
    if n_constraints == 10_000:
        assert similar == all_pairs(LABELS, same=True)
        assert dissimilar == all_pairs(LABELS, same=False)
    else:
        assert len(pairs) == n_constraints


def test_every_pair_is_equally_likely():
    counts = dict.fromkeys(all_pairs(LABELS, True) | all_pairs(LABELS, False), 0)
    n_draws = 3000
    for seed in range(n_draws):
        pairs, _ = make_pairs(LABELS, 4, random_state=seed)
        for pair in map(tuple, pairs.tolist()):
            counts[pair] += 1
    for same in (True, False):
        kind = all_pairs(LABELS, same)
        expected = 2 * n_draws / len(kind)
        drawn = np.array([counts[pair] for pair in kind])
        assert np.abs(drawn / expected - 1).max() < 0.15


def test_triplets_are_valid_and_all_are_reached():
    everything = {
        (a, p, n)
        for a, p, n in itertools.permutations(range(len(LABELS)), 3)
        if LABELS[a] == LABELS[p] != LABELS[n]
    }
    drawn = make_triplets(LABELS, 10_000, random_state=0)
    assert len(drawn) == len(everything)
    assert set(map(tuple, drawn.tolist())) == everything
    few = make_triplets(LABELS, 5, random_state=0)
    assert len(few) == 5
    assert set(map(tuple, few.tolist())) < everything


def test_local_pairs_against_a_search_by_hand():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 3)), rng.integers(0, 3, 40)
    pairs, labels = make_local_pairs(X, y, 10_000, n_neighbors=2, random_state=0)
    expected = set()
    for i in range(40):
        order = np.argsort(((X - X[i]) ** 2).sum(1))
        for label, same in ((1, True), (-1, False)):
            near = [j for j in order if j != i and (y[i] == y[j]) == same][:2]
            expected |= {(*sorted((i, int(j))), label) for j in near}
    found = [(*pair, label) for pair, label in zip(pairs.tolist(), labels.tolist(), strict=True)]
    assert len(found) == len(set(found))
    assert set(found) == expected
    few, few_labels = make_local_pairs(X, y, 11, n_neighbors=2, random_state=0)
    assert few_labels.tolist() == [1] * 6 + [-1] * 5
    assert set(map(tuple, few.tolist())) <= {pair[:2] for pair in expected}


def test_local_pairs_bad_input():
    X = np.eye(4)
    with pytest.raises(ValueError, match="y has 3 labels for 4 rows of X"):
        make_local_pairs(X, [0, 0, 1])
    with pytest.raises(ValueError, match="n_neighbors must be at least 1"):
        make_local_pairs(X, [0, 0, 1, 1], n_neighbors=0)
    with pytest.raises(ValueError, match="one class"):
        make_local_pairs(X, [0, 0, 0, 0])
    with pytest.raises(ValueError, match="X contains NaN"):
        make_local_pairs(X * np.nan, [0, 0, 1, 1])
    with pytest.raises(ValueError, match="X: Expected 2D array"):
        make_local_pairs(X[0], [0, 0, 1, 1])


def test_same_seed_same_draw():
    y = np.random.RandomState(0).randint(0, 5, 60)
    for make in (make_pairs, lambda *a, **k: (make_triplets(*a, **k),)):
        first, second, other = (make(y, 50, random_state=s) for s in (3, 3, 4))
        assert np.array_equal(first[0], second[0])
        assert not np.array_equal(first[0], other[0])


def test_memory_does_not_grow_with_the_number_of_possible_pairs():
    y = np.random.RandomState(0).randint(0, 10, 100_000)  # 5e9 possible pairs
    tracemalloc.start()
    pairs, _ = make_pairs(y, 1000, random_state=0)
    make_triplets(y, 1000, random_state=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(pairs) == 1000
    assert peak < 20e6


def test_default_number_is_20_per_row():
    y = np.arange(200) % 2
    assert len(make_pairs(y, random_state=0)[0]) == 20 * 200


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0, 0, 0], "one class"),
        ([0, 1, 2], "no class with two rows"),
        ([0], "1 sample"),
        ([], "0 sample"),
        ([0.5, 0.2, 0.1], "y: Unknown label type"),
        (np.zeros((3, 2)), "y should be a 1d array"),
    ],
)
def test_labels_without_pairs(y, message):
    with pytest.raises(ValueError, match=message):
        make_pairs(y, 10)
    with pytest.raises(ValueError, match=r"y|label"):
        make_triplets(y, 10)


@pytest.mark.parametrize("value", [2.5, True, "many"])
def test_what_is_no_number_names_the_parameter(value):
    with pytest.raises(TypeError, match="n_constraints must be an integer of at least 2"):
        make_pairs([0, 0, 1], value)


@pytest.mark.parametrize("value", [0, 1, -3])
def test_bad_number_names_the_parameter(value):
    with pytest.raises(ValueError, match="n_constraints must be at least 2"):
        make_pairs([0, 0, 1], value)


def test_check_pairs_drops_and_counts_what_says_nothing():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pairs, labels = check_pairs(
            [[0, 1], [1, 0], [2, 2], [3, 1], [1, 3]], [1, 1, -1, -1, 1], n_samples=4
        )
    assert pairs.tolist() == [[0, 1], [1, 3], [1, 3]]
    assert labels.tolist() == [1, -1, 1]
    messages = [str(w.message) for w in caught]
    assert any("1 of 5 pairs paired a row with itself" in m for m in messages)
    assert any("1 of 4 pairs were given before" in m for m in messages)
    assert any("1 pairs are labelled both similar and dissimilar" in m for m in messages)


@pytest.mark.parametrize(
    ("pairs", "labels", "error", "message"),
    [
        ([[0, 1]], None, ValueError, "pair_labels is missing"),
        ([[0, 1, 2]], [1], ValueError, r"shape \(n_pairs, 2\)"),
        ([], [], ValueError, "pairs"),
        (np.empty((0, 2), int), [], ValueError, "pairs is empty"),
        ([[0.0, 1.0]], [1], TypeError, "integer row indices"),
        ([[0, 1]], [1, -1], ValueError, "one label per pair"),
        ([[0, 1]], [0], ValueError, r"\+1 \(similar\) or -1"),
        ([[0, 9]], [1], ValueError, "X has 4 samples"),
        ([[-1, 0]], [1], ValueError, "rows -1 to 0"),
        ([[0, 1], [1, 2]], [1, 1], ValueError, "no dissimilar"),
        ([[0, 1], [1, 2]], [-1, -1], ValueError, "no similar"),
        ([[0, 1], [1]], [1, -1], ValueError, "pairs: setting an array element"),
        ([[0, 1]], ["far"], TypeError, "pair_labels must be numbers"),
        ([[0, 1]], np.array(["far"], dtype=object), ValueError, "pair_labels: could not convert"),
        ([[0, 1]], np.zeros(1, dtype="V4"), TypeError, "pair_labels must be numbers"),
        ([[0, 1]], [1j], TypeError, "pair_labels must be numbers"),
    ],
)
def test_check_pairs_names_what_is_wrong(pairs, labels, error, message):
    with pytest.raises(error, match=message):
        check_pairs(pairs, labels, n_samples=4)


@pytest.mark.parametrize("n_samples", ["many", 2.5, np.array([3, 4]), 0])
def test_check_pairs_names_a_wrong_number_of_samples(n_samples):
    with pytest.raises(
        (TypeError, ValueError), match=r"n_samples must be (a positive integer|at least 1)"
    ):
        check_pairs([[0, 1], [1, 2]], [1, -1], n_samples)


def test_more_neighbors_than_rows_are_all_rows():
    X, y = np.arange(12.0).reshape(6, 2), np.arange(6) % 2
    for few, many in zip(
        make_local_pairs(X, y, 20, n_neighbors=6, random_state=0),
        make_local_pairs(X, y, 20, n_neighbors=2**31, random_state=0),
        strict=True,
    ):
        np.testing.assert_array_equal(few, many)
