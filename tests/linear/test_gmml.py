import numpy as np
import pytest
from scipy import sparse
from scipy.linalg import fractional_matrix_power, sqrtm
from scipy.optimize import check_grad
from sklearn.base import clone
from sklearn.covariance import ledoit_wolf
from sklearn.datasets import load_digits, load_wine
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skdml import GMMLTransformer
from skdml.constraints import make_pairs
from skdml.linear._mahalanobis import geometric_mean
from skdml.linear._span import find_span
from skdml.utils._prior import ledoit_wolf_shrinkage, prior_inverse

rng = np.random.default_rng(0)


def random_spd(n, seed=0):
    M = np.random.default_rng(seed).standard_normal((n, 2 * n))
    return M @ M.T / n


def reference_gmml(X, pairs, labels, geodesic=0.5, reg=0.1, prior=None):
    """The definition, pair by pair and with dense d x d matrices."""
    d = X.shape[1]
    S, D = np.zeros((d, d)), np.zeros((d, d))
    for (i, j), label in zip(pairs, labels, strict=True):
        c = X[i] - X[j]
        if label > 0:
            S += np.outer(c, c) / (labels > 0).sum()
        else:
            D += np.outer(c, c) / (labels < 0).sum()
    prior = np.eye(d) if prior is None else prior
    unit = (np.trace(S) + np.trace(D)) / (2 * d)
    S = S + reg * unit * np.linalg.inv(prior)
    D = D + reg * unit * prior
    half = np.real(sqrtm(S))
    inverse_half = np.linalg.inv(half)
    return inverse_half @ fractional_matrix_power(half @ D @ half, geodesic) @ inverse_half


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X), y


# The maths


@pytest.mark.parametrize("geodesic", [0, 0.3, 0.5, 1])
def test_geometric_mean_against_its_definition(geodesic):
    S, D = random_spd(6, 1), random_spd(6, 2)
    half = np.real(sqrtm(S))
    inverse_half = np.linalg.inv(half)
    expected = inverse_half @ fractional_matrix_power(half @ D @ half, geodesic) @ inverse_half
    np.testing.assert_allclose(geometric_mean(S, D, geodesic), expected, atol=1e-10)


def test_geometric_mean_ends_and_middle():
    S, D = random_spd(6, 1), random_spd(6, 2)
    np.testing.assert_allclose(geometric_mean(S, D, 0), np.linalg.inv(S), atol=1e-10)
    np.testing.assert_allclose(geometric_mean(S, D, 1), D, atol=1e-10)
    A = geometric_mean(S, D, 0.5)
    np.testing.assert_allclose(A @ S @ A, D, atol=1e-10)  # the Riccati equation


def test_geometric_mean_minimises_the_gmml_objective():
    S, D = random_spd(4, 1), random_spd(4, 2)

    def objective(L):
        L = L.reshape(4, 4)
        return np.trace(L @ L.T @ S) + np.trace(np.linalg.inv(L @ L.T) @ D)

    def gradient(L):
        L = L.reshape(4, 4)
        inverse = np.linalg.inv(L @ L.T)
        return (2 * (S - inverse @ D @ inverse) @ L).ravel()

    at = np.random.default_rng(3).standard_normal(16) + np.eye(4).ravel() * 3
    assert check_grad(objective, gradient, at) < 1e-4
    best = np.linalg.cholesky(geometric_mean(S, D)).ravel()
    assert np.abs(gradient(best)).max() < 1e-8
    assert objective(best) < objective(at)


@pytest.mark.parametrize(
    ("make", "offset"), [(np.asarray, 0), (np.asarray, 1e4), (sparse.csr_array, 0)]
)
def test_span_keeps_distances_and_has_an_orthonormal_basis(make, offset):
    X = rng.standard_normal((12, 40)) + offset
    X[5] = X[4]  # a lower rank
    span = find_span(make(X))
    assert span.rank == 10
    Y = span.coordinates
    expected = ((X[:, None] - X[None]) ** 2).sum(-1)
    np.testing.assert_allclose(((Y[:, None] - Y[None]) ** 2).sum(-1), expected, atol=1e-5)
    metric = span.metric(2 * np.eye(10), 1.0, None, np.float64)
    U = metric.directions if make is np.asarray else metric.directions.toarray()
    np.testing.assert_allclose(U @ U.T, np.eye(10), atol=1e-6)
    np.testing.assert_allclose((X - X.mean(0)) @ U.T @ U, X - X.mean(0), atol=1e-4)


def test_gram_matrix_is_the_same_in_blocks_and_for_any_n_jobs(monkeypatch):
    X = rng.standard_normal((6, 500)).astype(np.float32)
    whole = find_span(X).coordinates
    monkeypatch.setattr("skdml.linear._span._BLOCK_BYTES", 8 * 6 * 64)
    blocks = find_span(X).coordinates
    np.testing.assert_allclose(blocks @ blocks.T, whole @ whole.T, atol=1e-9)
    assert np.array_equal(find_span(X, n_jobs=2).coordinates, blocks)


@pytest.mark.parametrize("shape", [(50, 8), (10, 30)])
def test_shrinkage_equals_scikit_learns(shape):
    X = rng.standard_normal(shape) * np.linspace(1, 3, shape[1])
    span = find_span(X)
    covariance, expected = ledoit_wolf(X)
    shrinkage, variance = ledoit_wolf_shrinkage(span.coordinates, span.second_moment(), shape[1])
    assert shrinkage == pytest.approx(expected)
    inside, outside = prior_inverse("covariance", span)
    if span.basis is None:
        np.testing.assert_allclose(inside * variance, covariance, atol=1e-10)
    assert outside == pytest.approx(expected)


@pytest.mark.parametrize("n_rows", [6, 2])
def test_covariance_is_shrunk_a_little_where_the_estimate_shrinks_nothing(n_rows):
    X = np.resize([1.0, -1.0], (n_rows, 1)) * [1, 0, 0]  # every row has the same outer product
    span = find_span(X)
    assert ledoit_wolf_shrinkage(span.coordinates, span.second_moment(), 3)[0] < 1e-12
    inside, outside = prior_inverse("covariance", span)
    assert outside == 1e-6
    assert np.linalg.eigvalsh(inside)[0] > 0.99e-6


# The estimator


@pytest.mark.parametrize("geodesic", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(40, 6), (12, 30)])  # more rows than features, and fewer
def test_fit_equals_the_slow_reference(shape, geodesic):
    X = rng.standard_normal(shape)
    pairs, labels = make_pairs(np.arange(shape[0]) % 3, 60, random_state=0)
    model = GMMLTransformer(geodesic=geodesic, reg=0.3).fit(X, pairs=pairs, pair_labels=labels)
    expected = reference_gmml(X, pairs, labels, geodesic, 0.3)
    A = model.get_mahalanobis_matrix()
    np.testing.assert_allclose(A, expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())


def test_array_prior_equals_the_slow_reference_in_both_shapes():
    for shape in [(40, 6), (5, 8)]:
        X = rng.standard_normal(shape)
        prior = random_spd(shape[1])
        pairs, labels = make_pairs(np.arange(shape[0]) % 2, 60, random_state=0)
        model = GMMLTransformer(geodesic=0.5, reg=0.1, prior=prior)
        model.fit(X, pairs=pairs, pair_labels=labels)
        expected = reference_gmml(X, pairs, labels, prior=prior)
        np.testing.assert_allclose(model.get_mahalanobis_matrix(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("shape", [(60, 6), (12, 30)])
@pytest.mark.parametrize("prior", ["identity", "covariance"])
def test_large_reg_gives_the_prior(shape, prior):
    X = rng.standard_normal(shape) * np.linspace(1, 2, shape[1])
    y = np.arange(shape[0]) % 2
    A = GMMLTransformer(reg=1e9, prior=prior, n_constraints=10**6).fit(X, y).get_metric().matrix()
    expected = np.eye(shape[1])
    if prior == "covariance":
        covariance = ledoit_wolf(X)[0]
        expected = np.linalg.inv(covariance) * np.trace(covariance) / shape[1]
    np.testing.assert_allclose(A, expected, atol=1e-5)


def test_scale_of_the_data_does_not_matter(wine):
    X, y = wine
    for prior in ("identity", "covariance"):
        model = GMMLTransformer(geodesic=0.5, prior=prior, random_state=0)
        A = model.fit(X, y).get_mahalanobis_matrix()
        np.testing.assert_allclose(model.fit(100 * X, y).get_mahalanobis_matrix(), A, rtol=1e-8)


def test_number_of_copies_of_the_pairs_does_not_matter():
    X = rng.standard_normal((20, 4))
    pairs, labels = make_pairs(np.arange(20) % 2, 40, random_state=0)
    once = GMMLTransformer(geodesic=0.5).fit(X, pairs=pairs, pair_labels=labels)
    with pytest.warns(UserWarning, match="40 of 80 pairs were given before"):
        twice = GMMLTransformer(geodesic=0.5).fit(
            X, pairs=np.vstack([pairs, pairs]), pair_labels=np.tile(labels, 2)
        )
    np.testing.assert_allclose(
        once.get_mahalanobis_matrix(), twice.get_mahalanobis_matrix(), rtol=1e-10
    )


def test_pairs_win_over_labels(wine):
    X, y = wine
    pairs, labels = make_pairs(y, 100, random_state=0)
    with_y = GMMLTransformer(random_state=0).fit(X, y, pairs=pairs, pair_labels=labels)
    without = GMMLTransformer(random_state=0).fit(X, pairs=pairs, pair_labels=labels)
    assert np.array_equal(with_y.get_mahalanobis_matrix(), without.get_mahalanobis_matrix())


def test_transform_pair_distance_and_get_metric_agree(wine):
    X, y = wine
    for n_components in (None, 3):
        model = GMMLTransformer(n_components=n_components, random_state=0).fit(X, y)
        Z = model.transform(X)
        assert Z.shape == (len(X), n_components or X.shape[1])
        expected = np.linalg.norm(Z[:10] - Z[10:20], axis=1)
        vectors = np.stack([X[:10], X[10:20]], axis=1)
        indices = np.column_stack([np.arange(10), np.arange(10, 20)])
        np.testing.assert_allclose(model.pair_distance(vectors), expected)
        np.testing.assert_allclose(model.pair_distance(indices, X), expected)
        metric = model.get_metric()
        np.testing.assert_allclose([metric(u, v) for u, v in vectors], expected)


def test_get_metric_gives_the_neighbours_of_transform(wine):
    X, y = wine
    model = GMMLTransformer(random_state=0).fit(X, y)
    by_metric = KNeighborsClassifier(3, metric=model.get_metric()).fit(X, y)
    by_transform = KNeighborsClassifier(3).fit(model.transform(X), y)
    np.testing.assert_array_equal(
        by_metric.kneighbors(X[:40], return_distance=False),
        by_transform.kneighbors(model.transform(X[:40]), return_distance=False),
    )


def test_n_components_keeps_the_directions_that_matter_most(wine):
    X, y = wine
    full = GMMLTransformer(geodesic=0.3, pairs="random", random_state=0)
    distances = full.fit(X, y).get_metric().pairwise(X) ** 2
    kept = [
        clone(full).set_params(n_components=k).fit(X, y).get_metric().pairwise(X) ** 2
        for k in (1, 4, 13)
    ]
    assert (kept[0] <= distances + 1e-8).all()
    assert kept[0].sum() < kept[1].sum() < distances.sum()
    np.testing.assert_allclose(kept[2], distances, atol=1e-8)
    # no other projection of the embedded rows keeps more of the squared distances
    Z = full.transform(X)
    Z -= Z.mean(0)
    best = np.linalg.svd(Z, compute_uv=False)[:4] ** 2
    assert kept[1].sum() == pytest.approx(2 * len(X) * best.sum())


def test_high_dimension_never_builds_the_square_matrix():
    X = rng.standard_normal((20, 30_000)).astype(np.float32)
    X[:10, :50] += 1
    model = GMMLTransformer(random_state=0).fit(X, np.arange(20) < 10)
    assert model.metric_.directions.shape[0] < 20
    assert model.metric_.directions.dtype == np.float32
    assert model.transform(X).shape == X.shape


def test_sparse_input_gives_the_dense_result():
    for shape in [(60, 9), (20, 200)]:
        X = sparse.random(*shape, density=0.2, random_state=0, format="csr")
        y = np.arange(shape[0]) % 2
        dense = GMMLTransformer(random_state=0).fit(X.toarray(), y)
        thin = GMMLTransformer(random_state=0).fit(X, y)
        expected = dense.transform(X.toarray())
        np.testing.assert_allclose(thin.transform(X), expected, atol=1e-6)
        pairs = np.column_stack([np.arange(10), np.arange(10, 20)])
        np.testing.assert_allclose(
            thin.pair_distance(pairs, X), dense.pair_distance(pairs, X.toarray()), atol=1e-6
        )


def test_sparse_text_shape_without_densifying():
    draw = np.random.default_rng(0)  # a RandomState would permute all 3e8 places
    X = sparse.random(300, 1_000_000, density=1e-5, random_state=draw, format="csr")
    y = np.arange(300) % 2
    model = GMMLTransformer(n_components=5, random_state=0).fit(X, y)
    assert model.transform(X).shape == (300, 5)


def test_improves_nearest_neighbours_on_digits():
    X, y = load_digits(return_X_y=True)
    train, test = slice(0, 900), slice(900, None)
    noise = np.random.RandomState(0).normal(scale=8, size=(len(X), 100))
    X = StandardScaler().fit_transform(np.hstack([X, noise]))
    plain = KNeighborsClassifier(3).fit(X[train], y[train]).score(X[test], y[test])
    model = GMMLTransformer(geodesic=0.3, random_state=0).fit(X[train], y[train])
    learned = KNeighborsClassifier(3).fit(model.transform(X[train]), y[train])
    assert learned.score(model.transform(X[test]), y[test]) > plain + 0.02


def test_in_a_grid_search(wine):
    X, y = wine
    search = GridSearchCV(
        make_pipeline(StandardScaler(), GMMLTransformer(random_state=0), KNeighborsClassifier()),
        {"gmmltransformer__geodesic": [0.25, 0.5], "gmmltransformer__reg": [0.1, 1.0]},
        cv=3,
    )
    assert search.fit(X, y).best_score_ > 0.9


def test_pandas_output_and_names(wine):
    pandas = pytest.importorskip("pandas")
    X, y = wine
    frame = pandas.DataFrame(X, columns=[f"column{i}" for i in range(X.shape[1])])
    model = GMMLTransformer(n_components=2, random_state=0).set_output(transform="pandas")
    out = model.fit_transform(frame, y)
    assert list(out.columns) == ["gmmltransformer0", "gmmltransformer1"]
    assert list(model.get_feature_names_out()) == list(out.columns)
    assert list(model.feature_names_in_) == list(frame.columns)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reg": -1}, "'reg' parameter"),
        ({"geodesic": 1.5}, "'geodesic' parameter"),
        ({"prior": "cov"}, "'prior' parameter"),
        ({"n_constraints": 1}, "'n_constraints' parameter"),
        ({"n_components": 99}, "n_components=99 is more than the 13 features"),
        ({"prior": np.eye(3)}, r"prior has shape \(3, 3\), expected \(13, 13\)"),
        ({"prior": np.ones(13)}, "prior: Expected 2D array"),
        ({"prior": -np.eye(13)}, "prior must be positive definite"),
        ({"prior": np.triu(np.ones((13, 13)))}, "prior must be symmetric"),
    ],
)
def test_bad_parameters_are_named(wine, change, message):
    with pytest.raises(ValueError, match=message):
        GMMLTransformer(**change).fit(*wine)


def test_other_bad_input(wine):
    X, y = wine
    with pytest.raises(ValueError, match="requires y to be passed"):
        GMMLTransformer().fit(X)
    with pytest.raises(ValueError, match="pair_labels was given without pairs"):
        GMMLTransformer().fit(X, y, pair_labels=[1])
    with pytest.raises(ValueError, match="one class label per row"):
        GMMLTransformer().fit(X, y[:-1])
    with pytest.raises(ValueError, match="same values in every row"):
        GMMLTransformer().fit(np.ones((4, 2)), [0, 0, 1, 1])
    for seed in range(20):  # singular matrices must not pass by the luck of rounding
        wide = np.random.default_rng(seed).standard_normal((6, 20))
        with pytest.raises(ValueError, match="raise reg"):
            GMMLTransformer(reg=0).fit(wide, [0, 0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match=r"reg=1e\+300 .* lower reg"):
        GMMLTransformer(reg=1e300).fit(X, y)
    with pytest.raises(ValueError, match=r"n_components=15 is more than the 5 dimensions"):
        GMMLTransformer(n_components=15).fit(rng.standard_normal((6, 20)), [0, 0, 0, 1, 1, 1])
    model = GMMLTransformer().fit(X, y)
    with pytest.raises(ValueError, match=r"shape \(n_pairs, 2, 13\)"):
        model.pair_distance(X)
    for outside in (178, -1):
        with pytest.raises(ValueError, match="X has 178 samples"):
            model.pair_distance([[0, outside]], X)
    with pytest.raises(ValueError, match="row indices of shape"):
        model.pair_distance([[0, 1, 2]], X)
    with pytest.raises(TypeError, match="integer row indices"):
        model.pair_distance([[0.5, 1.0]], X)
    with pytest.raises(TypeError, match="index pairs"):
        model.pair_distance(sparse.csr_array(X))
    with pytest.raises(ValueError, match="pairs: could not convert string"):
        model.pair_distance("abc")
    with pytest.raises(ValueError, match="pairs: setting an array element"):
        model.pair_distance([[0, 1], [2]], X)
    with pytest.raises(TypeError, match=r"X: np\.matrix is not supported"):
        model.transform(np.asmatrix(X))
    with pytest.raises(TypeError, match=r"X: float\(\) argument"):
        GMMLTransformer().fit({1, 2}, y)
    with pytest.raises(ValueError, match="y: setting an array element"):
        GMMLTransformer().fit(X, [[1], [1, 2]])
