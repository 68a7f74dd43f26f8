"""Checks of input: labels, pairs, grades, counts, vectors, and the range of rows.

Every error names the parameter, says what is wrong with the numbers, and what to do.
"""

from __future__ import annotations

import mmap
import numbers
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy import sparse
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from ._parallel import computed

# Arrays


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Put the name of a parameter before the message of an error that does not have it.

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
    """Check an array by :func:`sklearn.utils.check_array`, with errors that always name it."""
    with naming(name), np.errstate(invalid="ignore"):  # scikit-learn sums up infinities
        return check_array(values, input_name=name, **options)


def check_embeddings(values: Any, name: str, min_samples: int = 1) -> NDArray:
    """Return a finite 2-d array of float32 or float64."""
    any_shape: dict[str, Any] = {"ensure_min_samples": 0, "ensure_min_features": 0}
    any_shape |= {"ensure_2d": False, "allow_nd": True}
    X = check_named_array(values, name, dtype=[np.float64, np.float32], order="C", **any_shape)
    if X.ndim != 2:
        raise ValueError(
            f"{name} must have two dimensions (items by features), got shape {X.shape}; "
            "reshape a single feature with .reshape(-1, 1)."
        )
    if X.shape[0] < min_samples or X.shape[1] < 1:
        raise ValueError(
            f"{name} must have at least {min_samples} row(s) and one feature, got shape {X.shape}."
        )
    return X


def as_array(values: ArrayLike) -> NDArray:
    """Return an array; a list of numbers and strings keeps both, as objects.

    ``np.asarray`` would turn the numbers into strings.

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


def as_dense(X: Any, name: str = "X") -> NDArray:
    """Return rows as a dense array; MemoryError, with the size, if they do not fit."""
    if not sparse.issparse(X):
        return X
    advice = "Reduce the columns first, by TruncatedSVD."
    refuse_if_too_large(X.shape, f"{name} is worked on as a dense array", advice)
    return X.toarray()


def refuse_if_too_large(shape: tuple[int, ...], what: str, advice: str) -> None:
    """Raise before an allocation of float64 that would not fit into half of the memory."""
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


# Vectors, counts, grades


def check_vector(values: ArrayLike, name: str, length: int | None = None) -> NDArray:
    """Return a non-empty one-dimensional array of the given length."""
    with naming(name):
        vector = as_array(values)
    if vector.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {vector.shape}.")
    if length is not None and len(vector) != length:
        found = f"expected {length}, got {len(vector)}"
        raise ValueError(f"{name} must have one entry per row: {found}.")
    if len(vector) == 0:
        raise ValueError(f"{name} must not be empty.")
    return vector


def check_numbers(values: ArrayLike, name: str, length: int | None = None) -> NDArray:
    """Return a non-empty one-dimensional float64 array without NaN or infinity."""
    given = vector = check_vector(values, name, length)
    try:
        if vector.dtype.kind == "O":
            vector = np.asarray(vector.tolist())  # of the numbers' own type
        if vector.dtype.kind == "c" or vector.ndim > 1:
            raise TypeError("complex numbers have no order, and tuples are none")
        vector = vector.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must hold numbers, got dtype {given.dtype}.") from error
    if not np.isfinite(vector).all():
        raise ValueError(f"{name} must be finite, but it contains NaN or infinity.")
    return vector


def check_grades(values: ArrayLike, name: str, length: int | None = None) -> NDArray:
    """Return the relevance of documents, 0 or above; a column is flattened."""
    grades = check_numbers(_flattened(values, name), name, length)
    if (grades < 0).any():
        raise ValueError(f"{name} must not be negative: 0 is the grade of an irrelevant document.")
    return grades


def check_count(value: Any, name: str, minimum: int = 1) -> int:
    """Return an int of at least `minimum`."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        wanted = "a positive integer" if minimum == 1 else f"an integer of at least {minimum}"
        raise TypeError(f"{name} must be {wanted}, got {value!r}.")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value!r}.")
    return int(value)


# Labels


def check_given(y: Any, estimator: str, hint: str = "", name: str = "y") -> None:
    """Raise where `fit` needs a target and has none, in scikit-learn's words."""
    if y is None:
        raise ValueError(
            f"{estimator} requires {name} to be passed, but the target {name} is None.{hint}"
        )


def check_class_labels(y: Any, name: str) -> NDArray:
    """Return one class label per sample as an array; a column is flattened, with a warning."""
    with naming(name), np.errstate(invalid="ignore"):  # scikit-learn casts floats to integers
        y = column_or_1d(as_array(y), warn=True)
        if y.dtype.kind == "S":
            raise TypeError("labels must be numbers or strings, got bytes")
        encode(y, name)
        check_classification_targets(y)
    return y


def check_row_labels(y: Any, n_rows: int, name: str = "y", rows: str = "X") -> NDArray:
    """Return class labels, of which there must be one for each row of `rows`."""
    y = check_class_labels(y, name)
    if len(y) != n_rows:
        found = f"{len(y)} labels for {n_rows} rows of {rows}"
        raise ValueError(f"{name} has {found}: one class label per row is needed.")
    return y


def encode_classes(y: Any, n_rows: int) -> tuple[NDArray, NDArray]:
    """Return two classes or more, sorted, and the number of each row's class."""
    return encode_several(check_row_labels(y, n_rows))


def encode_known(y: Any, classes: NDArray, n_rows: int, name: str, rows: str) -> NDArray:
    """Return the number of each row's class, among classes that are known already."""
    y = check_row_labels(y, n_rows, name, rows)
    unknown = np.setdiff1d(y, classes)
    if len(unknown):
        raise ValueError(
            f"{name} has classes that y does not have, such as {unknown[0]!r}: leave these rows "
            f"of {rows} out, or add rows of their classes to X."
        )
    return np.searchsorted(classes, y)


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
    """
    y = _flattened(y, "y")
    if y.shape != (n_samples,):
        raise ValueError(
            f"y has shape {y.shape} for {n_samples} samples of X: one class label per sample is "
            f"needed{hint}."
        )
    return y


def _flattened(values, name):
    with naming(name):
        values = as_array(values)
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def encode(values: NDArray, name: str) -> tuple[NDArray, NDArray]:
    """Return the distinct values, sorted, and the position of each entry among them.

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
        return np.unique(values, return_inverse=True)
    except TypeError as error:
        wanted = "all numbers or all strings, without missing values"
        raise TypeError(f"{name} must be {wanted}.") from error


def encode_several(y: NDArray, beside: str = "") -> tuple[NDArray, NDArray]:
    """Encode class labels `y`, of which there must be two classes at least."""
    classes, codes = encode(y, "y")
    if len(classes) < 2:
        raise ValueError(
            f"y has only one class{beside}: at least two are needed to learn what is different."
        )
    return classes, codes


# Pairs of rows


def encode_for_pairs(y: NDArray) -> NDArray:
    """Return the number of each row's class; raise where similar or dissimilar pairs lack."""
    if len(y) < 2:
        raise ValueError(f"y has {len(y)} sample(s): at least two are needed to form a pair.")
    codes = encode(y, "y")[1]
    counts = np.bincount(codes)
    if len(counts) < 2:
        raise ValueError(
            "y has only one class, so there are no dissimilar pairs: labels of at least two "
            "classes are needed."
        )
    if counts.max() < 2:
        raise ValueError(
            "y has no class with two rows, so there are no similar pairs: at least one class "
            "needs two samples or more."
        )
    return codes


def check_index_pairs(pairs: Any, n_rows: int) -> NDArray:
    """Return pairs of row indices as an array of shape (n_pairs, 2)."""
    with naming("pairs"):
        pairs = np.asarray(pairs)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ValueError(f"pairs must be row indices of shape (n_pairs, 2), got {pairs.shape}.")
    if pairs.dtype.kind not in "iu":
        raise TypeError(
            f"pairs must hold integer row indices into X, got dtype {pairs.dtype}. Pairs of "
            "feature vectors are for pair_distance without X."
        )
    if len(pairs) and (pairs.min() < 0 or pairs.max() >= n_rows):
        raise ValueError(
            f"pairs names rows {pairs.min()} to {pairs.max()}, but X has {n_rows} samples "
            f"(rows 0 to {n_rows - 1})."
        )
    return pairs


def check_pair_labels(pair_labels: Any, n_pairs: int) -> NDArray[np.int64]:
    """Return labels of pairs, +1 or -1, as integers."""
    wanted = "numbers, +1 (similar) or -1 (dissimilar)"
    if pair_labels is None:
        raise ValueError(f"pair_labels is missing: pass {wanted}, one per pair.")
    with naming("pair_labels"):
        labels = np.asarray(pair_labels)
        if labels.dtype.kind == "O":
            labels = labels.astype(np.float64)
    if labels.dtype.kind not in "biuf":
        raise TypeError(f"pair_labels must be {wanted}, got dtype {labels.dtype}.")
    if labels.shape != (n_pairs,):
        raise ValueError(
            f"pair_labels has shape {labels.shape} for {n_pairs} pairs: one label per pair is "
            "needed."
        )
    wrong = np.setdiff1d(labels, [1, -1])
    if len(wrong):
        raise ValueError(f"pair_labels must be {wanted}, got {wrong[:5].tolist()} as well.")
    return labels.astype(np.int64)


def check_pairs(
    pairs: ArrayLike, pair_labels: ArrayLike | None, n_samples: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Check index pairs and their labels, and drop those that say nothing.

    A row paired with itself and a pair given twice with the same label are dropped, a pair
    given with both labels is kept; each case gives one warning that counts them.

    Parameters
    ----------
    pairs : array-like of shape (n_pairs, 2)
        Row indices in 0 .. n_samples - 1.
    pair_labels : array-like of shape (n_pairs,)
        +1 for similar, -1 for dissimilar.
    n_samples : int
        The number of rows that `pairs` may name.

    Returns
    -------
    pairs : ndarray of shape (n_kept, 2)
        The smaller index first.
    pair_labels : ndarray of shape (n_kept,)
        +1 or -1.

    Examples
    --------
    >>> from skdml.constraints import check_pairs
    >>> check_pairs([[0, 1], [2, 0]], [1, -1], n_samples=3)
    (array([[0, 1], [0, 2]]), array([ 1, -1]))
    """
    pairs = check_index_pairs(pairs, check_count(n_samples, "n_samples"))
    if not len(pairs):
        raise ValueError("pairs is empty: at least one similar and one dissimilar pair are needed.")
    labels = check_pair_labels(pair_labels, len(pairs))
    pairs = np.sort(pairs.astype(np.int64), axis=1)

    itself = pairs[:, 0] == pairs[:, 1]
    _warn_dropped(itself, "paired a row with itself")
    pairs, labels = pairs[~itself], labels[~itself]

    number = pairs[:, 0] * n_samples + pairs[:, 1]
    _, first = np.unique(number * 2 + (labels > 0), return_index=True)
    repeated = np.ones(len(pairs), dtype=bool)
    repeated[first] = False
    _warn_dropped(repeated, "were given before with the same label")
    pairs, labels, number = pairs[~repeated], labels[~repeated], number[~repeated]

    contradictory = len(number) - len(np.unique(number))
    if contradictory:
        warnings.warn(
            f"{contradictory} pairs are labelled both similar and dissimilar; both are kept.",
            stacklevel=3,
        )
    for sign, kind in ((1, "similar (+1)"), (-1, "dissimilar (-1)")):
        if not (labels == sign).any():
            raise ValueError(f"pair_labels has no {kind} pair left: both kinds are needed.")
    return pairs, labels


def _warn_dropped(dropped, reason):
    if dropped.any():
        warnings.warn(f"{dropped.sum()} of {len(dropped)} pairs {reason} and were dropped.")


# Range and variation of rows

# Numbers between 2 to the power of minus and plus these keep what is computed from them in range:
# products of two squares in double precision, squares in single.
_EXPONENTS = {np.dtype(np.float64): 240, np.dtype(np.float32): 60}
# Values of a column that differ by less than so many units of rounding are the same.
_ROUNDING_UNITS = 8
# In a type with less precision, so many steps between the ends of a column are too few.
_FEW_STEPS = 100


def unit_for_squares(X: Any) -> float:
    """Return a power of two by which to divide X so that its squares are in range.

    It is 1 where nothing needs to be done, or nothing can be done as X is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from skdml.utils.validation import unit_for_squares
    >>> unit_for_squares(np.array([3.0, -1000.0]))
    1.0
    >>> unit_for_squares(np.array([3.0, -1000.0]) * 2.0**600) == 2.0**609
    True
    """
    largest = largest_size(X)
    exponent = _EXPONENTS[np.dtype(np.float32 if X.dtype == np.float32 else np.float64)]
    if 2.0**-exponent <= largest <= 2.0**exponent or largest == 0 or not np.isfinite(largest):
        return 1.0
    return 2.0 ** max(int(np.frexp(largest)[1]) - 1, -1000)  # whose inverse is finite


def largest_size(X: Any) -> float:
    """Return the largest absolute value of an array or a sparse matrix, 0 if it is empty."""
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
    """
    largest = largest_size(X)
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
    """Return the minimum and the maximum of every column, of dask arrays in one pass."""
    low, high = X.min(axis=0), X.max(axis=0)
    if sparse.issparse(X):
        low, high = low.toarray().ravel(), high.toarray().ravel()
    return computed(np.stack([low, high]))


def page_release(X: Any) -> Callable[[], None] | None:
    """Return a function that lets the pages of a memory-mapped array go from memory.

    Pages that were read count as memory of the process until the system needs their place. None for
    other arrays, and for private mappings, whose changes would be lost.
    """
    mapping = getattr(X, "_mmap", None)
    is_shared = isinstance(X, np.memmap) and X.mode in ("r", "r+", "w+")
    if mapping is None or not is_shared or not hasattr(mmap, "MADV_DONTNEED"):
        return None
    return lambda: mapping.madvise(mmap.MADV_DONTNEED)


def varying_columns(X: Any, dtype: DTypeLike | None = None, n_units: int = _ROUNDING_UNITS) -> Any:
    """Tell which columns vary by more than `n_units` of rounding of `dtype` (None: that of X)."""
    low, high = column_bounds(X).astype(np.float64)
    eps = np.finfo(X.dtype if dtype is None else dtype).eps
    return high / 2 - low / 2 > n_units / 2 * eps * np.maximum(np.abs(low), np.abs(high))


def check_varies(X: Any, name: str = "X", dtype: DTypeLike | None = None) -> None:
    """Refuse rows that are all the same, up to rounding; in `dtype`, if it is another than X's."""
    if not varying_columns(X).any():
        raise ValueError(f"{name} has the same values in every row: nothing can be learned.")
    if dtype is not None and not varying_columns(X, dtype, _FEW_STEPS).any():
        raise ValueError(
            f"{name} varies so little beside its values, up to {np.abs(X).max():.3g}, that "
            f"{np.dtype(dtype).name}, in which it is worked on, can hardly tell its rows apart: "
            "subtract the mean of each column, as StandardScaler does."
        )
