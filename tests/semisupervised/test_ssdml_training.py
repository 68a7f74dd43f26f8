"""Parts of the loop: partitions, batches, and the model."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("skorch")

from skdml.semisupervised import Partition  # noqa: E402
from skdml.semisupervised._label_propagation import make_graph  # noqa: E402
from skdml.semisupervised._method_laplacian import (  # noqa: E402
    APIT,
    APLLR,
    ISDML,
    LRML,
    batch_pairs,
    labelled_pairs,
)
from skdml.semisupervised._method_ssdml import (  # noqa: E402
    NeighbourhoodTriplets,
    PropagatedClasses,
)
from skdml.semisupervised._partitions import Partitions, draw_partitions  # noqa: E402
from skdml.semisupervised._ssdml_training import (  # noqa: E402
    MetricModel,
    Plan,
    choose_epochs,
    draw_batches,
)


def make_plan(**changes):
    defaults = {
        "n_neighbors": 4,
        "propagation": 0.9,
        "paper": False,
        "partition_size": 30,
        "epochs_per_partition": 2,
        "max_epochs": 4,
        "pretrain_epochs": 0,
        "batch_size": 10,
        "lr": 0.001,
        "make_optimizer": torch.optim.Adam,
        "augment": None,
        "n_workers": 1,
        "device": "cpu",
    }
    return Plan(**{**defaults, **changes})


@pytest.fixture
def partition():
    rng = np.random.default_rng(0)
    codes = np.where(np.arange(33) < 6, np.arange(33) % 2, -1)
    graph = make_graph(rng.standard_normal((33, 3)), 4)
    return Partition(codes, graph, rng.dirichlet([0.2, 0.2], 33), 0.9)


def test_every_unlabelled_row_has_its_turn_before_one_comes_again():
    codes = np.where(np.arange(50) < 4, 0, -1)
    partitions = draw_partitions(codes, 20, np.random.default_rng(0))
    seen = []
    for _ in range(7):
        rows = next(partitions)
        assert len(rows) == len(set(rows)) == 24
        assert set(range(4)) <= set(rows)
        seen.extend(set(rows) - set(range(4)))
        counts = np.bincount(seen, minlength=50)[4:]
        assert counts.max() - counts.min() <= 1
    rows = next(draw_partitions(codes, 1000, np.random.default_rng(0)))
    np.testing.assert_array_equal(rows, np.arange(50))


def test_batches_hold_all_nodes_and_some_labelled_ones(partition):
    method = PropagatedClasses(40, 0.5)
    batches = list(draw_batches(method, partition, make_plan(), 4, np.random.default_rng(0)))
    assert len(batches) == 4
    nodes = np.concatenate([batch[0] for batch in batches])
    assert set(nodes) == set(range(33))
    assert len(nodes) == 33 + 4  # one labelled node more in each
    for batch in batches:
        for node, partner in batch.T:
            assert partner in partition.graph.neighbors[node]


def test_partners_are_the_nodes_themselves_where_samples_are_changed(partition):
    plan, rng = make_plan(augment=torch.neg), np.random.default_rng(0)
    for batch in draw_batches(PropagatedClasses(40, 0.5), partition, plan, 4, rng):
        np.testing.assert_array_equal(*batch)
    for batch in draw_batches(LRML(), partition, plan, 4, rng):
        assert (batch[0] != batch[1]).all()


def test_batches_of_triplets(partition):
    method, rng = NeighbourhoodTriplets(40), np.random.default_rng(0)
    method.begin(partition, rng)
    assert len(method.triplets) == 33 * 2
    batches = list(draw_batches(method, partition, make_plan(), 7, rng))
    assert len(batches) == 7
    drawn = np.concatenate([batch.T for batch in batches])
    np.testing.assert_array_equal(np.unique(drawn, axis=0), np.unique(method.triplets, axis=0))


def test_small_sets_are_gone_through_several_times(partition):
    method, rng = PropagatedClasses(40, 0.5), np.random.default_rng(0)
    batches = list(draw_batches(method, partition, make_plan(batch_size=100), 5, rng))
    assert [batch.shape for batch in batches] == [(2, 33 + 6)] * 5


def test_pairs_of_labelled_nodes():
    codes = np.array([1, -1, 0, 1, 1])
    labelled, similar, dissimilar = labelled_pairs(codes)
    np.testing.assert_array_equal(labelled, [0, 2, 3, 4])
    assert similar.tolist() == [[0, 3], [0, 4], [3, 4]]
    assert dissimilar.tolist() == [[0, 2], [2, 3], [2, 4]]
    pairs, signs = batch_pairs(codes)
    assert signs.tolist() == [1, 1, 1, -1, -1, -1]
    assert pairs.shape == (6, 2)
    many = labelled_pairs(np.arange(3000) % 3, np.random.default_rng(0))[0]
    assert len(many) == len(set(many)) == 500


def affinity_loss_by_hand(classes, codes, first, second, angle, instance_weight):
    """Triplets, labelled rows and partners, one row after the other."""
    n_rows, tan = len(first), np.tan(np.radians(angle or 0))
    affinity = classes @ classes.T
    triplets, labelled, instance = [], [], []
    for i in range(n_rows):
        others = [j for j in range(n_rows) if j != i]
        (near,) = (j for j in others if affinity[i, j] > 0.5)
        far = [j for j in others if affinity[i, j] < 0.05]
        p = second[near]
        n = second[min(far, key=lambda j, i=i: np.sum((first[i] - second[j]) ** 2))]
        middle = (first[i] + p) / 2
        margin = np.sum((first[i] - p) ** 2) - 4 * tan**2 * np.sum((n - middle) ** 2)
        triplets.append(np.log1p(np.exp(4 * margin)))
        votes = np.zeros(classes.shape[1])
        for j in others:
            if codes[j] >= 0:
                votes[codes[j]] += np.exp(-np.sum((first[i] - first[j]) ** 2) / 0.1)
        labelled.append(-classes[i] @ np.log(np.maximum(votes / votes.sum(), 1e-6)))
        cosines = second @ first[i] / np.linalg.norm(second, axis=1) / np.linalg.norm(first[i])
        logits = np.exp(cosines / 0.2)
        kept = [j for j in range(n_rows) if j == i or affinity[i, j] <= 0.5]
        instance.append(-np.log(logits[i] / logits[kept].sum()))
    return (
        np.mean(triplets) * (angle is not None)
        + np.mean(labelled)
        + instance_weight * np.mean(instance)
    )


@pytest.mark.parametrize(("angle", "instance_weight"), [(30, 0.0), (30, 0.7), (None, 0.7)])
def test_affinity_loss_is_that_of_triplets_labelled_rows_and_partners(
    partition, angle, instance_weight
):
    """Two rows of each class, so that there is one positive to draw."""
    rng = np.random.default_rng(1)
    n_classes, members = 8, np.arange(16) % 8
    classes = 0.98 * np.eye(n_classes)[members] + 0.02 * rng.dirichlet(np.ones(n_classes), 16)
    codes = np.where(np.arange(16) < 10, members, -1)
    method = PropagatedClasses(angle, instance_weight)
    method.begin(Partition(codes, partition.graph, classes, 0.9), rng)
    first, second = (0.3 * rng.standard_normal((16, 3)) for _ in range(2))
    batch = np.stack([np.arange(16)] * 2)
    found = method.loss(batch, *(torch.from_numpy(part).float() for part in (first, second)))
    expected = affinity_loss_by_hand(classes, codes, first, second, angle, instance_weight)
    assert found.item() == pytest.approx(expected, rel=1e-4)


def test_model_is_orthonormal_while_it_is_trained():
    torch.manual_seed(0)
    model = MetricModel(None, 6, 3, orthogonal=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    before = model.factor
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.rand(5, 6)).square().sum().backward()
        optimizer.step()
        np.testing.assert_allclose(model.factor.T @ model.factor, np.eye(3), atol=1e-5)
    assert not np.allclose(model.factor, before, atol=0.1)


def test_features_have_unit_length_before_L():
    model = MetricModel(torch.nn.Linear(6, 4), 4, 2, orthogonal=False)
    X = torch.rand(5, 6)
    np.testing.assert_allclose(model.features(X).norm(dim=1).detach(), 1, rtol=1e-5)
    model.factor = np.eye(4)[:, :2]
    np.testing.assert_allclose(model(X).detach(), model.features(X)[:, :2].detach())


def test_closed_forms_set_the_metric(partition):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((33, 5))
    for method in (LRML(), ISDML(), APLLR(), APIT()):
        method.begin(partition, rng)
        factor = method.find_metric(features, np.zeros((5, 4)), rng)
        assert factor.shape == (5, 4)
        assert np.isfinite(factor).all()
        total = np.var(features @ factor, axis=0).sum()
        assert 0.5 < total / np.var(features, axis=0).sum() <= 1 + 1e-9


def test_a_table_of_one_partition_is_looked_at_once():
    rng = np.random.default_rng(0)
    y = np.arange(120) % 2
    rows = rng.standard_normal((120, 5)).astype(np.float32)
    rows[:, 0] += 4 * y
    codes = np.where(np.arange(120) < 20, y, -1)
    model = MetricModel(None, 5, 2, orthogonal=False)
    given = model, torch.from_numpy(rows), codes, None
    partitions = Partitions(*given, make_plan(partition_size=100), rng)
    (first,) = partitions.make([np.arange(120)])
    assert all(one is first for one in partitions.make([np.arange(120)] * 2))
    classes, left = partitions.propagate_all()
    np.testing.assert_array_equal(classes, first.classes)
    assert len(left) == 0
    assert np.mean(first.classes.argmax(axis=1) == y) > 0.95
    parts, left = Partitions(*given, make_plan(partition_size=60), rng).propagate_all()
    assert np.mean(parts.argmax(axis=1) == y) > 0.95
    assert len(left) == 0
    _, left = Partitions(*given, make_plan(partition_size=10), rng).propagate_all()
    assert len(left) == 20  # of 100, after eight partitions


def test_epochs_follow_from_the_number_of_samples():
    assert choose_epochs(9100, 200, has_images=True, paper=False) == (7, 1)
    assert choose_epochs(400, 200, has_images=True, paper=False) == (10, 1)
    few, many = (choose_epochs(n, 200, has_images=False, paper=False) for n in (500, 9000))
    assert few[0] > many[0] > 1
    assert choose_epochs(500, 200, has_images=False, paper=True) == (50, 10)
