"""Calls to a dask cluster that tolerate the loss of workers, and report that of the scheduler."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any

# How long to wait for a worker that its nanny starts again, or for a scheduler to answer.
PATIENCE = 45.0
_LOOK_EVERY = 2.0
# How often work that was lost with a worker is done again before giving up.
_MAX_REPEATS = 6
_CLOSED = ("closing", "closed")


class WorkerLost(Exception):
    """A worker died, and took data or a task with it."""


def find_workers(client: Any, n_workers: int = 1, seconds: float = PATIENCE) -> list[str]:
    """Return the sorted addresses of the workers of a cluster.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    n_workers : int, default=1
        How many are waited for.
    seconds : float, default=45
        For how long. Fewer are returned after that, but not none.

    Returns
    -------
    addresses : list of str
        At least one.
    """
    end = time.monotonic() + seconds
    scheduler_end = time.monotonic() + PATIENCE
    while True:
        workers: dict[str, Any] = {}
        if client.status == "running":
            with contextlib.suppress(OSError):
                workers = client.scheduler_info(n_workers=-1)["workers"]
        # Without its scheduler, a client returns what it knew before.
        if client.status == "running" and len(workers) >= n_workers:
            return sorted(workers)
        now = time.monotonic()
        if client.status in _CLOSED or (client.status != "running" and now > scheduler_end):
            raise RuntimeError(
                f"the scheduler of the dask cluster at {_address(client)} does not answer: it "
                "has ended, or the connection is lost. Start the cluster, connect a new client "
                "to it, and fit again."
            )
        if client.status == "running" and now > end:
            if workers:
                return sorted(workers)
            raise RuntimeError(
                f"the dask cluster at {_address(client)} has had no worker for {seconds:g} s: "
                "start workers, and fit again."
            )
        time.sleep(0.1)


def _address(client):
    if client.scheduler is not None:
        return client.scheduler.address
    # A client that has closed only knows what it was made from.
    return getattr(client.cluster, "scheduler_address", client._start_arg)


@contextlib.contextmanager
def lost_workers(client: Any) -> Iterator[None]:
    """Turn the errors of calls to a cluster into `WorkerLost`.

    No result of a task is looked at inside: its error would be taken for one of the cluster.
    """
    from distributed.scheduler import KilledWorker

    try:
        yield
    except (CancelledError, KilledWorker, OSError, KeyError) as error:
        raise WorkerLost(str(error)) from error
    except RuntimeError as error:
        if client.status == "running":
            raise
        raise WorkerLost(str(error)) from error


def wait_for(client: Any, futures: Sequence[Any]) -> None:
    """Wait until tasks are done; raise the error of a task, or `WorkerLost`."""
    from distributed import wait
    from distributed.scheduler import KilledWorker

    with lost_workers(client):
        while any(future.status == "pending" for future in futures):
            if client.status != "running":  # what was sent while it is connecting may be lost
                raise OSError("the connection to the scheduler is lost")
            with contextlib.suppress(TimeoutError):
                wait(futures, timeout=_LOOK_EVERY)
    for future in futures:
        if future.status == "error":
            error = future.exception()
            if isinstance(error, KilledWorker):
                raise WorkerLost(str(error)) from error
            raise error
        if future.status != "finished":
            raise WorkerLost(f"a task was {future.status}")


def repeat_if_lost(client: Any, call: Callable, *args: Any) -> Any:
    """Return ``call(*args)``, tried again where it raises `WorkerLost`."""
    for attempt in range(_MAX_REPEATS):
        if attempt:
            time.sleep(0.1 * 2**attempt)  # a worker may be starting again
            find_workers(client)
        try:
            return call(*args)
        except WorkerLost as error:
            lost = error
    raise RuntimeError(
        f"work on the dask cluster at {_address(client)} was lost with its workers {_MAX_REPEATS} "
        f"times in a row, at last: {lost}. The cluster is not stable: look at the logs of its "
        "workers, which may be short of memory."
    ) from lost
