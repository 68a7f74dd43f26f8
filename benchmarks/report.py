"""What a benchmark found: table, targets and environment, as text, Markdown and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plots import draw
from benchmarks.system import environment

MISSING = "–"


@dataclass(frozen=True)
class Column:
    """One column of the table.

    `format` is a format specification for numbers (".2f"); `plot` puts the column into the
    default plot.
    """

    key: str
    title: str
    format: str = ""
    plot: bool = False

    def value(self, row: dict[str, Any]) -> Any:
        """Return the value of this column in `row`; None where there is none."""
        return plain(row.get(self.key))

    def cell(self, row: dict[str, Any]) -> str:
        """Return the text of this column in `row`."""
        value = self.value(row)
        if value is None:
            return MISSING
        if isinstance(value, bool):
            return "yes" if value else "no"
        return value if isinstance(value, str) else format(value, self.format)


@dataclass(frozen=True)
class Target:
    """A goal and whether it was reached; `column` names the table's column it is about."""

    text: str
    target: Any
    measured: Any
    reached: bool
    unit: str = ""
    column: str | None = None

    @classmethod
    def at_most(cls, text: str, target: float, measured: float | None, **more: Any) -> Target:
        """Return a target that is reached by values up to `target`; None never reaches it."""
        reached = measured is not None and bool(measured <= target)
        return cls(f"{text} at most", target, measured, reached, **more)

    @classmethod
    def at_least(cls, text: str, target: float, measured: float | None, **more: Any) -> Target:
        """Return a target that is reached by values from `target` on; None never reaches it."""
        reached = measured is not None and bool(measured >= target)
        return cls(f"{text} at least", target, measured, reached, **more)

    def words(self) -> tuple[str, str, str]:
        """Return the goal, what was measured, and "reached" or "not reached"."""
        goal = f"{self.text} {_with_unit(self.target, self.unit)}"
        reached = "reached" if self.reached else "not reached"
        return goal, _with_unit(self.measured, self.unit), reached


def _with_unit(value, unit):
    value = plain(value)
    if value is None:
        return MISSING
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"{text} {unit}".strip()


def plain(value: Any) -> Any:
    """Return `value` as strict JSON knows it; NaN and infinity become None."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def add_ratios(
    rows: Sequence[dict[str, Any]],
    key: str,
    into: str,
    *,
    base: str,
    side: str = "side",
    by: Sequence[str] = (),
) -> None:
    """Write `row[key]` over that of the row whose `side` is `base` to `row[into]`, in place.

    `by` names the columns that make groups, each with a base row of its own. Where a value
    is missing or the base is zero, so is the ratio.
    """
    bases = {_group(row, by): row.get(key) for row in rows if row[side] == base}
    if not bases:
        raise ValueError(f"no row has {side} = {base!r}")
    for row in rows:
        value, reference = row.get(key), bases.get(_group(row, by))
        row[into] = value / reference if value is not None and reference else None


def _group(row, by):
    return tuple(row[name] for name in by)


@dataclass
class Report:
    """The outcome of one benchmark.

    `rows` are dictionaries of which `columns` show a part; all of it goes to JSON, with
    `parameters` (sizes, repeats, versions of peers) and `notes`. `plot(report, figure)`
    draws another picture than bars of the columns marked with `plot`.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[dict[str, Any]]
    targets: Sequence[Target] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    plot: Callable[[Report, Any], None] | None = None
    environment: dict[str, Any] = field(default_factory=environment)

    def cells(self) -> list[list[str]]:
        """Return the table as text, its first row the titles."""
        titles = [column.title for column in self.columns]
        return [titles, *([column.cell(row) for column in self.columns] for row in self.rows)]

    def text(self) -> str:
        """Return everything for a terminal."""
        parts = [f"{self.name}: {self.title}", _aligned(self.cells(), self._numeric())]
        if self.targets:
            words = [target.words() for target in self.targets]
            lines = [[reached, goal, f"measured {value}"] for goal, value, reached in words]
            parts.append("targets\n" + _aligned(lines, [False] * 3, indent="  "))
        parts.extend(f"note: {note}" for note in self.notes)
        parts.append("environment: " + self._environment_line())
        return "\n\n".join(parts)

    def markdown(self) -> str:
        """Return the same as Markdown, for the documentation to include."""
        parts = [f"**{self.title}**", _markdown_table(self.cells(), self._numeric())]
        if self.targets:
            rows = [target.words() for target in self.targets]
            parts.append(_markdown_table([("target", "measured", ""), *rows], [False] * 3))
        parts.extend(self.notes)
        parts.append(f"Measured with {self._environment_line()}.")
        return "\n\n".join(parts) + "\n"

    def _environment_line(self):
        known = dict(self.environment)
        machine = f"{known.pop('cpu')} ({known.pop('cores')} cores)"
        date = known.pop("date")
        return ", ".join([*(f"{name} {value}" for name, value in known.items()), machine, date])

    def _numeric(self):
        kinds = []
        for column in self.columns:
            values = [column.value(row) for row in self.rows]
            kinds.append(not any(isinstance(value, str | bool) for value in values))
        return kinds

    def to_json(self) -> str:
        """Return everything as strict JSON."""
        content = {
            "name": self.name,
            "title": self.title,
            "columns": [asdict(column) for column in self.columns],
            "rows": self.rows,
            "targets": [asdict(target) for target in self.targets],
            "parameters": self.parameters,
            "notes": self.notes,
            "environment": self.environment,
        }
        return json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def write(self, folder: Path) -> list[Path]:
        """Write NAME.json, NAME.md and NAME.png into `folder` and return their paths."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{self.name}.{ending}" for ending in ("json", "md", "png")]
        paths[0].write_text(self.to_json(), encoding="utf-8")
        paths[1].write_text(self.markdown(), encoding="utf-8")
        draw(self, paths[2])
        return paths


def _aligned(rows: Iterable[Sequence[str]], right: Sequence[bool], indent: str = "") -> str:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        lines.append(indent + "  ".join(cells).rstrip())
    return "\n".join(lines)


def _markdown_table(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    rule = ["---:" if to_right else "---" for to_right in right]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in [escaped[0], rule, *escaped[1:]])
