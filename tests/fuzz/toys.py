"""Estimators that are wrong in one way each, for tests of the fuzzer."""

import os
import time
import warnings

import numpy as np

from tests.fuzz.cases import Target
from tests.fuzz.judge import Case, Step


class Right:
    """Refuses NaN, and does nothing wrong."""

    def fit(self, X):
        if np.isnan(X).any():
            raise ValueError("X contains NaN: fill it in, or drop the rows.")
        self.mean_ = X.mean(axis=0)
        return self

    def transform(self, X):
        return X - self.mean_


class WrongException(Right):
    def fit(self, X):
        raise KeyError("X is not what it should be")


class LinearAlgebra(Right):
    def fit(self, X):
        raise np.linalg.LinAlgError("X is a singular matrix, it seems")


class Vague(Right):
    def fit(self, X):
        raise ValueError("this is bad input, which cannot be used")


class Short(Right):
    def fit(self, X):
        raise ValueError("bad X")


class Foreign(Right):
    def fit(self, X):
        raise ValueError("operands could not be broadcast together: X")


class ReturnsNaN(Right):
    def transform(self, X):
        return X * np.nan


class KeepsInfinity(Right):
    def fit(self, X):
        self.scale_ = np.inf
        return super().fit(X)


class LeaksWarnings(Right):
    def transform(self, X):
        return np.where(X > 0, 1, np.zeros(X.shape) / (X - X))


class WritesIntoRows(Right):
    def transform(self, X):
        X -= self.mean_
        return X


class LeavesAttributes(Right):
    def fit(self, X):
        self.n_features_in_ = X.shape[1]
        raise ValueError("X cannot be used, whatever it is")


class Slow(Right):
    def transform(self, X):
        time.sleep(0.1)
        return X


class WarnsOfNaN(Right):
    """NaN with a warning is no defect."""

    def transform(self, X):
        warnings.warn("X is far from the rows of fit: NaN is returned")
        return X * np.nan


class Endless(Right):
    def fit(self, X):
        while True:
            pass


class Dies(Right):
    def fit(self, X):
        os._exit(3)


def make_case(cls, value=1.0):
    """Return a case of a toy."""
    steps = [Step("fit", lambda toy, given: toy.fit(given["X"]) and None)]
    steps.append(Step("transform", lambda toy, given: toy.transform(given["X"])))
    X = value + np.arange(6.0).reshape(3, 2)
    return Case({"X": X}, {"X": "matrix"}, {}, ("X",), (), steps, make=cls)


def draw_right(rng, folder):
    return make_case(Right)


def draw_endless(rng, folder):
    return make_case(Endless)


def draw_dies(rng, folder):
    return make_case(Dies)


TARGETS = [
    Target("right", draw_right, 1),
    Target("endless", draw_endless, 1),
    Target("dies", draw_dies, 1),
]
