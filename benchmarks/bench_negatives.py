"""Hard and semi-hard negatives on 1, 2 and 4 ranks, rival losses, and the last layer alone.

Unseen characters of Omniglot, as in `distributed`. Parts: "ranks" has the thesis's loss with the
nearest and with semi-hard negatives, of all ranks and of a rank's own; "rivals" the losses of its
tables 5.1 to 5.3, in one process and by all-reduce on four ranks; "layer" trains a network further
that was trained on other alphabets, end to end and its last layer alone; "collapse" looks for where
the nearest negative pays and where it collapses: classes of a batch, head and start. Results are
kept as they come, the first seed of everything first (`--fresh` starts anew); `--known` reports
what there is.
"""

import copy
import functools
import json

import numpy as np

from benchmarks.bench_distributed import SMALL
from benchmarks.cache import Cache
from benchmarks.data import load_omniglot
from benchmarks.distributed_fit import fit, load
from benchmarks.harness import PALETTE, Column, Report, Target, limited_threads
from skdml import DeepMetricEmbedder
from skdml.metrics import recall_at_k

REPEATS = 1
PARTS = ("ranks", "rivals", "layer", "collapse")
SEEDS = (0, 1, 2)
EPOCHS = 4
THESIS, BASE = "class-anchor", "multi-similarity"
# Where negatives are looked for: in all batches, or in that of the rank. Rows of other ranks are
# constants, as in the thesis, but "with gradients", the default.
WHERE = {"all": {"remote_grad": False}, "own": {"gather": False}, "all, with gradients": {}}
SEMI_HARD, HARDEST = NEGATIVES = ("semi-hard", "hardest")
RIVALS = (
    "triplet",
    "lifted-structure",
    "histogram",
    "n-pair-multi-class",
    "facility-location",
    "spectral",
    BASE,
)
# Alphabets that the network of part "layer" begins with; the other training alphabets are for it.
N_EARLIER = 3
END_TO_END, LAST, BEFORE = "end to end", "last layer", "before"
CLASSES = (4, 8, 16, 32, 64)
HEADS, STARTS = ("map", "dense"), ("cold", "warm")
# Of part "collapse": rows that a network is trained on, in all, whatever the batch.
N_ROWS = 10_880


def add_arguments(parser):
    parser.add_argument("--parts", default=",".join(PARTS), help="comma separated")
    parser.add_argument("--known", action="store_true", help="report what is known already")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")


def fit_ranks(loss, params, n_workers, options, seed, epochs):
    """Return recall@1 after a fit by all-reduce; of one process without any ranks."""
    params = {**SMALL, "loss": loss, **params, "max_epochs": epochs, "random_state": seed}
    if n_workers > 1:
        params.update(n_workers=n_workers, timeout=300, **options)
        found = fit(params)
        return {"recall": found["recall"], "seconds": sum(found["epoch_seconds"])}
    return score(DeepMetricEmbedder(**params).fit(*load("train")))


def score(model):
    X, y = load("test")
    recall = 100 * float(recall_at_k(model.transform(X), y, k=1))
    return {"recall": recall, "seconds": model.history_["seconds"][-1]}


@functools.cache
def earlier(seed, epochs):
    """Return a network of the first alphabets, and the samples of the others."""
    X, y = load("train")
    _, alphabets = load_omniglot("train", "alphabet")
    first = np.isin(alphabets, np.unique(alphabets)[:N_EARLIER])
    model = DeepMetricEmbedder(**SMALL, loss=BASE, max_epochs=epochs, random_state=seed)
    model.fit(X[first], y[first])
    return model, X[~first], y[~first]


def fit_layer(loss, which, seed, epochs):
    """Return recall@1 of a network that was trained on other alphabets, and then further."""
    model, X, y = earlier(seed, epochs)
    if which == BEFORE:
        return score(model)
    model = DeepMetricEmbedder(
        copy.deepcopy(model.module_),
        loss=loss,
        augment="affine",
        classes_per_batch=SMALL["classes_per_batch"],
        max_epochs=epochs,
        lr=0.001,
        early_stopping=False,
        random_state=seed,
        **({"freeze": "backbone"} if which == LAST else {}),
    )
    return score(model.fit(X, y))


def fit_batch(negatives, n_classes, head, start, seed, n_rows):
    """Return recall@1 by batches of so many classes, from random weights or from trained ones."""
    X, y = load("train")
    batch = 5 * n_classes
    params = {
        "augment": "affine",
        "classes_per_batch": n_classes,
        "early_stopping": False,
        "random_state": seed,
    }
    module = "convnet"
    if start == "warm":
        first = DeepMetricEmbedder(
            "convnet", module__head=head, loss=BASE, max_epochs=1, **{**params, **SMALL_BATCH}
        )
        module = first.fit(X, y).module_
    own = {"module__head": head} if module == "convnet" else {}
    epochs = max(1, round(n_rows / (max(60, len(X) / batch) * batch)))
    model = DeepMetricEmbedder(
        module, loss=THESIS, loss__negatives=negatives, lr=0.002, max_epochs=epochs, **own, **params
    )
    return score(model.fit(X, y))


SMALL_BATCH = {"classes_per_batch": 16}


# The parts


def plan(part, options):
    """Return functions and their arguments but for the seed, by the columns of a row."""
    epochs = options.pick(EPOCHS, 1)
    if part == "ranks":
        settings = [(1, None)] + [(n, where) for n in (2, 4) for where in WHERE]
        return {
            (f"{THESIS}, {negatives}", f"{n} ranks, {where}" if where else "1"): (
                fit_ranks,
                (THESIS, {"loss__negatives": negatives}, n, WHERE.get(where)),
                epochs,
            )
            for negatives in NEGATIVES
            for n, where in settings
        }
    if part == "rivals":
        return {
            (loss, f"4 ranks, {where}" if where else "1"): (
                fit_ranks,
                (loss, {}, 4 if where else 1, WHERE.get(where)),
                epochs,
            )
            for loss in RIVALS
            for where in (None, "all", "all, with gradients")
        }
    if part == "layer":
        rows = {
            (loss, which): (fit_layer, (loss, which), epochs)
            for loss in (THESIS, *RIVALS)
            for which in (END_TO_END, LAST)
        }
        return {(BASE, BEFORE): (fit_layer, (BASE, BEFORE), epochs), **rows}
    return {
        (f"{negatives}, {head} head, {start}", f"{n} classes"): (
            fit_batch,
            (negatives, n, head, start),
            options.pick(N_ROWS, 500),
        )
        for negatives in NEGATIVES
        for head in HEADS
        for start in STARTS
        for n in CLASSES
    }


def run_part(part, options, cache):
    """Return the rows of a part, means over the seeds that are known."""
    planned = plan(part, options)
    if options.quick:
        planned = dict(list(planned.items())[:: max(1, len(planned) // 2)])
    found = {key: [] for key in planned}
    with limited_threads(1):
        for seed in options.pick(SEEDS, SEEDS[:1]):
            for key, (function, arguments, length) in planned.items():
                name = [part, *key, seed]
                if not options.extra["known"] or cache.find(json.dumps(name)):
                    found[key].append(cache.compute(name, function, *arguments, seed, length))
    return [
        {
            "part": part,
            "loss": loss,
            "where": where,
            "recall": float(np.mean([one["recall"] for one in entries])),
            "spread": float(np.std([one["recall"] for one in entries], ddof=1))
            if len(entries) > 1
            else None,
            "seconds": float(np.mean([one["seconds"] for one in entries])),
            "seeds": len(entries),
        }
        for (loss, where), entries in found.items()
        if entries
    ]


def make_targets(rows):
    """Return what global mining gains with semi-hard negatives, on most ranks."""
    recalls = {(row["loss"], row["where"]): row["recall"] for row in rows if row["part"] == "ranks"}
    places = ("own", "all, with gradients")
    own, others = ((f"{THESIS}, {SEMI_HARD}", f"4 ranks, {where}") for where in places)
    if own not in recalls or others not in recalls:
        return []
    text = "4 ranks, semi-hard: recall@1 of global minus local mining, points,"
    return [Target.at_least(text, 0.0, recalls[others] - recalls[own])]


def run(options):
    cache = Cache(None if options.quick else "negatives", options.extra["fresh"])
    rows = options.run_parts(
        "negatives", {part: functools.partial(run_part, part, options, cache) for part in PARTS}
    )
    return Report(
        name="negatives",
        title="hard and semi-hard negatives, rival losses, and the last layer alone",
        columns=[
            Column("part", "part"),
            Column("loss", "loss"),
            Column("where", "where"),
            Column("recall", "recall@1", ".1f", plot=True),
            Column("spread", "± between seeds", ".1f"),
            Column("seconds", "seconds", ".0f"),
            Column("seeds", "seeds", ".0f"),
        ],
        rows=rows,
        targets=make_targets(rows),
        parameters={"seeds": list(SEEDS), "epochs": EPOCHS},
        notes=[
            f"*ranks* and *rivals*: {EPOCHS} epochs with batches of 4 x 5 for each process, "
            "gradients averaged; *all* looks for negatives in the batches of all ranks, *own* in "
            "that of the rank; *with gradients* also has those of the rows of other ranks. Seconds "
            "are those of the epochs, on two cores that four ranks share.",
            f"*layer*: a network trained on {N_EARLIER} alphabets ({BEFORE}), then on two others, "
            f"{EPOCHS} epochs each, the second with a rate of 0.001; the same test. *collapse*: "
            f"one process, some {N_ROWS:,} rows in all whatever the batch, of five rows for each "
            f"class, a rate of 0.002, {THESIS}; a warm start has an epoch of {BASE} before.",
        ],
        plot=plot,
    )


BELOW = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.12), "fontsize": "small"}


def plot(report, figure):
    """Draw recall by classes of a batch, head and start; and the other parts as points."""
    figure.set_size_inches(11, 6)
    left, right = figure.subplots(1, 2, width_ratios=(1.2, 1))
    rows = [row for row in report.rows if row["part"] == "collapse"]
    for place, name in enumerate(dict.fromkeys(row["loss"] for row in rows)):
        shown = [(int(r["where"].split()[0]), r["recall"]) for r in rows if r["loss"] == name]
        style = {"linestyle": "-" if name.startswith(SEMI_HARD) else "--", "marker": "o"}
        left.plot(*zip(*shown, strict=True), color=PALETTE[place % 4], label=name, **style)
    left.set_xscale("log", base=2)
    left.set_xticks(CLASSES, [str(n) for n in CLASSES])
    left.set_xlabel("classes of a batch")
    left.set_ylabel("recall@1 of unseen characters, percent")
    if rows:
        left.legend(**BELOW, ncols=2)
    rows = [row for row in report.rows if row["part"] in ("ranks", "rivals")]
    names = list(dict.fromkeys(row["loss"] for row in rows))
    for place, where in enumerate(dict.fromkeys(row["where"] for row in rows)):
        shown = [(r["recall"], names.index(r["loss"])) for r in rows if r["where"] == where]
        right.scatter(*zip(*shown, strict=True), color=PALETTE[place], label=where, s=24)
    right.set_yticks(range(len(names)), names, fontsize="small")
    right.set_xlabel("recall@1, percent")
    if rows:
        right.legend(**BELOW, ncols=3)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
