"""Generated tables by WassersteinGenerator and by others; critics, images and workers.

Parts: "tables" draws rows of nine tables by several methods; "critics" has digits by the number of
critics, with the squared cost; "images" has MNIST with convolutions and a learned
cost against WGAN-GP, at as many updates and at as many seconds; "workers" has the seconds to a
distance by the number of processes, for digits and for images. Results are kept as they come: a run
that was interrupted goes on where it stopped (`--fresh` starts anew), and `--known` reports what is
known without computing more.
"""

import json
from itertools import pairwise

import numpy as np

from benchmarks.cache import Cache
from benchmarks.generator_data import DATA, load_rows
from benchmarks.generator_plots import BASE, BY_TIME, BY_UPDATES, CRITICS, plot
from benchmarks.generator_tables import MEASURES, run_tables, table_targets
from benchmarks.generator_workers import GOAL, cell_workers, predict_rows, timed
from benchmarks.harness import Column, Report, Target

REPEATS = 1
SEEDS = (0, 1, 2)
PARTS = ("tables", "critics", "images", "workers")
UPDATES = 1500
IMAGE_UPDATES = 300
ROW_MEASURES = ("W2", "precision", "recall", "density", "coverage", "nearest row")


def add_arguments(parser):
    parser.add_argument("--parts", default=",".join(PARTS), help="comma separated")
    parser.add_argument("--data", default=",".join(DATA), help="comma separated, for tables")
    parser.add_argument(
        "--methods", default="", help="for tables, separated by semicolons; empty is all"
    )
    parser.add_argument("--known", action="store_true", help="report what is known already")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")


def judge_rows(train, test, made):
    """Return the measures of digits by the number of critics."""
    from skdml.metrics import nearest_row_ratio, sample_quality, wasserstein_distance

    quality = sample_quality(test, made)
    values = wasserstein_distance(test, made), *quality, nearest_row_ratio(train, test, made)
    return dict(zip(ROW_MEASURES, map(float, values), strict=True))


def cell_critics(n_critics, seed, updates):
    from skdml import WassersteinGenerator

    train, test = load_rows("digits")
    params = {"cost": "squared", "max_iter": updates, "random_state": seed}
    model = WassersteinGenerator(n_critics=n_critics, **params)
    _, seconds = timed(lambda: model.fit(train))
    measures = judge_rows(train, test, model.sample(len(test), random_state=seed))
    estimated = float(np.mean(model.history_["wasserstein"][-100:]))
    return {**measures, "estimated": estimated, "updates": updates, "seconds": seconds}


def fit_wgan_images(X, networks, seed, updates):
    import torch

    from benchmarks.generator_images import LATENT, WGAN_RATES
    from benchmarks.generator_methods import train_wgan_gp
    from skdml.generate._columns import learn_columns

    columns = learn_columns(X, "common")
    generator = train_wgan_gp(
        torch.from_numpy(columns.encode(X)),
        networks["module"],
        lambda: networks["critic_module"](n_outputs=1),
        seed,
        updates,
        latent_dim=LATENT,
        rates=WGAN_RATES,
    )

    def draw(n_samples, seed):
        latents = np.random.default_rng(seed).standard_normal((n_samples, LATENT))
        with torch.no_grad():
            made = generator(torch.from_numpy(latents.astype(np.float32))).numpy()
        return columns.decode(made)

    return draw


def cell_images(method, seed, updates, images):
    """Return the distance after so many updates."""
    from skdml import WassersteinGenerator

    X, networks, judge = images

    def fit():
        if method == BASE:
            return fit_wgan_images(X, networks, seed, updates)
        params = {"n_critics": int(method), "max_iter": updates, "random_state": seed}
        return WassersteinGenerator(**params, **networks).fit(X).sample

    draw, seconds = timed(fit)
    distance = judge.distance(draw(5000, seed))
    return {"distance": distance, "updates": updates, "seconds": seconds}


# The parts


def run_cells(part, keys, cell, cache, seeds):
    """Yield each key with a row of means over the seeds, from the cache where it knows them.

    Seeds are the outer loop: what is compared by its seconds runs in turn. A key that only some
    seeds know has the mean of these.
    """
    found = {key: [] for key in keys}
    for seed in seeds:
        for key, results in found.items():
            name = [part, *key, seed]
            if not cache.known_only or cache.find(json.dumps(name)):
                results.append(cache.compute(name, cell, *key, seed))
    for key, results in found.items():
        if results:
            means = {
                column: float(np.mean([one[column] for one in results]))
                for column in results[0]
                if all(one.get(column) is not None for one in results)
            }
            yield key, {"part": part, **means, "seeds": len(results), "each": results}


def run_critics(options, cache, seeds):
    updates = options.pick(UPDATES, 5)
    keys = [(n_critics,) for n_critics in options.pick(CRITICS, CRITICS[:2])]
    rows = run_cells("critics", keys, lambda n, seed: cell_critics(n, seed, updates), cache, seeds)
    return [
        {**row, "data": "digits", "method": f"{n} critics", "n_critics": n} for (n,), row in rows
    ]


def run_images(options, cache, seeds):
    from benchmarks.generator_images import IMAGES, load_images

    images = {}

    def found(data, method, seed):
        return cache.find(json.dumps(["images", data, method, BY_UPDATES, seed]))

    def cell(data, method, rule, seed):
        if data not in images:
            images[data] = load_images(data, options.quick)
        updates = options.pick(IMAGE_UPDATES, 2)
        if rule == BY_TIME:
            base, own = found(data, BASE, seed), found(data, method, seed)
            updates = max(1, round(base["seconds"] / own["seconds"] * own["updates"]))
        return cell_images(method, seed, updates, images[data])

    keys = []
    for data in options.pick(list(IMAGES), list(IMAGES)[:1]):
        keys.append((data, BASE, BY_UPDATES))
        for rule in (BY_UPDATES, BY_TIME):
            keys += [(data, str(n), rule) for n in options.pick(CRITICS, CRITICS[:1])]
    rows = run_cells("images", keys, cell, cache, seeds)
    return [
        {
            **row,
            "data": data,
            "method": method if method == BASE else f"{method} critics, {rule}",
            "n_critics": None if method == BASE else int(method),
            "rule": rule,
        }
        for (data, method, rule), row in rows
    ]


def run_workers(options, cache, seeds):
    settings = [("digits", "shared"), ("digits", "separate"), ("mnist", "shared")]
    keys = [(data, coupling, n) for data, coupling in settings for n in (1, 2)]

    def cell(data, coupling, n_jobs, seed):
        return cell_workers(data, coupling, n_jobs, seed, options.quick)

    rows = run_cells("workers", keys, cell, cache, seeds)
    return [
        {
            **row,
            "data": data,
            "method": f"{n_jobs} processes, {coupling} coupling",
            "n_workers": n_jobs,
        }
        for (data, coupling, n_jobs), row in rows
    ]


def make_targets(rows):
    """Return what the rows say to the numbers that were asked for."""
    targets = table_targets(rows)
    found = {(row["part"], row["data"], row["method"]): row for row in rows}
    critics = [row for row in rows if row["part"] == "critics"]
    if len(critics) > 1:
        targets += [
            Target.at_most(
                f"digits: {measure} of most critics over that of one",
                1.0,
                critics[-1][measure] / critics[0][measure],
            )
            for measure in ("estimated", "W2")
        ]
    images = [row for row in rows if row["part"] == "images" and row["n_critics"]]
    for data in dict.fromkeys(row["data"] for row in images):
        base = found["images", data, BASE]
        timed_rows = [row for row in images if row["data"] == data and row["rule"] == BY_TIME]
        if timed_rows:
            best = min(timed_rows, key=lambda row: row["distance"])
            targets.append(
                Target.at_most(
                    f"{data}: Frechet distance over {BASE}'s, {best['method']}",
                    0.7,
                    best["distance"] / base["distance"],
                )
            )
        by_updates = [
            row["distance"] for row in images if row["data"] == data and row["rule"] == BY_UPDATES
        ]
        if len(by_updates) > 1:
            text = f"{data}: Frechet distance with twice the critics, at as many updates, most"
            ratios = [more / fewer for fewer, more in pairwise(by_updates)]
            targets.append(Target.at_most(text, 1.0, max(ratios)))
    return targets


def run(options):
    cache = Cache(None if options.quick else "generator", options.extra["fresh"])
    cache.known_only = options.extra["known"]
    seeds = options.pick(SEEDS[: options.extra["seeds"]], SEEDS[:1])
    runners = {
        "tables": lambda: run_tables(options, cache, seeds, run_cells),
        "critics": lambda: run_critics(options, cache, seeds),
        "images": lambda: run_images(options, cache, seeds),
        "workers": lambda: run_workers(options, cache, seeds),
    }
    rows = options.run_parts("generator", runners)
    rows += predict_rows(rows)
    return Report(
        name="generator",
        title="generated tables: distance to held-out rows, quality, and seconds",
        columns=[
            Column("part", "part"),
            Column("data", "data"),
            Column("method", "method"),
            Column("seeds", "seeds", ".0f"),
            *[
                Column(measure, measure, ".4f" if measure == "energy" else ".3f")
                for measure in MEASURES
            ],
            Column("W2", "W2", ".3f"),
            Column("estimated", "estimated W2", ".2f"),
            Column("distance", "Frechet", ".1f"),
            Column("updates", "updates", ".0f"),
            Column("seconds", "seconds", ".1f"),
            Column("to goal", "s to goal", ".1f"),
            Column("ms", "ms per update", ".1f"),
            Column("bytes", "bytes", ",.0f"),
            Column("all-reduce bytes", "all-reduce bytes", ",.0f"),
        ],
        rows=rows,
        targets=make_targets(rows),
        parameters={"updates": UPDATES, "image_updates": IMAGE_UPDATES, "seeds": list(seeds)},
        notes=[
            "*tables*: at most 10,000 rows, two thirds to train on, one to compare with; another "
            "split for each seed. Seconds are those of the processor, on one thread. Energy "
            "distance, precision, recall and coverage on 2,000 rows at most, with columns of unit "
            "variance and categories as indicators. *columns* and *pairs*: mean similarity as "
            "SDMetrics defines it. *c2st*: AUC of a forest that tells real from generated rows. "
            "*tstr*: accuracy, or for diamonds R2, of a forest trained on as many generated rows "
            "as there are training rows. *nearest row* is the distance of samples to their nearest "
            "training row over that of held-out rows; *membership* the AUC of an attack. *real "
            "rows* are training rows in place of samples.",
            f"*critics*: the squared cost, {UPDATES} updates of the generator, batches of 64.",
            "*images*: MNIST and 3,000 pictures of CIFAR-100, the generator of a small DCGAN, "
            f"{IMAGE_UPDATES} updates, or as many as take the processor as long as {BASE}; Frechet "
            "distance of 5,000 samples to test images in the 64 features of a classifier. "
            f"{BASE} has the best of the learning rates that were tried on held-out MNIST images, "
            "and the same running mean of weights.",
            f"Learning rates of {BASE} were chosen on held-out training digits. CTGAN and TVAE "
            "have their defaults, with 300 epochs.",
            "*workers*: 8 critics; the goal is a mean estimated distance of "
            f"{GOAL:g} on digits, and what the last update reached on images. Seconds are those of "
            "the clock, with the start of processes; those of an update are without it. "
            "*model*: a prediction for 8 critics on as many machines, not a measurement.",
        ],
        plot=plot,
    )
