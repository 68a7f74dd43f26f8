"""The one module that imports what scikit-learn keeps private or has moved between versions.

Everything else in the package imports these names from here, so a new scikit-learn release
is absorbed in one place.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from sklearn.base import _fit_context  # noqa: F401, for `_fit.py`
from sklearn.utils._param_validation import (  # noqa: F401, for all estimators
    Interval,
    StrOptions,
    validate_parameter_constraints,
)
from sklearn.utils.validation import validate_data as _validate_data

from ._bases import HAS_CALLBACKS, BaseEstimator, CallbackSupportMixin  # noqa: F401
from ._typing import MatrixLike
from .validation import naming

if TYPE_CHECKING:
    Function = TypeVar("Function", bound=Callable[..., Any])

    def validate_params(
        parameter_constraints: dict[str, Any], *, prefer_skip_nested_validation: bool
    ) -> Callable[[Function], Function]: ...
else:
    from sklearn.utils._param_validation import validate_params  # noqa: F401

# The address of the documentation, once it is published: estimators then link to their pages, which
# autosummary names. Until then nothing claims one.
DOCUMENTATION = ""


class EstimatorMixin(CallbackSupportMixin):
    """What every estimator shares: callbacks, and in its HTML representation a link to its page."""

    _doc_link_module = "skdml" if DOCUMENTATION else ""  # no link
    _doc_link_template = DOCUMENTATION + "api/generated/{estimator_module}.{estimator_name}.html"


class ClientMixin(BaseEstimator):
    """Estimators that take a dask `client`, which belongs to its process.

    Clones share it, and nothing that is stored has it. Comes first among the bases.
    """

    client: Any

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "client": None}

    def __sklearn_clone__(self) -> Self:
        bare = copy.copy(self)
        clone = super(ClientMixin, bare).__sklearn_clone__()
        clone.client = self.client
        return clone


def validate_rows(estimator: BaseEstimator, X: MatrixLike, name: str = "X", **options: Any) -> Any:
    """Validate dense or sparse rows of float32 or float64, as `validate_data` does."""
    defaults = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}
    return validate_data(estimator, X, name, **{**defaults, **options})


def validate_data(estimator: BaseEstimator, X: MatrixLike, name: str = "X", **options: Any) -> Any:
    """Validate rows as scikit-learn does, with errors that always name them."""
    try:
        with naming("X"), np.errstate(invalid="ignore"):  # infinities are summed up
            return _validate_data(estimator, X, **options)
    except ValueError as error:
        if name == "X":
            raise
        raise ValueError(re.sub(r"\bX\b", name, str(error))) from error
