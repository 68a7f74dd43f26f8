"""The ranker of the thesis (chapter 4), written from its equations, beside the package's.

Signs are corrected: the derivative of f by Phi is -exp(-d) d (4.21 has no minus), a violator has
zeta + f(p-) > f(p+) (Algorithm 3 has the two exchanged), and the squared distance is
(p - p_r)' M (p - p_r) (4.11 squares M). Everything is a loop over documents, pairs and anchors.
"""

import copy
import math

import numpy as np
import pytest
from scipy.linalg import sqrtm

from skdml import LocalGMMLRanker
from skdml.metrics import mean_ndcg
from skdml.ranking import _anchor_model, _local_gmml
from skdml.ranking._anchor_model import build_model, learn_local_metric
from skdml.ranking._local_gmml_training import fit_query_weights
from tests.ranking.ranking_toys import make_documents, ndcg_of_order, sort_documents

pytestmark = pytest.mark.filterwarnings("error")

REG, STEP, MARGIN = 0.05, 0.1, 1.0


class Query:
    """The documents of a query and their grades, best grade first."""

    def __init__(self, X, grades):
        order = sorted(range(len(grades)), key=lambda i: -grades[i])
        self.documents = [X[i] for i in order]
        self.grades = [grades[i] for i in order]

    def below(self, i):
        """The documents with a lower grade than document i."""
        return [j for j, grade in enumerate(self.grades) if grade < self.grades[i]]


def split(X, y, qid):
    """The queries in the order of their first rows."""
    names = list(dict.fromkeys(qid.tolist()))
    return [Query(X[qid == name], y[qid == name].tolist()) for name in names]


def gmml(queries, reg):
    """Algorithm 2: documents of the top grade are similar, those of the lowest dissimilar to them.

    The sums of pairs are divided by their number, the regularisation is in units of D's mean
    diagonal, and M is scaled to a trace of n_features.
    """
    n_features = len(queries[0].documents[0])
    S, D = np.zeros((n_features, n_features)), np.zeros((n_features, n_features))
    n_similar = n_dissimilar = 0
    for query in queries:
        graded = list(zip(query.documents, query.grades, strict=True))
        positive = [p for p, grade in graded if grade == max(query.grades)]
        negative = [p for p, grade in graded if grade == min(query.grades)]
        for a in positive:
            for b in positive:
                S += np.outer(a - b, a - b)  # 4.3
                n_similar += 1
            for b in negative:
                D += np.outer(a - b, a - b)  # 4.4
                n_dissimilar += 1
    S, D = S / n_similar, D / n_dissimilar
    ridge = reg * np.trace(D) / n_features * np.eye(n_features)
    S, D = S + ridge, D + ridge
    half = np.real(sqrtm(S))
    inverse_half = np.linalg.inv(half)
    M = inverse_half @ np.real(sqrtm(half @ D @ half)) @ inverse_half  # 4.8
    return M * n_features / np.trace(M)


def distance(p, anchor, M):
    """Equation 4.11, with M and not its square."""
    total = 0.0
    for i in range(len(p)):
        for j in range(len(p)):
            total += (p[i] - anchor[i]) * M[i, j] * (p[j] - anchor[j])
    return math.sqrt(max(total, 0.0))


def find_anchor(queries, M):
    """Algorithm 3: the document of the top grade whose distances give the best mean NDCG."""
    best, best_ndcg = None, -1.0
    for query in queries:
        for p, grade in zip(query.documents, query.grades, strict=True):
            if grade < max(query.grades):
                continue
            total = 0.0
            for other in queries:
                nearest = sorted(
                    range(len(other.grades)), key=lambda i, o=other: distance(o.documents[i], p, M)
                )
                total += ndcg_of_order([other.grades[i] for i in nearest])
            if total / len(queries) > best_ndcg + 1e-12:
                best, best_ndcg = p, total / len(queries)
    return best


def evaluate(p, phi, anchors, metrics):
    """Equation 4.12."""
    total = 0.0
    for weight, anchor, M in zip(phi, anchors, metrics, strict=True):
        d = distance(p, anchor, M)
        total -= weight * math.exp(-d) * d
    return total


def derivative(p, anchors, metrics):
    """Equation 4.21 with its sign corrected: by each Phi."""
    distances = [distance(p, anchor, M) for anchor, M in zip(anchors, metrics, strict=True)]
    return [-math.exp(-d) * d for d in distances]


def weight_of_rank(k):
    """Equation 4.15."""
    return sum(1 / math.log2(i + 1) for i in range(1, k + 1))


def update_phi(queries, anchors, metrics, n_rounds, rng, step=STEP):
    """Algorithm 3, equation 4.20: in a round, each query draws p+ and looks for a violator.

    All queries draw p+ first, then those without a violator draw again, at most as often as
    there are documents below p+.
    """
    phi = [[1.0] * len(anchors) for _ in queries]
    for _ in range(n_rounds):
        positives, found = [], {}
        for query in queries:
            may_be_drawn = [i for i in range(len(query.grades)) if query.below(i)]
            positives.append(may_be_drawn[math.floor(rng.random() * len(may_be_drawn))])
        searching, n_draws = list(range(len(queries))), 0
        while searching:
            n_draws += 1
            remaining = []
            for q in searching:
                query, below = queries[q], queries[q].below(positives[q])
                negative = below[math.floor(rng.random() * len(below))]
                f_plus, f_minus = (
                    evaluate(query.documents[i], phi[q], anchors, metrics)
                    for i in (positives[q], negative)
                )
                if MARGIN + f_minus > f_plus:
                    found[q] = (negative, len(below) // n_draws)
                elif n_draws < len(below):
                    remaining.append(q)
            searching = remaining
        for q, (negative, k) in found.items():
            plus, minus = (
                derivative(queries[q].documents[i], anchors, metrics)
                for i in (positives[q], negative)
            )
            for r in range(len(anchors)):
                change = step * weight_of_rank(k) * (minus[r] - plus[r])
                phi[q][r] = max(phi[q][r] - change, 0.0)  # projected to zero
    return phi


def learn_groups(queries, groups):
    """An anchor and a metric for each group of queries."""
    metrics = [gmml([queries[q] for q in group], REG) for group in groups]
    anchors = [
        find_anchor([queries[q] for q in group], M)
        for group, M in zip(groups, metrics, strict=True)
    ]
    return anchors, metrics


def make_groups(seed=0):
    X, y, qid = make_documents((8, 5, 9, 4, 7, 6), n_features=4, seed=seed)
    return X / 2, y, qid, [[0, 1, 2, 3], [2, 3, 4, 5], [0, 2, 4, 5]]


# Step by step


@pytest.mark.parametrize("seed", range(3))
def test_metrics_and_anchors_equal_the_reference(seed):
    X, y, qid, groups = make_groups(seed)
    queries, ranked = split(X, y, qid), sort_documents(X, y, qid)
    for group in groups:
        members = [queries[q] for q in group]
        local = learn_local_metric(ranked.take(np.array(group)), False, 0, REG, rank=4)
        M = gmml(members, REG)
        np.testing.assert_allclose(local.metric.matrix(), M, atol=1e-8)
        np.testing.assert_allclose(local.anchor, find_anchor(members, M), atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_phi_and_scores_equal_the_reference(seed):
    X, y, qid, groups = make_groups(seed)
    queries, ranked = split(X, y, qid), sort_documents(X, y, qid)
    locals_ = [
        learn_local_metric(ranked.take(np.array(group)), False, 0, REG, rank=4) for group in groups
    ]
    model = build_model("damped", locals_, len(locals_))
    found = fit_query_weights(
        model, ranked, "warp", 30, np.random.default_rng(seed), step=STEP, margin=MARGIN
    )
    anchors, metrics = learn_groups(queries, groups)
    phi = update_phi(queries, anchors, metrics, 30, np.random.default_rng(seed))
    np.testing.assert_allclose(found, phi, atol=1e-8)
    assert np.abs(found - 1).max() > 0.1  # something was learned
    scores = model.scores(ranked.features, weights=found[ranked.codes()])
    expected = [
        evaluate(p, phi[q], anchors, metrics)
        for q, query in enumerate(queries)
        for p in query.documents
    ]
    np.testing.assert_allclose(scores, expected, atol=1e-8)


def test_phi_is_projected_to_zero():
    X, y, qid, groups = make_groups()
    queries, ranked = split(X, y, qid), sort_documents(X, y, qid)
    locals_ = [
        learn_local_metric(ranked.take(np.array(group)), False, 0, REG, rank=4) for group in groups
    ]
    model = build_model("damped", locals_, len(locals_))
    found = fit_query_weights(model, ranked, "warp", 60, np.random.default_rng(0), step=1.0)
    phi = update_phi(
        queries, *learn_groups(queries, groups), 60, np.random.default_rng(0), step=1.0
    )
    assert (found == 0).any()
    assert (found > 1).any()
    np.testing.assert_allclose(found, phi, atol=1e-8)


# The estimator


@pytest.mark.parametrize("n_metrics", [1, 2])
def test_ranker_equals_the_reference(monkeypatch, n_metrics):
    X, y, qid, _ = make_groups()
    X *= [1.0, 20.0, 0.3, 5.0]
    seen = {}

    def spy_on_weights(model, ranked, loss, n_rounds, rng, **options):
        seen["rng"] = copy.deepcopy(rng)
        return fit_query_weights(model, ranked, loss, n_rounds, rng, **options)

    monkeypatch.setattr(_local_gmml, "fit_query_weights", spy_on_weights)
    groups = [[0, 1, 2], [1, 3, 4, 5]][:n_metrics]
    monkeypatch.setattr(_anchor_model, "draw_groups", lambda *_: [np.array(g) for g in groups])
    ranker = LocalGMMLRanker(
        n_metrics=n_metrics,
        kernel="damped",
        loss="warp",
        normalize="column",
        linear=False,
        learn_anchors=False,
        query_weights="per-query",
        early_stopping=False,
        reg=REG,
        max_epochs=25,
        random_state=0,
    ).fit(X, y, qid)
    # the thesis divides each column by its 2-norm over the training documents
    Z = X / np.array([math.sqrt(sum(v * v for v in column)) for column in X.T])
    queries = split(Z, y, qid)
    anchors, metrics = learn_groups(queries, groups)
    phi = update_phi(queries, anchors, metrics, 25, seen["rng"])
    for metric, M in zip(ranker.metrics_, metrics, strict=True):
        np.testing.assert_allclose(metric.matrix(), M, atol=1e-8)
    np.testing.assert_allclose(ranker.anchors_, anchors, atol=1e-8)
    names = list(dict.fromkeys(qid.tolist()))
    assert list(ranker.query_weights_) == names
    np.testing.assert_allclose(list(ranker.query_weights_.values()), phi, atol=1e-8)
    expected = [
        evaluate(z, phi[names.index(name)], anchors, metrics)
        for z, name in zip(Z, qid.tolist(), strict=True)
    ]
    np.testing.assert_allclose(ranker.predict(X, qid), expected, atol=1e-8)
    # a query that was not in the training has Phi = 1, as in the released code
    unseen = [evaluate(z, [1.0] * n_metrics, anchors, metrics) for z in Z]
    np.testing.assert_allclose(ranker.predict(X, "single"), unseen, atol=1e-8)
    assert ranker.score(X, y, qid) == pytest.approx(mean_ndcg(y, expected, qid))
