import io
import os
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

torch = pytest.importorskip("torch")
pytest.importorskip("skorch")

from skorch.callbacks import Callback, Checkpoint, GradientNormClipping, LRScheduler  # noqa: E402
from torch import nn  # noqa: E402

from skdml import DeepMetricEmbedder  # noqa: E402
from skdml.metrics import recall_at_k  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:400] / 16, y[:400], X[400:800] / 16, y[400:800]


@pytest.fixture(scope="module")
def fitted(digits):
    return quick().fit(*digits[:2])


def quick(**params):
    defaults = {"max_epochs": 2, "module__hidden": (32,), "random_state": 0}
    return DeepMetricEmbedder(**{**defaults, **params})


class Affine(nn.Module):
    """A module of a user, which takes nothing from the data but the number of features."""

    def __init__(self, n_features, width=7):
        super().__init__()
        self.layer = nn.Linear(n_features, width)

    def forward(self, X):
        return self.layer(X)


class Vector(Affine):
    def forward(self, X):
        return self.layer(X).mean(1)


def test_neighbours_are_better_than_those_of_pixels(digits):
    X, y, X_test, y_test = digits
    X, X_test = (np.hstack([part, 0.5 * noise(part)]) for part in (X, X_test))
    model = quick(max_epochs=5).fit(X, y)
    assert model.score(X_test, y_test) > recall_at_k(X_test, y_test, k=1) + 0.05


def noise(X):
    return np.random.default_rng(len(X)).standard_normal(X.shape)


def test_embeddings_are_unit_vectors_of_the_dtype_of_X(fitted, digits):
    for dtype in (np.float64, np.float32):
        Z = fitted.transform(digits[2].astype(dtype))
        assert Z.dtype == dtype
        assert Z.shape == (400, 64)
        np.testing.assert_allclose(np.linalg.norm(Z, axis=1), 1, rtol=1e-6)
    half = fitted.transform(digits[2].astype(np.float16))
    np.testing.assert_allclose(half, fitted.transform(digits[2]), atol=0.01)


def test_pair_distance_is_that_of_embeddings(fitted, digits):
    X = digits[2]
    Z = fitted.transform(X)
    pairs = np.array([[0, 1], [5, 5], [2, 30]])
    expected = np.linalg.norm(Z[pairs[:, 0]] - Z[pairs[:, 1]], axis=1)
    np.testing.assert_allclose(fitted.pair_distance(pairs, X), expected, atol=1e-6)
    np.testing.assert_allclose(fitted.pair_distance(X[pairs]), expected, atol=1e-6)


def test_score_is_recall_at_1(fitted, digits):
    _, _, X, y = digits
    assert fitted.score(X, y) == recall_at_k(fitted.transform(X), y, k=1)


def test_images_in_four_dimensions_or_flat(digits):
    X, y, _, _ = digits
    images = X.reshape(-1, 1, 8, 8)
    options = {"module": "convnet", "module__channels": (8, 16), "max_epochs": 1, "random_state": 0}
    model = DeepMetricEmbedder(**options).fit(images, y)
    flat = DeepMetricEmbedder(input_shape=(1, 8, 8), **options).fit(X, y)
    np.testing.assert_allclose(model.transform(images), flat.transform(X), atol=1e-6)
    with pytest.raises(ValueError, match=r"X has samples of shape \(1, 4, 16\)"):
        model.transform(X.reshape(-1, 1, 4, 16))


def test_augmented_and_turned_images(digits):
    X, y, _, _ = digits
    images = X.reshape(-1, 1, 8, 8)
    options = {"module": "convnet", "module__channels": (8, 16), "max_epochs": 1, "random_state": 0}
    plain = DeepMetricEmbedder(**options).fit(images, y)
    for change in (
        {"augment": "affine"},
        {"augment": ["class-rotations"]},
        {"augment": torch.flipud},
    ):
        changed = DeepMetricEmbedder(**options, **change).fit(images, y)
        assert not np.allclose(changed.transform(images), plain.transform(images))


def test_same_seed_same_weights_and_no_trace_in_the_global_state(digits):
    X, y, X_test, _ = digits
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first = quick().fit(X, y).transform(X_test)
    assert torch.equal(torch.rand(1), expected)
    np.testing.assert_array_equal(first, quick().fit(X, y).transform(X_test))
    assert not np.allclose(first, quick(random_state=1).fit(X, y).transform(X_test))


def test_strings_as_labels(fitted, digits):
    X, y, X_test, _ = digits
    named = quick().fit(X, np.char.add("digit ", y.astype(str)))
    np.testing.assert_array_equal(named.transform(X_test), fitted.transform(X_test))
    assert named.classes_[0] == "digit 0"


# Parameters of the parts


def test_parameters_of_parts_are_parameters():
    model = DeepMetricEmbedder(module__hidden=(8,), optimizer__weight_decay=0.1)
    copy = clone(model)
    assert copy.get_params()["module__hidden"] == (8,)
    copy.set_params(module__hidden=(4, 4), lr=0.1, loss__alpha=3.0)
    assert copy.module__hidden == (4, 4)
    assert "module__hidden=(8,)" in repr(model)
    X, y = load_wine(return_X_y=True)
    for wrong in ({"modul__hidden": 3}, {"epochs": 3}, {"criterion__x": 3}):
        with pytest.raises(TypeError, match=f"no parameter '{next(iter(wrong))}'"):
            DeepMetricEmbedder(**wrong).fit(X, y)
    with pytest.raises(ValueError, match="Invalid parameter 'epochs'"):
        model.set_params(epochs=3)


def test_parts_get_their_parameters(digits):
    X, y, _, _ = digits
    model = quick(module__hidden=(5, 6), optimizer="sgd", optimizer__momentum=0.3, n_components=3)
    model.fit(X, y)
    layers = [layer for layer in model.module_.modules() if isinstance(layer, nn.Linear)]
    assert [layer.out_features for layer in layers] == [5, 6, 3]
    assert model.net_.optimizer_.param_groups[0]["momentum"] == 0.3
    assert model.n_components_ == 3
    assert list(model.get_feature_names_out()) == [f"deepmetricembedder{i}" for i in range(3)]


def test_a_module_of_the_user(digits):
    X, y, _, _ = digits
    model = DeepMetricEmbedder(Affine, module__width=9, max_epochs=1, random_state=0).fit(X, y)
    assert model.transform(X).shape == (400, 9)
    with pytest.raises(ValueError, match=r"Vector must return one embedding per sample"):
        DeepMetricEmbedder(Vector, max_epochs=1).fit(X, y)
    with pytest.raises(TypeError, match="module must be"):
        DeepMetricEmbedder(len).fit(X, y)


def test_grid_search_over_parts_in_a_pipeline():
    X, y = load_wine(return_X_y=True)
    model = make_pipeline(StandardScaler(), quick(max_epochs=1), KNeighborsClassifier(3))
    grid = {
        "deepmetricembedder__loss": ["multi-similarity", "contrastive"],
        "deepmetricembedder__lr": [0.002],
        "deepmetricembedder__module__hidden": [(8,), (16,)],
    }
    search = GridSearchCV(model, grid, cv=2, error_score="raise").fit(X, y)
    assert search.best_score_ > 0.9


def test_pipeline_with_kmeans():
    X, y = load_wine(return_X_y=True)
    model = make_pipeline(StandardScaler(), quick(), KMeans(3, n_init=1, random_state=0))
    labels = model.fit(X, y).predict(X)
    assert sum(len(np.unique(y[labels == label])) == 1 for label in range(3)) >= 2


# Callbacks, history, stopping


def test_history_has_every_epoch(fitted):
    assert set(fitted.history_) == {"loss", "seconds"}
    assert {len(values) for values in fitted.history_.values()} == {2}
    assert fitted.history_["loss"][1] < fitted.history_["loss"][0]
    assert 0 < fitted.history_["seconds"][0] < fitted.history_["seconds"][1]


def test_the_learning_rate_falls_to_zero_unless_a_schedule_is_given(digits):
    X, y, _, _ = digits
    model = quick().fit(X, y)
    assert model.net_.optimizer_.param_groups[0]["lr"] == pytest.approx(0, abs=1e-8)
    schedule = LRScheduler(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    model = quick(callbacks=[schedule]).fit(X, y)
    assert model.net_.optimizer_.param_groups[0]["lr"] > 1e-4


def test_parameters_of_callbacks(digits):
    X, y, _, _ = digits
    clip = ("clip", GradientNormClipping(gradient_clip_value=1.0))
    model = quick(callbacks=[clip], callbacks__clip__gradient_clip_value=0.5)
    model = clone(model).fit(X, y)
    assert dict(model.net_.callbacks_)["clip"].gradient_clip_value == 0.5
    with pytest.raises(ValueError, match="clop"):
        quick(callbacks=[clip], callbacks__clop__gradient_clip_value=0.5).fit(X, y)


def test_callbacks_of_skorch(digits, tmp_path):
    X, y, _, _ = digits
    checkpoint = Checkpoint(monitor=None, dirname=tmp_path)
    quick(callbacks=[checkpoint]).fit(X, y)
    assert (tmp_path / "params.pt").exists()
    with pytest.raises(TypeError, match="callbacks must hold skorch callbacks"):
        quick(callbacks=["checkpoint"]).fit(X, y)


def test_early_stopping_keeps_the_best_epoch(digits):
    X, y, _, _ = digits
    model = quick(early_stopping=True, max_epochs=30, lr=0.05).fit(X, y)
    recalls = model.history_["valid_recall"]
    assert len(recalls) < 30
    assert len(recalls) == int(np.argmax(recalls)) + 1 + 5


def test_few_samples_can_be_held_out(digits):
    X = digits[0]
    for params in ({"early_stopping": True}, {"validation_fraction": 0.1}):
        model = quick(max_epochs=1, **params).fit(X[:20], np.arange(20) % 3)
        assert 0 <= model.history_["valid_recall"][0] <= 1


def test_bad_samples_and_labels_to_score_are_named(digits):
    X, y, _, _ = digits
    model = quick(max_epochs=1).fit(X[:40], y[:40])
    assert model.score(X, y[:, None]) == model.score(X, y)
    for wrong, error, message in (
        (y[1:], ValueError, r"y has shape .* one class label per sample"),
        (3, ValueError, r"y has shape \(\)"),
        (np.arange(len(y)), ValueError, "y has no class with two samples"),
        ([[1], [1, 2]], ValueError, "y: setting an array element"),
        (["a", 1] * (len(y) // 2), TypeError, "y must be all numbers or all strings"),
    ):
        with pytest.raises(error, match=message):
            model.score(X[: 2 * (len(y) // 2)] if isinstance(wrong, list) else X, wrong)
    with pytest.raises(ValueError, match="X: setting an array element"):
        model.transform([[1.0], [1.0, 2.0]])
    with pytest.raises(ValueError, match="pairs: setting an array element"):
        model.pair_distance([[0, 1], [2]], X)


def test_held_out_samples_are_measured(digits):
    X, y, _, _ = digits
    model = quick(validation_fraction=0.2).fit(X, y)
    assert all(0 <= recall <= 1 for recall in model.history_["valid_recall"])
    with pytest.raises(ValueError, match=r"validation_fraction=0.9"):
        quick(validation_fraction=0.9).fit(X[:12], np.arange(12) % 6)


def test_a_loss_that_is_not_finite_keeps_the_last_good_weights(digits):
    X, y, _, _ = digits
    calls = []

    def fragile(embeddings, labels):
        calls.append(1)
        value = embeddings.square().mean()
        return value * (float("nan") if len(calls) == 70 else 1.0)

    model = quick(loss=fragile)
    with pytest.warns(ConvergenceWarning, match="epoch 2, batch 10.*weights of epoch 1 are kept"):
        model.fit(X, y)
    calls.clear()
    once = quick(loss=fragile, callbacks=[StopAfterOne()]).fit(X, y)
    np.testing.assert_array_equal(model.transform(X), once.transform(X))


def test_a_loss_that_is_never_finite_is_an_error(digits):
    X, y, _, _ = digits
    with pytest.raises(ValueError, match=r"epoch 1, batch 1\b.*smaller lr"):
        quick(loss=lambda embeddings, labels: embeddings.sum() * float("nan")).fit(X, y)


class StopAfterOne(Callback):
    """Ends training after the first epoch, as skorch's own callbacks do."""

    def on_epoch_end(self, net, **kwargs):
        raise KeyboardInterrupt


# Storage


def test_pickle_is_small_and_works_in_a_fresh_process(fitted, digits, tmp_path):
    X = digits[2]
    stored = pickle.dumps(fitted)
    assert len(stored) < 400_000  # the training data alone has 200 KB
    path = tmp_path / "model.pkl"
    path.write_bytes(stored)
    np.save(tmp_path / "X.npy", X)
    code = (
        "import pickle, sys, numpy as np; folder = sys.argv[1]; "
        "model = pickle.load(open(folder + '/model.pkl', 'rb')); "
        "np.save(folder + '/Z.npy', model.transform(np.load(folder + '/X.npy')))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "Z.npy"), fitted.transform(X))


def test_weights_are_plain_tensors(fitted, digits):
    buffer = io.BytesIO()
    fitted.net_.save_params(f_params=buffer)
    buffer.seek(0)
    weights = torch.load(buffer, weights_only=True)
    other = quick(random_state=1).fit(*digits[:2])
    other.module_.load_state_dict(weights)
    np.testing.assert_array_equal(other.transform(digits[2]), fitted.transform(digits[2]))


# Bad input


def test_bad_samples_and_labels_are_named(digits):
    X, y, _, _ = digits
    for wrong, message in (
        (np.where(y == 3, -1, y), "-1 for .* SSDMLEmbedder"),
        (np.zeros(len(X)), "y has only one class"),
        (np.arange(len(X)), "no class with two samples"),
        (y[:-1], r"y has shape \(399,\)"),
        (None, "requires y"),
    ):
        with pytest.raises(ValueError, match=message):
            quick().fit(X, wrong)
    for options, message in (
        ({"module": "convnet", "module__channels": (4,)}, "input_shape"),
        ({"input_shape": (1, 5, 5)}, r"input_shape=\(1, 5, 5\) has 25 values"),
        ({"augment": "affine"}, "augment='affine' changes images"),
        ({"device": "gpu"}, "device='gpu' cannot be used"),
        ({"device": "cuda:99"}, "device='cuda:99' cannot be used"),
        ({"augment": "class-rotations", "input_shape": (1, 4, 16)}, "square images"),
    ):
        model = DeepMetricEmbedder(max_epochs=1, **options)
        with pytest.raises(ValueError, match=message):
            model.fit(X, y)


@pytest.mark.parametrize("part", ["loss", "loss__miner"])
def test_a_loss_or_miner_that_returns_nothing_is_named(digits, part):
    name = part.removeprefix("loss__")
    with pytest.raises(TypeError, match=rf"{name} must return .* got NoneType"):
        quick(**{part: print}).fit(*digits[:2])


def test_a_dimension_may_be_any_whole_number(digits):
    X, y, _, _ = digits
    assert quick(n_components=True, max_epochs=1).fit(X, y).transform(X).shape == (len(X), 1)


def test_augment_must_return_the_samples(digits):
    for augment, got in ((print, "NoneType"), (torch.Tensor.numpy, "ndarray"), (_half, r"\d+")):
        with pytest.raises(TypeError, match=rf"augment must return a tensor of .* got {got}\."):
            quick(augment=augment).fit(*digits[:2])


def _half(X):
    return X[: len(X) // 2]


def test_a_wrong_loss_name_lists_near_ones(digits):
    with pytest.raises(ValueError, match="multi-similarity"):
        quick(loss="multi-similarty").fit(*digits[:2])


def test_one_sample_classes_and_few_classes(digits):
    X, y, _, _ = digits
    labels = np.where(np.arange(len(y)) < 3, 100 + np.arange(len(y)), y % 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert quick(max_epochs=1).fit(X, labels).transform(X).shape == (400, 64)
        assert quick(max_epochs=1).fit(X[:6], [0, 0, 1, 1, 2, 2]).transform(X).shape == (400, 64)


_FIT_FROM_DISK = """
import resource, sys
import numpy as np
from skdml import DeepMetricEmbedder

X, y = np.load("X.npy", mmap_mode="r"), np.load("y.npy")
model = DeepMetricEmbedder(
    max_epochs=1,
    classes_per_batch=10,
    samples_per_class=50,
    module__hidden=(16,),
    random_state=0,
    **eval(sys.argv[1]),
)
model.fit(X[:1000], y[:1000])  # what packages take
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model.fit(X, y)
model.transform(X)
grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
embeddings = 4 * 64 * len(X)
print((grown - embeddings) / X.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pages are let go on Linux only")
@pytest.mark.parametrize(
    "params", [{}, pytest.param({"validation_fraction": 0.3}, marks=pytest.mark.slow)]
)
def test_a_memory_mapped_array_stays_on_disk(params, tmp_path):
    n_rows, n_features = 50_000, 1024
    X = np.lib.format.open_memmap(
        tmp_path / "X.npy", "w+", dtype=np.float32, shape=(n_rows, n_features)
    )
    rng = np.random.default_rng(0)
    for first in range(0, n_rows, 5000):
        X[first : first + 5000] = rng.random((5000, n_features), dtype=np.float32)
    X.flush()
    np.save(tmp_path / "y.npy", np.arange(n_rows) % 10)
    done = subprocess.run(
        [sys.executable, "-c", _FIT_FROM_DISK, repr(params)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.15


def test_memory_mapped_arrays_give_what_arrays_give(tmp_path):
    X, y = load_wine(return_X_y=True)
    X = StandardScaler().fit_transform(X).astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = quick().fit(mapped, y)
    expected = quick().fit(X, y)
    np.testing.assert_array_equal(model.transform(mapped), expected.transform(X))
    private = np.load(tmp_path / "X.npy", mmap_mode="c")
    private[0] = X[1]  # which letting pages go would undo
    quick().fit(private, y)
    np.testing.assert_array_equal(private[0], X[1])
    bad = X.copy()
    bad[-1, 0] = np.nan
    np.save(tmp_path / "bad.npy", bad)
    with pytest.raises(ValueError, match="X contains NaN"):
        quick().fit(np.load(tmp_path / "bad.npy", mmap_mode="r"), y)
    with pytest.raises(ValueError, match="X has 3 features"):
        model.transform(np.load(tmp_path / "X.npy", mmap_mode="r")[:, :3])


@pytest.mark.parametrize("input_shape", [(), (0,), (2, 2), (-2, -2), (4.0,), (4, 1, 1, 1)])
def test_an_input_shape_that_is_none_is_refused_by_name(input_shape):
    X, y = np.random.default_rng(0).standard_normal((20, 4)), np.arange(20) % 2
    with pytest.raises(ValueError, match=r"input_shape must be \(channels, height, width\)"):
        DeepMetricEmbedder(input_shape=input_shape).fit(X, y)
    with pytest.raises(ValueError, match=r"input_shape must be \(channels, height, width\)"):
        DeepMetricEmbedder(input_shape=()).fit(X[:, :1], y)


@pytest.mark.parametrize("validation_fraction", [None, 0.2])
def test_weights_that_are_not_finite_at_the_end_are_not_kept(validation_fraction):
    X, y = np.random.default_rng(0).standard_normal((20, 4)), np.arange(20) % 2
    params = {"optimizer": "sgd", "classes_per_batch": 2, "samples_per_class": 8, "random_state": 0}
    model = DeepMetricEmbedder(
        lr=1e38, max_epochs=1, validation_fraction=validation_fraction, **params
    )
    with pytest.raises(ValueError, match=r"not finite in epoch 1.*smaller lr"):
        model.fit(X, y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_samples_beyond_single_precision_are_refused_by_name(fitted, dtype):
    X = np.full((3, 64), 1e30, dtype)
    with pytest.raises(ValueError, match=r"X has values up to 1e\+30.*float32.*scale"):
        fitted.transform(X)
    assert np.isfinite(fitted.transform(X * 1e-60)).all()


def test_a_training_that_fails_is_told(digits):
    X, y, *_ = digits
    short = {"max_epochs": 1, "random_state": 0}
    with pytest.warns(
        UserWarning, match=r"loss='dro-max' has failed.*recall@1 0\.[0-3]\d and 0\.9\d"
    ):
        # No step leads away from a start where all samples are one point.
        DeepMetricEmbedder(Together, loss="dro-max", lr=1e-12, **short).fit(X, y)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*has failed")
        DeepMetricEmbedder(**short).fit(X, y)


class Together(nn.Linear):
    def __init__(self, n_features, n_components):
        super().__init__(n_features, n_components)
        nn.init.zeros_(self.weight)
        nn.init.ones_(self.bias)
