"""Losses of deep metric learning, over the embeddings and labels of a batch."""

from __future__ import annotations

import importlib
import pkgutil

from ..._optional import optional_import

optional_import("torch", "skdml.deep.losses")

for _module in pkgutil.iter_modules(__path__):  # each file registers its losses
    importlib.import_module(f"{__name__}.{_module.name}")

from ._clusters import FacilityLocationLoss, SpectralLoss  # noqa: E402
from ._core import (  # noqa: E402
    SimilarityLoss,
    get_loss,
    loss_names,
    loss_parameters,
    register_loss,
)
from ._dro import DROLoss  # noqa: E402
from ._miners import get_miner, miner_names  # noqa: E402
from ._pairs import (  # noqa: E402
    BinomialLoss,
    ContrastiveLoss,
    HistogramLoss,
    MarginLoss,
    MultiSimilarityLoss,
)
from ._triplets import (  # noqa: E402
    ClassAnchorLoss,
    LiftedStructureLoss,
    LiftedStructurePairsLoss,
    NPairMultiClassLoss,
    NPairOneVsOneLoss,
    NPairTupletLoss,
    TripletLoss,
)
from ._wasserstein import WassersteinContrastiveLoss, WassersteinTripletLoss  # noqa: E402

__all__ = [
    "BinomialLoss",
    "ClassAnchorLoss",
    "ContrastiveLoss",
    "DROLoss",
    "FacilityLocationLoss",
    "HistogramLoss",
    "LiftedStructureLoss",
    "LiftedStructurePairsLoss",
    "MarginLoss",
    "MultiSimilarityLoss",
    "NPairMultiClassLoss",
    "NPairOneVsOneLoss",
    "NPairTupletLoss",
    "SimilarityLoss",
    "SpectralLoss",
    "TripletLoss",
    "WassersteinContrastiveLoss",
    "WassersteinTripletLoss",
    "get_loss",
    "get_miner",
    "loss_names",
    "loss_parameters",
    "miner_names",
    "register_loss",
]
