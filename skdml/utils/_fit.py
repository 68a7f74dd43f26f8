"""What every `fit` shares: validated parameters, all or nothing, and visible progress."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, Self, TypeVar, cast

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


class FitProgress:
    """Progress of one fit: a bar on stderr if `verbose`, and scikit-learn's callbacks.

    Use as a context manager inside a `fit_method`, one `step` per finished unit of work::

        with FitProgress(self, total=max_iter, X=X, y=y) as progress:
            for _ in range(max_iter):
                ...
                if progress.step(loss=loss):
                    break  # a callback asked to stop

    Parameters
    ----------
    estimator : estimator instance
        The estimator being fitted; its `verbose` decides about the bar.
    total : int or None
        The number of steps if it is known.
    X, y : array-like, default=None
        The training data, handed to the callbacks.
    description : str, default="iteration"
        What one step is.
    """

    def __init__(
        self,
        estimator: Any,
        total: int | None = None,
        X: Any = None,
        y: Any = None,
        description: str = "iteration",
    ) -> None:
        self.estimator = estimator
        self.total = total
        self.description = description
        self._data = {"X": X, "y": y}

    def __enter__(self) -> Self:
        self._context = None
        if HAS_CALLBACKS:
            self._context = self.estimator._init_callback_context(max_subtasks=self.total)
            self._context.call_on_fit_task_begin(estimator=self.estimator, **self._data)
        self._bar = None
        if getattr(self.estimator, "verbose", 0):
            from tqdm import tqdm

            # disable=None: silent when stderr is not a terminal
            self._bar = tqdm(
                total=self.total,
                desc=type(self.estimator).__name__,
                unit=self.description,
                disable=None,
            )
        return self

    def step(self, attributes: Callable[[], dict[str, Any]] | None = None, **figures: Any) -> bool:
        """Count one finished unit of work.

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
        stop = False
        if self._context is not None:
            task = self._context.subcontext(task_name=self.description)
            task.call_on_fit_task_begin(estimator=self.estimator, **self._data)
            stop = task.call_on_fit_task_end(
                estimator=self.estimator, reconstruction_attributes=attributes, **self._data
            )
        if self._bar is not None:
            if figures:
                self._bar.set_postfix(figures, refresh=False)
            self._bar.update()
        return stop

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> Literal[False]:
        if self._bar is not None:
            self._bar.close()
        if self._context is not None and exc_type is None:
            self._context.call_on_fit_task_end(
                estimator=self.estimator, reconstruction_attributes={}, **self._data
            )
        return False
