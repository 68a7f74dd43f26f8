"""The number of local metrics on real data, figure 4.3 of the thesis.

NDCG@10 of the test parts against m: the algorithm as in the thesis, local metrics alone, and local
metrics beside the linear part.
"""

import numpy as np

from benchmarks.harness import PALETTE, Column, Report, progress
from benchmarks.ranking_methods import (
    CUTOFF,
    OURS,
    THESIS,
    THESIS_SETTINGS,
    join,
    load,
)
from skdml import LocalGMMLRanker
from skdml.metrics import mean_ndcg

SETS = ("mq2008", "ohsumed", "cranfield", "wikiqa")
METRICS = (1, 2, 5, 10, 20, 50, 100)
ALONE = "local metrics alone"
SETTINGS = {THESIS: THESIS_SETTINGS, ALONE: {"linear": False}, OURS: {}}
MOST = {OURS: 10}  # beside a linear part, where their weight is mostly zero


def add_arguments(parser):
    parser.add_argument("--folds", default="0,1,2,3,4", help="comma separated, of 0 to 4")
    parser.add_argument("--most", type=int, default=METRICS[-1], help="metrics at most")


def run_set(name, folds, numbers, n_queries):
    """Return a row for each method and number of metrics."""
    found = {}
    for fold in folds:
        train, validation, test = load(name, fold, n_queries=n_queries)
        documents = join(train, validation)
        for method, settings in SETTINGS.items():
            for m in (m for m in numbers if m <= MOST.get(method, m)):
                model = LocalGMMLRanker(n_metrics=m, random_state=0, **settings)
                model.fit(documents.X, documents.y, documents.qid)
                scores = model.predict(test.X, test.qid)
                value = mean_ndcg(test.y, scores, test.qid, k=CUTOFF)
                found.setdefault((method, m), []).append(value)
        progress(f"{name}, fold {fold}")
    return [
        {
            "set": name,
            "method": method,
            "metrics": m,
            "ndcg": float(np.mean(values)),
            "error": float(np.std(values) / np.sqrt(len(values))),
        }
        for (method, m), values in found.items()
    ]


def plot(report, figure):
    """Draw NDCG against m, a panel for each set."""
    sets = list(dict.fromkeys(row["set"] for row in report.rows))
    figure.set_size_inches(4 * len(sets), 4)
    for axes, name in zip(figure.subplots(1, len(sets), squeeze=False)[0], sets, strict=True):
        for colour, marker, method in zip(PALETTE, "os^", SETTINGS, strict=False):
            shown = [row for row in report.rows if (row["set"], row["method"]) == (name, method)]
            axes.errorbar(
                [row["metrics"] for row in shown],
                [row["ndcg"] for row in shown],
                [row["error"] for row in shown],
                color=colour,
                marker=marker,
                capsize=3,
                label=method,
            )
        axes.set_xscale("log")
        numbers = sorted({row["metrics"] for row in report.rows if row["set"] == name})
        axes.set_xticks(numbers, map(str, numbers), minor=False)
        axes.set_xticks([], minor=True)
        axes.set_xlabel("number of local metrics m")
        axes.set_title(name)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel(f"NDCG@{CUTOFF}, test")
    figure.axes[0].legend(frameon=False)


def run(options):
    folds = [int(fold) for fold in options.extra["folds"].split(",")]
    numbers = [m for m in METRICS if m <= options.extra["most"]]
    folds, numbers = options.pick(folds, folds[:1]), options.pick(numbers, numbers[:2])
    rows = []
    for name in options.pick(SETS, SETS[:1]):
        rows += run_set(name, folds, numbers, options.pick(None, 40))
    return Report(
        name="ranking-metrics",
        title="NDCG@10 against the number of local metrics, real data",
        columns=[
            Column("set", "set"),
            Column("method", "method"),
            Column("metrics", "m"),
            Column("ndcg", f"NDCG@{CUTOFF}", ".4f"),
            Column("error", "±", ".4f"),
        ],
        rows=rows,
        targets=[],
        parameters={"folds": folds, "metrics": numbers},
        notes=[
            f"Means over {len(folds)} folds by query, one seed; ± is the standard error over them. "
            f"*{THESIS}*: its kernel, loss, weights and scaling, margin 1 and first weights 1. "
            f"*{ALONE}*: linear=False. *{OURS}*: m metrics beside the linear part.",
        ],
        plot=plot,
    )
