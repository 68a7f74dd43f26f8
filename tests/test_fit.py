"""What every fit shares: progress, callbacks, and all or nothing."""

import io
import sys

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

from skdml import GMMLTransformer
from skdml.utils._fit import FitProgress, fit_method
from skdml.utils._sklearn import HAS_CALLBACKS, EstimatorMixin

X = np.random.default_rng(0).standard_normal((40, 3))
y = np.arange(40) % 2


class Stepper(EstimatorMixin, BaseEstimator):
    """Counts to `stop`, and fails there if told so."""

    _parameter_constraints: dict = {}

    def __init__(self, error=None, verbose=0):
        self.error = error
        self.verbose = verbose

    @fit_method
    def fit(self, X, y=None):
        self.n_features_in_ = X.shape[1]
        with FitProgress(self, total=10, X=X, y=y) as progress:
            for step in range(10):
                progress.begin()
                self.n_steps_ = step + 1
                if step == 5 and self.error is not None:
                    raise self.error
                if progress.step(loss=1 / (step + 1)):
                    break
        return self


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("no")])
def test_a_stopped_fit_leaves_the_estimator_as_it_was(error):
    model = Stepper(error=error)
    with pytest.raises(type(error)):
        model.fit(X)
    assert vars(model) == {"error": error, "verbose": 0}
    model.error = None
    model.fit(X)
    model.error = error
    with pytest.raises(type(error)):
        model.fit(X[:, :2])
    assert model.n_features_in_ == 3
    assert model.n_steps_ == 10


def test_bar_on_a_terminal_only_and_only_if_verbose(monkeypatch):
    for verbose, stream, shown in [
        (1, Terminal(), True),
        (1, io.StringIO(), False),
        (0, Terminal(), False),
    ]:
        monkeypatch.setattr(sys, "stderr", stream)
        Stepper(verbose=verbose).fit(X)
        GMMLTransformer(verbose=verbose).fit(X, y)
        assert bool(stream.getvalue()) == shown
        if shown:
            assert "Stepper: 100%" in stream.getvalue()
            assert "loss=0.1" in stream.getvalue()
            assert "GMMLTransformer: 100%" in stream.getvalue()


class Recorder:
    """A callback of scikit-learn's that writes down what it sees."""

    max_propagation_depth = None

    def __init__(self, stop_after=None):
        self.stop_after = stop_after
        self.events = []

    def setup(self, estimator, context):
        self.events.append("setup")

    def on_fit_task_begin(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context):
        self.events.append((type(estimator).__name__, context.task_name))
        return context.task_id + 1 == self.stop_after

    def teardown(self, estimator, context):
        self.events.append("teardown")


needs_callbacks = pytest.mark.skipif(
    not HAS_CALLBACKS, reason="scikit-learn before 1.9 has no callbacks"
)


@needs_callbacks
def test_callbacks_see_every_step_and_are_torn_down():
    recorder = Recorder()
    GMMLTransformer().set_callbacks(recorder).fit(X, y)
    assert recorder.events == [
        "setup",
        *[("GMMLTransformer", "step")] * 3,
        ("GMMLTransformer", "fit"),
        "teardown",
    ]
    recorder = Recorder()
    with pytest.raises(ValueError, match="no"):
        Stepper(error=ValueError("no")).set_callbacks(recorder).fit(X)
    assert recorder.events[-1] == "teardown"


@needs_callbacks
def test_a_callback_can_stop_the_fit():
    assert Stepper().set_callbacks(Recorder(stop_after=4)).fit(X).n_steps_ == 4


@needs_callbacks
def test_callbacks_reach_into_pipelines_and_searches():
    recorder = Recorder()
    pipeline = make_pipeline(GMMLTransformer(random_state=0), KNeighborsClassifier())
    search = GridSearchCV(pipeline, {"gmmltransformer__reg": [0.1, 1]}, cv=2)
    with pytest.warns(UserWarning, match="KNeighborsClassifier does not support callbacks"):
        search.set_callbacks(recorder).fit(X, y)
    steps = recorder.events.count(("GMMLTransformer", "step"))
    assert steps == 3 * (2 * 2 + 1)  # every candidate and fold, and the refit


@needs_callbacks
def test_scikit_learns_progress_bar(capsys):
    pytest.importorskip("rich")
    from sklearn.callback import ProgressBar

    pipeline = make_pipeline(GMMLTransformer(random_state=0))
    pipeline.set_callbacks(ProgressBar()).fit(X, y)
    assert "GMMLTransformer" in capsys.readouterr().out
