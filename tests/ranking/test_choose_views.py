import numpy as np
import pytest
from scipy.stats import ttest_1samp

from skdml import LocalGMMLRanker
from skdml.ranking import _views
from skdml.ranking._views import choose_views
from tests.ranking.ranking_toys import sort_documents

pytestmark = pytest.mark.filterwarnings("error")


def make_problem(n_queries=60, n_documents=15, n_noise=40, seed=0):
    """Grades that follow the first feature and the square of the second; the third never varies."""
    rng = np.random.default_rng(seed)
    qid = np.repeat(np.arange(n_queries), n_documents)
    X = rng.standard_normal((len(qid), 3 + n_noise))
    X[:, 2] = 0.0
    y = np.clip(np.round(X[:, 0] - X[:, 1] ** 2 + rng.standard_normal(len(qid))), 0, 4)
    return X, y, qid


def choose(X, y, qid):
    """Choose among features that have no ranks."""
    used = choose_views(sort_documents(X, y, qid), known(X.shape[1], ranks=False))
    assert not used[1].any()
    return used[0]


def known(n_features, n_views=2, ranks=True):
    there = np.ones((n_views, n_features), dtype=bool)
    there[1] = ranks
    return there


def test_noise_is_left_out():
    chosen = choose(*make_problem())
    assert chosen[:2].all()
    assert not chosen[2]
    assert chosen[3:].sum() <= 4


def test_choice_against_tests_written_out():
    X, y, qid = make_problem(n_noise=20)
    p = np.ones(23)
    for j in (j for j in range(23) if j != 2):
        for values in (X[:, j], X[:, j] ** 2):
            found = []
            for query in np.unique(qid):
                own = qid == query
                if len(set(y[own])) > 1:
                    grades = y[own] - y[own].mean()
                    found.append(grades @ values[own] / np.linalg.norm(grades))
            p[j] = min(p[j], ttest_1samp(found, 0).pvalue)
    share = _views._FALSE_SHARE
    bound = max(q for k, q in enumerate(sorted(p), 1) if q <= share * k / len(p))
    np.testing.assert_array_equal(choose(X, y, qid), p <= bound)


def test_the_better_view_is_used():
    X, y, qid = make_problem()
    worse = X + np.random.default_rng(1).standard_normal(X.shape)
    first = choose_views(sort_documents(np.hstack([X, worse, X]), y, qid), known(43, 3))
    second = choose_views(sort_documents(np.hstack([worse, X, X]), y, qid), known(43, 3))
    assert first[:, :2].tolist() == [[True, True], [False, False], [True, True]]
    assert second[:, :2].tolist() == [[False, False], [True, True], [True, True]]
    for used in (first, second):  # other views are those of the chosen features
        np.testing.assert_array_equal(used[0] ^ used[1], used[2])


def test_equal_views_need_no_ranks():
    X, y, qid = make_problem()
    used = choose_views(sort_documents(np.hstack([X, X]), y, qid), known(43))
    assert used[0, :2].all()
    assert not used[1].any()


def test_features_that_all_matter_are_all_chosen():
    rng = np.random.default_rng(0)
    qid = np.repeat(np.arange(100), 10)
    X = rng.standard_normal((1000, 8))
    y = np.clip(np.round(X.sum(axis=1)), 0, 4)
    assert choose(X, y, qid).all()


def test_unit_of_features_and_grades_does_not_matter():
    X, y, qid = make_problem()
    expected = choose(X, y, qid)
    for unit, grade in ((1e-6, 1.0), (1e6, 1e300), (1.0, 1e-12)):
        np.testing.assert_array_equal(choose(unit * X, grade * y, qid), expected)


def test_a_feature_that_is_the_same_good_one_in_every_query_is_chosen():
    X = np.tile([[1.0, 0.0], [-1.0, 0.0]], (20, 1))
    found = choose(X, np.tile([1, 0], 20), np.repeat(np.arange(20), 2))
    assert found.tolist() == [True, False]


@pytest.mark.parametrize("n_queries", [1, 2, 9])
def test_few_queries_choose_everything(n_queries):
    assert choose(*make_problem(n_queries)).all()


def test_nothing_to_choose_is_everything():
    X, y, qid = make_problem()
    assert choose(np.zeros_like(X), y, qid).all()


# The estimator


@pytest.mark.parametrize("normalize", ["query", "both"])
def test_features_that_are_left_out_do_not_matter(normalize):
    X, y, qid = make_problem()
    X[:, 2] = 1.1
    ranker = LocalGMMLRanker(
        2, linear=False, normalize=normalize, max_epochs=3, random_state=0
    ).fit(X, y, qid)
    left_out = ~ranker.support_
    assert left_out[2]
    assert left_out.sum() > 30
    n_views = {"query": 1, "both": 2}[normalize]
    assert ranker.anchors_.shape == (4, n_views * ranker.support_.sum())
    other = X.copy()
    other[:, left_out] = np.random.default_rng(1).standard_normal((len(X), left_out.sum()))
    np.testing.assert_array_equal(ranker.predict(other, qid), ranker.predict(X, qid))
    for query in (X[:1], X):
        np.testing.assert_array_equal(
            ranker.predict(other, qid, query=query), ranker.predict(X, qid, query=query)
        )


@pytest.mark.parametrize("normalize", ["column", None])
def test_features_as_they_are_are_all_used(normalize):
    X, y, qid = make_problem()
    ranker = LocalGMMLRanker(
        2, linear=False, normalize=normalize, max_epochs=1, random_state=0
    ).fit(X, y, qid)
    assert ranker.support_.all()


@pytest.mark.parametrize("query_weights", ["per-query", "neighbours"])
def test_validation_and_own_weights_with_features_left_out(query_weights):
    X, y, qid = make_problem()
    ranker = LocalGMMLRanker(
        2, linear=False, query_weights=query_weights, max_epochs=3, random_state=0
    )
    ranker.fit(X, y, qid, X_val=X, y_val=y, qid_val=qid)
    best = np.argmin(ranker.history_["validation_loss"])
    assert 0.5 < ranker.history_["ndcg"][best] <= 1
    assert np.isfinite(ranker.predict(X, qid + 100)).all()
