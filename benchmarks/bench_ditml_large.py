"""DITML on the thesis's largest synthetic shape, 10,000 x 100,000, from a memory map.

float32 rows, 10,000 pairs, all cores. Takes many minutes and, for the rows, 4 GB of disk.
"""

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.harness import Column, Report, Target, peak_memory
from skdml import DITMLTransformer


def fit_memmap(path, n_pairs):
    X = np.load(path, mmap_mode="r")
    y = np.arange(len(X)) % 2
    model = DITMLTransformer(gamma=1.0, pairs="random", n_constraints=n_pairs, random_state=0).fit(
        X, y
    )
    return {"kkt_residual": model.kkt_residual_, "n_iter": model.n_iter_}


def run(options):
    n_rows, n_features = options.pick((10_000, 100_000), (200, 1_000))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n_rows, n_features))
        rng = np.random.default_rng(0)
        shift = 0.1 * rng.standard_normal((2, n_features), dtype=np.float32)
        for start in range(0, n_rows, 500):
            block = rng.standard_normal((min(500, n_rows - start), n_features), dtype=np.float32)
            X[start : start + len(block)] = block + shift[np.arange(start, start + len(block)) % 2]
        X.flush()
        del X
        result = peak_memory(fit_memmap, {"path": str(path), "n_pairs": n_rows}, threads=None)
    row = {
        "case": f"{n_rows:,} x {n_features:,} from a memory map, {n_rows:,} pairs",
        "seconds": result.seconds,
        "peak_mb": result.peak_mb,
        **result.outputs,
    }
    return Report(
        name="ditml-large",
        title="DITML, the thesis's largest synthetic shape",
        columns=[
            Column("case", "case"),
            Column("seconds", "seconds", ".0f", plot=True),
            Column("peak_mb", "peak MB", ".0f", plot=True),
            Column("n_iter", "Newton steps"),
            Column("kkt_residual", "KKT residual", ".1e"),
        ],
        rows=[row],
        targets=[
            Target.at_most("thesis's largest shape: seconds", 480.0, result.seconds, unit="s"),
            Target.at_most("thesis's largest shape: memory", 12_000.0, result.peak_mb, unit="MB"),
        ],
        notes=["Peak is the whole process; resident pages of the memory map count."],
    )
