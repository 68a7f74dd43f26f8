"""Sync modes: how the replicas of a network are kept together."""

from __future__ import annotations

import inspect
import time
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from ..losses._core import register
from ._comm import Ranks

# The option of DDP whether rank 0 sends its buffers in every step; torch 2.13 renamed it.
_KEEP_BUFFERS: dict[str, Any] = (
    {"forward_sync_buffers": False}
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else {"broadcast_buffers": False}
)
# PowerSGD: the rank of what is sent, and the first steps, which are sent whole.
_LOW_RANK, _WHOLE_STEPS = 4, 10


class Sync(Protocol):
    """What a sync mode has; its constructor takes ``(module, criterion, ranks, options)``.

    `module` is the network, `criterion` the loss, which may have parameters too, `ranks` the
    processes (see `Ranks`) and `options` the `Distributed` of the fit. A step is `begin`,
    `forward`, the backward pass, `finish`, then the optimiser. A mode that remembers more than
    the network has `state()` and `restore(state)`, for checkpoints.
    """

    def begin(self) -> None:
        """Begin a step."""

    def forward(self, X: Any) -> Any:
        """Apply the network."""

    def finish(self) -> None:
        """End a step: gradients and weights are those that the optimiser starts from."""

    def compared(self) -> list[Tensor]:
        """Return the parameters whose distance between ranks is `consensus_`."""

    def agree(self) -> None:
        """Make all replicas the same model, after training."""

    def close(self) -> None:
        """Remove hooks and wrappers from the network."""


SYNC_MODES: dict[str, Any] = {}


def register_sync(name: str, mode: Any = None) -> Any:
    """Make a sync mode known by a name, for ``Distributed(sync=name)``.

    Parameters
    ----------
    name : str
        A new name; one that exists is replaced.
    mode : class, default=None
        With the methods of `skdml.deep.distributed.Sync`. None makes this a decorator.

    Returns
    -------
    mode : class
        As it was given.

    Examples
    --------
    >>> from skdml.deep.distributed import AllReduce, register_sync
    >>> @register_sync("allreduce-again")
    ... class Again(AllReduce):
    ...     pass
    """
    return register("register_sync", SYNC_MODES, name, mode)


def flatten(tensors: list[Tensor]) -> Tensor:
    """Copy tensors into one vector."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflatten(vector: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """Return the parts of a vector, in the shapes of some tensors."""
    parts = vector.split([tensor.numel() for tensor in tensors])
    return [
        part.view_as(tensor).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True)
    ]


def trained(module: nn.Module) -> list[Tensor]:
    """Return the parameters that have gradients."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def averaged_buffers(module: nn.Module) -> list[Tensor]:
    """Return the buffers that have a mean, such as the statistics of batch norm."""
    return [buffer for buffer in module.buffers() if buffer.is_floating_point()]


def average(tensors: list[Tensor], ranks: Ranks) -> None:
    """Replace tensors by their mean over the ranks."""
    if tensors:
        total = ranks.sum(flatten(tensors), "backbone").div_(ranks.size)
        with torch.no_grad():
            for tensor, mean in zip(tensors, unflatten(total, tensors), strict=True):
                tensor.copy_(mean)


class GradientMean:
    """Averages the gradients of some parameters over the ranks, once the last of them is there.

    The rest of the backward pass goes on meanwhile.

    Parameters
    ----------
    parameters : list of Tensor
        Whose gradients.
    ranks : Ranks
        The processes.
    """

    def __init__(self, parameters: list[Tensor], ranks: Ranks) -> None:
        self._parameters, self._ranks = parameters, ranks
        self._left, self._sum = len(parameters), torch.empty(0)
        self._work: Any = None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._on_gradient)
            for parameter in parameters
        ]

    def _on_gradient(self, parameter):
        self._left -= 1
        if self._left == 0:
            self._begin()

    def _begin(self):
        # A parameter that was not used in this step has no gradient.
        self._sum = flatten(
            [p.grad if p.grad is not None else torch.zeros_like(p) for p in self._parameters]
        )
        self._work = dist.all_reduce(self._sum, group=self._ranks.groups["head"], async_op=True)

    def finish(self) -> None:
        """Wait, and set the gradients to their means."""
        if not self._parameters:
            return
        if self._work is None:
            self._begin()
        with self._ranks.waiting():
            self._work.wait()
        self._sum.div_(self._ranks.size)
        for parameter, mean in zip(
            self._parameters, unflatten(self._sum, self._parameters), strict=True
        ):
            parameter.grad = mean.clone()
        self._left, self._work = len(self._parameters), None

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()


@register_sync("allreduce")
class AllReduce:
    """Average the gradients of all parameters over the ranks in every step, by torch's DDP.

    Parameters
    ----------
    module, criterion : nn.Module
        The network, and the loss, which may have parameters too.
    ranks : Ranks
        The processes.
    options : Distributed
        Its `compression`.
    """

    def __init__(self, module: nn.Module, criterion: nn.Module, ranks: Ranks, options: Any) -> None:
        self._module, self._ranks = module, ranks
        group, settings = ranks.groups["backbone"], dict(_KEEP_BUFFERS)
        if options.compression is not None:
            # One bucket: on gloo, the collectives of two would mix.
            n_bytes = sum(p.numel() * p.element_size() for p in trained(module))
            settings["bucket_cap_mb"] = n_bytes / 2**20 + 1
        # Unused parameters are looked for because DDP then keeps its buckets as they are from the
        # first step on: otherwise a run that starts again adds up in another order.
        self._replica = DistributedDataParallel(
            module, process_group=group, find_unused_parameters=True, **settings
        )
        self._power: Any = None
        if options.compression == "fp16":
            self._replica.register_comm_hook(group, fp16_compress_hook)
        elif options.compression == "powersgd":
            self._power = PowerSGDState(group, _LOW_RANK, start_powerSGD_iter=_WHOLE_STEPS)
            self._replica.register_comm_hook(self._power, _low_rank_hook)
        ranks.copy_from_first(list(criterion.parameters()))
        self._rest = GradientMean(trained(criterion), ranks)
        # DDP waits inside of `backward`: from the last gradient on there is nothing else to do.
        self._last_gradient = 0.0
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._on_gradient)
            for parameter in trained(module)
        ]

    def _on_gradient(self, parameter):
        self._last_gradient = time.perf_counter()

    def begin(self) -> None:
        """Begin a step."""
        self._ranks.beat()

    def forward(self, X: Any) -> Any:
        """Apply the network."""
        return self._replica(X)

    def finish(self) -> None:
        """End a step: gradients are those that the optimiser shall see."""
        self._ranks.waited += time.perf_counter() - self._last_gradient
        self._rest.finish()

    def state(self) -> dict[str, Any]:
        """Return what PowerSGD remembers between steps."""
        names = ("iter", "rng", "error_dict", "p_memory_dict", "q_memory_dict")
        return {} if self._power is None else {name: getattr(self._power, name) for name in names}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        for name, value in state.items():
            setattr(self._power, name, value)

    def compared(self) -> list[Tensor]:
        """Return what should be alike on all ranks."""
        return trained(self._module)

    def agree(self) -> None:
        """Make all replicas the same model."""
        average(averaged_buffers(self._module), self._ranks)

    def close(self) -> None:
        """Remove the DDP wrapper and the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._rest.close()
        del self._replica


def _low_rank_hook(state, bucket):  # DDP refuses annotations that are text
    """Call torch's hook and wait: DDP sends a message of its own next, in the same group."""
    future = powerSGD_hook(state, bucket)
    future.wait()
    return future


@register_sync("hybrid")
class Hybrid:
    """All-reduce for the head, a ring for the backbone.

    In every step the gradients of the head are averaged over all ranks, so that it is the same
    everywhere. A rank's backbone, or the gradient of it, is mixed with that of its left neighbour
    only. Statistics of batch norm go around with it.

    Parameters
    ----------
    module, criterion : nn.Module
        The network, with a part `head`, and the loss, which may have parameters too.
    ranks : Ranks
        The processes.
    options : Distributed
        Its `ring`, what goes around, and `ring_mix`, the weight of the own part, beta.
    """

    def __init__(self, module: nn.Module, criterion: nn.Module, ranks: Ranks, options: Any) -> None:
        self._module, self._ranks = module, ranks
        self._ring, self._mix = options.ring, options.ring_mix
        head = getattr(module, "head", None)
        if not isinstance(head, nn.Module):
            raise ValueError(
                f"sync='hybrid' needs a module with a part `head`, its last layer, which "
                f"{type(module).__name__} has not. Name that layer `head`, or use "
                "sync='allreduce', which needs no parts."
            )
        of_head = {id(parameter) for parameter in head.parameters()}
        self._backbone = [p for p in trained(module) if id(p) not in of_head]
        self._buffers = averaged_buffers(module)
        ranks.copy_from_first([*module.parameters(), *module.buffers(), *criterion.parameters()])
        self._head = GradientMean([*trained(head), *trained(criterion)], ranks)
        self._shifted: Any = None

    def begin(self) -> None:
        """Begin a step: the backbone is on its way while the network is applied."""
        self._ranks.beat()
        if self._ring == "parameters":
            self._send(self._backbone)

    def _send(self, tensors):
        tensors = [*tensors, *self._buffers]
        self._shifted = self._ranks.shift(flatten(tensors)) if tensors else None

    def forward(self, X: Any) -> Any:
        """Apply the network."""
        return self._module(X)

    def finish(self) -> None:
        """End a step: gradients and weights are those that the optimiser shall start from."""
        self._head.finish()
        tensors: list[Any] = self._backbone
        if self._ring == "gradients":
            tensors = [p.grad if p.grad is not None else torch.zeros_like(p) for p in tensors]
            self._send(tensors)
        if self._shifted is None:
            return
        mixed = [*tensors, *self._buffers]
        left = unflatten(self._ranks.finish(self._shifted), mixed)
        with torch.no_grad():
            for own, other in zip(mixed, left, strict=True):
                own.lerp_(other, 1 - self._mix)
        self._shifted = None

    def compared(self) -> list[Tensor]:
        """Return what the ring brings together."""
        return self._backbone

    def agree(self) -> None:
        """Make all replicas the same model: their average."""
        average([*self._backbone, *self._buffers], self._ranks)

    def close(self) -> None:
        """Remove the hooks."""
        self._head.close()


def ring_distance(tensors: list[Tensor], ranks: Ranks) -> float:
    """Return the distance of some parameters from those of the left neighbour, mean over ranks."""
    if not tensors:
        return 0.0
    own = flatten(tensors)
    left = ranks.finish(ranks.shift(own))
    return ranks.mean(float(torch.linalg.vector_norm(own - left)))
