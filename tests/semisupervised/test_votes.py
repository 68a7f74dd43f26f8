"""Classes of new samples, by votes of those near them."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("skorch")

from skdml.semisupervised._votes import choose_temperature, vote


def test_votes_by_hand():
    rng = np.random.default_rng(0)
    samples, known = rng.standard_normal((7, 2)), rng.standard_normal((4, 2))
    classes = rng.dirichlet(np.ones(3), 4)
    found = vote(samples, known, classes, 0.5)
    for i, sample in enumerate(samples):
        shares = np.exp(-np.sum((known - sample) ** 2, axis=1) / 0.5)
        expected = sum(s * c for s, c in zip(shares, classes, strict=True)) / shares.sum()
        np.testing.assert_allclose(found[i], expected, rtol=1e-8)


def test_temperature_is_that_of_the_wanted_classes():
    rng = np.random.default_rng(0)
    samples, known = rng.standard_normal((300, 2)), rng.standard_normal((8, 2))
    classes, none = np.eye(2)[np.arange(8) % 2], np.zeros((300, 8), dtype=bool)
    for temperature in (0.05, 5.0):
        wanted = vote(samples, known, classes, temperature)
        found = choose_temperature(samples, wanted, known, classes, none)
        assert temperature / 2 < found < temperature * 2
    own = np.eye(8, dtype=bool)  # samples do not vote for themselves
    assert choose_temperature(known, classes, known, classes, own) > 0.1
