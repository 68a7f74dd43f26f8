"""Training of one network by several processes: torchrun's, or those that `fit` starts."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..utils._torch import seeded_torch
from ._launch import launch
from ._net import EpochCallback
from ._rank import process_group, train_rank
from ._ranks import world_size

__all__ = ["run"]


def run(estimator: Any, X: Any, y: Any) -> Any:
    """Fit an estimator as one of the processes that torchrun has started.

    Every process calls this with the same estimator and the same data, and gets the same fitted
    estimator. How many processes there are, which of them this is, and where they meet is read
    from the environment variables that torchrun sets (WORLD_SIZE, RANK, MASTER_ADDR, MASTER_PORT);
    other launchers, such as Slurm's srun, can set them too. In a process with WORLD_SIZE above 1,
    `fit` does the same; this function also says so when the variables are missing.

    Parameters
    ----------
    estimator : DeepMetricEmbedder
        Its parameters `mining`, `remote_grad`, `sync`, `ring`, `ring_mix` and `timeout` apply.
        Restarts are torchrun's.
    X : array-like
        All samples, the same in every process.
    y : array-like
        Their classes.

    Returns
    -------
    estimator : DeepMetricEmbedder
        The estimator, fitted.

    Examples
    --------
    In a script ``train.py``, started by ``torchrun --standalone --nproc-per-node 4 train.py``::

        model = run(DeepMetricEmbedder(random_state=0), X, y)
        if os.environ["RANK"] == "0":
            joblib.dump(model, "model.joblib")

    One process is a group, too:

    >>> import os
    >>> from unittest import mock
    >>> from sklearn.datasets import load_digits
    >>> from skdml import DeepMetricEmbedder
    >>> from skdml.deep.distributed import run
    >>> X, y = load_digits(return_X_y=True)
    >>> with mock.patch.dict(os.environ, WORLD_SIZE="1", RANK="0"):  # torchrun does that
    ...     model = run(DeepMetricEmbedder(max_epochs=1, random_state=0), X[:200] / 16, y[:200])
    >>> model.transform(X[200:] / 16).shape
    (1597, 64)
    """
    missing = [name for name in ("WORLD_SIZE", "RANK") if name not in os.environ]
    if missing:
        raise RuntimeError(
            f"{' and '.join(missing)} not set in the environment: start this script by torchrun, "
            "or use fit with n_workers."
        )
    return estimator.fit(X, y)


def train(
    estimator: Any, samples: torch.Tensor, codes: NDArray, seed: int, progress: Any
) -> dict[str, Any]:
    """Train on several ranks, of which this process may be one.

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
    attributes : dict
        Fitted attributes.
    """
    if world_size() > 1:
        result = _train_in_group(estimator, samples, codes, seed, progress)
    else:
        result = launch(estimator, samples, codes, seed, progress)
        for category, message in result["warnings"]:
            warnings.warn(message, category, stacklevel=4)
    return {
        "net_": _make_net(estimator, result, seed),
        "consensus_": np.array(result["consensus"]),
        "traffic_": result["traffic"],
        "timing_": result["timing"],
    }


def _train_in_group(estimator, samples, codes, seed, progress):
    if estimator.n_workers not in (1, world_size()):
        raise ValueError(
            f"n_workers={estimator.n_workers}, but WORLD_SIZE={world_size()} in the environment: "
            "torchrun has started the processes already. Leave n_workers at 1."
        )
    with process_group(estimator.timeout) as ranks:
        of_first = ranks.object_of_first((seed, tuple(samples.shape), codes.tolist()))
        is_same = of_first[1:] == (tuple(samples.shape), codes.tolist())
        if ranks.any(not is_same):
            raise ValueError(
                "X or y differ between the processes: all must call fit with all of the data, as "
                "batches are drawn from it by rank."
            )
        return train_rank(estimator, samples, codes, of_first[0], progress, ranks)


def _make_net(estimator, result, seed):
    """Return a net of this process with the trained weights, as a fit without ranks leaves it."""
    n_batches = len(result["history"][0]["batches"])
    with seeded_torch(seed):
        net = estimator._make_net(EpochCallback(None, None), n_batches, seed)
        net.initialize()
    net.history.extend(result["history"])
    net.module_.load_state_dict(result["module_"])
    net.optimizer_.load_state_dict(result["optimizer_"])
    if isinstance(net.criterion_.loss, torch.nn.Module):
        net.criterion_.loss.load_state_dict(result["loss"])
    return net
