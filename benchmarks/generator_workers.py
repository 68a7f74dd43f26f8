"""Seconds of WassersteinGenerator by the number of workers: measured, and by a cost model."""

import time

import numpy as np

from benchmarks.data import load_mnist
from benchmarks.generator_data import load_rows
from benchmarks.generator_plots import BY_TIME, CRITICS
from benchmarks.harness import limited_threads

# On digits: a mean distance in training, in pixels of 0 to 16.
GOAL = 25.0
UPDATES = {"digits": 400, "mnist": 200}


def timed(call, clock=time.process_time):
    """Return the result of a call on one thread, and its seconds: those of the processor."""
    import torch._dynamo  # noqa: F401  (optimisers import it when first used)

    with limited_threads(1):
        start = clock()
        result = call()
        return result, clock() - start


def cell_workers(data, coupling, n_jobs, seed, quick):
    """Return the seconds of a fit, and those to the goal: on images, what the last update reached.

    The samples are the same for any number of processes, and so is the update that gets there.
    """
    from benchmarks.generator_images import image_networks
    from skdml import WassersteinGenerator

    updates = 3 if quick else UPDATES[data]
    params = {"n_critics": 8, "coupling": coupling, "max_iter": updates, "random_state": seed}
    if data == "digits":
        params["cost"] = "squared"
        X = load_rows("digits")[0]
    else:
        X = load_mnist("train")[0]
        params.update(image_networks())
    model = WassersteinGenerator(**params, n_jobs=n_jobs)
    _, seconds = timed(lambda: model.fit(X), time.perf_counter)
    curve = model.history_["seconds"]
    first = updates
    if data == "digits" and not quick:
        smooth = np.convolve(model.history_["wasserstein"], np.full(20, 0.05), mode="valid")
        reached = np.flatnonzero(smooth <= GOAL)
        first = 20 + int(reached[0]) if len(reached) else None
    return {
        "updates": updates,
        "seconds": seconds,
        "to goal": None if first is None else float(curve[first - 1]),
        "ms": 1e3 * float(curve[-1] - curve[0]) / (updates - 1),
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


def predict_rows(rows):
    """Return rows of the cost model for more workers than there are cores here.

    Seconds of the generator and of a critic are those of a line through the fits by the number of
    critics, which run in one process; bytes are those of *workers*.
    """
    predicted = []
    for data, part in (("digits", "critics"), ("mnist", "images")):
        fits = [
            row
            for row in rows
            if (row["part"], row["data"]) == (part, data)
            and row.get("n_critics")
            and row.get("rule") != BY_TIME
        ]
        workers = [
            row
            for row in rows
            if row["part"] == "workers" and row["data"] == data and "shared" in row["method"]
        ]
        if len(fits) < 2 or not workers:
            continue
        critic, generator = np.polyfit(
            [row["n_critics"] for row in fits], [row["seconds"] / row["updates"] for row in fits], 1
        )
        for n_workers in CRITICS:
            seconds = predict_seconds(
                n_workers,
                critic=critic,
                generator=max(generator, 0.0),
                n_critics=8,
                n_rounds=7,
                n_bytes=workers[0]["bytes"],
                rate=10e9 / 8,
                latency=50e-6,
            )
            updates = fits[0]["updates"]
            predicted.append(
                {
                    "part": "model",
                    "data": data,
                    "method": f"{n_workers} machines, 10 Gbit/s, 50 microseconds",
                    "n_workers": n_workers,
                    "updates": updates,
                    "seconds": updates * seconds,
                }
            )
    return predicted
