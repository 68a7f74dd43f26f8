"""Arguments for the fuzzer: other forms of valid values, and wrong values."""

import importlib.util
from pathlib import Path

import numpy as np
from scipy import sparse

INSTALLED = {
    name: importlib.util.find_spec(name) is not None
    for name in ("pandas", "polars", "torch", "ot", "skorch", "dask")
}


def rows(rng, n_rows=None, n_features=None, n_classes=3):
    """Draw rows around a few centres, and the number of the centre of each."""
    n_rows = int(rng.integers(12, 61)) if n_rows is None else n_rows
    n_features = int(rng.integers(1, 9)) if n_features is None else n_features
    y = np.arange(n_rows) % n_classes
    centres = 2 * rng.standard_normal((n_classes, n_features))
    return centres[y] + rng.standard_normal((n_rows, n_features)), y


# Other forms: a value that means the same.


def _pandas(X, columns=None, dtype=None):
    import pandas

    frame = pandas.DataFrame(X, columns=columns)
    return frame if dtype is None else frame.astype(dtype)


def _polars(X):
    import polars

    return polars.DataFrame(X, schema=[f"c{i}" for i in range(X.shape[1])])


def _torch(X):
    import torch

    return torch.from_numpy(np.ascontiguousarray(X))


def _dask(X):
    import dask.array

    return dask.array.from_array(X, chunks=(max(1, len(X) // 2), X.shape[1]))


def _series(package, dtype=None):
    def make(y):
        frames = __import__(package)
        return frames.Series(y) if dtype is None else frames.Series(y, dtype=dtype)

    return make


def _strided(X):
    return np.repeat(np.repeat(X, 2, axis=0), 2, axis=-1)[::2, ..., ::2]


def _read_only(X):
    X = X.copy()
    X.flags.writeable = False
    return X


def _unsorted_csr(X):
    X = sparse.csr_array(X)
    for start, end in zip(X.indptr[:-1], X.indptr[1:], strict=True):
        for part in (X.indices, X.data):
            part[start:end] = part[start:end][::-1].copy()
    X.has_sorted_indices = False
    return X


def _duplicates(X):
    X = sparse.coo_array(X)
    entries = (np.append(X.data / 2, X.data / 2), tuple(np.append(c, c) for c in (X.row, X.col)))
    return sparse.coo_array(entries, shape=X.shape)


def _long_indices(X):
    X = sparse.csr_array(X)
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    return X


def _masked(X):
    return np.ma.masked_array(X, mask=np.zeros(X.shape, dtype=bool))


def _as(dtype):
    return lambda X: X.astype(dtype)


MATRIX_FORMS = {
    "float32": _as(np.float32),
    "float16": _as(np.float16),
    "longdouble": _as(np.longdouble),
    "int64": _as(np.int64),
    "int8": _as(np.int8),
    "bool": lambda X: X > 0,
    "objects": _as(object),
    "big-endian": _as(">f8"),
    "list": lambda X: X.tolist(),
    "tuples": lambda X: tuple(map(tuple, X.tolist())),
    "Fortran": np.asfortranarray,
    "strided": _strided,
    "reversed": lambda X: X[::-1].copy()[::-1],
    "read-only": _read_only,
    "masked": _masked,
    "matrix": np.asmatrix,
    "pandas": lambda X: _pandas(X, [f"c{i}" for i in range(X.shape[1])]),
    "pandas, numbered": _pandas,
    "pandas, one name twice": lambda X: _pandas(X, ["c"] * X.shape[1]),
    "pandas, nullable": lambda X: _pandas(X, dtype="Float64"),
    "pandas, float32": lambda X: _pandas(X, dtype=np.float32),
    "polars": _polars,
    "torch": _torch,
    "dask": _dask,
    **{f"{name} array": getattr(sparse, f"{name}_array") for name in ("csr", "csc", "coo")},
    **{
        f"{name} matrix": getattr(sparse, f"{name}_matrix")
        for name in ("csr", "csc", "coo", "bsr", "dia", "dok", "lil")
    },
    "csr, unsorted": _unsorted_csr,
    "coo, entries twice": _duplicates,
    "csr, int64": _long_indices,
}
LABEL_FORMS = {
    "list": lambda y: y.tolist(),
    "tuple": lambda y: tuple(y.tolist()),
    "int8": _as(np.int8),
    "uint64": _as(np.uint64),
    "floats": _as(np.float64),
    "float32": _as(np.float32),
    "big-endian": _as(">i4"),
    "strings": lambda y: y.astype(str),
    "bytes": lambda y: y.astype("S"),
    "objects": lambda y: y.astype(str).astype(object),
    "numbers as objects": _as(object),
    "column": lambda y: y[:, None],
    "strided": lambda y: np.repeat(y, 2)[::2],
    "read-only": _read_only,
    "masked": _masked,
    "negative": lambda y: y - 5,
    "large": lambda y: y * 10**12,
    "Series": _series("pandas"),
    "Categorical": _series("pandas", "category"),
    "nullable": _series("pandas", "Int64"),
    "Series of strings": lambda y: _series("pandas", "string")(y.astype(str)),
    "polars": _series("polars"),
    "torch": _torch,
}
NUMBER_FORMS = {
    name: form
    for name, form in LABEL_FORMS.items()
    if name not in ("strings", "bytes", "objects", "negative", "Series of strings", "Categorical")
}
INDEX_FORMS = {
    name: MATRIX_FORMS[name]
    for name in ("list", "tuples", "Fortran", "strided", "read-only", "int8", "pandas", "polars")
} | {"int32": _as(np.int32), "uint64": _as(np.uint64)}

# Wrong values, and values at the edge of what is right.


def _with(value, share=0.0):
    """Return a change that puts a value into one place, or into a share of all."""

    def change(rng, X):
        X = X.astype(np.result_type(X, np.min_scalar_type(value)))
        chosen = rng.random(X.shape) < share
        if X.size:
            chosen.reshape(-1)[rng.integers(X.size)] = True
        X[chosen] = value
        return X

    return change


def _with_object(value):
    def change(rng, X):
        X = X.astype(object)
        if X.size:
            X.reshape(-1)[rng.integers(X.size)] = value
        return X

    return change


def _ragged(rng, X):
    return [*X[:-1].tolist(), X[-1].tolist()[:-1]]


def _fewer_rows(rng, X):
    return X[: int(rng.integers(0, 4))]


def _constant_columns(rng, X):
    X = X.copy()
    X[:, rng.random(X.shape[1]) < 0.5] = 3.7
    return X


def _one_outlier(rng, X):
    X = X.copy()
    X[rng.integers(len(X)), rng.integers(X.shape[1])] = 10.0 ** rng.integers(4, 200)
    return X


def _scaled_columns(rng, X):
    return X * 10.0 ** rng.integers(-9, 10, X.shape[1])


def _equal_rows(rng, X):
    return X[rng.integers(0, max(1, len(X) // 4), len(X))]


def _more_rows(rng, X):
    return np.concatenate([X, X[: 1 + int(rng.integers(3))]])


SCALES = (1e-320, 1e-200, 1e-80, 1e-30, 1e-12, 1e12, 1e30, 1e80, 1e160, 1e300)
# No array at all.
THINGS = {
    "None": None,
    "a string": "abc",
    "a number": 3,
    "an empty list": [],
    "a dict": {"a": [1, 2]},
    "a set": {1, 2},
    "an object": object(),
    "a list of None": [None, None],
    "a list of lists": [[[1.0], [2.0]], [[3.0], [4.0]]],
    "a range": range(7),
}
ANY_ARRAY = {
    "NaN": _with(np.nan),
    "infinity": _with(np.inf),
    "None inside": _with_object(None),
    "a string inside": _with_object("x"),
    "a list inside": _with_object([1]),
    "complex": lambda rng, X: X + 1j,
    "strings": lambda rng, X: X.astype(str),
    "dates": lambda rng, X: X.astype(np.int64).astype("datetime64[D]"),
    "structured": lambda rng, X: np.zeros(len(X), dtype=[("a", float), ("b", int)]),
    "void": lambda rng, X: np.zeros(X.shape, dtype="V4"),
    "shorter": lambda rng, X: X[:-1],
    "longer": _more_rows,
    "few": _fewer_rows,
    "one axis more": lambda rng, X: X[..., None],
    "first axis more": lambda rng, X: X[None],
    "a scalar": lambda rng, X: X.reshape(-1)[0],
}
MATRIX_CHANGES = ANY_ARRAY | {
    "-infinity": _with(-np.inf),
    "all NaN": lambda rng, X: np.full(X.shape, np.nan),
    "a row of NaN": lambda rng, X: np.where(np.arange(len(X))[:, None] == 1, np.nan, X),
    "constant": lambda rng, X: np.full(X.shape, rng.choice([0.0, 3.7, -1e-9, 1e8])),
    "constant columns": _constant_columns,
    "zeros": lambda rng, X: np.zeros_like(X),
    "equal rows": _equal_rows,
    "one column": lambda rng, X: X[:, :1],
    "no column": lambda rng, X: X[:, :0],
    "one column less": lambda rng, X: X[:, :-1],
    "one column more": lambda rng, X: np.hstack([X, X[:, :1]]),
    "wide": lambda rng, X: (
        np.hstack([X] * 12) + 0.1 * rng.standard_normal((len(X), 12 * X.shape[1]))
    ),
    "rank one": lambda rng, X: np.outer(X[:, 0], X[0]),
    "one dimension": lambda rng, X: X[:, 0],
    "transposed": lambda rng, X: X.T,
    "ragged": _ragged,
    "shifted": lambda rng, X: X + rng.choice([1e4, 1e8, -1e12]),
    "rounded": lambda rng, X: np.round(X),
    "an outlier": _one_outlier,
    "scaled columns": _scaled_columns,
    "pandas with NA": lambda rng, X: _pandas(X, dtype="Float64").mask(X > 1),
    "pandas with words": lambda rng, X: _pandas(X).assign(word="x"),
    "pandas of categories": lambda rng, X: _pandas(np.round(X), dtype="category"),
    "other names": lambda rng, X: _pandas(X, [f"d{i}" for i in range(X.shape[1])]),
    "sparse with NaN": lambda rng, X: sparse.csr_array(_with(np.nan)(rng, X)),
    "sparse of integers": lambda rng, X: sparse.csr_array(X.astype(np.int64)),
    "sparse without entries": lambda rng, X: sparse.csr_array(X.shape),
    "large float32": lambda rng, X: (X * 1e30).astype(np.float32),
    "image": lambda rng, X: X.reshape(len(X), 1, 1, -1),
    **{f"times {scale:g}": lambda rng, X, scale=scale: X * scale for scale in SCALES},
}
LABEL_CHANGES = ANY_ARRAY | {
    "one class": lambda rng, y: np.zeros_like(y),
    "all distinct": lambda rng, y: np.arange(len(y)),
    "one of another class": lambda rng, y: np.where(np.arange(len(y)) == 0, 99, y),
    "continuous": lambda rng, y: y + rng.random(len(y)),
    "words and numbers": lambda rng, y: ["a" if i % 2 else int(v) for i, v in enumerate(y)],
    "missing": lambda rng, y: np.where(rng.random(len(y)) < 0.5, -1, y),
    "all missing": lambda rng, y: np.full(len(y), -1),
    "two columns": lambda rng, y: np.column_stack([y, y]),
    "one-hot": lambda rng, y: np.eye(int(np.max(y)) + 1)[y],
    "reversed": lambda rng, y: y[::-1],
    "sparse": lambda rng, y: sparse.csr_array(y[None]),
    "bool": lambda rng, y: y > 0,
    "NA": lambda rng, y: _series("pandas", "Int64")([None, *y[1:].tolist()]),
    "no date": lambda rng, y: np.full(len(y), "NaT", dtype="datetime64[D]"),
    "durations": lambda rng, y: y.astype("timedelta64[s]"),
    "long names": lambda rng, y: np.array(["n" * 500 + str(v) for v in y]),
    "empty names": lambda rng, y: np.where(y == 0, "", y.astype(str)),
    "tuples": lambda rng, y: [(int(v), 1) for v in y],
}
NUMBER_CHANGES = LABEL_CHANGES | {
    "negative": lambda rng, y: y - 1.5,
    "large": lambda rng, y: y * 1e200,
    "tiny": lambda rng, y: y * 1e-300,
    "whole numbers": lambda rng, y: np.round(y).astype(np.int64),
    "grades of thousands": lambda rng, y: np.round(y) * 1000,
}
INDEX_CHANGES = ANY_ARRAY | {
    "floats": lambda rng, X: X.astype(float),
    "negative": lambda rng, X: X - 1,
    "beyond the end": lambda rng, X: X + 30,
    "huge": lambda rng, X: X + 2**62,
    "equal": lambda rng, X: np.zeros_like(X),
    "all equal sides": lambda rng, X: X[:, [0] * X.shape[1]],
    "one column": lambda rng, X: X[:, :1],
    "three columns": lambda rng, X: X[:, [0, 1, 0]],
    "one dimension": lambda rng, X: X[:, 0],
    "twice": lambda rng, X: np.concatenate([X, X]),
    "ragged": _ragged,
    "bool": lambda rng, X: X > 3,
    "sparse": lambda rng, X: sparse.csr_array(X),
    "words": lambda rng, X: X.astype(str).astype(object),
}
CLOUD_CHANGES = (
    ANY_ARRAY
    | {
        key: MATRIX_CHANGES[key]
        for key in (
            "-infinity",
            "all NaN",
            "zeros",
            "constant",
            *(f"times {scale:g}" for scale in SCALES),
        )
    }
    | {
        "one point": lambda rng, X: X[..., :1, :],
        "no point": lambda rng, X: X[..., :0, :],
        "no feature": lambda rng, X: X[..., :0],
        "float32": lambda rng, X: X.astype(np.float32),
        "integers": lambda rng, X: X.astype(np.int64),
        "torch": lambda rng, X: _torch(X),
        "list": lambda rng, X: X.tolist(),
    }
)
FORMS = {
    "matrix": MATRIX_FORMS,
    "labels": LABEL_FORMS,
    "numbers": NUMBER_FORMS,
    "indices": INDEX_FORMS,
    "clouds": {name: MATRIX_FORMS[name] for name in ("float32", "strided", "read-only", "list")},
}
CHANGES = {
    "matrix": MATRIX_CHANGES,
    "labels": LABEL_CHANGES,
    "numbers": NUMBER_CHANGES,
    "indices": INDEX_CHANGES,
    "clouds": CLOUD_CHANGES,
}
VALUES = (
    *(None, True, False, -1, 0, 1, 2, 3, 7, 0.0, 0.5, 1.5, -0.5, 100.0),
    *(np.nan, np.inf, -np.inf, 1e-12, 1e12, 1e-300, 1e300),
    *("", "no such name", b"bytes", [], (), {}, [1, 2], (0.5, 0.9), (95, 5), object(), print),
    *(np.int64(3), np.float32(0.5), np.bool_(True), np.array(2), np.array([1.0, 2.0])),
    -(2**40),
)
# Parameters that may be large without much memory or time.
LARGE = {"k", "n_neighbors", "n_components", "n_clusters", "size", "n_candidates", "batch_size"}
LARGE |= {"n_constraints", "n_triplets", "classes_per_batch", "samples_per_class", "random_state"}
LARGE |= {"partition_size", "n_features", "n_splits"}
# None that starts processes.
PROCESSES = (None, 1, 0, True, 1.5, "no such name", np.nan, [])


def take_form(rng, kind, value):
    """Return the name of another form of a value, and the value in this form."""
    forms = FORMS.get(kind)
    if forms is None or not isinstance(value, np.ndarray):
        return None, value
    name = str(rng.choice(list(forms)))
    try:
        return name, forms[name](value)
    except Exception:  # a package that is not there, or cannot hold such values
        return None, value


def change(rng, kind, value):
    """Return the name of a wrong value, and the value."""
    if rng.random() < 0.1 or kind not in CHANGES or not isinstance(value, np.ndarray):
        name = str(rng.choice(list(THINGS)))
        return name, THINGS[name]
    name = str(rng.choice(list(CHANGES[kind])))
    try:
        return name, CHANGES[kind][name](rng, value)
    except Exception:  # after another change, such as that of the shape
        return "None", None


def change_parameter(rng, name):
    """Return a wrong value of a parameter, or one at the edge of what is right."""
    values = PROCESSES if name in ("n_jobs", "n_workers") else VALUES
    if name in LARGE:
        values = (*values, 1000, 2**31)
    return values[rng.integers(len(values))]


# Parameters whose values are no part of the input: where work is done, and modules.
LEFT_ALONE = {"client", "query_module", "database_module", "max_restarts", "timeout", "port"}


def spoil_file(rng, path):
    """Damage a file in place, and return how."""
    if not isinstance(path, Path) or not path.is_file():
        return "nothing left"
    content = path.read_bytes()
    place = int(rng.integers(max(1, len(content))))
    ways = {
        "cut": content[:place],
        "empty": b"",
        "random bytes": rng.bytes(50),
        "longer": content + rng.bytes(5),
        "a part twice": content[:place] + content,
        "zeros": bytes(len(content)),
        "a byte": content[:place] + rng.bytes(1) + content[place + 1 :],
        "four bytes": content[:place] + b"\xff\xff\xff\x7f" + content[place + 4 :],
        "start": rng.bytes(4) + content[4:],
        "end": content[:-8] + rng.bytes(8),
    }
    way = str(rng.choice([*ways, "a folder", "not there"]))
    path.unlink()
    if way == "a folder":
        path.mkdir()
    elif way != "not there":
        path.write_bytes(ways[way])
    return way
