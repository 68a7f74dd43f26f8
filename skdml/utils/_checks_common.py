"""Shared parts of the estimator checks: small data, fits, outputs and assertions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils import get_tags

N_SAMPLES, N_FEATURES, N_CLASSES = 40, 5, 3

ROW_METHODS = ("transform", "transform_database", "predict", "predict_proba", "decision_function")


class Data(NamedTuple):
    """Rows, class labels (or relevance grades) and queries."""

    X: Any
    y: Any
    qid: Any

    def take(self, rows: Any) -> Data:
        """Return the same rows of each part."""
        return Data(self.X[rows], self.y[rows], self.qid[rows])


def make_data(seed: int = 0) -> Data:
    """Make new arrays of three overlapping classes; the rows of a query are neighbours."""
    y = np.arange(N_SAMPLES) % N_CLASSES
    X = np.random.default_rng(seed).standard_normal((N_SAMPLES, N_FEATURES))
    X += 2 * np.eye(N_CLASSES, N_FEATURES)[y]
    return Data(X, y, query_ids(N_SAMPLES))


def query_ids(n_samples: int) -> NDArray:
    """Give queries of five rows each."""
    return np.arange(n_samples) // 5


# Properties of an estimator


def accepts(method: Callable[..., Any], parameter: str) -> bool:
    """Tell whether a function or method has a parameter of that name."""
    found = inspect.signature(method).parameters.get(parameter)
    return found is not None and found.kind is not found.VAR_KEYWORD


def takes_pairs(estimator: Any) -> bool:
    """Tell whether `fit` has `pairs` and `pair_labels`, beside rows."""
    return accepts(estimator.fit, "pairs") and accepts(estimator.fit, "pair_labels")


def takes_pair_samples(estimator: Any) -> bool:
    """Tell whether a sample is a pair of rows: by the tags, of three dimensions and not two."""
    tags = get_tags(estimator).input_tags
    return tags.three_d_array and not tags.two_d_array


def takes_qid(estimator: Any) -> bool:
    """Tell whether `fit` has `qid`, the query of each row."""
    return accepts(estimator.fit, "qid")


def requires_target(estimator: Any) -> bool:
    """Tell whether `fit` cannot do without y (or pairs)."""
    return accepts(estimator.fit, "y") and get_tags(estimator).target_tags.required


def takes_classes(estimator: Any) -> bool:
    """Tell whether y is a class label, not the grade of a ranker or the number of a regression."""
    is_number = get_tags(estimator).regressor_tags is not None
    return requires_target(estimator) and not takes_qid(estimator) and not is_number


def only_for(applies: Callable[[Any], bool]) -> Callable[[Callable], Callable]:
    """Decorate a check that concerns only the estimators for which `applies` is true."""

    def decorate(check: Any) -> Any:
        check.applies = applies
        return check

    return decorate


# Fits and outputs


def index_pairs(data: Data) -> tuple[NDArray, NDArray]:
    """Pair each row with its three next ones: index pairs, and +1 where the class is the same."""
    n_rows = len(data.y)
    first = np.repeat(np.arange(n_rows), 3)
    pairs = np.column_stack([first, (first + np.tile([1, 2, 3], n_rows)) % n_rows])
    return pairs, np.where(data.y[pairs[:, 0]] == data.y[pairs[:, 1]], 1, -1)


def fresh(estimator: Any, **params: Any) -> Any:
    """Clone, with a fixed seed."""
    model = clone(estimator)
    if "random_state" in model.get_params():
        params = {"random_state": 0, **params}
    return model.set_params(**params)


def fit_arguments(model: Any, data: Data | None = None, **changes: Any) -> dict[str, Any]:
    """Collect what `model.fit` takes: X, and y and qid if it has them, with the changes."""
    data = make_data() if data is None else data
    if takes_pair_samples(model):
        pairs, labels = index_pairs(data)
        samples = next(iter(inspect.signature(model.fit).parameters))
        return {samples: data.X[pairs], "y": labels} | changes
    arguments = {name: value for name, value in data._asdict().items() if accepts(model.fit, name)}
    if changes.get("pairs") is not None:
        arguments["y"] = None
    return arguments | changes


def fit(model: Any, data: Data | None = None, **changes: Any) -> Any:
    """Fit the model on what its `fit` takes."""
    return model.fit(**fit_arguments(model, data, **changes))


def learned(estimator: Any, data: Data | None = None, **changes: Any) -> dict[str, Any]:
    """Return the outputs of a fresh clone that is fitted on the data."""
    return outputs(fit(fresh(estimator), data, **changes))


def calls(model: Any, X: Any = None) -> dict[str, Callable[[], Any]]:
    """Return the output methods of a model by name, each as a function without arguments."""
    X = make_data().X if X is None else X
    found: dict[str, Callable[[], Any]] = {}
    if takes_pair_samples(model):
        pairs = np.stack([X[:-1], X[1:]], axis=1)
        methods = (*ROW_METHODS, "pair_distance", "pair_score")
        return {n: partial(getattr(model, n), pairs) for n in methods if hasattr(model, n)}
    for name in ROW_METHODS:
        if hasattr(model, name):
            method = getattr(model, name)
            found[name] = partial(method, X, **with_qid(method, query_ids(len(X))))
    if hasattr(model, "pair_distance"):
        sides = X[:-1], X[1:]
        pairs = [np.stack(sides, axis=1)] if accepts(model.pair_distance, "pairs") else sides
        found["pair_distance"] = partial(model.pair_distance, *pairs)
    if hasattr(model, "get_metric"):
        found["get_metric"] = lambda: np.array([model.get_metric()(X[0], x) for x in X[:5]])
    if hasattr(model, "get_mahalanobis_matrix"):
        found["get_mahalanobis_matrix"] = model.get_mahalanobis_matrix
    if hasattr(model, "sample"):
        found["sample"] = partial(model.sample, 6, random_state=0)
    return found


def with_qid(method: Callable[..., Any], qid: Any) -> dict[str, Any]:
    """Give the keyword argument `qid` to a method that has it."""
    return {"qid": qid} if accepts(method, "qid") else {}


def outputs(model: Any, X: Any = None) -> dict[str, Any]:
    """Call every output method of a fitted model: an array per method."""
    return {name: np.asarray(call()) for name, call in calls(model, X).items()}


# Assertions


def assert_same(actual: Any, expected: Any, what: str) -> None:
    """Compare two results of `outputs`, up to rounding."""
    assert actual.keys() == expected.keys(), f"{what}: the methods differ"
    for name in expected:
        assert_close(actual[name], expected[name], f"{name}: {what}")


def assert_close(actual: Any, expected: Any, what: str, tolerance: float = 1e-5) -> None:
    """Compare arrays; `tolerance` is in units of the largest expected number."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, not {expected.shape}"
    if expected.dtype.kind != "f":
        assert np.array_equal(actual, expected), f"{what}: {actual}, not {expected}"
        return
    difference, scale = (np.abs(a).max(initial=0) for a in (actual - expected, expected))
    found = f"a difference of {difference:.3g} where numbers are up to {scale:.3g}"
    assert difference <= tolerance * scale, f"{what}: {found}"


def assert_valid(model: Any, what: str) -> None:
    """See that every output is finite, and a Mahalanobis matrix symmetric and semi-definite."""
    results = outputs(model)
    assert results, f"{type(model).__name__} has no output method that the checks know"
    for name, value in results.items():
        if value.dtype.kind == "f":
            assert np.isfinite(value).all(), f"{name} is not finite {what}"
    A = results.get("get_mahalanobis_matrix")
    if A is not None:
        assert_close(A, A.T, f"the Mahalanobis matrix is not symmetric {what}", 1e-10)
        smallest, *_, largest = np.linalg.eigvalsh(A)
        wrong = f"not positive semi-definite {what}, with an eigenvalue of {smallest:.3g}"
        assert smallest >= -1e-8 * abs(largest), f"the Mahalanobis matrix is {wrong}"


def assert_raises(
    call: Any, what: str, name: str = "", *patterns: str, error: Any = ValueError
) -> None:
    """See that a call raises an error which names a parameter and a problem.

    Parameters
    ----------
    call : callable
        Called without arguments.
    what : str
        What is wrong, for the message of the check.
    name : str
        A word of the error's message; of "a|b", one of the words.
    *patterns : str
        Regular expressions that the message must have, too.
    error : type or tuple of types, default=ValueError
        The error.
    """
    try:
        call()
    except error as caught:
        message = str(caught)
    else:
        raise AssertionError(f"{what} gave no error")
    patterns = (rf"\b({name})\b", *patterns)
    missing = [pattern for pattern in patterns if not re.search(pattern, message)]
    assert not missing, f"{what}: the message does not say {missing}: {message[:300]!r}"


def assert_refused(
    estimator: Any, what: str, *patterns: str, error: Any = ValueError, **changes: Any
) -> None:
    """See that a fit on the usual data with these changes raises; see `assert_raises`."""
    call = partial(fit, fresh(estimator), **changes)
    assert_raises(call, f"fit on {what}", *patterns, error=error)
