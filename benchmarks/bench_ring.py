"""The hybrid ring against all-reduce: where its recall goes, by replicas in one process.

Unseen characters of Omniglot, four replicas with batches of 4 x 5, multi-similarity. Results are
kept as they come (`--fresh` starts anew).
"""

import numpy as np

from benchmarks.cache import Cache
from benchmarks.harness import PALETTE, Column, Report, Target, limited_threads
from benchmarks.ring_replicas import Plan, train

REPEATS = 1
EPOCHS = 4
SEEDS = (0, 1, 2)
BASE, RING = "all-reduce, global mining", "ring, global mining"
PLANS = {
    BASE: Plan("allreduce"),
    "all-reduce, local mining": Plan("allreduce", None),
    RING: Plan(),
    "ring, local mining": Plan(rows=None),
    "ring, rows embedded by the own replica": Plan(rows="own"),
    "ring, rows embedded by running averages": Plan(rows="average"),
    "ring, rows aligned by a probe": Plan(rows="aligned"),
    "ring, a third of the steps by all-reduce first": Plan(warm_up=1 / 3),
    "ring, running average of weights": Plan(ema=0.98),
    "ring, three rounds a step": Plan(rounds=3),
    "ring, own replica, three rounds, average of weights": Plan(rows="own", rounds=3, ema=0.98),
}


def add_arguments(parser):
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")


def run(options):
    cache = Cache(None if options.quick else "ring", options.extra["fresh"])
    epochs, seeds = options.pick(EPOCHS, 1), options.pick(SEEDS, SEEDS[:1])
    plans = dict(list(PLANS.items())[: options.pick(None, 3)])
    found = {name: [] for name in plans}
    with limited_threads(1):
        for seed in seeds:  # a seed of all plans first, so that an interrupted run compares
            for name, plan in plans.items():
                entry = cache.compute([name, epochs, seed], train, plan, epochs, seed)
                found[name].append(entry)
    means = {name: np.mean([e["recall"] for e in entries]) for name, entries in found.items()}
    rows = [
        {
            "plan": name,
            "recall": float(means[name]),
            "gain": float(means[name] - means[BASE]),
            "spread": float(np.std([e["recall"] for e in entries], ddof=1))
            if len(entries) > 1
            else None,
            "distance": float(np.mean([max(e["distances"]) for e in entries])),
        }
        for name, entries in found.items()
    ]
    best = max((row for row in rows if row["plan"].startswith("ring")), key=lambda r: r["recall"])
    return Report(
        name="ring",
        title="replicas of a ring, and what brings their recall back",
        columns=[
            Column("plan", "replicas"),
            Column("recall", "recall@1", ".2f", plot=True),
            Column("gain", "less all-reduce", "+.2f"),
            Column("spread", "± between seeds", ".2f"),
            Column("distance", "largest distance of neighbours", ".3f"),
        ],
        rows=rows,
        targets=[
            Target.at_least(
                f"recall@1 of the best ring ({best['plan']}) minus all-reduce, points",
                -1.0,
                best["gain"],
            )
        ],
        parameters={
            "seeds": len(seeds),
            "curves": {
                name: {
                    figure: np.mean([e[figure] for e in entries], axis=0).tolist()
                    for figure in ("losses", "distances")
                }
                for name, entries in found.items()
            },
        },
        notes=[
            f"{epochs} epochs, means over {len(seeds)} seeds, Adam at 0.001 falling to zero along "
            "a cosine, affine changes. All replicas are in one process, so that any of them can "
            "embed the rows of another; on machines that would send rows in place of embeddings."
        ],
        plot=plot,
    )


def plot(report, figure):
    """Draw loss and distance by epoch: figures 5.4 and 5.5 of the thesis."""
    figure.set_size_inches(10, 6)
    panels = figure.subplots(1, 2)
    titles = {"losses": "training loss", "distances": "distance of neighbours' backbones"}
    for axes, (key, title) in zip(panels, titles.items(), strict=True):
        for position, (name, curves) in enumerate(report.parameters["curves"].items()):
            style = {"color": PALETTE[position % len(PALETTE)], "marker": "o", "markersize": 3}
            style["linestyle"] = "-" if position < len(PALETTE) else "--"
            axes.plot(range(1, len(curves[key]) + 1), curves[key], label=name, **style)
        axes.set_xlabel("epoch")
        axes.set_title(title)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize="small",
    )
