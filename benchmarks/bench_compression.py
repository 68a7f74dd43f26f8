"""Compressed gradients on four ranks: bytes on the wire, a slow link, recall of unseen characters.

Parts: "traffic" reads from the sockets what a large network sends in its second epoch, the first
has steps in which PowerSGD sends all; "link" does the same in a network of its own whose rate is
limited; "quality" trains on Omniglot with the default length. Results are kept as they come
(`--fresh` starts anew).
"""

import numpy as np

from benchmarks.bench_distributed import LARGE, RANKS, RATE, SEEDS, sent
from benchmarks.cache import Cache
from benchmarks.distributed_fit import fit, fit_behind
from benchmarks.harness import Column, Report, Target

REPEATS = 1
PARTS = ("traffic", "link", "quality")
COMPRESSIONS = (None, "fp16", "powersgd")
# The most bytes, as a share of those of plain all-reduce: half, to two digits, and a fiftieth.
MOST = {"fp16": 0.505, "powersgd": 0.02}


def add_arguments(parser):
    parser.add_argument("--parts", default=",".join(PARTS), help="comma separated")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")


def run(options):
    parts = options.parts(PARTS)
    cache = Cache(None if options.quick else "compression", options.extra["fresh"])
    common = {"n_workers": RANKS, "timeout": 300, "sync": "allreduce"}
    seeds = SEEDS[: options.pick(None, 1)]
    found = {}
    for compression in COMPRESSIONS:
        given = {**common, "compression": compression}
        if "traffic" in parts:
            found["traffic", compression] = [
                cache.compute(
                    ["traffic", compression, epochs],
                    fit,
                    {**LARGE, **given, "max_epochs": epochs},
                    True,
                )
                for epochs in (1, 2)
            ]
        if "link" in parts:
            key = ["link", compression, RATE]
            params = {**LARGE, **given, "max_epochs": 2}
            found["link", compression] = cache.compute(key, behind, params)
        if "quality" in parts:
            small = {"module": "convnet", "augment": "affine", **given}
            if options.quick:
                small["max_epochs"] = 1
            found["quality", compression] = [
                cache.compute(["quality", compression, seed], fit, {**small, "random_state": seed})
                for seed in seeds
            ]
    return Report(
        name="compression",
        title=f"compressed gradients on {RANKS} ranks",
        columns=[
            Column("compression", "compression"),
            Column("megabytes", "MB sent per rank and step", ".3f"),
            Column("seconds", "seconds of an epoch", ".1f"),
            Column("slow", f"the same, {RATE} Mbit/s", ".1f", plot=True),
            Column("recall", "recall@1", ".2f", plot=True),
            Column("spread", "± between seeds", ".2f"),
        ],
        rows=[row_of(found, compression) for compression in COMPRESSIONS],
        targets=targets(found),
        parameters={"ranks": RANKS, "rate": RATE, "seeds": len(seeds)},
        notes=[
            "Bytes are those that the sockets of a rank counted in the steps of the second epoch, "
            "with the gathered embeddings; seconds are those of the second epoch. The network of "
            "the first columns has 6.9 million weights; Omniglot has the default network, batch "
            "and length of training. Four ranks share the cores of one machine."
        ],
    )


def behind(params):
    """Fit behind a limited link; empty where there can be no such link."""
    return fit_behind(RATE, params, True) or {}


def in_second_epoch(one, two):
    """Return the bytes of a step of the second epoch, from the means over one and two epochs."""
    return 2 * sent(two) - sent(one)


def row_of(found, compression):
    traffic, link = (found.get((part, compression)) for part in ("traffic", "link"))
    recalls = [entry["recall"] for entry in found.get(("quality", compression), [])]
    return {
        "compression": compression or "none",
        "megabytes": in_second_epoch(*traffic) / 1e6 if traffic else None,
        "seconds": traffic[1]["epoch_seconds"][1] if traffic else None,
        "slow": link["epoch_seconds"][1] if link else None,
        "recall": float(np.mean(recalls)) if recalls else None,
        "spread": float(np.std(recalls, ddof=1)) if len(recalls) > 1 else None,
    }


def targets(found):
    goals = []
    plain = row_of(found, None)
    for compression, most in MOST.items():
        row = row_of(found, compression)
        if plain["megabytes"]:
            share = row["megabytes"] / plain["megabytes"]
            goals.append(Target.at_most(f"bytes of {compression} over none", most, share))
        if plain["recall"]:
            loss = row["recall"] - plain["recall"]
            goals.append(Target.at_least(f"recall@1 of {compression} minus none", -1.0, loss))
        if compression == "powersgd" and plain["slow"]:
            faster = plain["slow"] / row["slow"]
            goals.append(Target.at_least("slow link: epoch of none over powersgd", 5.0, faster))
    return goals
