"""Samples of deep learners: rows, images or tokens, in memory, in a file, or read one by one."""

from __future__ import annotations

import copy
import math
import mmap
import os
import warnings
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import check_is_fitted
from torch.utils.data import Dataset, IterableDataset, Subset

from ..utils._bases import BaseEstimator
from ..utils._parallel import computed
from ..utils._sklearn import validate_data
from ..utils._supervision import check_weights, weighted_rows
from ..utils.validation import (
    check_index_pairs,
    check_scale,
    check_varies,
    naming,
    page_release,
    refuse_if_too_large,
    varying_columns,
)

# Rows of a file are checked so many bytes, and drawn so many, at a time: with each comes what is
# around it in the file.
_BLOCK_BYTES = 2**22
_ROWS_AT_ONCE = 64


def choose_rows(samples: Any, rows: torch.Tensor, release: Any = None) -> Any:
    """Return some rows of samples in memory, or others that are read when they are asked for.

    Parameters
    ----------
    samples : tensor of shape (n_samples, ...) or ReadSamples
        All samples.
    rows : tensor of shape (n_rows,)
        Which of them: all in their order, or fewer in any.
    release : callable, default=None
        What `page_release` returned.
    """
    if release is not None or isinstance(samples, ReadSamples):
        return Rows(samples, rows, release)
    return samples if len(rows) == len(samples) else samples[rows]


class Rows:
    """Some samples that are not in memory, read when they are asked for.

    Parameters
    ----------
    samples : tensor of shape (n_samples, ...) or ReadSamples
        All samples, of a file or read one by one.
    rows : tensor of shape (n_rows,)
        Which of them.
    release : callable or None
        What `page_release` returned.
    """

    def __init__(self, samples: Any, rows: torch.Tensor, release: Any) -> None:
        self._samples, self._rows, self._release = samples, rows, release

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> torch.Tensor:
        parts = []
        for some in self._rows[index].split(_ROWS_AT_ONCE):
            parts.append(self._samples[some])
            if self._release is not None:
                self._release()
        return torch.cat(parts)


class ReadSamples:
    """Samples that are read one by one: items of a Dataset, or what a loader makes of items.

    Parameters
    ----------
    items : Dataset or list
        Items by their number. An item of a Dataset may be a pair (sample, label).
    loader : callable or None
        Returns the sample for an item.
    keeps_integers : bool
        Whether vectors of integers stay integers.

    Attributes
    ----------
    shape : tuple of int
        Of a sample, as it is returned.
    dtype : numpy dtype
        float32, or int64 for tokens.
    """

    def __init__(self, items: Any, loader: Any, keeps_integers: bool) -> None:
        self._items, self._loader = items, loader
        first = self._read(0)
        self._shape = self.shape = tuple(first.shape)
        is_integer = not (first.is_floating_point() or first.is_complex())
        self._is_tokens = keeps_integers and is_integer and first.dtype != torch.bool
        self._is_tokens = self._is_tokens and first.ndim == 1
        self.dtype = np.dtype(np.int64 if self._is_tokens else np.float32)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> torch.Tensor:
        rows = torch.arange(len(self))[index].tolist()
        return torch.stack([self._checked(row) for row in rows]).reshape(-1, *self.shape)

    def take(self, rows: NDArray) -> ReadSamples:
        """Return some of the samples."""
        some = copy.copy(self)
        some._items = Subset(self._items, rows.tolist())
        return some

    def labels(self) -> list[Any] | None:
        """Return the labels of a Dataset, by one pass over it; None where there is a loader."""
        if self._loader is not None:
            return None
        labels = []
        for row in range(len(self)):
            item = self._items[row]
            if not (isinstance(item, (tuple, list)) and len(item) == 2):
                raise ValueError(
                    f"X[{row}] of the Dataset has no label: give y, or a Dataset whose items are "
                    "pairs (sample, label)."
                )
            label = item[1]
            labels.append(label.item() if isinstance(label, (torch.Tensor, np.generic)) else label)
        return labels

    def _read(self, row):
        try:
            item = self._items[row]
            if self._loader is not None:
                item = self._loader(item)
        except Exception as error:
            error.add_note(f"This was while X[{row}] was read.")
            raise
        if self._loader is None and isinstance(item, (tuple, list)) and len(item) in (1, 2):
            item = item[0]
        source = "loader" if self._loader is not None else "the Dataset"
        try:
            sample = item if isinstance(item, torch.Tensor) else torch.from_numpy(np.array(item))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"X[{row}]: {source} must return an array or tensor of numbers, got "
                f"{type(item).__name__}."
            ) from error
        if not sample.ndim or not sample.numel():
            raise ValueError(
                f"X[{row}]: {source} must return an array of one dimension or more, with values, "
                f"got shape {tuple(sample.shape)}."
            )
        return sample.detach().cpu()

    def _checked(self, row):
        sample = self._read(row)
        if tuple(sample.shape) != self._shape:
            raise ValueError(
                f"X[{row}] has shape {tuple(sample.shape)}, but X[0] has {self._shape}: all "
                "samples must have one shape. Resize images, and fill sequences up with zeros."
            )
        if self._is_tokens:
            if sample.is_floating_point():
                raise ValueError(f"X[{row}] has floats, but X[0] has integers.")
            return sample.long()
        sample = sample.float()
        if not torch.isfinite(sample).all():
            raise ValueError(f"X[{row}] contains NaN or infinity.")
        return sample


class FileSamples(NamedTuple):
    """Samples of a memory map, for processes that map the file themselves.

    Attributes
    ----------
    path : str
        The file.
    offset : int
        Bytes before the first sample.
    shape : tuple of int
        Of the array, of float32.
    """

    path: str
    offset: int
    shape: tuple[int, ...]

    def open(self) -> np.memmap:
        """Map the file."""
        try:
            return np.memmap(self.path, np.float32, "r", self.offset, self.shape)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"X is a memory map of {self.path}, which is not on this machine: put the file "
                "into a folder that all machines share."
            ) from error


def find_file(X: Any) -> FileSamples | None:
    """Return where the rows of a memory map are, None for other arrays."""
    if page_release(X) is None or X.filename is None or not X.flags.c_contiguous:
        return None
    # views know the offset of the whole map alone
    start = X.offset - X.offset % mmap.ALLOCATIONGRANULARITY
    whole, own = (
        array.__array_interface__["data"][0] for array in (np.frombuffer(X._mmap, np.uint8), X)
    )
    return FileSamples(os.fspath(X.filename), start + own - whole, X.shape)


def store_samples(X: Any, path: Any) -> np.memmap:
    """Write a dask array to a file, block by block, and map it."""
    if any(math.isnan(size) for size in X.shape):
        raise ValueError("X has chunks of unknown size: call X.compute_chunk_sizes() first.")
    stored = np.lib.format.open_memmap(path, "w+", np.float32, X.shape)
    release = page_release(stored)
    first = 0
    for block in X.rechunk(dict.fromkeys(range(1, X.ndim), -1)).blocks:
        stored[first : first + len(block)] = computed(block)
        first += len(block)
        if release is not None:
            stored.flush()
            release()
    return stored


def find_samples(X: Any, loader: Any, keeps_integers: bool) -> ReadSamples | None:
    """Return samples that are read one by one, or None where X has the samples themselves.

    Parameters
    ----------
    X : object
        What the user gave as X.
    loader : callable or None
        The parameter.
    keeps_integers : bool
        Whether vectors of integers stay integers.
    """
    if isinstance(X, Dataset):
        if isinstance(X, IterableDataset) or not hasattr(X, "__len__"):
            raise TypeError(
                "X must be a map-style Dataset, with __len__ and __getitem__: batches by class "
                f"need any sample at any time, got {type(X).__name__}."
            )
        if loader is not None:
            raise ValueError(
                "loader is for a list of paths, or of other items: X is a Dataset, which reads its "
                "samples itself. Leave loader at None."
            )
        items: Any = X
    elif loader is not None:
        if getattr(X, "ndim", 1) != 1 or isinstance(X, (str, bytes)) or not hasattr(X, "__len__"):
            raise ValueError(
                "X must be a list or an array of one dimension where loader is given, such as a "
                f"list of paths, got {type(X).__name__}."
            )
        items = list(X)
    else:
        is_flat = isinstance(X, (list, tuple)) or getattr(X, "ndim", 0) == 1
        if is_flat and len(X) and isinstance(next(iter(X)), (str, os.PathLike)):
            raise ValueError(
                "X has strings or paths: give loader, a function that returns the sample for one "
                "of them as an array."
            )
        return None
    if not len(items):
        raise ValueError("X has no samples.")
    return ReadSamples(items, loader, keeps_integers)


class SamplesMixin(BaseEstimator):
    """For estimators that embed samples, which come as rows or as images.

    Where `_reads_samples`, they may be read one by one, by a Dataset or a loader, and rows of
    integers stay integers for a network of the user's own.
    """

    module: Any
    input_shape: Any
    loader: Any = None
    _reads_samples = False
    _sample_shape: tuple[int, ...]
    _has_tokens: bool = False
    n_features_in_: int
    transform: Any

    def _check_samples(self, X, reset):
        """Return the samples as rows, or as `ReadSamples`, and the shape of one of them."""
        if self._reads_samples:
            keeps_integers = self._has_tokens if not reset else not isinstance(self.module, str)
            samples = find_samples(X, self.loader, keeps_integers)
            if samples is not None:
                return samples, self._check_read(samples, reset)
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
        if sample_shape is None and self._are_tokens(X, reset):
            X = validate_data(self, X, dtype=np.int64, reset=reset, ensure_min_samples=n_least)
        elif (
            isinstance(X, np.memmap) and X.dtype == np.float32 and X.ndim == 2 and len(X) >= n_least
        ):
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
        self._check_shape(sample_shape, reset)
        return X, sample_shape

    def _check_shape(self, sample_shape, reset):
        if not reset and sample_shape != self._sample_shape:
            raise ValueError(
                f"X has samples of shape {sample_shape}, but {type(self).__name__} was fitted "
                f"with {self._sample_shape}."
            )

    def _are_tokens(self, X, reset):
        """Tell whether rows are integers that stay integers."""
        if not self._reads_samples:
            return False
        dtype = np.asarray(X[:0]).dtype if hasattr(X, "columns") else X.dtype
        if reset:
            return dtype.kind in "iu" and not isinstance(self.module, str)
        self._check_tokens(dtype)
        return self._has_tokens

    def _check_tokens(self, dtype):
        if self._has_tokens and dtype.kind not in "iu":
            raise ValueError(
                f"X has values of {dtype}, but {type(self).__name__} was fitted with integers."
            )

    def _check_read(self, samples, reset):
        """Return the shape of samples that are read one by one."""
        shape = samples.shape
        if len(shape) == 1:
            shape = samples.shape = flat_shape(shape[0], self.input_shape, self.module)
        elif isinstance(self.module, str) and len(shape) != 3:
            raise ValueError(
                f"X has samples of shape {shape}: module={self.module!r} takes vectors, or images "
                "of shape (channels, height, width), where one channel needs an axis too."
            )
        elif isinstance(self.module, str) and shape[0] > 4 >= shape[2]:
            raise ValueError(
                f"X has samples of shape {shape}, which looks like (height, width, channels): "
                "channels come first, as in np.moveaxis(image, -1, 0)."
            )
        if reset:
            if len(samples) < 2:
                raise ValueError("X has 1 sample, and 2 are needed to learn what is similar.")
            self.n_features_in_ = math.prod(shape)
            vars(self).pop("feature_names_in_", None)
        else:
            self._check_tokens(samples.dtype)
        self._check_shape(shape, reset)
        return shape

    def _check_file(self, X, reset):
        """Validate rows of float32 in a file, without reading all of it into memory at once."""
        release = page_release(X)
        n_rows = max(1, _BLOCK_BYTES // max(1, X[:1].nbytes))
        for first in range(0, len(X), n_rows):
            validate_data(self, X[first : first + n_rows], dtype=np.float32, reset=reset)
            reset = False
            if release is not None:
                release()

    def _choose_samples(self, X, codes, sample_weight):
        """Return the samples that count, equal ones of a class once, and their weights.

        None stands for all samples, in their order. Those of a file are not compared without
        weights, and those that are read one by one never.
        """
        if isinstance(X, ReadSamples):
            if sample_weight is None:
                return None, None
            weights = check_weights(sample_weight, "sample_weight", len(X))
            rows = np.flatnonzero(weights)
            return rows, weights[rows] if np.ptp(weights[rows]) else None
        is_file = page_release(X) is not None
        if is_file and sample_weight is None:
            return None, None
        rows, weights = weighted_rows(X, codes, sample_weight)
        if len(rows) == len(X) and weights is None:
            return None, None
        if is_file:
            refuse_if_too_large(
                (len(rows), X.shape[1]),
                "with sample_weight, X is read into memory",
                "Make a file without the samples of weight 0.",
            )
        return rows, weights

    def _to_tensor(self, X):
        if isinstance(X, ReadSamples):
            return X
        return as_tensor(X, self._sample_shape)

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


def as_tensor(X: NDArray, sample_shape: tuple[int, ...]) -> torch.Tensor:
    """Return rows as samples, without a copy where they are float32 or int64."""
    X = np.asarray(X, dtype=np.int64 if X.dtype.kind in "iu" else np.float32)
    with warnings.catch_warnings():  # nothing is written to it
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(X).reshape(-1, *sample_shape)


def flat_shape(n_features: int, input_shape: Any, module: Any) -> tuple[int, ...]:
    """Return the shape of a sample that came as a row."""
    if input_shape is None:
        if module == "convnet":
            raise ValueError(
                "module='convnet' needs images: pass X of shape (n, channels, height, width), or "
                f"input_shape to say what the {n_features} columns are."
            )
        return (n_features,)
    shape = tuple(input_shape)
    is_image = len(shape) == 3 or (len(shape) == 1 and module != "convnet")
    if not is_image or not all(isinstance(size, Integral) and int(size) > 0 for size in shape):
        raise ValueError(
            f"input_shape must be (channels, height, width), three whole numbers above 0, or None "
            f"for rows that are no images, got {input_shape!r}."
        )
    if math.prod(shape) != n_features:
        raise ValueError(
            f"input_shape={shape} has {math.prod(shape)} values, but X has {n_features} columns."
        )
    return shape
