"""kNN accuracy of linear metrics: DITML and GMML against Euclidean, NCA, ITML, LMNN and SCML.

Five folds of real tables, gene-expression sets and deep features. Parameters are chosen by
cross-validation on the training folds, all with the same numbers of pairs. A method that meets
the time cap for a fold, search included, is a miss. Results are kept as they come: a run that
was interrupted goes on where it stopped (`--fresh` starts anew).
"""

import json
import time
import warnings
from collections import Counter

import numpy as np
from scipy.stats import rankdata
from sklearn.model_selection import StratifiedKFold

from benchmarks.cache import Cache
from benchmarks.data import load_cub_features, load_microarray, load_uci
from benchmarks.harness import (
    METRIC_LEARN,
    PALETTE,
    ChildError,
    Column,
    Report,
    Target,
    limited_threads,
    peak_memory,
    progress,
)
from benchmarks.linear_methods import METHODS, N_PAIRS, NEIGHBOURS, grids, search

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
SETS = (*UCI, *MICROARRAY, CUB)
QUICK_SETS = ("balance", "alon")
OURS, RIVALS = "DITML", ("Euclidean", "ITML")
PEERS = ("ITML", "LMNN", "SCML")
DENSE = ("NCA", *PEERS)  # learn a map of all features to all features
MOST_FEATURES = 1024


def add_arguments(parser):
    parser.add_argument("--sets", default=",".join(SETS), help="comma separated")
    parser.add_argument("--rows", type=int, default=1000, help="most rows of a set")
    parser.add_argument(
        "--cap", type=float, default=300, help="seconds of a method on one fold, search included"
    )
    parser.add_argument("--gammas", default="0.1,1", help="candidates for DITML and ITML")
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


def find(cache, key, cap):
    """Return the result that a run with this time cap would have, None if unknown."""
    entry = cache.find(key)
    if entry is None or ("accuracy" not in entry and entry["cap"] < cap):
        return None
    return entry if entry.get("seconds", cap) <= cap else None


def run_fold(method, inputs, cap):
    """Return accuracy, chosen parameters and seconds of a method on a fold, or its miss."""
    inputs = {"method": method, **inputs}
    if method in PEERS:
        result = METRIC_LEARN.call(SCRIPT, "search", inputs, timeout=cap)
        outputs, seconds = result.outputs, result.seconds
    elif method in DENSE:
        result = peak_memory(search, inputs, timeout=cap)
        outputs, seconds = result.outputs, result.seconds
    else:  # takes seconds: no process that can be stopped
        start = time.perf_counter()
        with limited_threads(1):
            outputs = search(**inputs)
        seconds = time.perf_counter() - start
    if seconds is None or seconds > cap:
        return {"cap": cap, "miss": f"time cap of {cap:g} s"}
    return {**outputs, "seconds": seconds}


def run_set(name, options, cache, grid_of):
    """Return what each method has on each fold of a set: a list of results, or a miss in words."""
    n_folds, cap = options.pick(5, 1), options.extra["cap"]
    rows = options.pick(options.extra["rows"], 100)
    X, y = load(name, rows)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The least populated class")
        folds = list(StratifiedKFold(5, shuffle=True, random_state=0).split(X, y))[:n_folds]
    found = {}
    for method in METHODS:
        if method in DENSE and X.shape[1] > MOST_FEATURES:
            found[method] = f"more than {MOST_FEATURES:,} features"
            continue
        if options.quick and method in PEERS and not (METRIC_LEARN.folder / "complete").exists():
            found[method] = "its environment is not made in a quick run"
            continue
        found[method] = []
        for number, (train, test) in enumerate(folds):
            key = json.dumps([name, method, number, rows, grid_of[method]])
            result = find(cache, key, cap)
            if result is None:
                progress(f"{name}: {method}, fold {number + 1} of {n_folds}")
                rows_of = {"X": X[train], "y": y[train], "X_test": X[test], "y_test": y[test]}
                inputs = {"grid": grid_of[method], "n_folds": options.pick(3, 2), **rows_of}
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


def accuracies(found, k):
    """Return the mean accuracy over the folds per method, None for a miss."""
    return {
        method: None
        if isinstance(results, str)
        else float(np.mean([result["accuracy"][str(k)] for result in results]))
        for method, results in found.items()
    }


def summaries(rows, k):
    """Return the rows below those of the sets: means and mean ranks."""
    table = np.array([[row[method] for method in METHODS] for row in rows], dtype=float)
    complete = ~np.isnan(table).any(axis=1)
    ranks = rankdata(-np.nan_to_num(table, nan=-1.0), axis=1).mean(axis=0)
    below = [
        (f"mean of the {complete.sum()} sets without a miss", table[complete]),
        (f"mean of all {len(rows)} sets", table),
    ]
    means = [
        {"set": text, "k": k, "kind": "mean", **dict(zip(METHODS, part.mean(axis=0), strict=True))}
        for text, part in below
        if len(part)
    ]
    rank = {"set": f"mean rank in {len(rows)} sets", "k": k, "kind": "rank"}
    return [*means, {**rank, **dict(zip(METHODS, ranks, strict=True))}]


def versus(rows, rival, k):
    """Return the target "DITML ahead of the rival" and a sentence on the sets where it is not."""
    both = [row for row in rows if row[OURS] is not None and row[rival] is not None]
    gains = {row["set"]: row[OURS] - row[rival] for row in both}
    target = Target.at_least(
        f"{OURS}'s mean accuracy less {rival}'s, k = {k}, {len(both)} sets with both:",
        0.0,
        float(np.mean(list(gains.values()))) if both else None,
    )
    behind = [
        f"{row['set']} ({row[OURS]:.3f} against {row[rival]:.3f})"
        for row in sorted(both, key=lambda row: gains[row["set"]])
        if gains[row["set"]] < 0
    ]
    ahead = sum(gain > 0 for gain in gains.values())
    sentence = (
        f"k = {k}: of {len(both)} sets, {OURS} is ahead of {rival} on {ahead}, level on "
        f"{len(both) - ahead - len(behind)} and behind on {len(behind)}"
    )
    return target, f"{sentence}{': ' + ', '.join(behind) if behind else ''}."


def miss_notes(found):
    """Say for each method which sets it missed, and why."""
    notes = []
    for method in METHODS:
        reasons = {}
        for name, results in found.items():
            if isinstance(results[method], str):
                reasons.setdefault(results[method], []).append(name)
        if reasons:
            parts = [f"{', '.join(names)} ({reason})" for reason, names in reasons.items()]
            notes.append(f"{method} has no result on {'; '.join(parts)}.")
    return notes


def finished(found, method):
    """Return the results of a method on all folds of the sets that it did not miss."""
    lists = [results[method] for results in found.values()]
    return [result for results in lists if not isinstance(results, str) for result in results]


def chosen_counts(found):
    """Count how often each value of a parameter was chosen, by method."""
    counts = {}
    for method in METHODS:
        chosen = [result["chosen"] for result in finished(found, method)]
        values = Counter(f"{name}={value}" for one in chosen for name, value in one.items())
        if values:
            counts[method] = dict(sorted(values.items()))
    return counts


def plot(report, figure):
    """Draw mean ranks, and the gain over Euclidean on every set (k = 5)."""
    k_shown = NEIGHBOURS[-1]
    ranks = {row["k"]: row for row in report.rows if row["kind"] == "rank"}
    sets = [row for row in report.rows if row["kind"] == "set" and row["k"] == k_shown]
    figure.set_size_inches(13, max(4.5, 1.8 + 0.42 * len(sets)))
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.7))
    order = sorted(METHODS, key=lambda method: ranks[k_shown][method])
    for k, style in zip(NEIGHBOURS, ("none", PALETTE[0]), strict=True):
        values = [ranks[k][method] for method in order]
        left.scatter(
            values, range(len(order)), s=60, color=PALETTE[0], facecolor=style, label=f"k = {k}"
        )
    left.set_yticks(range(len(order)), order)
    left.invert_yaxis()
    left.set_xlabel(f"mean rank in {len(sets)} sets (1 is best, a miss is last)")
    left.legend(loc="lower left")

    learned = [method for method in METHODS if method != "Euclidean"]
    for position, (method, marker) in enumerate(zip(learned, "v^<>sDoP", strict=True)):
        shown = [(place, row) for place, row in enumerate(sets) if row[method] is not None]
        gains = [100 * (row[method] - row["Euclidean"]) for _, row in shown]
        # Side by side within the line of a set, so that equal values do not hide each other.
        heights = [place + 0.08 * (position - (len(learned) - 1) / 2) for place, _ in shown]
        colour = PALETTE[(5, 1, 2, 3, 6, 4, 0, 7)[position]]
        style = {"marker": marker, "color": colour, "edgecolor": "black", "linewidth": 0.4}
        emphasis = {"s": 50, "zorder": 3} if method == OURS else {"s": 26}
        right.scatter(gains, heights, label=method, **style, **emphasis)
    right.axvline(0, color="black", linewidth=1)
    right.set_yticks(range(len(sets)), [f"{row['set']} {row['Euclidean']:.2f}" for row in sets])
    right.set_ylim(len(sets) - 0.5, -0.5)
    right.set_yticks(np.arange(len(sets) - 1) + 0.5, minor=True)
    right.grid(axis="y", which="minor", color="0.9")
    right.tick_params(which="minor", length=0)
    right.set_xlabel(f"points of accuracy over Euclidean's (beside the name), k = {k_shown}")
    right.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)


def run(options):
    extra = options.extra
    names = options.pick(extra["sets"].split(","), list(QUICK_SETS))
    unknown = set(names) - set(SETS)
    if unknown:
        raise SystemExit(f"--sets: {', '.join(sorted(unknown))} not among {', '.join(SETS)}")
    grid_of = grids([float(gamma) for gamma in extra["gammas"].split(",")], options.quick)
    cache = Cache(None if options.quick else "linear", extra["fresh"])
    found, shapes = {}, {}
    for name in names:
        shapes[name], found[name] = run_set(name, options, cache, grid_of)

    rows, targets, notes = [], [], []
    for k in reversed(NEIGHBOURS):
        part = [
            {
                "set": name,
                "shape": " x ".join(map(str, shapes[name])),
                "k": k,
                "kind": "set",
                **accuracies(found[name], k),
            }
            for name in names
        ]
        for rival in RIVALS:
            target, note = versus(part, rival, k)
            targets.append(target)
            notes.append(note)
        rows += [*part, *summaries(part, k)]
    seconds = {"set": "median seconds of a fold", "kind": "seconds"}
    for method in METHODS:
        times = [result["seconds"] for result in finished(found, method)]
        seconds[method] = float(np.median(times)) if times else None
    rows.append(seconds)
    return Report(
        name="linear",
        title="kNN accuracy of linear metrics, parameters chosen on the training folds",
        columns=[
            Column("set", "set"),
            Column("shape", "rows x features"),
            Column("k", "k"),
            *[Column(method, method, ".3f") for method in METHODS],
        ],
        rows=rows,
        targets=targets,
        parameters={
            "sets": names,
            "rows": extra["rows"],
            "cap": extra["cap"],
            "grids": grid_of,
            "chosen": chosen_counts(found),
        },
        notes=[
            *notes,
            *miss_notes(found),
            "– is a miss, and ranks last. Features are scaled on the training rows; parameters "
            "are those with the best accuracy (k = 5) in three folds of them. DITML, GMML and "
            f"ITML use the same numbers of pairs ({' or '.join(map(str, N_PAIRS))}, chosen); "
            "NCA, LMNN and SCML use the labels of all rows. Seconds include the search. From the "
            "vowel set the three columns that tell the speaker are left out.",
        ],
        plot=plot,
    )
