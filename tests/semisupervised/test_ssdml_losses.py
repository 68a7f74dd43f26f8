"""Objectives: values by loops, gradients by finite differences."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("skorch")

from torch.autograd import gradcheck  # noqa: E402

from skdml.semisupervised import Partition  # noqa: E402
from skdml.semisupervised._label_propagation import make_graph  # noqa: E402
from skdml.semisupervised._method_laplacian import graph_loss, pair_distances  # noqa: E402
from skdml.semisupervised._method_seraph import seraph_loss  # noqa: E402
from skdml.semisupervised._method_ssdml import (  # noqa: E402
    angular_loss,
    instance_loss,
    labelled_loss,
)
from skdml.semisupervised._ssdml_methods import make_method  # noqa: E402


def make(*shape, seed=0, positive=False):
    values = np.random.default_rng(seed).standard_normal(shape)
    return torch.from_numpy(np.abs(values) if positive else values).requires_grad_()


def test_angular_loss_is_the_mean_over_triplets():
    a, p, n = (make(6, 3, seed=seed) for seed in range(3))
    expected = []
    for i in range(6):
        middle = (a[i] + p[i]) / 2
        pull = ((a[i] - p[i]) ** 2).sum()
        push = ((n[i] - middle) ** 2).sum()
        m = (pull - 4 * math.tan(math.radians(35)) ** 2 * push).item()
        expected.append(math.log(1 + math.exp(2 * m)))
    assert angular_loss(a, p, n, 35, scale=2).item() == pytest.approx(np.mean(expected))
    assert angular_loss(a[:0], p[:0], n[:0], 35).item() == 0


def test_angular_loss_depends_on_L_through_its_product_alone():
    z = [make(5, 4, seed=seed) for seed in range(3)]
    L = make(4, 2, seed=7)
    turn = torch.linalg.qr(make(2, 2, seed=8))[0]
    first = angular_loss(*(part @ L for part in z), 40)
    second = angular_loss(*(part @ L @ turn for part in z), 40)
    assert first.item() == pytest.approx(second.item())


def test_instance_loss_leaves_out_what_is_alike():
    first, second = make(4, 3), make(4, 3, seed=1)
    alike = torch.zeros(4, 4, dtype=torch.bool)
    alike[0, 1] = alike[2, 2] = True  # a row's own partner always counts
    total = 0.0
    for i in range(4):
        scores = [
            math.exp(torch.cosine_similarity(first[i], second[j], dim=0).item() / 0.3)
            for j in range(4)
        ]
        others = sum(scores[j] for j in range(4) if j != i and not alike[i, j])
        total -= math.log(scores[i] / (scores[i] + others))
    assert instance_loss(first, second, alike, 0.3).item() == pytest.approx(total / 4)


def test_labelled_loss_is_the_likelihood_of_classes_by_neighbours():
    distances = make(3, 4, positive=True)
    classes = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.8, 0.0], [0.5, 0.3, 0.2]], dtype=float)
    labels = torch.tensor([1, 0, 1, 0])  # none is of the third class
    total = 0.0
    for i in range(3):
        weights = [math.exp(-distances[i, j].item() / 0.5) for j in range(4)]
        for c in range(3):
            share = sum(weights[j] for j in range(4) if labels[j] == c) / sum(weights)
            total -= classes[i, c].item() * math.log(max(share, 1e-6))
    value = labelled_loss(distances, classes, labels, 0.5)
    assert value.item() == pytest.approx(total / 3)
    assert gradcheck(lambda d: labelled_loss(d, classes, labels, 0.5), distances)


def test_graph_loss_is_a_sum_of_means():
    value = graph_loss(
        torch.tensor([1.0, 3.0]),
        torch.tensor([10.0]),
        torch.tensor([2.0, 4.0]),
        torch.tensor([0.5, -1.0]),
        *(2.0, 0.1, 3.0),
    )
    assert value.item() == pytest.approx(2 * 2 - 0.1 * 10 + 3 * (1 - 4) / 2)


def test_seraph_loss_is_likelihood_and_entropy():
    labelled, signs = torch.tensor([0.3, 2.0]), torch.tensor([1.0, -1.0])
    unlabelled = torch.tensor([0.5, 1.5, 4.0])

    def chance(y, d2):
        return 1 / (1 + math.exp(y * (d2 - 1.2)))

    likelihood = -np.mean([math.log(chance(1, 0.3)), math.log(chance(-1, 2.0))])
    entropy = -np.mean(
        [sum(chance(y, d2) * math.log(chance(y, d2)) for y in (1, -1)) for d2 in (0.5, 1.5, 4.0)]
    )
    value = seraph_loss(labelled, signs, unlabelled, 1.2, 0.7)
    assert value.item() == pytest.approx(likelihood + 0.7 * entropy, rel=1e-6)
    assert seraph_loss(labelled[:0], signs[:0], unlabelled[:0], 1.0, 1.0).item() == 0


def test_pair_distances_are_squared():
    Z = make(4, 3)
    pairs = torch.tensor([[0, 1], [2, 2]])
    expected = [((Z[0] - Z[1]) ** 2).sum().item(), 0.0]
    np.testing.assert_allclose(pair_distances(Z, pairs).tolist(), expected)


def test_gradients_are_those_of_finite_differences():
    triplets = tuple(make(5, 3, seed=seed) for seed in range(3))
    assert gradcheck(lambda a, p, n: angular_loss(a, p, n, 40, 4.0), triplets)
    alike = torch.from_numpy(np.random.default_rng(0).random((5, 5)) < 0.3)
    assert gradcheck(lambda f, g: instance_loss(f, g, alike, 0.2), triplets[:2])
    squares = tuple(make(6, seed=seed, positive=True) for seed in range(3))
    weights = make(6, seed=9).detach()
    assert gradcheck(lambda s, d, e: graph_loss(s, d, e, weights, 1.0, 0.3, 2.0), squares)
    signs = torch.tensor([1.0, -1, 1, -1, 1, 1], dtype=torch.float64)
    assert gradcheck(lambda d, u: seraph_loss(d, signs, u, 1.0, 0.5), squares[:2])


def test_gradient_by_L_is_that_of_finite_differences():
    z = [make(5, 4, seed=seed).detach() for seed in range(3)]
    assert gradcheck(lambda L: angular_loss(*(part @ L for part in z), 40), (make(4, 2),))


def test_the_papers_recipe_has_its_triplets_loss_gradient_and_map():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((40, 4))
    codes = np.where(np.arange(40) < 12, np.arange(40) % 2, -1)
    graph = make_graph(features, 4, "directed")
    method = make_method("ssdml", "paper", {"angle": 35})
    method.begin(Partition(codes, graph, np.zeros((40, 2)), 0.9), rng)
    assert method.triplets.shape == (80, 3)
    batch = method.triplets[::9].T
    z = [torch.from_numpy(features[nodes]).requires_grad_() for nodes in batch]
    tan, expected = math.tan(math.radians(35)), []
    for a, p, n in features[batch.T]:
        margin = np.sum((a - p) ** 2) - 4 * tan**2 * np.sum((n - (a + p) / 2) ** 2)
        expected.append(math.log(1 + math.exp(margin)))
    assert method.loss(batch, *z).item() == pytest.approx(np.mean(expected))
    assert gradcheck(lambda *parts: method.loss(batch, *parts), z)

    def loss_of(factor):
        parts = (torch.from_numpy(features[nodes] @ factor) for nodes in method.triplets.T)
        return method.loss(method.triplets.T, *parts).item()

    start = np.linalg.qr(rng.standard_normal((4, 2)))[0]
    found = method.find_metric(features, start, rng)
    np.testing.assert_allclose(found.T @ found, np.eye(2), atol=1e-8)
    assert loss_of(found) < loss_of(start) - 0.01
