"""Tables with five labels of each class: SSDMLEmbedder beside what people do with few labels.

Part "tables": half of the rows are for training, of which five of each class have a label. The
labels of the other training rows, and those of the other half, are to be found. Beside
`SSDMLEmbedder()` stand logistic regression on the labelled rows, scikit-learn's
SelfTrainingClassifier with it, LabelSpreading, NCA with one neighbour, and labels that flow along a
graph of the columns or of the regression's logits. "learners" leaves the learners of the classes
out one by one, "terms" the terms of the loss, on tables and on images. "million" is one fit of a
million rows, a thousand of them with a label. Results are kept as they come: a run that was
interrupted goes on where it stopped (`--fresh` starts anew).
"""

import contextlib
import functools
import json
import time

import numpy as np
from sklearn.datasets import make_blobs
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors, NeighborhoodComponentsAnalysis
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from benchmarks.bench_ssdml import hide_labels, load_images
from benchmarks.cache import Cache
from benchmarks.child import forget_peak, memory_mb
from benchmarks.data import load_uci
from benchmarks.harness import Column, Report, Target, peak_memory
from skdml._optional import optional_import

REPEATS = 1
PARTS = ("tables", "learners", "terms", "million")
TABLES = ("letter", "segment", "satimage", "optdigits", "vowel", "penbased")
SEEDS = (0, 1, 2, 3, 4)
PER_CLASS = 5
OURS = "SSDMLEmbedder"
REGRESSION, SELF_TRAINING, SPREADING = "logistic regression", "self-training", "LabelSpreading"
NCA, COLUMNS, LOGITS = "NCA, 1-NN", "flow along columns", "flow along logits"
METHODS = (OURS, REGRESSION, SELF_TRAINING, SPREADING, NCA, COLUMNS, LOGITS)
LEARNERS = (
    "regression",
    "columns",
    "columns, farther",
    "logits",
    "smoothed logits",
    "whitened columns",
    "discriminant",
)
# What is changed: parameters of SSDMLEmbedder, a method of `register_terms`, or the one graph of
# images that is kept. The instance term and two graphs are part of the default for images alone.
TERMS = {
    "as it is": {},
    "with triplets": {"loss__angle": 40},
    "triplets, no NCA term": {"method": "no NCA term", "loss__angle": 40},
    "with instance term": {"loss__instance_weight": 0.5},
    "no instance term": {"loss__instance_weight": 0.0},
    "no propagated labels": {"method": "no propagated labels"},
    "no graph of gradients": {"graph": 1},
    "no graph of the network": {"graph": 0},
}
# Of the ablation of terms: seeds, training rows of a table, training and test images.
TERM_TABLES, TERM_SEEDS, TERM_ROWS, TERM_IMAGES = ("letter", "segment", "satimage"), 3, 2500, 6000
TERM_DATA = (*TERM_TABLES, "MNIST", "Fashion-MNIST")
TERM_EPOCHS = {"max_epochs": 4, "epochs_per_partition": 1, "partition_size": 3000}
NETWORK = {"module": "convnet", "module__channels": (16, 32, 64), "input_shape": (1, 28, 28)}
# Of part million: rows of clusters, two for each class, and labels.
MILLION, COLUMNS_OF_MILLION, CLUSTERS, CLASSES, LABELS = 10**6, 16, 20, 10, 1000


def add_arguments(parser):
    parser.add_argument("--parts", default=",".join(PARTS), help="comma separated")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")
    parser.add_argument("--known", action="store_true", help="report the terms that are known")
    parser.add_argument("--term-data", default=",".join(TERM_DATA), help="data of part terms")
    parser.add_argument("--term-seeds", type=int, default=TERM_SEEDS, help="seeds of part terms")


def load_table(name, seed, max_rows=None):
    """Return scaled training rows, their classes, those that are known, and new rows."""
    X, y = load_uci(name)
    X = X[:, 3:] if name == "vowel" else X  # the first three tell who spoke
    y = np.unique(y, return_inverse=True)[1]
    X, X_new, y, y_new = train_test_split(X, y, test_size=0.5, random_state=seed, stratify=y)
    X, y = X[:max_rows], y[:max_rows]
    scaler = StandardScaler().fit(X)
    return scaler.transform(X), y, hide_labels(y, PER_CLASS, seed), scaler.transform(X_new), y_new


def flow_along(features, new, codes):
    """Return classes of nodes by a graph of features, and of new rows by their neighbours."""
    from skdml.semisupervised._label_propagation import make_graph, propagate_classes

    graph = make_graph(features, n_neighbors=10, unit_length=False)
    mass = propagate_classes(graph.flow, codes, int(codes.max()) + 1, damping=0.99).mass
    neighbors = NearestNeighbors(n_neighbors=10).fit(features).kneighbors(new)[1]
    return mass.argmax(axis=1), mass[neighbors].mean(axis=1).argmax(axis=1)


def score_table(name, method, seed, quick):
    """Return the share of right labels of unlabelled and of new rows, and the seconds."""
    optional_import("torch", "this benchmark").set_num_threads(1)
    from skdml import SSDMLEmbedder

    X, y, partly, X_new, y_new = load_table(name, seed, 300 if quick else None)
    known, hidden = partly != -1, partly == -1
    figures = {}
    start = time.perf_counter(), time.process_time()
    if method == OURS:
        model = SSDMLEmbedder(random_state=seed).fit(X, partly)
        seconds = time.perf_counter() - start[0], time.process_time() - start[1]
        found, new = model.transduction_, model.predict(X_new)
        nearest = KNeighborsClassifier(1).fit(model.transform(X[known]), y[known])
        figures["nearest"] = 100 * nearest.score(model.transform(X_new), y_new)
        nearest = KNeighborsClassifier(1).fit(model.transform(X), found)
        figures["nearest_all"] = 100 * nearest.score(model.transform(X_new), y_new)
    else:
        found, new = run_baseline(method, X, partly, X_new, seed)
        seconds = time.perf_counter() - start[0], time.process_time() - start[1]
        figures["nearest"] = figures["nearest_all"] = 100 * float(np.mean(new == y_new))
    return {
        "labels": 100 * float(np.mean(found[hidden] == y[hidden])),
        "new": 100 * float(np.mean(new == y_new)),
        **figures,
        "seconds": seconds[0],
        "cpu_seconds": seconds[1],
    }


def run_baseline(method, X, partly, X_new, seed):
    """Return what a simple method makes of the training rows and of new ones."""
    known = partly != -1
    regression = LogisticRegression(max_iter=1000)
    if method == SPREADING:
        model = LabelSpreading(kernel="knn", max_iter=100).fit(X, partly)
        return model.transduction_, model.predict(X_new)
    if method == SELF_TRAINING:
        model = SelfTrainingClassifier(regression).fit(X, partly)
        return model.predict(X), model.predict(X_new)
    if method == NCA:
        model = NeighborhoodComponentsAnalysis(random_state=seed).fit(X[known], partly[known])
        nearest = KNeighborsClassifier(1).fit(model.transform(X[known]), partly[known])
        return nearest.predict(model.transform(X)), nearest.predict(model.transform(X_new))
    if method == COLUMNS:
        return flow_along(X, X_new, partly)
    regression.fit(X[known], partly[known])
    if method == LOGITS:
        logits = regression.decision_function
        return flow_along(logits(X), logits(X_new), partly)
    return regression.predict(X), regression.predict(X_new)


def run_tables(options, cache):
    """Return the rows of the tables, and of their means."""
    tables = options.pick(full=TABLES, quick=TABLES[1:2])
    seeds = options.pick(full=SEEDS, quick=SEEDS[:1])
    rows = []
    for method in METHODS:
        of_method = []
        for data in tables:
            results = [
                cache.compute(
                    ["tables", data, method, seed], score_table, data, method, seed, options.quick
                )
                for seed in seeds
            ]
            of_method.append({"data": data, **means_of(results)})
        of_method.append({"data": "mean", **means_of(of_method)})
        rows += [{"part": "tables", "name": method, **row} for row in of_method]
    return rows


def means_of(results):
    """Return the mean of each number."""
    numbers = [key for key, value in results[0].items() if not isinstance(value, str)]
    return {key: float(np.mean([one[key] for one in results])) for key in numbers}


def score_learners(name, seed, quick):
    """Return the share of right labels by each learner alone, by all, and by all but one."""
    from skdml.semisupervised._label_propagation import make_graph
    from skdml.semisupervised._table_classes import Weighing, choose_weights, learn_classes, pool

    X, y, partly, _, _ = load_table(name, seed, 300 if quick else TERM_ROWS)
    rng, hidden, n_classes = np.random.default_rng(seed), partly == -1, int(y.max()) + 1
    weighing = choose_weights(X, partly, n_classes, 10, 0.99, None, rng)
    graph = make_graph(X, 10, unit_length=False)
    found = learn_classes(X, graph, partly, n_classes, 10, 0.99, None)

    def right(classes):
        return 100 * float(np.mean(classes.argmax(axis=1)[hidden] == y[hidden]))

    figures = {"all": right(pool(found, weighing))}
    for place, learner in enumerate(LEARNERS):
        kept = np.arange(len(LEARNERS)) != place
        weights = weighing.weights[kept] / weighing.weights[kept].sum()
        others = Weighing(weighing.powers[kept], weights, weighing.power)
        figures[f"{learner} alone"] = right(found[place])
        figures[f"without {learner}"] = right(pool(found[kept], others))
    return figures


def run_learners(options, cache):
    """Return the rows of part learners: of each, alone and left out."""
    tables = options.pick(full=TABLES, quick=TABLES[1:2])
    seeds = options.pick(full=SEEDS[:3], quick=SEEDS[:1])
    rows, of_tables = [], []
    for data in tables:
        results = [
            cache.compute(["learners", data, seed], score_learners, data, seed, options.quick)
            for seed in seeds
        ]
        of_tables.append({"data": data, **means_of(results)})
    of_tables.append({"data": "mean", **means_of(of_tables)})
    for row in of_tables:
        data = row.pop("data")
        rows += [
            {"part": "learners", "data": data, "name": name, "labels": value}
            for name, value in row.items()
        ]
    return rows


def register_terms():
    """Register SSDML without its NCA term, and without propagated labels."""
    import torch

    from skdml.semisupervised import register_method
    from skdml.semisupervised._method_ssdml import PropagatedClasses

    @register_method("no NCA term")
    class NoNCA(PropagatedClasses):
        def _nca_loss(self, nodes, embeddings):
            return 0 * embeddings.sum()

    @register_method("no propagated labels")
    class LabelsAlone(PropagatedClasses):
        def begin(self, partition, rng):
            super().begin(partition, rng)
            known = torch.from_numpy(partition.codes >= 0)
            self.classes = self.classes * known[:, None]


@contextlib.contextmanager
def graph_kept(place):
    """Keep one of the graphs of images after the first partition, which has only the first."""
    from skdml.semisupervised._partitions import Partitions

    make_block = Partitions._block

    def one_graph(self, rows):
        block = make_block(self, rows)
        return block._replace(features=(block.features[min(place, len(block.features) - 1)],))

    Partitions._block = one_graph
    try:
        yield
    finally:
        Partitions._block = make_block


def score_terms(name, term, seed, quick):
    """Return what an embedding without a term is worth for new samples."""
    optional_import("torch", "this benchmark").set_num_threads(1)
    from skdml import SSDMLEmbedder
    from skdml.metrics import cluster_nmi, recall_at_k

    register_terms()
    params = {"random_state": seed, **TERMS[term]}
    graph = params.pop("graph", None)
    if name in TERM_TABLES:
        X, _, partly, X_new, y_new = load_table(name, seed, 300 if quick else TERM_ROWS)
    else:
        X, y, X_new, y_new = load_images(name, quick)
        n_images = len(X) if quick else TERM_IMAGES
        X, y, X_new, y_new = X[:n_images], y[:n_images], X_new[:5000], y_new[:5000]
        partly = hide_labels(y, 10, seed)
        params.update(NETWORK, **TERM_EPOCHS)
    if quick:
        params["max_epochs"] = 1
    with contextlib.nullcontext() if graph is None else graph_kept(graph):
        model = SSDMLEmbedder(**params).fit(X, partly)
    Z, Z_new, known = model.transform(X), model.transform(X_new), partly != -1
    nearest = KNeighborsClassifier(1).fit(Z[known], partly[known])
    return {
        "nearest": 100 * nearest.score(Z_new, y_new),
        "new": 100 * model.score(X_new, y_new),
        "recall": 100 * recall_at_k(Z_new, y_new, k=1),
        "NMI": 100 * cluster_nmi(Z_new, y_new, random_state=0),
    }


def run_terms(options, cache):
    """Return the rows of part terms, of as many seeds as each data set has."""
    chosen = options.extra["term_data"].split(",")
    sets = options.pick(full=chosen, quick=TERM_TABLES[1:2])
    rows = []
    for data in sets:
        others = ["with instance term"]
        if data in TERM_TABLES:
            others = ["no instance term", "no graph of gradients", "no graph of the network"]
        for term in [term for term in TERMS if term not in others]:
            results = []
            for seed in range(options.pick(full=options.extra["term_seeds"], quick=1)):
                key = ["terms", data, term, seed]
                if not options.extra["known"] or cache.find(json.dumps(key)):
                    results.append(cache.compute(key, score_terms, data, term, seed, options.quick))
            if results:
                means = {"seeds": len(results), **means_of(results)}
                rows.append({"part": "terms", "data": data, "name": term, **means})
    return rows


def fit_million(n_rows):
    """Fit rows of overlapping clusters, and return right labels, seconds and memory."""
    optional_import("torch", "this benchmark").set_num_threads(1)
    from skdml import SSDMLEmbedder

    X, y = make_blobs(n_rows, COLUMNS_OF_MILLION, centers=CLUSTERS, cluster_std=5.0, random_state=0)
    y %= CLASSES
    partly = np.where(np.arange(n_rows) < LABELS, y, -1)
    known = partly != -1
    regression = LogisticRegression(max_iter=1000).fit(X[known], y[known])
    before, start = memory_mb()[0], time.process_time()
    forget_peak()
    model = SSDMLEmbedder(random_state=0).fit(X, partly)
    return {
        "cpu_seconds": time.process_time() - start,
        "growth_mb": memory_mb()[1] - before,
        "rows_mb": X.nbytes / 2**20,
        "labels": 100 * float(np.mean((model.transduction_ == y)[~known])),
        "regression": 100 * regression.score(X[~known], y[~known]),
    }


def run_million(options, cache):
    """Return the rows of part million: SSDMLEmbedder, and a regression of the labels."""
    n_rows = options.pick(full=MILLION, quick=3000)

    def compute():
        return peak_memory(fit_million, {"n_rows": n_rows}).outputs

    found = cache.compute(["million", n_rows], compute)
    regression = {"name": REGRESSION, "labels": found["regression"]}
    common = {"part": "million", "data": f"{n_rows:,} rows"}
    return [{**common, "name": OURS, **found}, {**common, **regression}]


def make_targets(rows):
    """Return what the tables say to the numbers that were asked for."""
    found = {(row["data"], row["name"]): row for row in rows if row["part"] == "tables"}
    targets = []
    for key, title in (("labels", "unlabelled rows"), ("nearest", "1-NN of new rows")):
        for data in [*TABLES, "mean"]:
            if (data, OURS) not in found:
                continue
            best = max(found[data, name][key] for name in METHODS[1:])
            lead = found[data, OURS][key] - best
            limit = 0.0 if data == "mean" else -1.0
            targets.append(Target.at_least(f"{data}: {title}, less the best other", limit, lead))
    if ("letter", OURS) in found:
        seconds = found["letter", OURS]["cpu_seconds"]
        targets.append(Target.at_most("letter, 10,000 rows: seconds of one core", 60.0, seconds))
    return targets


def run(options):
    cache = Cache(None if options.quick else "ssdml-tables", options.extra["fresh"])
    runners = {
        "tables": functools.partial(run_tables, options, cache),
        "learners": functools.partial(run_learners, options, cache),
        "terms": functools.partial(run_terms, options, cache),
        "million": functools.partial(run_million, options, cache),
    }
    rows = options.run_parts("ssdml-tables", runners)
    return Report(
        name="ssdml-tables",
        title="five labels of each class, percent right",
        columns=[
            Column("part", "part"),
            Column("data", "data"),
            Column("name", "method"),
            Column("labels", "unlabelled rows", ".1f", plot=True),
            Column("new", "new rows", ".1f"),
            Column("nearest", "1-NN of new rows", ".1f"),
            Column("nearest_all", "1-NN, propagated", ".1f"),
            Column("recall", "recall@1", ".1f"),
            Column("NMI", "NMI", ".1f"),
            Column("seeds", "seeds", ".0f"),
            Column("cpu_seconds", "seconds of one core", ".1f"),
            Column("growth_mb", "MB beyond the rows", ".0f"),
        ],
        rows=rows,
        targets=make_targets(rows),
        parameters={"seeds": list(SEEDS), "labels_per_class": PER_CLASS},
        notes=[
            "*tables*: half of the rows for training, scaled columns, means over five seeds, which "
            "draw the split and the labels. *new rows* are by `predict`; *1-NN* is by the nearest "
            "labelled row in the embedding (*propagated*: by the nearest training row, with its "
            "propagated label), and for the other methods what they predict. Settings were "
            "chosen with other seeds, which draw other halves.",
            "*learners*: right labels of unlabelled rows among 2,500, by each learner alone, by "
            "all, and by all but one; three seeds. *terms*: 2,500 rows of tables, or 6,000 images "
            "with ten labels of each class, a network of 32 and 64 channels and four epochs, "
            "beside 5,000 test images. *million*: 16 columns, 20 overlapping clusters, two of "
            "each class, 1,000 labels.",
        ],
        plot=plot,
    )


def plot(report, figure):
    """Draw the right labels of each method on each table."""
    figure.set_size_inches(10, 4.5)
    panels = figure.subplots(1, 2, sharey=True)
    rows = [row for row in report.rows if row["part"] == "tables"]
    names = list(dict.fromkeys(row["name"] for row in rows))
    tables = list(dict.fromkeys(row["data"] for row in rows))
    for axes, (key, title) in zip(
        panels, (("labels", "unlabelled rows"), ("nearest", "1-NN of new rows")), strict=True
    ):
        for data in tables:
            values = [row[key] for row in rows if row["data"] == data]
            style = {"marker": "D", "color": "black"} if data == "mean" else {"marker": "o"}
            axes.plot(values, range(len(names)), linestyle="none", label=data, **style)
        axes.set_yticks(range(len(names)), names)
        axes.set_title(f"{title}, percent right", fontsize="medium")
        axes.grid(axis="y", color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].invert_yaxis()
    panels[1].legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
