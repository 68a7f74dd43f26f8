"""Local metrics on synthetic classes: gain of m metrics over one, and seconds against features.

Figures 4.2 and 4.4 of the thesis. Classes lie around 10, 50 and 100 centres, each with narrow
directions of its own. A query is a row that was held out, and what it should find are the other
held-out rows of its class: query by example.
"""

import numpy as np

from benchmarks.harness import PALETTE, Column, Report, Target, compare, measure, progress
from skdml import LocalGMMLRanker
from skdml.datasets import make_local_clusters
from skdml.metrics import average_precision_by_query

REPEATS = 3
CENTERS = (10, 50, 100)
METRICS = (1, 2, 5, 10, 20, 50, 100)
DIMENSIONS = (10, 30, 100, 300, 1000)
N_FEATURES = 10
PER_CENTER = 60  # half of them for training
PER_QUERY = 50  # candidates, of which so many are relevant:
N_SAME = 10
N_QUERIES = 20  # of each centre
N_TESTED = 200
N_SEEDS = 3
FIXED = 10  # metrics and centres of figure 4.4
EPOCHS = 10  # always all of them: as many as early stopping waits
PLAIN, KNOWN = "Euclidean", "class known"


def make_model(n_metrics, seed=0):
    return LocalGMMLRanker(
        n_metrics=n_metrics,
        normalize=None,
        linear=False,
        learn_anchors=False,
        max_epochs=EPOCHS,
        random_state=seed,
    )


def training_lists(X, y, n_queries, rng):
    """Return documents, relevance and queries: lists of candidates for rows at random.

    The rows are drawn evenly from the classes. A list has rows of the class, which are relevant,
    and rows of other classes.
    """
    order = rng.permutation(len(X))
    # Turn by turn through the classes: first rows of all classes, then second rows, ...
    place = np.empty(len(X), dtype=int)
    for label in np.unique(y):
        rows = order[y[order] == label]
        place[rows] = np.arange(len(rows))
    queries = order[np.argsort(place[order], kind="stable")][:n_queries]
    lists = []
    for query in queries:
        same = np.flatnonzero(y == y[query])
        same = same[same != query]
        same = rng.permutation(same)[:N_SAME]
        other = rng.permutation(np.flatnonzero(y != y[query]))[: PER_QUERY - len(same)]
        lists.append(np.concatenate([same, other]))
    rows = np.concatenate(lists)
    qid = np.repeat(np.arange(len(queries)), [len(one) for one in lists])
    return X[rows], (y[rows] == y[queries][qid]).astype(int), qid


def search_by_example(score, X, y, queries):
    """Return MAP of `score(rows, query, its class)`, where a query does not find itself."""
    values = []
    for query in queries:
        others = np.arange(len(X)) != query
        scores = score(X[others], X[[query]], y[query])
        values.append(average_precision_by_query(y[others] == y[query], scores)[1][0])
    return float(np.mean(values))


def minus_distance(X, query, label):
    return -np.sum((X - query) ** 2, axis=1)


def known_classes(X, y):
    """Return a score by the covariance of the query's class: what local metrics aim at."""
    covariances = [np.cov(X[y == label].T) for label in np.unique(y)]
    inverses = np.linalg.inv(covariances)

    def score(X, query, label):
        return -np.sum((X - query) @ inverses[label] * (X - query), axis=1)

    return score


def run_draw(n_centers, numbers, n_queries, seed):
    """Return (MAP, seconds of a fit) by method, for one draw of the data."""
    rng = np.random.RandomState(seed)
    X, y = make_local_clusters(
        n_centers * PER_CENTER, N_FEATURES, n_centers, shuffle=False, random_state=seed
    )
    half = len(X) // 2  # the centres take turns: both halves have as many rows of each
    documents = training_lists(X[:half], y[:half], n_centers * n_queries, rng)
    X_test, y_test = X[half:], y[half:]
    tested = rng.permutation(len(X_test))[:N_TESTED]
    references = {PLAIN: minus_distance, KNOWN: known_classes(X[:half], y[:half])}
    found = {
        name: (search_by_example(score, X_test, y_test, tested), np.nan)
        for name, score in references.items()
    }
    for n_metrics in numbers:
        fit = measure(make_model(n_metrics, seed).fit, *documents, repeats=1, warmup=0)

        def score(X, query, label, model=fit.value):
            return model.predict(X, query=query)

        value = search_by_example(score, X_test, y_test, tested)
        progress(f"{n_centers} centres, draw {seed}: m = {n_metrics}, MAP {value:.4f}")
        found[n_metrics] = value, fit.seconds
    return found


def run_centers(n_centers, numbers, n_queries, n_seeds):
    """Return rows with MAP for each number of metrics and for the references."""
    draws = [run_draw(n_centers, numbers, n_queries, seed) for seed in range(n_seeds)]
    one = np.array([draw[1][0] for draw in draws])
    rows = []
    for method in draws[0]:
        values, seconds = np.array([draw[method] for draw in draws]).T
        gains = values - one
        rows.append(
            {
                "figure": "4.2",
                "centers": n_centers,
                "features": N_FEATURES,
                "method": method if isinstance(method, str) else f"m = {method}",
                "metrics": None if isinstance(method, str) else method,
                "map": float(values.mean()),
                "gain": float(gains.mean()),
                "spread": float(gains.std()),
                "relative": 100 * float(gains.mean() / one.mean()),
                "seconds": float(np.median(seconds)),
            }
        )
    return rows


def run_dimensions(dimensions, n_queries, repeats):
    """Return rows with the seconds of a fit for each number of features."""

    def side(n_features):
        X, y = make_local_clusters(FIXED * PER_CENTER, n_features, FIXED, random_state=0)
        documents = training_lists(X, y, FIXED * n_queries, np.random.RandomState(0))
        return lambda: make_model(FIXED).fit(*documents)

    names = {n_features: f"{n_features} features" for n_features in dimensions}
    sides = {name: side(n_features) for n_features, name in names.items()}
    timings = compare(sides, repeats=repeats, warmup={names[dimensions[0]]: 1})
    return [
        {
            "figure": "4.4",
            "centers": FIXED,
            "features": n_features,
            "method": f"m = {FIXED}",
            "metrics": FIXED,
            "seconds": timings[name].seconds,
        }
        for n_features, name in names.items()
    ]


def make_targets(rows):
    """Return a target for each number of centres: a metric for each is better than one for all."""
    return [
        Target.at_least(
            f"{row['centers']} centres: MAP of m = {row['metrics']} less that of m = 1",
            0.0,
            row["gain"],
        )
        for row in rows
        if row["figure"] == "4.2" and row["metrics"] == row["centers"]
    ]


def plot(report, figure):
    """Draw the gain over one metric against m, and the seconds of a fit against d."""
    figure.set_size_inches(11, 4.5)
    left, right = figure.subplots(1, 2)
    learned = [row for row in report.rows if row["figure"] == "4.2" and row["metrics"]]
    centers = sorted({row["centers"] for row in learned})
    for colour, marker, number in zip(PALETTE, "os^", centers, strict=False):
        shown = [row for row in learned if row["centers"] == number]
        left.errorbar(
            [row["metrics"] for row in shown],
            [100 * row["gain"] for row in shown],
            [100 * row["spread"] for row in shown],
            color=colour,
            marker=marker,
            capsize=3,
            label=f"{number} centres, {shown[0]['map']:.3f}",
        )
    left.axhline(0, color="black", linewidth=0.8)
    left.set_xscale("log")
    numbers = sorted({row["metrics"] for row in learned})
    left.set_xticks(numbers, map(str, numbers), minor=False)
    left.set_xticks([], minor=True)
    left.set_xlabel("number of local metrics m")
    left.set_ylabel("points of MAP over one metric")
    left.legend(title="and MAP of one metric", frameon=False)
    timed = [row for row in report.rows if row["figure"] == "4.4"]
    features, seconds = ([row[key] for row in timed] for key in ("features", "seconds"))
    right.loglog(features, seconds, color=PALETTE[0], marker="o")
    right.set_xticks(features, map(str, features), minor=False)
    right.set_xticks([], minor=True)
    right.set_xlabel("number of features d")
    right.set_ylabel(f"seconds of a fit, m = {FIXED}")
    right.grid(color="0.9")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)


def run(options):
    numbers, n_seeds = options.pick(METRICS, (1, 2, 10)), options.pick(N_SEEDS, 1)
    n_queries = options.pick(N_QUERIES, 5)
    rows = []
    for n_centers in options.pick(CENTERS, CENTERS[:1]):
        rows += run_centers(n_centers, numbers, n_queries, n_seeds)
    timed = run_dimensions(options.pick(DIMENSIONS, DIMENSIONS[:2]), n_queries, options.repeats)
    seconds, features = (np.log([row[key] for row in timed]) for key in ("seconds", "features"))
    slope = float((seconds[-1] - seconds[-2]) / (features[-1] - features[-2]))
    return Report(
        name="ranking-synthetic",
        title="query by example with m local metrics, and seconds of a fit against features",
        columns=[
            Column("figure", "figure"),
            Column("centers", "centres"),
            Column("features", "features"),
            Column("method", "method"),
            Column("map", "MAP", ".4f"),
            Column("gain", "over m = 1", "+.4f"),
            Column("spread", "±", ".4f"),
            Column("relative", "%", "+.1f"),
            Column("seconds", "fit s", ".2f"),
        ],
        rows=[*rows, *timed],
        targets=make_targets(rows),
        parameters={
            "rows of a centre": PER_CENTER,
            "queries of a centre": n_queries,
            "candidates": PER_QUERY,
            "relevant": N_SAME,
            "tested": N_TESTED,
            "draws": n_seeds,
            "epochs": EPOCHS,
            "slope": slope,
        },
        notes=[
            f"Figure 4.2: {PER_CENTER} rows around each centre, half of them held out. Training "
            f"queries: {n_queries} of each centre, with {PER_QUERY} candidates, {N_SAME} of them "
            f"of its class; tested with {N_TESTED} queries on all rows held out. Means over "
            f"{n_seeds} draws of the data; ± is the standard deviation of the gain. Anchors are "
            "rows of the data (learn_anchors=False), features are taken as they are.",
            f"*{KNOWN}* is no competitor: the distance by the covariance of the query's class, "
            "which tells it that class.",
            f"Figure 4.4: {FIXED * n_queries} queries, {EPOCHS} epochs, one thread. Between the "
            f"last two points, the seconds grow with the power {slope:.1f} of the features.",
        ],
        plot=plot,
    )
