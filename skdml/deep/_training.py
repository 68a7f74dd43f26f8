"""Training of DeepMetricEmbedder in one process, which may be one of several ranks."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedShuffleSplit

from ..utils._torch import has_finite_weights, seeded_torch
from ._assembly import AssemblyMixin
from ._net import EpochCallback, Interrupted, NotFinite
from ._samples import choose_rows


class TrainingMixin(AssemblyMixin):
    """For DeepMetricEmbedder: the net is made, trained, and left without the data."""

    validation_fraction: float | None
    net_: Any
    _net_attributes: Any

    def _fit_net(self, samples, codes, seed, progress, release=None, ranks=None, **net_params):
        """Train here, alone or as one of several ranks."""
        train, validation = self._split(codes, seed)

        def select(rows):
            return choose_rows(samples, torch.from_numpy(rows), release)

        rows, labels = select(train), torch.from_numpy(codes[train])
        held_out = None
        if validation is not None:
            held_out = select(validation), codes[validation]
        average = None if ranks is None else ranks.mean

        def attributes(net):
            return self._net_attributes(net, copy.deepcopy(net.module_), samples)

        watch = EpochCallback(progress, held_out, average, self._make_metric, attributes)
        with seeded_torch(seed):
            batches = self._make_batches(rows, labels, seed, ranks)
            self.net_ = self._make_net(watch, len(batches), seed, ranks, **net_params)
            self.net_.make_batches = lambda dataset: batches
            self._train(watch, rows, labels)

    def _split(self, codes, seed):
        """Return the rows to train on and those held out, or None."""
        fraction = self.validation_fraction
        if fraction is None:
            if not self.early_stopping:
                return np.arange(len(codes)), None
            fraction = 0.1
        # Two of some class at least, or there is no recall.
        n_held_out = max(int(fraction * len(codes)), len(self.classes_) + 1)
        splitter = StratifiedShuffleSplit(1, test_size=n_held_out, random_state=seed)
        try:
            return next(splitter.split(codes, codes))
        except ValueError as error:
            raise ValueError(
                f"validation_fraction={fraction}: cannot hold out samples of each class: {error}"
            ) from error

    def _train(self, watch, rows, labels):
        try:
            self.net_.fit(rows, labels)
            if not has_finite_weights(self.net_.module_):  # by the last step, which no loss sees
                history = self.net_.history
                raise NotFinite(len(history), len(history[-1]["batches"]), "the weights were")
        except Interrupted:
            raise KeyboardInterrupt from None
        except NotFinite as error:
            self._keep_last_good(watch, error)
        # What belongs to the training data goes, so that the estimator can be stored without it.
        self.net_.make_batches = None
        watch.progress = watch.validation = watch.average = watch.make_metric = None
        watch.attributes = watch.good_weights_ = None

    def _keep_last_good(self, watch, error):
        if watch.good_weights_ is None:
            raise ValueError(
                f"{error}, before one epoch was done: is X scaled? Try a smaller lr than {self.lr}."
            ) from None
        self.net_.module_.load_state_dict(watch.good_weights_)
        warnings.warn(
            f"{error}; training stopped, and the weights of epoch {error.epoch - 1} are kept. Try "
            f"a smaller lr than {self.lr}.",
            ConvergenceWarning,
            stacklevel=4,
        )
