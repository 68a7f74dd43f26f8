"""The adapter: where it begins, what is held out, and that it does no harm."""

import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.preprocessing import normalize
from skorch.callbacks import Callback

from skdml import DeepMetricEmbedder
from skdml.deep._build import _split, choose_defaults, make_config
from skdml.deep.modules import Adapter, Unchanged, whiten_within
from skdml.metrics import map_at_r


def make_vectors(n_classes=24, n_each=12, n_features=16, n_nuisance=8, seed=0):
    """Unit vectors whose last columns vary within classes more than the first do between them."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(n_classes), n_each)
    X = rng.normal(size=(n_classes, n_features))[y]
    X[:, -n_nuisance:] = 2 * rng.normal(size=(len(y), n_nuisance))
    X += 0.3 * rng.normal(size=X.shape)
    return normalize(X).astype(np.float32), y


@pytest.fixture(scope="module")
def vectors():
    X, y = make_vectors()
    return X[y < 16], y[y < 16], X[y >= 16], y[y >= 16]


@pytest.fixture(scope="module")
def separated():
    """Classes that are told apart already."""
    X = np.repeat(np.eye(12, 16, dtype=np.float32), 4, axis=0)
    rng = np.random.default_rng(0)
    return normalize(X + rng.normal(scale=0.02, size=X.shape).astype(np.float32)), np.arange(
        48
    ) // 4


@pytest.fixture(scope="module")
def fitted(vectors):
    return adapter().fit(*vectors[:2])


def adapter(**params):
    return DeepMetricEmbedder("adapter", **{"max_epochs": 4, "random_state": 0, **params})


def config_of(model, X, y):
    _, codes = np.unique(y, return_inverse=True)
    return make_config(
        model,
        **choose_defaults(model, X, X.shape[1:], codes),
        sample_shape=X.shape[1:],
        n_classes=int(codes.max()) + 1,
        seed=0,
    ), codes


# Where it begins


@pytest.mark.parametrize("hidden", [None, 7])
def test_a_new_adapter_is_the_identity(hidden, vectors):
    X = torch.from_numpy(vectors[0])
    assert_allclose(Adapter(X.shape[1], hidden)(3 * X).detach(), X, atol=1e-6)


def test_whitening_against_the_obvious_formula(vectors):
    X, y = vectors[0].astype(np.float64), vectors[1]
    scatter = np.zeros((X.shape[1],) * 2)
    for label in np.unique(y):
        rows = X[y == label] - X[y == label].mean(axis=0)
        scatter += rows.T @ rows / len(X)
    scatter += 0.1 * np.trace(scatter) / len(scatter) * np.eye(len(scatter))
    found = whiten_within(3 * torch.from_numpy(X), torch.from_numpy(y), 0.25).double().numpy()
    metric = found @ found
    # The fourth power of the metric is the inverse, up to the scale.
    product = np.linalg.matrix_power(metric, 4) @ scatter
    assert_allclose(product / product[0, 0], np.eye(len(product)), atol=1e-4)
    assert np.trace(metric) == pytest.approx(len(metric), rel=1e-5)


def test_whitening_of_classes_that_do_not_vary():
    found = whiten_within(torch.eye(3), torch.arange(3), 0.25)
    assert_array_equal(found, np.eye(3))


def test_training_on_classes_begins_whitened(vectors):
    X, y, *_ = vectors
    fitted = adapter(lr=1e-12, max_epochs=1, early_stopping=False, validation_fraction=None)
    start = whiten_within(torch.from_numpy(X), torch.from_numpy(y), 0.25).numpy()
    assert_allclose(fitted.fit(X, y).transform(X), normalize(X @ start), atol=1e-5)
    fitted.set_params(module__start="identity")
    assert_allclose(fitted.fit(X, y).transform(X), X, atol=1e-5)


def test_a_change_with_hidden_units_begins_at_the_identity(vectors):
    X, y, *_ = vectors
    model = adapter(module__hidden=8, lr=1e-12, max_epochs=1, early_stopping=False)
    assert_allclose(model.fit(X, y).transform(X), X, atol=1e-5)


def test_unknown_start():
    X, y = make_vectors(n_classes=10)
    with pytest.raises(ValueError, match="module__start must be 'whitened' or 'identity'"):
        adapter(module__start="white").fit(X, y)


# What it learns


@pytest.mark.parametrize("hidden", [None, 32])
def test_better_among_unseen_classes(hidden, vectors):
    X, y, X_unseen, y_unseen = vectors
    model = adapter(module__hidden=hidden, lr=1e-3).fit(X, y)
    assert map_at_r(model.transform(X_unseen), y_unseen) > map_at_r(X_unseen, y_unseen) + 0.1


def test_output_has_unit_length_and_the_columns_of_X(fitted, vectors):
    model, X_unseen = fitted, vectors[2]
    Z = model.transform(5 * X_unseen)
    assert Z.shape == X_unseen.shape
    assert model.n_components_ == X_unseen.shape[1]
    assert_allclose(np.linalg.norm(Z, axis=1), 1, atol=1e-5)
    assert_allclose(Z, model.transform(X_unseen), atol=1e-5)


def test_the_linear_adapter_is_one_matrix(fitted, vectors):
    model, X_unseen = fitted, vectors[2]
    matrix = np.eye(X_unseen.shape[1]) + model.module_.change.weight.detach().numpy()
    assert_allclose(model.transform(X_unseen), normalize(X_unseen @ matrix.T), atol=1e-5)


# What is held out


def test_held_out_classes_are_not_trained_on(vectors):
    X, y, *_ = vectors
    config, codes = config_of(adapter(), X, y)
    train, held_out = _split(config, codes)
    assert not set(codes[train]) & set(codes[held_out])
    assert_array_equal(np.sort(np.concatenate([train, held_out])), np.arange(len(y)))
    assert len(set(codes[held_out])) == pytest.approx(len(set(y)) / 3, abs=1)


def test_history_has_the_score_of_held_out_classes(fitted):
    model = fitted
    assert len(model.history_["valid_map"]) == len(model.history_["loss"])


def test_the_start_is_kept_where_no_epoch_is_better(separated):
    X, y = separated
    model = adapter(module__start="identity")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, y)
    assert model.net_.best_epoch_ == 0
    assert_array_equal(model.module_.change.weight.detach(), np.zeros((16, 16)))


def test_trained_again_with_the_classes_that_were_held_out(fitted, vectors):
    """It has the weights of as many epochs on all classes, and the history of the choice."""
    X, y, *_ = vectors
    model = fitted
    scores = np.array(model.history_["valid_map"])
    assert model.net_.best_epoch_ == 1 + scores.argmax()
    n_epochs = 1 + np.flatnonzero(scores >= 0.99 * scores.max())[-1]

    class After(Callback):
        def on_epoch_end(self, net, **kwargs):
            if len(net.history) == n_epochs:
                raise KeyboardInterrupt

    same = adapter(early_stopping=False, validation="samples", callbacks=[After()]).fit(X, y)
    assert_allclose(model.transform(X), same.transform(X), atol=1e-6)


def test_not_trained_again_with_callbacks(fitted, vectors):
    X, y, *_ = vectors
    plain, watched = fitted, adapter(callbacks=[Callback()]).fit(X, y)
    assert plain.history_["valid_map"] == watched.history_["valid_map"]
    assert np.abs(plain.transform(X) - watched.transform(X)).max() > 1e-4


def test_patience_can_be_set(separated):
    model = adapter(callbacks__early_stopping__patience=1).fit(*separated)
    assert len(model.history_["loss"]) == 2


def test_same_seed_same_weights(fitted, vectors):
    X, y, *_ = vectors
    assert_array_equal(adapter().fit(X, y).transform(X), fitted.transform(X))


# A network that loses


def test_a_network_that_loses_to_X_is_dropped_with_a_warning():
    rng = np.random.default_rng(0)
    X = normalize(np.repeat(rng.normal(size=(20, 64)), 8, axis=0)).astype(np.float32)
    X = normalize(X + 0.05 * rng.normal(size=X.shape)).astype(np.float32)
    y = np.repeat(np.arange(20), 8)
    model = DeepMetricEmbedder(
        "mlp",
        n_components=2,
        validation="classes",
        validation_fraction=0.2,
        max_epochs=1,
        random_state=0,
    )
    with pytest.warns(UserWarning, match="worse than X itself on held-out classes"):
        model.fit(X, y)
    assert isinstance(model.module_, Unchanged)
    assert_allclose(model.transform(X), X, atol=1e-6)
    assert model.n_components_ == X.shape[1]


# The choice of the network and of its defaults


@pytest.mark.parametrize(
    ("X", "module", "augment"),
    [
        (np.eye(20, 6)[:6], "adapter", ()),
        (np.ones((6, 5)), "mlp", ()),
        (np.zeros((6, 64)), "mlp", ()),
    ],
)
def test_module_by_rows(X, module, augment):
    chosen = choose_defaults(DeepMetricEmbedder(), X, X.shape[1:], np.arange(6) % 3)
    assert chosen["module"] == module
    assert chosen["augment"] == augment


@pytest.mark.parametrize(("size", "module"), [(8, "convnet"), (7, "mlp")])
def test_module_of_images(size, module):
    X = np.random.default_rng(0).normal(size=(6, size * size))
    chosen = choose_defaults(DeepMetricEmbedder(), X, (1, size, size), np.arange(6) % 3)
    assert chosen["module"] == module
    assert chosen["augment"] == (("affine",) if module == "convnet" else ())


def test_defaults_by_module():
    X = np.eye(40)
    codes = np.repeat(np.arange(10), 4)
    chosen = choose_defaults(DeepMetricEmbedder(), X, (40,), codes)
    expected = {"loss": "dro-kl-g", "classes_per_batch": 32, "lr": 1e-4, "validation": "classes"}
    assert {**chosen, **expected} == chosen
    assert chosen["early_stopping"]
    chosen = choose_defaults(DeepMetricEmbedder("mlp"), X, (40,), codes)
    expected = {"loss": "multi-similarity", "classes_per_batch": 16, "validation": "samples"}
    assert {**chosen, **expected} == chosen
    assert not chosen["early_stopping"]


def test_what_is_given_is_kept():
    given = {"loss": "contrastive", "classes_per_batch": 4, "lr": 0.5, "validation": "samples"}
    model = DeepMetricEmbedder(early_stopping=False, **given)
    chosen = choose_defaults(model, np.eye(40), (40,), np.repeat(np.arange(10), 4))
    assert {**chosen, **given, "early_stopping": False} == chosen


@pytest.mark.parametrize(
    ("counts", "validation", "early_stopping"),
    [([4] * 10, "classes", True), ([4] * 9, "samples", True), ([4] * 8 + [2], "samples", False)],
)
def test_few_classes(counts, validation, early_stopping):
    codes = np.repeat(np.arange(len(counts)), counts)
    X = normalize(np.random.default_rng(0).normal(size=(len(codes), 5)))
    chosen = choose_defaults(DeepMetricEmbedder(), X, (5,), codes)
    assert chosen["validation"] == validation
    assert chosen["early_stopping"] is early_stopping
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the network is worse than X itself")
        model = adapter(max_epochs=1).fit(X, codes)
    assert model.transform(X).shape == X.shape


def test_too_few_classes_to_hold_out():
    X, y = make_vectors(n_classes=3)
    with pytest.raises(ValueError, match="validation='classes' holds out 2 classes"):
        adapter(validation="classes").fit(X, y)
