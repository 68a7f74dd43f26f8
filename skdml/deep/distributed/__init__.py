"""Training of one network by several processes: those that `fit` starts, or torchrun's."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from ...utils._bases import BaseEstimator
from ...utils._sklearn import ClientMixin, Interval, StrOptions
from ._sync import SYNC_MODES, AllReduce, Hybrid, Sync, register_sync

__all__ = ["AllReduce", "Distributed", "Hybrid", "Sync", "register_sync", "run"]


@dataclass(eq=False, repr=False)
class Distributed(ClientMixin, BaseEstimator):
    """How several processes train one network together; for ``DeepMetricEmbedder(distributed=)``.

    Read more in the :ref:`user guide <distributed>`.

    Parameters
    ----------
    n_workers : int, default=1
        Processes, each with a batch of its own: on this machine, or on as many workers of a dask
        cluster. 1 takes `n_workers` of the estimator.
    client : distributed.Client, default=None
        The cluster; None takes that of joblib's active dask backend, if there is one. It is not
        stored with the estimator.
    sync : {"allreduce", "hybrid"}, str or class, default="allreduce"
        How the replicas are kept together. "allreduce": the same network everywhere. "hybrid":
        the same head, and backbones that go around a ring; for modules with a part `head`. Further
        modes are those of :func:`skdml.deep.distributed.register_sync`.
    compression : {"fp16", "powersgd"}, default=None
        What "allreduce" sends of the gradients: half precision, or matrices of low rank, with what
        they leave out added to the next gradients. For slow networks.
    ring : {"parameters", "gradients"}, default="parameters"
        What goes around the ring. With gradients nothing draws the backbones together.
    ring_mix : float, default=0.5
        Gossip weight of the local parameters.
    gather : bool, default=True
        Mine pairs in the gathered batch of all workers, or in the local batch.
    remote_grad : bool, default="auto"
        With the gathered batch, whether samples get a gradient as partners of other workers'
        anchors too. With "allreduce" the gradient is then that of one process with all batches,
        nothing more is sent, and "auto" is True; without it, losses over triplets may collapse.
        With other modes the samples of others come from other networks, and "auto" is False.
    max_restarts : int, default=1
        How often training starts again, from the last checkpoint, after a worker died.
    timeout : float, default=60
        Seconds after which a worker that does not answer counts as dead.
    port : int, default=None
        Where the workers meet, for firewalls; None takes a free port.

    Examples
    --------
    >>> from skdml import DeepMetricEmbedder
    >>> from skdml.deep import Distributed
    >>> model = DeepMetricEmbedder(distributed=Distributed(4, compression="fp16"))
    """

    _parameter_constraints = {
        "n_workers": [Interval(Integral, 1, None, closed="left")],
        "client": "no_validation",
        "sync": [str, callable],
        "compression": [StrOptions({"fp16", "powersgd"}), None],
        "ring": [StrOptions({"parameters", "gradients"})],
        "ring_mix": [Interval(Real, 0, 1, closed="both")],
        "gather": ["boolean"],
        "remote_grad": ["boolean", StrOptions({"auto"})],
        "max_restarts": [Interval(Integral, 0, None, closed="left")],
        "timeout": [Interval(Real, 0, None, closed="neither")],
        "port": [Interval(Integral, 1, 65535, closed="both"), None],
    }

    n_workers: int = 1
    client: Any = None
    sync: str | Callable[..., Sync] = "allreduce"
    compression: str | None = None
    ring: str = "parameters"
    ring_mix: float = 0.5
    gather: bool = True
    remote_grad: bool | str = "auto"
    max_restarts: int = 1
    timeout: float = 60
    port: int | None = None


def world_size() -> int:
    """Return how many processes the environment says there are, as torchrun sets it."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def choose_options(given: Distributed | None, n_workers: int) -> Distributed | None:
    """Return the options of a fit, checked, with the class of its sync mode; None: one process."""
    given = Distributed() if given is None else given
    given._validate_params()
    if 1 not in (n_workers, given.n_workers) and n_workers != given.n_workers:
        raise ValueError(
            f"n_workers={n_workers}, but distributed has n_workers={given.n_workers}: give one of "
            "them."
        )
    params = {**given.get_params(deep=False), "n_workers": max(n_workers, given.n_workers)}
    size = world_size()
    if params["n_workers"] == size == 1:
        return None
    if size > 1 and params["n_workers"] not in (1, size):
        raise ValueError(
            f"n_workers={params['n_workers']}, but WORLD_SIZE={size} in the environment: torchrun "
            "has started the processes already. Leave n_workers at 1."
        )
    if isinstance(given.sync, str):
        if given.sync not in SYNC_MODES:
            raise ValueError(
                f"sync must be one of {', '.join(map(repr, SYNC_MODES))}, got {given.sync!r}."
            )
        params["sync"] = SYNC_MODES[given.sync]
    is_reduced = isinstance(params["sync"], type) and issubclass(params["sync"], AllReduce)
    if given.compression is not None and not is_reduced:
        raise ValueError(
            f"compression={given.compression!r} is of gradients that are averaged over all "
            f"workers: use sync='allreduce', not {given.sync!r}, or compression=None."
        )
    if given.remote_grad == "auto":
        params["remote_grad"] = is_reduced
    return Distributed(**params)


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
        Its `distributed` says how processes train together. Restarts are torchrun's.
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
