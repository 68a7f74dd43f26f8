"""Semi-supervised metric learning: few labels, and many samples without one.

Needs the extra `deep`.
"""

from __future__ import annotations

import importlib
import pkgutil

from .._optional import optional_import

for _package in ("torch", "skorch"):
    optional_import(_package, "skdml.semisupervised")

from ._partial_classifier import PartiallyLabelledClassifier  # noqa: E402
from ._partial_folds import PartiallyLabelledKFold  # noqa: E402
from ._ssdml import SSDMLEmbedder  # noqa: E402
from ._ssdml_methods import Partition, SemiSupervisedMethod, method_names, register_method  # noqa: E402

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    if "._method_" in _module.name:  # these register methods
        importlib.import_module(_module.name)

__all__ = [
    "PartiallyLabelledClassifier",
    "PartiallyLabelledKFold",
    "Partition",
    "SSDMLEmbedder",
    "SemiSupervisedMethod",
    "method_names",
    "register_method",
]
