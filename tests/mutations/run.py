"""Apply small wrong changes to a copy of the package, one by one, and run the tests that must fail.

``python tests/mutations/run.py`` tries all changes of ``mutations.toml``, and ``run.py WORD ...``
those with one of the words in the name of their file. The exit code is 1 if a change survives.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("skdml", "tests", "pyproject.toml")
# What pytest's exit codes say of a change; others than these are errors of the entry.
OUTCOMES = {0: "survived", 1: "killed"}


@dataclass(frozen=True)
class Mutation:
    """A wrong change.

    Attributes
    ----------
    file : str
        The changed file, from the root of the project.
    old, new : str
        Text that occurs once in the file, and what takes its place.
    tests : list of str
        Names of tests, as pytest takes them; at least one must fail.
    """

    file: str
    old: str
    new: str
    tests: list[str]

    def __str__(self):
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.file}: {old}  ->  {new}"

    def problems(self) -> list[str]:
        """Return what keeps the change from being tried."""
        path = ROOT / self.file
        found = [] if path.is_file() else ["there is no such file"]
        if not found and (count := path.read_text(encoding="utf-8").count(self.old)) != 1:
            found.append(f"the old text occurs {count} times")
        if self.old == self.new or not self.tests:
            found.append("it changes nothing, or names no test")
        for test in self.tests:
            name, *parts = test.partition("[")[0].split("::")
            text = (ROOT / name).read_text(encoding="utf-8") if (ROOT / name).is_file() else ""
            if not text or not all(re.search(rf"\b(def|class) {part}\b", text) for part in parts):
                found.append(f"there is no test {test}")
        return found


def read(path: Path) -> list[Mutation]:
    """Return the changes of a file."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutation"]
    return [Mutation(**entry) for entry in entries]


def copy_project(folder: Path) -> None:
    """Copy what tests need."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*")
            )
        else:
            shutil.copy(ROOT / name, folder / name)


def run_tests(folder: Path, tests: list[str], *options: str) -> subprocess.CompletedProcess:
    """Run tests on the copy of the package in a folder."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    # Files change within a second and keep their size, which stored bytecode would not notice.
    own = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options, *tests],
        cwd=folder,
        env={**os.environ, **one_thread, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def try_mutation(mutation: Mutation, folders: queue.Queue[Path]) -> tuple[str, str]:
    """Return whether a change was killed, and the last line of pytest's report."""
    folder = folders.get()
    path = folder / mutation.file
    right = path.read_text(encoding="utf-8")
    start = time.perf_counter()
    try:
        path.write_text(right.replace(mutation.old, mutation.new), encoding="utf-8")
        done = run_tests(folder, mutation.tests)
    finally:
        path.write_text(right, encoding="utf-8")
        folders.put(folder)
    outcome = OUTCOMES.get(done.returncode, f"exit code {done.returncode}")
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    detail = failed[0] if failed else done.stdout.strip().rpartition("\n")[2]
    print(
        f"{outcome:9} {time.perf_counter() - start:5.1f} s  {mutation}\n{'':19}{detail}", flush=True
    )
    return outcome, detail


def try_all(mutations: list[Mutation], n_jobs: int) -> list[str]:
    """Try changes, several at a time, and return how each ended."""
    with tempfile.TemporaryDirectory(prefix="skdml-mutations-") as temporary:
        folders: queue.Queue[Path] = queue.Queue()
        for number in range(n_jobs):
            folder = Path(temporary) / str(number)
            folder.mkdir()
            copy_project(folder)
            folders.put(folder)
        tests = sorted({test for mutation in mutations for test in mutation.tests})
        print(f"{len(tests)} tests without a change ...", flush=True)
        command = [sys.executable, "-c", "import skdml; print(skdml.__file__)"]
        used = subprocess.run(
            command, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, stdout=-1, text=True
        ).stdout.strip()
        if not used.startswith(str(folder)):
            sys.exit(f"the copy in {folder} is not what is imported, but {used}")
        done = run_tests(folder, tests, "-n", str(n_jobs), "--dist", "loadfile")
        if done.returncode:
            sys.exit(f"{done.stdout}\nthe tests do not pass without a change.")
        with ThreadPoolExecutor(n_jobs) as pool:
            found = pool.map(lambda mutation: try_mutation(mutation, folders), mutations)
            return [outcome for outcome, _ in found]


def summarise(mutations: list[Mutation], outcomes: list[str]) -> None:
    """Print a table by folder, and what survived."""
    counts: dict[str, Counter] = {}
    for mutation, outcome in zip(mutations, outcomes, strict=True):
        counts.setdefault(str(Path(mutation.file).parent), Counter())[outcome == "killed"] += 1
    print(f"\n{'folder':24} killed  survived")
    for folder, count in sorted(counts.items()):
        print(f"{folder:24} {count[True]:6}  {count[False]:8}")
    n_killed = outcomes.count("killed")
    print(f"{'all':24} {n_killed:6}  {len(outcomes) - n_killed:8}\n")
    for mutation, outcome in zip(mutations, outcomes, strict=True):
        if outcome != "killed":
            print(f"{outcome}: {mutation}\n  tests: {' '.join(mutation.tests)}")


def main(arguments: list[str]) -> int:
    """Check or try the changes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="try changes of files with one of these words")
    parser.add_argument("--file", type=Path, default=Path(__file__).with_name("mutations.toml"))
    parser.add_argument("--jobs", type=int, default=2, help="changes tried at a time")
    parser.add_argument("--check", action="store_true", help="see whether all can be tried")
    options = parser.parse_args(arguments)
    words = options.words or [""]
    mutations = [m for m in read(options.file) if any(word in m.file for word in words)]
    problems = [f"{m}: {problem}" for m in mutations for problem in m.problems()]
    if problems or options.check:
        print("\n".join([*problems, f"{len(mutations)} changes, {len(problems)} problems"]))
        return int(bool(problems))
    start = time.perf_counter()
    outcomes = try_all(mutations, options.jobs)
    summarise(mutations, outcomes)
    print(f"{len(mutations)} changes in {(time.perf_counter() - start) / 60:.1f} minutes")
    return int(any(outcome != "killed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
