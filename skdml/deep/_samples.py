"""Samples of deep learners: rows or images in, distances of embeddings out."""

from __future__ import annotations

import math
import mmap
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from ..utils._bases import BaseEstimator
from ..utils._sklearn import validate_data
from ..utils.validation import check_index_pairs, check_scale, check_varies, naming, varying_columns
from ._input import flat_shape

# Rows of a file are checked so many bytes, and drawn so many, at a time: with each comes what is
# around it in the file.
_BLOCK_BYTES = 2**22
_ROWS_AT_ONCE = 64


def choose_rows(
    samples: torch.Tensor, rows: torch.Tensor, release: Callable[[], None] | None
) -> torch.Tensor | Rows:
    """Return some rows of samples in memory, or of a file that are read when they are asked for.

    Parameters
    ----------
    samples : tensor of shape (n_samples, ...)
        All samples.
    rows : tensor of shape (n_rows,)
        Which of them: all in their order, or fewer in any.
    release : callable or None
        What `page_release` returned.
    """
    if release is not None:
        return Rows(samples, rows, release)
    return samples if len(rows) == len(samples) else samples[rows]


class Rows:
    """Some rows of a file, read when they are asked for.

    Parameters
    ----------
    samples : tensor of shape (n_samples, ...)
        All samples, in the file.
    rows : tensor of shape (n_rows,)
        Which of them.
    release : callable
        What `page_release` returned.
    """

    def __init__(
        self, samples: torch.Tensor, rows: torch.Tensor, release: Callable[[], None]
    ) -> None:
        self._samples, self._rows, self._release = samples, rows, release

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> torch.Tensor:
        parts = []
        for some in self._rows[index].split(_ROWS_AT_ONCE):
            parts.append(self._samples[some])
            self._release()
        return torch.cat(parts)


def page_release(X: Any) -> Callable[[], None] | None:
    """Return a function that lets the pages of a memory-mapped array go from memory.

    Pages that were read count as memory of the process until the system needs their place. None for
    other arrays, and for private mappings, whose changes would be lost.
    """
    mapping = getattr(X, "_mmap", None)
    is_shared = isinstance(X, np.memmap) and X.mode in ("r", "r+", "w+")
    if mapping is None or not is_shared or not hasattr(mmap, "MADV_DONTNEED"):
        return None
    return lambda: mapping.madvise(mmap.MADV_DONTNEED)


class SamplesMixin(BaseEstimator):
    """For estimators that embed samples, which come as rows or as images."""

    module: Any
    input_shape: Any
    _sample_shape: tuple[int, ...]
    n_features_in_: int
    transform: Any

    def _check_samples(self, X, reset):
        """Return the samples as rows, and the shape of one of them."""
        if isinstance(X, torch.Tensor):
            X = X.numpy(force=True)
        elif not (hasattr(X, "columns") or sparse.issparse(X)):  # a dataframe has names
            with naming("X"):
                X = np.asanyarray(X)
        sample_shape = None
        if getattr(X, "ndim", 2) == 4:
            sample_shape = tuple(X.shape[1:])
            X = X.reshape(len(X), math.prod(sample_shape))
        n_least = 2 if reset else 1
        if isinstance(X, np.memmap) and X.dtype == np.float32 and X.ndim == 2 and len(X) >= n_least:
            self._check_file(X, reset)
        else:
            X = validate_data(
                self, X, dtype=[np.float64, np.float32], reset=reset, ensure_min_samples=n_least
            )
            check_scale(X, dtype=np.float32, may_be_small=not reset)
            if reset and varying_columns(X).any():  # equal samples teach nothing, and do no harm
                check_varies(X, dtype=np.float32)
        if sample_shape is None:
            sample_shape = flat_shape(X.shape[1], self.input_shape, self.module)
        if not reset and sample_shape != self._sample_shape:
            raise ValueError(
                f"X has samples of shape {sample_shape}, but {type(self).__name__} was fitted "
                f"with {self._sample_shape}."
            )
        return X, sample_shape

    def _check_file(self, X, reset):
        """Validate rows of float32 in a file, without reading all of it into memory at once."""
        release = page_release(X)
        n_rows = max(1, _BLOCK_BYTES // max(1, X[:1].nbytes))
        for first in range(0, len(X), n_rows):
            validate_data(self, X[first : first + n_rows], dtype=np.float32, reset=reset)
            reset = False
            if release is not None:
                release()

    def _to_tensor(self, X):
        X = np.asarray(X, dtype=np.float32)
        with warnings.catch_warnings():  # nothing is written to it
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(X).reshape(-1, *self._sample_shape)

    def _embed_pairs(self, pairs, X):
        """Return the embeddings of the left and of the right samples of pairs.

        They come as samples, of shape (n_pairs, 2, ...), or as row indices into X.
        """
        check_is_fitted(self)
        with naming("pairs"):
            pairs = np.asarray(pairs)
        if X is None:
            if pairs.ndim < 3 or pairs.shape[1] != 2:
                raise ValueError(
                    f"pairs must have shape (n_pairs, 2, {self.n_features_in_}), got "
                    f"{pairs.shape}. For index pairs, pass the samples as X."
                )
            return self.transform(pairs[:, 0]), self.transform(pairs[:, 1])
        embeddings = self.transform(X)
        pairs = check_index_pairs(pairs, len(embeddings))
        return embeddings[pairs[:, 0]], embeddings[pairs[:, 1]]
