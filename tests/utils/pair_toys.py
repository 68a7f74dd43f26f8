"""Estimators whose samples are pairs: a right one, and for each check one that is wrong."""

import numpy as np

from skdml import GMMLTransformer, PairClassifier

RIGHT_PAIRS = PairClassifier(GMMLTransformer(geodesic=0.5), cv=None)


class NumbersOtherRows(PairClassifier):
    def pair_distance(self, pairs):
        pairs = np.asarray(pairs)
        return super().pair_distance(np.roll(pairs, 1, axis=1) * 0 if pairs.ndim == 2 else pairs)


class PrefersTheFirst(PairClassifier):
    def decision_function(self, pairs):
        return super().decision_function(pairs) + np.asarray(pairs)[:, 0, 0]


class ScoresAtRandom(PairClassifier):
    def score(self, pairs, y, sample_weight=None):
        return 0.5 + 0.1 * np.random.rand()  # noqa: NPY002


class TurnsProbabilities(PairClassifier):
    def predict_proba(self, pairs):
        return super().predict_proba(pairs)[:, ::-1]


class SquaresItsThreshold(PairClassifier):
    def predict(self, pairs):
        return np.where(self.pair_distance(pairs) <= self.threshold_**2, 1, -1)


class TakesAnyLabels(PairClassifier):
    def _check_labels(self, y, n_pairs):
        return np.where(np.asarray(y, dtype=float) > 0, 1, -1)


class TakesTriplets(PairClassifier):
    def predict(self, pairs):
        return super().predict(np.asarray(pairs)[:, :2])


class FillsFeatures(PairClassifier):
    def pair_distance(self, pairs):
        pairs = np.asarray(pairs)
        if pairs.ndim == 3 and pairs.shape[2] < self.n_features_in_:
            pairs = np.concatenate([pairs, pairs[:, :, :1]], axis=2)
        return super().pair_distance(pairs)


def _quick(cls):
    return cls(GMMLTransformer(geodesic=0.5), cv=None)


BROKEN_PAIRS = [
    ("index_pairs_are_their_rows", _quick(NumbersOtherRows), "index pairs with an array"),
    ("order_in_a_pair", _quick(PrefersTheFirst), "decision_function of pairs the other way"),
    ("folds_of_pairs", _quick(ScoresAtRandom), "scores of cross_validate"),
    ("labels_and_scores", _quick(TurnsProbabilities), "predict_proba does not rise"),
    ("threshold", _quick(SquaresItsThreshold), "pairs are similar up to"),
    ("bad_labels_of_pairs", _quick(TakesAnyLabels), "labels of 0 and 1 gave no error"),
    ("bad_arrays_of_pairs", _quick(TakesTriplets), "predict of triplets gave no error"),
    ("features_of_pairs", _quick(FillsFeatures), "a feature less gave no error"),
]
