"""Checks of scikit-learn's callbacks: order of tasks, and intermediate models."""

from __future__ import annotations

import sys
from typing import Any

from ._checks_common import assert_same, fit, fresh, learned, only_for, outputs
from ._sklearn import HAS_CALLBACKS

# Packages whose calls are the work of a task, as are those of the estimator's own module; and
# modules of them that report it.
_WORKING = ("skdml", "sklearn", "numpy", "scipy", "torch", "skorch")
_REPORTING = ("sklearn.callback", "skdml.utils._fit", __name__)


class _Recorder:
    """A callback that notes when tasks begin and end, and how much was called before."""

    def __init__(self, estimator: Any) -> None:
        self.events: list[tuple[str, int | None, int]] = []
        self.n_calls = 0
        self._working = (*_WORKING, type(estimator).__module__)

    def setup(self, estimator: Any, context: Any) -> None:
        """Begin a fit."""
        self.events.append(("setup", None, 0))

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        """Note a task that begins."""
        self._note("begin", context)

    def on_fit_task_end(self, estimator: Any, context: Any) -> None:
        """Note a task that ends."""
        self._note("end", context)

    def teardown(self, estimator: Any, context: Any) -> None:
        """End a fit."""
        self.events.append(("teardown", None, 0))

    def _note(self, what, context):
        number = None if context.parent is None else context.task_id
        self.events.append((what, number, self.n_calls))

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

    def on_fit_task_end(
        self, estimator: Any, context: Any, *, fitted_estimator: Any = None
    ) -> None:
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
    assert [event[0] for event in (events[0], events[-1])] == ["setup", "teardown"]
    inner = events[1:-1]
    assert [event[:2] for event in (inner[0], inner[-1])] == [("begin", None), ("end", None)], (
        "the task of the whole fit does not begin first and end last"
    )
    tasks = inner[1:-1]
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
