"""DITML: speed against metric-learn's ITML, high dimension, and one against two workers.

Four parts. `speed`: the same pairs and bounds, to a primal objective no worse. `gamma`: a large
price of slack, and many pairs of few columns. `wide`: the shape for which the thesis used 32
machines, and text-like sparse rows. `workers`: one and two dask workers with one thread each, the
same rounds, beside what two processes without dask gain on this machine.
"""

import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.preprocessing import StandardScaler

from benchmarks.harness import (
    METRIC_LEARN,
    Column,
    Report,
    Target,
    add_ratios,
    compare,
    peak_memory,
    progress,
)
from skdml import DITMLTransformer
from skdml.constraints import make_pairs

REPEATS = 3
PARTS = ("speed", "gamma", "wide", "workers")
OURS, PEER = "skdml", "metric-learn"


def add_arguments(parser):
    parser.add_argument(
        "--parts", default=",".join(PARTS), help="which parts, comma separated (default: all)"
    )


def primal_objective(A, C, signs, bounds, gamma=1.0):
    """Objective of the problem at A, with the best slack for it; every A can be compared."""
    p = np.einsum("ij,jk,ik->i", C, A, C)
    ratio = np.where(signs > 0, np.maximum(p, bounds), np.minimum(p, bounds)) / bounds
    divergence = np.trace(A) - np.linalg.slogdet(A)[1] - len(A)
    return float(divergence + gamma * np.sum(ratio - np.log(ratio) - 1))


def speed(options):
    """Rows of the comparison with metric-learn."""
    rows = []
    cases = [("breast cancer", load_breast_cancer, 400), ("digits", load_digits, 1000)]
    for name, load, n_pairs in options.pick(cases, cases[:1]):
        X, y = load(return_X_y=True)
        X = StandardScaler().fit_transform(X)
        pairs, signs = make_pairs(y, n_pairs, random_state=0)
        C = X[pairs[:, 0]] - X[pairs[:, 1]]
        sample = np.random.default_rng(0).integers(0, len(X), (2, 5000))
        squared = ((X[sample[0]] - X[sample[1]]) ** 2).sum(1)
        limits = np.percentile(squared[squared > 0], (5, 95))
        peer_inputs = {"pairs": X[pairs], "y": signs, "bounds": limits}
        timings = compare(
            {
                OURS: lambda X=X, p=pairs, s=signs, b=limits: DITMLTransformer(gamma=1.0).fit(
                    X, pairs=p, pair_labels=s, bounds=b
                ),
                PEER: METRIC_LEARN.side("metric_learn_peer.py", "itml", peer_inputs, timeout=600),
            },
            repeats=options.repeats,
            warmup={OURS: 1},
        )
        bounds = np.where(signs > 0, *limits)
        L = np.asarray(timings[PEER].value.outputs["components"])
        matrices = {OURS: timings[OURS].value.get_mahalanobis_matrix(), PEER: L.T @ L}
        part = [
            {
                "case": f"{name} {n_pairs} x {X.shape[1]}",
                "set": name,
                "side": side,
                "seconds": timings[side].seconds,
                "objective": primal_objective(matrices[side], C, signs, bounds),
            }
            for side in (OURS, PEER)
        ]
        add_ratios(part, "seconds", "ratio", base=OURS)
        rows += part
    return rows


def gamma(options):
    """Rows of a large gamma and of many pairs."""
    X, y = load_digits(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    pairs, signs = make_pairs(y, options.pick(1000, 100), random_state=0)
    sides = {
        f"gamma={value:g}": lambda value=value: DITMLTransformer(gamma=value, random_state=0).fit(
            X, pairs=pairs, pair_labels=signs
        )
        for value in (1.0, 100.0)
    }
    timings = compare(sides, repeats=options.repeats, warmup=1)
    case = f"digits {len(pairs)} x {X.shape[1]}"
    rows = [{"case": case, "side": side, "seconds": t.seconds} for side, t in timings.items()]
    n_pairs = options.pick(100_000, 1000)
    rng = np.random.default_rng(0)
    y = np.arange(5000) % 10
    many = rng.standard_normal((5000, 50)) + 0.5 * rng.standard_normal((10, 50))[y]
    pairs, signs = make_pairs(y, n_pairs, random_state=0)
    start = time.perf_counter()
    DITMLTransformer(gamma=1.0, random_state=0).fit(many, pairs=pairs, pair_labels=signs)
    seconds = time.perf_counter() - start
    rows.append({"case": f"{n_pairs:,} pairs of 50 columns", "side": OURS, "seconds": seconds})
    return rows


def fit_wide(X, y):
    """Fit all pairs of few rows with many features."""
    model = DITMLTransformer(gamma=1.0, pairs="random", n_constraints=10**6, random_state=0).fit(
        X, y
    )
    return {"kkt_residual": model.kkt_residual_, "n_pairs": len(model.pairs_)}


def fit_text(n_rows, n_features):
    """Fit text-like rows: a million columns, a hundred entries a row."""
    X = sparse.random_array(
        (n_rows, n_features),
        density=100 / n_features,
        rng=np.random.default_rng(0),
        format="csr",
        dtype=np.float32,
    )
    model = DITMLTransformer(gamma=1.0, pairs="random", n_components=50, random_state=0).fit(
        X, np.arange(n_rows) % 4
    )
    return {"kkt_residual": model.kkt_residual_, "n_outputs": model.transform(X[:10]).shape[1]}


def wide(options):
    n_rows, n_features = options.pick((50, 51_456), (20, 2_000))
    rng = np.random.default_rng(0)
    y = np.arange(n_rows) % 2
    X = rng.standard_normal((n_rows, n_features)) + 0.15 * rng.standard_normal((2, n_features))[y]
    X = np.maximum(X, 0)
    dense = peak_memory(fit_wide, {"X": X, "y": y})
    shape = options.pick((2_000, 1_000_000), (100, 10_000))
    text = peak_memory(fit_text, {"n_rows": shape[0], "n_features": shape[1]})
    rows = [
        {
            "case": f"{n_rows} x {n_features:,}, {dense.outputs['n_pairs']} pairs",
            "side": OURS,
            "seconds": dense.seconds,
            "peak_mb": dense.peak_mb,
        },
        {
            "case": f"sparse {shape[0]:,} x {shape[1]:,}",
            "side": OURS,
            "seconds": text.seconds,
            "peak_mb": text.peak_mb,
        },
    ]
    return rows


def workers(options):
    """One and two single-thread dask workers on the same rounds."""
    import dask.array as da
    from distributed import Client, LocalCluster

    n_rows, n_features, n_pairs = options.pick((5_000, 512, 200_000), (200, 20, 2_000))
    rounds = options.pick(30, 10)
    rng = np.random.default_rng(0)
    y = np.arange(n_rows) % 10
    X = rng.standard_normal((n_rows, n_features))
    X[:, :30] += (y[:, None] - 4.5) * 0.3 * rng.standard_normal(X[:, :30].shape[1])
    pairs, signs = make_pairs(y, n_pairs, random_state=0)
    model = DITMLTransformer(
        gamma=1.0,
        pairs="random",
        solver="parallel",
        max_iter=rounds,
        tol=1e-12,
        random_state=0,
    )
    seconds = {1: [], 2: []}
    sent = {}
    for _ in range(options.repeats):
        for n_workers in (1, 2):
            progress(f"{n_workers} worker(s)")
            with (
                LocalCluster(
                    n_workers=n_workers, threads_per_worker=1, dashboard_address=":0"
                ) as cluster,
                Client(cluster),
            ):
                blocks = da.from_array(X, chunks=(n_rows // 4, -1)).persist()
                start = time.perf_counter()
                _fit_rounds(model, blocks, pairs, signs)
                seconds[n_workers].append(time.perf_counter() - start)
                sent[n_workers] = float(np.median(model.history_["bytes"]))
    rows = [
        {
            "case": f"{n_rows:,} x {n_features}, {n_pairs:,} pairs, {rounds} rounds",
            "side": f"{n_workers} worker(s)",
            "seconds": float(np.median(seconds[n_workers])),
            "mb_per_round": sent[n_workers] / 1e6,
        }
        for n_workers in (1, 2)
    ]
    rows.append(
        {
            "case": rows[0]["case"],
            "side": "thesis, by its formula c d",
            "mb_per_round": 8 * n_pairs * n_features / 1e6,
        }
    )
    allowed = two_processes(options.pick(40, 1))
    rows.append({"case": "matrix products", "side": "two processes over one", "ratio": allowed})
    return rows


def targets_of(rows):
    """Return the targets of the parts that have been run."""
    by_part = {part: [row for row in rows if row["part"] == part] for part in PARTS}
    goals = []
    for ours, peer in zip(by_part["speed"][::2], by_part["speed"][1::2], strict=True):
        name = ours["set"]
        share = ours["objective"] / peer["objective"]
        goals += [
            Target.at_least(f"{name}: metric-learn's seconds over ours", 100.0, peer["ratio"]),
            Target.at_most(f"{name}: our objective over metric-learn's", 1.0 + 1e-9, share),
        ]
    if by_part["gamma"]:
        one, large, many = (row["seconds"] for row in by_part["gamma"])
        text = "digits: seconds with gamma=100 over those with gamma=1"
        case = by_part["gamma"][2]["case"]
        goals += [
            Target.at_most(text, 3.0, large / one),
            Target.at_most(f"{case}: seconds", 10.0, many, unit="s"),
        ]
    if by_part["wide"]:
        row, case = by_part["wide"][0], "thesis's 32-machine shape"
        goals += [
            Target.at_most(f"{case}: seconds", 2.0, row["seconds"], unit="s"),
            Target.at_most(f"{case}: memory", 1000.0, row["peak_mb"], unit="MB"),
        ]
    if by_part["workers"]:
        one, two, _, machine = by_part["workers"]
        text = (
            "one worker's seconds over two workers' (two processes without dask gain "
            f"{machine['ratio']:.2f})"
        )
        goals.append(Target.at_least(text, 1.6, one["seconds"] / two["seconds"]))
    return goals


def _multiply(n_products):
    """Return the seconds of products as a worker has them, in a process of its own."""
    A, B = np.ones((50_000, 512)), np.ones((512, 512))
    start = time.perf_counter()
    for _ in range(n_products):
        A @ B
    return time.perf_counter() - start


def two_processes(n_products):
    """Return the throughput of two processes that multiply over that of one."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        list(pool.map(_multiply, [1, 1]))
        alone = pool.submit(_multiply, n_products).result()
        together = max(pool.map(_multiply, [n_products] * 2))
    return 2 * alone / together


def _fit_rounds(model, X, pairs, signs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # stops after its rounds, on purpose
        model.fit(X, pairs=pairs, pair_labels=signs)


def part_rows(part, options):
    return [{"part": part, **row} for row in globals()[part](options)]


def run(options):
    runners = {part: partial(part_rows, part, options) for part in PARTS}
    rows = options.run_parts("ditml", runners)
    return Report(
        name="ditml",
        title="DITML: seconds, objective, memory and bytes",
        columns=[
            Column("case", "case"),
            Column("side", "side"),
            Column("seconds", "seconds", ".3f", plot=True),
            Column("ratio", "x skdml's seconds", ".1f"),
            Column("objective", "primal objective", ".3f"),
            Column("peak_mb", "peak MB", ".0f"),
            Column("mb_per_round", "MB per round", ".2f"),
        ],
        rows=rows,
        targets=targets_of(rows),
        notes=[
            "Peak is the whole process. The memory map's pages count as far as they are resident."
        ],
    )
