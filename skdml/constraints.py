"""Supervision as pairs and triplets of rows.

Metric learners learn from pairs of rows that should be near (+1) or far (-1), or by
triplets whose first row should be nearer to the second than to the third. The functions here
draw them from class labels, and check those that a user gives. Rows are always named
by their index.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state, gen_batches

from .utils._neighbors import near_rows
from .utils._typing import MatrixLike, RandomStateLike
from .utils.validation import (
    check_class_labels,
    check_count,
    check_named_array,
    check_pairs,
    check_row_labels,
    encode,
    encode_for_pairs,
    unit_for_squares,
)

__all__ = ["check_pairs", "make_local_pairs", "make_pairs", "make_triplets"]


def make_pairs(
    y: ArrayLike, n_constraints: int | None = None, *, random_state: RandomStateLike = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw similar and dissimilar pairs of rows from class labels.

    Parameters
    ----------
    y : array-like of shape (n_samples,)
        Class labels.
    n_constraints : int, default=None
        How many pairs to draw: one half similar, one half dissimilar (the odd one is similar).
        Where fewer than that exist of a kind, all of them are taken. None takes 20 pairs per
        row, a million at most.
    random_state : int, RandomState instance or None, default=None
        Seeds the draw.

    Returns
    -------
    pairs : ndarray of shape (n_pairs, 2)
        Row indices, no pair twice in either order, the smaller index first.
    pair_labels : ndarray of shape (n_pairs,)
        +1 for two rows of the same class, -1 for rows of different classes.

    Notes
    -----
    Every pair of a kind is equally likely. Memory is O(n_samples + n_constraints): the pairs
    are numbered, numbers are drawn without replacement, and only those are turned into rows.

    Examples
    --------
    >>> from skdml.constraints import make_pairs
    >>> pairs, pair_labels = make_pairs(["a", "a", "b", "b", "b"], 4, random_state=0)
    >>> pair_labels
    array([ 1,  1, -1, -1])
    >>> pairs.shape
    (4, 2)
    """
    _, order, end = _sorted_classes(encode_for_pairs(check_class_labels(y, "y")))
    n_samples = len(order)
    n_constraints = _check_size(n_constraints, n_samples)
    rng = check_random_state(random_state)

    # In class order, the later partners of the row at place p are the places p + 1 .. end - 1
    # (same class) and end .. n - 1 (another class): both are runs, so a pair has a number.
    place = np.arange(n_samples)
    similar = _draw_partners(place + 1, end, n_constraints - n_constraints // 2, rng)
    dissimilar = _draw_partners(end, n_samples, n_constraints // 2, rng)
    pairs = np.sort(order[np.vstack([similar, dissimilar])], axis=1)
    return pairs, np.repeat(np.array([1, -1]), [len(similar), len(dissimilar)])


def make_local_pairs(
    X: MatrixLike,
    y: ArrayLike,
    n_constraints: int | None = None,
    *,
    n_neighbors: int = 5,
    random_state: RandomStateLike = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw pairs that matter to nearest neighbours: near rows of the same and of other classes.

    Random rows are joined to their nearest neighbours of the same class, as similar pairs, and
    to their nearest rows of other classes (impostors), as dissimilar ones.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n_samples, n_features)
        The rows; nearness is Euclidean, so scale the features first.
    y : array-like of shape (n_samples,)
        Class labels.
    n_constraints : int, default=None
        How many pairs to draw, one half of each kind; fewer where the neighbourhoods hold
        fewer. None takes 20 per row, a million at most.
    n_neighbors : int, default=5
        Neighbours of each kind per row.
    random_state : int, RandomState instance or None, default=None
        Decides which rows come first.

    Returns
    -------
    pairs : ndarray of shape (n_pairs, 2)
        Row indices, no pair twice in either order, the smaller index first.
    pair_labels : ndarray of shape (n_pairs,)
        +1 for two rows of the same class, -1 for rows of different classes.

    Examples
    --------
    >>> from skdml.constraints import make_local_pairs
    >>> X, y = [[0.0], [0.1], [0.9], [1.0], [5.0]], [0, 0, 1, 1, 1]
    >>> pairs, pair_labels = make_local_pairs(X, y, 2, n_neighbors=1, random_state=0)
    >>> pair_labels
    array([ 1, -1])
    """
    X = check_named_array(X, "X", accept_sparse="csr", dtype=[np.float64, np.float32])
    n_samples = X.shape[0]
    codes = encode_for_pairs(check_row_labels(y, n_samples))
    n_constraints = _check_size(n_constraints, n_samples)
    check_count(n_neighbors, "n_neighbors")
    unit = unit_for_squares(X)
    X = X if unit == 1 else X.astype(np.float64) / unit
    anchors = check_random_state(random_state).permutation(n_samples)

    wanted = n_constraints - n_constraints // 2, n_constraints // 2
    found = [np.empty(0, dtype=np.int64)] * 2
    for batch in gen_batches(n_samples, max(1, 2**24 // n_samples)):
        for kind, near in enumerate(near_rows(X, codes, anchors[batch], n_neighbors)):
            first, column = np.nonzero(near >= 0)
            pairs = np.column_stack([anchors[batch][first], near[first, column]])
            found[kind] = _append_new(found[kind], pairs, n_samples)
        if all(len(numbers) >= size for numbers, size in zip(found, wanted, strict=True)):
            break
    kept = [numbers[:size] for numbers, size in zip(found, wanted, strict=True)]
    pairs = np.column_stack(np.divmod(np.concatenate(kept), n_samples))
    return pairs, np.repeat(np.array([1, -1]), [len(numbers) for numbers in kept])


def _append_new(numbers, pairs, n_samples):
    """Append the numbers of pairs that are not there yet, in the order in which they came."""
    pairs = np.sort(pairs, axis=1)
    numbers = np.concatenate([numbers, pairs[:, 0] * n_samples + pairs[:, 1]])
    _, first = np.unique(numbers, return_index=True)
    return numbers[np.sort(first)]


def make_triplets(
    y: ArrayLike, n_triplets: int, *, random_state: RandomStateLike = None
) -> NDArray[np.int64]:
    """Draw triplets (anchor, positive, negative) of rows from class labels.

    Parameters
    ----------
    y : array-like of shape (n_samples,)
        Class labels.
    n_triplets : int
        How many triplets to draw; all of them where fewer exist.
    random_state : int, RandomState instance or None, default=None
        Seeds the draw.

    Returns
    -------
    triplets : ndarray of shape (n_triplets, 3)
        Row indices: the first two share a class, the third is of another. No triplet twice.

    Examples
    --------
    >>> from skdml.constraints import make_triplets
    >>> y = [0, 0, 1, 1]
    >>> triplets = make_triplets(y, 3, random_state=0)
    >>> triplets.shape
    (3, 3)
    """
    codes, order, end = _sorted_classes(encode(check_class_labels(y, "y"), "y")[1])
    check_count(n_triplets, "n_triplets")
    n_samples = len(order)
    rng = check_random_state(random_state)

    counts = np.bincount(codes)
    size = counts[codes]
    start = end - size
    total = sum(int(c) * (int(c) - 1) * (n_samples - int(c)) for c in counts)
    if total == 0:
        raise ValueError(
            "y gives no triplet: at least two classes, one of them with two samples or more, "
            "are needed."
        )
    if total >= 2**62:
        raise ValueError(
            f"y has {n_samples} rows and {total:.1e} possible triplets, more than can be "
            "numbered: pass a random part of the rows."
        )
    n_negatives = n_samples - size
    last = np.cumsum((size - 1) * n_negatives)
    number = _draw_distinct(total, n_triplets, rng)
    anchor = np.searchsorted(last, number, side="right")
    number -= last[anchor] - (size[anchor] - 1) * n_negatives[anchor]
    positive = start[anchor] + number // n_negatives[anchor]
    positive += positive >= anchor  # steps over the anchor itself
    negative = number % n_negatives[anchor]
    negative += np.where(negative >= start[anchor], size[anchor], 0)  # steps over its class
    return order[np.column_stack([anchor, positive, negative])]


def _check_size(n_constraints, n_samples):
    """Return the number of pairs to draw."""
    if n_constraints is None:
        return min(20 * n_samples, 1_000_000)
    check_count(n_constraints, "n_constraints", minimum=2)
    return n_constraints


def _sorted_classes(codes):
    """Class codes in class order, the rows in that order, and where each one's class ends."""
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    end = np.cumsum(np.bincount(codes))[codes]
    return codes, order, end


def _draw_partners(first, stop, size, rng):
    """Distinct pairs (p, q) of places with first[p] <= q < stop (or stop[p]), at random."""
    counts = np.maximum(stop - first, 0)
    last = np.cumsum(counts)
    number = _draw_distinct(int(last[-1]), size, rng)
    p = np.searchsorted(last, number, side="right")
    q = first[p] + number - (last[p] - counts[p])
    return np.column_stack([p, q])


def _draw_distinct(total, size, rng):
    """Draw `size` distinct numbers below `total` (all of them if fewer) in O(size) memory."""
    if 2 * size >= total:
        return rng.permutation(total)[:size].astype(np.int64)
    found = np.unique(rng.randint(0, total, size=size, dtype=np.int64))
    while len(found) < size:
        more = rng.randint(0, total, size=size - len(found), dtype=np.int64)
        found = np.union1d(found, more)
    rng.shuffle(found)
    return found
