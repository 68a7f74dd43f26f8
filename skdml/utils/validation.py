"""Checks of input that several parts of the package share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets


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
        encode(y, name)
        check_classification_targets(y)
    return y


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
