"""Seconds and memory of recall@1 by skdml, scikit-learn and pytorch-metric-learning.

Every row of the data is a query and all others are the gallery. The data are noisy groups,
so that not all nearest neighbours have the right label.
"""

from importlib.util import find_spec

import numpy as np
from sklearn.neighbors import NearestNeighbors

from benchmarks.harness import Column, Report, Target, add_ratios, compare, peak_memory, progress
from skdml.metrics import recall_at_k

OURS, PLAIN, PEER = "skdml", "scikit-learn", "pytorch-metric-learning"
N_CLASSES = 100


def make_data(n_samples, n_features):
    rng = np.random.default_rng(0)
    # Each label more than once: what has no match is counted in more than one way.
    y = rng.permutation(n_samples) % N_CLASSES
    centres = rng.normal(size=(N_CLASSES, n_features)) * 0.45
    return centres[y] + rng.normal(size=(n_samples, n_features)), y


def by_skdml(X, y):
    return recall_at_k(X, y, k=1)


def by_scikit_learn(X, y):
    search = NearestNeighbors(n_neighbors=2, algorithm="brute").fit(X)
    found = search.kneighbors(X, return_distance=False)
    # A row's own place is the first one, except behind a copy of itself.
    itself = np.arange(len(X))
    nearest = np.where(found[:, 0] == itself, found[:, 1], found[:, 0])
    return np.mean(y[nearest] == y)


def find_sides():
    """Return the function of each side, and why a side cannot run."""
    sides, absent = {OURS: by_skdml, PLAIN: by_scikit_learn}, {}
    if find_spec("pytorch_metric_learning") is None:
        absent[PEER] = "not run: pytorch-metric-learning is not installed"
    else:
        from benchmarks.peers.pytorch_metric_learning_peer import recall_at_1

        sides[PEER] = recall_at_1
    return sides, absent


def run(options):
    n_samples, n_features = options.pick((10_000, 128), (500, 128))
    X, y = make_data(n_samples, n_features)
    sides, absent = find_sides()
    timings = compare(
        {name: lambda function=function: function(X, y) for name, function in sides.items()},
        repeats=options.repeats,
    )
    rows = []
    for name, function in sides.items():
        progress(f"{name}: memory")
        memory = peak_memory(function, {"X": X, "y": y})
        rows.append(
            {
                "side": name,
                "seconds": timings[name].seconds,
                "times": timings[name].times,
                "peak_mb": memory.peak_mb,
                "growth_mb": memory.growth_mb,
                "recall": timings[name].value,
            }
        )
    rows += [{"side": f"{name} ({reason})"} for name, reason in absent.items()]
    add_ratios(rows, "seconds", "ratio", base=OURS)
    ours, plain = rows[0], rows[1]
    difference = abs(ours["recall"] - plain["recall"])
    return Report(
        name="retrieval",
        title=f"recall@1, {n_samples:,} x {n_features} embeddings, one thread",
        columns=[
            Column("side", "side"),
            Column("seconds", "seconds", ".3f", plot=True),
            Column("ratio", "x skdml's seconds", ".2f"),
            Column("peak_mb", "peak MB", ".0f", plot=True),
            Column("growth_mb", "growth MB", ".0f"),
            Column("recall", "recall@1", ".4f"),
        ],
        rows=rows,
        targets=[
            Target.at_most("seconds", 3.0, ours["seconds"], unit="s", column="seconds"),
            Target.at_most("peak memory", 500.0, ours["peak_mb"], unit="MB", column="peak_mb"),
            Target.at_most("difference from scikit-learn's recall", 1e-12, difference),
        ],
        parameters={"n_samples": n_samples, "n_features": n_features, "n_classes": N_CLASSES},
        notes=[
            "Peak is the whole process, imports included; growth is what the call adds. "
            "pytorch-metric-learning computes with 32-bit numbers."
        ],
    )
