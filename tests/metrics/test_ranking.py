"""Measures of rankings against loops over the queries and against scikit-learn."""

import math
from fractions import Fraction

import numpy as np
import pytest
from sklearn.metrics import (
    average_precision_score,
    label_ranking_average_precision_score,
    ndcg_score,
)

from skdml.metrics import (
    average_precision_by_query,
    mean_average_precision,
    mean_ndcg,
    mrr,
    ndcg_by_query,
    reciprocal_rank_by_query,
)

MEANS = [mean_ndcg, mean_average_precision, mrr]
BY_QUERY = [ndcg_by_query, average_precision_by_query, reciprocal_rank_by_query]


def ranked(y_true, y_score):
    """Grades, best score first; equal scores in the order of the input."""
    order = sorted(range(len(y_true)), key=lambda i: -y_score[i])
    return [float(y_true[i]) for i in order]


def slow_dcg(grades, k):
    return sum((2**g - 1) / math.log2(i + 2) for i, g in enumerate(grades[:k]))


def slow_ndcg(y_true, y_score, k=10):
    best = slow_dcg(sorted(map(float, y_true), reverse=True), k)
    return slow_dcg(ranked(y_true, y_score), k) / best if best else math.nan


def slow_average_precision(y_true, y_score, k=None, threshold=0):
    hits = [g > threshold for g in ranked(y_true, y_score)]
    if not any(hits):
        return math.nan
    k = k or len(hits)
    total = sum(sum(hits[: i + 1]) / (i + 1) for i in range(min(k, len(hits))) if hits[i])
    return total / min(sum(hits), k)


def slow_reciprocal_rank(y_true, y_score, k=None, threshold=0):
    hits = [g > threshold for g in ranked(y_true, y_score)]
    if not any(hits):
        return math.nan
    first = hits.index(True) + 1
    return 1 / first if k is None or first <= k else 0.0


SLOW = {
    ndcg_by_query: slow_ndcg,
    average_precision_by_query: slow_average_precision,
    reciprocal_rank_by_query: slow_reciprocal_rank,
}


@pytest.fixture
def data():
    """Queries of 1 to 30 documents, rows in any order, scores with ties, some without relevant."""
    rng = np.random.default_rng(0)
    qid = rng.permutation(np.repeat(np.arange(40) * 7 - 50, rng.integers(1, 31, 40)))
    y_true = rng.integers(0, 5, len(qid)) * (rng.random(len(qid)) < 0.3)
    y_score = rng.integers(0, 12, len(qid)) / 4 + 0.2 * y_true.round()
    return y_true, y_score, qid


def by_loop(slow, y_true, y_score, qid, **options):
    queries = sorted(set(qid.tolist()))
    values = [slow(y_true[qid == q], y_score[qid == q], **options) for q in queries]
    return queries, values


@pytest.mark.parametrize("k", [None, 1, 3, 10, 100])
@pytest.mark.parametrize("measure", BY_QUERY)
def test_equals_loop_over_queries(data, measure, k):
    expected_queries, expected = by_loop(SLOW[measure], *data, k=k)
    queries, values = measure(*data, k=k)
    np.testing.assert_array_equal(queries, expected_queries)
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    assert np.isnan(values).any()
    assert np.nanmin(values) >= 0
    assert np.nanmax(values) <= 1 + 1e-12


@pytest.mark.parametrize("threshold", [1, 2.5, -1])
@pytest.mark.parametrize("measure", BY_QUERY[1:])
def test_threshold(data, measure, threshold):
    _, expected = by_loop(SLOW[measure], *data, k=5, threshold=threshold)
    _, values = measure(*data, k=5, threshold=threshold)
    np.testing.assert_allclose(values, expected, rtol=1e-12)


@pytest.mark.parametrize(("mean", "by_query"), list(zip(MEANS, BY_QUERY, strict=True)))
def test_means_and_queries_without_relevant_document(data, mean, by_query):
    _, values = by_query(*data)
    missing = np.isnan(values)
    assert mean(*data) == pytest.approx(values[~missing].mean())
    assert mean(*data, no_relevant="zero") == pytest.approx(np.where(missing, 0, values).mean())
    assert mean(*data, no_relevant="one") == pytest.approx(np.where(missing, 1, values).mean())
    assert type(mean(*data)) is float


@pytest.mark.parametrize("k", [None, 2, 10])
def test_ndcg_equals_scikit_learn(k):
    rng = np.random.default_rng(1)
    grades = rng.integers(0, 5, size=(30, 15))
    grades[:, 0] = 1
    scores = rng.normal(size=grades.shape)
    qid = np.repeat(np.arange(30), 15)
    expected = ndcg_score(2.0**grades - 1, scores, k=k)
    assert mean_ndcg(grades.ravel(), scores.ravel(), qid, k) == pytest.approx(expected)


def test_average_precision_equals_scikit_learn():
    rng = np.random.default_rng(2)
    relevant = rng.random((30, 15)) < 0.4
    relevant[:, 0] = True
    scores = rng.normal(size=relevant.shape)
    qid = np.repeat(np.arange(30), 15)
    result = mean_average_precision(relevant.ravel(), scores.ravel(), qid)
    assert result == pytest.approx(label_ranking_average_precision_score(relevant, scores))
    _, values = average_precision_by_query(relevant.ravel(), scores.ravel(), qid)
    expected = [average_precision_score(*query) for query in zip(relevant, scores, strict=True)]
    np.testing.assert_allclose(values, expected)


def test_reciprocal_rank_equals_label_ranking_with_one_relevant():
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(30, 15))
    relevant = np.eye(15, dtype=int)[rng.integers(0, 15, 30)]
    result = mrr(relevant.ravel(), scores.ravel(), np.repeat(np.arange(30), 15))
    assert result == pytest.approx(label_ranking_average_precision_score(relevant, scores))


@pytest.mark.parametrize("measure", MEANS)
def test_the_order_of_the_rows_does_not_matter_without_ties(data, measure):
    y_true, _, qid = data
    rng = np.random.default_rng(4)
    y_score = rng.normal(size=len(qid))
    order = rng.permutation(len(qid))
    shuffled = measure(y_true[order], y_score[order], qid[order])
    assert shuffled == pytest.approx(measure(y_true, y_score, qid), rel=1e-12)


@pytest.mark.parametrize("measure", MEANS)
def test_only_the_order_of_the_scores_matters(data, measure):
    y_true, y_score, qid = data
    assert measure(y_true, np.exp(3 * y_score) - 7, qid) == measure(y_true, y_score, qid)


@pytest.mark.parametrize("measure", MEANS)
def test_perfect_order_gives_exactly_one(data, measure):
    y_true, _, qid = data
    assert measure(y_true, y_true, qid) == 1.0


def test_equal_scores_rank_in_the_order_of_the_input():
    assert mrr([0, 0, 1], [1, 1, 1]) == pytest.approx(1 / 3)
    assert mrr([1, 0, 0], [1, 1, 1]) == 1.0
    assert mean_average_precision([0, 1], [0.0, -0.0]) == 0.5
    assert mean_ndcg([0, 1], [5, 5]) == pytest.approx(1 / math.log2(3))


@pytest.mark.parametrize("measure", BY_QUERY)
def test_kinds_of_query_ids(data, measure):
    y_true, y_score, qid = data
    queries, values = measure(y_true, y_score, qid)
    names = np.array([f"q{q + 2000}" for q in qid])
    for other in (names, names.astype(object), names.tolist()):
        named, same = measure(y_true, y_score, other)
        assert list(named) == [f"q{q + 2000}" for q in queries]
        np.testing.assert_array_equal(same, values)


@pytest.mark.parametrize("measure", BY_QUERY)
def test_no_query_ids_is_one_query(measure):
    y_true, y_score = [0, 2, 1, 0, 1], [5, 4, 3, 2, 1]
    queries, values = measure(y_true, y_score)
    assert queries.tolist() == [0]
    np.testing.assert_array_equal(values, measure(y_true, y_score, ["x"] * 5)[1])
    np.testing.assert_allclose(values, [SLOW[measure](y_true, y_score)])


def test_single_document():
    assert mean_ndcg([3], [0.5]) == 1.0
    assert mean_average_precision([3], [0.5]) == 1.0
    assert mrr([3], [0.5]) == 1.0


@pytest.mark.parametrize(
    "grades", [[1029, 1030, 1028], [5000, 4999, 0], [60, 1, 64], [2.5, 3.1, 0]]
)
def test_large_and_fractional_grades(grades):
    if all(isinstance(g, int) for g in grades):
        gains = [Fraction(2**g - 1, 2 ** max(grades)) for g in grades]
    else:
        gains = [2**g - 1 for g in grades]
    discounts = [1 / math.log2(i + 2) for i in range(3)]
    achieved = sum(float(g) * d for g, d in zip(gains, discounts, strict=True))
    best = sum(float(g) * d for g, d in zip(sorted(gains, reverse=True), discounts, strict=True))
    assert mean_ndcg(grades, [3, 2, 1]) == pytest.approx(achieved / best, rel=1e-13)


def test_tiny_grades_lose_no_digits():
    # For small grades the gain is proportional to the grade.
    expected = mean_ndcg([1e-5, 3e-5, 2e-5], [3, 2, 1])
    assert mean_ndcg([1e-13, 3e-13, 2e-13], [3, 2, 1]) == pytest.approx(expected, rel=1e-4)
    linear = ndcg_score([[1.0, 3.0, 2.0]], [[3, 2, 1]])
    assert mean_ndcg([1e-13, 3e-13, 2e-13], [3, 2, 1]) == pytest.approx(linear, rel=1e-12)


def test_grades_of_one_query_do_not_touch_another():
    qid = [0, 0, 1, 1]
    _, alone = ndcg_by_query([0, 1], [2, 1])
    _, together = ndcg_by_query([0, 1, 0, 4000], [2, 1, 1, 2], qid)
    np.testing.assert_array_equal(together, [alone[0], 1.0])


@pytest.mark.parametrize("measure", MEANS)
def test_data_frame_columns(data, measure):
    pandas = pytest.importorskip("pandas")
    y_true, y_score, qid = data
    frame = pandas.DataFrame({"y": y_true, "s": y_score, "q": qid}, index=np.arange(len(qid))[::-1])
    assert measure(frame["y"], frame["s"], frame["q"]) == measure(*data)
    categories = frame["q"].astype(str).astype("category")
    assert measure(frame["y"], frame["s"], categories) == pytest.approx(measure(*data))


# Bad input


@pytest.mark.parametrize("measure", MEANS + BY_QUERY)
@pytest.mark.parametrize(
    ("y_true", "y_score", "qid", "message"),
    [
        ([0, np.nan], [1, 2], None, "y_true must be finite"),
        ([0, 1], [1, np.nan], None, "y_score must be finite"),
        ([0, np.inf], [1, 2], None, "y_true must be finite"),
        ([0, 1], [1, -np.inf], None, "y_score must be finite"),
        ([0, -1], [1, 2], None, "y_true must not be negative"),
        ([], [], None, "y_true must not be empty"),
        ([0, 1], [1], None, "y_score must have one entry per row: expected 2, got 1"),
        ([[0, 1]], [[1, 2]], None, "y_true must be one-dimensional"),
        ([0, 1], [[1], [2]], None, "y_score must be one-dimensional"),
        ([0, 1], [1, 2], [0], "qid must have one entry per row: expected 2, got 1"),
        ([0, 1], [1, 2], [[0], [0]], "qid must be one-dimensional"),
        ([0, 1], [1, 2], [0, np.nan], "qid must not contain NaN"),
    ],
)
def test_bad_values(measure, y_true, y_score, qid, message):
    with pytest.raises(ValueError, match=message):
        measure(y_true, y_score, qid)


@pytest.mark.parametrize("measure", MEANS + BY_QUERY)
def test_bad_types(measure):
    with pytest.raises(TypeError, match="y_true must hold numbers"):
        measure(["good", "bad"], [1, 2])
    with pytest.raises(TypeError, match="y_score must hold numbers"):
        measure([0, 1], [None, {}])
    with pytest.raises(TypeError, match="y_score must hold numbers"):
        measure([0, 1], np.array([1j, 2], dtype=object))
    with pytest.raises(TypeError, match="qid must be all numbers or all strings"):
        measure([0, 1], [1, 2], np.array(["a", None], dtype=object))


@pytest.mark.parametrize("measure", MEANS + BY_QUERY)
def test_bad_k(measure):
    with pytest.raises(ValueError, match="k must be at least 1"):
        measure([0, 1], [1, 2], k=0)
    with pytest.raises(TypeError, match="k must be a positive integer"):
        measure([0, 1], [1, 2], k=1.5)


@pytest.mark.parametrize("measure", MEANS[1:] + BY_QUERY[1:])
@pytest.mark.parametrize("threshold", [np.nan, np.inf, "1", None])
def test_bad_threshold(measure, threshold):
    with pytest.raises(ValueError, match="threshold must be a finite number"):
        measure([0, 1], [1, 2], threshold=threshold)


@pytest.mark.parametrize("measure", MEANS)
def test_bad_no_relevant_and_nothing_to_average(measure):
    with pytest.raises(ValueError, match="no_relevant must be"):
        measure([0, 1], [1, 2], no_relevant="drop")
    with pytest.raises(ValueError, match="no_relevant must be"):
        measure([0, 1], [1, 2], no_relevant=np.array(["zero", "one"]))
    with pytest.raises(ValueError, match="y_true: no query has a relevant document"):
        measure([0, 0], [1, 2], [0, 1])
    assert measure([0, 0], [1, 2], [0, 1], no_relevant="zero") == 0.0
    assert measure([0, 0], [1, 2], [0, 1], no_relevant="one") == 1.0
