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

from numpy.typing import NDArray

from ..._actors import ActorLost, DaskActors
from ..._cluster import PATIENCE, WorkerLost, find_workers, lost_workers, repeat_if_lost
from ...utils._folders import PrivateFolder
from ._supervise import Failure, Host, RankError, write_job
from ._worker import Checkpoints, write_whole

# Actors are asked no more often than this.
_ASK_SECONDS = 0.2


class RankActor:
    """A rank as a child of the process that this actor lives in.

    Parameters
    ----------
    rank, size : int
        Which of how many.
    data : tuple
        Job, samples and codes.
    checkpoint : bytes or None
        The state to go on from.
    first_epoch : int
        Its epoch.
    meeting : str
        The machine of rank 0.
    port : int or None
        The port there.
    """

    _host: Any = None

    def __init__(
        self,
        rank: int,
        size: int,
        data: tuple[bytes, NDArray, NDArray],
        checkpoint: bytes | None,
        first_epoch: int,
        meeting: str,
        port: int | None,
    ) -> None:
        from distributed import get_worker

        worker = get_worker()
        self._rank, self._n_epochs, self._last_epoch = rank, 0, first_epoch
        self._folder = PrivateFolder(worker.local_directory)
        shared = self._folder.path
        write_job(shared, *data)
        self._checkpoints = Checkpoints(shared)
        if checkpoint is not None:
            write_whole(self._checkpoints.path(rank, first_epoch), checkpoint)
        (shared / "attempt").mkdir()
        self._host = Host(
            shared / "attempt",
            shared,
            [rank],
            size,
            meeting,
            port,
            worker.state.nthreads,
            first_epoch,
            urlsplit(worker.address).hostname or worker.address,
        )

    def news(self, address: bytes | None, stop: bool) -> dict[str, Any]:
        """Return what is new; the address of the store is for ranks other than the first."""
        if stop and self._rank == 0:
            self._host.ask_to_stop()
        path = self._host.folder / "address"
        if address is not None and not path.exists():
            write_whole(path, address)
        epochs = self._host.epochs()[self._n_epochs :] if self._rank == 0 else []
        self._n_epochs += len(epochs)
        is_done, states = self._host.is_done(), []
        while (state := self._checkpoints.path(self._rank, self._last_epoch + 1)).exists():
            self._last_epoch += 1
            states.append((self._last_epoch, state.read_bytes()))
        return {
            "address": path.read_bytes() if self._rank == 0 and path.exists() else None,
            "beat": self._host.beats()[self._rank],
            "epochs": epochs,
            "checkpoints": states,
            "failures": self._host.failures(),
            "is_done": is_done,
            "result": self._host.result() if is_done else None,
        }

    def close(self) -> None:
        """End the rank, and remove its files."""
        host, self._host = self._host, None
        if host is not None:
            host.kill()
            self._folder.remove()

    def __del__(self) -> None:
        # Nobody asks any more: the process that fits may be gone.
        if self._host is not None:
            self.close()


class DaskRanks:
    """Ranks on the workers of a cluster.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    job : bytes
        The configuration.
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
        first_epoch = self._checkpoints.last(self._size)
        self._epochs: list[dict[str, float]] = []
        self._news: list[dict[str, Any]] = [{} for _ in range(self._size)]
        self._failures: dict[int, list[Failure]] = {}
        self._address, self._stop, self._next = None, False, 0.0
        arguments = [
            (
                rank,
                self._size,
                self._data,
                self._checkpoints.path(rank, first_epoch).read_bytes() if first_epoch else None,
                first_epoch,
                urlsplit(self._workers[0]).hostname,
                self._port,
            )
            for rank in range(self._size)
        ]
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
            write_whole(self._checkpoints.path(rank, epoch), state)
            self._checkpoints.remove_old(rank, epoch)

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
