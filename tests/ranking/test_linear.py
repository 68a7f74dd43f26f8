"""The linear ranker: its sums, losses and views against loops over documents and pairs."""

import itertools

import numpy as np
import pytest
from scipy.stats import rankdata

from skdml.ranking._documents import Measure, group_rows, mean_ndcg_of, sort_queries
from skdml.ranking._linear import (
    CANDIDATES,
    LISTWISE_VIEWS,
    Spectrum,
    Targets,
    choose_products,
    fit_linear,
    fit_listwise,
    sums_of,
    targets_of,
)
from skdml.ranking._linear_refinement import block_loss, make_blocks, refine
from skdml.ranking._views import N_BASIS, N_KNOTS, VIEWS, centre, fit_views, places
from tests.ranking.ranking_toys import finite_differences

pytestmark = pytest.mark.filterwarnings("error")
STARTS = np.array([0, 7, 11, 20])


def make_case(n_features=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((20, n_features))
    gains = rng.integers(0, 3, 20).astype(float)
    return X, Targets(STARTS, gains, np.array([1.0, 0.5, 2.0]))


def make_problem(n_queries=60, size=12, n_noise=3, seed=0):
    """Documents query by query whose grades follow two features, one of them by its square."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_queries * size, 2 + n_noise))
    y = np.clip(np.round(X[:, 0] - X[:, 1] ** 2 + 1 + 0.3 * rng.standard_normal(len(X))), 0, 3)
    y[::size] = np.where(y[::size] == y[1::size], 3 - y[::size], y[::size])  # never one grade
    return X, y, np.repeat(np.arange(n_queries), size)


def sort_rows(X, y, qid, measure=None):
    queries = group_rows(qid, len(X))
    return sort_queries(X, y, queries, measure or Measure())[0]


# Sums


def test_sums_are_those_of_all_pairs():
    X, targets = make_case()
    S, b = np.zeros((3, 3)), np.zeros(3)
    for first, last, weight in zip(STARTS[:-1], STARTS[1:], targets.weights, strict=True):
        gains = targets.gains[first:last]
        unit = np.abs(gains - gains.mean()).max()
        n = last - first
        for i in range(first, last):
            for j in range(first, last):
                pair = weight / (2 * n * n)
                S += pair * np.outer(X[i] - X[j], X[i] - X[j])
                b += pair * (targets.gains[i] - targets.gains[j]) / unit * (X[i] - X[j])
    found = sums_of(centre(X.T, STARTS), targets)
    np.testing.assert_allclose(found.scatter, S, atol=1e-12)
    np.testing.assert_allclose(found.products, b, atol=1e-12)


def test_spectrum_solves_for_every_penalty():
    X, targets = make_case()
    sums = sums_of(centre(X.T, STARTS), targets)
    regs = np.array([1e-3, 0.1, 10.0])
    solved = Spectrum(sums.scatter).solve(sums.products, regs)
    unit = np.trace(sums.scatter) / 3
    for reg, column in zip(regs, solved.T, strict=True):
        expected = np.linalg.solve(sums.scatter + reg * unit * np.eye(3), sums.products)
        np.testing.assert_allclose(column, expected, atol=1e-10)


# Listwise loss


def listwise_loss(coefficients, X, targets, penalty):
    total = penalty / 2 * coefficients @ coefficients
    for first, last, weight in zip(STARTS[:-1], STARTS[1:], targets.weights, strict=True):
        scores = X[first:last] @ coefficients
        gains = targets.gains[first:last]
        if gains.sum() > 0:
            total -= weight * gains / gains.sum() @ (scores - np.log(np.exp(scores).sum()))
    return total


def test_listwise_solution_has_no_gradient():
    X, targets = make_case()
    targets.gains[7:11] = 0  # a query without a relevant document
    columns = centre(X.T, STARTS)
    spectrum = Spectrum(sums_of(columns, targets).scatter)
    regs = np.array([1.0, 0.1])
    found = fit_listwise(columns, targets, spectrum, regs, n_steps=200)
    for reg, coefficients in zip(regs, found.T, strict=True):
        gradient = finite_differences(
            lambda c, reg=reg: listwise_loss(c, X, targets, reg * spectrum.unit), coefficients
        )
        assert np.abs(gradient).max() < 1e-3
        assert np.abs(coefficients).max() > 0.01


# Views


def test_views_against_their_definition():
    X, _ = make_case()
    views = fit_views(X, STARTS)
    columns = views.columns(X, STARTS, np.arange(N_BASIS))
    assert columns.shape == (sum(VIEWS.values()), 3, 20)
    for first, last in itertools.pairwise(STARTS):
        own = X[first:last]
        z = (own - own.mean(axis=0)) / own.std(axis=0)
        ranks = (rankdata(own, axis=0) - 0.5) / len(own)
        values = np.clip((own - X.mean(axis=0)) / X.std(axis=0), -5, 5)
        expected = [z, 2 * np.sqrt(3) * ranks, values]
        expected += [np.maximum(np.clip(z, -3, 4) - knot, 0) for knot in views.knots]
        for found, column in zip(columns, expected, strict=True):
            np.testing.assert_allclose(
                found[:, first:last].T, column - column.mean(axis=0), atol=1e-10
            )


def test_scores_are_sums_of_columns_and_of_features():
    X, _ = make_case()
    views = fit_views(X, STARTS)
    coefficients = np.random.default_rng(0).standard_normal((N_BASIS, 3))
    coefficients[1] = 0  # a view that is not used
    columns = views.columns(X, STARTS, np.arange(N_BASIS))
    expected = np.einsum("bd,bdn->n", coefficients, columns)
    np.testing.assert_allclose(views.scores(X, STARTS, coefficients), expected, atol=1e-10)
    by_feature = views.by_feature(X, STARTS, coefficients)
    np.testing.assert_allclose(by_feature, np.einsum("bd,bdn->nd", coefficients, columns))


def test_interactions_are_products_of_factors():
    X, _ = make_case()
    views = fit_views(X, STARTS)
    Q, none = np.zeros((6, 6)), np.zeros((N_BASIS, 3))
    Q[0, 5] = Q[5, 0] = 0.5  # the z-score of the first feature times the value of the last
    Q[4, 4] = 2.0
    z, values = np.split(views.factors(X, STARTS), 2)
    np.testing.assert_allclose(
        centre(values, STARTS), views.columns(X, STARTS, places(["value"]))[0]
    )
    expected = centre((z[0] * values[2] + 2 * values[1] ** 2)[None], STARTS)[0]
    np.testing.assert_allclose(views.scores(X, STARTS, none, Q), expected, atol=1e-10)
    by_feature = views.by_feature(X, STARTS, none, Q)
    halves = centre((z[0] * values[2] / 2)[None], STARTS)[0]
    np.testing.assert_allclose(by_feature[:, [0, 2]], np.column_stack([halves, halves]), atol=1e-10)
    np.testing.assert_allclose(by_feature.sum(axis=1), expected, atol=1e-10)


def test_products_are_chosen_by_what_they_tell_of_residuals():
    rng = np.random.default_rng(0)
    starts = np.arange(0, 601, 10)
    factors = rng.standard_normal((5, 600))
    residuals = factors[1] * factors[3] - factors[4] ** 2 + rng.standard_normal(600)
    residuals = centre(residuals[None], starts)[0]
    targets = Targets(starts, residuals, np.ones(60))
    first, second = choose_products(factors, residuals, targets, 2)
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == [(1, 3), (4, 4)]
    assert len(choose_products(factors, residuals, targets, 99)[0]) == 15
    weights = np.where(np.arange(60) < 30, 0.0, 1.0)  # queries of weight zero are not there
    residuals[:300] = centre((factors[0] * factors[2])[None], starts)[0][:300] * 10
    pairs = choose_products(factors, residuals, Targets(starts, residuals, weights), 2)
    assert [p.tolist() for p in pairs] == [[1, 4], [3, 4]]


def test_rows_relative_to_given_documents():
    X, _ = make_case()
    coefficients = np.random.default_rng(0).standard_normal((N_BASIS, 3))
    starts = np.array([0, 20])
    views = fit_views(X, starts)
    Q = np.random.default_rng(1).standard_normal((6, 6))
    together = views.scores(X, starts, coefficients, Q + Q.T)
    one = np.array([0, 1])
    alone = [views.scores(row[None], one, coefficients, Q + Q.T, X)[0] for row in X]
    np.testing.assert_allclose(alone - np.mean(alone), together, atol=1e-10)


def test_places_of_views():
    assert places(["z", "value"]).tolist() == [0, 2]
    assert len(places(VIEWS)) == N_BASIS
    assert places(["hinges"]).tolist() == list(range(N_BASIS - N_KNOTS, N_BASIS))


# The choice


def test_hinges_win_where_a_square_matters():
    X, y, qid = make_problem()
    ranked = sort_rows(X, y, qid)
    part = fit_linear(X, ranked)
    assert "hinges" in part.members[0].views
    ndcg = dict.fromkeys((*CANDIDATES, (*LISTWISE_VIEWS, "products")), 0.0)
    for member in part.members:
        ndcg[member.views] = max(ndcg[member.views], member.ndcg)
    assert ndcg["z", "hinges"] > ndcg["z",] + 0.03
    assert sum(member.share for member in part.members) == pytest.approx(1)
    assert mean_ndcg_of(part.held_out[ranked.origin], ranked) > part.members[0].ndcg - 0.02
    other, grades, queries = make_problem(seed=1)
    scores = part.scores(other, np.arange(0, len(other) + 1, 12))
    unseen = sort_rows(other, grades, queries)
    assert mean_ndcg_of(scores[unseen.origin], unseen) > 0.75


def make_interacting(seed=0):
    """Grades that follow the product of two features."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((1200, 4))
    y = np.clip(np.round(1 + X[:, 0] * X[:, 1] + 0.3 * rng.standard_normal(1200)), 0, 3)
    y[::12] = np.where(y[::12] == y[1::12], 3 - y[::12], y[::12])
    return X, y, np.repeat(np.arange(100), 12)


def test_products_win_where_features_interact():
    X, y, qid = make_interacting()
    part = fit_linear(X, sort_rows(X, y, qid))
    assert "products" in part.members[0].views
    squares = max(member.ndcg for member in part.members if member.loss == "squares")
    assert part.members[0].ndcg > squares + 0.1
    np.testing.assert_array_equal(part.interactions, part.interactions.T)
    other, grades, queries = make_interacting(seed=1)
    scores = part.scores(other, np.arange(0, 1201, 12))
    unseen = sort_rows(other, grades, queries)
    assert mean_ndcg_of(scores[unseen.origin], unseen) > squares + 0.1


def test_ranks_have_to_be_ahead():
    X, y, qid = make_problem()
    for name, heavy in (("as they are", X), ("of any scale", np.exp(X * [6, 6, 1, 1, 1]))):
        y_of = y if name == "as they are" else np.clip(np.round(X[:, 0] + 1), 0, 3)
        part = fit_linear(heavy, sort_rows(heavy, y_of, qid))
        assert part.coefficients[1].any() == (name == "of any scale")


def test_held_out_scores_are_of_rankers_that_did_not_see_the_query():
    X, y, qid = make_problem(40)
    part = fit_linear(X, sort_rows(X, y, qid))
    changed = y.copy()
    first = slice(0, 12 * part.folds[1])
    changed[first] = 3 - y[first]  # the first fold says the opposite
    other = fit_linear(X, sort_rows(X, changed, qid))
    assert np.corrcoef(part.held_out[first], other.held_out[first])[0, 1] > 0.9
    rest = slice(12 * part.folds[1], None)
    assert np.corrcoef(part.held_out[rest], other.held_out[rest])[0, 1] < 0.999


@pytest.mark.parametrize("n_queries", [1, 2, 3])
def test_few_queries(n_queries):
    X, y, qid = make_problem(n_queries)
    part = fit_linear(X, sort_rows(X, y, qid))
    assert np.isfinite(part.coefficients).all()
    assert part.held_out.shape == (len(X),)


def test_targets_are_in_the_order_of_the_rows():
    X, y, qid = make_problem(3)
    targets = targets_of(sort_rows(X, y, qid))
    for query in range(3):
        own = qid == query
        ratio = targets.gains[own] / np.where(y[own] > 0, 2 ** y[own] - 1, 1)
        assert np.ptp(ratio[y[own] > 0]) < 1e-12


def test_linear_gains_and_cutoff():
    X, y, qid = make_problem(5)
    ranked = sort_rows(X, y, qid, Measure("linear", 3))
    for query in range(5):
        own = slice(ranked.starts[query], ranked.starts[query + 1])
        ideal = ranked.grades[own][:3] @ (1 / np.log2([2, 3, 4]))
        np.testing.assert_allclose(ranked.gains[own], ranked.grades[own] / ideal)
    assert mean_ndcg_of(-np.arange(60.0), ranked) == pytest.approx(1)


# All documents


def make_many():
    X, y, qid = make_interacting()
    order = np.random.default_rng(0).permutation(len(X))
    X, y, qid = X[order], y[order], qid[order]
    queries = group_rows(qid, len(X))
    sample = queries.take(np.arange(40))
    ranked = sort_queries(X[sample.order], y[sample.order], sample)[0]
    return X, y, queries, fit_linear(X[sample.order], ranked)


def test_the_gradient_of_a_block_against_finite_differences():
    X, y, queries, part = make_many()
    weights = np.random.default_rng(1).uniform(0.5, 2, 100)
    (block,) = make_blocks(X, y, queries, weights, Measure())
    used, pairs = np.array([0, 2, 4]), (np.array([0, 1, 4]), np.array([1, 5, 4]))
    c, Q = np.zeros((N_BASIS, 4)), np.zeros((8, 8))
    c[used] = np.random.default_rng(2).standard_normal((3, 4))

    def loss(point):
        coefficients, moved = c.copy(), Q.copy()
        coefficients[used] = point[:12].reshape(3, 4)
        for cells in (pairs, pairs[::-1]):
            np.add.at(moved, cells, point[12:] / 2)
        return block_loss(block, part.views, coefficients, moved, used, pairs)

    at = np.concatenate([c[used].ravel(), [0.5, -1.0, 0.3]])
    found = loss(at)
    expected = finite_differences(lambda point: loss(point)[0], at)
    np.testing.assert_allclose(found[1:], expected, atol=1e-5)
    # blocks add up
    parts = make_blocks(X, y, queries, weights, Measure(), n_rows=200)
    assert len(parts) > 3
    moved = np.zeros((8, 8))
    moved[0, 1] = moved[1, 0] = 1.0
    whole, *several = (
        block_loss(one, part.views, c, moved, used, pairs) for one in (block, *parts)
    )
    np.testing.assert_allclose(np.sum(several, axis=0), whole, rtol=1e-9, atol=1e-9)


def test_all_documents_refine_what_a_sample_found():
    X, y, queries, part = make_many()
    blocks = make_blocks(X, y, queries, None, Measure(), n_rows=200)
    refined = [refine(part, blocks, 40, n_jobs=n_jobs) for n_jobs in (1, 2)]
    np.testing.assert_allclose(refined[0].coefficients, refined[1].coefficients, atol=1e-8)
    other, grades, names = make_interacting(seed=1)
    unseen, starts = sort_rows(other, grades, names), np.arange(0, 1201, 12)
    before, after = (
        mean_ndcg_of(one.scores(other, starts)[unseen.origin], unseen) for one in (part, refined[0])
    )
    assert after > before
    sizes = [np.std(one.scores(*blocks[0][:1], blocks[0][1].starts)) for one in (part, refined[0])]
    assert sizes[0] == pytest.approx(sizes[1])
