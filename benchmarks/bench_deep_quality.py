"""Retrieval of unseen Omniglot characters by DeepMetricEmbedder: all losses side by side.

The characters of three alphabets are searched with a network trained on five others. Parts:
"default" is the estimator as it is, with augmentation and with turned classes, in seconds on all
cores; "losses" trains the same network with every loss, for the same number of batches; "ratio"
and "k" are figures 1 to 3 of the DRO paper, recall over the batch size and over K; "tables" is
1-NN on two tables. Results are kept as they come: a run that was interrupted goes on where it
stopped (`--fresh` starts anew).
"""

import json
import time

import joblib
import numpy as np
from sklearn.preprocessing import normalize

from benchmarks import data
from benchmarks.cache import Cache
from benchmarks.harness import PALETTE, Column, Report, Target, progress
from skdml._optional import optional_import

REPEATS = 1
SEEDS = (0, 1, 2)
PARTS = ("default", "losses", "ratio", "k", "tables")
BASE = "multi-similarity"
ROBUST = ("dro-topk", "dro-topk-pn", "dro-kl", "dro-kl-ball", "dro-kl-g", "dro-max", "dro-variance")
LOSSES = {
    BASE: {},
    "contrastive": {},
    "triplet, all": {"loss": "triplet", "loss__triplets": "all"},
    "triplet, semi-hard": {"loss": "triplet", "loss__triplets": "semi-hard"},
    "triplet, hard": {"loss": "triplet", "loss__triplets": "hard"},
    "lifted-structure": {},
    "lifted-structure-pairs": {},
    "n-pair-tuplet": {},
    "n-pair-multi-class": {},
    "n-pair-one-vs-one": {},
    "histogram": {},
    "facility-location": {},
    "spectral": {},
    "angular": {},
    "margin": {},
    "binomial": {},
    "thesis": {},
    **{name: {} for name in ROBUST},
    **{f"{name}, binomial": {"loss": name, "loss__pair_loss": "binomial"} for name in ROBUST[:4]},
    **{f"{name}, K = 4 B": {"loss": name, "loss__k": 320} for name in ROBUST[:2]},
    "dro-topk-pn, binomial, K = 4 B": {
        "loss": "dro-topk-pn",
        "loss__pair_loss": "binomial",
        "loss__k": 320,
    },
    "dro-kl-g, gamma = 0.1": {"loss": "dro-kl-g", "loss__gamma": 0.1},
    "dro-kl-g as multi-similarity": {
        "loss": "dro-kl-g",
        "loss__margin": 0.5,
        "loss__null_loss": 0.5,
    },
    "dro-kl, gamma = 0.3": {"loss": "dro-kl", "loss__gamma": 0.3},
    "proxy-nca": {},
    "proxy-anchor": {},
    "soft-triple": {},
}
LOSS_EPOCHS = 4
# The head that any loss can be used with, whatever the dimension.
NETWORK = {"module__head": "dense"}
RATIO_METHODS = {
    "margin, semi-hard": {"loss": "margin", "miner": "semi-hard"},
    "margin, distance-weighted": {"loss": "margin", "miner": "distance-weighted"},
    **{name: {"loss": name} for name in ROBUST[:3]},
}
RATIO_SIZES = (80, 160, 320)
RATIO_DIMENSIONS = (512, 1024)
K_BATCH = 160
K_VALUES = (20, 80, 320, 1280, 5120)
PER_CLASS = 5
MEASURES = ("recall@1", "recall@2", "recall@4", "recall@8", "MAP@R", "NMI")
TABLES = ("letter", "optdigits")


def add_arguments(parser):
    parser.add_argument("--parts", default=",".join(PARTS), help="comma separated")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time, one thread each")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")


def load_omniglot(subset):
    X, y = data.load_omniglot(subset)
    return X.reshape(-1, 1, 28, 28), y


def measure_retrieval(embeddings, y):
    """Return all measures in percent."""
    from skdml.metrics import cluster_nmi, map_at_r, recall_at_k

    recalls = recall_at_k(embeddings, y, k=[1, 2, 4, 8])
    others = map_at_r(embeddings, y), cluster_nmi(embeddings, y, random_state=0)
    values = 100 * np.array([*recalls, *others])
    return dict(zip(MEASURES, values.tolist(), strict=True))


def train(params, seed, threads):
    """Train a network and return the measures of the test characters and the seconds of the fit."""
    torch = optional_import("torch", "this benchmark")
    torch.set_num_threads(threads)
    from skdml import DeepMetricEmbedder

    params = {"module": "convnet", "augment": "affine", "random_state": seed, **params}
    model = DeepMetricEmbedder(**params)
    X, y = load_omniglot("train")
    start = time.perf_counter()
    model.fit(X, y)
    seconds = time.perf_counter() - start
    X, y = load_omniglot("test")
    return {**measure_retrieval(model.transform(X), y), "seconds": seconds}


def score_table(name, seed):
    """Return the accuracy of 1-NN on scaled columns and on their embedding, half for training."""
    from sklearn.model_selection import train_test_split
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from skdml import DeepMetricEmbedder

    X, y = data.load_uci(name)
    parts = train_test_split(X, y, test_size=0.5, random_state=seed, stratify=y)
    X_train, X_test, y_train, y_test = parts
    nearest = KNeighborsClassifier(1)
    scaled = make_pipeline(StandardScaler(), nearest)
    embedded = make_pipeline(StandardScaler(), DeepMetricEmbedder(random_state=seed), nearest)
    start = time.perf_counter()
    return {
        "scaled": 100 * scaled.fit(X_train, y_train).score(X_test, y_test),
        "embedded": 100 * embedded.fit(X_train, y_train).score(X_test, y_test),
        "seconds": time.perf_counter() - start,
    }


def plan(part):
    """Return the rows of a part: name, parameters of the estimator, and columns beside them."""
    if part == "tables":
        return [(name, {}, {}) for name in TABLES]
    if part == "default":
        return [("default", {}, {}), ("class rotations", {"augment": "class-rotations"}, {})]
    if part == "losses":
        return [
            (name, {**NETWORK, "loss": name, "max_epochs": LOSS_EPOCHS, **params}, {})
            for name, params in LOSSES.items()
        ]
    if part == "ratio":
        return [
            (
                name,
                {**NETWORK, **batch_of(size), "n_components": dimension, **params},
                {"batch": size, "dimension": dimension},
            )
            for dimension in RATIO_DIMENSIONS
            for size in RATIO_SIZES
            for name, params in RATIO_METHODS.items()
        ]
    return [
        (f"K = {k}", {**NETWORK, **batch_of(K_BATCH), "loss": "dro-topk", "loss__k": k}, {"k": k})
        for k in K_VALUES
    ]


def batch_of(size):
    """Return the parameters for batches of this size, with as many samples in all epochs."""
    return {
        "classes_per_batch": size // PER_CLASS,
        "samples_per_class": PER_CLASS,
        "max_epochs": RATIO_SIZES[-1] // size,
    }


def run_part(part, options, cache):
    """Return the rows of a part, means over the seeds."""
    seeds = SEEDS if part in ("default", "losses", "tables") else SEEDS[:1]
    planned = plan(part)
    if options.quick:
        seeds, planned = seeds[:1], planned[:2]
    # The default is timed: alone, on all cores.
    jobs, threads = (1, joblib.cpu_count()) if part == "default" else (options.extra["jobs"], 1)
    calls = {}
    for name, params, _ in planned:
        for seed in seeds:
            key = json.dumps([part, name, params, seed])
            if part == "tables":
                calls[key] = joblib.delayed(score_table)(name, seed)
            else:
                shorter = {"max_epochs": 1} if options.quick else {}
                calls[key] = joblib.delayed(train)({**params, **shorter}, seed, threads)
    missing = [key for key in calls if cache.find(key) is None]
    results = joblib.Parallel(n_jobs=jobs, return_as="generator")(calls[key] for key in missing)
    for number, (key, result) in enumerate(zip(missing, results, strict=True)):
        progress(f"{number + 1} of {len(missing)}: {key}")
        cache.add(key, result)
    rows = []
    for name, params, columns in planned:
        results = [cache.find(json.dumps([part, name, params, seed])) for seed in seeds]
        means = {key: float(np.mean([one[key] for one in results])) for key in results[0]}
        rows.append({"part": part, "name": name, **columns, **means})
        if part == "losses":
            rows[-1]["recalls"] = [one[MEASURES[0]] for one in results]
    return rows


def make_targets(rows):
    """Return what the rows say to the numbers that were asked for."""
    targets = []
    of_part = {part: [row for row in rows if row["part"] == part] for part in PARTS}
    for row, least in zip(of_part["default"], (83.0, 88.0), strict=False):
        targets += [
            Target.at_least(f"{row['name']}: recall@1", least, row["recall@1"]),
            Target.at_most(f"{row['name']}: seconds of a fit", 180.0, row["seconds"]),
        ]
    base = {row["name"]: row for row in of_part["losses"]}.get(BASE)
    for row in of_part["losses"]:
        if row["name"].startswith("dro"):
            gain = row["recall@1"] - base["recall@1"]
            targets.append(Target.at_least(f"{row['name']}: recall@1 less {BASE}'s", 0.0, gain))
    for row in of_part["tables"]:
        gain = row["embedded"] - row["scaled"]
        targets.append(
            Target.at_least(f"{row['name']}: 1-NN on the embedding less scaled columns", 0.0, gain)
        )
    return targets


def run(options):
    parts = options.parts(PARTS)
    cache = Cache(None if options.quick else "deep-quality", options.extra["fresh"])
    rows = []
    for part in parts:
        progress(part)
        rows += run_part(part, options, cache)
    X, y = load_omniglot("test")
    raw = measure_retrieval(normalize(X.reshape(len(X), -1)), y)
    rows.insert(0, {"part": "pixels", "name": "raw pixels, of unit length", **raw})
    return Report(
        name="deep-quality",
        title="unseen Omniglot characters, percent; and 1-NN on tables",
        columns=[
            Column("part", "part"),
            Column("name", "training"),
            Column("batch", "batch"),
            Column("dimension", "dimension"),
            *[Column(measure, measure, ".1f") for measure in MEASURES],
            Column("scaled", "1-NN scaled", ".2f"),
            Column("embedded", "1-NN embedded", ".2f"),
            Column("seconds", "seconds", ".0f"),
        ],
        rows=rows,
        targets=make_targets(rows),
        parameters={"loss_epochs": LOSS_EPOCHS, "seeds": list(SEEDS), "k_batch": K_BATCH},
        notes=[
            "Trained on 2,720 drawings of 136 characters, tested on 2,120 of 106 others, of other "
            'alphabets; module="convnet" and augment="affine" throughout, all else default but '
            "for what the part is about. Means over three seeds; one seed in *ratio* and *k*. "
            "*losses*, *ratio* and *k* have a head over the whole map, the others one by places.",
            f"*losses*: {LOSS_EPOCHS} epochs of 60 batches of 16 x 5, default parameters of each "
            "loss. *ratio*: as many samples whatever the batch, five per class, K = 2 B. "
            f"*k*: batches of {K_BATCH}. *tables*: half of the rows for training. Seconds are of "
            "one fit: all cores in *default*, one core beside another fit elsewhere.",
        ],
        plot=plot,
    )


def plot(report, figure):
    """Draw recall@1 by loss, by batch size and by K."""
    of_part = {part: [row for row in report.rows if row["part"] == part] for part in PARTS}
    figure.set_size_inches(13, 9)
    left, right = figure.subfigures(1, 2, width_ratios=(1.1, 1))
    draw_losses(left.subplots(), of_part["losses"])
    panels = right.subplots(len(RATIO_DIMENSIONS) + 1)
    for axes, dimension in zip(panels, RATIO_DIMENSIONS, strict=False):
        rows = [row for row in of_part["ratio"] if row["dimension"] == dimension]
        draw_ratio(axes, rows)
        axes.set_title(f"recall@1 by batch size, {dimension} dimensions", fontsize="medium")
    panels[0].legend(fontsize="small", ncols=2)
    axes = panels[-1]
    for position, measure in enumerate(MEASURES[:4]):
        shown = [(row["k"], row[measure]) for row in of_part["k"]]
        if shown:
            axes.plot(*zip(*shown, strict=True), "o-", color=PALETTE[position], label=measure)
            axes.set_xscale("log")
    axes.set_title(f"dro-topk by K, batches of {report.parameters['k_batch']}", fontsize="medium")
    axes.set_xlabel("K (logarithmic)")
    if of_part["k"]:
        axes.legend(fontsize="small", ncols=2)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)


def draw_losses(axes, rows):
    rows = sorted(rows, key=lambda row: row["recall@1"])
    for place, row in enumerate(rows):
        colour = PALETTE[5] if row["name"].startswith("dro") else PALETTE[0]
        colour = PALETTE[7] if row["name"] == BASE else colour
        axes.scatter(row["recalls"], [place] * len(row["recalls"]), s=14, color=colour)
        axes.scatter(row["recall@1"], place, s=90, marker="|", color=colour)
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize="small")
    axes.set_xlabel("recall@1, percent: three seeds and their mean")
    axes.grid(axis="y", color="0.92")
    axes.spines[["top", "right"]].set_visible(False)


def draw_ratio(axes, rows):
    for position, name in enumerate(RATIO_METHODS):
        shown = [(row["batch"], row["recall@1"]) for row in rows if row["name"] == name]
        if shown:
            axes.plot(*zip(*shown, strict=True), "o-", color=PALETTE[position], label=name)
    axes.set_xscale("log")
    # Of the pairs of an anchor, four are positive.
    texts = [f"{size}\n{(PER_CLASS - 1) / (size - PER_CLASS):.3f}" for size in RATIO_SIZES]
    axes.set_xticks(RATIO_SIZES, texts)
    axes.minorticks_off()
    axes.set_xlabel("batch size, and positive pairs per negative pair")
