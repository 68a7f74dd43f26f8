"""The linear learners on a real dask cluster of two worker processes."""

import os
import threading

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skdml import DITMLTransformer, GMMLTransformer
from skdml.constraints import make_pairs
from tests.systems import KILL

da = pytest.importorskip("dask.array")

LEARNERS = [
    pytest.param(GMMLTransformer(random_state=0), id="GMML"),
    pytest.param(DITMLTransformer(n_constraints=300, random_state=0, tol=1e-9), id="DITML"),
]


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def wide_data():
    X = np.random.default_rng(0).standard_normal((30, 400))
    y = np.arange(30) % 3
    X[:, :20] += y[:, None]
    return X, y


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("prior", ["identity", "covariance"])
def test_dask_arrays_give_the_same_metric(cluster_client, wine, learner, prior):
    cases = [(*wine, (50, -1)), (*wide_data(), (-1, 90)), (*wide_data(), (7, 90))]
    for X, y, chunks in cases:
        model = learner.set_params(prior=prior)
        expected = model.fit(X, y).get_mahalanobis_matrix()
        blocks = da.from_array(X, chunks=chunks)
        model.fit(blocks, da.from_array(y))
        difference = np.linalg.norm(model.get_mahalanobis_matrix() - expected)
        assert difference < 1e-10 * np.linalg.norm(expected)
        lazy = model.transform(blocks)
        assert isinstance(lazy, da.Array)
        assert lazy.shape == X.shape
        np.testing.assert_allclose(lazy.compute(), model.transform(X), atol=1e-10)


@pytest.mark.parametrize("prior", ["identity", "covariance"])
@pytest.mark.parametrize("learner", LEARNERS)
def test_nothing_is_computed_on_the_cluster_without_care(
    cluster_client, wine, learner, prior, monkeypatch
):
    """`float` or `numpy` of a dask array computes it where a dead scheduler is a raw error."""

    def refuse(*args, **kwargs):
        raise AssertionError("an array was computed by itself")

    monkeypatch.setattr(type(cluster_client), "get", refuse)
    for X, y in (wine, wide_data()):
        model = clone(learner).set_params(prior=prior).fit(da.from_array(X, chunks=(20, -1)), y)
        model.transform(da.from_array(X, chunks=(20, -1)))
        pairs, pair_labels = make_pairs(y, 50, random_state=0)
        model.fit(da.from_array(X, chunks=(20, -1)), pairs=pairs, pair_labels=pair_labels)


@pytest.mark.parametrize("learner", LEARNERS)
def test_few_components_of_dask_arrays(cluster_client, learner):
    X, y = wide_data()
    model = learner.set_params(n_components=4, prior="identity")
    expected = model.fit(X, y).get_metric().pairwise(X)
    blocks = da.from_array(X, chunks=(-1, 90))
    np.testing.assert_allclose(model.fit(blocks, y).get_metric().pairwise(X), expected, atol=1e-7)
    assert model.transform(blocks).compute().shape == (30, 4)
    model.set_params(n_components=None)


@pytest.mark.parametrize("learner", LEARNERS)
def test_dask_backend_gives_the_same_metric(cluster_client, wine, learner):
    for X, y in (wine, wide_data()):
        expected = learner.fit(X, y).get_mahalanobis_matrix()
        with joblib.parallel_config(backend="dask"):
            learner.fit(X, y)
        difference = np.linalg.norm(learner.get_mahalanobis_matrix() - expected)
        assert difference < 1e-10 * np.linalg.norm(expected)


@pytest.mark.parametrize("learner", LEARNERS)
def test_grid_search_on_the_cluster(cluster_client, wine, learner):
    X, y = wine
    search = GridSearchCV(
        make_pipeline(StandardScaler(), learner, KNeighborsClassifier()),
        {f"{type(learner).__name__.lower()}__n_constraints": [100, 200]},
        cv=3,
    )
    expected = search.fit(X, y).cv_results_["mean_test_score"]
    with joblib.parallel_config(backend="dask"):
        search.fit(X, y)
    np.testing.assert_array_equal(search.cv_results_["mean_test_score"], expected)


def test_only_small_matrices_travel(cluster_client, monkeypatch):
    """Bytes per round are O(d² + c), far below c d, which the thesis sends."""
    monkeypatch.setattr("skdml.utils._differences._BLOCK_PAIRS", 2500)
    n_pairs, n_features = 5000, 60
    X = np.random.default_rng(0).standard_normal((500, n_features))
    y = np.arange(500) % 5
    X[:, :4] += y[:, None]
    pairs, labels = make_pairs(y, n_pairs, random_state=0)
    model = DITMLTransformer(solver="parallel", max_iter=6, random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(da.from_array(X, chunks=(100, -1)), pairs=pairs, pair_labels=labels)
    per_round = np.array(model.history_["bytes"])
    assert len(per_round) == model.n_iter_
    assert (per_round > 0).all()
    assert np.median(per_round) < 0.25 * 8 * n_pairs * n_features


def test_a_killed_worker_costs_time_not_the_result(monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr("skdml.utils._differences._BLOCK_PAIRS", 2500)
    X = np.random.default_rng(0).standard_normal((400, 30))
    y = np.arange(400) % 4
    X[:, :4] += y[:, None]
    pairs, labels = make_pairs(y, 5000, random_state=0)
    model = DITMLTransformer(solver="parallel", max_iter=8, random_state=0)
    with pytest.warns(ConvergenceWarning):
        expected = model.fit(X, pairs=pairs, pair_labels=labels).get_mahalanobis_matrix()
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        rounds, killed = [], threading.Event()

        class Killer:
            """Kills a worker process in the third round of the fit."""

            max_propagation_depth = None

            def setup(self, estimator, context): ...
            def on_fit_task_begin(self, estimator, context): ...
            def teardown(self, estimator, context): ...

            def on_fit_task_end(self, estimator, context):
                rounds.append(context.task_id)
                if len(rounds) == 3:
                    os.kill(next(iter(client.run(os.getpid).values())), KILL)
                    killed.set()
                return False

        model.set_callbacks(Killer())
        blocks = da.from_array(X, chunks=(100, -1))
        with pytest.warns(ConvergenceWarning):
            model.fit(blocks, pairs=pairs, pair_labels=labels)
        assert killed.is_set()
    assert model.n_iter_ == 8
    difference = np.linalg.norm(model.get_mahalanobis_matrix() - expected)
    assert difference < 1e-10 * np.linalg.norm(expected)


def test_bad_dask_arrays_are_named(cluster_client):
    X = da.ones((6, 3), chunks=2)
    with pytest.raises(ValueError, match="NaN or infinity"):
        GMMLTransformer().fit(X * np.nan, [0, 0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match="dask array of dtype object: numbers are needed"):
        GMMLTransformer().fit(X.astype(object), [0, 0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        GMMLTransformer().fit(X[X[:, 0] > 0], [0, 0, 0, 1, 1, 1])
    model = GMMLTransformer().fit(np.random.default_rng(0).normal(size=(6, 3)), [0, 0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match="expecting 3 features"):
        model.transform(da.ones((6, 4)))
