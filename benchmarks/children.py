"""Run a function in a fresh process: for its peak memory, or in another interpreter."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.child import read_values, write_values
from benchmarks.timing import Measured

ROOT = Path(__file__).resolve().parents[1]
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class ChildError(RuntimeError):
    """A child process ended with an error; the message holds what it wrote on standard error."""


@dataclass
class ChildResult(Measured):
    """What a child process measured around the function alone, and what the function returned.

    `baseline_mb` is the resident memory after imports, inputs and warm-up, `peak_mb` the
    largest one from there on, `growth_mb` their difference, all in MB of 2**20 bytes.
    """

    times: list[float] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)
    baseline_mb: float | None = None
    peak_mb: float | None = None
    growth_mb: float | None = None


def child_environment(threads: int | None = 1, path: Path | None = ROOT) -> dict[str, str]:
    """Return the environment variables of a child: its threads, and `path` to import from."""
    variables = dict(os.environ)
    variables.pop("PYTHONPATH", None)
    if path is not None:
        variables["PYTHONPATH"] = str(path)
    if threads is not None:
        variables.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    return variables


def run_child(
    target: str,
    inputs: Mapping[str, Any] | None = None,
    *,
    python: str = sys.executable,
    repeats: int = 1,
    warmup: int = 0,
    timeout: float | None = None,
    threads: int | None = 1,
    path: Path | None = ROOT,
) -> ChildResult:
    """Call a function with `inputs` as keywords in a fresh process and return its measures.

    Parameters
    ----------
    target : str
        "module:function" or "file.py:function". What the module imports at its top is part of
        the baseline, what the function imports is not. The function must leave its inputs as
        they are when there are repeats. What it returns, when no dictionary, becomes the
        output named "value".
    inputs : mapping, optional
        Arrays, and values that JSON knows.
    python : str
        The interpreter; numpy has to be installed there.
    repeats, warmup : int
        Timed calls, and calls before them, in the same process.
    timeout : float, optional
        Seconds that the whole process may take; after them the result is a miss.
    threads : int or None
        Limit of BLAS and OpenMP threads; None leaves them alone.
    path : Path or None
        A folder to import modules from.

    Returns
    -------
    ChildResult
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        write_values(folder, "inputs", dict(inputs or {}))
        task = {"target": target, "repeats": repeats, "warmup": warmup}
        Path(folder, "task.json").write_text(json.dumps(task), encoding="utf-8")
        command = [str(python), str(Path(__file__).with_name("child.py")), folder]
        code, errors = _finish(command, folder, child_environment(threads, path), timeout)
        if code is None:
            return ChildResult(seconds=None, missed=True)
        if code != 0:
            raise ChildError(f"{target} failed (exit code {code}):\n{errors.strip()}")
        measured = json.loads(Path(folder, "measured.json").read_text(encoding="utf-8"))
        return ChildResult(
            seconds=statistics.median(measured["times"]),
            growth_mb=measured["peak_mb"] - measured["baseline_mb"],
            outputs=read_values(folder, "outputs"),
            **measured,
        )


def _finish(command, folder, variables, timeout):
    """Return the exit code, None after the time cap, and what was written on standard error."""
    # A file, no pipe: workers that outlive the function would hold a pipe open.
    with Path(folder, "errors.txt").open("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                _stop(process)
        errors.seek(0)
        return code, errors.read()


def _stop(process):
    # The whole group: a function may have started workers of its own.
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def peak_memory(
    function: str | Callable[..., Any],
    inputs: Mapping[str, Any] | None = None,
    **options: Any,
) -> ChildResult:
    """Run a module's function in a fresh process of this interpreter; see `run_child`.

    `function` is "module:function", or the function itself when a child can import it.
    """
    if callable(function):
        module, name = function.__module__, function.__qualname__
        if module == "__main__" or not name.isidentifier():
            raise ValueError(
                f"{module}.{name} cannot be imported by a child process: "
                "give a function at the top of a module"
            )
        function = f"{module}:{name}"
    return run_child(function, inputs, **options)
