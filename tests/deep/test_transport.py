"""Clouds, transport distances and coresets of DeepMetricEmbedder."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits

torch = pytest.importorskip("torch")
pytest.importorskip("skorch")
pytest.importorskip("ot")

from skdml import DeepMetricEmbedder  # noqa: E402
from skdml.deep import _clouds  # noqa: E402
from skdml.deep._data import ClassBatches, count_batches  # noqa: E402
from skdml.deep.modules import ConvNet  # noqa: E402
from skdml.metrics import recall_at_k  # noqa: E402
from skdml.transport import CloudMetric  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def images():
    X, y = load_digits(return_X_y=True)
    X = X.reshape(-1, 1, 8, 8) / 16
    return X[:200], y[:200], X[200:280], y[200:280]


@pytest.fixture(scope="module")
def fitted(images):
    return quick().fit(*images[:2])


def quick(**params):
    defaults = {
        "module": "convnet",
        "module__channels": (8, 16),
        "n_components": 16,
        "loss": "wtriplet",
        "classes_per_batch": 5,
        "samples_per_class": 3,
        "max_epochs": 1,
        "random_state": 0,
    }
    return DeepMetricEmbedder(**{**defaults, **params})


# The feature map


def test_points_of_the_map_are_the_places_of_the_image():
    torch.manual_seed(0)
    net = ConvNet((1, 8, 8), 12, channels=(4, 4), head="points").eval()
    images = torch.zeros(2, 1, 8, 8)
    images[1, 0, 7:, 7:] = 1.0  # the lower right corner, seen by the last place alone
    points = net(images).reshape(2, 4, 3)
    moved = (points[1] - points[0]).norm(dim=1)
    assert moved[3] > 1e-3
    assert moved[0] == 0
    assert isinstance(net.head, torch.nn.Conv2d)  # the part that ranks keep the same


def test_equal_places_are_equal_points():
    torch.manual_seed(0)
    net = ConvNet((1, 8, 8), 12, channels=(4,), head="dense")
    assert net(torch.zeros(2, 1, 8, 8)).shape == (2, 12)
    same = ConvNet((1, 8, 8), 32, channels=(4,), head="points").eval()
    points = same(torch.zeros(1, 1, 8, 8)).reshape(16, 2)
    torch.testing.assert_close(points, points[:1].expand(16, 2))


def test_the_head_of_the_convnet_is_by_places_where_each_has_columns_enough():
    torch.manual_seed(0)
    images = torch.rand(3, 1, 28, 28)
    for dimension, kind in ((64, torch.nn.Conv2d), (36, torch.nn.Conv2d), (35, torch.nn.Linear)):
        net = ConvNet((1, 28, 28), dimension)
        assert isinstance(net.head, kind)
        assert net(images).shape == (3, dimension)
    net = ConvNet((1, 28, 28), 20, head="map").eval()
    columns = net.head(net.backbone(images)).reshape(3, 3, 9)  # one more than 20 / 9 for each place
    torch.testing.assert_close(net(images), columns.flatten(1)[:, :20])
    with pytest.raises(ValueError, match=r"module__head must be .*, got 'maps'"):
        ConvNet((1, 28, 28), 64, head="maps")


def test_the_map_is_the_cloud_of_the_convnet(fitted, images):
    assert fitted.metric_.cloud == (4, 4)
    named = quick(loss__cloud="feature-map").fit(*images[:2])
    np.testing.assert_array_equal(named.transform(images[2]), fitted.transform(images[2]))
    dense = quick(loss__cloud=(8, 2)).fit(*images[:2])
    assert dense.metric_.cloud == (8, 2)
    assert isinstance(dense.module_.head, torch.nn.Linear)


def test_other_losses_may_have_the_map_as_their_head(images):
    model = quick(loss="triplet", module__head="points").fit(*images[:2])
    assert isinstance(model.module_.head, torch.nn.Conv2d)
    assert model.metric_ == "euclidean"
    assert model.transform(images[2]).shape == (80, 16)


# The distance


def test_pair_distance_is_by_transport(fitted, images):
    X = images[2]
    pairs = np.array([[0, 1], [5, 5], [2, 30]])
    Z = fitted.transform(X)
    metric = fitted.metric_
    assert isinstance(metric, CloudMetric)
    wanted = [metric(Z[i], Z[j]) for i, j in pairs]
    np.testing.assert_allclose(fitted.pair_distance(pairs, X), wanted, rtol=1e-3)
    np.testing.assert_allclose(fitted.pair_distance(X[pairs]), wanted, rtol=1e-3)
    assert fitted.pair_distance(pairs, X)[1] == 0
    euclidean = np.linalg.norm(Z[pairs[:, 0]] - Z[pairs[:, 1]], axis=1)
    assert (np.abs(np.array(wanted) - euclidean) > 1e-3)[[0, 2]].all()


def test_pair_distance_is_that_of_the_loss(images):
    options = {"p": 1, "reg": 0.3, "solver": "sinkhorn"}
    model = quick(**{f"loss__{name}": value for name, value in options.items()})
    model.fit(*images[:2])
    assert model.metric_.p == 1
    from skdml.deep.losses._wasserstein import make_clouds
    from skdml.transport import sinkhorn_divergence

    Z = model.transform(images[2][:2])
    clouds = make_clouds(torch.from_numpy(Z), (4, 4))
    wanted = sinkhorn_divergence(clouds[:1], clouds[1:], p=1, eta=model.metric_.eta)
    found = model.pair_distance([[0, 1]], images[2])
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-2)


def test_score_is_recall_by_that_distance(fitted, images):
    _, _, X, y = images
    Z = fitted.transform(X)
    assert fitted.score(X, y) == recall_at_k(Z, y, metric=fitted.metric_)
    exact = quick(loss__solver="exact").fit(*images[:2])
    assert exact.metric_.solver == "exact"


def test_held_out_samples_are_searched_by_transport(images, monkeypatch):
    calls = []
    pairwise = CloudMetric.pairwise
    monkeypatch.setattr(CloudMetric, "pairwise", lambda *args: calls.append(1) or pairwise(*args))
    model = quick(validation_fraction=0.2).fit(*images[:2])
    assert calls
    assert 0 < model.history_["valid_recall"][0] <= 1


def test_stored_models_keep_their_distance(fitted, images):
    stored = pickle.loads(pickle.dumps(fitted))
    assert stored.metric_ == fitted.metric_
    assert "loss__cloud" not in clone(fitted).get_params()


def test_other_modules_have_points_of_four_columns(images):
    X, y = images[0].reshape(200, -1), images[1]
    model = DeepMetricEmbedder(
        loss="wcontrastive", n_components=8, module__hidden=(8,), max_epochs=1, random_state=0
    ).fit(X, y)
    assert model.metric_.cloud == (2, 4)
    assert model.set_params(loss__cloud=(4, 2)).fit(X, y).metric_.cloud == (4, 2)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_components": 18}, "18 is not divisible into the 4 points of the 2 x 2.*16 or 20"),
        ({"n_components": 3}, "3 is not divisible into the 4 points .* such as 4;"),
        ({"loss__cloud": (5, 3)}, r"cloud=\(5, 3\) makes 15 columns, but the embedding has 16"),
        ({"loss__cloud": (1, 16)}, "clouds of one point"),
        ({"module__head": "dense"}, "module__head='dense' has no place beside the points"),
        ({"module__channels": (4, 4, 4)}, "clouds of one point"),
        ({"loss__cloud": (4, 4, 1)}, r"cloud must be \(n_points, point_dim\)"),
        ({"loss__cloud": (2.5, 6.4)}, "two whole numbers"),
        ({"loss__cloud": "points"}, "loss__cloud must be .* got 'points'"),
        ({"module": "mlp", "loss__cloud": "feature-map"}, "needs module='convnet', got 'mlp'"),
        ({"module": "mlp", "n_components": 6}, "n_components=6 is not divisible into points of 4"),
        ({"loss__p": 3}, "p must be"),
        ({"loss__reg": -1.0}, "reg must be"),
        ({"coreset": 1.5}, "coreset must be a share between 0 and 1.* got 1.5"),
        ({"coreset": (0.5, 0)}, "coreset must be a share"),
        ({"coreset": 0.01}, "coreset=0.01 leaves one sample of each class"),
        ({"coreset": 0.5, "n_workers": 2}, "coreset=0.5 is chosen in one process"),
    ],
)
def test_wrong_parameters_are_named(images, params, message):
    with pytest.raises(ValueError, match=message):
        quick(**params).fit(*images[:2])


def test_identical_samples_do_not_break_it(images):
    X = np.ones((20, 1, 8, 8))
    model = quick().fit(X, np.arange(20) % 4)
    assert not model.pair_distance([[0, 1]], X).any()
    assert np.isfinite(model.transform(X)).all()


# Coresets


def test_an_epoch_is_a_share_of_the_batches(images):
    full = count_batches(images[1], 5, 3)
    for loss in ("triplet", "wtriplet"):
        model = quick(coreset=0.2, loss=loss, max_epochs=2).fit(*images[:2])
        batches = [len(epoch["batches"]) for epoch in model.net_.history]
        assert batches == [np.ceil(0.2 * full)] * 2


def test_samples_are_chosen_from_the_present_embedding_every_few_epochs(images, monkeypatch):
    chosen = []
    choose = _clouds.choose_coreset

    def noted(*args):
        chosen.append(choose(*args))
        return chosen[-1]

    monkeypatch.setattr(_clouds, "choose_coreset", noted)
    X, y, _, _ = images
    quick(loss="triplet", coreset=(0.2, 2), max_epochs=5).fit(X, y)
    assert len(chosen) == 3
    for rows in chosen:
        assert len(rows) == len(set(rows))
        assert len(rows) == round(0.2 * len(y))
        assert np.abs(np.bincount(y[rows]) - 0.2 * np.bincount(y)).max() < 1
    assert set(chosen[0]) != set(chosen[2])


def test_batches_have_the_rows_that_were_chosen_last():
    choices = iter([np.arange(12), np.arange(12, 40)])
    batches = ClassBatches(
        torch.arange(40)[:, None],
        torch.arange(40) % 4,
        2,
        3,
        np.random.default_rng(0),
        n_batches=20,
        every=2,
    )
    batches.choose = lambda: next(choices)
    for wanted in (range(12), range(12), range(12, 40)):
        seen = np.concatenate([X.ravel().numpy() for X, _ in batches])
        assert set(seen) == set(wanted)
        assert len(batches) == 20


def test_a_coreset_is_the_same_for_the_same_seed_and_is_not_stored(images):
    X, y, X_test, _ = images
    first, second = (quick(coreset=0.3, loss="triplet").fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.transform(X_test), second.transform(X_test))
    assert len(pickle.dumps(first)) < 100_000  # the training data alone has 51 KB


def test_a_part_of_the_samples_is_nearly_as_good():
    X, y = load_digits(return_X_y=True)
    X = X / 16
    options = {"module__hidden": (64,), "max_epochs": 5, "random_state": 0}
    full = DeepMetricEmbedder(**options).fit(X[:900], y[:900]).score(X[900:], y[900:])
    model = DeepMetricEmbedder(coreset=(0.2, 2), **options).fit(X[:900], y[:900])
    assert model.score(X[900:], y[900:]) > 0.95 * full
