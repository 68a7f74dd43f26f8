import numpy as np
import pytest
from scipy import sparse

from skdml.verification._pair_rows import check_pair_array, find_rows, number_in_order

X = np.arange(12.0).reshape(6, 2)
PAIRS = np.array([[4, 1], [1, 4], [5, 0], [4, 4]])


def test_rows_are_distinct_and_in_their_order():
    rows, places = find_rows(X[PAIRS])
    np.testing.assert_array_equal(rows, X[[4, 1, 5, 0]])
    np.testing.assert_array_equal(rows[places], X[PAIRS])


@pytest.mark.parametrize(
    "make", [np.asarray, np.ndarray.tolist, sparse.csr_array, sparse.coo_array]
)
def test_indices_are_of_the_rows_of_the_preprocessor(make):
    rows, places = find_rows(PAIRS, make(X))
    rows = rows.toarray() if sparse.issparse(rows) else rows
    vectors = find_rows(X[PAIRS])
    np.testing.assert_array_equal(rows, vectors[0])
    np.testing.assert_array_equal(places, vectors[1])


def test_a_callable_is_asked_once_for_distinct_names():
    asked = []
    names = np.array(["e", "b", "f", "a"])

    def read(wanted):
        asked.append(list(wanted))
        return [X["abcdef".index(name)] for name in wanted]

    pairs = np.array([["e", "b"], ["b", "e"], ["f", "a"], ["e", "e"]])
    rows, places = find_rows(pairs, read)
    assert asked == [names.tolist()]
    np.testing.assert_array_equal(rows[places], X[PAIRS])


def test_zero_and_minus_zero_are_one_row():
    rows, places = find_rows(np.array([[[0.0], [-0.0]], [[1.0], [0.0]]]))
    assert len(rows) == 2
    assert places.tolist() == [[0, 0], [1, 0]]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_distinct_rows_are_those_of_numpy(dtype):
    rng = np.random.default_rng(0)
    for values in (rng.integers(0, 3, (400, 2, 3)), rng.standard_normal((400, 2, 1)).round(1)):
        pairs = values.astype(dtype)
        rows, places = find_rows(pairs)
        np.testing.assert_array_equal(rows[places], pairs)
        assert len(rows) == len(np.unique(pairs.reshape(-1, pairs.shape[2]), axis=0))


def test_rows_with_one_hash_are_told_apart(monkeypatch):
    class Zeros:
        def integers(self, high, size, dtype):
            return np.zeros(size, dtype=dtype)

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Zeros())  # the hash is the sum
    pairs = np.array([[[1.0, 2.0], [2.0, 1.0]], [[2.0, 1.0], [3.0, 4.0]]])
    rows, places = find_rows(pairs)
    assert rows.tolist() == [[1, 2], [2, 1], [3, 4]]
    assert places.tolist() == [[0, 1], [1, 2]]


def test_all_rows_may_stay_apart():
    rows, places = find_rows(X[PAIRS], distinct=False)
    assert len(rows) == 2 * len(PAIRS)
    np.testing.assert_array_equal(rows[places], X[PAIRS])


def test_numbers_in_order():
    first, codes = number_in_order(np.array([7, 3, 7, 9, 3]))
    assert first.tolist() == [0, 1, 3]
    assert codes.tolist() == [0, 1, 0, 2, 1]


@pytest.mark.parametrize(
    ("pairs", "preprocessor", "error", "message"),
    [
        (X, None, ValueError, r"preprocessor, or pairs of shape \(n_pairs, 2, n_features\)"),
        (X.reshape(4, 3), None, ValueError, r"pairs must be an array of shape .* got shape \(4, 3"),
        (np.empty((0, 2, 3)), None, ValueError, "pairs is empty"),
        (sparse.csr_array(X), None, TypeError, "sparse rows as preprocessor"),
        ([[[np.nan], [1.0]]], None, ValueError, "pairs contains NaN"),
        (PAIRS, X[:5], ValueError, r"rows 0 to 5, but preprocessor has 5 rows \(0 to 4\)"),
        (PAIRS - 1, X, ValueError, "rows -1 to 4"),
        (PAIRS * 1.0, X, TypeError, "pairs must hold integer indices"),
        (PAIRS, X[0], ValueError, "preprocessor must be rows in two dimensions"),
        (PAIRS, lambda indices: X, ValueError, "preprocessor returned 6 rows for 4 indices"),
        (PAIRS, np.full((6, 2), np.nan), ValueError, "preprocessor contains NaN"),
    ],
)
def test_errors_name_the_argument(pairs, preprocessor, error, message):
    with pytest.raises(error, match=message):
        find_rows(check_pair_array(pairs), preprocessor)
