"""Rows under two metrics, for a page of `explore`: positions, neighbours and reasons."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from ..metrics._neighbors import nearest
from ..utils.validation import as_dense, check_named_array, check_vector
from ._embedding import principal_axes
from ._explore_blocks import (
    MAX_CELLS,
    pack,
    pack_columns,
    pack_images,
    pack_labels,
    pack_texts,
    read_columns,
)

# More columns than this have no parts of the distance: their matrix would be most of the page.
_MAX_LINEAR = 1024
# Values whose squares and sums are within single precision.
_LARGEST = 1e15
# Rows at a time, where distances of pairs are worked out.
_BLOCK = 2048


def rows_page(
    estimator: Any, X: Any, y: ArrayLike | None, gallery: Any, gallery_labels: Any, options: Any
) -> dict[str, Any]:
    """Return the content of a page of rows before and after a learned map."""
    before, after, learner = split(estimator)
    sides = [X] if gallery is None else [X, gallery]
    n_queries = n_rows_of(X, "X")
    n_rows = n_queries + (0 if gallery is None else n_rows_of(gallery, "gallery"))
    if n_rows - n_queries < 2 and n_queries < 2:
        raise ValueError("X must have at least two rows.")
    if gallery is not None and (y is None) != (gallery_labels is None):
        raise ValueError("pass both y and gallery_labels, or neither.")
    if gallery is None and gallery_labels is not None:
        raise ValueError("gallery_labels is given without gallery.")

    names = "X before the metric", "gallery before the metric"
    given = [_numbers(before(side), name) for side, name in zip(sides, names, strict=False)]
    if given[0].shape[1] != given[-1].shape[1]:
        raise ValueError(
            f"gallery must have the {given[0].shape[1]} columns of X, got {given[-1].shape[1]}."
        )
    raw = np.concatenate(given)
    as_stored = getattr(learner, "transform_database", None)
    inputs = [before(side) for side in sides]
    learned = _numbers(after(inputs[0]), "transform of X")
    stored = learned
    if as_stored is not None:
        stored = _numbers(as_stored(inputs[-1]), "transform_database of X")
    elif gallery is not None:
        stored = _numbers(after(inputs[1]), "transform of gallery")
    metric = getattr(learner, "metric_", None)
    metric = metric if hasattr(metric, "cloud") and hasattr(metric, "pairwise") else None

    first = 0 if gallery is None else n_queries
    everything = learned if gallery is None else np.concatenate([learned, stored])
    own = np.arange(n_rows) - first  # where a row is among those that are searched
    k = min(options["n_neighbors"], n_rows - first - 1)
    found = [
        find_neighbors(raw, raw[first:], own, k),
        find_neighbors(everything, stored, own, k, metric),
    ]
    positions, shares = zip(*(principal_axes(Z) for Z in (raw, everything)), strict=True)
    first_map = fit_box(positions[0])
    maps = first_map, turn(positions[1], first_map)
    titles = "raw", type(learner).__name__
    page: dict[str, Any] = {
        "mode": "rows",
        "n": n_rows,
        "k": k,
        "parts": [{"name": "row", "start": 0}],
        "views": [
            {
                "name": name,
                "positions": pack(placed, "float32"),
                "variance": float(share),
                "neighbors": pack(neighbors + first, "int32"),
                "distances": pack(distances, "float32"),
            }
            for name, placed, share, (neighbors, distances) in zip(
                titles, maps, shares, found, strict=True
            )
        ],
    }
    if gallery is not None:
        page["parts"].append({"name": "stored row", "start": n_queries})
        if y is not None and gallery_labels is not None:
            labels = check_vector(gallery_labels, "gallery_labels", n_rows - n_queries)
            y = [*check_vector(y, "y", n_queries), *labels]
    page["labels"] = pack_labels(y, n_rows, hasattr(learner, "transduction_"))
    page |= _contents(sides, raw, n_rows, options)
    if gallery is None and as_stored is None and metric is None and "columns" in page:
        page["metrics"] = reasons(before, after, X)
    return page


def split(estimator: Any) -> tuple[Callable, Callable, Any]:
    """Return what is done before the metric, the learned map, and its estimator."""
    estimator = getattr(estimator, "best_estimator_", estimator)
    if hasattr(estimator, "fit"):
        check_is_fitted(estimator)
    if isinstance(estimator, Pipeline):
        steps = list(estimator.steps)
        while steps and not hasattr(steps[-1][1], "transform"):
            steps.pop()
        if not steps:
            raise TypeError(
                "estimator must have a step with transform, got a pipeline without one."
            )
        learner = steps.pop()[1]
        before = Pipeline(steps).transform if steps else _as_is
        return before, learner.transform, learner
    if not hasattr(estimator, "transform") and hasattr(estimator, "learner_"):
        return split(estimator.learner_)  # of a PairClassifier
    if not hasattr(estimator, "transform"):
        raise TypeError(
            "estimator must have transform, sample, or explain and predict by query; got "
            f"{type(estimator).__name__}."
        )
    return _as_is, estimator.transform, estimator


def _as_is(X):
    return X


def n_rows_of(X: Any, name: str) -> int:
    """Return the number of rows of what an estimator takes."""
    if hasattr(X, "shape") and len(X.shape):
        return int(X.shape[0])
    if isinstance(X, str) or not hasattr(X, "__len__"):
        raise TypeError(f"{name} must be rows, got {type(X).__name__}.")
    return len(X)


def _numbers(rows, name):
    """Return rows as finite single-precision numbers in two dimensions."""
    if hasattr(rows, "toarray"):
        rows = as_dense(rows, name)
    options = {"dtype": np.float64, "allow_nd": True, "ensure_2d": False}
    rows = check_named_array(rows, name, **options)
    if rows.ndim < 2:
        raise ValueError(f"{name} must have rows and columns, got shape {rows.shape}.")
    rows = rows.reshape(len(rows), -1)
    if rows.size and np.abs(rows).max() > _LARGEST:
        raise ValueError(f"{name} has values above {_LARGEST:.0e}: scale it first.")
    return np.ascontiguousarray(rows, dtype=np.float32)


def find_neighbors(
    queries: NDArray, items: NDArray, own: NDArray, k: int, metric: Any = None
) -> tuple[NDArray, NDArray]:
    """Return the nearest items of each query but itself, and their distances.

    `own` is where a query is among the items; elsewhere it is below 0, or none of them.
    """
    dtype = np.result_type(queries, items)
    queries, items = queries.astype(dtype, copy=False), items.astype(dtype, copy=False)
    found = np.empty((len(queries), k + 1), dtype=np.intp)
    options = {} if metric is None else {"metric": metric}
    for rows, neighbors in nearest(queries, items[:], k + 1, **options):
        found[rows] = neighbors
    # The row itself goes, or else the farthest; what stays keeps its order.
    away = found == own[:, None]
    away[~away.any(axis=1), -1] = True
    found = found[~away].reshape(-1, k)
    distances = np.empty(found.shape, dtype=np.float64)
    for start in range(0, len(queries), _BLOCK):
        part = slice(start, start + _BLOCK)
        if metric is not None:
            values = metric.pairwise(queries[part], items)
            distances[part] = np.take_along_axis(values, found[part], axis=1)
        else:
            for rank in range(found.shape[1]):
                difference = queries[part].astype(np.float64) - items[found[part, rank]]
                distances[part, rank] = np.linalg.norm(difference, axis=1)
    return found, distances


def fit_box(positions: NDArray) -> NDArray:
    """Centre positions and scale them so that all but a few outliers are within -1 and 1."""
    low, high = np.quantile(positions, [0.002, 0.998], axis=0)
    positions = positions - (low + high) / 2
    size = (high - low).max() / 2
    return positions / (size or np.abs(positions).max() or 1.0)


def turn(positions: NDArray, like: NDArray) -> NDArray:
    """Turn and mirror positions, so that each is as near as it can be to another of its row."""
    centred = positions - positions.mean(axis=0)
    left, _, right = np.linalg.svd(centred.T @ (like - like.mean(axis=0)))
    return fit_box(positions @ left @ right)


def _contents(sides, raw, n_rows, options):
    """Return the columns, pictures and texts of rows, as far as there are any."""
    content: dict[str, Any] = {"notes": []}
    X, images, texts = sides[0], options["images"], options["texts"]
    is_text = isinstance(X, (list, tuple)) and all(isinstance(text, str) for text in X)
    if is_text and texts is None:
        texts = [text for side in sides for text in side]
    shape = getattr(X, "shape", (0,))
    if images is None and _are_pictures(X, shape):
        images = np.concatenate([np.asarray(side) for side in sides])
    if images is not None:
        content["images"] = pack_images(images, n_rows)
    if texts is not None:
        content["texts"] = pack_texts(texts, n_rows)
    if is_text or len(np.shape(X)) != 2:
        return content
    if n_rows * np.shape(X)[1] > MAX_CELLS:
        content["notes"].append(
            f"{n_rows:,} rows of {np.shape(X)[1]:,} columns are too many cells for a page: the "
            "values, and the parts of distances by column, are left out."
        )
        return content
    tables = [read_columns(side, options["feature_names"]) for side in sides]
    names = tables[0][0]
    columns = [np.concatenate(parts) for parts in zip(*(t[1] for t in tables), strict=True)]
    return content | pack_columns(names, columns)


def _are_pictures(X, shape):
    in_color = len(shape) == 4 and (shape[1] in (1, 3) or shape[3] in (1, 3))
    return not hasattr(X, "columns") and (len(shape) == 3 or in_color)


def reasons(before: Callable, after: Callable, X: Any) -> list[Any]:
    """Return the matrices of both metrics in the columns of X, None where a map is not linear."""
    table = read_columns(X, None)
    try:
        rows = np.column_stack(table[1]).astype(np.float64)
    except (TypeError, ValueError):
        return [None, None]
    if not np.isfinite(rows).all() or rows.shape[1] > _MAX_LINEAR:
        return [None, None]

    def like_X(probes):
        return type(X)(probes, columns=X.columns) if hasattr(X, "columns") else probes

    found: list[Any] = []
    for function in (lambda Z: before(like_X(Z)), lambda Z: after(before(like_X(Z)))):
        linear = find_linear_map(function, rows)
        found.append(None if linear is None else _pack_matrix(linear @ linear.T))
    return found


def _pack_matrix(matrix):
    diagonal = np.diag(matrix)
    others = np.abs(matrix - np.diag(diagonal)).max()
    if others <= 1e-7 * np.abs(diagonal).max():
        return {"diagonal": pack(diagonal, "float32")}
    return {"matrix": pack(matrix, "float32")}


def find_linear_map(function: Callable, X: NDArray) -> NDArray | None:
    """Return L with ``function(x) - function(y) = (x - y) @ L``, None if there is none.

    The function is asked for the mean row, and for it with one column changed at a time; what
    these say about 200 rows of X is compared with what the function says.
    """
    centre, spread = X.mean(axis=0), X.std(axis=0)
    spread[spread == 0] = 1
    some = X[np.unique(np.linspace(0, len(X) - 1, 200).astype(int))]
    probes = np.vstack([centre, centre + np.diag(spread)])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            images, expected = (as_dense(function(rows)) for rows in (probes, some))
            images, expected = (np.asarray(Z, dtype=np.float64) for Z in (images, expected))
    except (TypeError, ValueError):  # an estimator that takes other rows
        return None
    linear = (images[1:] - images[0]) / spread[:, None]
    error = np.abs(images[0] + (some - centre) @ linear - expected).max()
    return linear if error <= 1e-3 * np.abs(expected - images[0]).max() else None
