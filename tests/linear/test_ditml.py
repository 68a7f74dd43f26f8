import mmap
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skdml import DITMLTransformer
from skdml.constraints import make_pairs
from skdml.linear._mahalanobis import CombinedRows
from skdml.utils.validation import page_release

rng = np.random.default_rng(0)


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def problem(shape, n_constraints=40, n_classes=2, seed=0):
    X = np.random.default_rng(seed).standard_normal(shape)
    y = np.arange(shape[0]) % n_classes
    X[:, : shape[1] // 5 + 1] += 1.5 * y[:, None]
    return X, *make_pairs(y, n_constraints, random_state=0)


def explicit_metric(model, X, prior_inverse):
    """The metric from the dual variables: inv(A) = inv(A0) + sum delta lambda c c'."""
    inverse = prior_inverse.copy()
    for (i, j), label, multiplier in zip(
        model.pairs_, model.pair_labels_, model.dual_coef_, strict=True
    ):
        inverse += label * multiplier * np.outer(X[i] - X[j], X[i] - X[j])
    return np.linalg.inv(inverse)


# What is learned


@pytest.mark.parametrize("shape", [(40, 6), (15, 40)])  # more rows than features, and fewer
@pytest.mark.parametrize("solver", ["newton", "parallel"])
def test_metric_follows_from_the_dual_variables(shape, solver):
    X, pairs, labels = problem(shape)
    model = DITMLTransformer(solver=solver, random_state=0)
    model.fit(X, pairs=pairs, pair_labels=labels)
    expected = explicit_metric(model, X, np.eye(shape[1]))
    np.testing.assert_allclose(model.get_mahalanobis_matrix(), expected, atol=1e-7)
    assert (model.dual_coef_ >= 0).all()
    assert model.kkt_residual_ <= model.tol
    assert 0 <= model.duality_gap_ + 1e-9 <= 1e-4


def test_array_prior_and_optimality_conditions():
    X, pairs, labels = problem((40, 6))
    M = rng.standard_normal((6, 12))
    prior = M @ M.T / 12
    model = DITMLTransformer(prior=prior, gamma=2.0, tol=1e-9)
    model.fit(X, pairs=pairs, pair_labels=labels, bounds=(1.0, 20.0))
    A = model.get_mahalanobis_matrix()
    np.testing.assert_allclose(A, explicit_metric(model, X, np.linalg.inv(prior)), rtol=1e-6)
    C = X[model.pairs_[:, 0]] - X[model.pairs_[:, 1]]
    p = np.einsum("ij,jk,ik->i", C, A, C)
    xi = 1 / (1 / model.bounds_ - model.pair_labels_ * model.dual_coef_ / 2.0)
    used = model.dual_coef_ > 0
    np.testing.assert_allclose(p[used], xi[used], rtol=1e-7)  # pairs with a multiplier: tight
    room = model.pair_labels_ * (xi - p)
    assert (room[~used] >= 0).all()  # the others: satisfied
    assert np.array_equal(np.unique(model.bounds_[labels > 0]), [1.0])
    assert np.array_equal(np.unique(model.bounds_[labels < 0]), [20.0])


def test_wide_data_gives_the_metric_of_the_full_space():
    X, pairs, labels = problem((15, 40))
    span = DITMLTransformer(tol=1e-9, random_state=0).fit(
        X, pairs=pairs, pair_labels=labels, bounds=(20, 60)
    )
    full = DITMLTransformer(prior=np.eye(40), tol=1e-9, random_state=0)
    full.fit(X, pairs=pairs, pair_labels=labels, bounds=(20, 60))
    np.testing.assert_allclose(
        span.get_mahalanobis_matrix(), full.get_mahalanobis_matrix(), atol=1e-8
    )
    assert span.metric_.rank <= 14
    assert span.metric_.scale == 1


def test_solvers_agree(wine):
    X, y = wine
    model = DITMLTransformer(n_constraints=200, gamma=0.3, random_state=0, tol=1e-8)
    newton = model.fit(X, y).get_mahalanobis_matrix()
    scale = np.linalg.norm(newton)
    parallel = model.set_params(solver="parallel").fit(X, y)
    assert np.linalg.norm(parallel.get_mahalanobis_matrix() - newton) < 1e-6 * scale
    sequential = model.set_params(solver="sequential", tol=1e-5).fit(X, y)
    assert np.linalg.norm(sequential.get_mahalanobis_matrix() - newton) < 1e-4 * scale


def test_parallel_records_its_way_to_the_optimum(wine):
    model = DITMLTransformer(solver="parallel", n_constraints=200, random_state=0).fit(*wine)
    divergence = np.array(model.history_["divergence"])
    assert len(divergence) == model.n_iter_ == len(model.history_["seconds"])
    assert (divergence > -1e-9).all()
    assert divergence[-1] == 0
    assert divergence[len(divergence) // 2] < 0.1 * divergence[0]
    assert (np.diff(model.history_["value"]) > -1e-9).all()


def test_gamma_goes_from_the_prior_to_the_pairs(wine):
    X, y = wine
    pairs, labels = make_pairs(y, 200, random_state=0)
    violations = []
    for gamma in (1e-6, 0.1, 1, 10):
        model = DITMLTransformer(gamma=gamma, random_state=0)
        model.fit(X, pairs=pairs, pair_labels=labels)
        p = model.pair_distance(model.pairs_, X) ** 2
        violations.append(np.maximum(model.pair_labels_ * (p / model.bounds_ - 1), 0).mean())
        if gamma == 1e-6:
            np.testing.assert_allclose(model.get_mahalanobis_matrix(), np.eye(13), atol=1e-3)
    assert violations == sorted(violations, reverse=True)


def test_percentile_bounds_are_of_squared_distances_under_the_prior(wine):
    X, y = wine
    model = DITMLTransformer(bound_percentiles=(10, 80), random_state=0).fit(X, y)
    squared = ((X[:, None] - X[None]) ** 2).sum(-1)[np.triu_indices(len(X), 1)]
    expected = np.percentile(squared, (10, 80))
    np.testing.assert_allclose(np.unique(model.bounds_), expected, rtol=0.1)
    # A metric is the Euclidean one of mapped rows, so its bounds are those of the mapped rows.
    root = np.linalg.cholesky(np.diag(np.linspace(0.5, 4, 13)) + 0.2)
    under = DITMLTransformer(prior=root @ root.T, random_state=0).fit(X, y)
    mapped = DITMLTransformer(random_state=0).fit(X @ root, y)
    np.testing.assert_allclose(under.bounds_, mapped.bounds_, rtol=1e-9)
    whitened = DITMLTransformer(prior="covariance", random_state=0).fit(10 * X, y)
    assert np.unique(whitened.bounds_)[0] > 10 * expected[0]


def test_median_bounds_ask_for_more_than_the_prior_gives(wine):
    X, y = wine
    model = DITMLTransformer(bound_percentiles="median", random_state=0).fit(X, y)
    squared = ((X[model.pairs_[:, 0]] - X[model.pairs_[:, 1]]) ** 2).sum(1)
    similar = model.pair_labels_ > 0
    assert (model.bounds_[similar] <= squared[similar] * (1 + 1e-9)).all()
    assert (model.bounds_[~similar] >= squared[~similar] * (1 - 1e-9)).all()
    assert len(np.unique(model.bounds_)) > 10


def test_hard_bounds_that_can_be_met():
    X = np.array([[0.0, 0], [1, 0], [0, 1], [3, 3]])
    pairs, labels = [[0, 1], [0, 2], [1, 3]], [1, -1, -1]
    model = DITMLTransformer(gamma=np.inf).fit(
        X, pairs=pairs, pair_labels=labels, bounds=(0.5, 4.0)
    )
    p = model.pair_distance(model.pairs_, X) ** 2
    assert p[0] <= 0.5 * (1 + 1e-5)
    assert (p[1:] >= 4.0 * (1 - 1e-5)).all()


# Shapes


def test_sparse_input_gives_the_dense_result():
    for shape in [(60, 9), (20, 200)]:
        X = sparse.random(*shape, density=0.3, random_state=0, format="csr")
        y = np.arange(shape[0]) % 2
        dense = DITMLTransformer(n_constraints=60, random_state=0).fit(X.toarray(), y)
        thin = DITMLTransformer(n_constraints=60, random_state=0).fit(X, y)
        np.testing.assert_allclose(thin.transform(X), dense.transform(X.toarray()), atol=1e-5)


def test_text_shape_without_densifying():
    draw = np.random.default_rng(0)  # a RandomState would permute all 3e8 places
    X = sparse.random(300, 1_000_000, density=1e-5, random_state=draw, format="csr")
    y = np.arange(300) % 2
    model = DITMLTransformer(1.0, n_components=5, n_constraints=200, random_state=0).fit(X, y)
    assert model.transform(X).shape == (300, 5)
    pairs = np.array([[0, 1], [2, 3]])
    assert np.isfinite(model.pair_distance(pairs, X)).all()


def test_float32_memmap_in_many_dimensions(tmp_path):
    X, pairs, labels = problem((30, 20_000), 100)
    path = tmp_path / "rows.npy"
    np.save(path, X.astype(np.float32))
    blocks = np.load(path, mmap_mode="r")
    model = DITMLTransformer(random_state=0).fit(blocks, pairs=pairs, pair_labels=labels)
    same = DITMLTransformer(random_state=0).fit(X, pairs=pairs, pair_labels=labels)
    assert model.metric_.directions.dtype == np.float32
    np.testing.assert_allclose(
        model.pair_distance(pairs, X), same.pair_distance(pairs, X), rtol=1e-4
    )


@pytest.mark.parametrize("n_used", [25, 30])  # some of the rows, and all: then they are copied
def test_directions_that_are_never_multiplied_out(monkeypatch, tmp_path, n_used):
    X, _, _ = problem((30, 400))
    X = X.astype(np.float32)
    pairs = np.column_stack([np.arange(n_used), np.roll(np.arange(n_used), 1)])
    given = {"pairs": pairs, "pair_labels": np.where(np.arange(n_used) % 2, 1, -1)}
    model = DITMLTransformer(gamma=1.0, random_state=0)
    expected = model.fit(X, **given).transform(X)
    A = model.get_mahalanobis_matrix()
    monkeypatch.setattr("skdml.linear._span._MOST_PRODUCTS", 0)
    np.save(tmp_path / "rows.npy", X)
    for rows in (X.copy(), np.load(tmp_path / "rows.npy", mmap_mode="r")):
        model.fit(rows, **given)
        assert isinstance(model.metric_.directions, CombinedRows)
        if rows.flags.writeable:
            rows[:] = 0  # the model has rows of its own
        found = model.transform(X)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(model.get_mahalanobis_matrix(), A, rtol=1e-3, atol=1e-4)


def test_pages_of_a_memory_map_are_released_but_never_changed(tmp_path):
    np.save(tmp_path / "rows.npy", np.ones((50, 4)))
    for mode in ("r", "r+", "c"):
        X = np.load(tmp_path / "rows.npy", mmap_mode=mode)
        if mode != "r":
            X[0] = 2
        before = np.array(X)
        release = page_release(X[10:])
        assert (release is None) == (mode == "c" or not hasattr(mmap, "MADV_DONTNEED"))
        if release is not None:
            release()
        np.testing.assert_array_equal(X, before)


def test_same_for_any_n_jobs(monkeypatch):
    monkeypatch.setattr("skdml.utils._differences._BLOCK_PAIRS", 50)
    monkeypatch.setattr("skdml.linear._span._BLOCK_BYTES", 8 * 15 * 10)
    for shape in [(40, 6), (15, 400)]:
        X, pairs, labels = problem(shape, 100)
        results = [
            DITMLTransformer(n_jobs=n_jobs, random_state=0)
            .fit(X, pairs=pairs, pair_labels=labels)
            .get_mahalanobis_matrix()
            for n_jobs in (None, 2)
        ]
        assert np.array_equal(*results)


# In use


def test_in_a_pipeline_under_a_grid_search(wine):
    X, y = wine
    search = GridSearchCV(
        make_pipeline(StandardScaler(), DITMLTransformer(random_state=0), KNeighborsClassifier()),
        {"ditmltransformer__gamma": [0.1, 1.0], "ditmltransformer__n_constraints": [100, 200]},
        cv=3,
    )
    assert search.fit(X, y).best_score_ > 0.9


def test_improves_nearest_neighbours_on_digits():
    X, y = load_digits(return_X_y=True)
    noise = np.random.RandomState(0).normal(scale=8, size=(len(X), 30))
    X = StandardScaler().fit_transform(np.hstack([X, noise]))
    train, test = slice(0, 600), slice(600, None)
    plain = KNeighborsClassifier(3).fit(X[train], y[train]).score(X[test], y[test])
    model = DITMLTransformer(gamma=1.0, random_state=0).fit(X[train], y[train])
    learned = KNeighborsClassifier(3).fit(model.transform(X[train]), y[train])
    assert learned.score(model.transform(X[test]), y[test]) > plain + 0.02


# Bad input


def finite_and_psd(model):
    A = model.get_mahalanobis_matrix()
    return np.isfinite(A).all() and np.linalg.eigvalsh(A)[0] >= -1e-12


def test_zero_differences_are_dropped_and_counted():
    X, pairs, labels = problem((20, 3), 20)
    X[pairs[:3, 0]] = X[pairs[:3, 1]]
    pairs = np.vstack([pairs, pairs[:3]])  # the same rows as dissimilar pairs too
    labels = np.append(labels, [-1, -1, -1])
    with pytest.warns(UserWarning, match=r"of 23 pairs have zero difference"):
        model = DITMLTransformer().fit(X, pairs=pairs, pair_labels=labels)
    assert finite_and_psd(model)


def test_contradictory_pairs_are_counted_and_give_a_metric():
    X, pairs, labels = problem((20, 3), 20)
    with pytest.warns(UserWarning, match="20 pairs are labelled both"):
        model = DITMLTransformer(gamma=1.0).fit(
            X, pairs=np.vstack([pairs, pairs]), pair_labels=np.concatenate([labels, -labels])
        )
    assert finite_and_psd(model)


@pytest.mark.parametrize("prior", ["identity", "covariance"])
@pytest.mark.parametrize("case", ["one feature", "collinear", "constant", "huge", "tiny"])
def test_awkward_columns_give_a_metric(prior, case):
    X, pairs, labels = problem((30, 4), 40)
    X = {
        "one feature": X[:, :1],
        "collinear": np.hstack([X, X[:, :2]]),
        "constant": np.hstack([X, np.ones((30, 2))]),
        "huge": 1e8 * X,
        "tiny": 1e-8 * X,
    }[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = DITMLTransformer(prior=prior).fit(X, pairs=pairs, pair_labels=labels)
    assert finite_and_psd(model)


def test_hard_bounds_that_no_metric_meets():
    X, pairs, labels = problem((20, 3), 20)
    with pytest.warns(UserWarning, match="both"), pytest.raises(ValueError, match="gamma=inf"):
        DITMLTransformer(gamma=np.inf).fit(
            X, pairs=np.vstack([pairs, pairs]), pair_labels=np.concatenate([labels, -labels])
        )


def test_not_converged_says_how_far_it_is(wine):
    with pytest.warns(ConvergenceWarning, match=r"KKT residual of .*max_iter=2 reached.*gap is"):
        model = DITMLTransformer(max_iter=2, random_state=0).fit(*wine)
    assert model.stop_reason_ == "max_iter=2 reached"
    assert model.n_iter_ == 2


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"gamma": 0}, "'gamma' parameter"),
        ({"gamma": -1.0}, "'gamma' parameter"),
        ({"solver": "fast"}, "'solver' parameter"),
        ({"tol": 0}, "'tol' parameter"),
        ({"bound_percentiles": (95, 5)}, "bound_percentiles must be two percentiles"),
        ({"bound_percentiles": (5,)}, "bound_percentiles must be two percentiles"),
        ({"bound_percentiles": (-5, 105)}, "bound_percentiles must be two percentiles"),
        ({"bound_percentiles": "mean"}, "'bound_percentiles' parameter"),
        ({"prior": np.eye(3)}, "prior has shape"),
    ],
)
def test_bad_parameters_are_named(wine, parameters, message):
    with pytest.raises(ValueError, match=message):
        DITMLTransformer(**parameters).fit(*wine)


def test_bounds_that_are_no_numbers_are_named(wine):
    with pytest.raises(TypeError, match="bounds: "):
        DITMLTransformer().fit(*wine, bounds=object())
    with pytest.raises(ValueError, match="bounds: "):
        DITMLTransformer().fit(*wine, bounds=("low", "high"))


@pytest.mark.parametrize("bounds", [(2, 1), (0, 1), (1, 1), (1, np.nan), (1, 2, 3), 5])
def test_bad_bounds_are_named(wine, bounds):
    with pytest.raises(ValueError, match=r"bounds must be \(u, l\) with 0 < u < l"):
        DITMLTransformer().fit(*wine, bounds=bounds)


def test_rows_without_differences():
    X = np.zeros((6, 2))
    X[3:] = 1.0  # each class is one point
    with pytest.raises(ValueError, match=r"no similar pair with a difference|same distance"):
        DITMLTransformer().fit(X, [0, 0, 0, 1, 1, 1])
    X = np.repeat([[0.0], [1.0]], 3, axis=0)
    with pytest.raises(ValueError, match="give the same distance"):
        DITMLTransformer().fit(X, pairs=[[0, 3], [1, 4]], pair_labels=[1, -1])


@pytest.mark.parametrize("n_features", [2, 10])
def test_a_large_gamma_converges_on_random_labels(n_features):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((43, n_features)), rng.integers(0, 3, 43)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model = DITMLTransformer(gamma=1e5, max_iter=100, random_state=0).fit(X, y)
    assert model.kkt_residual_ < 1e-6


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_huge_gamma_is_no_failure_of_rounding():
    rng = np.random.RandomState(0)
    X, y = rng.randn(56, 7), np.arange(56) % 3
    model = DITMLTransformer(
        gamma=1e300, bound_percentiles="median", n_constraints=50, max_iter=20, random_state=0
    )
    with np.errstate(all="raise", under="ignore"):
        assert np.isfinite(model.fit(X, y).get_mahalanobis_matrix()).all()
