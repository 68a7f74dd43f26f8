"""SSDMLEmbedder: a metric from few labels and many rows without one."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..deep._build import OPTIMIZERS
from ..deep._data import SamplesMixin, augment_affine, check_changes
from ..deep._train import embed
from ..deep.modules import NAMED, find_module, module_arguments
from ..metrics import recall_at_k
from ..utils._bases import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from ..utils._fit import FitProgress, copy_part, fit_method
from ..utils._parts import PartParamsMixin, params_of
from ..utils._sklearn import EstimatorMixin, Interval, StrOptions
from ..utils._torch import choose_device, seeded_torch
from ..utils._typing import MatrixLike, RandomStateLike
from ..utils.validation import check_varies, encode, label_vector
from ._input import check_neighbors, encode_partial_labels, labelled_rows
from ._ssdml_objectives import make_objective
from ._ssdml_training import MetricModel, Plan, final_factor, propagate_all, train

METHODS = ("ssdml", "lrml", "seraph", "isdml", "apllr", "apit")


class SSDMLEmbedder(
    PartParamsMixin,
    SamplesMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    EstimatorMixin,
    BaseEstimator,
):
    """Semi-supervised deep metric learning: a few labels, and many samples without one.

    Samples are joined to their nearest neighbours, and the labels flow along this graph. Pairs that
    share a propagated class should be near each other, pairs of different classes far apart: a
    network and a linear map behind it are trained for that, and the network's own graph takes over.
    Read more in the :ref:`user guide <ssdml>`.

    Parameters
    ----------
    method : {"ssdml", "lrml", "seraph", "isdml", "apllr", "apit"}, default="ssdml"
        "ssdml" learns from triplets of propagated affinity. The others are older methods: Laplacian
        regularisation (LRML), entropy regularisation (SERAPH), a Laplacian by density (ISDML), and
        affinity propagation from a prior metric, by a likelihood ratio (APLLR) or by ITML (APIT).
        Their weights are parameters such as ``loss__graph_weight``.
    module : {"mlp", "convnet"}, class, torch.nn.Module or None, default="mlp"
        The network: fully connected, for tables; convolutional, for images, on their oriented
        gradients (on pixels with ``module__gradients=False``); a subclass of ``torch.nn.Module``
        or a network, as in :class:`~skdml.deep.DeepMetricEmbedder`; or None, a linear metric of
        the columns of X. The network has twice `n_components` outputs, if it can be told.
    n_components : int, default=64
        Columns of the embedding. With ``module=None``, as many as X has columns at most; half of
        them for an orthogonal map, which would be a mere rotation otherwise.
    n_neighbors : int, default=10
        k, the neighbours of a sample in the graph; an even number.
    propagation : float, default=0.99
        gamma, how far labels flow: the share that a sample takes from its neighbours in each step.
    angle : float, default=40
        alpha, the upper bound of the angle at the negative of a triplet, in degrees.
    graph : {"symmetric", "directed"}, default="symmetric"
        "symmetric" has edges weighted by similarity, scaled by the degrees of both ends; "directed"
        is the paper's, with equal weights of the k neighbours.
    mining : {"affinity", "neighbourhood"}, default="affinity"
        "affinity" takes positives and negatives by the propagated classes; "neighbourhood" is the
        paper's, halves of the k neighbours.
    orthogonal : bool, default=True
        Whether L, the map behind the network, has orthonormal columns. Of "ssdml" only.
    training : {"joint", "alternating"}, default="joint"
        Whether network and L are trained together by gradients, or take turns as in the paper, L
        by conjugate gradients on the Stiefel manifold. The other methods always take turns.
    partition_size : int, default=9000
        Unlabelled samples that are joined in a graph with all labelled ones.
    epochs_per_partition : int, default=10
        Epochs after which other samples are drawn, and the graph and its labels are made anew.
    max_epochs : int, default=50
        Epochs in all.
    initial_graph : {"input", "network"}, default="input"
        The first graph is of the input, which is oriented gradients for images, or of the untrained
        network. With "input", the input counts later too: classes are the geometric mean of what
        flows along all graphs.
    instance_weight : float, default=0.5
        The weight of a term which tells each sample, changed at random, from others that may be of
        another class: it keeps what the classes forget. Without `augment`, a sample goes with one
        of its neighbours. Of mining="affinity" only.
    pretrain_epochs : int, default=0
        Epochs of training on the labelled samples alone before that, as a classifier.
    batch_size : int, default=200
        Samples of a batch; triplets, with mining="neighbourhood".
    optimizer : {"adam", "adamw", "sgd"} or class, default="adam"
        The optimiser, with further parameters as ``optimizer__...``.
    lr : float, default=0.001
        The learning rate at the beginning. It falls to zero along a cosine.
    augment : {"affine"} or callable, default=None
        Changes samples at random: "affine" turns, scales, shears and shifts images a little; a
        callable takes and returns a tensor.
    input_shape : tuple (channels, height, width), default=None
        The shape of an image where rows of X are flattened images.
    device : str, default="auto"
        Where to train: "cpu", "cuda", ...; "auto" takes a GPU if there is one.
    random_state : int, RandomState instance or None, default=None
        Seeds weights, partitions, batches and augmentation.
    verbose : int, default=0
        1 shows a progress bar on a terminal.
    **kwargs
        Parameters of the parts, such as ``module__hidden=(64,)`` or ``optimizer__weight_decay``.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_outputs)
        L', the linear map of the network's outputs, or of the columns of X. Its rows are
        orthonormal with `orthogonal`.
    module_ : torch.nn.Module or None
        The trained network.
    propagated_labels_ : ndarray of shape (n_samples,)
        The class of each training sample by propagation along the graphs of the trained model; its
        label, where it has one. Samples that no label reaches have -1, if labels are numbers, or
        None.
    propagated_confidence_ : ndarray of shape (n_samples,)
        The share of that class, between 0 and 1.
    graph_statistics_ : list of dict
        Of each partition's graph: n_nodes, n_edges, n_components, n_unreached, mean_confidence.
    history_ : list of dict
        Epoch, partition, loss and seconds.
    classes_ : ndarray of shape (n_classes,)
        The classes.
    n_features_in_ : int
        Number of features seen during `fit`; of an image, of all its values.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during `fit`, where X has such names.

    See Also
    --------
    skdml.deep.DeepMetricEmbedder : Learns from labelled samples alone.
    skdml.semisupervised.PartiallyLabelledKFold : Cross-validation with unlabelled samples.
    sklearn.semi_supervised.LabelSpreading : Labels along a graph, without learning a metric.

    References
    ----------
    .. [1] Dutta, U. K., Harandi, M. and Sekhar, C. C., "Semi-supervised metric learning: a deep
       resurrection", AAAI 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> from skdml import SSDMLEmbedder
    >>> X, y = load_digits(return_X_y=True)
    >>> X, y = X[:600] / 16, y[:600]
    >>> partly = np.where(np.arange(600) < 50, y, -1)
    >>> model = SSDMLEmbedder(max_epochs=2, random_state=0).fit(X, partly)
    >>> model.transform(X).shape
    (600, 64)
    >>> float(np.mean(model.propagated_labels_ == y)) > 0.85
    True
    """

    _parameter_constraints: dict = {
        "method": [StrOptions(set(METHODS))],
        "module": [StrOptions(set(NAMED)), callable, None],
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "n_neighbors": [Interval(Integral, 2, None, closed="left")],
        "propagation": [Interval(Real, 0, 1, closed="neither")],
        "angle": [Interval(Real, 0, 90, closed="neither")],
        "graph": [StrOptions({"symmetric", "directed"})],
        "mining": [StrOptions({"affinity", "neighbourhood"})],
        "orthogonal": ["boolean"],
        "training": [StrOptions({"joint", "alternating"})],
        "partition_size": [Interval(Integral, 1, None, closed="left")],
        "epochs_per_partition": [Interval(Integral, 1, None, closed="left")],
        "max_epochs": [Interval(Integral, 1, None, closed="left")],
        "initial_graph": [StrOptions({"input", "network"})],
        "instance_weight": [Interval(Real, 0, None, closed="left")],
        "pretrain_epochs": [Interval(Integral, 0, None, closed="left")],
        "batch_size": [Interval(Integral, 2, None, closed="left")],
        "optimizer": [StrOptions(set(OPTIMIZERS)), callable],
        "lr": [Interval(Real, 0, 1e38, closed="right")],
        "augment": [StrOptions({"affine"}), callable, None],
        "input_shape": [tuple, list, None],
        "device": [str],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }
    _accepts_unlabelled = True
    _parts = ("module", "optimizer", "loss")

    components_: NDArray
    module_: torch.nn.Module | None
    propagated_labels_: NDArray
    propagated_confidence_: NDArray
    graph_statistics_: list[dict[str, Any]]
    history_: list[dict[str, Any]]
    classes_: NDArray

    def __init__(
        self,
        method: str = "ssdml",
        module: str | Callable[..., Any] | None = "mlp",
        n_components: int = 64,
        n_neighbors: int = 10,
        propagation: float = 0.99,
        angle: float = 40,
        graph: str = "symmetric",
        mining: str = "affinity",
        orthogonal: bool = True,
        training: str = "joint",
        partition_size: int = 9000,
        epochs_per_partition: int = 10,
        max_epochs: int = 50,
        initial_graph: str = "input",
        instance_weight: float = 0.5,
        pretrain_epochs: int = 0,
        batch_size: int = 200,
        optimizer: str | Callable[..., Any] = "adam",
        lr: float = 0.001,
        augment: Literal["affine"] | Callable[..., Any] | None = None,
        input_shape: Sequence[int] | None = None,
        device: str = "auto",
        random_state: RandomStateLike = None,
        verbose: int = 0,
        **kwargs: Any,
    ) -> None:
        self.method = method
        self.module = module
        self.n_components = n_components
        self.n_neighbors = n_neighbors
        self.propagation = propagation
        self.angle = angle
        self.graph = graph
        self.mining = mining
        self.orthogonal = orthogonal
        self.training = training
        self.partition_size = partition_size
        self.epochs_per_partition = epochs_per_partition
        self.max_epochs = max_epochs
        self.initial_graph = initial_graph
        self.instance_weight = instance_weight
        self.pretrain_epochs = pretrain_epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.lr = lr
        self.augment = augment
        self.input_shape = input_shape
        self.device = device
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
    def fit(self, X: MatrixLike, y: ArrayLike) -> Self:
        """Learn the metric.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, channels, height, width)
            The samples.
        y : array-like of shape (n_samples,)
            Class labels; -1 for samples without one.

        Returns
        -------
        self : SSDMLEmbedder
            The fitted estimator.
        """
        self._check_part_params()
        given = X
        X, self._sample_shape = self._check_samples(X, reset=True)
        check_varies(X)
        self.classes_, codes = encode_partial_labels(
            y, len(X), type(self).__name__, needs_pairs=self.method != "ssdml"
        )
        n_nodes = min(len(X), int((codes >= 0).sum()) + self.partition_size)
        check_neighbors(self.n_neighbors, n_nodes)
        check_changes(self.augment, self._sample_shape)
        if self.training == "alternating" and self.method == "ssdml" and not self.orthogonal:
            raise ValueError(
                "training='alternating' moves L among orthonormal matrices: it needs "
                "orthogonal=True, or use training='joint'."
            )
        seed = int(check_random_state(self.random_state).randint(2**31))
        with (
            FitProgress(self, total=self.max_epochs, X=given, y=y, description="epoch") as progress,
            seeded_torch(seed),
        ):
            self._fit_model(self._to_tensor(X), codes, np.random.default_rng(seed), progress)
        return self

    def _fit_model(self, samples, codes, rng, progress):
        is_ssdml = self.method == "ssdml"
        orthogonal = self.orthogonal and is_ssdml
        if self.module is None:  # in a unit of the data, and around its mean
            samples = samples.flatten(1) if self.input_shape is None else samples
            samples = samples - samples.mean(0)
            samples = samples / samples.flatten(1).square().sum(1).mean().sqrt().clamp_min(1e-12)
        plan = self._make_plan()
        joint = self.training == "joint"
        model = self._make_model(samples, orthogonal, parametrized=orthogonal and joint)
        objective = make_objective(
            self.method,
            self.mining,
            self.angle,
            self.propagation,
            self.instance_weight,
            params_of(self._part_params(), "loss"),
        )
        training = train(
            model,
            samples,
            codes,
            objective,
            plan,
            self._make_optimizer,
            rng,
            progress.begin,
            lambda **figures: progress.step(
                lambda: self._model_attributes(copy.deepcopy(model), orthogonal), **figures
            ),
        )
        self._report(training)
        self.history_, self.graph_statistics_ = training.history, training.graphs
        classes = propagate_all(model, samples, codes, plan, rng)
        self.__dict__.update(self._model_attributes(model, orthogonal))
        self.propagated_confidence_ = classes.max(axis=1)
        self.propagated_labels_ = self._name_classes(classes)

    @staticmethod
    def _model_attributes(model, orthogonal):
        return {
            "components_": np.ascontiguousarray(final_factor(model, orthogonal).T),
            "module_": None if model.backbone is None else model.backbone.to("cpu"),
        }

    def _make_plan(self):
        # One partition gives the linear metric of a closed form.
        once = self.module is None and self.method != "ssdml"
        return Plan(
            n_neighbors=self.n_neighbors,
            damping=self.propagation,
            graph=self.graph,
            initial_graph=self.initial_graph,
            partition_size=self.partition_size,
            epochs_per_partition=self.epochs_per_partition,
            max_epochs=1 if once else self.max_epochs,
            batch_size=self.batch_size,
            alternating=self.training == "alternating",
            augment=augment_affine
            if self.augment == "affine"
            else copy_part("augment", self.augment),
            device=choose_device(self.device),
            pretrain_epochs=self.pretrain_epochs,
        )

    def _make_model(self, samples, orthogonal, parametrized):
        if self.module is None:
            width = samples[0].numel()
            n_components = min(self.n_components, width)
            if orthogonal and n_components == width:
                n_components = -(-width // 2)
            return MetricModel(None, width, n_components, parametrized)
        module = find_module(self.module)
        params = params_of(self._part_params(), "module")
        if self.module == "convnet":
            params.setdefault("gradients", True)
        arguments = module_arguments(module, self._sample_shape, 2 * self.n_components, params)
        backbone = module if isinstance(module, torch.nn.Module) else module(**arguments)
        width = embed(backbone, samples[:2]).shape[1]
        if width < self.n_components:
            raise ValueError(
                f"n_components={self.n_components} is more than the {width} outputs of module "
                f"{type(backbone).__name__}: take fewer components, or a wider network."
            )
        return MetricModel(backbone, width, self.n_components, parametrized)

    def _make_optimizer(self, parameters):
        optimizer = self.optimizer
        if not (isinstance(optimizer, str) or inspect.isclass(optimizer)):
            raise TypeError(f"optimizer must be a name or a class, got {optimizer!r}.")
        make: Any = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
        return make(parameters, lr=self.lr, **params_of(self._part_params(), "optimizer"))

    def _report(self, training):
        """Warn of a training that broke off, or raise where nothing was learned."""
        error = training.failure
        if error is None:
            return
        if not training.history:
            raise ValueError(
                f"{error}, before one epoch was done: is X scaled? Try a smaller lr than {self.lr}."
            )
        warnings.warn(
            f"{error}; training stopped, and the weights of epoch {error.epoch - 1} are kept. Try "
            f"a smaller lr than {self.lr}.",
            ConvergenceWarning,
            stacklevel=6,
        )

    def _name_classes(self, classes):
        names = self.classes_[classes.argmax(axis=1)]
        unreached = ~classes.any(axis=1)
        if unreached.any():
            if names.dtype.kind not in "iuf":
                names = names.astype(object)
            names[unreached] = -1 if names.dtype.kind in "iuf" else None
        return names

    # Use

    def transform(self, X: MatrixLike) -> NDArray:
        """Return the embeddings of samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, channels, height, width)
            The samples.

        Returns
        -------
        embeddings : ndarray of shape (n_samples, n_components)
            The network's outputs at unit length, or the columns of X, times L.
        """
        check_is_fitted(self)
        X, _ = self._check_samples(X, reset=False)
        features = X
        if self.module_ is not None:
            features = embed(self.module_, self._to_tensor(X))
        return (features @ self.components_.T).astype(X.dtype, copy=False)

    @property
    def _n_features_out(self):
        return len(self.components_)

    def pair_distance(self, pairs: ArrayLike, X: MatrixLike | None = None) -> NDArray:
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
            Euclidean; not squared.
        """
        left, right = self._embed_pairs(pairs, X)
        return np.linalg.norm(left - right, axis=1)

    def score(self, X: MatrixLike, y: ArrayLike) -> float:
        """Return recall@1 of labelled samples: the share whose nearest other one is of its class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, channels, height, width)
            The samples.
        y : array-like of shape (n_samples,)
            Their classes; samples with -1 are left out.

        Returns
        -------
        recall : float
            Between 0 and 1.
        """
        embeddings = self.transform(X)
        if y is None:
            raise ValueError("score requires y to be passed, but the target y is None.")
        y = label_vector(y, len(embeddings), ", -1 for samples without one")
        labelled = labelled_rows(y)
        if labelled.sum() < 2:
            raise ValueError("y has less than two labelled samples: there is nothing to score.")
        _, codes = encode(y[labelled], "y")
        if np.bincount(codes).max() < 2:
            raise ValueError(
                "y has no class with two labelled samples, so there is no neighbour to find."
            )
        return recall_at_k(embeddings[labelled], codes, k=1)
