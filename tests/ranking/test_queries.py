import numpy as np
import pytest
from scipy.stats import rankdata

from skdml.ranking import _views
from skdml.ranking._documents import group_rows
from skdml.ranking._views import Normalizer, column_scale

pytestmark = pytest.mark.filterwarnings("error")

NORMALIZE = ["query", "column", "both", None]


def scale_for(normalize, X):
    return column_scale(X) if normalize in ("column", "both") else None


# Rows of five queries, mixed, of 1 to 6 documents.
QID = np.array([4, 2, 4, 7, 2, 4, 4, 1, 2, 4, 9, 9, 4, 2])


def make_X(n_features=4, seed=0):
    X = np.random.default_rng(seed).standard_normal((len(QID), n_features))
    X[:, 0] = np.round(X[:, 0])  # with ties
    X[QID == 2, 1] = 3.7  # the same for all documents of a query
    return X


def obvious_places(rows, documents, normalize, scale):
    """Features of rows relative to documents, value by value."""
    out = []
    for row in rows:
        z_scores, ranks = [], []
        for j, value in enumerate(row):
            column = documents[:, j]
            same = bool((column == column[0]).all())
            z_scores.append(0.0 if same else (value - column.mean()) / column.std())
            below, equal = np.sum(column < value), np.sum(column == value)
            ranks.append((2 * below + equal) / len(column) - 1)
        within = [z_scores, _views._RANK_SCALE * np.array(ranks)]
        if normalize == "query":
            parts = within
        elif normalize == "both":
            parts = [*within, row / scale]
        else:
            parts = [row / scale if normalize == "column" else row]
        out.append(np.concatenate(parts))
    return np.array(out)


def features_of(X, qid, normalize="query", scale=None):
    """The features in the order of the input."""
    queries = group_rows(qid, len(X))
    features = Normalizer(normalize, scale).features(X, queries)
    return features[np.argsort(queries.order)]


def z_scores_and_ranks(values, qid=None):
    """Of one feature; the ranks without their scale."""
    z_scores, ranks = features_of(np.asarray(values, dtype=float)[:, None], qid).T
    return z_scores, ranks / _views._RANK_SCALE


# Groups of rows


def test_queries_come_in_the_order_of_their_first_rows():
    queries = group_rows(QID, len(QID))
    assert queries.ids.tolist() == [4, 2, 7, 1, 9]
    assert queries.sizes.tolist() == [6, 4, 1, 1, 2]
    for number, name in enumerate(queries.ids):
        assert queries.rows(number).tolist() == np.flatnonzero(name == QID).tolist()


@pytest.mark.parametrize(
    "rename",
    [
        lambda q: -q,
        lambda q: q + 0.5,
        lambda q: [f"query {9 - i}" for i in q],
        lambda q: np.array([str(i) for i in q], dtype=object),
    ],
)
def test_names_of_queries_do_not_matter(rename):
    expected, renamed = group_rows(QID, len(QID)), group_rows(rename(QID), len(QID))
    assert np.array_equal(renamed.order, expected.order)
    assert np.array_equal(renamed.starts, expected.starts)


def test_no_qid_is_one_query():
    queries = group_rows(None, 5)
    assert queries.sizes.tolist() == [5]
    assert queries.rows(0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("qid", "error", "message"),
    [
        ([1, 2], ValueError, "qid_val must have one entry per row: expected 3, got 2"),
        ([[1], [2], [3]], ValueError, "qid_val must be one-dimensional"),
        ([1, np.nan, 2], ValueError, "qid_val must not contain NaN"),
        (np.array([1, "a", None], dtype=object), TypeError, "qid_val must be all numbers or"),
    ],
)
def test_bad_qid_is_named(qid, error, message):
    with pytest.raises(error, match=message):
        group_rows(qid, 3, "qid_val")


# Z-scores and ranks


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_z_scores_against_their_definition(offset):
    values = offset + np.random.default_rng(0).normal(5, 3, len(QID))
    z_scores, _ = z_scores_and_ranks(values, QID)
    for query in (4, 2, 9):
        own = values[query == QID]
        expected = (own - own.mean()) / own.std()
        np.testing.assert_allclose(z_scores[query == QID], expected, atol=1e-10)


@pytest.mark.parametrize("value", [0.0, 0.1, -3.7, 1e300, 1e-300, 1 / 3])
@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_equal_values_have_no_deviation(value, size):
    z_scores, ranks = z_scores_and_ranks(np.full(size, value))
    assert (z_scores == 0).all()
    assert (ranks == 0).all()


@pytest.mark.parametrize("size", [1e300, 1.7e308, 1e-300, 1e-12])
def test_z_scores_of_huge_and_tiny_values(size):
    values = np.array([1.0, -1.0, 0.5, 0.0, 0.25])
    found, expected = z_scores_and_ranks(values * size), z_scores_and_ranks(values)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n_distinct", [1, 2, 4, 1000])
def test_ranks_equal_scipys(n_distinct):
    rng = np.random.default_rng(0)
    qid = rng.permutation(np.repeat(np.arange(9), [1, 2, 5, 30, 5, 5, 2, 1, 30]))
    values = rng.integers(0, n_distinct, len(qid)).astype(float)
    _, ranks = z_scores_and_ranks(values, qid)
    for query in range(9):
        own = values[qid == query]
        expected = (2 * rankdata(own) - 1) / len(own) - 1
        np.testing.assert_allclose(ranks[qid == query], expected, atol=1e-12)


def test_equal_values_at_the_border_of_queries_or_features_share_no_rank():
    X = np.array([[0.0, 5.0], [5.0, 7.0], [5.0, 9.0], [5.0, 9.0]])
    qid = [0, 0, 1, 1]
    ranks = features_of(X, qid)[:, 2:] / _views._RANK_SCALE
    np.testing.assert_allclose(ranks, [[-0.5, -0.5], [0.5, 0.5], [0, 0], [0, 0]])


@pytest.mark.parametrize("size", [2, 3, 40, 5000])
def test_values_that_differ_in_their_last_bits_have_ranks_of_their_own(size):
    steps = np.random.default_rng(0).permutation(size)
    for values in (1.0 + steps * np.finfo(float).eps, -1e300 * (1 + steps * 2e-16), steps * 5e-324):
        _, ranks = z_scores_and_ranks(values)
        np.testing.assert_allclose(ranks, (2 * rankdata(values) - 1) / size - 1, atol=1e-12)


def test_zero_and_minus_zero_are_equal():
    _, ranks = z_scores_and_ranks([0.0, -0.0, 5e-324, 0.0, -5e-324, -0.0])
    np.testing.assert_allclose(ranks, [0, 0, 5 / 6, 0, -5 / 6, 0], atol=1e-15)


def test_ranks_are_symmetric_and_below_one():
    values = np.random.default_rng(0).standard_normal(9)
    _, ranks = z_scores_and_ranks(values)
    np.testing.assert_allclose(z_scores_and_ranks(-values)[1], -ranks, atol=1e-15)
    assert np.abs(ranks).max() < 1
    assert ranks.sum() == pytest.approx(0)


def test_ranks_have_about_the_variance_of_z_scores():
    features = features_of(np.random.default_rng(0).standard_normal((1000, 1)), None)
    np.testing.assert_allclose(features.std(axis=0), 1, rtol=1e-3)


# Features


@pytest.mark.parametrize("normalize", NORMALIZE)
def test_features_against_obvious_loops(normalize):
    X = make_X()
    scale = scale_for(normalize, X)
    features = features_of(X, QID, normalize, scale)
    for query in np.unique(QID):
        documents = X[query == QID]
        expected = obvious_places(documents, documents, normalize, scale)
        np.testing.assert_allclose(features[query == QID], expected, atol=1e-12)


@pytest.mark.parametrize("normalize", ["query", "both"])
def test_one_document_has_zero_z_scores_and_ranks(normalize):
    X = make_X()
    features = features_of(X, QID, normalize, scale_for(normalize, X))
    alone = np.isin(QID, [7, 1])
    assert (features[alone, :8] == 0).all()
    assert (features[~alone, :8] != 0).any()


@pytest.mark.parametrize("size", [1.0, 1e30, 1e-30])
def test_features_of_a_query_do_not_depend_on_other_queries(size):
    """Not even if those have values of quite another size."""
    X = make_X()
    X[QID == 4] *= size
    together = features_of(X, QID)
    for query in np.unique(QID):
        own = query == QID
        np.testing.assert_allclose(features_of(X[own], None), together[own], atol=1e-10)


def test_features_do_not_depend_on_the_units_of_columns():
    X = make_X()
    expected = features_of(X, QID)
    for factor, offset in [(1e300, 0), (1e-300, 0), (7.0, 1e3)]:
        np.testing.assert_allclose(features_of(X * factor + offset, QID), expected, atol=1e-9)


@pytest.mark.parametrize("normalize", NORMALIZE)
def test_unit_is_a_factor_of_all_features(normalize):
    X = make_X()
    queries, scale = group_rows(QID, len(X)), scale_for(normalize, X)
    expected = 0.3 * Normalizer(normalize, scale).features(X, queries)
    found = Normalizer(normalize, scale, unit=0.3).features(X, queries)
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize("normalize", ["query", "both"])
@pytest.mark.parametrize("kept", [[], [0], [1], [0, 1]])
def test_features_that_are_not_used_are_not_there(normalize, kept):
    X = make_X()
    queries, scale = group_rows(QID, len(X)), scale_for(normalize, X)
    used = np.zeros((3 if normalize == "both" else 2, 4), dtype=bool)
    used[kept, 1:] = True
    used[2:] = [True, True, False, False]
    expected = Normalizer(normalize, scale).features(X, queries)[:, used.ravel()]
    found = Normalizer(normalize, scale, 1.0, used).features(X, queries)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    documents = X[QID == 4]
    placed = Normalizer(normalize, scale).place(X, documents)[:, used.ravel()]
    found = Normalizer(normalize, scale, used=used).place(X, documents)
    np.testing.assert_allclose(found, placed, atol=1e-12)


def test_features_leave_the_documents_alone():
    X = make_X()
    before = X.copy()
    for normalize in NORMALIZE:
        features_of(X, QID, normalize, scale_for(normalize, X))
    assert np.array_equal(X, before)


def test_column_scale_is_the_root_mean_square():
    X = make_X()
    expected = [np.sqrt(sum(v * v for v in column) / len(column)) for column in X.T]
    np.testing.assert_allclose(column_scale(X), expected, rtol=1e-12)
    np.testing.assert_allclose(column_scale(X * 1e300), np.array(expected) * 1e300, rtol=1e-12)
    np.testing.assert_allclose(column_scale(X * 1e-300), np.array(expected) * 1e-300, rtol=1e-12)


def test_column_scale_of_zeros_is_one():
    assert column_scale(np.array([[0.0, 2.0], [0.0, 2.0]])).tolist() == [1.0, 2.0]


# Rows placed among the documents of a query


def documents_and_rows(n_documents=6):
    rng = np.random.default_rng(0)
    documents, rows = rng.standard_normal((n_documents, 4)), rng.standard_normal((5, 4))
    documents[:, 1] = 3.7  # does not vary
    documents[:, 2] = np.round(documents[:, 2])
    rows[:, 2] = np.round(rows[:, 2])  # ties with the documents
    rows[0] = documents[0]
    rows[1] = 100.0  # outside of their range
    return documents, rows


@pytest.mark.parametrize("normalize", NORMALIZE)
@pytest.mark.parametrize("n_documents", [1, 2, 6])
def test_rows_are_placed_as_obvious_loops_place_them(normalize, n_documents):
    documents, rows = documents_and_rows(n_documents)
    scale = scale_for(normalize, documents)
    placed = Normalizer(normalize, scale).place(rows, documents)
    expected = obvious_places(rows, documents, normalize, scale)
    np.testing.assert_allclose(placed, expected, atol=1e-12)


@pytest.mark.parametrize("normalize", NORMALIZE)
def test_documents_placed_among_themselves_have_their_features(normalize):
    documents, _ = documents_and_rows()
    scale = scale_for(normalize, documents)
    expected = Normalizer(normalize, scale).features(documents, group_rows(None, len(documents)))
    placed = Normalizer(normalize, scale).place(documents, documents)
    np.testing.assert_allclose(placed, expected, atol=1e-12)


def test_placed_rows_do_not_change_each_other():
    documents, rows = documents_and_rows()
    candidates = documents
    together = Normalizer("query", None).place(rows, candidates)
    for row, expected in zip(rows, together, strict=True):
        alone = Normalizer("query", None).place(row[None], candidates)[0]
        np.testing.assert_allclose(alone, expected, atol=1e-12)


@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_rows_among_huge_and_tiny_documents(size):
    documents, rows = documents_and_rows()
    expected = Normalizer("query", None).place(rows, documents)
    placed = Normalizer("query", None).place(rows * size, documents * size)
    np.testing.assert_allclose(placed, expected, atol=1e-9)
