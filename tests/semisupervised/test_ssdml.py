import os
import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import KNeighborsClassifier

torch = pytest.importorskip("torch")
pytest.importorskip("skorch")

from torch import nn  # noqa: E402

from skdml import SSDMLEmbedder  # noqa: E402
from skdml.deep._hog import OrientedGradients  # noqa: E402
from skdml.deep.modules import MLP, ConvNet  # noqa: E402
from skdml.metrics import cluster_nmi, recall_at_k  # noqa: E402
from skdml.semisupervised import _partitions, _table_classes  # noqa: E402
from tests.semisupervised.quick_ssdml import quick  # noqa: E402
from tests.systems import KILL  # noqa: E402

METHODS = ("ssdml", "lrml", "seraph", "isdml", "apllr", "apit")


class Narrow(nn.Module):
    """A module of a user, with three outputs whatever is asked for."""

    def __init__(self, n_features):
        super().__init__()
        self.layer = nn.Linear(n_features, 3)

    def forward(self, X):
        return self.layer(X)


# What is learned


def test_few_labels_and_many_rows_beat_the_input(digits):
    X, partly, y = digits
    known = partly != -1
    model = quick(max_epochs=4, n_components=32, module__hidden=(128,)).fit(X, partly)
    accuracies, clusters = [], []
    for rows in (X, model.transform(X)):
        nearest = KNeighborsClassifier(1).fit(rows[known], y[known])
        accuracies.append(nearest.score(rows[~known], y[~known]))
        clusters.append(cluster_nmi(rows, y, random_state=0))
    assert accuracies[1] > accuracies[0] + 0.05
    assert clusters[1] > clusters[0] + 0.05


def test_labels_are_propagated_to_all_rows(fitted, digits):
    _, partly, y = digits
    known = partly != -1
    np.testing.assert_array_equal(fitted.propagated_labels_[known], y[known])
    np.testing.assert_array_equal(fitted.propagated_confidence_[known], 1)
    assert np.mean(fitted.propagated_labels_ == y) > 0.8
    assert fitted.propagated_confidence_.min() > 0


@pytest.mark.parametrize("recipe", ["default", "paper"])
@pytest.mark.parametrize("module", ["mlp", None])
def test_L_is_orthonormal_and_moves(digits, recipe, module):
    X, partly, _ = digits
    models = [
        quick(recipe=recipe, module=module, max_epochs=epochs).fit(X, partly) for epochs in (1, 3)
    ]
    for model in models:
        product = model.components_ @ model.components_.T
        np.testing.assert_allclose(product, np.eye(8), atol=1e-6)
    assert not np.allclose(*(model.components_ for model in models), atol=1e-3)


def test_without_orthogonality(digits):
    X, partly, _ = digits
    model = quick(loss__orthogonal=False).fit(X, partly)
    assert np.abs(model.components_ @ model.components_.T - np.eye(8)).max() > 1e-3
    with pytest.raises(ValueError, match=r"loss__orthogonal=False .* recipe='paper'"):
        quick(loss__orthogonal=False, recipe="paper").fit(X, partly)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("module", ["mlp", None])
def test_every_method_with_and_without_a_network(digits, method, module):
    X, partly, y = digits
    model = quick(method=method, module=module).fit(X, partly)
    Z = model.transform(X)
    assert Z.shape == (400, 8)
    assert recall_at_k(Z, y, k=1) > 0.6
    n_epochs = 1 if module is None and method != "ssdml" else 2
    assert len(model.history_["seconds"]) == n_epochs
    assert (np.diff([0, *model.history_["seconds"]]) > 0).all()


@pytest.mark.parametrize("method", ["lrml", "isdml", "apllr", "apit"])
def test_classical_metrics_look_away_from_noise(method):
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    X = rng.standard_normal((200, 6))
    X[:, 0] = 3 * y + 0.3 * rng.standard_normal(200)
    X[:, 3:] *= 5
    partly = np.where(np.arange(200) < 30, y, -1)
    model = SSDMLEmbedder(method=method, module=None, random_state=0).fit(X, partly)
    assert recall_at_k(model.transform(X), y, k=1) > recall_at_k(X, y, k=1) + 0.05


def test_weights_of_the_other_methods_are_parameters(digits):
    X, partly, _ = digits
    plain = quick(method="lrml", module=None).fit(X, partly)
    other = quick(method="lrml", module=None, loss__graph_weight=10.0).fit(X, partly)
    assert not np.allclose(plain.components_, other.components_)
    for method in ("ssdml", "seraph", "lrml"):
        with pytest.raises(TypeError, match=r"loss__.*nonsense"):
            quick(method=method, loss__nonsense=1.0).fit(X, partly)


def test_the_papers_recipe_and_pretraining(digits):
    X, partly, y = digits
    model = quick(recipe="paper", pretrain_epochs=5).fit(X, partly)
    assert model.transform(X).shape == (400, 8)
    network = quick(method="lrml", recipe="paper", pretrain_epochs=30).fit(X, partly)
    assert recall_at_k(network.transform(X), y, k=1) > 0.6


def test_pretraining_and_the_instance_term_change_the_result(fitted, digits):
    X, partly, _ = digits
    for params in ({"pretrain_epochs": 3}, {"loss__instance_weight": 0.5}, {"loss__angle": 30}):
        other = quick(**params).fit(X, partly)
        assert not np.allclose(other.transform(X), fitted.transform(X), atol=1e-3)


# Partitions


def test_partitions_and_their_graphs(digits):
    X, partly, y = digits
    model = quick(partition_size=100, max_epochs=5, epochs_per_partition=2).fit(X, partly)
    assert model.history_["partition"] == [1, 1, 2, 2, 3]
    assert len(model.graph_statistics_) == 3
    for figures in model.graph_statistics_:
        assert figures["n_nodes"] == 140
        assert 0 < figures["mean_confidence"] <= 1
    assert np.mean(model.propagated_labels_ == y) > 0.6  # rows of no partition too
    many = quick(partition_size=30, max_epochs=3).fit(X, partly)  # 240 in graphs, 120 predicted
    assert np.mean(many.transduction_ == y) > 0.5
    assert many.propagated_confidence_.min() > 0


def test_rows_out_of_reach_have_no_label():
    """Of images and of the paper's recipe; a regression has a class for every row of a table."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    X[40:] += 1000
    y = np.full(60, -1)
    y[:20] = np.arange(20) % 2
    params = {"module": None, "n_neighbors": 4, "max_epochs": 1, "random_state": 0}
    model = SSDMLEmbedder(recipe="paper", **params).fit(X, y)
    np.testing.assert_array_equal(model.propagated_labels_[40:], -1)
    np.testing.assert_array_equal(model.propagated_confidence_[40:], 0)
    assert model.graph_statistics_[0]["n_unreached"] == 20
    names = np.where(y == -1, -1, np.array(["a", "b"], dtype=object)[np.maximum(y, 0)])
    named = SSDMLEmbedder(recipe="paper", **params).fit(X, names)
    assert list(named.classes_) == ["a", "b"]
    assert set(named.transduction_[40:]) == {None}
    np.testing.assert_array_equal(named.components_, model.components_)
    assert set(SSDMLEmbedder(**params).fit(X, y).transduction_) == {0, 1}


# Input and output


@pytest.mark.parametrize("shape", [(1, 8, 8), (64,)], ids=["image", "row"])
def test_the_network_fits_the_samples(digits, shape):
    X, partly, y = (part[:200] for part in digits)
    model = SSDMLEmbedder(max_epochs=2, n_components=8, random_state=0)
    model.fit(X.reshape(-1, *shape), partly)
    is_image = len(shape) == 3
    assert model.history_["partition"] == ([1, 2] if is_image else [1, 1])
    assert isinstance(model.module_, ConvNet if is_image else MLP)
    flat = clone(model).set_params(input_shape=shape).fit(X, partly)
    assert type(flat.module_) is type(model.module_)
    assert np.mean(model.predict(X.reshape(-1, *shape)) == y) > 0.6


def test_images_in_four_dimensions_or_flat(digits):
    X, partly, _ = (part[:150] for part in digits)
    images = X.reshape(-1, 1, 8, 8)
    options = {"module": "convnet", "module__channels": (8, 16), "augment": "affine"}
    model = quick(**options).fit(images, partly)
    flat = quick(input_shape=(1, 8, 8), **options).fit(X, partly)
    np.testing.assert_allclose(model.transform(images), flat.transform(X), atol=1e-5)
    linear = quick(module=None).fit(images, partly)
    assert linear.transform(images).shape == (150, 8)


def test_dtype_distances_and_names(fitted, digits):
    X = digits[0]
    Z = fitted.transform(X)
    assert fitted.transform(X.astype(np.float32)).dtype == np.float32
    assert np.linalg.norm(Z, axis=1).max() <= 1 + 1e-6
    pairs = np.array([[0, 1], [5, 5], [2, 30]])
    expected = np.linalg.norm(Z[pairs[:, 0]] - Z[pairs[:, 1]], axis=1)
    np.testing.assert_allclose(fitted.pair_distance(pairs, X), expected, atol=1e-6)
    np.testing.assert_allclose(fitted.pair_distance(X[pairs]), expected, atol=1e-6)
    assert list(fitted.get_feature_names_out()[:2]) == ["ssdmlembedder0", "ssdmlembedder1"]


def test_a_square_orthogonal_map_would_be_a_rotation(digits):
    X, partly, _ = (part[:100] for part in digits)
    X = X[:, 20:30]
    assert quick(module=None, n_components=64).fit(X, partly).components_.shape == (5, 10)
    assert quick(module=None, n_components=7).fit(X, partly).components_.shape == (7, 10)
    closed = quick(module=None, method="lrml", n_components=64).fit(X, partly)
    assert closed.components_.shape == (10, 10)


def test_pickle_has_no_training_data(fitted, digits):
    stored = pickle.dumps(fitted)
    assert len(stored) < 100_000  # the training data alone has 200 KB
    np.testing.assert_array_equal(
        pickle.loads(stored).transform(digits[0]), fitted.transform(digits[0])
    )


def test_a_loss_that_is_not_finite_keeps_the_last_good_weights(digits):
    X, partly, _ = digits
    calls = []

    def fragile(samples):
        calls.append(1)
        return samples * (float("nan") if len(calls) == 40 else 1.0)

    with pytest.warns(ConvergenceWarning, match="epoch 2, batch 10.*weights of epoch 1 are kept"):
        model = quick(augment=fragile).fit(X, partly)
    assert len(model.history_["loss"]) == 1
    assert np.isfinite(model.transform(X)).all()
    calls[:] = [1] * 39
    with pytest.raises(ValueError, match=r"epoch 1, batch 1\b.*smaller lr"):
        quick(augment=fragile).fit(X, partly)


def test_parameters_of_parts_survive_cloning():
    model = clone(quick(module__hidden=(7,), optimizer__weight_decay=0.1))
    assert model.get_params()["module__hidden"] == (7,)
    for wrong in ({"epochs": 3}, {"callbacks__name": 3}):
        with pytest.raises(TypeError, match=f"no parameter '{next(iter(wrong))}'"):
            SSDMLEmbedder(**wrong).fit([[0.0], [1.0]], [0, 1])


# Several workers


def test_threads_make_the_same_graphs(digits):
    X, partly, _ = (part[:200] for part in digits)
    one, two = (
        quick(partition_size=50, n_workers=n_workers).fit(X, partly) for n_workers in (1, 2)
    )
    np.testing.assert_array_equal(one.transduction_, two.transduction_)
    np.testing.assert_allclose(one.transform(X), two.transform(X), atol=1e-5)
    with pytest.raises(TypeError, match=r"client must be a distributed\.Client or None, got str"):
        quick(client="tcp://somewhere").fit(X, partly)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["table", "images"])
def test_a_dask_worker_that_dies_costs_time_only(
    cluster_client, digits, tmp_path, monkeypatch, kind
):
    X, partly, _ = (part[:200] for part in digits)
    model = quick(partition_size=50, max_epochs=1)
    if kind == "images":
        X, model = X.reshape(-1, 1, 8, 8), quick(partition_size=50, module="convnet")
    expected = model.fit(X, partly).propagated_confidence_

    def killed_once(work, once):
        def call(*args):
            if not once.exists():
                once.touch()
                os.kill(os.getpid(), KILL)
            return work(*args)

        return call

    marks = []
    first = (_table_classes, "learn_without"), (_partitions, "spread_labels")
    for module, name in (first[kind == "images"], (_partitions, "spread_classes")):
        marks.append(tmp_path / name)
        monkeypatch.setattr(module, name, killed_once(getattr(module, name), marks[-1]))
    found = clone(model).set_params(client=cluster_client).fit(X, partly)
    assert all(mark.exists() for mark in marks)
    np.testing.assert_allclose(found.propagated_confidence_, expected, atol=1e-5)


# Parameters


def test_at_most_twenty_parameters():
    assert len(SSDMLEmbedder._get_param_names()) <= 20


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"method": "lrml", "loss__angle": 30}, r"loss__angle=30 .*method='lrml'.*'ssdml'"),
        ({"loss__graph_weight": 2.0}, r"loss__graph_weight=2.0 .*method='ssdml'.*'lrml'"),
        ({"recipe": "paper", "loss__instance_weight": 0.1}, r"loss__instance_weight.*'paper'"),
        ({"module": None, "pretrain_epochs": 3}, r"pretrain_epochs=3 .* module=None"),
        ({"module": None, "module__hidden": (3,)}, r"module__hidden=\(3,\) .* module=None"),
        ({"module": None, "method": "apit", "max_epochs": 3}, r"max_epochs=3 .*'apit'"),
        ({"module": None, "method": "seraph", "lr": 0.1}, r"lr=0.1 .*method='seraph'"),
        ({"module": None, "recipe": "paper", "batch_size": 9}, r"batch_size=9 .*'paper'"),
        ({"loss__angle": 95}, r"'loss__angle' parameter of SSDMLEmbedder must be"),
        ({"method": "lrml", "loss__graph_weight": "a"}, r"'loss__graph_weight' parameter"),
        ({"method": "other"}, r"method must be one of .*'apit'.*got 'other'"),
    ],
    ids=str,
)
def test_parameters_without_effect_are_errors(digits, params, message):
    X, partly, _ = digits
    with pytest.raises(ValueError, match=message):
        SSDMLEmbedder(**params).fit(X, partly)


# Bad input


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.full(30, -1), "y is -1 everywhere"),
        (np.where(np.arange(30) < 5, 3, -1), "y has only one class"),
        (np.zeros(29), r"y has shape \(29,\) for 30 samples"),
        (np.full(30, np.nan), "y contains NaN"),
        (np.array(["a", "b", "-1"] * 10), "y has the text '-1'"),
        (None, "requires y"),
    ],
)
def test_bad_labels_are_named(y, message):
    X = np.random.default_rng(0).standard_normal((30, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=message):
            quick().fit(X, y)


def test_one_label_of_each_class_is_enough_for_ssdml_alone(digits):
    X, _, y = digits
    partly = np.full(400, -1)
    _, first = np.unique(y, return_index=True)
    partly[first] = y[first]
    assert quick(max_epochs=1).fit(X, partly).transform(X).shape == (400, 8)
    for method in METHODS[1:]:
        with pytest.raises(ValueError, match="no class with two labelled samples"):
            quick(method=method).fit(X, partly)


def test_numbers_of_neighbours_are_checked(digits):
    X, partly, _ = digits
    with pytest.raises(ValueError, match=r"n_neighbors=7 must be even.*6 or 8"):
        quick(n_neighbors=7).fit(X, partly)
    with pytest.raises(ValueError, match=r"n_neighbors=400 must be less than the 400 samples"):
        quick(n_neighbors=400).fit(X, partly)
    with pytest.raises(ValueError, match=r"n_neighbors=60 must be less than the 50 samples"):
        quick(n_neighbors=60, partition_size=10).fit(X, partly)


def test_all_labelled_is_a_warning(digits):
    X, _, y = digits
    with pytest.warns(UserWarning, match="all samples have a label.*DeepMetricEmbedder"):
        model = quick(max_epochs=1).fit(X, y)
    np.testing.assert_array_equal(model.propagated_labels_, y)


def test_bad_parts_are_named(digits):
    X, partly, _ = (part[:100] for part in digits)
    with pytest.raises(ValueError, match="n_components=8 is more than the 3 outputs"):
        quick(module=Narrow).fit(X, partly)
    assert quick(module=Narrow, n_components=2).fit(X, partly).transform(X).shape == (100, 2)
    with pytest.raises(TypeError, match="module must be"):
        quick(module=len).fit(X, partly)
    with pytest.raises(ValueError, match="augment='affine' changes images"):
        quick(augment="affine").fit(X, partly)
    with pytest.raises(TypeError, match="optimizer must be"):
        quick(optimizer=len).fit(X, partly)
    with pytest.raises(TypeError, match=r"augment must return a tensor .* got NoneType"):
        quick(augment=print).fit(X, partly)
    with pytest.raises(ValueError, match=r"'lr' parameter .* must be a float in the range"):
        quick(lr=1e300).fit(X, partly)
    with pytest.raises(ValueError, match=r"device='' cannot be used"):
        quick(device="").fit(X, partly)
    assert quick(max_epochs=1, n_components=True).fit(X, partly).transform(X).shape == (100, 1)


def test_convolutional_network_sees_edges(digits):
    X, partly, _ = digits
    params = {
        "module": "convnet",
        "module__channels": (4, 8),
        "input_shape": (1, 8, 8),
        "n_components": 4,
        "max_epochs": 1,
        "random_state": 0,
    }
    model = SSDMLEmbedder(**params).fit(X, partly)
    assert isinstance(model.module_.backbone[0], OrientedGradients)
    pixels = SSDMLEmbedder(module__gradients=False, **params).fit(X, partly)
    assert not isinstance(pixels.module_.backbone[0], OrientedGradients)
    # Edges do not depend on what is added to all pixels.
    np.testing.assert_allclose(model.transform(X + 0.5), model.transform(X), atol=1e-4)


@pytest.mark.parametrize("batch_size", [2, 3])
def test_pretraining_has_no_batch_of_one_row(digits, batch_size):
    X, _, y = digits
    partly = np.where(np.arange(len(y)) < 21, y, -1)
    params = {"max_epochs": 1, "pretrain_epochs": 1, "module__hidden": (4,), "random_state": 0}
    SSDMLEmbedder(batch_size=batch_size, **params).fit(X[:60], partly[:60])


def test_weights_that_are_not_finite_at_the_end_are_not_kept(digits):
    X, _, y = digits
    partly = np.where(np.arange(len(y)) < 40, y, -1)
    model = SSDMLEmbedder(max_epochs=1, lr=1e38, batch_size=1000, optimizer="sgd", random_state=0)
    with pytest.raises(ValueError, match=r"not finite in epoch 1.*smaller lr"):
        model.fit(X, partly)


def test_pretraining_that_diverges_is_named(digits):
    X, _, y = digits
    partly = np.where(np.arange(len(y)) < 40, y, -1)
    with pytest.raises(ValueError, match=r"features were not finite in epoch 1.*smaller lr"):
        quick(method="lrml", pretrain_epochs=1, lr=1e30).fit(X, partly)
