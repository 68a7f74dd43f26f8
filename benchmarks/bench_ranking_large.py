"""LocalGMMLRanker on a million documents: seconds, memory and a second worker.

float32 documents of 100 features in 10,000 queries, and LightGBM in the same run.
"""

import time

import numpy as np

from benchmarks.harness import Column, Report, Target, peak_memory, progress
from skdml import LocalGMMLRanker
from skdml.metrics import mean_ndcg

OURS, LIGHTGBM = "LocalGMMLRanker", "LightGBM"
SIZE = 100  # documents of a query
N_FEATURES = 100
SAMPLED = 5  # of so many features, grades depend on one


def make_documents(n_queries, seed):
    """Return documents whose grades follow some features and a product of two."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_queries * SIZE, N_FEATURES), dtype=np.float32)
    weights = np.zeros(N_FEATURES, dtype=np.float32)
    weights[::SAMPLED] = np.random.default_rng(0).standard_normal(N_FEATURES // SAMPLED) / 4
    score = X @ weights + X[:, 0] * X[:, 1] / 2 + rng.standard_normal(len(X), dtype=np.float32)
    y = np.digitize(score, [0.8, 1.6, 2.4])
    return X, y, np.repeat(np.arange(n_queries), SIZE)


def add_arguments(parser):
    parser.add_argument("--trees", type=int, default=200, help="of LightGBM")


def fit_model(method, n_queries, n_jobs, n_trees):
    """Fit, and return seconds, processor seconds and NDCG@10 of other queries."""
    X, y, qid = make_documents(n_queries, 1)
    wall, cpu = time.perf_counter(), time.process_time()
    if method == OURS:
        model = LocalGMMLRanker(random_state=0, n_jobs=n_jobs).fit(X, y, qid)
    else:
        from lightgbm import LGBMRanker

        model = LGBMRanker(
            n_estimators=n_trees, n_jobs=n_jobs, label_gain=[0, 1, 3, 7], verbose=-1, random_state=0
        ).fit(X, y, group=np.full(n_queries, SIZE))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    size = X.nbytes / 2**20
    X, y, qid = make_documents(min(n_queries, 500), 2)
    scores = model.predict(X, qid=qid) if method == OURS else model.predict(X)
    return {"fit": wall, "cpu": cpu, "x_mb": size, "ndcg": mean_ndcg(y, scores, qid, k=10)}


def run(options):
    n_queries = options.pick(10_000, 200)
    n_trees = options.pick(options.extra["trees"], 5)
    rows = []
    for method, n_jobs in ((OURS, 1), (OURS, 2), (LIGHTGBM, 1)):
        inputs = {"method": method, "n_queries": n_queries, "n_jobs": n_jobs, "n_trees": n_trees}
        result = peak_memory(fit_model, inputs, threads=1)
        found = result.outputs
        progress(f"{method}, {n_jobs} workers: {found['fit']:.0f} s, {found['cpu']:.0f} s of work")
        rows.append(
            {
                "method": method if method == OURS else f"{method}, {n_trees} trees",
                "n_jobs": n_jobs,
                **found,
                "peak_mb": result.peak_mb,
                "ratio": result.peak_mb / found["x_mb"],
            }
        )
    one, two, trees = rows
    return Report(
        name="ranking-large",
        title=f"ranking {n_queries * SIZE:,} documents of {N_FEATURES} features",
        columns=[
            Column("method", "method"),
            Column("n_jobs", "workers"),
            Column("fit", "fit s", ".1f", plot=True),
            Column("cpu", "processor s", ".1f"),
            Column("peak_mb", "peak MB", ".0f", plot=True),
            Column("ratio", "x size of X", ".2f"),
            Column("ndcg", "NDCG@10", ".4f"),
        ],
        rows=rows,
        targets=[
            Target.at_most(
                f"processor time over that of {n_trees} trees", 1.0, one["cpu"] / trees["cpu"]
            ),
            Target.at_most("peak memory over the size of X", 3.0, one["ratio"]),
            Target.at_least(
                "seconds of one worker over those of two", 1.6, one["fit"] / two["fit"]
            ),
        ],
        notes=[
            f"{n_queries:,} queries of {SIZE} documents; grades follow {N_FEATURES // SAMPLED} of "
            "the features and the product of two. NDCG@10 of 500 other queries, fewer in a quick "
            "run. One thread each, two with two workers.",
            "The peak is that of the process while it fits, with X (and what imports take).",
        ],
    )
