"""Local pairs, and the choice of gamma and geodesic on what is held out."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_iris, load_wine
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler, normalize

from skdml import DITMLTransformer, GMMLTransformer
from skdml.constraints import make_pairs
from skdml.linear._selection import choose_value, near_pairs
from skdml.metrics import map_at_r, recall_at_k
from skdml.utils import _neighbors
from skdml.utils._neighbors import near_rows, retrieval_hits, vote_hits

LEARNERS = [DITMLTransformer(random_state=0), GMMLTransformer(random_state=0)]
every_learner = pytest.mark.parametrize("learner", LEARNERS, ids=["DITML", "GMML"])


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def stretched(seed=0, n=120, d=6, noise=5.0):
    """Classes along the first column; the others are wider and say nothing."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * noise
    y = rng.integers(0, 3, n)
    X[:, 0] = y + 0.2 * rng.standard_normal(n)
    return X, y


# Neighbours


def slow_near_rows(X, codes, anchor, k, same):
    distances = np.linalg.norm(X - X[anchor], axis=1)
    others = [
        row
        for row in np.argsort(distances, kind="stable")
        if row != anchor and (codes[row] == codes[anchor]) == same
    ]
    return set(others[:k])


@pytest.mark.parametrize("block_size", [1, 100, 2**23])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
def test_near_rows_are_those_of_the_slow_reference(block_size, kind, monkeypatch):
    monkeypatch.setattr(_neighbors, "_BLOCK_SIZE", block_size)
    rng = np.random.default_rng(0)
    X, codes = rng.standard_normal((40, 3)), rng.integers(0, 4, 40)
    codes[codes == 3] = np.arange(np.sum(codes == 3)) + 3  # classes of one row
    anchors = rng.permutation(40)[:25]
    for same, found in zip((True, False), near_rows(kind(X), codes, anchors, 6), strict=True):
        assert found.shape == (25, 6)
        for anchor, near in zip(anchors, found, strict=True):
            assert set(near[near >= 0]) == slow_near_rows(X, codes, anchor, 6, same)


@pytest.mark.parametrize("block_size", [1, 2**23])
def test_votes_are_those_of_scikit_learn(block_size, monkeypatch):
    monkeypatch.setattr(_neighbors, "_BLOCK_SIZE", block_size)
    rng = np.random.default_rng(0)
    X, Q = rng.standard_normal((90, 2)), rng.standard_normal((50, 2))
    y, query_y = (X[:, 0] > 0).astype(int), (Q[:, 1] > 0).astype(int)  # two classes: no ties
    found = vote_hits(Q, query_y, X, y)
    for column, k in enumerate((1, 5)):
        expected = KNeighborsClassifier(k).fit(X, y).predict(Q) == query_y
        np.testing.assert_array_equal(found[:, column], expected)


def test_a_row_has_no_vote_for_itself():
    X, y = np.array([[0.0], [0.1], [5.0], [5.1]]), np.array([0, 1, 0, 1])
    assert vote_hits(X, y, X, y).mean(axis=0)[0] == 1
    assert vote_hits(X, y, X, y, is_same=True).mean(axis=0)[0] == 0


@pytest.mark.parametrize("block_size", [1, 2**23])
def test_retrieval_hits_are_those_of_the_metrics(block_size, monkeypatch):
    monkeypatch.setattr(_neighbors, "_BLOCK_SIZE", block_size)
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((50, 3)), rng.integers(0, 5, 50)
    expected = recall_at_k(X, y, 1), map_at_r(X, y)
    np.testing.assert_allclose(retrieval_hits(X, y).mean(axis=0), expected)
    y[-1] = 5  # alone: no query
    assert retrieval_hits(X, y).shape == (49, 2)


def test_near_pairs_have_both_kinds_where_most_classes_have_one_row():
    X, y = np.arange(40.0)[:, None], np.append(np.arange(39), 38)
    for seed in range(5):
        labels = near_pairs(X, y, 20, np.random.RandomState(seed))[1]
        assert set(labels) == {1, -1}


def test_near_pairs_are_distinct_and_labelled(wine):
    X, y = wine
    pairs, labels = near_pairs(X, y, 10**6, np.random.RandomState(0))
    assert len(np.unique(pairs, axis=0)) == len(pairs)
    assert (pairs[:, 0] < pairs[:, 1]).all()
    np.testing.assert_array_equal(labels == 1, y[pairs[:, 0]] == y[pairs[:, 1]])
    few, _ = near_pairs(X, y, 200, np.random.RandomState(0))
    assert 100 < len(few) <= 200


# The choice


@every_learner
def test_a_metric_that_helps_is_learned(learner):
    X, y = stretched()
    X_test, y_test = stretched(seed=1)
    plain = KNeighborsClassifier(5).fit(X, y).score(X_test, y_test)
    model = learner.fit(X, y)
    learned = KNeighborsClassifier(5).fit(model.transform(X), y)
    assert learned.score(model.transform(X_test), y_test) > plain + 0.2
    path = model.path_
    assert max(path["score"]) > path["score"][0] + 0.2
    assert path["round"][0] == 0


@every_learner
def test_the_prior_stays_where_it_is_best(learner):
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 60)
    X = rng.standard_normal((120, 3)) + 100 * y[:, None]  # right for all neighbours
    model = learner.fit(X, y)
    np.testing.assert_allclose(model.get_mahalanobis_matrix(), np.eye(3), atol=1e-12)
    assert not (model.gamma_ if learner is LEARNERS[0] else model.geodesic_)
    if learner is LEARNERS[0]:
        assert (model.kkt_residual_, model.duality_gap_) == (0, 0)
        assert not model.dual_coef_.any()
        assert "prior was best" in model.stop_reason_


@every_learner
def test_the_chosen_value_alone_gives_nearly_the_same_metric(learner, wine):
    X, y = wine
    model = learner.set_params(random_state=0).fit(X, y)
    name = "gamma" if learner is LEARNERS[0] else "geodesic"
    value = getattr(model, f"{name}_")
    assert value in model.path_[name]
    rounds = max(r for r, s in zip(model.path_["round"], model.path_["score"], strict=True) if r)
    assert 1 <= rounds <= 3
    again = type(learner)(**{name: value}, random_state=0).fit(X, y)
    assert getattr(again, f"{name}_") == value
    assert not hasattr(again, "path_")


@every_learner
@pytest.mark.parametrize("params", [{}, {"pairs": "random"}, {"metric": "cosine"}])
def test_seeds_and_sparse_rows(learner, params, wine):
    X, y = wine
    learner = type(learner)(random_state=3, **params)
    expected = learner.fit(X, y).transform(X)
    np.testing.assert_array_equal(learner.fit(X, y).transform(X), expected)
    from_sparse = learner.fit(sparse.csr_matrix(X), y).transform(sparse.csr_matrix(X))
    np.testing.assert_allclose(from_sparse, expected, atol=1e-5)


@every_learner
def test_many_rows_are_drawn_from_all_classes(learner, wine, monkeypatch):
    X, y = wine
    monkeypatch.setattr("skdml.linear._base._MOST_ROWS", 60)
    model = learner.fit(X, y)
    assert np.isfinite(model.transform(X)).all()
    if learner is LEARNERS[0]:
        assert len(np.unique(model.pairs_)) <= 60
        assert set(y[np.unique(model.pairs_)]) == {0, 1, 2}


@every_learner
def test_given_pairs_are_held_out_as_pairs(learner):
    X, y = stretched()
    pairs, labels = make_pairs(y, 400, random_state=0)
    model = learner.fit(X, pairs=pairs, pair_labels=labels)
    assert max(model.path_["score"]) > model.path_["score"][0] + 0.03  # ROC AUC
    few = learner.fit(X, pairs=pairs[[0, 1, -1, -2]], pair_labels=labels[[0, 1, -1, -2]])
    assert np.isfinite(few.transform(X)).all()


def test_classes_that_are_held_out():
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((12, 4))
    y = np.repeat(np.arange(12), 15)
    X = np.hstack([centers[y] + 0.1 * rng.standard_normal((180, 4)), 5 * rng.random((180, 4))])
    known = y < 9
    for learner in LEARNERS:
        model = type(learner)(select="classes", random_state=0).fit(X[known], y[known])
        new, new_y = X[~known], y[~known]
        plain = vote_hits(new, new_y, new, new_y, is_same=True).mean()
        E = model.transform(new)
        assert vote_hits(E, new_y, E, new_y, is_same=True).mean() > plain + 0.2
    with pytest.raises(ValueError, match=r"select='classes'.*y has 3.*'samples'"):
        GMMLTransformer(select="classes").fit(*load_iris(return_X_y=True))


def test_a_metric_must_not_lose_with_one_neighbour_what_it_gains_with_five():
    X, y = stretched(n=60, d=2)
    scores = {0: (0.9, 0.2), 1: (0.8, 0.9), 2: (0.9, 0.5)}  # of the prior and two values
    seen = []

    def learn(rows, pairs, labels, values, start):
        return [np.full((2, 2), float(value)) for value in values]

    def embed(rows, factor):
        return np.full((len(rows), 1), factor[0, 0])

    def fake_hits(E, *args):
        seen.append(E[0, 0])
        return np.tile(scores[int(E[0, 0])], (len(E), 1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skdml.linear._selection.vote_hits", fake_hits)
        arguments = (X, y, lambda rows, codes: ([], []), learn, embed, [1.0, 2.0])
        rng = np.random.RandomState(0)
        choice = choose_value(*arguments, np.zeros((2, 2)), "samples", 1, rng)
    assert choice.values == [2.0]
    np.testing.assert_allclose(choice.path["score"], [0.55, 0.85, 0.7])
    assert set(seen) == {0, 1, 2}


# Cosine


@every_learner
@pytest.mark.parametrize("shape", [(60, 5), (20, 40)])
def test_cosine_has_unit_length_in_and_out(learner, shape):
    rng = np.random.default_rng(0)
    y = np.arange(shape[0]) % 3
    X = rng.standard_normal(shape) + 2
    X[:, 0] += 5 * y
    model = type(learner)(metric="cosine", random_state=0).fit(X, y)
    E = model.transform(X)
    np.testing.assert_allclose(np.linalg.norm(E, axis=1), 1)
    lengths = rng.uniform(0.1, 10, len(X))[:, None]
    np.testing.assert_allclose(model.transform(lengths * X), E, atol=1e-10)
    raw = normalize(model.metric_.transform(normalize(X)))
    np.testing.assert_allclose(E, raw, atol=1e-12)
    pairs = np.array([[0, 1], [2, 5]])
    expected = np.linalg.norm(E[pairs[:, 0]] - E[pairs[:, 1]], axis=1)
    np.testing.assert_allclose(model.pair_distance(pairs, X=X), expected)
    np.testing.assert_allclose(model.pair_distance(X[pairs]), expected)
    X[3] = 0
    with pytest.raises(ValueError, match="row of zeros"):
        model.transform(X)


def test_scores_of_the_path_are_those_of_unit_vectors():
    """The embedding in coordinates of the span, of few rows, has the distances of `transform`."""
    from skdml.linear._base import _embed

    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((12, 30)) + 1, np.arange(12) % 3
    model = GMMLTransformer(metric="cosine", geodesic=0.5, random_state=0)
    training = model._prepare(model._supervise(X, y))
    E = _embed(training.span.coordinates, np.eye(training.span.rank), training.span.offset())
    np.testing.assert_allclose(E @ E.T, normalize(X) @ normalize(X).T, atol=1e-10)
