"""Databases that stay on the workers of a cluster."""

import numpy as np
import pytest

from skdml import AsymmetricMetricClassifier
from skdml.asymmetric import _asymmetric, _large_database

da = pytest.importorskip("dask.array")


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    y = np.repeat(["a", "b", "rare"], [450, 445, 5])
    X = rng.standard_normal((900, 6))
    X[:, 0] += 4 * np.unique(y, return_inverse=True)[1]
    mixed = rng.permutation(900)
    return X[mixed], y[mixed]


def make_model(**params):
    return AsymmetricMetricClassifier(
        n_neighbors=3, n_candidates=16, n_components=2, max_iter=3, random_state=0, **params
    )


def test_only_a_sample_and_coordinates_are_gathered(cluster_client, data, monkeypatch):
    X, y = data
    monkeypatch.setattr(_large_database, "_MAX_CELLS", 200 * 6)
    gathered = []

    def gather(X, rows):
        gathered.append(len(rows))
        return work(X, rows)

    work = _asymmetric.gather_rows
    monkeypatch.setattr(_asymmetric, "gather_rows", gather)
    lazy = da.from_array(X, chunks=(100, 4))
    found = make_model().fit(lazy, da.from_array(y, chunks=200))
    assert 200 <= gathered[0] <= 260
    assert found._neighbors.n_samples_fit_ == 900  # all rows are in the database
    np.testing.assert_array_equal(found.classes_, ["a", "b", "rare"])
    # A row is found again, with its neighbours among all of them.
    Z = found.transform_database(X)
    np.testing.assert_allclose(found._neighbors._fit_X, Z, atol=1e-10)
    small = make_model().fit(X, y)
    assert found.score(X, y) > small.score(X, y) - 0.03
    labels = found.predict(lazy)
    np.testing.assert_array_equal(labels.compute(), found.predict(X))


def test_weights_of_a_large_database_are_votes(data, monkeypatch):
    X, y = data
    monkeypatch.setattr(_large_database, "_MAX_CELLS", 300 * 6)
    lazy = da.from_array(X, chunks=(300, 6))
    weights = np.where(y == "b", 0.0, 1.0 + (np.arange(900) % 2))
    found = make_model().fit(lazy, y, sample_weight=weights)
    np.testing.assert_array_equal(found.classes_, ["a", "rare"])
    assert found._neighbors.n_samples_fit_ == 455
    assert set(np.round(found._votes.max(axis=1) / found._votes.max(axis=1).min(), 6)) == {1, 2}


def test_bad_rows_outside_of_the_sample_are_named(data, monkeypatch):
    X, y = data
    monkeypatch.setattr(_large_database, "_MAX_CELLS", 100 * 6)
    bad = X.copy()
    bad[(y == "a").nonzero()[0][-1], 3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        make_model().fit(da.from_array(bad, chunks=(300, 6)), y)
    with pytest.raises(ValueError, match="y has shape"):
        make_model().fit(da.from_array(X, chunks=(300, 6)), y[:-1])
    with pytest.raises(ValueError, match="class of each row"):
        make_model().fit(da.from_array(X, chunks=(300, 6)), None)
