"""What runs around a training: fit decorator, history, progress reporting, numpy optimiser."""

from __future__ import annotations

import copy
import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ._sklearn import HAS_CALLBACKS, _fit_context

Function = TypeVar("Function", bound=Callable[..., Any])


def fit_method(fit: Function) -> Function:
    """Decorate `fit`: validate the parameters, and leave the estimator whole if it stops.

    Whatever ends the fit early (an error, Ctrl-C), the estimator is put back as it was before:
    unfitted, or fitted as the last complete fit left it. Also closes scikit-learn's callbacks.
    """
    validated = _fit_context(prefer_skip_nested_validation=True)(fit)

    @functools.wraps(fit)
    def wrapper(estimator: Any, *args: Any, **kwargs: Any) -> Any:
        before = dict(vars(estimator))
        try:
            return validated(estimator, *args, **kwargs)
        except BaseException:
            vars(estimator).clear()
            vars(estimator).update(before)
            raise

    return cast(Function, wrapper)


def copy_part(name: str, value: Any) -> Any:
    """Return a copy of a part that was given as an object, so that fit does not change it.

    Parameters
    ----------
    name : str
        The parameter of the estimator, named in errors.
    value : object
        Its value; classes and functions are returned as they are.

    Returns
    -------
    copy : object
        For training.
    """
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise TypeError(
            f"{name} cannot be copied ({error}), and fit trains a copy: pass a class or a function "
            "in its place."
        ) from error


def record(history: dict[str, list], start: float, **figures: Any) -> None:
    """Append the figures of one round to a history, with the seconds since `start`.

    Parameters
    ----------
    history : dict of str to list
        What becomes `history_`: one entry per round in each list.
    start : float
        ``time.perf_counter()`` at the beginning of training.
    **figures : numbers
        Such as ``loss=0.3``, the same names in every round.
    """
    for name, value in {**figures, "seconds": time.perf_counter() - start}.items():
        history.setdefault(name, []).append(value)


# Fitted attributes as they would be if fit stopped here.
Attributes: TypeAlias = Callable[[], dict[str, Any]]


class Progress:
    """Where units of work are reported; this class reports nothing."""

    def begin(self) -> None:
        """Begin a unit of work."""

    def step(self, attributes: Attributes | None = None, **figures: Any) -> bool:
        """End a unit of work; return whether to stop."""
        return False


class FitProgress(Progress):
    """Progress of one fit: a bar on stderr if `verbose`, and scikit-learn's callbacks.

    Use as a context manager inside a `fit_method`, around everything that sets a fitted attribute:
    at its end, callbacks may use the estimator. `begin` comes before a unit of work and `step`
    after it::

        with FitProgress(self, total=max_iter, X=X, y=y) as progress:
            for _ in range(max_iter):
                progress.begin()
                ...
                if progress.step(lambda: {"coef_": coef}, loss=loss):
                    break  # a callback asked to stop

    Parameters
    ----------
    estimator : estimator instance
        The estimator being fitted; its `verbose` decides about the bar.
    total : int or None
        The number of steps if it is known.
    X, y : array-like, default=None
        The training data as the user gave it, handed to the callbacks.
    description : str, default="iteration"
        What one step is.
    **metadata : array-like
        What else `fit` was given and `score` takes, such as `qid`; None is left out.
    """

    def __init__(
        self,
        estimator: Any,
        total: int | None = None,
        X: Any = None,
        y: Any = None,
        description: str = "iteration",
        **metadata: Any,
    ) -> None:
        self.estimator = estimator
        self.total = total
        self.description = description
        metadata = {name: value for name, value in metadata.items() if value is not None}
        self._data = {"X": X, "y": y, "metadata": metadata or None}
        self._context: Any = None
        self._task: Any = None
        self._bar: Any = None

    def __enter__(self) -> Self:
        if HAS_CALLBACKS:
            self._context = self.estimator._init_callback_context(max_subtasks=self.total)
            self._context.call_on_fit_task_begin(estimator=self.estimator, **self._data)
        if getattr(self.estimator, "verbose", 0):
            from tqdm import tqdm

            # disable=None: silent when stderr is not a terminal
            name = type(self.estimator).__name__
            self._bar = tqdm(total=self.total, desc=name, unit=self.description, disable=None)
        return self

    def begin(self) -> None:
        """Begin a unit of work."""
        if self._context is not None:
            self._task = self._context.subcontext(task_name=self.description)
            self._task.call_on_fit_task_begin(estimator=self.estimator, **self._data)

    def step(self, attributes: Attributes | None = None, **figures: Any) -> bool:
        """End the unit of work that `begin` began.

        Parameters
        ----------
        attributes : callable, default=None
            Returns the fitted attributes as they would be if fit stopped here, for callbacks
            that evaluate the model on the way.
        **figures : numbers
            Shown beside the bar, such as ``loss=0.3``.

        Returns
        -------
        stop : bool
            Whether a callback asks to stop.
        """
        if self._context is not None and self._task is None:
            raise RuntimeError("step ends what begin has begun: call begin before the work.")
        stop = self._end_task(attributes)
        if self._bar is not None:
            if figures:
                self._bar.set_postfix(figures, refresh=False)
            self._bar.update()
        return stop

    def note(self, message: str) -> None:
        """Tell the user something, above the bar, if `verbose`."""
        if self._bar is not None and not self._bar.disable:
            self._bar.write(f"{type(self.estimator).__name__}: {message}", file=sys.stderr)

    def _end_task(self, attributes):
        if self._task is None:
            return False
        task, self._task = self._task, None
        return task.call_on_fit_task_end(
            estimator=self.estimator, reconstruction_attributes=attributes, **self._data
        )

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> Literal[False]:
        if self._bar is not None:
            self._bar.close()
        if self._context is not None and exc_type is None:
            self._end_task(None)  # one that broke off, such as an epoch whose loss was not finite
            self._context.call_on_fit_task_end(
                estimator=self.estimator, reconstruction_attributes={}, **self._data
            )
        return False


class Adam:
    """Adam with the usual decay rates, 0.9 and 0.999.

    Parameters
    ----------
    parameters : sequence of ndarray
        Where to start; the arrays themselves are not changed.
    eps : float
        Added to the root of the second moment.
    """

    def __init__(self, parameters: Sequence[NDArray], eps: float) -> None:
        self.parameters = list(parameters)
        self._eps = eps
        self._first = [np.zeros_like(value) for value in parameters]
        self._second = [np.zeros_like(value) for value in parameters]
        self.n_steps = 0

    def step(self, gradients: Sequence[NDArray], lr: float) -> None:
        """Go one step down; the parameters become new arrays."""
        self.n_steps = t = self.n_steps + 1
        for i, gradient in enumerate(gradients):
            first = self._first[i] = 0.9 * self._first[i] + 0.1 * gradient
            second = self._second[i] = 0.999 * self._second[i] + 0.001 * gradient * gradient
            size = np.sqrt(second / (1 - 0.999**t)) + self._eps
            self.parameters[i] = self.parameters[i] - lr * first / (1 - 0.9**t) / size
