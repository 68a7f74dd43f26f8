"""How the parts of a training are made from the parameters of DeepMetricEmbedder."""

from __future__ import annotations

import copy
import inspect
import math
import os
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from skorch.callbacks import (
    Callback,
    Checkpoint,
    EarlyStopping,
    LRScheduler,
    PrintLog,
    ProgressBar,
    TrainEndCheckpoint,
)

from ..utils._fit import copy_part
from ..utils._torch import choose_device
from ._batches import (
    ClassBatches,
    CoresetBatches,
    augment_affine,
    augmented,
    classes_of_rank,
    count_batches,
    rotate_classes,
)
from ._input import check_coreset
from ._modules import NAMED, find_module, module_arguments
from ._net import LossModule, MetricNet
from ._rank_net import RankNet
from ._transport import TransportMixin
from ._union import UnionLoss
from .losses import get_loss, loss_parameters

OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
# Callbacks of skorch that write or print: rank 0 does it for all.
_FIRST_ONLY = (Checkpoint, PrintLog, ProgressBar, TrainEndCheckpoint)
_PATIENCE = 5


class AssemblyMixin(TransportMixin):
    """For DeepMetricEmbedder: its batches, its net, its loss and its callbacks."""

    miner: Any
    classes_per_batch: int
    samples_per_class: int
    max_epochs: int
    optimizer: Any
    lr: float
    augment: Any
    class_rotations: bool
    early_stopping: bool
    device: str
    callbacks: Any
    mining: str
    remote_grad: bool
    sync: str
    ring: str
    ring_mix: float
    coreset_every: int
    classes_: NDArray

    def _make_batches(self, samples, labels, seed, ranks=None):
        transforms = []
        if self.augment is not None:
            change = augment_affine
            if self.augment != "affine":
                change = copy_part("augment", self.augment)
            transforms.append(lambda X, y: (augmented(change, X), y))
        if self.class_rotations:
            transforms.append(rotate_classes)

        def transform(X, y):
            for change in transforms:
                X, y = change(X, y)
            return X, y

        layout = self.classes_per_batch, self.samples_per_class
        copies = 4 if self.class_rotations else 1
        source: Any = seed
        classes, n_ranks = None, 1
        if ranks is not None:
            source, n_ranks = [seed, ranks.rank], ranks.size
            n_classes = int(labels.max()) + 1
            if n_classes >= n_ranks * layout[0]:  # enough for a batch on every rank
                classes = partial(classes_of_rank, n_classes, ranks.rank, n_ranks, seed)
        n_batches = count_batches(labels.numpy(), *layout, copies, n_ranks)
        make: Any = ClassBatches
        if self.coreset is not None:
            check_coreset(self.coreset, labels.numpy())
            n_batches = math.ceil(self.coreset * n_batches)
            make = partial(
                CoresetBatches,
                choose=lambda: self._choose_coreset(samples, labels.numpy(), seed),
                every=self.coreset_every,
            )
        return make(
            samples,
            labels,
            *layout,
            np.random.default_rng(source),
            transform if transforms else None,
            classes,
            n_batches,
        )

    def _make_net(self, watch, n_batches, seed, ranks=None, **net_params):
        module = find_module(self.module)
        params = self._params_of("module__")
        if self._uses_map():
            params["head"] = "points"
        elif self.cloud is not None and module is NAMED["convnet"]:
            params.setdefault("head", "dense")
        arguments = module_arguments(module, self._sample_shape, int(self.embedding_dim), params)
        optimizer = self.optimizer
        optimizer = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
        loss, net_class = self._make_loss(), MetricNet
        if ranks is not None:
            loss = UnionLoss(loss, ranks, self.mining, self.remote_grad, seed)
            net_class = RankNet
            net_params = {"ranks": ranks, "plan": self._plan(seed), **net_params}
        return net_class(
            module,
            criterion=LossModule,
            criterion__loss=loss,
            optimizer=optimizer,
            lr=self.lr,
            max_epochs=self.max_epochs,
            train_split=None,
            callbacks=self._make_callbacks(watch, n_batches, is_first=not ranks or ranks.rank == 0),
            device=self._choose_device(ranks),
            verbose=0,
            **net_params,
            **{f"module__{name}": value for name, value in arguments.items()},
            **{
                f"{part}{name}": value
                for part in ("optimizer__", "callbacks__")
                for name, value in self._params_of(part).items()
            },
        )

    def _plan(self, seed):
        return {
            "mining": self.mining,
            "sync": self.sync,
            "ring": self.ring,
            "ring_mix": self.ring_mix,
            "seed": seed,
        }

    def _make_loss(self):
        params = self._params_of("loss__")
        if isinstance(self.loss, str):
            known: dict[str, Any] = {
                "num_classes": len(self.classes_) * (4 if self.class_rotations else 1),
                "embedding_size": int(self.embedding_dim),
            }
            if self._uses_transport():
                known["cloud"] = self._find_cloud()
            wanted = loss_parameters(self.loss)
            params = {**{k: v for k, v in known.items() if k in wanted}, **params}
        loss, miner = copy_part("loss", self.loss), copy_part("miner", self.miner)
        return get_loss(loss, miner=miner, **params)

    def _make_callbacks(self, watch, n_batches, is_first=True):
        callbacks: list[Any] = [("epoch", watch)]
        given = [_copy_callback(callback) for callback in self.callbacks or []]
        objects = [callback[1] if isinstance(callback, tuple) else callback for callback in given]
        for callback in objects:
            if not (isinstance(callback, Callback) or inspect.isclass(callback)):
                raise TypeError(f"callbacks must hold skorch callbacks, got {callback!r}.")
        if not is_first:  # one rank writes and prints for all
            given = [
                callback
                for callback, item in zip(given, objects, strict=True)
                if not issubclass(item if inspect.isclass(item) else type(item), _FIRST_ONLY)
            ]
        if not any(isinstance(callback, LRScheduler) for callback in objects):
            schedule = LRScheduler(
                torch.optim.lr_scheduler.CosineAnnealingLR,
                T_max=self.max_epochs * n_batches,
                step_every="batch",
            )
            callbacks.append(("lr_schedule", schedule))
        callbacks += given
        if self.early_stopping:
            stopping = EarlyStopping(
                "valid_recall",
                patience=_PATIENCE,
                lower_is_better=False,
                load_best=True,
                sink=_quiet,
            )
            callbacks.append(("early_stopping", stopping))
        names = [callback[0] for callback in callbacks if isinstance(callback, tuple)]
        for param in self._params_of("callbacks__"):
            if param.partition("__")[0] not in names:
                raise ValueError(
                    f"callbacks__{param}: no callback has that name. Names are {', '.join(names)}; "
                    f"give your own as a pair (name, callback)."
                )
        return callbacks

    def _choose_device(self, ranks=None):
        device = choose_device(self.device)
        if self.device != "auto" or ranks is None or device == "cpu":
            return device
        return f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"


def _copy_callback(callback):
    try:
        return copy.deepcopy(callback)
    except Exception:  # it holds an open file or writer, which the copy shares
        if isinstance(callback, tuple):
            return callback[0], copy.copy(callback[1])
        return copy.copy(callback)


def _quiet(*args, **kwargs):
    """Stands for `print` where skorch would report."""
