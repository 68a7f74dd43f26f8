"""Base class of the estimators that learn one linear metric: rows, pairs, their prior."""

from __future__ import annotations

import functools
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import normalize
from sklearn.utils import check_random_state
from sklearn.utils.extmath import row_norms
from sklearn.utils.validation import check_is_fitted

from ..constraints import make_pairs
from ..metrics import recall_at_k
from ..utils._bases import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from ..utils._parallel import computed, find_client, is_dask_array, lazily
from ..utils._prior import check_prior, prior_inverse
from ..utils._sklearn import EstimatorMixin, Interval, StrOptions, validate_rows
from ..utils._supervision import (
    Supervision,
    check_weights,
    find_source,
    merge_rows,
    pairs_of_triplets,
    signed_pairs,
)
from ..utils._typing import MatrixLike, RandomStateLike, Request
from ..utils.validation import (
    as_dense,
    check_given,
    check_index_pairs,
    check_named_array,
    check_pair_labels,
    check_row_labels,
    check_scale,
    check_varies,
    column_bounds,
    encode,
    encode_for_pairs,
    page_release,
)
from ._graded import graded_factors
from ._mahalanobis import MahalanobisMetric
from ._row_pairs import embedded_pair_distance, row_pair_distance
from ._selection import (
    N_ROUNDS,
    Choice,
    TrainingPairs,
    choose_for_pairs,
    choose_value,
    near_pairs,
    weigh,
)
from ._span import find_span, shorten

# Rows among which local pairs are found.
_MOST_ROWS = 10_000


class LinearMetricLearner(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, EstimatorMixin, BaseEstimator
):
    """Base of the estimators that learn one Mahalanobis metric.

    The `fit` of a subclass calls `_supervise` and `_prepare`, and sets `metric_`, a
    `MahalanobisMetric`; everything that uses the metric is here.
    """

    _chosen: str  # the parameter that "auto" chooses along a path
    _candidates: tuple[float, ...]
    _late: tuple[str, ...] = ()  # attributes that are computed at their first use
    _most_rank = 2000  # dimensions that local pairs may span where there are more columns

    _parameter_constraints: dict = {
        "prior": [StrOptions({"identity", "covariance"}), "array-like"],
        "metric": [StrOptions({"euclidean", "cosine"})],
        "pairs": [StrOptions({"auto", "local", "random"})],
        "select": [StrOptions({"samples", "classes"})],
        "n_constraints": [Interval(Integral, 2, None, closed="left"), None],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    metric: str
    pairs: str
    select: str
    n_components: int | None
    n_constraints: int | None
    n_jobs: int | None
    prior: str | ArrayLike
    random_state: RandomStateLike
    metric_: MahalanobisMetric
    path_: dict[str, list[float]]

    if TYPE_CHECKING:  # scikit-learn makes these from the signatures, for metadata routing

        def set_fit_request(
            self,
            *,
            pairs: Request = None,
            pair_labels: Request = None,
            sample_weight: Request = None,
            pair_weight: Request = None,
            pair_similarity: Request = None,
            triplets: Request = None,
        ) -> Self: ...

    if not TYPE_CHECKING:  # which would take any attribute for one of ours

        def __getattr__(self, name):
            # What `partial_fit` left to be computed when it is used.
            if name in self._late and "_stream" in vars(self):
                self._finish()
                return vars(self)[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _supervise(
        self,
        X,
        y=None,
        pairs=None,
        pair_labels=None,
        sample_weight=None,
        pair_weight=None,
        pair_similarity=None,
        triplets=None,
        is_first=True,
    ):
        """Check what `fit` was given, and return it as a `Supervision`.

        A later batch of `partial_fit` may have pairs of one kind.
        """
        given = find_source(pairs, triplets, pair_labels, pair_similarity, pair_weight)
        if given is None:
            hint = " Pass class labels y, or index pairs with pairs= and pair_labels=."
            check_given(y, type(self).__name__, hint)
        X = self._check_matrix(X, is_first)
        n_rows = X.shape[0]
        if sample_weight is not None:
            sample_weight = check_weights(sample_weight, "sample_weight", n_rows)
        if given is None:
            return self._check_classes(X, y, sample_weight)
        if triplets is not None:
            pairs, pair_labels, pair_weight = pairs_of_triplets(triplets, n_rows, pair_weight)
        pairs, signed, grades = signed_pairs(
            pairs, pair_labels, n_rows, pair_weight, sample_weight, pair_similarity, is_first
        )
        return Supervision(X, np.arange(n_rows), None, pairs, signed, grades, sample_weight)

    def _check_matrix(self, X, reset=True):
        if is_dask_array(X):
            X = self._check_dask_array(X, reset=reset)
        else:
            X = validate_rows(self, X, ensure_min_samples=2, reset=reset)
        bounds = column_bounds(X)
        if not np.isfinite(bounds).all():  # of dask arrays; others were checked above
            raise ValueError("Input X contains NaN or infinity.")
        check_scale(bounds)
        check_varies(bounds)
        X = self._scale_rows(X)
        n_features = X.shape[1]
        if self.n_components is not None and self.n_components > n_features:
            raise ValueError(
                f"n_components={self.n_components} is more than the {n_features} features of X."
            )
        return X

    def _check_classes(self, X, y, weights):
        """Return the distinct rows of each class, or random pairs of them."""
        y = check_row_labels(y, X.shape[0])
        rows, weights = merge_rows(X, encode(y, "y")[1], weights)
        if len(rows) < len(y) or weights is not None:
            encode_for_pairs(y)
            X, y = X[rows], y[rows]
            check_varies(X)
            if len(np.unique(y)) == len(y):
                raise ValueError(
                    "no similar pair with a difference is left: the rows of each class are equal."
                )
        if self._is_random() and getattr(self, self._chosen) != "auto":
            n_pairs = self.n_constraints or self._n_pairs(*X.shape)
            pairs, labels = make_pairs(y, n_pairs, random_state=self.random_state)
            return Supervision(X, rows, None, pairs, weigh(labels, pairs, weights), None, weights)
        return Supervision(X, rows, encode_for_pairs(y), None, None, None, weights)

    def _prepare(self, given):
        """Express the rows and the prior in coordinates of the span of the rows."""
        X, codes, weights, signed = given.X, given.codes, given.weights, given.signed
        prior = check_prior(self.prior, X.shape[1])
        parallel = {"n_jobs": self.n_jobs, "client": find_client(None, X)}
        if given.pairs is None:
            rows, places = self._draw_rows(X, codes), np.empty((0, 2), dtype=int)
            codes, signed = codes[rows], np.empty(0)
        else:
            rows, places = np.unique(given.pairs, return_inverse=True)
            places = places.reshape(-1, 2)
        if is_copy := len(rows) < X.shape[0]:
            whole, X = X, X[rows]
            while isinstance(whole, np.ndarray) and not isinstance(whole, np.memmap):
                whole = whole.base  # validation returns a view of a memory map
            if (release := page_release(whole)) is not None:
                release()
            check_varies(X)
            weights = None if weights is None else weights[rows]
        full = not isinstance(prior, str)
        span = find_span(X, full=full, weights=weights, owned=is_copy, **parallel)
        inverse, outside = prior_inverse(prior, span)
        return TrainingPairs(
            given.rows[rows], codes, places, signed, given.grades, span, inverse, outside, parallel
        )

    def _check_batch(self, X, y, pairs, pair_labels, sample_weight, pair_weight, is_first):
        """Return a batch of `partial_fit` as a `Supervision` with pairs."""
        if self.n_components is not None or (
            isinstance(self.prior, str) and self.prior == "covariance"
        ):
            raise ValueError(
                "partial_fit never has all rows, which n_components and prior='covariance' need: "
                "use n_components=None, and the identity or a matrix as prior."
            )
        weights = {"sample_weight": sample_weight, "pair_weight": pair_weight}
        given = self._supervise(X, y, pairs, pair_labels, **weights, is_first=is_first)
        given = replace(given, X=as_dense(computed(given.X)))
        if given.pairs is not None:
            return given
        n_pairs = self.n_constraints or self._n_pairs(*given.X.shape)
        rng = check_random_state(self.random_state)
        if self._is_random():
            drawn, labels = make_pairs(given.codes, n_pairs, random_state=rng)
        else:  # near under the metric so far
            rows = given.X if is_first else self._scale_rows(self.metric_.transform(given.X))
            rows = np.asarray(rows, dtype=np.float64)  # squares of float32 may overflow
            drawn, labels = near_pairs(rows, given.codes, n_pairs, rng)
        signed = weigh(labels, drawn, given.weights)
        return replace(given, codes=None, pairs=drawn, signed=signed)

    def _choose_for_batch(self, training, learn):
        """Return the parameter that is chosen by the pairs of the first batch, for all batches."""
        value = getattr(self, self._chosen)
        if value != "auto":
            return value
        self._find_pairs(training, learn, check_random_state(self.random_state))
        path = self.path_
        scores = np.where(np.array(path["round"]) == 1, path["score"], -np.inf)
        return path[self._chosen][int(np.argmax(scores))]

    def _draw_rows(self, X, codes):
        """Return the rows among which local pairs are found: all, or some of each class."""
        n_rows, n_features = X.shape
        most = _MOST_ROWS if n_features <= 2 * self._most_rank else self._most_rank
        if n_rows <= most:
            return np.arange(n_rows)
        order = check_random_state(self.random_state).permutation(n_rows)
        # Rows at equal steps through the rows in the order of their classes: each class has its
        # share.
        by_class = order[np.argsort(codes[order], kind="stable")]
        return np.sort(by_class[np.linspace(0, n_rows - 1, most).astype(int)])

    def _find_pairs(self, training, learn, rng):
        """Return the pairs to learn from, and the value of the parameter that is chosen for them.

        Parameters
        ----------
        training : TrainingPairs
            The rows, with pairs or with classes.
        learn : callable
            See `_selection`.
        rng : RandomState
            Draws pairs and folds.

        Returns
        -------
        training : TrainingPairs
            With pairs.
        value : float or None
            Of the parameter; None where the prior is best.
        """
        value, values = getattr(self, self._chosen), list(self._candidates)
        is_auto = isinstance(value, str)
        if training.codes is None and not is_auto:
            return training, value
        rows, prior = computed(training.span.coordinates), training.prior_factor
        is_cosine = self.metric == "cosine"
        offset = training.span.offset() if is_cosine else None
        n_kept = self.n_components or rows.shape[1]
        moment: Any = None
        if n_kept < rows.shape[1]:
            moment = training.span.second_moment(from_origin=is_cosine)

        def embed(rows, factor):
            if moment is not None:
                factor = shorten(factor, moment, n_kept)
            return _embed(rows, factor, offset)

        if training.codes is None:
            given = training.places, training.signed
            regress = functools.partial(self._regress, rows, training)
            choice = choose_for_pairs(
                rows, *given, learn, embed, values, prior, rng, training.grades, regress
            )
        else:
            n_pairs = self.n_constraints or self._n_pairs(*rows.shape)
            n_rounds = 1 if self._is_random() or value == np.inf else N_ROUNDS

            def draw(rows, codes):
                if self._is_random():
                    return make_pairs(codes, n_pairs, random_state=rng)
                return near_pairs(rows, codes, n_pairs, rng)

            if is_auto:
                choice = choose_value(
                    rows, training.codes, draw, learn, embed, values, prior, self.select,
                    n_rounds, rng, training.span.weights,
                )  # fmt: skip
            else:
                choice = Choice([value] * n_rounds)
        if is_auto:
            self.path_ = {self._chosen if k == "value" else k: v for k, v in choice.path.items()}
        value = choice.values[-1] if choice.values else None
        if choice.ridge is not None:  # the metric of the regression takes the place of the prior
            (factor,) = self._regress(
                rows, training, training.places, training.grades, [choice.ridge]
            )
            return replace(training, prior_inverse=np.linalg.inv(factor @ factor.T)), None
        if training.codes is None:
            return training, value
        factor = prior
        for number in range(max(1, len(choice.values))):
            places, labels = draw(embed(rows, factor), training.codes)
            signed = weigh(labels, places, training.span.weights)
            if number < len(choice.values) - 1:
                (factor,) = learn(rows, places, signed, choice.values[number : number + 1], factor)
        # The rows are here now, so that the work is, too.
        training = replace(training, span=replace(training.span, coordinates=rows), parallel={})
        return training.with_pairs(places, signed), value

    def _regress(self, rows, training, pairs, grades, ridges):
        """Yield factors of metrics by regression of grades on products or on distances."""
        prior = training.prior_factor
        if self.metric == "cosine":
            first, second = (
                (rows[pairs[:, side]] + training.span.offset()[0]) @ prior for side in (0, 1)
            )
        else:
            first = (rows[pairs[:, 0]] - rows[pairs[:, 1]]) @ prior
            second = -first
        for factor in graded_factors(first, second, grades[:, 0], grades[:, 1], ridges):
            yield prior @ factor

    def _is_random(self):
        """Return whether pairs are random: local ones are of no use among unseen classes."""
        return self.pairs == "random" or (self.pairs == "auto" and self.select == "classes")

    def _n_pairs(self, n_rows, rank):
        """Return how many pairs are taken at most where `n_constraints` is None."""
        return min(20 * n_rows, 1_000_000)

    def _scale_rows(self, X):
        """Scale rows to unit length with the cosine metric."""
        if self.metric == "euclidean":
            return X
        if is_dask_array(X):
            norms = (X**2).sum(axis=1) ** 0.5
        else:
            norms = row_norms(X)
        if not computed(norms).all():
            raise ValueError(
                "X has a row of zeros, which has no direction: metric='cosine' cannot use it."
            )
        if sparse.issparse(X):
            return normalize(X)
        return X / norms[:, None]

    def _check_dask_array(self, X, reset):
        if X.ndim != 2 or np.isnan(X.shape).any():
            raise ValueError(
                f"X is a dask array of shape {X.shape}: two known dimensions are needed "
                "(compute_chunk_sizes() finds them)."
            )
        if X.dtype.kind not in "biuf":
            raise ValueError(
                f"X is a dask array of dtype {X.dtype}: numbers are needed, such as those of "
                "X.astype(float)."
            )
        if X.dtype not in (np.float32, np.float64):
            X = X.astype(np.float64)
        if reset:
            self.n_features_in_ = X.shape[1]
        elif X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input."
            )
        return X

    @lazily
    def transform(self, X: MatrixLike) -> NDArray:
        """Map rows into the space where plain Euclidean distance is the learned metric.

        Parameters
        ----------
        X : {array-like, sparse matrix, dask array} of shape (n_samples, n_features)
            The rows.

        Returns
        -------
        X_new : ndarray or dask array of shape (n_samples, n_features or n_components)
            ``X @ sqrtm(A)``; with `n_components`, one column per kept direction. A dask array
            gives a dask array, computed when it is needed.
        """
        check_is_fitted(self)
        rows = self._scale_rows(validate_rows(self, X, reset=False))
        return self._scale_rows(self.metric_.transform(rows))

    @property
    def _n_features_out(self):
        return self.metric_.n_outputs

    def pair_distance(self, pairs: ArrayLike, X: MatrixLike | None = None) -> NDArray:
        """Return the learned distance of each pair.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features) or (n_pairs, 2)
            Pairs of vectors; with `X`, pairs of row indices into it, as in `fit`.
        X : {array-like, sparse matrix} of shape (n_samples, n_features), default=None
            The rows that index pairs refer to.

        Returns
        -------
        distances : ndarray of shape (n_pairs,)
            Not squared; 0 for equal vectors.
        """
        check_is_fitted(self)
        if X is not None:
            X = validate_rows(self, X, reset=False)
            pairs = check_index_pairs(pairs, X.shape[0])
            if self.metric == "euclidean":
                return row_pair_distance(self.metric_, X, pairs)
            return embedded_pair_distance(X, pairs, self._embed_on_sphere, self._distance)
        if sparse.issparse(pairs):
            raise TypeError("sparse pairs are given as index pairs: pair_distance(pairs, X=rows).")
        pairs = check_named_array(
            pairs, "pairs", allow_nd=True, ensure_2d=False, dtype=[np.float64, np.float32]
        )
        if pairs.ndim != 3 or pairs.shape[1:] != (2, self.n_features_in_):
            raise ValueError(
                f"pairs must have shape (n_pairs, 2, {self.n_features_in_}), got {pairs.shape}. "
                "For index pairs, pass the rows as X."
            )
        return self._distance(pairs[:, 0], pairs[:, 1])

    def pair_score(self, pairs: ArrayLike, X: MatrixLike | None = None) -> NDArray:
        """Return how similar each pair is: minus its distance.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features) or (n_pairs, 2)
            As in `pair_distance`.
        X : {array-like, sparse matrix} of shape (n_samples, n_features), default=None
            The rows that index pairs refer to.

        Returns
        -------
        scores : ndarray of shape (n_pairs,)
            0 for equal vectors, otherwise below.
        """
        return -self.pair_distance(pairs, X)

    def score(
        self,
        X: MatrixLike,
        y: ArrayLike | None = None,
        *,
        pairs: ArrayLike | None = None,
        pair_labels: ArrayLike | None = None,
    ) -> float:
        """Return how well the metric finds rows of the same class, or tells pairs apart.

        Parameters
        ----------
        X : {array-like, sparse matrix, dask array} of shape (n_samples, n_features)
            The rows.
        y : array-like of shape (n_samples,), default=None
            Class labels.
        pairs : array-like of shape (n_pairs, 2), default=None
            Row indices into X, in place of `y`.
        pair_labels : array-like of shape (n_pairs,), default=None
            +1 for similar pairs, -1 for dissimilar ones.

        Returns
        -------
        score : float
            The share of rows whose nearest other row is of their class (recall@1); of pairs the
            area under the ROC curve of their distances.
        """
        if pairs is not None:
            found = self.pair_score(pairs, X)
            labels = check_pair_labels(pair_labels, len(found))
            if abs(labels.sum()) == len(labels):
                raise ValueError("pair_labels has pairs of one kind: both are needed for a score.")
            return float(roc_auc_score(labels, found))
        hint = " Pass class labels y, or index pairs with pairs= and pair_labels=."
        check_given(y, type(self).__name__, hint)
        X_new = computed(LinearMetricLearner.transform(self, X))
        y = check_row_labels(y, len(X_new))
        return recall_at_k(np.asarray(X_new), encode(y, "y")[1], k=1)

    @property
    def components_(self) -> NDArray:
        """The linear map: ``transform(X)`` is ``X @ components_.T``, but for the cosine's scaling.

        An array of shape (n_features or n_components, n_features).
        """
        return self.metric_.components()

    def _distance(self, first, second):
        if self.metric == "euclidean":
            return self.metric_.pair_distance(first, second)
        sides = [self._embed_on_sphere(X)[0] for X in (first, second)]
        return np.linalg.norm(sides[0] - sides[1], axis=1)

    def _embed_on_sphere(self, X):
        """Return mapped rows of unit length, and by how much rounding has grown on the way."""
        Z = self.metric_.transform(self._scale_rows(X))
        largest = np.sqrt(self.metric_.scale + self.metric_.weights.max(initial=0))
        return self._scale_rows(Z), largest / row_norms(Z).min(initial=largest)

    def get_metric(self) -> MahalanobisMetric:
        """Return the learned metric as a callable of two vectors.

        Returns
        -------
        metric : MahalanobisMetric
            ``metric(u, v)`` is the distance, ``metric(u, v, squared=True)`` its square; fits
            ``KNeighborsClassifier(metric=metric)``, and does not depend on the estimator or its
            training data. With ``metric="cosine"``, it is that of rows of unit length, before what
            `transform` returns is scaled again.
        """
        check_is_fitted(self)
        return self.metric_

    def get_mahalanobis_matrix(self) -> NDArray:
        """Return the matrix A of the learned metric, n_features x n_features.

        Returns
        -------
        A : ndarray of shape (n_features, n_features)
            Symmetric, positive semi-definite. MemoryError, with the size, if it cannot fit. With
            ``metric="cosine"``, as `get_metric` says.
        """
        check_is_fitted(self)
        return self.metric_.matrix()


def _embed(rows, factor, offset=None):
    """Map rows by a factor; with an offset of the origin, to unit length."""
    if offset is None:
        return rows @ factor
    inside, outside = offset
    E = np.column_stack([(rows + inside) @ factor, np.full(len(rows), outside)])
    return E / np.linalg.norm(E, axis=1, keepdims=True)
