"""Checks of input that several parts of the package share."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy import sparse
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from .._parallel import computed


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Put the name of a parameter before the message of an error that does not have it.

    Parameters
    ----------
    name : str
        The parameter.

    Examples
    --------
    >>> from skdml.utils.validation import naming
    >>> with naming("margin"):
    ...     float("wide")
    Traceback (most recent call last):
    ValueError: margin: could not convert string to float: 'wide'
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        # Not anywhere in the message: numpy asks for "a real number", and quotes b'bytes'.
        if re.search(rf"(^|Input |for |'){name}\b", str(error)):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}: {error}") from error


def check_named_array(values: Any, name: str, **options: Any) -> Any:
    """Check an array as scikit-learn does, with errors that always name it.

    Parameters
    ----------
    values : object
        Given as an array.
    name : str
        The parameter.
    **options
        Of :func:`sklearn.utils.check_array`.

    Returns
    -------
    array : ndarray or sparse matrix
        The array.

    Examples
    --------
    >>> from skdml.utils.validation import check_named_array
    >>> check_named_array([[1, 2]], "prior", dtype=float)
    array([[1., 2.]])
    """
    with naming(name), np.errstate(invalid="ignore"):  # scikit-learn sums up infinities
        return check_array(values, input_name=name, **options)


def check_class_labels(y: Any, name: str) -> NDArray:
    """Return one class label per sample as an array; a column is flattened, with a warning.

    Parameters
    ----------
    y : array-like of shape (n_samples,)
        Class labels, numbers or strings.
    name : str
        The parameter, named in errors.

    Returns
    -------
    y : ndarray of shape (n_samples,)
        The labels.

    Examples
    --------
    >>> from skdml.utils.validation import check_class_labels
    >>> check_class_labels(["a", "b"], "y")
    array(['a', 'b'], dtype='<U1')
    """
    with naming(name), np.errstate(invalid="ignore"):  # scikit-learn casts floats to integers
        y = column_or_1d(as_array(y), warn=True)
        if y.dtype.kind == "S":
            raise TypeError("labels must be numbers or strings, got bytes")
        encode(y, name)
        check_classification_targets(y)
    return y


def label_vector(y: Any, n_samples: int, hint: str = "") -> NDArray:
    """Return one label per sample as an array; a column is flattened.

    Parameters
    ----------
    y : array-like of shape (n_samples,) or (n_samples, 1)
        Class labels.
    n_samples : int
        How many there should be.
    hint : str, default=""
        The end of the error's sentence.

    Returns
    -------
    y : ndarray of shape (n_samples,)
        The labels.

    Examples
    --------
    >>> from skdml.utils.validation import label_vector
    >>> label_vector([["a"], ["b"]], 2)
    array(['a', 'b'], dtype='<U1')
    """
    with naming("y"):
        y = as_array(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape != (n_samples,):
        raise ValueError(
            f"y has shape {y.shape} for {n_samples} samples of X: one class label per sample is "
            f"needed{hint}."
        )
    return y


# Numbers between 2 to the power of minus and plus these keep what is computed from them in range:
# products of two squares in double precision, squares in single.
_EXPONENTS = {np.dtype(np.float64): 240, np.dtype(np.float32): 60}
# Values of a column that differ by less than so many units of rounding are the same.
_ROUNDING_UNITS = 8
# In a type with less precision, so many steps between the ends of a column are too few.
_FEW_STEPS = 100


def as_array(values: ArrayLike) -> NDArray:
    """Return an array; a list of numbers and strings keeps both, as objects.

    ``np.asarray`` would turn the numbers into strings.

    Parameters
    ----------
    values : array-like
        Labels or names.

    Returns
    -------
    array : ndarray
        The values.

    Examples
    --------
    >>> from skdml.utils.validation import as_array
    >>> as_array([1, "a"])
    array([1, 'a'], dtype=object)
    """
    array = np.asarray(values)
    if array.dtype.kind in "US" and isinstance(values, (list, tuple)):
        flat = [value for value in values if not isinstance(value, (list, tuple))]
        if not all(isinstance(value, (str, bytes)) for value in flat):
            return np.asarray(values, dtype=object)
    return array


def encode(values: NDArray, name: str) -> tuple[NDArray, NDArray]:
    """Return the distinct values, sorted, and the position of each entry among them.

    Parameters
    ----------
    values : ndarray of shape (n_samples,)
        Labels or names, as `as_array` returns them.
    name : str
        The parameter, named in errors.

    Returns
    -------
    distinct : ndarray of shape (n_distinct,)
        The distinct values.
    codes : ndarray of shape (n_samples,)
        Positions in `distinct`.

    Examples
    --------
    >>> import numpy as np
    >>> from skdml.utils.validation import encode
    >>> encode(np.array(["b", "a", "b"]), "y")
    (array(['a', 'b'], dtype='<U1'), array([1, 0, 1]))
    """
    if values.dtype.kind in "cV":
        raise TypeError(f"{name} must be all numbers or all strings, got dtype {values.dtype}.")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError(f"{name} must not contain NaN or infinity.")
    try:
        distinct, codes = np.unique(values, return_inverse=True)
    except TypeError as error:
        raise TypeError(
            f"{name} must be all numbers or all strings, without missing values."
        ) from error
    return distinct, codes


def unit_for_squares(X: Any) -> float:
    """Return a power of two by which numbers can be divided so that their squares are in range.

    Parameters
    ----------
    X : array or sparse matrix
        Numbers of float32 or float64.

    Returns
    -------
    unit : float
        1 where nothing needs to be done, or nothing can be done as they are not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from skdml.utils.validation import unit_for_squares
    >>> unit_for_squares(np.array([3.0, -1000.0]))
    1.0
    >>> unit_for_squares(np.array([3.0, -1000.0]) * 2.0**600) == 2.0**609
    True
    """
    largest = _largest(X)
    exponent = _EXPONENTS[np.dtype(np.float32 if X.dtype == np.float32 else np.float64)]
    if 2.0**-exponent <= largest <= 2.0**exponent or largest == 0 or not np.isfinite(largest):
        return 1.0
    return 2.0 ** max(int(np.frexp(largest)[1]) - 1, -1000)  # whose inverse is finite


def _largest(X):
    values = np.asarray(X.data if sparse.issparse(X) else X)
    if 0 in values.shape:
        return 0.0
    return max(float(values.max()), -float(values.min()))


def check_scale(
    X: Any,
    name: str = "X",
    dtype: DTypeLike = np.float64,
    *,
    exponent: int | None = None,
    may_be_small: bool = False,
) -> None:
    """Refuse numbers so large or so small that what is computed from them leaves its range.

    Parameters
    ----------
    X : array or sparse matrix
        Finite numbers.
    name : str, default="X"
        The parameter, named in errors.
    dtype : dtype, default=float64
        In which they are worked on.
    exponent : int, default=None
        Numbers from 2 to the power of minus this to 2 to the power of it are accepted. None:
        those whose squares are in range.
    may_be_small : bool, default=False
        Whether only numbers that are too large are refused.

    Examples
    --------
    >>> from skdml.utils.validation import check_scale
    >>> check_scale([[1e-200, 3e-200]])
    Traceback (most recent call last):
    ...
    ValueError: X has no value above 3e-200, and products of squares of such numbers leave ...
    """
    largest = _largest(X)
    dtype = np.dtype(dtype)
    limit = 2.0 ** (exponent or _EXPONENTS[dtype])
    if largest > limit or (0 < largest < 1 / limit and not may_be_small):
        what = "values up to" if largest > 1 else "no value above"
        which = "squares" if dtype == np.float32 else "products of squares"
        raise ValueError(
            f"{name} has {what} {largest:.3g}, and {which} of such numbers leave the range of "
            f"{dtype.name}: divide {name} by {largest:.0e}, or scale its columns, as MaxAbsScaler "
            "does."
        )


def column_bounds(X: Any) -> NDArray:
    """Return the smallest and the largest value of every column, of dask arrays in one pass.

    Parameters
    ----------
    X : array, sparse matrix or dask array of shape (n_samples, n_features)
        The rows.

    Returns
    -------
    bounds : ndarray of shape (2, n_features)
        NaN for columns with NaN.

    Examples
    --------
    >>> import numpy as np
    >>> from skdml.utils.validation import column_bounds
    >>> column_bounds(np.array([[0, 3], [1, 2]]))
    array([[0, 2],
           [1, 3]])
    """
    low, high = X.min(axis=0), X.max(axis=0)
    if sparse.issparse(X):
        low, high = low.toarray().ravel(), high.toarray().ravel()
    return computed(np.stack([low, high]))


def varying_columns(X: Any, dtype: DTypeLike | None = None, n_units: int = _ROUNDING_UNITS) -> Any:
    """Tell which columns vary by more than rounding.

    Parameters
    ----------
    X : array, sparse matrix or dask array of shape (n_samples, n_features)
        The rows.
    dtype : dtype, default=None
        Whose rounding counts; None: that of X.
    n_units : int, default=8
        Units of rounding that a column varies by at least.

    Returns
    -------
    varies : ndarray of bool, of shape (n_features,)
        False for constant columns.

    Examples
    --------
    >>> import numpy as np
    >>> from skdml.utils.validation import varying_columns
    >>> varying_columns(np.array([[0.3, 1.0], [0.1 + 0.2, 2.0]]))
    array([False,  True])
    """
    low, high = column_bounds(X).astype(np.float64)
    eps = np.finfo(X.dtype if dtype is None else dtype).eps
    return high / 2 - low / 2 > n_units / 2 * eps * np.maximum(np.abs(low), np.abs(high))


def check_varies(X: Any, name: str = "X", dtype: DTypeLike | None = None) -> None:
    """Refuse rows that are all the same, up to rounding.

    Parameters
    ----------
    X : array, sparse matrix or dask array of shape (n_samples, n_features)
        The rows.
    name : str, default="X"
        The parameter, named in errors.
    dtype : dtype, default=None
        In which they are worked on, if not in that of X.

    Examples
    --------
    >>> import numpy as np
    >>> from skdml.utils.validation import check_varies
    >>> check_varies(np.full((3, 2), 3.7))
    Traceback (most recent call last):
    ...
    ValueError: X has the same values in every row: there is nothing to learn from.
    """
    if not varying_columns(X).any():
        raise ValueError(
            f"{name} has the same values in every row: there is nothing to learn from."
        )
    if dtype is not None and not varying_columns(X, dtype, _FEW_STEPS).any():
        raise ValueError(
            f"{name} varies so little beside its values, up to {np.abs(X).max():.3g}, that "
            f"{np.dtype(dtype).name}, in which it is worked on, can hardly tell its rows apart: "
            "subtract the mean of each column, as StandardScaler does."
        )


def as_dense(X: Any, name: str = "X") -> NDArray:
    """Return rows as a dense array, or say that they do not fit.

    Parameters
    ----------
    X : ndarray or sparse matrix of shape (n_samples, n_features)
        The rows.
    name : str, default="X"
        The parameter, named in errors.

    Returns
    -------
    X : ndarray of shape (n_samples, n_features)
        The rows.

    Examples
    --------
    >>> from scipy import sparse
    >>> from skdml.utils.validation import as_dense
    >>> as_dense(sparse.eye_array(2).tocsr())
    array([[1., 0.],
           [0., 1.]])
    """
    if not sparse.issparse(X):
        return X
    refuse_if_too_large(
        X.shape,
        f"{name} is worked on as a dense array",
        "Reduce the columns first, by TruncatedSVD.",
    )
    return X.toarray()


def refuse_if_too_large(shape: tuple[int, ...], what: str, advice: str) -> None:
    """Raise before an allocation that would not fit into half of the machine's memory.

    Parameters
    ----------
    shape : tuple (n_rows, n_columns)
        Of an array of float64.
    what : str
        What it would be, named in the error.
    advice : str
        What to do in its place.

    Examples
    --------
    >>> from skdml.utils.validation import refuse_if_too_large
    >>> refuse_if_too_large((10, 10), "a small array", "")
    """
    size = 8 * shape[0] * shape[1]
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not told on this platform
        return
    if size > memory / 2:
        raise MemoryError(
            f"{what} of {shape[0]} x {shape[1]} numbers ({size / 2**30:.1f} GiB), more than half "
            f"of this machine's memory ({memory / 2**30:.1f} GiB). {advice}"
        )


# Partly missing labels, and graphs of neighbours


def labelled_rows(y: Any) -> NDArray[np.bool_]:
    """Tell which labels are not -1.

    Parameters
    ----------
    y : array-like of shape (n_samples,)
        Labels; of numbers, or of objects.

    Returns
    -------
    labelled : ndarray of bool, of shape (n_samples,)
        True where there is a label.

    Examples
    --------
    >>> from skdml.utils.validation import labelled_rows
    >>> labelled_rows([2, -1, 0])
    array([ True, False,  True])
    """
    y = as_array(y)
    return np.array(y != -1) if y.dtype.kind in "iufO" else np.ones(y.shape, dtype=bool)


def encode_partial_labels(
    y: Any, n_samples: int, name: str, needs_pairs: bool
) -> tuple[NDArray, NDArray]:
    """Return the classes, sorted, and the number of each sample's class, -1 where unknown.

    Parameters
    ----------
    y : array-like or None
        Class labels.
    n_samples : int
        How many there should be.
    name : str
        The estimator, named in errors.
    needs_pairs : bool
        Whether some class must have two labelled samples.

    Returns
    -------
    classes : ndarray of shape (n_classes,)
        The distinct labels, without -1.
    codes : ndarray of shape (n_samples,)
        Positions in `classes`, or -1.

    Examples
    --------
    >>> from skdml.utils.validation import encode_partial_labels
    >>> encode_partial_labels([5, -1, 3, 5], 4, "Learner", needs_pairs=True)
    (array([3, 5]), array([ 1, -1,  0,  1]))
    """
    if y is None:
        raise ValueError(f"{name} requires y to be passed, but the target y is None.")
    y = label_vector(y, n_samples, ", -1 for samples without one")
    labelled = labelled_rows(y)
    if not labelled.any():
        raise ValueError("y is -1 everywhere: some samples need a class label, of two classes.")
    if labelled.all():
        warnings.warn(
            f"all samples have a label, and {name} is for data with samples that have none (y = "
            "-1): DeepMetricEmbedder learns from labels alone.",
            stacklevel=5,
        )
    known = y[labelled]
    if known.dtype.kind == "f" and not np.isfinite(known).all():
        raise ValueError("y contains NaN or infinity: give -1 to samples without a label.")
    classes, positions = encode(known, "y")
    if len(classes) < 2:
        raise ValueError(
            "y has only one class beside -1: at least two are needed to learn what is different."
        )
    if needs_pairs and np.bincount(positions).max() < 2:
        raise ValueError(
            "y has no class with two labelled samples, from which this method learns what is "
            "similar: label more samples, or use method='ssdml'."
        )
    codes = np.full(n_samples, -1)
    codes[labelled] = positions
    return classes, codes


def check_neighbors(n_neighbors: int, n_nodes: int) -> None:
    """Check the number of neighbours in a graph: even, and smaller than the graph.

    Parameters
    ----------
    n_neighbors : int
        The parameter.
    n_nodes : int
        Samples of a graph.

    Examples
    --------
    >>> from skdml.utils.validation import check_neighbors
    >>> check_neighbors(5, 20)
    Traceback (most recent call last):
    ...
    ValueError: n_neighbors=5 must be even: neighbourhoods are cut in halves. Take 4 or 6.
    """
    if n_neighbors % 2:
        raise ValueError(
            f"n_neighbors={n_neighbors} must be even: neighbourhoods are cut in halves. Take "
            f"{n_neighbors - 1} or {n_neighbors + 1}."
        )
    if n_neighbors >= n_nodes:
        raise ValueError(
            f"n_neighbors={n_neighbors} must be less than the {n_nodes} samples of a graph: take "
            "fewer neighbours, or more samples (partition_size)."
        )


def encode_classes(y: Any, n_samples: int, estimator: str) -> tuple[NDArray, NDArray]:
    """Return the classes, sorted, and the number of each sample's class.

    Parameters
    ----------
    y : array-like of shape (n_samples,) or None
        Class labels. At least two classes, one of them with two samples.
    n_samples : int
        How many there should be.
    estimator : str
        Named in errors.

    Returns
    -------
    classes : ndarray of shape (n_classes,)
        The distinct labels.
    codes : ndarray of shape (n_samples,)
        Positions in `classes`.

    Examples
    --------
    >>> from skdml.utils.validation import encode_classes
    >>> encode_classes(["b", "a", "b"], 3, "DeepMetricEmbedder")[1]
    array([1, 0, 1])
    """
    if y is None:
        raise ValueError(f"{estimator} requires y to be passed, but the target y is None.")
    y = label_vector(y, n_samples)
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise ValueError("y contains NaN or infinity: every sample needs a class label.")
    if y.dtype.kind in "iuf" and (y == -1).any():
        raise ValueError(
            f"y has -1 for {int(np.sum(y == -1))} samples, which stands for no label. {estimator} "
            "learns from labelled samples: leave them out, or use SSDMLEmbedder."
        )
    classes, codes = encode(y, "y")
    if len(classes) < 2:
        raise ValueError(
            "y has only one class: at least two are needed to learn what is different."
        )
    if np.bincount(codes).max() < 2:
        raise ValueError("y has no class with two samples: nothing tells what is similar.")
    return classes, codes
