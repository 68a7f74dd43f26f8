"""Two networks in the place of the two maps."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from skdml import AsymmetricMetricClassifier

torch = pytest.importorskip("torch")


def make_task(n_rows=200, seed=0):
    """Classes that no linear map of the queries can tell apart: they are seen as squares."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n_rows)
    x = rng.uniform(0.2, 1, n_rows) + 1.5 * y
    X = np.stack([x, rng.standard_normal(n_rows)], axis=1)
    queries = np.stack([x * rng.choice([-1, 1], n_rows), rng.standard_normal(n_rows)], axis=1)
    return X, y, queries


def make_module(seed, dropout=0.0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Sequential(
            torch.nn.Linear(2, 16),
            torch.nn.ReLU(),
            torch.nn.Dropout(dropout),
            torch.nn.Linear(16, 3),
        )


def fit(dropout=0.0, **params):
    X, y, queries = make_task()
    params = {
        "query_module": make_module(0, dropout),
        "database_module": make_module(1, dropout),
        "max_iter": 6,
        "lr": 0.01,
        "random_state": 0,
        **params,
    }
    return AsymmetricMetricClassifier(**params).fit(X, y, X_query=queries, y_query=y)


def test_networks_learn_what_linear_maps_cannot():
    _, y, queries = make_task(seed=1)
    model = fit()
    linear = fit(query_module=None, database_module=None, lr=None)
    assert model.score(queries, y) > 0.9
    assert linear.score(queries, y) < 0.75
    assert model.history_["objective"][-1] < 0.5 * model.history_["objective"][0]
    assert not hasattr(model, "query_components_")


def test_networks_with_random_weights_find_a_way_up_first():
    X, y = load_digits(return_X_y=True)
    X, y = X[:400] / 16, y[:400]
    turned = X.reshape(-1, 8, 8)[:, :, ::-1].reshape(len(X), -1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        modules = [
            torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
            for _ in range(2)
        ]
    model = AsymmetricMetricClassifier(
        query_module=modules[0], database_module=modules[1], max_iter=6, random_state=0
    ).fit(X[::2], y[::2], X_query=turned[1::2], y_query=y[1::2])
    assert model.history_["objective"][1] > model.history_["objective"][0]
    assert model.history_["objective"][-1] < 0.8 * model.history_["objective"][3]
    assert min(model.history_["validation"]) < 0.6 * model.history_["validation"][0]


def test_given_modules_are_left_alone():
    module = make_module(0)
    before = [weight.clone() for weight in module.parameters()]
    model = fit(query_module=module, max_iter=2)
    assert all(map(torch.equal, before, module.parameters()))
    assert model.query_module_ is not module


def test_symmetric_uses_one_module():
    model = fit(database_module=None, symmetric=True, max_iter=2)
    assert model.query_module_ is model.database_module_
    X, _, _ = make_task()
    np.testing.assert_array_equal(model.transform(X), model.transform_database(X))


def test_a_fit_leaves_nothing_of_the_other_kind():
    X, y, _ = make_task()
    model = fit(max_iter=1)
    model.set_params(query_module=None, database_module=None).fit(X, y)
    assert not hasattr(model, "query_module_")
    assert model.transform(X).shape == (200, 2)
    model.set_params(query_module=make_module(0), database_module=make_module(1)).fit(X, y)
    assert not hasattr(model, "query_components_")
    assert not hasattr(model, "database_mean_")


def test_coordinates_and_distances():
    X, _, queries = make_task()
    model = fit(max_iter=2)
    coordinates = model.transform(queries.astype(np.float32))
    assert coordinates.shape == (200, 3)
    assert coordinates.dtype == np.float32
    expected = model.query_module_(torch.tensor(queries, dtype=torch.float32))
    np.testing.assert_allclose(coordinates, expected.detach(), rtol=1e-5)
    difference = model.transform(queries) - model.transform_database(X)
    np.testing.assert_allclose(model.pair_distance(queries, X), np.linalg.norm(difference, axis=1))


def test_seeds_and_the_global_generator():
    state = torch.get_rng_state()
    X = make_task()[0]
    first, again = fit(dropout=0.3, max_iter=2), fit(dropout=0.3, max_iter=2)
    np.testing.assert_array_equal(first.transform(X), again.transform(X))
    assert torch.equal(torch.get_rng_state(), state)


def test_pickle():
    X = make_task()[0]
    model = fit(max_iter=2)
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(model)).transform_database(X), model.transform_database(X)
    )


def test_output_of_a_wrong_shape():
    flat = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Flatten(0))
    with pytest.raises(ValueError, match="query_module must return one row of coordinates"):
        fit(query_module=flat)


def test_outputs_of_different_width():
    with pytest.raises(ValueError, match="3 columns and database_module 2"):
        fit(database_module=torch.nn.Linear(2, 2))


def test_linear_maps_need_no_torch():
    code = (
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, NoTorch)\n"
        "import numpy as np\n"
        "from skdml import AsymmetricMetricClassifier\n"
        "X, y = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 2\n"
        "AsymmetricMetricClassifier(max_iter=1).fit(X, y).predict(X)\n"
        "try:\n"
        "    AsymmetricMetricClassifier(query_module=1).fit(X, y)\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'pip install "skdml[deep]"' in done.stdout
