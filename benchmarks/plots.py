"""The picture of a report."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.report import Report

# Okabe and Ito: told apart with every kind of colour vision.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
LOG_FROM = 100
CHARACTERS_PER_INCH = 11


def draw(report: Report, path: Path) -> None:
    """Draw `report` by its own plot function, or as bars, and write it to `path`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    plot = report.plot or bars
    plot(report, figure)
    if not figure.get_suptitle():
        width = int(CHARACTERS_PER_INCH * figure.get_size_inches()[0])
        figure.suptitle(textwrap.fill(report.title, width))
    figure.savefig(path, dpi=120)


def bars(report: Report, figure) -> None:
    """Draw a panel of horizontal bars for each column marked with `plot`.

    Rows are named by the report's first column. A target that names a column is a dashed
    line in its panel. A panel whose values lie far apart has a logarithmic axis.
    """
    columns = [column for column in report.columns if column.plot]
    if not columns:
        raise ValueError(
            f"the report {report.name!r} has nothing to plot: mark a column with plot=True "
            "or give a plot function"
        )
    rows = [row for row in report.rows if any(column.value(row) is not None for column in columns)]
    labels = [report.columns[0].cell(row) for row in rows]
    figure.set_size_inches(2.2 + 3.2 * len(columns), 1.6 + 0.45 * len(rows))
    panels = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for column, axes in zip(columns, panels, strict=True):
        _panel(axes, column, rows, labels)
        for target in report.targets:
            if target.column == column.key:
                _target_line(axes, target)
    panels[0].invert_yaxis()


def _panel(axes, column, rows, labels):
    values = [column.value(row) for row in rows]
    colours = [PALETTE[position % len(PALETTE)] for position in range(len(rows))]
    drawn = axes.barh(range(len(rows)), [value or 0 for value in values], color=colours)
    axes.set_yticks(range(len(rows)), labels)
    # A white ground, above the line of a target.
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    texts = [column.cell(row) for row in rows]
    axes.bar_label(drawn, texts, padding=4, bbox=ground, zorder=5)
    axes.set_xlabel(column.title)
    positive = [value for value in values if value]
    if positive and min(positive) > 0 and max(positive) > LOG_FROM * min(positive):
        axes.set_xscale("log")
        axes.set_xlim(min(positive) / 3, max(positive) * 6)
        axes.set_xlabel(f"{column.title} (logarithmic)")
    else:
        axes.margins(x=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _target_line(axes, target):
    low, high = axes.get_xlim()
    if not low < target.target < high:
        axes.set_xlabel(f"{axes.get_xlabel()}, target {target.target:g}")
        return
    axes.axvline(target.target, color="black", linestyle="--", linewidth=1)
    axes.annotate(
        f"target {target.target:g}",
        (target.target, 1),
        xycoords=("data", "axes fraction"),
        xytext=(3, -2),
        textcoords="offset points",
        verticalalignment="bottom",
        fontsize="small",
    )
