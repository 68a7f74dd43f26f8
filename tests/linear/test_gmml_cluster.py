"""GMMLTransformer on a real dask cluster of two worker processes."""

import joblib
import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skdml import GMMLTransformer

da = pytest.importorskip("dask.array")


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def wide_data():
    X = np.random.default_rng(0).standard_normal((30, 400))
    y = np.arange(30) % 3
    X[:, :20] += y[:, None]
    return X, y


@pytest.mark.parametrize("prior", ["identity", "covariance"])
@pytest.mark.parametrize("n_components", [None, 4])
def test_dask_arrays_give_the_same_metric(cluster_client, wine, prior, n_components):
    cases = [(*wine, (50, -1)), (*wide_data(), (-1, 90)), (*wide_data(), (7, 90))]
    for X, y, chunks in cases:
        model = GMMLTransformer(prior=prior, n_components=n_components, random_state=0)
        expected = model.fit(X, y).transform(X)
        blocks = da.from_array(X, chunks=chunks)
        model.fit(blocks, da.from_array(y))
        np.testing.assert_allclose(abs(model.transform(X)), abs(expected), atol=1e-8)
        lazy = model.transform(blocks)
        assert isinstance(lazy, da.Array)
        assert lazy.shape == expected.shape
        np.testing.assert_allclose(lazy.compute(), model.transform(X), atol=1e-10)


def test_dask_backend_gives_the_same_metric(cluster_client, wine):
    for X, y in (wine, wide_data()):
        model = GMMLTransformer(random_state=0)
        expected = model.fit(X, y).get_mahalanobis_matrix()
        with joblib.parallel_config(backend="dask"):
            model.fit(X, y)
        np.testing.assert_allclose(model.get_mahalanobis_matrix(), expected, atol=1e-10)


def test_grid_search_on_the_cluster(cluster_client, wine):
    X, y = wine
    search = GridSearchCV(
        make_pipeline(GMMLTransformer(random_state=0), KNeighborsClassifier()),
        {"gmmltransformer__geodesic": [0.25, 0.5]},
        cv=3,
    )
    expected = search.fit(X, y).cv_results_["mean_test_score"]
    with joblib.parallel_config(backend="dask"):
        search.fit(X, y)
    np.testing.assert_array_equal(search.cv_results_["mean_test_score"], expected)


def test_bad_dask_arrays_are_named(cluster_client):
    X = da.ones((6, 3), chunks=2)
    with pytest.raises(ValueError, match="NaN or infinity"):
        GMMLTransformer().fit(X * np.nan, [0, 0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        GMMLTransformer().fit(X[X[:, 0] > 0], [0, 0, 0, 1, 1, 1])
    model = GMMLTransformer().fit(np.random.default_rng(0).normal(size=(6, 3)), [0, 0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match="expecting 3 features"):
        model.transform(da.ones((6, 4)))
