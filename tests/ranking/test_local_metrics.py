import numpy as np
import pytest
from scipy.linalg import LinAlgError, sqrtm

from skdml.linear import MahalanobisMetric
from skdml.metrics import mean_ndcg
from skdml.ranking import _anchor_model
from skdml.ranking._anchor_model import (
    choose_anchor,
    draw_groups,
    group_scatter,
    learn_local_metric,
    low_rank_metric,
    top_and_bottom,
)
from tests.ranking.ranking_toys import (
    make_documents,
    make_ranked,
    query_slices,
    random_metric,
    sort_documents,
)

pytestmark = pytest.mark.filterwarnings("error")

SIZES = (7, 4, 9, 2, 12)


def obvious_scatter(ranked, anti):
    """Loops over the pairs of each query."""
    n_features = ranked.features.shape[1]
    S, D, n_similar, n_dissimilar = np.zeros((n_features, n_features)), 0.0, 0, 0
    for rows in query_slices(ranked):
        X, grades = ranked.features[rows], ranked.grades[rows]
        top, bottom = X[grades == grades.max()], X[grades == grades.min()]
        near, far = (bottom, top) if anti else (top, bottom)
        for a in near:
            for b in near:
                S = S + np.outer(a - b, a - b)
                n_similar += 1
            for b in far:
                D = D + np.outer(a - b, a - b)
                n_dissimilar += 1
    return S / n_similar, D / n_dissimilar


def anchor_ndcg(ranked, metric, anchor, anti):
    """The measure of the package, of minus (for an anti-ideal document, plus) the distance."""
    distances = np.array([metric(row, anchor) for row in ranked.features])
    return mean_ndcg(ranked.grades, distances if anti else -distances, ranked.codes())


# Scatter


@pytest.mark.parametrize("anti", [False, True])
@pytest.mark.parametrize("n_grades", [2, 4])
def test_scatter_against_loops_over_pairs(anti, n_grades):
    ranked = make_ranked(SIZES, n_grades=n_grades)
    for found, expected in zip(
        group_scatter(ranked, anti), obvious_scatter(ranked, anti), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_anti_scatter_exchanges_the_grades():
    X, y, qid = make_documents(SIZES)
    ranked, upside_down = sort_documents(X, y, qid), sort_documents(X, y.max() - y, qid)
    for found, expected in zip(
        group_scatter(ranked, True), group_scatter(upside_down, False), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_scatter_does_not_depend_on_the_origin():
    X, y, qid = make_documents(SIZES)
    near, far = sort_documents(X, y, qid), sort_documents(X + 1e6, y, qid)
    for a, b in zip(group_scatter(near, False), group_scatter(far, False), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)


def test_top_and_bottom_are_those_of_the_query():
    ranked = make_ranked(SIZES, n_grades=5)
    top, bottom = top_and_bottom(ranked)
    for rows in query_slices(ranked):
        grades = ranked.grades[rows]
        assert top[rows].tolist() == (grades == grades.max()).tolist()
        assert bottom[rows].tolist() == (grades == grades.min()).tolist()


# The metric


@pytest.mark.parametrize("anti", [False, True])
@pytest.mark.parametrize("reg", [0.01, 1.0])
def test_metric_solves_the_riccati_equation_up_to_its_scale(anti, reg):
    """Equations 4.7 and 4.8 of the thesis, with the ridge of its Algorithm 2."""
    ranked = make_ranked(SIZES, n_features=4)
    M = learn_local_metric(ranked, anti, 0, reg, rank=4).metric.matrix()
    S, D = obvious_scatter(ranked, anti)
    ridge = reg * np.trace(D) / 4 * np.eye(4)
    S, D = S + ridge, D + ridge
    assert np.trace(M) == pytest.approx(4)
    product = M @ S @ M
    factor = np.trace(D) / np.trace(product)
    np.testing.assert_allclose(factor * product, D, atol=1e-10)
    half = np.real(sqrtm(S))
    inverse_half = np.linalg.inv(half)
    closed_form = inverse_half @ np.real(sqrtm(half @ D @ half)) @ inverse_half
    np.testing.assert_allclose(M, closed_form * 4 / np.trace(closed_form), atol=1e-10)


def test_unit_of_the_features_does_not_matter():
    X, y, qid = make_documents(SIZES, n_features=4)
    one, other = (
        learn_local_metric(sort_documents(factor * X, y, qid), False, 0, 0.1, 4)
        for factor in (1, 1000)
    )
    np.testing.assert_allclose(other.metric.matrix(), one.metric.matrix(), atol=1e-10)
    np.testing.assert_allclose(other.anchor, 1000 * one.anchor)


def test_large_reg_gives_the_identity():
    metric = learn_local_metric(make_ranked(SIZES), False, 0, 1e9, rank=3).metric
    np.testing.assert_allclose(metric.matrix(), np.eye(3), atol=1e-7)


def test_equal_documents_give_the_identity():
    ranked = sort_documents(np.ones((4, 3)), [1, 0, 1, 0], [0, 0, 1, 1])
    local = learn_local_metric(ranked, False, 0, 0.0, rank=2)
    np.testing.assert_array_equal(local.metric.matrix(), np.eye(3))
    assert local.anchor.tolist() == [1, 1, 1]


def test_too_small_reg_is_an_error_of_linear_algebra():
    ranked = make_ranked((4, 2))
    one_top = ranked.take(np.array([1]))  # one relevant document: no similar pair
    with pytest.raises(LinAlgError):
        learn_local_metric(one_top, False, 0, 0.0, rank=3)


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5, 9])
def test_truncated_metric_keeps_trace_and_order_of_eigenvalues(rank):
    A = random_metric(5, seed=1).matrix() * 7
    metric = low_rank_metric(A, rank)
    M = metric.matrix()
    eigenvalues, full = np.linalg.eigvalsh(M), np.linalg.eigvalsh(A) * 5 / np.trace(A)
    assert np.trace(M) == pytest.approx(5)
    assert eigenvalues[0] >= 0
    if rank >= 4:  # one eigenvalue is its own mean
        np.testing.assert_allclose(M, A * 5 / np.trace(A), atol=1e-12)
    else:
        assert metric.rank == rank
        np.testing.assert_allclose(eigenvalues[-rank:], full[-rank:], atol=1e-12)
        np.testing.assert_allclose(eigenvalues[:-rank], full[:-rank].mean(), atol=1e-12)
    np.testing.assert_allclose(M @ A, A @ M, atol=1e-10)  # the same directions


def test_truncation_of_a_singular_matrix_is_positive_semi_definite():
    v = np.random.default_rng(0).standard_normal((2, 6))
    for rank in (1, 3, 6):
        metric = low_rank_metric(v.T @ v, rank)
        assert np.linalg.eigvalsh(metric.matrix())[0] >= -1e-12
        assert np.trace(metric.matrix()) == pytest.approx(6)


# The anchor


@pytest.mark.parametrize("anti", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_anchor_against_brute_force(anti, seed):
    ranked = make_ranked(SIZES, seed=seed)
    for metric in (MahalanobisMetric(3), random_metric(3, seed=seed)):
        candidates = ranked.features[top_and_bottom(ranked)[1 if anti else 0] > 0]
        ndcg = [anchor_ndcg(ranked, metric, anchor, anti) for anchor in candidates]
        found = choose_anchor(ranked, metric, anti, seed=0)
        assert anchor_ndcg(ranked, metric, found, anti) == pytest.approx(max(ndcg), abs=1e-12)
        assert any(np.array_equal(found, candidate) for candidate in candidates)
        assert max(ndcg) > np.mean(ndcg)


def test_anchor_is_a_document_of_the_best_grade():
    """A document of a lower grade may rank better, but is no ideal one."""
    X = np.array([[0.0], [10.0], [0.1], [10.1]])
    ranked = sort_documents(X, [1, 0, 1, 0], [0, 0, 1, 1])
    assert choose_anchor(ranked, MahalanobisMetric(1), False, 0)[0] in (0.0, 0.1)
    assert choose_anchor(ranked, MahalanobisMetric(1), True, 0)[0] in (10.0, 10.1)


def test_many_candidates_are_sampled_by_the_seed(monkeypatch):
    monkeypatch.setattr(_anchor_model, "_MAX_CANDIDATES", 3)
    ranked = make_ranked((20, 30), n_grades=2)
    metric = MahalanobisMetric(3)
    found = [choose_anchor(ranked, metric, False, seed).tolist() for seed in range(10)]
    again = [choose_anchor(ranked, metric, False, seed).tolist() for seed in range(10)]
    assert found == again
    assert len({tuple(anchor) for anchor in found}) > 1


# Groups


def test_one_group_has_all_queries():
    ranked = make_ranked([3] * 50)
    (group,) = draw_groups(ranked, 1, np.random.default_rng(0))
    assert group.tolist() == list(range(50))


@pytest.mark.parametrize("n_groups", [2, 3, 8])
def test_several_groups_are_parts_that_overlap(n_groups):
    ranked = make_ranked([3] * 300)
    groups = draw_groups(ranked, n_groups, np.random.default_rng(0))
    assert len({tuple(group) for group in groups}) == n_groups
    assert max(map(len, groups)) < 300 < sum(map(len, groups))


@pytest.mark.parametrize("n_queries", [1, 5, 60, 200])
@pytest.mark.parametrize("n_groups", [2, 8])
def test_groups_are_queries_without_repetition(n_queries, n_groups):
    ranked = make_ranked([3] * n_queries)
    groups = draw_groups(ranked, n_groups, np.random.default_rng(0))
    assert len(groups) == n_groups
    for group in groups:
        assert 1 <= len(group) <= n_queries
        assert np.array_equal(group, np.unique(group))
        assert group[0] >= 0
        assert group[-1] < n_queries


def test_more_groups_than_queries():
    ranked = make_ranked([3] * 30)
    groups = draw_groups(ranked, 40, np.random.default_rng(0))
    assert len(groups) == 40


def test_seed_draws_the_groups():
    ranked = make_ranked([3] * 200)
    one, again, other = (
        np.concatenate(draw_groups(ranked, 8, np.random.default_rng(seed))).tolist()
        for seed in (0, 0, 1)
    )
    assert one == again
    assert one != other


def test_queries_of_a_group_have_similar_relevant_documents():
    """Relevant documents lie at one of two places, by query."""
    rng = np.random.default_rng(0)
    qid, y = np.repeat(np.arange(200), 3), np.tile([2.0, 0, 0], 200)
    X = rng.standard_normal((600, 2))
    X[y > 0] += 20.0 * (qid[y > 0] % 2)[:, None]
    ranked = sort_documents(X, y, qid)
    for group in draw_groups(ranked, 8, rng):
        assert len(set(group % 2)) == 1
