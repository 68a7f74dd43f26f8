"""Losses by name, and the base of losses over pairs: one similarity matrix, masks and one gradient.

A loss over pairs has a method ``term(S, positive, negative, labels)`` over the similarities of
all ordered pairs of a batch. It returns its value and its derivative by S, so that the gradient by
the embeddings takes one matrix product, and memory does not grow with the steps of the computation.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import field, fields
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..._optional import optional_import
from ._miners import check_miner, get_miner, mine_masks, unknown_name

# Name -> class, or function that makes the loss from its parameters.
LOSSES: dict[str, Callable[..., Any]] = {}
# Name -> class of pytorch-metric-learning.
PEERS = {
    "angular": "AngularLoss",
    "proxy-nca": "ProxyNCALoss",
    "proxy-anchor": "ProxyAnchorLoss",
    "soft-triple": "SoftTripleLoss",
}
# Above this softplus(x) is x to the last bit of float64.
LINEAR = 40.0
# exp(x) below this is 0, beside a sum of at least 1: near underflow exp is many times slower.
FLOOR = -50.0
# Rows of a block of F F'.
BLOCK = 128
# A derivative by S with a smaller part of it other than zero is taken as sparse.
SPARSE = 0.04


# Losses by name


def register_loss(name: str, loss: Any = None) -> Any:
    """Make a loss known by a name, for `get_loss` and ``DeepMetricEmbedder(loss=name)``.

    Parameters
    ----------
    name : str
        A new name; one that exists is replaced.
    loss : class or callable, default=None
        A subclass of ``torch.nn.Module`` whose ``forward(embeddings, labels)`` returns a scalar
        tensor, or a function that returns such a loss. Its keyword parameters become
        ``loss__...``. None makes this a decorator.

    Returns
    -------
    loss : class or callable
        As it was given.

    Examples
    --------
    >>> import torch
    >>> from skdml.deep.losses import get_loss, register_loss
    >>> @register_loss("norm")
    ... class NormLoss(torch.nn.Module):
    ...     def __init__(self, weight=1.0):
    ...         super().__init__()
    ...         self.weight = weight
    ...
    ...     def forward(self, embeddings, labels):
    ...         return self.weight * embeddings.square().mean()
    >>> get_loss("norm", weight=0.5)(torch.ones(4, 2), torch.zeros(4))
    tensor(0.5000)
    """
    return register("register_loss", LOSSES, name, loss)


def register(function: str, table: dict[str, Any], name: str, value: Any) -> Any:
    """Put a class into a table under a name, for a function that may be a decorator."""
    if value is None:
        return partial(register, function, table, name)
    if not isinstance(name, str) or not callable(value):
        raise TypeError(f"{function} takes a name and a class, got {name!r} and {value!r}")
    table[name] = value
    return value


def loss_names() -> list[str]:
    """Return the names of all losses that `get_loss` knows.

    Returns
    -------
    names : list of str

    Examples
    --------
    >>> from skdml.deep.losses import loss_names
    >>> [name for name in loss_names() if name.startswith("dro-kl")]
    ['dro-kl', 'dro-kl-ball', 'dro-kl-g']
    """
    return sorted([*LOSSES, *PEERS])


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
    if name not in loss_names():
        raise unknown_name("losses", name, loss_names())
    if name in LOSSES:
        return {p.name: p.default for p in inspect.signature(LOSSES[name]).parameters.values()}
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
    if miner is not None:
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
    known = loss_parameters(loss)
    for name in params:
        if name not in known:
            takes = ", ".join(p for p in known if p != "miner") or "none"
            raise TypeError(f"the loss {loss!r} has no parameter {name!r}; it has: {takes}")
    missing = [p for p, default in known.items() if default is inspect.Parameter.empty]
    missing = [p for p in missing if p not in params]
    if missing:
        raise TypeError(f"the loss {loss!r} needs {' and '.join(missing)}")
    if loss in PEERS:
        return MinedLoss(_peer_class(loss)(**params), miner)
    if miner is not None:
        if "miner" not in known:
            raise TypeError(f"the loss {loss!r} takes no miner, got {miner!r}")
        params["miner"] = miner
    return LOSSES[loss](**params)


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


# Similarities

# The rows that count as anchors, a slice of the batch; None: all.
_ANCHORS: ContextVar[slice | None] = ContextVar("anchors", default=None)


class SparseWeights(NamedTuple):
    """A derivative by S that is zero but for some pairs; a pair may be listed more than once.

    Where pairs have no order, both ends are anchors, whichever is listed first.
    """

    rows: Tensor
    columns: Tensor
    values: Tensor
    ordered: bool = True


Weights = Tensor | SparseWeights
# The value of a loss, and its derivative by S.
Term = tuple[Tensor, Weights]


def check_batch(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Check the shapes of a batch; bring half precision to single."""
    if embeddings.ndim != 2:
        raise ValueError(
            f"embeddings must have two dimensions, (batch, features), got {tuple(embeddings.shape)}"
        )
    if labels.shape != embeddings.shape[:1]:
        raise ValueError(
            f"labels must have one entry for each of the {len(embeddings)} embeddings, "
            f"got the shape {tuple(labels.shape)}"
        )
    if embeddings.dtype in (torch.float16, torch.bfloat16):
        embeddings = embeddings.float()
    return embeddings, labels.to(embeddings.device)


class _UnitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, embeddings):
        norms = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True)
        scales = 1 / norms.masked_fill_(norms == 0, math.inf)
        units = embeddings * scales
        ctx.save_for_backward(units, scales)
        return units

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        units, scales = ctx.saved_tensors
        along = torch.linalg.vecdot(grad, units)[:, None]
        return torch.addcmul(grad, units, along, value=-1).mul_(scales)


def unit_rows(embeddings: Tensor) -> Tensor:
    """Scale rows to length one; a row of zeros stays, and has no gradient."""
    return _UnitRows.apply(embeddings)


def gram(rows: Tensor) -> Tensor:
    """Return F F'. On a CPU only the blocks of one triangle are computed, and mirrored."""
    size = len(rows)
    if size <= BLOCK or rows.device.type != "cpu":
        return rows @ rows.T
    products = rows.new_empty(size, size)
    for start in range(0, size, BLOCK):
        own = slice(start, min(start + BLOCK, size))
        torch.mm(rows[own], rows[start:].T, out=products[own, start:])
        products[own.stop :, own] = products[own, own.stop :].T
    return products


def pair_masks(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the masks of positive and of negative ordered pairs; no row is paired with itself."""
    same = labels[:, None] == labels
    negative = ~same
    return same.fill_diagonal_(False), negative


@contextlib.contextmanager
def anchors_within(rows: slice | None) -> Iterator[None]:
    """Let losses of the pair family have gradients for the pairs of some anchors only.

    The value of a loss stays that of the whole batch. So one rank of many takes the share of its
    own anchors, among the rows of all.

    Parameters
    ----------
    rows : slice or None
        Which rows of a batch are anchors; None: all.
    """
    token = _ANCHORS.set(rows)
    try:
        yield
    finally:
        _ANCHORS.reset(token)


def _of_anchors(weights: Weights) -> Weights:
    """Drop the derivative by the pairs whose anchor does not count."""
    anchors = _ANCHORS.get()
    if anchors is None:
        return weights
    if isinstance(weights, Tensor):
        kept = torch.zeros_like(weights)
        kept[anchors] = weights[anchors]
        return kept
    rows, columns, values, ordered = weights
    if not ordered:
        rows, columns = torch.cat([rows, columns]), torch.cat([columns, rows])
        values = torch.cat([values, values]) / 2
    kept = (rows >= anchors.start) & (rows < anchors.stop)
    return SparseWeights(rows[kept], columns[kept], values[kept])


class _OfSimilarities(torch.autograd.Function):
    """The value of a function of S = F F', with the derivative by S that the function gives."""

    @staticmethod
    def forward(ctx, units, function):
        value, weights = function(gram(units))
        ctx.is_sparse = isinstance(weights, SparseWeights)
        ctx.save_for_backward(units, *(weights[:3] if ctx.is_sparse else (weights,)))
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        units, *weights = ctx.saved_tensors
        # S_ij is a product of row i and row j: the derivative counts for both.
        if ctx.is_sparse:
            rows, columns, values = weights
            places = torch.stack([torch.cat([rows, columns]), torch.cat([columns, rows])])
            both = torch.sparse_coo_tensor(
                places, torch.cat([values, values]), (len(units),) * 2, check_invariants=True
            )
        else:
            both = weights[0] + weights[0].T
            if both.count_nonzero() < SPARSE * both.numel():
                both = both.to_sparse()
        return torch.mm(both, units).mul_(grad), None


# What a number may be, in words and as a check.
NUMBERS: dict[str, Callable[[Any], bool]] = {
    "a number": lambda value: isinstance(value, Real),
    "a number above 0": lambda value: isinstance(value, Real) and float(value) > 0,
    "a number of at least 0": lambda value: isinstance(value, Real) and float(value) >= 0,
    "a whole number of at least 1": lambda value: (
        isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1
    ),
}


def check_param(name: str, value: Any, allowed: Any = "a number") -> None:
    """Check a parameter that is a number, of a kind of `NUMBERS`, or one of some strings."""
    if isinstance(allowed, str):
        is_right, wanted = NUMBERS[allowed](value), allowed
    else:
        is_right = isinstance(value, str) and value in allowed
        wanted = f"one of {', '.join(map(repr, allowed))}"
    if not is_right:
        raise ValueError(f"{name} must be {wanted}, got {value!r}")


def param(default: Any, allowed: Any = "a number") -> Any:
    """Declare a parameter of a loss, with what `check_param` allows."""
    return field(default=default, metadata={"allowed": allowed})


class Loss(nn.Module):
    """Base of losses, which are dataclasses of their parameters; these are in the repr."""

    def __setattr__(self, name: str, value: Any) -> None:
        if "_modules" not in vars(self):  # a dataclass does not call that of its base
            nn.Module.__init__(self)
        super().__setattr__(name, value)
        if isinstance(value, nn.Module):  # the default of the class would hide it, as a miner
            vars(self)[name] = value

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            if "allowed" in each.metadata:
                check_param(each.name, getattr(self, each.name), each.metadata["allowed"])

    def extra_repr(self) -> str:
        """Return the parameters."""
        params: dict[str, Any] = {}
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name)
            params |= value if parameter.kind is parameter.VAR_KEYWORD else {name: value}
        return ", ".join(f"{name}={value!r}" for name, value in params.items())


class SimilarityLoss(Loss):
    """Base of losses over the similarities of pairs; a subclass has a method `term`.

    Parameters
    ----------
    miner : None, str or callable, default=None
        Which pairs to look at: a name of `miner_names`, or a miner of pytorch-metric-learning.
    normalize : bool, default=True
        Whether similarities are those of unit vectors, or of the embeddings as they are.
    """

    miner: Any = None
    normalize: bool = True

    def __init__(self, miner: Any = None, normalize: bool = True) -> None:
        check_miner(miner)
        self.miner, self.normalize = miner, normalize

    def __post_init__(self) -> None:
        if self.miner is not None:
            check_miner(self.miner)
        super().__post_init__()

    def term(self, S: Tensor, positive: Tensor, negative: Tensor, labels: Tensor) -> Term:
        """Return the value and its derivative by the similarities S, which may be overwritten."""
        raise NotImplementedError

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        embeddings : Tensor of shape (batch, features)
            Of any length.
        labels : Tensor of shape (batch,)
            Whole numbers, the classes.

        Returns
        -------
        loss : Tensor
            A scalar.
        """
        embeddings, labels = check_batch(embeddings, labels)
        positive, negative = pair_masks(labels)
        units = unit_rows(embeddings) if self.normalize else embeddings

        def function(similarities):
            masks = positive, negative
            if self.miner is not None:
                masks = mine_masks(self.miner, similarities, masks, embeddings, labels)
            value, weights = self.term(similarities, *masks, labels)
            return value, _of_anchors(weights)

        return _OfSimilarities.apply(units, function)


def masked_softmax(scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-sum-exp of the masked scores of each row, as a column, and their softmax.

    A row without any has a log-sum-exp of minus infinity and weights of zero.
    """
    largest = torch.where(mask, scores, -math.inf).amax(1, keepdim=True)
    largest.masked_fill_(largest == -math.inf, 0)
    weights = masked_exp(scores - largest, mask)
    total = weights.sum(1, keepdim=True)
    weights.mul_(1 / total.masked_fill(total == 0, 1))
    return largest.add_(total.log_()), weights


def masked_exp(scores: Tensor, mask: Tensor) -> Tensor:
    """Return exp of scores that are at most 0, and 0 outside of the mask; overwrites the scores."""
    kept = mask & (scores > FLOOR)
    return torch.where(kept, scores.clamp_(FLOOR, 0).exp_(), 0)


def signed_softmax(
    scores: Tensor, positive: Tensor, negative: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return `masked_softmax` of the positives and of the negatives of each row.

    The weights of both are in one matrix; it is scarcely slower than that of one sign.
    """
    tops = [
        torch.where(mask, scores, -math.inf).amax(1, keepdim=True) for mask in (positive, negative)
    ]
    tops = [top.masked_fill(top == -math.inf, 0) for top in tops]
    weights = masked_exp(scores - torch.where(positive, tops[0], tops[1]), positive | negative)
    totals = [torch.where(mask, weights, 0).sum(1, keepdim=True) for mask in (positive, negative)]
    shares = [1 / total.masked_fill(total == 0, 1) for total in totals]
    weights.mul_(torch.where(positive, shares[0], shares[1]))
    near, far = (top.add_(total.log_()) for top, total in zip(tops, totals, strict=True))
    return near, far, weights


def unit_distances(similarities: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distances of unit vectors and their derivative by S; at 0 that derivative is 0."""
    distances = (2 - 2 * similarities).clamp_min_(0).sqrt_()
    # Within rounding of S the direction of the gradient is noise.
    tiny = math.sqrt(torch.finfo(similarities.dtype).eps)
    return distances, -(1 / distances.masked_fill(distances < tiny, math.inf))
