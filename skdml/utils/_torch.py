"""Torch helpers: seeds, devices, averaged weights, and the last weights that were finite."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator

import torch
from sklearn.exceptions import ConvergenceWarning
from torch.optim.swa_utils import AveragedModel

# Layers, losses and augmentation draw from the global generator: one thread at a time.
_GENERATOR = threading.RLock()


@contextlib.contextmanager
def seeded_torch(seed: int) -> Iterator[None]:
    """Seed torch inside a `with` block, and leave its global generators as they were.

    Other threads wait at their own blocks, so that what is drawn here depends on the seed alone.

    Parameters
    ----------
    seed : int
        The seed.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with _GENERATOR, torch.random.fork_rng(devices=devices):
        # torch.manual_seed notes the caller's stack for a GPU that is not there: milliseconds.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)
        yield


def choose_device(device: str) -> str:
    """Return the device to train on; "auto" is a GPU where there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=device).cpu()  # "meta" has no values
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device={device!r} cannot be used ({error}): give 'auto', or a device that torch has "
            "here, such as 'cpu'."
        ) from error
    return device


def mixed_precision(device: str) -> contextlib.AbstractContextManager:
    """Return a context in which products are of bfloat16, where the device is a GPU that has it.

    Elsewhere it changes nothing.
    """
    if torch.device(device).type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8:
        return torch.autocast("cuda", torch.bfloat16)
    return contextlib.nullcontext()


def has_finite_weights(module: torch.nn.Module) -> bool:
    """Tell whether all weights and buffers of a network are finite."""
    return all(bool(torch.isfinite(value).all()) for value in module.state_dict().values())


def average_weights(module: torch.nn.Module, decay: float = 0.99) -> AveragedModel:
    """Return an exponential moving average (EMA) of a network's weights and buffers.

    Parameters
    ----------
    module : torch.nn.Module
        The network; the average starts from its weights.
    decay : float, default=0.99
        The EMA decay after a warm-up, in which it grows from 0.1.

    Returns
    -------
    average : AveragedModel
        ``average.update_parameters(module)`` adds the weights after a step; ``average.module`` has
        the average. Integers, such as the counts of batch norm, are copied.
    """

    def update(means, values, n_averaged):
        if means[0].is_floating_point():
            torch._foreach_lerp_(means, values, max(1 - decay, 9 / (9 + int(n_averaged))))
        else:
            torch._foreach_copy_(means, values)

    average = AveragedModel(module, multi_avg_fn=update, use_buffers=True)
    average.update_parameters(module)  # a copy; later calls average
    return average


class NotFinite(RuntimeError):
    """The loss of a step, or a weight after it, was NaN or infinite."""


class LastGood:
    """The last finite weights of a network in training.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._state: dict[str, torch.Tensor] | None = None
        self._n_saved = 0

    def save(self) -> bool:
        """Keep a copy of the weights at the end of an epoch, and tell whether they are finite."""
        if not has_finite_weights(self._module):
            return False
        self._state = {name: value.clone() for name, value in self._module.state_dict().items()}
        self._n_saved += 1
        return True

    def restore(self, error: NotFinite, lr: float, stacklevel: int = 3) -> None:
        """Put the weights back, with a ConvergenceWarning; a ValueError if there are none."""
        if self._state is not None:
            self._module.load_state_dict(self._state)
        warn_not_finite(error, self._n_saved, "epoch", lr, stacklevel)


def warn_not_finite(
    error: NotFinite, n_done: int, unit: str, lr: float, stacklevel: int = 3
) -> None:
    """Warn of a training that ended early, or raise a ValueError if nothing was learned.

    Parameters
    ----------
    error : NotFinite
        What was not finite, and when.
    n_done : int
        Complete rounds before that.
    unit : str
        What a round is, such as "epoch".
    lr : float
        The learning rate, of which a smaller one may help.
    stacklevel : int, default=3
        As in `warnings.warn`, from here.
    """
    if n_done == 0:
        raise ValueError(
            f"{error}, before one {unit} was done: is X scaled? Try a smaller lr than {lr}."
        ) from error
    warnings.warn(
        f"{error}; training stopped, and the weights of {unit} {n_done} are kept. Try a smaller lr "
        f"than {lr}.",
        ConvergenceWarning,
        stacklevel=stacklevel,
    )
