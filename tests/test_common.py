"""Every public estimator: the checks of this package, and its documentation."""

import inspect
import re

import pytest

from skdml import GMMLTransformer
from skdml.utils._checks_common import fit, fresh
from skdml.utils.estimator_checks import (
    all_estimators,
    missing_estimators,
    parametrize_with_skdml_checks,
)

# Settings that make slow estimators quick enough to be fitted a hundred times.
QUICK: dict[str, dict] = {
    "AsymmetricMetricClassifier": {"max_iter": 3},
    "NeighborhoodGerrymandering": {"max_iter": 1},
    "LMNN": {"max_iter": 5, "n_passes": 2},
    "MLKR": {"max_iter": 10, "tol": 0.1},
    "DeepMetricEmbedder": {"max_epochs": 1, "n_components": 8},
    "PairClassifier": {"learner": GMMLTransformer(geodesic=0.5), "cv": 2},
    "WassersteinGenerator": {"max_iter": 5, "batch_size": 16},
    # Some of the checks have ten rows, and a row has less than that many neighbours.
    "SSDMLEmbedder": {"max_epochs": 2, "n_components": 4, "n_neighbors": 4},
}


def instances_to_test():
    return [cls(**QUICK.get(name, {})) for name, cls in all_estimators()]


every_class = pytest.mark.parametrize(
    "cls", [pytest.param(cls, id=name) for name, cls in all_estimators()]
)


def parameters_of(cls):
    return [
        name
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]


def section(cls, title):
    """The text of one section of the docstring of a class."""
    doc = inspect.getdoc(cls) or ""
    found = re.search(rf"(?ms)^{title}\n-{{{len(title)}}}\n(.*?)(?=^[^\n]+\n---|\Z)", doc)
    assert found, f"the docstring of {cls.__name__} has no section {title}"
    return found[1]


def entries(text):
    """The names that a section of a docstring describes."""
    return [
        name.strip()
        for names in re.findall(r"(?m)^(\w+(?:, \w+)*) :", text)
        for name in names.split(",")
    ]


@parametrize_with_skdml_checks(instances_to_test())
def test_skdml_check(estimator, check):
    check(estimator)


def test_no_estimator_is_missing():
    missing = [f"{name} ({reason})" for name, reason in missing_estimators()]
    if missing:
        pytest.skip("not installed, so not checked: " + ", ".join(missing))


@every_class
def test_init_stores_its_parameters_and_nothing_else(cls):
    given = {name: object() for name in parameters_of(cls)}
    stored = vars(cls(**given))
    assert stored.keys() == given.keys()
    assert all(stored[name] is given[name] for name in given)


@every_class
def test_every_parameter_is_validated(cls):
    assert set(parameters_of(cls)) <= cls._parameter_constraints.keys()


@every_class
def test_every_parameter_is_documented_in_order(cls):
    assert entries(section(cls, "Parameters")) == parameters_of(cls)


@pytest.mark.parametrize("estimator", instances_to_test(), ids=lambda e: type(e).__name__)
def test_every_fitted_attribute_is_documented(estimator):
    model = fit(fresh(estimator))
    learned = {name for name in vars(model) if name.endswith("_") and not name.startswith("_")}
    assert learned <= set(entries(section(type(estimator), "Attributes")))


@every_class
def test_example(cls):
    assert f">>> from skdml import {cls.__name__}" in section(cls, "Examples")


@every_class
def test_public_methods_are_documented(cls):
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        if not name.startswith("_") and method.__module__.startswith("skdml"):
            assert inspect.getdoc(method), f"{cls.__name__}.{name} has no docstring"
