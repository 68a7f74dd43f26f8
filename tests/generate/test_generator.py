"""WassersteinGenerator: what it draws, what it refuses, and what it says."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

torch = pytest.importorskip("torch")
pytest.importorskip("ot")

from torch import nn  # noqa: E402

from skdml import WassersteinGenerator  # noqa: E402
from skdml.generate import _critics_fit, _generator_training  # noqa: E402
from skdml.metrics import energy_distance, sample_quality, wasserstein_distance  # noqa: E402


def quick(**params):
    defaults = {"max_iter": 30, "random_state": 0, "batch_size": 32, "n_critics": 4}
    return WassersteinGenerator(**{**defaults, **params})


@pytest.fixture(scope="module")
def iris():
    return load_iris().data


def two_moons(n_samples, seed):
    rng = np.random.default_rng(seed)
    angle, side = np.pi * rng.random(n_samples), rng.integers(2, size=n_samples)
    moons = np.column_stack([np.cos(angle) + side, np.sin(angle) * (1 - 2 * side)])
    return moons + 0.1 * rng.standard_normal(moons.shape)


@pytest.mark.parametrize(
    "params",
    [{}, {"cost": "squared"}, {"cost": "learned"}],
    ids=str,
)
def test_samples_are_like_the_rows(params):
    X, fresh = two_moons(600, 0), two_moons(300, 1)
    model = quick(max_iter=200, lr=0.003, n_critics=2, batch_size=64, **params).fit(X)
    samples = model.sample(300, random_state=0)
    gaussian = np.random.default_rng(0).multivariate_normal(X.mean(axis=0), np.cov(X.T), 300)
    quality = sample_quality(fresh, samples)
    assert wasserstein_distance(fresh, samples) < wasserstein_distance(fresh, gaussian)
    assert quality.precision > 0.4
    assert quality.coverage > 0.6


def test_the_curve_falls_and_is_in_units_of_the_rows(iris):
    model = quick(max_iter=150, cost="squared").fit(iris)
    curve, seconds = (np.array(model.history_[name]) for name in ("wasserstein", "seconds"))
    assert curve.shape == (150,) == (model.n_iter_,) == seconds.shape
    assert (np.diff(seconds) > 0).all()
    assert curve[-20:].mean() < 0.5 * curve[:5].mean()
    assert (curve > 0).all()
    debiased = np.array(quick(max_iter=150).fit(iris).history_["wasserstein"])
    assert np.abs(debiased[-20:]).mean() < 0.1 * debiased[:5].mean()


@pytest.mark.parametrize("cost", ["euclidean", "squared"])
def test_the_curve_is_in_units_of_the_rows(iris, cost):
    model, large = (quick(max_iter=5, cost=cost).fit(unit * iris) for unit in (1, 1000))
    expected = 1000 * np.array(model.history_["wasserstein"])
    np.testing.assert_allclose(large.history_["wasserstein"][0], expected[0], rtol=0.01)


def test_the_score_is_the_energy_distance_of_scaled_rows(iris):
    model = quick(max_iter=100, scaling="columns").fit(iris)
    samples = model.sample(len(iris), random_state=model._seed)
    units = iris.std(axis=0)
    assert model.score(iris) == pytest.approx(-energy_distance(iris / units, samples / units))
    assert model.score(iris) == model.score(iris)
    assert model.score(iris) > -0.2
    assert model.score(iris + 2) < model.score(iris)


def test_fitted_attributes(iris):
    shared = quick(max_iter=5, cost="squared").fit(iris)
    separate = quick(max_iter=5, coupling="separate", cost="learned", n_critics=3).fit(iris)
    assert isinstance(shared.generator_, nn.Module)
    assert shared.critics_ == []
    assert len(separate.critics_) == 3
    first, second = (critic[0].weight for critic in separate.critics_[:2])
    assert not torch.equal(first, second)
    assert shared.potentials_.shape == shared.masses_.shape == (96,)  # three for a row of a batch
    assert separate.potentials_.shape == (3, 32)
    assert separate.masses_.shape == (32,)
    assert shared.masses_.mean() == pytest.approx(1)
    np.testing.assert_allclose(separate.masses_, 1, rtol=1e-5)


def test_only_points_potentials_masses_and_gradients_are_exchanged(iris):
    n_points, n_features, n_steps = 96, 4, 5
    model = quick(max_iter=3, cost="squared", n_potential_steps=n_steps).fit(iris)
    points = gradients = 4 * n_points * n_features
    # The critic's own potentials, the steps, the potentials at the end and back with the masses.
    potentials = 4 * n_points * (1 + 2 * n_steps + 3)
    figures = 8 + 8  # the number of the update, the value
    assert model.traffic_["update"] == points + gradients + potentials + figures
    assert model.traffic_["checkpoint"] == 0
    n_weights = sum(weights.numel() for weights in model.generator_.parameters())
    assert model.traffic_["all_reduce"] == 8 * n_weights
    params = {"max_iter": 3, "cost": "learned", "coupling": "separate"}
    learned = quick(n_critic_steps=2, **params).fit(iris)
    n_points = 32
    assert learned.traffic_["update"] == 4 * n_points * (3 * n_features + 2) + figures
    assert learned.traffic_["checkpoint"] > 0


@pytest.mark.parametrize("cost", ["euclidean", "squared", "learned"])
def test_fewer_rows_than_a_batch(iris, cost):
    model = quick(max_iter=3, batch_size=64, cost=cost).fit(iris[:9])
    assert model.sample(3).shape == (3, 4)
    # Debiased batches of points are as small as those of rows.
    assert model.masses_.shape == (192 if cost == "squared" else 2,)


@pytest.mark.parametrize("name", ["latent_dim", "n_critic_steps"])
def test_true_is_a_number(iris, name):
    expected = quick(**{name: 1}).fit(iris).sample(3, random_state=0)
    actual = quick(**{name: True}).fit(iris).sample(3, random_state=0)
    np.testing.assert_array_equal(actual, expected)


def test_bad_input(iris):
    with pytest.raises(ValueError, match=r"n_critics=10 critics need 1 .* but X has 9"):
        quick(n_critics=10, debias=False).fit(iris[:9])
    with pytest.raises(ValueError, match=r"n_critics=5 critics need 2 .* but X has 9"):
        quick(n_critics=5).fit(iris[:9])
    with pytest.raises(ValueError, match=r"debias=True with cost='squared'.*cost='euclidean'"):
        quick(cost="squared", debias=True).fit(iris)
    with pytest.raises(ValueError, match="infinity"):
        quick().fit(np.where(iris > 7, np.inf, iris))
    with pytest.raises(
        ValueError, match=r"critic_module=.* has no effect with cost='euclidean'.*cost='learned'"
    ):
        quick(cost="euclidean", critic_module=nn.Identity).fit(iris)
    for wrong, message in (
        ({"n_critic_steps": 2}, r"n_critic_steps=2 has no effect with cost='auto'.*at 1,"),
        ({"coupling": "separate", "n_potential_steps": 9}, r"n_potential_steps=9.*'shared'"),
    ):
        with pytest.raises(ValueError, match=message):
            quick(**wrong).fit(iris)
    with pytest.raises(ValueError, match=r"^module must map .* shape \(2, 4\), got \(2, 7\)"):
        quick(module=lambda latent_dim: nn.Linear(latent_dim, 7)).fit(iris)
    with pytest.raises(TypeError, match=r"module must be a torch.nn.Module, a subclass of it"):
        quick(module=lambda: "net").fit(iris)
    with pytest.raises(ValueError, match=r"^critic_module fails on .* \(2, 4\): .*mat1 and mat2"):
        quick(critic_module=lambda: nn.Linear(5, 2)).fit(iris)
    with pytest.raises(ValueError, match="critic_module has no weights to learn"):
        quick(critic_module=nn.Identity).fit(iris)
    with pytest.raises(TypeError, match=r"client must be a distributed.Client"):
        quick(client="localhost").fit(iris)
    with pytest.raises(ValueError, match=r"batch_size=2147483648 is more than the 150 rows of X"):
        quick(batch_size=2**31).fit(iris)
    with pytest.raises(ValueError, match="n_samples"):
        quick(max_iter=1).fit(iris).sample(0)


def test_constant_columns_and_whole_numbers_come_back(iris):
    X = np.column_stack([iris, np.full(len(iris), 3.5), np.round(iris[:, 0])])
    samples = quick().fit(X).sample(50, random_state=0)
    np.testing.assert_array_equal(samples[:, 4], 3.5)
    np.testing.assert_array_equal(samples[:, 5], np.round(samples[:, 5]))
    assert len(np.unique(samples[:, 5])) > 1
    rows = np.tile([[1.0, 2.0]], (20, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # equal rows are no collapse
        np.testing.assert_array_equal(quick().fit(rows).sample(5), rows[:5])


class Collapsed(nn.Module):
    """Makes one point of all latent vectors."""

    def __init__(self, n_features):
        super().__init__()
        self.point = nn.Parameter(torch.zeros(n_features))

    def forward(self, Z):
        return self.point.expand(len(Z), -1)


def test_a_collapse_is_noticed(iris):
    with pytest.warns(ConvergenceWarning, match=r"collapsed.*smaller lr than.*debias=True"):
        quick(module=Collapsed, debias=False).fit(iris)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick().fit(iris)


class Overflow(nn.Linear):
    """Has no finite output after some updates."""

    def __init__(self, latent_dim, n_features, n_good=10):
        super().__init__(latent_dim, n_features)
        self.n_good = n_good

    def forward(self, Z):
        self.n_good -= self.training
        return super().forward(Z) * (1.0 if self.n_good >= 0 else np.nan)


def test_numbers_that_are_not_finite_end_the_training(iris):
    with pytest.warns(ConvergenceWarning, match="not finite in update 11.*smaller lr"):
        model = quick(module=Overflow).fit(iris)
    assert model.n_iter_ == 10
    assert all(weights.isfinite().all() for weights in model.generator_.parameters())
    with pytest.raises(ValueError, match=r"not finite in update 1, .* smaller lr"):
        quick(module=lambda latent_dim: Overflow(latent_dim, 4, 0)).fit(iris)


class RunsAway(nn.Linear):
    """Draws points ever further apart after some updates."""

    def __init__(self, latent_dim, n_features, n_good=120):
        super().__init__(latent_dim, n_features)
        self.register_buffer("n_good", torch.tensor(n_good))

    def forward(self, Z):
        self.n_good -= int(self.training)
        return super().forward(Z) * (1.0 if self.n_good >= 0 else -100.0 * float(self.n_good))


def test_a_training_that_diverges_stops_with_the_last_good_weights(iris):
    with pytest.warns(ConvergenceWarning, match=r"diverged: in update 150 .* update 100 are kept"):
        model = quick(module=RunsAway, max_iter=400).fit(iris)
    assert model.n_iter_ == 100 == len(model.history_["seconds"])
    spread = model.sample(200, random_state=0).std(axis=0) / iris.std(axis=0)
    assert spread.mean() < 3
    with pytest.raises(ValueError, match=r"diverged.*smaller lr"):
        quick(module=lambda latent_dim: RunsAway(latent_dim, 4, 0), max_iter=200).fit(iris)


def test_same_seed_same_rows_and_the_users_seeds_are_left_alone(iris):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    params = {"max_iter": 5, "cost": "learned", "n_critics": 2}
    models = [quick(**params).fit(iris) for _ in range(2)]
    torch.testing.assert_close(torch.rand(3), expected)
    np.testing.assert_array_equal(*[model.sample(4, random_state=1) for model in models])
    other = quick(**params | {"random_state": 1}).fit(iris)
    assert not np.array_equal(other.sample(4, random_state=1), models[0].sample(4, random_state=1))


def test_stored_models_draw_the_same(iris):
    model = quick(max_iter=2, cost="learned").fit(iris)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.sample(4, random_state=0), model.sample(4, random_state=0))
    assert len(again.critics_) == 4


def test_dtype_and_names(iris):
    assert quick(max_iter=1).fit(iris.astype(np.float32)).sample(2).dtype == np.float32
    assert quick(max_iter=1).fit(iris).sample(2).dtype == np.float64


def test_grid_search_over_the_score(iris):
    search = GridSearchCV(quick(n_critics=1), {"max_iter": [1, 60]}, cv=2, refit=False).fit(iris)
    assert search.best_params_ == {"max_iter": 60}


def test_rates_by_the_cost(iris):
    for cost, lr in (("euclidean", 0.002), ("squared", 0.004), ("learned", 0.002)):
        default, given = (quick(max_iter=2, cost=cost, lr=rate).fit(iris) for rate in ("auto", lr))
        np.testing.assert_array_equal(
            default.sample(3, random_state=0), given.sample(3, random_state=0)
        )
    with pytest.raises(ValueError, match="lr"):
        quick(lr=0).fit(iris)


def test_one_row_may_be_a_boolean(iris):
    model = quick(max_iter=1).fit(iris)
    np.testing.assert_array_equal(
        model.sample(True, random_state=0), model.sample(1, random_state=0)
    )


def test_a_client_is_shared_by_clones_and_not_stored(iris):
    distributed = pytest.importorskip("distributed")
    client = object.__new__(distributed.Client)
    model = WassersteinGenerator(client=client)
    assert clone(model).client is client
    assert model.__getstate__()["client"] is None


@pytest.mark.parametrize(("factor", "problem"), [(30.0, "spread too much"), (0.1, "too alike")])
def test_samples_that_spread_unlike_the_rows_are_noticed(iris, monkeypatch, factor, problem):
    draw = WassersteinGenerator._draw
    monkeypatch.setattr(WassersteinGenerator, "_draw", lambda *args: factor * draw(*args))
    with pytest.warns(ConvergenceWarning, match=rf"{problem}.*vary by .* and those of X by .*lr"):
        WassersteinGenerator("critics", max_iter=100, random_state=0).fit(iris - iris.mean(axis=0))


def test_an_ordinary_fit_does_not_warn_of_its_spread(iris):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        WassersteinGenerator(max_iter=200, random_state=0).fit(iris)
        WassersteinGenerator(max_iter=200, scaling="columns", random_state=1).fit(iris)


def test_weights_that_are_not_finite_are_not_kept(iris):
    with pytest.raises(ValueError, match=r"not finite.*smaller lr"):
        quick(max_iter=1, lr=1e39).fit(iris)
    model = quick(max_iter=5)
    train = _generator_training.train

    def poisoned(generator, *args):
        trained = train(generator, *args)
        with torch.no_grad():
            next(generator.parameters()).fill_(np.nan)
        return trained

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_critics_fit, "train", poisoned)
        with pytest.raises(ValueError, match="weights that are not finite after 5 updates"):
            model.fit(iris)
    assert not hasattr(model, "generator_")


def test_rows_that_are_not_finite_are_not_returned(iris):
    model = quick().fit(iris)
    for weights in model.generator_.parameters():
        weights.data.fill_(np.inf)
    with pytest.raises(ValueError, match=r"not finite.*a smaller lr"):
        model.sample(3)
