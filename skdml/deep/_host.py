"""Starting the processes of ranks, and finding out how they end."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..utils._folders import full_disk
from ..utils._processes import command_of_child
from ._pickle import cloudpickle
from ._ranks import Heartbeat


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


class Host:
    """The processes of some ranks on this machine.

    Parameters
    ----------
    folder : path-like
        Of this attempt: events, errors and the result.
    shared : path-like
        Of all attempts: the job, the data and the checkpoints.
    ranks : list of int
        Which ranks to start here.
    size : int
        How many there are in all.
    address : str
        Where rank 0 waits for the others.
    port : int or None
        Its port, None for a free one.
    threads : int
        Threads of each rank.
    first_epoch : int
        The epoch to go on from.
    own_address : str, default="127.0.0.1"
        The address of this machine at which its ranks listen, and nowhere else.
    """

    def __init__(
        self,
        folder: Any,
        shared: Any,
        ranks: list[int],
        size: int,
        address: str,
        port: int | None,
        threads: int,
        first_epoch: int,
        own_address: str = "127.0.0.1",
    ) -> None:
        if not hasattr(os, "fork"):
            raise OSError("n_workers above 1 needs a system that can fork processes.")
        self.folder, self.ranks = Path(folder), ranks
        variables = {
            **os.environ,
            # Children find what this process can import, such as a module beside a script.
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(len(ranks)),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port or 0),
            "OMP_NUM_THREADS": str(threads),
        }
        interface = _interface_of(own_address)
        if interface is not None and ("GLOO_SOCKET_IFNAME" not in variables or is_local(address)):
            variables["GLOO_SOCKET_IFNAME"] = interface
        numbers = ",".join(map(str, ranks))
        command = command_of_child(
            "skdml.deep._rank", str(folder), str(shared), numbers, str(first_epoch)
        )
        with open(self.folder / "log", "ab") as log:
            # In a session of their own: Ctrl-C in a terminal is for the process that fits.
            self._process = subprocess.Popen(
                command, env=variables, stderr=log, start_new_session=True
            )

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

    def failures(self) -> list[Failure]:
        """Return how ranks failed so far."""
        is_gone = self._process.poll() is not None
        found = []
        for rank in self.ranks:
            error, code = self.folder / f"error-{rank}", self.folder / f"exit-{rank}"
            if error.exists():
                report = cloudpickle.loads(error.read_bytes())
                kind = "lost" if report["is_lost"] else "error"
                text = report["text"] if report["is_lost"] else report["traceback"]
                found.append(Failure(rank, kind, text, report["error"]))
            elif code.exists() or is_gone:
                status = int(code.read_text()) if code.exists() else self._process.poll()
                if status == errno.ENOSPC:
                    error_of_disk = full_disk(self.folder)
                    found.append(Failure(rank, "error", str(error_of_disk), error_of_disk))
                elif status or not code.exists():
                    found.append(Failure(rank, "killed", f"{_how_ended(status)}{self._log()}"))
        return found

    def _log(self):
        """Return the last lines that the processes wrote about errors."""
        lines = (self.folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()
        lines = [line for line in lines if "Warning" not in line][-5:]
        return "".join(f"\n  {line}" for line in lines)

    def is_done(self) -> bool:
        """Tell whether all ranks ended well."""
        return self._process.poll() is not None and all(
            (self.folder / f"exit-{rank}").exists()
            and (self.folder / f"exit-{rank}").read_text() == "0"
            for rank in self.ranks
        )

    def result(self) -> bytes | None:
        """Return what rank 0 has left, if it runs here."""
        path = self.folder / "result"
        return path.read_bytes() if path.exists() else None

    def kill(self) -> None:
        """End all processes at once, also those that hang."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def is_local(address: str) -> bool:
    """Tell whether an address is of this machine alone."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _interface_of(address):
    """Return the network interface with an address, None if there is none."""
    if is_local(address):
        return "lo" if sys.platform == "linux" else "lo0"
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.split("%")[0] == address for one in addresses):
            return name
    return None


def _how_ended(status: int | None) -> str:
    if status is not None and status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with exit code {status}"


def find_cause(failures: list[Failure], beats: dict[int, int], timeout: float) -> Failure:
    """Return the failure that caused the others.

    Parameters
    ----------
    failures : list of Failure
        All that are known; at least one.
    beats : dict
        How far each rank has come. The one behind the others is what they wait for.
    timeout : float
        Seconds that they waited.

    Returns
    -------
    failure : Failure
        Of kind "error" or "killed".
    """
    for kind in ("error", "killed"):
        for failure in failures:
            if failure.kind == kind:
                return failure
    behind = min(beats, key=lambda rank: (beats[rank], rank in {f.rank for f in failures}))
    return Failure(behind, "killed", f"did not answer for {timeout:g} s")
