"""The training of one of several ranks: its net, the state for a restart, and what comes out."""

from __future__ import annotations

import random
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from skorch.utils import to_tensor

from ...utils._fit import Progress
from ...utils._folders import write_whole
from ...utils._pickle import cloudpickle
from ...utils._torch import seeded_torch
from .._build import Config, build_training
from .._train import LossModule, MetricNet, train
from ._comm import CHANNELS, Ranks
from ._sync import ring_distance

# What is counted over all steps: bytes of each channel, and seconds.
COUNTED = (*CHANNELS, "seconds", "communication", "steps")


class Stopped(BaseException):
    """A callback of some rank has ended the training."""


class Checkpoints:
    """Checkpoints of ranks at the end of an epoch, as files of a folder: the last two of each.

    Two, as a rank can be ahead of another by one epoch.

    Parameters
    ----------
    folder : path-like
        Where.
    """

    def __init__(self, folder: Any) -> None:
        self.folder = Path(folder)

    def _path(self, rank, epoch):
        return self.folder / f"checkpoint-{rank}-{epoch}"

    def write(self, rank: int, epoch: int, state: bytes) -> None:
        """Write the state of a rank, whole or not at all, and remove what it makes needless."""
        write_whole(self._path(rank, epoch), state)
        for other in self.epochs(rank) - {epoch - 1, epoch}:
            self._path(rank, other).unlink(missing_ok=True)

    def read(self, rank: int, epoch: int) -> bytes | None:
        """Return the state of a rank, None if it is not there."""
        path = self._path(rank, epoch)
        return path.read_bytes() if path.exists() else None

    def epochs(self, rank: int) -> set[int]:
        """Return the epochs of which there is a checkpoint of a rank."""
        return {
            int(path.name.rpartition("-")[2]) for path in self.folder.glob(f"checkpoint-{rank}-*")
        }

    def last(self, n_ranks: int) -> int:
        """Return the last epoch that all ranks have finished, 0 if there is none."""
        return max(set.intersection(*map(self.epochs, range(n_ranks))), default=0)


class RankNet(MetricNet):
    """A net that trains together with those of other ranks.

    Parameters
    ----------
    *args, **kwargs
        As in `MetricNet`.
    ranks : Ranks
        The processes.
    config : Config
        With the options of distributed training.
    checkpoints : Checkpoints, default=None
        Where the state goes at the end of an epoch.
    first_epoch : int, default=0
        How many epochs a checkpoint has done already.
    """

    def __init__(
        self,
        *args: Any,
        ranks: Ranks,
        config: Config,
        checkpoints: Any = None,
        first_epoch: int = 0,
        **kwargs: Any,
    ) -> None:
        self.ranks, self.config = ranks, config
        self.checkpoints, self.first_epoch = checkpoints, first_epoch
        self.consensus: list[float] = []
        self.counts: dict[str, float] = dict.fromkeys(COUNTED, 0.0)
        super().__init__(*args, **kwargs)

    # Training

    def fit_loop(self, X: Any, y: Any = None, epochs: int | None = None, **fit_params: Any) -> Any:
        options = self.config.distributed
        self._sync = options.sync(self.module_, self.criterion_, self.ranks, options)
        # What comes at random from here on, such as augmentation, differs between ranks.
        torch.manual_seed(self.config.seed + 1_000_003 * (1 + self.ranks.rank))
        stopped = False
        if self.first_epoch:
            stopped = self._restore(self.checkpoints.read(self.ranks.rank, self.first_epoch))
        try:
            if not stopped:
                super().fit_loop(X, y, epochs=self.max_epochs - self.first_epoch, **fit_params)
        except Stopped:
            pass
        finally:
            self._sync.close()
        return self

    def infer(self, x: Any, **fit_params: Any) -> Any:
        if not self.module_.training:
            return super().infer(x, **fit_params)
        return self._sync.forward(to_tensor(x, device=self.device))

    def train_step_single(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        start, waited = time.perf_counter(), self.ranks.waited
        self._sync.begin()
        step = super().train_step_single(batch, **fit_params)
        self._sync.finish()
        if not self.config.distributed.gather:
            step["loss"] = self._mean_loss
        self.counts["communication"] += self.ranks.waited - waited
        self.counts["seconds"] += time.perf_counter() - start
        self.counts["steps"] += 1
        return step

    def check_loss(self, loss: torch.Tensor) -> None:
        # All ranks must come to the same end: with losses of their own, one alone may be NaN.
        if not self.config.distributed.gather:
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
            self.counts[channel] += sent
        stop = False
        try:
            super().notify(method_name, **kwargs)
        except KeyboardInterrupt:  # how callbacks end a training
            stop = True
        self.consensus.append(ring_distance(self._sync.compared(), self.ranks))
        stop = self.ranks.any(stop)
        if self.checkpoints is not None:
            state = cloudpickle.dumps(self._state(stop))
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
            "batches": self.batches_.state,
            "random": _random_states(),
            "sync": self._sync.state() if hasattr(self._sync, "state") else None,
            "counts": (self.consensus, self.counts, self.criterion_.loss.step),
            "stopped": stop,
        }

    def _restore(self, checkpoint):
        state = cloudpickle.loads(checkpoint)
        for name in _PARTS:
            getattr(self, name).load_state_dict(state["parts"][name])
        self.history.extend(state["history"])
        for name, callback in self.callbacks_:
            _restore_callback(callback, state["callbacks"].get(name, {}))
        self.batches_.state = state["batches"]
        _set_random_states(*state["random"])
        if state["sync"]:
            self._sync.restore(state["sync"])
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


def _callback_state(callback):
    """Return what a callback has learned on the way: its attributes with an underscore behind."""
    state = {}
    for name, value in vars(callback).items():
        if name.endswith("_"):
            is_part = hasattr(value, "load_state_dict") and not isinstance(value, type)
            state[name] = (is_part, value.state_dict() if is_part else value)
    return state


def _restore_callback(callback, state):
    for name, (is_part, value) in state.items():
        if is_part:
            getattr(callback, name).load_state_dict(value)
        else:
            setattr(callback, name, value)


def train_rank(
    config: Config, samples: Any, codes: NDArray, progress: Progress, ranks: Ranks, **resume: Any
) -> dict[str, Any]:
    """Train as one of several ranks.

    Parameters
    ----------
    config : Config
        The same on all ranks.
    samples, codes : tensor or ReadSamples, array
        All samples and class numbers, the same on all ranks.
    progress : Progress
        Told of each epoch.
    ranks : Ranks
        The processes.
    **resume
        `checkpoints` and `first_epoch` of `RankNet`, and `release` of `build_training`.

    Returns
    -------
    result : dict
        The trained state, the same on all ranks.
    """
    with warnings.catch_warnings(record=True) as caught, seeded_torch(config.seed):
        warnings.simplefilter("always")
        net: Any = train(*build_training(config, samples, codes, progress, ranks=ranks, **resume))
    net.agree()
    counts = ranks.all_objects(net.counts)
    mean = {
        name: float(np.mean([own[name] / max(own["steps"], 1) for own in counts]))
        for name in COUNTED
    }
    waiting = mean["communication"]
    return {
        "parts": {
            "module_": _to_cpu(net.module_.state_dict()),
            "optimizer_": _to_cpu(net.optimizer_.state_dict()),
            "criterion_": _to_cpu(LossModule(net.criterion_.loss.loss).state_dict()),
        },
        "history": list(net.history),
        "figures": {
            "consensus_": np.array(net.consensus),
            "traffic_": {name: mean[name] for name in CHANNELS},
            "timing_": {"compute": mean["seconds"] - waiting, "communication": waiting},
        },
        "warnings": [(item.category, str(item.message)) for item in caught],
    }


def _to_cpu(state):
    if isinstance(state, torch.Tensor):
        return state.cpu()
    if isinstance(state, dict):
        return {name: _to_cpu(value) for name, value in state.items()}
    if isinstance(state, list):
        return [_to_cpu(value) for value in state]
    return state
