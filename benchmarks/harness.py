"""All that a benchmark module needs: options, timing, memory, peers and reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.children import ChildError, ChildResult, peak_memory, run_child
from benchmarks.environments import CTGAN, METRIC_LEARN, PeerEnvironment
from benchmarks.plots import PALETTE, bars
from benchmarks.report import Column, Report, Target, add_ratios
from benchmarks.timing import Measured, Timing, compare, limited_threads, measure, progress

__all__ = [
    "CTGAN",
    "METRIC_LEARN",
    "PALETTE",
    "ChildError",
    "ChildResult",
    "Column",
    "Measured",
    "Options",
    "PeerEnvironment",
    "Report",
    "Target",
    "Timing",
    "add_ratios",
    "bars",
    "compare",
    "limited_threads",
    "measure",
    "peak_memory",
    "progress",
    "run_child",
]

RESULTS = Path(__file__).with_name("results")
Value = TypeVar("Value")


@dataclass
class Options:
    """What the command line asks of a benchmark; `extra` holds the module's own arguments."""

    repeats: int = 5
    quick: bool = False
    output: Path = RESULTS
    extra: dict[str, Any] = field(default_factory=dict)

    def pick(self, full: Value, quick: Value) -> Value:
        """Return `quick` in a quick run, else `full`."""
        return quick if self.quick else full

    def parts(self, known: Sequence[str]) -> list[str]:
        """Return the parts that ``--parts`` names; an unknown one ends the run."""
        parts = self.extra["parts"].split(",")
        unknown = sorted(set(parts) - set(known))
        if unknown:
            raise SystemExit(f"--parts: {', '.join(unknown)} not among {', '.join(known)}")
        return parts

    def run_parts(
        self, name: str, runners: dict[str, Callable[[], list[dict[str, Any]]]]
    ) -> list[dict[str, Any]]:
        """Run the parts that ``--parts`` names, and return the rows of all parts in their order.

        The rows of a part that is not run are those stored by an earlier run, if there are any.
        """
        chosen = self.parts(tuple(runners))
        path = Path(self.output) / f"{name}.json"
        stored = []
        if not self.quick and path.exists():
            stored = json.loads(path.read_text(encoding="utf-8"))["rows"]
        rows = []
        for part, runner in runners.items():
            if part in chosen:
                progress(part)
                rows += runner()
            else:
                rows += [row for row in stored if row["part"] == part]
        return rows
