"""The picture of the benchmark `linear`."""

import numpy as np

from benchmarks.harness import PALETTE
from benchmarks.linear_methods import FORMER, NEIGHBOURS, OURS, PLAIN


def plot(report, figure):
    """Draw mean ranks on the tables, and the gain over Euclidean on every set (k = 5)."""
    k_shown = NEIGHBOURS[-1]
    sets = [row for row in report.rows if row["kind"] == "set" and row["k"] == k_shown]
    ranks = {
        row["k"]: row
        for row in report.rows
        if row["kind"] == "rank" and row["set"].endswith("tables")
    }
    methods = [method for method in report.parameters["methods"] if method not in FORMER.values()]
    figure.set_size_inches(13 if ranks else 9, max(4.5, 1.8 + 0.42 * len(sets)))
    if ranks:
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.7))
        draw_ranks(left, ranks, methods)
    else:
        right = figure.subplots()
    draw_gains(right, sets, [method for method in methods if method != PLAIN])
    right.set_xlabel(f"points of accuracy over Euclidean's (beside the name), k = {k_shown}")


def draw_ranks(axes, ranks, methods):
    k_shown = NEIGHBOURS[-1]
    methods = [method for method in methods if np.isfinite(ranks[k_shown][method])]
    order = sorted(methods, key=lambda method: ranks[k_shown][method])
    for k, face in zip(NEIGHBOURS, ("none", PALETTE[0]), strict=True):
        values = [ranks[k][method] for method in order]
        axes.scatter(
            values, range(len(order)), s=60, color=PALETTE[0], facecolor=face, label=f"k = {k}"
        )
    axes.set_yticks(range(len(order)), order)
    axes.invert_yaxis()
    axes.set_xlabel(f"{ranks[k_shown]['set']} (1 is best, a miss is last)")
    axes.legend(loc="lower left")
    axes.spines[["top", "right"]].set_visible(False)


def draw_gains(axes, sets, methods):
    styles = {
        "NCA": ("v", PALETTE[5]),
        "metric-learn LMNN": ("^", PALETTE[1]),
        "LMNN": ("v", PALETTE[1]),
        "RCA": ("<", PALETTE[2]),
        "LFDA": (">", PALETTE[2]),
        "logistic": ("x", "0.45"),
        "forest": ("+", "0.45"),
        "GMML": ("s", PALETTE[4]),
        "DITML": ("o", PALETTE[0]),
        "gerrymandering": ("D", PALETTE[2]),
    }
    for position, method in enumerate(methods):
        shown = [
            (place, row)
            for place, row in enumerate(sets)
            if row[method] is not None and row[PLAIN] is not None
        ]
        gains = [100 * (row[method] - row[PLAIN]) for _, row in shown]
        # Side by side within the line of a set, so that equal values do not hide each other.
        heights = [place + 0.1 * (position - (len(methods) - 1) / 2) for place, _ in shown]
        marker, colour = styles[method]
        edge = {} if marker in "x+" else {"edgecolor": "black", "linewidth": 0.4}
        emphasis = {"s": 50, "zorder": 3} if method in OURS else {"s": 30}
        axes.scatter(gains, heights, label=method, marker=marker, color=colour, **edge, **emphasis)
    axes.axvline(0, color="black", linewidth=1)
    names = [row["set"] + (f" {row[PLAIN]:.2f}" if row[PLAIN] is not None else "") for row in sets]
    axes.set_yticks(range(len(sets)), names)
    axes.set_ylim(len(sets) - 0.5, -0.5)
    axes.set_yticks(np.arange(len(sets) - 1) + 0.5, minor=True)
    axes.grid(axis="y", which="minor", color="0.9")
    axes.tick_params(which="minor", length=0)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
