import pickle
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn import config_context
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, f1_score, log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold, cross_validate
from sklearn.utils.validation import check_is_fitted

from skdml import DITMLTransformer, GMMLTransformer, PairClassifier
from skdml.constraints import make_pairs


class WeightedScales(BaseEstimator):
    """Scales each column by the mean difference of dissimilar pairs over that of similar ones."""

    def __init__(self, power=1.0):
        self.power = power

    def fit(self, X, pairs=None, pair_labels=None, pair_weight=None):
        self.given_ = pair_weight
        weights = np.ones(len(pairs)) if pair_weight is None else pair_weight
        gaps = np.abs(X[pairs[:, 0]] - X[pairs[:, 1]])
        similar, other = (
            np.average(gaps[pair_labels == sign], axis=0, weights=weights[pair_labels == sign])
            for sign in (1, -1)
        )
        self.scales_ = (other / (similar + 1e-9)) ** self.power
        return self

    def pair_distance(self, pairs, X=None):
        return np.linalg.norm((X[pairs[:, 0]] - X[pairs[:, 1]]) * self.scales_, axis=1)


@pytest.fixture(scope="module")
def digits():
    X, digit = load_digits(return_X_y=True)
    X = X[:, X.std(axis=0) > 0] / 16
    pairs, y = make_pairs(digit, 900, random_state=0)
    return X, pairs, y


@pytest.fixture(scope="module")
def fitted(digits):
    X, pairs, y = digits
    return PairClassifier(GMMLTransformer(geodesic=0.3), X, random_state=0).fit(pairs, y)


def slow_threshold(learner, X, pairs, y, folds):
    """The best accuracy on held-out pairs, by a loop over folds and thresholds."""
    final = clone(learner).fit(X, pairs=pairs, pair_labels=y).pair_distance(pairs, X=X)
    distances, labels = [], []
    for train, test in folds:
        own = clone(learner).fit(X, pairs=pairs[train], pair_labels=y[train])
        unit = final.mean() / own.pair_distance(pairs, X=X).mean()
        distances += list(own.pair_distance(pairs[test], X=X) * unit)
        labels += list(y[test])
    distances, labels = np.array(distances), np.array(labels)
    accuracy = [np.mean(np.where(distances <= t, 1, -1) == labels) for t in distances]
    return max(accuracy), distances, labels


def test_the_threshold_is_the_best_on_held_out_pairs(digits):
    X, pairs, y = digits
    learner = GMMLTransformer(geodesic=0.3)
    folds = list(StratifiedKFold(3).split(pairs, y))
    model = PairClassifier(learner, X, cv=folds).fit(pairs, y)
    best, distances, labels = slow_threshold(learner, X, pairs, y, folds)
    assert np.mean(np.where(distances <= model.threshold_, 1, -1) == labels) == best


def test_held_out_thresholds_and_probabilities_are_better_on_new_pairs(digits):
    X, pairs, y = digits
    scores = {}
    for cv in (5, None):
        model = PairClassifier(GMMLTransformer(geodesic=0.3), X, cv=cv, random_state=0)
        model.fit(pairs[::10], y[::10])
        new = np.arange(len(y)) % 10 > 0
        scores[cv] = [
            accuracy_score(y[new], model.predict(pairs[new])),
            -log_loss(y[new], model.predict_proba(pairs[new])),
        ]
    assert scores[5][0] > scores[None][0] + 0.02
    assert scores[5][1] > scores[None][1] + 0.02


def test_units_of_folds_do_not_matter(digits):
    class OtherUnits(GMMLTransformer):
        """The unit depends on the number of pairs."""

        def fit(self, X, y=None, *, pairs=None, pair_labels=None):
            self.unit_ = len(pairs) ** 2
            return super().fit(X, pairs=pairs, pair_labels=pair_labels)

        def pair_distance(self, pairs, X=None):
            return super().pair_distance(pairs, X) / self.unit_

    X, pairs, y = digits
    one, other = (
        PairClassifier(cls(geodesic=0.3), X, cv=3, random_state=0).fit(pairs, y)
        for cls in (GMMLTransformer, OtherUnits)
    )
    assert (one.predict(pairs) == other.predict(pairs)).all()
    np.testing.assert_allclose(other.predict_proba(pairs), one.predict_proba(pairs), rtol=1e-5)


def test_equal_pairs_are_never_on_both_sides(digits):
    seen = []

    class Watcher(WeightedScales):
        def fit(self, X, pairs=None, pair_labels=None, pair_weight=None):
            seen.append({tuple(sorted(pair)) for pair in pairs.tolist()})
            return super().fit(X, pairs, pair_labels, pair_weight)

    X, pairs, y = digits
    twice = np.concatenate([pairs, pairs[:, ::-1]])
    PairClassifier(Watcher(), X, cv=4, random_state=0).fit(twice, np.append(y, y))
    whole, *parts = seen
    assert len(whole) == len(pairs)
    assert sum(len(whole) - len(part) for part in parts) == len(pairs)


def test_outputs_agree(digits, fitted):
    X, pairs, y = digits
    distances = fitted.pair_distance(pairs)
    np.testing.assert_array_equal(distances, fitted.learner_.pair_distance(pairs, X=X))
    np.testing.assert_array_equal(fitted.pair_score(pairs), -distances)
    np.testing.assert_allclose(fitted.decision_function(pairs), fitted.threshold_ - distances)
    np.testing.assert_array_equal(fitted.predict(pairs) > 0, distances <= fitted.threshold_)
    slope, intercept = fitted.calibration_
    expected = 1 / (1 + np.exp(-(intercept + slope * distances)))
    np.testing.assert_allclose(fitted.predict_proba(pairs)[:, 1], expected)
    assert fitted.score(pairs, y) == pytest.approx(roc_auc_score(y, -distances))


def test_probabilities_are_calibrated(digits):
    X, pairs, y = digits
    train = np.arange(len(y)) % 2 == 0
    model = PairClassifier(GMMLTransformer(geodesic=0.3), X, random_state=0)
    shares = model.fit(pairs[train], y[train]).predict_proba(pairs[~train])[:, 1]
    for low, high in ((0, 0.3), (0.3, 0.7), (0.7, 1)):
        part = (shares >= low) & (shares < high)
        assert np.mean(y[~train][part] > 0) == pytest.approx(shares[part].mean(), abs=0.15)


def test_forms_of_rows_give_the_same(digits, fitted):
    X, pairs, y = digits
    expected = fitted.predict_proba(pairs)
    for given, rows in (
        (X[pairs], None),
        (pairs, sparse.csr_array(X)),
        (pairs, lambda indices: X[indices]),
        (pairs.tolist(), X.tolist()),
    ):
        model = clone(fitted).set_params(preprocessor=rows).fit(given, y)
        np.testing.assert_allclose(model.predict_proba(given), expected, rtol=1e-6)


def test_splitters_split_pairs(digits, fitted):
    X, pairs, y = digits
    folds = KFold(3, shuffle=True, random_state=0)
    scores = cross_validate(fitted, pairs, y, cv=folds, error_score="raise")["test_score"]
    for score, (train, test) in zip(scores, folds.split(pairs), strict=True):
        learner = GMMLTransformer(geodesic=0.3).fit(X, pairs=pairs[train], pair_labels=y[train])
        expected = roc_auc_score(y[test], -learner.pair_distance(pairs[test], X=X))
        assert score == pytest.approx(expected, rel=1e-6)
    grid = {"learner__geodesic": [0.0, 0.3], "learner__reg": [0.01]}
    search = GridSearchCV(fitted, grid, cv=2, error_score="raise").fit(X[pairs], y)
    assert search.best_estimator_.learner_.geodesic == search.best_params_["learner__geodesic"]
    scoring = ["accuracy", "f1", "neg_log_loss", "average_precision"]
    results = cross_validate(fitted, pairs, y, cv=2, scoring=scoring, error_score="raise")
    assert all(np.isfinite(results[f"test_{name}"]).all() for name in scoring)


def test_the_learner_is_cloned(digits):
    X, pairs, y = digits
    learner = DITMLTransformer(gamma=1.0, random_state=0)
    model = PairClassifier(learner, X, cv=2).fit(pairs, y)
    assert model.learner is learner
    assert model.learner_ is not learner
    with pytest.raises(NotFittedError):
        check_is_fitted(learner)
    assert "learner__gamma" in model.get_params()
    copy = clone(model)
    assert copy.preprocessor is model.preprocessor  # not copied in every fit of a search
    assert copy.learner is not learner
    assert not hasattr(copy, "learner_")


# Threshold


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "f_beta"},
        {"strategy": "max_tpr", "min_rate": 0.95},
        {"strategy": "max_tnr", "min_rate": 0.95},
    ],
    ids=str,
)
def test_calibrate_threshold(digits, fitted, options):
    _, pairs, y = digits
    model = pickle.loads(pickle.dumps(clone(fitted).set_params(cv=None).fit(pairs, y)))
    assert model.calibrate_threshold(pairs, y, **options) is model
    predicted = model.predict(pairs)
    rates = [np.mean(predicted[y == sign] == sign) for sign in (1, -1)]
    if options.get("strategy") == "max_tpr":
        assert rates[1] == pytest.approx(0.95, abs=0.01)
    elif options.get("strategy") == "max_tnr":
        assert rates[0] == pytest.approx(0.95, abs=0.01)
    else:
        measure = f1_score if options else accuracy_score
        found = measure(y, predicted)
        for threshold in model.pair_distance(pairs)[::20]:
            assert measure(y, model.set_threshold(threshold).predict(pairs)) <= found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "best"}, "strategy must be one of .*'accuracy'.* got 'best'"),
        ({"strategy": "max_tpr"}, "min_rate must be a number from 0 to 1, got None"),
        ({"strategy": "max_tnr", "min_rate": 1.2}, "min_rate must be a number from 0 to 1"),
        ({"strategy": "max_tnr", "min_rate": "x"}, "min_rate must be a number from 0 to 1"),
        ({"strategy": "f_beta", "beta": -1}, "beta must be a number"),
        ({"sample_weight": [1.0]}, "sample_weight must have 900 entries, got 1"),
    ],
)
def test_bad_calibration(digits, fitted, options, message):
    _, pairs, y = digits
    with pytest.raises(ValueError, match=message):
        fitted.calibrate_threshold(pairs, y, **options)


def test_bad_threshold(fitted):
    for wrong in ("high", None, np.nan, [1.0]):
        with pytest.raises(ValueError, match="threshold must be a number"):
            fitted.set_threshold(wrong)


def test_not_fitted(digits):
    _, pairs, y = digits
    model = PairClassifier(GMMLTransformer())
    for call in (
        lambda: model.predict(pairs),
        lambda: model.set_threshold(1.0),
        lambda: model.calibrate_threshold(pairs, y),
        lambda: model.pair_score(pairs),
    ):
        with pytest.raises(NotFittedError):
            call()


# Weights


def weighted_outputs(model, pairs):
    return [model.threshold_, *model.calibration_, *model.pair_distance(pairs)]


@pytest.mark.parametrize("cv", [3, None])
def test_a_weight_of_two_is_the_pair_twice_and_zero_is_absence(digits, cv):
    X, pairs, y = digits
    weights = np.random.default_rng(0).integers(0, 3, len(y))
    copies = np.repeat(np.arange(len(y)), weights)
    model = PairClassifier(WeightedScales(), X, cv=cv, random_state=0)
    weighted = weighted_outputs(clone(model).fit(pairs, y, sample_weight=weights), pairs)
    repeated = weighted_outputs(clone(model).fit(pairs[copies], y[copies]), pairs)
    np.testing.assert_allclose(weighted, repeated, rtol=1e-6)
    plain = weighted_outputs(clone(model).fit(pairs, y), pairs)
    assert np.abs(np.subtract(weighted, plain)).max() > 1e-3


def test_weights_enter_the_score_and_the_calibration(digits, fitted):
    _, pairs, y = digits
    weights = np.random.default_rng(0).integers(0, 3, len(y))
    copies = np.repeat(np.arange(len(y)), weights)
    score = fitted.score(pairs, y, sample_weight=weights)
    assert score == pytest.approx(fitted.score(pairs[copies], y[copies]))
    assert score != pytest.approx(fitted.score(pairs, y), abs=1e-6)
    one = clone(fitted).set_params(cv=None).fit(pairs, y)
    for strategy in ("accuracy", "f_beta"):
        one.calibrate_threshold(pairs, y, strategy, sample_weight=weights)
        threshold = one.threshold_
        assert threshold == one.calibrate_threshold(pairs[copies], y[copies], strategy).threshold_


def test_weights_go_through_a_search(digits):
    X, pairs, y = digits
    model = PairClassifier(WeightedScales(), X, cv=2, random_state=0)
    weights = np.arange(1.0, len(y) + 1)
    search = GridSearchCV(model, {"learner__power": [0.5, 1.0]}, cv=2, error_score="raise")
    search.fit(pairs, y, sample_weight=weights)
    np.testing.assert_array_equal(search.best_estimator_.learner_.given_, weights)
    with config_context(enable_metadata_routing=True):
        model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        search = GridSearchCV(model, {"learner__power": [0.5, 1.0]}, cv=2, error_score="raise")
        search.fit(pairs, y, sample_weight=weights)
        assert not hasattr(model.get_metadata_routing().fit.requests, "pairs")
    np.testing.assert_array_equal(search.best_estimator_.learner_.given_, weights)


# Errors


class NoWeights(GMMLTransformer):
    def fit(self, X, y=None, *, pairs=None, pair_labels=None):
        return super().fit(X, y, pairs=pairs, pair_labels=pair_labels)


class NoDistance(BaseEstimator):
    def fit(self, X, pairs=None, pair_labels=None):
        return self


@pytest.mark.parametrize(
    ("learner", "options", "message"),
    [
        (BaseEstimator(), {}, r"learner is BaseEstimator, which cannot learn from pairs"),
        (GMMLTransformer, {}, "learner is GMMLTransformer, which cannot learn from pairs"),
        ("gmml", {}, "learner is str, which cannot learn from pairs"),
        (NoDistance(), {}, "learner is NoDistance, which has no distances"),
        (NoWeights(), {"sample_weight": np.ones(900)}, "NoWeights, whose fit has no pair_weight"),
    ],
)
def test_unsuitable_learners(digits, learner, options, message):
    X, pairs, y = digits
    with pytest.raises(TypeError, match=message):
        PairClassifier(learner, X).fit(pairs, y, **options)


def test_learners_of_classes_alone_are_refused(digits):
    pytest.importorskip("torch")
    from skdml import SSDMLEmbedder

    X, pairs, y = digits
    with pytest.raises(TypeError, match="learner is SSDMLEmbedder, which cannot learn from pairs"):
        PairClassifier(SSDMLEmbedder(), X).fit(pairs, y)


def test_few_pairs():
    X = np.random.default_rng(0).standard_normal((8, 2))
    pairs = np.array([[0, 1], [2, 3], [4, 5], [6, 7], [0, 2]])
    model = PairClassifier(GMMLTransformer(geodesic=0.5, reg=1.0), X, random_state=0)
    model.fit(pairs, [1, 1, -1, -1, -1])  # two folds
    with pytest.raises(ValueError, match=r"one distinct pair.* cv=None"):
        model.fit(pairs, [1, -1, -1, -1, -1])
    model.set_params(cv=None).fit(pairs, [1, -1, -1, -1, -1])
    for one_kind in (1, -1):
        with pytest.raises(ValueError, match="both kinds are needed"):
            model.fit(pairs, [one_kind] * 5)


def test_a_fold_without_a_kind_is_named(digits):
    X, pairs, y = digits
    one_kind = [(np.flatnonzero(y == 1), np.flatnonzero(y == -1))]
    with pytest.raises(ValueError, match="cv: in the training part of a fold, y has no dissimilar"):
        PairClassifier(GMMLTransformer(), X, cv=one_kind).fit(pairs, y)
    held = [(np.arange(len(y)), np.flatnonzero(y == -1))]
    with pytest.raises(ValueError, match="cv: among the pairs that are held out, y has no similar"):
        PairClassifier(GMMLTransformer(geodesic=0.3), X, cv=held).fit(pairs, y)


@pytest.mark.parametrize(
    "weights", [[-1.0] + [1.0] * 899, np.zeros(900), [np.nan] * 900, [1e40] * 900]
)
def test_bad_weights(digits, weights):
    X, pairs, y = digits
    with pytest.raises(ValueError, match=r"sample_weight (must|is zero)"):
        PairClassifier(WeightedScales(), X).fit(pairs, y, sample_weight=weights)


def test_no_warnings(digits):
    X, pairs, y = digits
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PairClassifier(preprocessor=X, cv=2, random_state=0).fit(pairs, y).predict_proba(pairs)


def test_errors_of_the_learner_say_what_its_rows_are(digits):
    X, pairs, y = digits
    model = PairClassifier(GMMLTransformer(geodesic=0.3), cv=2)
    with pytest.raises(ValueError, match="pairs, as the rows X of the learner: X has values up to"):
        model.fit(X[pairs] * 1e200, y)
    to_itself = np.where(y[:, None] > 0, pairs[:, :1], pairs)
    itself = pytest.warns(UserWarning, match="paired a row with itself")
    with itself, pytest.raises(ValueError, match=r"^y has no similar .* pair left"):
        model.fit(X[to_itself], y)
    with pytest.raises(ValueError, match=r"^The 'reg' parameter of GMMLTransformer"):
        model.set_params(learner__reg=-1).fit(X[pairs], y)


def test_bad_folds(digits):
    X, pairs, y = digits
    with pytest.raises(TypeError, match=r"^cv: "):
        PairClassifier(GMMLTransformer(geodesic=0.3), X, cv=[1, 2]).fit(pairs, y)


@pytest.fixture
def over_a_network():
    deep = pytest.importorskip("skdml.deep")
    small = {"module": "mlp", "n_components": 8, "module__hidden": (32,), "max_epochs": 1}
    return PairClassifier(deep.DeepMetricEmbedder(random_state=0, **small), cv=2, random_state=0)


def test_a_network_as_the_learner(digits, over_a_network):
    X, pairs, y = digits
    model = over_a_network.set_params(preprocessor=X)
    scores = cross_validate(model, pairs, y, cv=2, error_score="raise", return_estimator=True)
    assert scores["test_score"].min() > 0.7
    model = scores["estimator"][0]
    np.testing.assert_allclose(
        model.predict_proba(X[pairs[:9]]), model.predict_proba(pairs[:9]), rtol=1e-4
    )


def test_a_network_gets_weights_of_pairs(digits, over_a_network):
    X, pairs, y = digits
    weights = np.where(np.arange(len(y)) % 3, 1.0, 0.0)
    kept = weights > 0
    weighted = clone(over_a_network).fit(X[pairs], y, sample_weight=weights)
    fewer = clone(over_a_network).fit(X[pairs[kept]], y[kept])
    distances = weighted.pair_distance(X[pairs])
    np.testing.assert_array_equal(distances, fewer.pair_distance(X[pairs]))
    assert weighted.threshold_ == fewer.threshold_
    heavy = clone(over_a_network).fit(X[pairs], y, sample_weight=weights + 1)
    assert not np.allclose(heavy.pair_distance(X[pairs]), distances)
