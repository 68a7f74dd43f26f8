"""One fit on several ranks, in a process of its own: JSON in, JSON out.

``python -m benchmarks.distributed_fit '{"data": "omniglot", "params": {...}}'``
"""

import json
import os
import subprocess
import sys
import uuid
from contextlib import contextmanager

import numpy as np

from benchmarks.data import load_omniglot

# A queue of half a second, and bursts of a few packets as large as the loopback device has them.
_SHAPE = "tbf rate {rate}mbit burst 1mb latency 500ms"


def load(subset):
    X, y = load_omniglot(subset)
    return X.reshape(-1, 1, 28, 28), y


def fit(params, flat=False):
    """Fit on the training characters, and measure on those of other alphabets."""
    from skdml import DeepMetricEmbedder
    from skdml.deep import Distributed
    from skdml.metrics import recall_at_k

    X, y = load("train")
    X_test, y_test = load("test")
    if flat:
        X, X_test = X.reshape(len(X), -1), X_test.reshape(len(X_test), -1)
    params = {name: tuple(v) if isinstance(v, list) else v for name, v in params.items()}
    names = set(Distributed().get_params()) & set(params)
    options = Distributed(**{name: params.pop(name) for name in names})
    model = DeepMetricEmbedder(distributed=options, **params).fit(X, y)
    return {
        "recall": 100 * float(recall_at_k(model.transform(X_test), y_test, k=1)),
        "epoch_seconds": np.diff(model.history_["seconds"], prepend=0).tolist(),
        "losses": model.history_["loss"],
        "consensus": model.consensus_.tolist(),
        "traffic": model.traffic_,
        "timing": model.timing_,
        "parameters": {
            "head": sum(p.numel() for p in model.module_.head.parameters()),
            "backbone": sum(p.numel() for p in model.module_.backbone.parameters()),
        },
    }


@contextmanager
def limited_link(rate):
    """Make a network of its own, whose loopback carries so many megabits per second.

    Yields the words to put in front of a command; None where this needs rights that there are not.
    """
    name = f"skdml-{uuid.uuid4().hex[:8]}"
    inside = ["ip", "netns", "exec", name]
    commands = [
        ["ip", "netns", "add", name],
        [*inside, "ip", "link", "set", "lo", "up"],
        [*inside, "tc", "qdisc", "add", "dev", "lo", "root", *_SHAPE.format(rate=rate).split()],
    ]
    try:
        for command in commands:
            subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        yield None
        return
    try:
        yield inside
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def fit_behind(rate, params, flat):
    """Fit behind a limited link; None where there can be no such link."""
    with limited_link(rate) as inside:
        if inside is None:
            return None
        order = json.dumps({"params": params, "flat": flat})
        command = [*inside, sys.executable, "-m", "benchmarks.distributed_fit", order]
        done = subprocess.run(
            command,
            check=True,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
        )
        return json.loads(done.stdout.splitlines()[-1])


def predict_step(sync, size, sizes, compute, rate, latency, efficiency=1.0):
    """Predict the seconds of a step on machines that each have a link of their own.

    The ring is on its way from the beginning of a step and needs no one but two neighbours. An
    all-reduce begins with the backward pass, two thirds of the step, and goes around twice. The
    head and the gathered embeddings have nothing to hide behind.

    Parameters
    ----------
    sync : {"allreduce", "hybrid"}
        How.
    size : int
        Machines.
    sizes : dict
        Bytes of "head" and "backbone", and of the embeddings of one rank, "mining".
    compute : float
        Seconds of a step without others.
    rate, latency : float
        Bytes per second of a link, and seconds until a message arrives.
    efficiency : float
        The share of the rate that is used.

    Returns
    -------
    seconds : float
        Of a step.
    """
    rate = rate * efficiency
    around = 2 * (size - 1)

    def all_reduce(n_bytes):
        return around * latency + around / size * n_bytes / rate

    gather = 2 * (size - 1) * latency + (size - 1) * sizes["mining"] / rate
    if sync == "allreduce":
        total = all_reduce(sizes["head"] + sizes["backbone"])
        return compute / 3 + gather + max(2 * compute / 3, total)
    ring = latency + sizes["backbone"] / rate
    return max(compute + gather + all_reduce(sizes["head"]), ring)


def fit_efficiency(measured, sizes, compute, size):
    """Return the share of a link's rate that explains measured steps best.

    `measured` has rows (sync, bytes per second of one rank, seconds of a step).
    """
    shares = np.linspace(0.3, 1.0, 71)

    def error(share):
        return sum(
            np.log(predict_step(sync, size, sizes, compute, rate, 5e-5, share) / seconds) ** 2
            for sync, rate, seconds in measured
        )

    return float(min(shares, key=error))


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    print(json.dumps(fit(order["params"], order["flat"])))
