"""Seconds of a search by VectorIndex, exact and by libraries, and of the matrix product alone.

The plain product is that of the same queries and vectors in blocks of the size at which it is
fastest, in single precision, without any selection.
"""

import importlib.util

import numpy as np

from benchmarks.harness import Column, Report, Target, add_ratios, compare
from skdml.search import VectorIndex

REPEATS = 3
PLAIN, EXACT = "plain product", "exact, k={}"
N_COLUMNS = 128
# A block of the plain product.
BLOCK_ROWS, BLOCK_COLUMNS = 512, 4096


def multiply(queries, vectors):
    for first in range(0, len(queries), BLOCK_ROWS):
        for start in range(0, len(vectors), BLOCK_COLUMNS):
            block = queries[first : first + BLOCK_ROWS] @ vectors[start : start + BLOCK_COLUMNS].T
    return block


def make_vectors(n_rows, rng):
    """Draw vectors around 1,000 centres, as embeddings of classes are."""
    centres = rng.normal(size=(1000, N_COLUMNS))
    noise = rng.normal(size=(n_rows, N_COLUMNS))
    return (centres[rng.integers(0, 1000, n_rows)] + noise).astype(np.float32)


def run(options):
    rng = np.random.default_rng(0)
    n_queries, n_rows = options.pick((10_000, 100_000), (300, 6000))
    drawn = make_vectors(n_rows + n_queries, rng)
    vectors, queries = drawn[:n_rows], drawn[n_rows:]
    names = [name for name in ("faiss", "hnswlib", "usearch") if importlib.util.find_spec(name)]
    indices = {name: VectorIndex(backend=name).fit(vectors) for name in ("exact", *names)}
    for index in indices.values():
        index.query(queries[:1], 1)  # builds the graph
    sides = {PLAIN: lambda: multiply(queries, vectors)}
    for k in (1, 10, 100):
        sides[EXACT.format(k)] = lambda k=k: indices["exact"].query(queries, k)
    for name in names:
        sides[f"{name}, k=10"] = lambda name=name: indices[name].query(queries, 10)
    timings = compare(sides, repeats=options.repeats, warmup=options.pick(1, 0))
    rows = [
        {"side": side, "seconds": timing.seconds, "times": timing.times, "recall": None}
        for side, timing in timings.items()
    ]
    for row in rows:
        name = row["side"].partition(",")[0]
        if name in indices:
            row["recall"] = indices[name].recall(queries[:500], 10)
    add_ratios(rows, "seconds", "ratio", base=PLAIN)
    exact = next(row for row in rows if row["side"] == EXACT.format(10))
    return Report(
        name="search",
        title=f"{n_queries:,} queries in {n_rows:,} vectors of {N_COLUMNS} columns, one thread",
        columns=[
            Column("side", "side"),
            Column("seconds", "seconds", ".2f", plot=True),
            Column("ratio", "x the product", ".2f"),
            Column("recall", "recall@10 against exact", ".3f"),
        ],
        rows=rows,
        targets=[
            Target.at_most("exact search over the product", 1.5, exact["ratio"], column="ratio")
        ],
    )
