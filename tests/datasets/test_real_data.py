"""The documented facts of the real data sets."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skdml.datasets import (
    fetch_cub_features,
    fetch_fashion_mnist,
    fetch_letor,
    fetch_microarray,
    fetch_mnist,
    fetch_omniglot,
    fetch_uci,
    fetch_usps,
)

pytestmark = pytest.mark.needs_data


def test_mnist(need):
    need("mnist")
    digits = fetch_mnist(subset="all")
    assert digits.images.shape == (70_000, 28, 28)
    assert_array_equal(digits.target[:5], [5, 0, 4, 1, 9])
    assert_array_equal(digits.target[60_000:60_005], [7, 2, 1, 0, 4])
    assert digits.images[:100].max() == 1
    assert digits.images[:100].min() == 0


def test_fashion_mnist(need):
    need("fashion_mnist")
    clothes = fetch_fashion_mnist(subset="test")
    assert clothes.data.shape == (10_000, 784)
    assert_array_equal(np.bincount(clothes.target), [1000] * 10)
    assert clothes.target_names[clothes.target[0]] == "Ankle boot"


@pytest.mark.parametrize(
    ("name", "shape", "n_queries"), [("mq2008", (15_211, 46), 784), ("ohsumed", (16_140, 45), 106)]
)
def test_letor(need, name, shape, n_queries):
    need(f"letor_{name}")
    X, y, qid = fetch_letor(name, subset="all", return_X_y=True)
    assert X.shape == shape
    assert len(np.unique(qid)) == n_queries
    assert_array_equal(np.unique(y), [0, 1, 2])
    assert np.isfinite(X).all()
    if name == "mq2008":
        assert_array_equal(np.flatnonzero(np.ptp(X, axis=0) == 0) + 1, [6, 7, 8, 9, 10, 43])
        assert len(set(qid) - set(qid[y > 0])) == 220

    parts = {
        subset: fetch_letor(name, fold=2, subset=subset)
        for subset in ("train", "validation", "test")
    }
    assert sum(len(part.data) for part in parts.values()) == len(X)
    queries = [set(part.qid) for part in parts.values()]
    assert sum(len(part) for part in queries) == n_queries
    assert set.union(*queries) == set(qid)


def test_omniglot(need):
    need("omniglot")
    drawings = fetch_omniglot(subset="all")
    assert drawings.images.shape == (4_840, 28, 28)
    assert_array_equal(np.bincount(drawings.target), [20] * 242)
    assert len(np.unique(drawings.alphabet)) == 8
    seen, unseen = drawings.train, ~drawings.train
    assert len(np.unique(drawings.target[seen])) == 136
    assert len(np.unique(drawings.target[unseen])) == 106
    assert len(np.unique(drawings.alphabet[seen])) == 5
    assert not set(drawings.alphabet[seen]) & set(drawings.alphabet[unseen])

    large = fetch_omniglot(subset="test", size=105)
    assert large.images.shape == (2_120, 105, 105)
    assert_array_equal(np.unique(large.data[:20]), [0, 1])
    # Both sizes show the same drawing: there is ink in the same places.
    ink = large.images[:20, :104, :104].reshape(20, 26, 4, 26, 4).mean(axis=(2, 4)).ravel()
    small = drawings.images[unseen][:20, :26, :26].ravel()
    assert np.corrcoef(ink, small)[0, 1] > 0.3


def test_usps(need):
    need("usps")
    digits = fetch_usps(subset="all")
    assert digits.images.shape == (9_298, 16, 16)
    assert len(fetch_usps(subset="test").data) == 2_007
    assert_array_equal(np.unique(digits.target), np.arange(10))
    assert digits.data.min() >= 0
    assert digits.data.max() <= 1


def test_cub_features(need):
    need("cub_features")
    assert fetch_cub_features(subset="train").data.shape == (480, 1024)
    test = fetch_cub_features(subset="test")
    assert test.data.shape == (120, 1024)
    assert_array_equal(np.unique(test.target), np.arange(1, 11))


@pytest.mark.parametrize(
    ("name", "shape", "n_classes"),
    [
        ("alon", (62, 2000), 2),
        ("chowdary", (104, 22283), 2),
        ("golub", (72, 7129), 2),
        ("gordon", (181, 12533), 2),
        ("khan", (63, 2308), 4),
        ("nakayama", (105, 22283), 10),
        ("singh", (102, 12600), 2),
        ("su", (102, 5565), 4),
        ("subramanian", (50, 10100), 2),
    ],
)
def test_microarray(need, name, shape, n_classes):
    need("microarray")
    genes = fetch_microarray(name)
    assert genes.data.shape == shape
    assert len(genes.target_names) == n_classes


@pytest.mark.parametrize(
    ("name", "shape", "n_classes"),
    [
        ("balance", (625, 4), 3),
        ("ionosphere", (351, 33), 2),
        ("letter", (20000, 16), 26),
        ("optdigits", (5620, 64), 10),
        ("penbased", (10992, 16), 10),
        ("satimage", (6435, 36), 6),
        ("segment", (2310, 19), 7),
        ("sonar", (208, 60), 2),
        ("vehicle", (846, 18), 4),
        ("vowel", (990, 13), 11),
    ],
)
def test_uci(need, name, shape, n_classes):
    need("uci")
    table = fetch_uci(name)
    assert table.data.shape == shape
    assert len(table.target_names) == n_classes
    assert np.isfinite(table.data).all()
