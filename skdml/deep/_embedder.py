"""DeepMetricEmbedder: a network that learns what is similar, as a scikit-learn transformer."""

from __future__ import annotations

import inspect
import warnings
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from skorch.callbacks import Callback, EarlyStopping, LRScheduler
from torch import nn

from ..metrics import recall_at_k
from ..utils._fit import FitProgress, fit_method
from ..utils._pairs import check_index_pairs
from ..utils._sklearn import CallbackSupportMixin, Interval, StrOptions, validate_data
from ._batches import ClassBatches, augment_affine, rotate_classes
from ._input import check_changes, encode_labels, flat_shape
from ._modules import NAMED, module_arguments
from ._net import EpochCallback, Interrupted, LossModule, MetricNet, NotFinite, embed
from .losses import get_loss, loss_parameters

_OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
_PREFIXES = ("module__", "optimizer__", "loss__", "callbacks__")
_PATIENCE = 5


class DeepMetricEmbedder(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, CallbackSupportMixin, BaseEstimator
):
    """Deep metric learning: a network that maps samples of a class near each other.

    Trained by skorch on batches of some samples of each of some classes, so that every sample
    meets others of its class and of other classes. The embeddings have unit length: their
    Euclidean distance is the learned metric, and any estimator of scikit-learn can go on from
    there. Classes need not be those of training: unseen ones are told apart by the same metric.
    Read more in the :ref:`user guide <deep>`.

    Parameters
    ----------
    module : {"mlp", "convnet"} or class, default="mlp"
        The network: fully connected, for tables; convolutional, for images; or a subclass of
        ``torch.nn.Module``. Its constructor gets `n_features`, `input_shape` and
        `embedding_dim`, as far as it has such parameters, and what is given as ``module__...``.
    embedding_dim : int, default=64
        Columns of the embedding.
    loss : str or callable, default="multi-similarity"
        A name that :func:`skdml.deep.losses.get_loss` knows, with its parameters as
        ``loss__...``, or any function of embeddings and labels that returns a scalar tensor.
    miner : str or callable, default=None
        Chooses the pairs or triplets of a batch, for losses that take a miner.
    input_shape : tuple (channels, height, width), default=None
        The shape of an image where rows of X are flattened images.
    classes_per_batch : int, default=16
        Classes in a batch; all, if there are fewer.
    samples_per_class : int, default=5
        Samples of each of them; all, if it has fewer.
    max_epochs : int, default=20
        Epochs; one has as many batches as hold the training samples, 60 at least.
    optimizer : {"adam", "adamw", "sgd"} or class, default="adam"
        The optimiser, with further parameters as ``optimizer__...``.
    lr : float, default=0.002
        The learning rate at the beginning. It falls to zero along a cosine, unless `callbacks`
        has a schedule of its own.
    augment : {"affine"} or callable, default=None
        Changes the samples of a batch at random: "affine" turns, scales, shears and shifts
        images a little; a callable takes and returns a tensor.
    class_rotations : bool, default=False
        Whether images turned by 90, 180 and 270 degrees count as new classes in training.
    validation_fraction : float, default=None
        The share of the samples that is held out to measure recall@1 after each epoch.
    early_stopping : bool, default=False
        Stop when that recall has not risen for 5 epochs, and keep the best weights. Holds out a
        tenth of the samples if `validation_fraction` is None.
    device : str, default="auto"
        Where to train: "cpu", "cuda", ...; "auto" takes a GPU if there is one.
    callbacks : list of skorch callbacks, default=None
        Such as a checkpoint or a schedule of the learning rate. A pair (name, callback) makes
        its parameters reachable as ``callbacks__name__...``.
    random_state : int, RandomState instance or None, default=None
        Seeds weights, batches and augmentation.
    verbose : int, default=0
        1 shows a progress bar on a terminal.
    **kwargs
        Parameters of the parts, such as ``module__hidden=(64,)`` or ``loss__margin=0.2``.

    Attributes
    ----------
    net_ : skorch.NeuralNet
        The trained net.
    module_ : torch.nn.Module
        Its network.
    history_ : list of dict
        Epoch, loss, seconds and, with held-out samples, recall@1.
    embedding_dim_ : int
        Columns of the embedding.
    classes_ : ndarray of shape (n_classes,)
        The classes of training.
    n_features_in_ : int
        Number of features seen during `fit`; of an image, of all its values.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during `fit`, where X has such names.

    See Also
    --------
    GMMLTransformer : A linear metric in closed form.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skdml import DeepMetricEmbedder
    >>> X, y = load_digits(return_X_y=True)
    >>> model = DeepMetricEmbedder(max_epochs=2, random_state=0).fit(X[::2] / 16, y[::2])
    >>> model.transform(X[1::2] / 16).shape
    (898, 64)
    >>> model.score(X[1::2] / 16, y[1::2]) > 0.9
    True
    """

    _parameter_constraints: dict = {
        "module": [StrOptions(set(NAMED)), callable],
        "embedding_dim": [Interval(Integral, 1, None, closed="left")],
        "loss": [str, callable],
        "miner": [str, callable, None],
        "input_shape": [tuple, list, None],
        "classes_per_batch": [Interval(Integral, 2, None, closed="left")],
        "samples_per_class": [Interval(Integral, 2, None, closed="left")],
        "max_epochs": [Interval(Integral, 1, None, closed="left")],
        "optimizer": [StrOptions(set(_OPTIMIZERS)), callable],
        "lr": [Interval(Real, 0, None, closed="neither")],
        "augment": [StrOptions({"affine"}), callable, None],
        "class_rotations": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither"), None],
        "early_stopping": ["boolean"],
        "device": [str],
        "callbacks": [list, tuple, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }
    _accepts_unlabelled = False

    def __init__(
        self,
        module="mlp",
        embedding_dim=64,
        loss="multi-similarity",
        miner=None,
        input_shape=None,
        classes_per_batch=16,
        samples_per_class=5,
        max_epochs=20,
        optimizer="adam",
        lr=0.002,
        augment=None,
        class_rotations=False,
        validation_fraction=None,
        early_stopping=False,
        device="auto",
        callbacks=None,
        random_state=None,
        verbose=0,
        **kwargs,
    ):
        self.module = module
        self.embedding_dim = embedding_dim
        self.loss = loss
        self.miner = miner
        self.input_shape = input_shape
        self.classes_per_batch = classes_per_batch
        self.samples_per_class = samples_per_class
        self.max_epochs = max_epochs
        self.optimizer = optimizer
        self.lr = lr
        self.augment = augment
        self.class_rotations = class_rotations
        self.validation_fraction = validation_fraction
        self.early_stopping = early_stopping
        self.device = device
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose
        self.__dict__.update(kwargs)

    # Parameters of the parts

    def _part_params(self):
        """Return what was given beyond the named parameters."""
        own = self._get_param_names()
        return {
            name: value
            for name, value in vars(self).items()
            if name not in own and not name.startswith("_") and not name.endswith("_")
        }

    def _check_part_params(self):
        for name in self._part_params():
            if not name.startswith(_PREFIXES):
                raise TypeError(
                    f"{type(self).__name__} has no parameter {name!r}. Parameters of its parts "
                    f"begin with {', '.join(_PREFIXES)}."
                )

    def get_params(self, deep=True):
        """Return the parameters, with those of the parts.

        Parameters
        ----------
        deep : bool, default=True
            As in scikit-learn.

        Returns
        -------
        params : dict
            Names and values.
        """
        return {**super().get_params(deep=deep), **self._part_params()}

    def set_params(self, **params):
        """Set parameters, also of the parts.

        Parameters
        ----------
        **params
            Such as ``lr=0.01`` or ``module__hidden=(64,)``.

        Returns
        -------
        self : DeepMetricEmbedder
            Itself.
        """
        parts = {name: params.pop(name) for name in list(params) if "__" in name}
        super().set_params(**params)
        self.__dict__.update(parts)
        return self

    def _params_of(self, prefix):
        return {k[len(prefix) :]: v for k, v in vars(self).items() if k.startswith(prefix)}

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # Input

    def _check_samples(self, X, reset):
        """Return the samples as rows, and the shape of one of them."""
        if isinstance(X, torch.Tensor):
            X = X.numpy(force=True)
        elif not (hasattr(X, "columns") or sparse.issparse(X)):  # a dataframe has names
            X = np.asarray(X)
        sample_shape = None
        if X.ndim == 4:
            sample_shape = tuple(X.shape[1:])
            X = X.reshape(len(X), -1)
        X = validate_data(
            self,
            X,
            dtype=[np.float64, np.float32],
            reset=reset,
            ensure_min_samples=2 if reset else 1,
        )
        if sample_shape is None:
            sample_shape = flat_shape(X.shape[1], self.input_shape, self.module)
        if not reset and sample_shape != self._sample_shape:
            raise ValueError(
                f"X has samples of shape {sample_shape}, but {type(self).__name__} was fitted "
                f"with {self._sample_shape}."
            )
        return X, sample_shape

    def _to_tensor(self, X):
        return torch.from_numpy(np.array(X, dtype=np.float32)).reshape(-1, *self._sample_shape)

    # Fit

    @fit_method
    def fit(self, X, y):
        """Train the network.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, channels, height, width)
            The samples.
        y : array-like of shape (n_samples,)
            Class labels, numbers or strings.

        Returns
        -------
        self : DeepMetricEmbedder
            The fitted estimator.
        """
        self._check_part_params()
        X, self._sample_shape = self._check_samples(X, reset=True)
        self.classes_, codes = encode_labels(y, len(X), type(self).__name__)
        check_changes(self._sample_shape, self.augment, self.class_rotations)
        seed = int(check_random_state(self.random_state).randint(2**31))
        samples, labels = self._to_tensor(X), torch.from_numpy(codes)
        train, validation = self._split(codes, seed)
        with (
            FitProgress(self, total=self.max_epochs, X=X, y=y, description="epoch") as progress,
            torch.random.fork_rng(),
        ):
            torch.manual_seed(seed)
            watch = EpochCallback(
                progress, None if validation is None else (samples[validation], codes[validation])
            )
            batches = self._make_batches(samples[train], labels[train], seed)
            self.net_ = self._make_net(watch, batches)
            self._train(watch, samples[train], labels[train])
        self.module_ = self.net_.module_
        self.history_ = [
            {name: epoch[name] for name in epoch if name != "batches"}
            for epoch in self.net_.history
        ]
        self.embedding_dim_ = embed(self.module_, samples[:2], self.net_.device).shape[1]
        return self

    def _split(self, codes, seed):
        """Return the rows to train on and those held out, or None."""
        fraction = self.validation_fraction
        if fraction is None:
            if not self.early_stopping:
                return np.arange(len(codes)), None
            fraction = 0.1
        n_held_out = max(int(fraction * len(codes)), len(self.classes_))
        splitter = StratifiedShuffleSplit(1, test_size=n_held_out, random_state=seed)
        try:
            return next(splitter.split(codes, codes))
        except ValueError as error:
            raise ValueError(
                f"validation_fraction={fraction}: cannot hold out samples of each class: {error}"
            ) from error

    def _make_batches(self, samples, labels, seed):
        transforms = []
        if self.augment is not None:
            change = augment_affine if self.augment == "affine" else self.augment
            transforms.append(lambda X, y: (change(X), y))
        if self.class_rotations:
            transforms.append(rotate_classes)

        def transform(X, y):
            for change in transforms:
                X, y = change(X, y)
            return X, y

        return ClassBatches(
            samples,
            labels,
            self.classes_per_batch,
            self.samples_per_class,
            np.random.default_rng(seed),
            transform if transforms else None,
        )

    def _make_net(self, watch, batches):
        module = (
            NAMED.get(self.module, self.module) if isinstance(self.module, str) else self.module
        )
        if not (inspect.isclass(module) and issubclass(module, nn.Module)):
            raise TypeError(
                f"module must be 'mlp', 'convnet' or a subclass of torch.nn.Module, got {module!r}."
            )
        arguments = module_arguments(module, self._sample_shape, self.embedding_dim)
        arguments.update(self._params_of("module__"))
        optimizer = self.optimizer
        optimizer = _OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
        return MetricNet(
            module,
            criterion=LossModule,
            criterion__loss=self._make_loss(),
            optimizer=optimizer,
            lr=self.lr,
            max_epochs=self.max_epochs,
            train_split=None,
            callbacks=self._make_callbacks(watch, len(batches)),
            device=self._choose_device(),
            verbose=0,
            make_batches=lambda dataset: batches,
            **{f"module__{name}": value for name, value in arguments.items()},
            **{k: v for k, v in vars(self).items() if k.startswith(("optimizer__", "callbacks__"))},
        )

    def _make_loss(self):
        params = self._params_of("loss__")
        if isinstance(self.loss, str):
            known = {
                "num_classes": len(self.classes_) * (4 if self.class_rotations else 1),
                "embedding_size": self.embedding_dim,
            }
            wanted = loss_parameters(self.loss)
            params = {**{k: v for k, v in known.items() if k in wanted}, **params}
        return get_loss(self.loss, miner=self.miner, **params)

    def _make_callbacks(self, watch, n_batches):
        callbacks: list[Any] = [("epoch", watch)]
        given = list(self.callbacks or [])
        objects = [callback[1] if isinstance(callback, tuple) else callback for callback in given]
        for callback in objects:
            if not (isinstance(callback, Callback) or inspect.isclass(callback)):
                raise TypeError(f"callbacks must hold skorch callbacks, got {callback!r}.")
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

    def _choose_device(self):
        if self.device != "auto":
            return self.device
        return "cuda" if torch.cuda.is_available() else "cpu"

    def _train(self, watch, samples, labels):
        try:
            self.net_.fit(samples, labels)
        except Interrupted:
            raise KeyboardInterrupt from None
        except NotFinite as error:
            self._keep_last_good(watch, error)
        # What belongs to the training data goes, so that the estimator can be stored without it.
        self.net_.make_batches = None
        watch.progress = watch.validation = None
        watch.good_weights = None

    def _keep_last_good(self, watch, error):
        if watch.good_weights is None:
            raise ValueError(
                f"{error}, before one epoch was done: is X scaled? Try a smaller lr than {self.lr}."
            ) from None
        self.net_.module_.load_state_dict(watch.good_weights)
        warnings.warn(
            f"{error}; training stopped, and the weights of epoch {error.epoch - 1} are kept. Try "
            f"a smaller lr than {self.lr}.",
            ConvergenceWarning,
            stacklevel=4,
        )

    # Use

    def transform(self, X):
        """Return the embeddings of samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, channels, height, width)
            The samples.

        Returns
        -------
        embeddings : ndarray of shape (n_samples, n_outputs)
            Of unit length.
        """
        check_is_fitted(self)
        X, _ = self._check_samples(X, reset=False)
        return embed(self.module_, self._to_tensor(X), self.net_.device).astype(X.dtype)

    @property
    def _n_features_out(self):
        return self.embedding_dim_

    def pair_distance(self, pairs, X=None):
        """Return the distance of the embeddings of each pair.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, ...) or (n_pairs, 2)
            Pairs of samples; with `X`, pairs of row indices into it.
        X : array-like, default=None
            The samples that index pairs refer to.

        Returns
        -------
        distances : ndarray of shape (n_pairs,)
            Between 0 and 2.
        """
        check_is_fitted(self)
        pairs = np.asarray(pairs)
        if X is None:
            if pairs.ndim < 3 or pairs.shape[1] != 2:
                raise ValueError(
                    f"pairs must have shape (n_pairs, 2, {self.n_features_in_}), got "
                    f"{pairs.shape}. For index pairs, pass the samples as X."
                )
            left, right = self.transform(pairs[:, 0]), self.transform(pairs[:, 1])
        else:
            embeddings = self.transform(X)
            pairs = check_index_pairs(pairs, len(embeddings))
            left, right = embeddings[pairs[:, 0]], embeddings[pairs[:, 1]]
        return np.linalg.norm(left - right, axis=1)

    def score(self, X, y):
        """Return recall@1: the share of samples whose nearest other sample is of their class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, channels, height, width)
            The samples.
        y : array-like of shape (n_samples,)
            Their classes, which need not be those of training.

        Returns
        -------
        recall : float
            Between 0 and 1.
        """
        return recall_at_k(self.transform(X), y, k=1)


def _quiet(*args, **kwargs):
    """Stands for `print` where skorch would report."""
