"""Exact nearest-neighbour search in chunks of bounded memory; ties are broken by index."""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from sklearn import get_config
from sklearn.metrics import pairwise_distances
from sklearn.utils import gen_batches

from ..utils.validation import check_embeddings, largest_size

Metric = str | Callable[..., Any] | Any

# MiB for one chunk. scikit-learn's default of 1024 would be the whole matrix in many cases, and
# larger chunks than this are not faster.
MAX_DEFAULT_MEMORY = 128

# Elements of the temporary array in which distances are worked out pair by pair.
EXACT_BLOCK = 2**16

# Most columns of a block of scores, and how many of them share a minimum at most: scores are read
# one by one only where that minimum is small enough. Fewer items than the last need no blocks.
BLOCK_COLUMNS = 8192
GROUP = 64
_FEW_ITEMS = 4096
# Rows of a block of products whose both sides are used.
_SQUARE = 2048


class _ByValue:
    """Distances by the values that the metric returns."""

    finer = None  # the same distances with less slack, to be tried before `exact`

    def __init__(self, X: NDArray, Y: NDArray, metric: Metric) -> None:
        self.X, self.Y, self.metric = X, Y, metric

    def block(self, rows: NDArray) -> NDArray:
        """Return a new array of scores, queries `rows` by gallery, that rank like distances."""
        X = self.X[rows]
        if hasattr(self.metric, "pairwise"):
            values = np.array(self.metric.pairwise(X, self.Y), dtype=np.float64)
        else:
            values = pairwise_distances(X, self.Y, metric=self.metric)
        expected = (len(X), len(self.Y))
        if values.shape != expected:
            raise ValueError(
                f"metric must return distances of shape {expected} for {len(X)} queries and "
                f"{len(self.Y)} gallery items, got {values.shape}."
            )
        if not np.isfinite(values).all():
            raise ValueError(
                "metric returned NaN or infinite distances; use a metric that is defined for all "
                "pairs of rows."
            )
        return values

    def slack(self, rows: NDArray, kth: NDArray) -> NDArray:
        """Return for each row the difference of two scores below which their order is open.

        It has to hold for the scores up to the k-th smallest, `kth`, and slightly above.
        """
        return np.zeros(len(rows))

    def exact(self, row: int, cols: NDArray) -> NDArray:
        """Return values that settle the order where the scores of `block` leave it open."""
        return np.zeros(len(cols))


class _ByProduct:
    """Euclidean or cosine distance from one matrix product per chunk.

    The score |y|^2 - 2 x.y is fast but carries rounding errors that depend on the shapes given to
    the matrix product. `slack` bounds them, and the pairs too close to call are settled by the sum
    of squared differences in double precision, so the result depends neither on the chunk size
    nor on cancellation.
    """

    def __init__(self, X: NDArray, Y: NDArray, cosine: bool, dtype: DTypeLike) -> None:
        self.Y, self.cosine = Y, cosine
        self.limits = np.finfo(dtype)
        if cosine:
            self.items = _unit_rows(Y.astype(dtype, copy=False))
            # One also for rows of zeros, whose cosine with anything is taken as 0.
            self.y_squared = np.ones(len(Y), dtype=dtype)
        else:
            # A power of two, so that squares neither overflow nor underflow and no digit is lost.
            largest = max(largest_size(X), largest_size(Y))
            exponent = max(math.frexp(largest)[1], int(self.limits.minexp) + 20)
            self.scale = math.ldexp(1.0, -exponent)
            self.items = Y.astype(dtype, copy=False) * self.scale
            # The errors of the scores grow with the norms, so the norms are made small.
            self.centre = self.items.mean(axis=0, dtype=np.float64).astype(dtype)
            self.items -= self.centre
            self.y_squared = _sums_of_squares(self.items).astype(dtype)
        self.y_norm = math.sqrt(self.y_squared.max())
        # One product gives the scores: queries have a 1 where items have their square.
        self.extended = np.column_stack([self.items, self.y_squared])
        self.items = self.extended[:, :-1]
        self._take(X)

    def _take(self, X: NDArray) -> None:
        """Set the queries."""
        self.X, self.queries = X, self.items
        if X is not self.Y:
            X = X.astype(self.limits.dtype, copy=False)
            self.queries = _unit_rows(X) if self.cosine else X * self.scale - self.centre
        self.x_norms = np.ones(len(X)) if self.cosine else np.sqrt(_sums_of_squares(self.queries))

    def ask(self, X: NDArray) -> _ByProduct:
        """Return the distances of other queries to the same gallery."""
        if not self.cosine and largest_size(X) * self.scale > 2**20:  # squares could overflow
            return _ByProduct(X, self.Y, self.cosine, self.limits.dtype)
        other = copy.copy(self)
        other.__dict__.pop("finer", None)
        other._take(X)
        return other

    def factors(self, rows: NDArray) -> NDArray:
        """Return what times the extended items are the scores of queries."""
        out = np.ones((len(rows), self.extended.shape[1]), dtype=self.limits.dtype)
        np.multiply(self.queries[rows], -2, out=out[:, :-1])
        return out

    def block(self, rows: NDArray) -> NDArray:
        return self.factors(rows) @ self.extended.T

    def slack(self, rows: NDArray, kth: NDArray) -> NDArray:
        # The error of a score is below (d + 4) eps (|x| + |y|)^2, the rest is for the rounding of
        # the bound itself. By the triangle inequality |x| + |y| <= 3 max(|x|, |x - y|), which
        # keeps one far-off item from widening the slack of all queries.
        norms = self.x_norms[rows]
        distance = np.sqrt(np.maximum(kth + norms**2, 0))
        reach = np.minimum(norms + self.y_norm, 3.1 * np.maximum(norms, distance))
        n_features = self.X.shape[1]
        error = (n_features + 16) * self.limits.eps * reach**2 + n_features * self.limits.tiny
        return 2 * error

    @cached_property
    def finer(self) -> _ByProduct | None:
        if self.limits.dtype == np.float64:
            return None
        return _ByProduct(self.X, self.Y, self.cosine, np.float64)

    def exact(self, row: int, cols: NDArray) -> NDArray:
        # Of equal rows only the first is measured: embeddings that have collapsed are all equal.
        first = self.first_equal[cols]
        seen = np.zeros(len(self.Y), dtype=bool)
        seen[first] = True
        distinct = np.flatnonzero(seen)
        values = np.empty(len(self.Y))
        x = self._double(self.X[[row]])
        step = max(1, EXACT_BLOCK // self.X.shape[1])
        for start in range(0, len(distinct), step):
            part = distinct[start : start + step]
            Y = self._double(self.Y[part])
            values[part] = 2 if self.cosine and not x.any() else _sums_of_squares(Y - x)
            if self.cosine:
                values[part[~Y.any(axis=1)]] = 2
        return values[first]

    def exact_pairs(self, rows: NDArray, cols: NDArray) -> NDArray:
        """Return the same values as `exact`, of query rows[i] and item cols[i]."""
        values = np.empty(len(rows))
        step = max(1, EXACT_BLOCK // self.X.shape[1])
        for start in range(0, len(rows), step):
            batch = slice(start, start + step)
            X, Y = self._double(self.X[rows[batch]]), self._double(self.Y[cols[batch]])
            values[batch] = _sums_of_squares(Y - X)
            if self.cosine:
                values[batch][~(X.any(axis=1) & Y.any(axis=1))] = 2
        return values

    @cached_property
    def first_equal(self) -> NDArray:
        """For each gallery item the position of the first one that is equal to it."""
        rows = self.Y.view(np.dtype((np.void, self.Y.itemsize * self.Y.shape[1]))).ravel()
        _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
        return first[inverse]

    def _double(self, rows: NDArray) -> NDArray:
        rows = rows.astype(np.float64, copy=False)
        if self.cosine:
            return _unit_rows(rows)
        return rows if 1e-100 < self.scale < 1e100 else rows * self.scale


def _sums_of_squares(X: NDArray) -> NDArray:
    """Return the squared norms of the rows; equal rows give equal bits, wherever they stand."""
    return np.einsum("ij,ij->i", X, X, dtype=np.float64)


def _unit_rows(X: NDArray) -> NDArray:
    """Divide every row by its norm; rows of zeros stay."""
    _, exponents = np.frexp(np.abs(X).max(axis=1, keepdims=True))
    X = np.ldexp(X, -exponents)
    norms = np.sqrt(_sums_of_squares(X))
    norms[norms == 0] = 1
    X /= norms[:, None].astype(X.dtype)
    return X


def _distances(X: NDArray, Y: NDArray, metric: Metric) -> _ByValue | _ByProduct:
    if isinstance(metric, str):
        if metric in ("euclidean", "l2", "sqeuclidean", "cosine"):
            return _ByProduct(X, Y, metric == "cosine", X.dtype)
        if metric in ("precomputed", "mahalanobis", "seuclidean"):
            raise ValueError(
                f"metric={metric!r} is not supported by name: pass a callable f(u, v) or an object "
                "with a method pairwise(X, Y)."
            )
    elif isinstance(metric, type) or not (callable(metric) or hasattr(metric, "pairwise")):
        raise TypeError(
            "metric must be a name, a callable f(u, v) or an object with a method pairwise(X, Y), "
            f"got {metric!r}."
        )
    return _ByValue(X, Y, metric)


def check_sides(
    embeddings: Any, gallery: Any, name: str, min_samples: int = 1
) -> tuple[NDArray, NDArray]:
    """Return queries and what they are searched in, of one dtype: themselves if gallery is None."""
    X = check_embeddings(embeddings, name, min_samples)
    if gallery is None:
        return X, X
    Y = check_embeddings(gallery, "gallery")
    if X.shape[1] != Y.shape[1]:
        wanted = f"as many features as {name} ({X.shape[1]})"
        raise ValueError(f"gallery must have {wanted}, got {Y.shape[1]}.")
    dtype = np.result_type(X, Y)
    # A view, so that a gallery which is the same object still counts as a gallery.
    return X.astype(dtype, copy=False), Y.astype(dtype, copy=False)[:]


def nearest(
    X: NDArray,
    Y: NDArray,
    k: int | NDArray,
    *,
    metric: Metric = "euclidean",
    working_memory: float | None = None,
) -> Iterator[tuple[NDArray, NDArray]]:
    """Yield, chunk by chunk, the nearest rows of Y for rows of X.

    Parameters
    ----------
    X : ndarray of shape (n_queries, n_features)
        The queries.

    Y : ndarray of shape (n_gallery, n_features)
        The gallery, of the same dtype. If it is X itself, a query is not its own neighbour.

    k : int or ndarray of shape (n_queries,)
        How many neighbours each query needs. Queries that need none are left out.

    metric : str, callable or object with a method `pairwise`
        The distance.

    working_memory : float or None
        MiB for the temporary arrays of a chunk.

    Yields
    ------
    rows : ndarray of shape (n_rows,)
        The positions of the queries of this chunk.

    neighbors : ndarray of shape (n_rows, k_of_chunk)
        Positions in Y, nearest first, equal distances by position. It has as many columns as the
        most demanding query of the chunk needs.
    """
    distances = _distances(X, Y, metric)
    yield from search(distances, k, exclude_self=X is Y, working_memory=working_memory)


def nearest_others(rows: NDArray, k: int) -> NDArray[np.intp]:
    """Return the nearest other rows of each row, but for rounding, which may swap two of them.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)
        The rows, in single or double precision.

    k : int
        How many others.

    Returns
    -------
    neighbors : ndarray of shape (n_rows, k)
        Positions of rows. Equal rows are sorted by position.
    """
    distances = _ByProduct(rows, rows, False, rows.dtype)
    items, squares = distances.items, distances.y_squared
    values = np.full((len(rows), k), np.inf, dtype=rows.dtype)
    neighbors = np.zeros((len(rows), k), dtype=np.intp)
    # A product is made once for both of its sides: half of the work.
    blocks = list(gen_batches(len(rows), _SQUARE))
    for number, first in enumerate(blocks):
        queries = -2 * items[first]
        for second in blocks[number:]:
            scores = queries @ items[second].T
            if second is first:
                np.fill_diagonal(scores, np.inf)
            else:
                others = np.add(scores.T, squares[first], order="C")
                _take_nearer(others, first.start, values[second], neighbors[second])
            scores += squares[second]
            _take_nearer(scores, second.start, values[first], neighbors[first])
    return neighbors


def _take_nearer(scores, start, values, neighbors):
    """Replace the k best values and neighbours of queries, in place, by better items of a block.

    A score is taken for a candidate where it is at most the k-th smallest of the values and of the
    minima of groups of scores, which is no less than the k-th smallest score.
    """
    n_rows, k = values.shape
    size = max(1, min(GROUP, scores.shape[1] // (2 * k)))
    whole = scores.shape[1] // size * size
    groups = scores[:, :whole].reshape(n_rows, size, -1)
    minima, rest = groups.min(axis=1), scores[:, whole:]
    known = np.hstack([values, minima, rest])
    limit = np.partition(known, k - 1, axis=1)[:, k - 1, None]
    row, group = np.nonzero(minima <= limit)
    hit, member = np.nonzero(groups[row, :, group] <= limit[row])
    row, col = row[hit], member * minima.shape[1] + group[hit]
    more = np.nonzero(rest <= limit)
    row, col = np.append(row, more[0]), np.append(col, whole + more[1])
    crowded = np.bincount(row, minlength=n_rows) > _crowd(k)
    if crowded.any():  # of many equal scores, the first k are enough
        some = scores[crowded]
        tied = some == limit[crowded]
        again = np.nonzero((some < limit[crowded]) | (tied & (tied.cumsum(axis=1) <= k)))
        kept = ~crowded[row]
        row = np.append(row[kept], np.flatnonzero(crowded)[again[0]])
        col = np.append(col[kept], again[1])
    found = scores[row, col]
    row, col = np.append(np.repeat(np.arange(n_rows), k), row), np.append(neighbors, start + col)
    found = np.append(values, found)
    order = np.lexsort((col, found, row))
    first = np.searchsorted(row[order], np.arange(n_rows))
    best = order[first[:, None] + np.arange(k)]
    values[:], neighbors[:] = found[best], col[best]


def prepare(Y: NDArray) -> _ByProduct:
    """Return Euclidean distances to a gallery, whose `ask` takes queries of the same dtype."""
    return _ByProduct(Y, Y, False, Y.dtype)


def search(
    distances: _ByValue | _ByProduct,
    k: int | NDArray,
    *,
    exclude_self: bool = False,
    working_memory: float | None = None,
) -> Iterator[tuple[NDArray, NDArray]]:
    """Yield what `nearest` yields, for distances that are prepared."""
    n_items = len(distances.Y)
    needed = np.broadcast_to(k, len(distances.X))
    order = np.argsort(needed, kind="stable")  # queries that need many share few chunks
    order = order[needed[order] > 0]
    memory = _memory(working_memory) * 2**20
    # Scores, their copy in the partition, a mask; at worst the rows and columns of all items.
    per_query = n_items * (8 + 8 + 1 + 16) + int(needed.max()) * 32
    step = max(1, int(memory / per_query))
    # Scores of a block, their minima; at worst the rows, columns and scores of all candidates.
    width = min(BLOCK_COLUMNS, -(-n_items // GROUP) * GROUP)
    per_fast = width * (8 + 1 + 32) + _crowd(int(needed.max())) * 64
    fast_step = int(memory / per_fast)
    if not isinstance(distances, _ByProduct) or n_items <= _FEW_ITEMS or fast_step <= step:
        fast_step = 0
    for batch in gen_batches(len(order), fast_step or step):
        rows = order[batch]
        n_wanted = int(needed[rows[-1]])
        if not fast_step or n_wanted > width // 4:
            for part in gen_batches(len(rows), step):
                yield rows[part], _k_nearest(distances, rows[part], n_wanted, exclude_self)
            continue
        found, done = _k_nearest_by_blocks(distances, rows, n_wanted, width, exclude_self)
        left = np.flatnonzero(~done)
        for start in range(0, len(left), step):
            part = left[start : start + step]
            found[part] = _k_nearest(distances, rows[part], n_wanted, exclude_self)
        yield rows, found


def _memory(working_memory: float | None) -> float:
    if working_memory is None:
        return min(get_config()["working_memory"], MAX_DEFAULT_MEMORY)
    if not isinstance(working_memory, numbers.Real) or isinstance(working_memory, bool):
        raise TypeError(f"working_memory must be a number of MiB or None, got {working_memory!r}.")
    if not 0 < working_memory < math.inf:
        raise ValueError(f"working_memory must be positive and finite, got {working_memory!r}.")
    return float(working_memory)


def _k_nearest(distances, rows, k, exclude_self):
    """Return the k nearest gallery items of the queries `rows`, in order."""
    scores = distances.block(rows)
    if exclude_self:
        scores[np.arange(len(rows)), rows] = np.inf
    kth = np.partition(scores, k - 1, axis=1)[:, k - 1] if k > 1 else scores.min(axis=1)
    slack = distances.slack(rows, kth)
    row, col = np.nonzero(scores <= (kth + slack).astype(scores.dtype)[:, None])
    ends = np.cumsum(np.bincount(row, minlength=len(rows)))
    clear = np.diff(ends, prepend=0) == k

    found = np.empty((len(rows), k), dtype=np.intp)
    cols = col[clear[row]].reshape(-1, k)
    values = scores[np.flatnonzero(clear)[:, None], cols]
    order = np.argsort(values, axis=1, kind="stable")
    found[clear] = np.take_along_axis(cols, order, axis=1)
    gaps = np.diff(np.take_along_axis(values, order, axis=1), axis=1)
    clear[clear] = (gaps >= slack[clear, None]).all(axis=1)

    unclear = np.flatnonzero(~clear)
    if len(unclear) and distances.finer is not None:
        del scores, row, col
        found[unclear] = _k_nearest(distances.finer, rows[unclear], k, exclude_self)
        return found
    for i in unclear:
        candidates = col[ends[i - 1] if i else 0 : ends[i]]
        candidates = candidates[np.argsort(scores[i, candidates], kind="stable")]
        close = np.diff(scores[i, candidates]) < slack[i]
        group = np.append(0, np.cumsum(~close))
        undecided = np.append(close, False) | np.append(False, close)
        value = np.zeros(len(candidates))
        value[undecided] = distances.exact(rows[i], candidates[undecided])
        found[i] = candidates[np.lexsort((candidates, value, group))[:k]]
    return found


def _crowd(k):
    """Return how many candidates of a query are too many for a search by blocks."""
    return 16 * k + 256


def _k_nearest_by_blocks(distances, rows, k, width, exclude_self):
    """Return the k nearest items of queries, and for which queries they were found.

    The k-th smallest of the minima of groups of scores is no less than the k-th smallest score, so
    only groups with a minimum below it are read. Queries with very many candidates, by equal
    distances, are left to `_k_nearest`.
    """
    n_rows, n_items = len(rows), len(distances.Y)
    queries = distances.factors(rows)
    size = GROUP
    while width // size < 2 * k and size > 1:
        size //= 2
    scores = np.empty((n_rows, width), dtype=queries.dtype)
    groups = scores.reshape(n_rows, size, -1)
    smallest = np.full((n_rows, k), np.inf, dtype=queries.dtype)
    n_found, crowded = np.zeros(n_rows, dtype=np.intp), np.zeros(n_rows, dtype=bool)
    candidates = []
    for start in range(0, n_items, width):
        stop = min(start + width, n_items)
        block = scores[:, : stop - start]
        np.matmul(queries, distances.extended[start:stop].T, out=block)
        scores[:, stop - start :] = np.inf
        if exclude_self:
            own = np.flatnonzero((rows >= start) & (rows < stop))
            scores[own, rows[own] - start] = np.inf
        minima = groups.min(axis=1)
        smallest = np.partition(np.hstack([smallest, minima]), k - 1, axis=1)[:, :k]
        limit = smallest[:, -1] + distances.slack(rows, smallest[:, -1])
        limit = np.where(crowded, -np.inf, limit).astype(scores.dtype)
        row, group = np.nonzero(minima <= limit[:, None])
        values = groups[row, :, group]
        hit, member = np.nonzero(values <= limit[row, None])
        row, values = row[hit], values[hit, member]
        col = start + member * minima.shape[1] + group[hit]
        n_found += np.bincount(row, minlength=n_rows)
        crowded |= n_found > _crowd(k)
        kept = ~crowded[row]
        candidates.append((row[kept], col[kept], values[kept]))
    row, col, values = (np.concatenate(parts) for parts in zip(*candidates, strict=True))
    kept = (values <= limit[row]) & ~crowded[row]
    found = np.zeros((n_rows, k), dtype=np.intp)
    if not crowded.all():
        found[~crowded] = _settle(distances, rows, row[kept], col[kept], values[kept], k)
    return found, ~crowded


def _settle(distances, rows, row, col, values, k):
    """Return the k nearest of the candidates of each query, by exact values where needed.

    Candidate i is item col[i] with the score values[i] for the query rows[row[i]]. Each query has
    k or more, and all that could be among its k nearest.
    """
    order = np.lexsort((values, row))
    row, col, values = row[order], col[order], values[order]
    _, starts = np.unique(row, return_index=True)
    kth = values[starts + k - 1]
    present = row[starts]
    slack = np.zeros(len(rows))
    slack[present] = distances.slack(rows[present], kth)
    limit = np.zeros(len(rows))
    limit[present] = kth + slack[present]
    kept = values <= limit[row]
    row, col, values = row[kept], col[kept], values[kept]
    close = (np.diff(values) < slack[row[1:]]) & (np.diff(row) == 0)
    group = np.append(0, np.cumsum(~close))
    unclear = np.append(close, False) | np.append(False, close)
    exact = np.zeros(len(row))
    exact[unclear] = distances.exact_pairs(rows[row[unclear]], col[unclear])
    col = col[np.lexsort((col, exact, group))]
    _, starts = np.unique(row, return_index=True)
    return col[starts[:, None] + np.arange(k)]
