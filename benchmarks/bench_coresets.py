"""Coresets: errors of 1-Lipschitz losses against epsilon (proposition 1), 1-NN, and recall.

Half of the rows of three tables, columns scaled. Coresets of some sizes, rows at random with the
weights of their cells, and points of equal weight: epsilon, their Wasserstein-1 distance from the
rows; the largest error of the mean of 300 functions that are 1-Lipschitz; the accuracy of one
nearest neighbour among the chosen rows, on the other half; and recall@1 within that half by a
network that was trained on the chosen rows.
"""

import time
import warnings

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from benchmarks import data
from benchmarks.harness import PALETTE, Column, Report, Target, progress
from skdml import DeepMetricEmbedder
from skdml._optional import optional_import
from skdml.metrics import recall_at_k
from skdml.transport import measure_coreset, wasserstein_coreset

REPEATS = 1
TABLES = ("satimage", "segment", "vehicle")
SHARES = (0.02, 0.05, 0.1, 0.2)
SEEDS = (0, 1, 2)
MOST_ROWS = 1000
N_FUNCTIONS = 100


def lipschitz_errors(X, points, weights, seed):
    """Return the errors of the mean of projections, distances and sines of projections."""
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((N_FUNCTIONS, X.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    some = X[rng.integers(len(X), size=N_FUNCTIONS)]
    values = [
        np.hstack([rows @ directions.T, cdist(rows, some), np.sin(rows @ directions.T)])
        for rows in (X, points)
    ]
    return np.abs(values[0].mean(axis=0) - weights @ values[1] / weights.sum())


def random_cells(X, y, size, seed):
    """Return rows of every class at random, the rows that are nearest to each, and epsilon."""
    chosen, _ = train_test_split(np.arange(len(X)), train_size=size, random_state=seed, stratify=y)
    gaps = cdist(X, X[chosen])
    gaps[y[:, None] != y[chosen]] = np.inf
    nearest = gaps.argmin(axis=1)
    weights = np.bincount(nearest, minlength=len(chosen)).astype(float)
    return chosen, weights, gaps.min(axis=1).mean()


def network_recall(X, y, X_test, y_test, seed, quick):
    """Return recall@1 among test rows by a network that was trained on these rows."""
    model = DeepMetricEmbedder(max_epochs=1 if quick else 20, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows, which is what this is about
        model.fit(X, y)
    return float(recall_at_k(model.transform(X_test), y_test, k=1))


def compare_on(name, quick):
    ot = optional_import("ot", "this benchmark")
    X, y = data.load_uci(name)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, random_state=0, stratify=y)
    X, y = X[:MOST_ROWS].astype(float), np.unique(y[:MOST_ROWS], return_inverse=True)[1]
    labels = np.unique(y_test, return_inverse=True)[1]
    scaler = StandardScaler().fit(X)
    X, X_test = scaler.transform(X), scaler.transform(X_test)
    for share in SHARES[:1] if quick else SHARES:
        size, rows = round(share * len(X)), []
        for p in (1, 2):
            start = time.process_time()
            coreset = wasserstein_coreset(X, y, size, p=p)
            rows.append(
                [f"coreset, p = {p}", *coreset, coreset.epsilon, time.process_time() - start]
            )
        rows += [["random rows", *random_cells(X, y, size, seed), 0.0] for seed in SEEDS]
        for place, (method, chosen, weights, epsilon, seconds) in enumerate(rows):
            errors = lipschitz_errors(X, X[chosen], weights, 0)
            found = y[chosen][cdist(X_test, X[chosen]).argmin(axis=1)]
            yield {
                "data": name,
                "share": share,
                "method": method,
                "epsilon": epsilon,
                "error": errors.max(),
                "accuracy": np.mean(found == labels),
                "recall": network_recall(X[chosen], y[chosen], X_test, labels, place, quick),
                "seconds": seconds or None,
            }
        for p in (1, 2):
            start = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # stops after its steps
                points = measure_coreset(X, size, p=p, random_state=0)
            seconds = time.process_time() - start
            yield {
                "data": name,
                "share": share,
                "method": f"points, p = {p}",
                "epsilon": ot.emd2([], [], cdist(X, points)),
                "error": lipschitz_errors(X, points, np.ones(size), 0).max(),
                "seconds": seconds,
            }
        progress(f"{name}, {share}")


def run(options):
    found = {}
    for name in options.pick(TABLES, TABLES[2:]):
        for row in compare_on(name, options.quick):
            found.setdefault((name, row["share"], row["method"]), []).append(row)
    rows = []
    for same in found.values():
        row = dict(same[0])
        for key in ("epsilon", "error", "accuracy", "recall"):
            if key in row:
                row[key] = float(np.mean([one[key] for one in same]))
        rows.append(row)
    ratio = max(row["error"] / row["epsilon"] for row in rows)
    return Report(
        name="coresets",
        title="coresets: epsilon, the largest error of 1-Lipschitz losses, 1-NN, and networks",
        columns=[
            Column("data", "data"),
            Column("share", "share", ".2f"),
            Column("method", "method"),
            Column("epsilon", "epsilon (W1)", ".3f"),
            Column("error", "largest error", ".3f"),
            Column("accuracy", "accuracy of 1-NN", ".3f"),
            Column("recall", "recall@1 of a network", ".3f"),
            Column("seconds", "seconds", ".2f"),
        ],
        rows=rows,
        targets=[Target.at_most("largest error over epsilon (proposition 1)", 1.0, ratio)],
        notes=[
            f"Half of the rows, at most {MOST_ROWS:,}. Random rows are means over three draws. Of "
            "points there are no classes, and transport is between all rows; of rows it is within "
            "classes. *recall@1*: DeepMetricEmbedder, trained on the chosen rows without weights, "
            "searches the other half of the table."
        ],
        plot=plot,
    )


def plot(report, figure):
    """Draw errors, accuracies and recall over epsilon."""
    figure.set_size_inches(14, 4)
    panels = left, middle, right = figure.subplots(1, 3)
    markers = dict(zip(TABLES, "os^", strict=True))
    methods = list(dict.fromkeys(row["method"] for row in report.rows))
    for row in report.rows:
        style = {
            "color": PALETTE[methods.index(row["method"])],
            "marker": markers[row["data"]],
            "linestyle": "none",
        }
        left.plot(row["epsilon"], row["error"], **style)
        if "accuracy" in row:
            middle.plot(row["epsilon"], row["accuracy"], **style)
            right.plot(row["epsilon"], row["recall"], **style)
    most = max(row["epsilon"] for row in report.rows)
    left.plot([0, most], [0, most], "--", color="0.5")
    left.set_ylabel("largest error of 1-Lipschitz losses")
    middle.set_ylabel("accuracy of 1-NN among the chosen")
    right.set_ylabel("recall@1 of a network trained on the chosen")
    for place, method in enumerate(methods):
        left.plot([], [], "o", color=PALETTE[place], label=method)
    for name, marker in markers.items():
        middle.plot([], [], marker, color="0.3", linestyle="none", label=name)
    for axes in panels:
        axes.set_xlabel("epsilon")
        if axes is not right:
            axes.legend(fontsize="small")
        axes.spines[["top", "right"]].set_visible(False)
