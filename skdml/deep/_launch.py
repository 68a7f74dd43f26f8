"""Starting ranks on this machine, and what all launchers share: restarts, progress, one error."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any, Protocol

import joblib
import numpy as np
import torch
from numpy.typing import NDArray

from .._parallel import find_client
from ..utils._folders import PrivateFolder, open_private
from ._host import Failure, Host, RankError, find_cause
from ._pickle import cloudpickle
from ._rank_net import Checkpoints, write_whole

# How often processes are looked after, and how long the cause of a failure is looked for.
POLL_SECONDS = 0.05
GRACE_SECONDS = 4.0


class Crew(Protocol):
    """The ranks of a fit, wherever they run."""

    def start(self, attempt: int) -> int:
        """Start all ranks, and return the epoch from which they go on."""

    def poll(self) -> tuple[list[Failure], bool]:
        """Return the failures so far, and whether all is done."""

    def epochs(self) -> list[dict[str, float]]:
        """Return the figures of the epochs of this attempt."""

    def beats(self) -> dict[int, int]:
        """Return how far each rank has come."""

    def ask_to_stop(self) -> None:
        """Let training end with the next epoch."""

    def stop(self) -> None:
        """End all ranks now."""

    def result(self) -> bytes:
        """Return what rank 0 has left."""

    def close(self) -> None:
        """Leave no trace."""


class LocalCrew:
    """Ranks on this machine.

    Parameters
    ----------
    job : bytes
        What a rank must know.
    samples, codes : arrays
        The data.
    size : int
        The number of ranks.
    port : int or None
        Where they meet.
    """

    def __init__(
        self, job: bytes, samples: NDArray, codes: NDArray, size: int, port: int | None
    ) -> None:
        self._size, self._port = size, port
        self._host: Any = None
        self._folder = PrivateFolder()
        self._shared = self._folder.path
        try:
            write_job(self._shared, job, samples, codes)
        except BaseException:
            self.close()
            raise

    def start(self, attempt: int) -> int:
        folder = self._shared / f"attempt-{attempt}"
        folder.mkdir()
        first_epoch = Checkpoints(self._shared).last(self._size)
        self._host = Host(
            folder,
            self._shared,
            list(range(self._size)),
            self._size,
            "127.0.0.1",
            self._port,
            max(1, (os.cpu_count() or 1) // self._size),
            first_epoch,
        )
        return first_epoch

    def poll(self) -> tuple[list[Failure], bool]:
        return self._host.failures(), self._host.is_done()

    def epochs(self) -> list[dict[str, float]]:
        return self._host.epochs()

    def beats(self) -> dict[int, int]:
        return self._host.beats()

    def ask_to_stop(self) -> None:
        self._host.ask_to_stop()

    def stop(self) -> None:
        if self._host is not None:
            self._host.kill()

    def result(self) -> bytes:
        return self._host.result()

    def close(self) -> None:
        self.stop()
        self._folder.remove()


def write_job(folder: Path, job: bytes, samples: NDArray, codes: NDArray) -> None:
    """Write what ranks of a machine read."""
    write_whole(folder / "job", job)
    for name, array in (("samples.npy", samples), ("codes.npy", codes)):
        with open_private(folder / name) as file:
            np.save(file, array)


def launch(
    estimator: Any, samples: torch.Tensor, codes: NDArray, seed: int, progress: Any
) -> dict[str, Any]:
    """Train on several ranks: on a dask cluster, or on this machine.

    Parameters
    ----------
    estimator : DeepMetricEmbedder
        With checked input.
    samples, codes : tensor, array
        Samples and class numbers.
    seed : int
        Seeds all.
    progress : FitProgress
        Told of each epoch.

    Returns
    -------
    result : dict
        Of `train_rank`.
    """
    client = find_client(estimator.client)
    _warn_of_idle_ranks(estimator, codes, joblib.cpu_count() if client is None else None)
    job = make_job(estimator, seed)
    crew: Crew
    if client is None:
        crew = LocalCrew(job, samples.numpy(), codes, estimator.n_workers, estimator.port)
    else:
        from ._launch_dask import DaskCrew

        crew = DaskCrew(
            client,
            job,
            samples.numpy(),
            codes,
            estimator.n_workers,
            estimator.port,
            estimator.timeout,
        )
    try:
        return supervise(crew, estimator.max_restarts, estimator.timeout, progress)
    finally:
        crew.close()


def _warn_of_idle_ranks(estimator, codes, n_cores):
    size = estimator.n_workers
    if n_cores is not None and size > n_cores:
        warnings.warn(
            f"n_workers={size}, but this machine has {n_cores} cores to use: ranks will take "
            f"turns, and more than {n_cores} are no faster.",
            UserWarning,
            stacklevel=5,
        )
    n_classes = min(estimator.classes_per_batch, int(codes.max()) + 1)
    batch_size = n_classes * estimator.samples_per_class
    if size * batch_size > len(codes):
        warnings.warn(
            f"n_workers={size} with batches of {batch_size} samples take {size * batch_size} "
            f"samples in a step, but X has {len(codes)}: ranks train on the same ones. "
            f"n_workers={max(1, len(codes) // batch_size)} is enough, or use smaller batches "
            "(classes_per_batch, samples_per_class).",
            UserWarning,
            stacklevel=5,
        )


def make_job(estimator: Any, seed: int) -> bytes:
    """Return what a rank must know, as bytes."""
    params = {**estimator.get_params(deep=False), "client": None, "random_state": None}
    params["n_workers"] = 1
    bare = type(estimator)(**params)
    for name in ("_sample_shape", "classes_", "n_features_in_"):
        setattr(bare, name, getattr(estimator, name))
    job = {"estimator": bare, "seed": seed, "timeout": float(estimator.timeout)}
    try:
        return cloudpickle.dumps(job)
    except Exception as error:
        for name, value in params.items():
            try:
                cloudpickle.dumps(value)
            except Exception:
                raise TypeError(
                    f"{name} cannot be sent to other processes, as n_workers={estimator.n_workers} "
                    f"needs: {error}"
                ) from error
        raise


def supervise(crew: Crew, max_restarts: int, timeout: float, progress: Any) -> dict[str, Any]:
    """Run a crew to its end, with restarts, and return the result of rank 0."""
    n_shown = 0
    progress.begin()
    for attempt in range(max_restarts + 1):
        first_epoch = crew.start(attempt)
        while True:
            failures, is_done = crew.poll()
            n_shown = _show(crew, first_epoch, n_shown, progress)
            if failures or is_done:
                break
            time.sleep(POLL_SECONDS)
        if not failures:
            return cloudpickle.loads(crew.result())
        cause = _find_cause(crew, failures, timeout)
        crew.stop()
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


def _show(crew, first_epoch, n_shown, progress):
    """Report epochs that are new; those that an attempt repeats are known."""
    for number, figures in enumerate(crew.epochs(), first_epoch + 1):
        if number > n_shown:
            n_shown = number
            if progress.step(**figures):
                crew.ask_to_stop()
            elif n_shown < progress.total:
                progress.begin()
    return n_shown


def _find_cause(crew, failures, timeout):
    """Wait a moment for the failure that caused the others."""
    end = time.monotonic() + GRACE_SECONDS
    while all(failure.kind == "lost" for failure in failures) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
        failures, _ = crew.poll()
    return find_cause(failures, crew.beats(), timeout)


def _error_of(cause):
    if cause.error is None:
        return RuntimeError(f"rank {cause.rank} failed:\n{cause.text}")
    cause.error.add_note(f"Raised on rank {cause.rank}:\n{cause.text}")
    return cause.error
