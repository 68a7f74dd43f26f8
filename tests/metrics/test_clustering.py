"""Agreement of k-means clusters with labels."""

from itertools import combinations

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score

from skdml.metrics import cluster_f1, cluster_nmi

BOTH = [cluster_nmi, cluster_f1]


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 80)
    return rng.normal(size=(80, 3)) + 1.5 * y[:, None], y


def slow_f1(labels, clusters):
    together = found = right = 0
    for i, j in combinations(range(len(labels)), 2):
        together += labels[i] == labels[j]
        found += clusters[i] == clusters[j]
        right += labels[i] == labels[j] and clusters[i] == clusters[j]
    precision, recall = right / found, right / together
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize("n_clusters", [None, 2, 7])
def test_equals_measure_of_the_same_clusters(data, n_clusters):
    X, y = data
    clusters = KMeans(n_clusters or 4, n_init=3, random_state=0).fit(X).labels_
    options = {"n_clusters": n_clusters, "random_state": 0}
    assert cluster_nmi(X, y, **options) == normalized_mutual_info_score(y, clusters)
    assert cluster_f1(X, y, **options) == pytest.approx(slow_f1(y, clusters))


@pytest.mark.parametrize("measure", BOTH)
def test_separate_classes_give_one(data, measure):
    X, y = data
    value = measure(X + 100 * y[:, None], np.array(list("abcd"))[y], random_state=0)
    assert type(value) is float
    assert value == pytest.approx(1)


@pytest.mark.parametrize("measure", BOTH)
def test_same_seed_same_value(data, measure):
    first, second = (measure(*data, n_init=1, random_state=5) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("measure", BOTH)
def test_bad_input(data, measure):
    X, y = data
    with pytest.raises(ValueError, match="labels must have one entry per row"):
        measure(X, y[:-1])
    with pytest.raises(ValueError, match="embeddings must have two dimensions"):
        measure(X[:, 0], y)
    with pytest.raises(ValueError, match="embeddings must have at least 2"):
        measure(X[:1], y[:1])
    with pytest.raises(ValueError, match="embeddings contains NaN"):
        measure(np.where(X > 0, X, np.nan), y)
    with pytest.raises(ValueError, match=r"n_clusters must not exceed .* 80, got 81"):
        measure(X, y, n_clusters=81)
    with pytest.raises(ValueError, match="n_clusters must be at least 1"):
        measure(X, y, n_clusters=0)
    with pytest.raises(TypeError, match="n_clusters must be a positive integer"):
        measure(X, y, n_clusters=2.5)
    with pytest.raises(ValueError, match="n_init must be at least 1"):
        measure(X, y, n_init=0)


def test_f1_needs_two_items_of_a_label(data):
    X, _ = data
    with pytest.raises(ValueError, match="labels: no two items share a label"):
        cluster_f1(X[:5], range(5), n_clusters=2, random_state=0)
