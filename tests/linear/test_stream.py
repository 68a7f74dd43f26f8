"""Pairs in batches: `partial_fit`, and warm starts."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler

from skdml import DITMLTransformer, GMMLTransformer
from skdml.constraints import make_pairs
from skdml.linear import MahalanobisMetric
from skdml.metrics import recall_at_k


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def batches(X, pairs, labels, n_batches, *more):
    """Pairs in parts, as indices into the rows of each part."""
    for part in np.array_split(np.arange(len(pairs)), n_batches):
        rows, places = np.unique(pairs[part], return_inverse=True)
        yield X[rows], places.reshape(-1, 2), labels[part], *(m[part] for m in more)


LEARNERS = [
    (DITMLTransformer(gamma=0.5, tol=1e-9), {"bounds": (4.0, 60.0)}),
    (DITMLTransformer(gamma=0.5, tol=1e-9, metric="cosine"), {"bounds": (0.2, 2.0)}),
    (DITMLTransformer(gamma=0.5, tol=1e-9, prior=2 * np.eye(13) + 0.3), {"bounds": (4.0, 60.0)}),
    (GMMLTransformer(geodesic=0.3), {}),
    (GMMLTransformer(geodesic=0.3, prior=2 * np.eye(13) + 0.3, metric="cosine"), {}),
]


@pytest.mark.parametrize(("learner", "options"), LEARNERS, ids=lambda e: str(e)[:50])
def test_batches_teach_what_one_fit_does(learner, options, wine):
    X, y = wine
    pairs, labels = make_pairs(y, 300, random_state=0)
    order = np.random.default_rng(0).permutation(len(pairs))
    pairs, labels = pairs[order], labels[order]
    weights = np.random.default_rng(1).uniform(0.5, 2, len(pairs))
    whole = type(learner)(**learner.get_params())
    whole.fit(X, pairs=pairs, pair_labels=labels, pair_weight=weights, **options)
    stream = type(learner)(**learner.get_params())
    for rows, places, kinds, w in batches(X, pairs, labels, 6, weights):
        stream.partial_fit(rows, pairs=places, pair_labels=kinds, pair_weight=w, **options)
    A, B = whole.get_mahalanobis_matrix(), stream.get_mahalanobis_matrix()
    tolerance = 1e-10 if isinstance(learner, GMMLTransformer) else 1e-6
    np.testing.assert_allclose(A, B, atol=tolerance * np.abs(A).max())
    if isinstance(learner, DITMLTransformer):
        assert len(stream.dual_coef_) == len(stream.bounds_) == 300
        assert stream.kkt_residual_ < 1e-9
    whole.partial_fit(X, pairs=pairs, pair_labels=labels, pair_weight=weights, **options)
    np.testing.assert_allclose(A, whole.get_mahalanobis_matrix(), atol=1e-6 * np.abs(A).max())


def test_few_pairs_in_many_dimensions():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 30)), np.arange(40) % 2
    pairs, labels = make_pairs(y, 24, random_state=0)
    order = rng.permutation(24)
    pairs, labels = pairs[order], labels[order]
    options = {"bounds": (20.0, 90.0)}
    whole = DITMLTransformer(gamma=1.0, tol=1e-9).fit(X, pairs=pairs, pair_labels=labels, **options)
    stream = DITMLTransformer(gamma=1.0, tol=1e-9)
    for rows, places, kinds in batches(X, pairs, labels, 3):
        stream.partial_fit(rows, pairs=places, pair_labels=kinds, **options)
    A = whole.get_mahalanobis_matrix()
    np.testing.assert_allclose(A, stream.get_mahalanobis_matrix(), atol=1e-6 * np.abs(A).max())


@pytest.mark.parametrize("cls", [DITMLTransformer, GMMLTransformer])
def test_batches_of_labelled_rows(cls, wine):
    X, y = wine
    order = np.random.default_rng(0).permutation(len(y))
    model = cls(random_state=0)
    for part in np.array_split(order[:120], 3):
        model.partial_fit(X[part], y[part])
    rest = order[120:]
    assert model.score(X[rest], y[rest]) >= recall_at_k(X[rest], y[rest], k=1) - 0.05
    assert not np.allclose(model.get_mahalanobis_matrix(), np.eye(13))
    chosen = getattr(model, model._chosen + "_")
    assert chosen in cls._candidates


@pytest.mark.parametrize("cls", [DITMLTransformer, GMMLTransformer])
def test_a_later_batch_may_have_one_kind_and_a_failed_one_changes_nothing(cls, wine):
    X, y = wine
    pairs, labels = make_pairs(y, 100, random_state=0)
    model = cls(**{cls._chosen: 0.3}).partial_fit(X, pairs=pairs[25:75], pair_labels=labels[25:75])
    similar = pairs[:25]
    before = model.get_mahalanobis_matrix()
    with pytest.raises(ValueError, match="X has 12 features"):
        model.partial_fit(X[:, :12], pairs=similar, pair_labels=np.ones(len(similar)))
    np.testing.assert_array_equal(before, model.get_mahalanobis_matrix())
    model.partial_fit(X, pairs=similar, pair_labels=np.ones(len(similar)))
    assert not np.allclose(before, model.get_mahalanobis_matrix())


def test_what_batches_cannot_do(wine):
    X, y = wine
    for cls in (DITMLTransformer, GMMLTransformer):
        for wrong in ({"n_components": 2}, {"prior": "covariance"}):
            with pytest.raises(ValueError, match="partial_fit never has all rows"):
                cls(**wrong).partial_fit(X, y)
    with pytest.raises(ValueError, match="bound_percentiles='median' needs all pairs"):
        DITMLTransformer(bound_percentiles="median").partial_fit(X, y)
    model = DITMLTransformer(gamma=0.1).partial_fit(X, y, bounds=(1, 20))
    with pytest.raises(ValueError, match="bounds are those of the first call"):
        model.partial_fit(X, y, bounds=(1, 30))


@pytest.mark.parametrize("solver", ["newton", "parallel", "sequential"])
def test_a_warm_start_takes_fewer_steps_to_the_same_metric(solver, wine):
    X, y = wine
    pairs, labels = make_pairs(y, 200, random_state=0)
    options = {"pairs": pairs, "pair_labels": labels, "bounds": (4.0, 60.0)}
    cold = DITMLTransformer(gamma=0.5, tol=1e-7, solver=solver, max_iter=5000).fit(X, **options)
    warm = DITMLTransformer(gamma=0.45, tol=1e-7, solver=solver, max_iter=5000, warm_start=True)
    warm.fit(X, **options).set_params(gamma=0.5).fit(X, **options)
    A = cold.get_mahalanobis_matrix()
    np.testing.assert_allclose(A, warm.get_mahalanobis_matrix(), atol=1e-5 * np.abs(A).max())
    assert warm.n_iter_ < cold.n_iter_
    fewer = {**options, "pairs": pairs[50:], "pair_labels": labels[50:]}
    again = warm.fit(X, **fewer).get_mahalanobis_matrix()
    expected = warm.set_params(warm_start=False).fit(X, **fewer).get_mahalanobis_matrix()
    np.testing.assert_allclose(again, expected, atol=1e-5 * np.abs(A).max())


# Scores and names


@pytest.mark.parametrize("cls", [DITMLTransformer, GMMLTransformer])
def test_score_is_recall_of_rows_or_the_auc_of_pairs(cls, wine):
    X, y = wine
    model = cls(random_state=0, **{cls._chosen: 0.3}).fit(X[::2], y[::2])
    assert model.score(X, y) == recall_at_k(model.transform(X), y, k=1)
    pairs, labels = make_pairs(y, 60, random_state=0)
    d = model.pair_distance(pairs, X)
    wins = d[labels > 0][:, None] < d[labels < 0]
    assert model.score(X, pairs=pairs, pair_labels=labels) == pytest.approx(wins.mean())
    np.testing.assert_array_equal(model.pair_score(pairs, X), -d)
    with pytest.raises(ValueError, match="both are needed"):
        model.score(X, pairs=pairs[:1], pair_labels=labels[:1])
    with pytest.raises(ValueError, match="Pass class labels y"):
        model.score(X)


def test_grid_search_uses_the_score(wine):
    search = GridSearchCV(GMMLTransformer(random_state=0), {"geodesic": [0.0, 0.9]}, cv=3)
    search.fit(*wine)
    assert search.best_params_ == {"geodesic": 0.0}
    assert 0.8 < search.best_score_ <= 1


@pytest.mark.parametrize("n_components", [None, 3])
def test_components_are_the_map(n_components, wine):
    X, y = wine
    model = GMMLTransformer(geodesic=0.3, n_components=n_components, random_state=0)
    with pytest.raises(AttributeError, match="no attribute"):
        _ = model.components_
    model.fit(X, y)
    L = model.components_
    assert L.shape == (n_components or 13, 13)
    np.testing.assert_allclose(model.transform(X), X @ L.T, atol=1e-10)
    np.testing.assert_allclose(L.T @ L, model.get_mahalanobis_matrix(), atol=1e-10)


def test_squared_distances():
    metric = MahalanobisMetric(2, scale=4.0)
    assert metric([0, 0], [0, 3], squared=True) == 36
    assert metric([0, 0], [0, 3]) == 6


def test_bounds_of_two_numbers_in_any_shape(wine):
    models = [
        DITMLTransformer(gamma=0.1, random_state=0).fit(*wine, bounds=bounds)
        for bounds in ((2, 30), [[2, 30]], np.array([[2], [30]]))
    ]
    for model in models[1:]:
        np.testing.assert_array_equal(model.bounds_, models[0].bounds_)


@pytest.mark.parametrize("cls", [DITMLTransformer, GMMLTransformer])
def test_singular_priors_are_one_clear_error(cls, wine):
    singular = np.ones((13, 13))
    nearly = np.eye(13)
    nearly[0, 0] = 1e-18
    for prior in (singular, nearly, np.zeros((13, 13)), np.cov(wine[0][:5].T)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ValueError, match="prior must be positive definite"):
                cls(prior=prior).fit(*wine)
    with pytest.raises(ValueError, match="prior"):
        cls(prior=np.full((13, 13), np.nan)).fit(*wine)


def test_large_rows_of_float32_do_not_overflow():
    X = (1e30 * np.random.RandomState(0).randn(32, 1)).astype(np.float32)
    with np.errstate(over="raise"):
        model = GMMLTransformer(geodesic=0.5).partial_fit(X, np.arange(32) % 3)
    assert np.isfinite(model.get_mahalanobis_matrix()).all()
