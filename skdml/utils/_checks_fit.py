"""Checks of fit: seeds, copies, side effects, interruption, pipelines and callbacks."""

from __future__ import annotations

import importlib.util
import io
import linecache
import os
import pickle
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from functools import partialmethod
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from ..constraints import make_pairs
from ._checks_common import (
    Data,
    accepts,
    assert_same,
    fit,
    fit_arguments,
    fresh,
    learned,
    make_data,
    only_for,
    outputs,
    query_ids,
    takes_pair_samples,
    takes_pairs,
)
from ._sklearn import HAS_CALLBACKS

# Seeds


def check_same_seed_same_result(estimator: Any) -> None:
    """Two fits with one seed agree: of two clones, and of one estimator fitted twice."""
    model = fit(fresh(estimator))
    expected = outputs(model)
    assert_same(learned(estimator), expected, "a clone with the same seed differs")
    assert_same(outputs(fit(model)), expected, "a second fit of the same estimator differs")


@only_for(lambda estimator: "random_state" in estimator.get_params())
def check_global_random_state(estimator: Any) -> None:
    """Seeded fits leave the global random states of numpy and torch alone."""
    before = _random_states()
    model = fit(fresh(estimator))
    outputs(model)
    for package, state in _random_states().items():
        assert before.get(package, state) == state, f"fit changed {package}'s global random state"


def _random_states():
    states = {"numpy": joblib.hash(np.random.get_state())}  # noqa: NPY002
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = joblib.hash(torch.get_rng_state().numpy())
    return states


def check_fits_in_threads(estimator: Any) -> None:
    """Fits at the same time in threads of one process give what they give one after the other."""
    seeded = "random_state" in estimator.get_params()
    params = [{"random_state": seed} if seeded else {} for seed in range(4)]
    with warnings.catch_warnings():  # which is not for threads either
        warnings.simplefilter("ignore")
        expected = [outputs(fit(fresh(estimator, **own))) for own in params]
        with ThreadPoolExecutor(4) as threads:
            models = list(threads.map(lambda own: fit(fresh(estimator, **own)), params))
        for model, alone in zip(models, expected, strict=True):
            assert_same(outputs(model), alone, "in threads")


# Copies


def check_params_survive(estimator: Any) -> None:
    """get_params, set_params, fit and clone keep the parameters; a clone is not fitted."""
    model = fresh(estimator)
    params = joblib.hash(model.get_params())
    model.set_params(**model.get_params(deep=False))
    assert joblib.hash(model.get_params()) == params, "set_params(**get_params()) changed them"
    fit(model)
    assert joblib.hash(model.get_params()) == params, "fit changed the parameters"
    copy = clone(model)
    assert joblib.hash(copy.get_params()) == params, "clone changed the parameters"
    assert not _is_fitted(copy), "the clone of a fitted estimator is fitted"


@only_for(lambda estimator: importlib.util.find_spec("torch") is not None)
def check_objects_are_left_alone(estimator: Any) -> None:
    """Objects given as parameters are not changed by fit, so that a second fit gives the same."""
    from ._checks_parts import objects_for, state_of  # needs torch

    for params in objects_for(estimator):
        # set, not cloned: fit must see these objects
        model = clone(estimator).set_params(**{**params, "random_state": 0})
        before = state_of(params)
        names = " and ".join(params)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = outputs(fit(model))
            assert state_of(params) == before, f"fit changed the object given as {names}"
            assert_same(outputs(fit(model)), expected, f"a second fit with the same {names}")


def check_pickle(estimator: Any) -> None:
    """Pickled and unpickled, the model gives the same output."""
    model = fit(fresh(estimator))
    assert_same(outputs(pickle.loads(pickle.dumps(model))), outputs(model), "after unpickling")


_FRESH_PROCESS = """
import pickle, sys
from skdml.utils._checks_common import outputs
answer, sys.stdout = sys.stdout.buffer, sys.stderr
pickle.dump(outputs(*pickle.load(sys.stdin.buffer)), answer)
"""


def check_pickle_in_a_fresh_process(estimator: Any) -> None:
    """Unpickled in a process that has never seen the data, the model gives the same output."""
    model, X = fit(fresh(estimator)), make_data(seed=1).X
    # where this process finds its modules, the new one does too
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)
    command, sent = [sys.executable, "-c", _FRESH_PROCESS], pickle.dumps((model, X))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, input=sent, env=environment, capture_output=True, timeout=300)
    assert done.returncode == 0, f"the fresh process failed:\n{done.stderr.decode()}"
    assert_same(pickle.loads(done.stdout), outputs(model, X), "in a fresh process")


# Data


def check_data_is_left_alone(estimator: Any) -> None:
    """Neither fit nor any other method writes into the arrays it is given."""
    data = make_data()
    cases = [fit_arguments(estimator, data)]
    if takes_pairs(estimator):
        pairs, pair_labels = make_pairs(data.y, 100, random_state=0)
        cases.append({"X": data.X, "pairs": pairs[:, ::-1].copy(), "pair_labels": pair_labels})
    for arguments in cases:
        before = {name: value.copy() for name, value in arguments.items()}
        model = fresh(estimator).fit(**arguments)
        for name, value in arguments.items():
            assert np.array_equal(value, before[name]), f"fit changed {name}"
        X = make_data(seed=1).X
        outputs(model, X)
        assert np.array_equal(X, make_data(seed=1).X), "a method changed its X"


def check_training_data_is_not_needed(estimator: Any) -> None:
    """After fit, the training data may be overwritten: the model stays the same."""
    rows = make_data().X
    trainings = [rows, rows.astype(np.float32)]
    if get_tags(estimator).input_tags.sparse:
        # fewer rows than columns, too: linear learners may keep combinations of rows
        wide = np.random.default_rng(0).standard_normal((18, 30))
        trainings += [wide, sparse.csr_array(np.where(wide > 0, wide, 0))]
    for X in trainings:
        queries = np.random.default_rng(1).standard_normal((10, X.shape[1]))
        data = Data(X, np.arange(X.shape[0]) % 3, query_ids(X.shape[0]))
        model = fit(fresh(estimator), data)
        expected = outputs(model, queries)
        for values in (X.data if sparse.issparse(X) else X, data.y, data.qid):
            values[:] = 7
        what = f"{type(X).__name__} of {X.dtype}, {X.shape[0]} x {X.shape[1]}"
        assert_same(outputs(model, queries), expected, f"after {what} was overwritten")


# Interruption

# Where a fit spends its time. Code of other packages may run in callbacks of C libraries, where
# Python swallows exceptions.
_LOOPS = {"skdml", "sklearn", "skorch", "torch"}
# Not interrupted: an exception is swallowed here, or leaves global settings of a library changed.
_SHELTERED = {"__del__", "__enter__", "__exit__", "<genexpr>"}


def check_keyboard_interrupt(estimator: Any) -> None:
    """Ctrl-C during fit gets through, and leaves the estimator as it was before."""
    fitted = fit(fresh(estimator), make_data(seed=1))
    expected = outputs(fitted)
    uninterrupted = fresh(estimator)
    n_events = _run_fit(uninterrupted)
    interrupted = None
    for fraction in (0.4, 1.0):
        at = max(1, round(fraction * n_events))
        where = f"after an interruption at {fraction:.0%} of fit"
        model = fresh(estimator)
        before = set(vars(model))
        if _run_fit(model, at) < at:
            continue  # this fit took fewer steps than the one that was counted
        left = sorted(set(vars(model)) - before)
        assert not left, f"attributes are left {where}: {left}"
        assert not _is_fitted(model), f"check_is_fitted passes {where}"
        interrupted = model
        again = pickle.loads(pickle.dumps(fitted))
        if _run_fit(again, at) >= at:
            assert_same(outputs(again), expected, f"the earlier fit is not kept {where}")
    assert interrupted is not None, "fit could not be interrupted"
    assert_same(outputs(fit(interrupted)), outputs(uninterrupted), f"a new fit differs {where}")


def _run_fit(model, at=None):
    """Fit, with Ctrl-C at event number `at`, and return the number of events.

    Events are calls of functions in `_LOOPS`, and lines of this package and the model's own.
    """
    arguments = fit_arguments(model)
    own = {"skdml", _package(type(model).__module__)}
    count, raised = 0, False

    def on_event(frame, event, _):
        nonlocal count, raised
        package = _package(frame.f_globals.get("__name__") or "")
        if event in ("call", "line") and package in own | _LOOPS and not _is_sheltered(frame):
            count += 1
            if count == at:
                raised = True
                raise KeyboardInterrupt
        return on_event if package in own else None

    before = sys.gettrace()
    returned = False
    try:
        sys.settrace(on_event)
        model.fit(**arguments)
        returned = True
    except KeyboardInterrupt:
        if not raised:
            raise
    finally:
        sys.settrace(before)
    assert not (raised and returned), "fit swallowed KeyboardInterrupt, and returned"
    return count


def _package(module):
    return module.partition(".")[0]


def _is_sheltered(frame):
    # The line of a `with` comes up once more when its block is done: an exception just there keeps
    # Python from closing the block, whatever the code is like.
    if linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with "):
        return True
    while frame is not None and frame.f_code is not _run_fit.__code__:
        if frame.f_code.co_name in _SHELTERED:
            return True
        frame = frame.f_back
    return False


def _is_fitted(model):
    try:
        check_is_fitted(model)
    except NotFittedError:
        return False
    return True


# Surroundings


def check_silence(estimator: Any) -> None:
    """Nothing is written to stdout, nor to a stderr that is not a terminal, whatever `verbose`."""
    for verbose in (0, 1):
        params = {"verbose": verbose} if "verbose" in estimator.get_params() else {}
        stdout, stderr = io.StringIO(), io.StringIO()
        with warnings.catch_warnings(), redirect_stdout(stdout), redirect_stderr(stderr):
            warnings.simplefilter("ignore")
            outputs(fit(fresh(estimator, **params)))
        for name, stream in (("stdout", stdout), ("stderr", stderr)):
            text = stream.getvalue()
            assert not text, f"with {params} this was written to {name}: {text[:200]!r}"


@only_for(lambda estimator: not takes_pair_samples(estimator))
def check_pipeline(estimator: Any) -> None:
    """In a pipeline with a scaler in front, it can be fitted, cloned and searched."""
    X, y, _ = make_data()
    scored = hasattr(estimator, "score") or not hasattr(estimator, "transform")
    last = [] if scored else [KNeighborsClassifier(1)]
    pipeline = make_pipeline(StandardScaler(), fresh(estimator), *last)
    target = [y] if accepts(estimator.fit, "y") else []
    expected = outputs(clone(pipeline).fit(X, *target))
    assert_same(outputs(pipeline.fit(X, *target)), expected, "a pipeline and its clone")
    if not hasattr(pipeline, "score"):
        return
    searched = [name for name in ("random_state", "verbose") if name in estimator.get_params()]
    grid = {f"{pipeline.steps[1][0]}__{searched[0]}": [0, 1]} if searched else {}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X, *target)
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all(), f"scores of the search: {scores}"


# Callbacks

# Packages whose calls are the work of a task, as are those of the estimator's own module; and
# modules of them that report it.
_WORKING = ("skdml", "sklearn", "numpy", "scipy", "torch", "skorch")
_REPORTING = ("sklearn.callback", "skdml.utils._fit", __name__)
# Events around all others.
_WHOLE = [("setup", None), ("begin", None), ("end", None), ("teardown", None)]


class _Recorder:
    """A callback that notes when tasks begin and end, and how much was called before."""

    def __init__(self, estimator: Any) -> None:
        self.events: list[tuple[str, int | None, int]] = []
        self.n_calls = 0
        self._working = (*_WORKING, type(estimator).__module__)

    def _note(self, what: str, estimator: Any, context: Any) -> None:
        number = None if context.parent is None else context.task_id
        self.events.append((what, number, self.n_calls))

    setup = partialmethod(_note, "setup")
    on_fit_task_begin = partialmethod(_note, "begin")
    on_fit_task_end = partialmethod(_note, "end")
    teardown = partialmethod(_note, "teardown")

    def count(self, frame: Any, event: str, argument: Any) -> None:
        """Count calls, as a profile function of Python."""
        name = frame.f_globals.get("__name__") or ""
        if event == "call" and name.startswith(self._working) and not name.startswith(_REPORTING):
            self.n_calls += 1


class _Keeper(_Recorder):
    """A callback that keeps the intermediate models."""

    def __init__(self, estimator: Any) -> None:
        super().__init__(estimator)
        self.models: list[tuple[bool, Any]] = []

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        """Keep a model."""
        self.models.append((context.parent is None, fitted_estimator))


def _has_callbacks(estimator):
    return HAS_CALLBACKS and hasattr(estimator, "set_callbacks")


@only_for(_has_callbacks)
def check_callback_tasks(estimator: Any) -> None:
    """Tasks are inside the fit, one after the other, each around some work."""
    recorder = _Recorder(estimator)
    model = fresh(estimator).set_callbacks(recorder)
    sys.setprofile(recorder.count)
    try:
        fit(model)
    finally:
        sys.setprofile(None)
    events = recorder.events
    around = [event[:2] for event in events[:2] + events[-2:]]
    assert around == _WHOLE, "the task of the whole fit does not begin first and end last"
    tasks = events[2:-2]
    expected = [(what, i) for i in range(len(tasks) // 2) for what in ("begin", "end")]
    assert [event[:2] for event in tasks] == expected, "tasks do not begin and end in turn"
    for begin, end in zip(tasks[::2], tasks[1::2], strict=True):
        assert end[2] > begin[2], f"task {begin[1]} begins and ends without any work in between"


@only_for(_has_callbacks)
def check_callback_models(estimator: Any) -> None:
    """Intermediate models work, and passing them to callbacks does not change the fit."""
    keeper = _Keeper(estimator)
    expected = learned(estimator)
    model = fit(fresh(estimator).set_callbacks(keeper))
    assert_same(outputs(model), expected, "with a callback that looks at the model")
    is_whole, last = keeper.models[-1]
    assert is_whole, "the end of the whole fit is not the last task"
    assert last is not None, "no model at the end of the whole fit"
    assert_same(outputs(last), expected, "of the model at the end of fit")
    on_the_way = [found for is_whole, found in keeper.models if not is_whole and found is not None]
    if {"max_iter", "max_epochs"} & estimator.get_params().keys():
        assert on_the_way, "an estimator with iterations gives callbacks no model of any of them"
    for found in on_the_way:
        assert outputs(found).keys() == expected.keys(), "methods of a model on the way"
