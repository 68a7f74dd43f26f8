"""Flow matching: its velocity, its training, and rows of a class or under conditions."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ot")
pandas = pytest.importorskip("pandas")

from skdml import WassersteinGenerator, io  # noqa: E402
from skdml.generate._flow import (  # noqa: E402
    FlowPlan,
    add_normal,
    column_moments,
    expected_change,
    find_normal,
    flow_loss,
    integrate,
    make_batch,
    make_drawer,
    make_velocity,
    merge_weights,
    train_flow,
    velocity,
)


def ring(n_samples, seed):
    """Return rows on two rings, and the ring of each."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n_samples)
    angle, radius = 2 * np.pi * rng.random(n_samples), 1 + y + 0.05 * rng.normal(size=n_samples)
    return np.column_stack([radius * np.cos(angle), radius * np.sin(angle)]), y


def quick(method="auto", **params):
    return WassersteinGenerator(method, batch_size=64, random_state=0, lr=0.005, **params)


def test_the_untrained_velocity_is_that_of_normal_rows():
    # x = (1 - t) z + t y with normal z and y: E[y - z | x] by regression of y - z on x.
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((2, 400_000))
    network = make_velocity(1, 0, 0)
    for t, s in ((0.1, 1.0), (0.5, 1.0), (0.8, 1.0), (0.6, 0.3)):
        x = (1 - t) * z + t * s * y
        slope = (x * (s * y - z)).mean() / (x * x).mean()
        found = velocity(network, torch.ones(1, 1), torch.full((1, 1), t), torch.tensor([s]), None)
        assert float(found.detach()) == pytest.approx(slope, abs=0.02)


def test_the_untrained_velocity_is_that_of_normal_rows_of_a_class():
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=400_000)
    rows = (0.4 * rng.standard_normal(len(y)) + 0.9 * (2 * y - 1)).astype(np.float32)[:, None]
    codes = (2.0 * y - 1).astype(np.float32)[:, None]
    network = make_velocity(1, 1, 0)
    add_normal(network, rows, rows.std(axis=0), codes, None)
    x, z = rows[y == 1, 0], rng.standard_normal(y.sum())
    for t in (0.2, 0.7):
        point = (1 - t) * z + t * x
        slope, offset = np.polyfit(point, x - z, 1)
        given = torch.full((1, 1), t), torch.from_numpy(rows.std(axis=0)), torch.ones(1, 1)
        for place in (0.0, 1.0):
            found = velocity(network, torch.full((1, 1), place), *given)
            assert float(found.detach()) == pytest.approx(offset + slope * place, abs=0.02)


def test_the_mean_of_a_class_counts_weights_and_is_drawn_to_that_of_all():
    rows = np.array([[0.0], [1.0], [-1.0], [-1.0]], dtype=np.float32).repeat(100, axis=0)
    codes = np.repeat([[1.0], [-1.0]], 200, axis=0).astype(np.float32)
    weights = np.repeat([3.0, 1.0, 2.0, 2.0], 100)
    network, few = make_velocity(1, 1, 0), make_velocity(1, 1, 0)
    one = np.ones(1, dtype=np.float32)
    add_normal(network, rows, one, codes, weights)
    means, widths = find_normal(network)
    found = [float((code * means[:-1] + means[-1]).item()) for code in (1, -1)]
    np.testing.assert_allclose(found, [0.25, -1], atol=0.02)
    # Variances of 3/16 and of nothing, half of the weights each.
    assert float(widths) == pytest.approx(np.sqrt(3 / 32), abs=0.01)
    add_normal(few, rows[::100], one, codes[::100], None)
    assert 0 < float(find_normal(few)[0][0]) < 0.4 < float(means[0])
    assert find_normal(make_velocity(1, 1, 0)) is None


def test_the_loss_is_the_error_of_the_velocity():
    generator = torch.Generator().manual_seed(0)
    rows, noise = torch.randn(2, 50, 3, generator=generator)
    times, codes = torch.rand(50, 1, generator=generator), torch.randn(50, 2, generator=generator)
    network = make_velocity(3, 2, 0)
    torch.nn.init.normal_(network.last.weight, std=0.1, generator=generator)
    points = (1 - times) * noise + times * rows
    spreads, narrower = torch.tensor([[1.0, 1.0, 0.3], [0.8, 0.5, 0.2]])
    for widths in (spreads, narrower):
        if widths is narrower:
            network.register_buffer("means", torch.randn(3, 3, generator=generator))
            network.register_buffer("widths", widths)
        error = velocity(network, points, times, spreads, codes) - (rows - noise)
        variance = (1 - times) ** 2 + (times * widths) ** 2
        expected = (spreads * variance / widths**2 * error**2).mean()
        batch = make_batch(rows, noise, times, spreads, codes, find_normal(network))
        torch.testing.assert_close(flow_loss(network, batch, spreads), expected)


def test_pixels_that_are_seldom_inked_have_a_small_spread():
    rng = np.random.default_rng(0)
    rows = rng.random((1000, 4)).astype(np.float32)
    rows[:, 1] = rng.random(1000) < 0.05  # of the same range, and less varying
    rows[:, 2] *= 1e-3  # of a small range, and as varying
    rows[:, 3] = 0.5
    std = rows.std(axis=0)
    moments = column_moments(rows, (), is_common=True)
    np.testing.assert_allclose(moments.spreads, [1, std[1] / std[0], 1, 0.2], rtol=0.05)
    np.testing.assert_allclose(moments.scales[:3], [std[0], std[0], std[0] / 1000], rtol=0.05)
    alone = column_moments(rows, ())
    np.testing.assert_allclose(alone.spreads, [1, 1, 1, 0.2], rtol=1e-5)
    with_block = column_moments(rows, [slice(1, 3)], is_common=True)
    np.testing.assert_allclose(with_block.scales[1:3], std[1], rtol=1e-5)
    np.testing.assert_allclose(moments.unscale(moments.scale(rows)), rows, atol=1e-6)


def test_only_pixels_are_scaled_by_their_ranges():
    X = np.random.default_rng(0).random((60, 3))
    X[:, 1] = X[:, 1] < 0.05
    ranges = WassersteinGenerator(max_iter=1, random_state=0).fit(X)
    assert ranges._moments.spreads.min() < 0.9
    columns = WassersteinGenerator(max_iter=1, scaling="columns", random_state=0).fit(X)
    np.testing.assert_allclose(columns._moments.spreads, 1, rtol=1e-4)


def test_many_columns_have_a_wider_network():
    for n_columns, width in ((3, 256), (200, 400), (900, 512)):
        assert make_velocity(n_columns, 0, 0).last.in_features == width


class Pushes(torch.nn.Module):
    """Adds a function of place, time and code to the velocity."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, points, given):
        waves, codes = given[:, :-2], given[:, -2:]
        return self.weight * (torch.sin(points) + 0.3 * waves.mean(1, keepdim=True) + codes)


def test_weights_in_a_vector_train_like_weights_of_their_own():
    networks = [make_velocity(3, 2, 0) for _ in range(2)]
    vector, gradient = merge_weights(networks[1])
    steps = [torch.optim.Adam(weights, lr=0.1) for weights in (networks[0].parameters(), [vector])]
    inputs = torch.randn(40, 13, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        for network, optimizer in zip(networks, steps, strict=True):
            optimizer.zero_grad(set_to_none=False)
            (network(inputs[:, :3], inputs[:, 3:]) - 1).square().mean().backward()
            optimizer.step()
    assert float(gradient.abs().max()) > 0
    for one, other in zip(*(network.parameters() for network in networks), strict=True):
        torch.testing.assert_close(one, other)


def test_samples_are_where_the_velocity_leads():
    rng = np.random.default_rng(0)
    noise, codes = rng.standard_normal((2, 40, 2)).astype(np.float32)
    spreads, network, n_steps = torch.tensor([1.0, 0.4]), Pushes(), 400
    points = torch.from_numpy(noise)
    with torch.no_grad():
        for number in range(n_steps):  # the middle of each step, in many steps
            given = spreads, torch.from_numpy(codes)
            times = torch.full((40, 1), number / n_steps)
            half = points + velocity(network, points, times, *given) / (2 * n_steps)
            points = points + velocity(network, half, times + 0.5 / n_steps, *given) / n_steps
    found = integrate(network, noise, spreads.numpy(), codes)
    assert np.abs(found - points.numpy()).max() < 0.02


def test_an_update_draws_times_noise_and_rows_evenly(monkeypatch):
    n, n_updates = 64, 30
    rows = np.arange(200, dtype=np.float32)[:, None]
    codes = -rows
    batches = []

    def spy(*batch):
        batches.append([part.numpy().copy() for part in batch[:5]])
        return make_batch(*batch)

    monkeypatch.setattr("skdml.generate._flow.make_batch", spy)
    weights = np.where(np.arange(200) == 0, 200.0, 1.0)
    for given in (None, weights):
        batches.clear()
        plan = FlowPlan(lr=1e-4, batch_size=n, max_iter=n_updates, seed=0)
        one = np.ones(1, dtype=np.float32)
        train_flow(rows, one, codes, given, plan, lambda: None, lambda *args: False)
        found, noise, times, _, found_codes = zip(*batches, strict=True)
        np.testing.assert_array_equal(found, -np.array(found_codes))
        flat = np.column_stack([np.concatenate(part) for part in (found, noise, times)])
        assert len(flat) >= n * n_updates
        for one in flat[:, 2].reshape(-1, n):
            np.testing.assert_array_equal(np.floor(one * n), np.arange(n))
        assert len(np.unique(times)) > 0.99 * len(flat)
        assert np.abs(np.corrcoef(flat.T) - np.eye(3)).max() < 0.1
        assert np.mean(flat[:, 0] < 100) == pytest.approx(0.5 if given is None else 0.75, abs=0.05)
        if given is not None:  # a row that is drawn often has times of all kinds
            assert min(np.ptp(t[x == 0]) for x, t in zip(found, times, strict=True)) > 0.8
        assert flat[:, 1].mean() == pytest.approx(0, abs=0.1)
        assert flat[:, 1].std() == pytest.approx(1, abs=0.1)


def test_expected_velocity_is_the_mean_over_the_rows_that_may_have_led_to_a_point():
    rng = np.random.default_rng(0)
    rows, noise = rng.standard_normal((2, 6, 3))
    others, times = rng.standard_normal((6, 4, 3)), np.linspace(0.05, 0.95, 6)[:, None]
    parts = (torch.from_numpy(part) for part in (rows, noise, times, others))
    found = rows - noise + expected_change(*parts).numpy()
    for row, one, t, rest, velocity_found in zip(rows, noise, times, others, found, strict=True):
        point, any_row = (1 - t) * one + t * row, np.vstack([row, rest])
        needed = (point - t * any_row) / (1 - t)
        density = np.exp(-0.5 * np.square(needed).sum(axis=1))
        expected = density / density.sum() @ (any_row - needed)
        np.testing.assert_allclose(velocity_found, expected, rtol=1e-9, atol=1e-9)


def test_expected_velocity_at_the_end_is_that_of_the_line():
    rows = torch.zeros(2, 1)
    times = torch.tensor([[0.9995], [1.0]])
    change = expected_change(rows, torch.ones(2, 1), times, torch.full((2, 3, 1), 1e-3))
    assert change.tolist() == [[0.0], [0.0]]


def test_other_rows_have_the_codes_and_the_weights_of_their_own():
    codes = np.repeat(np.eye(2), [30, 10], axis=0)
    chosen = np.array([0, 5, 35])
    found = make_drawer(codes, None, 40, 0)(chosen, 4000)
    assert found[:2].max() == 29
    assert found[2].min() == 30
    assert np.bincount(found[0]).min() > 80
    weights = np.where(np.arange(40) == 35, 9.0, 1.0)
    found = make_drawer(codes, weights, 40, 0)(chosen, 4000)
    assert np.mean(found[2] == 35) == pytest.approx(0.5, abs=0.05)
    assert make_drawer(np.arange(40.0)[:, None], None, 40, 0) is None
    assert make_drawer(None, None, 40, 0)(chosen, 500).max() > 35


def test_columns_have_the_quantiles_of_the_rows_that_count():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.exponential(size=300), rng.integers(0, 4, 300)])
    weights = np.where(X[:, 0] > 1, 9.0, 1.0)
    params = {"max_iter": 2, "random_state": 0, "categorical_features": [1]}
    for given, share in ((None, np.mean(X[:, 0] > 1)), (weights, weights[X[:, 0] > 1].sum())):
        share = share if given is None else share / weights.sum()
        samples = WassersteinGenerator(**params).fit(X, sample_weight=given).sample(2000, 0)
        assert np.mean(samples[:, 0] > 1) == pytest.approx(share, abs=0.03)
        expected = [np.average(X[:, 1] == code, weights=given) for code in range(4)]
        found = [np.mean(samples[:, 1] == code) for code in range(4)]
        np.testing.assert_allclose(found, expected, atol=0.06)


def test_networks_and_tensors_are_on_one_device():
    network = make_velocity(3, 2, 0).to("meta")  # another device, on which nothing is computed
    rows, noise = torch.empty(2, 5, 3, device="meta")
    times, codes = torch.empty(5, 1, device="meta"), torch.empty(5, 2, device="meta")
    spreads = torch.ones(3, device="meta")
    batch = make_batch(rows, noise, times, spreads, codes)
    assert flow_loss(network, batch, spreads).device.type == "meta"


@pytest.mark.parametrize("method", ["flow", "critics"])
@pytest.mark.parametrize("device", ["nowhere", "meta", "cuda:99"])
def test_a_device_that_cannot_be_used(method, device):
    with pytest.raises(ValueError, match=f"device='{device}' cannot be used.*such as 'cpu'"):
        WassersteinGenerator(method, device=device).fit(ring(20, 0)[0])


def test_samples_are_like_the_rows_and_of_their_class():
    X, y = ring(600, 0)
    model = quick(max_iter=300).fit(X, y)
    assert model.method_ == "flow"
    normal = np.random.default_rng(0).multivariate_normal(X.mean(axis=0), np.cov(X.T), 300)
    off = [
        np.abs(np.linalg.norm(rows, axis=1)[:, None] - [1, 2]).min(axis=1).mean()
        for rows in (model.sample(300, random_state=0), normal)
    ]
    assert off[0] < 0.7 * off[1]  # off the rings
    inner, outer = (
        np.median(np.linalg.norm(model.sample(100, random_state=0, y=c), axis=1)) for c in (0, 1)
    )
    assert inner + 0.4 < outer
    both = model.sample(4, random_state=0, y=[0, 1, 0, 1])
    assert both.shape == (4, 2)
    assert model.score(X, y) > model.score(X, 1 - y)
    with pytest.raises(ValueError, match="y has the class 7, which was not seen"):
        model.sample(2, y=7)
    with pytest.raises(ValueError, match="one for each of 2 rows, got 3"):
        model.sample(2, y=[0, 1, 0])


def test_critics_draw_rows_of_a_class():
    X, y = ring(400, 0)
    model = quick("critics", max_iter=150).fit(X, y)
    radii = [np.median(np.linalg.norm(model.sample(200, 0, y=c), axis=1)) for c in (0, 1)]
    assert radii[0] + 0.5 < radii[1]


def test_numbers_as_targets():
    X = np.random.default_rng(0).normal(size=(400, 2))
    model = quick(max_iter=120).fit(X, X[:, 0] + 0.1 * X[:, 1])
    means = [model.sample(100, random_state=0, y=value)[:, 0].mean() for value in (-1.0, 1.0)]
    assert means[0] < -0.5 < 0.5 < means[1]


def test_conditions(monkeypatch):
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"c": rng.choice(list("ab"), 200), "n": rng.integers(0, 3, 200)})
    frame["x"] = rng.normal(size=200) + 4 * (frame["c"] == "a")
    model = quick(max_iter=100).fit(frame)
    samples = model.sample(40, random_state=0, conditions={"c": "a", "n": 2})
    assert len(samples) == 40
    assert (samples["c"] == "a").all()
    assert (samples["n"] == 2).all()
    assert samples["x"].mean() > 3
    again = model.sample(40, random_state=0, conditions={"c": "a", "n": 2})
    assert again.equals(samples)
    for conditions, message in (
        ({"d": 1}, "'d', which is no column"),
        ({"c": "z"}, r"value 'z' of 'c', but its values are 'a', 'b'"),
        ({"x": 1.0}, "'x', whose numbers are not whole"),
    ):
        with pytest.raises(ValueError, match=message):
            model.sample(2, conditions=conditions)
    monkeypatch.setattr("skdml.generate._generator_sampling._MOST_DRAWS", 500)
    with pytest.raises(ValueError, match="too rare"):
        model.sample(2, random_state=0, conditions={"n": 9})
    with pytest.raises(ValueError, match="y needs a fit with y"):
        model.sample(2, y="a")


def test_conditions_within_a_class():
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=200)
    frame = pandas.DataFrame({"c": rng.choice(list("ab"), 200), "x": rng.normal(size=200) + 6 * y})
    model = quick(max_iter=60).fit(frame, y)
    samples = [model.sample(50, random_state=0, y=c, conditions={"c": "a"}) for c in (0, 1)]
    assert all((one["c"] == "a").all() for one in samples)
    assert samples[0]["x"].mean() < 2 < 4 < samples[1]["x"].mean()


def test_blocks_do_not_change_the_rows(monkeypatch):
    X, _ = ring(100, 0)
    model = WassersteinGenerator(max_iter=5, random_state=0).fit(X)
    expected = model.sample(50, random_state=0)
    monkeypatch.setattr("skdml.generate._generator_sampling._BLOCK", 7)
    np.testing.assert_allclose(model.sample(50, random_state=0), expected, rtol=1e-4, atol=1e-4)


def test_parameters_of_critics_choose_the_method():
    X, _ = ring(50, 0)
    assert WassersteinGenerator(max_iter=1, n_critics=2).fit(X).method_ == "critics"
    assert not hasattr(WassersteinGenerator(max_iter=1).fit(X), "masses_")
    with pytest.raises(ValueError, match=r"n_critics=2 has no effect with method='flow'"):
        WassersteinGenerator("flow", n_critics=2).fit(X)


def test_weights_of_rows():
    X, y = ring(400, 0)
    weights = np.where(y == 1, 20.0, 1.0)
    model = quick(max_iter=100).fit(X, sample_weight=weights)
    radius = np.linalg.norm(model.sample(200, random_state=0), axis=1)
    assert np.mean(radius > 1.5) > 0.65  # half of them without weights


def test_files_have_tables_and_classes(tmp_path):
    pytest.importorskip("safetensors")
    X, y = ring(80, 0)
    frame = pandas.DataFrame({"a": X[:, 0], "b": np.where(X[:, 1] > 0, "up", "down")})
    model = WassersteinGenerator(max_iter=5, random_state=0).fit(frame, y)
    io.save(model, tmp_path / "model.skdml")
    again = io.load(tmp_path / "model.skdml")
    expected = model.sample(9, random_state=0, y=1)
    assert again.sample(9, random_state=0, y=1).equals(expected)
    assert again.score(frame, y) == pytest.approx(model.score(frame, y))
