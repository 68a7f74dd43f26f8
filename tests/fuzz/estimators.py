"""Estimators as targets of the fuzzer."""

import importlib

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from tests.fuzz import inputs
from tests.fuzz.cases import NAMES, arguments_of, choose, part, supervised, target
from tests.fuzz.judge import Case, Step

LINEAR_USES = [
    ("transform", {"X": "test"}),
    ("pair_distance", {"pairs": "test_pairs", "X": "test"}),
    ("pair_distance", {"pairs": "vectors"}),
    ("get_mahalanobis_matrix", {}),
]


def estimator_case(rng, name, choices, quick, fit, uses, kinds):
    """Return a case that fits an estimator, and uses it.

    `fit` has the arguments of fit by name, and `uses` those of other methods, by method. In them,
    an argument is given as its name in the case.
    """
    common = {"random_state": [0, 1, None, np.random.RandomState(0)], "verbose": [0, 1]}
    folder, _, name = f"skdml.{name}".rpartition(".")
    cls = getattr(importlib.import_module(folder), name)
    common = {key: values for key, values in common.items() if key in arguments_of(cls)}
    parameters = quick | choose(rng, choices | common)
    steps = [Step("fit", _method("fit", {key: key for key in fit}))]
    steps += [Step(method, _method(method, given)) for method, given in uses]
    if rng.random() < 0.02:  # not fitted
        steps = steps[1:]
    settable = tuple(name for name in arguments_of(cls) if name != "kwargs")
    names = (*settable, *arguments_of(cls.fit), *(n for _, given in uses for n in given), *NAMES)
    return Case(dict(fit), kinds, parameters, names, settable, steps, make=cls)


def _method(method, given):
    def call(estimator, arguments):
        chosen = {name: arguments[key] for name, key in given.items() if key in arguments}
        result = getattr(estimator, method)(**chosen)
        return None if result is estimator else result

    return call


def _linear(rng, name, choices, quick, extra=None):
    values, kinds = supervised(rng)
    n_features = values["X"].shape[1]
    choices = choices | {
        "prior": ["identity", "covariance", np.eye(n_features), 2 * np.eye(n_features) + 0.1],
        "n_constraints": [None, 2, 20, 100],
        "n_components": [None, 1, n_features],
        "n_jobs": [None, 1],
    }
    given = supervision(rng, values, kinds)
    if "triplets" not in given and rng.random() < 0.2:
        given["sample_weight"] = rng.random(len(values["X"]))
    in_batches = not {"triplets", "pair_similarity"} & set(given) and rng.random() < 0.3
    if in_batches:
        choices["prior"] = ["identity", np.eye(n_features)]
        del choices["n_components"]
    given |= extra or {}
    batch = {name: name for name in given}
    uses = [("partial_fit", batch)] * in_batches + LINEAR_USES
    case = estimator_case(rng, name, choices, quick, given, uses, kinds)
    if in_batches and case.steps[0].name == "fit":  # a first batch in place of all rows
        case.steps[0] = Step("fit", _method("partial_fit", batch))
    case.arguments |= part(values, "test", "test_pairs", "vectors")
    return case


def supervision(rng, values, kinds):
    """Draw what rows are learned from: classes, pairs with labels or grades, or triplets."""
    kinds |= {"triplets": "indices"}
    kinds |= dict.fromkeys(("pair_similarity", "pair_weight", "sample_weight"), "numbers")
    if rng.random() < 0.5:
        return part(values, "X", "y")
    kind = rng.choice(["labels", "grades", "triplets"])
    if kind == "triplets":
        given = part(values, "X") | {"triplets": rng.integers(len(values["X"]), size=(30, 3))}
    elif kind == "grades":
        given = part(values, "X", "pairs") | {"pair_similarity": rng.random(30)}
    else:
        given = part(values, "X", "pairs", "pair_labels")
    if rng.random() < 0.3:
        given["pair_weight"] = rng.integers(0, 4, 30) / 2
    return given


@target(16)
def gmml(rng, folder):
    choices = {"geodesic": [0, 0.3, 0.5, 1], "reg": [1e-6, 0.1, 1.0, 100]}
    return _linear(rng, "GMMLTransformer", choices, {})


@target(8)
def ditml(rng, folder):
    choices = {
        "gamma": [0.1, 1, 100.0, np.inf],
        "bound_percentiles": [(5, 95), [20, 80], "median"],
        "solver": ["newton", "parallel", "sequential"],
        "tol": [1e-6, 1e-3],
    }
    extra = {"bounds": (0.5, 5.0)} if rng.random() < 0.2 else {}
    return _linear(rng, "DITMLTransformer", choices, {"max_iter": 20, "n_constraints": 50}, extra)


@target(5)
def pair_classifier(rng, folder):
    from skdml import GMMLTransformer

    values, kinds = supervised(rng)
    X, index_pairs = values["X"], values["pairs"]
    by_index = rng.random() < 0.5
    given = {
        "pairs": index_pairs if by_index else X[index_pairs],
        "y": values["pair_labels"],
    }
    choices = {
        "learner": [None, GMMLTransformer(geodesic=0), GMMLTransformer(reg=1.0, geodesic=0.3)],
        "cv": [2, 3, None],
        "preprocessor": [X, X.tolist()],
    }
    quick = {"learner": GMMLTransformer(geodesic=0.5)} | ({"preprocessor": X} if by_index else {})
    uses = [
        ("predict", {"pairs": "test_pairs"}),
        ("predict_proba", {"pairs": "test_pairs"}),
        ("decision_function", {"pairs": "vectors"}),
        ("score", {"pairs": "vectors", "y": "y_test"}),
        ("calibrate_threshold", {"pairs": "vectors", "y": "y_test", "sample_weight": "weights"}),
    ]
    kinds = {"y": "numbers", "y_test": "numbers", "weights": "numbers", "vectors": "clouds"}
    kinds["pairs"] = kinds["test_pairs"] = "indices" if by_index else "clouds"
    case = estimator_case(rng, "PairClassifier", choices, quick, given, uses, kinds)
    case.arguments |= {
        "test_pairs": given["pairs"][:5],
        "vectors": values["vectors"],
        "y_test": np.array([1, -1, 1, -1, -1]),
        "weights": rng.random(5) + 0.1,
    }
    return case


@target(5)
def gerrymandering(rng, folder):
    values, kinds = supervised(rng)
    choices = {
        "n_neighbors": [1, 2, 3],
        "n_components": [None, 1],
        "C": [0.01, 1.0, 100],
        "lr": [0.01, 0.1],
        "tol": [0, 1e-4],
        "validation_fraction": [None, 0.2, 0.5],
        "n_jobs": [None, 1],
    }
    given, quick = weighted(rng, part(values, "X", "y"), kinds), {"max_iter": 2}
    name = "NeighborhoodGerrymandering"
    case = estimator_case(rng, name, choices, quick, given, LINEAR_USES, kinds)
    case.arguments |= part(values, "test", "test_pairs", "vectors")
    return case


def weighted(rng, given, kinds):
    """Add weights of rows to some cases."""
    kinds["sample_weight"] = "numbers"
    if rng.random() >= 0.2:
        return given
    return given | {"sample_weight": rng.integers(0, 4, given["X"].shape[0]) / 2}


def _from_rows(rng, name, choices, quick, changes=None):
    """Return a case of a linear learner without pairs; `changes` replaces arguments of fit."""
    values, kinds = supervised(rng)
    kinds |= {"chunks": "labels"} | ({"y": "numbers"} if name == "MLKR" else {})
    given = part(values, "X", "y") | (changes(values) if changes else {})
    choices = {"n_components": [None, 1], **choices}
    given = weighted(rng, given, kinds)
    case = estimator_case(rng, name, choices, quick, given, LINEAR_USES, kinds)
    case.parameters = {k: v for k, v in case.parameters.items() if k in case.settable}
    case.arguments |= part(values, "test", "test_pairs", "vectors")
    return case


@target(4)
def lmnn(rng, folder):
    choices = {
        "n_neighbors": [1, 3, 50],
        "n_passes": [1, 2],
        "regularization": [0.1, 0.5],
        "tol": [0, 1e-3],
        "validation_fraction": [None, 0.2, 0.5],
    }
    return _from_rows(rng, "LMNN", choices, {"max_iter": 5})


@target(4)
def mlkr(rng, folder):
    def numbers(values):
        return {"y": rng.standard_normal(values["X"].shape[0])}

    return _from_rows(rng, "MLKR", {"tol": [0.01, 0.1]}, {"max_iter": 20}, numbers)


@target(4)
def rca(rng, folder):
    def chunks(values):
        n_rows = values["X"].shape[0]
        return {"chunks": rng.integers(-1, 4, n_rows)} if rng.random() < 0.5 else {}

    choices = {"shrinkage": ["auto", 0.1, 1], "strength": ["auto", 0, 0.5, 1]}
    return _from_rows(rng, "RCA", choices, {}, chunks)


@target(4)
def lfda(rng, folder):
    choices = {
        "n_neighbors": [1, 7, 50],
        "embedding_type": ["weighted", "orthonormalized", "plain"],
        "shrinkage": ["auto", 0.1, 1],
        "strength": ["auto", 0, 0.5, 1],
    }
    return _from_rows(rng, "LFDA", choices, {})


@target(5)
def local_gmml(rng, folder):
    X, _ = inputs.rows(rng, int(rng.integers(20, 61)))
    y, qid = rng.integers(0, 4, len(X)), np.arange(len(X)) // 6
    choices = {
        "n_metrics": [1, 2, 3],
        "kernel": ["gaussian", "damped"],
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
    values, kinds = supervised(rng)
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
    given = weighted(rng, part(values, "X", "y"), kinds)
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
    case.arguments |= part(values, "test", "y_test") | {"other": values["test"][::-1].copy()}
    return case


def _embedder(rng, name, choices, quick):
    values, kinds = supervised(rng)
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
    given = part(values, "X", "y")
    if name == "DeepMetricEmbedder" and rng.random() < 0.4:
        given = supervision(rng, values, kinds)
        if "y" not in given and rng.random() < 0.9:  # what is for classes alone
            choices = {k: v for k, v in choices.items() if not k.startswith(("loss", "coreset"))}
    given = weighted(rng, given, kinds)
    case = estimator_case(rng, name, choices, quick, given, uses, kinds)
    case.arguments |= part(values, "test", "y_test", "test_pairs", "vectors")
    return case


@target(4, "torch", "skorch")
def deep(rng, folder):
    from skdml.deep.losses import loss_names

    choices = {
        "n_components": [1, 4, 8],
        "loss": loss_names(),
        "coreset": [None, 0.5, (0.5, 1)],
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
        choices["loss"], choices["loss__miner"] = ["triplet", "contrastive"], [None, "semi-hard"]
    elif rng.random() < 0.2:
        choices["loss"], choices["loss__cloud"] = ["wtriplet"], [None, (2, 2), (1, 4)]
        choices["n_components"] = [4]
    quick = {"max_epochs": 1, "n_components": 4}
    return _embedder(rng, "DeepMetricEmbedder", choices, quick)


@target(4, "torch", "skorch")
def ssdml(rng, folder):
    choices = {
        "method": ["ssdml", "lrml", "seraph", "isdml", "apllr", "apit"],
        "module": ["mlp", None],
        "n_components": [1, 2, 4],
        "n_neighbors": [2, 4],
        "propagation": [0.1, 0.5, 0.99],
        "recipe": ["default", "paper"],
        "loss__angle": [20, 40, 60.0],
        "loss__orthogonal": [True, False],
        "loss__instance_weight": [0, 0.5],
        "partition_size": [5, 20, 9000],
        "epochs_per_partition": [1],
        "pretrain_epochs": [0, 1],
        "batch_size": [4, 16, 200],
        "optimizer": ["adam", "sgd"],
        "lr": [0.001, 0.1],
    }
    quick = {"max_epochs": 1, "n_components": 2, "n_neighbors": 4}
    return _embedder(rng, "SSDMLEmbedder", choices, quick)


@target(2, "torch", "skorch")
def partly_labelled(rng, folder):
    values, kinds = supervised(rng)
    values["y"] = np.where(rng.random(len(values["y"])) < 0.5, values["y"], -1)
    choices = {
        "estimator": [None, LogisticRegression(), KNeighborsClassifier(1)],
        "propagate": [True, False],
        "n_neighbors": [1, 4, 100],
    }
    uses = [
        ("predict", {"X": "test"}),
        ("predict_proba", {"X": "test"}),
        ("score", {"X": "test", "y": "y_test"}),
    ]
    given = part(values, "X", "y")
    name = "semisupervised.PartiallyLabelledClassifier"
    case = estimator_case(rng, name, choices, {}, given, uses, kinds)
    case.arguments |= part(values, "test", "y_test")
    return case


@target(4, "torch", "ot")
def generator(rng, folder):
    X, _ = inputs.rows(rng)
    choices = {
        "method": ["auto", "flow", "critics"],
        "latent_dim": [1, 4],
        "n_critics": [1, 2, 4],
        "cost": ["auto", "euclidean", "squared", "learned"],
        "coupling": ["auto", "shared", "separate"],
        "debias": [True, False, "auto"],
        "n_critic_steps": [1, 2],
        "n_potential_steps": [0, 1, 5],
        "scaling": ["auto", "common", "columns", "quantile"],
        "batch_size": ["auto", 2, 8, 64],
        "lr": ["auto", 0.01],
        "n_jobs": [None, 1],
    }
    quick = {"max_iter": int(rng.integers(1, 4)), "latent_dim": 4, "batch_size": 8}
    uses = [
        ("sample", {"n_samples": "n_samples", "random_state": "seed"}),
        ("score", {"X": "test"}),
    ]
    kinds = {"X": "matrix", "test": "matrix", "n_samples": "parameter", "seed": "parameter"}
    given = weighted(rng, {"X": X}, kinds)
    case = estimator_case(rng, "WassersteinGenerator", choices, quick, given, uses, kinds)
    case.arguments |= {"test": X[:10] + 0.1, "n_samples": 7, "seed": 0}
    return case
