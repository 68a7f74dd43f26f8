"""SSDMLEmbedder: a metric from few labels and many rows without one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..deep._build import OPTIMIZERS
from ..deep._data import check_changes
from ..deep._samples import SamplesMixin
from ..deep._train import embed
from ..utils._bases import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from ..utils._fit import FitProgress, fit_method
from ..utils._labels import check_neighbors, encode_partial_labels
from ..utils._parallel import find_client, lazily
from ..utils._parts import PartParamsMixin, params_of
from ..utils._sklearn import ClientMixin, EstimatorMixin, Interval, StrOptions
from ..utils._supervision import places_of_rows
from ..utils._torch import seeded_torch
from ..utils._typing import MatrixLike, RandomStateLike
from ..utils.validation import check_varies, label_vector
from ._partial_classifier import labelled_accuracy, warn_of_classifier_behind, without_label
from ._partitions import Partitions
from ._ssdml_build import check_unused, make_model, make_plan
from ._ssdml_methods import make_method
from ._ssdml_training import choose_partition_size, train
from ._stiefel import orthonormal
from ._table_classes import regression_of_classes
from ._votes import choose_temperature, vote

# Training samples that vote on the classes of others, beside the labelled ones, and those on which
# their temperature is chosen, at most.
_VOTERS, _CALIBRATED = 5000, 2000
# Samples that are embedded at a time, where there are too many for graphs.
_BLOCK_ROWS = 10_000


class SSDMLEmbedder(
    ClientMixin,
    PartParamsMixin,
    SamplesMixin,
    ClassNamePrefixFeaturesOutMixin,
    ClassifierMixin,
    TransformerMixin,
    EstimatorMixin,
    BaseEstimator,
):
    """Semi-supervised deep metric learning: a few labels, and many samples without one.

    Labels are propagated along graphs of nearest neighbours. A network and a linear map L behind it
    are trained so that each sample finds its propagated class among the labelled samples near it.
    For images, the next graph is of the network's features. For tables, graphs of the columns, of
    columns whitened within classes and of a logistic regression's logits, and the regression
    itself, are weighed by labels that were held out. The embedder is a transformer, and a
    classifier of new samples.
    Read more in the :ref:`user guide <ssdml>`.

    Parameters
    ----------
    method : str, default="ssdml"
        "ssdml" learns from propagated classes. Older methods are "lrml" (Laplacian
        regularisation), "seraph" (entropy regularisation), "isdml" (a Laplacian by density),
        "apllr" and "apit" (affinity propagation from a prior metric, a likelihood ratio or ITML).
        :func:`register_method` adds others. See Notes for their parameters.
    recipe : {"default", "paper"}, default="default"
        "paper" is the recipe of SSDML as printed: a directed graph with equal weights, of the
        network's features from the beginning; triplets from halves of the neighbourhoods; L
        trained in turn with the network, by conjugate gradients on the Stiefel manifold. It
        collapses with small neighbourhoods. For other methods it changes the graphs.
    module : {"auto", "mlp", "convnet"}, class, torch.nn.Module or None, default="auto"
        The network: "mlp" is fully connected, for tables; "convnet" convolutional, for images, on
        their oriented gradients (on pixels with ``module__gradients=False``); "auto" takes the one
        that fits the samples; a subclass of ``torch.nn.Module``
        or a network, as in :class:`~skdml.deep.DeepMetricEmbedder`; or None, a linear metric of
        the columns of X. The network has twice `n_components` outputs, if it can be told.
    n_components : int, default=64
        Columns of the embedding. With ``module=None``, as many as X has columns at most; half of
        them for an orthogonal map, which would be a mere rotation otherwise.
    n_neighbors : int, default=10
        k, the neighbours of a sample in the graph; an even number. Equal samples of a class are
        one: k is smaller where few different ones are left.
    propagation : float, default=0.99
        gamma, the share that a sample takes from its neighbours in each step of propagation.
    partition_size : int, default=None
        Unlabelled samples in a graph, beside all labelled ones. None is 9,000 images or 20,000 rows
        of a table.
    epochs_per_partition : int, default=None
        Epochs after which other samples are drawn, for a new graph. None is 1 for images, 5 for
        tables.
    max_epochs : int, default=None
        Epochs in all. None is as many as make 300 batches of images, or 500 of rows. With
        ``recipe="paper"``, both are the paper's 10 and 50.
    pretrain_epochs : int, default=0
        Epochs of supervised training on the labelled samples before that, as a classifier.
    batch_size : int, default=200
        Samples of a batch; triplets, with ``recipe="paper"``.
    optimizer : {"adam", "adamw", "sgd"} or class, default="adam"
        The optimiser, with further parameters as ``optimizer__...``.
    lr : float, default=0.001
        The learning rate at the beginning. It falls to zero along a cosine.
    augment : {"affine"} or callable, default=None
        Random augmentation: "affine" turns, scales, shears and shifts images a little; a callable
        takes and returns a tensor.
    input_shape : tuple (channels, height, width), default=None
        The shape of an image where rows of X are flattened images.
    n_workers : int, default=1
        Partitions, and folds of labels, whose graphs are worked on at a time, by threads. Training
        itself is in this process, and the result does not depend on it.
    client : distributed.Client, default=None
        A dask cluster whose workers do that; None takes that of joblib's active dask backend, if
        there is one. It is not stored with the estimator.
    device : str, default="auto"
        Where to train: "cpu", "cuda", ...; "auto" takes a GPU if there is one.
    random_state : int, RandomState instance or None, default=None
        Seeds weights, partitions, batches and augmentation.
    verbose : int, default=0
        1 shows a progress bar on a terminal.
    **kwargs
        Parameters of the parts, such as ``module__hidden=(64,)``, ``optimizer__weight_decay`` or
        ``loss__angle``.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_outputs)
        L', the linear map of the network's outputs, or of the columns of X. Its rows are
        orthonormal with ``method="ssdml"``, unless ``loss__orthogonal=False``.
    module_ : torch.nn.Module or None
        The trained network.
    propagated_labels_ : ndarray of shape (n_samples,)
        The class of each training sample by propagation; its label, where it has one. Images that
        no label reaches, and samples whose weight is 0, have -1, if labels are numbers, or None.
        Samples beyond eight partitions have what `predict` says of them.
    transduction_ : ndarray of shape (n_samples,)
        The same, by the name that scikit-learn's LabelSpreading has for it.
    propagated_confidence_ : ndarray of shape (n_samples,)
        The share of that class, between 0 and 1.
    graph_statistics_ : list of dict
        Of each partition's graph: n_nodes, n_edges, n_components, n_unreached, mean_confidence.
    history_ : dict of list
        Per epoch: "partition", its number; "loss", where a network or L is trained by gradients;
        "seconds" since the start of training.
    classes_ : ndarray of shape (n_classes,)
        The classes.
    n_features_in_ : int
        Number of features seen during `fit`; of an image, of all its values.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during `fit`, where X has such names.

    See Also
    --------
    skdml.deep.DeepMetricEmbedder : Learns from labelled samples alone.
    skdml.semisupervised.PartiallyLabelledClassifier : Any classifier behind this in a pipeline.
    skdml.semisupervised.PartiallyLabelledKFold : Cross-validation with unlabelled samples.
    sklearn.semi_supervised.LabelSpreading : Labels along a graph, without learning a metric.

    Notes
    -----
    The parameters of a method are given as ``loss__name``; those of another method are an error, as
    are parameters that a linear metric in closed form (``module=None``) has no use for.

    - "ssdml": `instance_weight` (None: 0.5 for images, 0 for tables), the weight of an InfoNCE term
      that tells each sample, augmented twice, from samples of other classes; `orthogonal` (True),
      whether L has orthonormal columns; `angle` (None), alpha of the paper's angular loss of
      triplets, in degrees: a number adds that loss. With ``recipe="paper"``, `angle` (40) alone.
    - "lrml", "isdml", "apllr", "apit": `similar_weight` (1), `dissimilar_weight` (0.5) and
      `graph_weight` (1).
    - "seraph": `entropy_weight` (0.1) and `trace_weight` (0.01).

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
    >>> float(np.mean(model.transduction_ == y)) > 0.85
    True
    >>> model.predict(X[:3]).shape
    (3,)
    """

    _parameter_constraints: dict = {
        "method": [str],
        "recipe": [StrOptions({"default", "paper"})],
        "module": [StrOptions({"auto", "mlp", "convnet"}), callable, None],
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "n_neighbors": [Interval(Integral, 2, None, closed="left")],
        "propagation": [Interval(Real, 0, 1, closed="neither")],
        "partition_size": [Interval(Integral, 1, None, closed="left"), None],
        "epochs_per_partition": [Interval(Integral, 1, None, closed="left"), None],
        "max_epochs": [Interval(Integral, 1, None, closed="left"), None],
        "pretrain_epochs": [Interval(Integral, 0, None, closed="left")],
        "batch_size": [Interval(Integral, 2, None, closed="left")],
        "optimizer": [StrOptions(set(OPTIMIZERS)), callable],
        "lr": [Interval(Real, 0, 1e38, closed="right")],
        "augment": [StrOptions({"affine"}), callable, None],
        "input_shape": [tuple, list, None],
        "n_workers": [Interval(Integral, 1, None, closed="left")],
        "client": "no_validation",
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
    history_: dict[str, list]
    classes_: NDArray
    _voters: NDArray
    _votes: NDArray
    _temperature: float
    _regression: tuple[float, NDArray, NDArray] | None = None

    def __init__(
        self,
        method: str = "ssdml",
        recipe: str = "default",
        module: str | Callable[..., Any] | None = "auto",
        n_components: int = 64,
        n_neighbors: int = 10,
        propagation: float = 0.99,
        partition_size: int | None = None,
        epochs_per_partition: int | None = None,
        max_epochs: int | None = None,
        pretrain_epochs: int = 0,
        batch_size: int = 200,
        optimizer: str | Callable[..., Any] = "adam",
        lr: float = 0.001,
        augment: Literal["affine"] | Callable[..., Any] | None = None,
        input_shape: Sequence[int] | None = None,
        n_workers: int = 1,
        client: Any = None,
        device: str = "auto",
        random_state: RandomStateLike = None,
        verbose: int = 0,
        **kwargs: Any,
    ) -> None:
        self.method = method
        self.recipe = recipe
        self.module = module
        self.n_components = n_components
        self.n_neighbors = n_neighbors
        self.propagation = propagation
        self.partition_size = partition_size
        self.epochs_per_partition = epochs_per_partition
        self.max_epochs = max_epochs
        self.pretrain_epochs = pretrain_epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.lr = lr
        self.augment = augment
        self.input_shape = input_shape
        self.n_workers = n_workers
        self.client = client
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.__dict__.update(kwargs)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # Fit

    @fit_method
    def fit(self, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn the metric.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, channels, height, width)
            The samples.
        y : array-like of shape (n_samples,)
            Class labels; -1 for samples without one.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each sample is drawn into batches, and how much its label counts where
            labels are propagated and paired; a weight of 0 is the same as no sample.

        Returns
        -------
        self : SSDMLEmbedder
            The fitted estimator.
        """
        self._check_part_params()
        method = make_method(self.method, self.recipe, params_of(self._part_params(), "loss"))
        check_unused(self, method)
        given = X
        X, self._sample_shape = self._check_samples(X, reset=True)
        check_varies(X)
        name = type(self).__name__
        self.classes_, codes = encode_partial_labels(y, len(X), name, method.needs_pairs)
        if (codes < 0).any():
            warn_of_classifier_behind(SSDMLEmbedder)
        rows, weights = self._choose_samples(X, codes, sample_weight)
        places, n_neighbors = None, self.n_neighbors
        if rows is not None:
            places = places_of_rows(X, codes, rows)
            X, y = X[rows], label_vector(y, len(X))[rows]
            check_varies(X)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it was said above
                self.classes_, codes = encode_partial_labels(y, len(X), name, method.needs_pairs)
        partition_size = self.partition_size
        if partition_size is None:
            has_images = len(self._sample_shape) == 3
            partition_size = choose_partition_size(has_images, self.recipe == "paper")
        n_nodes = min(len(X), int((codes >= 0).sum()) + partition_size)
        if rows is not None and n_neighbors % 2 == 0:
            n_neighbors = min(n_neighbors, max(2, (n_nodes - 1) // 2 * 2))
        check_neighbors(n_neighbors, n_nodes)
        check_changes(self.augment, self._sample_shape)
        plan = make_plan(self, method, n_neighbors, partition_size, n_nodes)
        seed = int(check_random_state(self.random_state).randint(2**31))
        with (
            FitProgress(self, total=plan.max_epochs, X=given, y=y, description="epoch") as progress,
            seeded_torch(seed),
        ):
            samples, rng = self._to_tensor(X), np.random.default_rng(seed)
            self._fit_model(samples, codes, weights, method, plan, rng, progress)
            if places is not None:  # of samples that were given, in their order
                known = places >= 0
                confidence = self.propagated_confidence_[places]
                self.propagated_confidence_ = np.where(known, confidence, 0.0)
                self.propagated_labels_ = without_label(self.propagated_labels_[places], ~known)
        return self

    def _fit_model(self, samples, codes, weights, method, plan, rng, progress):
        given = samples
        if self.module is None:  # centred, and scaled to a mean squared length of 1
            samples = samples.flatten(1) if self.input_shape is None else samples
            samples = samples - samples.mean(0)
            samples = samples / samples.flatten(1).square().sum(1).mean().sqrt().clamp_min(1e-12)
        model = make_model(self, samples, method)
        client = find_client(self.client)
        partitions = Partitions(model, samples, codes, weights, plan, rng, client)
        labelled = np.flatnonzero(codes >= 0)
        labels = np.eye(len(self.classes_))[codes[labelled]]

        def attributes(model, voters=labelled, votes=labels):
            factor = orthonormal(model.factor) if method.orthogonal else model.factor
            module = None if model.backbone is None else model.backbone.to("cpu")
            found = {"components_": np.ascontiguousarray(factor.T), "module_": module}
            embeddings = self._embed(given[voters], **found)
            some = np.linspace(0, len(voters) - 1, min(len(voters), _CALIBRATED)).astype(int)
            own = some[:, None] == np.arange(len(voters))
            found["_voters"], found["_votes"] = embeddings, votes
            calibrated = embeddings[some], votes[some], embeddings, votes, own
            found["_temperature"] = choose_temperature(*calibrated)
            return found

        trained = train(partitions, method, progress, attributes)
        self.history_, self.graph_statistics_ = trained
        classes, left = partitions.propagate_all()
        reached = rng.permutation(np.flatnonzero(classes.any(axis=1)))[:_VOTERS]
        voters = np.union1d(labelled, reached)
        self.__dict__.update(attributes(model, voters, classes[voters]))
        weighing, self._regression = partitions.settings.weighing, None
        if weighing is not None:
            some = given[voters].flatten(1).numpy().astype(float), classes[voters]
            counts = None if weights is None else weights[voters]
            self._regression = regression_of_classes(*some, counts, weighing)
        for rows in np.array_split(left, -(-len(left) // _BLOCK_ROWS)) if len(left) else ():
            classes[rows] = self._find_classes(given[rows])
        self.propagated_confidence_ = classes.max(axis=1)
        names = self.classes_[classes.argmax(axis=1)]
        self.propagated_labels_ = without_label(names, ~classes.any(axis=1))

    def _embed(self, samples, components_=None, module_=None):
        """Return the embeddings of a tensor of samples, by given or by fitted parts."""
        if components_ is None:
            components_, module_ = self.components_, self.module_
        features = samples.flatten(1).numpy() if module_ is None else embed(module_, samples)
        return features @ components_.T

    def _find_classes(self, samples):
        """Return the class distributions of a tensor of samples."""
        classes = vote(self._embed(samples), self._voters, self._votes, self._temperature)
        if self._regression is not None:
            share, coef, intercept = self._regression
            logits = samples.flatten(1).numpy() @ coef + intercept
            classes = (1 - share) * classes + share * softmax(logits, axis=1)
        return classes

    # Use

    @lazily
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
        features = X if self.module_ is None else embed(self.module_, self._to_tensor(X))
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
        return np.linalg.norm(np.subtract(*self._embed_pairs(pairs, X)), axis=1)

    @lazily
    def predict_proba(self, X: MatrixLike) -> NDArray:
        """Return the probabilities of classes.

        Training samples vote with their propagated classes, the nearest most. For tables, a
        logistic regression of these classes has the share that held-out labels gave to regression.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, channels, height, width)
            The samples. For those of `fit`, `transduction_` knows more.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
            In the order of `classes_`.
        """
        check_is_fitted(self)
        X, _ = self._check_samples(X, reset=False)
        return self._find_classes(self._to_tensor(X))

    @lazily
    def predict(self, X: MatrixLike) -> NDArray:
        """Return the classes of samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, channels, height, width)
            The samples.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
            Of `classes_`.
        """
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def score(self, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy of labelled samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, channels, height, width)
            The samples.
        y : array-like of shape (n_samples,)
            Their classes; samples with -1 are left out.
        sample_weight : array-like of shape (n_samples,), default=None
            Of the samples.

        Returns
        -------
        accuracy : float
            Between 0 and 1.
        """
        return labelled_accuracy(self.predict(X), y, sample_weight)

    @property
    def transduction_(self) -> NDArray:
        """The label of each training sample: `propagated_labels_`."""
        return self.propagated_labels_
