"""The linear part and the local metrics beside it: use, weights, missing cells, explanations."""

import numpy as np
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV, GroupKFold

from skdml import LocalGMMLRanker
from skdml.datasets import make_ranking
from skdml.metrics import mean_ndcg
from skdml.ranking import _documents
from skdml.ranking._documents import fit_missing, group_rows
from skdml.ranking._local_gmml_training import choose_weight
from tests.ranking.ranking_toys import sort_documents

pytestmark = pytest.mark.filterwarnings("error")


def quick(**params):
    return LocalGMMLRanker(**{"max_epochs": 3, "random_state": 0} | params)


@pytest.fixture(scope="module")
def data():
    X, y, qid = make_ranking(60, 12, 5, n_centers=1, random_state=0)
    return X, y, qid


@pytest.fixture(scope="module")
def ranker(data):
    return quick().fit(*data)


# Parts


def test_contributions_say_what_each_part_adds(data, ranker):
    found = ranker.contributions_
    assert found["sum"] >= found["linear"]
    assert 0 < found["local"] <= 1
    assert found["weight"] == ranker._local_weight
    assert found["views"] == found["members"][0]["views"]
    shares = [member["share"] for member in found["members"]]
    assert sum(shares) == pytest.approx(1)
    ndcg = [member["ndcg"] for member in found["members"]]
    assert ndcg == sorted(ndcg, reverse=True)
    assert len({len(values) for values in ranker.history_.values()}) == 1


def test_scores_are_the_sum_of_the_parts(data, ranker):
    X, _, qid = data
    again = quick().fit(*data)
    again._local_weight = 0.0
    linear = again.predict(X, qid)
    for weight in (0.5, 1.0):
        again._local_weight = weight
        features = again._normalizer.features(X, group_rows(qid, len(X)))
        local = again._model.scores(features)
        np.testing.assert_allclose(again.predict(X, qid), linear + weight * local, atol=1e-8)


def test_weight_is_zero_where_local_scores_do_not_help():
    rng = np.random.default_rng(0)
    ranked = sort_documents(
        rng.standard_normal((400, 2)), np.tile([2, 1, 0, 0], 100), np.repeat(np.arange(100), 4)
    )
    good = ranked.grades + 0.5 * rng.standard_normal(400)
    object.__setattr__(ranked, "offsets", good)
    assert choose_weight(rng.standard_normal(400), ranked)[0] == 0
    weight, ndcg = choose_weight(ranked.grades.astype(float), ranked)
    assert weight > 0.5
    assert ndcg["sum"] > ndcg["linear"]


def test_few_queries_have_the_linear_part_alone(data):
    X, y, qid = (part[data[2] < 5] for part in data)
    few = quick().fit(X, y, qid)
    assert few.contributions_["weight"] == 0


def test_validation_queries_choose_the_weight(data):
    X, y, qid = data
    train, held = qid < 40, qid >= 40
    given = {"X_val": X[held], "y_val": y[held], "qid_val": qid[held]}
    found = quick().fit(X[train], y[train], qid[train], **given)
    expected = found.score(X[held], y[held], qid[held])
    assert found.contributions_["sum"] == pytest.approx(expected, abs=1e-10)


def test_many_documents_are_sampled(data, monkeypatch):
    X, y, qid = data
    monkeypatch.setattr(_documents, "_MAX_CELLS", 30 * 12 * 5)
    sampled = {n_jobs: quick(n_jobs=n_jobs).fit(X, y, qid) for n_jobs in (1, 2)}
    np.testing.assert_allclose(sampled[1].coef_, sampled[2].coef_, atol=1e-10)
    assert sampled[1].score(X, y, qid) > 0.6
    float32 = quick().fit(X.astype(np.float32), y, qid)
    np.testing.assert_allclose(float32.coef_, sampled[1].coef_, atol=1e-2)


# Queries


def test_frames_teach_and_rank_like_arrays(data, ranker):
    polars = pytest.importorskip("polars")
    X, y, qid = data
    names = [f"query {number}" for number in qid]
    frame = polars.DataFrame(X, schema=[f"f{i}" for i in range(5)])
    found = quick().fit(frame, polars.Series(y), qid=polars.Series(names))
    assert found.feature_names_in_.tolist() == frame.columns
    expected = ranker.predict(X, qid)
    np.testing.assert_array_equal(found.predict(frame, qid=polars.Series(names)), expected)
    score = found.score(frame, polars.Series(y), polars.Series(names))
    assert score == pytest.approx(ranker.score(X, y, qid), abs=1e-12)
    with pytest.raises(ValueError, match="feature names"):
        found.predict(frame.rename({"f0": "other"}), qid=names)


def test_no_qid_after_a_fit_with_qid_is_an_error(data, ranker):
    X, y, qid = data
    for call in (ranker.predict, ranker.explain):
        with pytest.raises(ValueError, match=r"qid='single'.*best_estimator_"):
            call(X)
    with pytest.raises(ValueError, match="pass qid"):
        ranker.score(X, y)
    with pytest.raises(ValueError, match="'single', got 'one'"):
        ranker.predict(X, qid="one")
    one = qid == 3
    expected = ranker.predict(X[one], qid[one])
    np.testing.assert_array_equal(ranker.predict(X[one], qid="single"), expected)


def test_after_a_grid_search(data):
    X, y, qid = data
    with sklearn.config_context(enable_metadata_routing=True):
        asked = quick(max_epochs=1).set_fit_request(qid=True).set_score_request(qid=True)
        search = GridSearchCV(asked, {"n_metrics": [1, 2]}, cv=GroupKFold(2))
        search.fit(X, y, qid=qid, groups=qid)
        assert search.score(X, y, qid=qid) == search.best_estimator_.score(X, y, qid=qid)
    with pytest.raises(ValueError, match=r"search\.best_estimator_\.predict"):
        search.predict(X)
    assert search.best_estimator_.predict(X, qid=qid).shape == y.shape


def test_gains_and_cutoff(data):
    X, y, qid = data
    linear = quick(gains="linear", cutoff=3).fit(X, y, qid)
    scores = linear.predict(X, qid)
    expected = mean_ndcg(y, scores, qid, k=3, gains="linear")
    assert linear.score(X, y, qid) == expected
    assert expected != mean_ndcg(y, scores, qid)
    assert np.isfinite(quick(cutoff=None).fit(X, y, qid).score(X, y, qid))


# Weights of queries


@pytest.mark.parametrize("linear", [True, False])
def test_queries_of_weight_zero_are_not_there(data, linear):
    X, y, qid = data
    weight = np.where(qid % 3 == 0, 0.0, 1.0 + qid % 2)
    there = weight > 0
    weighted = quick(linear=linear).fit(X, y, qid, sample_weight=weight)
    left_out = quick(linear=linear).fit(X[there], y[there], qid[there], sample_weight=weight[there])
    np.testing.assert_array_equal(weighted.coef_, left_out.coef_)
    np.testing.assert_array_equal(weighted.predict(X, qid), left_out.predict(X, qid))


@pytest.mark.parametrize("linear", [True, False])
def test_equal_weights_are_none(data, linear):
    X, y, qid = data
    plain = quick(linear=linear).fit(X, y, qid)
    same = quick(linear=linear).fit(X, y, qid, sample_weight=np.full(len(y), 0.3))
    np.testing.assert_array_equal(plain.predict(X, qid), same.predict(X, qid))


def test_weights_matter(data):
    X, y, qid = data
    flipped = np.where(qid < 20, y.max() - y, y)  # the first queries say the opposite
    light = quick().fit(X, flipped, qid, sample_weight=np.where(qid < 20, 0.01, 1.0))
    heavy = quick().fit(X, flipped, qid, sample_weight=np.where(qid < 20, 1.0, 0.01))
    assert light.score(X, y, qid) > heavy.score(X, y, qid) + 0.1


def test_bad_weights_of_fit_are_named(data):
    X, y, qid = data
    weight = np.ones(len(y))
    weight[qid == 7] = np.arange(12)
    with pytest.raises(ValueError, match=r"sample_weight differs among the documents of query .*7"):
        quick().fit(X, y, qid, sample_weight=weight)
    with pytest.raises(ValueError, match="sample_weight must not be negative"):
        quick().fit(X, y, qid, sample_weight=-np.ones(len(y)))
    with pytest.raises(ValueError, match="zero for every query"):
        quick().fit(X, y, qid, sample_weight=np.zeros(len(y)))


# Missing cells


def test_missing_cells_get_the_median_of_their_query():
    X = np.array([[1.0, 5.0], [np.nan, 6.0], [3.0, np.nan], [10.0, np.nan], [np.nan, np.nan]])
    queries = group_rows([0, 0, 0, 1, 1], 5)
    filled = fit_missing(X).fill(X, queries)
    expected = [[1, 5, 0, 0], [2, 6, 1, 0], [3, 5.5, 0, 1], [10, 5.5, 0, 1], [10, 5.5, 1, 1]]
    np.testing.assert_array_equal(filled, expected)
    assert np.isnan(X).sum() == 5  # left alone
    whole = np.array([[1.0, 5.0], [2.0, 6.0]])
    np.testing.assert_array_equal(fit_missing(whole).fill(whole, queries), whole)


def test_missing_cells_in_fit_and_predict(data):
    X, y, qid = data
    rng = np.random.default_rng(0)
    holes = rng.random(X.shape) < 0.1
    holes[:, 0] = False
    with_holes = np.where(holes, np.nan, X)
    ranker = quick().fit(with_holes, y, qid)
    scores = ranker.predict(with_holes, qid)
    assert np.isfinite(scores).all()
    assert mean_ndcg(y, scores, qid) > 0.6
    never_seen = np.where(rng.random(X.shape) < 0.1, np.nan, X)  # the first column too
    explained = ranker.explain(never_seen, qid)
    assert explained.features.shape == X.shape
    np.testing.assert_allclose(explained.scores, ranker.predict(never_seen, qid), atol=1e-8)


def test_that_a_cell_is_missing_can_tell_the_relevance():
    rng = np.random.default_rng(0)
    X, qid = rng.standard_normal((600, 3)), np.repeat(np.arange(60), 10)
    y = (rng.random(600) < 0.3).astype(int)
    X[:, 1] = np.where(y == 1, np.nan, X[:, 1])
    ranker = quick().fit(X, y, qid)
    assert ranker.score(X, y, qid) > 0.95


# Explanations


@pytest.mark.parametrize(
    "params",
    [{}, {"linear": False}, {"linear": False, "kernel": "damped"}, {"query_weights": "neighbours"}],
)
def test_explanations_sum_to_the_scores(data, params):
    X, y, qid = data
    ranker = quick(**params).fit(X, y, qid)
    if ranker.linear:
        ranker._local_weight = 0.7
    explained = ranker.explain(X, qid)
    assert explained.features.shape == X.shape
    assert explained.documents.shape == (len(X), len(ranker.anchors_))
    total = explained.features.sum(axis=1) + explained.documents.sum(axis=1)
    np.testing.assert_allclose(total, ranker.predict(X, qid), rtol=1e-9, atol=1e-9)
    assert explained.documents.any()


def test_a_feature_that_is_not_used_adds_nothing(data):
    X, y, qid = data
    X = np.column_stack([X, np.full(len(X), 2.5)])
    explained = quick().fit(X, y, qid).explain(X, qid)
    np.testing.assert_allclose(explained.features[:, -1], 0, atol=1e-12)
    assert np.abs(explained.features[:, :-1]).max() > 0.01


def test_without_queries_a_weight_is_how_often_a_document_counts():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 4)), rng.integers(0, 3, 30)
    weights = rng.integers(0, 4, 30)
    expected = LocalGMMLRanker(random_state=0).fit(
        np.repeat(X, weights, axis=0), np.repeat(y, weights)
    )
    shuffled = rng.permutation(30)
    model = LocalGMMLRanker(random_state=0)
    model.fit(X[shuffled], y[shuffled], sample_weight=weights[shuffled])
    np.testing.assert_array_equal(model.predict(X), expected.predict(X))
    for wrong, message in ((0.5, "whole numbers.*Pass qid"), (-1, "whole"), (0, "zero for all")):
        with pytest.raises(ValueError, match=f"sample_weight .*{message}"):
            model.fit(X, y, sample_weight=np.full(30, wrong))
    with pytest.raises(MemoryError, match="sample_weight repeats documents"):
        model.fit(X, y, sample_weight=np.full(30, 2.0**58))
