"""The time of a training step with transport losses, and with naive versions of them."""

import time

from benchmarks.harness import Measured, compare
from skdml._optional import optional_import

# 16 classes of 5 images of 32 x 32, whose map has 4 x 4 places.
BATCH, PER_CLASS, SIDE = 80, 5, 32
CLOUD = (16, 4)
BASE, OURS = "triplet", "wtriplet"


def make_step(loss, calls):
    """Return a function that takes training steps and measures the processor's time of one."""
    torch = optional_import("torch", "this benchmark")
    from skdml.deep.modules import ConvNet

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(BATCH) // PER_CLASS
    images = torch.randn(BATCH // PER_CLASS, 1, SIDE, SIDE, generator=generator)[labels]
    images = images + torch.randn(BATCH, 1, SIDE, SIDE, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = ConvNet((1, SIDE, SIDE), 64, head="points")
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)

    def side():
        start = time.process_time()
        for _ in range(calls):
            optimizer.zero_grad()
            loss(network(images), labels).backward()
            optimizer.step()
        return Measured((time.process_time() - start) / calls)

    return side


def all_pairs(embeddings, labels, margin=0.2):
    """Return the triplet loss over all pairs, each solved with its own two self-terms."""
    torch = optional_import("torch", "this benchmark")
    from skdml.deep.losses._wasserstein import WassersteinTripletLoss, make_clouds

    clouds = make_clouds(embeddings, CLOUD)
    first, second = torch.triu_indices(len(labels), len(labels), 1)
    # Copies, as if each pair came with clouds of its own.
    pairs = torch.arange(len(first))
    copies = torch.cat([clouds[first], clouds[second]])
    values = WassersteinTripletLoss().divergences(copies, pairs, pairs + len(first))
    distances = torch.zeros(len(labels), len(labels)).index_put((first, second), values)
    distances = distances + distances.T
    same = labels[:, None] == labels
    anchors, positives = (same & ~torch.eye(len(labels), dtype=bool)).nonzero(as_tuple=True)
    losses = distances[anchors, positives][:, None] - distances[anchors] + margin
    return (losses.relu() * ~same[anchors]).sum() / (~same[anchors]).sum()


def between_batches(embeddings, labels, margin=0.2):
    """Return the triplet loss of whole batches: anchors, positives, negatives as one cloud each."""
    from skdml.deep.losses._core import unit_rows
    from skdml.transport import sinkhorn_divergence

    # Classes are blocks. The first half of them has anchors and positives, the other negatives.
    rows = unit_rows(embeddings).reshape(2, -1, PER_CLASS, embeddings.shape[1])
    anchors, positives, negatives = rows[0, :, :2], rows[0, :, 2:4], rows[1, :, :2]
    near, far = (
        sinkhorn_divergence(anchors.flatten(0, 1), side.flatten(0, 1))
        for side in (positives, negatives)
    )
    return (near - far + margin).relu()


def run_step(options, cache):
    from skdml.deep.losses import get_loss

    sides = {
        BASE: get_loss(BASE),
        OURS: get_loss(OURS, cloud=CLOUD),
        "wtriplet, exact": get_loss("wtriplet", cloud=CLOUD, solver="exact"),
        "wcontrastive": get_loss("wcontrastive", cloud=CLOUD),
        "all pairs": all_pairs,
        "between batches": between_batches,
    }
    calls = options.pick(full=5, quick=1)
    timings = compare(
        {name: make_step(loss, 1 if loss is all_pairs else calls) for name, loss in sides.items()},
        repeats=options.repeats,
        warmup=1,
    )
    base = timings[BASE].seconds
    return [
        {
            "part": "step",
            "name": name,
            "milliseconds": 1e3 * timing.seconds,
            "ratio": timing.seconds / base,
        }
        for name, timing in timings.items()
    ]
