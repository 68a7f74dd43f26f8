"""Folds of pairs that have no row in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from sklearn.model_selection import BaseCrossValidator
from sklearn.utils import check_random_state

from ..utils._typing import RandomStateLike
from ..utils.validation import as_array, check_count, check_vector, naming
from ._pair_rows import check_pair_array, find_entities


class PairGroupKFold(BaseCrossValidator):
    """Folds by entity: no row is both in a pair to train on and in a pair to score.

    The rows are split into folds. The pairs to score are those with both rows in the fold, the
    pairs to train on those with no row in it; pairs across are left out. Rows that are linked by
    pairs are in one fold, unless they are too many for it.

    Give this as `cv` to ``GridSearchCV`` or ``cross_validate`` over a `PairClassifier`.

    Parameters
    ----------
    n_splits : int, default=5
        Folds.
    shuffle : bool, default=False
        Whether rows are shuffled before they are split.
    random_state : int, RandomState instance or None, default=None
        Seeds the shuffling.

    See Also
    --------
    sklearn.model_selection.GroupKFold : The same for samples of one group each.

    Examples
    --------
    >>> from skdml.verification import PairGroupKFold
    >>> pairs = [[0, 1], [0, 2], [1, 2], [3, 4], [3, 5], [2, 3]]
    >>> for train, test in PairGroupKFold(n_splits=2).split(pairs):
    ...     print(train, test)
    [3 4] [0 1 2]
    [0 1 2] [3 4]
    """

    # Routed without being asked for, as to scikit-learn's splitters by group.
    __metadata_request__split = {"groups": True}

    def __init__(
        self,
        n_splits: int = 5,
        *,
        shuffle: bool = False,
        random_state: RandomStateLike = None,
    ) -> None:
        self.n_splits = check_count(n_splits, "n_splits", minimum=2)
        self.shuffle = shuffle
        self.random_state = random_state

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of folds.

        Parameters
        ----------
        X, y, groups : object
            Not used.

        Returns
        -------
        n_splits : int
            The number of folds.
        """
        return self.n_splits

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[NDArray, NDArray]]:
        """Yield the pairs to train on and the pairs to score.

        Parameters
        ----------
        X : array-like of shape (n_pairs, 2, n_features) or (n_pairs, 2)
            Pairs of vectors, of which equal ones are one entity, or pairs of indices.
        y : array-like of shape (n_pairs,), default=None
            Labels of pairs; if given, every part must have two kinds.
        groups : array-like of shape (n_pairs, 2), default=None
            The entities of the two rows of each pair, such as two persons. None: the rows
            themselves.

        Yields
        ------
        train : ndarray
            Numbers of pairs with no entity in the fold.
        test : ndarray
            Numbers of pairs with both entities in the fold.
        """
        pairs = check_pair_array(X)
        if groups is None:
            first, codes = find_entities(pairs)
        else:
            first, codes = find_entities(_check_groups(groups, len(pairs)), "groups")
        if len(first) < self.n_splits:
            raise ValueError(
                f"n_splits={self.n_splits} is more than the {len(first)} entities of the pairs."
            )
        labels = None if y is None else check_vector(y, "y", len(pairs))
        fold = self._assign(codes, len(first))[codes]
        parts = []
        for number in range(self.n_splits):
            inside = fold == number
            parts.append((np.flatnonzero(~inside.any(axis=1)), np.flatnonzero(inside.all(axis=1))))
            for what, part in zip(("train on", "score"), parts[-1], strict=True):
                self._check_part(part, labels, f"to {what} in fold {number + 1}")
        yield from parts

    def _assign(self, codes, n_entities):
        """Return the fold of each entity."""
        links = sparse.coo_array((np.ones(len(codes)), codes.T), shape=(n_entities, n_entities))
        n_components, component = connected_components(links, directed=False)
        order = np.arange(n_entities)
        if self.shuffle:
            rng = check_random_state(self.random_state)
            order = rng.permutation(n_entities)
            component = rng.permutation(n_components)[component]
        order = order[np.argsort(component[order], kind="stable")]
        size = np.bincount(component)[component[order]]
        place = np.arange(n_entities, dtype=float)
        middle = np.bincount(component[order], place)[component[order]] / size
        place = np.where(size * self.n_splits <= n_entities, middle, place)
        fold = np.empty(n_entities, dtype=np.intp)
        fold[order] = place * self.n_splits // n_entities
        return fold

    def _check_part(self, part, labels, what):
        advice = (
            f"n_splits={self.n_splits} with fewer folds, shuffle=True, or groups of rows that "
            "belong together may help."
        )
        if not len(part):
            raise ValueError(f"there is no pair {what}: {advice}")
        if labels is not None and (labels[part] == labels[part[0]]).all():
            kind = f"y = {labels[part[0]]}"
            raise ValueError(f"the {len(part)} pairs {what} are all of one kind, {kind}: {advice}")


def _check_groups(groups, n_pairs):
    with naming("groups"):
        groups = as_array(groups)
    if groups.shape != (n_pairs, 2):
        raise ValueError(
            f"groups must have shape ({n_pairs}, 2), the entities of the two rows of each pair, "
            f"got {groups.shape}."
        )
    if groups.dtype.kind == "f" and not np.isfinite(groups).all():
        raise ValueError("groups must not contain NaN or infinity.")
    return groups
