"""Seconds of training by DeepMetricEmbedder and by a hand-written loop, same network and loss.

The loop draws its batches as simply as can be, and does nothing but forward, loss, backward and
steps of the optimiser and of the learning rate. Both train the same network on as many batches.
The share of drawing batches in a fit is measured by drawing them alone.
"""

import time

import numpy as np

from benchmarks.harness import Column, Measured, Report, Target, compare
from skdml._optional import optional_import

REPEATS = 5
LR = 0.002
N_CLASSES, PER_CLASS = 16, 5
SIDES = ("loop", "skdml", "batches alone")


def make_case(name, quick):
    """Return samples and classes, and the parameters of the estimator."""
    rng = np.random.default_rng(0)
    n_classes = 40
    y = np.repeat(np.arange(n_classes), 20 if quick else 60)
    shape = (1, 28, 28) if name == "convnet" else (64,)
    centres = rng.standard_normal((n_classes, *shape))
    X = (centres[y] + rng.standard_normal((len(y), *shape))).astype(np.float32)
    epochs = {"convnet": 1, "mlp": 6}[name]
    return X, y, {"module": name, "max_epochs": 1 if quick else epochs}


def train_by_hand(X, y, params):
    """Train as a person would who has written the loop for this case."""
    torch = optional_import("torch", "this benchmark")
    from skdml.deep._data import MIN_BATCHES
    from skdml.deep.losses import get_loss
    from skdml.deep.modules import NAMED

    torch.manual_seed(0)
    X, y = torch.from_numpy(X), torch.from_numpy(y)
    data = {"convnet": {"input_shape": X.shape[1:]}, "mlp": {"n_features": X[0].numel()}}
    network = NAMED[params["module"]](n_components=64, **data[params["module"]])
    loss_of = get_loss("multi-similarity")
    optimizer = torch.optim.Adam(network.parameters(), lr=LR)
    n_steps = params["max_epochs"] * max(MIN_BATCHES, -(-len(X) // (N_CLASSES * PER_CLASS)))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    rows = [torch.nonzero(y == label)[:, 0] for label in torch.unique(y)]
    network.train()
    for _ in range(n_steps):
        labels = torch.randperm(len(rows))[:N_CLASSES]
        index = torch.cat([rows[k][torch.randperm(len(rows[k]))[:PER_CLASS]] for k in labels])
        optimizer.zero_grad()
        loss = loss_of(network(X[index]), y[index])
        loss.backward()
        optimizer.step()
        schedule.step()
        loss.item()


def fit(X, y, params):
    from skdml import DeepMetricEmbedder

    DeepMetricEmbedder(lr=LR, random_state=0, **params).fit(X, y)


def draw_batches(X, y, params):
    torch = optional_import("torch", "this benchmark")
    from skdml.deep._data import ClassBatches

    rng = np.random.default_rng(0)
    batches = ClassBatches(torch.from_numpy(X), torch.from_numpy(y), N_CLASSES, PER_CLASS, rng)
    for _ in range(params["max_epochs"]):
        for _ in batches:
            pass


def processor_time(function, *args):
    """Make a side that is timed by the processor: other programs count less."""

    def side():
        start = time.process_time()
        function(*args)
        return Measured(time.process_time() - start)

    return side


def run(options):
    rows, targets = [], []
    for name in ("convnet", "mlp"):
        case = make_case(name, options.quick)
        functions = zip(SIDES, (train_by_hand, fit, draw_batches), strict=True)
        sides = {side: processor_time(function, *case) for side, function in functions}
        timings = compare(sides, repeats=options.repeats, warmup=1)
        base = timings["loop"].seconds
        part = [
            {
                "case": name,
                "side": side,
                "seconds": timing.seconds,
                "ratio": timing.seconds / base,
            }
            for side, timing in timings.items()
        ]
        rows += part
        targets += [
            Target.at_most(f"{name}: a fit's seconds over the loop's", 1.1, part[1]["ratio"]),
            Target.at_most(f"{name}: share of drawing batches", 0.1, part[2]["ratio"]),
        ]
    return Report(
        name="deep-speed",
        title="training of a network: DeepMetricEmbedder beside a hand-written loop",
        columns=[
            Column("case", "network"),
            Column("side", "side"),
            Column("seconds", "seconds", ".2f", plot=True),
            Column("ratio", "x loop", ".2f"),
        ],
        rows=rows,
        targets=targets,
        notes=[
            "Time of the processor, one thread. The fit includes checks of the input, the history, "
            "the progress, and the copies of the weights after each epoch.",
        ],
    )
