"""Losses by optimal transport: by loops, by finite differences, and at the edges."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ot = pytest.importorskip("ot")

from skdml.deep.losses import _wasserstein as module  # noqa: E402
from skdml.deep.losses import get_loss  # noqa: E402
from skdml.transport import _sinkhorn, sinkhorn_divergence  # noqa: E402

CLOUD = (3, 2)


def make_batch(seed=0, labels=(0, 0, 0, 1, 1, 2, 2, 3)):
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(len(labels), 6, generator=generator, dtype=torch.float64)
    return embeddings, torch.tensor(labels)


def clouds_of(embeddings):
    units = embeddings / embeddings.norm(dim=1, keepdim=True)
    return math.sqrt(CLOUD[0]) * units.reshape(-1, *CLOUD)


def transport(clouds, i, j, p):
    metric = {1: "euclidean", 2: "sqeuclidean"}[p]
    return ot.emd2([], [], ot.dist(clouds[i].numpy(), clouds[j].numpy(), metric=metric))


def triplets(clouds, labels):
    """Each positive pair with the nearest negative beyond it, or the nearest one."""
    flat = clouds.flatten(1)
    distances = torch.cdist(flat, flat)
    for a in range(len(labels)):
        others = [n for n in range(len(labels)) if labels[n] != labels[a]]
        for p in range(len(labels)):
            if p == a or labels[p] != labels[a]:
                continue
            beyond = [n for n in others if distances[a, n] > distances[a, p]]
            yield a, p, min(beyond or others, key=lambda n: distances[a, n])


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("seed", [0, 1])
def test_wtriplet_by_loops(p, seed):
    embeddings, labels = make_batch(seed)
    clouds = clouds_of(embeddings)
    losses = [
        max(0, transport(clouds, a, q, p) - transport(clouds, a, n, p) + 0.2)
        for a, q, n in triplets(clouds, labels)
    ]
    found = get_loss("wtriplet", cloud=CLOUD, p=p, solver="exact")(embeddings, labels)
    assert found.item() == pytest.approx(np.mean(losses))
    near = get_loss("wtriplet", cloud=CLOUD, p=p, reg=0.02)(embeddings, labels)
    assert near.item() == pytest.approx(np.mean(losses), rel=0.1)


@pytest.mark.parametrize("seed", [0, 1])
def test_wcontrastive_by_loops(seed):
    embeddings, labels = make_batch(seed)
    clouds = clouds_of(embeddings)
    distances = torch.cdist(clouds.flatten(1), clouds.flatten(1))
    losses = []
    for a in range(len(labels)):
        own = [i for i in range(len(labels)) if i != a and labels[i] == labels[a]]
        others = [i for i in range(len(labels)) if labels[i] != labels[a]]
        losses += [transport(clouds, a, i, 2) for i in own if i > a]
        near = sorted(others, key=lambda i: distances[a, i])[: len(own)]
        losses += [max(0, 0.5 - transport(clouds, a, i, 2)) for i in near]
    found = get_loss("wcontrastive", cloud=CLOUD, solver="exact")(embeddings, labels)
    assert found.item() == pytest.approx(np.mean(losses))


@pytest.mark.parametrize("name", ["wtriplet", "wcontrastive"])
@pytest.mark.parametrize("options", [{"solver": "exact"}, {"p": 1}, {"p": 2}])
def test_gradient_by_finite_differences(name, options, monkeypatch):
    monkeypatch.setattr(module, "choose_eta", lambda costs, reg: 0.3)  # as a constant
    monkeypatch.setattr(module, "_TOL", 1e-10)
    monkeypatch.setattr(module, "_ITERATIONS", 500)
    embeddings, labels = make_batch(2)
    embeddings.requires_grad_()

    loss = get_loss(name, cloud=CLOUD, margin=0.6, **options)

    def value(x):
        return loss(x, labels)

    (gradient,) = torch.autograd.grad(value(embeddings), embeddings)
    assert gradient.abs().max() > 1e-3
    for place in ((0, 0), (3, 2), (5, 5), (7, 1)):
        step = torch.zeros_like(embeddings)
        step[place] = 1e-6
        slope = (value(embeddings + step) - value(embeddings - step)).item() / 2e-6
        assert gradient[place].item() == pytest.approx(slope, abs=1e-5)


def test_pairs_are_solved_once_and_so_are_clouds_with_themselves(monkeypatch):
    solved = []
    real = _sinkhorn._entropic_values

    def counted(costs, *args, **params):
        solved.append(len(costs))
        return real(costs, *args, **params)

    monkeypatch.setattr(_sinkhorn, "_entropic_values", counted)
    clouds = clouds_of(make_batch()[0])
    first, second = torch.tensor([0, 1, 0, 2]), torch.tensor([1, 0, 2, 3])
    monkeypatch.setattr(module, "_TOL", 1e-9)
    monkeypatch.setattr(module, "_ITERATIONS", 500)
    values = get_loss("wtriplet", reg=0.5).divergences(clouds, first, second)
    assert solved == [3, 4]  # {0,1}, {0,2}, {2,3}; clouds 0 to 3
    assert values[0] == values[1]
    eta = module.choose_eta(module.cost_matrices(clouds[[0, 0, 2]], clouds[[1, 2, 3]], 2), 0.5)
    wanted = sinkhorn_divergence(clouds[first], clouds[second], eta=eta)
    torch.testing.assert_close(values, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["wtriplet", "wcontrastive"])
def test_batches_at_the_edge(name):
    loss = get_loss(name, cloud=CLOUD)
    for labels in ((0, 1, 2, 3), (0, 0, 0, 0)):  # no positive, no negative
        embeddings, labels = make_batch(labels=labels)
        embeddings.requires_grad_()
        value = loss(embeddings, labels)
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(embeddings.grad).all()
    same = torch.ones(4, 6, requires_grad=True)  # identical clouds
    loss(same, torch.tensor([0, 0, 1, 1])).backward()
    assert torch.isfinite(same.grad).all()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"cloud": (5, 2)}, "makes 10 columns, but the embedding has 6"),
        ({"cloud": (1, 6)}, "clouds of one point"),
        ({"cloud": "map"}, "cloud must be"),
        ({}, "not divisible into points of 4"),
        ({"p": 3, "cloud": CLOUD}, "p must be"),
        ({"reg": -1.0, "cloud": CLOUD}, "reg must be"),
    ],
)
def test_wrong_parameters_are_named(params, message):
    embeddings, labels = make_batch()
    with pytest.raises(ValueError, match=message):
        get_loss("wtriplet", **params)(embeddings, labels)
