"""A classifier of pairs over a metric learner."""

from __future__ import annotations

import copy
import inspect
import re
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, check_cv
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted

from ..linear import GMMLTransformer
from ..utils._bases import BaseEstimator, ClassifierMixin
from ..utils._fit import FitProgress, fit_method
from ..utils._parallel import lazily
from ..utils._sklearn import EstimatorMixin, Interval
from ..utils._supervision import check_weights
from ..utils._typing import MatrixLike, RandomStateLike, Request
from ..utils.validation import check_given, check_numbers, naming
from ._pair_rows import check_pair_array, find_rows, number_in_order
from ._thresholds import STRATEGIES, best_threshold, fit_sigmoid

_NEEDS = "fit(X, pairs=, pair_labels=) and pair_distance(pairs, X=), as GMMLTransformer has them"


class PairClassifier(ClassifierMixin, EstimatorMixin, BaseEstimator):
    """Tells similar pairs from dissimilar ones by a learned distance and a threshold.

    A sample is a pair, so that ``KFold``, ``GridSearchCV`` and ``cross_validate`` split pairs. The
    threshold and the probabilities come from pairs that were held out of the learner.

    Read more in the :ref:`User Guide <verification>`.

    Parameters
    ----------
    learner : estimator, default=None
        A metric learner with ``fit(X, pairs=, pair_labels=)`` and ``pair_distance(pairs, X=)``. It
        is cloned. None is ``GMMLTransformer(random_state=random_state)``.
    preprocessor : {array-like, sparse matrix, callable}, default=None
        The rows, for pairs of indices. A callable gets a vector of distinct indices, of which it
        may have its own kind such as names of files, and returns their rows. Clones share it.
    cv : int, splitter, iterable or None, default=5
        Folds of the training pairs, each of which is held out once, for the threshold and the
        probabilities. An integer gives stratified folds in which equal pairs are together, at
        most as many as the rarer kind has pairs; `PairGroupKFold` holds rows out. None takes the
        training pairs themselves: one fit in place of ``cv + 1``, and a threshold that is too low.
    random_state : int, RandomState instance or None, default=None
        Seeds the folds.

    Attributes
    ----------
    learner_ : estimator
        The learner, fitted on all pairs.
    threshold_ : float
        Pairs up to this distance are similar. After `fit`, that of the best accuracy.
    calibration_ : tuple of two floats
        Slope and intercept: the probability of a similar pair is
        ``1 / (1 + exp(-(intercept + slope * distance)))``.
    classes_ : ndarray of shape (2,)
        -1 and 1.
    n_features_in_ : int
        Number of features of the rows.

    See Also
    --------
    PairGroupKFold : Folds that have no row in common.
    skdml.plot.VerificationDisplay : Curves of errors, and histograms of distances.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.model_selection import cross_val_score
    >>> from skdml import PairClassifier, GMMLTransformer
    >>> from skdml.constraints import make_pairs
    >>> X, digit = load_digits(return_X_y=True)
    >>> pairs, y = make_pairs(digit, 2000, random_state=0)
    >>> learner = GMMLTransformer(geodesic=0.3, random_state=0)
    >>> model = PairClassifier(learner, preprocessor=X, random_state=0)
    >>> scores = cross_val_score(model, pairs, y)  # ROC AUC
    >>> bool(scores.mean() > 0.9)
    True
    """

    _parameter_constraints: dict = {
        "learner": [object],
        "preprocessor": ["array-like", "sparse matrix", callable, None],
        "cv": [Interval(Integral, 2, None, closed="left"), "cv_object", None],
        "random_state": ["random_state"],
    }

    # `pairs` are the samples, not metadata beside them.
    __metadata_request__fit = {"pairs": UNUSED}
    __metadata_request__predict = {"pairs": UNUSED}
    __metadata_request__predict_proba = {"pairs": UNUSED}
    __metadata_request__decision_function = {"pairs": UNUSED}
    __metadata_request__score = {"pairs": UNUSED}

    learner_: Any
    threshold_: float
    calibration_: tuple[float, float]
    classes_: NDArray

    if TYPE_CHECKING:  # scikit-learn makes these from the signatures, for metadata routing

        def set_fit_request(self, *, sample_weight: Request = None) -> Self: ...
        def set_score_request(self, *, sample_weight: Request = None) -> Self: ...

    def __init__(
        self,
        learner: Any = None,
        preprocessor: Any = None,
        cv: Any = 5,
        random_state: RandomStateLike = None,
    ) -> None:
        self.learner = learner
        self.preprocessor = preprocessor
        self.cv = cv
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags

    def __sklearn_clone__(self) -> Self:
        # Clones share the rows, which would be copied in every fit of a search.
        bare = copy.copy(self)
        bare.preprocessor = None
        clone = super(PairClassifier, bare).__sklearn_clone__()
        clone.preprocessor = self.preprocessor
        return clone

    @fit_method
    def fit(self, pairs: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn the metric, the threshold and the probabilities.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features) or (n_pairs, 2)
            Pairs of vectors, or of indices into the rows of `preprocessor`.
        y : array-like of shape (n_pairs,)
            +1 for similar pairs, -1 for dissimilar ones.
        sample_weight : array-like of shape (n_pairs,), default=None
            How often each pair counts; a learner gets it as `pair_weight`.

        Returns
        -------
        self : PairClassifier
            The fitted estimator.
        """
        given = pairs
        learner = self._check_learner(sample_weight is not None)
        pairs = check_pair_array(pairs)
        labels = self._check_labels(y, len(pairs))
        weights = _check_weights(sample_weight, len(pairs))
        if (weights == 0).any():
            pairs, labels, weights = (part[weights > 0] for part in (pairs, labels, weights))
        _check_both_kinds(labels)
        rows, places = find_rows(pairs, self.preprocessor)
        folds = list(self._folds(pairs, places, labels))

        def learn(part):
            extra = {} if sample_weight is None else {"pair_weight": weights[part]}
            extra |= {"pairs": places[part], "pair_labels": labels[part]}
            try:
                return clone(learner).fit(rows, **extra)
            except ValueError as error:
                message = str(error).replace("pair_labels", "y")
                if re.match(r"(Input )?X\b", message):
                    message = f"pairs, as the rows X of the learner: {message}"
                raise ValueError(message) from error

        with FitProgress(self, total=len(folds) + 1, X=given, y=y, description="fit") as progress:
            progress.begin()
            self.n_features_in_ = rows.shape[1]
            self.learner_ = learn(slice(None))
            distances = self.learner_.pair_distance(places, X=rows)
            progress.step()
            held, tests = [], []
            for train, test in folds:
                progress.begin()
                own = learn(train).pair_distance(places, X=rows)
                # The unit of a learned distance may differ from fold to fold.
                unit = np.average(own, weights=weights) or 1.0
                held.append(own[test] * (np.average(distances, weights=weights) / unit))
                tests.append(test)
                progress.step()
            if folds:
                test = np.concatenate(tests)
                distances, labels, weights = np.concatenate(held), labels[test], weights[test]
                _check_both_kinds(labels, "cv: among the pairs that are held out, ")
            self.threshold_ = best_threshold(distances, labels, weights)
            self.calibration_ = fit_sigmoid(distances, labels, weights)
            self.classes_ = np.array([-1, 1])
        return self

    def _check_learner(self, weighted):
        """Return the learner, not fitted; raise if it cannot learn from pairs."""
        if self.learner is None:
            learner: Any = GMMLTransformer(random_state=self.random_state)
        else:
            learner = self.learner
        name = learner.__name__ if isinstance(learner, type) else type(learner).__name__
        if isinstance(learner, type) or not _takes(learner, "fit", "pairs", "pair_labels"):
            raise TypeError(f"learner is {name}, which cannot learn from pairs: it needs {_NEEDS}.")
        if not _takes(learner, "pair_distance", "X"):
            raise TypeError(f"learner is {name}, which has no distances: it needs {_NEEDS}.")
        if weighted and not _takes(learner, "fit", "pair_weight"):
            raise TypeError(
                f"sample_weight was given, and learner is {name}, whose fit has no pair_weight."
            )
        # scikit-learn leaves this out inside of another fit.
        if hasattr(learner, "_parameter_constraints"):
            learner._validate_params()
        return learner

    def _check_labels(self, y, n_pairs):
        """Return +1 and -1, one per pair."""
        check_given(y, type(self).__name__, " Pass +1 (similar) or -1 (dissimilar), one per pair.")
        labels = check_numbers(y, "y")
        if len(labels) != n_pairs:
            raise ValueError(f"y has {len(labels)} labels for {n_pairs} pairs: one each is needed.")
        wrong = np.setdiff1d(labels, [1, -1])
        if len(wrong):
            raise ValueError(
                f"y must be +1 (similar) or -1 (dissimilar), got {wrong[:5].tolist()} as well."
            )
        return labels.astype(np.int64)

    def _folds(self, pairs, places, labels):
        """Yield pairs to learn from and pairs to hold out, as numbers."""
        if self.cv is None:
            return
        if isinstance(self.cv, Integral):
            # By distinct pairs, so that a pair that is given twice is never on both sides.
            low, high = np.sort(places, axis=1).T
            first, codes = number_in_order(low * (places.max() + 1) + high)
            kinds = labels[first]
            n_splits = min(int(self.cv), *(np.sum(kinds == sign) for sign in (1, -1)))
            if n_splits < 2:
                raise ValueError(
                    "y has a kind with one distinct pair, which cannot be learned from and held "
                    "out: give more pairs, or cv=None."
                )
            folds = StratifiedKFold(n_splits, shuffle=True, random_state=self.random_state)
            for _, test in folds.split(first, kinds):
                inside = np.isin(codes, test)
                yield np.flatnonzero(~inside), np.flatnonzero(inside)
            return
        with naming("cv"):
            folds = list(check_cv(self.cv, labels, classifier=True).split(pairs, labels))
        for train, test in folds:
            _check_both_kinds(labels[train], "cv: in the training part of a fold, ")
            yield train, test

    @lazily
    def pair_distance(self, pairs: MatrixLike) -> NDArray:
        """Return the learned distance of each pair.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features) or (n_pairs, 2)
            Pairs, as in `fit`.

        Returns
        -------
        distances : ndarray of shape (n_pairs,)
            Not negative.
        """
        check_is_fitted(self)
        rows, places = find_rows(check_pair_array(pairs), self.preprocessor, distinct=False)
        if rows.shape[1] != self.n_features_in_:
            raise ValueError(
                f"pairs has rows of {rows.shape[1]} features, but {type(self).__name__} is "
                f"expecting {self.n_features_in_} features as input."
            )
        return self.learner_.pair_distance(places, X=rows)

    @lazily
    def pair_score(self, pairs: MatrixLike) -> NDArray:
        """Return how similar each pair is: the distance with its sign changed.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features) or (n_pairs, 2)
            Pairs, as in `fit`.

        Returns
        -------
        scores : ndarray of shape (n_pairs,)
            Not positive; whatever the threshold is.
        """
        return -self.pair_distance(pairs)

    @lazily
    def decision_function(self, pairs: MatrixLike) -> NDArray:
        """Return how far each pair is on the similar side of the threshold.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features) or (n_pairs, 2)
            Pairs, as in `fit`.

        Returns
        -------
        decisions : ndarray of shape (n_pairs,)
            ``threshold_ - pair_distance(pairs)``, the higher the more similar.
        """
        return self.pair_score(pairs) + self.threshold_

    @lazily
    def predict(self, pairs: MatrixLike) -> NDArray:
        """Tell which pairs are similar.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features) or (n_pairs, 2)
            Pairs, as in `fit`.

        Returns
        -------
        y : ndarray of shape (n_pairs,)
            +1 where the distance is at most `threshold_`, else -1.
        """
        return np.where(self.pair_distance(pairs) <= self.threshold_, 1, -1)

    @lazily
    def predict_proba(self, pairs: MatrixLike) -> NDArray:
        """Return the probabilities that pairs are dissimilar and similar.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features) or (n_pairs, 2)
            Pairs, as in `fit`.

        Returns
        -------
        probabilities : ndarray of shape (n_pairs, 2)
            Of -1 and of +1, for pairs of which as many are similar as in training. They do not
            depend on `threshold_`.
        """
        distances = self.pair_distance(pairs)
        slope, intercept = self.calibration_
        logits = intercept + slope * distances
        return np.column_stack([expit(-logits), expit(logits)])

    def score(
        self, pairs: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> float:
        """Return the ROC AUC: how often a similar pair is nearer than a dissimilar one.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features) or (n_pairs, 2)
            Pairs, as in `fit`.
        y : array-like of shape (n_pairs,)
            +1 and -1.
        sample_weight : array-like of shape (n_pairs,), default=None
            How often each pair counts.

        Returns
        -------
        score : float
            From 0 to 1; 0.5 is chance. It does not depend on `threshold_`.
        """
        scores = self.pair_score(pairs)
        labels = self._check_labels(y, len(scores))
        weights = _check_weights(sample_weight, len(scores))
        _check_both_kinds(labels[weights > 0])
        return float(roc_auc_score(labels, scores, sample_weight=weights))

    def set_threshold(self, threshold: float) -> Self:
        """Set the threshold.

        Parameters
        ----------
        threshold : float
            The largest distance of pairs that are similar.

        Returns
        -------
        self : PairClassifier
            The estimator.
        """
        check_is_fitted(self)
        self.threshold_ = _check_number(threshold, "threshold", -np.inf, np.inf)
        return self

    def calibrate_threshold(
        self,
        pairs: MatrixLike,
        y: ArrayLike,
        strategy: str = "accuracy",
        *,
        beta: float = 1.0,
        min_rate: float | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Set the threshold that is best on given pairs; they should not be those of `fit`.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features) or (n_pairs, 2)
            Pairs, as in `fit`.
        y : array-like of shape (n_pairs,)
            +1 and -1.
        strategy : {"accuracy", "f_beta", "max_tpr", "max_tnr"}, default="accuracy"
            "accuracy": most right decisions. "f_beta": the best F-score of similar pairs.
            "max_tpr": most similar pairs accepted, of the thresholds that reject at least
            `min_rate` of the dissimilar ones. "max_tnr": most dissimilar pairs rejected, of the
            thresholds that accept at least `min_rate` of the similar ones.
        beta : float, default=1.0
            How much recall counts beside precision, with "f_beta"; 0 is precision alone.
        min_rate : float, default=None
            From 0 to 1, needed with "max_tpr" and "max_tnr".
        sample_weight : array-like of shape (n_pairs,), default=None
            How often each pair counts.

        Returns
        -------
        self : PairClassifier
            The estimator.
        """
        check_is_fitted(self)
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy must be one of {list(STRATEGIES)}, got {strategy!r}.")
        if strategy == "f_beta":
            beta = _check_number(beta, "beta", 0, 1e6)
        rate = 0.0
        if strategy in ("max_tpr", "max_tnr"):
            rate = _check_number(min_rate, "min_rate", 0, 1)
        distances = self.pair_distance(pairs)
        labels = self._check_labels(y, len(distances))
        weights = _check_weights(sample_weight, len(distances))
        distances, labels, weights = (p[weights > 0] for p in (distances, labels, weights))
        _check_both_kinds(labels)
        self.threshold_ = best_threshold(distances, labels, weights, strategy, beta, rate)
        return self


def _takes(estimator, method, *names):
    """Tell whether a method takes arguments of these names."""
    if not callable(getattr(estimator, method, None)):
        return False
    parameters = inspect.signature(getattr(estimator, method)).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return True
    return all(name in parameters for name in names)


def _check_number(value, name, low, high):
    """Return a number from low to high."""
    if not isinstance(value, Real) or isinstance(value, bool) or not low <= value <= high:
        wanted = "a number" if high == np.inf else f"a number from {low} to {high}"
        raise ValueError(f"{name} must be {wanted}, got {value!r}.")
    return float(value)


def _check_weights(sample_weight, n_pairs):
    """Return the weights of pairs, 1 by default."""
    if sample_weight is None:
        return np.ones(n_pairs)
    return check_weights(sample_weight, "sample_weight", n_pairs)


def _check_both_kinds(labels, where=""):
    for sign, kind in ((1, "similar (+1)"), (-1, "dissimilar (-1)")):
        if not (labels == sign).any():
            raise ValueError(f"{where}y has no {kind} pair: both kinds are needed.")
