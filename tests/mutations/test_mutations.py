"""The list of wrong changes fits the code, and the runner tells which of them survive."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDERS = {
    "linear",
    "ranking",
    "asymmetric",
    "deep",
    "deep/distributed",
    "deep/losses",
    "transport",
    "verification",
    "search",
    "io",
    "generate",
    "semisupervised",
    "metrics",
    "datasets",
    "plot",
    "utils",
    ".",
}


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(HERE / "run.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
    )


def test_every_change_can_be_tried():
    done = run("--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_changes_of_all_folders():
    entries = tomllib.loads((HERE / "mutations.toml").read_text(encoding="utf-8"))["mutation"]
    assert len(entries) >= 60
    folders = [Path(entry["file"]).parent.relative_to("skdml") for entry in entries]
    assert {str(folder) for folder in folders} == FOLDERS


ENTRY = """
[[mutation]]
file = "skdml/linear/_mahalanobis.py"
old = "{old}"
new = "{new}"
tests = ["tests/linear/test_metric.py::{test}"]
"""
KILLED = {
    "old": "A[np.diag_indices_from(A)] += self.scale",
    "new": "pass",
    "test": "test_all_views_agree_with_the_matrix",
}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"old": "no such text"}, "the old text occurs 0 times"),
        ({"old": "directions"}, "the old text occurs"),
        ({"test": "test_nothing"}, "there is no test"),
        ({"new": KILLED["old"]}, "it changes nothing"),
    ],
)
def test_entries_that_cannot_be_tried_are_named(tmp_path, change, problem):
    path = tmp_path / "wrong.toml"
    path.write_text(ENTRY.format(**KILLED | change))
    done = run("--check", "--file", path)
    assert done.returncode == 1
    assert problem in done.stdout


@pytest.mark.slow
def test_survivors_are_reported(tmp_path):
    path = tmp_path / "some.toml"
    survivor = {"old": "A = (A + A.T) / 2", "new": "A = (A.T + A) / 2", "test": "test_identity"}
    before = (ROOT / "skdml/linear/_mahalanobis.py").read_bytes()
    path.write_text(ENTRY.format(**KILLED))
    assert run("--file", path).returncode == 0
    path.write_text(ENTRY.format(**KILLED) + ENTRY.format(**survivor))
    done = run("--file", path)
    assert done.returncode == 1
    assert "survived: skdml/linear/_mahalanobis.py: A = (A + A.T) / 2" in done.stdout
    assert done.stdout.split("all")[-1].split()[:2] == ["1", "1"]
    assert (ROOT / "skdml/linear/_mahalanobis.py").read_bytes() == before
