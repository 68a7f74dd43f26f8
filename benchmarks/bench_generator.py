"""Generated rows by WassersteinGenerator and by others: quality, critics, images and workers.

Parts: "rows" draws rows of six data sets by five methods, and digits by variants of ours; "critics"
has digits by the number of critics; "images" has MNIST with convolutions and a learned cost against
WGAN-GP, at as many updates and at as many seconds; "workers" has the seconds to a distance by the
number of processes. Results are kept as they come: a run that was interrupted goes on where it
stopped (`--fresh` starts anew).
"""

import json
import time

import numpy as np
from sklearn.datasets import load_digits, make_swiss_roll
from sklearn.model_selection import train_test_split

from benchmarks.cache import Cache
from benchmarks.generator_plots import BASE, CRITICS, plot
from benchmarks.harness import Column, Report, Target, limited_threads, progress

REPEATS = 1
SEEDS = (0, 1, 2)
PARTS = ("rows", "critics", "images", "workers")
UPDATES = 1500  # of digits
OTHER_UPDATES = 300
IMAGE_UPDATES = 300
TIMED_CRITICS = (4,)
MOST_TEST_ROWS = 1000
MOST_TRAINING_ROWS = 3000
DATA = ("digits", "8 Gaussians", "swiss roll", "segment", "letter", "usps")
MEASURES = ("W2", "precision", "recall", "density", "coverage", "nearest row")
# The distance on digits, in pixels of 0 to 16, that "workers" waits for.
GOAL = 27.0


def add_arguments(parser):
    parser.add_argument("--parts", default=",".join(PARTS), help="comma separated")
    parser.add_argument("--data", default=",".join(DATA), help="comma separated, for rows")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")


def eight_gaussians(n_samples, seed):
    rng = np.random.default_rng(seed)
    angle = rng.integers(8, size=n_samples) * np.pi / 4
    return 2 * np.column_stack([np.cos(angle), np.sin(angle)]) + 0.1 * rng.standard_normal(
        (n_samples, 2)
    )


def load_rows(name):
    """Return at most 3,000 training rows and 1,000 test rows; the latter are a third, or fewer."""
    from skdml.datasets import fetch_uci, fetch_usps

    if name == "digits":
        X = load_digits().data
    elif name == "8 Gaussians":
        X = eight_gaussians(3000, 0)
    elif name == "swiss roll":
        X = make_swiss_roll(3000, noise=0.3, random_state=0)[0]
    elif name == "usps":
        X = fetch_usps(subset="train", return_X_y=True)[0]
    else:
        X = fetch_uci(name, return_X_y=True)[0]
    X = np.asarray(X, dtype=np.float64)
    n_test = min(len(X) // 3, MOST_TEST_ROWS)
    train, test = train_test_split(X, test_size=n_test, random_state=0)
    return train[:MOST_TRAINING_ROWS], test


def judge_rows(train, test, made):
    """Return the measures, on columns of unit variance where their units differ."""
    from skdml.generate._columns import learn_columns
    from skdml.metrics import nearest_row_ratio, sample_quality, wasserstein_distance

    columns = learn_columns(train)
    train, test, made = (columns.unit * columns.encode(rows) for rows in (train, test, made))
    quality = sample_quality(test, made)
    values = wasserstein_distance(test, made), *quality, nearest_row_ratio(train, test, made)
    return dict(zip(MEASURES, map(float, values), strict=True))


def timed(call, clock=time.process_time):
    """Return the result of a call on one thread, and its seconds: those of the processor."""
    import torch._dynamo  # noqa: F401  (optimisers import it when first used)

    with limited_threads(1):
        start = clock()
        result = call()
        return result, clock() - start


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
    estimated = float(model.wasserstein_curve_[-100:].mean())
    return {**measures, "estimated": estimated, "seconds": seconds}


def load_images(quick):
    from benchmarks.generator_images import Judge
    from skdml.datasets import fetch_mnist

    X, y = fetch_mnist(subset="train", return_X_y=True)
    real = fetch_mnist(subset="test", return_X_y=True)[0]
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


def fit_images(X, seed, updates, n_critics):
    from benchmarks.generator_images import LATENT, image_critic, image_generator
    from benchmarks.generator_methods import transport

    return transport(
        X,
        seed,
        updates,
        n_critics=n_critics,
        module=image_generator,
        critic_module=image_critic,
        latent_dim=LATENT,
    )


def cell_images(method, seed, updates, images):
    """Return the distance after so many updates."""
    X, judge = images

    def fit():
        if method == BASE:
            return fit_wgan_images(X, seed, updates)
        return fit_images(X, seed, updates, int(method))

    draw, seconds = timed(fit)
    distance = judge.distance(draw(5000, seed))
    return {"distance": distance, "updates": updates, "seconds": seconds}


def cell_workers(n_jobs, coupling, seed, updates):
    """Return the seconds of a fit and the first update at which the distance is reached."""
    from skdml import WassersteinGenerator

    train, _ = load_rows("digits")
    model = WassersteinGenerator(
        n_critics=8, coupling=coupling, n_jobs=n_jobs, max_iter=updates, random_state=seed
    )
    _, seconds = timed(lambda: model.fit(train), time.perf_counter)
    smooth = np.convolve(model.wasserstein_curve_, np.full(20, 0.05), mode="valid")
    reached = np.flatnonzero(smooth <= GOAL)
    first = int(reached[0]) + 20 if len(reached) else None
    return {
        "updates": updates,
        "seconds": seconds,
        "to goal": None if first is None else seconds * first / updates,
        "bytes": model.traffic_["update"],
        "all-reduce bytes": model.traffic_["all_reduce"],
    }


def predict_seconds(n_workers, *, critic, generator, n_critics, n_rounds, n_bytes, rate, latency):
    """Return the seconds of an update by a cost model.

    Parameters
    ----------
    n_workers : int
        Processes or machines for the critics.
    critic, generator : float
        Seconds of one critic, and of the generator, in an update.
    n_critics, n_rounds : int
        Critics in all, and rounds of messages in an update.
    n_bytes : float
        Bytes between the generator and one critic. All go through the generator's link.
    rate, latency : float
        Bytes per second of that link, and seconds until a message arrives.

    Returns
    -------
    seconds : float
        Of an update.
    """
    here = generator + -(-n_critics // n_workers) * critic
    if n_workers == 1:
        return here
    return here + 2 * n_rounds * latency + n_critics * n_bytes / rate


# The parts


def run_cells(part, keys, cell, cache, seeds):
    """Return a row of means over the seeds for each key, from the cache where it knows them."""
    rows = []
    for key in keys:
        results = []
        for seed in seeds:
            name = json.dumps([part, *key, seed])
            result = cache.find(name)
            if result is None:
                progress(name)
                result = cell(*key, seed)
                cache.add(name, result)
            results.append(result)
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
        updates = UPDATES if name == "digits" else OTHER_UPDATES
        return cell_rows(name, method, seed, options.pick(updates, 5))

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
        return cache.find(json.dumps(["images", method, "as many updates", seed]))

    def cell(method, rule, seed):
        nonlocal images
        if images is None:
            images = load_images(options.quick)
        updates = options.pick(IMAGE_UPDATES, 2)
        if rule == "as many seconds":
            base, own = found(BASE, seed), found(method, seed)
            updates = max(1, round(base["seconds"] / own["seconds"] * own["updates"]))
        return cell_images(method, seed, updates, images)

    keys = [
        (BASE, "as many updates"),
        *[(str(n), "as many updates") for n in options.pick(CRITICS, CRITICS[:1])],
        *[(str(n), "as many seconds") for n in options.pick(TIMED_CRITICS, CRITICS[:1])],
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
    updates = options.pick(400, 5)
    keys = [(n_jobs, coupling) for coupling in ("shared", "separate") for n_jobs in (1, 2)]
    rows = run_cells(
        "workers",
        keys,
        lambda n, coupling, seed: cell_workers(n, coupling, seed, updates),
        cache,
        seeds[:1],
    )
    return [
        {
            **row,
            "data": "digits",
            "method": f"{n_jobs} processes, {coupling} coupling",
            "n_workers": n_jobs,
        }
        for row, (n_jobs, coupling) in zip(rows, keys, strict=True)
    ]


def predict_rows(rows):
    """Return rows of the cost model for more workers than there are cores here.

    Seconds of the generator and of a critic are those of a line through the fits of *critics*,
    which run in one process; bytes are those of *workers*.
    """
    critics = [row for row in rows if row["part"] == "critics"]
    workers = [row for row in rows if row["part"] == "workers" and "shared" in row["method"]]
    if len(critics) < 2 or not workers:
        return []
    numbers = [row["n_critics"] for row in critics]
    seconds = [row["seconds"] / UPDATES for row in critics]
    slope, start = np.polyfit(numbers, seconds, 1)
    return [
        {
            "part": "model",
            "data": "digits",
            "method": f"{n_workers} machines, 10 Gbit/s, 50 microseconds",
            "n_workers": n_workers,
            "updates": UPDATES,
            "seconds": UPDATES
            * predict_seconds(
                n_workers,
                critic=slope,
                generator=max(start, 0.0),
                n_critics=8,
                n_rounds=7,
                n_bytes=workers[0]["bytes"],
                rate=10e9 / 8,
                latency=50e-6,
            ),
        }
        for n_workers in CRITICS
    ]


def make_targets(rows):
    """Return what the rows say to the numbers that were asked for."""
    found = {(row["part"], row["data"], row["method"]): row for row in rows}
    targets = []
    ours = found.get(("rows", "digits", "WassersteinGenerator"))
    base = found.get(("rows", "digits", BASE))
    if ours and base:
        targets += [
            Target.at_most(f"digits: W2 over {BASE}'s", 0.88, ours["W2"] / base["W2"]),
            Target.at_most(
                f"digits: seconds over {BASE}'s", 1 / 3, ours["seconds"] / base["seconds"]
            ),
        ]
    critics = [row for row in rows if row["part"] == "critics"]
    if len(critics) > 1:
        targets.append(
            Target.at_most(
                "digits: W2 of most critics over that of one",
                1.0,
                critics[-1]["W2"] / critics[0]["W2"],
            )
        )
    base = found.get(("images", "mnist", BASE))
    ours = found.get(("images", "mnist", "4 critics, as many seconds"))
    if ours and base:
        targets.append(
            Target.at_most(
                f"mnist: Frechet distance over {BASE}'s, 4 critics, as many seconds",
                1.0,
                ours["distance"] / base["distance"],
            )
        )
    return targets


def run(options):
    parts = options.parts(PARTS)
    cache = Cache(None if options.quick else "generator", options.extra["fresh"])
    seeds = options.pick(SEEDS[: options.extra["seeds"]], SEEDS[:1])
    runners = {
        "rows": run_rows,
        "critics": run_critics,
        "images": run_images,
        "workers": run_workers,
    }
    rows = []
    for part in parts:
        progress(part)
        rows += runners[part](options, cache, seeds)
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
            Column("bytes", "bytes", ",.0f"),
            Column("all-reduce bytes", "all-reduce bytes", ",.0f"),
        ],
        rows=rows,
        targets=make_targets(rows),
        parameters={"updates": UPDATES, "image_updates": IMAGE_UPDATES, "seeds": list(seeds)},
        notes=[
            f"*rows* and *critics*: {UPDATES} updates of the generator on digits, {OTHER_UPDATES} "
            "on other data, batches of 64, one thread; seconds are those of the processor. "
            "Measures compare samples with as many held-out rows (a third of all, 1,000 at most), "
            "on columns of unit variance where their units differ. *nearest row* is the distance "
            "of samples to their nearest training row over that of held-out rows. *real rows* are "
            "training rows in place of samples: the floor of W2.",
            f"*images*: MNIST, the generator of a small DCGAN, {IMAGE_UPDATES} updates, or as many "
            f"as take the processor as long as {BASE}; Frechet distance of 5,000 samples to test "
            f"images in the 64 features of a classifier. {BASE} has the best of the learning rates "
            "that were tried on held-out training images, and the same running mean of weights.",
            "*workers*: digits, 8 critics, one seed; the goal is a mean estimated distance of "
            f"{GOAL:g}, and seconds are those of the clock. "
            "*model*: a prediction for 8 critics on as many machines, not a measurement.",
        ],
        plot=plot,
    )
