"""Ranking: LocalGMMLRanker against boosted trees, a linear ranker, and a blend of the two.

Five folds by query. Trees stop early on a fifth of the training queries, and their parameters are
those of a small grid that are best there; LocalGMMLRanker has its defaults. The test part is looked
at once.
"""

from collections import Counter

import numpy as np
from scipy.stats import ttest_rel, wilcoxon

from benchmarks.harness import PALETTE, Column, Report, Target, add_ratios, compare, progress
from benchmarks.ranking_methods import (
    BLEND,
    CATBOOST,
    CUTOFF,
    LIGHTGBM,
    LINEAR,
    METHODS,
    OURS,
    PATIENCE,
    SEEDS,
    THESIS,
    TREES,
    XGBOOST,
    Documents,
    load,
    n_trees,
    search,
)
from skdml.metrics import mean_average_precision, mean_ndcg, ndcg_by_query

SETS = ("mq2008", "ohsumed", "cranfield", "wikiqa")
CUTOFFS = (1, 3, 5, CUTOFF)
N_SCORED = 10_000
RIVALS = (LIGHTGBM, XGBOOST, CATBOOST, LINEAR, BLEND)
MEAN_GAINS = {LIGHTGBM: 0.01, LINEAR: 0.005}
MOST_FIT, MOST_SCORE = 5.0, 1.0


def add_arguments(parser):
    parser.add_argument("--sets", default=",".join(SETS), help="comma separated")
    parser.add_argument("--folds", default="0,1,2,3,4", help="comma separated, of 0 to 4")
    parser.add_argument("--methods", default=",".join(METHODS), help="comma separated")
    parser.add_argument("--noise", default="0", help="numbers of noise features")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="of LocalGMMLRanker")


def choices(extra, name, known):
    """Return the values of an argument, which must be among the known ones."""
    values = [value.strip() for value in extra[name].split(",")]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise SystemExit(f"--{name}: {', '.join(unknown)} not among {', '.join(known)}")
    return values


def run_fold(name, fold, n_noise, methods, options):
    """Return the documents to time, and what each method has on the test part of a fold."""
    train, validation, test = load(name, fold, n_noise, options.pick(None, 40))
    found = {}
    for label in methods:
        method = METHODS[label]
        seeds = [seed for seed in method.seeds if str(seed) in options.extra["seeds"].split(",")]
        draws = [{"seed": seed} for seed in seeds[: options.pick(None, 1)]] or [{}]
        runs = [search(method, train, validation, options.quick, **draw) for draw in draws]
        fitted = runs[0]
        fitted.fit_seconds = float(np.median([one.fit_seconds for one in runs]))
        fitted.all_seconds = float(np.median([one.all_seconds for one in runs]))
        found[label] = {"fitted": fitted, **mean_measures(method, runs, test)}
        value = found[label][f"ndcg{CUTOFF}"]
        progress(
            f"{name}, {n_noise} noise features, fold {fold}: {label} {value:.4f}, "
            f"{fitted.fit_seconds:.2f} s, search {fitted.all_seconds:.1f} s"
        )
    return documents_to_score([test, validation, train], options.pick(N_SCORED, 500)), found


def mean_measures(method, runs, test):
    """Return measures on the test part, means over the runs."""
    results = []
    for one in runs:
        scores = method.predict(one.model, test)
        results.append(
            {
                "by_query": ndcg_by_query(test.y, scores, test.qid, k=CUTOFF)[1],
                "map": mean_average_precision(test.y, scores, test.qid),
                **{f"ndcg{k}": mean_ndcg(test.y, scores, test.qid, k=k) for k in CUTOFFS},
            }
        )
    return {key: np.mean([result[key] for result in results], axis=0) for key in results[0]}


def documents_to_score(parts, n_documents):
    """Return so many documents of all parts; where they are too few, again under new queries."""
    X = np.vstack([part.X for part in parts])
    qid = np.concatenate([part.qid for part in parts])
    qid = np.cumsum(np.diff(qid, prepend=qid[0]) != 0)
    turn, rows = np.divmod(np.arange(n_documents), len(X))
    qid = qid[rows] + turn * (qid[-1] + 1)
    return Documents(np.ascontiguousarray(X[rows]), np.zeros(n_documents), qid)


def score_seconds(documents, folds, methods, repeats):
    """Return the seconds to score the documents, mean over the models of the folds."""

    def side(label):
        method, models = METHODS[label], [found[label]["fitted"].model for found in folds]

        def score():
            for model, part in zip(models, documents, strict=True):
                method.predict(model, part)

        return score

    timings = compare({label: side(label) for label in methods}, repeats=repeats)
    return {label: timing.seconds / len(folds) for label, timing in timings.items()}


def paired(folds, label):
    """Compare LocalGMMLRanker with a method over the test queries of all folds."""
    if OURS not in folds[0] or label == OURS:
        return {}
    ours, other = (
        np.concatenate([found[side]["by_query"] for found in folds]) for side in (OURS, label)
    )
    known = ~np.isnan(ours)
    ours, other = ours[known], other[known]
    if np.array_equal(ours, other):
        return {"difference": 0.0, "n_queries": len(ours)}
    return {
        "difference": float(np.mean(ours - other)),
        "p": float(ttest_rel(ours, other).pvalue),
        "p_wilcoxon": float(wilcoxon(ours, other).pvalue),
        "n_queries": len(ours),
        "wins": int((ours > other).sum()),
        "losses": int((ours < other).sum()),
    }


def make_rows(name, n_noise, folds, seconds):
    """Return the rows of a set, one for each method."""
    rows = []
    for label in seconds:
        results = [found[label] for found in folds]
        fitted = [result["fitted"] for result in results]
        measures = ("map", *(f"ndcg{k}" for k in CUTOFFS))
        rows.append(
            {
                "set": name,
                "noise": n_noise,
                "method": label,
                **{key: float(np.mean([result[key] for result in results])) for key in measures},
                "folds": [result[f"ndcg{CUTOFF}"] for result in results],
                "validation": float(np.mean([one.validation for one in fitted])),
                **paired(folds, label),
                "fit": float(np.median([one.fit_seconds for one in fitted])),
                "search": float(np.median([one.all_seconds for one in fitted])),
                "candidates": METHODS[label].n_candidates,
                "score": 1000 * seconds[label],
                "chosen": [one.chosen for one in fitted],
                "trees": [n_trees(one.model) for one in fitted],
            }
        )
    for key in ("fit", "search", "score"):
        if LIGHTGBM in seconds:
            add_ratios(rows, key, f"{key}_ratio", base=LIGHTGBM, side="method")
    return rows


def make_targets(rows, sets):
    """Return the goals of each set, without noise features."""
    targets, gains = [], {}
    for name in sets:
        part = {row["method"]: row for row in rows if row["set"] == name and row["noise"] == 0}
        if OURS not in part:
            continue
        key = f"ndcg{CUTOFF}"
        for rival in RIVALS:
            gain = part[OURS][key] - part[rival][key] if rival in part else None
            text = f"{name}: NDCG@{CUTOFF} less that of {rival}"
            targets.append(Target.at_least(text, 0.0, gain))
            gains.setdefault(rival, []).append(gain)
        fit, score = part[OURS].get("fit_ratio"), part[OURS].get("score_ratio")
        targets += [
            Target.at_most(f"{name}: seconds of a fit over {LIGHTGBM}'s", MOST_FIT, fit),
            Target.at_most(f"{name}: seconds to score over {LIGHTGBM}'s", MOST_SCORE, score),
        ]
    for rival, least in MEAN_GAINS.items():
        found = gains.get(rival, [None])
        mean = None if None in found else float(np.mean(found))
        text = f"mean over the sets: NDCG@{CUTOFF} less that of {rival}"
        targets.append(Target.at_least(text, least, mean))
    return targets


def make_notes(rows, folds, options):
    """Say how it was measured, and what noise features cost each method."""
    notes = []
    key = f"ndcg{CUTOFF}"
    for name in dict.fromkeys(row["set"] for row in rows):
        values = {}
        for row in rows:
            if row["set"] == name:
                values.setdefault(row["method"], []).append((row["noise"], row[key]))
        lost = [
            f"{label} {without[1] - with_noise[1]:.3f}"
            for label, (without, with_noise) in (
                (label, (min(pairs), max(pairs))) for label, pairs in values.items()
            )
            if without[0] < with_noise[0]
        ]
        if lost:
            notes.append(f"{name}: NDCG@{CUTOFF} lost to noise features: {', '.join(lost)}.")
    return [
        *notes,
        f"Means over {len(folds)} folds of the test parts, for {OURS} also over "
        f"seeds {options.extra['seeds']} (the trees draw nothing at random); "
        "queries without a relevant document are left out. *Ours less it* is the mean difference "
        f"in NDCG@{CUTOFF} over the test queries of all folds, and p that of a paired t-test.",
        f"Trees: at most {TREES}, patience {PATIENCE}, gains 2^grade - 1, and the best of a grid "
        "on the validation part. *Fit* is one fit with the chosen parameters and *search* the "
        "whole procedure, each the median over folds, seconds of processor time of one thread.",
        f"*Score* is for {options.pick(N_SCORED, 500):,} documents, the mean over the models of "
        f"the folds and the median of {options.repeats} turns. The order of documents within a "
        "query is random: in the files of OHSUMED, it tells the relevance.",
        f"*{LINEAR}*: ridge on differences within queries, its views and penalty chosen by five "
        f"folds over queries. *{BLEND}*: the sum of the z-scores of the two within the query.",
        f"*{THESIS}*: kernel, loss, weights and scaling of the thesis; margin and first weights "
        "are the best of four with 8 metrics on the validation part, then the number of metrics "
        "that of 8, 50 and 500.",
    ]


def plot(report, figure):
    """Draw bars of NDCG@10 without and with noise features, a panel for each set."""
    sets = list(dict.fromkeys(row["set"] for row in report.rows))
    labels = list(dict.fromkeys(row["method"] for row in report.rows))
    noises = sorted({row["noise"] for row in report.rows})
    figure.set_size_inches(5.5 * len(sets) + 1, 1.6 + 0.8 * len(labels))
    height = 0.8 / len(noises)
    for axes, name in zip(figure.subplots(1, len(sets), squeeze=False)[0], sets, strict=True):
        for turn, n_noise in enumerate(noises):
            known = {
                row["method"]: row[f"ndcg{CUTOFF}"]
                for row in report.rows
                if row["set"] == name and row["noise"] == n_noise
            }
            shown = [label for label in labels if label in known]
            places = [labels.index(label) + (turn + 0.5) * height - 0.4 for label in shown]
            drawn = axes.barh(
                places,
                [known[label] for label in shown],
                height=0.9 * height,
                color=[PALETTE[labels.index(label)] for label in shown],
                alpha=1.0 if turn == 0 else 0.5,
            )
            suffix = f"  + {n_noise} noise" if n_noise else ""
            axes.bar_label(drawn, [f"{known[label]:.3f}{suffix}" for label in shown], padding=4)
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        axes.set_xlabel(f"NDCG@{CUTOFF}, test")
        axes.set_title(name)
        axes.margins(x=0.5)
        axes.spines[["top", "right"]].set_visible(False)


def run(options):
    extra = options.extra
    sets = options.pick(choices(extra, "sets", SETS), list(SETS))
    folds = [int(fold) for fold in choices(extra, "folds", "01234")]
    folds = options.pick(folds, folds[:1])
    methods = choices(extra, "methods", METHODS)
    noises = [int(number) for number in extra["noise"].split(",")]
    rows, chosen = [], {}
    for name in sets:
        for n_noise in noises:
            documents, results = [], []
            for fold in folds:
                part, found = run_fold(name, fold, n_noise, methods, options)
                documents.append(part)
                results.append(found)
            seconds = score_seconds(documents, results, methods, options.pick(options.repeats, 1))
            rows += make_rows(name, n_noise, results, seconds)
    for row in rows:
        counts = chosen.setdefault(row["method"], Counter())
        counts.update(f"{key}={value}" for one in row["chosen"] for key, value in one.items())
    return Report(
        name="ranking",
        title="ranking, five folds by query, trees chosen on a fifth of the training queries",
        columns=[
            Column("set", "set"),
            Column("noise", "noise"),
            Column("method", "method"),
            *[Column(f"ndcg{k}", f"NDCG@{k}", ".4f") for k in CUTOFFS],
            Column("map", "MAP", ".4f"),
            Column("difference", "ours less it", "+.4f"),
            Column("p", "p", ".2g"),
            Column("fit", "fit s", ".2f"),
            Column("fit_ratio", f"x {LIGHTGBM}", ".1f"),
            Column("search", "search s", ".1f"),
            Column("search_ratio", f"x {LIGHTGBM}", ".2f"),
            Column("score", "score ms", ".1f"),
            Column("score_ratio", f"x {LIGHTGBM}", ".2f"),
        ],
        rows=rows,
        targets=make_targets(rows, sets),
        parameters={
            "sets": sets,
            "folds": folds,
            "noise": noises,
            "grids": {label: METHODS[label].grid | METHODS[label].then for label in methods},
            "chosen": {label: dict(sorted(counts.items())) for label, counts in chosen.items()},
        },
        notes=make_notes(rows, folds, options),
        plot=plot,
    )
