"""Seeds for torch, whose global generator all threads of a process share, and its devices."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

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
        seed_torch(seed)
        yield


def seed_torch(seed: int) -> None:
    """Seed torch's generators of this process; for use inside of `seeded_torch`.

    ``torch.manual_seed`` would also note the call for a GPU that is not there, with the stack of
    the caller: milliseconds for each of thousands of calls.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def choose_device(device: str) -> str:
    """Return the device to train on; "auto" is a GPU where there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device={device!r} cannot be used ({error}): give 'auto', or a device that torch has "
            "here, such as 'cpu'."
        ) from error
    return device


def has_finite_weights(module: torch.nn.Module) -> bool:
    """Tell whether all weights and buffers of a network are finite."""
    return all(bool(torch.isfinite(value).all()) for value in module.state_dict().values())
