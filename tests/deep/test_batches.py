import numpy as np
import pytest

torch = pytest.importorskip("torch")

from skdml.deep._data import (  # noqa: E402
    MIN_BATCHES,
    ClassBatches,
    augment_affine,
    rotate_classes,
)


def make_batches(counts, classes_per_batch=3, samples_per_class=4, seed=0, **options):
    y = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
    X = torch.arange(len(y), dtype=torch.float32)[:, None]
    rng = np.random.default_rng(seed)
    return ClassBatches(X, y, classes_per_batch, samples_per_class, rng, **options)


def test_a_batch_has_samples_of_each_of_its_classes():
    for X, y in make_batches([10] * 6):
        labels, counts = torch.unique(y, return_counts=True)
        assert len(labels) == 3
        assert (counts == 4).all()
        assert len(torch.unique(X)) == 12


def test_small_classes_give_what_they_have():
    for X, y in make_batches([1, 2, 10]):
        assert torch.bincount(y).tolist() == [1, 2, 4]
        assert len(torch.unique(X)) == 7


def test_classes_and_samples_take_turns():
    batches = make_batches([20] * 6)
    drawn = np.concatenate(list(batches.draw()))
    counts = np.bincount(drawn, minlength=120)
    assert len(batches) == MIN_BATCHES
    # 60 batches of 12 samples: each of the 120 samples 6 times, but for the passes left open
    assert counts.min() >= 5
    assert counts.max() <= 7


def test_an_epoch_holds_all_samples():
    assert len(make_batches([2000] * 3)) == 500


def test_fewer_classes_than_asked():
    _, y = next(iter(make_batches([5, 5], classes_per_batch=16)))
    assert torch.bincount(y).tolist() == [4, 4]


def test_same_seed_same_batches():
    first, second = (list(make_batches([5] * 8, seed=3).draw()) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_affine_maps_keep_shape_and_change_each_image():
    torch.manual_seed(0)
    X = torch.zeros(8, 1, 20, 20)
    X[:, :, 8:12, 8:12] = 1
    Z = augment_affine(X)
    assert Z.shape == X.shape
    assert all(not torch.equal(Z[i], X[i]) for i in range(8))
    assert not torch.equal(Z[0], Z[1])
    np.testing.assert_allclose(Z.sum((1, 2, 3)), 16, rtol=0.5)


def test_turned_classes_are_new_classes():
    torch.manual_seed(0)
    X = torch.arange(9.0).reshape(1, 1, 3, 3).repeat(12, 1, 1, 1)
    y = torch.arange(4).repeat_interleave(3)
    Z, labels = rotate_classes(X, y)
    assert (labels // 4 == y).all()
    for image, label in zip(Z, labels, strict=True):
        assert torch.equal(image, torch.rot90(X[0], int(label % 4), (1, 2)))
    assert (labels.reshape(4, 3) == labels.reshape(4, 3)[:, :1]).all()
