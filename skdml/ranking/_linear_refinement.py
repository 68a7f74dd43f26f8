"""A linear ranker that was fitted to a sample, refined by all documents in blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from ..utils._parallel import is_dask_array, make_shards
from ._documents import Measure, Missing, Queries
from ._linear import LinearPart, Spectrum, Targets, sum_all, sums_of
from ._views import Seen

_BLOCK = 4_000  # rows of a block of documents
_BLOCKS = 4  # so many tell the scatter of columns
_STEPS = 15  # of L-BFGS


def make_blocks(
    X: Any,
    y: NDArray,
    queries: Queries,
    weights: NDArray | None,
    measure: Measure,
    missing: Missing | None = None,
    n_rows: int | None = None,
) -> list[Any]:
    """Return documents in blocks of whole queries, with their targets; a view where it can be.

    Blocks of a dask array are delayed, but for the first few; `missing` fills their missing cells.
    """
    blocks: list[Any] = []
    first = 0
    for chunk in queries.chunks(n_rows or _BLOCK):
        rows, last = chunk.order, first + len(chunk.ids)
        adjacent = rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all()
        part = X[rows[0] : rows[-1] + 1] if adjacent else X[rows]
        best = np.repeat(np.maximum.reduceat(y[rows], chunk.starts[:-1]), chunk.sizes)
        own = np.ones(len(chunk.ids)) if weights is None else weights[first:last]
        block = part, Targets(chunk.starts, measure.worth(y[rows], best), own)
        if is_dask_array(X):
            import dask

            block = dask.delayed(_filled, pure=False)(missing, chunk.in_order(), *block)
            if len(blocks) < _BLOCKS:
                block = block.compute()
        blocks.append(block)
        first = last
    return blocks


def _filled(missing, queries, X, targets):
    return missing.fill(X, queries), targets


def refine(part: LinearPart, blocks: list, n_queries: int, **workers: Any) -> LinearPart:
    """Refine a ranker by the listwise loss of all documents.

    The `n_queries` that it was fitted to count as what is known before: the penalty is the
    quadratic form of the change by their scatter, plus its mean eigenvalue. Products keep the pairs
    that they have. `workers` are the options of `make_shards`.
    """
    coefficients, Q = part.coefficients, part.interactions
    used = np.flatnonzero(coefficients.any(axis=1))
    spectrum = Spectrum(n_queries * _scatter_of(blocks[:_BLOCKS], part.views, used))
    pairs = (np.empty(0, int),) * 2 if Q is None else np.nonzero(np.triu(Q))
    # factors vary by about 1, and so do products of two of them
    unit = np.concatenate([spectrum.values, np.full(len(pairs[0]), spectrum.unit)])
    step, n_base = 1 / np.sqrt(unit + spectrum.unit), len(spectrum.values)

    def place(point: NDArray) -> tuple[NDArray, NDArray | None]:
        change = step * point
        c = coefficients.copy()
        c[used] += (spectrum.vectors @ change[:n_base]).reshape(len(used), -1)
        if Q is None:
            return c, None
        moved = Q.copy()
        for cells in (pairs, pairs[::-1]):
            np.add.at(moved, cells, change[n_base:] / 2)
        return c, moved

    with make_shards(blocks, **workers) as shards:

        def loss(point: NDArray) -> tuple[float, NDArray]:
            total = shards.sum(block_loss, part.views, *place(point), used, pairs)
            by_base, by_product = total[1 : 1 + n_base], total[1 + n_base :]
            gradient = np.concatenate([spectrum.vectors.T @ by_base, by_product])
            return total[0] + point @ point / 2, step * gradient + point

        options = {"maxiter": _STEPS, "maxfun": 2 * _STEPS}
        start = np.zeros(len(step))
        found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    c, moved = place(found.x)
    # in the unit of the scores before, beside which local metrics are weighted
    X, targets = blocks[0]
    refined = replace(part, coefficients=c, interactions=moved)
    before, after = (np.std(one.scores(X, targets.starts)) for one in (part, refined))
    ratio = before / after if after > 0 else 1.0
    moved = None if moved is None else ratio * moved
    return replace(refined, coefficients=ratio * c, interactions=moved)


def _scatter_of(blocks, views, used):
    """Return the scatter of columns, for each query."""
    terms = [
        sums_of(views.columns(X, targets.starts, used).reshape(-1, len(X)), targets)
        for X, targets in blocks
    ]
    return sum_all(terms).scatter / sum(targets.weights.sum() for _, targets in blocks)


def block_loss(
    block: tuple[NDArray, Targets],
    views: Any,
    coefficients: NDArray,
    interactions: NDArray | None,
    used: NDArray,
    pairs: tuple[NDArray, ...],
) -> NDArray:
    """Return the listwise loss of a block, and its gradient: by the used columns, by products.

    Products are of the precision of X.
    """
    X, targets = block
    seen = Seen(views, X, targets.starts, dtype=X.dtype)
    columns = seen.stacked(used)
    scores = coefficients[used].ravel().astype(X.dtype) @ columns
    if interactions is not None:
        kept, inverse = np.unique(np.concatenate(pairs), return_inverse=True)
        v = seen.factors(kept)
        form = interactions[np.ix_(kept, kept)].astype(X.dtype)
        scores += np.einsum("in,in->n", form @ v, v)
    value, by_score = targets.listwise()(scores)
    by_score = by_score.astype(X.dtype)
    gradient = [columns @ by_score]
    if interactions is not None:
        products = (v * by_score) @ v.T
        gradient.append(products[tuple(inverse.reshape(2, -1))])
    return np.concatenate([[value], *gradient], dtype=np.float64)
