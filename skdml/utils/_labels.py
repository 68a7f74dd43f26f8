"""Checks of class labels of learners with networks, all known or partly missing."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import DataConversionWarning

from .validation import as_array, check_given, encode_several, label_vector, naming


def encode_labels(y: Any, n_samples: int, estimator: str) -> tuple[NDArray, NDArray]:
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
    >>> from skdml.utils._labels import encode_labels
    >>> encode_labels(["b", "a", "b"], 3, "DeepMetricEmbedder")[1]
    array([1, 0, 1])
    """
    check_given(y, estimator)
    y = label_vector(y, n_samples)
    if y.dtype.kind in "iuf" and (y == -1).any():
        raise ValueError(
            f"y has -1 for {int(np.sum(y == -1))} samples, which stands for no label. {estimator} "
            "learns from labelled samples: leave them out, or use SSDMLEmbedder."
        )
    classes, codes = encode_several(y)
    if np.bincount(codes).max() < 2:
        raise ValueError("y has no class with two samples: nothing tells what is similar.")
    return classes, codes


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
    >>> from skdml.utils._labels import labelled_rows
    >>> labelled_rows([2, -1, 0])
    array([ True, False,  True])
    """
    y = as_array(y)
    if y.dtype.kind == "U" and (y == "-1").any():
        raise ValueError(
            "y has the text '-1', which numpy makes of -1 beside names: for samples without a "
            "label to have the number -1, make it an array of objects."
        )
    if y.dtype.kind not in "iufO":
        return np.ones(y.shape, dtype=bool)
    with naming("y"):
        return np.array(y != -1)


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
    >>> from skdml.utils._labels import encode_partial_labels
    >>> encode_partial_labels([5, -1, 3, 5], 4, "Learner", needs_pairs=True)
    (array([3, 5]), array([ 1, -1,  0,  1]))
    """
    check_given(y, name)
    with naming("y"):
        y = as_array(y)
    if y.ndim == 2 and y.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected.",
            DataConversionWarning,
            stacklevel=5,
        )
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
    if known.dtype.kind == "f" and (known != np.floor(known)).any():
        raise ValueError("y is continuous: class labels are needed, -1 for samples without one.")
    classes, positions = encode_several(known, " beside -1")
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
    >>> from skdml.utils._labels import check_neighbors
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
