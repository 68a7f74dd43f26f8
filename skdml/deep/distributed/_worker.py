"""The process of one or more ranks, run as a module: FOLDER SHARED RANKS EPOCH.

FOLDER is of this attempt and SHARED of all attempts; both may be the same machine's temporary
folder for all ranks. RANKS are numbers with commas between, EPOCH is where to go on. The rest is
in the environment, under the names that torchrun uses. Packages are imported once, then each rank
is a fork of this process, which stays to watch them and to hold the store where they meet.

Files of FOLDER: `epochs`, `heartbeat-RANK`, `error-RANK`, `exit-RANK`, `result`, `address` of the
store, `stop` to end training early, and `log`. Of SHARED: `job`, the data, and checkpoints.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from skorch.utils import to_tensor

from ...utils._fit import Progress
from ...utils._folders import open_private
from ...utils._pickle import cloudpickle
from ...utils._processes import end_with_parent
from ...utils._torch import seeded_torch
from ...utils.validation import page_release
from .._build import Config, build_training
from .._samples import ReadSamples, as_tensor
from .._train import LossModule, MetricNet, train
from ._comm import CHANNELS, START_SECONDS, Heartbeat, Ranks, is_communication_error, process_group
from ._sync import ring_distance

# What is counted over all steps: bytes of each channel, and seconds.
COUNTED = (*CHANNELS, "seconds", "communication", "steps")
# Older checkpoints are removed. A rank can be ahead of another by one.
_KEPT = 2


class Stopped(BaseException):
    """A callback of some rank has ended the training."""


class Checkpoints:
    """Checkpoints of all ranks at the end of an epoch, from which a dead one can start again.

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
        self._path(rank, epoch - _KEPT).unlink(missing_ok=True)

    def read(self, rank: int, epoch: int) -> bytes | None:
        """Return the state of a rank, None if it is not there."""
        path = self._path(rank, epoch)
        return path.read_bytes() if path.exists() else None

    def last(self, ranks: Sequence[int]) -> int:
        """Return the last epoch that some ranks have all finished, 0 if there is none."""
        epochs = [
            {int(path.name.rpartition("-")[2]) for path in self.folder.glob(f"checkpoint-{rank}-*")}
            for rank in ranks
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


# The process


class RankProgress(Progress):
    """Reports every epoch to the process that started the ranks, through files.

    Parameters
    ----------
    folder : path-like
        Where.
    rank : int
        Only rank 0 tells.
    """

    def __init__(self, folder: Any, rank: int) -> None:
        self._folder, self._is_first = Path(folder), rank == 0

    def step(self, attributes: Any = None, **figures: float) -> bool:
        """Report an epoch; return whether training should end."""
        if self._is_first:
            with open(self._folder / "epochs", "a", encoding="utf-8") as file:
                file.write(json.dumps(figures) + "\n")
        return (self._folder / "stop").exists()


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


def _run_rank(folder, shared, rank, first_epoch):
    """Do the work of one rank and return the exit code; an error goes to a file."""
    try:
        _await_address(folder)
        config = cloudpickle.loads((shared / "job").read_bytes())
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
        samples, release = _open_samples(shared, config.sample_shape)
        codes = np.load(shared / "codes.npy")
        heartbeat, progress = Heartbeat(folder / f"heartbeat-{rank}"), RankProgress(folder, rank)
        resume = {"checkpoints": Checkpoints(shared), "first_epoch": first_epoch}
        resume["release"] = release
        with process_group(config.distributed.timeout, heartbeat) as ranks:
            result = train_rank(config, samples, codes, progress, ranks, **resume)
            if rank == 0:
                write_whole(folder / "result", cloudpickle.dumps(result))
    except BaseException as error:
        try:
            write_whole(folder / f"error-{rank}", _report(error))
        except OSError as full:  # not even that can be written
            return full.errno or 1
        return 1
    return 0


def _open_samples(shared, sample_shape):
    """Return all samples, and what releases the pages of a file."""
    if not (shared / "samples").exists():
        return torch.from_numpy(np.load(shared / "samples.npy", mmap_mode="c")), None
    source = cloudpickle.loads((shared / "samples").read_bytes())
    if isinstance(source, ReadSamples):
        return source, None
    mapped = source.open()
    return as_tensor(mapped, sample_shape), page_release(mapped)


def _report(error):
    """Return an error as bytes, with its text where it cannot be stored itself."""
    report = {
        "is_lost": is_communication_error(error),
        "text": f"{type(error).__name__}: {error}",
        "traceback": traceback.format_exc(),
    }
    try:
        return cloudpickle.dumps({**report, "error": error.with_traceback(None)})
    except Exception:
        return cloudpickle.dumps({**report, "error": None})


def _await_address(folder):
    """Wait until it is known where ranks meet, and put it into the environment."""
    path, end = folder / "address", time.monotonic() + START_SECONDS
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"rank 0 told no address within {START_SECONDS:.0f} s")
        time.sleep(0.01)
    address, port = path.read_text().split()
    os.environ.update(
        MASTER_ADDR=address,
        MASTER_PORT=port,
        TORCHELASTIC_USE_AGENT_STORE="True",  # the store is there already
        TORCHELASTIC_RESTART_COUNT="0",
    )


def _open_store(folder):
    """Make the store where ranks meet, and tell where it is."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ.get("MASTER_PORT") or 0)
    # By itself the store would listen on all interfaces, and it asks nobody who they are.
    family, kind, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen()
        port = listener.getsockname()[1]
        options: Any = {"is_master": True, "wait_for_workers": False}
        store = dist.TCPStore(address, port, master_listen_fd=listener.detach(), **options)
    write_whole(folder / "address", f"{address} {port}".encode())
    return store


def main(arguments: list[str]) -> int:
    """Start ranks, watch them and note how they end."""
    folder, shared = Path(arguments[0]), Path(arguments[1])
    ranks, first_epoch = [int(rank) for rank in arguments[2].split(",")], int(arguments[3])
    own, running = os.getpid(), {}
    for local, rank in enumerate(ranks):
        process = os.fork()
        if process == 0:
            end_with_parent(own)
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(local))
            code = _run_rank(folder, shared, rank, first_epoch)
            sys.stdout.flush()
            os._exit(code)
        running[process] = rank
    store = _open_store(folder) if 0 in ranks else None
    while running:
        process, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        try:
            write_whole(folder / f"exit-{running.pop(process)}", str(code).encode())
        except OSError as full:
            return full.errno or 1
    del store
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
