"""DeepMetricEmbedder: a network that learns what is similar, as a scikit-learn transformer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch.utils.data import Dataset

from ..metrics import recall_at_k
from ..transport import CloudMetric
from ..utils._bases import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from ..utils._fit import FitProgress, fit_method
from ..utils._folders import PrivateFolder
from ..utils._labels import encode_labels
from ..utils._parallel import computed, is_dask_array, lazily
from ..utils._parts import PartParamsMixin
from ..utils._sklearn import EstimatorMixin, Interval, StrOptions
from ..utils._supervision import check_weights, find_source
from ..utils._torch import seeded_torch
from ..utils._typing import MatrixLike, RandomStateLike
from ..utils.validation import check_given, encode, label_vector, page_release
from . import _clouds
from ._build import (
    OPTIMIZERS,
    build_training,
    choose_defaults,
    keep_better,
    make_config,
    train_on_all,
)
from ._data import check_coreset
from ._samples import ReadSamples, SamplesMixin, choose_rows, store_samples
from ._train import embed, read_history, train, warn_of_failure
from ._tuples import check_tuples
from .distributed import Distributed, choose_options
from .losses._wasserstein import TRANSPORT
from .modules import NAMED

# Embeddings of training samples that tell the scale of the transport costs.
_N_SCALE = 1000


class DeepMetricEmbedder(
    PartParamsMixin,
    SamplesMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    EstimatorMixin,
    BaseEstimator,
):
    """Deep metric learning: a network that maps samples of a class near each other.

    Trained by skorch on batches of some samples of each of some classes, so that every sample
    meets others of its class and of other classes. The embeddings have unit length: their
    Euclidean distance is the learned metric, and any estimator of scikit-learn can go on from
    there. Classes need not be those of training: unseen ones are told apart by the same metric.
    Read more in the :ref:`user guide <deep>`.

    Parameters
    ----------
    module : {"auto", "mlp", "convnet", "adapter"}, class or torch.nn.Module, default="auto"
        The network: fully connected, for tables; convolutional, for images; a small change of
        vectors that come from another network, close to the identity at the start (linear, or
        with ``module__hidden=512`` units); or a subclass of ``torch.nn.Module``. Its constructor
        gets `n_features`, `input_shape` and `n_components`, as far as it has such parameters, and
        what is given as ``module__...``. Of a network that exists already, a copy is trained, from
        its weights on. A network of your own is trained in mixed precision (bfloat16) where the
        device is a GPU that has it, with weights, loss and `transform` in single precision. "auto"
        is "convnet" with ``augment="affine"`` for images of 8 x 8 and more, "adapter" for rows of
        unit length, and "mlp" for others.
    n_components : int, default=64
        Columns of the embedding; that of "adapter" has as many as X.
    loss : str or callable, default="auto"
        A name that :func:`skdml.deep.losses.get_loss` knows, with its parameters as
        ``loss__...``, or any function of embeddings and labels that returns a scalar tensor.
        "auto" is "dro-kl-g" for "adapter" and "multi-similarity" for others.
        ``loss__miner`` chooses the pairs or triplets of a batch. The losses "wtriplet" and
        "wcontrastive" compare embeddings as clouds of points: ``loss__cloud`` is
        (n_points, point_dim), or "feature-map", one point for every position of the last map of
        "convnet", which is the default there; other modules have points of four columns.
    coreset : float or (float, int), default=None
        Train on this share of the samples: on those that stand for the others of their class, by
        :func:`skdml.transport.wasserstein_coreset` on the embedding, chosen again after so many
        epochs (5). An epoch has the same share of the batches. In one process only.
    input_shape : tuple (channels, height, width), default=None
        The shape of an image where rows of X are flattened images.
    classes_per_batch : int or "auto", default="auto"
        Classes in a batch; all, if there are fewer. "auto" is 32 for "adapter" and 16 for others.
    samples_per_class : int, default=5
        Samples of each of them; all, if it has fewer.
    max_epochs : int or "auto", default="auto"
        Epochs; one has as many batches as hold the training samples, with their rotations if
        these are new classes, 60 at least. "auto" is 5 for "adapter" and 20 for others.
    optimizer : {"adam", "adamw", "sgd"} or class, default="adam"
        The optimiser, with further parameters as ``optimizer__...``.
    lr : float or "auto", default="auto"
        The learning rate at the beginning; "auto" is 0.0001 for "adapter" and for a network that
        exists already, and 0.002 for others. It falls to zero along a cosine, unless `callbacks`
        has a schedule of its own. ``optimizer__param_groups=[("head.*", {"lr": 0.001})]`` gives
        parameters another one, by patterns of their names.
    augment : {"affine", "class-rotations"}, callable or list of these, default=None
        Random changes of the samples of a batch: "affine" rotates, scales, shears and shifts
        images a little; "class-rotations" rotates images by multiples of 90 degrees, which then
        count as new classes; a callable takes and returns a tensor.
    validation : {"auto", "samples", "classes"}, default="auto"
        What is held out: samples of all classes, scored by recall@1, or all samples of some
        classes, scored by MAP@R, for a search among classes that are not in y. A network that is
        worse than X itself on held-out classes is dropped, with a warning: `transform` then
        returns X, in unit length. "auto" is "classes" for "adapter", and for a network that exists
        already, with 10 classes or more.
    validation_fraction : float, default=None
        The share of the samples, or of the classes, that is held out and scored after each epoch.
    early_stopping : bool or "auto", default="auto"
        Stop when that score has not risen for 5 epochs, and keep the best weights, or those before
        the first step where none were better. Holds out a tenth of the samples, or a fifth of the
        classes (for "adapter" a third), if `validation_fraction` is None. If an epoch was better
        than the start, "adapter" is trained once more with what was held out, up to the last epoch
        within 1% of the best, unless there are `callbacks` or several processes. "auto" is True for
        "adapter" and for a network that exists already.
    device : str, default="auto"
        Where to train: "cpu", "cuda", ...; "auto" takes a GPU if there is one.
    callbacks : list of skorch callbacks, default=None
        Such as a checkpoint or a schedule of the learning rate. A pair (name, callback) makes
        its parameters reachable as ``callbacks__name__...``. Fit uses copies, which are then in
        ``net_.callbacks_``.
    n_workers : int, default=1
        Processes that train together on this machine, each with a batch of its own; short for
        ``distributed=Distributed(n_workers)``. See :ref:`distributed`.
    distributed : Distributed, default=None
        How several processes train together, here or on a dask cluster; see
        :class:`skdml.deep.Distributed`.
    random_state : int, RandomState instance or None, default=None
        Seeds weights, batches and augmentation.
    verbose : int, default=0
        1 shows a progress bar on a terminal.
    **kwargs
        Parameters of the parts, such as ``module__hidden=(64,)`` or ``loss__margin=0.2``, and two
        of input and network. ``freeze="encoder.*"`` has names or patterns of parameters, or names
        of parts, that are not trained; parts that are frozen whole stay in evaluation mode, so
        that batch norm keeps its statistics. ``loader=read`` is a function that returns the sample
        for one item of X as an array, such as the image for a path, or the tokens for a text; X is
        then a list of items, which are read when a batch needs them.

    Attributes
    ----------
    net_ : skorch.NeuralNet
        The trained net.
    module_ : torch.nn.Module
        Its network.
    metric_ : str or CloudMetric
        The distance of embeddings: "euclidean", or with the losses "wtriplet" and "wcontrastive"
        a :class:`skdml.transport.CloudMetric`. Give it to measures of :mod:`skdml.metrics` as
        `metric`.
    history_ : dict of str to list
        For every epoch "loss", "seconds" since the start of training and, with held-out samples,
        "valid_recall", "valid_map" of held-out classes, or "valid_order" of held-out pairs
        (ROC AUC; Spearman's correlation of grades) or triplets (the share in the right order).
    consensus_ : ndarray of shape (n_epochs,)
        After each epoch, the distance of a worker's backbone from that of its left neighbour,
        mean over workers. Only with several workers, as the next two.
    traffic_ : dict
        Bytes that a worker sends in a step for "head", "backbone" and "mining", as its sockets
        counted them; NaN where the system does not count. With sync="allreduce" the head's are
        among the backbone's.
    timing_ : dict
        Seconds of a step in "compute" and in "communication", which is waiting for others.
    n_components_ : int
        Columns of the embedding.
    classes_ : ndarray of shape (n_classes,)
        The classes of training, where there were classes.
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
        "module": [StrOptions({"auto", *NAMED}), callable],
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "loss": [str, callable],
        "coreset": [Real, tuple, list, None],
        "input_shape": [tuple, list, None],
        "classes_per_batch": [Interval(Integral, 2, None, closed="left"), StrOptions({"auto"})],
        "samples_per_class": [Interval(Integral, 2, None, closed="left")],
        "max_epochs": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "optimizer": [StrOptions(set(OPTIMIZERS)), callable],
        "lr": [Interval(Real, 0, 1e38, closed="right"), StrOptions({"auto"})],
        "augment": [str, callable, list, tuple, None],
        "validation": [StrOptions({"auto", "samples", "classes"})],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither"), None],
        "early_stopping": ["boolean", StrOptions({"auto"})],
        "device": [str],
        "callbacks": [list, tuple, None],
        "n_workers": [Interval(Integral, 1, None, closed="left")],
        "distributed": [Distributed, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "freeze": [str, list, tuple, None],
        "loader": [callable, None],
    }
    _accepts_unlabelled = False
    _reads_samples = True
    _options = ("freeze", "loader")
    freeze: str | Sequence[str] | None = None

    net_: Any
    module_: torch.nn.Module
    metric_: Literal["euclidean"] | CloudMetric
    history_: dict[str, list]
    consensus_: NDArray
    traffic_: dict[str, float]
    timing_: dict[str, float]
    n_components_: int
    classes_: NDArray

    def __init__(
        self,
        module: str | Callable[..., Any] = "auto",
        n_components: int = 64,
        loss: str | Callable[..., Any] = "auto",
        coreset: float | tuple[float, int] | None = None,
        input_shape: Sequence[int] | None = None,
        classes_per_batch: int | str = "auto",
        samples_per_class: int = 5,
        max_epochs: int | str = "auto",
        optimizer: str | Callable[..., Any] = "adam",
        lr: float | str = "auto",
        augment: str | Callable[..., Any] | Sequence[Any] | None = None,
        validation: str = "auto",
        validation_fraction: float | None = None,
        early_stopping: bool | str = "auto",
        device: str = "auto",
        callbacks: Sequence[Any] | None = None,
        n_workers: int = 1,
        distributed: Distributed | None = None,
        random_state: RandomStateLike = None,
        verbose: int = 0,
        **kwargs: Any,
    ) -> None:
        self.module = module
        self.n_components = n_components
        self.loss = loss
        self.coreset = coreset
        self.input_shape = input_shape
        self.classes_per_batch = classes_per_batch
        self.samples_per_class = samples_per_class
        self.max_epochs = max_epochs
        self.optimizer = optimizer
        self.lr = lr
        self.augment = augment
        self.validation = validation
        self.validation_fraction = validation_fraction
        self.early_stopping = early_stopping
        self.device = device
        self.callbacks = callbacks
        self.n_workers = n_workers
        self.distributed = distributed
        self.random_state = random_state
        self.verbose = verbose
        self.__dict__.update(kwargs)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # Fit

    @fit_method
    def fit(
        self,
        X: MatrixLike,
        y: ArrayLike | None = None,
        *,
        pairs: ArrayLike | None = None,
        pair_labels: ArrayLike | None = None,
        pair_similarity: ArrayLike | None = None,
        pair_weight: ArrayLike | None = None,
        triplets: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Train the network on classes, on pairs or on triplets.

        Pairs and triplets are learned by their order: the cosine of a more similar pair should be
        larger than that of a less similar one. `loss` is not used then; ``loss__scale`` is how
        sharply cosines are told apart (20).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, channels, height, width)
            The samples. A memory-mapped array of float32 stays on disk, as for
            ``np.load(path, mmap_mode="r")``. Rows of integers, such as tokens, stay integers, as
            int64, for a network of your own. Also a map-style ``torch.utils.data.Dataset``, whose
            items are samples or pairs (sample, label), or with ``loader`` a list of items such as
            paths: these are read when a batch needs them, by each worker for itself. A dask array
            is written to a temporary file, block by block.
        y : array-like of shape (n_samples,), default=None
            Class labels, numbers or strings. Ignored where pairs or triplets are given. None takes
            the labels of a Dataset, by one pass over it.
        pairs : array-like of shape (n_pairs, 2), default=None
            Row indices into X.
        pair_labels : array-like of shape (n_pairs,), default=None
            +1 for similar pairs, -1 for dissimilar ones.
        pair_similarity : array-like of shape (n_pairs,), default=None
            Grades in place of labels: the larger, the more similar.
        pair_weight : array-like of shape (n_pairs,), default=None
            What each pair, or triplet, counts.
        triplets : array-like of shape (n_triplets, 3), default=None
            Row indices into X: anchor, near sample, far sample.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each sample is drawn among those of its class; a weight of 0 is the same as
            no sample. Equal samples of a class in memory are one, with the sum of their weights.
            Classes are drawn alike, and held-out samples count alike. A pair or a triplet counts
            the product of the weights of its samples.

        Returns
        -------
        self : DeepMetricEmbedder
            The fitted estimator.
        """
        if is_dask_array(X):
            options: Any = {"pairs": pairs, "pair_labels": pair_labels, "triplets": triplets}
            options |= {"pair_similarity": pair_similarity, "pair_weight": pair_weight}
            with PrivateFolder() as folder:
                rows = store_samples(X, folder / "X.npy")
                return self.fit(rows, computed(y), sample_weight=sample_weight, **options)
        self._check_part_params()
        given = X
        X, self._sample_shape = self._check_samples(X, reset=True)
        self._has_tokens = X.dtype.kind in "iu"
        codes: Any
        if find_source(pairs, triplets, pair_labels, pair_similarity, pair_weight) is None:
            y = X.labels() if y is None and isinstance(X, ReadSamples) else y
            X, y, weights = self._check_classes(X, y, sample_weight)
            self.classes_, codes = encode_labels(y, len(X), type(self).__name__)
        else:
            self._check_tuple_params()
            weights, shares = None, None
            if sample_weight is not None:
                shares = check_weights(sample_weight, "sample_weight", len(X))
            codes = check_tuples(
                len(X), pairs, pair_labels, pair_similarity, triplets, pair_weight, shares
            )
        is_classes = isinstance(codes, np.ndarray)
        config = make_config(
            self,
            **choose_defaults(self, X, self._sample_shape, codes),
            coreset=check_coreset(self.coreset, codes) if is_classes else None,
            distributed=choose_options(self.distributed, self.n_workers),
            sample_shape=self._sample_shape,
            n_classes=len(self.classes_) if is_classes else 0,
            seed=int(check_random_state(self.random_state).randint(2**31)),
            weights=weights,
        )
        if config.loss in TRANSPORT:
            _clouds.find_cloud(config)  # a wrong cloud shows here, not in another process
        samples = self._to_tensor(X)
        with FitProgress(
            self, total=config.max_epochs, X=given, y=y, description="epoch"
        ) as progress:
            if config.distributed is not None:
                from .distributed._supervise import train_ranks

                net, figures = train_ranks(config, X, samples, codes, progress)
                self.__dict__.update(figures)
            else:
                params = {
                    "release": page_release(X),
                    "attributes": partial(_attributes, config, samples, is_done=False),
                }
                with seeded_torch(config.seed):
                    net = train(*build_training(config, samples, codes, progress, **params))
            keep_better(config, samples, codes, net, page_release(X))
            with seeded_torch(config.seed):
                train_on_all(config, samples, codes, net, page_release(X))
            self.__dict__.update(_attributes(config, samples, net))
            if is_classes:
                warn_of_failure(config, samples, codes, net, page_release(X))
        return self

    def _check_classes(self, X, y, sample_weight):
        """Return the samples that count, their labels and weights; equal ones of a class once."""
        codes = encode_labels(y, len(X), type(self).__name__)[1]
        rows, weights = self._choose_samples(X, codes, sample_weight)
        if sample_weight is None and rows is not None and np.bincount(codes[rows]).max() < 2:
            return X, y, None  # all samples of a class are equal: they teach nothing
        if rows is not None:
            y = label_vector(y, len(X))[rows]
            X = X.take(rows) if isinstance(X, ReadSamples) else X[rows]
        return X, y, weights

    def _check_tuple_params(self):
        """Refuse what is for classes alone."""
        refused = {
            "loss": self.loss != "auto",
            "coreset": self.coreset is not None,
            "n_workers": self.n_workers > 1,
            "distributed": self.distributed is not None,
            "augment": "class-rotations" in np.atleast_1d(np.array(self.augment, dtype=object)),
        }
        for name, is_set in refused.items():
            if is_set:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is for training on classes: leave it at its "
                    "default with pairs and triplets."
                )

    # Use

    @lazily
    def transform(self, X: MatrixLike) -> NDArray:
        """Return the embeddings of samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, channels, height, width)
            The samples; also a Dataset or a list of items, as in `fit`.

        Returns
        -------
        embeddings : ndarray of shape (n_samples, n_outputs)
            Of unit length.
        """
        check_is_fitted(self)
        X, _ = self._check_samples(X, reset=False)
        samples = self._to_tensor(X)
        rows = choose_rows(samples, torch.arange(len(samples)), page_release(X))
        embeddings = embed(self.module_, rows, self.net_.device)
        return embeddings if self._has_tokens else embeddings.astype(X.dtype, copy=False)

    @property
    def _n_features_out(self):
        return self.n_components_

    def pair_distance(self, pairs: ArrayLike, X: MatrixLike | None = None) -> NDArray:
        """Return the distance of the embeddings of each pair, Euclidean or by transport.

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
        left, right = self._embed_pairs(pairs, X)
        if self.metric_ == "euclidean":
            return np.linalg.norm(left - right, axis=1)
        return self.metric_.pair_distance(left, right)

    def score(self, X: MatrixLike, y: ArrayLike | None = None) -> float:
        """Return recall@1: the share of samples whose nearest other sample is of their class.

        With a transport loss, the samples that are nearest by Euclidean distance, 20 with the
        sample itself, are put in order by transport.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, channels, height, width)
            The samples, as in `transform`.
        y : array-like of shape (n_samples,), default=None
            Their classes, which need not be those of training. None takes the labels of a Dataset.

        Returns
        -------
        recall : float
            Between 0 and 1.
        """
        embeddings = self.transform(X)
        if y is None and isinstance(X, Dataset):
            y = ReadSamples(X, None, self._has_tokens).labels()
        check_given(y, type(self).__name__)
        _, codes = encode(label_vector(y, len(embeddings)), "y")
        if np.bincount(codes).max() < 2:
            raise ValueError("y has no class with two samples, so there is no neighbour to find.")
        return recall_at_k(embeddings, codes, k=1, metric=self.metric_)


def _attributes(config, samples, net, is_done=True):
    """Return the fitted attributes for a net; its network is copied while it is in training."""
    module = net.module_ if is_done else copy.deepcopy(net.module_)
    uses_transport = config.loss in TRANSPORT
    every = -(-len(samples) // (_N_SCALE if uses_transport else 2))
    some = choose_rows(samples, torch.arange(0, len(samples), every))
    embeddings = embed(module, some, net.device)
    return {
        "net_": net,
        "module_": module,
        "history_": read_history(net),
        "n_components_": embeddings.shape[1],
        "metric_": _clouds.make_metric(config, embeddings) if uses_transport else "euclidean",
    }
