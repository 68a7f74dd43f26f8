"""Training on pairs, grades and triplets: loss, batches, scores, and what is refused."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from skdml import DeepMetricEmbedder
from skdml.deep._tuples import RankingLoss, TupleBatches, Tuples, check_tuples, split_tuples


def slow_loss(embeddings, grades, weights, scale):
    """The loss of pairs, one pair of pairs after the other."""
    first, second = np.split(embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True), 2)
    cosines = [float(a @ b) for a, b in zip(first, second, strict=True)]
    total = 1.0
    for i, high in enumerate(grades):
        for j, low in enumerate(grades):
            if high > low:
                total += weights[i] * weights[j] * np.exp(scale * (cosines[j] - cosines[i]))
    return np.log(total)


@pytest.fixture
def batch():
    rng = np.random.RandomState(0)
    grades, weights = np.array([0.0, 3.0, 1.0, 3.0, 5.0]), np.array([1.0, 2.0, 0.5, 1.0, 1.0])
    return rng.randn(10, 4), grades, weights


@pytest.fixture(scope="module")
def clusters():
    """Unit vectors of 12 classes whose classes are in the first half of the columns."""
    rng = np.random.RandomState(0)
    y = np.repeat(np.arange(12), 10)
    X = np.hstack([rng.randn(12, 8)[y] + 0.4 * rng.randn(120, 8), 2 * rng.randn(120, 8)])
    X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
    pairs = np.array([rng.choice(120, 2, replace=False) for _ in range(1200)])
    extra = np.array([rng.choice(np.flatnonzero(y == c), 2, replace=False) for c in y])
    pairs = np.unique(np.sort(np.vstack([pairs, extra]), axis=1), axis=0)
    return X, y, pairs, np.where(y[pairs[:, 0]] == y[pairs[:, 1]], 1, -1)


def test_the_loss_is_that_of_the_slow_reference(batch):
    embeddings, grades, weights = batch
    targets = torch.tensor(np.column_stack([grades, weights]))
    value = RankingLoss(scale=5.0)(torch.tensor(embeddings), targets)
    assert float(value) == pytest.approx(slow_loss(embeddings, grades, weights, 5.0), rel=1e-9)


def test_the_loss_of_triplets_is_the_mean_of_softplus():
    rng = np.random.RandomState(1)
    E, weights = rng.randn(12, 3), np.array([1.0, 2.0, 0.5, 1.0])
    unit = E / np.linalg.norm(E, axis=1, keepdims=True)
    anchor, near, far = unit[:4], unit[4:8], unit[8:]
    gaps = 7.0 * ((anchor * far).sum(axis=1) - (anchor * near).sum(axis=1))
    expected = np.average(np.log1p(np.exp(gaps)), weights=weights)
    targets = torch.tensor(np.column_stack([np.ones(4), weights]))
    assert float(RankingLoss(7.0)(torch.tensor(E), targets)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n_sides", [2, 3])
def test_gradients_by_finite_differences(n_sides):
    rng = np.random.RandomState(2)
    E = torch.tensor(rng.randn(4 * n_sides, 3), requires_grad=True)
    targets = torch.tensor(np.column_stack([[2.0, 0.0, 1.0, 1.0], [1.0, 1.0, 2.0, 1.0]]))
    assert torch.autograd.gradcheck(lambda E: RankingLoss(3.0)(E, targets), [E])


def test_equal_grades_have_no_loss(batch):
    embeddings = torch.tensor(batch[0])
    assert float(RankingLoss()(embeddings, torch.ones(5, 2, dtype=torch.float64))) == 0


def test_batches_hold_one_side_after_the_other():
    X = torch.arange(10.0)[:, None]
    tuples = Tuples(np.array([[0, 5], [1, 6], [2, 7]]), np.array([1, -1, 1]), np.ones(3))
    batches = TupleBatches(X, tuples, 2, np.random.default_rng(0))
    seen = set()
    for samples, targets in batches:
        first, second = samples.chunk(2)
        assert torch.equal(second, first + 5)
        assert targets.shape == (2, 2)
        seen |= set(first.ravel().tolist())
    assert seen == {0, 1, 2}


def test_scores_are_those_of_the_kind_of_tuples():
    rng = np.random.RandomState(3)
    E = rng.randn(30, 4)
    rows = rng.randint(30, size=(40, 2))
    cosines = (E[rows[:, 0]] * E[rows[:, 1]]).sum(axis=1)
    signs, grades = np.sign(rng.randn(40)), rng.rand(40)
    assert Tuples(rows, signs, np.ones(40)).score(E) == roc_auc_score(signs, cosines)
    assert Tuples(rows, grades, np.ones(40)).score(E) == spearmanr(grades, cosines).statistic
    triplets = rng.randint(30, size=(40, 3))
    near, far = ((E[triplets[:, 0]] * E[triplets[:, side]]).sum(axis=1) for side in (1, 2))
    assert Tuples(triplets, np.ones(40), np.ones(40)).score(E) == np.mean(near > far)


@pytest.mark.parametrize("kind", ["labels", "grades", "triplets"])
def test_all_kinds_teach_which_columns_matter(clusters, kind):
    X, y, pairs, labels = clusters
    model = DeepMetricEmbedder(max_epochs=10, lr=0.01, random_state=0)
    if kind == "labels":
        model.fit(X, pairs=pairs, pair_labels=labels)
    elif kind == "grades":
        model.fit(X, pairs=pairs, pair_similarity=3.0 * labels + 1)
    else:
        rng = np.random.RandomState(0)
        near = [rng.choice(np.flatnonzero(y == c)) for c in y]
        far = [rng.choice(np.flatnonzero(y != c)) for c in y]
        triplets = np.column_stack([np.arange(120), near, far])
        model.fit(X, triplets=triplets[triplets[:, 0] != triplets[:, 1]])
    before = np.linalg.norm(X[pairs[:, 0]] - X[pairs[:, 1]], axis=1)
    after = roc_auc_score(labels, -model.pair_distance(pairs, X))
    assert after > roc_auc_score(labels, -before) + 0.05
    assert "valid_order" in model.history_


def test_weight_zero_is_absence(clusters):
    X, _, pairs, labels = clusters
    weights = np.ones(len(pairs))
    weights[::3] = 0
    model = DeepMetricEmbedder(max_epochs=1, random_state=0)
    weighted = model.fit(X, pairs=pairs, pair_labels=labels, pair_weight=weights).transform(X)
    kept = weights > 0
    fewer = model.fit(X, pairs=pairs[kept], pair_labels=labels[kept]).transform(X)
    np.testing.assert_array_equal(weighted, fewer)


def test_tuples_that_are_held_out_are_not_trained_on():
    tuples = Tuples(np.arange(80).reshape(40, 2), np.tile([1, -1], 20), np.ones(40))
    train, rest = split_tuples(tuples, 0.25, seed=0)
    assert len(rest.rows) == 10
    assert not set(train.rows.ravel()) & set(rest.rows.ravel())
    with pytest.raises(ValueError, match="too few to hold some out"):
        split_tuples(tuples.choose(np.arange(3)), 0.25, seed=0)


@pytest.mark.parametrize(
    ("params", "given", "message"),
    [
        ({}, {"pairs": [[0, 1]]}, "pair_labels"),
        ({}, {"pairs": [[0, 1]], "triplets": [[0, 1, 2]]}, "pairs and triplets were given"),
        ({"loss": "contrastive"}, {"triplets": [[0, 1, 2]]}, "loss='contrastive' is for training"),
        ({"coreset": 0.5}, {"triplets": [[0, 1, 2]]}, "coreset=0.5 is for training on classes"),
        ({"n_workers": 2}, {"triplets": [[0, 1, 2]]}, "n_workers=2 is for training on classes"),
        (
            {"early_stopping": False, "loss__miner": None},
            {"triplets": [[0, 1, 2]]},
            "loss__miner is of losses of classes",
        ),
        (
            {"early_stopping": False, "loss__scale": 0},
            {"triplets": [[0, 1, 2]]},
            "loss__scale must be a number above 0",
        ),
        ({}, {"triplets": [[0, 1, 200]]}, "triplets names rows 0 to 200"),
    ],
)
def test_what_is_refused(clusters, params, given, message):
    with pytest.raises(ValueError, match=message):
        DeepMetricEmbedder(max_epochs=1, **params).fit(clusters[0], **given)


def test_pairs_and_triplets_are_checked_alike():
    tuples = check_tuples(5, None, None, None, [[0, 1, 2], [3, 4, 0]], [1.0, 0.0])
    np.testing.assert_array_equal(tuples.rows, [[0, 1, 2]])
    pairs = check_tuples(5, [[1, 0], [3, 4]], None, [0.2, 0.9], None, None)
    np.testing.assert_array_equal(pairs.rows, [[0, 1], [3, 4]])
    np.testing.assert_array_equal(pairs.grades, [0.2, 0.9])
