"""AsymmetricMetricClassifier: what it learns, what it returns and what it refuses."""

import itertools

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_iris
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.neighbors import BallTree, KNeighborsClassifier

from skdml import AsymmetricMetricClassifier
from skdml.asymmetric._asymmetric_solver import Problem, compare, hold_out, train
from skdml.asymmetric._maps import LinearMaps, norm_of_w, pair_gradients


def make_task(n_rows=120, seed=0):
    """Rows of three classes, and queries of a class that look like rows of the next."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_rows) % 3
    X = rng.standard_normal((n_rows, 6)) + 3 * np.eye(3, 6)[y]
    queries = np.roll(X, 1, axis=1) + 0.1 * rng.standard_normal(X.shape)
    return X, y, queries


def fit_task(**params):
    X, y, queries = make_task()
    model = AsymmetricMetricClassifier(**{"max_iter": 4, "random_state": 0, **params})
    return model.fit(X, y, X_query=queries, y_query=y)


def make_problem(k=3, same_rows=False):
    X, y, queries = make_task(18)
    X = X - X.mean(axis=0)
    queries = X if same_rows else queries - queries.mean(axis=0)
    return Problem(
        queries, y, X, y, same_rows, np.zeros(18, dtype=bool), 1 - np.eye(3), k, n_candidates=60
    )


def mean_loss(maps, problem):
    """Return the mean loss, from all sets of neighbours."""
    total = 0.0
    for i, query in enumerate(problem.queries):
        rows = [j for j in range(len(problem.database)) if not (problem.same_rows and i == j)]
        distances = np.sum((maps.U @ query - problem.database @ maps.V.T) ** 2, axis=1)
        targeted = augmented = np.inf
        for chosen in map(list, itertools.combinations(rows, problem.n_neighbors)):
            members = np.bincount(problem.labels[chosen], minlength=3)
            winners = np.flatnonzero(members == members.max())
            cost = distances[chosen].sum()
            label = problem.query_labels[i]
            augmented = min(augmented, cost - problem.costs[label, winners].max())
            if winners.tolist() == [label]:
                targeted = min(targeted, cost)
        total += targeted - augmented
    return total / len(problem.queries)


class TestSolver:
    @pytest.mark.parametrize("same_rows", [False, True])
    def test_losses_and_gradients_equal_the_definition(self, same_rows):
        """With all rows as candidates: the loss by brute force, its gradient by differences."""
        problem = make_problem(k=2, same_rows=same_rows)
        rng = np.random.default_rng(0)
        maps = LinearMaps(*(0.5 * rng.standard_normal((2, 2, 6))), symmetric=False)
        numbers = np.arange(18)
        search = problem.search(maps, np.random.default_rng(0))
        batch = compare(maps, problem, numbers, search.candidates)
        assert batch.loss.mean() == pytest.approx(mean_loss(maps, problem))
        assert search.loss == pytest.approx(batch.loss.sum())
        by_U, by_V = pair_gradients(maps.U, maps.V, batch.queries, batch.database, batch.pairs)
        for by_map, side in ((by_U, 0), (by_V, 1)):
            for entry in ((0, 0), (1, 4)):
                change = np.zeros((2, 2, 6))
                change[(side, *entry)] = 1e-6
                after, before = (
                    mean_loss(LinearMaps(maps.U + step[0], maps.V + step[1], False), problem)
                    for step in (change, -change)
                )
                assert by_map[entry] == pytest.approx((after - before) / 2e-6, rel=1e-4)

    @pytest.mark.parametrize("symmetric", [False, True])
    def test_small_steps_on_all_queries_go_down_all_the_way(self, symmetric):
        problem = make_problem()
        maps = LinearMaps(np.eye(6), np.eye(6), symmetric)
        numbers, penalty = np.arange(18), 0.01
        values = []
        for _ in range(20):
            search = problem.search(maps, np.random.default_rng(0))
            batch = compare(maps, problem, numbers, search.candidates)
            values.append(penalty * norm_of_w(maps.U, maps.V) + search.loss / 18)
            maps.step(batch.queries, batch.database, batch.pairs, penalty, 1e-3)
        assert (np.diff(values) < 0).all()

    def test_votes_of_held_out_queries_have_a_mean_and_a_standard_error(self):
        X, y, queries = make_task(60)
        held_out = np.arange(60) % 4 == 0
        problem = Problem(queries, y, X, y, False, held_out, 1 - np.eye(3), 1)
        maps = LinearMaps(np.eye(6), np.eye(6), False)
        search = problem.search(maps, np.random.default_rng(0))
        voted = KNeighborsClassifier(1).fit(X, y).predict(queries[held_out])
        wrong = (voted != y[held_out]).astype(float)
        assert 0 < wrong.mean() < 1
        assert search.vote_cost == pytest.approx(wrong.mean())
        assert search.vote_error == pytest.approx(wrong.std() / np.sqrt(15))


class TestFit:
    def test_asymmetry_pays_where_queries_are_different(self):
        X, y, queries = make_task(seed=1)
        model = fit_task()
        assert model.score(queries, y) > 0.9
        assert KNeighborsClassifier(5).fit(X, y).score(queries, y) < 0.5
        assert fit_task(symmetric=True).score(queries, y) < model.score(queries, y) - 0.1

    @pytest.mark.parametrize("symmetric", [False, True])
    @pytest.mark.parametrize("with_queries", [False, True])
    def test_objective_never_rises(self, with_queries, symmetric):
        """Also where the steps are far too long at first, and where one map becomes two."""
        X, y, queries = make_task()
        model = AsymmetricMetricClassifier(
            symmetric=symmetric, lr=3.0, max_iter=8, validation_fraction=None, random_state=0
        )
        given = {"X_query": queries, "y_query": y} if with_queries else {}
        curve = model.fit(X, y, **given).history_["objective"]
        assert len(curve) == model.n_iter_ + 1
        assert (np.diff(curve) <= 0).all()
        assert (np.diff(curve) == 0).any()
        assert curve[-1] < curve[0]

    @pytest.mark.parametrize("init", ["pca", "identity"])
    def test_objective_is_that_of_the_maps(self, init):
        """The last value, computed from the definition for all database rows."""
        X, y, queries = make_task(30)
        model = AsymmetricMetricClassifier(
            2, init=init, C=0.5, n_candidates=8, max_iter=2, validation_fraction=None
        )
        model.fit(X, y, X_query=queries, y_query=y)
        unit = np.sqrt(np.mean(np.sum((X - X.mean(axis=0)) ** 2, axis=1)))
        maps = LinearMaps(unit * model.query_components_, unit * model.database_components_, False)
        rows = (queries - queries.mean(axis=0)) / unit, (X - X.mean(axis=0)) / unit
        problem = Problem(rows[0], y, rows[1], y, False, np.zeros(30, dtype=bool), 1 - np.eye(3), 2)
        expected = maps.penalty() + 0.5 * 30 * mean_loss(maps, problem)
        assert model.history_["objective"][-1] == pytest.approx(expected)

    def test_two_maps_of_one_kind_of_rows_begin_as_one(self):
        X, y, _ = make_task()
        tied = AsymmetricMetricClassifier(max_iter=2, symmetric=True, random_state=0).fit(X, y)
        model = AsymmetricMetricClassifier(max_iter=2, random_state=0).fit(X, y)
        assert model.history_["objective"][1] == pytest.approx(
            tied.history_["objective"][1], rel=1e-12
        )
        assert model.history_["objective"][2] < tied.history_["objective"][1]

    def test_white_noise_leaves_the_maps_near_the_start(self):
        """Training on noise does harm, which held-out queries notice."""
        rng = np.random.default_rng(0)
        y = np.arange(240) % 3
        X = 2 * np.eye(3, 30)[y] + 0.3 * rng.standard_normal((240, 30))
        queries = X + 1.5 * rng.standard_normal(X.shape)
        model = AsymmetricMetricClassifier(max_iter=6, lr=0.05, random_state=0)
        model.fit(X[:120], y[:120], X_query=queries[120:180], y_query=y[120:180])
        best = np.argmin(model.history_["validation"])
        assert best < model.n_iter_
        kept = model.score(queries[180:], y[180:])
        model.set_params(validation_fraction=None)
        model.fit(X[:120], y[:120], X_query=queries[120:180], y_query=y[120:180])
        assert kept > model.score(queries[180:], y[180:])

    @pytest.mark.parametrize(("cost", "chosen"), [(0.31, 0), (0.29, 1), (0.5, 0)])
    def test_aligned_maps_must_be_better_by_a_standard_error(self, monkeypatch, cost, chosen):
        found = []

        def with_votes(*args, **kwargs):
            training = train(*args, **kwargs)
            training.vote_cost, training.vote_error = (0.4, 0.1) if not found else (cost, 0.0)
            found.append(training)
            return training

        monkeypatch.setattr("skdml.asymmetric._asymmetric.train", with_votes)
        model = fit_task(max_iter=2)
        assert len(found) == 2
        assert found[0].history["objective"] != found[1].history["objective"]
        assert model.history_ == found[chosen].history

    def test_symmetric_is_one_map(self):
        model = fit_task(symmetric=True)
        np.testing.assert_array_equal(model.query_components_, model.database_components_)
        np.testing.assert_array_equal(model.query_mean_, model.database_mean_)
        X, _, queries = make_task()
        np.testing.assert_array_equal(model.transform(X), model.transform_database(X))
        there = model.pair_distance(queries, X)
        np.testing.assert_allclose(there, model.pair_distance(X, queries))

    def test_without_queries_the_rows_are_queries_to_each_other(self):
        X, y = load_iris(return_X_y=True)
        model = AsymmetricMetricClassifier(random_state=0, max_iter=2).fit(X[::2], y[::2])
        assert model.score(X[1::2], y[1::2]) > 0.9
        assert model.n_infeasible_ == 0

    def test_a_row_does_not_vote_for_itself_in_training(self):
        """Labels that say nothing cannot be learned by finding oneself."""
        rng = np.random.default_rng(0)
        X, y = rng.standard_normal((60, 20)), np.arange(60) % 2
        model = AsymmetricMetricClassifier(n_neighbors=1, max_iter=1, lr=1e-9, random_state=0)
        assert model.fit(X, y).history_["objective"][0] > 60 * 0.3

    def test_unit_and_origin_of_the_features_do_not_matter(self):
        X, y, queries = make_task()
        model = fit_task()
        moved = AsymmetricMetricClassifier(max_iter=4, random_state=0)
        moved.fit(1000 * X + 7, y, X_query=1000 * queries - 3, y_query=y)
        np.testing.assert_allclose(
            moved.pair_distance(1000 * queries - 3, 1000 * X + 7),
            model.pair_distance(queries, X),
            rtol=1e-4,
        )

    def test_random_state(self):
        first, again, other = fit_task(), fit_task(), fit_task(random_state=1)
        np.testing.assert_array_equal(first.query_components_, again.query_components_)
        assert not np.array_equal(first.query_components_, other.query_components_)

    def test_more_regularisation_gives_smaller_maps(self):
        norms = [
            norm_of_w(model.query_components_, model.database_components_)
            for model in (fit_task(C=C, validation_fraction=None) for C in (1e-3, 1.0))
        ]
        assert norms[0] < 0.8 * norms[1]

    def test_n_components(self):
        X, _, queries = make_task()
        model = fit_task(n_components=2)
        assert model.transform(queries).shape == model.transform_database(X).shape == (120, 2)
        assert model.get_feature_names_out().tolist() == [
            "asymmetricmetricclassifier0",
            "asymmetricmetricclassifier1",
        ]

    def test_maps_can_be_given(self):
        maps = np.random.default_rng(0).standard_normal((2, 3, 6))
        model = fit_task(init=maps, max_iter=1, lr=1e-12)
        np.testing.assert_allclose(model.query_components_, maps[0])
        np.testing.assert_allclose(model.database_components_, maps[1])
        model = fit_task(init=maps[0], max_iter=1, lr=1e-12, symmetric=True)
        np.testing.assert_allclose(model.database_components_, maps[0])

    def test_few_candidates_are_enough(self):
        assert fit_task(n_candidates=20).score(*make_task(seed=1)[:0:-1]) > 0.9

    def test_tol_stops(self):
        assert fit_task(tol=0.9, max_iter=20, symmetric=True).n_iter_ < 10

    def test_held_out_queries(self):
        """They choose the maps, and are not trained on."""
        model = fit_task(max_iter=3)
        assert len(model.history_["validation"]) == 4
        assert len(fit_task(validation_fraction=None).history_["validation"]) == 5
        labels = np.array([0] * 10 + [1] * 4 + [2] * 5)
        held_out = hold_out(labels, 0.2, np.random.default_rng(0))
        assert np.bincount(labels[held_out], minlength=3).tolist() == [2, 0, 1]
        assert not hold_out(labels, None, np.random.default_rng(0)).any()

    def test_small_classes_are_counted(self):
        X, y, _ = make_task(60)
        y = np.append(np.zeros(29, dtype=int), np.append(np.ones(29, dtype=int), [2, 2]))
        model = AsymmetricMetricClassifier(max_iter=2, random_state=0).fit(X, y)
        # one other row of class 2 cannot win against four of two other classes
        assert model.n_infeasible_ == 2
        assert model.predict_proba(X).shape == (60, 3)


class TestCosts:
    def test_dear_mistakes_are_avoided_where_not_all_can_be(self):
        """Four clusters in a square, seen along one direction: some must fall together."""
        rng = np.random.default_rng(0)
        y = np.arange(200) % 4
        X = 3.0 * np.stack([y % 2, y // 2], axis=1) + 0.5 * rng.standard_normal((200, 2))
        alike = np.array([[r % 2 == c % 2 for c in range(4)] for r in range(4)])
        mistakes = []
        for dear in (alike, ~alike):
            costs = np.where(dear, 10.0, 0.1)
            np.fill_diagonal(costs, 0)
            model = AsymmetricMetricClassifier(
                init=[[1.0, 1.2]], symmetric=True, cost_matrix=costs, max_iter=30, random_state=0
            )
            predicted = model.fit(X, y).predict(X)
            mistakes.append(np.sum(alike[y, predicted] & (predicted != y)))
        assert mistakes[0] < 0.2 * mistakes[1]

    def test_costs_of_one_are_the_default(self):
        given = fit_task(cost_matrix=1 - np.eye(3))
        np.testing.assert_array_equal(given.query_components_, fit_task().query_components_)


class TestUse:
    def test_predictions_are_votes_of_the_nearest(self):
        X, y, queries = make_task()
        model = fit_task()
        distances = euclidean_distances(model.transform(queries), model.transform_database(X))
        nearest = np.argsort(distances, axis=1)[:, :5]
        votes = (y[nearest][:, :, None] == np.arange(3)).mean(axis=1)
        np.testing.assert_allclose(model.predict_proba(queries), votes)
        np.testing.assert_array_equal(model.predict(queries), votes.argmax(axis=1))

    def test_a_tie_goes_to_the_first_class(self):
        X = np.array([[0.0], [0.25], [0.5], [1.5], [1.75], [2.0]])
        y = np.array(["b", "b", "b", "a", "a", "a"])
        model = AsymmetricMetricClassifier(n_neighbors=2, lr=1e-9, max_iter=1, random_state=0)
        assert model.fit(X, y).predict([[1.0]]).tolist() == ["a"]

    def test_any_euclidean_index(self):
        X, y, queries = make_task()
        model = fit_task()
        index = BallTree(model.transform_database(X))
        _, found = index.query(model.transform(queries), k=5)
        votes = (y[found][:, :, None] == np.arange(3)).mean(axis=1)
        np.testing.assert_allclose(votes, model.predict_proba(queries))


class TestErrors:
    @pytest.mark.parametrize(
        ("params", "message"),
        [
            ({"cost_matrix": np.ones(3)}, "cost_matrix: Expected 2D array"),
            ({"init": np.ones(6)}, "init: Expected 2D array"),
            ({"cost_matrix": np.ones((2, 2))}, r"cost_matrix must .* \(3, 3\), got \(2, 2\)"),
            ({"cost_matrix": np.ones((3, 3))}, "cost_matrix must be 0 on the diagonal"),
            ({"cost_matrix": np.eye(3) - 1}, "cost_matrix must be .* positive"),
            ({"n_neighbors": 41}, "n_neighbors=41 is larger than every class .* has 40 rows"),
            ({"n_candidates": 19}, r"n_candidates=19 must be at least 4 \* n_neighbors = 20"),
            ({"n_components": 7}, "n_components=7 is more than"),
            ({"init": np.ones((2, 5))}, r"init must be .* \(n_components, 6\).*got \(2, 5\)"),
            ({"init": np.ones((2, 6)), "n_components": 3}, r"init must be .* \(3, 6\)"),
            ({"init": np.ones((2, 2, 6)), "symmetric": True}, r"init must be .* got \(2, 2, 6\)"),
            ({"init": "random"}, "The 'init' parameter"),
        ],
    )
    def test_bad_parameters(self, params, message):
        with pytest.raises(ValueError, match=message):
            fit_task(**params)

    def test_one_class(self):
        X, _, _ = make_task()
        with pytest.raises(ValueError, match="y has only one class"):
            AsymmetricMetricClassifier().fit(X, np.ones(120))

    @pytest.mark.parametrize(
        ("y", "error", "message"),
        [
            (np.arange(120.0) / 7, ValueError, "y: Unknown label type"),
            (np.full(120, b"a"), TypeError, "y: labels must be numbers or strings, got bytes"),
            (np.zeros((120, 2, 2)), ValueError, "y: Found array with dim 3"),
        ],
    )
    def test_bad_labels(self, y, error, message):
        with pytest.raises(error, match=message):
            AsymmetricMetricClassifier().fit(make_task()[0], y)

    @pytest.mark.filterwarnings("error")
    def test_bad_labels_to_score(self):
        X, y, _ = make_task()
        model = fit_task(max_iter=1)
        assert model.score(X, y) == np.mean(model.predict(X) == y)
        weight = np.arange(120)
        assert model.score(X, y, weight) == pytest.approx(
            np.average(model.predict(X) == y, weights=weight)
        )
        for wrong, error, message in (
            (y.astype(str), TypeError, "y .* must be of the same kind"),
            (y[:-1], ValueError, "y has 119 labels for 120 rows"),
            (np.full(120, np.inf), ValueError, "y must not contain NaN or infinity"),
            (None, ValueError, "requires y to be passed"),
            (np.zeros((120, 2)), ValueError, "y should be a 1d array"),
        ):
            with pytest.raises(error, match=message):
                model.score(X, wrong)

    def test_no_query_is_feasible(self):
        # one row of each class, and each row's class is gone when it is the query
        X, y = np.arange(8.0).reshape(4, 2), np.arange(4)
        with pytest.raises(ValueError, match="n_neighbors=1: no training query"):
            AsymmetricMetricClassifier(n_neighbors=1).fit(X, y)

    @pytest.mark.filterwarnings("ignore::RuntimeWarning")
    def test_steps_that_are_far_too_long(self):
        with pytest.raises(ValueError, match=r"coordinates are not finite.* smaller lr"):
            fit_task(lr=1e200)

    def test_equal_rows(self):
        with pytest.raises(ValueError, match="X has the same values in every row"):
            AsymmetricMetricClassifier().fit(np.ones((20, 2)), np.arange(20) % 2)

    def test_bad_queries(self):
        X, y, queries = make_task()
        model = AsymmetricMetricClassifier()
        for arguments, message in (
            ({"X_query": queries}, "requires y_query to be passed"),
            ({"y_query": y}, "y_query was given without X_query"),
            ({"X_query": queries[:, :5], "y_query": y}, "X_query has 5 features"),
            ({"X_query": queries, "y_query": y[:-1]}, "y_query has 119 labels for 120 rows"),
            ({"X_query": queries, "y_query": y + 1}, "y_query has classes that y does not have"),
            ({"X_query": queries * np.nan, "y_query": y}, "X_query contains NaN"),
        ):
            with pytest.raises(ValueError, match=message):
                model.fit(X, y, **arguments)
        assert not hasattr(model, "classes_")

    def test_modules_must_fit_together(self):
        torch = pytest.importorskip("torch")
        module = torch.nn.Linear(6, 2)
        for params, message in (
            ({"query_module": module}, "query_module was given without database_module"),
            ({"database_module": module}, "database_module was given without query_module"),
            (
                {"query_module": module, "database_module": module, "symmetric": True},
                "leave database_module out",
            ),
        ):
            with pytest.raises(ValueError, match=message):
                fit_task(**params)
        with pytest.raises(TypeError, match=r"query_module must be an instance of torch\.nn"):
            fit_task(query_module="mlp", database_module="mlp")


def test_sparse_rows_teach_and_vote_like_dense_ones():
    X, y = load_iris(return_X_y=True)
    X = np.where(X > 2, X, 0)
    dense = AsymmetricMetricClassifier(max_iter=2, random_state=0)
    dense.fit(X, y, X_query=X[::2], y_query=y[::2])
    for make in (sparse.csr_array, sparse.csc_matrix):
        model = AsymmetricMetricClassifier(max_iter=2, random_state=0)
        model.fit(make(X), y, X_query=make(X[::2]), y_query=y[::2])
        np.testing.assert_allclose(model.transform(make(X)), dense.transform(X))
        np.testing.assert_allclose(model.transform_database(make(X)), dense.transform_database(X))
        np.testing.assert_array_equal(model.predict(make(X)), dense.predict(X))
