"""The process of the ranks of one host, run as a module: FOLDER CHECKPOINTS RANKS EPOCH [STORE].

FOLDER is of this attempt, CHECKPOINTS of all. RANKS are numbers with commas between, EPOCH is
where to go on, and STORE is the number of the open socket where ranks meet, on the host of rank 0.
The rest is in the environment, under the names that torchrun uses. Packages are imported once, then
each rank is a fork of this process, which stays to watch them and to hold the store.

Files of FOLDER: `job` and the data, `epochs`, `heartbeat-RANK`, `failure-RANK`, `result`, `log`,
and `stop` to end training early.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ...utils._fit import Progress
from ...utils._folders import write_whole
from ...utils._pickle import cloudpickle
from ...utils._processes import end_with_parent
from ...utils.validation import page_release
from .._samples import ReadSamples, as_tensor
from ._comm import Heartbeat, is_communication_error, process_group
from ._hosts import Failure, how_ended
from ._rank_net import Checkpoints, train_rank


@dataclass
class RankProgress(Progress):
    """Reports every epoch of rank 0 to the process that started the ranks, through a folder."""

    folder: Path
    rank: int

    def step(self, attributes: Any = None, **figures: float) -> bool:
        """Report an epoch; return whether training should end."""
        if self.rank == 0:
            with open(self.folder / "epochs", "a", encoding="utf-8") as file:
                file.write(json.dumps(figures) + "\n")
        return (self.folder / "stop").exists()


def _run_rank(folder, checkpoints, rank, first_epoch):
    """Do the work of one rank and return the exit code; an error goes to a file."""
    try:
        config = cloudpickle.loads((folder / "job").read_bytes())
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
        samples, release = _open_samples(folder, config.sample_shape)
        codes = np.load(folder / "codes.npy")
        heartbeat, progress = Heartbeat(folder / f"heartbeat-{rank}"), RankProgress(folder, rank)
        resume = {"checkpoints": checkpoints, "first_epoch": first_epoch, "release": release}
        with process_group(config.distributed.timeout, heartbeat) as ranks:
            result = train_rank(config, samples, codes, progress, ranks, **resume)
            if rank == 0:
                write_whole(folder / "result", cloudpickle.dumps(result))
    except BaseException as error:
        try:
            write_whole(folder / f"failure-{rank}", _pickled_failure(rank, error))
        except OSError as full:  # not even that can be written
            return full.errno or 1
        return 1
    return 0


def _open_samples(folder, sample_shape):
    """Return all samples, and what releases the pages of a file."""
    if not (folder / "samples").exists():
        return torch.from_numpy(np.load(folder / "samples.npy", mmap_mode="c")), None
    source = cloudpickle.loads((folder / "samples").read_bytes())
    if isinstance(source, ReadSamples):
        return source, None
    mapped = source.open()
    return as_tensor(mapped, sample_shape), page_release(mapped)


def _pickled_failure(rank, error):
    """Return a failure as bytes, with its text alone where the error cannot be stored."""
    if is_communication_error(error):
        kind, text = "lost", f"{type(error).__name__}: {error}"
    else:
        kind, text = "error", traceback.format_exc()
    try:
        return cloudpickle.dumps(Failure(rank, kind, text, error.with_traceback(None)))
    except Exception:
        return cloudpickle.dumps(Failure(rank, kind, text))


def main(arguments: list[str]) -> int:
    """Start ranks, watch them and note how they end."""
    folder, checkpoints = Path(arguments[0]), Checkpoints(arguments[1])
    ranks, first_epoch = [int(rank) for rank in arguments[2].split(",")], int(arguments[3])
    listeners = [int(listener) for listener in arguments[4:]]
    own, running = os.getpid(), {}
    for local, rank in enumerate(ranks):
        process = os.fork()
        if process == 0:
            end_with_parent(own)
            for listener in listeners:
                os.close(listener)
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(local))
            code = _run_rank(folder, checkpoints, rank, first_epoch)
            sys.stdout.flush()
            os._exit(code)
        running[process] = rank
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    for listener in listeners:
        options: Any = {"wait_for_workers": False, "master_listen_fd": listener}
        _store = dist.TCPStore(address, port, is_master=True, **options)
    while running:
        process, status = os.wait()
        rank, code = running.pop(process), os.waitstatus_to_exitcode(status)
        failure = folder / f"failure-{rank}"
        if code == errno.ENOSPC:
            return code
        if code and not failure.exists():
            killed = Failure(rank, "killed", how_ended(code, folder))
            write_whole(failure, cloudpickle.dumps(killed))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
