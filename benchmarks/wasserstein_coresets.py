"""The time and the value of coresets of clouds, and trainings on coresets of samples."""

import itertools
import time
from unittest import mock

import numpy as np

from benchmarks.harness import progress
from benchmarks.wasserstein_data import load_training, make_clouds, mean_of
from skdml._optional import optional_import

N_CLOUDS, N_CHOSEN, CLOUD = 10_000, 1_000, (16, 4)
CORESET, SEEDS = 0.2, (0, 1, 2, 3, 4)
TRAININGS = ("full", "coreset", "random", "random, redrawn")


def coreset_value(divergences, chosen):
    return float((divergences.max() - divergences[:, chosen].min(axis=1)).sum())


def all_divergences(rows):
    """Return the matrix of exact transport costs."""
    from skdml.transport import CloudMetric

    first, second = np.triu_indices(len(rows), 1)
    divergences = np.zeros((len(rows), len(rows)))
    costs = CloudMetric(CLOUD, solver="exact").pair_distance(rows[first], rows[second]) ** 2
    divergences[first, second] = divergences[second, first] = costs
    return divergences


def run_selection(options, cache):
    return [
        row
        for n_kinds in (50, None)
        for row in select_clouds(n_kinds, options.pick(full=1, quick=20))
    ]


def select_clouds(n_kinds, scale):
    """Time a coreset of many clouds, and compare the value of one of some with the exact one."""
    from skdml.transport import wasserstein_coreset

    clouds = make_clouds(N_CLOUDS // scale, CLOUD, n_kinds)
    start = time.perf_counter()
    wasserstein_coreset(clouds, size=N_CHOSEN // scale, cloud=CLOUD, random_state=0)
    seconds = time.perf_counter() - start
    progress(f"{len(clouds)} clouds: {seconds:.0f} s")
    some = clouds[: N_CHOSEN // scale]
    divergences = all_divergences(some)
    values = [
        coreset_value(
            divergences,
            wasserstein_coreset(
                some,
                size=0.1,
                cloud=CLOUD,
                n_candidates=n_candidates,
                solver="exact",
                random_state=0,
            )[0],
        )
        for n_candidates in (32, None)
    ]
    common = {"part": "selection", "data": f"{n_kinds} kinds" if n_kinds else "noise"}
    return [
        {**common, "name": f"{len(clouds):,} clouds to a tenth", "seconds": seconds},
        {**common, "name": f"{len(some):,} clouds to a tenth", "ratio": values[0] / values[1]},
    ]


def choose_at_random(kind):
    """Return a function that draws a random share of each class in place of a coreset."""
    n_draws = itertools.count()

    def choose(config, net, samples, codes):
        seed = config.seed if kind == "random" else [config.seed, next(n_draws)]
        rng = np.random.default_rng(seed)
        rows = [np.flatnonzero(codes == label) for label in np.unique(codes)]
        rows = [rng.permutation(own)[: int(np.ceil(CORESET * len(own)))] for own in rows]
        return np.concatenate(rows)

    return choose


def score_training(data, kind, seed, options):
    """Return recall@1 on test samples and CPU seconds of the fit, with the choice of samples."""
    torch = optional_import("torch", "this benchmark")
    torch.set_num_threads(1)
    X, y, X_test, y_test, params = load_training(data, seed)
    from skdml import DeepMetricEmbedder
    from skdml.deep import _clouds

    model = DeepMetricEmbedder(
        coreset=None if kind == "full" else CORESET, random_state=seed, **params
    )
    choose = choose_at_random(kind) if kind.startswith("random") else _clouds.choose_coreset
    if options.quick:
        model.set_params(max_epochs=1)
    start = time.process_time()  # of this process and its one thread, whatever else runs
    with mock.patch.object(_clouds, "choose_coreset", choose):
        model.fit(X, y)
    seconds = time.process_time() - start
    return {"recall@1": 100 * model.score(X_test, y_test), "seconds": seconds}


def run_training(options, cache):
    rows = []
    for data in options.pick(full=["letter", "Fashion-MNIST"], quick=["letter"]):
        for kind in TRAININGS:
            results = [
                cache.compute(
                    ["training", data, kind, seed], score_training, data, kind, seed, options
                )
                for seed in options.pick(full=SEEDS, quick=SEEDS[:1])
            ]
            recalls = [one["recall@1"] for one in results]
            row = {"part": "training", "data": data, "name": kind, **mean_of(results)}
            rows.append({**row, "recalls": recalls})
    for row in rows:
        full = next(one for one in rows if one["data"] == row["data"] and one["name"] == "full")
        row["ratio"] = row["seconds"] / full["seconds"]
    return rows
