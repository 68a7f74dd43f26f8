"""Configuration of a training, and its batches, loss and net made from it."""

from __future__ import annotations

import copy
import inspect
import math
import os
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedShuffleSplit
from skorch import callbacks as skorch_callbacks

from ..utils._fit import copy_part
from ..utils._parts import params_of
from ..utils._torch import choose_device
from . import _clouds
from ._data import (
    ClassBatches,
    Coreset,
    augment_affine,
    augmented,
    choose_rows,
    classes_of_rank,
    count_batches,
    rotate_classes,
)
from ._train import EpochCallback, LossModule, MetricNet
from .losses import get_loss, loss_parameters
from .losses._wasserstein import TRANSPORT
from .modules import find_module, module_arguments

OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
# Callbacks of skorch that write or print: rank 0 does it for all.
_FIRST_ONLY = (
    skorch_callbacks.Checkpoint,
    skorch_callbacks.PrintLog,
    skorch_callbacks.ProgressBar,
    skorch_callbacks.TrainEndCheckpoint,
)
_PATIENCE = 5


@dataclass(frozen=True)
class Config:
    """The parameters of one fit, checked, with what its data decides.

    Fields with the name of a parameter of `DeepMetricEmbedder` have its value, `augment` as a tuple
    and `coreset` as a `Coreset`.

    Attributes
    ----------
    part_params : dict
        Parameters of the parts, such as ``{"module__hidden": (64,)}``.
    sample_shape : tuple of int
        The shape of one sample.
    n_classes : int
        Classes of the training samples.
    seed : int
        Seeds everything.
    distributed : Distributed or None
        How several processes train together.
    """

    module: Any
    n_components: int
    loss: Any
    coreset: Coreset | None
    classes_per_batch: int
    samples_per_class: int
    max_epochs: int
    optimizer: Any
    lr: float
    augment: tuple[Any, ...]
    validation_fraction: float | None
    early_stopping: bool
    device: str
    callbacks: Any
    sample_shape: tuple[int, ...]
    n_classes: int
    seed: int
    distributed: Any = None
    part_params: dict[str, Any] = field(default_factory=dict)

    def params_of(self, part: str) -> dict[str, Any]:
        """Return the parameters of a part, such as "module", as copies."""
        return params_of(self.part_params, part)

    @property
    def rotates_classes(self) -> bool:
        """Whether rotated images are new classes."""
        return any(change == "class-rotations" for change in self.augment)


def make_config(estimator: Any, **values: Any) -> Config:
    """Return the configuration of an estimator, and of what its data decides."""
    params = {
        each.name: getattr(estimator, each.name)
        for each in fields(Config)
        if hasattr(estimator, each.name)
    }
    return Config(**{**params, "part_params": estimator._part_params(), **values})


def build_training(
    config: Config,
    samples: torch.Tensor,
    codes: NDArray,
    progress: Any,
    *,
    release: Any = None,
    attributes: Any = None,
    ranks: Any = None,
    **net_params: Any,
) -> tuple[Any, Any, torch.Tensor, EpochCallback]:
    """Build all that `train` needs.

    Parameters
    ----------
    config : Config
        The parameters.
    samples, codes : tensor, array
        Samples and class numbers.
    progress : Progress
        Told of each epoch.
    release : callable, default=None
        Frees the memory of pages of a file; see `page_release`.
    attributes : callable, default=None
        Returns the fitted attributes for a net, for scikit-learn's callbacks.
    ranks : Ranks, default=None
        The processes that train together.
    **net_params
        Further parameters of the net.

    Returns
    -------
    net : MetricNet
        Ready to be trained.
    rows, labels :
        Its samples.
    watch : EpochCallback
        One of its callbacks.
    """
    train, validation = _split(config, codes)

    def select(rows):
        return choose_rows(samples, torch.from_numpy(rows), release)

    rows, labels = select(train), torch.from_numpy(codes[train])
    held_out = None if validation is None else (select(validation), codes[validation])
    make_metric = partial(_clouds.make_metric, config) if config.loss in TRANSPORT else None
    average = None if ranks is None else ranks.mean
    watch = EpochCallback(progress, held_out, average, make_metric, attributes)
    batches = _build_batches(config, rows, labels, ranks)
    net = build_net(config, watch, len(batches), ranks, **net_params)
    net.batches_ = batches
    if config.coreset is not None:
        batches.choose = partial(_clouds.choose_coreset, config, net, rows, labels.numpy())
    return net, rows, labels, watch


def _split(config, codes):
    """Return the rows to train on and those held out, or None."""
    fraction = config.validation_fraction
    if fraction is None:
        if not config.early_stopping:
            return np.arange(len(codes)), None
        fraction = 0.1
    # Two of some class at least, or there is no recall.
    n_held_out = max(int(fraction * len(codes)), config.n_classes + 1)
    splitter = StratifiedShuffleSplit(1, test_size=n_held_out, random_state=config.seed)
    try:
        return next(splitter.split(codes, codes))
    except ValueError as error:
        raise ValueError(
            f"validation_fraction={fraction}: cannot hold out samples of each class: {error}"
        ) from error


def _build_batches(config, samples, labels, ranks):
    """Return the batches of one process, or of one of several ranks."""
    layout = config.classes_per_batch, config.samples_per_class
    source: Any = config.seed
    classes, n_ranks, every = None, 1, 1
    if ranks is not None:
        source, n_ranks = [config.seed, ranks.rank], ranks.size
        n_classes = int(labels.max()) + 1
        if n_classes >= n_ranks * layout[0]:  # enough for a batch on every rank
            classes = partial(classes_of_rank, n_classes, ranks.rank, n_ranks, config.seed)
    copies = 4 if config.rotates_classes else 1
    n_batches = count_batches(labels.numpy(), *layout, copies, n_ranks)
    if config.coreset is not None:
        n_batches, every = math.ceil(config.coreset.fraction * n_batches), config.coreset.every
    rng, transform = np.random.default_rng(source), _build_transform(config)
    return ClassBatches(samples, labels, *layout, rng, transform, classes, n_batches, every)


def _build_transform(config):
    """Return the random changes of a batch, as one function of samples and labels."""
    if not config.augment:
        return None
    changes = [change for change in config.augment if change != "class-rotations"]
    functions = [
        augment_affine if change == "affine" else copy_part("augment", change) for change in changes
    ]

    def transform(X, y):
        for function in functions:
            X = augmented(function, X)
        return rotate_classes(X, y) if config.rotates_classes else (X, y)

    return transform


def _build_loss(config):
    """Return the loss, with what it has to know of the classes and the embedding."""
    params = config.params_of("loss")
    if isinstance(config.loss, str):
        known: dict[str, Any] = {
            "num_classes": config.n_classes * (4 if config.rotates_classes else 1),
            "embedding_size": int(config.n_components),
        }
        if config.loss in TRANSPORT:
            params["cloud"] = _clouds.find_cloud(config)
        wanted = loss_parameters(config.loss)
        params = {**{k: v for k, v in known.items() if k in wanted}, **params}
    return get_loss(copy_part("loss", config.loss), **params)


def build_net(
    config: Config, watch: EpochCallback, n_batches: int, ranks: Any = None, **net_params: Any
) -> MetricNet:
    """Return the skorch net, not initialised."""
    module, params = find_module(config.module), config.params_of("module")
    if config.loss in TRANSPORT:
        params |= _clouds.choose_head(config)
    arguments = module_arguments(module, config.sample_shape, int(config.n_components), params)
    loss, net_class = _build_loss(config), MetricNet
    if ranks is not None:
        from .distributed._comm import GatheredLoss
        from .distributed._worker import RankNet

        loss = GatheredLoss(loss, ranks, config.distributed, config.seed)
        net_class = RankNet
        net_params = {"ranks": ranks, "config": config, **net_params}
    return net_class(
        module,
        criterion=LossModule,
        criterion__loss=loss,
        optimizer=OPTIMIZERS.get(config.optimizer, config.optimizer),
        lr=config.lr,
        max_epochs=config.max_epochs,
        train_split=None,
        callbacks=_build_callbacks(config, watch, n_batches, not ranks or ranks.rank == 0),
        device=_choose_device(config.device, ranks),
        verbose=0,
        **net_params,
        **{f"module__{name}": value for name, value in arguments.items()},
        **{
            f"{part}__{name}": value
            for part in ("optimizer", "callbacks")
            for name, value in config.params_of(part).items()
        },
    )


def _build_callbacks(config, watch, n_batches, is_first):
    """Return the callbacks of the net: ours, copies of the user's, early stopping."""
    callbacks: list[Any] = [("epoch", watch)]
    given = [_copy_callback(callback) for callback in config.callbacks or []]
    objects = [callback[1] if isinstance(callback, tuple) else callback for callback in given]
    for callback in objects:
        if not (isinstance(callback, skorch_callbacks.Callback) or inspect.isclass(callback)):
            raise TypeError(f"callbacks must hold skorch callbacks, got {callback!r}.")
    if not is_first:  # one rank writes and prints for all
        given = [
            callback
            for callback, item in zip(given, objects, strict=True)
            if not issubclass(item if inspect.isclass(item) else type(item), _FIRST_ONLY)
        ]
    if not any(isinstance(callback, skorch_callbacks.LRScheduler) for callback in objects):
        schedule = skorch_callbacks.LRScheduler(
            torch.optim.lr_scheduler.CosineAnnealingLR,
            T_max=config.max_epochs * n_batches,
            step_every="batch",
        )
        callbacks.append(("lr_schedule", schedule))
    callbacks += given
    if config.early_stopping:
        stopping = skorch_callbacks.EarlyStopping(
            "valid_recall", patience=_PATIENCE, lower_is_better=False, load_best=True, sink=_quiet
        )
        callbacks.append(("early_stopping", stopping))
    names = [callback[0] for callback in callbacks if isinstance(callback, tuple)]
    for param in config.params_of("callbacks"):
        if param.partition("__")[0] not in names:
            raise ValueError(
                f"callbacks__{param}: no callback has that name. Names are {', '.join(names)}; "
                f"give your own as a pair (name, callback)."
            )
    return callbacks


def _copy_callback(callback):
    try:
        return copy.deepcopy(callback)
    except Exception:  # it holds an open file or writer, which the copy shares
        if isinstance(callback, tuple):
            return callback[0], copy.copy(callback[1])
        return copy.copy(callback)


def _quiet(*args, **kwargs):
    """Stands for `print` where skorch would report."""


def _choose_device(device, ranks):
    chosen = choose_device(device)
    if device != "auto" or ranks is None or chosen == "cpu":
        return chosen
    return f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"
