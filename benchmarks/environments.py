"""Environments of peers that need other versions than this one."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.children import ChildError, ChildResult, child_environment, run_child
from benchmarks.timing import progress

VENVS = Path(__file__).with_name(".venvs")
PEERS = Path(__file__).with_name("peers")


class PeerEnvironment:
    """An interpreter with pinned packages, made once in a venv when it is first needed.

    Parameters
    ----------
    name : str
        The peer's name.
    requirements : sequence of str
        What pip installs; pin every package ("scikit-learn==1.5.2"). Other requirements make
        another venv.
    python : str
        The interpreter the venv is made from.
    executable : str, optional
        An existing interpreter to use as it is, instead of a venv.
    """

    def __init__(
        self,
        name: str,
        requirements: Sequence[str] = (),
        python: str = sys.executable,
        executable: str | None = None,
    ):
        self.name = name
        self.requirements = tuple(requirements)
        self.python = str(python)
        self._executable = executable

    @property
    def folder(self) -> Path:
        """Where the venv is."""
        text = "\n".join([self.python, *sorted(self.requirements)])
        return VENVS / f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def executable(self) -> str:
        """Return the interpreter; makes the venv when it is not there yet."""
        if self._executable is None:
            self._executable = str(self._make())
        return self._executable

    def _make(self):
        folder = self.folder
        python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        stamp = folder / "complete"
        if stamp.exists():
            return python
        progress(f"{self.name}: making its environment ({', '.join(self.requirements)})")
        shutil.rmtree(folder, ignore_errors=True)
        self._run([self.python, "-m", "venv", str(folder)])
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        self._run([str(python), *install, *self.requirements])
        # Last, so that an interrupted installation is made again.
        stamp.write_text("\n".join(self.requirements) + "\n", encoding="utf-8")
        return python

    def _run(self, command):
        done = subprocess.run(
            command,
            env=child_environment(threads=None, path=None),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ChildError(
                f"the environment of {self.name} could not be made; {' '.join(command)} "
                f"failed:\n{(done.stderr or done.stdout).strip()}"
            )

    def call(
        self,
        script: str | Path,
        function: str,
        inputs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> ChildResult:
        """Call a function of a script in this environment.

        Parameters
        ----------
        script : str or Path
            A file; a relative one lies in benchmarks/peers.
        function : str
            Its name in the script.
        inputs : mapping, optional
            Its keywords: arrays, and values that JSON knows.
        **options
            `repeats`, `warmup`, `timeout` and `threads` of `run_child`.

        Returns
        -------
        ChildResult
            Seconds and memory as measured in the child around the function alone, and what
            the function returned; `missed` when the time cap was met.

        Raises
        ------
        ChildError
            When the function failed, with what the child wrote on standard error.
        """
        script = PEERS / script
        if not script.is_file():
            raise FileNotFoundError(f"the peer script {script} does not exist")
        target = f"{script}:{function}"
        return run_child(target, inputs, python=self.executable(), path=None, **options)

    def side(self, *args: Any, **options: Any) -> Callable[[], ChildResult]:
        """Return a side for `compare`: each turn is one `call` with these arguments."""
        return lambda: self.call(*args, **options)


# metric-learn 0.7.0 passes `force_all_finite`, which scikit-learn 1.8 no longer takes; numpy
# and scipy are those of the project's own environment, so that both sides share one BLAS.
METRIC_LEARN = PeerEnvironment(
    "metric-learn",
    [
        "metric-learn==0.7.0",
        "scikit-learn==1.5.2",
        "numpy==2.4.6",
        "scipy==1.17.1",
        "joblib==1.6.0",
        "threadpoolctl==3.8.0",
    ],
)

# Their licence (BSL) keeps them out of the dependencies. torch is pinned for its size: an open
# range pulls gigabytes of CUDA packages.
CTGAN = PeerEnvironment(
    "ctgan",
    [
        "torch==2.13.0",
        "ctgan==0.12.1",
        "rdt==2.0.0",
        "scikit-learn==1.9.1",
        "numpy==2.4.6",
        "pandas==2.3.3",
        "scipy==1.17.1",
        "joblib==1.6.0",
    ],
)
