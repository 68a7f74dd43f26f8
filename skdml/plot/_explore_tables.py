"""Rankings, and generated beside real rows, for a page of `explore`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from ..metrics import column_similarity, ndcg_by_query
from ..utils.validation import check_grades, check_vector
from ._embedding import principal_axes
from ._explore_blocks import (
    MAX_CELLS,
    pack,
    pack_columns,
    pack_images,
    pack_texts,
    read_columns,
)
from ._explore_rows import find_neighbors, fit_box, n_rows_of

# Categories of a column that count in distances; the rest are as one.
_MAX_CATEGORIES = 50
# Deviations of a column beyond which all values are as far: a column that is nearly always the same
# would else be all of the map.
_FAR = 5.0


def ranking_page(
    estimator: Any, X: Any, y: ArrayLike | None, qid: ArrayLike | None, options: Any
) -> dict[str, Any]:
    """Return the content of a page of queries and their documents, in a ranker's order."""
    check_is_fitted(estimator)
    n_rows = n_rows_of(X, "X")
    names, columns = read_columns(X, options["feature_names"])
    queries = np.zeros(n_rows, int) if qid is None else check_vector(qid, "qid", n_rows)
    explained = estimator.explain(X, qid="single" if qid is None else qid)
    scores = np.asarray(explained.scores, dtype=float)
    parts = np.hstack([explained.features, explained.documents])
    reasons = [*names, *(f"ideal document {r}" for r in range(explained.documents.shape[1]))]
    found, codes = np.unique(queries, return_inverse=True)
    grades = quality = None
    cutoff: int | None = getattr(estimator, "cutoff", None)
    gains: Any = getattr(estimator, "gains", "exponential")
    if y is not None:
        grades = check_grades(y, "y", n_rows)
        quality = ndcg_by_query(grades, scores, queries, cutoff, gains=gains)[1]

    # Queries as they first come, as many as a page holds.
    first = np.full(len(found), n_rows)
    np.minimum.at(first, codes, np.arange(n_rows))
    kept, notes = _queries_that_fit(np.argsort(first), np.bincount(codes), len(reasons))
    if len(kept) < len(found):
        notes.append(f"The first {len(kept):,} of {len(found):,} queries: more do not fit a page.")
    place = np.full(len(found), len(found))
    place[kept] = np.arange(len(kept))
    order = np.lexsort((np.arange(n_rows), -scores, place[codes]))
    order = order[place[codes[order]] < len(found)]
    sizes = np.bincount(place[codes[order]], minlength=len(kept))
    page: dict[str, Any] = {
        "mode": "ranking",
        "n": len(order),
        "rows": pack(order, "int32"),
        "queries": [str(found[q])[:80] for q in kept],
        "starts": np.concatenate([[0], np.cumsum(sizes)]).tolist(),
        "scores": pack(scores[order], "float32"),
        "reasons": reasons,
        "added": pack(parts[order], "float32"),
        "notes": notes,
        **pack_columns(names, [column[order] for column in columns]),
    }
    if grades is not None and quality is not None:
        page["grades"] = pack(grades[order], "float32")
        page["quality"] = [None if np.isnan(quality[q]) else float(quality[q]) for q in kept]
        page["measure"] = "NDCG" if cutoff is None else f"NDCG@{cutoff}"
    if options["texts"] is not None:
        texts = pack_texts(options["texts"], n_rows)
        page["texts"] = [texts[row] for row in order]
    if options["images"] is not None:
        n_rows_of(options["images"], "images")
        images = options["images"]
        if len(images) == n_rows:
            images = [images[i] for i in order] if isinstance(images, list) else images[order]
        page["images"] = pack_images(images, len(order))
    return page


def _queries_that_fit(queries, sizes, n_reasons):
    """Return the first queries whose documents fit a page, at least one."""
    total = np.cumsum(sizes[queries]) * n_reasons
    return queries[: max(1, np.searchsorted(total, MAX_CELLS, side="right"))], []


def generated_page(estimator: Any, X: Any, y: ArrayLike | None, options: Any) -> dict[str, Any]:
    """Return the content of a page of real rows beside as many generated ones."""
    check_is_fitted(estimator)
    n_real = n_rows_of(X, "X")
    if n_real < 3:
        raise ValueError(f"X must have at least three rows, got {n_real}.")
    names, real = read_columns(X, options["feature_names"])
    sample = {"random_state": options["random_state"]}
    if y is not None:
        sample["y"] = np.asarray(check_vector(y, "y", n_real))
    generated = read_columns(estimator.sample(n_real, **sample), options["feature_names"])[1]
    if 2 * n_real * len(names) > MAX_CELLS:
        raise ValueError(
            f"X has {n_real:,} rows of {len(names):,} columns, and a page holds "
            f"{MAX_CELLS // 2:,} cells of real rows: pass fewer rows."
        )
    columns = [np.concatenate(pair) for pair in zip(real, generated, strict=True)]
    similarity = column_similarity(np.column_stack(_objects(real)), np.column_stack(
        _objects(generated)))  # fmt: skip
    rows = _as_numbers(columns, n_real)
    points, share = principal_axes(rows)
    placed = fit_box(points)
    views = []
    own = np.arange(len(rows))
    k = min(options["n_neighbors"], n_real - 1)
    for name, first in (("real", 0), ("generated", n_real)):
        items = rows[first : first + n_real]
        neighbors, distances = find_neighbors(rows, items, own - first, k)
        views.append(
            {
                "name": name,
                "positions": pack(placed, "float32"),
                "variance": share,
                "neighbors": pack(neighbors + first, "int32"),
                "distances": pack(distances, "float32"),
                "shown": [first, first + n_real],
            }
        )
    page = {
        "mode": "generated",
        "n": len(rows),
        "k": k,
        "parts": [{"name": "real row", "start": 0}, {"name": "generated row", "start": n_real}],
        "views": views,
        "labels": {
            "classes": ["real", "generated"],
            "codes": pack(np.repeat([0, 1], n_real), "int32"),
        },
        "similarity": [None if np.isnan(value) else float(value) for value in similarity],
        "notes": [],
        **pack_columns(names, columns),
    }
    if options["texts"] is not None:
        raise ValueError("texts are not shown for generated rows, which have none.")
    shape = options["images"]
    if shape is not None:
        page["images"] = pack_images(_pictures(columns, shape), len(rows))
    return page


def _pictures(columns, shape):
    """Return rows as pictures of a shape."""
    try:
        height, width = (int(side) for side in shape)
    except (TypeError, ValueError):
        height = width = 0
    if height < 1 or width < 1 or height * width != len(columns):
        raise ValueError(
            "images must be the shape (height, width) of a row where rows are generated, with "
            f"{len(columns)} values; got {shape!r}."
        )
    return np.column_stack(columns).astype(float).reshape(-1, height, width)


def _objects(columns):
    """Return columns that stand in one array without a change of their numbers."""
    return [column.astype(object) for column in columns]


def _as_numbers(columns: list[NDArray], n_real: int) -> NDArray[np.float32]:
    """Return rows as numbers: columns in units of their deviation, categories as indicators.

    The units are those of the real rows, the first `n_real`.
    """
    parts = []
    for column in columns:
        if column.dtype.kind in "mM":
            column = np.where(np.isnat(column), np.nan, column.astype(np.int64).astype(float))
        try:
            values = column.astype(float)
        except (TypeError, ValueError):
            parts += _indicators(column, n_real)
            continue
        known = np.isfinite(values)
        real = values[:n_real][known[:n_real]]
        mean, spread = (real.mean(), real.std()) if len(real) else (0.0, 1.0)
        scaled = np.where(known, (values - mean) / (spread or 1.0), 0.0)
        parts.append(np.clip(scaled, -_FAR, _FAR))
        if not known.all():
            parts.append(1.0 - known)
    return np.ascontiguousarray(np.column_stack(parts), dtype=np.float32)


def _indicators(column, n_real):
    texts = np.array([str(value) for value in column])
    labels, counts = np.unique(texts[:n_real], return_counts=True)
    common = labels[np.argsort(-counts, kind="stable")[:_MAX_CATEGORIES]]
    # Two rows of different categories are as far apart as two numbers by one deviation.
    return [(texts == label) * np.sqrt(0.5) for label in common]
