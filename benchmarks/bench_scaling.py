"""Every estimator with 1, 2 and 4 processes: seconds, a cost model, and what it predicts.

One thread each. What two processes gain on this machine without us, by matrix products, stands
beside it. The model of Amdahl, t(p) = serial + parallel / p + overhead p, is fitted to what was
measured; figures for more machines are predictions.
"""

import time
import warnings

import numpy as np
from scipy.optimize import nnls

from benchmarks.bench_ditml import two_processes
from benchmarks.harness import Column, Report, Target, limited_threads, progress

REPEATS = 1
COUNTS = (1, 2, 4)
MACHINES = (16, 64, 256, 1024)


def blobs(n_rows, n_features, n_classes=10, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n_rows) % n_classes
    X = rng.standard_normal((n_rows, n_features))
    return X + 0.5 * rng.standard_normal((n_classes, n_features))[y], y


def gmml(options, n):
    from skdml import GMMLTransformer

    X, y = blobs(options.pick(60_000, 500), options.pick(256, 10))
    n_pairs = options.pick(2_000_000, 1_000)
    model = GMMLTransformer(
        geodesic=0.5, pairs="random", n_constraints=n_pairs, n_jobs=n, random_state=0
    )
    return lambda: model.fit(X, y)


def ditml(options, n):
    from skdml import DITMLTransformer

    X, y = blobs(options.pick(20_000, 500), options.pick(256, 10))
    n_pairs = options.pick(400_000, 1_000)
    model = DITMLTransformer(
        gamma=1.0, pairs="random", n_constraints=n_pairs, n_jobs=n, random_state=0
    )
    return lambda: model.fit(X, y)


def ranker(options, n):
    from benchmarks.bench_ranking_large import make_documents
    from skdml import LocalGMMLRanker

    X, y, qid = make_documents(options.pick(3_000, 60), 1)
    model = LocalGMMLRanker(n_jobs=n, random_state=0)
    return lambda: model.fit(X, y, qid)


def asymmetric(options, n):
    from skdml import AsymmetricMetricClassifier

    X, y = blobs(options.pick(6_000, 200), options.pick(32, 5))
    model = AsymmetricMetricClassifier(max_iter=options.pick(10, 2), n_jobs=n, random_state=0)
    return lambda: model.fit(X, y)


def embedder(options, n):
    from skdml import DeepMetricEmbedder

    X, y = blobs(options.pick(20_000, 400), options.pick(256, 10), 100)
    model = DeepMetricEmbedder(
        "mlp",
        n_workers=n,
        max_epochs=options.pick(3, 1),
        samples_per_class=4,
        module__hidden=options.pick((1024, 1024), (16,)),
        random_state=0,
    )
    return lambda: model.fit(X.astype(np.float32), y)


def generator(options, n):
    from skdml import WassersteinGenerator

    X, _ = blobs(options.pick(8_000, 200), options.pick(64, 5))
    model = WassersteinGenerator(
        "critics",
        n_critics=4,
        cost="learned",
        max_iter=options.pick(100, 3),
        n_jobs=n,
        random_state=0,
    )
    return lambda: model.fit(X)


def ssdml(options, n):
    from skdml import SSDMLEmbedder

    X, y = blobs(options.pick(16_000, 300), 16)
    y = np.where(np.arange(len(y)) < 100, y, -1)
    model = SSDMLEmbedder(
        partition_size=options.pick(4_000, 100),
        max_epochs=options.pick(4, 1),
        epochs_per_partition=1,
        n_workers=n,
        random_state=0,
    )
    return lambda: model.fit(X, y)


FITS = {
    "GMMLTransformer": gmml,
    "DITMLTransformer": ditml,
    "LocalGMMLRanker": ranker,
    "AsymmetricMetricClassifier": asymmetric,
    "DeepMetricEmbedder, ranks": embedder,
    "WassersteinGenerator, learned critics": generator,
    "SSDMLEmbedder, graphs": ssdml,
}


def fit_model(counts, seconds):
    """Return serial, parallel and per-process seconds that explain the measured ones best."""
    p = np.asarray(counts, dtype=float)
    return nnls(np.column_stack([np.ones_like(p), 1 / p, p]), np.asarray(seconds))[0]


def predict(model, p):
    serial, parallel, each = model
    return serial + parallel / p + each * p


def run(options):
    rows = []
    for name, make in FITS.items():
        taken = {n: [] for n in COUNTS}
        for _ in range(options.repeats):
            for n in COUNTS:
                fit = make(options, n)
                with limited_threads(1), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that four processes share two cores
                    start = time.perf_counter()
                    fit()
                    taken[n].append(time.perf_counter() - start)
        seconds = [float(np.median(taken[n])) for n in COUNTS]
        # processes beyond the cores say nothing of more machines
        model = fit_model(COUNTS[:2], seconds[:2])
        progress(f"{name}: {seconds}")
        rows.append(
            {
                "estimator": name,
                **{f"seconds{n}": value for n, value in zip(COUNTS, seconds, strict=True)},
                "gain2": seconds[0] / seconds[1],
                "gain4": seconds[0] / seconds[2],
                "serial": float(1 - model[1] / seconds[0]),
                **{f"at{p}": float(seconds[0] / predict(model, p)) for p in MACHINES},
            }
        )
    allowed = two_processes(options.pick(40, 1))
    return Report(
        name="scaling",
        title="1, 2 and 4 processes on two cores",
        columns=[
            Column("estimator", "estimator"),
            *(Column(f"seconds{n}", f"s, {n}", ".1f") for n in COUNTS),
            Column("gain2", "gain, 2", ".2f", plot=True),
            Column("gain4", "gain, 4", ".2f"),
            Column("serial", "not parallel", ".2f"),
            *(Column(f"at{p}", f"predicted, {p:,}", ".1f") for p in MACHINES),
        ],
        rows=rows,
        targets=[
            Target.at_least(
                f"{row['estimator']}: gain of two processes over the {allowed:.2f} of the machine",
                0.8,
                row["gain2"] / allowed,
            )
            for row in rows
        ],
        parameters={"allowed": allowed},
        notes=[
            f"Two processes that multiply matrices do {allowed:.2f} times the work of one on this "
            "machine in the same time, four no more: it has two cores. *Not parallel* is the share "
            "of the work that the model finds serial, by one and two processes; *predicted* is its "
            "gain on so many machines, if they are as two processes here and the data grow no "
            "larger. Nothing beyond four processes was measured.",
        ],
    )
