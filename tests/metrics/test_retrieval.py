"""Retrieval measures against double loops."""

import numpy as np
import pytest
from scipy import sparse
from sklearn import config_context
from sklearn.metrics import DistanceMetric, pairwise_distances

from skdml.metrics import map_at_r, precision_at_k, r_precision, recall_at_k

AT_K = [recall_at_k, precision_at_k]
AT_R = [map_at_r, r_precision]
ALL = AT_K + AT_R


def squared_euclidean(u, v):
    return sum((float(a) - float(b)) ** 2 for a, b in zip(u, v, strict=True))


def slow_neighbors(X, Y, distance=squared_euclidean, leave_out_self=True):
    """Sort the candidates of every query by distance, then by position."""
    result = []
    for i in range(len(X)):
        candidates = [j for j in range(len(Y)) if not (leave_out_self and i == j)]
        values = {j: distance(X[i], Y[j]) for j in candidates}
        result.append(sorted(candidates, key=lambda j, values=values: (values[j], j)))
    return result


def slow_measures(neighbors, labels, gallery_labels, k):
    recall, precision, average, r_prec = [], [], [], []
    for i, order in enumerate(neighbors):
        match = [gallery_labels[j] == labels[i] for j in order]
        recall.append(any(match[:k]))
        precision.append(sum(match[:k]) / k)
        r = sum(match)
        if r == 0:
            continue
        r_prec.append(sum(match[:r]) / r)
        average.append(sum(sum(match[: m + 1]) / (m + 1) for m in range(r) if match[m]) / r)
    return {
        recall_at_k: np.mean(recall),
        precision_at_k: np.mean(precision),
        map_at_r: np.mean(average),
        r_precision: np.mean(r_prec),
    }


def call(measure, X, y, k=3, **options):
    return measure(X, y, k, **options) if measure in AT_K else measure(X, y, **options)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 60)
    return rng.normal(size=(60, 4)) + 0.7 * y[:, None], y


@pytest.fixture
def tied():
    """Points of a small grid: many duplicates and many equal distances."""
    rng = np.random.default_rng(1)
    return rng.integers(0, 3, size=(70, 3)).astype(float), rng.integers(0, 4, 70)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("measure", ALL)
@pytest.mark.parametrize("k", [1, 4, 59])
def test_equals_double_loop(data, measure, dtype, k):
    X, y = data
    X = X.astype(dtype)
    expected = slow_measures(slow_neighbors(X, X), y, y, k)[measure]
    assert call(measure, X, y, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("measure", ALL)
def test_equals_double_loop_with_ties(tied, measure):
    X, y = tied
    expected = slow_measures(slow_neighbors(X, X), y, y, 3)[measure]
    assert call(measure, X, y) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("measure", ALL)
def test_query_and_gallery(data, measure):
    X, y = data
    queries, labels, gallery, gallery_labels = X[:20], y[:20], X[20:], y[20:]
    neighbors = slow_neighbors(queries, gallery, leave_out_self=False)
    expected = slow_measures(neighbors, labels, gallery_labels, 3)[measure]
    result = call(measure, queries, labels, gallery=gallery, gallery_labels=gallery_labels)
    assert result == pytest.approx(expected, abs=1e-12)


def test_a_gallery_keeps_the_query_even_if_it_is_the_same_array(data):
    X, y = data
    distinct = np.arange(len(X))
    assert recall_at_k(X, distinct, gallery=X, gallery_labels=distinct) == 1.0
    assert recall_at_k(X, y) < 1.0


def test_one_query_one_gallery_item():
    assert recall_at_k([[0.0]], [1], gallery=[[5.0]], gallery_labels=[1]) == 1.0


def test_gallery_of_another_precision(data):
    X, y = data
    options = {"gallery_labels": y[20:]}
    mixed = recall_at_k(X[:20].astype(np.float32), y[:20], 2, gallery=X[20:], **options)
    assert mixed == recall_at_k(X[:20], y[:20], 2, gallery=X[20:], **options)


def test_int_gives_float_and_sequence_gives_array(data):
    X, y = data
    for measure in AT_K:
        single = [measure(X, y, k) for k in (5, 1, 3)]
        assert all(type(value) is float for value in single)
        several = measure(X, y, (5, 1, 3))
        assert isinstance(several, np.ndarray)
        np.testing.assert_array_equal(several, single)
        np.testing.assert_array_equal(measure(X, y, np.array([5, 1, 3])), single)
        assert type(measure(X, y, np.int64(2))) is float
    assert all(type(measure(X, y)) is float for measure in AT_R)


def test_recall_grows_with_k_up_to_one(data):
    X, y = data
    recall = recall_at_k(X, y, range(1, len(X)))
    assert (np.diff(recall) >= 0).all()
    assert recall[-1] == 1.0


@pytest.mark.parametrize("measure", ALL)
def test_the_order_of_the_rows_does_not_matter(data, measure):
    X, y = data
    order = np.random.default_rng(3).permutation(len(X))
    assert call(measure, X[order], y[order]) == pytest.approx(call(measure, X, y), abs=1e-12)


@pytest.mark.parametrize("measure", ALL)
def test_perfect_embedding_gives_one(measure):
    y = np.repeat([0, 1, 2], [4, 5, 6])
    X = 100.0 * y[:, None] + np.arange(15)[:, None]
    assert call(measure, X, y) == 1.0


def test_the_query_is_left_out_by_position_not_by_distance():
    X = np.array([[0.0], [0.0], [0.0], [9.0], [9.0]])
    assert recall_at_k(X, [0, 1, 1, 2, 2]) == pytest.approx(0.4)
    assert recall_at_k(X, [0, 1, 0, 2, 2]) == pytest.approx(0.6)


def test_a_label_without_match_is_a_miss_for_recall_and_left_out_of_map():
    X = np.array([[0.0], [0.1], [5.0]])
    y = ["a", "a", "lonely"]
    assert recall_at_k(X, y) == pytest.approx(2 / 3)
    assert precision_at_k(X, y) == pytest.approx(2 / 3)
    assert map_at_r(X, y) == 1.0
    assert r_precision(X, y) == 1.0


def test_classes_of_very_different_size():
    rng = np.random.default_rng(5)
    y = np.repeat([0, 1, 2, 3], [60, 3, 2, 1])
    X = rng.normal(size=(66, 2)) + 0.3 * y[:, None]
    expected = slow_measures(slow_neighbors(X, X), y, y, 1)
    for memory in (1e-6, 0.01, 10):
        for measure in AT_R:
            result = measure(X, y, working_memory=memory)
            assert result == pytest.approx(expected[measure], abs=1e-12)


@pytest.mark.parametrize("labels", ["string", "object", "bool", "float"])
def test_kinds_of_labels(data, labels):
    X, y = data
    y = y % 2
    other = {
        "string": np.array(["no", "yes"])[y],
        "object": np.array(["no", "yes"], dtype=object)[y],
        "bool": y == 1,
        "float": y - 0.5,
    }[labels]
    assert recall_at_k(X, other, 2) == recall_at_k(X, y, 2)
    both = recall_at_k(X[:9], other[:9], 2, gallery=X[9:], gallery_labels=other[9:])
    assert both == recall_at_k(X[:9], y[:9], 2, gallery=X[9:], gallery_labels=y[9:])


def test_lists_integers_and_data_frames(data):
    X, y = data
    X = np.round(10 * X).astype(int)
    expected = recall_at_k(X.astype(float), y)
    assert recall_at_k(X, y) == expected
    assert recall_at_k(X.tolist(), y.tolist()) == expected
    pandas = pytest.importorskip("pandas")
    index = np.arange(len(X))[::-1]
    assert recall_at_k(pandas.DataFrame(X, index), pandas.Series(y, index)) == expected


def test_input_is_not_changed(data):
    X, y = data
    before = X.copy()
    X.setflags(write=False)
    for metric in ("euclidean", "cosine", "cityblock"):
        map_at_r(X, y, metric=metric)
    np.testing.assert_array_equal(X, before)


# Metrics


@pytest.mark.parametrize("name", ["cityblock", "chebyshev", "cosine", "sqeuclidean", "canberra"])
@pytest.mark.parametrize("measure", ALL)
def test_named_metric(data, measure, name):
    X, y = data
    D = pairwise_distances(X, metric=name)
    positions = np.arange(len(X))[:, None]
    neighbors = slow_neighbors(positions, positions, lambda i, j: D[i[0], j[0]])
    expected = slow_measures(neighbors, y, y, 3)[measure]
    assert call(measure, X, y, metric=name) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("measure", ALL)
def test_callable_equals_named_metric(data, measure):
    X, y = data
    X, y = X[:30], y[:30]
    result = call(measure, X, y, metric=lambda u, v: np.abs(u - v).sum())
    assert result == call(measure, X, y, metric="cityblock")


class Scaled:
    """A metric that counts how it is used."""

    def __init__(self):
        self.shapes = []

    def __call__(self, u, v):
        raise AssertionError("pairwise should be preferred")

    def pairwise(self, X, Y):
        self.shapes.append((len(X), len(Y)))
        return pairwise_distances(X * [1, 2, 3, 4], Y * [1, 2, 3, 4])


def test_pairwise_of_an_object_is_preferred(data):
    X, y = data
    metric = Scaled()
    assert recall_at_k(X, y, 3, metric=metric) == recall_at_k(X * [1, 2, 3, 4], y, 3)
    assert metric.shapes == [(60, 60)]


def test_distance_metric_of_scikit_learn(data):
    X, y = data
    metric = DistanceMetric.get_metric("mahalanobis", V=np.diag([1.0, 4, 9, 16]))
    assert map_at_r(X, y, metric=metric) == pytest.approx(map_at_r(X / [1, 2, 3, 4], y))


def test_an_array_that_the_metric_keeps_is_not_changed(data):
    X, y = data
    D = pairwise_distances(X)

    class Kept:
        def pairwise(self, X, Y):
            return D

    recall_at_k(X, y, metric=Kept())
    assert np.isfinite(D).all()


@pytest.mark.parametrize("measure", ALL)
def test_working_memory_of_scikit_learn_is_respected(data, measure):
    X, y = data
    metric = Scaled()
    with config_context(working_memory=0.02):
        chunked = call(measure, X, y, metric=metric)
    assert len(metric.shapes) > 3
    assert chunked == pytest.approx(call(measure, X, y, metric=Scaled()), abs=1e-12)


# Bad input


@pytest.mark.parametrize("measure", ALL)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_embeddings_must_be_finite(data, measure, bad):
    X, y = data
    X[3, 1] = bad
    with pytest.raises(ValueError, match="embeddings contains"):
        measure(X, y)
    with pytest.raises(ValueError, match="gallery contains"):
        measure(X[10:], y[10:], gallery=X, gallery_labels=y)


@pytest.mark.parametrize("measure", ALL)
@pytest.mark.parametrize(
    ("embeddings", "labels", "message"),
    [
        ([1.0, 2.0], [0, 0], "embeddings must have two dimensions"),
        (np.zeros((2, 2, 2)), [0, 0], "embeddings must have two dimensions"),
        (np.zeros((0, 3)), [], "embeddings must have at least 2"),
        (np.zeros((3, 0)), [0, 0, 0], "embeddings must have at least 2"),
        (np.zeros((1, 3)), [0], "embeddings must have at least 2"),
        (np.zeros((3, 2)), [0, 0], "labels must have one entry per row: expected 3, got 2"),
        (np.zeros((3, 2)), [[0], [0], [1]], "labels must be one-dimensional"),
        (np.zeros((3, 2)), [0.0, np.nan, 0.0], "labels must not contain NaN"),
        (np.zeros((3, 2)), [0.0, np.inf, 0.0], "labels must not contain NaN or infinity"),
        (np.zeros((3, 2)), [[0], [1, 2], 0], "labels: setting an array element"),
        ("abc", [0, 0], "embeddings: could not convert string"),
        (np.zeros((2, 2)) + 1j, [0, 0], "embeddings: Complex data not supported"),
        (np.zeros((3, 2)), [0, 1, 2], "labels: no query shares its label"),
    ],
)
def test_bad_embeddings_and_labels(measure, embeddings, labels, message):
    with pytest.raises(ValueError, match=message):
        measure(embeddings, labels)


@pytest.mark.parametrize("measure", ALL)
def test_bad_gallery(data, measure):
    X, y = data
    with pytest.raises(ValueError, match="gallery and gallery_labels"):
        measure(X, y, gallery=X)
    with pytest.raises(ValueError, match="gallery and gallery_labels"):
        measure(X, y, gallery_labels=y)
    with pytest.raises(ValueError, match="gallery must have as many features"):
        measure(X, y, gallery=X[:, :2], gallery_labels=y)
    with pytest.raises(ValueError, match="gallery must have two dimensions"):
        measure(X, y, gallery=X[0], gallery_labels=y)
    with pytest.raises(ValueError, match="gallery_labels must have one entry per row"):
        measure(X, y, gallery=X, gallery_labels=y[:-1])
    with pytest.raises(ValueError, match="labels: no query shares"):
        measure(X, y, gallery=X, gallery_labels=y + 100)
    with pytest.raises(TypeError, match=r"labels .* and gallery_labels"):
        measure(X, y, gallery=X, gallery_labels=y.astype(str))
    with pytest.raises(TypeError, match=r"labels .* and gallery_labels"):
        measure(X, y.astype(str), gallery=X, gallery_labels=y.astype("datetime64[D]"))
    with pytest.raises(TypeError, match=r"labels .* and gallery_labels"):
        measure(X, y.astype(str), gallery=X, gallery_labels=np.zeros(len(y), dtype="V4"))


@pytest.mark.parametrize("measure", AT_K)
@pytest.mark.parametrize(
    ("k", "error", "message"),
    [
        (0, ValueError, "k must be at least 1"),
        ([1, -2], ValueError, "k must be at least 1"),
        (60, ValueError, "k must not exceed the number of candidates of a query, 59, got 60"),
        ([1, 60], ValueError, "k must not exceed"),
        ([], ValueError, "k must not be empty"),
        (2.0, TypeError, "k must be a positive integer"),
        (True, TypeError, "k must be a positive integer"),
        ("3", TypeError, "k must be a positive integer"),
        ([[1, 2]], TypeError, "k must be a positive integer"),
        (None, TypeError, "k must be a positive integer"),
    ],
)
def test_bad_k(data, measure, k, error, message):
    with pytest.raises(error, match=message):
        measure(*data, k)


def test_k_may_be_the_size_of_the_gallery(data):
    X, y = data
    assert recall_at_k(X, y, 60, gallery=X, gallery_labels=y) == 1.0
    with pytest.raises(ValueError, match="of a query, 60, got 61"):
        recall_at_k(X, y, 61, gallery=X, gallery_labels=y)


@pytest.mark.parametrize(
    ("metric", "error"),
    [
        ("unknown", ValueError),
        ("precomputed", ValueError),
        ("seuclidean", ValueError),
        (3, TypeError),
        (None, TypeError),
        (Scaled, TypeError),
        (lambda u, v: np.nan, ValueError),
    ],
)
@pytest.mark.parametrize("measure", ALL)
def test_bad_metric(data, measure, metric, error):
    with pytest.raises(error, match="metric"):
        measure(*data, metric=metric)


def test_pairwise_of_the_wrong_shape(data):
    class Transposed:
        def pairwise(self, X, Y):
            return pairwise_distances(Y, X)

    X, y = data
    with pytest.raises(ValueError, match=r"metric must return distances of shape \(10, 50\)"):
        recall_at_k(X[:10], y[:10], gallery=X[10:], gallery_labels=y[10:], metric=Transposed())


@pytest.mark.parametrize(
    ("memory", "error"),
    [(0, ValueError), (-1, ValueError), (np.nan, ValueError), ("64", TypeError), (True, TypeError)],
)
def test_bad_working_memory(data, memory, error):
    with pytest.raises(error, match="working_memory"):
        recall_at_k(*data, working_memory=memory)


def test_sparse_embeddings_and_mixed_labels_are_type_errors(data):
    X, y = data
    with pytest.raises(TypeError, match="toarray"):
        recall_at_k(sparse.csr_matrix(X), y)
    labels = np.array(["a", None] * 30, dtype=object)
    with pytest.raises(TypeError, match="labels must be all numbers or all strings"):
        recall_at_k(X, labels)


def test_dates_and_durations_are_labels_of_two_kinds():
    X, dates = np.arange(4.0)[:, None], np.array([0, 0, 1, 1], dtype="datetime64[s]")
    assert recall_at_k(X, dates, gallery=X, gallery_labels=dates) == 1.0
    with pytest.raises(TypeError, match=r"labels .*and gallery_labels .*same kind"):
        r_precision(X, dates, gallery=X, gallery_labels=dates.astype("timedelta64[s]"))


@pytest.mark.parametrize("measure", [recall_at_k, precision_at_k, r_precision, map_at_r])
def test_dask_arrays_are_searched_block_by_block(tied, measure):
    da = pytest.importorskip("dask.array")
    embeddings, labels = tied
    options = {"k": [1, 3]} if measure in (recall_at_k, precision_at_k) else {}
    queries = da.from_array(embeddings, chunks=(7, 1))
    expected = measure(embeddings, labels, **options)
    np.testing.assert_allclose(measure(queries, labels, **options), expected, rtol=1e-12)
    sides = {"gallery": embeddings[::2], "gallery_labels": labels[::2]}
    expected = measure(embeddings, labels, **options, **sides)
    sides["gallery"] = queries[::2]
    np.testing.assert_allclose(measure(queries, labels, **options, **sides), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="gallery must have as many features"):
        measure(queries, labels, gallery=embeddings[:, :1], gallery_labels=labels)
