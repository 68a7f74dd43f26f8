"""Cross-validation where some rows have no label."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold
from sklearn.utils import check_consistent_length, column_or_1d

from ..utils._labels import labelled_rows
from ..utils.validation import as_array, encode, naming


class PartiallyLabelledKFold(StratifiedKFold):
    """Stratified folds of the labelled rows; unlabelled rows are in every training set.

    Rows with y = -1 help to learn, and cannot be scored. Give this as `cv` to
    ``GridSearchCV`` or ``cross_val_score``.

    Parameters
    ----------
    n_splits : int, default=5
        Folds.
    shuffle : bool, default=False
        Whether labelled rows of a class are shuffled before they are split.
    random_state : int, RandomState instance or None, default=None
        Seeds the shuffling.

    Examples
    --------
    >>> import numpy as np
    >>> from skdml.semisupervised import PartiallyLabelledKFold
    >>> y = np.array([0, -1, 1, -1, 0, 1])
    >>> for train, test in PartiallyLabelledKFold(n_splits=2).split(y, y):
    ...     print(train, test)
    [1 3 4 5] [0 2]
    [0 1 2 3] [4 5]
    """

    def split(self, X: Any, y: Any, groups: Any = None) -> Iterator[tuple[NDArray, NDArray]]:
        """Yield the rows to train on and the labelled rows to score.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            The rows; only their number counts.
        y : array-like of shape (n_samples,)
            Labels; -1 for rows without one.
        groups : object
            Not used.

        Yields
        ------
        train : ndarray
            Row numbers: labelled rows of the other folds, and all unlabelled rows.
        test : ndarray
            Row numbers, labelled rows of a fold.
        """
        with naming("y"):
            y = column_or_1d(as_array(y))
            check_consistent_length(X, y)
        labelled = labelled_rows(y)
        rows = np.flatnonzero(labelled)
        if len(rows) == 0:
            raise ValueError("y is -1 everywhere: there are no labelled rows to split.")
        unlabelled = np.flatnonzero(~labelled)
        _, codes = encode(y[rows], "y")
        for train, test in super().split(rows, codes):
            yield np.sort(np.concatenate([rows[train], unlabelled])), rows[test]
