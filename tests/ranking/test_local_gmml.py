import io
import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from skdml import LocalGMMLRanker
from skdml.datasets import make_ranking
from skdml.metrics import mean_ndcg
from skdml.ranking import _anchor_model, _document_ranker
from skdml.ranking._documents import group_rows, sort_queries
from skdml.ranking._local_gmml_training import pair_loss

pytestmark = pytest.mark.filterwarnings("error:::skdml")


@pytest.fixture(scope="module")
def data():
    """X, y, qid of 60 queries to train on, and of 30 others."""
    X, y, qid = make_ranking(90, 15, 6, random_state=0)
    train = qid < 60
    return (X[train], y[train], qid[train]), (X[~train], y[~train], qid[~train])


def quick(**params):
    return LocalGMMLRanker(
        **{"n_metrics": 2, "linear": False, "max_epochs": 5, "random_state": 0} | params
    )


# Learning


@pytest.mark.parametrize("loss", ["lambda", "warp"])
def test_ranks_better_than_any_feature_and_than_without_training(data, loss):
    train, (X, y, qid) = data
    by_feature = [mean_ndcg(y, sign * column, qid) for column in X.T for sign in (1, -1)]
    random_order = mean_ndcg(y, np.random.default_rng(0).random(len(y)), qid)
    untrained = quick(loss=loss, max_epochs=1).fit(*train)
    ranker = quick(loss=loss, max_epochs=150, early_stopping=False).fit(*train)
    found = ranker.score(X, y, qid)
    assert found == pytest.approx(mean_ndcg(y, ranker.predict(X, qid), qid))
    assert found > max(by_feature) + 0.05
    assert found > random_order + 0.2
    assert found > untrained.score(X, y, qid) + 0.01


@pytest.mark.parametrize("normalize", ["query", "column", "both", None])
def test_every_normalisation_learns(data, normalize):
    train, (X, y, qid) = data
    ranker = quick(normalize=normalize, max_epochs=20).fit(*train)
    assert (
        ranker.score(X, y, qid) > mean_ndcg(y, np.random.default_rng(0).random(len(y)), qid) + 0.1
    )
    assert np.isfinite(ranker.predict(X, qid)).all()
    assert ranker.anchors_.shape[1] == 6 * {"both": 2}.get(normalize, 1)


def test_fitted_attributes(data):
    ranker = quick(n_metrics=3).fit(*data[0])
    assert ranker.support_.all()
    assert ranker.anchors_.shape == (6, 6)
    assert len(ranker.metrics_) == 6
    assert ranker.weights_.shape == ranker.widths_.shape == (6,)
    assert (ranker.weights_ > 0).all()
    assert (ranker.widths_ > 0).all()
    assert ranker.query_weights_ == {}
    thesis = quick(n_metrics=3, kernel="damped").fit(*data[0])
    assert thesis.anchors_.shape == (3, 6)  # no anti-ideal documents
    assert (thesis.weights_ >= 0).all()


def test_fixed_anchors_are_documents(data):
    (X, y, qid), _ = data
    ranker = quick(learn_anchors=False, normalize=None).fit(X, y, qid)
    factor = ranker.anchors_[0, 0] / X[:, 0]  # features have a common unit
    is_row = [np.allclose(ranker.anchors_[0], f * x) for f, x in zip(factor, X, strict=True)]
    assert any(is_row)
    learned = quick(normalize=None).fit(X, y, qid)
    assert not np.allclose(learned.anchors_, ranker.anchors_)


@pytest.mark.parametrize("learn_metrics", [False, True])
def test_metrics_are_positive_semi_definite(data, learn_metrics):
    ranker = quick(learn_metrics=learn_metrics).fit(*data[0])
    for metric in ranker.metrics_:
        eigenvalues = np.linalg.eigvalsh(metric.matrix())
        assert eigenvalues[0] >= -1e-10 * eigenvalues[-1]
    if not learn_metrics:
        assert np.trace(ranker.metrics_[0].matrix()) == pytest.approx(6)


def test_learned_metrics_differ_and_rank_well(data):
    train, (X, y, qid) = data
    closed_form = quick(max_epochs=30).fit(*train)
    learned = quick(max_epochs=30, learn_metrics=True).fit(*train)
    assert not np.allclose(learned.metrics_[0].matrix(), closed_form.metrics_[0].matrix())
    assert learned.score(X, y, qid) > closed_form.score(X, y, qid) - 0.05


def test_unit_and_origin_of_features_do_not_matter(data):
    train, (X, _, qid) = data
    expected = quick().fit(*train).predict(X, qid)
    for factor, offset in [(1e-6, 0), (1e250, 0), (3, 100)]:
        ranker = quick().fit(factor * train[0] + offset, *train[1:])
        np.testing.assert_allclose(ranker.predict(factor * X + offset, qid), expected, atol=1e-4)


# Early stopping


def test_validation_queries_choose_the_epoch(data):
    (X, y, qid), (X_val, y_val, qid_val) = data
    ranker = LocalGMMLRanker(linear=False, random_state=0)
    ranker.fit(X, y, qid, X_val=X_val, y_val=y_val, qid_val=qid_val)
    history = ranker.history_
    validation, _ = sort_queries(X_val, y_val.astype(float), group_rows(qid_val, len(X_val)))
    scores = ranker.predict(X_val, qid_val)[validation.origin]
    # the best epoch, or the start if no epoch is better
    assert pair_loss(scores, validation) <= min(history["validation_loss"]) + 1e-10
    assert len({len(figures) for figures in history.values()}) == 1
    assert (np.diff(history["seconds"]) > 0).all()


def test_queries_are_held_out_where_none_are_given(data):
    (X, y, qid), _ = data
    ranker = quick().fit(X, y, qid)
    assert len(ranker.history_["ndcg"]) == 5
    few = qid < 4
    for model in (
        quick(early_stopping=False).fit(X, y, qid),
        quick().fit(X[few], y[few], qid[few]),
    ):
        assert set(model.history_) == {"loss", "seconds"}
        assert [len(figures) for figures in model.history_.values()] == [5, 5]


def test_stops_early_where_nothing_is_gained(data):
    (X, y, qid), _ = data
    validation = {"X_val": np.zeros((4, 6)), "y_val": [1, 0, 0, 1], "qid_val": [0, 0, 1, 1]}
    ranker = quick(max_epochs=50).fit(X, y, qid, **validation)
    assert len(ranker.history_["loss"]) == 11


# The same result


def test_random_state(data):
    train, (X, _, qid) = data
    for params in ({}, {"loss": "warp"}, {"query_weights": "per-query", "kernel": "damped"}):
        one, again, other = (
            quick(random_state=seed, **params).fit(*train).predict(X, qid) for seed in (0, 0, 1)
        )
        assert np.array_equal(one, again)
        assert not np.array_equal(one, other)


def test_one_query_at_a_time_gives_the_same_scores(data, monkeypatch):
    train, (X, _, qid) = data
    for normalize in ("query", "both", None):
        ranker = quick(normalize=normalize).fit(*train)
        together = ranker.predict(X, qid)
        for query in np.unique(qid)[:5]:
            alone = ranker.predict(X[qid == query], qid[qid == query])
            np.testing.assert_allclose(alone, together[qid == query], atol=1e-10)
            unnamed = ranker.predict(X[qid == query], "single")
            np.testing.assert_allclose(unnamed, together[qid == query], atol=1e-10)
        monkeypatch.setattr(_document_ranker, "_CHUNK", 40)
        np.testing.assert_allclose(ranker.predict(X, qid), together, atol=1e-10)


def test_order_of_rows_does_not_matter(data):
    train, (X, _, qid) = data
    mixed = np.random.default_rng(0).permutation(len(X))
    ranker = quick().fit(*train)
    np.testing.assert_allclose(
        ranker.predict(X[mixed], qid[mixed]), ranker.predict(X, qid)[mixed], atol=1e-10
    )
    # Rows of a query apart from each other, queries and rows in the same order as before.
    by_place = np.argsort(np.tile(np.arange(15), 60), kind="stable")
    apart = quick().fit(*(part[by_place] for part in train))
    np.testing.assert_allclose(apart.predict(X, qid), ranker.predict(X, qid), atol=1e-8)


def test_names_of_queries_do_not_matter(data):
    (X, y, qid), (X_test, _, _) = data
    expected = quick().fit(X, y, qid).predict(X_test[:15], "single")
    for names in ([f"query {q % 7} {q}" for q in qid], -qid, qid / 8):
        ranker = quick().fit(X, y, names)
        np.testing.assert_array_equal(ranker.predict(X_test[:15], "single"), expected)


def test_equal_documents_have_equal_scores(data):
    train, (X, _, _) = data
    ranker = quick().fit(*train)
    for n_documents in (2, 5, 15, 16, 17, 33):
        documents = np.resize(X[:7], (n_documents, 6))
        scores = ranker.predict(documents, "single")
        for start in range(min(7, n_documents)):
            assert len(set(scores[start::7].tolist())) == 1


@pytest.mark.parametrize("normalize", ["column", None])
def test_an_outlier_leaves_the_scores_of_others_apart(data, normalize):
    train, (X, _, qid) = data
    ranker = quick(normalize=normalize).fit(*train)
    expected = ranker.predict(X, qid)
    for outlier in (1e6, 1e9):
        X_new = X.copy()
        X_new[4] = outlier  # of the first query
        scores = ranker.predict(X_new, qid)
        np.testing.assert_allclose(np.delete(scores, 4), np.delete(expected, 4), rtol=1e-6)


def test_pickle_and_clone(data):
    train, (X, _, qid) = data
    for params in ({}, {"query_weights": "neighbours"}, {"learn_metrics": True}):
        ranker = quick(**params).fit(*train)
        copy = pickle.loads(pickle.dumps(ranker))
        assert np.array_equal(copy.predict(X, qid), ranker.predict(X, qid))
        with pytest.raises(NotFittedError):
            clone(ranker).predict(X)


# Unusual queries


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_queries_of_one_document_and_of_one_grade(data, monkeypatch):
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    (X, y, qid), _ = data
    X, y, qid = X[:60], y[:60].copy(), qid[:60].copy()
    y[qid == 1] = 2  # all relevant
    qid[-1] = 99  # a query of one document
    ranker = quick(verbose=1).fit(X, y, qid)
    assert "2 of 5 queries have a single grade" in shown.getvalue()
    scores = ranker.predict(X, qid)
    assert np.isfinite(scores).all()
    taught = (qid != 1) & (qid != 99)
    shown.truncate(0)
    without = quick(verbose=1).fit(X[taught], y[taught], qid[taught])
    assert "single grade" not in shown.getvalue()
    assert np.corrcoef(without.predict(X, qid), scores)[0, 1] > 0.99
    assert np.isfinite(ranker.predict(X[:1], "single")).all()
    assert np.isfinite(ranker.score(X[:1], [1], "single"))
    shown.truncate(0)
    quick(verbose=0).fit(X, y, qid)
    assert shown.getvalue() == ""


@pytest.mark.parametrize("loss", ["lambda", "warp"])
@pytest.mark.parametrize(
    "change", [lambda y: y / 4, lambda y: y * 1e300, lambda y: y * 500, lambda y: y * 1e-12]
)
def test_float_and_huge_grades(data, change, loss):
    (X, y, qid), (X_test, y_test, qid_test) = data
    ranker = quick(loss=loss, max_epochs=15).fit(X, change(y.astype(float)), qid)
    scores = ranker.predict(X_test, qid_test)
    assert np.isfinite(scores).all()
    assert mean_ndcg(y_test, scores, qid_test) > 0.6


def test_constant_and_huge_features(data):
    (X, y, qid), _ = data
    X = np.hstack([X, np.full((len(X), 1), 3.3), 1e200 * X[:, :1]])
    for normalize in ("query", "column", "both"):
        ranker = quick(normalize=normalize).fit(X, y, qid)
        assert np.isfinite(ranker.predict(X, qid)).all()


@pytest.mark.parametrize("value", [0.0, 3.7, -1e-9])
def test_rows_that_are_all_the_same_rank_nothing(data, value):
    (X, y, qid), _ = data
    ranker = quick(query_weights="per-query").fit(np.full_like(X, value), y, qid)
    assert len(np.unique(ranker.predict(X, qid))) == 1


def test_no_qid_is_one_query(data):
    (X, y, _), _ = data
    X, y, names = X[:100], y[:100], ["a"] * 100
    ranker, named = quick().fit(X, y), quick().fit(X, y, names)
    np.testing.assert_allclose(named.predict(X, names), ranker.predict(X), atol=1e-10)
    # Without qid, documents belong to the query of fit, however many come at a time.
    np.testing.assert_allclose(ranker.predict(X[:1]), ranker.predict(X)[:1], atol=1e-10)


# Weights of single queries


@pytest.mark.parametrize("loss", ["lambda", "warp"])
def test_own_weights_improve_the_training_queries(loss):
    X, y, qid = make_ranking(60, 15, 6, n_centers=2, random_state=0)
    params = {"n_metrics": 6, "loss": loss, "max_epochs": 30}
    shared = quick(**params).fit(X, y, qid)
    own = quick(query_weights="per-query", **params).fit(X, y, qid)
    np.testing.assert_array_equal(own.weights_, shared.weights_)
    assert own.score(X, y, qid) > shared.score(X, y, qid) + 0.005


def test_per_query_weights_are_for_known_queries_only(data):
    (X, y, qid), (X_test, _, qid_test) = data
    shared = quick(n_metrics=4).fit(X, y, qid)
    own = quick(n_metrics=4, query_weights="per-query").fit(X, y, qid)
    assert list(own.query_weights_) == list(dict.fromkeys(qid.tolist()))
    np.testing.assert_allclose(
        own.predict(X_test, qid_test), shared.predict(X_test, qid_test), atol=1e-10
    )
    first = qid == 0
    assert not np.allclose(own.predict(X[first], qid[first]), shared.predict(X[first], qid[first]))
    np.testing.assert_allclose(  # another name, or none: unknown
        own.predict(X[first], qid[first] + 1000), shared.predict(X[first], "single"), atol=1e-10
    )
    np.testing.assert_allclose(
        own.predict(X[first], "single"), shared.predict(X[first], "single"), atol=1e-10
    )


def test_own_weights_of_queries_with_strings_as_names(data):
    (X, y, qid), _ = data
    by_number = quick(query_weights="per-query").fit(X, y, qid)
    names = np.array([f"query {q}" for q in qid])
    by_name = quick(query_weights="per-query").fit(X, y, names)
    np.testing.assert_array_equal(by_name.predict(X, names), by_number.predict(X, qid))


def test_queries_of_one_grade_have_no_weights_of_their_own(data):
    (X, y, qid), _ = data
    y = np.where(qid == 3, 1, y)
    own = quick(query_weights="per-query").fit(X, y, qid)
    assert 3 not in own.query_weights_
    assert 4 in own.query_weights_
    assert np.isfinite(own.predict(X, qid)).all()


def test_neighbours_give_their_mean_weights(data):
    (X, y, qid), (X_test, _, qid_test) = data
    unit = np.array([1e4, 1, 1, 1, 1, 1])  # columns count alike, whatever their unit
    X = (X + np.where(qid % 2, 50.0, -50.0)[:, None]) * unit  # two kinds of queries
    own = quick(query_weights="per-query", n_metrics=3).fit(X, y, qid)
    near = quick(query_weights="neighbours", n_metrics=3).fit(X, y, qid)
    np.testing.assert_array_equal(near.predict(X, qid), own.predict(X, qid))
    weights = np.array([np.log(near.query_weights_[q]) for q in range(60)])
    centres = np.array([X[qid == q].mean(axis=0) for q in range(60)])
    scale = np.sqrt(np.mean(X**2, axis=0))
    for offset in (-50, 50):
        documents = (X_test[qid_test == qid_test[0]] + offset) * unit
        distance = np.sum(((centres - documents.mean(axis=0)) / scale) ** 2, axis=1)
        nearest = np.argsort(distance)[: _anchor_model._NEIGHBOURS]
        assert set(nearest % 2) == {int(offset > 0)}
        model = replace(near._model, weights=weights[nearest].mean(axis=0))
        expected = model.scores(near._normalizer.features(documents, group_rows(None, 15)))
        np.testing.assert_allclose(near.predict(documents, "single"), expected, atol=1e-10)
        np.testing.assert_allclose(near.predict(documents, ["new"] * 15), expected, atol=1e-10)
