"""LocalGMMLRanker in use: query by example, grid searches, bad input, real data."""

import numpy as np
import pytest
import sklearn
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.fixes import parse_version

from skdml import LocalGMMLRanker
from skdml.datasets import make_ranking
from skdml.metrics import mean_average_precision, mean_ndcg

pytestmark = pytest.mark.filterwarnings("error:::skdml")


@pytest.fixture(scope="module")
def data():
    return make_ranking(30, 12, 5, random_state=0)


def quick(**params):
    return LocalGMMLRanker(
        **{"n_metrics": 2, "linear": False, "max_epochs": 5, "random_state": 0} | params
    )


# Query by example


def digit_lists(X, y, rows, n_queries, n_candidates, seed):
    """For some digits each a list of others, relevant if they show the same."""
    rng = np.random.default_rng(seed)
    documents, grades, qid, examples = [], [], [], []
    for query in rng.choice(rows, n_queries, replace=False):
        candidates = rng.choice(np.setdiff1d(rows, [query]), n_candidates, replace=False)
        documents.append(X[candidates])
        grades.append(y[candidates] == y[query])
        qid += [query] * n_candidates
        examples.append(np.tile(X[query], (n_candidates, 1)))
    return np.vstack(documents), np.hstack(grades), np.array(qid), np.vstack(examples)


def test_query_by_example_on_digits_beats_euclidean_distance():
    X, y = load_digits(return_X_y=True)
    train, grades, qid, _ = digit_lists(X, y, np.arange(900), 120, 40, seed=0)
    ranker = quick(n_metrics=4, normalize=None).fit(train, grades, qid)
    test, relevant, qid, examples = digit_lists(X, y, np.arange(900, len(X)), 120, 100, seed=1)
    scores = ranker.predict(test, qid, query=examples)
    euclidean = -np.linalg.norm(test - examples, axis=1)
    for measure in (mean_ndcg, mean_average_precision):
        assert measure(relevant, scores, qid) > measure(relevant, euclidean, qid) + 0.03


@pytest.mark.parametrize("normalize", ["query", "column", "both", None])
@pytest.mark.parametrize("named", [True, False])
def test_the_query_itself_scores_best(data, normalize, named):
    X, y, qid = data
    ranker = quick(normalize=normalize).fit(X, y, qid if named else None)
    documents = X[qid == 3]
    for number in (0, 5):
        scores = ranker.predict(documents, query=documents[number : number + 1])
        assert np.argmax(scores) == number
        assert scores[number] == pytest.approx(0, abs=1e-12)
        assert (np.delete(scores, number) < 0).all()


@pytest.mark.parametrize("normalize", ["query", None])
def test_one_query_row_for_all_or_one_for_each(data, normalize):
    X, y, qid = data
    ranker = quick(normalize=normalize).fit(X, y, qid)
    query = X[7:8] + 0.1
    for_all = ranker.predict(X, qid, query=query)
    for_each = ranker.predict(X, qid, query=np.tile(query, (len(X), 1)))
    np.testing.assert_allclose(for_all, for_each, atol=1e-10)
    mixed = np.random.default_rng(0).permutation(len(X))
    examples = np.random.default_rng(1).standard_normal(X.shape)
    np.testing.assert_allclose(
        ranker.predict(X[mixed], qid[mixed], query=examples[mixed]),
        ranker.predict(X, qid, query=examples)[mixed],
        atol=1e-8,
    )


def test_query_by_example_with_the_thesis_kernel(data):
    X, y, qid = data
    for query_weights in ("shared", "per-query"):
        ranker = quick(kernel="damped", loss="warp", query_weights=query_weights, max_epochs=30)
        scores = ranker.fit(X, y, qid).predict(X, qid, query=X[:1])
        assert np.isfinite(scores).all()


# Grid searches


def test_grid_search_over_queries(data):
    X, y, qid = data
    with sklearn.config_context(enable_metadata_routing=True):
        ranker = quick().set_fit_request(qid=True).set_score_request(qid=True)
        search = GridSearchCV(ranker, {"normalize": ["query", None]}, cv=GroupKFold(3))
        search.fit(X, y, qid=qid, groups=qid)
        for row, normalize in enumerate(["query", None]):
            for fold, (train, test) in enumerate(GroupKFold(3).split(X, y, qid)):
                model = quick(normalize=normalize).fit(X[train], y[train], qid[train])
                expected = model.score(X[test], y[test], qid[test])
                assert search.cv_results_[f"split{fold}_test_score"][row] == pytest.approx(expected)
        assert search.score(X, y, qid=qid) > 0.6


@pytest.mark.skipif(
    parse_version(sklearn.__version__) < parse_version("1.8"),
    reason="a pipeline's requests for metadata do not reach its score in this scikit-learn",
)
def test_grid_search_of_a_pipeline(data):
    X, y, qid = data
    with sklearn.config_context(enable_metadata_routing=True):
        ranker = quick(normalize=None).set_fit_request(qid=True).set_score_request(qid=True)
        search = GridSearchCV(
            make_pipeline(StandardScaler(), ranker),
            {"localgmmlranker__n_metrics": [1, 3]},
            cv=GroupKFold(3),
            error_score="raise",
        )
        search.fit(X, y, qid=qid, groups=qid)
        train, test = next(GroupKFold(3).split(X, y, qid))
        scaler = StandardScaler().fit(X[train])
        model = quick(normalize=None, n_metrics=1)
        model.fit(scaler.transform(X[train]), y[train], qid[train])
        expected = model.score(scaler.transform(X[test]), y[test], qid[test])
        assert search.score(X, y, qid=qid) > 0.6
        assert search.cv_results_["split0_test_score"][0] == pytest.approx(expected)


def test_validation_queries_and_examples_are_routed(data):
    X, y, qid = data
    train = qid < 20
    with sklearn.config_context(enable_metadata_routing=True):
        ranker = quick().set_fit_request(qid=True, X_val=True, y_val=True, qid_val=True)
        pipeline = make_pipeline(
            ranker.set_predict_request(qid=True, query=True).set_score_request(qid=True)
        )
        validation = {"X_val": X[~train], "y_val": y[~train], "qid_val": qid[~train]}
        pipeline.fit(X[train], y[train], qid=qid[train], **validation)
        direct = quick().fit(X[train], y[train], qid[train], **validation)
        np.testing.assert_array_equal(
            pipeline.predict(X, qid=qid, query=X[:1]), direct.predict(X, qid, query=X[:1])
        )


# The score


def test_score_is_the_mean_ndcg_of_queries_with_a_relevant_document(data):
    X, y, qid = data
    ranker = quick().fit(X, y, qid)
    y = np.where(qid < 5, 0, y)
    by_query = [mean_ndcg(y[qid == q], ranker.predict(X, qid)[qid == q]) for q in range(5, 30)]
    assert ranker.score(X, y, qid) == pytest.approx(np.mean(by_query))
    weight = np.random.default_rng(0).random(len(y))
    own = [weight[qid == q].mean() for q in range(5, 30)]
    expected = np.average(by_query, weights=own)
    assert ranker.score(X, y, qid, sample_weight=weight) == pytest.approx(expected)
    names = [f"query {q}" for q in qid]
    assert ranker.score(X, y, names, sample_weight=weight) == pytest.approx(expected)
    one = qid == 7
    alone = ranker.score(X[one], y[one], "single", sample_weight=weight[one])
    assert alone == pytest.approx(by_query[2])


def test_bad_weights_are_named(data):
    X, y, qid = data
    ranker = quick().fit(X, y, qid)
    for weight, message in [
        (np.ones(3), "sample_weight must have one entry per row: expected 360, got 3"),
        (-np.ones(360), "sample_weight must not be negative"),
        (np.full(360, np.nan), "sample_weight must be finite"),
        (np.zeros(360), "sample_weight is zero for every query"),
    ]:
        with pytest.raises(ValueError, match=message):
            ranker.score(X, y, qid, sample_weight=weight)
    nested = np.zeros(360, "f8, i8").astype(object)  # of tuples
    with pytest.raises(TypeError, match="sample_weight must hold numbers, got dtype object"):
        ranker.score(X, y, qid, sample_weight=nested)


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_metrics": 0}, "'n_metrics' parameter"),
        ({"kernel": "linear"}, "'kernel' parameter"),
        ({"loss": "hinge"}, "'loss' parameter"),
        ({"normalize": "rows"}, "'normalize' parameter"),
        ({"query_weights": "own"}, "'query_weights' parameter"),
        ({"reg": -1.0}, "'reg' parameter"),
        ({"max_epochs": 0}, "'max_epochs' parameter"),
        ({"early_stopping": "yes"}, "'early_stopping' parameter"),
    ],
)
def test_bad_parameters_are_named(data, change, message):
    with pytest.raises(ValueError, match=message):
        quick(**change).fit(*data)


def with_nan(X):
    X = X.copy()
    X[2, 1] = np.nan
    return X


def with_infinity(X):
    return np.where(np.isnan(with_nan(X)), np.inf, X)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y, q: {"y": None}, "requires y to be passed"),
        (lambda X, y, q: {"y": y[:-1]}, "y must have one entry per row: expected 360, got 359"),
        (lambda X, y, q: {"y": y - 1.0}, "y must not be negative"),
        (lambda X, y, q: {"y": np.where(y > 1, np.nan, y)}, "y must be finite"),
        (lambda X, y, q: {"y": np.ones(360)}, "y: no query has documents of different relevance"),
        (lambda X, y, q: {"qid": q[:-1]}, "qid must have one entry per row: expected 360, got 359"),
        (lambda X, y, q: {"qid": np.where(q > 1, np.nan, q)}, "qid must not contain NaN"),
        (lambda X, y, q: {"qid": np.arange(360)}, "y: no query has documents of different"),
        (lambda X, y, q: {"X": with_infinity(X)}, "X contains infinity"),
        (lambda X, y, q: {"y_val": y}, "without X_val"),
        (lambda X, y, q: {"qid_val": q}, "without X_val"),
        (lambda X, y, q: {"X_val": X}, "requires y_val to be passed"),
        (lambda X, y, q: {"X_val": X, "y_val": y[:-1]}, "y_val must have one entry per row"),
        (lambda X, y, q: {"X_val": X, "y_val": y - 1.0}, "y_val must not be negative"),
        (lambda X, y, q: {"X_val": X, "y_val": 0 * y}, "y_val: no query has documents"),
        (lambda X, y, q: {"X_val": X, "y_val": y, "qid_val": q[1:]}, "qid_val must have one entry"),
        (
            lambda X, y, q: {"X_val": with_infinity(X), "y_val": y, "qid_val": q},
            "X_val.* contains inf",
        ),
        (lambda X, y, q: {"X_val": X[:, :3], "y_val": y, "qid_val": q}, "X_val has 3 features"),
    ],
)
def test_bad_documents_are_named(data, change, message):
    X, y, qid = data
    with pytest.raises(ValueError, match=message):
        quick().fit(**{"X": X, "y": y, "qid": qid} | change(X, y, qid))


def test_names_of_queries_must_be_of_one_kind(data):
    X, y, _ = data
    with pytest.raises(TypeError, match="qid must be all numbers or all strings"):
        quick().fit(X, y, np.array(["a", 1] * 180, dtype=object))
    with pytest.raises(TypeError, match="y must hold numbers"):
        quick().fit(X, np.array(["good", "bad"] * 180))


def test_too_small_reg_is_named(data):
    X, y, qid = data
    X = np.hstack([X, np.ones((len(X), 1))])  # a feature that never varies
    with pytest.raises(ValueError, match=r"reg=0.* Raise reg"):
        quick(reg=0, normalize=None).fit(X, y, qid)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X: X[:1, :3], r"query has shape \(1, 3\), expected \(1, 5\) or \(360, 5\)"),
        (lambda X: X[:7], r"query has shape \(7, 5\), expected \(1, 5\) or \(360, 5\)"),
        (lambda X: X[0], "query"),
        (lambda X: [[1.0], [1.0, 2.0]], "query: setting an array element"),
        (lambda X: with_nan(X), "query contains NaN"),
    ],
)
def test_bad_query_rows_are_named(data, change, message):
    X, y, qid = data
    ranker = quick().fit(X, y, qid)
    with pytest.raises(ValueError, match=message):
        ranker.predict(X, qid, query=change(X))


def test_bad_documents_to_score_are_named(data):
    X, y, qid = data
    ranker = quick().fit(X, y, qid)
    with pytest.raises(ValueError, match="X has 3 features"):
        ranker.predict(X[:, :3], qid)
    with pytest.raises(ValueError, match="qid must have one entry per row"):
        ranker.predict(X, qid[1:])
    for wrong, error, message in (
        (y[1:], ValueError, "y must have one entry per row: expected 360, got 359"),
        (y * np.nan, ValueError, "y must be finite"),
        (y - 1.0, ValueError, "y must not be negative"),
        (y + 1j, TypeError, "y must hold numbers, got dtype complex128"),
        ([[1], [1, 2]], ValueError, "y: setting an array element"),
    ):
        with pytest.raises(error, match=message):
            ranker.score(X, wrong, qid)
    assert ranker.score(X, y[:, None], qid) == ranker.score(X, y, qid)


# Real data


@pytest.mark.needs_data
def test_mq2008():
    from benchmarks.data import data_home, load_letor

    if not (data_home() / "letor_mq2008").is_dir():
        pytest.skip("needs the folder letor_mq2008 in the data home (set SKDML_DATA)")
    train, validation, test = (
        load_letor("mq2008", 1, subset) for subset in ("train", "validation", "test")
    )
    ranker = LocalGMMLRanker(random_state=0)
    ranker.fit(*train, **dict(zip(("X_val", "y_val", "qid_val"), validation, strict=True)))
    assert ranker.score(*test) > 0.68


def test_sparse_documents_teach_and_rank_like_dense_ones():
    X, y, qid = make_ranking(30, 10, 6, random_state=0)
    X = np.where(X > 0, X, 0)
    model = LocalGMMLRanker(max_epochs=3, random_state=0).fit(X, y, qid)
    for make in (sparse.csr_array, sparse.csc_matrix, sparse.coo_array):
        again = LocalGMMLRanker(max_epochs=3, random_state=0).fit(make(X), y, qid)
        np.testing.assert_allclose(again.predict(make(X), qid), model.predict(X, qid))
        example = again.predict(make(X), qid, query=make(X[:1]))
        np.testing.assert_allclose(example, model.predict(X, qid, query=X[:1]))


def test_sparse_documents_that_do_not_fit_are_refused():
    X = sparse.csr_array((10_000_000, 100_000))
    with pytest.raises(MemoryError, match=r"X is worked on as a dense array of 10000000 x 100000"):
        LocalGMMLRanker().fit(X, np.zeros(10_000_000))
