"""GMMLTransformer: a metric in closed form, as a geometric mean."""

from __future__ import annotations

import functools
from numbers import Real
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import LinAlgError
from sklearn.utils import check_random_state

from ..utils._differences import PairDifferences
from ..utils._fit import FitProgress, fit_method
from ..utils._parallel import computed, limit_threads
from ..utils._prior import check_prior
from ..utils._sklearn import Interval, StrOptions
from ..utils._typing import MatrixLike, RandomStateLike
from ._base import LinearMetricLearner
from ._mahalanobis import geometric_mean
from ._span import Span


class GMMLTransformer(LinearMetricLearner):
    r"""Geometric-mean metric learning.

    Similar pairs should be near, dissimilar pairs far. With S and D the mean outer products of
    the differences of similar and of dissimilar pairs, the metric is the geometric mean of the
    inverse of S and of D,

    .. math:: A = S^{-1} \#_t D,

    which is computed directly: there is nothing to iterate and little to tune. Read more in the
    :ref:`user guide <gmml>`.

    Parameters
    ----------
    geodesic : float or "auto", default="auto"
        t, in [0, 1]: 0 looks at similar pairs only, 1 at dissimilar pairs only, 0.5 is the
        geometric mean. "auto" takes what is best on rows that are held out, or the prior itself
        where nothing is better.
    reg : float, default=0.01
        How strongly S and D are drawn towards the prior, in units of the mean squared
        difference of a feature: it means the same for any scale of X and number of pairs.
    prior : {"identity", "covariance"} or array-like, default="identity"
        The metric that is approached as `reg` grows (exactly so at ``geodesic=0.5``):
        Euclidean distance, the distance whitened by the covariance of the rows, or a positive
        definite matrix of shape (n_features, n_features).
    pairs : {"auto", "local", "random"}, default="auto"
        Which pairs to draw from `y`: rows with their nearest rows of the same class and of
        others, found again under the learned metric in a few rounds, or any rows. "auto" is
        "local", but for ``select="classes"``, where random pairs do better. Not used when `fit` is
        given pairs.
    select : {"samples", "classes"}, default="samples"
        What is held out by "auto": a third of the rows, for use on the same classes, or a third
        of the classes, for search among classes that are not in `y`. Given pairs are held out as
        pairs.
    metric : {"euclidean", "cosine"}, default="euclidean"
        "cosine" scales rows to unit length before and after the map: for vectors that come from
        a network, whose columns should not be scaled.
    n_constraints : int, default=None
        About how many pairs to draw from `y`. None takes up to ten per row, or 20 random ones,
        a million at most.
    n_components : int, default=None
        The number of columns that `transform` returns: the directions along which the training
        rows vary most under the learned metric. None keeps all.
    n_jobs : int, default=None
        Workers for the sums over pairs and features, as in joblib. Under joblib's "dask"
        backend, or with dask arrays and an active client, the cluster does the work.
    random_state : int, RandomState instance or None, default=None
        Seeds the drawing of pairs.
    verbose : int, default=0
        1 shows a progress bar on a terminal.

    Attributes
    ----------
    metric_ : MahalanobisMetric
        The learned metric.
    geodesic_ : float or None
        The geodesic of the metric; None where the prior was best.
    path_ : dict of str to list
        With "auto": "round" of the pairs (0 is the prior), "geodesic" and "score" of all
        candidates: the mean accuracy of 1 and 5 nearest neighbours of held-out rows, the mean of
        recall@1 and MAP@R of held-out classes, the ROC AUC of held-out pairs.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during `fit`, where X has such names.

    See Also
    --------
    sklearn.neighbors.NeighborhoodComponentsAnalysis : Learns a linear map by gradient ascent on
        a soft nearest-neighbour accuracy.

    Notes
    -----
    With fewer rows than features, the work is done in the span of the rows: memory is
    O(n_rows × n_features) and no n_features × n_features matrix is made.

    References
    ----------
    .. [1] Zadeh, P. H., Hosseini, R. and Sra, S., "Geometric mean metric learning", ICML 2016.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skdml import GMMLTransformer
    >>> X, y = load_wine(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), GMMLTransformer(random_state=0),
    ...                       KNeighborsClassifier())
    >>> model.fit(X[::2], y[::2]).score(X[1::2], y[1::2]) > 0.9
    True
    """

    _parameter_constraints: dict = {
        **LinearMetricLearner._parameter_constraints,
        "geodesic": [Interval(Real, 0, 1, closed="both"), StrOptions({"auto"})],
        "reg": [Interval(Real, 0, None, closed="left")],
    }

    _chosen = "geodesic"
    _late = ("metric_",)
    _candidates = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7)

    geodesic_: float | None

    def __init__(
        self,
        geodesic: float | str = "auto",
        reg: float = 0.01,
        prior: str | ArrayLike = "identity",
        pairs: str = "auto",
        select: str = "samples",
        metric: str = "euclidean",
        n_constraints: int | None = None,
        n_components: int | None = None,
        n_jobs: int | None = None,
        random_state: RandomStateLike = None,
        verbose: int = 0,
    ) -> None:
        self.geodesic = geodesic
        self.reg = reg
        self.prior = prior
        self.pairs = pairs
        self.select = select
        self.metric = metric
        self.n_constraints = n_constraints
        self.n_components = n_components
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @fit_method
    def fit(
        self,
        X: MatrixLike,
        y: ArrayLike | None = None,
        *,
        pairs: ArrayLike | None = None,
        pair_labels: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        pair_weight: ArrayLike | None = None,
        pair_similarity: ArrayLike | None = None,
        triplets: ArrayLike | None = None,
    ) -> Self:
        """Learn the metric from class labels or from pairs.

        Parameters
        ----------
        X : {array-like, sparse matrix, dask array} of shape (n_samples, n_features)
            The rows.
        y : array-like of shape (n_samples,), default=None
            Class labels, from which pairs are drawn. Ignored when `pairs` is given.
        pairs : array-like of shape (n_pairs, 2), default=None
            Row indices into X.
        pair_labels : array-like of shape (n_pairs,), default=None
            +1 for similar pairs, -1 for dissimilar ones.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows: a pair has the product of those of its two rows. A weight of 2 is
            the row twice, 0 is no row. Equal rows of a class always count as one row with the sum
            of their weights.
        pair_weight : array-like of shape (n_pairs,) or (n_triplets,), default=None
            Weights of `pairs` or `triplets`: 2 is the pair twice, 0 is no pair.
        pair_similarity : array-like of shape (n_pairs,), default=None
            How similar the pairs are, any numbers, in place of `pair_labels`: a pair above the mean
            is similar, one below dissimilar, and its weight is the distance to the mean, in units
            of the mean distance.
        triplets : array-like of shape (n_triplets, 3), default=None
            Row indices into X, in place of `pairs`: anchor, near row, far row. The anchor and the
            near row are a similar pair, the anchor and the far row a dissimilar one.

        Returns
        -------
        self : GMMLTransformer
            The fitted estimator.
        """
        supervision = self._supervise(
            X, y, pairs, pair_labels, sample_weight, pair_weight, pair_similarity, triplets
        )
        rng = check_random_state(self.random_state)
        vars(self).pop("_stream", None)
        with FitProgress(self, total=3, X=X, y=y, description="step") as progress:
            progress.begin()
            training = self._prepare(supervision)
            progress.step()
            progress.begin()
            prior = _prior_of(training)
            with limit_threads(1 if training.span.rank < 1000 else None):
                learn = functools.partial(self._learn, prior=prior)
                training, self.geodesic_ = self._find_pairs(training, learn, rng)
                with training:
                    S, D = training.differences.scatter(_pair_weights(training.signed))
                    _check_differences(training.span.coordinates, training.differences, S, D)
                progress.step()
                progress.begin()
                if self.geodesic_ is None:
                    A, scale = np.linalg.inv(training.prior_inverse), 1 / training.outside
                else:
                    A, scale = self._regularised_mean(S, D, prior, self.geodesic_)
                self.metric_ = training.span.metric(
                    A,
                    scale,
                    self.n_components,
                    supervision.X.dtype,
                    from_origin=self.metric == "cosine",
                )
            progress.step()
        return self

    @fit_method
    def partial_fit(
        self,
        X: MatrixLike,
        y: ArrayLike | None = None,
        *,
        pairs: ArrayLike | None = None,
        pair_labels: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        pair_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn from more pairs; equal to one `fit` to the pairs of all calls.

        The sums S and D are kept, n_features x n_features each; the metric is computed from them
        when it is used. After `fit`, the first call begins anew. ``geodesic="auto"`` is chosen by
        the pairs of the first call, and kept.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The rows of this batch.
        y : array-like of shape (n_samples,), default=None
            Class labels, from which pairs among these rows are drawn: near ones under the metric
            so far, or random ones.
        pairs : array-like of shape (n_pairs, 2), default=None
            Row indices into this X.
        pair_labels, sample_weight, pair_weight : array-like, default=None
            As in `fit`. Batches after the first may have pairs of one kind.

        Returns
        -------
        self : GMMLTransformer
            The fitted estimator.
        """
        before = vars(self).get("_stream")
        weights = sample_weight, pair_weight
        given = self._check_batch(X, y, pairs, pair_labels, *weights, before is None)
        if before is None:
            check_prior(self.prior, given.X.shape[1])
            training = self._prepare(given)
            learn = functools.partial(self._learn, prior=_prior_of(training))
            self.geodesic_ = self._choose_for_batch(training, learn)
        rows = given.X.astype(np.float64)
        pair_weights = np.maximum([given.signed, -given.signed], 0)
        total = pair_weights.sum(axis=1)
        scatter = PairDifferences(rows - rows.mean(axis=0), given.pairs).scatter(pair_weights)
        if before is not None:
            total, scatter = total + before[0], scatter + before[1]
        if not np.trace(scatter.sum(axis=0)) > 0:
            raise ValueError("all pairs have zero difference: X has equal rows in each.")
        self._stream = total, scatter, given.X.dtype
        vars(self).pop("metric_", None)
        return self

    def _finish(self):
        """Set the metric of the sums of all batches."""
        total, scatter, dtype = self._stream
        n_features = self.n_features_in_
        S, D = scatter / total[:, None, None]
        A0 = check_prior(self.prior, n_features)
        prior = n_features, np.eye(n_features) if isinstance(A0, str) else np.linalg.inv(A0), 1.0
        A, scale = self._regularised_mean(S, D, prior, self.geodesic_)
        span = Span(np.empty((0, n_features)), n_features, None, np.zeros(n_features))
        self.metric_ = span.metric(A, scale, None, dtype)

    def _learn(self, rows, places, signed, geodesics, start, prior):
        """Yield the factor of the metric for each geodesic."""
        part = PairDifferences(rows, places)
        S, D = part.scatter(_pair_weights(signed))
        _check_differences(rows, part, S, D)
        for geodesic in geodesics:
            A, _ = self._regularised_mean(S, D, prior, geodesic)
            eigenvalues, vectors = np.linalg.eigh(A)
            yield vectors * np.sqrt(np.maximum(eigenvalues, 0))

    def _regularised_mean(self, S, D, prior, geodesic):
        """Return the metric inside the span, and its factor of the identity outside."""
        n_features, inverse, outside = prior
        unit = (np.trace(S) + np.trace(D)) / (2 * n_features)
        # S + reg P and D + reg inv(P) in units of the data: as reg grows, the mean tends to
        # inv(P), the prior.
        S = S + self.reg * unit * inverse
        D = D + self.reg * unit * np.linalg.inv(inverse)
        if not max(np.abs(S).max(), np.abs(D).max()) < 2.0**500:
            raise ValueError(
                f"reg={self.reg} times the squared differences of X leaves the range of float64: "
                "lower reg."
            )
        try:
            A = geometric_mean(S, D, geodesic)
        except LinAlgError:
            raise ValueError(
                f"the similar pairs leave a direction without any difference, so reg={self.reg} "
                "is too small to learn a metric: raise reg."
            ) from None
        edge = self.reg * unit
        scale = 1.0
        if self.reg:
            scale = (edge * outside) ** (geodesic - 1) * (edge / outside) ** geodesic
        return A, scale


def _prior_of(training):
    return training.span.n_features, training.prior_inverse, training.outside


def _pair_weights(signed):
    """Return weights of the pairs for the means over similar and over dissimilar ones."""
    weights = np.maximum([signed, -signed], 0)
    return weights / weights.sum(axis=1, keepdims=True)


def _check_differences(rows, differences, S, D):
    """Raise an error where all pairs are of equal rows; S and D are then rounding errors."""
    mean_square = float(computed((rows**2).sum())) / rows.shape[0]
    is_small = np.trace(S) + np.trace(D) <= 1e-6 * mean_square
    if is_small and not differences.squared_norms(None).any():
        raise ValueError(
            "all pairs have zero difference: X has the same values in both rows of each, so "
            "there is nothing to learn a metric from."
        )
