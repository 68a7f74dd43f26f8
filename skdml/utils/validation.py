"""Checks of input that several parts of the package share."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse


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
    if values.dtype.kind in "fc" and np.isnan(values).any():
        raise ValueError(f"{name} must not contain NaN.")
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
