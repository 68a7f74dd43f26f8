"""Files of estimators: the same outputs after loading, no code, and errors for wrong files."""

import copy
import json
import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_iris

from skdml import AsymmetricMetricClassifier, GMMLTransformer, LocalGMMLRanker
from skdml.io import load, save
from skdml.search import VectorIndex
from skdml.utils._checks_common import calls, fit, fresh
from skdml.utils.estimator_checks import all_estimators
from tests.test_common import QUICK

safetensors = pytest.importorskip("safetensors.numpy")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def model(iris):
    return GMMLTransformer(geodesic=0.5).fit(*iris)


def outputs_of(model):
    return {name: call() for name, call in calls(model).items()}


def assert_same_outputs(model, again):
    expected, found = outputs_of(model), outputs_of(again)
    assert expected.keys() == found.keys()
    assert expected
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
        assert np.asarray(found[name]).dtype == np.asarray(value).dtype


@pytest.mark.parametrize(
    ("name", "cls"), all_estimators(), ids=[name for name, _ in all_estimators()]
)
def test_every_estimator_comes_back(name, cls, path):
    model = fit(fresh(cls(**QUICK.get(name, {}))))
    save(model, path)
    again = load(path)
    assert type(again) is cls
    assert_same_outputs(model, again)
    assert repr(again) == repr(model)
    fitted = {key for key in vars(model) if key.endswith("_")}
    assert fitted <= set(vars(again))
    if hasattr(model, "sample"):
        drawn = [each.sample(20, random_state=3) for each in (model, again)]
        np.testing.assert_array_equal(*drawn)
    save(again, path.with_name("again"))
    assert path.with_name("again").read_bytes() == path.read_bytes()
    assert_same_outputs(model, fit(copy.deepcopy(again)))  # it can be fitted again


@pytest.mark.parametrize("labels", [["a", "b", "cc"], np.array(["x", "y", "z"], dtype=object)])
def test_classes_that_are_strings(iris, path, labels):
    X, y = iris
    model = AsymmetricMetricClassifier(max_iter=2, random_state=0).fit(X, np.array(labels)[y])
    save(model, path)
    again = load(path)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.classes_.dtype == model.classes_.dtype


def test_column_names_and_arrays_as_parameters(iris, path):
    pd = pytest.importorskip("pandas")
    X = pd.DataFrame(iris[0], columns=list("abcd"))
    model = GMMLTransformer(prior=np.diag([1.0, 2, 3, 4]), geodesic=0.5).fit(X, iris[1])
    model.set_output(transform="pandas")
    save(model, path)
    again = load(path)
    pd.testing.assert_frame_equal(again.transform(X), model.transform(X))
    np.testing.assert_array_equal(again.feature_names_in_, list("abcd"))
    np.testing.assert_array_equal(again.prior, model.prior)


@pytest.mark.parametrize("values", [{"lr": float("inf")}, {"n_anchors": np.int64(4)}])
def test_numbers_that_json_has_not(path, values):
    model = LocalGMMLRanker()
    model.extra_ = {**values, 3: (1, {2.5}), "when": np.array(["2020-01-01"], "M8[D]")}
    save(model, path)
    assert load(path).extra_ == model.extra_


def test_memory_order_and_shapes_come_back(path):
    rng = np.random.default_rng(0)
    model = GMMLTransformer()
    model.arrays_ = [
        np.asfortranarray(rng.normal(size=(3, 4))),
        rng.normal(size=(4, 6))[:, ::2],
        np.empty((0, 5), dtype=np.float32),
        np.array(3, dtype=np.uint8),
        np.array([True, False]),
        np.arange(3, dtype=">f8"),
    ]
    save(model, path)
    for array, again in zip(model.arrays_, load(path).arrays_, strict=True):
        np.testing.assert_array_equal(again, array)
        assert again.shape == array.shape
        assert again.dtype == array.dtype.newbyteorder("=")
    assert load(path).arrays_[0].flags.f_contiguous


def test_sparse_rows_with_more_columns_than_rows(path):
    X = sparse.random(30, 900, density=0.02, format="csr", random_state=0)
    model = GMMLTransformer(geodesic=0.5).fit(X, np.arange(30) % 2)
    save(model, path)
    np.testing.assert_array_equal(load(path).transform(X), model.transform(X))


@pytest.mark.parametrize("qid", [None, np.arange(30) % 3])
def test_documents_of_a_ranker(iris, path, qid):
    X, y = iris
    model = LocalGMMLRanker(n_metrics=3, random_state=0).fit(X[::5], y[::5], qid=qid)
    save(model, path)
    again = load(path)
    for query in (None, X[:1]):
        expected = model.predict(X[::5], qid, query=query)
        np.testing.assert_array_equal(again.predict(X[::5], qid, query=query), expected)


def test_a_metric_by_transport(iris, path):
    pytest.importorskip("ot")
    from skdml import DeepMetricEmbedder

    X, y = iris
    model = DeepMetricEmbedder("mlp", loss="wcontrastive", max_epochs=1, random_state=0)
    save(model.set_params(n_components=8).fit(X, y), path)
    pairs = np.array([[0, 1], [2, 140]])
    expected = model.pair_distance(pairs, X=X)
    np.testing.assert_array_equal(load(path).pair_distance(pairs, X=X), expected)
    with pytest.raises(ValueError, match="metric compares embeddings by transport"):
        VectorIndex(model)


def test_critics_of_a_generator(iris, path):
    pytest.importorskip("torch")
    from skdml import WassersteinGenerator

    X, _ = iris
    model = WassersteinGenerator(cost="learned", max_iter=3, batch_size=16, random_state=0).fit(X)
    save(model, path)
    again = load(path)
    assert len(again.critics_) == len(model.critics_) > 0
    np.testing.assert_array_equal(again.sample(9, random_state=1), model.sample(9, random_state=1))
    assert again.score(X) == model.score(X)


def test_an_index_is_stored_with_its_metric(iris, path, model):
    X, _ = iris
    index = VectorIndex(model).fit(X, ids=[f"row {i}" for i in range(150)])
    index.save(path)
    again = VectorIndex.load(path)
    for expected, found in zip(index.query(X, 4), again.query(X, 4), strict=True):
        np.testing.assert_array_equal(found, expected)
    again.add(X[:1], ids=["new"])
    save(model, path)
    with pytest.raises(ValueError, match="holds a GMMLTransformer, not a VectorIndex"):
        VectorIndex.load(path)


# Networks


def own_network(torch):
    class Own(torch.nn.Module):
        def __init__(self, n_features, n_components):
            super().__init__()
            self.first = torch.nn.Linear(n_features, n_components)
            self.second = self.first
            self.register_buffer("shift", torch.ones(n_components), persistent=False)
            self.power = 2

        def forward(self, X):
            return torch.tanh(self.first(X.flatten(1))) ** self.power + self.shift

    return Own


def test_a_network_of_ones_own_is_given_to_load(iris, path):
    torch = pytest.importorskip("torch")
    from skdml import DeepMetricEmbedder

    X, y = iris
    Own = own_network(torch)
    model = DeepMetricEmbedder(Own, n_components=3, max_epochs=1, random_state=0).fit(X, y)
    save(model, path)
    again = load(path, module=Own)
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    assert again.module is Own
    assert again.module_.second is again.module_.first
    np.testing.assert_array_equal(load(path, module=[Own]).transform(X), model.transform(X))
    with pytest.raises(ValueError, match=r"model.safetensors has the network .*Own.*module="):
        load(path)
    with pytest.raises(TypeError, match="module must be a class"):
        load(path, module="mlp")


def test_layers_of_torch_are_known(iris, path):
    torch = pytest.importorskip("torch")
    X, y = iris
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    model = AsymmetricMetricClassifier(
        query_module=network, database_module=torch.nn.Linear(4, 2), max_iter=2, random_state=0
    ).fit(X, y)
    save(model, path)
    again = load(path)
    assert_same = np.testing.assert_array_equal
    assert_same(again.transform(X), model.transform(X))
    assert_same(again.transform_database(X), model.transform_database(X))
    assert_same(again.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize("module", ["mlp", "convnet", "adapter"])
def test_named_networks(path, module):
    pytest.importorskip("torch")
    from skdml import DeepMetricEmbedder

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 64)), np.arange(40) % 4
    shape = {"input_shape": (1, 8, 8)} if module == "convnet" else {}
    model = DeepMetricEmbedder(module, n_components=4, max_epochs=1, random_state=0, **shape)
    save(model.fit(X, y), path)
    again = load(path)
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    assert again.score(X, y) == model.score(X, y)
    with pytest.raises(AttributeError, match="optimizer_ is not there: this estimator was loaded"):
        _ = again.net_.optimizer_


# What cannot be stored


@pytest.mark.parametrize("value", [lambda: 0, np.random.RandomState(0), object(), 1j, print])
def test_code_is_refused_with_its_place(path, value):
    model = GMMLTransformer(random_state=value)
    with pytest.raises(TypeError, match=r"GMMLTransformer.random_state is .*without code"):
        save(model, path)
    assert not path.exists()


def test_only_estimators_are_stored(path):
    with pytest.raises(TypeError, match="estimator must be an estimator of skdml"):
        save({"a": 1}, path)

    class Sub(GMMLTransformer):
        pass

    with pytest.raises(TypeError, match="estimator must be an estimator of skdml"):
        save(Sub(), path)


# Wrong files


def rewrite(path, change, resign=True):
    """Change the JSON of a file, with a checksum that fits."""
    from skdml.io._store import _digest

    with __import__("safetensors").safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["skdml"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    header["content"] = json.dumps(change(json.loads(header["content"])))
    if resign:
        header["sha256"] = _digest(header["content"], arrays)
    path.write_bytes(safetensors.save(arrays, metadata={"skdml": json.dumps(header)}))


def test_a_file_that_is_cut_or_changed_anywhere(path, model):
    save(model, path)
    whole = path.read_bytes()
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=str(path)):
            load(path)
    for place in np.linspace(0, len(whole) - 1, 60).astype(int):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        try:
            found = load(path)
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017
        else:  # a byte of the version or of the white space
            np.testing.assert_array_equal(found.components_, model.components_)


def test_files_of_others(path, model):
    path.write_text("hello")
    with pytest.raises(ValueError, match=r"model.safetensors is no complete file of safetensors"):
        load(path)
    path.write_bytes(safetensors.save({"a": np.zeros(3)}))
    with pytest.raises(ValueError, match=r"was not written by skdml.io.save"):
        load(path)
    header = {"skdml": json.dumps({"version": "9.0", "format": 7})}
    path.write_bytes(safetensors.save({"a": np.zeros(3)}, metadata=header))
    with pytest.raises(ValueError, match=r"has format 7 and was written by skdml 9.0"):
        load(path)
    with pytest.raises(FileNotFoundError, match="There is no file"):
        load(path.with_name("other"))


def test_the_checksum_is_of_the_structure_too(path, model):
    save(model, path)
    rewrite(path, lambda content: ["other"], resign=False)
    with pytest.raises(ValueError, match="is damaged or was changed"):
        load(path)


@pytest.mark.parametrize(
    "content",
    [
        3,
        [],
        {"object": [0, "system", []]},
        {"object": [0, "os.system", []]},
        {"object": [0, "GMMLTransformer", [["__class__", 3]]]},
        {"object": [0, "GMMLTransformer", [["gamma", "wrong"]]]},
        {"object": [0, "GMMLTransformer", [["metric_", {"array": ["<f8", "C", "none"]}]]]},
        {"object": [0, "GMMLTransformer", [["metric_", {"same": 7}]]]},
        {"object": [0, "GMMLTransformer", [["metric_", {"call": ["os.system", "ls"]}]]]},
        {"object": [0, "GMMLTransformer", [["metric_", {"seen": 0}]]]},
        {"object": [0, "GMMLTransformer", [["metric_", {"a": 1, "b": 2}]]]},
        {"object": [0, "GMMLTransformer", [["metric_", {"class": [1, "torch.nn.functional"]}]]]},
        {"object": [0, "GMMLTransformer", [["metric_", {"class": [1, "torch.hub.load"]}]]]},
        {"object": [0, "GMMLTransformer", [["metric_", {"dtype": ["no"]}]]]},
        {"tuple": [1]},
    ],
)
def test_content_that_is_not_of_an_estimator(path, model, content):
    save(model, path)
    rewrite(path, lambda _: content)
    with pytest.raises(ValueError, match=r"model.safetensors"):
        load(path)


def test_hooks_of_networks_are_no_attributes(path, iris):
    pytest.importorskip("torch")
    from skdml import DeepMetricEmbedder

    save(DeepMetricEmbedder("mlp", max_epochs=1, random_state=0).fit(*iris), path)

    def add_hook(content):
        state = content["object"][2]
        network = next(item for key, item in state if key == "module_")["network"]
        network[2].append(["_forward_hooks", {"dict": []}])
        return content

    rewrite(path, add_hook)
    with pytest.raises(ValueError, match="'_forward_hooks' is no attribute of a network"):
        load(path)


def test_a_linear_model_loads_without_torch(path, model):
    save(model, path)
    code = (
        "import sys; from skdml.io import load; load(sys.argv[1]); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
