"""The skorch net of one rank: a step with the others, and what it takes to begin again."""

from __future__ import annotations

import math
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from skorch.callbacks import Callback
from skorch.utils import to_tensor

from ..utils._folders import open_private
from ._net import MetricNet
from ._pickle import cloudpickle
from ._ranks import CHANNELS, Ranks
from ._sync import AllReduce, Hybrid, ring_distance

# What is counted over all steps: bytes of each channel, and seconds.
COUNTED = (*CHANNELS, "seconds", "communication", "steps")
# Older checkpoints are removed. A rank can be ahead of another by one.
_KEPT = 2


class Stopped(BaseException):
    """A callback of some rank has ended the training."""


class Checkpoints:
    """What every rank writes at the end of an epoch, so that a dead one can begin again there.

    Parameters
    ----------
    folder : path-like
        Where.
    """

    def __init__(self, folder: Any) -> None:
        self.folder = Path(folder)

    def path(self, rank: int, epoch: int) -> Path:
        """Return the file of a rank and an epoch."""
        return self.folder / f"checkpoint-{rank}-{epoch}"

    def write(self, rank: int, epoch: int, state: dict) -> None:
        """Write the state of a rank, whole or not at all."""
        write_whole(self.path(rank, epoch), cloudpickle.dumps(state))
        self.remove_old(rank, epoch)

    def remove_old(self, rank: int, epoch: int) -> None:
        """Remove what is not needed any more once an epoch is there."""
        self.path(rank, epoch - _KEPT).unlink(missing_ok=True)

    def read(self, rank: int, epoch: int) -> dict:
        """Return the state of a rank."""
        return cloudpickle.loads(self.path(rank, epoch).read_bytes())

    def last(self, size: int) -> int:
        """Return the last epoch that all ranks have finished, 0 if there is none."""
        epochs = [
            {int(path.name.rpartition("-")[2]) for path in self.folder.glob(f"checkpoint-{rank}-*")}
            for rank in range(size)
        ]
        return max(set.intersection(*epochs), default=0)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name first: who finds it finds all of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open_private(draft) as file:
        file.write(content)
    os.replace(draft, path)


class RankNet(MetricNet):
    """A net that trains together with those of other ranks.

    Parameters
    ----------
    *args, **kwargs
        As in `MetricNet`.
    ranks : Ranks
        The processes.
    plan : dict
        The parameters `mining`, `sync`, `ring` and `ring_mix` of the estimator, and its `seed`.
    checkpoints : Checkpoints, default=None
        Where the state goes at the end of an epoch.
    first_epoch : int, default=0
        How many epochs a checkpoint has done already.
    """

    def __init__(
        self,
        *args: Any,
        ranks: Ranks,
        plan: dict[str, Any],
        checkpoints: Checkpoints | None = None,
        first_epoch: int = 0,
        **kwargs: Any,
    ) -> None:
        self.ranks, self.plan = ranks, plan
        self.checkpoints, self.first_epoch = checkpoints, first_epoch
        self.consensus: list[float] = []
        self.counts: dict[str, float] = dict.fromkeys(COUNTED, 0.0)
        super().__init__(*args, **kwargs)

    # Training

    def fit_loop(self, X: Any, y: Any = None, epochs: int | None = None, **fit_params: Any) -> Any:
        self._sync = self._make_sync()
        # What comes at random from here on, such as augmentation, differs between ranks.
        torch.manual_seed(self.plan["seed"] + 1_000_003 * (1 + self.ranks.rank))
        stopped = False
        if self.first_epoch and self.checkpoints is not None:
            stopped = self._restore(self.checkpoints.read(self.ranks.rank, self.first_epoch))
        try:
            if not stopped:
                super().fit_loop(X, y, epochs=self.max_epochs - self.first_epoch, **fit_params)
        except Stopped:
            pass
        finally:
            self._sync.close()
        return self

    def _make_sync(self):
        if self.plan["sync"] == "allreduce":
            return AllReduce(self.module_, self.criterion_, self.ranks)
        return Hybrid(
            self.module_, self.criterion_, self.ranks, self.plan["ring"], self.plan["ring_mix"]
        )

    def infer(self, x: Any, **fit_params: Any) -> Any:
        if not self.module_.training:
            return super().infer(x, **fit_params)
        return self._sync.forward(to_tensor(x, device=self.device))

    def train_step_single(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        start, waited = time.perf_counter(), self.ranks.waited
        self._sync.begin()
        step = super().train_step_single(batch, **fit_params)
        self._sync.finish()
        if self.plan["mining"] == "local":
            step["loss"] = self._mean_loss
        self.counts["communication"] += self.ranks.waited - waited
        self.counts["seconds"] += time.perf_counter() - start
        self.counts["steps"] += 1
        return step

    def check_loss(self, loss: torch.Tensor) -> None:
        # All ranks must come to the same end: with losses of their own, one alone may be NaN.
        if self.plan["mining"] == "local":
            self._mean_loss = self.ranks.sum(loss.detach().double()[None])[0] / self.ranks.size
            loss = self._mean_loss
        super().check_loss(loss)

    # Around an epoch

    def notify(self, method_name: str, **kwargs: Any) -> None:
        if method_name == "on_epoch_begin":
            self.ranks.barrier()
            self.ranks.start_counting()
        if method_name != "on_epoch_end":
            return super().notify(method_name, **kwargs)
        # What is sent from here on belongs to no step. After the barrier all has arrived.
        self.ranks.barrier()
        for channel, sent in self.ranks.traffic().items():
            self.counts[channel] += sent if sent is not None else math.nan
        stop = False
        try:
            super().notify(method_name, **kwargs)
        except KeyboardInterrupt:  # how callbacks end a training
            stop = True
        self.consensus.append(ring_distance(self._sync.compared(), self.ranks))
        stop = self.ranks.any(stop)
        if self.checkpoints is not None:
            state = self._state(stop)
            self.checkpoints.write(self.ranks.rank, len(self.history), state)
        if stop:
            raise Stopped
        return None

    def agree(self) -> None:
        """Make the nets of all ranks the same: the average, where they differ."""
        self._sync.agree()

    # Beginning again

    def _state(self, stop):
        return {
            "parts": {name: getattr(self, name).state_dict() for name in _PARTS},
            "history": list(self.history),
            "callbacks": {name: _callback_state(callback) for name, callback in self.callbacks_},
            "batches": self.make_batches(None).state,
            "random": _random_states(),
            "counts": (self.consensus, self.counts, self.criterion_.loss.step),
            "stopped": stop,
        }

    def _restore(self, state):
        for name in _PARTS:
            getattr(self, name).load_state_dict(state["parts"][name])
        self.history.extend(state["history"])
        for name, callback in self.callbacks_:
            _restore_callback(callback, state["callbacks"].get(name, {}))
        self.make_batches(None).state = state["batches"]
        _set_random_states(*state["random"])
        self.consensus, self.counts, self.criterion_.loss.step = state["counts"]
        return state["stopped"]


_PARTS = ("module_", "criterion_", "optimizer_")


# Callbacks and augmentation of a user may draw from any of the global generators.


def _random_states():
    on_gpu = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return torch.get_rng_state(), on_gpu, np.random.get_state(), random.getstate()  # noqa: NPY002


def _set_random_states(on_cpu, on_gpu, of_numpy, of_python):
    torch.set_rng_state(on_cpu)
    if on_gpu is not None:
        torch.cuda.set_rng_state(on_gpu)
    np.random.set_state(of_numpy)  # noqa: NPY002
    random.setstate(of_python)


def _callback_state(callback: Callback) -> dict[str, Any]:
    """Return what a callback has learned on the way: its attributes with an underscore behind."""
    state = {}
    for name, value in vars(callback).items():
        if name.endswith("_"):
            is_part = hasattr(value, "load_state_dict") and not isinstance(value, type)
            state[name] = (is_part, value.state_dict() if is_part else value)
    return state


def _restore_callback(callback: Callback, state: dict[str, Any]) -> None:
    for name, (is_part, value) in state.items():
        if is_part:
            getattr(callback, name).load_state_dict(value)
        else:
            setattr(callback, name, value)
