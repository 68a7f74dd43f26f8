"""Losses by name."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from ..._optional import optional_import
from ...utils._torch import seeded_torch
from ._clusters import facility_location, spectral
from ._miners import check_miner, get_miner
from ._pairs import binomial, contrastive, histogram, margin, multi_similarity
from ._robust import dro_kl, dro_kl_g, dro_max, dro_topk, dro_topk_pn, dro_variance
from ._triplets import thesis, triplet
from ._tuples import (
    lifted_structure,
    lifted_structure_pairs,
    n_pair_multi_class,
    n_pair_one_vs_one,
    n_pair_tuplet,
)
from ._wasserstein import wcontrastive, wtriplet

FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "contrastive": contrastive,
    "triplet": triplet,
    "lifted-structure": lifted_structure,
    "lifted-structure-pairs": lifted_structure_pairs,
    "n-pair-tuplet": n_pair_tuplet,
    "n-pair-multi-class": n_pair_multi_class,
    "n-pair-one-vs-one": n_pair_one_vs_one,
    "multi-similarity": multi_similarity,
    "margin": margin,
    "binomial": binomial,
    "histogram": histogram,
    "facility-location": facility_location,
    "spectral": spectral,
    "thesis": thesis,
    "dro-topk": dro_topk,
    "dro-topk-pn": dro_topk_pn,
    "dro-kl": dro_kl,
    "dro-kl-g": dro_kl_g,
    "dro-max": dro_max,
    "dro-variance": dro_variance,
}
# Distances by optimal transport, solved by POT.
TRANSPORT: dict[str, Callable[..., Tensor]] = {"wcontrastive": wcontrastive, "wtriplet": wtriplet}
OWN = {**FUNCTIONS, **TRANSPORT}
# Name -> class of pytorch-metric-learning.
PEERS = {
    "angular": "AngularLoss",
    "proxy-nca": "ProxyNCALoss",
    "proxy-anchor": "ProxyAnchorLoss",
    "soft-triple": "SoftTripleLoss",
}
_ABOVE_ZERO = {"gamma", "scale", "positive_scale", "negative_scale", "radius", "reg"}
_NOT_BELOW_ZERO = {"ridge", "nmi_weight", "norm_weight"}
_WHOLE = {"k", "sample", "bins"}


def loss_names() -> list[str]:
    """Return the names of all losses that `get_loss` knows.

    Returns
    -------
    names : list of str

    Examples
    --------
    >>> from skdml.deep.losses import loss_names
    >>> [name for name in loss_names() if name.startswith("dro")]
    ['dro-topk', 'dro-topk-pn', 'dro-kl', 'dro-kl-g', 'dro-max', 'dro-variance']
    """
    return [*OWN, *PEERS]


def loss_parameters(name: str) -> dict[str, Any]:
    """Return the parameters of a loss and their defaults.

    Parameters
    ----------
    name : str
        A name of `loss_names`.

    Returns
    -------
    parameters : dict
        Name to default; `inspect.Parameter.empty` for one that must be given, such as the
        num_classes and embedding_size of losses with proxies.

    Examples
    --------
    >>> from skdml.deep.losses import loss_parameters
    >>> loss_parameters("lifted-structure")
    {'margin': 0.0, 'miner': None}
    """
    _check_name(name)
    if name in OWN:
        parameters = inspect.signature(OWN[name]).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    found: dict[str, Any] = {"miner": None}
    for base in _peer_class(name).__mro__:
        if base is nn.Module or "__init__" not in vars(base):
            continue
        for p in list(inspect.signature(base.__init__).parameters.values())[1:]:
            if p.kind is p.POSITIONAL_OR_KEYWORD:
                found.setdefault(p.name, p.default)
    return found


def get_loss(loss: Any = "multi-similarity", *, miner: Any = None, **params: Any) -> Any:
    """Return a loss, a function of the embeddings and labels of a batch.

    Parameters
    ----------
    loss : str or callable
        A name of `loss_names`. A callable, such as a loss of pytorch-metric-learning, is
        returned as it is, or with its miner around it; a class is called with the parameters.
    miner : None, str or callable
        Which pairs or triplets of a batch the loss looks at: a name of `miner_names`, or a miner of
        pytorch-metric-learning.
    **params
        Parameters of the loss; `loss_parameters` lists them.

    Returns
    -------
    loss : callable
        ``loss(embeddings, labels)`` is a scalar tensor. By name it is a `torch.nn.Module`; losses
        with proxies have parameters to train.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import get_loss
    >>> loss = get_loss("dro-topk", k=4, pair_loss="binomial")
    >>> embeddings = torch.eye(4).requires_grad_()
    >>> loss(embeddings, torch.tensor([0, 0, 1, 1])).backward()
    >>> embeddings.grad.shape
    torch.Size([4, 4])
    """
    check_miner(miner)
    if isinstance(loss, type):
        loss, params = loss(**params), {}
    if not isinstance(loss, str):
        if not callable(loss):
            raise TypeError(f"a loss is a name or a callable, got {loss!r}")
        if params:
            raise TypeError(
                f"parameters are for losses by name; got {', '.join(params)} with {loss!r}"
            )
        return loss if miner is None else MinedLoss(loss, miner)
    _check_name(loss)
    known = loss_parameters(loss)
    _check_params(loss, params, known)
    if loss in PEERS:
        missing = [p for p, default in known.items() if default is inspect.Parameter.empty]
        missing = [p for p in missing if p not in params]
        if missing:
            raise TypeError(f"the loss {loss!r} needs {' and '.join(missing)}")
        peer = _peer_class(loss)(**params)
        return MinedLoss(peer, miner)
    if miner is not None:
        if "miner" not in known:
            raise TypeError(f"the loss {loss!r} takes no miner, got {miner!r}")
        params["miner"] = miner
    return NamedLoss(loss, params)


class NamedLoss(nn.Module):
    """A loss function with its parameters.

    Parameters
    ----------
    name : str
        Of a function of this package.
    params : dict
        Its parameters.

    Examples
    --------
    >>> from skdml.deep.losses import get_loss
    >>> get_loss("triplet", mining="hard")
    NamedLoss('triplet', mining='hard')
    """

    def __init__(self, name: str, params: dict[str, Any]) -> None:
        super().__init__()
        self.name, self.params = name, params
        # Wrong values of parameters show here, not in the first step of a training.
        with seeded_torch(0):
            cloud = params.get("cloud")
            width = math.prod(cloud) if isinstance(cloud, (tuple, list)) else 8
            self(torch.eye(4, width), torch.tensor([0, 0, 1, 1]))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of a batch."""
        return OWN[self.name](embeddings, labels, **self.params)

    def __repr__(self) -> str:
        params = "".join(f", {name}={value!r}" for name, value in self.params.items())
        return f"NamedLoss({self.name!r}{params})"


class MinedLoss(nn.Module):
    """A loss that takes tuples of indices, as those of pytorch-metric-learning, and its miner.

    Parameters
    ----------
    loss : callable
        ``loss(embeddings, labels, indices)``.
    miner : None, str or callable
        ``miner(embeddings, labels)`` gives the indices; a name of `miner_names`; None: no indices.

    Examples
    --------
    >>> from skdml.deep.losses import get_loss
    >>> type(get_loss("angular", miner="semi-hard").miner).__name__
    'TripletMarginMiner'
    """

    def __init__(self, loss: Callable[..., Tensor], miner: Any) -> None:
        super().__init__()
        self.loss, self.miner = loss, get_miner(miner)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of a batch."""
        if self.miner is None:
            return self.loss(embeddings, labels)
        return self.loss(embeddings, labels, self.miner(embeddings, labels))


def _peer_class(name):
    module = optional_import("pytorch_metric_learning.losses", f"the loss {name!r}")
    return getattr(module, PEERS[name])


def _check_name(name):
    names = loss_names()
    if name not in names:
        near = difflib.get_close_matches(name.lower().replace("_", "-"), names, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise ValueError(f"unknown loss {name!r}. {hint}The losses are: {', '.join(names)}")


def _check_params(loss, params, known):
    for name, value in params.items():
        if name not in known:
            takes = ", ".join(p for p in known if p != "miner") or "none"
            raise TypeError(f"the loss {loss!r} has no parameter {name!r}; it has: {takes}")
        if loss in PEERS:
            continue
        numbers = [value]
        if (loss, name) == ("dro-kl-g", "gamma") and isinstance(value, (tuple, list)):
            numbers = list(value)
            if len(numbers) != 2:
                raise ValueError(f"gamma must be one number or two, got {value!r}")
        for number in numbers:
            _check_number(name, number)


def _check_number(name, number):
    if name in _ABOVE_ZERO and not (isinstance(number, Real) and float(number) > 0):
        raise ValueError(f"{name} must be a number above 0, got {number!r}")
    if name in _NOT_BELOW_ZERO and not (isinstance(number, Real) and float(number) >= 0):
        raise ValueError(f"{name} must be a number of at least 0, got {number!r}")
    is_count = isinstance(number, Integral) and not isinstance(number, bool) and int(number) >= 1
    if name in _WHOLE and not (is_count or (number is None and name != "bins")):
        raise ValueError(f"{name} must be a whole number of at least 1, got {number!r}")
