"""Milliseconds of the deep losses, forward and backward, beside pytorch-metric-learning's.

Batches of five rows per class with 1,024 features, the loss alone; time of the processor, which
is that of the clock on a machine with nothing else to do. Three kinds of batches: "trained", with
classes that overlap; "untrained", where a common direction makes all rows alike and nearly every
pair has a loss; "solved", with classes so far apart that the peer's miner keeps no pair.
"""

import time

from benchmarks.harness import PALETTE, Column, Measured, Report, Target, compare
from skdml._optional import optional_import

REPEATS = 9
FEATURES, USED, PER_CLASS = 1024, 32, 5
SIZES = (80, 160, 320, 640)
KINDS = ("trained", "untrained", "solved")
MINED, SEMI_HARD = "PML multi-similarity + miner", "PML triplet semi-hard"
ROBUST = ("dro-topk", "dro-topk-pn", "dro-kl", "dro-kl-ball", "dro-kl-g", "dro-max", "dro-variance")
DRAWN = (MINED, SEMI_HARD, "triplet semi-hard", *ROBUST[:4], "multi-similarity, mined")


def make_batch(size, kind):
    torch = optional_import("torch", "this benchmark")
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    labels = torch.arange(size) // PER_CLASS
    # Embeddings use a small part of their space, where classes overlap.
    rows = normal(size // PER_CLASS, USED)[labels] + 0.8 * normal(size, USED)
    rows = rows @ normal(USED, FEATURES)
    if kind == "solved":
        rows = normal(size // PER_CLASS, FEATURES)[labels] + normal(size, FEATURES)
    if kind == "untrained":
        rows = rows + 3 * rows.norm(dim=1).mean() * normal(1, FEATURES) / FEATURES**0.5
    return rows.requires_grad_(), labels


def make_losses():
    """Return the losses of both sides, by the names of the table."""
    from skdml.deep.losses import get_loss

    peers = optional_import("pytorch_metric_learning.losses", "this benchmark")
    miners = optional_import("pytorch_metric_learning.miners", "this benchmark")
    semi_hard = miners.TripletMarginMiner(margin=0.2, type_of_triplets="semihard")
    weighted = miners.DistanceWeightedMiner()
    return {
        MINED: get_loss(peers.MultiSimilarityLoss(), miner="multi-similarity"),
        "PML multi-similarity": peers.MultiSimilarityLoss(),
        "PML lifted structure": peers.GeneralizedLiftedStructureLoss(),
        "PML margin, distance-weighted": get_loss(peers.MarginLoss(), miner=weighted),
        SEMI_HARD: get_loss(peers.TripletMarginLoss(margin=0.2), miner=semi_hard),
        "multi-similarity, mined": get_loss("multi-similarity", miner="multi-similarity"),
        "multi-similarity": get_loss("multi-similarity"),
        "lifted structure": get_loss("lifted-structure"),
        "margin, distance-weighted": get_loss("margin", miner="distance-weighted"),
        "triplet semi-hard": get_loss("triplet", triplets="semi-hard", margin=0.2),
        "contrastive": get_loss("contrastive"),
        "tuplet": get_loss("n-pair-tuplet"),
        **{name: get_loss(name) for name in ROBUST},
        **{f"{name}, binomial": get_loss(name, pair_loss="binomial") for name in ROBUST},
    }


def make_side(loss, rows, labels, calls):
    def side():
        start = time.process_time()
        for _ in range(calls):
            rows.grad = None
            loss(rows, labels).backward()
        return Measured((time.process_time() - start) / calls)

    return side


def run(options):
    losses = make_losses()
    table = {name: {"side": name} for name in losses}
    sizes = options.pick(SIZES, SIZES[:1])
    settings = [(size, "trained") for size in sizes] + [(sizes[-1], kind) for kind in KINDS[1:]]
    for size, kind in settings:
        batch = make_batch(size, kind)
        calls = max(1, 20 * (80 * 80) // size**2)
        sides = {name: make_side(loss, *batch, calls) for name, loss in losses.items()}
        timings = compare(sides, repeats=options.repeats, warmup=1)
        for name, timing in timings.items():
            table[name][key_of(size, kind)] = 1e3 * timing.seconds
    rows = list(table.values())
    for kind in KINDS:
        for row in rows:
            own = row[key_of(sizes[-1], kind)]
            row[f"ratio {kind}"] = own / table[MINED][key_of(sizes[-1], kind)]
    # Where nothing is mined the peer has nothing to do, and is no measure.
    ratios = [f"ratio {kind}" for kind in KINDS[:2]]
    robust = [row for row in rows if row["side"].startswith("dro")]
    slowest = max(robust, key=lambda row: max(row[ratio] for ratio in ratios))
    semi_hard = max(
        table["triplet semi-hard"][key_of(sizes[-1], kind)]
        / table[SEMI_HARD][key_of(sizes[-1], kind)]
        for kind in KINDS[:2]
    )
    return Report(
        name="deep-losses",
        title=f"milliseconds of a loss, forward and backward, {FEATURES} features, one thread",
        columns=[
            Column("side", "loss"),
            *[Column(key_of(size, "trained"), f"B = {size}", ".2f") for size in sizes[:-1]],
            *[
                column
                for kind in KINDS
                for column in (
                    Column(key_of(sizes[-1], kind), f"{sizes[-1]}, {kind}", ".2f"),
                    Column(f"ratio {kind}", "x PML MS + miner", ".2f"),
                )
            ],
        ],
        rows=rows,
        targets=[
            Target.at_most(
                f"slowest robust loss ({slowest['side']}) over {MINED}, worse of both batches,",
                0.5,
                max(slowest[ratio] for ratio in ratios),
            ),
            Target.at_most("triplet semi-hard over PML's, worse of both batches,", 0.1, semi_hard),
        ],
        parameters={"features": FEATURES, "per_class": PER_CLASS, "sizes": list(sizes)},
        notes=[
            "PML is pytorch-metric-learning, MS its multi-similarity loss. Robust losses are over "
            "the margin loss where no other is named. Trained: classes overlap. Untrained: nearly "
            "all pairs have a loss. Solved: the peer's miner keeps no pair, so that it has neither "
            "loss nor gradient to compute; the targets leave this batch out.",
        ],
        plot=plot,
    )


def key_of(size, kind):
    return f"ms {size} {kind}"


def plot(report, figure):
    """Draw milliseconds against the batch size."""
    figure.set_size_inches(8, 5)
    axes = figure.subplots()
    sizes = report.parameters["sizes"]
    drawn = [row for name in DRAWN for row in report.rows if row["side"] == name]
    for position, row in enumerate(drawn):
        colour = PALETTE[position % len(PALETTE)]
        style = "--" if row["side"].startswith("PML") else "-"
        values = [row[key_of(size, "trained")] for size in sizes]
        axes.plot(sizes, values, style, marker="o", color=colour, label=row["side"])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes, sizes)
    axes.minorticks_off()
    axes.set_xlabel("batch size")
    axes.set_ylabel("milliseconds (logarithmic)")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    axes.spines[["top", "right"]].set_visible(False)
