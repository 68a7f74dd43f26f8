"""The picture of the benchmark of generators."""

from benchmarks.harness import PALETTE

PARTS = ("tables", "critics", "images", "workers", "model")
BASE = "WGAN-GP"
BY_UPDATES, BY_TIME = "as many updates", "as many seconds"
CRITICS = (1, 2, 4, 8)


def plot(report, figure):
    """Draw tables by method, digits by critics, images, and seconds by workers."""
    of_part = {part: [row for row in report.rows if row["part"] == part] for part in PARTS}
    figure.set_size_inches(14, 8)
    axes = figure.subplots(2, 3).ravel()
    draw_tables(axes[0], of_part["tables"], "energy", "energy distance")
    draw_by_critics(axes[1], of_part["critics"], "W2", PALETTE[0], "to held-out digits")
    draw_by_critics(axes[1], of_part["critics"], "estimated", PALETTE[1], "estimated in training")
    axes[1].set_ylabel("W2, digits")
    for place, measure in enumerate(("precision", "recall", "coverage")):
        draw_by_critics(axes[2], of_part["critics"], measure, PALETTE[place + 2], measure)
    axes[2].set_ylabel("quality, digits")
    digits = [row for row in of_part["images"] if row["data"] == "mnist"]
    for rule, colour in ((BY_UPDATES, PALETTE[0]), (BY_TIME, PALETTE[5])):
        rows = [row for row in digits if row["n_critics"] and row["rule"] == rule]
        draw_by_critics(axes[3], rows, "distance", colour, f"{rule} as {BASE}")
    for row in digits:
        if row["method"] == BASE:
            axes[3].axhline(row["distance"], color=PALETTE[7], ls="--", lw=1, label=BASE)
    axes[3].set_ylabel("Frechet distance, MNIST")
    draw_tables(axes[4], of_part["tables"], "tstr", "trained on generated, tested on real rows")
    draw_speed_up(axes[5], of_part["workers"], of_part["model"])
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    for one in axes[1:4]:
        one.set_xlabel("critics")
    for one in axes[1:]:
        if one.get_legend_handles_labels()[0]:
            one.legend(fontsize="small", frameon=False)


def draw_tables(axes, rows, measure, label):
    """Draw a measure of each method on all tables."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    for place, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
        found = {row["data"]: row[measure] for row in rows if row["method"] == method}
        known = [name for name in names if name in found]
        places = [names.index(name) + 0.08 * (place - 4) for name in known]
        values = [found[name] for name in known]
        marker = "o" if place < len(PALETTE) else "s"
        colour = PALETTE[place % len(PALETTE)]
        axes.plot(places, values, marker, ms=4, color=colour, label=method)
    axes.set_xticks(range(len(names)), names, rotation=20, fontsize="small")
    if measure == "energy":
        axes.set_yscale("symlog", linthresh=0.003)
    axes.set_ylabel(label)


def draw_speed_up(axes, workers, model):
    """Draw how much faster an update is with more workers, measured and predicted.

    Updates to a distance are as many for any number of workers.
    """
    for data, colour in (("digits", PALETTE[0]), ("mnist", PALETTE[5])):
        rows = [row for row in workers if row["data"] == data and "shared" in row["method"]]
        gains = [rows[0]["ms"] / row["ms"] for row in rows]
        numbers = [row["n_workers"] for row in rows]
        axes.plot(numbers, gains, "o-", color=colour, label=f"{data}, processes")
        rows = [row for row in model if row["data"] == data]
        gains = [rows[0]["seconds"] / row["seconds"] for row in rows]
        numbers = [row["n_workers"] for row in rows]
        axes.plot(numbers, gains, "o--", color=colour, label=f"{data}, machines (cost model)")
    axes.set_xscale("log", base=2)
    axes.set_xticks(CRITICS, [str(number) for number in CRITICS])
    axes.set_xlabel("workers")
    axes.set_ylabel("speed-up to a distance")


def draw_by_critics(axes, rows, column, colour, label):
    if not rows:
        return
    numbers = [row["n_critics"] for row in rows]
    axes.plot(numbers, [row[column] for row in rows], "o-", color=colour, label=label)
    for row in rows:
        values = [one[column] for one in row["each"]]
        axes.scatter([row["n_critics"]] * len(values), values, s=10, color=colour, alpha=0.5)
    axes.set_xscale("log", base=2)
    axes.set_xticks(CRITICS, [str(number) for number in CRITICS])
