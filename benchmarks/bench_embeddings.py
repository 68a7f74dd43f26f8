"""Search among unseen classes with vectors of pretrained networks: linear metrics and baselines.

Pictures of birds (CUB-200-2011, MobileNetV2) and questions to a bank (banking77, MiniLM). Metrics
are learned on the first half of the classes; recall@1 and MAP@R are those of a search by cosine
among the second half. Every method has its defaults.
"""

import numpy as np
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from benchmarks.data import load_embeddings
from benchmarks.harness import PALETTE, Column, Report, Target, measure, progress
from skdml import DITMLTransformer, GMMLTransformer
from skdml.metrics import map_at_r, recall_at_k

REPEATS = 1
SETS = {"banking77": "text_banking77_minilm", "cub200": "cub200_mnv2"}
PLAIN, LEARNED, SHORT = "as they come", ("GMML", "DITML"), "GMML, a quarter"
N_WHITENED = 128
TOLERATED = 0.002
KEPT_ON = "cub200"


def add_arguments(parser):
    parser.add_argument("--parts", default=",".join(SETS), help="sets, comma separated")


def load(name, quick):
    """Return rows and classes to learn from, and those of the unseen classes."""
    X, y = load_embeddings(SETS[name])
    is_seen = y < (y.max() + 1) // 2
    parts = []
    for mask in (is_seen, ~is_seen):
        rows, classes = X[mask], y[mask]
        if quick:
            few = np.flatnonzero(classes < classes.min() + 12)[::5]
            rows, classes = rows[few, :64], classes[few]
        parts += [rows, classes]
    return parts


def make_methods(n_features, n_rows):
    """Return the estimators by name; None leaves the vectors as they are."""
    learner = {"metric": "cosine", "select": "classes", "random_state": 0}
    pca = PCA(min(N_WHITENED, n_features, n_rows), whiten=True, random_state=0)
    discriminant = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto")
    return {
        PLAIN: None,
        f"PCA whitening, {pca.n_components}": make_pipeline(Normalizer(), pca),
        "discriminant analysis": make_pipeline(Normalizer(), discriminant),
        "GMML": GMMLTransformer(**learner),
        "DITML": DITMLTransformer(**learner),
        SHORT: GMMLTransformer(n_components=n_features // 4, **learner),
    }


def run_set(name, quick):
    """Return a row for each method."""
    X, y, X_unseen, y_unseen = load(name, quick)
    rows = []
    for method, estimator in make_methods(X.shape[1], len(X)).items():
        progress(f"{name}: {method}")
        Z, seconds = X_unseen, None
        if estimator is not None:
            timing = measure(estimator.fit, X, y, repeats=1, warmup=0)
            Z, seconds = estimator.transform(X_unseen), timing.seconds
        rows.append(
            {
                "part": name,
                "method": method,
                "row": f"{name}, {method}",
                "shape": f"{X.shape[0]} x {X.shape[1]}",
                "columns": Z.shape[1],
                "recall": recall_at_k(Z, y_unseen, k=1, metric="cosine"),
                "map": map_at_r(Z, y_unseen, metric="cosine"),
                "seconds": seconds,
            }
        )
    by_method = {row["method"]: row for row in rows}
    for row in rows:
        for key in ("recall", "map"):
            row[f"{key}_gain"] = row[key] - by_method[PLAIN][key]
    by_method[SHORT]["kept"] = by_method[SHORT]["recall"] / by_method["GMML"]["recall"]
    return rows


def find_targets(rows):
    """Return the targets on the sets that have rows."""
    targets = []
    for method in LEARNED:
        gains = {row["part"]: row["recall_gain"] for row in rows if row["method"] == method}
        for name, gain in gains.items():
            text = f"{method}'s recall@1 less that of the vectors, {name}: above"
            targets.append(Target(text, 0.0, gain, gain > 0))
    for key, measure_name in (("recall_gain", "recall@1"), ("map_gain", "MAP@R")):
        smallest = min(row[key] for row in rows if row["method"] in LEARNED)
        text = f"smallest gain of GMML and DITML over the vectors, {measure_name}:"
        targets.append(Target.at_least(text, -TOLERATED, smallest))
    kept = [row["kept"] for row in rows if row["method"] == SHORT and row["part"] == KEPT_ON]
    text = f"share of GMML's recall@1 that a quarter of the columns keeps, {KEPT_ON}:"
    targets.append(Target.at_least(text, 0.99, kept[0] if kept else None))
    return targets


def plot(report, figure):
    """Draw both measures of every method, a panel for each set."""
    names = list(dict.fromkeys(row["part"] for row in report.rows))
    figure.set_size_inches(2.4 + 4.2 * len(names), 3.8)
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        rows = [row for row in report.rows if row["part"] == name]
        for key, text, colour in (("recall", "recall@1", 0), ("map", "MAP@R", 1)):
            values = [row[key] for row in rows]
            axes.axvline(values[0], color=PALETTE[colour], linestyle=":", linewidth=1)
            axes.scatter(values, range(len(rows)), s=45, color=PALETTE[colour], label=text)
            for place, value in enumerate(values):
                near = {"textcoords": "offset points", "xytext": (0, 7), "ha": "center"}
                ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
                axes.annotate(f"{value:.3f}", (value, place), fontsize="small", bbox=ground, **near)
        axes.set_yticks(range(len(rows)), [row["method"] for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.7)
        axes.margins(x=0.15)
        axes.set_title(f"{name}, unseen classes", fontsize="medium")
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def run(options):
    runners = {name: lambda name=name: run_set(name, options.quick) for name in SETS}
    rows = options.run_parts("embeddings", runners)
    return Report(
        name="embeddings",
        title="search among unseen classes with vectors of pretrained networks",
        columns=[
            Column("row", "set, method"),
            Column("shape", "trained on"),
            Column("columns", "columns"),
            Column("recall", "recall@1", ".4f"),
            Column("map", "MAP@R", ".4f"),
            Column("recall_gain", "gain, recall@1", "+.4f"),
            Column("map_gain", "gain, MAP@R", "+.4f"),
            Column("kept", "of GMML's recall@1", ".4f"),
            Column("seconds", "seconds of the fit", ".1f"),
        ],
        rows=rows,
        targets=find_targets(rows),
        notes=[
            "Cosine similarity; every query searches among all other rows of the unseen classes. "
            "Gains are over the vectors as they come. PCA and discriminant analysis (shrinkage "
            'by Ledoit and Wolf) get rows of unit length; GMML and DITML have metric="cosine" and '
            'select="classes". One thread.',
        ],
        plot=plot,
    )
