"""skdml: metric learning for people who use scikit-learn.

Estimators and subpackages are imported when they are first touched, so `import skdml` is cheap
and needs none of the optional packages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import (
        asymmetric,
        constraints,
        datasets,
        deep,
        generate,
        io,
        linear,
        metrics,
        plot,
        ranking,
        search,
        semisupervised,
        transport,
        utils,
        verification,
    )
    from .asymmetric import AsymmetricMetricClassifier
    from .deep import DeepMetricEmbedder
    from .generate import WassersteinGenerator
    from .linear import (
        LFDA,
        LMNN,
        MLKR,
        RCA,
        DITMLTransformer,
        GMMLTransformer,
        NeighborhoodGerrymandering,
    )
    from .ranking import LocalGMMLRanker
    from .semisupervised import SSDMLEmbedder
    from .verification import PairClassifier

# Where each public estimator lives.
_ESTIMATORS = {
    "AsymmetricMetricClassifier": "asymmetric",
    "DITMLTransformer": "linear",
    "DeepMetricEmbedder": "deep",
    "GMMLTransformer": "linear",
    "LFDA": "linear",
    "LMNN": "linear",
    "LocalGMMLRanker": "ranking",
    "MLKR": "linear",
    "NeighborhoodGerrymandering": "linear",
    "PairClassifier": "verification",
    "RCA": "linear",
    "SSDMLEmbedder": "semisupervised",
    "WassersteinGenerator": "generate",
}

__all__ = [
    "LFDA",
    "LMNN",
    "MLKR",
    "RCA",
    "AsymmetricMetricClassifier",
    "DITMLTransformer",
    "DeepMetricEmbedder",
    "GMMLTransformer",
    "LocalGMMLRanker",
    "NeighborhoodGerrymandering",
    "PairClassifier",
    "SSDMLEmbedder",
    "WassersteinGenerator",
    "__version__",
    "asymmetric",
    "constraints",
    "datasets",
    "deep",
    "generate",
    "io",
    "linear",
    "metrics",
    "plot",
    "ranking",
    "search",
    "semisupervised",
    "transport",
    "utils",
    "verification",
]


if not TYPE_CHECKING:  # it would let a type checker take any name

    def __getattr__(name: str) -> Any:
        if name in _ESTIMATORS:
            return getattr(importlib.import_module(f"{__name__}.{_ESTIMATORS[name]}"), name)
        if name in __all__:  # a subpackage
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
