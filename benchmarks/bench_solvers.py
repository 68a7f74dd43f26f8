"""Solvers that the thesis proposes for later work, its synthetic shapes, and 1, 2 and 4 processes.

Parts: `descent`, Frank-Wolfe and Riemannian descent on the problems of GMML and DITML, against the
solvers of the package; `shapes`, accuracies of nearest neighbours as in table 3.1 of the thesis, on
data of its shapes; `processes`, seconds of ITML's projections one after the other and of DITML's
rounds with 1, 2 and 4 processes, as in figures 3.3 and 3.4.
"""

import time
import warnings

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from benchmarks.conditional_descent import (
    block_frank_wolfe,
    ditml_objective,
    frank_wolfe,
    gmml_objective,
    riemannian_descent,
)
from benchmarks.harness import PALETTE, Column, Report, progress
from skdml import DITMLTransformer
from skdml.constraints import make_pairs
from skdml.linear._logdet import LogDetProblem
from skdml.linear._mahalanobis import geometric_mean
from skdml.linear._newton import solve_newton
from skdml.utils._differences import PairDifferences

REPEATS = 3
PARTS = ("descent", "shapes", "processes")
SETS = {"breast cancer": (load_breast_cancer, 400), "digits": (load_digits, 1000)}
GAPS = (1e-3, 1e-6)
# Seconds of the processor for a solver.
LIMIT = 3.0
# Features of the thesis's sets, rows (a tenth), and draws.
SHAPES = {100: 20, 1000: 5, 10_000: 1}
N_TEST = 500
N_PROCESSES = (1, 2, 4)


def add_arguments(parser):
    parser.add_argument("--parts", default=",".join(PARTS), help="comma separated")
    parser.add_argument("--most-features", type=int, default=max(SHAPES), help="of the shapes")


def reached(log, best):
    """Return seconds and rounds to each relative gap of `GAPS`, None where it was not reached."""
    row = {"rounds": len(log) - 1, "gap": (log[-1][1] - best) / abs(best)}
    for gap in GAPS:
        near = [place for place, (_, value) in enumerate(log) if value - best <= gap * abs(best)]
        row[f"to {gap:g}"] = log[near[0]][0] if near else None
    return row


def timed(function):
    function()  # imports and caches
    start = time.process_time()
    value = function()
    return value, time.process_time() - start


def make_problem(name):
    """Return differences of pairs, signs, and bounds as the estimators have them."""
    load, n_pairs = SETS[name]
    X, y = load(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    pairs, signs = make_pairs(y, n_pairs, random_state=0)
    C = X[pairs[:, 0]] - X[pairs[:, 1]]
    sample = np.random.default_rng(0).integers(0, len(X), (2, 5000))
    squared = ((X[sample[0]] - X[sample[1]]) ** 2).sum(1)
    bounds = np.where(signs > 0, *np.percentile(squared[squared > 0], (5, 95)))
    return C, signs.astype(float), bounds


def descend(options):
    """Compare solvers on both problems, each to the value of the exact one."""
    limit, rows = options.pick(LIMIT, 0.5), []
    for name in options.pick(list(SETS), ["breast cancer"]):
        C, signs, bounds = make_problem(name)
        S, D = (np.cov(C[signs == sign].T, bias=True) for sign in (1, -1))
        S, D = (M + 0.01 * np.trace(M) / len(M) * np.eye(len(M)) for M in (S, D))
        function, identity = gmml_objective(S, D), np.eye(len(S))
        exact, seconds = timed(lambda S=S, D=D: geometric_mean(S, D, 0.5))
        best = function(exact)[0]
        logs = {
            "skdml, closed form": [(0.0, function(identity)[0]), (seconds, best)],
            "Riemannian descent": riemannian_descent(function, identity, limit),
            "Frank-Wolfe": frank_wolfe(function, identity, 2 * np.trace(exact), limit),
        }
        common = {"part": "descent", "data": f"{name}, {len(C)} x {C.shape[1]}"}
        rows += [
            {**common, "problem": "GMML", "method": method, **reached(log, best)}
            for method, log in logs.items()
        ]
        rows += [{**common, **row} for row in descend_ditml(C, signs, bounds, limit)]
        progress(name)
    return rows


def descend_ditml(C, signs, bounds, limit):
    differences = PairDifferences(
        np.concatenate([C, np.zeros((1, C.shape[1]))]),
        np.stack([np.arange(len(C)), np.full(len(C), len(C))], axis=1),
    )
    problem = LogDetProblem(differences, signs, bounds, 1.0, np.eye(C.shape[1]))
    result, seconds = timed(lambda: solve_newton(problem, max_iter=200, tol=1e-9))
    function, identity = ditml_objective(C, signs, bounds, 1.0), np.eye(C.shape[1])
    point = problem.at(result.point.multipliers)
    metric = np.linalg.inv(problem.prior_inverse + differences.scatter(signs * point.multipliers))
    best, dual = function(metric)[0], -point.value
    most = np.full(len(C), 2 * point.multipliers.max())
    most[signs > 0] = np.minimum(most, 0.999 / bounds)[signs > 0]
    logs = {
        "skdml, Newton": ([(0.0, function(identity)[0]), (seconds, best)], best),
        "Riemannian descent": (riemannian_descent(function, identity, limit), best),
        "Frank-Wolfe": (frank_wolfe(function, identity, 2 * np.trace(metric), limit), best),
    }
    for n_blocks in (len(C), len(C) // 10):
        label = f"block Frank-Wolfe on the dual, {n_blocks} blocks at a time"
        logs[label] = block_frank_wolfe(problem, most, n_blocks, limit), dual
    rows = [
        {"problem": "DITML", "method": method, **reached(log, at)}
        for method, (log, at) in logs.items()
    ]
    rows[0]["rounds"] = result.n_iter
    return rows


def draw_shape(n_features, seed):
    """Return rows as the thesis has them, a tenth as many as features, and others for the test.

    Two normal clouds. How far apart is not said; here squared distances between classes are larger
    by one standard deviation of those of two rows.
    """
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(2, n_features)) * (2 / n_features) ** 0.25
    n_rows = n_features // 10
    y = np.arange(n_rows + N_TEST) % 2
    X = centres[y] + rng.normal(size=(len(y), n_features))
    return X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:]


def score_shapes(options):
    """Return the accuracy of 4-NN by Euclidean distance, and on DITML's metrics."""
    thesis = {"gamma": 100.0, "bound_percentiles": "median", "pairs": "random"}
    methods = {
        "k-NN": None,
        "ITML, one pair after the other": {**thesis, "solver": "sequential"},
        "DITML, all pairs at once": {**thesis, "solver": "parallel"},
        "DITMLTransformer, default": {},
    }
    rows = []
    most = options.extra["most_features"]
    for n_features, n_seeds in options.pick(SHAPES, {100: 1}).items():
        if n_features > most:
            continue
        found = {name: [] for name in methods}
        for seed in range(n_seeds):
            X, y, X_test, y_test = draw_shape(n_features, seed)
            for name, params in methods.items():
                Z, Z_test = X, X_test
                if params is not None:
                    counts = {"n_constraints": max(n_features // 10, 10)} if params else {}
                    model = DITMLTransformer(random_state=seed, **params, **counts)
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        model.fit(X, y)
                    Z, Z_test = model.transform(X), model.transform(X_test)
                found[name].append(KNeighborsClassifier(4).fit(Z, y).score(Z_test, y_test))
        progress(f"{n_features} features")
        rows += [
            {
                "part": "shapes",
                "data": f"{n_features // 10:,} x {n_features:,}",
                "method": name,
                "accuracy": float(np.mean(scores)),
                "spread": float(np.std(scores)),
                "n_seeds": n_seeds,
            }
            for name, scores in found.items()
        ]
    return rows


def time_processes(options):
    """Return the seconds of a sweep of projections, and of as many rounds over 1 to 4 processes."""
    import dask.array as da
    from distributed import Client, LocalCluster

    n_rows, n_features, n_pairs = options.pick((4_000, 256, 50_000), (100, 10, 500))
    rounds, rng = options.pick(20, 3), np.random.default_rng(0)
    y = np.arange(n_rows) % 10
    X = rng.standard_normal((n_rows, n_features))
    X[:, :30] += (y[:, None] - 4.5) * 0.3
    pairs, signs = make_pairs(y, n_pairs, random_state=0)
    shape = f"{n_rows:,} x {n_features}, {n_pairs:,} pairs"

    def fit(rows, solver, max_iter):
        model = DITMLTransformer(
            gamma=1.0, pairs="random", solver=solver, max_iter=max_iter, tol=1e-12, random_state=0
        )
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # stops after its rounds, on purpose
            model.fit(rows, pairs=pairs, pair_labels=signs)
        return time.perf_counter() - start, model.history_["value"][-1]

    common = {"part": "processes", "data": shape}
    seconds, value = fit(X, "sequential", 1)
    rows = [{**common, "method": "ITML, one sweep", "seconds": seconds, "dual": value}]
    seconds, value = fit(X, "newton", 100)
    rows.append({**common, "method": "Newton, to the end", "seconds": seconds, "dual": value})
    for n in options.pick(N_PROCESSES, (1,)):
        progress(f"{n} processes")
        cluster = LocalCluster(n_workers=n, threads_per_worker=1, dashboard_address=":0")
        with cluster, Client(cluster):
            blocks = da.from_array(X, chunks=(n_rows // 4, -1)).persist()
            found = [fit(blocks, "parallel", rounds) for _ in range(options.repeats)]
        label = f"DITML, {rounds} rounds, {n} process{'es' * (n > 1)}"
        seconds = float(np.median([one for one, _ in found]))
        rows.append({**common, "method": label, "seconds": seconds, "dual": found[0][1]})
    return rows


def run(options):
    rows = options.run_parts(
        "solvers",
        {
            "descent": lambda: descend(options),
            "shapes": lambda: score_shapes(options),
            "processes": lambda: time_processes(options),
        },
    )
    return Report(
        name="solvers",
        title="proposals of the thesis: descent, shapes and processes",
        columns=[
            Column("part", "part"),
            Column("data", "data"),
            Column("problem", "problem"),
            Column("method", "method"),
            *[Column(f"to {gap:g}", f"seconds to a gap of {gap:g}", ".4f") for gap in GAPS],
            Column("gap", "last gap", ".1e"),
            Column("rounds", "rounds", "d"),
            Column("accuracy", "accuracy, 4-NN", ".3f"),
            Column("spread", "its spread", ".3f"),
            Column("n_seeds", "draws", "d"),
            Column("seconds", "seconds", ".2f"),
            Column("dual", "dual value", ".1f"),
        ],
        rows=rows,
        notes=[
            "*descent*: relative gaps to the value of the package's solver, from the identity, in "
            f"{LIMIT:g} processor seconds at most. Frank-Wolfe is told twice the trace, or "
            "multipliers, of the solution. *shapes*: two normal clouds, a tenth as many rows as "
            "features, 500 rows for the test; gamma = 100 and bounds by the median for the "
            "solvers of the thesis. *processes*: one thread each, on two cores with other programs "
            "beside.",
        ],
        plot=plot,
    )


def plot(report, figure):
    """Draw accuracies by shape, and seconds by processes."""
    figure.set_size_inches(11, 4)
    left, right = figure.subplots(1, 2)
    shapes = [row for row in report.rows if row["part"] == "shapes"]
    for place, method in enumerate(dict.fromkeys(row["method"] for row in shapes)):
        own = [row for row in shapes if row["method"] == method]
        left.errorbar(
            range(len(own)),
            [row["accuracy"] for row in own],
            yerr=[row["spread"] for row in own],
            fmt="o-",
            capsize=3,
            color=PALETTE[place],
            label=method,
        )
        left.set_xticks(range(len(own)), [row["data"] for row in own])
    left.set_title("accuracy of 4-NN by shape", fontsize="medium")
    timed_rows = [row for row in report.rows if row["part"] == "processes"]
    right.barh(
        [row["method"] for row in timed_rows],
        [row["seconds"] for row in timed_rows],
        color=PALETTE[0],
    )
    right.invert_yaxis()
    right.set_title("seconds", fontsize="medium")
    if shapes:
        left.legend(fontsize="small")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
