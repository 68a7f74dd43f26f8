"""DeepMetricEmbedder: a network that learns what is similar, as a scikit-learn transformer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..metrics import recall_at_k
from ..transport import CloudMetric
from ..utils._bases import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from ..utils._fit import FitProgress, fit_method
from ..utils._sklearn import EstimatorMixin, Interval, StrOptions
from ..utils._typing import MatrixLike, RandomStateLike
from ..utils.validation import encode, label_vector
from ._assembly import OPTIMIZERS
from ._input import check_changes, encode_labels
from ._modules import NAMED
from ._net import embed
from ._ranks import world_size
from ._samples import SamplesMixin, choose_rows, page_release
from ._training import TrainingMixin
from ._transport import FEATURE_MAP

# Embeddings of training samples that tell the scale of the transport costs.
_N_SCALE = 1000


class DeepMetricEmbedder(
    TrainingMixin,
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
    module : {"mlp", "convnet"}, class or torch.nn.Module, default="mlp"
        The network: fully connected, for tables; convolutional, for images; or a subclass of
        ``torch.nn.Module``. Its constructor gets `n_features`, `input_shape` and
        `embedding_dim`, as far as it has such parameters, and what is given as ``module__...``.
        Of a network that exists already, a copy is trained, from its weights on.
    embedding_dim : int, default=64
        Columns of the embedding.
    loss : str or callable, default="multi-similarity"
        A name that :func:`skdml.deep.losses.get_loss` knows, with its parameters as
        ``loss__...``, or any function of embeddings and labels that returns a scalar tensor.
    miner : str or callable, default=None
        Chooses the pairs or triplets of a batch, for losses that take a miner.
    cloud : (int, int) or "feature-map", default=None
        How the embedding is a cloud of points for the losses "wtriplet" and "wcontrastive":
        (n_points, point_dim), or "feature-map", where the head of the convolutional network gives
        a point for every place of its last map, of embedding_dim / (height * width) columns. None
        takes the feature map with "convnet", and points of four columns with other modules. With
        another loss, "feature-map" is such a head.
    coreset : float, default=None
        Train on this share of the samples: on those that stand for the others of their class, by
        :func:`skdml.transport.wasserstein_coreset` on the embedding. An epoch has the same share
        of the batches. In one process only.
    coreset_every : int, default=5
        Epochs after which the samples are chosen anew.
    input_shape : tuple (channels, height, width), default=None
        The shape of an image where rows of X are flattened images.
    classes_per_batch : int, default=16
        Classes in a batch; all, if there are fewer.
    samples_per_class : int, default=5
        Samples of each of them; all, if it has fewer.
    max_epochs : int, default=20
        Epochs; one has as many batches as hold the training samples, turned ones with
        `class_rotations` included, 60 at least.
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
        its parameters reachable as ``callbacks__name__...``. Fit uses copies, which are then in
        ``net_.callbacks_``.
    n_workers : int, default=1
        Processes that train together, each with a batch of its own: on this machine, or on as
        many workers of a dask cluster. See :ref:`distributed`.
    client : distributed.Client, default=None
        The cluster; None takes that of joblib's active dask backend, if there is one. It is not
        stored with the estimator.
    mining : {"global", "local"}, default="global"
        Whether an anchor meets the samples of all workers, or of its own only.
    remote_grad : bool, default=False
        With global mining, whether samples get a gradient as partners of other workers' anchors
        too. The gradient is then that of one process with all batches.
    sync : {"hybrid", "allreduce"}, default="hybrid"
        How the networks are kept together. "allreduce": the same network everywhere. "hybrid":
        the same head, and backbones that go around a ring; for modules with a part `head`.
    ring : {"parameters", "gradients"}, default="parameters"
        What goes around the ring. With gradients nothing draws the backbones together.
    ring_mix : float, default=0.5
        The weight of the own part when it meets that of the neighbour.
    max_restarts : int, default=1
        How often training starts again, from the end of the last epoch, after a worker died.
    timeout : float, default=60
        Seconds after which a worker that does not answer counts as dead.
    port : int, default=None
        Where the workers meet, for firewalls; None takes a free port.
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
    metric_ : str or CloudMetric
        The distance of embeddings: "euclidean", or with the losses "wtriplet" and "wcontrastive"
        a :class:`skdml.transport.CloudMetric`. Give it to measures of :mod:`skdml.metrics` as
        `metric`.
    history_ : list of dict
        Epoch, loss, seconds and, with held-out samples, recall@1.
    consensus_ : ndarray of shape (n_epochs,)
        After each epoch, the distance of a worker's backbone from that of its left neighbour,
        mean over workers. Only with several workers, as the next two.
    traffic_ : dict
        Bytes that a worker sends in a step for "head", "backbone" and "mining", as its sockets
        counted them; NaN where the system does not count. With sync="allreduce" the head's are
        among the backbone's.
    timing_ : dict
        Seconds of a step in "compute" and in "communication", which is waiting for others.
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
        "cloud": [StrOptions({FEATURE_MAP}), tuple, list, None],
        "coreset": [Interval(Real, 0, 1, closed="neither"), None],
        "coreset_every": [Interval(Integral, 1, None, closed="left")],
        "input_shape": [tuple, list, None],
        "classes_per_batch": [Interval(Integral, 2, None, closed="left")],
        "samples_per_class": [Interval(Integral, 2, None, closed="left")],
        "max_epochs": [Interval(Integral, 1, None, closed="left")],
        "optimizer": [StrOptions(set(OPTIMIZERS)), callable],
        "lr": [Interval(Real, 0, 1e38, closed="right")],
        "augment": [StrOptions({"affine"}), callable, None],
        "class_rotations": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither"), None],
        "early_stopping": ["boolean"],
        "device": [str],
        "callbacks": [list, tuple, None],
        "n_workers": [Interval(Integral, 1, None, closed="left")],
        "client": "no_validation",
        "mining": [StrOptions({"global", "local"})],
        "remote_grad": ["boolean"],
        "sync": [StrOptions({"hybrid", "allreduce"})],
        "ring": [StrOptions({"parameters", "gradients"})],
        "ring_mix": [Interval(Real, 0, 1, closed="both")],
        "max_restarts": [Interval(Integral, 0, None, closed="left")],
        "timeout": [Interval(Real, 0, None, closed="neither")],
        "port": [Interval(Integral, 1, 65535, closed="both"), None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }
    _accepts_unlabelled = False

    net_: Any
    module_: torch.nn.Module
    metric_: Literal["euclidean"] | CloudMetric
    history_: list[dict[str, Any]]
    consensus_: NDArray
    traffic_: dict[str, float]
    timing_: dict[str, float]
    embedding_dim_: int
    classes_: NDArray

    def __init__(
        self,
        module: str | Callable[..., Any] = "mlp",
        embedding_dim: int = 64,
        loss: str | Callable[..., Any] = "multi-similarity",
        miner: str | Callable[..., Any] | None = None,
        cloud: str | tuple[int, int] | None = None,
        coreset: float | None = None,
        coreset_every: int = 5,
        input_shape: Sequence[int] | None = None,
        classes_per_batch: int = 16,
        samples_per_class: int = 5,
        max_epochs: int = 20,
        optimizer: str | Callable[..., Any] = "adam",
        lr: float = 0.002,
        augment: Literal["affine"] | Callable[..., Any] | None = None,
        class_rotations: bool = False,
        validation_fraction: float | None = None,
        early_stopping: bool = False,
        device: str = "auto",
        callbacks: Sequence[Any] | None = None,
        n_workers: int = 1,
        client: Any = None,
        mining: str = "global",
        remote_grad: bool = False,
        sync: str = "hybrid",
        ring: str = "parameters",
        ring_mix: float = 0.5,
        max_restarts: int = 1,
        timeout: float = 60,
        port: int | None = None,
        random_state: RandomStateLike = None,
        verbose: int = 0,
        **kwargs: Any,
    ) -> None:
        self.module = module
        self.embedding_dim = embedding_dim
        self.loss = loss
        self.miner = miner
        self.cloud = cloud
        self.coreset = coreset
        self.coreset_every = coreset_every
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
        self.n_workers = n_workers
        self.client = client
        self.mining = mining
        self.remote_grad = remote_grad
        self.sync = sync
        self.ring = ring
        self.ring_mix = ring_mix
        self.max_restarts = max_restarts
        self.timeout = timeout
        self.port = port
        self.random_state = random_state
        self.verbose = verbose
        self.__dict__.update(kwargs)

    # A client belongs to its process: clones share it, and nothing that is stored has it.

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "client": None}

    def __sklearn_clone__(self) -> Self:
        bare = copy.copy(self)
        clone = super(DeepMetricEmbedder, bare).__sklearn_clone__()
        clone.client = self.client
        return clone

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # Fit

    @fit_method
    def fit(self, X: MatrixLike, y: ArrayLike) -> Self:
        """Train the network.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, channels, height, width)
            The samples. A memory-mapped array of float32 stays on disk, as for
            ``np.load(path, mmap_mode="r")``.
        y : array-like of shape (n_samples,)
            Class labels, numbers or strings.

        Returns
        -------
        self : DeepMetricEmbedder
            The fitted estimator.
        """
        self._check_part_params()
        given = X
        X, self._sample_shape = self._check_samples(X, reset=True)
        self.classes_, codes = encode_labels(y, len(X), type(self).__name__)
        check_changes(self._sample_shape, self.augment, self.class_rotations)
        self._find_cloud()  # wrong ones show here, not in another process
        seed = int(check_random_state(self.random_state).randint(2**31))
        samples = self._to_tensor(X)
        with FitProgress(
            self, total=self.max_epochs, X=given, y=y, description="epoch"
        ) as progress:
            if self.n_workers > 1 or world_size() > 1:
                if self.coreset is not None:
                    raise ValueError(
                        f"coreset={self.coreset} is chosen in one process: leave n_workers at 1, "
                        "or coreset at None."
                    )
                from .distributed import train

                self.__dict__.update(train(self, samples, codes, seed, progress))
            else:
                self._fit_net(samples, codes, seed, progress, page_release(X))
            self.__dict__.update(self._net_attributes(self.net_, self.net_.module_, samples))
        return self

    def _net_attributes(self, net, module, samples):
        """Return the fitted attributes of a net, and its network or a copy of it."""
        n_rows = _N_SCALE if self._uses_transport() else 2
        some = samples[:: -(-len(samples) // n_rows)]
        embeddings = embed(module, some, net.device)
        return {
            "net_": net,
            "module_": module,
            "history_": [
                {name: epoch[name] for name in epoch if name != "batches"} for epoch in net.history
            ],
            "embedding_dim_": embeddings.shape[1],
            "metric_": self._make_metric(embeddings),
        }

    # Use

    def transform(self, X: MatrixLike) -> NDArray:
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
        samples = self._to_tensor(X)
        rows = choose_rows(samples, torch.arange(len(samples)), page_release(X))
        return embed(self.module_, rows, self.net_.device).astype(X.dtype, copy=False)

    @property
    def _n_features_out(self):
        return self.embedding_dim_

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

    def score(self, X: MatrixLike, y: ArrayLike) -> float:
        """Return recall@1: the share of samples whose nearest other sample is of their class.

        With a transport loss, the samples that are nearest by Euclidean distance, 20 with the
        sample itself, are put in order by transport.

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
        embeddings = self.transform(X)
        _, codes = encode(label_vector(y, len(embeddings)), "y")
        if np.bincount(codes).max() < 2:
            raise ValueError("y has no class with two samples, so there is no neighbour to find.")
        return recall_at_k(embeddings, codes, k=1, metric=self.metric_)
