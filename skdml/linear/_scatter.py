"""Sums of outer products of pair differences, the statistics that linear learners need."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from .._parallel import is_dask_array, make_shards

# Pairs per block: fixed, so that the sum does not depend on the number of workers.
_BLOCK_PAIRS = 50_000


def pair_scatter(
    X: Any,
    pairs: NDArray[np.integer],
    weights: NDArray[np.floating],
    *,
    n_jobs: int | None = None,
    client: Any = None,
) -> NDArray[np.float64]:
    r"""Compute :math:`\sum_k w_k (x_{i_k} - x_{j_k})(x_{i_k} - x_{j_k})^T`.

    The sum is ``X.T @ laplacian @ X`` with the graph Laplacian of the weighted pairs, so it
    costs one product over the rows, however many pairs there are.

    Parameters
    ----------
    X : ndarray or dask array of shape (n_rows, n_features)
        Rows, best centred: the Laplacian cancels a common offset only up to rounding.
    pairs : ndarray of shape (n_pairs, 2)
        Row indices.
    weights : ndarray of shape (n_pairs,) or (n_pairs, n_sums)
        One weight per pair, or several columns for several sums over the same pairs.
    n_jobs, client :
        Where the work is done, see `skdml._parallel`.

    Returns
    -------
    scatter : ndarray of shape (n_features, n_features) or (n_sums, n_features, n_features)
        Symmetric; positive semi-definite where the weights are >= 0.
    """
    columns = weights if weights.ndim == 2 else weights[:, None]
    cuts = [slice(start, start + _BLOCK_PAIRS) for start in range(0, len(pairs), _BLOCK_PAIRS)]
    blocks = [_rows_of_block(X, pairs[cut], columns[cut]) for cut in cuts]
    with make_shards(blocks, n_jobs=n_jobs, client=client) as shards:
        total = shards.sum(_scatter_block)
    return total if weights.ndim == 2 else total[0]


def _rows_of_block(X, pairs, weights):
    rows, local = np.unique(pairs, return_inverse=True)
    local = local.reshape(pairs.shape)
    if is_dask_array(X):
        import dask

        return dask.delayed(tuple)([X[rows], local, weights])
    whole = len(rows) == len(X)  # then rows is 0 .. n - 1, and a copy is saved
    return X if whole else X[rows], local, weights


def _scatter_block(block):
    X, pairs, weights = block
    X = np.asarray(X, dtype=np.float64)
    n_rows = len(X)
    i, j = pairs.T
    out = np.empty((weights.shape[1], X.shape[1], X.shape[1]))
    for k, w in enumerate(weights.T):
        adjacency = sparse.coo_array((w, (i, j)), shape=(n_rows, n_rows)).tocsr()
        adjacency = adjacency + adjacency.T
        degree = np.asarray(adjacency.sum(axis=1)).ravel()
        product = X.T @ (degree[:, None] * X - adjacency @ X)
        out[k] = (product + product.T) / 2
    return out
