import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chi2, kstest
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.linear_model import LinearRegression, RidgeClassifier
from sklearn.metrics import ndcg_score, pairwise_distances_argmin

from skdml.datasets import make_local_clusters, make_ranking

GENERATORS = [make_local_clusters, make_ranking]


@pytest.mark.parametrize("make", GENERATORS)
@pytest.mark.parametrize("kind", [lambda seed: seed, np.random.RandomState, np.random.default_rng])
def test_the_random_state_determines_the_data(make, kind):
    for one, other in zip(
        make(n_centers=3, random_state=kind(1)),
        make(n_centers=3, random_state=kind(1)),
        strict=True,
    ):
        assert_array_equal(one, other)
    assert not np.array_equal(make(random_state=kind(1))[0], make(random_state=kind(2))[0])


@pytest.mark.parametrize("make", GENERATORS)
def test_a_generator_moves_on(make):
    rng = np.random.default_rng(0)
    assert not np.array_equal(make(random_state=rng)[0], make(random_state=rng)[0])


@pytest.mark.parametrize("n_centers", [10, 50, 100])
def test_clusters_are_even(n_centers):
    X, y, centers = make_local_clusters(
        1000, 7, n_centers, center_scale=20, return_centers=True, random_state=0
    )
    assert X.shape == (1000, 7)
    assert centers.shape == (n_centers, 7)
    assert y.dtype == np.int64
    assert_array_equal(np.bincount(y), [1000 // n_centers] * n_centers)
    assert_array_equal(pairwise_distances_argmin(X, centers), y)


def test_clusters_in_turn():
    _, y = make_local_clusters(7, 3, 3, shuffle=False, random_state=0)
    assert_array_equal(y, [0, 1, 2, 0, 1, 2, 0])


def test_round_clusters_have_the_normal_distribution():
    X, _, centers = make_local_clusters(
        3000, 5, 1, contrast=1, confidence=1, return_centers=True, random_state=0
    )
    squared = ((X - centers) ** 2).sum(axis=1)
    assert kstest(squared, chi2(5).cdf).pvalue > 0.01
    assert_allclose(np.cov(X.T), np.eye(5), atol=0.1)


def test_confidence_cuts_off_the_tail_only():
    X, _, centers = make_local_clusters(
        3000, 5, 1, contrast=1, confidence=0.95, return_centers=True, random_state=0
    )
    squared = ((X - centers) ** 2).sum(axis=1)
    assert squared.max() <= chi2(5).ppf(0.95)
    assert kstest(squared, lambda value: chi2(5).cdf(value) / 0.95).pvalue > 0.01


def test_each_cluster_is_narrow_in_directions_of_its_own():
    X, y = make_local_clusters(
        4000, 6, 4, n_informative=2, contrast=5, confidence=1, random_state=0
    )
    narrow = []
    for center in range(4):
        variances, directions = np.linalg.eigh(np.cov(X[y == center].T))
        assert_allclose(variances, [0.04, 0.04, 1, 1, 1, 1], rtol=0.2)
        narrow.append(directions[:, :2])
    # The singular values are the cosines between the planes: 1 if they have a line in common.
    for one in range(4):
        for other in range(one):
            assert np.linalg.svd(narrow[one].T @ narrow[other])[1].max() < 0.999


@pytest.mark.parametrize("n_centers", [10, 50])
def test_one_covariance_for_each_center_beats_a_common_one(n_centers):
    X, y = make_local_clusters(100 * n_centers, 10, n_centers, random_state=0)
    train, test = slice(None, None, 2), slice(1, None, 2)
    common = LinearDiscriminantAnalysis().fit(X[train], y[train]).score(X[test], y[test])
    local = QuadraticDiscriminantAnalysis(reg_param=0.01).fit(X[train], y[train])
    assert local.score(X[test], y[test]) > common + 0.05


def test_classes_that_differ_from_center_to_center():
    X, y, centers = make_local_clusters(
        2000, 10, 10, n_classes=2, center_scale=3, return_centers=True, random_state=0
    )
    assert_array_equal(np.bincount(y), [1000, 1000])
    region = pairwise_distances_argmin(X, centers)
    everywhere = RidgeClassifier().fit(X[:1000], y[:1000]).score(X[1000:], y[1000:])
    local = []
    for center in range(10):
        train = np.flatnonzero(region[:1000] == center)
        test = 1000 + np.flatnonzero(region[1000:] == center)
        model = RidgeClassifier(alpha=0.01).fit(X[train], y[train])
        local.append(model.score(X[test], y[test]))
    assert everywhere < 0.6
    assert np.mean(local) > 0.85


def test_the_order_of_the_bands_differs_from_center_to_center():
    X, y, centers = make_local_clusters(
        900,
        1,
        10,
        n_classes=3,
        n_informative=1,
        center_scale=100,
        return_centers=True,
        random_state=0,
    )
    in_the_middle = y[pairwise_distances_argmin(centers, X)]
    assert set(in_the_middle) == {0, 1, 2}


def test_ranking_shapes_and_levels():
    X, y, qid, ideals = make_ranking(
        30, 14, 5, n_centers=3, n_levels=4, return_ideals=True, random_state=0
    )
    assert X.shape == (420, 5)
    assert ideals.shape == (3, 5)
    assert_array_equal(qid, np.repeat(np.arange(30), 14))
    assert y.dtype == qid.dtype == np.int64
    assert_array_equal(np.bincount(y), [224, 112, 56, 28])


def test_without_noise_relevance_is_the_distance_to_the_ideal_document():
    X, y, _, ideals = make_ranking(
        n_features=3, n_informative=3, noise=0, return_ideals=True, random_state=0
    )
    distance = np.linalg.norm(X - ideals[0], axis=1)
    for level in range(2):
        assert distance[y > level].max() < distance[y <= level].min()


def test_noise_blurs_the_relevance():
    _, clean, _ = make_ranking(noise=0, random_state=0)
    _, little, _ = make_ranking(noise=0.1, random_state=0)
    _, much, _ = make_ranking(noise=2, random_state=0)
    assert 0 < np.mean(clean != little) < 0.2 < np.mean(clean != much)


def test_one_score_for_each_center_ranks_better_than_one_for_all():
    X, y, _, ideals = make_ranking(
        100, 20, n_centers=10, center_scale=5, return_ideals=True, random_state=0
    )
    region = pairwise_distances_argmin(X, ideals)
    train = np.arange(len(X)) < 1000
    everywhere = LinearRegression().fit(X[train], y[train]).predict(X[~train])
    local = np.empty(len(X))
    for center in range(10):
        here = region == center
        model = LinearRegression().fit(X[train & here], y[train & here])
        local[here] = model.predict(X[here])

    def ndcg(scores):
        return ndcg_score(y[~train].reshape(-1, 20), scores.reshape(-1, 20), k=10)

    assert ndcg(local[~train]) > ndcg(everywhere) + 0.15


@pytest.mark.parametrize(
    ("make", "params", "message"),
    [
        (make_local_clusters, {"n_samples": 0}, "'n_samples' parameter"),
        (make_local_clusters, {"n_centers": 2.5}, "'n_centers' parameter"),
        (make_local_clusters, {"n_classes": 1}, "'n_classes' parameter"),
        (make_local_clusters, {"contrast": 0.5}, "'contrast' parameter"),
        (make_local_clusters, {"confidence": 0}, "'confidence' parameter"),
        (make_local_clusters, {"confidence": 1.5}, "'confidence' parameter"),
        (make_local_clusters, {"center_scale": -1}, "'center_scale' parameter"),
        (make_local_clusters, {"random_state": "seed"}, "'random_state' parameter"),
        (make_local_clusters, {"n_informative": 11}, "n_informative=11.*n_features=10"),
        (make_local_clusters, {"n_samples": 5}, "5 samples are too few for n_centers=10"),
        (make_ranking, {"n_queries": 0}, "'n_queries' parameter"),
        (make_ranking, {"n_documents": -1}, "'n_documents' parameter"),
        (make_ranking, {"n_levels": 1}, "'n_levels' parameter"),
        (make_ranking, {"noise": -0.1}, "'noise' parameter"),
        (make_ranking, {"ideal_distance": -1}, "'ideal_distance' parameter"),
        (make_ranking, {"n_features": 1}, "n_informative=2.*n_features=1"),
        (make_ranking, {"n_queries": 1, "n_documents": 2, "n_centers": 3}, "2 samples are too few"),
    ],
)
def test_bad_parameters(make, params, message):
    with pytest.raises(ValueError, match=message):
        make(**params)


def test_true_is_a_number():
    sizes = ("n_features", "n_centers", "n_informative")
    for make in (make_local_clusters, make_ranking):
        expected = make(**dict.fromkeys(sizes, 1), random_state=0)
        actual = make(**dict.fromkeys(sizes, True), random_state=0)
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("make", [make_local_clusters, make_ranking])
def test_sizes_beyond_the_memory_are_refused(make):
    with pytest.raises(MemoryError, match=r"n_features=1099511627776.*Give fewer"):
        make(n_features=2**40)
