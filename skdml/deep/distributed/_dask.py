"""Starting ranks on the workers of a dask cluster, one on each.

A rank does not run inside of a worker's process but in a child of it: a rank that dies would take
the worker with it, and one that hangs could not be ended. A task on the worker watches the child,
and sends what is new to the process that fits: epochs, checkpoints, failures.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from concurrent.futures import CancelledError
from typing import Any
from urllib.parse import urlsplit

from numpy.typing import NDArray

from ..._cluster import PATIENCE, WorkerLost, find_workers, lost_workers, repeat_if_lost
from ...utils._folders import PrivateFolder
from ...utils._pickle import cloudpickle
from ._supervise import Failure, Host, RankError, write_job
from ._worker import Checkpoints, write_whole

# How long a task waits for an order to stop before it looks after its rank again.
_WATCH_SECONDS = 0.2
# Heartbeats alone are sent no more often than this.
_BEAT_SECONDS = 1.0


class WrongWorker(RuntimeError):
    """The worker of a rank is gone, and its task came to another one."""


class DaskRanks:
    """Ranks on the workers of a cluster.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    job : bytes
        What a rank must know.
    samples, codes : arrays
        The data.
    size : int
        The number of ranks.
    port : int or None
        Where they meet, on the machine of rank 0.
    timeout : float
        Seconds to wait for workers that come back.
    """

    def __init__(
        self,
        client: Any,
        job: bytes,
        samples: NDArray,
        codes: NDArray,
        size: int,
        port: int | None,
        timeout: float,
    ) -> None:
        self._client, self._data, self._size, self._port = client, (job, samples, codes), size, port
        self._patience = max(timeout, PATIENCE)
        n_workers = len(find_workers(client, size))  # a killed one comes back
        if n_workers < size:
            raise ValueError(
                f"n_workers={size} needs as many workers of the dask cluster, one for each rank, "
                f"but it has {n_workers}."
            )
        self._folder = PrivateFolder()
        self._checkpoints = Checkpoints(self._folder.path)
        self._futures: list[Any] = []
        self._parts: list[Any] = []

    def start(self, attempt: int) -> int:
        return repeat_if_lost(self._client, self._try_start)

    def _try_start(self):
        from distributed import Event, Queue, Variable

        workers = find_workers(self._client, self._size, self._patience)
        if len(workers) < self._size:
            raise RankError(
                f"{len(workers)} dask workers are left for n_workers={self._size}, and no other "
                f"came within {self._patience:g} s."
            )
        self._workers = workers[: self._size]
        first_epoch = self._checkpoints.last(self._size)
        name = f"skdml-{uuid.uuid4().hex}"
        self._epochs: list[dict[str, float]] = []
        self._failures: dict[int, list[Failure]] = {}
        self._ended: set[int] = set()
        self._beats = dict.fromkeys(range(self._size), 0)
        self._result: bytes | None = None
        with lost_workers(self._client):
            self._queue = Queue(name, client=self._client)
            self._stop_event = Event(name, client=self._client)
            self._end_event = Event(f"{name}-end", client=self._client)
            self._parts = [self._queue, Variable(name, client=self._client)]
            # The others fetch it there. To broadcast would wait for ever for a dead worker.
            data = self._client.scatter(list(self._data), workers=self._workers[:1], hash=False)
            states = [self._checkpoint(rank, first_epoch) for rank in range(self._size)]
            self._futures = [
                self._client.submit(
                    watch_rank,
                    *data,
                    states[rank],
                    name,
                    rank,
                    self._size,
                    address,
                    urlsplit(self._workers[0]).hostname,
                    self._port,
                    first_epoch,
                    key=f"{name}-rank-{rank}",
                    workers=[address],
                    # A task for a dead worker alone would wait for ever. It looks where it is.
                    allow_other_workers=True,
                    pure=False,
                )
                for rank, address in enumerate(self._workers)
            ]
        return first_epoch

    def _checkpoint(self, rank, epoch):
        if not epoch:
            return None
        content = self._checkpoints.path(rank, epoch).read_bytes()
        return self._client.scatter([content], workers=[self._workers[rank]], hash=False)[0]

    def poll(self) -> tuple[list[Failure], bool]:
        try:
            with lost_workers(self._client):
                self._take_news()
        except WorkerLost:
            find_workers(self._client)  # raises if it was the scheduler
        failures = [failure for found in self._failures.values() for failure in found]
        return failures, len(self._ended) == self._size and not failures

    def _take_news(self):
        if self._client.status != "running":
            raise OSError("the connection to the scheduler is lost")
        for rank, future in enumerate(self._futures):
            if future.status not in ("pending", "finished"):
                self._failures[rank] = [self._failure_of(rank, future)]
        while self._queue.qsize():
            self._note(self._queue.get(timeout=5))
        for rank, future in enumerate(self._futures):
            if future.status == "finished" and rank not in self._ended:
                self._note(future.result())
                self._ended.add(rank)

    def _note(self, content):
        """Take in what the task of a rank has to tell."""
        news = cloudpickle.loads(content)
        rank = news["rank"]
        self._beats[rank] = news["beat"]
        self._epochs += news["epochs"]
        if news["failures"]:
            self._failures[rank] = news["failures"]
        for epoch, state in news["checkpoints"]:
            write_whole(self._checkpoints.path(rank, epoch), state)
            self._checkpoints.remove_old(rank, epoch)
        self._result = news["result"] or self._result

    def _failure_of(self, rank, future):
        from distributed.scheduler import KilledWorker

        error = future.exception() if future.status == "error" else None
        if error is None or isinstance(error, (WrongWorker, KilledWorker)):
            return Failure(rank, "killed", f"was lost with its dask worker {self._workers[rank]}")
        return Failure(rank, "error", f"{type(error).__name__}: {error}", error)

    def epochs(self) -> list[dict[str, float]]:
        return self._epochs

    def beats(self) -> dict[int, int]:
        return self._beats

    def ask_to_stop(self) -> None:
        self._end_event.set()

    def stop(self) -> None:
        from distributed import wait

        futures, self._futures = self._futures, []
        if not futures or self._client.status != "running":
            return
        with contextlib.suppress(WorkerLost), lost_workers(self._client):
            self._stop_event.set()
            with contextlib.suppress(TimeoutError, CancelledError):
                wait(futures, timeout=5)
            self._client.cancel(futures, force=True)
            for part in self._parts:
                part.delete() if hasattr(part, "delete") else part.close()

    def result(self) -> Any:
        return self._result

    def close(self) -> None:
        self.stop()
        self._folder.remove()


def watch_rank(
    job: bytes,
    samples: NDArray,
    codes: NDArray,
    checkpoint: bytes | None,
    name: str,
    rank: int,
    size: int,
    address: str,
    meeting: str,
    port: int | None,
    first_epoch: int,
) -> bytes:
    """Run one rank as a child of this worker; the task of `DaskRanks`.

    Parameters
    ----------
    job, samples, codes : bytes, array, array
        As in `DaskRanks`.
    checkpoint : bytes or None
        The state to go on from.
    name : str
        Of the queue, the event and the variable of this attempt.
    rank, size : int
        Which of how many.
    address : str
        The worker that this task is for.
    meeting : str
        The machine of rank 0.
    port : int or None
        The port there.
    first_epoch : int
        The epoch of the checkpoint.

    Returns
    -------
    news : bytes
        The last of what there is to tell.
    """
    from distributed import get_worker

    worker = get_worker()
    if worker.address != address:
        raise WrongWorker(f"the worker {address} of rank {rank} is gone")
    with PrivateFolder(worker.local_directory) as shared:
        folder = shared / "attempt"
        folder.mkdir()
        write_job(shared, job, samples, codes)
        checkpoints = Checkpoints(shared)
        if checkpoint is not None:
            write_whole(checkpoints.path(rank, first_epoch), checkpoint)
        host = Host(
            folder,
            shared,
            [rank],
            size,
            meeting,
            port,
            worker.state.nthreads,
            first_epoch,
            urlsplit(address).hostname or address,
        )
        try:
            return _Watch(name, rank, host, checkpoints, first_epoch).run(worker)
        finally:
            host.kill()


class _Watch:
    """Looks after a rank, and tells what is new."""

    def __init__(
        self, name: str, rank: int, host: Host, checkpoints: Checkpoints, first_epoch: int
    ) -> None:
        from distributed import Event, Queue, Variable, get_client

        client = get_client()
        self._queue = Queue(name, client=client)
        self._stop = Event(name, client=client)
        self._met, self._end = (Event(f"{name}-{end}", client=client) for end in ("met", "end"))
        self._meeting = Variable(name, client=client)
        self._rank, self._host, self._checkpoints = rank, host, checkpoints
        self._n_epochs, self._last_epoch = 0, first_epoch
        self._has_met, self._last_beat, self._last_time = False, 0, time.monotonic()

    def run(self, worker):
        key = worker.get_current_task()
        while True:
            if not self._has_met:
                self._meet()
            if self._rank == 0 and self._end.is_set():
                self._host.ask_to_stop()
            is_over = bool(self._host.failures()) or self._host.is_done()
            news = self._news()
            if is_over or self._stop.wait(timeout=_WATCH_SECONDS) or not _is_wanted(worker, key):
                return cloudpickle.dumps(news)
            if news["epochs"] or news["checkpoints"] or self._is_time(news["beat"]):
                self._queue.put(cloudpickle.dumps(news))

    def _meet(self):
        """Tell the others, or learn, where ranks meet."""
        path = self._host.folder / "address"
        if self._rank == 0 and path.exists():
            self._meeting.set(path.read_text())
            self._met.set()
            self._has_met = True
        elif self._rank != 0 and self._met.is_set():
            write_whole(path, self._meeting.get(timeout=5).encode())
            self._has_met = True

    def _is_time(self, beat):
        if beat == self._last_beat or time.monotonic() < self._last_time + _BEAT_SECONDS:
            return False
        self._last_beat, self._last_time = beat, time.monotonic()
        return True

    def _news(self):
        epochs = self._host.epochs()[self._n_epochs :] if self._rank == 0 else []
        self._n_epochs += len(epochs)
        states = []
        while (path := self._checkpoints.path(self._rank, self._last_epoch + 1)).exists():
            self._last_epoch += 1
            states.append((self._last_epoch, path.read_bytes()))
        return {
            "rank": self._rank,
            "beat": self._host.beats()[self._rank],
            "epochs": epochs,
            "checkpoints": states,
            "failures": self._host.failures(),
            "result": self._host.result() if self._host.is_done() else None,
        }


def _is_wanted(worker, key):
    """Tell whether somebody still waits for this task: its client may be gone."""
    task = worker.state.tasks.get(key)
    return task is not None and task.state in ("executing", "long-running")
