"""Where ranks run: on this machine, or on dask workers with a rank on each.

torch's elastic agent, which is what torchrun runs, does not start them: it is for scripts (see
`skdml.deep.distributed.run`). Called from `fit`, in torch 2.13,

- its store listens on all interfaces, also if it is told 127.0.0.1, and asks nobody who they are;
- it sees how processes end, not that one hangs: the others fail first, and it names those;
- it sets handlers of SIGINT and SIGTERM and leaves them there; in a thread other than the main one,
  such as that of a dask task, it sets none, and its processes may outlive it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from ..._actors import ActorLost, start_actors
from ...utils._cluster import PATIENCE, find_workers
from ...utils._folders import PrivateFolder, full_disk, open_private
from ...utils._pickle import cloudpickle
from ...utils._processes import command_of_child
from ._comm import Heartbeat
from ._rank_net import Checkpoints


class RankError(RuntimeError):
    """A rank of a distributed fit died or hangs, and may not start again."""


@dataclass
class Failure:
    """How a rank failed.

    By an "error" of its own, "killed" by a signal or with its machine, or "lost" for want of
    another rank; what there is to say of it; and the error itself, if it could be stored.
    """

    rank: int
    kind: str
    text: str
    error: BaseException | None = None


@dataclass
class News:
    """What is known of ranks: how some failed, how far they are, and what rank 0 has left.

    Of a rank on a dask worker also the epochs that have a checkpoint there.
    """

    failures: list[Failure] = field(default_factory=list)
    is_done: bool = False
    beats: dict[int, int] = field(default_factory=dict)
    epochs: list[dict[str, float]] = field(default_factory=list)
    result: bytes | None = None
    checkpoints: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Host:
    """Some ranks as processes of this machine, for one attempt; an actor.

    Parameters
    ----------
    data : tuple
        Job, samples and codes: arrays, or bytes of what is pickled.
    ranks : sequence of int
        Those to start here.
    size : int
        The number of all ranks.
    first_epoch : int
        Where they go on.
    shared : path-like, default=None
        The folder of their checkpoints; None: that of the attempt.
    parent : str, default=None
        Where to make the folder of the attempt.
    address : str, default="127.0.0.1"
        Where ranks listen, and nowhere else.
    threads : int, default=0
        Threads of each rank; 0 shares the cores.
    """

    data: Any
    ranks: Sequence[int]
    size: int
    first_epoch: int
    shared: Any = None
    parent: str | None = None
    address: str = "127.0.0.1"
    threads: int = 0

    def __post_init__(self) -> None:
        self._undo = contextlib.ExitStack()
        self._folder = self._undo.enter_context(PrivateFolder(self.parent))
        self._checkpoints = Checkpoints(self.shared or self._folder)
        self._listeners: list[int] = []
        self._process: Any = None

    def listen(self, port: int | None) -> tuple[str, int]:
        """Open the port where ranks meet, a free one for None, and return the address."""
        # torch's store would listen on all interfaces, and it asks nobody who they are.
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        listener = socket.create_server((self.address, port or 0), family=family)
        self._listeners = [self._undo.enter_context(listener).fileno()]
        return self.address, listener.getsockname()[1]

    def start(self, address: str, port: int) -> None:
        """Start the ranks, which meet at an address."""
        folder, data, self.data = self._folder, self.data, None
        for name, part in zip(("job", "samples", "codes"), data, strict=True):
            is_array = not isinstance(part, bytes)
            with open_private(folder / f"{name}{'.npy' * is_array}") as file:
                np.save(file, part) if is_array else file.write(part)
        variables = {
            **os.environ,
            # Children find what this process can import, such as a module beside a script.
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(len(self.ranks)),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # ranks find the store there already
            "TORCHELASTIC_RESTART_COUNT": "0",
            "OMP_NUM_THREADS": str(self.threads or max(1, (os.cpu_count() or 1) // self.size)),
        }
        interface = _interface_of(self.address)
        if interface is not None and (_is_local(address) or "GLOO_SOCKET_IFNAME" not in variables):
            variables["GLOO_SOCKET_IFNAME"] = interface
        ranks = ",".join(map(str, self.ranks))
        arguments = folder, self.shared or folder, ranks, self.first_epoch, *self._listeners
        command = command_of_child("skdml.deep.distributed._worker", *map(str, arguments))
        with open(folder / "log", "ab") as log:
            # In a session of their own: Ctrl-C in a terminal is for the process that fits.
            self._process = subprocess.Popen(
                command, env=variables, stderr=log, start_new_session=True, pass_fds=self._listeners
            )
            self._undo.callback(_kill, self._process)

    def news(self, stop: bool) -> News:
        """Return what is known; `stop` lets training end with the next epoch."""
        folder, code = self._folder, self._process and self._process.poll()
        if stop:
            (folder / "stop").touch()
        found = [cloudpickle.loads(path.read_bytes()) for path in sorted(folder.glob("failure-*"))]
        if code == errno.ENOSPC and not found:  # not even the failure could be written
            full = full_disk(folder)
            found = [Failure(self.ranks[0], "error", str(full), full)]
        elif code and not found:
            found = [Failure(self.ranks[0], "killed", how_ended(code, folder))]
        is_done, epochs = code == 0 and not found, []
        with contextlib.suppress(FileNotFoundError):
            lines = (folder / "epochs").read_text(encoding="utf-8").splitlines(keepends=True)
            epochs = [json.loads(line) for line in lines if line.endswith("\n")]
        return News(
            failures=found,
            is_done=is_done,
            beats={rank: Heartbeat.read(folder / f"heartbeat-{rank}") for rank in self.ranks},
            epochs=epochs,
            result=(folder / "result").read_bytes() if is_done and 0 in self.ranks else None,
        )

    def close(self) -> None:
        """End all processes at once, also those that hang, and leave no trace."""
        self._undo.close()

    def __del__(self) -> None:
        self.close()  # on a cluster, the process that fits may be gone


class WorkerHost(Host):
    """A rank on the worker of a dask cluster.

    It is not in the worker's process but in a child of it: a rank that dies would take the worker
    with it, and one that hangs could not be ended.
    """

    def __init__(self, data: Any, rank: int, size: int, first_epoch: int) -> None:
        from distributed import get_worker

        worker = get_worker()
        address = urlsplit(worker.address).hostname or worker.address
        there = None, worker.local_directory, address, worker.state.nthreads
        super().__init__(data, [rank], size, first_epoch, *there)

    def folder(self) -> str:
        """Return the folder of the checkpoints."""
        return str(self._folder)

    def news(self, stop: bool) -> News:
        """Return what is known, with the epochs of checkpoints."""
        news = super().news(stop)
        news.checkpoints = sorted(self._checkpoints.epochs(self.ranks[0]))
        return news


class Copies:
    """Checkpoints of ranks in the memory of their dask workers, each also in that of another.

    They go from worker to worker. As tasks of the cluster they outlive the ranks, and a worker that
    is lost takes one of two copies with it.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    size : int
        The number of ranks.
    """

    def __init__(self, client: Any, size: int) -> None:
        self._client = client
        self._found: list[dict[int, list[Any]]] = [{} for _ in range(size)]

    def _submit(self, worker, function, *args):
        return self._client.submit(function, *args, workers=[worker], pure=False, priority=10)

    def take(self, rank: int, epochs: Sequence[int], folder: str, workers: Sequence[str]) -> None:
        """Copy new checkpoints of a rank, and forget all but the last two."""
        found = self._found[rank]
        for epoch in sorted(epochs):
            if epoch > max(found, default=0):
                own = self._submit(workers[rank], _read_checkpoint, folder, rank, epoch)
                other = workers[(rank + 1) % len(workers)]
                found[epoch] = [own, self._submit(other, _as_it_is, own)]
        for epoch in sorted(found)[:-2]:
            del found[epoch]

    def _of(self, rank, epoch):
        both = self._found[rank].get(epoch, [])
        return next((copy for copy in both if copy.status == "finished"), None)

    def last(self) -> int:
        """Return the last epoch of which there is a checkpoint of every rank, 0 if none."""
        held = [{e for e in own if self._of(rank, e)} for rank, own in enumerate(self._found)]
        return max(set.intersection(*held), default=0)

    def give(self, epoch: int, folders: Sequence[str], workers: Sequence[str]) -> list[int]:
        """Put checkpoints into the folders of ranks; return those that cannot be reached."""
        from distributed import wait

        self._found = [{e: own[e] for e in own if e <= epoch} for own in self._found]
        if not epoch:
            return []
        writes = [
            self._submit(worker, _write_checkpoint, self._of(rank, epoch), folder, rank, epoch)
            for rank, (folder, worker) in enumerate(zip(folders, workers, strict=True))
        ]
        with contextlib.suppress(TimeoutError):  # of a worker that is lost a task never ends
            wait(writes, timeout=PATIENCE)
        return [rank for rank, write in enumerate(writes) if write.status != "finished"]


def _read_checkpoint(folder, rank, epoch):
    state = Checkpoints(folder).read(rank, epoch)
    if state is None:
        raise FileNotFoundError(f"rank {rank} has removed its checkpoint of epoch {epoch}")
    return state


def _as_it_is(state):
    return state


def _write_checkpoint(state, folder, rank, epoch):
    Checkpoints(folder).write(rank, epoch, state)


def how_ended(code: int, folder: Path) -> str:
    """Say how a process ended, with the last lines that it wrote about errors."""
    text = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    lines = (folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n  ".join([text, *[line for line in lines if "Warning" not in line][-5:]])


def _kill(process):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _is_local(address):
    """Tell whether an address is of this machine alone."""
    return address in ("localhost", "::1") or address.startswith("127.")


def _interface_of(address):
    """Return the network interface with an address, None if there is none."""
    if _is_local(address):
        return "lo" if sys.platform == "linux" else "lo0"
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.split("%")[0] == address for one in addresses):
            return name
    return None


class Hosts:
    """The hosts of all ranks of a fit: this machine, or the workers of a dask cluster.

    Parameters
    ----------
    client : distributed.Client or None
        The cluster.
    data : tuple
        As in `Host`.
    options : Distributed
        Its `n_workers`, `port`, and how long to wait for a dask worker that comes back.
    """

    def __init__(self, client: Any, data: Any, options: Any) -> None:
        if not hasattr(os, "fork"):
            raise OSError("n_workers above 1 needs a system that can fork processes.")
        self._client, self._data, self._options = client, data, options
        # Ranks of this machine share a folder for their checkpoints. Those of dask workers need not
        # have one, and a worker that is lost takes its folder with it.
        self._folder = PrivateFolder()
        self._checkpoints = Checkpoints(self._folder.path)
        self._copies = None if client is None else Copies(client, options.n_workers)
        self._workers: list[str] = []
        self._folders: list[str] = []
        self._lost: list[Failure] = []
        self._actors: Any = None

    def start(self) -> int:
        """Start the ranks, again if they run, and return the epoch from which they go on."""
        self._stop()
        size = self._options.n_workers
        if self._copies is None:
            first_epoch = self._checkpoints.last(size)
            alone = self._data, range(size), size, first_epoch, self._folder.path
            self._actors = start_actors(Host, [alone], restart=False).__enter__()
        else:
            self._find_workers(size)
            first_epoch = self._copies.last()
            each = [(self._data, rank, size, first_epoch) for rank in range(size)]
            where = {"client": self._client, "workers": self._workers}
            self._actors = start_actors(WorkerHost, each, restart=False, **where).__enter__()
            self._give_checkpoints(self._copies, first_epoch)
        meeting = self._actors.ask_one(0, "listen", self._options.port)
        if not (self._lost or isinstance(meeting, ActorLost)):
            self._actors.ask("start", *meeting)
        return first_epoch

    def _give_checkpoints(self, copies, epoch):
        self._folders = self._actors.ask("folder")
        lost = [rank for rank, at in enumerate(self._folders) if isinstance(at, ActorLost)]
        if not lost:
            lost = copies.give(epoch, self._folders, self._workers)
        self._lost = [self._lost_rank(rank) for rank in lost]

    def _lost_rank(self, rank):
        return Failure(rank, "killed", f"was lost with its dask worker {self._workers[rank]}")

    def _find_workers(self, size):
        is_first = not self._workers
        patience = PATIENCE if is_first else max(self._options.timeout, PATIENCE)
        found = find_workers(self._client, size, patience)
        if len(found) < size:
            raise (ValueError if is_first else RankError)(
                f"n_workers={size} needs as many workers of the dask cluster, one for each rank, "
                f"but it has {len(found)}, and no other came within {patience:g} s."
            )
        self._workers = found[:size]

    def news(self, stop: bool = False) -> News:
        """Return what is known of all ranks; `stop` lets training end with the next epoch."""
        if self._lost:
            return News(self._lost)
        merged = News(is_done=True)
        for rank, news in enumerate(self._actors.ask("news", stop)):
            if isinstance(news, ActorLost):
                find_workers(self._client)  # raises if it was the scheduler
                news = News([self._lost_rank(rank)])
            merged.failures += news.failures
            merged.is_done &= news.is_done
            merged.beats |= news.beats
            merged.epochs += news.epochs
            merged.result = merged.result or news.result
            if news.checkpoints and self._copies is not None:
                self._copies.take(rank, news.checkpoints, self._folders[rank], self._workers)
        return merged

    def _stop(self):
        actors, self._actors = self._actors, None
        if actors is not None and (self._client is None or self._client.status == "running"):
            actors.ask("close")
            actors.__exit__()

    def close(self) -> None:
        """End all ranks, and leave no trace."""
        self._stop()
        self._folder.remove()
