import math

import numpy as np
import pytest

from skdml.metrics import mean_ndcg
from skdml.ranking import _documents, _local_gmml_training
from skdml.ranking._documents import group_rows, mean_ndcg_of, positions, sort_queries
from skdml.ranking._local_gmml_training import (
    draw_violators,
    lambda_loss,
    pair_loss,
    rank_weight,
    warp_loss,
)
from tests.ranking.ranking_toys import (
    finite_differences,
    make_documents,
    make_ranked,
    ndcg_of_order,
    query_slices,
    sort_documents,
)

pytestmark = pytest.mark.filterwarnings("error")


def random_scores(ranked, seed=1):
    return np.random.default_rng(seed).standard_normal(len(ranked.grades))


def obvious_ranks(scores):
    """The rank of each document from 1; of equal scores the first comes first."""
    return [
        1 + sum(t > s or (t == s and j < i) for j, t in enumerate(scores))
        for i, s in enumerate(scores)
    ]


# Sorted queries


def test_sorted_queries_have_the_rows_of_their_query_best_first():
    X, y, qid = make_documents()
    queries = group_rows(qid, len(X))
    ranked, used = sort_queries(X[queries.order], y[queries.order], queries)
    assert used.tolist() == [0, 1, 2]
    for number, rows in enumerate(query_slices(ranked)):
        own = np.flatnonzero(qid == queries.ids[number])
        best_first = own[np.argsort(-y[own], kind="stable")]
        assert np.array_equal(ranked.features[rows], X[best_first])
        assert np.array_equal(ranked.grades[rows], y[best_first])
        assert (ranked.codes()[rows] == number).all()


def test_queries_with_one_grade_are_left_out():
    qid = np.array([0, 0, 1, 1, 2, 3, 3, 4, 4])
    y = np.array([1.0, 0, 2, 2, 1, 0, 0, 0, 3])
    ranked, used = sort_queries(np.arange(9.0)[:, None], y, group_rows(qid, 9))
    assert used.tolist() == [0, 4]
    assert ranked.features[:, 0].tolist() == [0, 1, 8, 7]
    assert ranked.starts.tolist() == [0, 2, 4]


def test_no_query_may_be_left():
    ranked, used = sort_queries(np.ones((3, 2)), np.zeros(3), group_rows([1, 1, 2], 3))
    assert ranked.n_queries == len(used) == len(ranked.gains) == 0


def test_lower_is_the_first_row_with_a_lower_grade():
    ranked = make_ranked((7, 4, 9, 2))
    for rows in query_slices(ranked):
        for i in range(rows.start, rows.stop):
            below = [j for j in range(rows.start, rows.stop) if ranked.grades[j] < ranked.grades[i]]
            assert ranked.lower[i] == (below[0] if below else rows.stop)


def test_equal_grades_of_neighbouring_queries_are_kept_apart():
    ranked = sort_documents(np.zeros((5, 1)), [2, 1, 1, 0, 0], [0, 0, 1, 1, 1])
    assert ranked.lower.tolist() == [1, 2, 3, 5, 5]


def test_gains_make_ndcg_a_sum():
    ranked = make_ranked((30, 4, 12))
    for rows in query_slices(ranked):
        grades = ranked.grades[rows]
        best = sum((2**g - 1) / math.log2(i + 2) for i, g in enumerate(grades[:10]))
        np.testing.assert_allclose(ranked.gains[rows], (2**grades - 1) / best, rtol=1e-12)


@pytest.mark.parametrize("numbers", [[1], [2, 0], [0, 1, 2], [1, 1]])
def test_taken_queries_are_as_if_they_came_alone(numbers):
    ranked = make_ranked()
    taken = ranked.take(np.array(numbers))
    rows, starts, _ = _documents._locate(ranked.starts, np.array(numbers))
    assert np.array_equal(taken.starts, starts)
    assert np.array_equal(taken.features, ranked.features[rows])
    assert taken.sizes.tolist() == ranked.sizes[numbers].tolist()
    for new, old in zip(
        query_slices(taken), [query_slices(ranked)[n] for n in numbers], strict=True
    ):
        for name in ("features", "grades", "gains"):
            assert np.array_equal(getattr(taken, name)[new], getattr(ranked, name)[old])
        assert np.array_equal(taken.lower[new] - new.start, ranked.lower[old] - old.start)


def test_positions_count_from_the_best_score_of_the_query():
    ranked = make_ranked()
    scores = np.round(random_scores(ranked), 1)  # with ties
    found = positions(scores, ranked.starts)
    for rows in query_slices(ranked):
        assert (found[rows] + 1).tolist() == obvious_ranks(scores[rows])


@pytest.mark.parametrize("n_grades", [2, 3, 5])
def test_mean_ndcg_equals_the_public_measure(n_grades):
    ranked = make_ranked((30, 4, 12, 2), n_grades=n_grades)
    scores = random_scores(ranked)
    expected = mean_ndcg(ranked.grades, scores, ranked.codes())
    assert mean_ndcg_of(scores, ranked) == pytest.approx(expected, abs=1e-12)
    by_hand = [
        ndcg_of_order(ranked.grades[rows][np.argsort(-scores[rows])])
        for rows in query_slices(ranked)
    ]
    assert expected == pytest.approx(np.mean(by_hand), abs=1e-12)


def test_ties_count_against_the_model():
    ranked = make_ranked((15, 4, 12))
    worst_first = np.lexsort((ranked.grades, ranked.codes()))
    for scores in (np.zeros(len(ranked.grades)), np.round(random_scores(ranked))):
        expected = mean_ndcg(
            ranked.grades[worst_first], scores[worst_first], ranked.codes()[worst_first]
        )
        assert mean_ndcg_of(scores, ranked) == pytest.approx(expected, abs=1e-12)
    assert mean_ndcg_of(np.zeros(len(ranked.grades)), ranked) < 0.7


@pytest.mark.parametrize(
    "grades",
    [
        [0.5, 0.25, 0.0, 1.75],
        [1e-9, 0.0, 3e-9, 0.0],
        [5000.0, 4999.0, 0.0, 1.0],
        [1e300, 1.0, 0.0, 1e299],
    ],
)
def test_float_and_huge_grades(grades):
    X = np.arange(4.0)[:, None]
    ranked = sort_documents(X, grades, None)
    assert np.isfinite(ranked.gains).all()
    assert (np.diff(ranked.gains) <= 0).all()
    scores = np.array([0.3, 0.1, 0.2, 0.4])
    expected = mean_ndcg(ranked.grades, scores)
    assert mean_ndcg_of(scores, ranked) == pytest.approx(expected, abs=1e-12)
    assert mean_ndcg_of(ranked.grades, ranked) == pytest.approx(1)
    for loss in (lambda_loss(scores, ranked), warp_loss(scores, ranked, np.random.default_rng(0))):
        assert np.isfinite(loss[0])
        assert np.isfinite(loss[1]).all()


# The lambda loss


def obvious_lambda_loss(scores, ranked, weight_scores=None):
    """A double loop over pairs; the ranks are those of `weight_scores`."""
    weight_scores = scores if weight_scores is None else weight_scores
    total = 0.0
    for rows in query_slices(ranked):
        ranks, f = obvious_ranks(weight_scores[rows]), scores[rows]
        grades, gains = ranked.grades[rows], ranked.gains[rows]
        for i in range(len(f)):
            for j in range(len(f)):
                if grades[i] > grades[j]:
                    discounts = 1 / math.log2(ranks[i] + 1) - 1 / math.log2(ranks[j] + 1)
                    weight = abs(gains[i] - gains[j]) * abs(discounts)
                    total += weight * math.log(1 + math.exp(f[j] - f[i]))
    return total / ranked.n_queries


@pytest.mark.parametrize("n_grades", [2, 4])
def test_lambda_loss_against_a_double_loop(n_grades):
    ranked = make_ranked((7, 4, 15, 2), n_grades=n_grades)
    scores = random_scores(ranked)
    expected = obvious_lambda_loss(scores, ranked)
    assert lambda_loss(scores, ranked)[0] == pytest.approx(expected, rel=1e-12)


def test_lambda_gradient_is_that_of_the_loss_with_fixed_weights():
    ranked = make_ranked()
    scores = random_scores(ranked)
    expected = finite_differences(lambda s: obvious_lambda_loss(s, ranked, scores), scores)
    np.testing.assert_allclose(lambda_loss(scores, ranked)[1], expected, atol=1e-8)


def test_lambda_gradient_pushes_each_pair_apart():
    ranked = make_ranked((2,), n_grades=2)
    gradient = lambda_loss(np.array([0.0, 1.0]), ranked)[1]
    assert gradient[0] < 0 < gradient[1]  # the better document goes up
    assert gradient.sum() == pytest.approx(0)


def test_lambda_loss_of_far_scores_does_not_overflow():
    ranked = make_ranked()
    for scores in (1e6 * random_scores(ranked), 1e6 * ranked.grades, -1e6 * ranked.grades):
        value, gradient = lambda_loss(scores, ranked)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
    assert lambda_loss(1e6 * ranked.grades, ranked)[0] == pytest.approx(0)


# The WARP loss


def obvious_violator(f, better, lower, end, draw, margin):
    """Draw less relevant documents until one violates the margin, at most as many as there are."""
    for n_draws in range(1, end - lower + 1):
        drawn = lower + math.floor(draw() * (end - lower))
        if margin + f[drawn] > f[better]:
            return drawn, (end - lower) // n_draws
    return None, 0


class Replay:
    """Stands in for a generator: draw number n is the same for all rows that still search."""

    def __init__(self, numbers):
        self.numbers = iter(numbers)

    def random(self, size):
        return np.full(size, next(self.numbers))


@pytest.mark.parametrize("margin", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_violators_against_the_definition(margin, seed):
    ranked = make_ranked((9, 4, 15, 2), seed=seed)
    scores = 2 * random_scores(ranked, seed)
    ends = np.repeat(ranked.starts[1:], ranked.sizes)
    better = np.flatnonzero(ends > ranked.lower)
    numbers = np.random.default_rng(seed).random(20)
    worse, rank_error = draw_violators(
        scores, better, ranked.lower[better], ends[better], Replay(numbers), margin
    )
    for i, b in enumerate(better):
        draw = iter(numbers).__next__
        expected = obvious_violator(scores, b, ranked.lower[b], ends[b], draw, margin)
        assert rank_error[i] == expected[1]
        if expected[0] is not None:
            assert worse[i] == expected[0]
    assert len(set(rank_error)) > 2


def test_no_violator_is_found_where_there_is_none():
    ranked = make_ranked()
    rng = np.random.default_rng(0)
    assert warp_loss(2.5 * ranked.grades, ranked, rng)[0] == 0
    assert not warp_loss(2.5 * ranked.grades, ranked, rng)[1].any()
    assert warp_loss(0.5 * ranked.grades, ranked, rng)[0] > 0  # in order, within the margin


def test_every_lower_document_is_drawn_equally_often():
    scores = np.zeros(5)
    n = 400_000
    better, lower, ends = np.zeros(n, int), np.full(n, 1), np.full(n, 5)
    worse, rank_error = draw_violators(
        scores, better, lower, ends, np.random.default_rng(0), margin=1.0
    )
    assert (rank_error == 4).all()
    counts = np.bincount(worse, minlength=5)
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:], n / 4, rtol=0.04)


def drawn_pairs(scores, ranked, numbers, margin):
    """Better row, violator and rank weight of all rows that find one."""
    pairs = []
    for rows in query_slices(ranked):
        for b in range(rows.start, rows.stop):
            draw = iter(numbers).__next__
            worse, error = obvious_violator(scores, b, ranked.lower[b], rows.stop, draw, margin)
            if error:
                pairs.append((b, worse, sum(1 / math.log2(i + 1) for i in range(1, error + 1))))
    return pairs


@pytest.mark.parametrize("margin", [0.3, 1.0])
def test_warp_loss_and_gradient_against_the_drawn_pairs(margin):
    ranked = make_ranked((9, 4, 15, 2))
    scores = random_scores(ranked)
    numbers = np.random.default_rng(3).random(20)
    pairs = drawn_pairs(scores, ranked, numbers, margin)
    assert len(pairs) > 5

    def loss(f):
        return sum(w * (margin - f[b] + f[v]) for b, v, w in pairs) / ranked.n_queries

    value, gradient = warp_loss(scores, ranked, Replay(numbers), margin)
    assert value == pytest.approx(loss(scores), rel=1e-12)
    np.testing.assert_allclose(gradient, finite_differences(loss, scores), atol=1e-8)


def test_same_seed_draws_the_same_violators():
    ranked = make_ranked()
    scores = random_scores(ranked)
    first, again, other = (
        warp_loss(scores, ranked, np.random.default_rng(seed))[0] for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


def test_rank_weight_is_a_sum_of_discounts():
    k = np.array([0, 3, 1, 50])
    expected = [sum(1 / math.log2(i + 1) for i in range(1, n + 1)) for n in k]
    np.testing.assert_allclose(rank_weight(k), expected, rtol=1e-12)
    assert rank_weight(np.array([0])).tolist() == [0.0]
    assert rank_weight(np.array([], dtype=int)).tolist() == []


def test_a_row_has_all_lower_rows_of_its_query_as_partners():
    ranked = make_ranked((7, 4, 9, 2))
    better, worse = _local_gmml_training._pairs(ranked)
    expected = {
        (i, j)
        for rows in query_slices(ranked)
        for i in range(rows.start, rows.stop)
        for j in range(rows.start, rows.stop)
        if ranked.grades[i] > ranked.grades[j]
    }
    found = list(zip(better.tolist(), worse.tolist(), strict=True))
    assert len(found) == len(expected)
    assert set(found) == expected


def test_pair_loss_is_a_mean_of_weighted_pairs():
    rng = np.random.default_rng(3)
    queries = group_rows([0, 0, 0, 0, 1, 1, 1], 7)
    ranked, _ = sort_queries(np.zeros((7, 1)), np.array([0.0, 2, 1, 0, 1, 0, 0]), queries)
    scores = rng.standard_normal(7)
    expected = []
    for start, end in ((0, 4), (4, 7)):
        total = weights = 0.0
        for i in range(start, end):
            for j in range(start, end):
                if ranked.grades[i] > ranked.grades[j]:
                    weight = 2 ** ranked.grades[i] - 2 ** ranked.grades[j]
                    total += weight * np.log1p(np.exp(scores[j] - scores[i]))
                    weights += weight
        expected.append(total / weights)
    assert pair_loss(scores, ranked) == pytest.approx(np.mean(expected))
