"""What the fuzzer calls: for each target, how valid input is drawn and what is done with it."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.fuzz import inputs
from tests.fuzz.judge import Case, Step

NAMES = ("RandomState", "Seed")  # as scikit-learn and numpy call a seed


class Target(NamedTuple):
    """A function or an estimator.

    `draw` takes a generator of random numbers and a folder for files. `share` is how often it is
    tried, beside others.
    """

    name: str
    draw: Callable[[np.random.Generator, Path], Case]
    share: float
    needs: tuple[str, ...] = ()


TARGETS: list[Target] = []


def target(share, *needs):
    """Register a function that draws cases."""

    def register(draw):
        TARGETS.append(Target(draw.__name__, draw, share, needs))
        return draw

    return register


def choose(rng, choices, share=0.4):
    """Set some of the parameters to some of their values."""
    return {
        name: values[rng.integers(len(values))]
        for name, values in choices.items()
        if rng.random() < share
    }


def arguments_of(function):
    return tuple(name for name in inspect.signature(function).parameters if name != "self")


def call_case(function, arguments, kinds, parameters, **options):
    """Return a case that calls a function once."""
    may_have_nan = options.pop("may_have_nan", False)
    names = arguments_of(function)
    settable = tuple(name for name in names if name not in kinds)
    case = Case(arguments, kinds, parameters, (*names, *NAMES), settable, [], **options)
    step = Step("call", lambda _, given: function(**given, **case.parameters), may_have_nan)
    case.steps.append(step)
    return case


def supervised(rng):
    """Draw labelled rows, pairs of them, and other rows."""
    X, y = inputs.rows(rng)
    test, y_test = inputs.rows(rng, 10, X.shape[1])
    pairs = rng.integers(len(X), size=(30, 2))
    values = {"X": X, "y": y, "test": test, "y_test": y_test, "pairs": pairs}
    values["pair_labels"] = np.where(y[pairs[:, 0]] == y[pairs[:, 1]], 1, -1)
    values["test_pairs"] = rng.integers(10, size=(5, 2))
    values["vectors"] = rng.standard_normal((5, 2, X.shape[1]))
    kinds = {"X": "matrix", "y": "labels", "test": "matrix", "y_test": "labels"}
    kinds |= {"pairs": "indices", "pair_labels": "numbers"}
    kinds |= {"test_pairs": "indices", "vectors": "clouds"}
    return values, kinds


def part(values, *names):
    return {name: values[name] for name in names}
