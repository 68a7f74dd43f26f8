"""Generated tables, judged beside rows that were held out."""

import numpy as np

from benchmarks.generator_data import DATA, split_frame
from benchmarks.generator_plots import BASE
from benchmarks.generator_workers import timed
from benchmarks.harness import Target

# Rows of both sides that are compared, and that a forest has to tell apart.
MOST_JUDGED, MOST_TOLD = 2000, 1000
MEASURES = (
    "energy",
    "precision",
    "recall",
    "coverage",
    "columns",
    "pairs",
    "c2st",
    "tstr",
    "nearest row",
    "membership",
)
REAL, OURS = "real rows", "WassersteinGenerator"
# Pairs of columns that are looked at.
MOST_COLUMNS = 40


def judge_tables(train, test, made, seed):
    """Return the measures: columns of unit variance, and categories as indicators."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    from skdml.generate._frames import read_table
    from skdml.generate._tables import learn_table
    from skdml.metrics import (
        c2st,
        column_similarity,
        energy_distance,
        membership_auc,
        nearest_row_ratio,
        pair_similarity,
        sample_quality,
        tstr,
    )

    layout, table = read_table(train)
    encoder = learn_table(layout, table, "columns")
    n = min(len(test), len(made), MOST_JUDGED)
    rows, seen, found = (
        encoder.encode(read_table(frame.iloc[:n])[1]) for frame in (test, train, made)
    )
    quality = sample_quality(rows, found)
    forest = RandomForestClassifier(50, random_state=seed)
    told = [frame.iloc[:MOST_TOLD] for frame in (test, made)]
    some = list(train.columns[:: max(1, len(train.columns) // MOST_COLUMNS)])
    is_number = train["target"].dtype.kind in "iuf"
    model = (RandomForestRegressor if is_number else RandomForestClassifier)(100, random_state=seed)
    sides = [(side.drop(columns="target"), side["target"]) for side in (made, test)]
    copies = seen if np.array_equal(seen, found) else encoder.encode(table)
    return {
        "energy": energy_distance(rows, found),
        "precision": quality.precision,
        "recall": quality.recall,
        "coverage": quality.coverage,
        "columns": float(np.nanmean(column_similarity(test, made))),
        "pairs": float(np.nanmean(pair_similarity(test[some].iloc[:n], made[some].iloc[:n]))),
        "c2st": c2st(*told, estimator=forest, cv=3, random_state=seed),
        "tstr": tstr(*sides[0], *sides[1], estimator=model),
        "nearest row": nearest_row_ratio(copies, rows, found),
        "membership": membership_auc(seen, rows, found),
    }


def cell_tables(name, method, seed, quick):
    """Return measures and seconds of a method on a table; the seed also splits the table."""
    from benchmarks.generator_methods import METHODS

    train, test = split_frame(name, seed)
    if quick:
        train, test = train.iloc[:200], test.iloc[:100]
    if method == REAL:
        return judge_tables(train, test, train, seed)
    made, seconds = timed(lambda: METHODS[method](train, len(train), seed, quick))
    seconds = made.attrs.pop("seconds", seconds)
    return {**judge_tables(train, test, made, seed), "seconds": seconds}


def run_tables(options, cache, seeds, run_cells):
    """Return a row for each table and method."""
    from benchmarks.generator_methods import METHODS

    names = options.pick(options.extra["data"].split(","), ["vehicle"])
    methods = options.extra["methods"].split(";") if options.extra["methods"] else list(METHODS)
    if options.quick:
        methods = methods[:5]
    keys = [(name, method) for name in names for method in (REAL, *methods)]

    def cell(name, method, seed):
        return cell_tables(name, method, seed, options.quick)

    return [
        {**row, "data": name, "method": method}
        for (name, method), row in run_cells("tables", keys, cell, cache, seeds)
    ]


def table_targets(rows):
    """Return what the rows say to the numbers that were asked for."""
    found = {(row["data"], row["method"]): row for row in rows if row["part"] == "tables"}
    targets = []

    def mean(measure, method, names):
        return float(np.mean([found[name, method][measure] for name in names]))

    def common(*methods):
        return [name for name in DATA if all((name, method) in found for method in methods)]

    for other in (BASE, "CTGAN"):
        names = common(OURS, other)
        if names:
            ratio = mean("energy", OURS, names) / mean("energy", other, names)
            targets.append(
                Target.at_most(f"mean energy over {other}'s, {len(names)} tables", 0.5, ratio)
            )
    simple = "Gaussian mixture", "Gaussian copula"
    names = common(OURS, *simple)
    if names:
        best = np.mean([min(found[name, one]["energy"] for one in simple) for name in names])
        targets.append(
            Target.at_most(
                "mean energy over that of the better of mixture and copula on each table",
                1.0,
                mean("energy", OURS, names) / float(best),
            )
        )
    for name in ("digits", "letter"):
        for measure in ("precision", "recall"):
            if (name, OURS) in found:
                value = found[name, OURS][measure]
                targets.append(Target.at_least(f"{name}: {measure}", 0.8, value))
    for name in ("adult", "credit_default"):
        if common(OURS, REAL).count(name):
            lost = found[name, REAL]["tstr"] - found[name, OURS]["tstr"]
            targets.append(Target.at_most(f"{name}: TSTR below that of real rows", 0.02, lost))
    others = {method for _, method in found} - {REAL, OURS, "same, critics"}
    for other in sorted(others):
        names = common(OURS, other)
        gain = mean("tstr", OURS, names) - mean("tstr", other, names)
        targets.append(
            Target.at_least(f"mean TSTR above that of {other}, {len(names)} tables", 0.0, gain)
        )
    names = common(OURS, "CTGAN")
    if names:
        ratio = mean("seconds", OURS, names) / mean("seconds", "CTGAN", names)
        targets.append(Target.at_most("seconds over those of CTGAN", 0.1, ratio))
    return targets
