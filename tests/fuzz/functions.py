"""Functions as targets of the fuzzer."""

import gzip
import io
import zipfile

import numpy as np

from tests.fuzz import inputs
from tests.fuzz.cases import NAMES, arguments_of, call_case, choose, part, supervised, target
from tests.fuzz.judge import Case, Step

# Constraints


@target(8)
def constraints(rng, folder):
    from skdml import constraints

    values, kinds = supervised(rng)
    seed = {"random_state": [0, None, np.random.RandomState(0)]}
    name = rng.choice(["make_pairs", "make_local_pairs", "make_triplets", "check_pairs"])
    function = getattr(constraints, name)
    if name == "make_pairs":
        parameters = choose(rng, {"n_constraints": [None, 2, 20, 10**6]} | seed)
        return call_case(function, part(values, "y"), kinds, parameters)
    if name == "make_local_pairs":
        choices = {"n_constraints": [None, 2, 20], "n_neighbors": [1, 5, 100]}
        return call_case(function, part(values, "X", "y"), kinds, choose(rng, choices | seed))
    if name == "make_triplets":
        parameters = {"n_triplets": 20} | choose(rng, seed)
        return call_case(function, part(values, "y"), kinds, parameters)
    given = part(values, "pairs", "pair_labels")
    return call_case(function, given, kinds, {"n_samples": len(values["X"])})


# Metrics


@target(4)
def search(rng, folder):
    X, _ = inputs.rows(rng)
    given = {"X": X}
    if rng.random() < 0.4:
        given |= {"ids": np.arange(len(X)) * 3}
    choices = {"k": [1, 2], "backend": ["exact"], "options": [None, {}]}
    return call_case(_search, given, {"X": "matrix", "ids": "labels"}, choose(rng, choices))


def _search(X, ids=None, k=1, backend="exact", options=None):
    from skdml.search import VectorIndex

    return VectorIndex(None, backend, options).fit(X, ids=ids).query(X, k)


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


@target(2)
def verification(rng, folder):
    from skdml import metrics

    y = np.append([1, -1], rng.choice([1, -1], 20))
    given = {"y_true": y, "y_score": rng.standard_normal(22) + y}
    kinds = {"y_true": "numbers", "y_score": "numbers"}
    return call_case(metrics.equal_error_rate, given, kinds, {})


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
    # What a file has is returned as it is.
    case = call_case(function, {argument: path}, {argument: "file"}, parameters, may_have_nan=True)
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
