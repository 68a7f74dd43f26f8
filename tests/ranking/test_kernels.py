"""How distances become scores, and what does not hold as printed in chapter 4 of the thesis."""

import math

import numpy as np
import pytest

from skdml.ranking._anchor_model import (
    KERNELS,
    LocalMetric,
    build_model,
    damped_scores,
    gaussian_scores,
)
from skdml.ranking._local_gmml_training import draw_violators
from tests.ranking.ranking_toys import finite_differences, random_metric

pytestmark = pytest.mark.filterwarnings("error")

SIGNS = np.array([1.0, 1, 1, -1, -1])


def random_case(seed=0, n_rows=6, signs=SIGNS):
    rng = np.random.default_rng(seed)
    squared = rng.gamma(2, 1, (n_rows, len(signs)))
    return squared, rng.standard_normal(len(signs)), rng.standard_normal(len(signs)), signs


def obvious_gaussian(squared, weights, widths, signs):
    scores = []
    for row in squared:
        sums = {1.0: 0.0, -1.0: 0.0}
        for d2, weight, width, sign in zip(row, weights, widths, signs, strict=True):
            sums[sign] += math.exp(weight) * math.exp(-math.log(1 + math.exp(width)) * d2)
        scores.append(sum(sign * math.log(total) for sign, total in sums.items() if total))
    return np.array(scores)


def obvious_thesis(squared, weights):
    scores = []
    for row in squared:
        distances = [math.sqrt(d2) for d2 in row]
        terms = [w * math.exp(-d) * d for w, d in zip(weights, distances, strict=True)]
        scores.append(-sum(terms))
    return np.array(scores)


# The kernels


@pytest.mark.parametrize("signs", [SIGNS, np.ones(3), np.array([1.0, -1.0])])
def test_gaussian_scores_against_the_formula(signs):
    case = random_case(signs=signs)
    np.testing.assert_allclose(gaussian_scores(*case)[0], obvious_gaussian(*case), atol=1e-12)


def test_damped_scores_against_the_formula():
    squared, weights, widths, signs = random_case()
    scores, _ = damped_scores(squared, np.abs(weights), widths, signs)
    np.testing.assert_allclose(scores, obvious_thesis(squared, np.abs(weights)), atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_weights_may_differ_from_row_to_row(kernel):
    squared, _, widths, signs = random_case()
    weights = np.random.default_rng(1).uniform(0.1, 2, squared.shape)
    together = KERNELS[kernel](squared, weights, widths, signs)
    for row in range(len(squared)):
        alone = KERNELS[kernel](squared[row : row + 1], weights[row], widths, signs)
        np.testing.assert_allclose(together[0][row], alone[0][0], atol=1e-14)
        for whole, part in zip(together[1], alone[1], strict=True):
            np.testing.assert_allclose(whole[row], part[0], atol=1e-14)


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_leave_their_input_alone(kernel):
    case = random_case()
    before = [array.copy() for array in case]
    KERNELS[kernel](*case)
    assert all(np.array_equal(a, b) for a, b in zip(case, before, strict=True))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seed", range(3))
def test_partial_derivatives_against_finite_differences(kernel, seed):
    squared, weights, widths, signs = random_case(seed)
    score = KERNELS[kernel]
    _, partials = score(squared, weights, widths, signs)
    for row in range(len(squared)):
        d2 = squared[row]
        for name, expected in {
            "by_squared": finite_differences(
                lambda s: score(s[None], weights, widths, signs)[0][0], d2
            ),
            "by_weight": finite_differences(
                lambda w, d2=d2: score(d2[None], w, widths, signs)[0][0], weights
            ),
            "by_width": finite_differences(
                lambda b, d2=d2: score(d2[None], weights, b, signs)[0][0], widths
            ),
        }.items():
            np.testing.assert_allclose(getattr(partials, name)[row], expected, atol=1e-7)


@pytest.mark.parametrize("seed", range(20))
def test_gaussian_score_is_monotone_in_every_distance(seed):
    """A document that comes nearer to an ideal one, or leaves an anti-ideal one, never loses."""
    squared, weights, widths, signs = random_case(seed, n_rows=40)
    rng = np.random.default_rng(100 + seed)
    squared *= rng.choice([0.01, 1, 30], squared.shape)
    before, partials = gaussian_scores(squared, 3 * weights, 2 * widths, signs)
    assert (signs * partials.by_squared <= 0).all()
    for anchor, sign in enumerate(signs):
        farther = squared.copy()
        farther[:, anchor] += rng.gamma(1, 2, len(squared))
        after, _ = gaussian_scores(farther, 3 * weights, 2 * widths, signs)
        assert (sign * (after - before) <= 1e-10).all()


def test_gaussian_score_of_distances_that_underflow():
    squared = np.array([[0.0, 0.0], [1e6, 1e6], [1e6, 0.0], [0.0, 1e6]])
    scores, _ = gaussian_scores(squared, np.zeros(2), np.zeros(2), np.array([1.0, -1.0]))
    assert np.isfinite(scores).all()
    assert scores[2] < scores[0] < scores[3]
    assert scores[1] == pytest.approx(scores[0])


# The thesis as printed


def test_thesis_score_is_not_monotone():
    """Equation 4.12: d exp(-d) is largest at d = 1, so far documents are as good as near ones."""

    def score(distance):
        squared = np.array([[distance**2]])
        return damped_scores(squared, np.ones(1), np.zeros(1), np.ones(1))[0][0]

    assert score(0.0) == 0
    assert score(0.5) > score(1.0)
    assert score(3.0) > score(1.0)
    assert score(50.0) == pytest.approx(0, abs=1e-12)
    slopes = finite_differences(
        lambda s: damped_scores(s[:, None], np.ones(1), np.zeros(1), np.ones(1))[0].sum(),
        np.array([0.9, 1.1]) ** 2,
    )
    assert slopes[0] < 0 < slopes[1]


def test_equation_4_21_has_the_wrong_sign():
    squared, weights, widths, signs = random_case()
    printed = np.exp(-np.sqrt(squared)) * np.sqrt(squared)
    ours = damped_scores(squared, weights, widths, signs)[1].by_weight
    for row, d2 in enumerate(squared):
        true = finite_differences(lambda w, d2=d2: obvious_thesis(d2[None], w)[0], weights)
        np.testing.assert_allclose(ours[row], true, atol=1e-8)
        np.testing.assert_allclose(printed[row], -true, atol=1e-8)
        assert np.abs(printed[row] - true).max() > 0.1


def test_equation_4_11_squares_the_metric():
    """As printed the squared norm is |M (p - p_r)|²; meant is (p - p_r)' M (p - p_r)."""
    rng = np.random.default_rng(0)
    p, anchor = rng.standard_normal((2, 4))
    metric = random_metric(4)
    M, difference = metric.matrix(), p - anchor
    model = build_model("damped", [LocalMetric(metric, anchor)], 1)
    squared = model.squared_distances(p[None])[0, 0]
    printed = np.trace(M @ np.outer(difference, difference) @ M)
    assert squared == pytest.approx(difference @ M @ difference)
    assert squared == pytest.approx(metric(p, anchor) ** 2)
    assert printed == pytest.approx(difference @ (M @ M) @ difference)
    assert abs(printed - squared) > 0.1 * squared


# Two documents, one anchor: the relevant one at distance a, the other at distance b.


def phi_after_one_update(a, b, phi=1.0, step=0.1, sign=-1.0):
    """Equation 4.20 with L = 1; `sign` is that of the derivative of f by Phi."""

    def derivative(distance):
        return sign * math.exp(-distance) * distance

    return max(phi - step * (derivative(b) - derivative(a)), 0.0)


def margin_of(a, b, phi):
    """f(p+) - f(p-)."""
    return phi * (math.exp(-b) * b - math.exp(-a) * a)


def test_an_update_with_the_printed_derivative_makes_the_margin_worse():
    for a, b in [(0.2, 0.7), (0.1, 0.4), (0.5, 0.9)]:  # in order, but within the margin
        before = margin_of(a, b, 1.0)
        assert 0 < before < 1
        assert margin_of(a, b, phi_after_one_update(a, b)) > before
        assert margin_of(a, b, phi_after_one_update(a, b, sign=+1.0)) < before


def test_algorithm_3_prints_the_violator_test_reversed():
    """It asks for zeta + f(p+) > f(p-); violators by 4.14 and 4.18 have zeta + f(p-) > f(p+)."""

    def printed(f_plus, f_minus, zeta):
        return zeta + f_plus > f_minus

    def meant(f_plus, f_minus, zeta):
        return zeta + f_minus > f_plus

    # A pair that is far apart in the right order is no violator: it has no hinge loss.
    f_plus, f_minus, zeta = 0.0, -3.0, 1.0
    assert max(0.0, zeta - f_plus + f_minus) == 0
    assert printed(f_plus, f_minus, zeta)
    assert not meant(f_plus, f_minus, zeta)
    # A pair that is far apart in the wrong order is the worst violator, and is not found.
    f_plus, f_minus = -3.0, 0.0
    assert max(0.0, zeta - f_plus + f_minus) == 4
    assert not printed(f_plus, f_minus, zeta)
    assert meant(f_plus, f_minus, zeta)
    # Of all pairs, the test that is meant finds those with a loss, the printed one few of them.
    rng = np.random.default_rng(0)
    pairs = 3 * rng.standard_normal((500, 2))
    loss = np.maximum(0, zeta - pairs[:, 0] + pairs[:, 1])
    assert all(meant(*pair, zeta) == (value > 0) for pair, value in zip(pairs, loss, strict=True))
    assert (
        np.mean([printed(*pair, zeta) == (v > 0) for pair, v in zip(pairs, loss, strict=True)])
        < 0.5
    )


def test_the_package_finds_the_violators_that_are_meant():
    for scores, violates in [([0.0, -3.0], False), ([-3.0, 0.0], True), ([0.5, 0.0], True)]:
        _, rank_error = draw_violators(
            np.array(scores),
            np.array([0]),
            np.array([1]),
            np.array([2]),
            np.random.default_rng(0),
            margin=1.0,
        )
        assert (rank_error[0] > 0) == violates
