"""Queries unlike the database: two maps against one map, NCA and plain nearest neighbours.

Clean digits are the database; queries are other digits, photographed badly. Every method that
learns gets the same database and the same bad training queries. Then plain tables, where queries
and database are alike, and the time and memory of a fit on the 20,000 rows of letter.

White noise is there as a control. A query is then a clean digit in the middle of a round cloud, so
the Euclidean distance says all there is to know, and no map can do better than plain neighbours.

The digits are those of the training part of optdigits. The defaults of the estimator were chosen
on scikit-learn's digits, which are the other part.
"""

import json
import textwrap
import warnings

import numpy as np
from scipy import ndimage
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.cache import Cache
from benchmarks.data import load_uci
from benchmarks.harness import (
    PALETTE,
    Column,
    Report,
    Target,
    limited_threads,
    peak_memory,
    progress,
)
from skdml import AsymmetricMetricClassifier
from skdml.metrics import recall_at_k

REPEATS = 1
N_NEIGHBORS, N_COMPONENTS, SIDE = 5, 32, 8
N_OPTDIGITS = 3823  # the rest are scikit-learn's digits
TABLES = (
    *("balance", "ionosphere", "segment", "sonar", "vehicle", "vowel", "satimage", "penbased"),
    "letter",
)
PLAIN, NCA, ONE, TWO, NETS = "plain kNN", "NCA", "symmetric", "asymmetric", "two networks"
AMONG = "kNN among queries"
LEARNED = (NCA, ONE, TWO, NETS)
LEAD, LOSS = 0.02, -0.01


def add_arguments(parser):
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")


# Queries that were photographed badly: functions that change clean digits


def white_noise(rng):
    return lambda X: X + 0.5 * rng.standard_normal(X.shape)


def uneven_noise(rng):
    deviation = rng.exponential(0.4, SIDE**2)
    return lambda X: X + deviation * rng.standard_normal(X.shape)


def dim_and_noisy(rng):
    exposure, noise = rng.uniform(0.1, 0.6, SIDE**2), uneven_noise(rng)
    return lambda X: noise(exposure * X)


def truncated(rng):
    return lambda X: np.where(np.arange(SIDE**2) < SIDE**2 // 2, X, 0)


def scrambled(rng):
    kept, order = rng.permutation(SIDE**2) < SIDE**2 // 2, rng.permutation(SIDE**2)
    return lambda X: np.where(kept, X, 0)[:, order] + 0.2 * rng.standard_normal(X.shape)


def rotated_and_blurred(rng):
    def change(X):
        images = np.rot90(X.reshape(-1, SIDE, SIDE), axes=(1, 2))
        blurred = ndimage.gaussian_filter(images, (0, 0.7, 0.7)).reshape(X.shape)
        return blurred + 0.1 * rng.standard_normal(X.shape)

    return change


TASKS = {
    "white noise": white_noise,
    "uneven noise": uneven_noise,
    "dim and noisy": dim_and_noisy,
    "lower half missing": truncated,
    "half missing, scrambled": scrambled,
    "rotated and blurred": rotated_and_blurred,
}


def split_digits(change, seed, n_train):
    """Return the database, the training queries and the test queries, each with its classes."""
    X, y = load_uci("optdigits")
    X, y = X[:N_OPTDIGITS] / 16, y[:N_OPTDIGITS]
    rng = np.random.default_rng(seed)
    stored, shown, asked = np.split(rng.permutation(len(X)), [n_train, 2 * n_train])
    change = change(rng)
    return (X[stored], y[stored]), (change(X[shown]), y[shown]), (change(X[asked]), y[asked])


def make_networks(n_features, seed):
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return [
            torch.nn.Sequential(
                torch.nn.Linear(n_features, 128),
                torch.nn.ReLU(),
                torch.nn.Linear(128, N_COMPONENTS),
            )
            for _ in range(2)
        ]


def embed(side, database, queries, test, seed):
    """Return the database rows and the test queries as a method sees them."""
    (X, y), (X_query, y_query) = database, queries
    if side in (PLAIN, AMONG):
        return X, test
    if side == NCA:
        model = NeighborhoodComponentsAnalysis(N_COMPONENTS, max_iter=50, random_state=seed)
        model.fit(np.vstack([X, X_query]), np.append(y, y_query))
        return model.transform(X), model.transform(test)
    params = {"n_components": N_COMPONENTS, "symmetric": side == ONE}
    if side == NETS:
        networks = make_networks(X.shape[1], seed)
        params = dict(zip(("query_module", "database_module"), networks, strict=True))
    model = AsymmetricMetricClassifier(N_NEIGHBORS, random_state=seed, **params)
    model.fit(X, y, X_query=X_query, y_query=y_query)
    return model.transform_database(X), model.transform(test)


def score_task(name, side, seed, options):
    """Return the accuracy and recall@1 of one method on queries of one kind."""
    database, queries, (test, y_test) = split_digits(TASKS[name], seed, options.pick(600, 200))
    if side == AMONG:
        database = queries
    Z, Z_test = embed(side, database, queries, test, seed)
    knn = KNeighborsClassifier(N_NEIGHBORS).fit(Z, database[1])
    recall = recall_at_k(Z_test, y_test, gallery=Z, gallery_labels=database[1])
    return {"accuracy": knn.score(Z_test, y_test), "recall@1": float(recall)}


def score_table(name, side, fold, options):
    """Return the accuracy of one method on a fold of a table."""
    X, y = load_uci(name)
    if name == "vowel":
        X = X[:, 3:]  # the first three tell who spoke
    chosen = np.random.RandomState(0).permutation(len(X))[: options.pick(1000, 200)]
    X, y = X[chosen].astype(float), y[chosen]
    train, test = list(StratifiedKFold(5, shuffle=True, random_state=0).split(X, y))[fold]
    scaler = StandardScaler().fit(X[train])
    X_train, X_test = scaler.transform(X[train]), scaler.transform(X[test])
    if side in (PLAIN, NCA):
        model = KNeighborsClassifier(N_NEIGHBORS)
        if side == NCA:
            nca = NeighborhoodComponentsAnalysis(max_iter=50, random_state=fold)
            model = make_pipeline(nca, model)
    else:
        model = AsymmetricMetricClassifier(N_NEIGHBORS, symmetric=side == ONE, random_state=fold)
    return {"accuracy": model.fit(X_train, y[train]).score(X_test, y[test])}


def run_cells(score, name, sides, options, cache):
    """Return the results of the methods on one task or table, a list over the seeds each."""
    results = {side: [] for side in sides}
    for seed in range(options.pick(5, 1)):
        for side in sides:
            key = json.dumps([name, side, seed])
            result = cache.find(key)
            if result is None:
                progress(f"{name}: {side}, seed {seed}")
                result = score(name, side, seed, options)
                cache.add(key, result)
            results[side].append(result)
    return results


def make_row(kind, name, measure, results):
    """Return the means and deviations of a measure over the seeds."""
    values = {side: [one[measure] for one in found] for side, found in results.items()}
    return {
        "data": name,
        "measure": measure,
        "kind": kind,
        **{side: float(np.mean(each)) for side, each in values.items()},
        **{f"{side} std": float(np.std(each)) for side, each in values.items()},
    }


def fit_letter(X, y):
    model = AsymmetricMetricClassifier(random_state=0).fit(X, y)
    return {"objective": model.history_["objective"][-1], "n_iter": model.n_iter_}


def run_letter(options):
    """Return the seconds and the growth of memory of a fit on all of letter."""
    X, y = load_uci("letter")
    X, y = StandardScaler().fit_transform(X), np.unique(y, return_inverse=True)[1]
    rows = slice(options.pick(len(X), 1000))
    progress(f"letter: {len(X[rows])} rows")
    return len(X[rows]), peak_memory(fit_letter, {"X": X[rows], "y": y[rows]}, timeout=1200)


def plot(report, figure):
    """Draw the accuracy on each kind of queries, and on plain tables the lead over NCA."""
    tasks = [row for row in report.rows if row["kind"] == "task" and row["measure"] == "accuracy"]
    tables = [row for row in report.rows if row["kind"] == "table"]
    figure.set_size_inches(12, 5)
    left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
    sides = (PLAIN, *LEARNED)
    width = 0.8 / len(sides)
    for number, side in enumerate(sides):
        places = np.arange(len(tasks)) + width * (number - (len(sides) - 1) / 2)
        heights = [row[side] for row in tasks]
        errors = [row[f"{side} std"] for row in tasks]
        left.bar(places, heights, width, yerr=errors, label=side, color=PALETTE[number])
    names = [textwrap.fill(row["data"], 12) for row in tasks]
    left.set_xticks(range(len(tasks)), names, fontsize="small")
    left.set(ylabel=f"{N_NEIGHBORS}-NN accuracy of queries", ylim=(0, 1))
    for number, side in ((2, ONE), (3, TWO)):
        leads = [100 * (row[side] - row[NCA]) for row in tables]
        places = np.arange(len(tables)) + 0.35 * (number - 2.5)
        right.barh(places, leads, 0.35, color=PALETTE[number])
    right.axvline(-1, color="black", linestyle="--", linewidth=1)
    right.axvline(0, color="black", linewidth=1)
    right.set_yticks(range(len(tables)), [row["data"] for row in tables])
    right.invert_yaxis()
    right.set_xlabel("points of accuracy over NCA's on plain tables (target: -1)")
    figure.legend(*left.get_legend_handles_labels(), ncols=5, loc="outside lower center")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)


def make_targets(rows, n_rows, letter):
    targets = []
    for row in rows:
        if row["kind"] == "task" and row["measure"] == "accuracy":
            lead = row[TWO] - max(row[PLAIN], row[NCA], row[ONE])
            name = f"{row['data']}: accuracy over the best of the others"
            targets.append(Target.at_least(name, LEAD, lead))
    tables = [row for row in rows if row["kind"] == "table"]
    lead = float(np.mean([row[TWO] - row[NCA] for row in tables]))
    worst = float(min(row[TWO] - row[NCA] for row in tables))
    return [
        *targets,
        Target.at_least(f"mean accuracy less NCA's, {len(tables)} tables:", LOSS, lead),
        Target.at_least("accuracy less NCA's, worst table:", LOSS, worst),
        Target.at_most(f"fit of {n_rows:,} rows of letter", 120.0, letter.seconds, unit="s"),
    ]


def run(options):
    rows = []
    cache = Cache(None if options.quick else "asymmetric", options.extra["fresh"])
    with limited_threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # NCA's, at its last iteration
        for name in TASKS:
            results = run_cells(score_task, name, (PLAIN, AMONG, *LEARNED), options, cache)
            rows += [make_row("task", name, each, results) for each in ("accuracy", "recall@1")]
        for name in options.pick(TABLES, TABLES[:1]):
            results = run_cells(score_table, name, (PLAIN, NCA, ONE, TWO), options, cache)
            rows.append(make_row("table", name, "accuracy", results))
    n_rows, letter = run_letter(options)
    shown = (PLAIN, AMONG, *LEARNED)
    return Report(
        name="asymmetric",
        title=f"{N_NEIGHBORS}-NN of bad queries in a clean database, and on plain tables",
        columns=[
            Column("data", "data"),
            Column("measure", "measure"),
            *[Column(side, side, ".3f") for side in shown],
        ],
        rows=rows,
        targets=make_targets(rows, n_rows, letter),
        parameters={"letter_growth_mb": letter.growth_mb, "letter_rows": n_rows},
        notes=[
            f"Digits: means of {options.pick(5, 1)} splits into {options.pick(600, 200)} database "
            "rows, as many training queries, and test queries; the database is clean, the queries "
            f"are not. NCA learns from the database and the training queries together. {AMONG} has "
            "the training queries for its database.",
            f"Tables: five folds of at most {options.pick(1000, 200)} rows, scaled. NCA with "
            "max_iter=50; the estimator with its defaults.",
            f"Letter: one process, one thread, memory grew by {letter.growth_mb:.0f} MB over its "
            "inputs.",
        ],
        plot=plot,
    )
