"""Checks of what AsymmetricMetricClassifier is given beyond X."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._optional import optional_import
from ..utils.validation import check_class_labels, check_named_array, encode


def encode_labels(y: Any, n_samples: int, estimator: str) -> tuple[NDArray, NDArray]:
    """Return the classes, sorted, and the number of each sample's class."""
    y = check_labels(y, n_samples, "y", "X", estimator)
    classes, codes = encode(y, "y")
    if len(classes) < 2:
        raise ValueError(
            f"y has only one class, {classes[0]!r}: at least two classes are needed to learn what "
            "is different."
        )
    return classes, codes


def encode_query_labels(y_query: Any, n_samples: int, classes: NDArray, estimator: str) -> NDArray:
    """Return the number of the class of each training query."""
    y_query = check_labels(y_query, n_samples, "y_query", "X_query", estimator)
    unknown = np.setdiff1d(y_query, classes)
    if len(unknown):
        raise ValueError(
            f"y_query has classes that y does not have, such as {unknown[0]!r}: leave these "
            "queries out, or add rows of their classes to X."
        )
    return np.searchsorted(classes, y_query)


def check_labels(y: Any, n_samples: int, name: str, rows: str, estimator: str) -> NDArray:
    """Return one class label per sample as an array."""
    if y is None:
        raise ValueError(
            f"{estimator} requires {name} to be passed, but the target {name} is None. Pass the "
            f"class of each row of {rows}."
        )
    y = check_class_labels(y, name)
    if len(y) != n_samples:
        raise ValueError(
            f"{name} has {len(y)} labels for {n_samples} rows of {rows}: one label per row is "
            "needed."
        )
    return y


def check_same_kind(y: Any, predicted: NDArray, estimator: str) -> NDArray:
    """Return labels that can be compared with predicted ones."""
    y = check_labels(y, len(predicted), "y", "X", estimator)
    if any((y.dtype.kind in kinds) != (predicted.dtype.kind in kinds) for kinds in ("biuf", "mM")):
        raise TypeError(
            f"y (dtype {y.dtype}) and the classes of fit (dtype {predicted.dtype}) must be of the "
            "same kind, numbers or strings."
        )
    return y


def check_costs(cost_matrix: Any, n_classes: int) -> NDArray:
    """Return the costs of wrong answers, 1 each if none are given."""
    if cost_matrix is None:
        return 1.0 - np.eye(n_classes)
    costs = check_named_array(cost_matrix, "cost_matrix", dtype=np.float64)
    if costs.shape != (n_classes, n_classes):
        raise ValueError(
            f"cost_matrix must have one row and one column for each of the {n_classes} classes, "
            f"in the order of classes_: the shape ({n_classes}, {n_classes}), got {costs.shape}."
        )
    if costs.diagonal().any() or (costs + np.eye(n_classes) <= 0).any():
        raise ValueError(
            "cost_matrix must be 0 on the diagonal, where the answer is right, and positive "
            "everywhere else."
        )
    return costs


def check_modules(query_module: Any, database_module: Any, symmetric: bool) -> bool:
    """Return whether modules are to be used, and check that they fit together."""
    if query_module is None and database_module is None:
        return False
    torch = optional_import("torch", "query_module of AsymmetricMetricClassifier")
    for name, module in (("query_module", query_module), ("database_module", database_module)):
        if module is not None and not isinstance(module, torch.nn.Module):
            raise TypeError(
                f"{name} must be an instance of torch.nn.Module or None, got {module!r}."
            )
    if query_module is None:
        raise ValueError("database_module was given without query_module: pass both.")
    if symmetric != (database_module is None):
        raise ValueError(
            "symmetric=True uses query_module for both sides: leave database_module out."
            if symmetric
            else "query_module was given without database_module: pass both, or symmetric=True to "
            "use one module for both sides."
        )
    return True


def check_neighbors(n_neighbors: int, n_candidates: int, codes: NDArray) -> None:
    """Check that a class can win a vote of so many neighbours."""
    largest = int(np.bincount(codes).max())
    if n_neighbors > largest:
        raise ValueError(
            f"n_neighbors={n_neighbors} is larger than every class of y: the largest has {largest} "
            "rows. Choose fewer neighbours."
        )
    if n_candidates < 4 * n_neighbors:
        raise ValueError(
            f"n_candidates={n_candidates} must be at least 4 * n_neighbors = {4 * n_neighbors}: "
            "a quarter of them are the nearest rows of other classes."
        )
