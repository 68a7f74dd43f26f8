"""Configuration of a training, and its batches, loss and net made from it."""

from __future__ import annotations

import copy
import inspect
import math
import os
import warnings
from dataclasses import dataclass, field, fields, replace
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedShuffleSplit
from skorch import callbacks as skorch_callbacks

from ..metrics import map_at_r, recall_at_k
from ..utils._fit import Progress, copy_part
from ..utils._parts import params_of
from ..utils._torch import choose_device
from . import _clouds
from ._data import (
    ClassBatches,
    Coreset,
    augment_affine,
    augmented,
    check_changes,
    classes_of_rank,
    count_batches,
    rotate_classes,
)
from ._samples import choose_rows
from ._train import EpochCallback, HeldOut, LossModule, MetricNet, embed, train
from ._tuples import RankingLoss, TupleBatches, Tuples, split_tuples
from .losses import get_loss, loss_parameters
from .losses._wasserstein import TRANSPORT
from .modules import Adapter, Unchanged, find_module, module_arguments

OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
# Callbacks of skorch that write or print: rank 0 does it for all.
_FIRST_ONLY = (
    skorch_callbacks.Checkpoint,
    skorch_callbacks.PrintLog,
    skorch_callbacks.ProgressBar,
    skorch_callbacks.TrainEndCheckpoint,
)
_PATIENCE = 5
# Smaller images are taken as rows.
_SMALLEST_IMAGE = 8
# An adapter holds out classes if there are so many, or samples if each class has so many.
_MANY_CLASSES = 10
_MANY_SAMPLES = 4
# How far below the best a score of held-out samples is as good, as a share of it.
_NEAR_BEST = 0.01


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
        Classes of the training samples; 0 for pairs and triplets.
    seed : int
        Seeds everything.
    distributed : Distributed or None
        How several processes train together.
    weights : ndarray of shape (n_samples,) or None
        Of the samples; None where all count alike.
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
    validation: str
    validation_fraction: float | None
    early_stopping: bool
    device: str
    callbacks: Any
    sample_shape: tuple[int, ...]
    n_classes: int
    seed: int
    distributed: Any = None
    freeze: Any = None
    part_params: dict[str, Any] = field(default_factory=dict)
    weights: NDArray | None = None

    def params_of(self, part: str) -> dict[str, Any]:
        """Return the parameters of a part, such as "module", as copies."""
        return params_of(self.part_params, part)

    @property
    def is_adapter(self) -> bool:
        """Whether the network is the adapter."""
        return isinstance(self.module, str) and self.module == "adapter"

    @property
    def is_own(self) -> bool:
        """Whether the network is the user's."""
        return not isinstance(self.module, str)

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


def choose_defaults(
    estimator: Any, X: NDArray, sample_shape: Any, codes: NDArray | Tuples
) -> dict[str, Any]:
    """Return the parameters of an estimator that are "auto", as its data decides.

    Parameters
    ----------
    estimator : DeepMetricEmbedder
        Has the parameters.
    X : array of shape (n_samples, n_features) or ReadSamples
        The samples.
    sample_shape : tuple of int
        The shape of one sample.
    codes : array of shape (n_samples,) or Tuples
        Class numbers, or pairs or triplets.

    Returns
    -------
    params : dict
        `module`, `augment`, and those that are "auto" by default.
    """
    module, augment = estimator.module, estimator.augment
    if isinstance(module, str) and module == "auto":
        if len(sample_shape) == 3 and min(sample_shape[1:]) >= _SMALLEST_IMAGE:
            module, augment = "convnet", "affine" if augment is None else augment
        else:
            module = "adapter" if _has_unit_rows(X) else "mlp"
    is_adapter = isinstance(module, str) and module == "adapter"
    is_trained = is_adapter or isinstance(module, torch.nn.Module)
    has_many_classes, has_many = False, True
    if isinstance(codes, np.ndarray):
        counts = np.bincount(codes)
        has_many_classes = np.count_nonzero(counts > 1) >= _MANY_CLASSES
        has_many = has_many_classes or counts.min() >= _MANY_SAMPLES
    chosen = {
        "loss": "dro-kl-g" if is_adapter else "multi-similarity",
        "classes_per_batch": 32 if is_adapter else 16,
        "max_epochs": 5 if is_adapter else 20,
        "lr": 1e-4 if is_trained else 0.002,
        "validation": "classes" if is_trained and has_many_classes else "samples",
        "early_stopping": bool(is_trained and has_many),
    }
    chosen = {name: _given(getattr(estimator, name), value) for name, value in chosen.items()}
    return {"module": module, "augment": check_changes(augment, sample_shape), **chosen}


def _given(value, chosen):
    return chosen if isinstance(value, str) and value == "auto" else value


def _has_unit_rows(X):
    every = -(-len(X) // 1000)
    for first in range(0, len(X), 100 * every):
        some = np.asarray(X[first : first + 100 * every : every], dtype=np.float64)
        if np.any(np.abs(np.linalg.norm(some.reshape(len(some), -1), axis=1) - 1) > 1e-3):
            return False
    return True


def build_training(
    config: Config,
    samples: torch.Tensor,
    codes: NDArray | Tuples,
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
    samples, codes : tensor, array or Tuples
        Samples and class numbers, or pairs or triplets.
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
    average = None if ranks is None else ranks.mean
    begin = None
    if isinstance(codes, Tuples):
        rows, labels, batches, held_out = _build_tuples(config, samples, codes, release)
    else:
        train, validation = _split(config, codes)

        def select(rows):
            return choose_rows(samples, torch.from_numpy(rows), release)

        rows = select(train)
        labels = torch.from_numpy(np.unique(codes[train], return_inverse=True)[1])
        weights = None if config.weights is None else config.weights[train]
        batches = _build_batches(config, rows, labels, weights, ranks)
        held_out = None
        if validation is not None:
            held_out = HeldOut(select(validation), *_choose_score(config, codes[validation]))
        if config.is_adapter:
            begin = partial(Adapter.begin, rows=rows, labels=labels, weights=weights)
    watch = EpochCallback(progress, held_out, average, attributes, config.early_stopping, begin)
    net = build_net(config, watch, len(batches), ranks, **net_params)
    net.batches_ = batches
    if config.coreset is not None:
        batches.choose = partial(_clouds.choose_coreset, config, net, rows, labels.numpy())
    return net, rows, labels, watch


def _build_tuples(config, samples, tuples, release):
    """Return rows, targets, batches and what is held out, for pairs or triplets."""
    fraction = config.validation_fraction
    if fraction is None and config.early_stopping:
        fraction = 0.1
    rows = choose_rows(samples, torch.arange(len(samples)), release)
    held_out = None
    if fraction is not None:
        tuples, rest = split_tuples(tuples, fraction, config.seed)
        used, places = np.unique(rest.rows, return_inverse=True)
        rest = replace(rest, rows=places.reshape(rest.rows.shape))
        some = choose_rows(samples, torch.from_numpy(used), release)
        held_out = HeldOut(some, "valid_order", rest.score)
    size = config.classes_per_batch * config.samples_per_class // tuples.rows.shape[1]
    rng, transform = np.random.default_rng(config.seed), _build_transform(config)
    batches = TupleBatches(rows, tuples, max(2, size), rng, transform)
    return torch.from_numpy(tuples.rows), tuples.targets(), batches, held_out


def keep_better(config: Config, samples: torch.Tensor, codes: Any, net: Any, release: Any) -> None:
    """Leave samples as they are, with a warning, where the network is worse on held-out classes."""
    if config.validation != "classes" or isinstance(codes, Tuples):
        return
    _, validation = _split(config, codes)
    if validation is None:
        return
    held_out = choose_rows(samples, torch.from_numpy(validation), release)
    if not held_out[:1].is_floating_point():  # tokens are no embedding
        return
    _, score = _choose_score(config, codes[validation])
    before, after = score(embed(Unchanged(), held_out)), score(embed(net.module_, held_out))
    if before > after:
        warnings.warn(
            f"the network is worse than X itself on held-out classes (MAP@R {after:.3f} and "
            f"{before:.3f}), so transform returns X in unit length. Try "
            f"{'' if config.is_adapter else 'module=' + repr('adapter') + ', '}more classes, or "
            "another lr.",
            stacklevel=4,
        )
        net.module_ = Unchanged()


def train_on_all(config: Config, samples: torch.Tensor, codes: Any, net: Any, release: Any) -> None:
    """Train an adapter again, with what was held out, for as many epochs as were good without it.

    Few classes cannot tell epochs apart: it is the last one whose score is near the best, as the
    learning rate is lowest there.
    """
    is_done = config.callbacks or isinstance(net.module_, Unchanged) or not net.best_epoch_
    if not config.is_adapter or config.distributed is not None or is_done:
        return
    name = next(name for name in net.history[0] if name.startswith("valid_"))
    scores = [epoch[name] for epoch in net.history if "train_loss" in epoch]
    lowest = max(scores) - _NEAR_BEST * abs(max(scores))
    n_epochs = 1 + int(np.flatnonzero(np.array(scores) >= lowest)[-1])
    params = {
        name: value
        for name, value in config.part_params.items()
        if not name.startswith("callbacks__early_stopping")
    }
    config = replace(
        config, early_stopping=False, validation_fraction=None, callbacks=None, part_params=params
    )
    again = train(*build_training(config, samples, codes, _Until(n_epochs), release=release))
    net.module_.load_state_dict(again.module_.state_dict())


class _Until(Progress):
    """Ends a training after some epochs, with a schedule for more."""

    def __init__(self, n_epochs):
        self.n_left = n_epochs

    def step(self, attributes=None, **figures):
        self.n_left -= 1
        return not self.n_left


def _choose_score(config, codes):
    """Return the name of the score of held-out samples, and its function of embeddings."""
    if config.validation == "classes":
        return "valid_map", partial(map_at_r, labels=codes)

    def recall(embeddings):
        metric = "euclidean"
        if config.loss in TRANSPORT:
            metric = _clouds.make_metric(config, embeddings)
        return recall_at_k(embeddings, codes, k=1, metric=metric)

    return "valid_recall", recall


def _split(config, codes):
    """Return the rows to train on and those held out, or None."""
    fraction = config.validation_fraction
    if fraction is None:
        if not config.early_stopping:
            return np.arange(len(codes)), None
        fraction = 0.1
        if config.validation == "classes":  # an adapter gets them back in `train_on_all`
            fraction = 1 / 3 if config.is_adapter else 0.2
    if config.validation == "classes":
        return _split_classes(config, codes, fraction)
    # Two of some class at least, or there is no recall.
    n_held_out = max(int(fraction * len(codes)), config.n_classes + 1)
    splitter = StratifiedShuffleSplit(1, test_size=n_held_out, random_state=config.seed)
    try:
        return next(splitter.split(codes, codes))
    except ValueError as error:
        raise ValueError(
            f"validation_fraction={fraction}: cannot hold out samples of each class: {error}"
        ) from error


def _split_classes(config, codes, fraction):
    """Return the rows of some classes to train on, and of others that are held out."""
    several = np.flatnonzero(np.bincount(codes) > 1)
    n_held_out = max(2, round(fraction * len(several)))
    if len(several) - n_held_out < 2:
        raise ValueError(
            f"validation='classes' holds out {n_held_out} classes with two samples or more, but y "
            f"has {len(several)}: two must be left to learn from. Use validation='samples', or "
            "early_stopping=False with validation_fraction=None."
        )
    chosen = np.random.default_rng(config.seed).permutation(several)[:n_held_out]
    is_held_out = np.isin(codes, chosen)
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def _build_batches(config, samples, labels, weights, ranks):
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
    return ClassBatches(
        samples, labels, *layout, rng, transform, classes, n_batches, every, weights=weights
    )


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
    if not config.n_classes:
        scale = params.pop("scale", 20.0)
        if params:
            raise ValueError(
                f"loss__{next(iter(params))} is of losses of classes: with pairs and triplets, the "
                "loss has loss__scale alone."
            )
        if not (isinstance(scale, Real) and 0 < float(scale) < 1e6):
            raise ValueError(f"loss__scale must be a number above 0 and below 1e6, got {scale!r}.")
        return RankingLoss(float(scale))
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
        from .distributed._rank_net import RankNet

        loss = GatheredLoss(loss, ranks, config.distributed, config.seed)
        net_class = RankNet
        net_params = {"ranks": ranks, "config": config, **net_params}
    net = net_class(
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
    net.freeze_, net.mixes_precision_ = config.freeze, config.is_own
    return net


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
        # Without samples to score, the net is that of a fit on ranks: filled, not trained.
        stopping = skorch_callbacks.EarlyStopping(
            watch.held_out.name if watch.held_out else "valid_loss",
            patience=_PATIENCE,
            lower_is_better=False,
            load_best=True,
            sink=_quiet,
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
