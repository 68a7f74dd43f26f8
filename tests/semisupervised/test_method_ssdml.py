"""Triplets, against loops."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("skorch")

from skdml.semisupervised._method_ssdml import affinity_triplets, neighbourhood_triplets  # noqa: E402


def test_halves_of_a_neighbourhood_are_paired_in_order():
    neighbors = np.array([[5, 6, 7, 8], [2, 3, 4, 5]])
    affinity = np.array([[0.1, 0.4, 0.2, 0.3], [1.0, 1.0, 1.0, 0.5]])
    expected = [[0, 6, 7], [0, 8, 5], [1, 2, 4], [1, 3, 5]]
    np.testing.assert_array_equal(neighbourhood_triplets(neighbors, affinity), expected)


def test_triplets_by_affinity_have_a_similar_and_the_nearest_different_row():
    rng = np.random.default_rng(0)
    classes = rng.dirichlet([0.1] * 4, size=30)
    affinity = torch.from_numpy(classes @ classes.T)
    distances = torch.from_numpy(rng.random((30, 30)))
    torch.manual_seed(0)
    anchors, positives, negatives = affinity_triplets(affinity, distances)
    pairs = zip(positives.tolist(), negatives.tolist(), strict=True)
    found = dict(zip(anchors.tolist(), pairs, strict=True))
    for a in range(30):
        near = [j for j in range(30) if j != a and affinity[a, j] > 0.5]
        far = [j for j in range(30) if j != a and affinity[a, j] < 0.05]
        assert (a in found) == bool(near and far)
        if a in found:
            assert found[a][0] in near
            assert found[a][1] == min(far, key=lambda j: distances[a, j])


def test_all_similar_rows_are_drawn_in_the_end():
    affinity = torch.tensor([[1.0, 1.0, 1.0, 0.0]] * 4)
    distances = torch.ones(4, 4)
    torch.manual_seed(0)
    drawn = {affinity_triplets(affinity, distances)[1][0].item() for _ in range(50)}
    assert drawn == {1, 2}


def test_a_batch_without_candidates_has_no_triplet():
    for value in (0.0, 0.2, 1.0):
        anchors, positives, negatives = affinity_triplets(
            torch.full((3, 3), value), torch.ones(3, 3)
        )
        assert len(anchors) == len(positives) == len(negatives) == 0
