"""The search for neighbours: exact, ties by position, independent of the chunks, in bounds."""

import time
import tracemalloc

import numpy as np
import pytest
from sklearn.metrics import pairwise_distances
from sklearn.neighbors import NearestNeighbors

from skdml.metrics import _neighbors, map_at_r, recall_at_k
from skdml.metrics._neighbors import (
    _ByProduct,
    _k_nearest_by_blocks,
    nearest,
    nearest_others,
    search,
)


def neighbors_of(X, k, Y=None, **options):
    found = np.full((len(X), k), -1)
    for rows, indices in nearest(X, X if Y is None else Y, k, **options):
        found[rows] = indices
    return found


def brute_force(X, Y=None):
    """Sort all distances, in double precision and without matrix product."""
    others = X if Y is None else Y
    D = np.square(X[:, None].astype(float) - others[None].astype(float)).sum(axis=2)
    if Y is None:
        np.fill_diagonal(D, np.inf)
    order = np.argsort(D, axis=1, kind="stable")
    return order if Y is not None else order[:, :-1]


@pytest.fixture
def tied():
    """Points of a small grid: many duplicates and many equal distances."""
    return np.random.default_rng(1).integers(0, 3, size=(70, 3)).astype(float)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("metric", ["euclidean", "cosine", "cityblock"])
@pytest.mark.parametrize("k", [1, 7, 69])
def test_ties_do_not_depend_on_the_chunk_size(tied, dtype, metric, k):
    X = tied.astype(dtype) + 1
    whole = neighbors_of(X, k, metric=metric, working_memory=1000)
    for memory in (1e-6, 0.01, 0.05):
        chunked = neighbors_of(X, k, metric=metric, working_memory=memory)
        np.testing.assert_array_equal(chunked, whole)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_equal_distances_go_by_position(tied, dtype):
    X = tied.astype(dtype)
    # The centre of the columns has no short binary form, so centring alone would break ties.
    np.testing.assert_array_equal(neighbors_of(X, 69), brute_force(X))
    np.testing.assert_array_equal(neighbors_of(X, 5), brute_force(X)[:, :5])


def test_many_equal_rows_in_many_dimensions():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(3, 37))[rng.integers(0, 3, 40)]
    np.testing.assert_array_equal(neighbors_of(X, 39), brute_force(X))


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_collapsed_embeddings_go_by_position(metric, dtype):
    X = np.full((30, 5), 0.1, dtype=dtype)
    expected = [[j for j in range(30) if j != i][:4] for i in range(30)]
    np.testing.assert_array_equal(neighbors_of(X, 4, metric=metric), expected)
    np.testing.assert_array_equal(neighbors_of(0 * X, 4, metric=metric), expected)


@pytest.mark.parametrize("offset", [1e3, 1e5])
def test_single_precision_far_from_the_origin(offset):
    rng = np.random.default_rng(6)
    X = (rng.normal(size=(80, 6)) + offset).astype(np.float32)
    Y = (rng.normal(size=(90, 6)) + offset).astype(np.float32)
    np.testing.assert_array_equal(neighbors_of(X, 79), brute_force(X))
    np.testing.assert_array_equal(neighbors_of(X, 90, Y), brute_force(X, Y))


def test_an_offset_leaves_few_pairs_to_be_settled_one_by_one():
    X = np.random.default_rng(12).normal(size=(50, 6))
    near, far = (_ByProduct(Z, Z, False, Z.dtype) for Z in (X, X + 1e6))
    rows = np.arange(50)
    slack = [d.slack(rows, np.sort(d.block(rows))[:, 3]) / d.scale**2 for d in (near, far)]
    np.testing.assert_allclose(slack[0], slack[1], rtol=1e-6)


def test_single_precision_tight_clusters_far_apart():
    rng = np.random.default_rng(7)
    centres = 100 * rng.normal(size=(4, 8))
    X = (centres[rng.integers(0, 4, 60)] + 1e-3 * rng.normal(size=(60, 8))).astype(np.float32)
    np.testing.assert_array_equal(neighbors_of(X, 59), brute_force(X))


def test_one_far_item_does_not_spoil_the_others():
    rng = np.random.default_rng(8)
    X = rng.normal(size=(50, 5))
    X[17] = 1e9
    np.testing.assert_array_equal(neighbors_of(X, 49), brute_force(X))


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        (np.float64, 2.0**900),
        (np.float64, 2.0**-900),
        (np.float32, 2.0**90),
        (np.float32, 2.0**-90),
    ],
)
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_very_large_and_very_small_numbers(dtype, scale, metric):
    X = np.random.default_rng(0).normal(size=(60, 4)).astype(dtype)
    np.testing.assert_array_equal(
        neighbors_of(X * dtype(scale), 59, metric=metric), neighbors_of(X, 59, metric=metric)
    )


def test_equals_scikit_learn_neighbors():
    rng = np.random.default_rng(9)
    X = rng.normal(size=(400, 20))
    expected = NearestNeighbors(n_neighbors=10, algorithm="kd_tree").fit(X).kneighbors()[1]
    np.testing.assert_array_equal(neighbors_of(X, 10), expected)
    np.testing.assert_array_equal(
        neighbors_of(X.astype(np.float32), 10), neighbors_of(X.astype(np.float32).astype(float), 10)
    )


def test_cosine_with_zero_rows_equals_scikit_learn():
    rng = np.random.default_rng(2)
    X, Y = rng.normal(size=(6, 3)), rng.normal(size=(9, 3))
    X[2] = 0
    Y[[0, 5]] = 0
    D = pairwise_distances(X, Y, metric="cosine").round(12)
    np.testing.assert_array_equal(
        neighbors_of(X, 9, Y, metric="cosine"), np.argsort(D, axis=1, kind="stable")
    )


def test_cosine_of_a_zero_row_ties_with_a_right_angle():
    X, Y = np.array([[2.0, 0.0]]), np.array([[0.0, 3.0], [0.0, 0.0], [0.0, -1.0], [-1.0, 0.0]])
    assert neighbors_of(X, 4, Y, metric="cosine").tolist() == [[0, 1, 2, 3]]


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(_neighbors, "GROUP", 4)


def by_blocks(X, k, Y=None, cosine=False):
    distances = _ByProduct(X, X if Y is None else Y, cosine, X.dtype)
    return _k_nearest_by_blocks(distances, np.arange(len(X)), k, 16, exclude_self=Y is None)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("k", [1, 4, 40])
def test_blocks_of_columns_give_what_whole_rows_give(tied, dtype, cosine, k):
    rng = np.random.default_rng(3)
    metric = "cosine" if cosine else "euclidean"
    smooth = rng.normal(size=(70, 3)).astype(dtype)
    for X, Y in [(tied.astype(dtype), None), (smooth, None), (smooth, tied.astype(dtype))]:
        found, done = by_blocks(X, k, Y, cosine)
        assert done.all()
        np.testing.assert_array_equal(found, neighbors_of(X, k, Y, metric=metric))


@pytest.mark.usefixtures("small_blocks")
def test_crowded_queries_are_left_to_a_search_of_their_own(monkeypatch):
    monkeypatch.setattr(_neighbors, "_crowd", lambda k: 10)
    Y = np.random.default_rng(5).normal(size=(70, 3))
    Y[20:60] = 5
    found, done = by_blocks(np.array([[5.0, 5, 5], Y[3]]), 2, Y)
    assert done.tolist() == [False, True]
    assert found[1, 0] == 3


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_gallery_of_several_blocks(dtype):
    rng = np.random.default_rng(13)
    Y = rng.normal(size=(9001, 8)).astype(dtype)
    Y[2000:7000] = Y[:5000]  # pairs of equal rows
    X = np.vstack([Y[:20], rng.normal(size=(100, 8)).astype(dtype)])
    np.testing.assert_array_equal(neighbors_of(X, 6, Y), brute_force(X, Y)[:, :6])
    Y[:] = Y[0]
    np.testing.assert_array_equal(neighbors_of(X, 6, Y), np.tile(np.arange(6), (120, 1)))


@pytest.mark.parametrize("scale", [1.0, 1e25])
def test_other_queries_of_a_prepared_gallery(scale):
    rng = np.random.default_rng(14)
    X, Y = rng.normal(size=(30, 5)), rng.normal(size=(40, 5)).astype(np.float32)
    X = (scale * X).astype(np.float32)
    ((_, found),) = search(_ByProduct(Y, Y, False, np.float32).ask(X), 7)
    np.testing.assert_array_equal(found, neighbors_of(X, 7, Y))


def test_queries_of_before_leave_nothing_behind(tied):
    Y = tied.astype(np.float32)
    distances = _ByProduct(Y, Y, False, np.float32)
    list(search(distances, 7))
    ((_, found),) = search(distances.ask(Y[::-1].copy()), 7)
    np.testing.assert_array_equal(found, brute_force(Y[::-1], Y)[:, :7])


@pytest.mark.parametrize("collapsed", [False, True])
@pytest.mark.parametrize("measure", [recall_at_k, map_at_r])
def test_memory_is_bounded(measure, collapsed):
    rng = np.random.default_rng(10)
    X, y = rng.normal(size=(1000, 8)), rng.integers(0, 10, 1000)
    if collapsed:
        X[:] = X[0]
    tracemalloc.start()
    measure(X, y, working_memory=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5e6  # the whole matrix has 8 MB


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_ten_thousand_by_128(dtype):
    rng = np.random.default_rng(11)
    X, y = rng.normal(size=(10_000, 128)).astype(dtype), rng.integers(0, 100, 10_000)
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        recall_at_k(X, y)
        seconds.append(time.perf_counter() - start)
    tracemalloc.start()
    recall_at_k(X, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert min(seconds) < 3
    assert peak < 500e6


@pytest.mark.parametrize("n_rows", [40, 33, 16])  # the last block has one row at 33
@pytest.mark.parametrize("k", [1, 6])
def test_products_for_both_sides_find_the_nearest_others(monkeypatch, n_rows, k):
    monkeypatch.setattr(_neighbors, "_SQUARE", 16)
    rows = np.random.default_rng(2).standard_normal((n_rows, 3))
    np.testing.assert_array_equal(nearest_others(rows, k), brute_force(rows)[:, :k])


@pytest.mark.parametrize("n_kinds", [1, 3])
def test_both_sides_of_many_equal_rows_go_by_position(monkeypatch, n_kinds):
    monkeypatch.setattr(_neighbors, "_SQUARE", 600)
    rows = np.repeat(np.arange(n_kinds), 1500 // n_kinds)[:, None] * np.ones(2)
    found = nearest_others(rows, 4)
    np.testing.assert_array_equal(found[0], [1, 2, 3, 4])
    for i in (2, 700, 1499):
        first = i // (1500 // n_kinds) * (1500 // n_kinds)
        same = [j for j in range(first, first + 5) if j != i]
        np.testing.assert_array_equal(found[i], same[:4])
