"""Find the demos, run them, print the table and write the report."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import skdml

from .._optional import optional_import
from ..utils._parallel import limit_threads
from ._report import write_report
from ._rows import DemoRow


def find_demos() -> dict[str, Callable[..., Iterator[DemoRow]]]:
    """Return {name: demo function} of every ``_demo_*`` module of the package, by name."""
    demos = {}
    for module in pkgutil.walk_packages(skdml.__path__, prefix="skdml."):
        name = module.name.rpartition(".")[2]
        if name.startswith("_demo_"):
            demos[name.removeprefix("_demo_")] = importlib.import_module(module.name).demo
    return demos


def run_demos(output: str | os.PathLike = "skdml-demo", *, verbose: int = 1) -> list:
    """Run every demo, print one table, and write ``index.html`` into `output`.

    Parameters
    ----------
    output : path, default="skdml-demo"
        The folder of the report and its pages; nothing is written anywhere else.
    verbose : int, default=1
        0 leaves out the progress bars.

    Returns
    -------
    rows : list of DemoRow
        What was shown.
    """
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output) as cache:
        # matplotlib writes its font cache on first use: into the report's folder, not the user's
        # home.
        os.environ.setdefault("MPLCONFIGDIR", cache)
        optional_import("matplotlib", "python -m skdml demo").use("Agg")
        demos = find_demos()
        with limit_threads():  # small data: threads that wait for each other take most of the time
            rows = list(_rows(demos, verbose))
            _print_table(rows)
            report = write_report(rows, output)
    print(f"\nReport with pictures, and pages to explore: {report}")
    return rows


def _rows(demos, verbose):
    from tqdm import tqdm

    bar = tqdm(demos.items(), desc="demos", disable=None if verbose else True, leave=False)
    for name, demo in bar:
        bar.set_description(name)
        for row in demo(verbose=verbose):
            for _, figure in row.figures:  # pyplot warns of many; a closed one can be saved
                optional_import("matplotlib.pyplot", "The demo").close(figure)
            yield row


def _print_table(rows):
    header = ("what was learned", "measure", "simple", "with skdml", "", "seconds")
    body = []
    for row in rows:
        name, best = row.strongest
        figures = f"{best:.3f} ({name})", f"{row.learned:.3f}", row.verdict
        body.append((f"{row.estimator}: {row.task}", row.measure, *figures, f"{row.seconds:.2f}"))
    widths = [max(map(len, column)) for column in zip(header, *body, strict=True)]
    for line in [header, tuple("-" * width for width in widths), *body]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
    sys.stdout.flush()


class Stopwatch:
    """Seconds spent inside a ``with`` block."""

    def __enter__(self) -> Self:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.seconds = time.perf_counter() - self._start
