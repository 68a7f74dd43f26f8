"""A metric from a hundred labels: SSDMLEmbedder and five older methods on images and tables.

Parts: "images" trains on the 60,000 images of MNIST and of Fashion-MNIST, of which 10 of each class
have a label, and searches and clusters the 10,000 test images; beside the six methods stand raw
pixels, the same network trained on labels alone, and scikit-learn's LabelSpreading. "orthogonal"
and "angle" are table 4 and figure 2 of the paper, "training" compares what differs from it.
"tables" is 1-NN from 5 labels of each class, "propagation" the time and memory of a graph of 10,000
images and the flow of 100 labels along it. Results are kept as they come: a run that was
interrupted goes on where it stopped (`--fresh` starts anew).
"""

import functools
import json
import time

import joblib
import numpy as np
from sklearn.metrics import normalized_mutual_info_score
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis
from sklearn.preprocessing import StandardScaler, normalize
from sklearn.semi_supervised import LabelSpreading

from benchmarks.cache import Cache
from benchmarks.data import load_fashion_mnist, load_mnist, load_uci
from benchmarks.harness import PALETTE, Column, Report, Target, peak_memory, progress
from skdml._optional import optional_import

REPEATS = 1
SEEDS = (0, 1, 2)
PARTS = ("images", "orthogonal", "angle", "training", "tables", "propagation")
METHODS = ("ssdml", "lrml", "seraph", "isdml", "apllr", "apit")
RAW, ALONE, SPREADING = "raw pixels", "labels alone", "LabelSpreading"
IMAGES = {"MNIST": load_mnist, "Fashion-MNIST": load_fashion_mnist}
# What was asked for: recall@1 and NMI of "ssdml", and minutes of a fit.
WANTED = {"MNIST": (98.0, 90.0), "Fashion-MNIST": (83.0, 66.0)}
MINUTES = 15.0
# Of the paper: recall@1 and NMI, with 100 labels.
PAPER = {"MNIST": (93.9, 47.5), "Fashion-MNIST": (77.6, 52.1)}
NETWORK = {"module": "convnet", "module__channels": (24, 48, 96), "input_shape": (1, 28, 28)}
# The same for all methods: four partitions, one epoch each; and two graphs of all rows of a table.
BUDGET = {"max_epochs": 4, "epochs_per_partition": 1}
TABLE_EPOCHS = 20
LABELS_PER_CLASS = {"images": 10, "tables": 5}
ANGLES = (25, 35, 40, 45, 55)
TABLES = ("letter", "segment", "satimage")
TABLE_SEEDS = (0, 1, 2, 3, 4)
SCALED, NCA = "scaled columns", "NCA on the labels"
MEASURES = ("recall@1", "recall@2", "recall@4", "recall@8", "NMI")
TRAININGS = {
    "as it is": {},
    "no instance term": {"loss__instance_weight": 0.0},
    "network of pixels": {"module__gradients": False},
    "the paper's recipe": {"recipe": "paper", "batch_size": 100},
}


def add_arguments(parser):
    parser.add_argument("--parts", default=",".join(PARTS), help="comma separated")
    parser.add_argument("--jobs", type=int, default=1, help="fits at a time, one thread each")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")


def hide_labels(y, per_class, seed):
    """Return y with -1 but for some labels of each class."""
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(np.flatnonzero(y == label))[:per_class] for label in np.unique(y)]
    partly = np.full(len(y), -1)
    partly[np.concatenate(chosen)] = y[np.concatenate(chosen)]
    return partly


def measure(embeddings, y):
    """Return all measures in percent."""
    from skdml.metrics import cluster_nmi, recall_at_k

    values = [
        *recall_at_k(embeddings, y, k=[1, 2, 4, 8]),
        cluster_nmi(embeddings, y, random_state=0),
    ]
    return dict(zip(MEASURES, (100 * np.array(values)).tolist(), strict=True))


def load_images(name, quick):
    """Return flat training and test images with their classes."""
    X, y = IMAGES[name]("train")
    X_test, y_test = IMAGES[name]("test")
    step = 60 if quick else 1
    return X[::step], y[::step], X_test[::step], y_test[::step]


def fit_images(name, method, params, seed, threads, quick):
    """Fit one method on images, and return the measures of the test images and the seconds."""
    optional_import("torch", "this benchmark").set_num_threads(threads)
    from skdml import DeepMetricEmbedder, SSDMLEmbedder

    X, y, X_test, y_test = load_images(name, quick)
    partly = hide_labels(y, LABELS_PER_CLASS["images"], seed)
    if method == RAW:
        return {**measure(normalize(X_test), y_test), "seconds": 0.0}
    if method == SPREADING:
        return spread_labels(X, y, partly, X_test, y_test)
    start = time.perf_counter()
    if method == ALONE:
        known = partly != -1
        model = DeepMetricEmbedder(
            module__gradients=True, augment="affine", random_state=seed, **NETWORK
        )
        if quick:
            model.set_params(max_epochs=1)
        model.fit(X[known], partly[known])
    else:
        params = {**NETWORK, **BUDGET, "random_state": seed, **params}
        if quick:
            params["max_epochs"] = 1
        model = SSDMLEmbedder(method, **params).fit(X, partly)
    result = {"seconds": time.perf_counter() - start}
    result.update(measure(model.transform(X_test), y_test))
    if method != ALONE:
        hidden = partly == -1
        right = model.propagated_labels_[hidden] == y[hidden]
        result["labels"] = 100 * float(np.mean(right))
    return result


def spread_labels(X, y, partly, X_test, y_test):
    """Return what scikit-learn's LabelSpreading makes of the pixels: no embedding, but labels."""
    start = time.perf_counter()
    model = LabelSpreading(kernel="knn", n_neighbors=10, max_iter=100)
    model.fit(normalize(X), partly)
    seconds = time.perf_counter() - start
    hidden = partly == -1
    predicted = model.predict(normalize(X_test))
    return {
        "NMI": 100 * normalized_mutual_info_score(y_test, predicted),
        "labels": 100 * float(np.mean(model.transduction_[hidden] == y[hidden])),
        "seconds": seconds,
    }


def score_table(name, method, params, seed):
    """Return the accuracy of 1-NN with the labelled rows, on a half that was not seen."""
    optional_import("torch", "this benchmark").set_num_threads(1)
    from sklearn.model_selection import train_test_split

    from skdml import SSDMLEmbedder

    X, y = load_uci(name)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, random_state=seed, stratify=y)
    y, y_test = np.unique(y, return_inverse=True)[1], np.unique(y_test, return_inverse=True)[1]
    partly = hide_labels(y, LABELS_PER_CLASS["tables"], seed)
    known = partly != -1
    scaler = StandardScaler().fit(X)
    X, X_test = scaler.transform(X), scaler.transform(X_test)
    start = time.perf_counter()
    if method == NCA:
        model = NeighborhoodComponentsAnalysis(random_state=seed).fit(X[known], y[known])
    elif method != SCALED:
        model = SSDMLEmbedder(method, random_state=seed, **params).fit(X, partly)
    seconds = time.perf_counter() - start
    if method != SCALED:
        X, X_test = model.transform(X), model.transform(X_test)
    nearest = KNeighborsClassifier(1).fit(X[known], y[known])
    result = {"accuracy": 100 * nearest.score(X_test, y_test), "seconds": seconds}
    if method in METHODS:
        many = KNeighborsClassifier(5).fit(X, model.propagated_labels_)
        result["propagated"] = 100 * many.score(X_test, y_test)
        result["labels"] = 100 * float(np.mean(model.propagated_labels_[~known] == y[~known]))
    return result


def flow_labels(X, codes):
    """Join rows by a graph and let labels flow along it."""
    from skdml.semisupervised._label_propagation import make_graph, propagate_classes

    graph = make_graph(X, n_neighbors=10)
    return propagate_classes(graph.flow, codes, n_classes=10, damping=0.99).mass


def run_propagation(options):
    X, y, _, _ = load_images("MNIST", quick=False)
    n_nodes = options.pick(full=10_000, quick=1_000)
    codes = hide_labels(y[:n_nodes], LABELS_PER_CLASS["images"], seed=0)
    child = peak_memory(flow_labels, {"X": X[:n_nodes], "codes": codes}, timeout=600)
    name = f"graph and flow, {n_nodes:,} nodes"
    figures = {"seconds": child.seconds, "growth_mb": child.growth_mb}
    return [{"part": "propagation", "data": "MNIST", "name": name, **figures}]


def plan(part):
    """Return the rows of a part: data set, method, name and parameters."""
    if part == "images":
        methods = (*METHODS, RAW, ALONE, SPREADING)
        return [(data, method, method, {}) for data in IMAGES for method in methods]
    if part == "orthogonal":
        return [
            (data, "ssdml", f"orthogonal={value}", {"loss__orthogonal": value})
            for data in IMAGES
            for value in (True, False)
        ]
    if part == "angle":
        return [
            ("Fashion-MNIST", "ssdml", f"angle={angle}", {"loss__angle": angle}) for angle in ANGLES
        ]
    if part == "training":
        return [("Fashion-MNIST", "ssdml", name, params) for name, params in TRAININGS.items()]
    rows = []
    for data in TABLES:
        rows += [(data, method, method, {}) for method in (SCALED, NCA, "ssdml")]
        rows += [(data, method, f"{method}, linear", {"module": None}) for method in METHODS]
    return rows


def run_part(part, options, cache):
    """Return the rows of a part, means over the seeds."""
    seeds = TABLE_SEEDS if part == "tables" else SEEDS if part == "images" else SEEDS[:1]
    planned = plan(part)
    if options.quick:
        seeds, planned = seeds[:1], [row for row in planned if row[1] in ("ssdml", "lrml", SCALED)]
    jobs = options.extra["jobs"]
    threads = joblib.cpu_count() if jobs == 1 else 1
    calls = {}
    for data, method, _, params in planned:
        for seed in seeds_of(method, seeds):
            if part == "tables":
                budget = {"max_epochs": options.pick(full=TABLE_EPOCHS, quick=1)}
                if "module" in params and method != "ssdml":
                    budget = {}  # in closed form
                call = joblib.delayed(score_table)(data, method, {**budget, **params}, seed)
            else:
                call = joblib.delayed(fit_images)(
                    data, method, params, seed, threads, options.quick
                )
            calls[key_of(part, data, method, params, seed)] = call
    missing = [key for key in calls if cache.find(key) is None]
    results = joblib.Parallel(n_jobs=jobs, return_as="generator")(calls[key] for key in missing)
    for number, (key, result) in enumerate(zip(missing, results, strict=True)):
        progress(f"{number + 1} of {len(missing)}: {key} {json.dumps(result)}")
        cache.add(key, result)
    rows = []
    for data, method, name, params in planned:
        results = [
            cache.find(key_of(part, data, method, params, seed)) for seed in seeds_of(method, seeds)
        ]
        means = {key: float(np.mean([one[key] for one in results])) for key in results[0]}
        rows.append({"part": part, "data": data, "method": method, "name": name, **means})
    return rows


def seeds_of(method, seeds):
    """Return the seeds of a method: its graph of all images takes LabelSpreading minutes."""
    return seeds[:1] if method == SPREADING else seeds


def key_of(part, data, method, params, seed):
    """Name a cell of the cache; what is the same training in two parts is one cell."""
    kind = "tables" if part == "tables" else "images"
    defaults = {"loss__orthogonal": True, "loss__angle": 40}.items()
    changed = {name: value for name, value in params.items() if (name, value) not in defaults}
    return json.dumps([kind, data, method, changed, seed])


def make_targets(rows):
    """Return what the rows say to the numbers that were asked for."""
    targets = []
    images = [row for row in rows if row["part"] == "images"]
    for data, (recall, nmi) in WANTED.items():
        of_data = {row["method"]: row for row in images if row["data"] == data}
        if "ssdml" not in of_data:
            continue
        ours = of_data["ssdml"]
        targets += [
            Target.at_least(f"{data}: recall@1", recall, ours["recall@1"]),
            Target.at_least(f"{data}: NMI", nmi, ours["NMI"]),
            Target.at_most(f"{data}: minutes of a fit", MINUTES, ours["seconds"] / 60),
        ]
        for measure_name in ("recall@1", "NMI"):
            others = [of_data[m][measure_name] for m in METHODS[1:] if m in of_data]
            if others:
                lead = ours[measure_name] - max(others)
                text = f"{data}: {measure_name} less that of the best older method"
                targets.append(Target.at_least(text, 0.0, lead))
    for row in rows:
        if row["part"] == "propagation":
            targets.append(Target.at_most(f"{row['name']}: seconds", 10.0, row["seconds"]))
            targets.append(Target.at_most(f"{row['name']}: MB", 1000.0, row["growth_mb"]))
    for data in TABLES:
        of_data = {row["name"]: row for row in rows if row["data"] == data}
        for other in (SCALED, NCA):
            if other in of_data and "ssdml" in of_data:
                lead = of_data["ssdml"]["accuracy"] - of_data[other]["accuracy"]
                targets.append(Target.at_least(f"{data}: 1-NN less {other}", 0.0, lead))
    return targets


def run(options):
    cache = Cache(None if options.quick else "ssdml", options.extra["fresh"])
    runners = {part: functools.partial(run_part, part, options, cache) for part in PARTS}
    runners["propagation"] = functools.partial(run_propagation, options)
    rows = options.run_parts("ssdml", runners)
    return Report(
        name="ssdml",
        title="a hundred labels, percent; and 1-NN on tables",
        columns=[
            Column("part", "part"),
            Column("data", "data"),
            Column("name", "method"),
            *[Column(name, name, ".1f") for name in MEASURES],
            Column("labels", "propagated labels", ".1f"),
            Column("accuracy", "1-NN", ".1f"),
            Column("propagated", "5-NN of propagated labels", ".1f"),
            Column("seconds", "seconds", ".0f"),
            Column("growth_mb", "MB", ".0f"),
        ],
        rows=rows,
        targets=make_targets(rows),
        parameters={"seeds": list(SEEDS), "table_seeds": list(TABLE_SEEDS)},
        notes=[
            "*images*: 60,000 training images, 10 labels of each class, measured on 10,000 test "
            "images; the convolutional network on oriented gradients, 48 and 96 channels, four "
            "partitions of 9,000 images with one epoch each, all else default; on labels alone it "
            "has 60 epochs and affine augmentation. Means over three seeds, which draw the labels "
            "too; one seed for LabelSpreading and in *orthogonal*, *angle* and *training*. "
            "*propagated labels*: the share of unlabelled training images whose new label is "
            "right. Settings were chosen on training images. One thread, beside other programs.",
            "The paper, with its network and 100 labels: recall@1 / NMI "
            + ", ".join(f"{r} / {n} on {data}" for data, (r, n) in PAPER.items())
            + ".",
            "*tables*: half of the rows for training, 5 labels of each class, 20 epochs; 1-NN with "
            "the labelled rows, on the other half; and 5-NN with the propagated labels of all "
            "training rows. Means over five seeds.",
        ],
        plot=plot,
    )


def plot(report, figure):
    """Draw recall@1 and NMI of the images, and 1-NN of the tables."""
    figure.set_size_inches(12, 4.5)
    panels = figure.subplots(1, 3)
    images = [row for row in report.rows if row["part"] == "images"]
    for axes, data in zip(panels, IMAGES, strict=False):
        rows = [row for row in images if row["data"] == data]
        draw_points(axes, [row["name"] for row in rows], rows, ("recall@1", "NMI"))
        axes.set_title(f"{data}, percent", fontsize="medium")
    tables = [row for row in report.rows if row["part"] == "tables"]
    names = list(dict.fromkeys(row["name"] for row in tables))
    axes = panels[-1]
    for position, data in enumerate(TABLES):
        values = {row["name"]: row["accuracy"] for row in tables if row["data"] == data}
        shown = [(values[name], place) for place, name in enumerate(names) if name in values]
        if shown:
            axes.scatter(*zip(*shown, strict=True), color=PALETTE[position], label=data)
            axes.set_yticks(range(len(names)), names, fontsize="small")
            axes.legend(fontsize="small")
    axes.set_title("1-NN, 5 labels of each class, percent", fontsize="medium")
    for axes in panels:
        axes.invert_yaxis()
        axes.grid(axis="y", color="0.92")
        axes.spines[["top", "right"]].set_visible(False)


def draw_points(axes, names, rows, measures):
    for position, name in enumerate(measures):
        shown = [(row[name], place) for place, row in enumerate(rows) if name in row]
        if shown:
            axes.scatter(*zip(*shown, strict=True), color=PALETTE[position], label=name)
            axes.legend(fontsize="small")
    axes.set_yticks(range(len(names)), names, fontsize="small")
