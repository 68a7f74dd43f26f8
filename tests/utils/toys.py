"""Right estimators, of every kind that the checks know."""

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.neighbors import KNeighborsClassifier
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted

from skdml.utils._fit import fit_method
from skdml.utils._sklearn import validate_data
from skdml.utils.validation import as_array, encode


def check_rows(model, X, reset=False):
    try:
        return validate_data(model, X, reset=reset, ensure_min_samples=2 if reset else 1)
    except ValueError as error:
        raise ValueError(f"X: {error}") from error


def check_target(y, X):
    if y is None:
        raise ValueError("y is missing")
    y = check_array(as_array(y), ensure_2d=False, dtype=None, input_name="y")
    encode(y, "y")
    if len(y) != len(X):
        raise ValueError("y and X differ in length")
    return y


class Toy(BaseEstimator):
    _parameter_constraints: dict = {}


class Supervised(Toy):
    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


class Ranker(Supervised):
    """Least squares on rows that are centred within their query."""

    def _queries(self, X, qid):
        qid = np.zeros(len(X)) if qid is None else np.asarray(qid)
        if len(qid) != len(X) or (qid.dtype.kind == "f" and np.isnan(qid).any()):
            raise ValueError("qid needs one query per row, and no NaN")
        return np.unique(qid, return_inverse=True)[1]

    def _centred(self, X, qid):
        X = X.copy()
        queries = self._queries(X, qid)
        for query in np.unique(queries):
            X[queries == query] -= X[queries == query].mean(axis=0)
        return X

    @fit_method
    def fit(self, X, y, qid=None):
        X = check_rows(self, X, reset=True)
        y = check_target(y, X)
        if (y == y[0]).all():
            raise ValueError("y has one relevance level only")
        self.coef_ = np.linalg.lstsq(self._centred(X, qid), y.astype(float), rcond=None)[0]
        return self

    def predict(self, X, qid=None):
        check_is_fitted(self)
        return self._centred(check_rows(self, X), qid) @ self.coef_

    def score(self, X, y, qid=None):
        return np.corrcoef(self.predict(X, qid), y)[0, 1]


class Generator(Toy):
    """A Gaussian with a diagonal covariance."""

    @fit_method
    def fit(self, X, y=None):
        X = check_rows(self, X, reset=True)
        self.mean_, self.std_ = X.mean(axis=0), X.std(axis=0)
        return self

    def sample(self, n_samples, random_state=None):
        check_is_fitted(self)
        if n_samples < 1:
            raise ValueError("n_samples must be at least 1")
        rng = check_random_state(random_state)
        return self.mean_ + self.std_ * rng.standard_normal((n_samples, len(self.mean_)))

    def score(self, X, y=None):
        return -float(np.abs(check_rows(self, X).mean(axis=0) - self.mean_).sum())


class SemiSupervised(TransformerMixin, Supervised):
    """Scales each feature by how well it tells the labelled classes apart."""

    _accepts_unlabelled: bool | None = True

    def _labels(self, y):
        return np.setdiff1d(y, -1)

    @fit_method
    def fit(self, X, y=None):
        X = check_rows(self, X, reset=True)
        y = check_target(y, X)
        classes = self._labels(y)
        if len(classes) < 2:
            raise ValueError("y needs labels of two classes or more")
        means = np.array([X[y == label].mean(axis=0) for label in classes])
        self.scale_ = means.std(axis=0) / self._spread(X, y)
        self._remember(X, y)
        return self

    def _spread(self, X, y):
        return X.std(axis=0)

    def _remember(self, X, y):
        pass

    def transform(self, X):
        check_is_fitted(self)
        return check_rows(self, X) * self.scale_


class FullySupervised(SemiSupervised):
    _accepts_unlabelled = False

    def _labels(self, y):
        if y.dtype.kind == "i" and (y == -1).any():
            raise ValueError(f"y has -1: {self._advice}")
        return np.unique(y)

    _advice = "use SemiSupervised, or SSDMLEmbedder, for unlabelled rows"


class Asymmetric(ClassifierMixin, SemiSupervised):
    """Nearest rows of a database, whose coordinates are shifted."""

    _accepts_unlabelled = None

    def _labels(self, y):
        return np.unique(y)

    def _remember(self, X, y):
        self.knn_ = KNeighborsClassifier(3).fit(self.transform_database(X), y)
        self.classes_ = self.knn_.classes_

    def transform_database(self, X):
        return self.transform(X) + 1

    def predict(self, X):
        check_is_fitted(self)
        return self.knn_.predict(self.transform(X))

    def pair_distance(self, queries, database):
        if len(queries) != len(database):
            raise ValueError("queries and database differ in length")
        difference = self.transform(queries) - self.transform_database(database)
        return np.linalg.norm(difference, axis=1)


TOYS = [Ranker(), Generator(), SemiSupervised(), FullySupervised(), Asymmetric()]
