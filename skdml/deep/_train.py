"""The training loop of DeepMetricEmbedder: a skorch net, its epochs, and safe stops."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from skorch import NeuralNet
from skorch.callbacks import Callback
from skorch.dataset import unpack_data
from torch import nn
from torch.nn import functional

from ..utils._torch import LastGood, NotFinite, has_finite_weights, mixed_precision
from ._samples import ReadSamples, Rows, choose_rows
from .losses._wasserstein import TRANSPORT
from .modules import Unchanged, check_embeddings, freeze_parts

# Rows of a forward pass without gradients, padded to whole multiples of a few; fewer where they are
# large.
_CHUNK, _CHUNK_BYTES = 512, 2**26
_PAD = 64
# A training has failed where recall@1 falls by so much, by at most so many samples and classes.
_WORSE, _MOST_LOOKED_AT, _MOST_CLASSES = 0.05, 1000, 50


class Interrupted(BaseException):
    """Ctrl-C, in a form that skorch does not swallow."""


class LossModule(nn.Module):
    """Any loss of embeddings and labels, as the criterion that skorch expects."""

    def __init__(self, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.loss(embeddings, labels)


class MetricNet(NeuralNet):
    """A skorch net with batches of its own in training.

    Attributes
    ----------
    batches_ : iterable with a length
        The batches of a pass.
    best_epoch_ : int or None
        With early stopping, the epoch whose weights were kept; 0 is before the first step.
    freeze_ : str, sequence of str or None
        Names of parameters that are not trained.
    mixes_precision_ : bool
        Whether forward passes of training are in mixed precision, where the device has it.
    """

    batches_: Any = None
    best_epoch_: int | None = None
    freeze_: Any = None
    frozen_parts_: Sequence[str] = ()
    mixes_precision_ = False

    def initialize_module(self) -> Any:
        super().initialize_module()
        if self.freeze_ is not None:
            self.frozen_parts_ = freeze_parts(self.module_, self.freeze_)
        return self

    def initialize_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        names = [name for name, _ in self.get_all_learnable_params()]
        for pattern, _ in self.get_params_for("optimizer").get("param_groups", []):
            if not fnmatch.filter(names, pattern):
                raise ValueError(
                    f"optimizer__param_groups: {pattern!r} is the name of no parameter. Names are "
                    f"such as {', '.join(names[:1] + names[-2:])}."
                )
        return super().initialize_optimizer(*args, **kwargs)

    def get_iterator(self, dataset: Any, training: bool = False) -> Any:
        if training and self.batches_ is not None:
            return self.batches_
        return super().get_iterator(dataset, training)

    def fit_loop(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().fit_loop(*args, **kwargs)
        except KeyboardInterrupt as error:
            if _is_stop_of_callback(error):
                raise
            raise Interrupted from None  # skorch would end quietly

    def train_step_single(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        self._set_training(True)
        for part in self.frozen_parts_:
            self.module_.get_submodule(part).eval()
        X, y = unpack_data(batch)
        with mixed_precision(self.device if self.mixes_precision_ else "cpu"):
            output = self.infer(X, **fit_params)
        embeddings = check_embeddings(output, len(X), self.module_)
        loss = self.get_loss(embeddings, y, X=X, training=True)
        if not isinstance(loss, torch.Tensor) or loss.ndim:
            got = f"shape {tuple(loss.shape)}" if hasattr(loss, "shape") else type(loss).__name__
            raise TypeError(f"loss must return a tensor with a single number, got {got}.")
        self.check_loss(loss)
        loss.backward()
        return {"loss": loss, "y_pred": embeddings}

    def check_loss(self, loss: torch.Tensor) -> None:
        """Raise an error if the loss of a batch is not finite."""
        if not torch.isfinite(loss):
            raise NotFinite(f"the loss was not finite in {_last_batch(self)}")


def _last_batch(net):
    return f"epoch {len(net.history)}, batch {len(net.history[-1]['batches'])}"


def _is_stop_of_callback(error):
    """Tell whether a callback raised it: skorch's way to end a training that is complete."""
    frame = error.__traceback__
    while frame.tb_next is not None:
        frame = frame.tb_next
    code, variables = frame.tb_frame.f_code, frame.tb_frame.f_locals
    return code.co_name.startswith("on_") and isinstance(variables.get("self"), Callback)


class HeldOut(NamedTuple):
    """Samples that are not trained on.

    Attributes
    ----------
    samples : tensor or Rows
        The samples.
    name : str
        Of the score in the history, such as "valid_recall".
    score : callable
        Of their embeddings; the larger the better.
    """

    samples: Any
    name: str
    score: Callable[[NDArray], float]


@dataclass(eq=False, repr=False)
class EpochCallback(Callback):
    """After each epoch: the score of held-out samples, a copy of the weights, progress.

    Parameters
    ----------
    progress : FitProgress
        Told of each epoch.
    held_out : HeldOut or None
        Held-out samples.
    average : callable, default=None
        Makes the score that of all ranks, where there are several.
    attributes : callable, default=None
        Returns the fitted attributes of the estimator, for the net as it is.
    keeps_start : bool, default=False
        Whether the weights before the first step are kept where no epoch has a better score.
    begin : callable, default=None
        Changes the network before the first step.
    """

    progress: Any = None
    held_out: Any = None
    average: Callable[[float], float] | None = None
    attributes: Callable[[Any], dict[str, Any]] | None = None
    keeps_start: bool = False
    begin: Callable[[Any], None] | None = None
    good_: Any = field(default=None, init=False)
    start_: Any = field(default=None, init=False)

    def on_train_begin(self, net: Any, *args: Any, **kwargs: Any) -> None:
        """Begin to keep the last good weights."""
        if self.begin is not None and not len(net.history):
            self.begin(net.module_)
        self.good_ = LastGood(net.module_)
        if self.keeps_start and not len(net.history):
            state = {name: value.clone() for name, value in net.module_.state_dict().items()}
            self.start_ = self._score(net), state

    def restore_start(self, net: Any) -> None:
        """Go back to the start where no epoch was better."""
        if self.start_ is not None:
            score, state = self.start_
            scores = [epoch[self.held_out.name] for epoch in net.history if "train_loss" in epoch]
            net.best_epoch_ = int(np.argmax([score, *scores]))
            if not net.best_epoch_:
                net.module_.load_state_dict(state)

    def _score(self, net, is_good=True):
        score = -1.0
        if is_good:
            score = self.held_out.score(embed(net.module_, self.held_out.samples, net.device))
        return score if self.average is None else self.average(score)

    def on_epoch_begin(self, net: Any, **kwargs: Any) -> None:
        """Begin an epoch."""
        self.progress.begin()

    def on_epoch_end(self, net: Any, **kwargs: Any) -> None:
        """Score, snapshot the weights, report."""
        figures = {"loss": net.history[-1, "train_loss"]}
        is_good = self.good_.save()
        if self.held_out is not None:
            score = self._score(net, is_good)
            net.history.record(self.held_out.name, score)
            figures[self.held_out.name.removeprefix("valid_")] = score
        attributes = None if self.attributes is None else partial(self.attributes, net)
        if self.progress.step(attributes, **figures):
            raise KeyboardInterrupt  # ends the training, as skorch has it


def embed(module: Any, X: torch.Tensor | Rows, device: str = "cpu") -> NDArray:
    """Return unit-length embeddings of samples, a part at a time, without gradients."""
    module.eval()
    parts = []
    n_fit = _CHUNK_BYTES // max(1, X[:1].nbytes) // _PAD * _PAD
    chunk = max(_PAD, min(_CHUNK, n_fit))
    with torch.inference_mode():
        for first in range(0, len(X), chunk):
            part = X[first : first + chunk]
            # Whole blocks: a matrix product rounds the last rows of an odd number differently,
            # and the embedding of a sample should not depend on what it comes with.
            n_rows = len(part)
            padding = part[:1].expand(-n_rows % _PAD, *part.shape[1:])
            output = module(torch.cat([part, padding]).to(device))
            output = check_embeddings(output, n_rows + len(padding), module)
            parts.append(functional.normalize(output[:n_rows], dim=1).cpu().numpy())
    return np.concatenate(parts)


def warn_of_failure(config: Any, samples: Any, codes: NDArray, net: Any, release: Any) -> None:
    """Warn where neighbours are worse than without the network, as when a loss collapses."""
    is_other = config.is_adapter or config.loss in TRANSPORT or isinstance(net.module_, Unchanged)
    if is_other or isinstance(samples, ReadSamples):  # reading takes its time
        return
    classes = np.flatnonzero(np.bincount(codes) > 1)
    if len(classes) == 0:
        return
    classes = classes[:: -(-len(classes) // _MOST_CLASSES)]
    each = _MOST_LOOKED_AT // len(classes)
    some = np.sort(np.concatenate([np.flatnonzero(codes == code)[:each] for code in classes]))
    rows = choose_rows(samples, torch.from_numpy(some), release)
    if not rows[:1].is_floating_point():
        return
    labels = torch.from_numpy(codes[some])

    def recall(rows):
        similarity = rows @ rows.T
        nearest = similarity.fill_diagonal_(-torch.inf).argmax(dim=1)
        return float((labels[nearest] == labels).float().mean())

    before = recall(functional.normalize(rows[:].flatten(1), dim=1))
    after = recall(torch.from_numpy(embed(net.module_, rows, net.device)))
    if after < before - _WORSE:
        warnings.warn(
            f"training with loss={config.loss!r} has failed: nearest neighbours among the training "
            f"samples are worse than those of X (recall@1 {after:.2f} and {before:.2f}). Try "
            "another loss or miner, a smaller lr, or more epochs.",
            UserWarning,
            stacklevel=4,
        )


def train(net: Any, rows: Any, labels: torch.Tensor, watch: EpochCallback) -> Any:
    """Train a net, and return it without the training data.

    Parameters
    ----------
    net, rows, labels, watch :
        What `build_training` returned.

    Returns
    -------
    net : MetricNet
        Trained; where the loss or the weights were not finite, with the last good weights.
    """
    try:
        net.fit(rows, labels)
        if not has_finite_weights(net.module_):  # by the last step, which no loss sees
            raise NotFinite(f"the weights were not finite in {_last_batch(net)}")
    except Interrupted:
        raise KeyboardInterrupt from None
    except NotFinite as error:
        watch.good_.restore(error, net.lr, stacklevel=5)
    watch.restore_start(net)
    net.batches_ = None
    watch.__dict__.update(dict.fromkeys(vars(watch)))
    return net


def read_history(net: MetricNet) -> dict[str, list]:
    """Return the figures of every epoch, with the seconds since the start of training."""
    epochs = [epoch for epoch in net.history if "train_loss" in epoch]  # one may have broken off
    names = [name for name in epochs[0] if all(name in epoch for epoch in epochs)]
    skipped = ("batches", "epoch", "dur", "train_batch_count", "train_loss")
    history = {"loss": [float(epoch["train_loss"]) for epoch in epochs]}
    for name in names:
        if name not in skipped and not name.endswith("_best"):
            history[name] = [epoch[name] for epoch in epochs]
    history["seconds"] = np.cumsum([epoch["dur"] for epoch in epochs]).tolist()
    return history
