"""What a critic returns, against objectives that are written out."""

import functools

import numpy as np
import pytest
from scipy.spatial.distance import cdist

ot = pytest.importorskip("ot")
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from skdml.generate._critics import Critic, CriticSettings, own_term  # noqa: E402
from skdml.generate._generator_networks import (  # noqa: E402
    bound_slopes,
    fix_weights,
    make_network,
    mlp_critic,
)
from skdml.generate._potentials import dual_value  # noqa: E402

N_ROWS, N_POINTS = 8, 6
learned = functools.partial(mlp_critic, 3)


def make_critic(maker=None, debias=False, n_rows=N_ROWS, batch_size=N_ROWS, power=1, **others):
    rows = np.random.default_rng(0).standard_normal((n_rows, 3)).astype(np.float32)
    settings = CriticSettings(maker, power, debias, batch_size, 1e-3, seed=3)
    return Critic(1, rows, settings, **others)


@pytest.fixture
def points():
    return np.random.default_rng(1).standard_normal((1, N_POINTS, 3)).astype(np.float32) + 1


def distance(A, B, power):
    costs = torch.cdist(A.double(), B.double()).numpy() ** power
    return ot.emd2(np.full(len(A), 1 / len(A)), np.full(len(B), 1 / len(B)), costs)


def objective(critic, rows, points):
    """The objective of the batch of an update, the slow way."""
    power = critic.settings.power
    if critic.network is not None:
        with torch.no_grad():
            features = critic.network.eval()(torch.cat([rows, points]))
        critic.network.train()
        rows, points = features[: len(rows)], features[len(rows) :]
    if not critic.settings.debias:
        return distance(rows, points, power)
    R, G = (rows[: len(rows) // 2], rows[len(rows) // 2 :]), (points[:3], points[3:])
    crossed = distance(R[0], G[0], power) + distance(R[1], G[1], power)
    if critic.network is None:  # of rows to rows a mean of many batches; the rest is `own_term`
        return critic._own_value + crossed / 2
    return (crossed - distance(*R, power) - distance(*G, power)) / 2


def slopes_of(function, batch, step=1e-3):
    """Return central differences of a function of the points."""
    slopes = np.zeros(batch.shape)
    for place in np.ndindex(*batch.shape):
        ends = []
        for sign in (1, -1):
            moved = batch.clone()
            moved[place] += sign * step
            ends.append(function(moved))
        slopes[place] = (ends[0] - ends[1]) / (2 * step)
    return slopes


@pytest.mark.parametrize(
    ("maker", "debias", "power"),
    [(None, False, 1), (None, False, 2), (None, True, 1), (learned, False, 1), (learned, True, 1)],
)
def test_value_and_gradient_by_the_points_are_those_of_the_objective(maker, debias, power, points):
    critic = make_critic(maker, debias, power=power)
    if critic.network is not None:
        for _ in range(100):  # until the power iterations of the spectral norms are at rest
            critic.network(torch.from_numpy(critic.rows))
        critic.network.eval()
    rows = torch.from_numpy(critic._draw(critic._seed(1, 0)))
    batch = torch.from_numpy(points[0])
    expected = objective(critic, rows, batch)
    slopes = slopes_of(lambda moved: objective(critic, rows, moved), batch)
    part = critic.step(1, points)
    assert part.value == pytest.approx(expected, rel=1e-3)
    np.testing.assert_allclose(part.gradient, slopes, atol=0.02 * np.abs(slopes).max())
    np.testing.assert_allclose(part.masses, 1, rtol=1e-5)


@pytest.mark.parametrize("power", [1, 2])
def test_the_points_own_term_and_its_gradient(power):
    batch = torch.from_numpy(np.random.default_rng(2).standard_normal((N_POINTS, 3)))

    def value(points):
        return -distance(points[:3], points[3:], power) / 2

    gradient, found = own_term(batch.numpy(), power)
    assert found == pytest.approx(value(batch))
    np.testing.assert_allclose(gradient, slopes_of(value, batch), atol=1e-4)


def test_the_rows_own_term_is_that_of_independent_batches():
    critic = make_critic(debias=True, n_rows=400, batch_size=16)
    rng = np.random.default_rng(0)
    expected = []
    for _ in range(200):
        rows = torch.from_numpy(rng.choice(critic.rows, 16, replace=False))
        expected.append(distance(rows[:8], rows[8:], 1))
    error = np.std(expected) / np.sqrt(8)
    assert critic._own_value == pytest.approx(-np.mean(expected) / 2, abs=2.5 * error)
    assert make_critic(debias=False)._own_value == 0


def test_shared_potentials_give_cells_and_the_dual_value(points):
    critic = make_critic(power=2)
    own = critic.start(1, points)
    potentials = (own + 0.3 * np.arange(N_POINTS)).astype(np.float32)
    masses = critic.masses(potentials)
    part = critic.finish(potentials)
    np.testing.assert_array_equal(part.masses, masses)
    rows = critic._draw(critic._seed(1, 0))
    costs = cdist(rows, points[0]) ** 2
    assert part.value == pytest.approx(dual_value(costs, potentials), rel=1e-5)
    expected = np.zeros((N_POINTS, 3))
    for row, j in zip(rows, np.argmin(costs - potentials, axis=1), strict=True):
        expected[j] += 2 * (points[0, j] - row) / N_ROWS
    np.testing.assert_allclose(part.gradient, expected, atol=1e-5)


def test_a_critic_climbs(points):
    critic = make_critic(learned, debias=True)
    values = [critic.step(update, points).value for update in range(1, 150)]
    assert np.mean(values[-20:]) > 1.2 * np.mean(values[:20])


def test_several_steps_of_the_critic_are_made_before_the_generators(points):
    several, one = make_critic(learned), make_critic(learned)
    several.step(1, np.concatenate([points, points]))
    one.step(1, points)
    steps = [next(iter(c._optimizer.state.values()))["step"] for c in (several, one)]
    assert [float(step) for step in steps] == [2, 1]


def test_a_critic_goes_on_from_its_checkpoint(points):
    whole, first = make_critic(learned), make_critic(learned)
    for update in (1, 2, 3):
        part = whole.step(update, points)
        if update == 1:
            first.step(update, points)
    again = make_critic(learned, checkpoint=first.checkpoint())
    again.step(2, points)
    np.testing.assert_array_equal(again.step(3, points).gradient, part.gradient)
    assert make_critic().checkpoint() is None


def test_batches_depend_on_seed_critic_and_update_alone():
    critic, other = make_critic(n_rows=50), make_critic(n_rows=50)

    def draw(critic, update):
        return critic._draw(critic._seed(update, 0))

    draw(other, 1)
    np.testing.assert_array_equal(draw(critic, 2), draw(other, 2))
    assert not np.array_equal(draw(critic, 2), draw(critic, 3))
    assert len(np.unique(draw(critic, 2), axis=0)) == N_ROWS
    assert len(draw(make_critic(n_rows=5), 1)) == 5


def test_slopes_are_bounded_and_weights_can_be_fixed():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    for layer in (network[0], network[2]):
        nn.init.normal_(layer.weight, std=10.0)
    bound_slopes(network)
    X = torch.randn(200, 4)
    for _ in range(50):
        network(X)
    expected = network.eval()(X)
    fixed = fix_weights(network)
    torch.testing.assert_close(fixed(X), expected)
    assert type(fixed[0]) is nn.Linear
    slopes = (expected[:-1] - expected[1:]).norm(dim=1) / (X[:-1] - X[1:]).norm(dim=1)
    assert slopes.max() <= 1.001


def test_makers_get_the_sizes_they_ask_for():
    assert make_network(lambda n_features: nn.Linear(n_features, 1), "module", n_features=5)
    assert make_network(nn.Identity, "module", n_features=5)
    with pytest.raises(TypeError, match=r"critic_module must be .* it returned int"):
        make_network(lambda: 3, "critic_module", n_features=5)
