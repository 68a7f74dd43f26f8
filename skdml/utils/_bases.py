"""Base classes of estimators: scikit-learn's at run time, typed stand-ins for type checkers.

scikit-learn has no type information. A class that inherits from it would have any attribute in
the eyes of a type checker, and a misspelt method would pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import ArrayLike, NDArray

    from ._typing import MatrixLike

    class BaseEstimator:
        n_features_in_: int
        feature_names_in_: NDArray

        def get_params(self, deep: bool = True) -> dict[str, Any]: ...
        def set_params(self, **params: Any) -> Self: ...
        def get_metadata_routing(self) -> Any: ...
        @classmethod
        def _get_param_names(cls) -> list[str]: ...
        def __getstate__(self) -> dict[str, Any]: ...
        def __setstate__(self, state: dict[str, Any]) -> None: ...
        def __sklearn_clone__(self) -> Self: ...
        def __sklearn_tags__(self) -> Any: ...
        def _validate_params(self) -> None: ...

    class TransformerMixin:
        def fit_transform(
            self, X: MatrixLike, y: ArrayLike | None = None, **fit_params: Any
        ) -> NDArray: ...
        def set_output(self, *, transform: str | None = None) -> Self: ...

    class ClassNamePrefixFeaturesOutMixin:
        def get_feature_names_out(self, input_features: Any = None) -> NDArray: ...

    # Our own classes have the methods of these.
    class ClassifierMixin: ...

    class DensityMixin: ...

    class CallbackSupportMixin:
        def set_callbacks(self, *callbacks: Any) -> Self: ...
        def _init_callback_context(self, *, max_subtasks: int | None = 0) -> Any: ...

    HAS_CALLBACKS: bool
else:
    from sklearn.base import (  # noqa: F401, for all estimators
        BaseEstimator,
        ClassifierMixin,
        ClassNamePrefixFeaturesOutMixin,
        DensityMixin,
        TransformerMixin,
    )

    try:  # scikit-learn >= 1.9; its _fit_context tears the callbacks down after fit
        from sklearn.callback import CallbackSupportMixin

        HAS_CALLBACKS = True
    except ImportError:  # pragma: no cover - depends on the installed version
        HAS_CALLBACKS = False

        class CallbackSupportMixin:
            """Stands in for scikit-learn's mixin where it does not exist: no callbacks."""
