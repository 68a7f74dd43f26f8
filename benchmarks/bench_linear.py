"""Accuracy and fit time of linear metrics with their defaults, against NCA, LMNN and classifiers.

Nearest neighbours (k = 1 and 5) in five folds of real tables, gene-expression sets and deep
features; no parameter is searched. Logistic regression and a random forest stand beside them. A
fit that meets the time cap is a miss. Results are kept as they come: a run that was interrupted
goes on where it stopped (`--fresh` starts anew), and `--methods` runs some methods only.
"""

import json
import warnings

import numpy as np
from scipy.stats import rankdata
from sklearn.model_selection import StratifiedKFold

from benchmarks.cache import Cache
from benchmarks.data import load_cub_features, load_microarray, load_uci
from benchmarks.harness import (
    METRIC_LEARN,
    ChildError,
    Column,
    Report,
    Target,
    peak_memory,
    progress,
)
from benchmarks.linear_methods import (
    FORMER,
    METHODS,
    NEIGHBOURS,
    OURS,
    PEER,
    PLAIN,
    VERSION,
    fit_and_score,
)
from benchmarks.linear_plots import plot

REPEATS = 1
SCRIPT = "../linear_methods.py"  # seen from the peers' folder
UCI = (
    *("balance", "ionosphere", "letter", "optdigits", "penbased"),
    *("satimage", "segment", "sonar", "vehicle", "vowel"),
)
MICROARRAY = (
    *("alon", "chowdary", "golub", "gordon", "khan"),
    *("nakayama", "singh", "su", "subramanian"),
)
CUB = "cub_features"
GROUPS = {"tables": UCI, "gene-expression sets": MICROARRAY, "deep features": (CUB,)}
SETS = tuple(name for names in GROUPS.values() for name in names)
QUICK_SETS = ("balance", "sonar", "alon")
MOST_FEATURES = 1024
MANY_ROWS = 1000
TOLERATED = 0.005


def add_arguments(parser):
    parser.add_argument("--sets", default=",".join(SETS), help="comma separated")
    parser.add_argument("--rows", type=int, default=5000, help="most rows of a set")
    parser.add_argument("--cap", type=float, default=600, help="seconds of a method on one fold")
    parser.add_argument(
        "--methods", help="comma separated; those of the others are taken from earlier runs"
    )
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")


def load(name, most_rows):
    """Return rows and classes of a set, at most so many rows at random."""
    if name == CUB:
        parts = [load_cub_features(subset) for subset in ("train", "test")]
        X, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    else:
        X, y = (load_uci if name in UCI else load_microarray)(name)
    if name == "vowel":
        X = X[:, 3:]  # the first three tell who spoke
    chosen = np.random.RandomState(0).permutation(len(X))[:most_rows]
    return X[chosen].astype(float), np.unique(y[chosen], return_inverse=True)[1]


def cache_key(name, number, rows, method):
    """Return the key of a result: all that it depends on, and the version of our own methods."""
    known = METHODS[method]
    return json.dumps([name, number, rows, method, known.parameters, known.version])


def find(cache, key, cap):
    """Return the result that a run with this time cap would have, None if unknown."""
    entry = cache.find(key)
    if entry is None or ("miss" in entry and entry["cap"] < cap):
        return None
    late = entry.get("seconds", np.inf) > cap
    return {"miss": f"time cap of {cap:g} s"} if late else entry


def run_fold(method, inputs, cap):
    """Return accuracy and seconds of a method on a fold, or its miss; in a process of its own."""
    inputs = {"method": method, **inputs}
    if method == PEER:
        result = METRIC_LEARN.call(SCRIPT, fit_and_score.__name__, inputs, timeout=cap)
    else:
        result = peak_memory(fit_and_score, inputs, timeout=cap)
    return {"cap": cap, "miss": f"time cap of {cap:g} s"} if result.missed else result.outputs


def excluded(name, n_features, method, quick):
    """Say why a method has no result on a set, None if it can have one."""
    if METHODS[method].is_dense and n_features > MOST_FEATURES:
        return f"more than {MOST_FEATURES:,} features"
    if method in FORMER.values() and name not in MICROARRAY:
        return "only measured on gene-expression sets"
    if method == PEER and quick and not (METRIC_LEARN.folder / "complete").exists():
        return "its environment is not made in a quick run"
    return None


def run_set(name, options, cache, methods, chosen):
    """Return what each method has on each fold of a set: a list of results, or a miss in words.

    Only methods that are `chosen` are run; the others have what the cache has.
    """
    n_folds, cap = options.pick(5, 1), options.extra["cap"]
    rows = options.pick(options.extra["rows"], 100)
    X, y = load(name, rows)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The least populated class")
        folds = list(StratifiedKFold(5, shuffle=True, random_state=0).split(X, y))[:n_folds]
    found = {}
    for method in methods:
        reason = excluded(name, X.shape[1], method, options.quick)
        found[method] = reason or []
        for number, (train, test) in enumerate([] if reason else folds):
            key = cache_key(name, number, rows, method)
            result = find(cache, key, cap)
            if result is None and method not in chosen:
                found[method] = "not run"
                break
            if result is None:
                progress(f"{name}: {method}, fold {number + 1} of {n_folds}")
                inputs = {"X": X[train], "y": y[train], "X_test": X[test], "y_test": y[test]}
                try:
                    result = run_fold(method, inputs, cap)
                except ChildError as error:  # not kept: it may be gone in the next run
                    found[method] = f"failed: {str(error).splitlines()[-1]}"
                    progress(f"{name}: {method} {found[method]}")
                    break
                cache.add(key, result)
            if "miss" in result:
                found[method] = result["miss"]
                break
            found[method].append(result)
    return X.shape, found


def accuracy(results, k):
    """Return the mean accuracy over the folds, None for a miss."""
    if isinstance(results, str):
        return None
    return float(np.mean([result["accuracy"][str(k)] for result in results]))


def fit_seconds(results):
    """Return the median over the folds, None for a miss."""
    if isinstance(results, str):
        return None
    return float(np.median([result["seconds"] for result in results]))


def fold_gains(found, names, method, other):
    """Return the accuracy of a method less that of another, shape (folds, k), by set with both."""

    def table(results):
        return np.array([[one["accuracy"][str(k)] for k in NEIGHBOURS] for one in results])

    pairs = {name: (found[name][method], found[name][other]) for name in names if name in found}
    return {
        name: table(first) - table(second)
        for name, (first, second) in pairs.items()
        if not isinstance(first, str) and not isinstance(second, str)
    }


def mean_gain(gains):
    """Return the mean over sets, folds and k, None if there is no set."""
    return float(np.mean([gain.mean() for gain in gains.values()])) if gains else None


def below_plain(gains):
    """Say where the mean of the folds is below Euclidean by more than what is tolerated."""
    return [
        f"{name} (k = {k}, {mean:+.3f})"
        for name, gain in gains.items()
        for k, mean in zip(NEIGHBOURS, gain.mean(axis=0), strict=True)
        if mean < -TOLERATED - 1e-9  # exactly as much is not more
    ]


def time_ratios(found, shapes, method):
    """Return the seconds of a fit over those of NCA, for tables of many rows."""
    tables = [name for name in UCI if name in found and shapes[name][0] >= MANY_ROWS]
    times = {name: [fit_seconds(found[name][one]) for one in (method, "NCA")] for name in tables}
    return {name: ours / peer for name, (ours, peer) in times.items() if ours and peer}


def table_targets(found, shapes, method):
    """Return the targets of one of our methods on the tables of this run."""
    over = {other: fold_gains(found, UCI, method, other) for other in (PLAIN, "NCA", PEER)}
    ratios = time_ratios(found, shapes, method)
    gain = mean_gain(over[PEER])
    return [
        Target.at_least(
            f"{method}'s mean accuracy less NCA's, {len(over['NCA'])} tables, k = 1 and 5:",
            0.01,
            mean_gain(over["NCA"]),
        ),
        Target(
            f"{method}'s mean accuracy less {PEER}'s, {len(over[PEER])} tables, k = 1 and 5: above",
            0.0,
            gain,
            gain is not None and gain > 0,
        ),
        Target.at_most(
            f"pairs of {len(over[PLAIN])} tables and two k where {method} is below {PLAIN} by more "
            f"than {TOLERATED}:",
            0,
            len(below_plain(over[PLAIN])) if over[PLAIN] else None,
        ),
        Target.at_most(
            f"{method}'s seconds of a fit over NCA's, largest of {len(ratios)} tables of "
            f"{MANY_ROWS:,} rows and more:",
            1.0,
            max(ratios.values(), default=None),
        ),
    ]


def find_targets(found, shapes):
    """Return the targets, on the sets of this run."""
    known = {method for results in found.values() for method in results}
    targets = [
        target
        for method in OURS
        if method in known
        for target in table_targets(found, shapes, method)
    ]
    for method, former in FORMER.items():
        gains = fold_gains(found, MICROARRAY, method, former)
        by_fold = np.concatenate([gain.mean(axis=1) for gain in gains.values()] or [[]])
        noise = by_fold.std(ddof=1) / np.sqrt(len(by_fold)) if len(by_fold) > 1 else 0.0
        targets.append(
            Target.at_least(
                f"{method}'s mean accuracy less that with the former random pairs, {len(gains)} "
                "gene-expression sets, k = 1 and 5 (allowed: one standard error over folds):",
                -float(noise),
                mean_gain(gains),
            )
        )
    return targets


def standing(found, shapes, method):
    """Say how one of our methods does on the tables; the sentence may be empty."""
    known = {other for results in found.values() for other in results}
    others = [other for other in (PLAIN, "NCA", PEER, "LMNN") if other in known - {method}]
    over = {other: fold_gains(found, UCI, method, other) for other in others}
    if not over.get(PLAIN):
        return ""
    means = [f"{mean_gain(gains):+.3f} to {other}" for other, gains in over.items() if gains]
    worse = ", ".join(below_plain(over[PLAIN])) or "none"
    times = [f"{name} {one:.2f}" for name, one in time_ratios(found, shapes, method).items()]
    text = (
        f"{method}, mean accuracy over k = 1 and 5 on the tables: {', '.join(means)}. Below "
        f"{PLAIN} by more than {TOLERATED} on {worse}."
    )
    return f"{text} Seconds of a fit over NCA's: {', '.join(times)}." if times else text


def miss_notes(found, methods):
    """Say for each method which sets it missed, and why."""
    notes = []
    for method in methods:
        reasons = {}
        for name, results in found.items():
            if isinstance(results[method], str) and not results[method].startswith("only"):
                reasons.setdefault(results[method], []).append(name)
        if reasons:
            parts = [f"{', '.join(names)} ({reason})" for reason, names in reasons.items()]
            notes.append(f"{method} has no result on {'; '.join(parts)}.")
    return notes


def group_rows(group, found, shapes, methods, k):
    """Return the rows of a group of sets for one k: the sets, means and mean ranks."""
    names = [name for name in GROUPS[group] if name in found]
    rows = [
        {
            "set": name,
            "shape": " x ".join(map(str, shapes[name])),
            "k": k,
            "kind": "set",
            **{method: accuracy(found[name][method], k) for method in methods},
        }
        for name in names
    ]
    if len(rows) < 2:
        return rows
    table = np.array([[row[method] for method in methods] for row in rows], dtype=float)
    measured = ~np.isnan(table).all(axis=0)
    complete = ~np.isnan(table[:, measured]).any(axis=1)
    parts = [(f"mean of {len(rows)} {group}", table)]
    if not complete.all():
        parts.append((f"mean of the {complete.sum()} {group} without a miss", table[complete]))
    for text, part in parts:
        means = part.mean(axis=0) if len(part) else np.full(len(methods), np.nan)
        rows.append({"set": text, "k": k, "kind": "mean", **dict(zip(methods, means, strict=True))})
    ranks = np.full(len(methods), np.nan)
    ranks[measured] = rankdata(-np.nan_to_num(table[:, measured], nan=-1.0), axis=1).mean(axis=0)
    rank = {"set": f"mean rank in {len(names)} {group}", "k": k, "kind": "rank"}
    return [*rows, {**rank, **dict(zip(methods, ranks, strict=True))}]


def seconds_rows(found, shapes, methods):
    """Return the seconds of a fit: of each table of many rows, and the median of all sets."""
    rows = [
        {
            "set": f"{name}, seconds of a fit",
            "shape": " x ".join(map(str, shapes[name])),
            "kind": "seconds",
            **{method: fit_seconds(found[name][method]) for method in methods},
        }
        for name in found
        if shapes[name][0] >= MANY_ROWS
    ]
    median = {"set": "median seconds of a fit", "kind": "seconds"}
    for method in methods:
        times = [fit_seconds(results[method]) for results in found.values()]
        times = [seconds for seconds in times if seconds is not None]
        median[method] = float(np.median(times)) if times else None
    return [*rows, median]


def chosen_among(text, known, option):
    """Return the names of a comma separated list; an unknown one ends the run."""
    names = text.split(",")
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise SystemExit(f"--{option}: {', '.join(unknown)} not among {', '.join(known)}")
    return [name for name in known if name in names]


def run(options):
    extra = options.extra
    # That of metric-learn is in another environment.
    methods = [name for name in METHODS if name == PEER or METHODS[name].find() is not None]
    chosen = methods
    if extra["methods"] is not None:
        known = [name for name in methods if name not in FORMER.values()]
        chosen = chosen_among(extra["methods"], known, "methods")
        chosen += [FORMER[name] for name in chosen if name in FORMER]
    names = options.pick(chosen_among(extra["sets"], SETS, "sets"), list(QUICK_SETS))
    cache = Cache(None if options.quick else "linear", extra["fresh"])
    found, shapes = {}, {}
    for name in names:
        shapes[name], found[name] = run_set(name, options, cache, methods, chosen)

    rows = [
        row
        for group in GROUPS
        for k in reversed(NEIGHBOURS)
        for row in group_rows(group, found, shapes, methods, k)
    ]
    notes = [standing(found, shapes, name) for name in methods if METHODS[name].is_ours]
    return Report(
        name="linear",
        title="accuracy of nearest neighbours with linear metrics at their defaults",
        columns=[
            Column("set", "set"),
            Column("shape", "rows x features"),
            Column("k", "k"),
            *[Column(method, method, ".3f") for method in methods],
        ],
        rows=[*rows, *seconds_rows(found, shapes, methods)],
        targets=find_targets(found, shapes),
        parameters={
            "sets": names,
            "rows": extra["rows"],
            "cap": extra["cap"],
            "methods": {method: METHODS[method].parameters for method in methods},
            "version": VERSION,
            "folds": found,
        },
        notes=[
            *filter(None, notes),
            *miss_notes(found, methods),
            "– is a miss, and ranks last. Features are scaled on the training rows of five folds; "
            "every method has its defaults (NCA max_iter=50, logistic regression max_iter=1000). "
            "Logistic regression and the random forest have one accuracy, shown in the rows of "
            "both k. Random pairs are the defaults of the first version: GMML with "
            "geodesic=0.5, DITML with gamma=1. Seconds are processor time of the fit alone, "
            "with one thread. From the vowel set the three columns that tell the speaker are left "
            "out.",
        ],
        plot=plot,
    )
