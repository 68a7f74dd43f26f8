"""Retrieval of classes that training has not seen, by DeepMetricEmbedder with every loss.

Omniglot: the characters of three alphabets are searched with a network trained on five others. CUB:
pictures of 100 kinds of birds are searched with an adapter of their vectors, trained on 100 others.
Parts: "default" is the estimator as it is, with augmentation and with turned classes, in seconds on
all cores; "losses" and "cub" train the default network, for its default length, with every loss;
"ratio" and "k" are figures 1 to 3 of the DRO paper, recall over the batch size and over K; "tables"
is 1-NN on two tables. Results are kept as they come, the first seed of everything first: a run that
was interrupted goes on where it stopped (`--fresh` starts anew), and `--stored` reports what there
is. A part that is not named stays as it was reported.
"""

import json
import time
import warnings
from functools import partial

import joblib
import numpy as np
from sklearn.preprocessing import normalize

from benchmarks import data
from benchmarks.cache import Cache
from benchmarks.harness import PALETTE, Column, Report, Target, progress
from skdml._optional import optional_import

REPEATS = 1
SEEDS = (0, 1, 2)
PARTS = ("default", "losses", "cub", "ratio", "k", "tables")
BASE = "multi-similarity"
ROBUST = ("dro-topk", "dro-topk-pn", "dro-kl", "dro-kl-ball", "dro-kl-g", "dro-max", "dro-variance")
DISTANCE_WEIGHTED = "margin, distance-weighted"
# What is looked at first is the first.
LOSSES = {
    BASE: {},
    "dro-topk-pn": {},
    DISTANCE_WEIGHTED: {"loss": "margin", "miner": "distance-weighted"},
    "dro-kl-g": {},
    "spectral": {},
    "class-anchor": {},
    "lifted-structure": {},
    "dro-topk": {},
    "dro-kl": {},
    "dro-variance": {},
    "dro-kl-ball": {},
    "dro-max": {},
    "dro-topk-pn, K = 4 B": {"loss": "dro-topk-pn", "k": 4},
    "dro-kl-g as multi-similarity": {"loss": "dro-kl-g", "margin": 0.5, "null_loss": 0.5},
    "margin": {},
    "binomial": {},
    "contrastive": {},
    "triplet, all": {"loss": "triplet", "triplets": "all"},
    "triplet, semi-hard": {"loss": "triplet", "triplets": "semi-hard"},
    "triplet, hard": {"loss": "triplet", "triplets": "hard"},
    "lifted-structure-pairs": {},
    "n-pair-tuplet": {},
    "n-pair-multi-class": {},
    "n-pair-one-vs-one": {},
    "histogram": {},
    "facility-location": {},
    "angular": {},
    "proxy-nca": {},
    "proxy-anchor": {},
    "soft-triple": {},
    **{
        f"dro-kl-g, gamma = {gamma:g}": {"loss": "dro-kl-g", "gamma": gamma}
        for gamma in (1.0, 0.1, 0.01, 0.001)
    },
    "dro-topk, K = 4 B": {"loss": "dro-topk", "k": 4},
    "dro-topk-pn, binomial": {"loss": "dro-topk-pn", "pair_loss": "binomial"},
    "dro-topk, binomial": {"loss": "dro-topk", "pair_loss": "binomial"},
    "dro-kl, binomial": {"loss": "dro-kl", "pair_loss": "binomial"},
    "class-anchor, hardest": {"loss": "class-anchor", "negatives": "hardest"},
    # 7 columns for each of the 9 points of the default network's map
    "wtriplet": {"n_components": 63},
    "wcontrastive": {"n_components": 63},
}
# Clouds of hundreds of points, which the vectors of an adapter are not.
NOT_ON_VECTORS = ("wtriplet", "wcontrastive")
# Samples in a batch of the default network and of the adapter.
BATCHES = {"losses": 16 * 5, "cub": 32 * 5}
# The head that any loss can be used with, whatever the dimension.
NETWORK = {"module__head": "dense"}
RATIO_METHODS = {
    "margin, semi-hard": {"loss": "margin", "loss__miner": "semi-hard"},
    DISTANCE_WEIGHTED: {"loss": "margin", "loss__miner": "distance-weighted"},
    **{name: {"loss": name} for name in ROBUST[:3]},
}
# With 5 of each class, all 136 classes of Omniglot are in a batch of 680.
RATIO_SIZES = (80, 160, 320, 480, 640)
RATIO_EPOCHS = {80: 4, 160: 2, 320: 1, 480: 1, 640: 1}
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
    parser.add_argument(
        "--stored", action="store_true", help="report what is stored, train nothing"
    )


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


def train(part, params, seed, threads):
    """Train a network and return the measures among unseen classes and the seconds of the fit."""
    torch = optional_import("torch", "this benchmark")
    torch.set_num_threads(threads)
    from skdml import DeepMetricEmbedder

    if part == "cub":
        from benchmarks.bench_adapter import load

        X, y, X_unseen, y_unseen = load("cub200", False)
        own = {"module": "adapter"}
    else:
        (X, y), (X_unseen, y_unseen) = load_omniglot("train"), load_omniglot("test")
        own = {"module": "convnet", "augment": "affine"}
    model = DeepMetricEmbedder(**{**own, "random_state": seed, **params})
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    seconds = time.perf_counter() - start
    measures = measure_retrieval(model.transform(X_unseen), y_unseen)
    texts = sorted({str(each.message) for each in caught if each.category is UserWarning})
    return {**measures, "seconds": seconds, "warnings": texts}


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
    if part in BATCHES:
        return [
            (name, parameters_of_loss({"loss": name, **params}, BATCHES[part]), {})
            for name, params in LOSSES.items()
            if part != "cub" or name not in NOT_ON_VECTORS
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


def parameters_of_loss(params, batch):
    """Return parameters of the estimator; k is given in batches."""
    own = ("loss", "n_components")
    found = {name if name in own else f"loss__{name}": value for name, value in params.items()}
    if "k" in params:
        found["loss__k"] = params["k"] * batch
    return found


def batch_of(size):
    """Return the parameters for batches of this size."""
    return {
        "classes_per_batch": size // PER_CLASS,
        "samples_per_class": PER_CLASS,
        "max_epochs": RATIO_EPOCHS[size],
    }


def key_of(part, name, params, seed):
    return json.dumps([part, name, params, seed])


def fill(parts, options, cache):
    """Train what is missing, the first seed of all parts first."""
    tasks = []
    for part in parts:
        seeds = SEEDS[:1] if options.quick or part in ("ratio", "k") else SEEDS
        planned = plan(part)[:2] if options.quick else plan(part)
        tasks += [(seed, part, name, params) for seed in seeds for name, params, _ in planned]
    calls = {}
    for seed, part, name, params in sorted(tasks, key=lambda task: task[0]):
        key = key_of(part, name, params, seed)
        if cache.find(key) is not None:
            continue
        if part == "tables":
            calls[key] = joblib.delayed(score_table)(name, seed)
        else:
            shorter = {"max_epochs": 1} if options.quick else {}
            # The default is timed on all cores.
            threads = joblib.cpu_count() if part == "default" else 1
            calls[key] = joblib.delayed(train)(part, {**params, **shorter}, seed, threads)
    jobs = 1 if "default" in parts else options.extra["jobs"]
    results = joblib.Parallel(n_jobs=jobs, return_as="generator")(calls.values())
    for number, (key, result) in enumerate(zip(calls, results, strict=True)):
        progress(f"{number + 1} of {len(calls)}: {key}")
        cache.add(key, result)


def collect(part, cache):
    """Return the rows of a part, means over the seeds that are stored."""
    rows = []
    for name, params, columns in plan(part):
        found = [cache.find(key_of(part, name, params, seed)) for seed in SEEDS]
        found = [one for one in found if one is not None]
        if not found:
            continue
        numbers = [key for key, value in found[0].items() if not isinstance(value, list)]
        means = {key: float(np.mean([one[key] for one in found])) for key in numbers}
        rows.append({"part": part, "name": name, **columns, **means, "n_seeds": len(found)})
        rows[-1]["warnings"] = sorted({text for one in found for text in one.get("warnings", ())})
        if part in BATCHES:
            rows[-1]["recalls"] = [one[MEASURES[0]] for one in found]
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
    for part in BATCHES:
        base = {row["name"]: row for row in of_part[part]}.get(BASE)
        for row in of_part[part]:
            if base is not None and row["name"].startswith("dro"):
                gain = row["recall@1"] - base["recall@1"]
                text = f"{part}, {row['name']}: recall@1 less {BASE}'s"
                targets.append(Target.at_least(text, 0.0, gain))
    for row in of_part["tables"]:
        gain = row["embedded"] - row["scaled"]
        targets.append(
            Target.at_least(f"{row['name']}: 1-NN on the embedding less scaled columns", 0.0, gain)
        )
    return targets


def raw_rows():
    """Return what the samples have without any training."""
    from benchmarks.bench_adapter import load

    X, y = load_omniglot("test")
    pixels = measure_retrieval(normalize(X.reshape(len(X), -1)), y)
    *_, X, y = load("cub200", False)
    vectors = measure_retrieval(normalize(X), y)
    return [
        {"part": "raw", "name": "pixels of unit length", **pixels},
        {"part": "raw", "name": "vectors of birds, of unit length", **vectors},
    ]


def run(options):
    cache = Cache(None if options.quick else "deep-quality", options.extra["fresh"])
    if not options.extra["stored"]:
        fill(options.parts(PARTS), options, cache)
    rows = options.run_parts(
        "deep-quality", {part: partial(collect, part, cache) for part in PARTS}
    )
    rows = raw_rows() + rows
    return Report(
        name="deep-quality",
        title="unseen Omniglot characters and birds, percent; and 1-NN on tables",
        columns=[
            Column("part", "part"),
            Column("name", "training"),
            Column("batch", "batch"),
            Column("dimension", "dimension"),
            *[Column(measure, measure, ".1f") for measure in MEASURES],
            Column("scaled", "1-NN scaled", ".2f"),
            Column("embedded", "1-NN embedded", ".2f"),
            Column("seconds", "seconds", ".0f"),
            Column("n_seeds", "seeds", "d"),
        ],
        rows=rows,
        targets=make_targets(rows),
        parameters={"seeds": list(SEEDS), "k_batch": K_BATCH},
        notes=[
            "Omniglot: trained on 2,720 drawings of 136 characters, tested on 2,120 of 106 others, "
            'of other alphabets; module="convnet" and augment="affine", all else default but for '
            "what the part is about. *cub*: vectors of 5,864 pictures of 100 kinds of birds, "
            "searched among 100 others, by an adapter. Means over the seeds of the last column.",
            "*losses* and *cub*: default parameters of each loss, unless the name says more; B is "
            "80 and 160. *ratio* and *k* have a head over the whole map, of any dimension, and "
            "19,200 samples in all, five per class, but 28,800 in batches of 480 and 38,400 in "
            f"batches of 640; K = 2 B. *k*: batches of {K_BATCH}. *tables*: half of the rows for "
            "training. Seconds are of one fit: all cores in *default*, one core beside other "
            "programs elsewhere.",
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
    axes.set_xlabel("recall@1, percent: the seeds and their mean")
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
