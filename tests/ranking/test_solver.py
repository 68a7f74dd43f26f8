from dataclasses import replace

import numpy as np
import pytest

from skdml.datasets import make_ranking
from skdml.linear import MahalanobisMetric
from skdml.ranking._anchor_model import LocalMetric, build_model, learn_local_metric
from skdml.ranking._documents import mean_ndcg_of
from skdml.ranking._local_gmml_training import _gradients, fit_query_weights, train
from skdml.utils._fit import Progress
from tests.ranking.ranking_toys import (
    finite_differences,
    make_ranked,
    random_metric,
    random_model,
    sort_documents,
)

pytestmark = pytest.mark.filterwarnings("error")

rng = np.random.default_rng(0)
ALL = ("weights", "widths", "anchors")


def ranking_problem(n_queries=40, seed=0):
    return sort_documents(*make_ranking(n_queries, 12, 5, random_state=seed))


def untrained_model(ranked, kernel="gaussian", learn_metrics=False):
    locals_ = [learn_local_metric(ranked, anti, 0, 0.01, rank=3) for anti in (False, True)]
    if kernel == "damped":
        return build_model(kernel, locals_[:1], 1, learn_metrics)
    return build_model(kernel, locals_, 1, learn_metrics)


def run(model, ranked, validation=None, learned=ALL, loss="lambda", max_epochs=15, **options):
    options = {
        "patience": 1000,
        "rng": np.random.default_rng(0),
        "progress": Progress(),
        "attributes": lambda model: {},
    } | options
    return train(model, ranked, validation, learned, loss, max_epochs, **options)


def ndcg(model, ranked, weights=None):
    return mean_ndcg_of(model.scores(ranked.features, weights=weights), ranked)


# The model


@pytest.mark.parametrize("learn_metrics", [False, True])
@pytest.mark.parametrize("ranks", [(3, 2, 1, 2), (1, 1), (0, 3)])
def test_squared_distances_are_those_of_the_metrics(learn_metrics, ranks):
    model = random_model(ranks=ranks, n_ideal=1, learn_metrics=learn_metrics)
    X = rng.standard_normal((20, 3))
    metrics = model.metrics()
    expected = [
        [
            (x - p) @ metric.matrix() @ (x - p)
            for p, metric in zip(model.anchors, metrics, strict=True)
        ]
        for x in X
    ]
    np.testing.assert_allclose(model.squared_distances(X), expected, atol=1e-12)
    np.testing.assert_allclose(model.squared_distances(X, model.quadratic(X)), expected, atol=1e-12)


@pytest.mark.parametrize("learn_metrics", [False, True])
def test_model_has_the_metrics_it_was_built_from(learn_metrics):
    metrics = [
        random_metric(4),
        random_metric(4, rank=2, seed=1),
        random_metric(4, scale=0.0, seed=2),
        MahalanobisMetric(4),
    ]
    anchors = rng.standard_normal((4, 4))
    locals_ = [LocalMetric(*pair) for pair in zip(metrics, anchors, strict=True)]
    model = build_model("gaussian", locals_, 3, learn_metrics)
    assert np.array_equal(model.anchors, anchors)
    assert model.signs.tolist() == [1, 1, 1, -1]
    for found, given in zip(model.metrics(), metrics, strict=True):
        np.testing.assert_allclose(found.matrix(), given.matrix(), atol=1e-12)
        x, y = rng.standard_normal((2, 4))
        assert found(x, y) == pytest.approx(given(x, y))


def test_distance_of_an_anchor_to_itself_is_not_negative():
    for seed in range(20):
        model = random_model(seed=seed)
        model.anchors *= 1e3
        squared = model.squared_distances(model.anchors)
        assert (squared >= 0).all()
        assert np.isfinite(model.scores(model.anchors)).all()


@pytest.mark.parametrize("kernel", ["gaussian", "damped"])
def test_scores_by_example_against_the_formula(kernel):
    model = random_model(kernel)
    X, examples = rng.standard_normal((2, 15, 3))
    phi = np.exp(model.weights) if kernel == "gaussian" else model.weights
    expected = []
    for x, q in zip(X, examples, strict=True):
        ideal = [r for r in range(len(phi)) if model.signs[r] > 0]
        matrices = {r: model.metrics()[r].matrix() for r in ideal}
        squared = {r: (q - model.anchors[r]) @ matrices[r] @ (q - model.anchors[r]) for r in ideal}
        nearest = min(squared.values())
        weight = {r: phi[r] * np.exp(-squared[r] / nearest) for r in ideal}
        M = sum(weight[r] * matrices[r] for r in ideal) / sum(weight.values())
        expected.append(-(x - q) @ M @ (x - q))
    np.testing.assert_allclose(model.scores_by_example(X, examples), expected, atol=1e-10)


def test_the_example_itself_scores_best():
    model = random_model()
    X = rng.standard_normal((10, 3))
    scores = model.scores_by_example(X, np.tile(X[4], (10, 1)))
    assert scores[4] == 0
    assert np.argmax(scores) == 4


def test_an_example_at_an_ideal_document_has_its_metric():
    model = random_model(ranks=(0, 2, 3))
    model.anchors *= 10
    model.anchors[0], model.scale[0] = 0.0, 1.0
    X = rng.standard_normal((10, 3))
    scores = model.scores_by_example(X, np.zeros((10, 3)))
    np.testing.assert_allclose(scores, -np.sum(X**2, axis=1), rtol=1e-10)


def test_scores_by_example_without_weights_are_numbers():
    """The weights of the thesis may become zero, all of them or that of the nearest document."""
    X = rng.standard_normal((10, 3))
    for weights in ([0.0, 1.0], [0.0, 0.0]):
        model = random_model("damped", ranks=(2, 2))
        model.weights = np.array(weights)
        example = model.anchors[0] + 1e-3
        assert np.isfinite(model.scores_by_example(X, np.tile(example, (10, 1)))).all()


# Gradients


@pytest.mark.parametrize("loss", ["lambda", "warp"])
@pytest.mark.parametrize(
    ("kernel", "learn_metrics"), [("gaussian", False), ("gaussian", True), ("damped", True)]
)
def test_gradients_against_finite_differences(kernel, learn_metrics, loss):
    """A small step changes neither ranks nor violators, so the weights of pairs stay fixed."""
    batch = make_ranked((7, 4, 9))
    model = random_model(kernel, learn_metrics=learn_metrics)
    learned = ALL + (("factors",) if learn_metrics else ())

    def value(name, parameter):
        changed = replace(model, **{name: parameter})
        return _gradients(changed, batch, None, (), loss, np.random.default_rng(0))[0]

    loss_value, found = _gradients(model, batch, None, learned, loss, np.random.default_rng(0))
    assert loss_value > 0
    assert set(found) == set(learned)
    for name in learned:
        expected = finite_differences(lambda p, name=name: value(name, p), getattr(model, name))
        assert kernel == "damped" or np.abs(expected).max() > 1e-4
        np.testing.assert_allclose(found[name], expected, atol=1e-6, err_msg=name)


def test_known_quadratic_terms_change_nothing():
    batch, model = make_ranked(), random_model()
    slow = _gradients(model, batch, None, ALL, "lambda", rng)
    fast = _gradients(model, batch, model.quadratic(batch.features), ALL, "lambda", rng)
    assert slow[0] == fast[0]
    for name in ALL:
        assert np.array_equal(slow[1][name], fast[1][name])


# Training


@pytest.mark.parametrize("loss", ["lambda", "warp"])
@pytest.mark.parametrize("learn_metrics", [False, True])
def test_training_reduces_the_loss_and_raises_ndcg(loss, learn_metrics):
    ranked = ranking_problem()
    model = untrained_model(ranked, learn_metrics=learn_metrics)
    learned = ALL + (("factors",) if learn_metrics else ())
    trained, history = run(model, ranked, learned=learned, loss=loss, max_epochs=40)
    assert history["loss"][-1] < 0.95 * history["loss"][0]
    assert ndcg(trained, ranked) > ndcg(model, ranked) + 0.01


@pytest.mark.parametrize("learned", [("anchors",), ("weights",), ("widths", "weights")])
def test_only_what_is_named_is_learned(learned):
    ranked = ranking_problem()
    model = untrained_model(ranked)
    before = {name: getattr(model, name).copy() for name in (*ALL, "factors")}
    trained, _ = run(model, ranked, learned=learned, max_epochs=2)
    for name in before:
        assert np.array_equal(getattr(model, name), before[name])  # not in place
        assert np.array_equal(getattr(trained, name), before[name]) == (name not in learned)


def test_history_has_every_epoch():
    ranked, validation = ranking_problem(), ranking_problem(10, seed=0)
    _, history = run(untrained_model(ranked), ranked, max_epochs=4)
    assert set(history) == {"loss", "seconds"}
    assert [len(figures) for figures in history.values()] == [4, 4]
    assert (np.diff(history["seconds"]) > 0).all()
    _, history = run(untrained_model(ranked), ranked, validation, max_epochs=4)
    assert set(history) == {"loss", "validation_loss", "ndcg", "seconds"}
    assert [len(figures) for figures in history.values()] == [4] * 4


def test_the_best_epoch_is_kept():
    ranked, validation = ranking_problem(), ranking_problem(10, seed=3)
    trained, history = run(untrained_model(ranked), ranked, validation, max_epochs=15)
    best = np.argmin(history["validation_loss"])
    assert ndcg(trained, validation) == pytest.approx(history["ndcg"][best], abs=1e-12)


def test_patience_ends_the_training():
    ranked = ranking_problem()
    constant = sort_documents(np.zeros((4, 5)), [1, 0, 0, 1], [0, 0, 1, 1])  # nothing to gain
    _, history = run(untrained_model(ranked), ranked, constant, max_epochs=50, patience=3)
    assert len(history["loss"]) == 4


def test_progress_is_told_of_every_epoch_and_can_stop():
    ranked, seen, order = ranking_problem(), [], []

    class Listener(Progress):
        def begin(self):
            order.append("begin")

        def step(self, attributes=None, **figures):
            order.append("step")
            seen.append((ndcg(attributes()["model"], ranked), figures))
            return len(seen) == 3

    trained, history = run(
        untrained_model(ranked),
        ranked,
        max_epochs=10,
        progress=Listener(),
        attributes=lambda model: {"model": model},
    )
    assert order == ["begin", "step"] * 3
    assert len(history["loss"]) == 3
    assert seen[-1][0] == pytest.approx(ndcg(trained, ranked))
    assert [figures["loss"] for _, figures in seen] == history["loss"]


def test_seed_gives_the_same_training():
    ranked = ranking_problem()
    results = [
        run(
            untrained_model(ranked), ranked, loss="warp", max_epochs=3, rng=np.random.default_rng(s)
        )
        for s in (0, 0, 1)
    ]
    anchors = [model.anchors for model, _ in results]
    assert np.array_equal(anchors[0], anchors[1])
    assert not np.array_equal(anchors[0], anchors[2])


def test_weights_of_the_thesis_stay_above_zero():
    ranked = ranking_problem()
    model = untrained_model(ranked, "damped")
    model.weights = np.full(1, 0.01)
    seen = []
    for learned in (("weights",), ("weights", "anchors")):
        trained, _ = run(model, ranked, learned=learned, loss="warp", max_epochs=30)
        seen.append(trained.weights[0])
    assert min(seen) >= 0


# Weights of single queries


@pytest.mark.parametrize("kernel", ["gaussian", "damped"])
def test_weights_of_a_query_do_not_depend_on_other_queries(kernel):
    ranked = make_ranked((9, 6, 12))
    model = random_model(kernel)
    together = fit_query_weights(model, ranked, "lambda", 20, np.random.default_rng(0))
    for query in range(3):
        alone = fit_query_weights(
            model, ranked.take(np.array([query])), "lambda", 20, np.random.default_rng(0)
        )
        np.testing.assert_allclose(together[query], alone[0], atol=1e-12)


@pytest.mark.parametrize("loss", ["lambda", "warp"])
def test_own_weights_improve_their_query(loss):
    ranked = ranking_problem(30)
    locals_ = [
        learn_local_metric(ranked.take(np.arange(a, a + 6)), anti, 0, 0.1, 3)
        for anti in (False, True)
        for a in (0, 6, 12, 18)
    ]
    model = build_model("gaussian", locals_, 4)
    weights = fit_query_weights(model, ranked, loss, 100, np.random.default_rng(0))
    assert ndcg(model, ranked, weights[ranked.codes()]) > ndcg(model, ranked) + 0.01


def test_no_round_leaves_the_shared_weights():
    ranked, model = make_ranked(), random_model()
    weights = fit_query_weights(model, ranked, "lambda", 0, rng)
    assert np.array_equal(weights, np.tile(model.weights, (3, 1)))
