"""Samples of deep learners: rows or images in, distances of embeddings out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from ..utils._bases import BaseEstimator
from ..utils._pairs import check_index_pairs
from ..utils._sklearn import validate_data
from ._input import flat_shape


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
            X = np.asarray(X)
        sample_shape = None
        if X.ndim == 4:
            sample_shape = tuple(X.shape[1:])
            X = X.reshape(len(X), -1)
        X = validate_data(
            self,
            X,
            dtype=[np.float64, np.float32],
            reset=reset,
            ensure_min_samples=2 if reset else 1,
        )
        if sample_shape is None:
            sample_shape = flat_shape(X.shape[1], self.input_shape, self.module)
        if not reset and sample_shape != self._sample_shape:
            raise ValueError(
                f"X has samples of shape {sample_shape}, but {type(self).__name__} was fitted "
                f"with {self._sample_shape}."
            )
        return X, sample_shape

    def _to_tensor(self, X):
        return torch.from_numpy(np.array(X, dtype=np.float32)).reshape(-1, *self._sample_shape)

    def _embed_pairs(self, pairs, X):
        """Return the embeddings of the left and of the right samples of pairs.

        They come as samples, of shape (n_pairs, 2, ...), or as row indices into X.
        """
        check_is_fitted(self)
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
