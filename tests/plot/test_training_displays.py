"""Displays of trainings: how they converge, and whether replicas stay together."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.datasets import load_wine
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import scale

from skdml import (
    AsymmetricMetricClassifier,
    DITMLTransformer,
    GMMLTransformer,
    LocalGMMLRanker,
)
from skdml.datasets import make_ranking
from skdml.plot import ConsensusDisplay, ConvergenceDisplay, PathDisplay
from skdml.plot._convergence import read_curves


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return scale(X), y


@pytest.fixture(scope="module")
def ditml(wine):
    return DITMLTransformer(solver="parallel", n_constraints=60, random_state=0).fit(*wine)


def test_residual_against_rounds_and_seconds(ditml):
    display = ConvergenceDisplay.from_estimator(ditml)
    rounds, seconds = display.axes_
    np.testing.assert_array_equal(rounds.lines[0].get_xdata(), np.arange(1, ditml.n_iter_ + 1))
    np.testing.assert_array_equal(seconds.lines[0].get_xdata(), ditml.history_["seconds"])
    for axes in display.axes_:
        np.testing.assert_array_equal(axes.lines[0].get_ydata(), ditml.history_["kkt_residual"])
        assert axes.get_yscale() == "log"
    assert rounds.get_ylabel() == "KKT residual"
    assert rounds.get_legend() is None


def test_another_measure_and_several_trainings(ditml, wine):
    display = ConvergenceDisplay.from_estimator(ditml, measure="value", name="parallel")
    other = DITMLTransformer(n_constraints=60, random_state=0).fit(*wine)
    ConvergenceDisplay.from_estimator(other, measure="value", name="newton", ax=display.axes_)
    names = [text.get_text() for text in display.axes_[0].get_legend().get_texts()]
    assert names == ["parallel", "newton"]
    assert display.axes_[0].get_yscale() == "linear"
    with pytest.raises(ValueError, match=r"measure must be one of \['divergence', 'kkt_resi"):
        ConvergenceDisplay.from_estimator(ditml, measure="loss")


def test_curve_with_its_start(wine):
    model = AsymmetricMetricClassifier(max_iter=3, random_state=0).fit(*wine)
    display = ConvergenceDisplay.from_estimator(model)
    assert display.axes_[0].lines[0].get_xdata()[0] == 0
    np.testing.assert_array_equal(display.axes_[1].lines[0].get_xdata(), model.history_["seconds"])
    assert (np.diff(model.history_["seconds"]) > 0).all()
    np.testing.assert_array_equal(display.values, model.history_["objective"])
    display = ConvergenceDisplay.from_estimator(model, measure="validation")
    np.testing.assert_array_equal(display.values, model.history_["validation"])


def test_loss_of_a_ranker():
    X, y, qid = make_ranking(n_queries=12, n_features=4, random_state=0)
    model = LocalGMMLRanker(n_metrics=1, max_epochs=3, random_state=0).fit(X, y, qid=qid)
    display = ConvergenceDisplay.from_estimator(model)
    assert display.values.tolist() == model.history_["loss"]
    assert (np.diff(display.seconds) > 0).all()


def test_training_of_networks():
    pytest.importorskip("torch")
    from skdml import DeepMetricEmbedder, SSDMLEmbedder, WassersteinGenerator

    X, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    model = DeepMetricEmbedder(
        max_epochs=2, n_components=4, validation_fraction=0.3, random_state=0
    ).fit(X, y)
    display = ConvergenceDisplay.from_estimator(model)
    assert display.values.tolist() == model.history_["loss"]
    assert list(display.seconds) == model.history_["seconds"]
    assert sorted(read_curves(model)[0]) == ["loss", "valid_recall"]

    partly = np.where(np.arange(60) < 9, y, -1)
    model = SSDMLEmbedder(max_epochs=2, n_components=2, random_state=0).fit(X, partly)
    display = ConvergenceDisplay.from_estimator(model)
    assert display.values.tolist() == model.history_["loss"]
    assert len(display.axes_) == 2

    for method, name in (("flow", "loss"), ("critics", "wasserstein")):
        model = WassersteinGenerator(method, max_iter=3, batch_size=16, random_state=0).fit(X)
        display = ConvergenceDisplay.from_estimator(model)
        np.testing.assert_array_equal(display.values, model.history_[name])
    assert display.axes_[0].lines[0].get_xdata()[0] == 1


def test_figures_noted_elsewhere(pyplot):
    display = ConvergenceDisplay.from_predictions([3, 2, 1], [0.1, 0.2, 0.3], rounds=[0, 10, 20])
    assert display.axes_[0].lines[0].get_xdata().tolist() == [0, 10, 20]
    alone = ConvergenceDisplay.from_predictions(np.arange(100.0), log=True)
    assert len(alone.axes_) == 1
    assert alone.axes_[0].lines[0].get_marker() == "None"
    _, axes = pyplot.subplots()
    assert alone.plot(ax=axes).axes_[0] is axes
    with pytest.raises(ValueError, match="seconds must have 3 entries, got 2"):
        ConvergenceDisplay.from_predictions([3, 2, 1], [0.1, 0.2])


def test_estimator_without_a_history(wine):
    with pytest.raises(ValueError, match="GMMLTransformer has no `history_`"):
        ConvergenceDisplay.from_estimator(GMMLTransformer(random_state=0).fit(*wine))
    with pytest.raises(NotFittedError):
        ConvergenceDisplay.from_estimator(DITMLTransformer())


class Fitted(BaseEstimator):
    def __init__(self, sync="hybrid", ring="parameters"):
        self.distributed = SimpleNamespace(sync=sync, ring=ring)

    def fit(self, consensus=None):
        self.module_ = None
        if consensus is not None:
            self.consensus_ = np.array(consensus)
        return self


def test_consensus_of_several_trainings():
    first = ConsensusDisplay.from_estimator(Fitted().fit([2.0, 1.0, 0.5]))
    ConsensusDisplay.from_estimator(Fitted("allreduce").fit([0.0, 0.0, 0.0]), ax=first.ax_)
    assert [text.get_text() for text in first.ax_.get_legend().get_texts()] == [
        "hybrid, ring of parameters",
        "allreduce",
    ]
    assert first.line_.get_xdata().tolist() == [1, 2, 3]
    low, high = first.ax_.get_ylim()
    assert low < 0
    assert high > 2


def test_consensus_needs_several_workers():
    with pytest.raises(ValueError, match="Fit it with n_workers above 1"):
        ConsensusDisplay.from_estimator(Fitted().fit())
    with pytest.raises(NotFittedError):
        ConsensusDisplay.from_estimator(Fitted())
    with pytest.raises(ValueError, match="consensus must be a vector with one entry"):
        ConsensusDisplay.from_predictions([[1.0]])


@pytest.mark.parametrize("values", [[], [[1.0, 2.0]]])
def test_no_rounds_are_named(values):
    with pytest.raises(ValueError, match="values must be a vector with one entry"):
        ConvergenceDisplay.from_predictions(values)


def test_replicas_that_are_not_finite_are_named():
    with pytest.raises(ValueError, match="consensus must have no NaN"):
        ConsensusDisplay.from_predictions([np.nan, 1.0])


def test_path_of_a_linear_learner(wine):
    model = DITMLTransformer(random_state=0).fit(*wine)
    display = PathDisplay.from_estimator(model)
    first = np.asarray(model.path_["round"]) == 1
    curve = display.ax_.lines[0]
    np.testing.assert_array_equal(curve.get_xdata(), np.asarray(model.path_["gamma"])[first])
    np.testing.assert_array_equal(curve.get_ydata(), np.asarray(model.path_["score"])[first])
    names = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert names[0] == "round 1"
    assert "prior" in names
    fixed = DITMLTransformer(gamma=1.0, random_state=0).fit(*wine)
    with pytest.raises(ValueError, match="estimator has no `path_`"):
        PathDisplay.from_estimator(fixed)
    with pytest.raises(ValueError, match="path must have 'round', 'score'"):
        PathDisplay.from_predictions({"round": [0], "gamma": [1.0]})
    with pytest.raises(ValueError, match="same length"):
        PathDisplay.from_predictions({"round": [0], "gamma": [1.0], "score": [1.0, 2.0]})
