"""The picture of the benchmark of generators."""

from benchmarks.harness import PALETTE

PARTS = ("rows", "critics", "images", "workers", "model")
BASE = "WGAN-GP"
PLAIN = "WGAN-GP, plain"
BY_UPDATES, BY_TIME = "as many updates", "as many seconds"
CRITICS = (1, 2, 4, 8)


def plot(report, figure):
    """Draw distances by method, by critics and by data, images, and seconds by workers."""
    of_part = {part: [row for row in report.rows if row["part"] == part] for part in PARTS}
    figure.set_size_inches(14, 8)
    axes = figure.subplots(2, 3).ravel()
    draw_methods(axes[0], [row for row in of_part["rows"] if row["data"] == "digits"])
    draw_by_critics(axes[1], of_part["critics"], "W2", PALETTE[0], "to held-out digits")
    draw_by_critics(axes[1], of_part["critics"], "estimated", PALETTE[1], "estimated in training")
    axes[1].set_ylabel("W2, digits")
    for place, measure in enumerate(("precision", "recall", "coverage")):
        draw_by_critics(axes[2], of_part["critics"], measure, PALETTE[place + 2], measure)
    axes[2].set_ylabel("quality, digits")
    for rule, colour in ((BY_UPDATES, PALETTE[0]), (BY_TIME, PALETTE[5])):
        rows = [row for row in of_part["images"] if row["n_critics"] and row["rule"] == rule]
        draw_by_critics(axes[3], rows, "distance", colour, f"{rule} as {BASE}")
    for row in of_part["images"]:
        if row["method"] == BASE:
            axes[3].axhline(row["distance"], color=PALETTE[7], ls="--", lw=1, label=BASE)
    axes[3].set_ylabel("Frechet distance, MNIST")
    draw_data(axes[4], of_part["rows"])
    draw_speed_up(axes[5], of_part["workers"], of_part["model"])
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    for one in axes[1:4]:
        one.set_xlabel("critics")
    for one in axes[1:]:
        if one.get_legend_handles_labels()[0]:
            one.legend(fontsize="small", frameon=False)


def draw_methods(axes, rows):
    """Draw the distance of each method and seed."""
    for place, row in enumerate(rows):
        colour = PALETTE[7] if row["method"] == "real rows" else PALETTE[place % 7]
        axes.scatter([one["W2"] for one in row["each"]], [place] * len(row["each"]), color=colour)
    axes.set_yticks(range(len(rows)), [row["method"] for row in rows], fontsize="small")
    axes.set_xlabel("W2 to held-out digits, each seed")


def draw_data(axes, rows):
    """Draw the distances on all data, over that of training rows."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    floors = {row["data"]: row["W2"] for row in rows if row["method"] == "real rows"}
    methods = [row["method"] for row in rows if row["data"] == names[-1]][1:] if names else []
    for place, method in enumerate(methods):
        found = {row["data"]: row["W2"] for row in rows if row["method"] == method}
        values = [found[name] / floors[name] for name in names]
        axes.plot(range(len(names)), values, "o", color=PALETTE[place], label=method)
    axes.axhline(1, color=PALETTE[7], ls="--", lw=1)
    axes.set_xticks(range(len(names)), names, rotation=20, fontsize="small")
    axes.set_yscale("log", base=2)
    axes.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axes.set_ylabel("W2 over that of training rows")


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
