"""Losses by optimal transport: the cost of a step, retrieval beside other losses, and coresets.

Parts, of which `--parts` names some: "step" is the time of a training step at B = 80 with clouds of
16 points; "losses" is the table of ten losses on unseen classes, the same network for the same
number of batches, and "power" those of transport with p = 1, the paper's distance, in place of 2;
"queries" searches shifted, cluttered and bent drawings; "selection" is the time
and the value of a coreset of clouds; "training" compares a training on a coreset with one on all
samples and on random ones. Results of trainings are kept as they come: a run that was interrupted
goes on where it stopped (`--fresh` starts anew).
"""

import functools

import numpy as np

from benchmarks.cache import Cache
from benchmarks.harness import PALETTE, Column, Report, Target
from benchmarks.wasserstein_coresets import CORESET, TRAININGS, run_selection, run_training
from benchmarks.wasserstein_data import (
    CHANGES,
    change_images,
    load_fashion,
    load_omniglot,
    mean_of,
)
from benchmarks.wasserstein_steps import run_step
from skdml._optional import optional_import

REPEATS = 15
SEEDS = (0, 1, 2)
PARTS = ("step", "losses", "power", "queries", "selection", "training")
MEASURES = ("recall@1", "recall@4", "NMI", "F1", "MAP@R")
BASE, OURS = "triplet", "wtriplet"
LOSSES = (
    OURS,
    "wcontrastive",
    BASE,
    "contrastive",
    "n-pair-multi-class",
    "proxy-nca",
    "lifted-structure",
    "histogram",
    "margin",
    "multi-similarity",
)
OF_POWER_ONE = (f"{OURS}, p = 1", "wcontrastive, p = 1")
# The 3 x 3 places of a map of 28 x 28 pixels, 16 columns each; 240 batches.
NETWORK = {"module": "convnet", "n_components": 144, "augment": "affine"}
EPOCHS = 4
DATA = {"Omniglot": load_omniglot, "Fashion-MNIST": load_fashion}
LAYOUTS = {
    "Omniglot": {"classes_per_batch": 16, "samples_per_class": 5},
    "Fashion-MNIST": {"classes_per_batch": 5, "samples_per_class": 16},
}


def add_arguments(parser):
    parser.add_argument("--parts", default=",".join(PARTS), help="comma separated")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")


# Retrieval


def train_network(data, loss, seed, options):
    """Return a fitted embedder."""
    torch = optional_import("torch", "this benchmark")
    torch.set_num_threads(1)
    from skdml import DeepMetricEmbedder

    head = {} if loss.startswith("w") else {"module__head": "points"}  # the same network for all
    loss, _, power = loss.partition(", p = ")
    own = {"loss__p": int(power)} if power else {}
    model = DeepMetricEmbedder(
        loss=loss,
        max_epochs=options.pick(full=EPOCHS, quick=1),
        random_state=seed,
        **NETWORK,
        **head,
        **own,
        **LAYOUTS[data],
    )
    return model.fit(*DATA[data]("train"))


def measure_retrieval(embeddings, y, metric):
    """Return all measures in percent."""
    from skdml.metrics import cluster_f1, cluster_nmi, map_at_r, recall_at_k

    recalls = recall_at_k(embeddings, y, k=[1, 4], metric=metric)
    clusters = [measure(embeddings, y, random_state=0) for measure in (cluster_nmi, cluster_f1)]
    values = [*recalls, *clusters, map_at_r(embeddings, y, metric=metric)]
    return dict(zip(MEASURES, (100 * np.array(values)).tolist(), strict=True))


def score_loss(data, loss, seed, options):
    """Train with a loss; measures by its own distance and, after "Euclidean", by that one."""
    model = train_network(data, loss, seed, options)
    X, y = DATA[data]("test")
    embeddings = model.transform(X)
    found = measure_retrieval(embeddings, y, model.metric_)
    if model.metric_ != "euclidean":
        others = measure_retrieval(embeddings, y, "euclidean")
        found |= {f"Euclidean {name}": value for name, value in others.items()}
    return found


def run_losses(part, options, cache):
    rows = []
    losses = OF_POWER_ONE
    if part == "losses":
        losses = options.pick(full=LOSSES, quick=(OURS, BASE))
    for data in options.pick(full=list(DATA), quick=["Omniglot"]):
        for loss in losses:
            results = [
                cache.compute(["losses", data, loss, seed], score_loss, data, loss, seed, options)
                for seed in options.pick(full=SEEDS, quick=SEEDS[:1])
            ]
            rows += rows_of_loss(part, data, loss, results)
    return rows


def rows_of_loss(part, data, loss, results):
    """Return the means over seeds, and another row where a search may be Euclidean as well."""
    common = {"part": part, "data": data}
    means = mean_of(results)
    recalls = [one["recall@1"] for one in results]
    own = {key: means[key] for key in MEASURES}
    rows = [{**common, "name": loss, **own, "recalls": recalls}]
    if "Euclidean recall@1" in means:
        others = {name: means[f"Euclidean {name}"] for name in MEASURES}
        recalls = [one["Euclidean recall@1"] for one in results]
        rows.append({**common, "name": f"{loss}, Euclidean search", **others, "recalls": recalls})
    return rows


# Changed queries


def score_queries(loss, seed, options):
    """Search a quarter of the test drawings, changed, among another half, as they are."""
    from dataclasses import replace

    from skdml.metrics import recall_at_k
    from skdml.transport._cloud_metric import metric_of_rows

    model = train_network("Omniglot", loss, seed, options)
    X, y = load_omniglot("test")
    gallery, labels = model.transform(X[::2]), y[::2]
    metric = metric_of_rows(gallery, (9, 16), solver="exact")
    smooth = metric_of_rows(gallery, (9, 16), reg=0.5)
    searches = {
        "Euclidean": "euclidean",
        "transport": metric,
        "transport, 100 candidates": replace(metric, n_candidates=100),
        "transport, reg = 0.5": smooth,
    }
    found = {}
    for change in options.pick(full=list(CHANGES), quick=["none", "shifted 4"]):
        queries = model.transform(change_images(X[1::4], change, X[::2], seed=0))
        for name, search in searches.items():
            recall = recall_at_k(
                queries, y[1::4], gallery=gallery, gallery_labels=labels, metric=search
            )
            found[f"{change} | {name}"] = 100 * recall
    return found


def run_queries(options, cache):
    rows = []
    for loss in (OURS, BASE):
        results = [
            cache.compute(["queries", loss, seed], score_queries, loss, seed, options)
            for seed in options.pick(full=SEEDS, quick=SEEDS[:1])
        ]
        for key, recall in mean_of(results).items():
            change, search = key.split(" | ")
            name = f"{loss}, {search}"
            rows.append({"part": "queries", "data": change, "name": name, "recall@1": recall})
    return rows


# The report


def make_targets(rows):
    """Return what the rows say to the numbers that were asked for."""
    targets = []
    named = {(row["part"], row.get("data"), row["name"]): row for row in rows}
    if ("step", None, OURS) in named:
        ratio = named["step", None, OURS]["ratio"]
        targets.append(Target.at_most(f"a step of {OURS} over one of {BASE},", 2.0, ratio))
    for data in DATA:
        if ("losses", data, OURS) in named:
            own = [row for row in rows if row["part"] == "losses" and row.get("data") == data]
            best = max(row["recall@1"] for row in own if not row["name"].startswith("w"))
            gain = named["losses", data, OURS]["recall@1"] - best
            text = f"{data}: recall@1 of {OURS} less that of the best Euclidean loss,"
            targets.append(Target.at_least(text, 0.0, gain))
    selection = [row for row in rows if row["part"] == "selection"]
    if selection:
        seconds = max(row["seconds"] for row in selection if "seconds" in row)
        ratio = min(row["ratio"] for row in selection if "ratio" in row)
        targets.append(Target.at_most("10,000 clouds to 1,000, most seconds", 300.0, seconds))
        targets.append(Target.at_least("1,000 clouds, least value over all pairs'", 0.98, ratio))
    for data in ("letter", "Fashion-MNIST"):
        kinds = {kind: named.get(("training", data, kind)) for kind in TRAININGS}
        if kinds["full"]:
            share = kinds["coreset"]["recall@1"] / kinds["full"]["recall@1"]
            gain = kinds["coreset"]["recall@1"] - kinds["random"]["recall@1"]
            targets += [
                Target.at_least(f"{data}: recall@1 of a coreset over the full run's", 0.95, share),
                Target.at_least(f"{data}: recall@1 of a coreset less a random part's", 0.0, gain),
                Target.at_most(
                    f"{data}: seconds over the full run's", 0.4, kinds["coreset"]["ratio"]
                ),
            ]
    return targets


def run(options):
    cache = Cache(None if options.quick else "wasserstein-losses", options.extra["fresh"])
    runs = {
        "step": run_step,
        "losses": functools.partial(run_losses, "losses"),
        "power": functools.partial(run_losses, "power"),
        "queries": run_queries,
        "selection": run_selection,
        "training": run_training,
    }
    runners = {part: functools.partial(run, options, cache) for part, run in runs.items()}
    rows = options.run_parts("wasserstein-losses", runners)
    return Report(
        name="wasserstein-losses",
        title="losses by optimal transport: steps, retrieval in percent, coresets",
        columns=[
            Column("part", "part"),
            Column("data", "data"),
            Column("name", "training or search"),
            *[Column(measure, measure, ".1f") for measure in MEASURES],
            Column("milliseconds", "ms of a step", ".1f"),
            Column("seconds", "seconds", ".1f"),
            Column("ratio", "ratio", ".3f"),
        ],
        rows=rows,
        targets=make_targets(rows),
        parameters={"epochs": EPOCHS, "seeds": list(SEEDS), "coreset": CORESET},
        notes=[
            "*step*: forward, backward and optimiser of the convolutional network, 80 images of "
            "32 x 32, 16 points of 4 columns; ratio to the Euclidean triplet loss. *all pairs* "
            "solves every pair of the batch, with two self-terms each; *between batches* takes "
            "anchors, positives and negatives for one cloud each.",
            "*losses*: the spatial map of the convolutional network, 9 points of 16 columns, is "
            "the head for every loss; 240 batches of 80, affine augmentation, default parameters, "
            "means over three seeds. Omniglot: other alphabets; Fashion-MNIST: five classes to "
            "train, five others to test, 400 images each. With a transport loss the 19 nearest by "
            "Euclidean distance are put in order by transport; NMI and F1 are of k-means.",
            "*queries*: a quarter of the drawings are changed and searched among another half, "
            "the candidates in order by exact transport, or with an entropy of reg = 0.5.",
            "*selection*: clouds of 16 points of 4 columns; ratio of the value of facility "
            "location to that of a greedy choice with all pairs solved. "
            "*training*: 20% of the samples, chosen anew every five epochs, with 20% of the "
            "batches; CPU seconds of a fit on one thread, the choice included, and their "
            "ratio; means over five seeds.",
        ],
        plot=plot,
    )


def plot(report, figure):
    """Draw recall@1 of the losses, of changed queries, and of coresets."""
    figure.set_size_inches(13, 8)
    panels = figure.subplots(2, 2)
    for axes, data in zip(panels[0], DATA, strict=True):
        parts = ("losses", "power")
        own = [row for row in report.rows if row["part"] in parts and row["data"] == data]
        draw_dots(axes, own)
        axes.set_title(f"{data}: recall@1, seeds and their mean", fontsize="medium")
    draw_queries(panels[1, 0], [row for row in report.rows if row["part"] == "queries"])
    trainings = [row for row in report.rows if row["part"] == "training"]
    draw_dots(panels[1, 1], trainings, prefix=True)
    panels[1, 1].set_title("training on 20%: recall@1, seeds and their mean", fontsize="medium")


def draw_dots(axes, rows, prefix=False):
    if not prefix:
        rows = sorted(rows, key=lambda row: row["recall@1"])
    for place, row in enumerate(rows):
        colour = PALETTE[5] if row["name"].startswith(("w", "coreset")) else PALETTE[0]
        axes.scatter(row["recalls"], [place] * len(row["recalls"]), s=14, color=colour)
        axes.scatter(row["recall@1"], place, s=90, marker="|", color=colour)
    names = [f"{row['data']}, {row['name']}" if prefix else row["name"] for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize="small")
    axes.set_xlabel("percent")
    axes.grid(axis="y", color="0.92")
    axes.spines[["top", "right"]].set_visible(False)


def draw_queries(axes, rows):
    changes = list(dict.fromkeys(row["data"] for row in rows))
    for position, name in enumerate(dict.fromkeys(row["name"] for row in rows)):
        recalls = [row["recall@1"] for row in rows if row["name"] == name]
        style = "-" if name.startswith("w") else "--"
        axes.plot(
            recalls,
            range(len(changes)),
            style,
            marker="o",
            markersize=4,
            color=PALETTE[position % len(PALETTE)],
            label=name,
        )
    axes.set_yticks(range(len(changes)), changes)
    axes.set_xlabel("percent")
    axes.set_title("changed drawings: recall@1 by loss and search", fontsize="medium")
    if rows:
        axes.legend(fontsize="x-small", loc="lower left")
    axes.spines[["top", "right"]].set_visible(False)
