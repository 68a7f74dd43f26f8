"""A method that is added from outside the package."""

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

torch = pytest.importorskip("torch")
pytest.importorskip("skorch")

from skdml import SSDMLEmbedder  # noqa: E402
from skdml.metrics import recall_at_k  # noqa: E402
from skdml.semisupervised import (  # noqa: E402
    SemiSupervisedMethod,
    _ssdml_methods,
    method_names,
    register_method,
)


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    monkeypatch.setattr(_ssdml_methods, "_METHODS", dict(_ssdml_methods._METHODS))


@pytest.fixture
def wine():
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X), np.where(np.arange(len(y)) % 4 == 0, y, -1), y


def add_discriminant():
    """Linear discriminants of the propagated classes; neighbours together, for a network."""

    @register_method("discriminant")
    class Discriminant(SemiSupervisedMethod):
        def __init__(self, ridge=0.1):
            self.ridge = ridge

        def begin(self, partition, rng):
            self.labels = partition.classes.argmax(axis=1)
            self.labels_t = torch.from_numpy(self.labels)

        def loss(self, batch, first, second):
            same = self.labels_t[batch[0]] == self.labels_t[batch[1]]
            squares = (first - second).square().sum(1)
            return torch.where(same, squares, (1 - squares).relu()).mean()

        def find_metric(self, features, factor, rng):
            means = np.stack([features[self.labels == c].mean(axis=0) for c in set(self.labels)])
            within = np.cov(features - means[self.labels], rowvar=False)
            within += self.ridge * np.trace(within) / len(within) * np.eye(len(within))
            values, axes = np.linalg.eigh(np.linalg.inv(within))
            return (axes * np.sqrt(values))[:, ::-1][:, : factor.shape[1]]

    return Discriminant


@pytest.mark.parametrize("module", [None, "mlp"])
def test_a_method_from_outside_is_chosen_by_name(wine, module):
    X, partly, y = wine
    add_discriminant()
    assert "discriminant" in method_names()
    params = {} if module is None else {"max_epochs": 2}
    model = SSDMLEmbedder(
        "discriminant", module=module, n_components=8, loss__ridge=0.5, random_state=0, **params
    ).fit(X, partly)
    assert model.transform(X).shape == (len(X), 8)
    assert recall_at_k(model.transform(X), y, k=1) > 0.85
    assert ("loss" in model.history_) == (module is not None)


def test_its_parameters_are_checked_as_those_of_others(wine):
    X, partly, _ = wine
    add_discriminant()
    with pytest.raises(ValueError, match=r"loss__ridge=1.0 .*method='ssdml'.*'discriminant'"):
        SSDMLEmbedder(loss__ridge=1.0).fit(X, partly)
    with pytest.raises(TypeError, match=r"loss__nonsense: no method .*loss__ridge"):
        SSDMLEmbedder("discriminant", loss__nonsense=1.0).fit(X, partly)


def test_another_class_for_the_papers_recipe(wine):
    X, partly, _ = wine

    class Printed(add_discriminant()):
        def find_metric(self, features, factor, rng):
            return np.eye(*factor.shape)

    register_method("discriminant", paper=Printed)(add_discriminant())
    model = SSDMLEmbedder("discriminant", recipe="paper", module=None, n_components=3)
    np.testing.assert_allclose(model.fit(X, partly).components_, np.eye(3, 13), atol=1e-6)


@pytest.mark.parametrize("name", [3, "", None])
def test_wrong_names_of_methods_are_errors(name):
    with pytest.raises(TypeError, match="name must be a string"):
        register_method(name)


def test_wrong_classes_of_methods_are_errors():
    for register in (register_method("wrong"), register_method("wrong", paper=int)):
        with pytest.raises(TypeError, match="must be a subclass of SemiSupervisedMethod"):
            register(int)
    with pytest.raises(TypeError, match="must be a subclass of SemiSupervisedMethod"):
        register_method("wrong", paper=int)(add_discriminant())
    assert "wrong" not in method_names()
