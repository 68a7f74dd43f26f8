"""Ranks on the workers of a dask cluster, one on each.

A rank does not run inside of a worker's process but in a child of it: a rank that dies would take
the worker with it, and one that hangs could not be ended. An actor on the worker starts the child
and tells what is new: epochs, checkpoints, failures.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any
from urllib.parse import urlsplit

from ..._actors import ActorLost, DaskActors
from ...utils._cluster import PATIENCE, WorkerLost, find_workers, lost_workers, repeat_if_lost
from ...utils._folders import PrivateFolder
from ._supervise import Failure, LocalRanks, RankError
from ._worker import Checkpoints, write_whole

# Actors are asked no more often than this.
_ASK_SECONDS = 0.2


class RankActor(LocalRanks):
    """A rank as a child of the process that this actor lives in.

    Parameters
    ----------
    rank, size, port, data :
        As in `LocalRanks`.
    checkpoint : (int, bytes or None)
        The epoch and the state to go on from.
    meeting : str
        The machine of rank 0.
    """

    _private: Any = None

    def __init__(
        self, rank: int, size: int, port: Any, data: Any, checkpoint: Any, meeting: str
    ) -> None:
        from distributed import get_worker

        worker = get_worker()
        super().__init__(data, size, port, [rank], worker.local_directory)
        self._rank, self._n_epochs = rank, 0
        if checkpoint[1] is not None:
            self.checkpoints.write(rank, *checkpoint)
        own_address = urlsplit(worker.address).hostname or worker.address
        self._last_epoch = self.start(0, meeting, own_address, worker.state.nthreads)

    def news(self, address: bytes | None, stop: bool) -> dict[str, Any]:
        """Return what is new; the address of the store is for ranks other than the first."""
        if stop:
            self.ask_to_stop()
        path = self.folder / "address"
        if address is not None and not path.exists():
            write_whole(path, address)
        epochs = self.epochs()[self._n_epochs :]
        self._n_epochs += len(epochs)
        (failures, is_done), states = self.poll(), []
        while (state := self.checkpoints.read(self._rank, self._last_epoch + 1)) is not None:
            self._last_epoch += 1
            states.append((self._last_epoch, state))
        return {
            "address": path.read_bytes() if path.exists() else None,
            "beat": self.beats()[self._rank],
            "epochs": epochs,
            "checkpoints": states,
            "failures": failures,
            "is_done": is_done,
            "result": self.result() if is_done else None,
        }

    def __del__(self) -> None:
        # Nobody asks any more: the process that fits may be gone.
        if self._private is not None:
            self.close()


class DaskRanks:
    """Ranks on the workers of a cluster, with the methods of `LocalRanks`.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    data : tuple
        Job, samples and codes.
    options : Distributed
        Its number of workers, their port, and how long to wait for one that comes back.
    """

    def __init__(self, client: Any, data: Any, options: Any) -> None:
        self._client, self._data, self._port = client, data, options.port
        self._size = size = options.n_workers
        self._patience = max(options.timeout, PATIENCE)
        n_workers = len(find_workers(client, size))  # a killed one comes back
        if n_workers < size:
            raise ValueError(
                f"n_workers={size} needs as many workers of the dask cluster, one for each rank, "
                f"but it has {n_workers}."
            )
        self._folder = PrivateFolder()
        self._checkpoints = Checkpoints(self._folder.path)
        self._actors: Any = None

    def start(self, attempt: int) -> int:
        return repeat_if_lost(self._client, self._try_start)

    def _try_start(self):
        workers = find_workers(self._client, self._size, self._patience)
        if len(workers) < self._size:
            raise RankError(
                f"{len(workers)} dask workers are left for n_workers={self._size}, and no other "
                f"came within {self._patience:g} s."
            )
        self._workers = workers[: self._size]
        first_epoch = self._checkpoints.last(range(self._size))
        self._epochs: list[dict[str, float]] = []
        self._news: list[dict[str, Any]] = [{} for _ in range(self._size)]
        self._failures: dict[int, list[Failure]] = {}
        self._address, self._stop, self._next = None, False, 0.0
        meeting = urlsplit(self._workers[0]).hostname
        arguments = []
        for rank in range(self._size):
            checkpoint = first_epoch, self._checkpoints.read(rank, first_epoch)
            arguments.append((rank, self._size, self._port, self._data, checkpoint, meeting))
        self._actors = DaskActors(
            self._client, RankActor, arguments, workers=self._workers, restart=False
        )
        self._actors.__enter__()
        return first_epoch

    def poll(self) -> tuple[list[Failure], bool]:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _ASK_SECONDS
            for rank, news in enumerate(self._actors.ask("news", self._address, self._stop)):
                self._note(rank, news)
        failures = [failure for found in self._failures.values() for failure in found]
        return failures, all(news.get("is_done") for news in self._news) and not failures

    def _note(self, rank, news):
        """Take in what an actor has to tell."""
        if isinstance(news, ActorLost):
            find_workers(self._client)  # raises if it was the scheduler
            lost = f"was lost with its dask worker {self._workers[rank]}"
            self._failures.setdefault(rank, [Failure(rank, "killed", lost)])
            return
        self._news[rank] = news
        self._address = news["address"] or self._address
        self._epochs += news["epochs"]
        if news["failures"]:
            self._failures[rank] = news["failures"]
        for epoch, state in news["checkpoints"]:
            self._checkpoints.write(rank, epoch, state)

    def epochs(self) -> list[dict[str, float]]:
        return self._epochs

    def beats(self) -> dict[int, int]:
        return {rank: news.get("beat", 0) for rank, news in enumerate(self._news)}

    def ask_to_stop(self) -> None:
        self._stop = True

    def stop(self) -> None:
        actors, self._actors = self._actors, None
        if actors is None or self._client.status != "running":
            return
        with contextlib.suppress(WorkerLost), lost_workers(self._client):
            actors.ask("close")
            actors.__exit__()

    def result(self) -> bytes:
        return self._news[0]["result"]

    def close(self) -> None:
        self.stop()
        self._folder.remove()
