"""Values of the losses, against the definitions written out as loops."""

import itertools
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sklearn.metrics import normalized_mutual_info_score  # noqa: E402

from skdml.deep.losses._triplets import class_partners  # noqa: E402
from tests.deep.loss_toys import (  # noqa: E402
    LABELS,
    distances_of,
    hinge,
    losses_of_pairs,
    make_batch,
    mean,
    pairs_of,
    similarities_of,
    triplets_of,
    value_of,
)

pytestmark = pytest.mark.filterwarnings("error")
SEEDS = (0, 1, 2)


def log_sum_exp(values):
    values = list(values)
    return math.log(sum(math.exp(v) for v in values)) if values else -math.inf


def softplus(value):
    return math.log1p(math.exp(value))


# Pairs


@pytest.mark.parametrize("seed", SEEDS)
def test_contrastive_is_a_sum_over_pairs(seed):
    embeddings, labels = make_batch(seed=seed)
    d = distances_of(embeddings)
    positive, negative = pairs_of(labels)
    pulls = [hinge(d[i, j] - 0.1) for i, j in positive]
    pushes = [hinge(1.1 - d[i, j]) for i, j in negative]
    active = [v for v in pulls if v > 0], [v for v in pushes if v > 0]
    expected = {
        "mean": mean(pulls + pushes),
        "active": mean(active[0] + active[1]),
        "balanced": mean(active[0]) + mean(active[1]),
    }
    for reduction, value in expected.items():
        loss = value_of(
            "contrastive",
            embeddings,
            labels,
            positive_margin=0.1,
            negative_margin=1.1,
            reduction=reduction,
        )
        assert loss.item() == pytest.approx(value, rel=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["margin", "binomial"])
def test_pair_losses_are_means_over_pairs(name, seed):
    embeddings, labels = make_batch(seed=seed)
    positive, negative = (list(d.values()) for d in losses_of_pairs(embeddings, labels, name))
    assert value_of(name, embeddings, labels).item() == pytest.approx(mean(positive + negative))
    balanced = mean(v for v in positive if v > 0) + mean(v for v in negative if v > 0)
    loss = value_of(name, embeddings, labels, reduction="balanced")
    assert loss.item() == pytest.approx(balanced)


@pytest.mark.parametrize("seed", SEEDS)
def test_multi_similarity_is_a_sum_over_anchors(seed):
    embeddings, labels = make_batch(seed=seed)
    S, y = similarities_of(embeddings), np.asarray(labels)
    total = 0.0
    for i in range(len(y)):
        near = [math.exp(-2 * (S[i, k] - 0.5)) for k in range(len(y)) if k != i and y[k] == y[i]]
        far = [math.exp(50 * (S[i, k] - 0.5)) for k in range(len(y)) if y[k] != y[i]]
        total += math.log(1 + sum(near)) / 2 + math.log(1 + sum(far)) / 50
    assert value_of("multi-similarity", embeddings, labels).item() == pytest.approx(total / len(y))


@pytest.mark.parametrize("bins", [1, 10, 100])
def test_histogram_shares_each_pair_between_two_nodes(bins):
    embeddings, labels = make_batch()
    S, nodes = similarities_of(embeddings), np.linspace(-1, 1, bins + 1)
    near, far = (
        np.mean([np.maximum(1 - abs(S[i, j] - nodes) * bins / 2, 0) for i, j in pairs], axis=0)
        for pairs in pairs_of(labels)
    )
    expected = sum(far[r] * near[q] for r in range(bins + 1) for q in range(r + 1))
    assert value_of("histogram", embeddings, labels, bins=bins).item() == pytest.approx(expected)


def test_zero_or_one_labels_in_the_margin_loss_would_leave_negatives_alone():
    """[m + y (lambda - S)]_+ with y = 0 for a negative pair is m, whatever S: a slip in print."""
    printed = [hinge(0.2 + 0 * (0.5 - s)) for s in (-1.0, 0.0, 0.9)]
    assert printed == [0.2, 0.2, 0.2]
    embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6]], dtype=torch.float64, requires_grad=True)
    loss = value_of("margin", embeddings, torch.tensor([0, 1]))
    assert loss.item() == pytest.approx(0.2 + 0.8 - 0.5)
    (gradient,) = torch.autograd.grad(loss, embeddings)
    assert gradient.abs().max() > 0.1


# Triplets


def triplet_by_loop(d, labels, margin, mining, reduction):
    triplets = triplets_of(labels)
    if mining == "semi-hard":
        triplets = [(a, p, n) for a, p, n in triplets if 0 < d[a, n] - d[a, p] < margin]
    elif mining == "hard":
        hardest = []
        for a in sorted({a for a, _, _ in triplets}):
            own = [t for t in triplets if t[0] == a]
            p = max((t[1] for t in own), key=lambda k: d[a, k])
            n = min((t[2] for t in own), key=lambda k: d[a, k])
            hardest.append((a, p, n))
        triplets = hardest
    values = [hinge(d[a, p] - d[a, n] + margin) for a, p, n in triplets]
    return mean(v for v in values if v > 0) if reduction == "active" else mean(values)


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
@pytest.mark.parametrize("reduction", ["active", "mean"])
@pytest.mark.parametrize("mining", ["all", "semi-hard", "hard"])
def test_triplet_is_a_sum_over_triplets(mining, reduction, distance):
    for seed in SEEDS:
        embeddings, labels = make_batch(seed=seed)
        d = distances_of(embeddings)
        d = d if distance == "euclidean" else d**2 / 2
        loss = value_of(
            "triplet",
            embeddings,
            labels,
            margin=0.3,
            triplets=mining,
            reduction=reduction,
            distance=distance,
        )
        expected = triplet_by_loop(d, labels, 0.3, mining, reduction)
        assert loss.item() == pytest.approx(expected, rel=1e-9)


def test_partners_of_all_shifts_are_the_positive_pairs():
    labels = torch.tensor([2, 0, 2, 1, 0, 2, 2, 7])
    met = [
        (row, int(partner))
        for partners in class_partners(labels)
        for row, partner in enumerate(partners)
        if row != partner
    ]
    assert sorted(met) == sorted(pairs_of(labels)[0])


def thesis_terms(embeddings, labels, negatives="semi-hard"):
    """log(1 + exp(negative - hardest positive)) of every anchor that has both."""
    S, y = similarities_of(embeddings), np.asarray(labels)
    terms = {}
    for a in range(len(y)):
        low = [S[a, k] for k in range(len(y)) if k != a and y[k] == y[a]]
        high = [S[a, k] for k in range(len(y)) if y[k] != y[a]]
        if low and high:
            if negatives == "semi-hard":
                high = [s for s in high if s < min(low)] or [min(high)]
            terms[a] = softplus(max(high) - min(low))
    return terms


@pytest.mark.parametrize("negatives", ["semi-hard", "hardest"])
def test_thesis_loss_with_all_anchors(negatives):
    embeddings, labels = make_batch(seed=3)
    norms = embeddings.detach().square().sum(1).mean().item()
    params = {"anchors": "all", "norm_weight": 0.01, "negatives": negatives}
    loss = value_of("class-anchor", embeddings, labels, **params)
    expected = thesis_terms(embeddings, labels, negatives)
    assert loss.item() == pytest.approx(mean(expected.values()) + 0.01 * norms)


def test_thesis_loss_draws_one_anchor_per_class():
    embeddings, labels = make_batch()
    terms, y = thesis_terms(embeddings, labels), np.asarray(labels)
    classes = [[a for a in terms if y[a] == c] for c in sorted({y[a] for a in terms})]
    possible = [mean(terms[a] for a in anchors) for anchors in itertools.product(*classes)]
    seen = set()
    for seed in range(40):
        torch.manual_seed(seed)
        value = value_of("class-anchor", embeddings, labels, norm_weight=0.0).item()
        nearest = min(possible, key=lambda p: abs(p - value))
        assert value == pytest.approx(nearest, rel=1e-10)
        seen.add(round(value, 9))
    assert len(seen) > len(possible) // 2


def test_norms_count_before_the_scaling_to_unit_vectors():
    embeddings, labels = make_batch()
    small = value_of("class-anchor", embeddings, labels, anchors="all", norm_weight=1.0)
    large = value_of("class-anchor", 3 * embeddings, labels, anchors="all", norm_weight=1.0)
    norms = embeddings.detach().square().sum(1).mean()
    assert (large - small).item() == pytest.approx(8 * norms.item())


# Lifted structure and N-pair


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("threshold", [0.5, -0.3])
def test_lifted_structure_is_a_sum_over_anchors(seed, threshold):
    """The paper's threshold cancels."""
    embeddings, labels = make_batch(seed=seed)
    S, y = similarities_of(embeddings), np.asarray(labels)
    total = 0.0
    for i in range(len(y)):
        low = log_sum_exp(threshold - S[i, k] for k in range(len(y)) if k != i and y[k] == y[i])
        high = log_sum_exp(S[i, k] - threshold for k in range(len(y)) if y[k] != y[i])
        total += hinge(low + high - 0.5)
    loss = value_of("lifted-structure", embeddings, labels, margin=-0.5)
    assert loss.item() == pytest.approx(total / len(y))


@pytest.mark.parametrize("seed", SEEDS)
def test_lifted_structure_of_pairs(seed):
    embeddings, labels = make_batch(seed=seed)
    d, y = distances_of(embeddings), np.asarray(labels)
    values = []
    for i, j in pairs_of(labels)[0]:
        both = [0.4 - d[e, k] for e in (i, j) for k in range(len(y)) if y[k] != y[e]]
        values.append(hinge(log_sum_exp(both) + d[i, j]) ** 2 / 2)
    loss = value_of("lifted-structure-pairs", embeddings, labels, margin=0.4)
    assert loss.item() == pytest.approx(mean(values))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("normalize", [True, False])
def test_tuplet_loss_is_a_sum_over_positive_pairs(seed, normalize):
    embeddings, labels = make_batch(seed=seed)
    x, y = embeddings.detach().numpy(), np.asarray(labels)
    S = similarities_of(embeddings) if normalize else x @ x.T
    values = [
        math.log(1 + sum(math.exp(0.7 * (S[a, n] - S[a, p])) for n in np.flatnonzero(y != y[a])))
        for a, p in pairs_of(labels)[0]
    ]
    loss = value_of("n-pair-tuplet", embeddings, labels, scale=0.7, normalize=normalize)
    assert loss.item() == pytest.approx(mean(values))


def test_the_tuplet_loss_as_printed_is_constant():
    """Both terms of the exponent are printed alike, so that N negatives give log(1 + N)."""
    for seed in SEEDS:
        x = make_batch(seed=seed)[0].detach().numpy()
        printed = math.log(1 + sum(math.exp(x[0] @ v - x[0] @ v) for v in x[1:]))
        assert printed == pytest.approx(math.log(len(x)))


@pytest.mark.parametrize("normalize", [True, False])
def test_n_pair_losses_are_over_one_pair_per_class(normalize):
    order = np.random.default_rng(3).permutation(len(LABELS))
    embeddings, labels = make_batch(labels=np.asarray(LABELS)[order])
    x, y = embeddings.detach().numpy(), np.asarray(labels)
    x = x / np.linalg.norm(x, axis=1, keepdims=True) if normalize else x
    pairs = [np.flatnonzero(y == c)[:2] for c in np.unique(y) if (y == c).sum() > 1]
    gaps = [[x[a] @ x[q] - x[a] @ x[p] for b, q in pairs if b != a] for a, p in pairs]
    multi_class = mean(math.log(1 + sum(math.exp(g) for g in row)) for row in gaps)
    one_vs_one = mean(sum(softplus(g) for g in row) for row in gaps)
    loss = value_of("n-pair-multi-class", embeddings, labels, normalize=normalize)
    assert loss.item() == pytest.approx(multi_class)
    loss = value_of("n-pair-one-vs-one", embeddings, labels, normalize=normalize)
    assert loss.item() == pytest.approx(one_vs_one)


# Clusterings


def clustering_score(d, y, medoids, weight):
    clusters = [
        min(range(len(medoids)), key=lambda k: (d[i, medoids[k]], k)) for i in range(len(y))
    ]
    score = -sum(d[i, medoids[k]] for i, k in enumerate(clusters))
    return score + weight * (1 - normalized_mutual_info_score(y, clusters))


def facility_location_by_loop(d, y, weight):
    chosen = []
    for _ in np.unique(y):
        rest = [j for j in range(len(y)) if j not in chosen]
        chosen.append(max(rest, key=lambda j: clustering_score(d, y, [*chosen, j], weight)))
    oracle = 0.0
    for c in np.unique(y):
        own = np.flatnonzero(y == c)
        oracle += max(-sum(d[i, j] for i in own) for j in own)
    return clustering_score(d, y, chosen, weight), oracle


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weight", [0.0, 1.0, 10.0])
def test_facility_location_is_the_gap_to_the_worst_greedy_clustering(seed, weight):
    embeddings, labels = make_batch(seed=seed)
    d, y = distances_of(embeddings), np.asarray(labels)
    np.fill_diagonal(d, 0)
    worst, oracle = facility_location_by_loop(d, y, weight)
    loss = value_of("facility-location", embeddings, labels, nmi_weight=weight)
    assert loss.item() == pytest.approx(hinge(worst - oracle) / len(y), rel=1e-9)
    medoid_sets = itertools.combinations(range(len(y)), len(np.unique(y)))
    most = max(clustering_score(d, y, list(m), weight) for m in medoid_sets)
    assert loss.item() <= (most - oracle) / len(y) + 1e-12


@pytest.mark.parametrize("features", [3, 12])
@pytest.mark.parametrize("normalize", [True, False])
def test_spectral_compares_projections(features, normalize):
    embeddings, labels = make_batch(features=features)
    x = embeddings.detach().numpy()
    x = x / np.linalg.norm(x, axis=1, keepdims=True) if normalize else x
    Y = np.eye(labels.max() + 1)[labels]
    spans = [x @ np.linalg.pinv(x), Y @ np.linalg.pinv(Y)]
    loss = value_of("spectral", embeddings, labels, ridge=0.0, normalize=normalize)
    assert loss.item() == pytest.approx(np.sum((spans[0] - spans[1]) ** 2) / len(x), abs=1e-8)


def test_spectral_is_zero_for_embeddings_that_are_the_classes():
    labels = torch.tensor(LABELS)
    loss = value_of("spectral", torch.nn.functional.one_hot(labels).double(), labels, ridge=0.0)
    assert loss.item() == pytest.approx(0, abs=1e-12)
