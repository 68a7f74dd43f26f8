"""Training on several ranks: what they need, their restarts, progress, and one clear error."""

from __future__ import annotations

import time
import warnings
from dataclasses import fields, replace
from typing import Any

import joblib
from numpy.typing import NDArray

from ...utils._parallel import find_client
from ...utils._pickle import cloudpickle
from ...utils._torch import seeded_torch
from ...utils.validation import page_release
from .._build import Config, build_net
from .._samples import ReadSamples, find_file
from .._train import EpochCallback
from . import world_size
from ._comm import process_group
from ._hosts import Failure, Hosts, News, RankError
from ._rank_net import train_rank

# How often ranks are looked after, and how long the cause of a failure is looked for.
POLL_SECONDS = 0.1
GRACE_SECONDS = 4.0


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
    hosts = Hosts(client, (make_job(config), stored, codes), options)
    try:
        return _supervise(hosts, options, progress)
    finally:
        hosts.close()


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


def _supervise(hosts, options, progress):
    """Run ranks to their end, with restarts, and return the result of rank 0."""
    n_shown, stop, max_restarts = 0, False, options.max_restarts
    progress.begin()
    for attempt in range(max_restarts + 1):
        first_epoch, news = hosts.start(), News()
        n_shown = max(n_shown, first_epoch)
        while not (news.failures or news.is_done):
            time.sleep(POLL_SECONDS)
            news = hosts.news(stop)
            # Those that an attempt repeats are known.
            for figures in news.epochs[n_shown - first_epoch :]:
                n_shown += 1
                if progress.step(**figures):
                    stop = True
                elif n_shown < progress.total:
                    progress.begin()
        if news.is_done:
            return cloudpickle.loads(news.result)
        cause = _find_cause(hosts, news, options.timeout)
        if cause.kind == "error":
            error = cause.error or RuntimeError(f"rank {cause.rank} failed")
            error.add_note(f"Raised on rank {cause.rank}:\n{cause.text}")
            raise error
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


def _find_cause(hosts, news, timeout):
    """Return the failure that caused the others, after a moment in which it may show."""
    end = time.monotonic() + GRACE_SECONDS
    while all(failure.kind == "lost" for failure in news.failures) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
        news = hosts.news()
    for kind in ("error", "killed"):
        for failure in news.failures:
            if failure.kind == kind:
                return failure
    # The rank behind the others is what they wait for.
    lost = {failure.rank for failure in news.failures}
    behind = min(news.beats, key=lambda rank: (news.beats[rank], rank in lost))
    return Failure(behind, "killed", f"did not answer for {timeout:g} s")
