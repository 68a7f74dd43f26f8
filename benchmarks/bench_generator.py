"""Generated rows by WassersteinGenerator and by others: quality, critics, images and workers.

Parts: "rows" draws rows of six data sets by several methods, and digits by variants of ours;
"critics" has digits by the number of critics; "images" has MNIST with convolutions and a learned
cost against WGAN-GP, at as many updates and at as many seconds; "workers" has the seconds to a
distance by the number of processes, for digits and for images. Results are kept as they come: a run
that was interrupted goes on where it stopped (`--fresh` starts anew).
"""

import json

import numpy as np

from benchmarks.cache import Cache
from benchmarks.data import load_mnist
from benchmarks.generator_data import DATA, load_rows
from benchmarks.generator_plots import BASE, BY_TIME, BY_UPDATES, CRITICS, PLAIN, plot
from benchmarks.generator_workers import GOAL, cell_workers, predict_rows, timed
from benchmarks.harness import Column, Report, Target

REPEATS = 1
SEEDS = (0, 1, 2)
PARTS = ("rows", "critics", "images", "workers")
UPDATES = 1500
IMAGE_UPDATES = 300
MEASURES = ("W2", "precision", "recall", "density", "coverage", "nearest row")


def add_arguments(parser):
    parser.add_argument("--parts", default=",".join(PARTS), help="comma separated")
    parser.add_argument("--data", default=",".join(DATA), help="comma separated, for rows")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")


def judge_rows(train, test, made):
    """Return the measures, on columns of unit variance where their units differ."""
    from skdml.generate._columns import learn_columns
    from skdml.metrics import nearest_row_ratio, sample_quality, wasserstein_distance

    columns = learn_columns(train)
    train, test, made = (columns.unit * columns.encode(rows) for rows in (train, test, made))
    quality = sample_quality(test, made)
    values = wasserstein_distance(test, made), *quality, nearest_row_ratio(train, test, made)
    return dict(zip(MEASURES, map(float, values), strict=True))


def cell_rows(name, method, seed, updates):
    from benchmarks.generator_methods import METHODS

    train, test = load_rows(name)
    if method == "real rows":
        return judge_rows(train, test, train[: len(test)])
    draw, seconds = timed(lambda: METHODS[method](train, seed, updates))
    return {**judge_rows(train, test, draw(len(test), seed)), "seconds": seconds}


def cell_critics(n_critics, seed, updates):
    from skdml import WassersteinGenerator

    train, test = load_rows("digits")
    model = WassersteinGenerator(n_critics=n_critics, max_iter=updates, random_state=seed)
    _, seconds = timed(lambda: model.fit(train))
    measures = judge_rows(train, test, model.sample(len(test), random_state=seed))
    estimated = float(np.mean(model.history_["wasserstein"][-100:]))
    return {**measures, "estimated": estimated, "updates": updates, "seconds": seconds}


def load_images(quick):
    from benchmarks.generator_images import Judge

    X, y = load_mnist("train")
    real = load_mnist("test")[0]
    return X, Judge(X, y, real, steps=20 if quick else 900)


def fit_wgan_images(X, seed, updates):
    import torch

    from benchmarks.generator_images import LATENT, WGAN_RATES, image_critic, image_generator
    from benchmarks.generator_methods import drawer, train_wgan_gp
    from skdml.generate._columns import learn_columns

    columns = learn_columns(X, "common")
    generator = train_wgan_gp(
        torch.from_numpy(columns.encode(X)),
        image_generator,
        lambda: image_critic(1),
        seed,
        updates,
        latent_dim=LATENT,
        rates=WGAN_RATES,
    )
    return drawer(generator, columns, LATENT)


def cell_images(method, seed, updates, images):
    """Return the distance after so many updates."""
    from benchmarks.generator_images import image_networks
    from benchmarks.generator_methods import transport

    X, judge = images

    def fit():
        if method == BASE:
            return fit_wgan_images(X, seed, updates)
        return transport(X, seed, updates, n_critics=int(method), **image_networks())

    draw, seconds = timed(fit)
    distance = judge.distance(draw(5000, seed))
    return {"distance": distance, "updates": updates, "seconds": seconds}


# The parts


def run_cells(part, keys, cell, cache, seeds):
    """Return a row of means over the seeds for each key, from the cache where it knows them.

    Seeds are the outer loop: what is compared by its seconds runs in turn.
    """
    found = {key: [] for key in keys}
    for seed in seeds:
        for key, results in found.items():
            results.append(cache.compute([part, *key, seed], cell, *key, seed))
    rows = []
    for results in found.values():
        means = {
            column: float(np.mean([one[column] for one in results]))
            for column in results[0]
            if all(one.get(column) is not None for one in results)
        }
        rows.append({"part": part, **means, "each": results})
    return rows


def run_rows(options, cache, seeds):
    from benchmarks.generator_methods import METHODS

    names = options.pick(options.extra["data"].split(","), ["8 Gaussians"])
    keys = [
        (name, method)
        for name in names
        for method in ("real rows", *METHODS)
        if name == "digits" or not method.startswith("same, ")
    ]

    def cell(name, method, seed):
        return cell_rows(name, method, seed, options.pick(UPDATES, 5))

    rows = run_cells("rows", keys, cell, cache, seeds)
    return [
        {**row, "data": name, "method": method}
        for row, (name, method) in zip(rows, keys, strict=True)
    ]


def run_critics(options, cache, seeds):
    updates = options.pick(UPDATES, 5)
    keys = [(n_critics,) for n_critics in options.pick(CRITICS, CRITICS[:2])]
    rows = run_cells("critics", keys, lambda n, seed: cell_critics(n, seed, updates), cache, seeds)
    return [
        {**row, "data": "digits", "method": f"{n} critics", "n_critics": n}
        for row, (n,) in zip(rows, keys, strict=True)
    ]


def run_images(options, cache, seeds):
    images = None

    def found(method, seed):
        return cache.find(json.dumps(["images", method, BY_UPDATES, seed]))

    def cell(method, rule, seed):
        nonlocal images
        if images is None:
            images = load_images(options.quick)
        updates = options.pick(IMAGE_UPDATES, 2)
        if rule == BY_TIME:
            base, own = found(BASE, seed), found(method, seed)
            updates = max(1, round(base["seconds"] / own["seconds"] * own["updates"]))
        return cell_images(method, seed, updates, images)

    keys = [
        (BASE, BY_UPDATES),
        *[(str(n), BY_UPDATES) for n in options.pick(CRITICS, CRITICS[:1])],
        *[(str(n), BY_TIME) for n in options.pick(CRITICS, CRITICS[:1])],
    ]
    rows = run_cells("images", keys, cell, cache, seeds)
    return [
        {
            **row,
            "data": "mnist",
            "method": method if method == BASE else f"{method} critics, {rule}",
            "n_critics": None if method == BASE else int(method),
            "rule": rule,
        }
        for row, (method, rule) in zip(rows, keys, strict=True)
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
        for row, (data, coupling, n_jobs) in zip(rows, keys, strict=True)
    ]


def make_targets(rows):
    """Return what the rows say to the numbers that were asked for."""
    found = {(row["part"], row["data"], row["method"]): row for row in rows}
    targets = []
    ours = found.get(("rows", "digits", "WassersteinGenerator"))
    for name in (BASE, PLAIN):
        base = found.get(("rows", "digits", name))
        if ours and base:
            targets += [
                Target.at_most(f"digits: W2 over that of {name}", 0.88, ours["W2"] / base["W2"]),
                Target.at_most(
                    f"digits: seconds over those of {name}",
                    1 / 3,
                    ours["seconds"] / base["seconds"],
                ),
            ]
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
    base = found.get(("images", "mnist", BASE))
    ours = found.get(("images", "mnist", f"4 critics, {BY_TIME}"))
    if ours and base:
        targets.append(
            Target.at_most(
                f"mnist: Frechet distance over {BASE}'s, 4 critics, {BY_TIME}",
                1.0,
                ours["distance"] / base["distance"],
            )
        )
    return targets


def run(options):
    cache = Cache(None if options.quick else "generator", options.extra["fresh"])
    seeds = options.pick(SEEDS[: options.extra["seeds"]], SEEDS[:1])
    runners = {
        "rows": lambda: run_rows(options, cache, seeds),
        "critics": lambda: run_critics(options, cache, seeds),
        "images": lambda: run_images(options, cache, seeds),
        "workers": lambda: run_workers(options, cache, seeds),
    }
    rows = options.run_parts("generator", runners)
    rows += predict_rows(rows)
    return Report(
        name="generator",
        title="generated rows: distance to held-out rows, quality, and seconds",
        columns=[
            Column("part", "part"),
            Column("data", "data"),
            Column("method", "method"),
            *[Column(measure, measure, ".3f") for measure in MEASURES],
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
            f"*rows* and *critics*: {UPDATES} updates of the generator, batches of 64, one thread; "
            "seconds are those of the processor. "
            "Measures compare samples with as many held-out rows (a third of all, 1,000 at most), "
            "on columns of unit variance where their units differ. *nearest row* is the distance "
            "of samples to their nearest training row over that of held-out rows. *real rows* are "
            "training rows in place of samples: the floor of W2.",
            f"*images*: MNIST, the generator of a small DCGAN, {IMAGE_UPDATES} updates, or as many "
            f"as take the processor as long as {BASE}; Frechet distance of 5,000 samples to test "
            f"images in the 64 features of a classifier. {BASE} has the best of the learning rates "
            "that were tried on held-out training images, and the same running mean of weights.",
            f"Learning rates of {BASE} and of the sliced distance were chosen on held-out training "
            f"digits, as ours was. *{PLAIN}* has rates of 0.001 and its last weights; "
            "the other networks end with a running mean of their weights.",
            "*workers*: 8 critics; the goal is a mean estimated distance of "
            f"{GOAL:g} on digits, and what the last update reached on images. Seconds are those of "
            "the clock, with the start of processes; those of an update are without it. "
            "*model*: a prediction for 8 critics on as many machines, not a measurement.",
        ],
        plot=plot,
    )
