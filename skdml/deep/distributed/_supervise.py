"""Starting and supervising ranks: their processes, restarts, progress, and one clear error."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass, fields, replace
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from ...utils._folders import PrivateFolder, full_disk, open_private
from ...utils._parallel import find_client
from ...utils._pickle import cloudpickle
from ...utils._processes import command_of_child
from ...utils._torch import seeded_torch
from ...utils.validation import page_release
from .._build import Config, build_net
from .._samples import ReadSamples, find_file
from .._train import EpochCallback
from . import world_size
from ._comm import Heartbeat, process_group
from ._worker import Checkpoints, train_rank, write_whole

# How often processes are looked after, and how long the cause of a failure is looked for.
POLL_SECONDS = 0.05
GRACE_SECONDS = 4.0
_HERE = "127.0.0.1"


@dataclass
class Failure:
    """How a rank failed.

    Attributes
    ----------
    rank : int
        Which.
    kind : {"error", "killed", "lost"}
        By an error of its own, by a signal (or with its machine), or for want of another rank.
    text : str
        What there is to say.
    error : exception or None
        The error itself, if it could be stored.
    """

    rank: int
    kind: str
    text: str
    error: BaseException | None = None


class RankError(RuntimeError):
    """A rank of a distributed fit died or hangs, and may not start again."""


class LocalRanks:
    """Ranks on this machine, in a folder that is removed with them.

    Parameters
    ----------
    data : tuple
        Job, samples and codes: arrays, or bytes of what is pickled.
    size : int
        The number of ranks.
    port : int or None
        Where they meet, None for a free one.
    ranks : sequence of int, default=None
        Those to start here; None: all.
    parent : str, default=None
        Where to make the folder.
    """

    _process: Any = None

    def __init__(
        self, data: Any, size: int, port: Any, ranks: Any = None, parent: str | None = None
    ) -> None:
        if not hasattr(os, "fork"):
            raise OSError("n_workers above 1 needs a system that can fork processes.")
        self._size, self._port, self.ranks = size, port, ranks or range(size)
        self._private = PrivateFolder(parent)
        self._shared = self._private.path
        self.checkpoints = Checkpoints(self._shared)
        try:
            for name, part in zip(("job", "samples", "codes"), data, strict=True):
                if isinstance(part, bytes):
                    write_whole(self._shared / name, part)
                    continue
                with open_private(self._shared / f"{name}.npy") as file:
                    np.save(file, part)
        except BaseException:
            self.close()
            raise

    def start(
        self, attempt: int, address: str = _HERE, own_address: str = _HERE, threads: int = 0
    ) -> int:
        """Start the ranks, and return the epoch from which they go on.

        Parameters
        ----------
        attempt : int
            Its number.
        address : str, default="127.0.0.1"
            Where rank 0 waits for the others.
        own_address : str, default="127.0.0.1"
            The address of this machine at which its ranks listen, and nowhere else.
        threads : int, default=0
            Threads of each rank; 0 shares the cores.
        """
        self.folder = self._shared / f"attempt-{attempt}"
        self.folder.mkdir()
        first_epoch = self.checkpoints.last(self.ranks)
        variables = {
            **os.environ,
            # Children find what this process can import, such as a module beside a script.
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "WORLD_SIZE": str(self._size),
            "LOCAL_WORLD_SIZE": str(len(self.ranks)),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(self._port or 0),
            "OMP_NUM_THREADS": str(threads or max(1, (os.cpu_count() or 1) // self._size)),
        }
        interface = _interface_of(own_address)
        if interface is not None and ("GLOO_SOCKET_IFNAME" not in variables or _is_local(address)):
            variables["GLOO_SOCKET_IFNAME"] = interface
        arguments = self.folder, self._shared, ",".join(map(str, self.ranks)), first_epoch
        command = command_of_child("skdml.deep.distributed._worker", *map(str, arguments))
        with open(self.folder / "log", "ab") as log:
            # In a session of their own: Ctrl-C in a terminal is for the process that fits.
            self._process = subprocess.Popen(
                command, env=variables, stderr=log, start_new_session=True
            )
        return first_epoch

    def beats(self) -> dict[int, int]:
        """Return how far each rank has come."""
        return {rank: Heartbeat.read(self.folder / f"heartbeat-{rank}") for rank in self.ranks}

    def epochs(self) -> list[dict[str, float]]:
        """Return the figures of the epochs that are done in this attempt."""
        with contextlib.suppress(OSError):
            text = (self.folder / "epochs").read_text(encoding="utf-8")
            return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]
        return []

    def ask_to_stop(self) -> None:
        """Let training end with the next epoch."""
        (self.folder / "stop").touch()

    def poll(self) -> tuple[list[Failure], bool]:
        """Return how ranks failed so far, and whether all ended well."""
        of_process, found = self._process.poll(), []
        is_done = of_process is not None
        for rank in self.ranks:
            error, code = self.folder / f"error-{rank}", self.folder / f"exit-{rank}"
            is_noted = code.exists()
            status = int(code.read_text()) if is_noted else of_process
            is_done = is_done and is_noted and status == 0
            if error.exists():
                report = cloudpickle.loads(error.read_bytes())
                kind = "lost" if report["is_lost"] else "error"
                text = report["text"] if report["is_lost"] else report["traceback"]
                found.append(Failure(rank, kind, text, report["error"]))
            elif status == errno.ENOSPC:
                error_of_disk = full_disk(self.folder)
                found.append(Failure(rank, "error", str(error_of_disk), error_of_disk))
            elif status or (status == 0 and not is_noted):
                found.append(Failure(rank, "killed", f"{_how_ended(status)}{self._log()}"))
        return found, is_done

    def _log(self):
        """Return the last lines that the processes wrote about errors."""
        lines = (self.folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()
        lines = [line for line in lines if "Warning" not in line][-5:]
        return "".join(f"\n  {line}" for line in lines)

    def result(self) -> bytes | None:
        """Return what rank 0 has left, if it runs here."""
        path = self.folder / "result"
        return path.read_bytes() if path.exists() else None

    def stop(self) -> None:
        """End all processes at once, also those that hang."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        """Leave no trace."""
        self.stop()
        self._private.remove()


def _is_local(address):
    """Tell whether an address is of this machine alone."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _interface_of(address):
    """Return the network interface with an address, None if there is none."""
    if _is_local(address):
        return "lo" if sys.platform == "linux" else "lo0"
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.split("%")[0] == address for one in addresses):
            return name
    return None


def _how_ended(status):
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with exit code {status}"


def train_ranks(
    config: Config, X: Any, samples: Any, codes: NDArray, progress: Any
) -> tuple[Any, dict[str, Any]]:
    """Train on several ranks, of which this process may be one.

    Parameters
    ----------
    config : Config
        With the options of distributed training.
    X : array or ReadSamples
        The samples as they came. Ranks map the file of a memory map themselves, and read samples
        of a Dataset or a loader themselves.
    samples, codes : tensor or ReadSamples, array
        Samples and class numbers.
    progress : FitProgress
        Told of each epoch.

    Returns
    -------
    net : MetricNet
        As a fit in one process leaves it.
    figures : dict
        Fitted attributes that only several ranks have.
    """
    if config.coreset is not None:
        raise ValueError(
            f"coreset={config.coreset.fraction} is chosen in one process: leave n_workers at 1, "
            "or coreset at None."
        )
    if world_size() > 1:
        result = _train_in_group(config, samples, codes, progress, release=page_release(X))
    else:
        result = _launch(config, X, samples, codes, progress)
        for category, message in result["warnings"]:
            warnings.warn(message, category, stacklevel=4)
    n_batches = len(result["history"][0]["batches"])
    with seeded_torch(config.seed):
        net = build_net(config, EpochCallback(), n_batches)
        net.initialize()
    net.history.extend(result["history"])
    for name, state in result["parts"].items():
        getattr(net, name).load_state_dict(state)
    return net, result["figures"]


def _train_in_group(config, samples, codes, progress, release):
    """Train as one of the processes that torchrun has started."""
    with process_group(config.distributed.timeout) as ranks:
        own = len(samples), tuple(samples.shape), codes.tolist()
        seed, *of_first = ranks.object_of_first((config.seed, *own))
        if ranks.any(tuple(of_first) != own):
            raise ValueError(
                "X or y differ between the processes: all must call fit with all of the data, as "
                "batches are drawn from it by rank."
            )
        config = replace(config, seed=seed)
        return train_rank(config, samples, codes, progress, ranks, release=release)


def _launch(config, X, samples, codes, progress):
    """Start the ranks on a dask cluster or on this machine, and return the result of rank 0."""
    options = config.distributed
    client = find_client(options.client)
    _warn_of_idle_ranks(config, codes, joblib.cpu_count() if client is None else None)
    source = X if isinstance(X, ReadSamples) else find_file(X)
    stored = samples.numpy() if source is None else _pickled("X", source, options.n_workers)
    data = make_job(config), stored, codes
    ranks: Any
    if client is None:
        ranks = LocalRanks(data, options.n_workers, options.port)
    else:
        from ._dask import DaskRanks

        ranks = DaskRanks(client, data, options)
    try:
        return _supervise(ranks, options.max_restarts, options.timeout, progress)
    finally:
        ranks.close()


def _warn_of_idle_ranks(config, codes, n_cores):
    size = config.distributed.n_workers
    if n_cores is not None and size > n_cores:
        warnings.warn(
            f"n_workers={size}, but this machine has {n_cores} cores to use: ranks will take "
            f"turns, and more than {n_cores} are no faster.",
            UserWarning,
            stacklevel=5,
        )
    n_classes = min(config.classes_per_batch, int(codes.max()) + 1)
    batch_size = n_classes * config.samples_per_class
    if size * batch_size > len(codes):
        warnings.warn(
            f"n_workers={size} with batches of {batch_size} samples take {size * batch_size} "
            f"samples in a step, but X has {len(codes)}: ranks train on the same ones. "
            f"n_workers={max(1, len(codes) // batch_size)} is enough, or use smaller batches "
            "(classes_per_batch, samples_per_class).",
            UserWarning,
            stacklevel=5,
        )


def make_job(config: Config) -> bytes:
    """Return a configuration as bytes, for other processes."""
    n_workers = config.distributed.n_workers
    try:
        return cloudpickle.dumps(config)
    except Exception:
        params = {each.name: getattr(config, each.name) for each in fields(config)}
        for name, value in {**params, **params.pop("part_params")}.items():
            _pickled(name, value, n_workers)
        raise


def _pickled(name, value, n_workers):
    try:
        return cloudpickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"{name} cannot be sent to other processes, as n_workers={n_workers} needs: {error}"
        ) from error


def _supervise(ranks, max_restarts, timeout, progress):
    """Run ranks to their end, with restarts, and return the result of rank 0."""
    n_shown = 0
    progress.begin()
    for attempt in range(max_restarts + 1):
        first_epoch = ranks.start(attempt)
        while True:
            failures, is_done = ranks.poll()
            n_shown = _show(ranks, first_epoch, n_shown, progress)
            if failures or is_done:
                break
            time.sleep(POLL_SECONDS)
        if not failures:
            return cloudpickle.loads(ranks.result())
        cause = _find_cause(ranks, failures, timeout)
        ranks.stop()
        if cause.kind == "error":
            raise _error_of(cause)
        if attempt < max_restarts:
            warnings.warn(
                f"rank {cause.rank} {cause.text.splitlines()[0]}; training starts again, restart "
                f"{attempt + 1} of {max_restarts}.",
                RuntimeWarning,
                stacklevel=6,
            )
    raise RankError(
        f"rank {cause.rank} {cause.text}\nTraining has been started again {max_restarts} times, as "
        f"max_restarts={max_restarts} allows."
    )


def _show(ranks, first_epoch, n_shown, progress):
    """Report epochs that are new; those that an attempt repeats are known."""
    for number, figures in enumerate(ranks.epochs(), first_epoch + 1):
        if number > n_shown:
            n_shown = number
            if progress.step(**figures):
                ranks.ask_to_stop()
            elif n_shown < progress.total:
                progress.begin()
    return n_shown


def _find_cause(ranks, failures, timeout):
    """Return the failure that caused the others, after a moment in which it may show."""
    end = time.monotonic() + GRACE_SECONDS
    while all(failure.kind == "lost" for failure in failures) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
        failures, _ = ranks.poll()
    first = {failure.kind: failure for failure in reversed(failures)}
    if "error" in first or "killed" in first:
        return first.get("error") or first["killed"]
    # The rank behind the others is what they wait for.
    beats, lost = ranks.beats(), {failure.rank for failure in failures}
    behind = min(beats, key=lambda rank: (beats[rank], rank in lost))
    return Failure(behind, "killed", f"did not answer for {timeout:g} s")


def _error_of(cause):
    if cause.error is None:
        return RuntimeError(f"rank {cause.rank} failed:\n{cause.text}")
    cause.error.add_note(f"Raised on rank {cause.rank}:\n{cause.text}")
    return cause.error
