"""Parallel work on blocks of data: one rule for every estimator.

1. A dask cluster, if there is one to use: `client=` was given, joblib's active backend is
   "dask", or the input is a dask array and a client is active. Blocks of data are sent to (or
   already lie on) the workers and stay there; functions and small arguments go to them.
2. Otherwise joblib on this machine: `n_jobs` and `joblib.parallel_config` decide, with threads
   unless the user asks for processes.

Inside a dask task (a grid search under joblib's dask backend) an estimator works on its own
worker: the cluster is busy with the search already.

Every worker gets its share of the cores for BLAS, one thread at least: a BLAS that spins two
threads on two busy cores can be many times slower than one thread. How data is cut into blocks
depends on its shape alone, so the result is the same wherever the blocks are worked on.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, TypeVar, cast

import joblib
import numpy as np
from joblib.parallel import get_active_backend
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from .._optional import optional_import
from ._cluster import WorkerLost, find_workers, lost_workers, repeat_if_lost, wait_for

# Arguments above this size come to each dask worker once, not along with every task.
_LARGE_BYTES = 100_000
# Up to this many terms of a sum are fetched and added here, which takes one round trip less.
_FEW_TERMS = 4
_LOST = ("cancelled", "lost", "error")


@contextlib.contextmanager
def limit_threads(n_threads: int | None = 1) -> Iterator[None]:
    """Limit BLAS, OpenMP and torch threads of this process inside a `with` block.

    Parameters
    ----------
    n_threads : int or None, default=1
        The limit; None changes nothing.
    """
    if n_threads is None:
        yield
        return
    torch = sys.modules.get("torch")  # never imported for its own sake
    # torch first: what it counts is OpenMP's limit, which the second changes.
    with (
        contextlib.nullcontext() if torch is None else _limit_torch(torch, n_threads),
        _controller(len(sys.modules)).limit(limits=n_threads),
    ):
        yield


# The blocks with a limit for torch: the limit and the thread of each. What the process had before
# the first of them is what it has after the last, in whatever order threads leave their blocks.
_TORCH_LIMITS: dict[object, tuple[int, int]] = {}
_TORCH_LOCK = threading.Lock()
_torch_default = 1


@contextlib.contextmanager
def _limit_torch(torch, n_threads):
    global _torch_default
    block, thread = object(), threading.get_ident()
    try:
        with _TORCH_LOCK:
            if not _TORCH_LIMITS:
                _torch_default = torch.get_num_threads()
            _TORCH_LIMITS[block] = n_threads, thread
            torch.set_num_threads(n_threads)
        yield
    finally:
        with _TORCH_LOCK:
            if _TORCH_LIMITS.pop(block, None):
                own = [limit for limit, owner in _TORCH_LIMITS.values() if owner == thread]
                torch.set_num_threads(own[-1] if own else _torch_default)


@functools.lru_cache(maxsize=1)
def _controller(n_modules):
    # Looking for the loaded libraries takes milliseconds, so it is done where modules are new.
    import scipy.linalg  # noqa: F401

    return ThreadpoolController()


def is_dask_array(X: Any) -> bool:
    """Tell whether `X` is a dask array, without importing dask."""
    dask_array = sys.modules.get("dask.array")
    return dask_array is not None and isinstance(X, dask_array.Array)


Method = TypeVar("Method", bound=Callable[..., Any])


def lazily(method: Method) -> Method:
    """Let a method of rows take a dask array, too: the result is one, computed block by block.

    The number of columns is checked at once, on a row of ones that also tells what comes out.
    """

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        if len(given) != 1 or not is_dask_array(given[0]):
            return method(self, *args, **kwargs)
        import dask

        X = given[0]
        found = method(self, np.ones((1, *X.shape[1:]), dtype=X.dtype))
        columns = range(1, X.ndim)
        return X.rechunk(dict.fromkeys(columns, -1)).map_blocks(
            _call_method,
            dask.delayed(self, pure=False, traverse=False),
            method.__name__,
            chunks=(X.chunks[0], *((size,) for size in found.shape[1:])),
            drop_axis=list(columns[found.ndim - 1 :]),
            meta=found[:0],
        )

    return cast(Method, wrapper)


def _call_method(block, model, name):
    return getattr(model, name)(block)


def _has_dask_backend():
    return type(get_active_backend()[0]).__name__ == "DaskDistributedBackend"


def find_client(client: Any = None, *data: Any) -> Any:
    """Find the dask client that work should go to, or None for this machine.

    Parameters
    ----------
    client : distributed.Client or None
        The estimator's `client` parameter, which wins.
    *data : arrays
        The input; a dask array asks for the active client.

    Returns
    -------
    client : distributed.Client or None
        None where no cluster is to be used.
    """
    if client is not None:
        distributed = optional_import("distributed", "client=")
        if not isinstance(client, distributed.Client):
            raise TypeError(
                f"client must be a distributed.Client or None, got {type(client).__name__}."
            )
        return client
    if _inside_dask_task():
        return None
    if _has_dask_backend():
        return get_active_backend()[0].client
    if any(is_dask_array(X) for X in data):
        distributed = optional_import("distributed", "A dask array as input")
        with contextlib.suppress(ValueError):  # no client: computed in this process
            return distributed.get_client()
    return None


def computed(value: Any) -> Any:
    """Return the numbers of a dask array, anything else as it is."""
    if not is_dask_array(value):
        return value
    client = find_client(None, value)
    if client is None:
        return value.compute()

    def compute():
        with lost_workers(client):
            future = client.compute(value)
        wait_for(client, [future])
        with lost_workers(client):
            return future.result()

    return repeat_if_lost(client, compute)


def gather_rows(X: Any, rows: NDArray) -> NDArray:
    """Return some rows of a dask array, in the order of their numbers."""
    order = np.argsort(rows)
    found = np.empty((len(rows), X.shape[1]), X.dtype)
    found[order] = computed(X[rows[order]])
    return found


def exceeds(X: Any, n_cells: int) -> bool:
    """Tell whether `X` is a dask array of dense numbers with more cells than so many."""
    if not is_dask_array(X) or X.ndim != 2 or X.dtype.kind not in "fiub":
        return False
    return isinstance(X._meta, np.ndarray) and bool(X.size > n_cells)


def _inside_dask_task():
    if "distributed" not in sys.modules:
        return False
    from distributed import get_worker

    try:
        get_worker()
    except ValueError:
        return False
    return True


def make_shards(
    blocks: Sequence[Any], *, n_jobs: int | None = None, client: Any = None
) -> LocalShards | DaskShards:
    """Place blocks of data on this machine or on the workers of a cluster.

    Parameters
    ----------
    blocks : sequence
        One item per block, anything that can be pickled; `dask.delayed` objects are computed
        on the workers.
    n_jobs : int or None, default=None
        As in joblib; only for work on this machine.
    client : distributed.Client or None, default=None
        What `find_client` returned.

    Returns
    -------
    shards : LocalShards or DaskShards
        Both have ``map(func, *args, each=None)``, which returns ``[func(block, *args) for each
        block]``, or ``func(block, own, *args)`` with one item of `each` per block; ``sum``, which
        adds them up; and are context managers that release the blocks.
    """
    if client is not None:
        return DaskShards(blocks, client)
    return LocalShards(blocks, n_jobs)


class _Shards:
    """Blocks of data, and functions that are called with each of them."""

    def map(self, func: Callable, *args: Any, each: Sequence[Any] | None = None) -> list:
        """Return ``func(block, *args)`` for every block, in order."""
        return list(self._results(func, args, self._own(each)))

    def sum(self, func: Callable, *args: Any, each: Sequence[Any] | None = None) -> Any:
        """Return the sum of ``func(block, *args)`` over the blocks, in bounded memory."""
        terms = iter(self._results(func, args, self._own(each), to_sum=True))
        total = next(terms)
        for term in terms:
            total += term
        return total

    def _own(self, each):
        return [()] * len(self._blocks) if each is None else [(own,) for own in each]

    # Subclasses return the results of all blocks, or fewer partial sums of them.
    _results: Callable[..., Any]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._blocks: list[Any] = []


class LocalShards(_Shards):
    """Blocks in this process, worked on through joblib."""

    def __init__(self, blocks: Sequence[Any], n_jobs: int | None) -> None:
        self._blocks = [block.compute() if _is_delayed(block) else block for block in blocks]
        self._n_jobs = n_jobs

    def _results(self, func, args, each, to_sum=False):
        if _has_dask_backend():  # joblib would send the blocks to the cluster
            with joblib.parallel_config(backend="threading"):
                yield from self._results(func, args, each, to_sum)
            return
        calls = [(block, *own, *args) for block, own in zip(self._blocks, each, strict=True)]
        n_workers = min(joblib.effective_n_jobs(self._n_jobs), len(calls))
        if n_workers <= 1:
            yield from (func(*call) for call in calls)
            return
        threads = max(1, (os.cpu_count() or 1) // n_workers)
        # The limit holds for threads (set here, it is the process's) and for processes.
        with limit_threads(threads):
            yield from joblib.Parallel(
                n_jobs=self._n_jobs, prefer="threads", return_as="generator"
            )(joblib.delayed(_call)(func, threads, *call) for call in calls)


class DaskShards(_Shards):
    """Blocks kept on the workers of a dask cluster.

    A worker that dies costs time, not the result: blocks that were computed on the cluster are
    computed again by its scheduler, blocks that were sent are sent again.

    Attributes
    ----------
    bytes_moved : int
        Bytes of arguments and results sent between this process and the workers so far. The
        blocks themselves, sent once, are not counted.
    """

    def __init__(self, blocks: Sequence[Any], client: Any) -> None:
        self._client = client
        self._blocks = list(blocks)
        self._futures: list[Any] = [None] * len(self._blocks)
        self.bytes_moved = 0

    def _results(self, func, args, each, to_sum=False):
        return repeat_if_lost(self._client, self._try_results, func, args, each, to_sum)

    def _add_up(self, tasks):
        """Add on the workers, so that only a few sums travel."""
        while len(tasks) > _FEW_TERMS:
            odd = tasks[len(tasks) // 2 * 2 :]
            tasks = [
                self._client.submit(operator.add, left, right, pure=False)
                for left, right in zip(tasks[::2], tasks[1::2], strict=False)
            ] + odd
        return tasks

    def _try_results(self, func, args, each, to_sum):
        with lost_workers(self._client):
            self._place()
            sent, n_bytes = self._send(args)
            tasks = [
                self._client.submit(_call, func, 1, block, *own, *sent, pure=False)
                for block, own in zip(self._futures, each, strict=True)
            ]
            combined = self._add_up(tasks) if to_sum else tasks
        try:
            wait_for(self._client, combined)
            with lost_workers(self._client):
                results = self._client.gather(combined)
        finally:
            with contextlib.suppress(WorkerLost), lost_workers(self._client):
                self._client.cancel([t for t in tasks if not t.done()])
        self.bytes_moved += n_bytes + nbytes(results) + nbytes(each)
        return results

    def _place(self):
        """Send blocks that no worker has, spread evenly; delayed ones are computed there."""
        workers: list[str] = []
        for number, (block, future) in enumerate(zip(self._blocks, self._futures, strict=True)):
            if future is not None and future.status not in _LOST:
                continue
            workers = workers or find_workers(self._client)
            worker = [workers[number % len(workers)]]
            if _is_delayed(block):
                # Left to itself, the scheduler would put blocks of the same rows onto one worker.
                future = self._client.compute(block, workers=worker, allow_other_workers=True)
            else:
                # The block stays here too, so that it can be sent again.
                future = self._client.scatter([block], workers=worker, hash=False)[0]
            self._futures[number] = future

    def _send(self, args):
        """Send large arguments to the cluster once; small ones travel with each task."""
        sent, n_bytes = [], 0
        for arg in args:
            size = nbytes(arg)
            if size > _LARGE_BYTES:
                n_bytes += size * len(find_workers(self._client))
                # Workers fetch it from each other. To broadcast would wait for ever for a dead one.
                arg = self._client.scatter([arg], hash=False)[0]
            else:
                n_bytes += size * len(self._futures)
            sent.append(arg)
        return sent, n_bytes

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        self._futures = []  # the scheduler frees what nobody refers to


def _call(func, n_threads, *args):
    # Arrays that came over the wire may start at odd addresses, which keeps numpy from BLAS.
    with limit_threads(n_threads):
        return func(*map(_aligned, args))


def _aligned(value):
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return np.require(value, requirements="A")
    if isinstance(value, tuple):
        parts = map(_aligned, value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def _is_delayed(block):
    return hasattr(block, "__dask_graph__")


def nbytes(value: Any) -> int:
    """Return the bytes of the numbers in arguments or results."""
    if isinstance(value, (tuple, list)):
        return sum(map(nbytes, value))
    if isinstance(value, bytes):
        return len(value)
    return 0 if value is None else np.asarray(value).nbytes
