"""Supervision with weights: pairs, triplets and grades as signed weights; equal rows as one row.

The sign of a pair says whether it is similar (+) or dissimilar (-), its size is the weight.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from ._parallel import is_dask_array
from ._split_pairs import refuse_split_indices
from .validation import check_index_pairs, check_numbers, check_pair_labels, naming

# Numbers in a block of rows whose keys are computed at once.
_BLOCK_SIZE = 2**20
# Products of weights and their squares stay in range.
_LARGEST_WEIGHT = 1e30
# Columns that tell most rows apart.
_FEW_COLUMNS = 8


@dataclass(frozen=True)
class Supervision:
    """What `fit` was given: rows with classes or with pairs, and weights.

    Attributes
    ----------
    X : array, sparse matrix or dask array
        The rows.
    rows : ndarray of shape (n_rows,)
        Their indices in the X that was given.
    codes : ndarray of shape (n_rows,) or None
        Their classes; None where there are pairs.
    pairs : ndarray of shape (n_pairs, 2) or None
        Pairs, as indices into `X`.
    signed : ndarray of shape (n_pairs,) or None
        Their weights, negative for dissimilar pairs.
    grades : ndarray of shape (n_pairs, 2) or None
        How similar they are, and weights, where that was given.
    weights : ndarray of shape (n_rows,) or None
        Of the rows; None is 1 for each.
    """

    X: Any
    rows: NDArray
    codes: NDArray | None
    pairs: NDArray | None
    signed: NDArray | None
    grades: NDArray | None
    weights: NDArray | None


def find_source(
    pairs: Any, triplets: Any, pair_labels: Any, pair_similarity: Any, pair_weight: Any
) -> str | None:
    """Return which of pairs and triplets `fit` was given, None for neither; refuse a wrong mix."""
    sources = {"pairs": pairs, "triplets": triplets}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        raise ValueError("pairs and triplets were given: pass one of them.")
    if pairs is None:
        for name, value in (("pair_labels", pair_labels), ("pair_similarity", pair_similarity)):
            if value is not None:
                raise ValueError(f"{name} was given without pairs: pass both.")
    elif pair_labels is not None and pair_similarity is not None:
        raise ValueError("pair_labels and pair_similarity were given: pass one of them.")
    if not given:
        if pair_weight is not None:
            raise ValueError("pair_weight was given without pairs or triplets: pass both.")
        return None
    refuse_split_indices(sources[given[0]], given[0])
    return given[0]


def check_weights(weights: Any, name: str, length: int) -> NDArray[np.float64]:
    """Return weights as numbers, none negative and not all zero."""
    weights = check_numbers(weights, name)
    if len(weights) != length:
        raise ValueError(f"{name} must have {length} entries, got {len(weights)}.")
    if (weights < 0).any():
        raise ValueError(f"{name} must not be negative, its smallest entry is {weights.min():.3g}.")
    if not weights.any():
        raise ValueError(f"{name} is zero everywhere: nothing is left to learn from.")
    if not 1 / _LARGEST_WEIGHT < weights.max() < _LARGEST_WEIGHT:
        raise ValueError(
            f"{name} must have its largest entry between {1 / _LARGEST_WEIGHT:.0e} and "
            f"{_LARGEST_WEIGHT:.0e}, got {weights.max():.3g}: divide by it."
        )
    return weights


def merge_rows(
    X: Any, codes: NDArray, weights: NDArray | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
    """Take equal rows of a class as one row, whose weight is the sum.

    So that a weight of 2 is the same as the row twice wherever pairs, folds or neighbours are
    drawn from the rows, and a weight of 0 is the same as no row.

    Parameters
    ----------
    X : array, sparse matrix or dask array of shape (n_rows, n_features)
        The rows. Those of dask arrays are left apart.
    codes : ndarray of shape (n_rows,)
        Their classes.
    weights : ndarray of shape (n_rows,), default=None
        Their weights; None is 1 for each.

    Returns
    -------
    rows : ndarray
        The rows that are kept. Where they have weights, in an order that depends on their values
        alone.
    weights : ndarray or None
        Their weights; None where each counts once.
    """
    rows = np.arange(len(codes)) if weights is None else np.flatnonzero(weights)
    weights = None if weights is None else weights[rows]
    if weights is not None and (weights == 1).all():
        weights = None
    if is_dask_array(X):
        return rows, weights
    if len(rows) < len(codes):
        X, codes = X[rows], codes[rows]
    if weights is None:
        step = max(1, X.shape[1] // _FEW_COLUMNS)
        if len(np.unique(_row_keys(X[:, ::step], codes))) == len(rows):
            return rows, None
    keys, first, inverse = np.unique(_row_keys(X, codes), return_index=True, return_inverse=True)
    if weights is None and len(keys) == len(rows):
        return rows, None
    return rows[first], np.bincount(inverse, weights).astype(np.float64)


def weighted_rows(
    X: Any, codes: NDArray, sample_weight: Any
) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
    """Return the distinct rows of `fit` that count, and their weights.

    Parameters
    ----------
    X : array or sparse matrix of shape (n_rows, n_features)
        The rows.
    codes : ndarray of shape (n_rows,)
        Their classes.
    sample_weight : array-like of shape (n_rows,) or None
        As `fit` was given it.

    Returns
    -------
    rows : ndarray
        Without those of weight 0, and one of equal rows of a class.
    weights : ndarray or None
        Their weights, 1 on average; None where all count alike, and then the rows are in their
        order.

    Examples
    --------
    >>> import numpy as np
    >>> from skdml.utils._supervision import weighted_rows
    >>> X, codes = np.array([[1.0], [2.0], [1.0]]), np.array([0, 1, 0])
    >>> weighted_rows(X, codes, [1, 2, 1])
    (array([0, 1]), None)
    """
    weights = None
    if sample_weight is not None:
        weights = equal_as_ones(check_weights(sample_weight, "sample_weight", X.shape[0]))
    rows, weights = merge_rows(X, codes, weights)
    if weights is None or np.ptp(weights) == 0:
        return np.sort(rows), None
    return rows, weights / weights.mean()


def places_of_rows(X: Any, codes: NDArray, rows: NDArray) -> NDArray[np.int64]:
    """Return the position in `rows` of the equal row of each row, -1 where there is none."""
    keys = _row_keys(X, codes)
    order = np.argsort(keys[rows])
    found = np.searchsorted(keys[rows], keys, sorter=order)
    places = order[np.minimum(found, len(rows) - 1)]
    return np.where(keys[rows][places] == keys, places, -1)


def equal_as_ones(weights: NDArray) -> NDArray:
    """Return weights that are all the same, but for zeros, as ones; others as they are."""
    used = weights[weights > 0]
    return (weights > 0).astype(np.float64) if np.ptp(used) == 0 else weights


def draw_weighted(weights: NDArray, n_draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw positions, each as often as its weight says in the mean.

    Systematic sampling: a position is drawn its share of the draws, rounded up or down at random.

    Parameters
    ----------
    weights : ndarray of shape (n,)
        Above 0.
    n_draws : int
        How many.
    rng : numpy Generator
        Draws.

    Returns
    -------
    positions : ndarray of shape (n_draws,)
        In random order but for repeats, which come one after the other.
    """
    order = rng.permutation(len(weights))
    ends = np.cumsum(weights[order])
    places = (rng.random() + np.arange(n_draws)) * (ends[-1] / n_draws)
    return order[np.minimum(np.searchsorted(ends, places, side="right"), len(order) - 1)]


def shuffle(n_items: int, weights: NDArray | None, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return as many positions in random order: each once, or as often as its weight says."""
    if weights is None:
        return rng.permutation(n_items)
    return rng.permutation(draw_weighted(weights, n_items, rng))


def _row_keys(X, codes):
    """Return numbers of 64 bits that are equal for equal rows of a class, and for hardly others."""
    n_columns = X.shape[1]
    factors = np.random.RandomState(0).randint(1, 2**63, n_columns + 1, dtype=np.uint64) | 1
    keys = _mixed(codes.astype(np.float64)) * factors[-1]
    if sparse.issparse(X):
        X = X.tocsr(copy=True)
        X.sum_duplicates()
        # Sums modulo 2**64 have no rounding: differences of running sums are exact.
        sums = np.append(np.uint64(0), np.cumsum(_mixed(X.data) * factors[X.indices]))
        return keys + sums[X.indptr[1:]] - sums[X.indptr[:-1]]
    step = max(1, _BLOCK_SIZE // max(n_columns, 1))
    for start in range(0, len(X), step):
        cut = slice(start, start + step)
        keys[cut] += (_mixed(X[cut]) * factors[:-1]).sum(axis=1, dtype=np.uint64)
    return keys


def _mixed(values):
    bits = (np.asarray(values, dtype=np.float64, order="C") + 0.0).view(np.uint64)  # no minus zero
    bits ^= bits >> np.uint64(32)
    bits *= np.uint64(0x9E3779B97F4A7C15)
    return bits ^ (bits >> np.uint64(29))


def signed_pairs(
    pairs: ArrayLike,
    labels: ArrayLike | None,
    n_rows: int,
    pair_weight: ArrayLike | None = None,
    sample_weight: NDArray | None = None,
    similarity: ArrayLike | None = None,
    needs_both: bool = True,
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64] | None]:
    """Check pairs, and return each once with its signed weight.

    A pair that was given several times with the same sign has the sum of the weights. Pairs of
    weight 0 and rows paired with themselves are dropped, the latter with a warning.

    Parameters
    ----------
    pairs : array-like of shape (n_pairs, 2)
        Row indices.
    labels : array-like of shape (n_pairs,) or None
        +1 for similar, -1 for dissimilar; None where there are grades.
    n_rows : int
        The number of rows that `pairs` may name.
    pair_weight : array-like of shape (n_pairs,), default=None
        Weights of the pairs.
    sample_weight : ndarray of shape (n_rows,), default=None
        Weights of the rows, whose product a pair has.
    similarity : array-like of shape (n_pairs,), default=None
        Grades of any scale, in place of labels: the weight is the distance to their mean, 1 on
        average, and pairs above it are similar.
    needs_both : bool, default=True
        Whether similar and dissimilar pairs must be there.

    Returns
    -------
    pairs : ndarray of shape (n_kept, 2)
        The smaller index first.
    signed : ndarray of shape (n_kept,)
        Their weights, negative for dissimilar pairs.
    grades : ndarray of shape (n_kept, 2) or None
        Grade and weight of the pairs that are kept, where `similarity` was given.
    """
    pairs = check_index_pairs(pairs, n_rows)
    if not len(pairs):
        raise ValueError("pairs is empty: at least one similar and one dissimilar pair are needed.")
    pairs = np.sort(pairs.astype(np.int64), axis=1)
    weights = np.ones(len(pairs))
    if pair_weight is not None:
        weights = check_weights(pair_weight, "pair_weight", len(pairs))
    if sample_weight is not None:
        weights = weights * sample_weight[pairs].prod(axis=1)
        if not weights.any():
            raise ValueError("sample_weight is zero for a row of every pair: none is left.")
    grades = None
    if similarity is not None:
        grades = check_numbers(similarity, "pair_similarity")
        if len(grades) != len(pairs):
            raise ValueError(f"pair_similarity has {len(grades)} entries for {len(pairs)} pairs.")
        used = weights > 0
        if np.ptp(grades[used]) == 0:
            raise ValueError("pair_similarity is the same for all pairs: nothing can be learned.")
        apart = grades / np.abs(grades[used]).max()
        apart = apart - np.average(apart, weights=weights)
        signed = weights * apart / np.average(np.abs(apart), weights=weights)
    else:
        signed = weights * check_pair_labels(labels, len(pairs))

    itself = pairs[:, 0] == pairs[:, 1]
    if itself.any():
        warnings.warn(
            f"{itself.sum()} of {len(pairs)} pairs paired a row with itself and were dropped."
        )
    keep = ~itself & (weights > 0)
    pairs, signed = pairs[keep], signed[keep]
    grades = None if grades is None else np.column_stack([grades, weights])[keep]
    numbers = pairs[:, 0] * n_rows + pairs[:, 1]
    kinds = 2 * numbers + (signed > 0)
    if grades is not None:  # pairs with several grades stay apart
        kinds = len(pairs) * numbers + np.unique(grades[:, 0], return_inverse=True)[1]
    _, first, inverse = np.unique(kinds, return_index=True, return_inverse=True)
    again = len(pairs) - len(first)
    if again:
        if pair_weight is None and similarity is None:
            warnings.warn(
                f"{again} of {len(pairs)} pairs were given before with the same label: each "
                "counts as often as it was given."
            )
        order = np.argsort(first)
        signed = np.bincount(inverse, signed)[order].astype(np.float64)
        pairs, numbers = pairs[first[order]], numbers[first[order]]
        if grades is not None:
            sums = np.bincount(inverse, grades[:, 1])
            grades = np.column_stack([grades[first, 0], sums])[order]
    contradictory = len(numbers) - len(np.unique(numbers))
    if contradictory and grades is None:
        warnings.warn(
            f"{contradictory} pairs are labelled both similar and dissimilar; both are kept."
        )
    for sign, kind in ((1, "similar (+1)"), (-1, "dissimilar (-1)")):
        if needs_both and not (sign * signed > 0).any():
            raise ValueError(f"pair_labels has no {kind} pair left: both kinds are needed.")
    return pairs, signed, grades


def pairs_of_triplets(
    triplets: ArrayLike, n_rows: int, weights: ArrayLike | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the near pair and the far pair of each triplet, with their labels and weights.

    Parameters
    ----------
    triplets : array-like of shape (n_triplets, 3)
        Row indices: anchor, near row, far row.
    n_rows : int
        The number of rows that `triplets` may name.
    weights : array-like of shape (n_triplets,), default=None
        Weights of the triplets.

    Returns
    -------
    pairs : ndarray of shape (2 * n_triplets, 2)
        Near pairs, then far pairs.
    labels, weights : ndarray of shape (2 * n_triplets,)
        Of the pairs.

    Examples
    --------
    >>> from skdml.utils._supervision import pairs_of_triplets
    >>> pairs, labels, _ = pairs_of_triplets([[0, 1, 2]], 3)
    >>> pairs, labels
    (array([[0, 1],
           [0, 2]]), array([ 1, -1]))
    """
    with naming("triplets"):
        triplets = np.asarray(triplets)
    if triplets.ndim != 2 or triplets.shape[1] != 3 or not len(triplets):
        raise ValueError(
            "triplets must be row indices (anchor, near, far) of shape (n_triplets, 3), got "
            f"{triplets.shape}."
        )
    if triplets.dtype.kind not in "iu":
        raise TypeError(
            f"triplets must hold integer row indices into X, got dtype {triplets.dtype}."
        )
    if triplets.min() < 0 or triplets.max() >= n_rows:
        raise ValueError(
            f"triplets names rows {triplets.min()} to {triplets.max()}, but X has {n_rows} "
            f"samples (rows 0 to {n_rows - 1})."
        )
    ones = np.ones(len(triplets))
    given = ones if weights is None else check_weights(weights, "pair_weight", len(triplets))
    pairs = np.vstack([triplets[:, [0, 1]], triplets[:, [0, 2]]]).astype(np.int64)
    return pairs, np.repeat([1, -1], len(triplets)), np.tile(given, 2)


def weighted_median(values: NDArray, weights: NDArray) -> float:
    """Return the median of values that occur as often as their weights say.

    Examples
    --------
    >>> import numpy as np
    >>> from skdml.utils._supervision import weighted_median
    >>> float(weighted_median(np.array([5.0, 1.0, 2.0]), np.array([1, 1, 2])))
    2.0
    """
    order = np.argsort(values, kind="stable")
    sums = np.cumsum(weights[order])
    places = [np.searchsorted(sums, sums[-1] / 2, side) for side in ("left", "right")]
    return values[order][np.minimum(places, len(values) - 1)].mean()
