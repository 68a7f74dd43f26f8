"""The robust losses: weights against a convex solver, and the losses that are special cases."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scipy.optimize import minimize  # noqa: E402

from skdml.deep import losses  # noqa: E402
from skdml.deep.losses import get_loss  # noqa: E402
from skdml.deep.losses._core import masked_softmax  # noqa: E402
from skdml.deep.losses._dro import (  # noqa: E402
    _kl_of_groups,
    _top_k,
    ball_weights,
    kl_ball_weights,
    kl_weights,
)
from tests.deep.loss_toys import (  # noqa: E402
    distances_of,
    gradient_of,
    losses_of_pairs,
    make_batch,
    mean,
    pairs_of,
    similarities_of,
    value_of,
)

pytestmark = pytest.mark.filterwarnings("error")
SEEDS = (0, 1, 2)
ACTIVE = {"margin": 3.0, "threshold": 0.5}  # every pair has a loss


# Values, by loops


def unordered(pairs):
    return [value for (i, j), value in pairs.items() if i < j]


@pytest.mark.parametrize("pair_loss", ["margin", "binomial"])
@pytest.mark.parametrize("seed", SEEDS)
def test_robust_losses_by_loops(pair_loss, seed):
    embeddings, labels = make_batch(seed=seed)
    positive, negative = losses_of_pairs(embeddings, labels, pair_loss)
    every = sorted(unordered(positive) + unordered(negative), reverse=True)
    halves = [sorted(unordered(part), reverse=True)[:3] for part in (positive, negative)]
    active = [value for value in every if value > 0]
    groups = 0.0
    for part, gamma in ((positive, 0.5), (negative, 0.02)):
        for anchor in range(len(labels)):
            own = [value for (i, _), value in part.items() if i == anchor and value > 0]
            if own:
                groups += gamma * math.log(mean(math.exp(value / gamma) for value in own))
    expected = {
        ("dro-topk", 6): mean(every[:6]),
        ("dro-topk", None): mean(every[: 2 * len(labels)]),
        ("dro-topk-pn", 6): mean(halves[0] + halves[1]),
        ("dro-max", None): every[0],
        ("dro-kl", None): 0.1 * math.log(mean(math.exp(value / 0.1) for value in active)),
        ("dro-kl-g", None): groups / len(labels),
    }
    for (name, k), value in expected.items():
        params = {"k": k} if k else {}
        loss = get_loss(name, pair_loss=pair_loss, **params)(embeddings, labels)
        assert loss.item() == pytest.approx(value, rel=1e-9), name


def test_more_pairs_than_there_are_is_all_of_them():
    embeddings, labels = make_batch()
    loss = value_of("dro-topk", embeddings, labels, k=10_000)
    assert loss.item() == pytest.approx(value_of("margin", embeddings, labels).item())
    loss = value_of("dro-topk-pn", embeddings, labels, k=10_000, pair_loss="binomial")
    assert loss.item() == pytest.approx(value_of("binomial", embeddings, labels).item())


def test_both_signs_have_half_of_the_pairs():
    embeddings, labels = make_batch(labels=np.repeat(np.arange(6), 3), seed=1)
    positive, negative = losses_of_pairs(embeddings, labels, "binomial")
    best = sorted(unordered(positive))[-5:] + sorted(unordered(negative))[-5:]
    loss = value_of("dro-topk-pn", embeddings, labels, k=10, pair_loss="binomial")
    assert loss.item() == pytest.approx(mean(best))


# The worst weights, by a convex solver


def random_losses(seed, count=7):
    return np.random.default_rng(seed).gamma(1.0, 0.4, size=count)


def solve(objective, gradient, start, bounds, constraints=()):
    total = {"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones_like(p)}
    found = minimize(
        lambda p: -objective(p),
        start,
        jac=lambda p: -gradient(p),
        bounds=bounds,
        constraints=[total, *constraints],
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-14},
    )
    # 8: no step improves any more, at this tolerance.
    assert found.status in (0, 8)
    return found.x


def as_row(values):
    values = torch.tensor(np.atleast_2d(values))
    return values, torch.ones_like(values, dtype=torch.bool)


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("seed", SEEDS)
def test_top_k_weights_are_the_worst_with_a_limit(seed, k):
    values = random_losses(seed, count=6)
    uniform = np.full(6, 1 / 6)
    best = solve(lambda p: p @ values, lambda p: values, uniform, [(0, 1 / k)] * 6)
    # Four rows have six unordered pairs.
    matrix = torch.zeros(4, 4, dtype=torch.float64)
    upper = torch.triu_indices(4, 4, 1)
    matrix[upper[0], upper[1]] = torch.tensor(values)
    matrix += matrix.T.clone()
    mask = ~torch.eye(4, dtype=torch.bool)
    value, weights = _top_k(matrix, torch.ones_like(matrix), mask, torch.zeros_like(mask), k=k)
    dense = torch.zeros(4, 4, dtype=torch.float64)
    dense[weights.rows, weights.columns] = weights.values
    assert np.allclose(dense[upper[0], upper[1]].numpy(), best, atol=1e-6)
    assert value.item() == pytest.approx(best @ values)


@pytest.mark.parametrize("gamma", [0.05, 0.3, 2.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_kl_weights_are_the_worst_with_a_penalty(seed, gamma):
    values = random_losses(seed)
    n = len(values)

    def objective(p):
        return p @ values - gamma * np.sum(p * np.log(n * p))

    def gradient(p):
        return values - gamma * (np.log(n * p) + 1)

    best = solve(objective, gradient, np.full(n, 1 / n), [(1e-12, 1)] * n)
    value, weights = kl_weights(*as_row(values), gamma)
    assert value.item() == pytest.approx(objective(best), abs=1e-7)
    assert np.allclose(weights.numpy().ravel(), best, atol=1e-4)
    # No weights do better than the closed form.
    assert value.item() >= objective(best) - 1e-12


@pytest.mark.parametrize("seed", SEEDS)
def test_weights_of_each_anchor_are_the_worst_with_a_penalty_of_its_own(seed):
    """The maximum of equation 7 is found anchor by anchor and sign by sign."""
    embeddings, labels = make_batch(seed=seed)
    parts = losses_of_pairs(embeddings, labels, "margin")
    seen = []

    def spread(losses, mask):  # another gamma for each anchor, and for the two signs
        gamma = torch.where(mask, losses, 0).amax(1) / 4 + 0.05
        seen.append(gamma.tolist())
        return gamma

    loss = losses.DROLoss("kl-g", gamma=(spread, spread))
    expected = 0.0
    value = loss(embeddings, labels).item()
    for part, gammas in zip(parts, seen, strict=True):
        for anchor, gamma in enumerate(gammas):
            own = [value for (i, _), value in part.items() if i == anchor and value > 0]
            if not own:
                continue
            own, n = np.array(own), len(own)
            best = solve(
                lambda p, own=own, n=n, g=gamma: p @ own - g * np.sum(p * np.log(n * p)),
                lambda p, own=own, n=n, g=gamma: own - g * (np.log(n * p) + 1),
                np.full(n, 1 / n),
                [(1e-12, 1)] * n,
            )
            expected += best @ own - gamma * np.sum(best * np.log(n * best))
    assert len({round(gamma, 6) for gamma in seen[1]}) > 1
    assert value == pytest.approx(expected / len(labels), abs=1e-7)


def test_gammas_of_anchors_that_are_equal_are_one_gamma():
    embeddings, labels = make_batch(seed=1)
    for params in ({}, {"null_loss": 0.5}):
        known = losses.DROLoss("kl-g", gamma=(0.3, 0.07), **params)
        own = losses.DROLoss(
            "kl-g",
            gamma=(lambda all, mask: torch.full((len(all),), 0.3, dtype=all.dtype), 0.07),
            **params,
        )
        assert own(embeddings, labels).item() == pytest.approx(known(embeddings, labels).item())
        gradients = [gradient_of(one, embeddings, labels) for one in (own, known)]
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


def test_wrong_gammas_of_anchors_are_named():
    embeddings, labels = make_batch()
    with pytest.raises(TypeError, match="gamma must return one number above 0 for each of the"):
        losses.DROLoss("kl-g", gamma=lambda losses, mask: 1.0)(embeddings, labels)
    with pytest.raises(ValueError, match="anchors, got -1"):
        losses.DROLoss("kl-g", gamma=lambda losses, mask: -torch.ones(len(losses)))(
            embeddings, labels
        )
    with pytest.raises(ValueError, match="gamma must be a number above 0"):
        losses.DROLoss("kl", gamma=lambda losses, mask: torch.ones(len(losses)))


def test_the_worst_weights_within_a_set_of_the_user_are_found():
    """A set that no name has: weights within a Euclidean distance of equal ones."""
    embeddings, labels = make_batch(seed=2)
    radius, kept = 0.1, []

    def within(values):
        gaps = values - values.mean()
        kept.append(values.numpy())
        return 1 / len(values) + radius * gaps / gaps.norm()

    value = losses.DROLoss(within, margin=3.0)(embeddings, labels).item()
    values = kept[0]
    n = len(values)
    ball = {
        "type": "ineq",
        "fun": lambda p: radius**2 - np.sum((p - 1 / n) ** 2),
        "jac": lambda p: -2 * (p - 1 / n),
    }
    best = solve(lambda p: p @ values, lambda p: values, np.full(n, 1 / n), [(-1, 1)] * n, [ball])
    assert value == pytest.approx(best @ values, abs=1e-6)


@pytest.mark.parametrize("radius", [0.01, 0.2, 1.0, 2.9, 3.1, 50.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_ball_weights_are_the_worst_within_the_chi_square_ball(seed, radius):
    values = random_losses(seed)
    n = len(values)
    ball = {
        "type": "ineq",
        "fun": lambda p: radius - np.sum((n * p - 1) ** 2) / (2 * n),
        "jac": lambda p: -(n * p - 1),
    }
    best = solve(lambda p: p @ values, lambda p: values, np.full(n, 1 / n), [(0, 1)] * n, [ball])
    value, weights = ball_weights(*as_row(values), radius)
    weights = weights.numpy().ravel()
    assert value.item() == pytest.approx(best @ values, abs=1e-6)
    assert value.item() >= best @ values - 1e-6
    assert np.allclose(weights, best, atol=1e-3)
    assert weights.sum() == pytest.approx(1)
    assert weights.min() >= 0
    assert np.sum((n * weights - 1) ** 2) / (2 * n) <= radius + 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_a_small_ball_adds_the_standard_deviation(seed):
    values = random_losses(seed)
    value, weights = ball_weights(*as_row(values), 0.05)
    assert weights.min() > 0
    assert value.item() == pytest.approx(values.mean() + math.sqrt(0.1) * values.std())


@pytest.mark.parametrize("worst", [ball_weights, kl_ball_weights])
def test_a_ball_around_equal_losses_is_their_mean(worst):
    values, mask = as_row(np.full(5, 0.3))
    value, weights = worst(values, mask, 1.0)
    assert value.item() == pytest.approx(0.3)
    assert np.allclose(weights.numpy(), 0.2)


@pytest.mark.parametrize("radius", [0.01, 0.2, 1.0, 50.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_weights_are_the_worst_within_the_ball_of_a_divergence(seed, radius):
    values = random_losses(seed)
    n = len(values)

    def divergence(p):
        return np.sum(p * np.log(np.maximum(n * p, 1e-300)))

    ball = {
        "type": "ineq",
        "fun": lambda p: radius - divergence(p),
        "jac": lambda p: -(np.log(np.maximum(n * p, 1e-300)) + 1),
    }
    best = solve(lambda p: p @ values, lambda p: values, np.full(n, 1 / n), [(1e-9, 1)] * n, [ball])
    value, weights = kl_ball_weights(*as_row(values), radius)
    weights = weights.numpy().ravel()
    assert value.item() == pytest.approx(best @ values, abs=1e-6)
    assert weights.sum() == pytest.approx(1)
    assert weights @ values == pytest.approx(value.item())
    assert divergence(weights) <= radius + 1e-9
    # and those of the penalty with the gamma that is found
    if radius < math.log(n) - 1e-3:
        high, low = np.sort(values)[[-1, 0]]
        gamma = (high - low) / math.log(weights[values.argmax()] / weights[values.argmin()])
        assert np.allclose(weights, kl_weights(*as_row(values), gamma)[1].numpy().ravel())


@pytest.mark.parametrize("worst", [ball_weights, kl_ball_weights])
def test_ties_share_the_corner_of_a_large_ball(worst):
    values, mask = as_row([0.1, 0.9, 0.2, 0.9])
    value, weights = worst(values, mask, 100.0)
    assert value.item() == pytest.approx(0.9)
    assert np.allclose(weights.numpy(), [[0, 0.5, 0, 0.5]])


@pytest.mark.parametrize("seed", SEEDS)
def test_weights_of_any_set_give_the_gradient(seed):
    """The gradient of a robust loss is that of the weighted sum with the weights held."""
    embeddings, labels = make_batch(seed=seed)
    leaf = embeddings.detach().clone().requires_grad_()
    units = leaf / leaf.norm(dim=1, keepdim=True)
    positive = (labels[:, None] == labels).fill_diagonal_(False)
    sign = torch.where(positive, 1.0, -1.0).double()
    every = (0.2 + sign * (0.5 - units @ units.T)).relu()
    active = (every > 0) & ~torch.eye(len(labels), dtype=torch.bool)
    weights = torch.softmax(every.detach()[active] / 0.1, 0)
    (weights * every[active]).sum().backward()
    assert torch.allclose(leaf.grad, gradient_of(get_loss("dro-kl"), embeddings, labels))


def test_the_largest_loss_has_all_the_weight():
    embeddings, labels = make_batch()
    gradient = gradient_of(get_loss("dro-max"), embeddings, labels)
    assert (gradient.abs().sum(1) > 0).sum() == 2
    near = gradient_of(get_loss("dro-topk", k=1), embeddings, labels)
    torch.testing.assert_close(near, gradient)


# Sampling


def test_samples_have_the_weighted_gradient_on_average():
    embeddings, labels = make_batch()
    torch.manual_seed(0)
    many = gradient_of(get_loss("dro-kl", sample=200_000), embeddings, labels)
    exact = gradient_of(get_loss("dro-kl"), embeddings, labels)
    assert torch.allclose(many, exact, atol=0.02 * exact.abs().max())


def test_samples_are_pairs_with_a_loss():
    embeddings, labels = make_batch()
    positive, negative = losses_of_pairs(embeddings, labels)
    possible = [value for value in [*positive.values(), *negative.values()] if value > 0]
    for seed in range(20):
        torch.manual_seed(seed)
        value = value_of("dro-kl", embeddings, labels, sample=1).item()
        assert min(abs(value - p) for p in possible) < 1e-12


# Special cases


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_with_gamma_one_have_the_lifted_structure_gradient(seed):
    """When every pair has a loss, and every anchor one in the lifted structure."""
    embeddings, labels = make_batch(labels=np.repeat(np.arange(4), 3), seed=seed)
    lifted = gradient_of(get_loss("lifted-structure", margin=5.0), embeddings, labels)
    groups = gradient_of(get_loss("dro-kl-g", gamma=1.0, **ACTIVE), embeddings, labels)
    assert torch.allclose(groups, lifted, rtol=1e-10, atol=1e-14)
    other = gradient_of(get_loss("dro-kl-g", gamma=0.5, **ACTIVE), embeddings, labels)
    assert not torch.allclose(other, lifted, rtol=1e-3)


def all_pairs_wrong(n_classes=5, seed=0):
    """Unit vectors whose positive pairs are below a similarity of 0.5, and negative pairs above."""
    rng = np.random.default_rng(seed)
    size = 2 * n_classes
    noise = rng.uniform(-0.05, 0.05, (size, size))
    gram = np.full((size, size), 0.6) + (noise + noise.T) / 2
    for i in range(0, size, 2):
        gram[i, i + 1] = gram[i + 1, i] = rng.uniform(0.3, 0.45)
    np.fill_diagonal(gram, 1)
    embeddings = torch.tensor(np.linalg.cholesky(gram), requires_grad=True)
    return embeddings, torch.arange(n_classes).repeat_interleave(2)


@pytest.mark.parametrize("scales", [(2.0, 50.0), (1.0, 10.0)])
def test_a_null_pair_without_loss_recovers_multi_similarity(scales):
    embeddings, labels = all_pairs_wrong()
    params = {"gamma": (1 / scales[0], 1 / scales[1]), "margin": 0.0, "threshold": 0.5}
    groups = get_loss("dro-kl-g", null_loss=0.0, **params)
    similarity = get_loss("multi-similarity", positive_scale=scales[0], negative_scale=scales[1])
    ours, theirs = (gradient_of(loss, embeddings, labels) for loss in (groups, similarity))
    assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-14)
    without = gradient_of(get_loss("dro-kl-g", **params), embeddings, labels)
    assert not torch.allclose(without, theirs, rtol=1e-3)
    # The values differ by the constants gamma log(n + 1).
    pairs, size = (1, 8), len(labels)
    gap = sum(math.log(n + 1) / scale for n, scale in zip(pairs, scales, strict=True))
    assert size == 10
    difference = similarity(embeddings, labels) - groups(embeddings, labels)
    assert difference.item() == pytest.approx(gap)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_null_pair_at_the_threshold_recovers_multi_similarity_in_any_batch(seed):
    """With a margin that leaves every pair a loss, the null pair has the loss of S = threshold."""
    embeddings, labels = make_batch(seed=seed)
    groups = get_loss("dro-kl-g", gamma=(1 / 2, 1 / 50), null_loss=ACTIVE["margin"], **ACTIVE)
    ours = gradient_of(groups, embeddings, labels)
    theirs = gradient_of(get_loss("multi-similarity"), embeddings, labels)
    assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("sigma", [0.2, 1.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_exponential_point_to_set_weights_are_those_of_groups(seed, sigma):
    """HAP2S_E weighs the positives of an anchor by exp(d / sigma), negatives by exp(-d / sigma)."""
    embeddings, labels = make_batch(seed=seed)
    positive = (labels[:, None] == labels).fill_diagonal_(False)
    negative = labels[:, None] != labels
    for power in (1, 2):
        d = distances_of(embeddings) ** power
        expected = np.zeros_like(d)
        for part, sign in zip(pairs_of(labels), (1, -1), strict=True):
            for anchor in range(len(labels)):
                own = [j for i, j in part if i == anchor]
                weights = [math.exp(sign * d[anchor, j] / sigma) for j in own]
                for j, weight in zip(own, weights, strict=True):
                    expected[anchor, j] = weight / sum(weights)
        # A pair loss that grows with d for positive and falls for negative pairs.
        sides = torch.where(positive, 1.0, -1.0) * torch.tensor(d) + 10
        ones = torch.ones_like(sides)
        _, weights = _kl_of_groups(sides, ones, positive, negative, gamma=sigma, null_loss=None)
        assert np.allclose(weights.numpy() * len(labels), expected)
    # In squared distances, 2 - 2 S, this is the margin loss with gamma = sigma / 2.
    gradient = gradient_of(get_loss("dro-kl-g", gamma=sigma / 2, **ACTIVE), embeddings, labels)
    leaf = embeddings.detach().clone().requires_grad_()
    units = leaf / leaf.norm(dim=1, keepdim=True)
    signed = torch.tensor(expected) * torch.where(positive, -1.0, 1.0)
    ((signed * (units @ units.T)).sum() / len(labels)).backward()
    assert torch.allclose(gradient, leaf.grad)


def test_a_large_gamma_is_the_mean_and_a_small_one_the_largest():
    embeddings, labels = make_batch()
    average = value_of("margin", embeddings, labels, reduction="active").item()
    largest = value_of("dro-max", embeddings, labels).item()
    assert value_of("dro-kl", embeddings, labels, gamma=1e5).item() == pytest.approx(
        average, rel=1e-4
    )
    assert value_of("dro-kl", embeddings, labels, gamma=1e-5).item() == pytest.approx(
        largest, rel=1e-3
    )
    assert value_of("dro-variance", embeddings, labels, radius=1e-9).item() == pytest.approx(
        average, rel=1e-3
    )
    assert value_of("dro-variance", embeddings, labels, radius=1e4).item() == pytest.approx(largest)


def test_softmax_of_an_empty_row_is_zero():
    scores = torch.tensor([[5.0, 1e4], [2.0, 3.0]])
    total, weights = masked_softmax(scores, torch.tensor([[True, True], [False, False]]))
    assert total.tolist() == [[1e4], [-math.inf]]
    assert weights.tolist() == [[0.0, 1.0], [0.0, 0.0]]


def test_similarities_are_of_ordered_pairs_without_self_pairs():
    embeddings, labels = make_batch()
    S = similarities_of(embeddings)
    positive, negative = pairs_of(labels)
    every = [max(0.0, 5 + S[i, j] - 0.5) for i, j in negative]
    every += [max(0.0, 5 + 0.5 - S[i, j]) for i, j in positive]
    assert len(every) == len(labels) * (len(labels) - 1)
    loss = value_of("margin", embeddings, labels, margin=5.0)
    assert loss.item() == pytest.approx(mean(every))


# Functions of a user


def hinge(similarities, positive):
    """The margin loss with its defaults, without a derivative."""
    return (0.2 + torch.where(positive, 0.5 - similarities, similarities - 0.5)).relu()


@pytest.mark.parametrize("name", ["topk", "topk-pn", "kl", "kl-ball", "kl-g", "max", "variance"])
def test_a_pair_loss_of_the_user_is_differentiated(name):
    embeddings, labels = make_batch(seed=1)
    own, known = losses.DROLoss(name, pair_loss=hinge), losses.DROLoss(name)
    assert own(embeddings, labels).item() == pytest.approx(known(embeddings, labels).item())
    gradients = [gradient_of(loss, embeddings, labels) for loss in (own, known)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


def test_weights_of_the_user_are_taken_as_they_are():
    embeddings, labels = make_batch(seed=2)
    loss = losses.DROLoss(lambda values: torch.softmax(values / 0.1, 0), margin=3.0)
    known = losses.DROLoss("kl", margin=3.0)  # every pair has a loss
    gradients = [gradient_of(one, embeddings, labels) for one in (loss, known)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)
    S, (positive, negative) = similarities_of(embeddings), pairs_of(labels)
    values = [3.0 + 0.5 - S[i, j] for i, j in positive if i < j]
    values += [3.0 + S[i, j] - 0.5 for i, j in negative if i < j]
    shares = np.exp((np.array(values) - max(values)) / 0.1)
    assert loss(embeddings, labels).item() == pytest.approx(shares @ values / shares.sum())


def test_wrong_functions_of_the_user_are_named():
    embeddings, labels = make_batch()
    with pytest.raises(TypeError, match=r"weights must return one weight for each of the 36 pair"):
        losses.DROLoss(lambda values: values.mean())(embeddings, labels)
    with pytest.raises(TypeError, match=r"pair_loss must return a loss for each .* got NoneType"):
        losses.DROLoss(pair_loss=lambda similarities, positive: None)(embeddings, labels)
    with pytest.raises(TypeError, match=r"have no parameter 'k'; it has: gamma, sample"):
        losses.DROLoss("kl", k=3)
    with pytest.raises(ValueError, match=r"weights must be one of 'topk'"):
        losses.DROLoss("softmax")
