"""The process of one or more ranks, run as a module: FOLDER SHARED RANKS EPOCH.

FOLDER is of this attempt and SHARED of all attempts; both may be the same machine's temporary
folder for all ranks. RANKS are numbers with commas between, EPOCH is where to go on. The rest is
in the environment, under the names that torchrun uses. Packages are imported once, then each rank
is a fork of this process, which stays to watch them and to hold the store where they meet.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from ..utils._fit import Progress
from ..utils._processes import end_with_parent
from ._pickle import cloudpickle
from ._rank_net import COUNTED, Checkpoints, write_whole
from ._ranks import CHANNELS, Heartbeat, Ranks, is_communication_error

# Processes may take long to import packages before they meet.
START_SECONDS = 180.0


@contextlib.contextmanager
def process_group(timeout: float, heartbeat: Heartbeat | None = None) -> Iterator[Ranks]:
    """Join the other ranks, as the environment says, and leave them at the end.

    Parameters
    ----------
    timeout : float
        Seconds after which waiting for another rank is an error.
    heartbeat : Heartbeat, default=None
        See `Ranks`.

    Yields
    ------
    ranks : Ranks
        The processes.
    """
    is_ours = not dist.is_initialized()
    if is_ours:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        patience = timedelta(seconds=max(timeout, START_SECONDS))
        dist.init_process_group(backend, timeout=patience)
    try:
        ranks = Ranks(timeout, heartbeat)
        yield ranks
        ranks.barrier()
        ranks.close()
    finally:
        if is_ours:
            dist.destroy_process_group()


class RankProgress(Progress):
    """Tells whoever started the ranks of every epoch, through files.

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
    estimator: Any,
    samples: torch.Tensor,
    codes: NDArray,
    seed: int,
    progress: Any,
    ranks: Ranks,
    checkpoints: Checkpoints | None = None,
    first_epoch: int = 0,
) -> dict[str, Any]:
    """Train as one of several ranks.

    Parameters
    ----------
    estimator : DeepMetricEmbedder
        With checked input.
    samples, codes : tensor, array
        All samples and class numbers, the same on all ranks.
    seed : int
        The same on all ranks.
    progress : object
        Has a method `step`.
    ranks : Ranks
        The processes.
    checkpoints : Checkpoints, default=None
        Where the state goes after each epoch.
    first_epoch : int, default=0
        The epoch to go on from.

    Returns
    -------
    result : dict
        The trained state, the same on all ranks.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator._fit_net(
            samples,
            codes,
            seed,
            progress,
            ranks=ranks,
            checkpoints=checkpoints,
            first_epoch=first_epoch,
        )
    net = estimator.net_
    net.agree()
    counts = ranks.all_objects(net.counts)
    loss = net.criterion_.loss.loss
    mean = {
        name: float(np.mean([own[name] / max(own["steps"], 1) for own in counts]))
        for name in COUNTED
    }
    return {
        "module_": _to_cpu(net.module_.state_dict()),
        "optimizer_": _to_cpu(net.optimizer_.state_dict()),
        "loss": _to_cpu(loss.state_dict()) if isinstance(loss, torch.nn.Module) else {},
        "history": list(net.history),
        "consensus": list(net.consensus),
        "traffic": {name: mean[name] for name in CHANNELS},
        "timing": {
            "compute": mean["seconds"] - mean["communication"],
            "communication": mean["communication"],
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


def run_rank(folder: Path, shared: Path, rank: int, first_epoch: int) -> int:
    """Do the work of one rank and return the exit code; an error goes to a file."""
    try:
        _await_address(folder)
        job = cloudpickle.loads((shared / "job").read_bytes())
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
        samples = torch.from_numpy(np.load(shared / "samples.npy", mmap_mode="c"))
        codes = np.load(shared / "codes.npy")
        heartbeat = Heartbeat(folder / f"heartbeat-{rank}")
        with process_group(job["timeout"], heartbeat) as ranks:
            result = train_rank(
                job["estimator"],
                samples,
                codes,
                job["seed"],
                RankProgress(folder, rank),
                ranks,
                Checkpoints(shared),
                first_epoch,
            )
            if rank == 0:
                write_whole(folder / "result", cloudpickle.dumps(result))
    except BaseException as error:
        try:
            write_whole(folder / f"error-{rank}", _report(error))
        except OSError as full:  # not even that can be written
            return full.errno or 1
        return 1
    return 0


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
        store = dist.TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
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
            code = run_rank(folder, shared, rank, first_epoch)
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
