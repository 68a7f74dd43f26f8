"""ONNX graphs give what transform gives."""

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skdml
from skdml import GMMLTransformer, LocalGMMLRanker
from skdml.io import register_onnx_converters, to_onnx
from skdml.io._onnx import LINEAR
from skdml.utils._checks_common import fit, fresh, make_data
from tests.test_common import QUICK

onnxruntime = pytest.importorskip("onnxruntime")
skl2onnx = pytest.importorskip("skl2onnx")


def run(model, X):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {session.get_inputs()[0].name: X.astype(np.float32)})[0]


def assert_same(model, estimator, X, n_rows=(1, 7)):
    X = X.astype(np.float32)
    expected = estimator.transform(X)
    np.testing.assert_allclose(run(model, X), expected, rtol=1e-5, atol=1e-5)
    for n in n_rows:
        np.testing.assert_allclose(run(model, X[:n]), expected[:n], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LINEAR)
def test_linear_learners(name):
    estimator = fit(fresh(getattr(skdml, name)(**QUICK.get(name, {}))))
    assert_same(to_onnx(estimator), estimator, make_data().X)


@pytest.mark.parametrize("n_components", [None, 2])
def test_the_cosine_has_unit_length(n_components):
    X, y = load_iris(return_X_y=True)
    estimator = GMMLTransformer(geodesic=0.5, metric="cosine", n_components=n_components).fit(X, y)
    model = to_onnx(estimator)
    assert_same(model, estimator, 3 * X)
    np.testing.assert_allclose(np.linalg.norm(run(model, X), axis=1), 1, rtol=1e-5)


def test_a_pipeline():
    X, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), GMMLTransformer(geodesic=0.5)).fit(X, y)
    register_onnx_converters()
    model = skl2onnx.to_onnx(pipeline, X[:1].astype(np.float32))
    assert_same(model, pipeline, X)


@pytest.mark.parametrize("module", ["mlp", "convnet", "adapter"])
def test_networks(module):
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 64)).astype(np.float32), np.arange(40) % 4
    shape = {"input_shape": (1, 8, 8)} if module == "convnet" else {}
    estimator = skdml.DeepMetricEmbedder(
        module, n_components=4, max_epochs=2, random_state=0, **shape
    ).fit(X, y)
    assert_same(to_onnx(estimator), estimator, X)


@pytest.mark.parametrize("module", [None, "mlp"])
def test_semi_supervised_maps(module):
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    X, y = load_iris(return_X_y=True)
    y = np.where(np.arange(150) % 5, -1, y)
    estimator = skdml.SSDMLEmbedder(
        module=module, n_components=2, max_epochs=1, n_neighbors=4, random_state=0
    ).fit(X, y)
    assert_same(to_onnx(estimator), estimator, X)


def test_others_are_refused():
    with pytest.raises(TypeError, match="estimator must be one of DITMLTransformer"):
        to_onnx(LocalGMMLRanker())
    with pytest.raises(ValueError, match="not fitted"):
        to_onnx(GMMLTransformer())
