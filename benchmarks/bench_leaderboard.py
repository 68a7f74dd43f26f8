"""Every estimator at its defaults against simple alternatives, on whatever sets there are.

    python -m benchmarks leaderboard
    python -m benchmarks leaderboard --home ~/mine --folders birds,cars

All sets below the folder SKDML_DATA, or `--home`, in the layouts of `leaderboard_sets.py`; the
folder `reserve` is left out unless `--folders` names it. Every method is fitted on the same
training part and scored on the same test part; nothing is chosen by the scores. A method wins on a
set where a paired test over the units of the test part (rows, pairs, queries) says so at 5%.
"""

from __future__ import annotations

import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
from scipy.stats import binomtest, friedmanchisquare, rankdata, studentized_range, wilcoxon

from benchmarks.cache import Cache
from benchmarks.data import data_home
from benchmarks.harness import PALETTE, Column, Report, progress
from benchmarks.leaderboard_methods import (
    MOST_COLUMNS,
    MOST_QUERIES,
    MOST_ROWS,
    OURS,
    TRACKS,
)
from benchmarks.leaderboard_sets import find_sets

REPEATS = 1
LEVEL = 0.05


def add_arguments(parser):
    parser.add_argument("--home", type=Path, help="folder of the data sets")
    parser.add_argument("--folders", help="folders below it, comma separated; all but reserve")
    parser.add_argument("--parts", default=",".join(TRACKS), help="tasks, comma separated")
    parser.add_argument(
        "--most-sets", type=int, help="sets of a task, evenly from all; all of them"
    )
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")


def score(method, split, seed):
    """Return the scores of the units and the seconds; an error is a result, too."""
    start = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            units = method(split, seed)
    except Exception as error:  # a method that fails is the last
        return {"units": None, "seconds": None, "error": f"{type(error).__name__}: {error}"[:300]}
    units = np.asarray(units, dtype=float)
    return {"units": np.round(units, 6).tolist(), "seconds": time.process_time() - start}


def paired(ours, other):
    """Return 1, 0 or -1: units of `ours` are better, the same, or worse, by a paired test.

    The exact sign test (McNemar's) for units that are right or wrong, Wilcoxon's for others.
    """
    gaps = np.asarray(ours, dtype=float) - np.asarray(other, dtype=float)
    gaps = gaps[np.isfinite(gaps) & (gaps != 0)]
    if len(gaps) == 0:
        return 0
    if np.isin(gaps, (-1, 1)).all():
        p = binomtest(int((gaps > 0).sum()), len(gaps)).pvalue
    else:
        p = wilcoxon(gaps).pvalue
    if p >= LEVEL:
        return 0
    return int(np.sign(np.sum(gaps)))


def run_set(track, name, data, cache):
    """Return the results of all methods of a track on a set, by name."""
    task = TRACKS[track]
    split = None
    results = {}
    for label, method in task.methods.items():

        def compute(method=method):
            nonlocal split
            split = split or task.split(data, 0)
            return score(method, split, 0)

        results[label] = cache.compute([track, name, len(data.y), label], compute)
        seconds = results[label]["seconds"]
        progress("  " + (results[label]["error"] if seconds is None else f"{seconds:.1f} s"))
    return results


def mean_units(result):
    return None if result["units"] is None else float(np.nanmean(result["units"]))


def summarise(track, found):
    """Return a row for each method of a track: means over its sets, ranks and paired tests.

    Parameters
    ----------
    track : str
        Of `TRACKS`.
    found : dict
        Set to method to result.
    """
    if not found:
        return []
    names = list(next(iter(found.values())))
    means = np.array(
        [[mean_units(results[name]) for name in names] for results in found.values()], dtype=float
    )
    # Rank 1 is the best; what failed is the last.
    ranks = rankdata(-np.nan_to_num(means, nan=-np.inf), axis=1)
    average = ranks.mean(axis=0)
    rivals = [i for i, name in enumerate(names) if not name.startswith(OURS)]
    strongest = names[min(rivals, key=lambda i: average[i])]
    distance = critical_distance(len(names), len(found))
    rows = []
    for i, name in enumerate(names):
        row = {
            "part": track,
            "method": name,
            "n_sets": len(found),
            "rank": float(average[i]),
            "score": float(np.nanmean(means[:, i])),
            "failed": int(np.isnan(means[:, i]).sum()),
            "critical": distance,
            "ranks": ranks[:, i].tolist(),
            "scores": dict(zip(found, means[:, i].tolist(), strict=True)),
        }
        seconds = [r[name]["seconds"] for r in found.values() if r[name]["seconds"] is not None]
        row["seconds"] = float(np.median(seconds)) if seconds else None
        if name != strongest:
            outcomes = [compare_on(results, name, strongest) for results in found.values()]
            row["against"] = strongest
            row["outcome"] = " / ".join(str(outcomes.count(kind)) for kind in (1, 0, -1))
        rows.append(row)
    return sorted(rows, key=lambda row: row["rank"])


def compare_on(results, name, other):
    ours, theirs = results[name]["units"], results[other]["units"]
    if ours is None or theirs is None:
        return (ours is not None) - (theirs is not None)
    return paired(ours, theirs)


def critical_distance(n_methods, n_sets):
    """Return by how much mean ranks must differ at 5% (Nemenyi)."""
    q = studentized_range.ppf(1 - LEVEL, n_methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(n_methods * (n_methods + 1) / (6 * n_sets)))


def run(options):
    options.parts(tuple(TRACKS))  # before anything is loaded
    home, folders = options.extra["home"], options.extra["folders"]
    names = folders.split(",") if folders else None
    cache = Cache(None if options.quick or home else "leaderboard", options.extra["fresh"])
    loaders = find_sets(home or data_home(), names, say=progress)
    sets = [data for data in (load() for _, load in loaders) if data is not None]

    def run_track(track):
        own = [data for data in sets if TRACKS[track].takes(data)]
        most = 1 if options.quick else options.extra["most_sets"] or len(own)
        own = own[:: max(1, len(own) // most)][:most]
        return summarise(track, {data.name: run_set(track, data.name, data, cache) for data in own})

    rows = options.run_parts("leaderboard", {track: partial(run_track, track) for track in TRACKS})
    if not rows:
        raise SystemExit(f"no data sets in {home or data_home()}")
    measured = {row["part"]: list(row["scores"]) for row in rows}
    return Report(
        name="leaderboard",
        title="defaults against defaults, by kind of task",
        columns=[
            Column("part", "task"),
            Column("method", "method"),
            Column("n_sets", "sets", "d"),
            Column("rank", "mean rank", ".2f"),
            Column("score", "mean score", ".3f"),
            Column("outcome", "wins / ties / losses"),
            Column("against", "against"),
            Column("seconds", "seconds, median", ".2f"),
            Column("failed", "failed", "d"),
        ],
        rows=rows,
        parameters={"sets": measured, "level": LEVEL},
        notes=[
            "Scores: "
            + "; ".join(f"*{track}*, {TRACKS[track].measure}" for track in measured)
            + ".",
            f"One split of every set, the same for all methods: at most {MOST_ROWS} rows for "
            f"training and for the test (of unseen classes {4 * MOST_ROWS:,}, of ranking "
            f"{MOST_QUERIES} queries), and {MOST_COLUMNS} principal components of scaled columns "
            f"(of unseen classes {2 * MOST_COLUMNS}, without a centre, but all values for networks "
            "and for rows as they come; generated rows are as they came). Methods of this "
            f"package begin with {OURS.rstrip('.')}. Wins, ties and losses are by paired tests at "
            "5% on each set, against the alternative with the best mean rank. Seconds are of the "
            "processor, for the fit and the scores.",
            "Sets: " + "; ".join(f"*{t}*, {', '.join(own)}" for t, own in measured.items()) + ".",
            " ".join(told_apart(rows, track) for track in measured),
        ],
        plot=plot,
    )


def told_apart(rows, track):
    """Return a sentence on the ranks of a track: the critical distance, and Friedman's test."""
    own = [row for row in rows if row["part"] == track]
    ranks = [row["ranks"] for row in own]
    text = (
        f"*{track}*: mean ranks that differ by less than {own[0]['critical']:.2f} are not told "
        "apart (Nemenyi, 5%)"
    )
    if len(ranks) > 2 and len(ranks[0]) > 2:
        text += f"; Friedman's test of all methods: p = {friedmanchisquare(*ranks).pvalue:.2g}"
    return text + "."


def plot(report, figure):
    """Draw the mean ranks of each track, with bars over what is not told apart."""
    tracks = list(dict.fromkeys(row["part"] for row in report.rows))
    heights = [1 + sum(row["part"] == track for row in report.rows) for track in tracks]
    figure.set_size_inches(10, 1 + 0.27 * sum(heights))
    panels = figure.subplots(len(tracks), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, track in zip(panels, tracks, strict=True):
        draw_ranks(axes, [row for row in report.rows if row["part"] == track])
        sets = next(row["n_sets"] for row in report.rows if row["part"] == track)
        axes.set_title(f"{track}: mean rank over {sets} set{'s' * (sets > 1)}", fontsize="medium")


def draw_ranks(axes, rows):
    for place, row in enumerate(rows):
        colour = PALETTE[5] if row["method"].startswith(OURS) else PALETTE[0]
        axes.plot(row["rank"], place, "o", color=colour)
    axes.set_yticks(range(len(rows)), [row["method"] for row in rows], fontsize="small")
    axes.invert_yaxis()
    axes.grid(axis="y", color="0.92")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(0.8, len(rows) + 0.2)
    for first, last in cliques([row["rank"] for row in rows], rows[0]["critical"]):
        ends = [rows[first]["rank"], rows[last]["rank"]]
        axes.plot(ends, [first - 0.35] * 2, color="0.3", linewidth=2.5)


def cliques(ranks, distance):
    """Return first and last of the longest runs of sorted ranks within the critical distance."""
    found = []
    for first, rank in enumerate(ranks):
        last = max(i for i, other in enumerate(ranks) if other - rank <= distance)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found
