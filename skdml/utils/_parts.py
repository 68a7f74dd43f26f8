"""Parameters of an estimator's parts, such as ``module__hidden``."""

from __future__ import annotations

from typing import Any, Self

from ._bases import BaseEstimator
from ._fit import copy_part


def params_of(params: dict[str, Any], part: str) -> dict[str, Any]:
    """Return the parameters of a part, such as "module", as copies and without its name."""
    prefix = f"{part}__"
    names = [name for name in params if name.startswith(prefix)]
    return {name.removeprefix(prefix): copy_part(name, params[name]) for name in names}


class PartParamsMixin(BaseEstimator):
    """For estimators that take the parameters of their parts as ``part__name``."""

    _parts: tuple[str, ...] = ("module", "optimizer", "loss", "callbacks")
    # Further parameters, of data and parts, without a prefix; their defaults are class attributes.
    _options: tuple[str, ...] = ()

    def _part_params(self) -> dict[str, Any]:
        """Return what was given beyond the named parameters."""
        own = self._get_param_names()
        given = [name for name in vars(self) if name not in own and name == name.strip("_")]
        return {name: getattr(self, name) for name in given}

    def _check_part_params(self):
        prefixes = tuple(f"{part}__" for part in self._parts)
        for name in self._part_params():
            if name not in self._options and not name.startswith(prefixes):
                raise TypeError(
                    f"{type(self).__name__} has no parameter {name!r}. Parameters of its parts "
                    f"begin with {', '.join(prefixes)}."
                )

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, with those of the parts.

        Parameters
        ----------
        deep : bool, default=True
            As in scikit-learn.

        Returns
        -------
        params : dict
            Names and values.
        """
        return {**super().get_params(deep=deep), **self._part_params()}

    def set_params(self, **params: Any) -> Self:
        """Set parameters, also of the parts.

        Parameters
        ----------
        **params
            Such as ``lr=0.01`` or ``module__hidden=(64,)``.

        Returns
        -------
        self : estimator
            Itself.
        """
        prefixes = tuple(f"{part}__" for part in self._parts)
        parts = {
            name: params.pop(name)
            for name in list(params)
            if name in self._options or name.startswith(prefixes)
        }
        super().set_params(**params)
        self.__dict__.update(parts)
        return self
