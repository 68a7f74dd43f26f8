"""A million rows: DITML with as many pairs on two small dask workers, and search among all of them.

Parts: "ditml" fits DITMLTransformer to a dask array on two workers of 4 GB with one thread each, by
a million pairs; "search" looks up the neighbours of a million vectors among themselves by an
approximate index, and says how many of the exact ones it finds.
"""

import resource
import time

import numpy as np

from benchmarks.harness import Column, Report, Target, limited_threads, progress
from skdml import DITMLTransformer
from skdml.metrics import recall_at_k
from skdml.search import VectorIndex

REPEATS = 1
PARTS = ("ditml", "search")
N_ROWS, N_PAIRS, N_FEATURES, N_CLASSES = 1_000_000, 1_000_000, 100, 20
N_WORKERS, WORKER_GB, BLOCKS = 2, 4, 16
# Vectors lie around centres, as embeddings of classes do. Some queries are searched for exactly.
N_COLUMNS, N_CENTRES, N_EXACT, K = 64, 10_000, 2_000, 10
BACKENDS = {"faiss, HNSW": ("faiss", None), "faiss, IVF": ("faiss", {"factory": "IVF4096,Flat"})}


def add_arguments(parser):
    parser.add_argument("--parts", default=",".join(PARTS), help="comma separated")


def peak_mb():
    """Return the largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def make_block(labels, means, seed=0):
    """Return rows of some classes, whose last columns are mere noise of a larger scale."""
    rng = np.random.default_rng([seed, len(labels), *labels[:8]])
    rows = rng.standard_normal((len(labels), means.shape[1]))
    rows[:, means.shape[1] // 2 :] *= 3.0
    return rows + means[labels]


def run_ditml(options):
    import dask.array as da
    from distributed import Client, LocalCluster

    n_rows, n_pairs = options.pick((N_ROWS, N_PAIRS), (2_000, 2_000))
    rng = np.random.default_rng(0)
    means = np.zeros((N_CLASSES, N_FEATURES))
    means[:, : N_FEATURES // 2] = 0.5 * rng.standard_normal((N_CLASSES, N_FEATURES // 2))
    y = rng.integers(0, N_CLASSES, n_rows)
    model = DITMLTransformer(gamma=1.0, pairs="random", n_constraints=n_pairs, random_state=0)
    unseen_y = rng.integers(0, N_CLASSES, 4_000)
    unseen = make_block(unseen_y, means, seed=1)
    with (
        LocalCluster(
            n_workers=N_WORKERS,
            threads_per_worker=1,
            memory_limit=f"{WORKER_GB}GB",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        blocks = da.from_array(y, chunks=n_rows // BLOCKS)
        X = blocks.map_blocks(
            make_block, means, dtype=float, new_axis=1, chunks=(blocks.chunks[0], N_FEATURES)
        ).persist()
        start = time.perf_counter()
        with limited_threads(1):
            model.fit(X, y)
        seconds = time.perf_counter() - start
        peak = max(client.run(peak_mb).values())
    recalls = [
        100 * float(recall_at_k(rows, unseen_y, k=1)) for rows in (unseen, model.transform(unseen))
    ]
    return [
        {
            "part": "ditml",
            "case": f"{n_rows:,} x {N_FEATURES}, {n_pairs:,} pairs, {N_WORKERS} workers of "
            f"{WORKER_GB} GB",
            "seconds": seconds,
            "peak_mb": peak,
            "client_mb": peak_mb(),
            "n_iter": model.n_iter_,
            "kkt_residual": float(model.kkt_residual_),
            "before": recalls[0],
            "recall": recalls[1],
        }
    ]


def run_search(options):
    n_rows = options.pick(N_ROWS, 5_000)
    n_exact, n_centres = options.pick((N_EXACT, N_CENTRES), (100, 100))
    rng = np.random.default_rng(0)
    labels = rng.integers(0, n_centres, n_rows)
    centres = rng.standard_normal((n_centres, N_COLUMNS), dtype=np.float32)
    vectors = centres[labels] + rng.standard_normal((n_rows, N_COLUMNS), dtype=np.float32)
    some = rng.choice(n_rows, n_exact, replace=False)
    exact = VectorIndex().fit(vectors)
    start = time.process_time()
    found = exact.query(vectors[some], K + 1)[1]
    each = (time.process_time() - start) / n_exact
    rows = [search_row("exact, predicted from some", found, some, labels, each * n_rows, found)]
    for name, (backend, settings) in BACKENDS.items():
        if options.quick and settings:
            continue
        progress(name)
        start = time.process_time()
        index = VectorIndex(backend=backend, options=settings).fit(vectors)
        index.query(vectors[:1], K)  # builds the index
        built = time.process_time() - start
        ids = index.query(vectors, K + 1)[1]
        seconds = time.process_time() - start
        row = search_row(name, ids, np.arange(n_rows), labels, seconds, found, ids[some])
        rows.append({**row, "built": built})
    return rows


def search_row(name, ids, queries, labels, seconds, exact, ids_of_some=None):
    """Return the share of classes found among the neighbours, and of exact neighbours found."""
    others = ids != queries[:, None]
    first = np.take_along_axis(ids, others.argmax(axis=1)[:, None], axis=1)[:, 0]
    ids_of_some = ids if ids_of_some is None else ids_of_some
    hits = [len(np.intersect1d(*pair)) for pair in zip(ids_of_some, exact, strict=True)]
    return {
        "part": "search",
        "case": f"{len(labels):,} among {len(labels):,}, {name}",
        "seconds": seconds,
        "client_mb": peak_mb(),
        "recall": 100 * float(np.mean(labels[first] == labels[queries])),
        "exact": float(np.sum(hits) / exact.size),
    }


def make_targets(rows):
    """Return what the rows say to what was asked for."""
    targets = []
    for row in rows:
        if row["part"] == "ditml":
            limit = 1e3 * WORKER_GB
            targets.append(
                Target.at_most("DITML: peak of a worker", limit, row["peak_mb"], unit="MB")
            )
        elif "built" in row:
            targets.append(Target.at_least(f"{row['case']}: exact neighbours", 0.9, row["exact"]))
    return targets


def run(options):
    with limited_threads(1):
        rows = options.run_parts(
            "million", {"ditml": lambda: run_ditml(options), "search": lambda: run_search(options)}
        )
    return Report(
        name="million",
        title="a million rows",
        columns=[
            Column("part", "part"),
            Column("case", "case"),
            Column("seconds", "seconds", ".0f", plot=True),
            Column("built", "of these to build", ".0f"),
            Column("peak_mb", "peak MB of a worker", ",.0f"),
            Column("client_mb", "peak MB of the process", ",.0f"),
            Column("n_iter", "Newton steps", ".0f"),
            Column("kkt_residual", "KKT residual", ".1e"),
            Column("before", "recall@1 before", ".1f"),
            Column("recall", "recall@1", ".1f"),
            Column("exact", "of the exact 10 found", ".3f"),
        ],
        rows=rows,
        targets=make_targets(rows),
        notes=[
            "*ditml*: rows are made on the workers, in float64; gamma is given. Recall is that of "
            f"4,000 other rows. Seconds are of the clock. *search*: {N_COLUMNS} columns, one "
            f"thread, seconds of the processor; the exact search was run for {N_EXACT:,} queries "
            "alone, and its seconds are those times the number of queries. Recall@1 is by classes."
        ],
    )
