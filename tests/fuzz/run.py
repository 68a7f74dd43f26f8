"""Fuzz the package: many inputs, valid and wrong ones, and a report of what went wrong.

``python -m tests.fuzz --inputs 20000 --seed 3`` runs cases 0 to 19999 of seed 3 in two
processes; ``--only gmml transport`` leaves out other targets, and ``--case 1234`` runs one case and
shows it. A case depends on its number and the seed alone. The exit code is 1 if there is a defect.
"""

import argparse
import faulthandler
import multiprocessing
import os
import re
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.fuzz import estimators, functions, inputs  # noqa: F401  register targets
from tests.fuzz.cases import TARGETS, Target
from tests.fuzz.judge import PACKAGE, SECONDS, Case, Defect, Verdict, judge

# Shares of inputs without a wrong value, and with one; the others have up to four.
VALID, SINGLE = 1 / 3, 1 / 3
# Another form, such as a list or a frame, of an argument.
FORM = 0.25


def pick_target(
    seed: int, number: int, targets: list[Target] = TARGETS
) -> tuple[Target, np.random.Generator]:
    """Return the target of a case, and the random numbers from which the case is drawn."""
    rng = np.random.default_rng([seed, number])
    shares = np.array([target.share for target in targets])
    return targets[rng.choice(len(targets), p=shares / shares.sum())], rng


def make_case(target: Target, rng: np.random.Generator, folder: Path) -> Case:
    """Draw a valid case, and change some of it."""
    np.random.seed(rng.integers(2**31))  # noqa: NPY002  for random_state=None
    with warnings.catch_warnings(action="ignore"):
        case = target.draw(rng, folder)
        _change_some(case, rng)
    return case


def _change_some(case, rng):
    kind = rng.random()
    n_changes = 0 if kind < VALID else 1 if kind < VALID + SINGLE else int(rng.integers(2, 5))
    for _ in range(n_changes):
        _change(case, rng)
    for name, value in case.arguments.items():
        if rng.random() < FORM:
            form, case.arguments[name] = inputs.take_form(rng, case.kinds.get(name), value)
            case.changes += [f"{name} as {form}"] if form else []


def _change(case, rng):
    names = list(case.arguments)
    if names and rng.random() < 0.65:
        name = str(rng.choice(names))
        kind = case.kinds.get(name)
        if kind == "file":
            what = inputs.spoil_file(rng, case.arguments[name])
        elif kind == "parameter":
            case.arguments[name] = inputs.change_parameter(rng, name)
            what = repr(case.arguments[name])
        else:
            what, case.arguments[name] = inputs.change(rng, kind, case.arguments[name])
    else:
        names = [name for name in case.settable if name not in inputs.LEFT_ALONE]
        if not names:
            return
        name = str(rng.choice(names))
        case.parameters[name] = inputs.change_parameter(rng, name)
        what = repr(case.parameters[name])
    case.changes.append(f"{name}: {what}")


class Outcome(NamedTuple):
    """How a case went, as a worker sends it."""

    number: int
    target: str
    verdict: Verdict


def work(connection, log: Path, seed: int, targets: list[Target], seconds: float) -> None:
    """Run the cases whose numbers come; one that does not end takes the process along."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    folder = log.with_suffix(".files")  # removed by the parent, also if this process dies
    folder.mkdir()
    with log.open("w") as trace:
        for number in iter(connection.recv, None):
            target, rng = pick_target(seed, number, targets)
            faulthandler.dump_traceback_later(seconds, exit=True, file=trace)
            verdict = judge(make_case(target, rng, folder), seconds)
            faulthandler.cancel_dump_traceback_later()
            verdict.errors.clear()
            connection.send(Outcome(number, target.name, verdict))


class Worker:
    """A process that runs cases, one at a time."""

    def __init__(self, log, *options):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.fuzz.run"])  # imported once
        self.log, self.options = log, options
        self.connection, child = context.Pipe()
        self.process = context.Process(target=work, args=(child, log, *options), daemon=True)
        self.process.start()
        child.close()

    def run(self, number):
        """Begin a case; None ends the process."""
        self.number = number
        self.connection.send(number)

    def outcome(self):
        """Return the outcome of the case, also where it ended the process."""
        try:
            return self.connection.recv()
        except EOFError:
            self.process.join()
        seed, targets, seconds = self.options
        trace = re.findall(r'File "(.*?)", line \d+ in (\S+)', self.log.read_text())
        if trace:  # of the time limit, innermost first
            path, function = next((f for f in trace if PACKAGE in Path(f[0]).parts), trace[0])
            defect = Defect("endless", f"{Path(path).name}:{function}", f"more than {seconds:g} s")
        else:
            defect = Defect("died", "?", f"exit code {self.process.exitcode}")
        target, _ = pick_target(seed, self.number, targets)
        return Outcome(self.number, target.name, Verdict(False, False, seconds, [defect]))


def run_all(
    numbers: list[int],
    seed: int,
    jobs: int = 2,
    seconds: float = SECONDS,
    targets: list[Target] = TARGETS,
) -> Iterator[Outcome]:
    """Yield the outcomes of cases, which run in several processes."""
    left = iter(numbers)
    with tempfile.TemporaryDirectory(prefix="skdml-fuzz-") as folder:
        workers: dict[Any, Worker] = {}

        def go_on(worker=None):
            """Give the next case to a process, a new one if there is none."""
            number = next(left, None)
            alive = worker is not None and worker.process.exitcode is None
            if number is None:
                if alive:
                    worker.run(None)
                return
            if not alive:
                worker = Worker(Path(folder, str(number)), seed, targets, seconds)
            workers[worker.connection] = worker
            worker.run(number)

        for _ in range(jobs):
            go_on()
        while workers:
            for ready in wait(list(workers)):
                worker = workers.pop(ready)
                yield worker.outcome()
                go_on(worker)


def select(options) -> list[int]:
    """Return the numbers of the cases to run."""
    numbers = []
    for number in range(options.first, options.first + options.inputs):
        target, _ = pick_target(options.seed, number)
        wanted = not options.only or any(word in target.name for word in options.only)
        if wanted and all(inputs.INSTALLED[name] for name in target.needs):
            numbers.append(number)
    return numbers


def report(outcomes: list[Outcome]) -> int:
    """Print a table by target, and each defect once; return the number of defects."""
    by_target = defaultdict(list)
    for outcome in outcomes:
        by_target[outcome.target].append(outcome.verdict)
    print(f"\n{'target':14} inputs accepted refused warned defects  mean s  slowest s")
    total = [verdict for verdicts in by_target.values() for verdict in verdicts]
    for name, verdicts in [*sorted(by_target.items()), ("all", total)]:
        accepted = sum(verdict.accepted for verdict in verdicts)
        warned = sum(verdict.warned for verdict in verdicts)
        defects = sum(bool(verdict.defects) for verdict in verdicts)
        seconds = [verdict.seconds for verdict in verdicts]
        print(
            f"{name:14} {len(verdicts):6} {accepted:8} {len(verdicts) - accepted:7} {warned:6} "
            f"{defects:7} {np.mean(seconds):7.3f} {max(seconds):10.2f}"
        )
    found = defaultdict(list)
    for number, target, verdict in outcomes:
        for defect in verdict.defects:
            found[target, defect.kind, defect.where, shorten(defect.what)].append(number)
    for (target, kind, where, what), numbers in sorted(found.items()):
        some = ", ".join(map(str, sorted(set(numbers))[:6]))
        print(f"\n{kind}: {target}, {where}, {len(numbers)} times: {some}\n    {what}")
    print(f"\n{len(found)} distinct defects")
    return len(found)


def shorten(message: str) -> str:
    """Return a message without numbers and addresses, for comparison."""
    message = re.sub(r"/\S*skdml-fuzz-[^\s/]*/", "", message)
    message = re.sub(r"(0x[0-9a-f]+|[-+]?\d+(\.\d+)?(e[-+]?\d+)?)", "#", message)
    message = re.sub(r"array\(.*?\)|\[[^\]]*\]|\{[^}]*\}", "...", re.sub(r"\s+", " ", message))
    return message[:160]


def show(number: int, seed: int) -> int:
    """Run one case, and print what it was and how it went."""
    target, rng = pick_target(seed, number)
    with tempfile.TemporaryDirectory(prefix="skdml-fuzz-") as folder:
        case = make_case(target, rng, Path(folder))
        print(f"case {number} of seed {seed}: {target.name}\nchanges: {case.changes}")
        print(f"parameters: {case.parameters}")
        for name, value in case.arguments.items():
            shape = getattr(value, "shape", "")
            dtype = getattr(value, "dtype", "")
            text = re.sub(r"\s+", " ", repr(value))[:300]
            print(f"{name}: {type(value).__name__} {shape} {dtype} {text}")
        faulthandler.dump_traceback_later(SECONDS, exit=True, file=sys.__stderr__)
        verdict = judge(case)
        faulthandler.cancel_dump_traceback_later()
    print(*verdict.errors, sep="\n")
    print(f"accepted: {verdict.accepted}, warned: {verdict.warned}, {verdict.seconds:.2f} s")
    print(*verdict.defects, sep="\n")
    return int(bool(verdict.defects))


def main(arguments: list[str]) -> int:
    """Run cases, and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="most for one case")
    parser.add_argument("--only", nargs="*", metavar="WORD", help="targets with one of these words")
    parser.add_argument("--case", type=int, help="run this case alone, and show it")
    options = parser.parse_args(arguments)
    if options.case is not None:
        return show(options.case, options.seed)
    numbers = select(options)
    start = time.perf_counter()
    outcomes = []
    for outcome in run_all(numbers, options.seed, options.jobs, options.seconds):
        outcomes.append(outcome)
        for kind, where, what in outcome.verdict.defects:
            print(f"case {outcome.number}, {outcome.target}: {kind}, {where}: {what}", flush=True)
        if len(outcomes) % 500 == 0:
            seconds = time.perf_counter() - start
            print(f"{len(outcomes)} of {len(numbers)} in {seconds:.0f} s", flush=True)
    n_defects = report(outcomes)
    seconds = time.perf_counter() - start
    print(f"{len(outcomes)} inputs in {seconds:.0f} s, {len(outcomes) / seconds:.1f} per second")
    return int(n_defects > 0)
