"""Types of arguments that many functions share."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike


class HasShape(Protocol):
    """What dataframes, sparse matrices, dask arrays and tensors have in common."""

    @property
    def shape(self) -> Any: ...


# Samples: whatever is accepted is said in the docstring and checked when it is used.
MatrixLike: TypeAlias = ArrayLike | HasShape
# A request of metadata routing, as in scikit-learn's `set_fit_request`.
Request: TypeAlias = bool | str | None
RandomStateLike: TypeAlias = int | np.random.RandomState | None
