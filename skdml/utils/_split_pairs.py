"""Index pairs in fits that scikit-learn runs on a part of the rows."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

# What takes a part of the rows and fits an estimator on it.
_SPLITTING = {
    "sklearn.model_selection._validation",
    "sklearn.model_selection._classification_threshold",
    "sklearn.calibration",
    "sklearn.ensemble._bagging",
}


def refuse_split_indices(indices: Any, name: str = "pairs") -> None:
    """Raise if `fit` got indices of rows through a splitter, which gives it other rows.

    Cross-validation takes a part of X, and leaves indices as they are, or takes a part of them as
    well: they would name other rows than those that were meant. An estimator cannot see this in its
    arguments, so the calls that led to it are looked at, for arguments of fit that went through a
    splitter. Indices that were made inside of the split, from its rows, pass.

    Parameters
    ----------
    indices : object
        The argument as it was given to `fit`.
    name : str, default="pairs"
        Its name.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in _SPLITTING:
            for local in list(frame.f_locals.values()):
                if isinstance(local, Mapping) and _holds(local, indices, name):
                    raise ValueError(
                        f"{name} went through cross-validation, which fits on a part of the rows, "
                        f"so that the indices in {name} name other rows than they should. Use "
                        "PairClassifier(learner, preprocessor=X) instead, and give the pairs in "
                        "the place of X: its samples are pairs, and KFold or PairGroupKFold split "
                        "those."
                    )
        frame = frame.f_back


def _holds(arguments, indices, name):
    """Tell whether arguments have these indices, or others under their name."""
    return any(
        value is indices or (isinstance(key, str) and key.split("__")[-1] == name)
        for key, value in arguments.items()
    )
