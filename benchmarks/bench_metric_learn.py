"""LMNN, MLKR, RCA and LFDA against metric-learn: the same problem, seconds, and new rows.

RCA and LFDA have one solution: the matrices of both sides are compared. LMNN and MLKR have an
objective: it is that of the paper for both sides, of the rows that were fitted. "its problem" is
ours with the settings of metric-learn; "defaults" is ours with its own. "page" runs the examples of
metric-learn on the page "Coming from metric-learn".
"""

import time
import warnings

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine, make_friedman1
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.preprocessing import StandardScaler

from benchmarks.coming_from import names_without_mention, run_page
from benchmarks.data import load_uci
from benchmarks.harness import METRIC_LEARN, Column, Report, Target, add_ratios, compare, progress
from skdml.linear import LFDA, LMNN, MLKR, RCA
from skdml.linear._lmnn_solver import exact_loss, find_neighbors
from skdml.linear._mlkr_solver import loss_and_gradient, train

REPEATS = 1
PARTS = ("page", "rca", "lfda", "lmnn", "mlkr")
SAME, DEFAULTS, PEER = "skdml, its problem", "skdml, defaults", "metric-learn"
SCRIPT = "metric_learn_peer.py"
CAP = 600
SPEED = 10.0  # where metric-learn is slow


def add_arguments(parser):
    parser.add_argument(
        "--parts", default=",".join(PARTS), help="which parts, comma separated (default: all)"
    )


def peer_side(algorithm, X, y, **parameters):
    inputs = {"algorithm": algorithm, "X": X, "y": y, **parameters}
    return METRIC_LEARN.side(SCRIPT, "supervised", inputs, timeout=CAP)


def peer_map(timing):
    """Return the map that metric-learn found, None where it met the time cap."""
    return None if timing.missed else np.asarray(timing.value.outputs["components"])


def largest_difference(first, second):
    """Return the largest difference of two matrices, in units of the largest number."""
    return float(np.abs(first - second).max() / np.abs(second).max())


def closed_form(options, method, cases):
    """Return rows and targets of a method whose solution is one matrix."""
    rows, targets = [], []
    for case, ours, peer, find_peer_matrix in cases:
        progress(f"{method}: {case}")
        timings = compare(
            {SAME: ours, PEER: peer}, repeats=max(3, options.repeats), warmup={SAME: 1}
        )
        A = timings[SAME].value.get_mahalanobis_matrix()
        difference = largest_difference(A, find_peer_matrix(peer_map(timings[PEER])))
        part = [
            {"method": method, "case": case, "side": side, "seconds": timings[side].seconds}
            for side in (SAME, PEER)
        ]
        part[0]["difference"] = difference
        add_ratios(part, "seconds", "ratio", base=SAME)
        rows += part
        targets.append(
            Target.at_most(f"{method}, {case}: difference of the matrices", 1e-6, difference)
        )
    return rows, targets


def rca(options):
    X, y = load_breast_cancer(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    chunks = np.random.default_rng(0).permutation(len(y)) // 10
    chunks[-100:] = -1
    chunks = np.where(chunks < 0, -1, 2 * chunks + y)
    cases = [
        (
            f"breast cancer, {text}",
            lambda n=n: RCA(n_components=n, shrinkage=0, strength=1).fit(X, chunks=chunks),
            peer_side("RCA", X, chunks, n_components=n),
            lambda L: L.T @ L,
        )
        for text, n in (("all directions", None), ("5 directions", 5))
    ]
    return closed_form(options, "RCA", options.pick(cases, cases[:1]))


def lfda(options):
    X, y = load_breast_cancer(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    cases = []
    for kind in ("plain", "orthonormalized", "weighted"):
        model = LFDA(5, 7, kind, shrinkage=0, strength=1)
        # metric-learn adds the scatter inside of classes where the paper subtracts it: its
        # eigenvalues are larger by 2, and its directions the same.
        eigenvalues = LFDA(5, 7, shrinkage=0, strength=1).fit(X, y).eigenvalues_
        factors = eigenvalues / (eigenvalues + 2) if kind == "weighted" else np.ones(5)
        inputs = {"X": X, "y": y, "n_components": 5, "k": 7, "embedding_type": kind}
        cases.append(
            (
                f"breast cancer, {kind}",
                lambda model=model: model.fit(X, y),
                METRIC_LEARN.side(SCRIPT, "lfda_with_local_scales", inputs, timeout=CAP),
                lambda L, factors=factors: (L.T * factors) @ L,
            )
        )
    return closed_form(options, "LFDA", options.pick(cases, cases[:1]))


def learned(options, method, case, sides, objective, score, X):
    """Return rows and targets of a method with an objective, on one data set.

    `sides` has functions that fit; those of skdml return a map and seconds. Seconds are processor
    time: some fits take a minute, and the load of the machine must not count.
    """
    progress(f"{method}: {case}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        timings = compare(sides, repeats=options.repeats, warmup={})
    rows = []
    for side, timing in timings.items():
        if side == PEER:
            L = peer_map(timing)
            seconds = None if L is None else timing.value.outputs["processor_seconds"]
        else:
            L, seconds = timing.value
        row = {"method": method, "case": f"{case} {X.shape[0]} x {X.shape[1]}", "side": side}
        row["seconds"] = seconds
        if L is not None:
            row |= {"objective": objective(L), "score": score(L)}
        rows.append(row)
    add_ratios(rows, "seconds", "ratio", base=SAME)
    same, default, peer = rows
    return rows, [
        Target.at_least(
            f"{method}, {case}: metric-learn's seconds over ours on its problem",
            SPEED,
            peer.get("ratio"),
        ),
        Target.at_most(
            f"{method}, {case}: our objective over metric-learn's on its problem",
            1.0 + 1e-3,
            same["objective"] / peer["objective"] if "objective" in peer else None,
        ),
        Target.at_least(
            f"{method}, {case}: metric-learn's seconds over ours with defaults",
            SPEED,
            peer["seconds"] / default["seconds"] if peer["seconds"] else None,
        ),
        Target.at_least(
            f"{method}, {case}: our score with defaults less metric-learn's",
            0.0,
            default["score"] - peer["score"] if "score" in peer else None,
        ),
    ]


def processor_time(fit):
    """Return a function that returns what `fit` does, and its processor time."""

    def timed():
        start = time.process_time()
        return fit(), time.process_time() - start

    return timed


def scaled_split(X, y, classes=True):
    parts = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y if classes else None)
    scaler = StandardScaler().fit(parts[0])
    return scaler.transform(parts[0]), scaler.transform(parts[1]), *parts[2:]


def lmnn(options):
    rows, targets = [], []
    cases = {name: (lambda name=name: load_uci(name)) for name in ("vehicle", "vowel", "segment")}
    cases = options.pick(cases, {"wine": lambda: load_wine(return_X_y=True)})
    for case, load in cases.items():
        X, y = load()
        X = X[:, 3:] if case == "vowel" else X  # the first three tell who spoke
        y = np.unique(y, return_inverse=True)[1]
        X, X_test, y, y_test = scaled_split(X.astype(float), y)
        problem = find_neighbors(X, y, 3)

        def fit(X=X, y=y, **parameters):
            return LMNN(random_state=0, **parameters).fit(X, y).components_

        def score(L, X=X, y=y, X_test=X_test, y_test=y_test):
            models = [KNeighborsClassifier(k).fit(X @ L.T, y) for k in (1, 5)]
            return float(np.mean([model.score(X_test @ L.T, y_test) for model in models]))

        sides = {
            SAME: processor_time(
                lambda fit=fit: fit(n_passes=1, tol=1e-4, validation_fraction=None)
            ),
            DEFAULTS: processor_time(fit),
            PEER: peer_side("LMNN", X, y, random_state=0),
        }
        part = learned(
            options, "LMNN", case, sides, lambda L, p=problem: exact_loss(p, L), score, X
        )
        rows, targets = rows + part[0], targets + part[1]
    return rows, targets


def mlkr(options):
    rows, targets = [], []
    cases = {
        "diabetes": lambda: load_diabetes(return_X_y=True),
        "friedman": lambda: make_friedman1(options.pick(1400, 140), 10, noise=0.5, random_state=0),
    }
    for case, load in options.pick(cases, {"friedman": cases["friedman"]}).items():
        X, y = load()
        X, X_test, y, y_test = scaled_split(X, (y - y.mean()) / y.std(), classes=False)

        def score(L, X=X, y=y, X_test=X_test, y_test=y_test):
            model = KNeighborsRegressor(10).fit(X @ L.T, y)
            return float(model.score(X_test @ L.T, y_test))

        sides = {
            # From its start, to its tolerance.
            SAME: processor_time(
                lambda X=X, y=y: train(X, y, np.eye(X.shape[1]), 1000, 2.2e-9).map
            ),
            DEFAULTS: processor_time(lambda X=X, y=y: MLKR(random_state=0).fit(X, y).components_),
            PEER: peer_side("MLKR", X, y, random_state=0),
        }

        def objective(L, X=X, y=y):
            return loss_and_gradient(L, X, y)[0] / len(X)

        part = learned(options, "MLKR", case, sides, objective, score, X)
        rows, targets = rows + part[0], targets + part[1]
    return rows, targets


def page(options):
    """Run metric-learn's examples; its names must all be in a table."""
    progress("page: metric-learn's examples")
    start = time.perf_counter()
    n_blocks, errors = run_page("metric_learn.md", PEER, METRIC_LEARN)
    seconds = time.perf_counter() - start
    for line, error in errors.items():
        progress(f"metric_learn.md, line {line}: {error}")
    missing = names_without_mention("metric_learn.md", "metric_learn", METRIC_LEARN)
    row = {"method": "page", "case": f"{n_blocks} examples", "side": PEER, "seconds": seconds}
    return [row], [
        Target.at_most("page: examples of metric-learn that fail", 0, len(errors)),
        Target.at_most("page: names of metric-learn that are missing", 0, len(missing)),
    ]


def run(options):
    rows, targets = [], []
    for part in options.extra["parts"].split(","):
        if part not in PARTS:
            raise SystemExit(f"--parts: {part!r} is none of {', '.join(PARTS)}")
        more_rows, more_targets = globals()[part](options)
        rows += more_rows
        targets += more_targets
    return Report(
        name="metric-learn",
        title="LMNN, MLKR, RCA and LFDA beside metric-learn",
        columns=[
            Column("method", "method"),
            Column("case", "case"),
            Column("side", "side"),
            Column("seconds", "seconds", ".4f", plot=True),
            Column("ratio", "x ours on its problem", ".1f"),
            Column("objective", "objective", ".4f"),
            Column("score", "score on new rows", ".3f"),
            Column("difference", "difference", ".1e"),
        ],
        rows=rows,
        targets=targets,
        notes=[
            "LFDA is compared with metric-learn after its local scales are mended: it takes the "
            "distances of one row for those of all. It adds the scatter inside of classes where "
            "the paper subtracts it, so its eigenvalues are larger by 2; weighted matrices are "
            "compared after this is undone.",
            "The score of LMNN is the accuracy of 1 and 5 neighbours, that of MLKR the R2 of 10. "
            "The objective of LMNN has the targets under Euclidean distance, that of MLKR is the "
            "mean squared error of leave-one-out predictions. Our defaults have other problems: "
            "LMNN finds targets again and holds out rows, MLKR starts from a kernel of the best "
            "width. Seconds of LMNN and MLKR are processor time.",
        ],
    )
