"""10,000 pairs in 100 batches by partial_fit, beside one fit to all of them."""

import numpy as np

from benchmarks.harness import Column, Report, Target, compare
from skdml import DITMLTransformer, GMMLTransformer
from skdml.constraints import make_pairs

REPEATS = 5
N_FEATURES = 50
N_BATCHES = 100
LEARNERS = {
    "GMML": (GMMLTransformer(geodesic=0.3), {}),
    "DITML": (DITMLTransformer(gamma=0.1), {"bounds": (100.0, 320.0)}),
}


def make_data(n_pairs):
    """Return rows, and pairs in a random order with their labels."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 4000)
    X = rng.standard_normal((4000, N_FEATURES)) * rng.uniform(0.3, 3, N_FEATURES)
    X[:, :3] += 2 * rng.standard_normal((5, 3))[y]
    pairs, labels = make_pairs(y, n_pairs, random_state=0)
    order = rng.permutation(len(pairs))
    return X, pairs[order], labels[order]


def fit_once(learner, options, X, pairs, labels):
    model = type(learner)(**learner.get_params())
    return model.fit(X, pairs=pairs, pair_labels=labels, **options).metric_


def fit_batches(learner, options, X, pairs, labels):
    model = type(learner)(**learner.get_params())
    for part in np.array_split(np.arange(len(pairs)), N_BATCHES):
        rows, places = np.unique(pairs[part], return_inverse=True)
        places = places.reshape(-1, 2)
        model.partial_fit(X[rows], pairs=places, pair_labels=labels[part], **options)
    return model.metric_


def run(options):
    data = make_data(options.pick(full=10_000, quick=1_000))
    rows, targets = [], []
    for name, learner in LEARNERS.items():
        sides = {
            "one fit": lambda learner=learner: fit_once(*learner, *data),
            "batches": lambda learner=learner: fit_batches(*learner, *data),
        }
        timings = compare(sides, repeats=options.repeats, warmup=1)
        once, batches = timings["one fit"], timings["batches"]
        A = once.value.matrix()
        error = np.abs(batches.value.matrix() - A).max() / np.abs(A).max()
        ratio = batches.seconds / once.seconds
        rows.append(
            {
                "learner": name,
                "once": once.seconds,
                "batches": batches.seconds,
                "ratio": ratio,
                "error": float(error),
            }
        )
        targets.append(Target.at_most(f"{name}: batches over one fit", 5.0, ratio))
        targets.append(Target.at_most(f"{name}: difference of the metrics", 1e-6, float(error)))
    columns = [
        Column("learner", "learner"),
        Column("once", "seconds of one fit", ".3f", plot=True),
        Column("batches", "seconds of 100 batches", ".3f", plot=True),
        Column("ratio", "batches over one fit", ".1f"),
        Column("error", "relative difference", ".1e"),
    ]
    return Report("stream", "10,000 pairs in 100 batches", columns, rows, targets)
