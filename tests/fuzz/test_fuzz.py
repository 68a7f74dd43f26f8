"""Some inputs of the fuzzer have no defect, and it notices every kind of defect."""

import numpy as np
import pytest

from tests.fuzz import inputs, toys
from tests.fuzz.cases import TARGETS
from tests.fuzz.judge import fingerprint, is_clear, judge
from tests.fuzz.run import main, make_case, pick_target, report, run_all

SEED, NUMBERS = 5, range(254, 594)
# Of these, one in five is enough here.
SLOW = ("asymmetric", "deep", "ssdml")


def test_some_inputs_have_no_defect(tmp_path):
    accepted = []
    for number in NUMBERS:
        target, rng = pick_target(SEED, number)
        missing = not all(inputs.INSTALLED[name] for name in target.needs)
        if missing or (target.name in SLOW and number % 5):
            continue
        verdict = judge(make_case(target, rng, tmp_path))
        assert not verdict.defects, f"{target.name}: make fuzz FUZZ='--seed {SEED} --case {number}'"
        accepted.append(verdict.accepted)
    assert len(accepted) > 150
    assert 0.25 < np.mean(accepted) < 0.75


@pytest.mark.parametrize(
    ("toy", "kind"),
    [
        (toys.WrongException, "wrong exception"),
        (toys.LinearAlgebra, "wrong exception"),
        (toys.Vague, "unclear message"),
        (toys.Short, "unclear message"),
        (toys.Foreign, "unclear message"),
        (toys.ReturnsNaN, "NaN without warning"),
        (toys.KeepsInfinity, "NaN without warning"),
        (toys.LeaksWarnings, "leaked warning"),
        (toys.WritesIntoRows, "input changed"),
        (toys.LeavesAttributes, "left after an error"),
        (toys.Slow, "slow"),
    ],
)
def test_every_defect_is_noticed(toy, kind):
    assert {defect.kind for defect in judge(toys.make_case(toy), seconds=0.09).defects} == {kind}


@pytest.mark.parametrize(
    ("toy", "value", "accepted"),
    [(toys.Right, 1.0, True), (toys.Right, np.nan, False), (toys.WarnsOfNaN, 1.0, True)],
)
def test_what_is_right_is_no_defect(toy, value, accepted):
    verdict = judge(toys.make_case(toy, value))
    assert not verdict.defects
    assert verdict.accepted == accepted


def test_a_process_that_hangs_or_dies_is_reported_and_the_run_goes_on(capsys):
    wanted = ["endless", "dies", "right"]
    numbers = []
    for number in range(100):
        if wanted and pick_target(0, number, toys.TARGETS)[0].name == wanted[0]:
            numbers.append(number)
            wanted.pop(0)
    outcomes = list(run_all(numbers, 0, jobs=1, seconds=0.5, targets=toys.TARGETS))
    assert [outcome.number for outcome in outcomes] == numbers
    kinds = [[defect.kind for defect in outcome.verdict.defects] for outcome in outcomes]
    assert kinds == [["endless"], ["died"], []]
    assert report(outcomes) == 2
    text = capsys.readouterr().out
    assert f"endless: endless, toys.py:fit, 1 times: {numbers[0]}" in text
    assert f"died: dies, ?, 1 times: {numbers[1]}" in text


def test_a_case_depends_on_its_number_and_the_seed_alone(tmp_path):
    def draw(seed, number):
        target, rng = pick_target(seed, number)
        case = make_case(target, rng, tmp_path)
        return target.name, case.changes, fingerprint(case.arguments)

    number = next(n for n in range(100) if pick_target(3, n)[0].name == "gmml")
    first = draw(3, number)
    draw(3, number + 1)
    assert draw(3, number) == first
    assert draw(4, number) != first


def test_one_case_is_shown(capsys):
    number = next(n for n in range(100) if pick_target(0, n)[0].name == "ranking")
    main(["--case", str(number)])
    assert f"case {number} of seed 0: ranking" in capsys.readouterr().out


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_inputs_are_valid_and_wrong(target, tmp_path):
    if not all(inputs.INSTALLED[name] for name in target.needs):
        pytest.skip(f"needs {', '.join(target.needs)}")
    n_changes = []
    for seed in range(30):
        case = make_case(target, np.random.default_rng(seed), tmp_path)
        n_changes.append(sum(": " in change for change in case.changes))
    assert min(n_changes) == 0
    assert max(n_changes) > 1


@pytest.mark.parametrize(
    ("message", "clear"),
    [
        ("X has 3 features, but GMMLTransformer is expecting 4.", True),
        ("Input contains NaN, which is not allowed.", False),
        ("SVD did not converge in fit of X", False),
        ("X: array must not contain infs or NaNs", True),
        ("it is a problem with a number", False),
        ("a must sum to 1 in each cloud", True),
    ],
)
def test_clear_messages(message, clear):
    assert is_clear(message, ("X", "a")) == clear


def test_changed_input_is_noticed_in_every_form(tmp_path):
    X = np.arange(12.0).reshape(6, 2) - 5
    for name, form in inputs.MATRIX_FORMS.items():
        try:
            value = form(X)
        except ImportError:
            continue
        assert fingerprint(value) == fingerprint(form(X)), name
        assert fingerprint(value) != fingerprint(form(X + 1)), name
