"""Any classifier on partly labelled rows, so that it may follow a learner in a pipeline."""

from __future__ import annotations

import inspect
import warnings
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from ..utils._bases import BaseEstimator, ClassifierMixin
from ..utils._fit import fit_method
from ..utils._labels import encode_partial_labels, labelled_rows
from ..utils._parallel import lazily
from ..utils._sklearn import EstimatorMixin, Interval, validate_data
from ..utils._supervision import check_weights
from ..utils._typing import MatrixLike
from ..utils.validation import label_vector
from ._label_propagation import class_distributions, make_graph, propagate_classes

_DAMPING = 0.99


def _estimator_has(name):
    def check(self):
        getattr(getattr(self, "estimator_", self.estimator or KNeighborsClassifier()), name)
        return True

    return check


class PartiallyLabelledClassifier(ClassifierMixin, EstimatorMixin, BaseEstimator):
    """Fit any classifier on the rows that have a label, or on all rows with propagated ones.

    A classifier of scikit-learn takes y = -1 for a class. This one leaves such rows out, or gives
    them labels along a graph of nearest neighbours, so that it can be the last step of a pipeline.

    Parameters
    ----------
    estimator : classifier, default=None
        The classifier; None is ``KNeighborsClassifier(1)``.
    propagate : bool, default=False
        Whether rows without a label get a propagated one. Its confidence is the `sample_weight` of
        the row, where the classifier takes weights.
    n_neighbors : int, default=10
        Neighbours of a row in the graph.

    Attributes
    ----------
    estimator_ : classifier
        The fitted classifier.
    classes_ : ndarray of shape (n_classes,)
        The classes, without -1.
    transduction_ : ndarray of shape (n_samples,)
        The labels that the classifier was fitted on; -1, or None beside labels that are no
        numbers, for rows that were left out.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during `fit`, where X has such names.

    See Also
    --------
    SSDMLEmbedder : Learns a metric, and predicts, from few labels.
    sklearn.semi_supervised.SelfTrainingClassifier : Labels rows by the classifier itself.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skdml.semisupervised import PartiallyLabelledClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> partly = np.where(np.arange(150) % 10 == 0, y, -1)
    >>> last = PartiallyLabelledClassifier(LogisticRegression(), propagate=True)
    >>> model = make_pipeline(StandardScaler(), last).fit(X, partly)
    >>> model.score(X, y) > 0.85
    True
    """

    _parameter_constraints: dict = {
        "estimator": [BaseEstimator, None],
        "propagate": ["boolean"],
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
    }

    estimator_: Any
    classes_: NDArray
    transduction_: NDArray

    def __init__(
        self, estimator: Any = None, propagate: bool = False, n_neighbors: int = 10
    ) -> None:
        self.estimator = estimator
        self.propagate = propagate
        self.n_neighbors = n_neighbors

    @fit_method
    def fit(self, X: MatrixLike, y: ArrayLike) -> Self:
        """Fit the classifier.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The rows.
        y : array-like of shape (n_samples,)
            Class labels; -1 for rows without one.

        Returns
        -------
        self : PartiallyLabelledClassifier
            The fitted estimator.
        """
        if self.estimator is not None and not is_classifier(self.estimator):
            kind = type(self.estimator).__name__
            raise TypeError(f"estimator must be a classifier, got {kind}.")
        X = validate_data(self, X, dtype=[np.float64, np.float32])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="all samples have a label")
            name = type(self).__name__
            self.classes_, codes = encode_partial_labels(y, len(X), name, needs_pairs=False)
        if isinstance(self.classes_[0], bytes):
            raise TypeError(
                "y has labels of bytes, which classifiers of scikit-learn do not take: convert "
                "them to strings or integers."
            )
        confidence = None
        if self.propagate and (codes < 0).any():
            graph = make_graph(X, min(self.n_neighbors, len(X) - 1), unit_length=False)
            mass = propagate_classes(graph.flow, codes, len(self.classes_), _DAMPING)
            classes = class_distributions([mass], codes)
            confidence = classes.max(axis=1)
            codes = np.where(confidence > 0, classes.argmax(axis=1), -1)
        known = codes >= 0
        self.transduction_ = without_label(self.classes_[codes], ~known)
        estimator = KNeighborsClassifier(1) if self.estimator is None else clone(self.estimator)
        options = {}
        if confidence is not None and has_fit_parameter(estimator, "sample_weight"):
            options["sample_weight"] = confidence[known]
        self.estimator_ = estimator.fit(X[known], self.classes_[codes[known]], **options)
        return self

    def _call(self, name, X):
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return getattr(self.estimator_, name)(X)

    @lazily
    def predict(self, X: MatrixLike) -> NDArray:
        """Return the classes of rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The rows.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
            Of `classes_`.
        """
        return self._call("predict", X)

    @available_if(_estimator_has("predict_proba"))
    @lazily
    def predict_proba(self, X: MatrixLike) -> NDArray:
        """Return the probabilities of classes, where the classifier has them.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The rows.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
            In the order of `classes_`.
        """
        return self._call("predict_proba", X)

    @available_if(_estimator_has("decision_function"))
    def decision_function(self, X: MatrixLike) -> NDArray:
        """Return the scores of classes, where the classifier has them.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The rows.

        Returns
        -------
        scores : ndarray of shape (n_samples,) or (n_samples, n_classes)
            As of the classifier.
        """
        return self._call("decision_function", X)

    def score(self, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy of labelled rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The rows.
        y : array-like of shape (n_samples,)
            Their classes; rows with -1 are left out.
        sample_weight : array-like of shape (n_samples,), default=None
            Of the rows.

        Returns
        -------
        accuracy : float
            Between 0 and 1.
        """
        return labelled_accuracy(self.predict(X), y, sample_weight)


def labelled_accuracy(predicted: NDArray, y: Any, sample_weight: Any = None) -> float:
    """Return the share of labelled rows whose class was predicted."""
    if y is None:
        raise ValueError("score requires y to be passed, but the target y is None.")
    y = label_vector(y, len(predicted), ", -1 for samples without one")
    labelled = labelled_rows(y)
    if not labelled.any():
        raise ValueError("y is -1 everywhere: there is nothing to score.")
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise ValueError("y contains NaN or infinity: give -1 to samples without a label.")
    right = predicted[labelled] == y[labelled]
    if sample_weight is None:
        return float(np.mean(right))
    weights = check_weights(sample_weight, "sample_weight", len(predicted))[labelled]
    if not weights.any():
        raise ValueError("sample_weight is zero for all labelled samples: nothing to score.")
    return float(np.average(right, weights=weights))


def without_label(names: NDArray, unknown: Any) -> NDArray:
    """Return labels with -1, or None beside labels that are no numbers, where they are unknown."""
    if unknown.any():
        if names.dtype.kind not in "iuf":
            names = names.astype(object)
        names[unknown] = -1 if names.dtype.kind in "iuf" else None
    return names


def warn_of_classifier_behind(kind: type) -> None:
    """Warn if a fit is called by a pipeline whose last step would learn -1 as a class.

    The pipeline is found among the callers: it hands y to all of its steps, and a step knows
    nothing of the others. It may hold the fitted step in a union or a pipeline of its own.

    Parameters
    ----------
    kind : type
        Of the step that is fitted.
    """
    frame = inspect.currentframe()
    for _ in range(_MAX_FRAMES):
        frame = frame and frame.f_back
        if frame is None:
            return
        owner = frame.f_locals.get("self")
        # Steps before the last are fitted by this method.
        if isinstance(owner, Pipeline) and frame.f_code.co_name == "_fit":
            last = _last_step(owner)
            if _takes_minus_one(last, kind):
                break
    else:
        return
    warnings.warn(
        f"y has -1 for samples without a label, and the pipeline gives it to "
        f"{type(last).__name__} too, which takes -1 for a class: wrap the last step as "
        f"PartiallyLabelledClassifier({type(last).__name__}()), or leave it out, because "
        f"{kind.__name__} has predict itself.",
        stacklevel=3,
    )


def _last_step(estimator):
    """Return what is fitted last by a pipeline, or by a search over one."""
    while isinstance(estimator, (Pipeline, GridSearchCV, RandomizedSearchCV)):
        is_pipeline = isinstance(estimator, Pipeline)
        estimator = estimator.steps[-1][1] if is_pipeline else estimator.estimator
    return estimator


def _takes_minus_one(estimator, kind):
    if not hasattr(estimator, "fit") or not is_classifier(estimator):  # "passthrough" has no fit
        return False
    if isinstance(estimator, (kind, PartiallyLabelledClassifier)):
        return False
    return not type(estimator).__module__.startswith("sklearn.semi_supervised")


# Callers between the fit of a step and its pipeline, at most.
_MAX_FRAMES = 60
