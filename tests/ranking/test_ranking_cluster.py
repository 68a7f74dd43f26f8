"""LocalGMMLRanker with several workers: threads, processes, and a dask cluster."""

import functools
import os

import joblib
import numpy as np
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV, GroupKFold

from skdml import LocalGMMLRanker
from skdml.datasets import make_ranking
from skdml.ranking import _anchor_model, _documents, _linear_refinement, _local_gmml
from skdml.utils import _parallel
from tests.systems import KILL

pytestmark = pytest.mark.filterwarnings("error:::skdml")

FITTED = ("anchors_", "weights_", "widths_")


@pytest.fixture(scope="module")
def data():
    return make_ranking(60, 12, 5, n_centers=2, random_state=0)


def make_ranker(**params):
    return LocalGMMLRanker(**{"n_metrics": 3, "max_epochs": 4, "random_state": 0} | params)


# Arrays from another process lie elsewhere in memory, where products may round in another way.
same = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)


def assert_same(found, expected):
    for name in FITTED:
        same(getattr(found, name), getattr(expected, name))
    for one, other in zip(found.metrics_, expected.metrics_, strict=True):
        same(one.matrix(), other.matrix())
    assert found.history_.keys() == expected.history_.keys()
    for name in found.history_.keys() - {"seconds"}:
        same(found.history_[name], expected.history_[name])


@pytest.mark.parametrize("kernel", ["gaussian", "damped"])
def test_same_result_for_any_n_jobs(data, kernel):
    expected = make_ranker(kernel=kernel).fit(*data)
    for n_jobs in (2, 5):
        assert_same(make_ranker(kernel=kernel, n_jobs=n_jobs).fit(*data), expected)


def test_same_result_with_processes(data):
    expected = make_ranker().fit(*data)
    with joblib.parallel_config(backend="loky", n_jobs=2):
        assert_same(make_ranker().fit(*data), expected)


def test_too_small_reg_is_named_wherever_the_work_runs(data):
    X, y, qid = data
    X = np.hstack([X, np.ones((len(X), 1))])
    for backend in ("threading", "loky"):
        with (
            joblib.parallel_config(backend=backend, n_jobs=2),
            pytest.raises(ValueError, match="Raise reg"),
        ):
            make_ranker(reg=0, normalize=None).fit(X, y, qid)


def test_same_result_on_a_cluster(cluster_client, data):
    expected = make_ranker().fit(*data)
    with joblib.parallel_config(backend="dask"):
        assert_same(make_ranker().fit(*data), expected)
        with_constant = np.hstack([data[0], np.ones((len(data[0]), 1))])
        with pytest.raises(ValueError, match="Raise reg"):
            make_ranker(reg=0, normalize=None).fit(with_constant, *data[1:])


@pytest.mark.parametrize(
    ("module", "name"), [(_anchor_model, "_learn_one"), (_linear_refinement, "block_loss")]
)
def test_a_dask_worker_that_dies_costs_time_only(
    cluster_client, data, tmp_path, monkeypatch, module, name
):
    monkeypatch.setattr(_documents, "_MAX_CELLS", 40 * 12 * 5)  # all queries refine
    monkeypatch.setattr(_linear_refinement, "_BLOCK", 200)
    expected = make_ranker().fit(*data)
    once = tmp_path / "killed"

    def dies_once(*args):
        if not once.exists():
            once.touch()
            os.kill(os.getpid(), KILL)
        return work(*args)

    work = getattr(module, name)
    monkeypatch.setattr(module, name, dies_once)
    with joblib.parallel_config(backend="dask"):
        found = make_ranker().fit(*data)
    assert_same(found, expected)
    np.testing.assert_allclose(found.coef_, expected.coef_, atol=1e-12)
    assert once.exists()
    cluster_client.wait_for_workers(2, timeout=200)


def test_dask_arrays_whose_partitions_split_queries(cluster_client, data):
    da = pytest.importorskip("dask.array")
    X, y, qid = data
    mixed = np.random.default_rng(0).permutation(len(X))
    X, y, qid = X[mixed], y[mixed], qid[mixed]
    expected = make_ranker().fit(X, y, qid)
    lazy = [da.from_array(part, chunks=(50, *part.shape[1:])) for part in (X, y, qid)]
    found = make_ranker().fit(*lazy)
    assert_same(found, expected)
    same(found.predict(lazy[0], lazy[2]), expected.predict(X, qid))
    same(found.score(*lazy), expected.score(X, y, qid))
    with joblib.parallel_config(backend="dask"):
        assert_same(make_ranker().fit(*lazy), expected)
    validation = dict(zip(("X_val", "y_val", "qid_val"), lazy, strict=True))
    assert "ndcg" in make_ranker().fit(X, y, qid, **validation).history_


@pytest.mark.parametrize("with_missing", [False, True])
def test_a_large_dask_array_stays_on_the_workers(cluster_client, data, monkeypatch, with_missing):
    da = pytest.importorskip("dask.array")
    monkeypatch.setattr(_documents, "_MAX_CELLS", 40 * 12 * 5)  # of 60 queries
    monkeypatch.setattr(_linear_refinement, "_BLOCK", 100)
    X, y, qid = data
    mixed = np.random.default_rng(0).permutation(len(X))  # chunks split queries
    X, y, qid = X[mixed], y[mixed], qid[mixed]
    if with_missing:
        X = np.where(np.random.default_rng(1).random(X.shape) < 0.05, np.nan, X)
    weight = 1.0 + np.asarray(qid) % 3
    expected, weighted = make_ranker().fit(X, y, qid), make_ranker().fit(X, y, qid, weight)
    lazy = [da.from_array(part, chunks=(50, *part.shape[1:])) for part in (X, y, qid)]
    gathered, work = [], _parallel.computed
    for module in (_documents, _local_gmml, _parallel):
        monkeypatch.setattr(module, "computed", lambda one: gathered.append(one) or work(one))
    found = make_ranker().fit(*lazy)
    assert max(len(one) for one in gathered if one.ndim == 2) <= 40 * 12
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.interactions_, expected.interactions_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.predict(X, qid), expected.predict(X, qid), rtol=1e-8)
    found = make_ranker().fit(*lazy, weight)
    np.testing.assert_allclose(found.coef_, weighted.coef_, rtol=1e-9, atol=1e-12)


def test_bad_numbers_outside_of_the_sample_are_named(cluster_client, data, monkeypatch):
    da = pytest.importorskip("dask.array")
    monkeypatch.setattr(_documents, "_MAX_CELLS", 20 * 12 * 5)
    X, y, qid = data
    for cell, message in ((np.inf, "X contains infinity"), (1e300, "divide X by")):
        bad = X.copy()
        bad[:, 1] = np.where(np.arange(len(X)) == 7, cell, bad[:, 1])
        lazy = [da.from_array(part, chunks=(50, *part.shape[1:])) for part in (bad, y, qid)]
        with pytest.raises(ValueError, match=message):
            make_ranker().fit(*lazy)


def test_grid_search_on_a_cluster(cluster_client, data):
    X, y, qid = data
    with sklearn.config_context(enable_metadata_routing=True):
        ranker = make_ranker().set_fit_request(qid=True).set_score_request(qid=True)
        search = GridSearchCV(ranker, {"n_metrics": [1, 2]}, cv=GroupKFold(2))
        expected = search.fit(X, y, qid=qid, groups=qid).cv_results_["mean_test_score"]
        with joblib.parallel_config(backend="dask"):
            search.fit(X, y, qid=qid, groups=qid)
        same(search.cv_results_["mean_test_score"], expected)
