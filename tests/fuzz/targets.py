"""What the fuzzer calls: for each target, how valid input is drawn and what is done with it."""

import gzip
import importlib
import inspect
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.fuzz import inputs
from tests.fuzz.judge import Case, Step

NAMES = ("RandomState", "Seed")  # as scikit-learn and numpy call a seed
# Parameters of every estimator.
COMMON = {"random_state": [0, 1, None, np.random.RandomState(0)], "verbose": [0, 1]}


class Target(NamedTuple):
    """A function or an estimator.

    `draw` takes a generator of random numbers and a folder for files. `share` is how often it is
    tried, beside others.
    """

    name: str
    draw: Callable[[np.random.Generator, Path], Case]
    share: float
    needs: tuple[str, ...] = ()


TARGETS: list[Target] = []


def target(share, *needs):
    """Register a function that draws cases."""

    def register(draw):
        TARGETS.append(Target(draw.__name__, draw, share, needs))
        return draw

    return register


def choose(rng, choices, share=0.4):
    """Set some of the parameters to some of their values."""
    return {
        name: values[rng.integers(len(values))]
        for name, values in choices.items()
        if rng.random() < share
    }


def arguments_of(function):
    return tuple(name for name in inspect.signature(function).parameters if name != "self")


def call_case(function, arguments, kinds, parameters, **options):
    """Return a case that calls a function once."""
    may_have_nan = options.pop("may_have_nan", False)
    names = arguments_of(function)
    settable = tuple(name for name in names if name not in kinds)
    case = Case(arguments, kinds, parameters, (*names, *NAMES), settable, [], **options)
    step = Step("call", lambda _, given: function(**given, **case.parameters), may_have_nan)
    case.steps.append(step)
    return case


def estimator_case(rng, name, choices, quick, fit, uses, kinds):
    """Return a case that fits an estimator, and uses it.

    `fit` has the arguments of fit by name, and `uses` those of other methods, by method. In them,
    an argument is given as its name in the case.
    """
    cls = getattr(importlib.import_module("skdml"), name)
    parameters = quick | choose(rng, choices | COMMON)
    steps = [Step("fit", _method("fit", {key: key for key in fit}))]
    steps += [Step(method, _method(method, given)) for method, given in uses]
    if rng.random() < 0.02:  # not fitted
        steps = steps[1:]
    settable = tuple(name for name in arguments_of(cls) if name != "kwargs")
    names = (*settable, *fit, *(n for _, given in uses for n in given), *NAMES)
    return Case(dict(fit), kinds, parameters, names, settable, steps, make=cls)


def _method(method, given):
    def call(estimator, arguments):
        chosen = {name: arguments[key] for name, key in given.items() if key in arguments}
        result = getattr(estimator, method)(**chosen)
        return None if result is estimator else result

    return call


# Estimators


def _supervised(rng):
    """Draw labelled rows, pairs of them, and other rows."""
    X, y = inputs.rows(rng)
    test, y_test = inputs.rows(rng, 10, X.shape[1])
    pairs = rng.integers(len(X), size=(30, 2))
    values = {"X": X, "y": y, "test": test, "y_test": y_test, "pairs": pairs}
    values["pair_labels"] = np.where(y[pairs[:, 0]] == y[pairs[:, 1]], 1, -1)
    values["test_pairs"] = rng.integers(10, size=(5, 2))
    values["vectors"] = rng.standard_normal((5, 2, X.shape[1]))
    kinds = {"X": "matrix", "y": "labels", "test": "matrix", "y_test": "labels"}
    kinds |= {"pairs": "indices", "pair_labels": "numbers"}
    kinds |= {"test_pairs": "indices", "vectors": "clouds"}
    return values, kinds


def _part(values, *names):
    return {name: values[name] for name in names}


def _linear(rng, name, choices, quick, extra=None):
    values, kinds = _supervised(rng)
    n_features = values["X"].shape[1]
    choices = choices | {
        "prior": ["identity", "covariance", np.eye(n_features), 2 * np.eye(n_features) + 0.1],
        "n_constraints": [None, 2, 20, 100],
        "n_components": [None, 1, n_features],
        "n_jobs": [None, 1],
    }
    by_pairs = rng.random() < 0.4
    given = _part(values, *(("X", "pairs", "pair_labels") if by_pairs else ("X", "y")))
    uses = [
        ("transform", {"X": "test"}),
        ("pair_distance", {"pairs": "test_pairs", "X": "test"}),
        ("pair_distance", {"pairs": "vectors"}),
        ("get_mahalanobis_matrix", {}),
    ]
    case = estimator_case(rng, name, choices, quick, given | (extra or {}), uses, kinds)
    case.arguments |= _part(values, "test", "test_pairs", "vectors")
    return case


@target(16)
def gmml(rng, folder):
    choices = {"geodesic": [0, 0.3, 0.5, 1], "reg": [1e-6, 0.1, 1.0, 100]}
    return _linear(rng, "GMMLTransformer", choices, {})


@target(8)
def ditml(rng, folder):
    choices = {
        "gamma": [0.1, 1, 100.0, np.inf],
        "bound_percentiles": [(5, 95), [20, 80], "median"],
        "solver": ["auto", "newton", "parallel", "sequential"],
        "tol": [1e-6, 1e-3],
    }
    extra = {"bounds": (0.5, 5.0)} if rng.random() < 0.2 else {}
    return _linear(rng, "DITMLTransformer", choices, {"max_iter": 20, "n_constraints": 50}, extra)


@target(5)
def local_gmml(rng, folder):
    X, _ = inputs.rows(rng, int(rng.integers(20, 61)))
    y, qid = rng.integers(0, 4, len(X)), np.arange(len(X)) // 6
    choices = {
        "n_metrics": [1, 2, 3],
        "kernel": ["gaussian", "thesis"],
        "loss": ["lambda", "warp"],
        "normalize": ["query", "column", "both", None],
        "learn_anchors": [True, False],
        "learn_metrics": [True, False],
        "query_weights": ["shared", "per-query", "neighbours"],
        "reg": [1e-6, 0.01, 1.0],
        "early_stopping": [True, False],
        "n_jobs": [None, 1],
    }
    values = {"X": X, "y": y}
    if rng.random() < 0.8:
        values["qid"] = qid
    if rng.random() < 0.2:
        values |= {"X_val": X[::2] + 0.1, "y_val": y[::2], "qid_val": qid[::2]}
    test = {"test": X[:20] + 0.1, "y_test": rng.integers(0, 4, 20), "qid_test": qid[:20]}
    test |= {"query": X[:1], "sample_weight": rng.random(20)}
    kinds = dict.fromkeys(("X", "X_val", "test", "query"), "matrix")
    kinds |= dict.fromkeys(("y", "y_val", "y_test", "sample_weight"), "numbers")
    kinds |= dict.fromkeys(("qid", "qid_val", "qid_test"), "labels")
    uses = [
        ("predict", {"X": "test", "qid": "qid_test"}),
        ("predict", {"X": "test", "qid": "qid_test", "query": "query"}),
        ("score", {"X": "test", "y": "y_test", "qid": "qid_test"}),
        ("score", {"X": "test", "y": "y_test", "sample_weight": "sample_weight"}),
    ]
    quick = {"max_epochs": int(rng.integers(1, 3)), "n_metrics": 2}
    case = estimator_case(rng, "LocalGMMLRanker", choices, quick, values, uses, kinds)
    case.arguments |= test
    return case


@target(5)
def asymmetric(rng, folder):
    values, kinds = _supervised(rng)
    choices = {
        "n_neighbors": [1, 2, 3],
        "n_components": [None, 1],
        "C": [0.01, 1.0, 100],
        "cost_matrix": [None, 1 - np.eye(3)],
        "init": ["pca", "identity"],
        "symmetric": [True, False],
        "n_candidates": [20, 64],
        "lr": [None, 0.1],
        "tol": [0, 1e-4],
        "validation_fraction": [None, 0.2, 0.5],
        "n_jobs": [None, 1],
    }
    given = _part(values, "X", "y")
    if rng.random() < 0.3:
        given |= {"X_query": values["X"][::2] + 0.1, "y_query": values["y"][::2]}
    kinds |= {"X_query": "matrix", "y_query": "labels", "other": "matrix"}
    uses = [
        ("predict", {"X": "test"}),
        ("predict_proba", {"X": "test"}),
        ("transform", {"X": "test"}),
        ("score", {"X": "test", "y": "y_test"}),
        ("pair_distance", {"queries": "test", "database": "other"}),
    ]
    case = estimator_case(
        rng, "AsymmetricMetricClassifier", choices, {"max_iter": 2}, given, uses, kinds
    )
    case.arguments |= _part(values, "test", "y_test") | {"other": values["test"][::-1].copy()}
    return case


def _embedder(rng, name, choices, quick):
    values, kinds = _supervised(rng)
    if name == "SSDMLEmbedder":
        values["y"] = np.where(rng.random(len(values["y"])) < 0.5, values["y"], -1)
    if rng.random() < 0.1:
        values["X"] = rng.standard_normal((len(values["X"]), 1, 8, 8))
        values["test"] = rng.standard_normal((10, 1, 8, 8))
        values["vectors"] = rng.standard_normal((5, 2, 1, 8, 8))
        kinds |= {"X": "clouds", "test": "clouds"}
        choices = choices | {"module": ["mlp", "convnet"], "augment": ["affine", None]}
    elif values["X"].shape[1] == 4:
        choices = choices | {"input_shape": [None, (1, 2, 2)]}
    uses = [
        ("transform", {"X": "test"}),
        ("score", {"X": "test", "y": "y_test"}),
        ("pair_distance", {"pairs": "test_pairs", "X": "test"}),
        ("pair_distance", {"pairs": "vectors"}),
    ]
    case = estimator_case(rng, name, choices, quick, _part(values, "X", "y"), uses, kinds)
    case.arguments |= _part(values, "test", "y_test", "test_pairs", "vectors")
    return case


@target(4, "torch", "skorch")
def deep(rng, folder):
    from skdml.deep.losses import loss_names

    choices = {
        "embedding_dim": [1, 4, 8],
        "loss": loss_names(),
        "coreset": [None, 0.5],
        "classes_per_batch": [2, 16],
        "samples_per_class": [2, 5],
        "optimizer": ["adam", "adamw", "sgd"],
        "lr": [0.002, 0.1],
        "validation_fraction": [None, 0.3],
        "early_stopping": [True, False],
        "device": ["auto", "cpu"],
        "callbacks": [None, []],
        "n_workers": [1],
    }
    if rng.random() < 0.2:
        choices["loss"], choices["miner"] = ["triplet", "contrastive"], [None, "semi-hard"]
    elif rng.random() < 0.2:
        choices["loss"], choices["cloud"] = ["wtriplet"], [None, (2, 2), (1, 4)]
        choices["embedding_dim"] = [4]
    quick = {"max_epochs": 1, "embedding_dim": 4}
    return _embedder(rng, "DeepMetricEmbedder", choices, quick)


@target(4, "torch", "skorch")
def ssdml(rng, folder):
    choices = {
        "method": ["ssdml", "lrml", "seraph", "isdml", "apllr", "apit"],
        "module": ["mlp", None],
        "n_components": [1, 2, 4],
        "n_neighbors": [2, 4],
        "propagation": [0.1, 0.5, 0.99],
        "angle": [20, 40, 60.0],
        "graph": ["symmetric", "directed"],
        "mining": ["affinity", "neighbourhood"],
        "orthogonal": [True, False],
        "training": ["joint", "alternating"],
        "partition_size": [5, 20, 9000],
        "epochs_per_partition": [1],
        "initial_graph": ["input", "network"],
        "instance_weight": [0, 0.5],
        "pretrain_epochs": [0, 1],
        "batch_size": [4, 16, 200],
        "optimizer": ["adam", "sgd"],
        "lr": [0.001, 0.1],
    }
    quick = {"max_epochs": 1, "n_components": 2, "n_neighbors": 4}
    return _embedder(rng, "SSDMLEmbedder", choices, quick)


@target(4, "torch", "ot")
def generator(rng, folder):
    X, _ = inputs.rows(rng)
    choices = {
        "latent_dim": [1, 4],
        "n_critics": [1, 2, 4],
        "cost": ["auto", "euclidean", "learned"],
        "coupling": ["shared", "separate"],
        "debias": [True, False, "auto"],
        "n_critic_steps": [1, 2],
        "n_potential_steps": [0, 1, 5],
        "scaling": ["auto", "common", "columns"],
        "batch_size": [2, 8, 64],
        "lr": ["auto", 0.01],
        "n_jobs": [None, 1],
    }
    quick = {"max_iter": int(rng.integers(1, 4)), "latent_dim": 4, "batch_size": 8}
    uses = [
        ("sample", {"n_samples": "n_samples", "random_state": "seed"}),
        ("score", {"X": "test"}),
    ]
    kinds = {"X": "matrix", "test": "matrix", "n_samples": "parameter", "seed": "parameter"}
    case = estimator_case(rng, "WassersteinGenerator", choices, quick, {"X": X}, uses, kinds)
    case.arguments |= {"test": X[:10] + 0.1, "n_samples": 7, "seed": 0}
    return case


# Constraints


@target(8)
def constraints(rng, folder):
    from skdml import constraints

    values, kinds = _supervised(rng)
    seed = {"random_state": [0, None, np.random.RandomState(0)]}
    name = rng.choice(["make_pairs", "make_local_pairs", "make_triplets", "check_pairs"])
    function = getattr(constraints, name)
    if name == "make_pairs":
        parameters = choose(rng, {"n_constraints": [None, 2, 20, 10**6]} | seed)
        return call_case(function, _part(values, "y"), kinds, parameters)
    if name == "make_local_pairs":
        choices = {"n_constraints": [None, 2, 20], "n_neighbors": [1, 5, 100]}
        return call_case(function, _part(values, "X", "y"), kinds, choose(rng, choices | seed))
    if name == "make_triplets":
        parameters = {"n_triplets": 20} | choose(rng, seed)
        return call_case(function, _part(values, "y"), kinds, parameters)
    given = _part(values, "pairs", "pair_labels")
    return call_case(function, given, kinds, {"n_samples": len(values["X"])})


# Metrics


@target(10)
def retrieval(rng, folder):
    from skdml import metrics

    X, y = inputs.rows(rng)
    name = rng.choice(["recall_at_k", "precision_at_k", "r_precision", "map_at_r"])
    given = {"embeddings": X, "labels": y}
    if rng.random() < 0.4:
        gallery, labels = inputs.rows(rng, n_features=X.shape[1])
        given |= {"gallery": gallery, "gallery_labels": labels}
    kinds = {"embeddings": "matrix", "gallery": "matrix"}
    kinds |= {"labels": "labels", "gallery_labels": "labels"}
    choices = {
        "metric": ["euclidean", "cosine", "manhattan", "correlation", _absolute, _Pairwise()],
        "working_memory": [None, 1, 0.001],
    }
    if name.endswith("_k"):
        choices["k"] = [1, 3, [1, 2, 4], np.array([2, 1])]
    return call_case(getattr(metrics, name), given, kinds, choose(rng, choices))


def _absolute(u, v):
    return np.abs(u - v).sum()


class _Pairwise:
    def pairwise(self, X, Y):
        return np.abs(X[:, None] - Y).sum(axis=2)

    def __repr__(self):
        return "Pairwise()"


@target(3)
def clustering(rng, folder):
    from skdml import metrics

    X, y = inputs.rows(rng)
    name = rng.choice(["cluster_nmi", "cluster_f1"])
    choices = {"n_clusters": [None, 2, 5], "n_init": [1, 3], "random_state": [0, None]}
    kinds = {"embeddings": "matrix", "labels": "labels"}
    given = {"embeddings": X, "labels": y}
    return call_case(getattr(metrics, name), given, kinds, choose(rng, choices))


@target(6, "ot")
def generation(rng, folder):
    from skdml import metrics

    name = rng.choice(
        ["wasserstein_distance", "frechet_distance", "sample_quality", "nearest_row_ratio"]
    )
    function = getattr(metrics, name)
    n_features = int(rng.integers(1, 9))
    names = [name for name in arguments_of(function) if name != "k"]
    given = {name: inputs.rows(rng, n_features=n_features)[0] for name in names}
    kinds = dict.fromkeys(names, "matrix")
    choices = {"k": [1, 5]} if name == "sample_quality" else {}
    return call_case(function, given, kinds, choose(rng, choices))


RANKING = ("ndcg_by_query", "average_precision_by_query", "reciprocal_rank_by_query")
RANKING += ("mean_ndcg", "mean_average_precision", "mrr")


@target(8)
def ranking(rng, folder):
    from skdml import metrics

    name = rng.choice(RANKING)
    function = getattr(metrics, name)
    n_rows = int(rng.integers(1, 61))
    given = {"y_true": rng.integers(0, 4, n_rows), "y_score": rng.standard_normal(n_rows)}
    if rng.random() < 0.7:
        given["qid"] = np.arange(n_rows) // 6
    kinds = {"y_true": "numbers", "y_score": "numbers", "qid": "labels"}
    choices = {
        "k": [None, 1, 5, 100],
        "threshold": [0, 1, 0.5],
        "no_relevant": ["skip", "zero", "one"],
    }
    choices = {key: values for key, values in choices.items() if key in arguments_of(function)}
    by_query = name.endswith("by_query")  # NaN stands for queries without a relevant document
    return call_case(function, given, kinds, choose(rng, choices), may_have_nan=by_query)


# Transport


@target(6, "torch", "ot")
def transport(rng, folder):
    from skdml import transport

    name = rng.choice(
        ["sinkhorn_divergence", "wasserstein_coreset", "measure_coreset", "CloudMetric"]
    )
    X, y = inputs.rows(rng, n_features=4)
    n_points = int(rng.integers(1, 7))
    common = {"p": [1, 2], "solver": ["sinkhorn", "exact"]}
    if name == "sinkhorn_divergence":
        shape = (n_points, 2) if rng.random() < 0.5 else (3, n_points, 2)
        given = {"A": rng.standard_normal(shape), "B": rng.standard_normal(shape)}
        if rng.random() < 0.3:
            given["a"] = rng.dirichlet(np.ones(n_points), shape[:-2])
        choices = common | {"reg": [0.05, 0.5, 10], "eta": [None, 0.1]}
        kinds = {"A": "clouds", "B": "clouds", "a": "clouds"}
        return call_case(transport.sinkhorn_divergence, given, kinds, choose(rng, choices))
    kinds = {"X": "matrix", "y": "labels", "Y": "matrix"}
    if name == "wasserstein_coreset":
        given = {"X": X} | ({"y": y} if rng.random() < 0.5 else {})
        choices = common | {
            "size": [0.1, 0.5, 3, 10],
            "cloud": [None, (2, 2), (4, 1), (1, 4)],
            "reg": [0.05, 0.5],
            "n_candidates": [None, 1, 32],
            "tol": [0, 0.1],
            "random_state": [0, None],
        }
        return call_case(transport.wasserstein_coreset, given, kinds, choose(rng, choices))
    if name == "measure_coreset":
        choices = {"max_iter": [1, 50], "tol": [0, 1e-6], "random_state": [0, None]}
        parameters = {"size": 3} | choose(rng, choices)
        return call_case(transport.measure_coreset, {"X": X}, kinds, parameters)
    choices = common | {"eta": [0.05, 1.0], "n_candidates": [None, 1, 20]}
    parameters = {"cloud": [(2, 2), (4, 1), (1, 4)][rng.integers(3)]} | choose(rng, choices)
    steps = [
        Step("pairwise", lambda metric, given: metric.pairwise(given["X"], given["Y"])),
        Step("pair_distance", lambda metric, given: metric.pair_distance(given["Y"], given["Y"])),
    ]
    values = {"X": X, "Y": inputs.rows(rng, n_features=4)[0]}
    settable = arguments_of(transport.CloudMetric)
    names = ("A", "B", "X", "Y", *settable)
    return Case(values, kinds, parameters, names, settable, steps, make=transport.CloudMetric)


# Data sets


@target(2)
def made_data(rng, folder):
    from skdml import datasets

    name = rng.choice(["make_local_clusters", "make_ranking"])
    function = getattr(datasets, name)
    choices = {
        "n_samples": [10, 50],
        "n_queries": [1, 5],
        "n_documents": [1, 5],
        "n_features": [2, 5],
        "n_centers": [1, 3],
        "n_classes": [None, 2],
        "n_informative": [1, 2],
        "n_levels": [2, 3],
        "contrast": [1, 5.0],
        "noise": [0, 0.1],
        "ideal_distance": [0, 1.0],
        "center_scale": [0, 3.0],
        "confidence": [0.5, 1],
        "shuffle": [True, False],
        "return_centers": [True, False],
        "return_ideals": [True, False],
        "random_state": [0, None, np.random.default_rng(0)],
    }
    choices = {key: values for key, values in choices.items() if key in arguments_of(function)}
    return call_case(function, {}, {}, choose(rng, choices))


@target(1, "torch", "skorch")
def folds(rng, folder):
    from skdml.semisupervised import PartiallyLabelledKFold

    X, y = inputs.rows(rng)
    given = {"X": X, "y": np.where(rng.random(len(y)) < 0.6, y, -1)}
    choices = {"n_splits": [2, 3], "shuffle": [True], "random_state": [0]}
    parameters = choose(rng, choices, 1.0)
    step = Step("split", lambda folds, values: list(folds.split(**values)))
    settable = arguments_of(PartiallyLabelledKFold)
    names = (*settable, "X", "y", "folds", *NAMES)  # as scikit-learn calls n_splits
    kinds = {"X": "matrix", "y": "labels"}
    return Case(given, kinds, parameters, names, settable, [step], make=PartiallyLabelledKFold)


def _reader_case(function, content, path, parameters):
    if path.is_dir():  # left by an earlier case
        path.rmdir()
    path.write_bytes(content)
    argument = arguments_of(function)[0]
    names = (str(path), *arguments_of(function))
    case = call_case(function, {argument: path}, {argument: "file"}, parameters)
    case.names = names
    case.errors = (ValueError, TypeError, FileNotFoundError, IsADirectoryError, NotADirectoryError)
    return case


@target(3)
def read_idx(rng, folder):
    from skdml.datasets import read_idx

    shape = rng.integers(1, 6, rng.integers(1, 4))
    code, dtype = [(8, ">u1"), (9, ">i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")][
        rng.integers(6)
    ]
    values = rng.integers(0, 100, shape).astype(dtype)
    content = bytes([0, 0, code, len(shape)]) + shape.astype(">u4").tobytes() + values.tobytes()
    if rng.random() < 0.5:
        content = gzip.compress(content, mtime=0)
    return _reader_case(read_idx, content, folder / "some-idx", {})


@target(4)
def read_letor(rng, folder):
    from skdml.datasets import read_letor

    lines = []
    for query in range(int(rng.integers(1, 4))):
        for _ in range(int(rng.integers(1, 4))):
            features = " ".join(f"{k}:{rng.random():.3f}" for k in range(1, 5))
            lines.append(f"{rng.integers(3)} qid:{query} {features} # a document")
    text = "\n".join(lines)
    if rng.random() < 0.4:
        text = _spoil_text(rng, text)
    parameters = choose(rng, {"n_features": [None, 4, 10]})
    return _reader_case(read_letor, text.encode(), folder / "letor.txt", parameters)


def _spoil_text(rng, text):
    """Replace a token of a line by something strange."""
    tokens = text.split(" ")
    strange = ["", "qid:", "qid:a", "1:", ":1", "1:nan", "0:1", "-1:2", "1:1e400", "#", "\n", "é"]
    strange += ["99999999:1", "99999999999999:1", "qid:99999999999999999999", "1e30", "nan", "-1"]
    tokens[rng.integers(len(tokens))] = strange[rng.integers(len(strange))]
    return " ".join(tokens)


@target(3)
def read_npz(rng, folder):
    from skdml.datasets import read_npz

    X, y = inputs.rows(rng)
    arrays = {"X": X, "y": y.astype(str)}
    if rng.random() < 0.2:
        arrays["X"] = X.astype(object)
    if rng.random() < 0.2:
        del arrays["y"]
    buffer = io.BytesIO()
    (np.savez_compressed if rng.random() < 0.5 else np.savez)(buffer, **arrays)
    if rng.random() < 0.2:
        with zipfile.ZipFile(buffer, "a") as archive:
            archive.writestr("y.npy" if "y" not in arrays else "z.npy", b"no array")
    parameters = choose(rng, {"required": [("X", "y"), ["X"], ()]})
    return _reader_case(read_npz, buffer.getvalue(), folder / "some.npz", parameters)
