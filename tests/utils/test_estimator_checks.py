"""The checks can see: each one fails on an estimator that is wrong in one way."""

import importlib
import re
import sys

import pytest
from sklearn import get_config

import skdml
from skdml import GMMLTransformer
from skdml.utils import estimator_checks
from skdml.utils.estimator_checks import (
    all_estimators,
    check_skdml_estimator,
    missing_estimators,
    parametrize_with_skdml_checks,
    skdml_checks,
)
from tests.utils.pair_toys import BROKEN_PAIRS, RIGHT_PAIRS
from tests.utils.toys import TOYS, FullySupervised, SemiSupervised
from tests.utils.wrong_toys import BROKEN, SquaresDistances, SwallowsInterrupts

RIGHT = [*TOYS, RIGHT_PAIRS, GMMLTransformer(n_constraints=60, n_components=3)]


@parametrize_with_skdml_checks(RIGHT)
def test_right_estimators_pass(estimator, check):
    before = dict(vars(estimator))
    check(estimator)
    assert vars(estimator) == before, "the estimator was not cloned"


@pytest.mark.parametrize(
    ("name", "estimator", "reason"),
    [
        pytest.param(f"check_{name}", estimator, reason, id=f"{name}-{type(estimator).__name__}")
        for name, estimator, reason in BROKEN + BROKEN_PAIRS
    ],
)
def test_wrong_estimators_fail(name, estimator, reason):
    check = dict(skdml_checks(estimator))[name]
    with pytest.raises(Exception, match=reason):
        check(estimator)


def test_every_check_has_a_wrong_estimator():
    known = {name for model in RIGHT for name, _ in skdml_checks(model)}
    proven = {f"check_{name}" for name, _, _ in BROKEN + BROKEN_PAIRS}
    assert known - proven == {"check_pickle_in_a_fresh_process"}
    assert proven <= known


MODULE = """
from skdml import GMMLTransformer

METRICS = {}

class KeepsItself(GMMLTransformer):
    pass

class KeepsItsMetricElsewhere(GMMLTransformer):
    def fit(self, X, y=None, **others):
        super().fit(X, y, **others)
        METRICS["last"] = self.metric_
        return self

    def transform(self, X):
        return METRICS["last"].transform(X)
"""


def test_pickle_in_a_fresh_process(tmp_path, monkeypatch):
    (tmp_path / "toy_of_the_checks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("toy_of_the_checks")
    for cls, passes in ((module.KeepsItself, True), (module.KeepsItsMetricElsewhere, False)):
        check = dict(skdml_checks(cls()))["check_pickle_in_a_fresh_process"]
        if passes:
            check(cls())
        else:
            with pytest.raises(AssertionError, match="KeyError: 'last'"):
                check(cls())
    monkeypatch.delitem(sys.modules, "toy_of_the_checks")


def test_the_error_for_unlabelled_rows_names_who_takes_them(monkeypatch):
    monkeypatch.setattr(
        estimator_checks, "all_estimators", lambda: [("SemiSupervised", SemiSupervised)]
    )
    check = dict(skdml_checks(FullySupervised()))["check_unlabelled_rows_are_refused"]
    check(FullySupervised())
    monkeypatch.setattr(FullySupervised, "_advice", "label them")
    with pytest.raises(AssertionError, match=r"does not say .*SemiSupervised"):
        check(FullySupervised())


# Running the checks


def test_all_failures_are_named(monkeypatch):
    monkeypatch.setattr(estimator_checks, "_MODULES", estimator_checks._MODULES[1:])
    with pytest.raises(AssertionError) as caught:
        check_skdml_estimator(SquaresDistances(reg=0.3))
    message = str(caught.value)
    assert re.match(r"SquaresDistances\(reg=0\.3\) fails \d+ checks?\.\n", message)
    assert "\ncheck_pair_distance: AssertionError: pair_distance and transform: a" in message
    assert "check_metric_axioms" not in message


def test_interruptions_leave_no_trace():
    def trace(frame, event, arg):
        return None

    check = dict(skdml_checks(GMMLTransformer()))["check_keyboard_interrupt"]
    before, config = sys.gettrace(), get_config()
    try:
        sys.settrace(trace)
        check(GMMLTransformer())
        assert sys.gettrace() is trace
        with pytest.raises(AssertionError):
            check(SwallowsInterrupts())
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
    assert get_config() == config


def test_all_estimators():
    names = dict(all_estimators())
    assert names["GMMLTransformer"] is GMMLTransformer
    capitals = {name for name in skdml.__all__ if name[0].isupper()}
    assert names.keys() | dict(missing_estimators()).keys() == capitals


def test_missing_estimators(monkeypatch):
    monkeypatch.setattr(skdml, "__all__", [*skdml.__all__, "Absent"])
    monkeypatch.setitem(skdml._ESTIMATORS, "Absent", "absent")
    assert dict(missing_estimators())["Absent"] == "No module named 'skdml.absent'"
    assert "Absent" not in dict(all_estimators())
