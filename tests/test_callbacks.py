"""scikit-learn's callbacks on every estimator: alone, in a pipeline and in a search."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skdml.utils._checks_common import (
    fit,
    fit_arguments,
    fresh,
    make_data,
    outputs,
    takes_pair_samples,
)
from skdml.utils._sklearn import HAS_CALLBACKS
from skdml.utils.estimator_checks import all_estimators

pytestmark = pytest.mark.skipif(
    not HAS_CALLBACKS, reason="scikit-learn before 1.9 has no callbacks"
)

N_ITERATIONS = 2
SETTINGS: dict[str, dict] = {
    "DITMLTransformer": {"gamma": 1.0, "max_iter": N_ITERATIONS, "tol": 1e-15},
    "LocalGMMLRanker": {"max_epochs": N_ITERATIONS},
    "AsymmetricMetricClassifier": {"max_iter": N_ITERATIONS},
    "NeighborhoodGerrymandering": {"max_iter": N_ITERATIONS, "validation_fraction": None},
    "LMNN": {"n_passes": N_ITERATIONS, "validation_fraction": None},
    "MLKR": {"max_iter": N_ITERATIONS, "tol": 1e-15},
    "DeepMetricEmbedder": {"max_epochs": N_ITERATIONS, "n_components": 8},
    "SSDMLEmbedder": {"max_epochs": N_ITERATIONS, "n_components": 4, "n_neighbors": 4},
    "WassersteinGenerator": {"max_iter": N_ITERATIONS, "batch_size": 16},
}

every_estimator = pytest.mark.parametrize(
    "estimator",
    [
        pytest.param(cls(**SETTINGS.get(name, {})), id=name)
        for name, cls in all_estimators()
        if not takes_pair_samples(cls())
    ],
)
ignore_warnings = pytest.mark.filterwarnings("ignore")  # of few iterations, and all labels known


def mean_of_outputs(model, X, y, **metadata):
    """A score that every estimator has."""
    return float(np.mean([np.mean(value) for value in outputs(model, X).values()]))


def n_iterations(estimator):
    return N_ITERATIONS if type(estimator).__name__ in SETTINGS else 0


def assert_rows(monitor, estimator, n_fits=1):
    """Every fit has a row, and each of its iterations one."""
    name = type(estimator).__name__
    rows = [row for row in monitor.get_logs().data if row["estimator_name"] == name]
    iterations = [row for row in rows if row["task_name"] != "fit"]
    assert len(iterations) == n_fits * n_iterations(estimator)
    assert len(rows) - len(iterations) == n_fits
    assert all(np.isfinite(row["score"]) for row in rows)
    return rows


def new_monitor():
    from sklearn.callback import ScoringMonitor

    def scores(model, X, y, **metadata):
        return {"score": mean_of_outputs(model, X, y, **metadata)}

    return ScoringMonitor(scoring=scores)


@ignore_warnings
@every_estimator
def test_scoring_monitor_alone(estimator):
    monitor = new_monitor()
    data = make_data()
    arguments = fit_arguments(estimator, data)
    arguments.setdefault("y", data.y)
    model = fresh(estimator).set_callbacks(monitor).fit(**arguments)
    rows = assert_rows(monitor, estimator)
    last = next(row for row in rows if row["task_name"] == "fit")
    expected = mean_of_outputs(fit(fresh(estimator)), data.X, None)
    assert last["score"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert set(vars(model)) - {"_skl_callbacks"} == set(vars(fit(fresh(estimator))))


@ignore_warnings
@every_estimator
def test_scoring_monitor_in_a_pipeline_and_a_search(estimator):
    X, y, _ = make_data()
    monitor = new_monitor()
    pipeline = make_pipeline(StandardScaler(), fresh(estimator).set_callbacks(monitor))
    pipeline.fit(X, y)
    assert_rows(monitor, estimator)
    monitor = new_monitor()
    is_seeded = "random_state" in estimator.get_params()
    search = GridSearchCV(
        fresh(estimator).set_callbacks(monitor),
        {"random_state": [0, 1]} if is_seeded else {"n_components": [None, 1]},
        cv=2,
        scoring=lambda model, X, y: 0.0,
    )
    search.fit(X, y)
    assert_rows(monitor, estimator, n_fits=5)  # candidates times folds, and the refit


@ignore_warnings
@every_estimator
@pytest.mark.parametrize("where", ["alone", "pipeline", "search"])
def test_progress_bar(estimator, where, capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "200")
    from sklearn.callback import ProgressBar

    X, y, _ = make_data()
    model = fresh(estimator)
    if where == "pipeline":
        model = make_pipeline(clone(model))
    elif where == "search":
        scoring = {"scoring": lambda model, X, y: 0.0}
        is_seeded = "random_state" in model.get_params()
        grid = {"random_state": [0]} if is_seeded else {"n_components": [None]}
        model = GridSearchCV(model, grid, cv=2, **scoring)
    model.set_callbacks(ProgressBar(max_propagation_depth=None)).fit(X, y)
    shown = capsys.readouterr().out
    assert type(estimator).__name__ in shown
    assert "100%" in shown


@ignore_warnings
def test_the_score_of_a_ranker_is_by_query():
    from sklearn.callback import ScoringMonitor

    LocalGMMLRanker = dict(all_estimators())["LocalGMMLRanker"]
    X, y, qid = make_data()

    def ndcg(model, X, y, **metadata):
        return {"score": model.score(X, y, **metadata)}

    monitor = ScoringMonitor(scoring=ndcg)
    model = LocalGMMLRanker(max_epochs=2, random_state=0).set_callbacks(monitor)
    model.fit(X, y, qid=qid)
    rows = {row["task_name"]: row["score"] for row in monitor.get_logs().data}
    assert rows["fit"] == pytest.approx(model.score(X, y, qid=qid))
    assert rows["fit"] != pytest.approx(model.score(X, y, "single"))
