"""Estimators that are wrong in one way each, and what the checks say of them."""

import importlib.util
import sys
import threading
import warnings

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skdml import GMMLTransformer
from skdml.utils._fit import FitProgress, fit_method
from skdml.utils._sklearn import HAS_CALLBACKS, EstimatorMixin
from tests.utils.toys import Asymmetric, FullySupervised, Generator, Ranker, SemiSupervised


class IgnoresTheSeed(GMMLTransformer):
    def fit(self, X, y=None, **others):
        self.shift_ = np.random.default_rng().random()
        return super().fit(X, y, **others)

    def transform(self, X):
        return super().transform(X) + self.shift_


class WarmStarts(GMMLTransformer):
    def fit(self, X, y=None, **others):
        start = getattr(self, "n_fits_", 0)
        super().fit(X, y, **others)
        self.n_fits_ = start + 1
        return self

    def transform(self, X):
        return super().transform(X) * self.n_fits_


class SeedsNumpy(GMMLTransformer):
    def fit(self, X, y=None, **others):
        np.random.seed(self.random_state)  # noqa: NPY002
        return super().fit(X, y, **others)


class ChangesItsParameters(GMMLTransformer):
    def fit(self, X, y=None, **others):
        self.n_components = X.shape[1]
        return super().fit(X, y, **others)


class KeepsALambda(GMMLTransformer):
    def fit(self, X, y=None, **others):
        super().fit(X, y, **others)
        self.callback_ = lambda: None
        return self


class KeepsTheRows(GMMLTransformer):
    def fit(self, X, y=None, **others):
        super().fit(X, y, **others)
        self.first_ = X[:1].ravel() if isinstance(X, np.ndarray) else X
        return self

    def transform(self, X):
        return super().transform(X) + self.first_[0]


class KeepsTheSparseRows(KeepsTheRows):
    def fit(self, X, y=None, **others):
        super().fit(X, y, **others)
        self.first_ = X.data if hasattr(X, "tocsr") else X[0].copy()
        return self


class WritesIntoRows(GMMLTransformer):
    def fit(self, X, y=None, **others):
        X -= X.mean(axis=0)
        return super().fit(X, y, **others)


class WritesIntoPairs(GMMLTransformer):
    def fit(self, X, y=None, *, pairs=None, pair_labels=None):
        if pairs is not None:
            pairs.sort(axis=1)
        return super().fit(X, y, pairs=pairs, pair_labels=pair_labels)


class WritesWhenAsked(GMMLTransformer):
    def transform(self, X):
        X_new = super().transform(X)
        X *= 0
        return X_new


class SetsAttributesEarly(GMMLTransformer):
    def fit(self, X, y=None, **others):
        self.started_ = True
        return super().fit(X, y, **others)


class SetsAttributesLate(GMMLTransformer):
    def fit(self, X, y=None, **others):
        super().fit(X, y, **others)
        self.finished_ = True
        return self


class SwallowsInterrupts(GMMLTransformer):
    @fit_method
    def fit(self, X, y=None, **others):
        try:
            super().fit(X, y, **others)
        except KeyboardInterrupt:
            self.metric_ = None
        return self


class SpoilsTheEarlierFit(GMMLTransformer):
    @fit_method
    def fit(self, X, y=None, **others):
        if hasattr(self, "metric_"):
            self.metric_.directions *= 0
        return super().fit(X, y, **others)


class Prints(GMMLTransformer):
    def fit(self, X, y=None, **others):
        if self.verbose:
            print("fitting")
        return super().fit(X, y, **others)


class ShowsABarInLogs(GMMLTransformer):
    def fit(self, X, y=None, **others):
        print("100%", file=sys.stderr)
        return super().fit(X, y, **others)


class RefusesScaledRows(GMMLTransformer):
    def fit(self, X, y=None, **others):
        if np.allclose(X.mean(axis=0), 0):
            raise ValueError("X is centred already")
        return super().fit(X, y, **others)


class NeedsNumbersAsLabels(GMMLTransformer):
    def fit(self, X, y=None, **others):
        return super().fit(X, y if y is None else np.asarray(y) + 0, **others)


class DropsNegativeLabels(GMMLTransformer):
    def fit(self, X, y=None, **others):
        if y is None or np.asarray(y).dtype.kind != "i":
            return super().fit(X, y, **others)
        return super().fit(X[y >= 0], y[y >= 0], **others)


class Pairs(GMMLTransformer):
    """The base of those that do wrong to pairs."""

    def fit(self, X, y=None, *, pairs=None, pair_labels=None):
        if pairs is not None and pair_labels is not None:
            pairs, pair_labels = self._treat(X, pairs, pair_labels)
        return super().fit(X, y, pairs=pairs, pair_labels=pair_labels)


class NeedsArraysOfPairs(Pairs):
    def _treat(self, X, pairs, pair_labels):
        return pairs[: len(pairs)].astype(int), pair_labels


class RoundsPairs(Pairs):
    def _treat(self, X, pairs, pair_labels):
        return np.asarray(pairs).astype(int), pair_labels


class ClipsPairs(Pairs):
    def _treat(self, X, pairs, pair_labels):
        return np.clip(pairs, 0, len(X) - 1), pair_labels


class CountsPairsTwice(Pairs):
    """Warns of pairs that come twice, and does not drop them."""

    def _treat(self, X, pairs, pair_labels):
        first = np.sort(pairs, axis=1)
        if len(np.unique(first, axis=0)) < len(pairs):
            warnings.warn("7 pairs came before")
            self.reg = 1.0
        return pairs, pair_labels


class IsQuietAboutPairs(GMMLTransformer):
    def fit(self, X, y=None, *, pairs=None, pair_labels=None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return super().fit(X, y, pairs=pairs, pair_labels=pair_labels)


class IsVague(GMMLTransformer):
    def fit(self, X, y=None, *, pairs=None, pair_labels=None):
        try:
            return super().fit(X, y, pairs=pairs, pair_labels=pair_labels)
        except (ValueError, TypeError):
            raise ValueError("bad input") from None

    def transform(self, X):
        try:
            return super().transform(X)
        except ValueError:
            raise ValueError("bad input") from None


class FillsInMissingValues(GMMLTransformer):
    def fit(self, X, y=None, **others):
        return super().fit(np.nan_to_num(X), y, **others)

    def transform(self, X):
        return super().transform(np.nan_to_num(X))


class TakesAnyWidth(GMMLTransformer):
    def transform(self, X):
        return super().transform(np.resize(X, (len(X), self.n_features_in_)))


class WorksBeforeFit(GMMLTransformer):
    def transform(self, X):
        return super().transform(X) if hasattr(self, "metric_") else X


class SquaresDistances(GMMLTransformer):
    def pair_distance(self, pairs, X=None):
        return super().pair_distance(pairs, X) ** 2


class MistakesIndices(GMMLTransformer):
    def pair_distance(self, pairs, X=None):
        return super().pair_distance(pairs if X is None else pairs[::-1], X)


class SquaresTheMetric(GMMLTransformer):
    def get_metric(self):
        metric = super().get_metric()
        return lambda u, v: metric(u, v) ** 2


class ReturnsAnotherMetric(GMMLTransformer):
    def get_metric(self):
        check_is_fitted(self)
        return lambda u, v: np.abs(u - v).sum()


class NegatesTheMatrix(GMMLTransformer):
    def get_mahalanobis_matrix(self):
        return -super().get_mahalanobis_matrix()


class ScalesTheMatrix(GMMLTransformer):
    def get_mahalanobis_matrix(self):
        return 2 * super().get_mahalanobis_matrix()


class ReturnsDoubles(GMMLTransformer):
    def transform(self, X):
        return super().transform(X).astype(np.float64)


class RoundsSingles(GMMLTransformer):
    def transform(self, X):
        X_new = super().transform(X)
        return np.round(X_new) if X_new.dtype == np.float32 else X_new


class TakesRunsForQueries(Ranker):
    def _queries(self, X, qid):
        queries = super()._queries(X, qid)
        return np.cumsum(np.diff(queries, prepend=0) != 0)


class TakesRunsForQueriesInFit(Ranker):
    def fit(self, X, y, qid=None):
        if qid is not None:
            qid = np.cumsum(np.diff(qid, prepend=0) != 0)
        return super().fit(X, y, qid)


class CentresAllQueries(Ranker):
    def _centred(self, X, qid):
        self._queries(X, qid)
        return X - X.mean(axis=0)


class NeedsNumbersAsQueries(Ranker):
    def _queries(self, X, qid):
        return super()._queries(X, None if qid is None else np.asarray(qid).astype(float))


class TakesRowsForQueries(Ranker):
    def fit(self, X, y, qid=None):
        return super().fit(X, y, np.arange(len(X)) // 2 if qid is None else qid)


class CutsQueries(Ranker):
    def _queries(self, X, qid):
        return super()._queries(X, None if qid is None else np.resize(qid, len(X)))


class RanksNothing(Ranker):
    def fit(self, X, y, qid=None):
        return super().fit(X, [0, *([1] * (len(X) - 1))] if np.all(y == 0) else y, qid)


class DropsUnlabelledRows(SemiSupervised):
    def _spread(self, X, y):
        return X[y >= 0].std(axis=0)


class TakesUnlabelledForAClass(SemiSupervised):
    def _labels(self, y):
        return np.unique(y)

    def _remember(self, X, y):
        self.classes_ = self._labels(y)


class LabelsWhatIsUnlabelled(SemiSupervised):
    def fit(self, X, y=None):
        return super().fit(X, np.where(y == -1, np.arange(len(y)) % 2, y))


class AcceptsUnlabelledAfterAll(FullySupervised):
    def _labels(self, y):
        return np.unique(y)


class SquaresAsymmetricDistances(Asymmetric):
    def pair_distance(self, queries, database):
        return super().pair_distance(queries, database) ** 2


class ComparesAllRows(Asymmetric):
    def pair_distance(self, queries, database):
        return super().pair_distance(queries, database[: len(queries)])


class SamplesWithoutTheSeed(Generator):
    def sample(self, n_samples, random_state=None):
        return super().sample(n_samples)


class SamplesTheSame(Generator):
    def sample(self, n_samples, random_state=None):
        return super().sample(n_samples, random_state=0)


class DependsOnItsThread(GMMLTransformer):
    def fit(self, X, y=None, **others):
        super().fit(X, y, **others)
        self.shift_ = 0.0 if threading.current_thread() is threading.main_thread() else 1.0
        return self

    def transform(self, X):
        return super().transform(X) + self.shift_


class TrainsTheLossItIsGiven(SemiSupervised):
    _parameter_constraints: dict = {"loss": [callable, None]}

    def __init__(self, loss=None, random_state=None):
        self.loss = loss
        self.random_state = random_state

    def fit(self, X, y=None):
        if self.loss is not None:
            self.loss.scale.data += 1
        return super().fit(X, y)


class ReportsAfterTheWork(EstimatorMixin, SemiSupervised):
    def fit(self, X, y=None):
        super().fit(X, y)
        return self._report(X, y)

    @fit_method
    def _report(self, X, y):
        with FitProgress(self, total=1, X=X, y=y) as progress:
            progress.begin()
            progress.step()
        return self


class EndsBeforeItIsFitted(EstimatorMixin, SemiSupervised):
    @fit_method
    def fit(self, X, y=None):
        with FitProgress(self, total=0, X=X, y=y):
            pass
        return super().fit(X, y)


class LosesNamesOfColumns(GMMLTransformer):
    def fit(self, X, y=None, **others):
        return super().fit(np.asarray(X), y, **others)


class TurnsLabelsIntoStrings(GMMLTransformer):
    def fit(self, X, y=None, **others):
        return super().fit(X, None if y is None else np.asarray(y).astype(str), **others)


# check, who fails it, and what the message says
BROKEN = [
    ("same_seed_same_result", IgnoresTheSeed(), "transform: a clone with the same seed differs"),
    ("same_seed_same_result", WarmStarts(), "transform: a second fit of the same estimator"),
    ("global_random_state", SeedsNumpy(), "changed numpy's global random state"),
    ("fits_in_threads", DependsOnItsThread(), "transform: in threads"),
    ("params_survive", ChangesItsParameters(), "fit changed the parameters"),
    ("pickle", KeepsALambda(), "local object .*<lambda>"),
    ("data_is_left_alone", WritesIntoRows(), "fit changed X"),
    ("data_is_left_alone", WritesIntoPairs(), "fit changed pairs"),
    ("data_is_left_alone", WritesWhenAsked(), "a method changed its X"),
    ("training_data_is_not_needed", KeepsTheRows(), "after ndarray of float64, 40 x 5"),
    ("training_data_is_not_needed", KeepsTheSparseRows(), "after csr_array of float64, 18 x 30"),
    ("keyboard_interrupt", SetsAttributesEarly(), r"left .* at 40% of fit: \['started_'\]"),
    ("keyboard_interrupt", SetsAttributesLate(), r"left .* at 100% of fit: \['finished_'"),
    ("keyboard_interrupt", SwallowsInterrupts(), "fit swallowed KeyboardInterrupt"),
    ("keyboard_interrupt", SpoilsTheEarlierFit(), "the earlier fit is not kept"),
    ("silence", Prints(), "{'verbose': 1} this was written to stdout: 'fitting"),
    ("silence", ShowsABarInLogs(), "written to stderr: '100%"),
    ("pipeline", RefusesScaledRows(), "X is centred already"),
    ("labels_are_names", NeedsNumbersAsLabels(), "ufunc 'add'"),
    ("minus_one_is_a_class", DropsNegativeLabels(), r"labels \[-1, 1, 2\] teach something else"),
    ("unlabelled_rows", DropsUnlabelledRows(), "unlabelled rows make no difference"),
    ("unlabelled_rows", TakesUnlabelledForAClass(), "-1 is in classes_"),
    ("too_few_labels", LabelsWhatIsUnlabelled(), "fit on y = -1 everywhere gave no error"),
    ("unlabelled_rows_are_refused", AcceptsUnlabelledAfterAll(), "y with -1 gave no error"),
    ("pairs_as_lists", NeedsArraysOfPairs(), "'list' object has no attribute 'astype'"),
    ("bad_pairs", IsVague(), r"fit on pairs of one dimension: .* does not say .*bad input"),
    ("bad_pairs", RoundsPairs(), "fit on pairs of floats gave no error"),
    ("bad_pairs", ClipsPairs(), "fit on pairs with a row that X does not have gave no error"),
    ("zero_difference_pairs", IsQuietAboutPairs(), r"the 2 rows paired with themselves, got \[\]"),
    ("duplicated_pairs", IsQuietAboutPairs(), "no warning counts the 7 pairs"),
    ("duplicated_pairs", CountsPairsTwice(), "pairs given twice teach something else"),
    ("contradictory_pairs", IsQuietAboutPairs(), "no warning counts the 3 pairs"),
    ("order_of_rows_of_queries", TakesRunsForQueries(), "permuted rows get other predictions"),
    ("order_of_rows_of_queries", TakesRunsForQueriesInFit(), "fit treats the scattered rows"),
    ("one_query_at_a_time", CentresAllQueries(), "a query alone gets other predictions"),
    ("query_ids_are_names", NeedsNumbersAsQueries(), "could not convert string"),
    ("no_qid_is_one_query", TakesRowsForQueries(), "no qid is not one query"),
    ("bad_qid", CutsQueries(), "fit with a qid that is too short gave no error"),
    ("nan_and_infinity", IsVague(), "transform of X with nan: .* does not say"),
    ("nan_and_infinity", FillsInMissingValues(), "transform of X with nan gave no error"),
    ("no_rows", IsVague(), "fit on X without rows: .* does not say"),
    ("no_features", IsVague(), "fit on X without columns: .* does not say"),
    ("one_sample", IsVague(), "fit on one row: .* does not say"),
    ("rows_of_one_dimension", IsVague(), "fit on a 1-d X: .* does not say"),
    ("one_class", IsVague(), "fit on one class: .* does not say .*class.*bad input"),
    ("one_class", RanksNothing(), "fit on one class gave no error"),
    ("missing_target", IsVague(), "fit on X without y: .* does not say"),
    ("nan_in_target", IsVague(), "fit on y with NaN: .* does not say"),
    ("length_of_target", IsVague(), "fit on 40 rows and 39 labels: .* does not say"),
    ("number_of_features", IsVague(), "transform of rows with 4 columns .* does not say"),
    ("number_of_features", TakesAnyWidth(), "in place of 5 gave no error"),
    ("mixed_labels", TurnsLabelsIntoStrings(), "a list of numbers and strings gave no error"),
    ("not_fitted", WorksBeforeFit(), "transform before fit gave no error"),
    ("metric_axioms", SquaresTheMetric(), "a detour is shorter"),
    ("metric_in_nearest_neighbours", ReturnsAnotherMetric(), "by get_metric and by transform"),
    ("pair_distance", SquaresDistances(), "pair_distance and transform: a difference of"),
    ("pair_distance", MistakesIndices(), "pair_distance of indices and of vectors"),
    ("asymmetric_pair_distance", SquaresAsymmetricDistances(), "transform_database: a difference"),
    ("asymmetric_pair_distance", ComparesAllRows(), "fewer queries than .* gave no error"),
    ("mahalanobis_matrix", NegatesTheMatrix(), "not positive semi-definite"),
    ("mahalanobis_matrix", ScalesTheMatrix(), "by get_mahalanobis_matrix and by transform"),
    ("dtype", ReturnsDoubles(), "transform turned float32 into float64"),
    ("dtype", RoundsSingles(), "transform of float32 and of float64"),
    ("sample", SamplesWithoutTheSeed(), "the same seed gives other samples"),
    ("sample", SamplesTheSame(), "the seed has no effect"),
]
if HAS_CALLBACKS:
    BROKEN += [
        ("callback_tasks", ReportsAfterTheWork(), "task 0 begins and ends without any work"),
        ("callback_models", EndsBeforeItIsFitted(), "is not fitted yet"),
    ]
if importlib.util.find_spec("torch") is not None:
    BROKEN += [
        (
            "objects_are_left_alone",
            TrainsTheLossItIsGiven(),
            "fit changed the object given as loss",
        ),
    ]
if importlib.util.find_spec("pandas") is not None:
    BROKEN += [("frames", LosesNamesOfColumns(), "the names of the columns of pandas")]
