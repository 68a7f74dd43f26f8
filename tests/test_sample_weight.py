"""Weights of rows in learners that train by steps: absence, equal weights, direction, errors."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn import config_context
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skdml import AsymmetricMetricClassifier, NeighborhoodGerrymandering
from skdml.asymmetric._asymmetric_solver import Problem, check_costs, compare
from skdml.asymmetric._maps import LinearMaps
from skdml.utils._supervision import draw_weighted, places_of_rows, weighted_rows
from tests.systems import needs_fork

pytest.importorskip("torch")

from skdml import DeepMetricEmbedder, SSDMLEmbedder, WassersteinGenerator

QUICK = {
    NeighborhoodGerrymandering: {"max_iter": 2},
    AsymmetricMetricClassifier: {"max_iter": 2},
    DeepMetricEmbedder: {"max_epochs": 1, "n_components": 4},
    SSDMLEmbedder: {"max_epochs": 1, "n_components": 4, "n_neighbors": 4},
    WassersteinGenerator: {"max_iter": 3, "batch_size": 8},
}
every = pytest.mark.parametrize("cls", QUICK, ids=lambda cls: cls.__name__)
pytestmark = pytest.mark.filterwarnings("ignore:the generator", "ignore:all samples have a label")


@pytest.fixture(scope="module")
def data():
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X)[::3], y[::3]


def output(cls, X, y, test, **given):
    """What a fitted model gives for the test rows; of a generator, samples."""
    if cls is SSDMLEmbedder:  # labels of rows with an even first digit
        y = np.where(np.floor(10 * np.abs(X[:, 0])) % 2 == 0, y, -1)
    model = cls(**QUICK[cls], random_state=0).fit(X, y, **given)
    if cls is WassersteinGenerator:
        return model.sample(5, random_state=0)
    return model.transform(test)


@every
def test_weight_zero_is_absence(cls, data):
    X, y = data
    weights = np.where(np.arange(len(X)) % 5 == 1, 0.0, 1.0)
    for factor in (1.0, 1 + np.arange(len(X)) % 2):  # the others alike, or not
        shares = factor * weights
        found = output(cls, X, y, X, sample_weight=shares)
        kept = shares[weights > 0]
        expected = output(cls, X[weights > 0], y[weights > 0], X, sample_weight=kept)
        assert_array_equal(found, expected)


@every
def test_equal_weights_are_none(cls, data):
    X, y = data
    found = output(cls, X, y, X, sample_weight=np.full(len(X), 0.3))
    assert_array_equal(found, output(cls, X, y, X))
    varied = output(cls, X, y, X, sample_weight=1 + np.arange(len(X)) % 3)
    assert not np.array_equal(found, varied)


@every
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (lambda n: -np.ones(n), "sample_weight must not be negative"),
        (lambda n: np.full(n, np.nan), "sample_weight must be finite"),
        (lambda n: np.ones(n + 1), "sample_weight must have"),
        (np.zeros, "sample_weight is zero everywhere"),
    ],
)
def test_bad_weights_are_errors(cls, weights, message, data):
    X, y = data
    with pytest.raises(ValueError, match=message):
        output(cls, X, y, X, sample_weight=weights(len(X)))


def test_a_distrusted_half_hardly_votes(data):
    X, y = data
    wrong = np.arange(len(y)) % 2 == 1
    X = X + 1e-3 * np.arange(len(X))[:, None]
    noisy = np.where(wrong, (y + 1) % 3, y)
    weights = np.where(wrong, 0.01, 1.0)
    settings = {"n_neighbors": 3, "max_iter": 3, "random_state": 0}
    trusted = AsymmetricMetricClassifier(**settings).fit(X, noisy, sample_weight=weights)
    plain = AsymmetricMetricClassifier(**settings).fit(X, noisy)
    assert trusted.score(X, y) > 0.85 > plain.score(X, y)
    chances = trusted.predict_proba(X)
    np.testing.assert_allclose(chances.sum(axis=1), 1)


def test_gerrymandering_trusts_the_heavy_half():
    # The first column is right for the heavy rows, the second for the light ones.
    rng = np.random.default_rng(0)
    y = np.arange(160) % 2
    heavy = np.arange(160) < 80
    X = rng.normal(size=(160, 2))
    X[heavy, 0] += 3 * y[heavy]
    X[~heavy, 1] += 3 * y[~heavy]
    ratios = []
    for share in (100.0, 0.01):
        model = NeighborhoodGerrymandering(max_iter=5, validation_fraction=None, random_state=0)
        model.fit(X, y, sample_weight=np.where(heavy, share, 1.0))
        A = model.get_mahalanobis_matrix()
        ratios.append(A[0, 0] / A[1, 1])
    assert ratios[0] > 1.05 * ratios[1]


def test_weights_multiply_losses_and_gradients_of_queries():
    rng = np.random.default_rng(0)
    X, y, weights = rng.normal(size=(20, 2)), np.arange(20) % 2, 0.5 + np.arange(20) % 2
    nobody = np.zeros(20, dtype=bool)
    problem = Problem(X, y, X, y, True, nobody, check_costs(None, 2), 3, weights=weights)
    plain = replace(problem, weights=None)
    maps = LinearMaps(np.eye(2), np.eye(2), symmetric=True)
    found, expected = (each.search(maps, np.random.default_rng(0)) for each in (problem, plain))
    numbers = np.arange(5, 15)
    weighted, once = (
        compare(maps, each, numbers, expected.candidates[numbers]) for each in (problem, plain)
    )
    shares = once.pairs.weight * weights[numbers[once.pairs.query]]
    np.testing.assert_allclose(weighted.pairs.weight, shares)
    every = compare(maps, plain, np.arange(20), expected.candidates).loss
    assert expected.loss == pytest.approx(every.sum())
    assert found.loss == pytest.approx(weights @ every)


def test_embedder_trusts_the_heavy_half(data):
    X, y = data
    wrong = np.arange(len(y)) % 2 == 1
    noisy = np.where(wrong, np.random.default_rng(0).permutation(y), y)
    scores = []
    for weights in (np.where(wrong, 0.01, 1.0), None):
        model = DeepMetricEmbedder("mlp", 8, max_epochs=3, random_state=0)
        scores.append(model.fit(X, noisy, sample_weight=weights).score(X, y))
    assert scores[0] > scores[1] + 0.05


def test_embedder_weighs_pairs_and_triplets(data):
    X, _ = data
    pairs = np.array([[0, 1], [0, 30], [2, 3], [2, 40], [5, 6], [5, 50]])
    labels = np.array([1, -1] * 3)
    weights = np.ones(len(X))
    weights[2] = 0
    settings = {"max_epochs": 1, "n_components": 4, "random_state": 0}

    def embed(**given):
        return DeepMetricEmbedder("mlp", **settings).fit(X, **given).transform(X)

    found = embed(pairs=pairs, pair_labels=labels, sample_weight=weights)
    rest = [0, 1, 4, 5]
    assert_array_equal(found, embed(pairs=pairs[rest], pair_labels=labels[rest]))
    triplets = np.array([[0, 1, 30], [2, 3, 40], [5, 6, 50], [7, 8, 51]])
    found = embed(triplets=triplets, sample_weight=weights)
    assert_array_equal(found, embed(triplets=triplets[[0, 2, 3]]))
    with pytest.raises(ValueError, match="sample_weight is zero for a row of every triplet"):
        embed(triplets=triplets[1:2], sample_weight=weights)


def test_generator_draws_rows_by_their_weights():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(-3, 0.3, (100, 2)), rng.normal(3, 0.3, (100, 2))])
    means = []
    for share in (0.02, 50.0):
        model = WassersteinGenerator(max_iter=150, batch_size=32, n_critics=2, random_state=0)
        weights = np.where(np.arange(200) < 100, 1.0, share)
        means.append(model.fit(X, sample_weight=weights).sample(200, random_state=0).mean())
    assert means[0] < -1.5
    assert means[1] > 1.5


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_generator_gets_weights_in_processes(n_jobs, data):
    X, _ = data
    weights = 1 + np.arange(len(X)) % 3
    model = WassersteinGenerator(max_iter=3, batch_size=8, n_jobs=n_jobs, random_state=0)
    found = model.fit(X, sample_weight=weights).sample(5, random_state=0)
    assert_array_equal(found, output(WassersteinGenerator, X, None, X, sample_weight=weights))


@pytest.mark.parametrize("method", ["ssdml", "lrml", "seraph", "apit"])
def test_ssdml_propagates_trusted_labels(method):
    rng = np.random.default_rng(0)
    y = np.arange(120) % 2
    X = rng.normal(size=(120, 4)) * 0.5
    X[:, 0] += 3 * y
    known = np.arange(120) < 40
    wrong = known & (np.arange(120) % 4 < 2)  # half of the labels
    labels = np.where(known, np.where(wrong, 1 - y, y), -1)
    weights = np.where(wrong, 0.01, 1.0)
    settings = {"max_epochs": 2, "n_components": 3} if method == "ssdml" else {"module": None}
    model = SSDMLEmbedder(method, random_state=0, **settings)
    found = model.fit(X, labels, sample_weight=weights).propagated_labels_
    assert np.mean(found[~known] == y[~known]) > 0.9


def test_ssdml_names_all_samples_that_were_given(data):
    X, y = data
    X, y = np.concatenate([X, X[:5]]), np.concatenate([np.where(y == 2, -1, y), [-1] * 5])
    y[:5] = -1
    weights = np.ones(len(X))
    weights[10] = 0
    y[10] = -1
    model = SSDMLEmbedder(module=None, method="lrml", random_state=0)
    model.fit(X, y, sample_weight=weights)
    labels, confidence = model.propagated_labels_, model.propagated_confidence_
    assert labels.shape == confidence.shape == (len(X),)
    assert_array_equal(labels[:5], labels[-5:])
    assert labels[10] == -1
    assert confidence[10] == 0


@every
def test_weights_are_routed(cls, data):
    X, y = data
    if cls is WassersteinGenerator:
        pytest.skip("it is no transformer")
    weights = np.where(np.arange(len(X)) < 30, 1.0, 2.0)
    with config_context(enable_metadata_routing=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = cls(**QUICK[cls], random_state=0).set_fit_request(sample_weight=True)
        knn = KNeighborsClassifier(1).set_score_request(sample_weight=True)
        pipe = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), model, knn)
        pipe.fit(X, y, sample_weight=weights)
        alone = cls(**QUICK[cls], random_state=0)
        alone.fit(pipe[0].transform(X), y, sample_weight=weights)
        assert_array_equal(pipe[:2].transform(X), alone.transform(pipe[0].transform(X)))
        search = GridSearchCV(pipe, {"kneighborsclassifier__n_neighbors": [1]}, cv=2)
        search.fit(X, y, sample_weight=weights)
        assert search.best_score_ > 0


def test_equal_rows_are_one_row_in_order():
    X = np.array([[3.0, 1.0], [1.0, 1.0], [2.0, 0.0]])
    rows, weights = weighted_rows(np.repeat(X, 2, axis=0), np.repeat([0, 1, 0], 2), None)
    assert_array_equal(rows, [0, 2, 4])
    assert weights is None
    rows, weights = weighted_rows(X, np.array([0, 1, 0]), [0.5, 0.0, 1.5])
    assert sorted(zip(rows, weights, strict=True)) == [(0, 0.5), (2, 1.5)]
    dense, codes = np.array([[1.0], [1.0], [1.0], [2.0]]), np.array([0, 0, 0, 1])
    assert_array_equal(
        weighted_rows(dense, codes, np.full(4, 0.1))[1], weighted_rows(dense, codes, None)[1]
    )
    places = places_of_rows(np.repeat(X, 2, axis=0), np.repeat([0, 1, 0], 2), np.array([4, 0]))
    assert_array_equal(places, [1, 1, -1, -1, 0, 0])


def test_draws_are_in_proportion():
    rng, weights = np.random.default_rng(0), np.array([3.0, 1.0, 0.5, 0.5])
    assert_array_equal(
        np.bincount(draw_weighted(weights, 10, rng), minlength=4)[:2] >= [6, 2], True
    )
    counts = sum(np.bincount(draw_weighted(weights, 2, rng), minlength=4) for _ in range(4000))
    np.testing.assert_allclose(counts / 8000, weights / 5, atol=0.02)


@needs_fork
def test_ranks_draw_by_weights(data):
    X, y = data
    weights = np.where(np.arange(len(X)) % 2, 0.01, 1.0)
    settings = {"max_epochs": 1, "n_components": 4, "classes_per_batch": 3, "random_state": 0}
    embedded = [
        DeepMetricEmbedder("mlp", n_workers=2, **settings).fit(X, y, sample_weight=w).transform(X)
        for w in (weights, None)
    ]
    assert not np.allclose(*embedded, atol=1e-3)
