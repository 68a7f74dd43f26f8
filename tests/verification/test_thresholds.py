import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, fbeta_score

from skdml.verification._thresholds import best_threshold, fit_sigmoid


def slow_rates(distances, labels, weights, threshold):
    """The shares of similar pairs accepted and of dissimilar ones rejected, one pair by one."""
    sums = {1: [0.0, 0.0], -1: [0.0, 0.0]}
    for distance, label, weight in zip(distances, labels, weights, strict=True):
        sums[int(label)][0] += weight * ((distance <= threshold) == (label > 0))
        sums[int(label)][1] += weight
    return sums[1][0] / sums[1][1], sums[-1][0] / sums[-1][1]


def slow_value(distances, labels, weights, threshold, strategy, beta=1.0, min_rate=0.0):
    """What a strategy makes greatest, and what it prefers among equals."""
    predicted = np.where(distances <= threshold, 1, -1)
    if strategy == "accuracy":
        return (accuracy_score(labels, predicted, sample_weight=weights), 0)
    if strategy == "f_beta":
        options = {"beta": beta, "sample_weight": weights, "zero_division": 0}
        return (fbeta_score(labels, predicted, **options), 0)
    tpr, tnr = slow_rates(distances, labels, weights, threshold)
    rate, other = (tpr, tnr) if strategy == "max_tpr" else (tnr, tpr)
    return (rate if other >= min_rate else -1, other)


STRATEGIES = [
    {"strategy": "accuracy"},
    *({"strategy": "f_beta", "beta": beta} for beta in (0, 0.5, 1, 3)),
    *(
        {"strategy": strategy, "min_rate": rate}
        for strategy in ("max_tpr", "max_tnr")
        for rate in (0, 0.1, 0.5, 0.8, 1)
    ),
]


@pytest.mark.parametrize("options", STRATEGIES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_no_threshold_is_better(options, seed):
    rng = np.random.default_rng(seed)
    labels = np.append([1, -1], rng.choice([1, -1], 38))
    distances = rng.integers(0, 12, 40) - 0.5 * labels  # with equal ones
    weights = rng.integers(1, 4, 40).astype(float)
    found = best_threshold(distances, labels, weights, **options)
    candidates = [*distances, distances.min() - 1, distances.max() + 1]
    best = max(slow_value(distances, labels, weights, t, **options) for t in candidates)
    assert slow_value(distances, labels, weights, found, **options) == pytest.approx(best)


def test_the_threshold_is_between_the_two_distances():
    labels = np.array([1, 1, -1, -1])
    assert best_threshold(np.array([1.0, 2, 4, 5]), labels, np.ones(4)) == 3
    # all rejected, all accepted
    assert best_threshold(np.array([5.0, 4, 1, 2]), np.array([1, 1, -1, -1]), np.ones(4)) < 1
    far = best_threshold(np.array([1.0, 2, 4, 5]), labels, np.ones(4), "max_tpr", min_rate=0.0)
    assert 2 <= far < 4  # of the thresholds that accept all similar pairs, the best one


def test_neighbouring_floats_are_told_apart():
    near = 1.0
    far = np.nextafter(near, 2)
    threshold = best_threshold(np.array([near, far]), np.array([1, -1]), np.ones(2))
    assert near <= threshold < far


@pytest.mark.parametrize("options", STRATEGIES, ids=str)
def test_a_weight_of_two_is_the_pair_twice(options):
    rng = np.random.default_rng(0)
    distances, labels = rng.random(50), np.tile([1, -1], 25)
    weights = rng.integers(1, 3, 50)
    twice = np.repeat(np.arange(50), weights)
    one = best_threshold(distances, labels, weights.astype(float), **options)
    assert one == best_threshold(distances[twice], labels[twice], np.ones(len(twice)), **options)
    weighted = fit_sigmoid(distances, labels, weights.astype(float))
    repeated = fit_sigmoid(distances[twice], labels[twice], np.ones(len(twice)))
    assert weighted == pytest.approx(repeated, rel=1e-7)


def test_the_sigmoid_is_that_of_a_logistic_regression_on_many_pairs():
    rng = np.random.default_rng(0)
    distances = rng.random(20_000) * 4
    labels = np.where(rng.random(20_000) < 1 / (1 + np.exp(2 * distances - 3)), 1, -1)
    slope, intercept = fit_sigmoid(distances, labels, np.ones(20_000))
    model = LogisticRegression(C=1e10, tol=1e-8).fit(distances[:, None], labels)
    assert slope == pytest.approx(model.coef_[0, 0], rel=0.01)
    assert intercept == pytest.approx(model.intercept_[0], rel=0.01)
    assert (slope, intercept) == pytest.approx((-2, 3), rel=0.1)


def test_the_sigmoid_minimises_the_loss_of_platts_targets():
    rng = np.random.default_rng(1)
    distances, labels, weights = rng.random(30), np.tile([1, -1, -1], 10), rng.random(30)
    distances += labels < 0
    found = np.array(fit_sigmoid(distances, labels, weights))
    n_similar, n_other = weights[labels > 0].sum(), weights[labels < 0].sum()
    target = np.where(labels > 0, (n_similar + 1) / (n_similar + 2), 1 / (n_other + 2))

    def loss(parameters):
        z = parameters[1] + parameters[0] * distances
        return np.sum(weights * (np.logaddexp(0, z) - target * z))

    for step in 1e-4 * np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, 1]]):
        assert loss(found + step) > loss(found)


def test_the_sigmoid_of_pairs_the_wrong_way_round_is_flat():
    labels = np.tile([1, -1], 20)
    slope, intercept = fit_sigmoid(labels + 2.0, labels, np.ones(40))
    assert slope == 0
    assert intercept == pytest.approx(0)


def test_the_sigmoid_is_finite_where_kinds_are_apart_and_where_nothing_varies():
    labels = np.tile([1, -1], 20)
    slope, intercept = fit_sigmoid(2.0 - labels, labels, np.ones(40))
    assert 1 / (1 + np.exp(-(intercept + slope * 1))) == pytest.approx(21 / 22, rel=1e-4)
    for constant in (0.0, 3.0):
        flat = fit_sigmoid(np.full(40, constant), labels, np.ones(40))
        assert np.isfinite(flat).all()
