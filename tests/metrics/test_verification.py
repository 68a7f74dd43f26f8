import itertools

import numpy as np
import pytest
from scipy.stats import norm

from skdml.metrics import equal_error_rate


def slow_equal_error_rate(y, score):
    """Both rates at every threshold, one pair by one, and the crossing of the lines between."""
    points = [(0.0, 1.0)]
    for threshold in sorted(set(score), reverse=True):
        accepted = sum(s >= threshold for s, label in zip(score, y, strict=True) if label != 1)
        rejected = sum(s < threshold for s, label in zip(score, y, strict=True) if label == 1)
        points.append((accepted / sum(y != 1), rejected / sum(y == 1)))
    for (a, r), (a_next, r_next) in itertools.pairwise(points):
        if a_next >= r_next:
            share = (r - a) / ((r - a) + (a_next - r_next))
            return a + share * (a_next - a)
    raise AssertionError("the rates do not cross")


@pytest.mark.parametrize("seed", range(20))
def test_equals_the_slow_reference(seed):
    rng = np.random.default_rng(seed)
    y = np.append([1, -1], rng.choice([1, -1], 38))
    score = rng.integers(0, 12, 40) + y  # with equal ones
    assert equal_error_rate(y, score) == pytest.approx(slow_equal_error_rate(y, score))
    score = rng.standard_normal(40)
    assert equal_error_rate(y, score) == pytest.approx(slow_equal_error_rate(y, score))


def test_known_values():
    y = np.tile([1, -1], 50)
    assert equal_error_rate(y, y) == 0
    assert equal_error_rate(y, -y) == 1
    assert equal_error_rate(y, np.zeros(100)) == 0.5
    rng = np.random.default_rng(0)
    y = np.tile([1, 0], 20_000)
    # two normal kinds, two deviations apart
    score = rng.standard_normal(40_000) + 2 * y
    assert equal_error_rate(y, score) == pytest.approx(norm.cdf(-1), abs=0.01)
    assert equal_error_rate(y, np.exp(score)) == equal_error_rate(y, score)


@pytest.mark.parametrize(
    ("y", "score", "error", "message"),
    [
        ([1, 1], [0.0, 1.0], ValueError, "y_true must have 1 .* both kinds"),
        ([1, 2], [0.0, 1.0], ValueError, r"y_true must have 1 .* got \[1.0, 2.0\]"),
        ([1, -1, 1], [0.0, 1.0], ValueError, "y_true has 3 labels for 2 entries of y_score"),
        ([1, -1], [0.0, np.nan], ValueError, "y_score must be finite"),
        ([1, -1], ["a", "b"], TypeError, "y_score must hold numbers"),
    ],
)
def test_errors(y, score, error, message):
    with pytest.raises(error, match=message):
        equal_error_rate(y, score)
