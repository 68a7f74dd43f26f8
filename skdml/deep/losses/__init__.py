"""Losses of deep metric learning, over the embeddings and labels of a batch."""

from __future__ import annotations

from ..._optional import optional_import

optional_import("torch", "skdml.deep.losses")

from ._clusters import facility_location, spectral  # noqa: E402
from ._miners import get_miner, miner_names  # noqa: E402
from ._pairs import binomial, contrastive, histogram, margin, multi_similarity  # noqa: E402
from ._registry import get_loss, loss_names, loss_parameters  # noqa: E402
from ._robust import (  # noqa: E402
    dro_kl,
    dro_kl_g,
    dro_max,
    dro_topk,
    dro_topk_pn,
    dro_variance,
)
from ._triplets import thesis, triplet  # noqa: E402
from ._tuples import (  # noqa: E402
    lifted_structure,
    lifted_structure_pairs,
    n_pair_multi_class,
    n_pair_one_vs_one,
    n_pair_tuplet,
)
from ._wasserstein import wcontrastive, wtriplet  # noqa: E402

__all__ = [
    "binomial",
    "contrastive",
    "dro_kl",
    "dro_kl_g",
    "dro_max",
    "dro_topk",
    "dro_topk_pn",
    "dro_variance",
    "facility_location",
    "get_loss",
    "get_miner",
    "histogram",
    "lifted_structure",
    "lifted_structure_pairs",
    "loss_names",
    "loss_parameters",
    "margin",
    "miner_names",
    "multi_similarity",
    "n_pair_multi_class",
    "n_pair_one_vs_one",
    "n_pair_tuplet",
    "spectral",
    "thesis",
    "triplet",
    "wcontrastive",
    "wtriplet",
]
