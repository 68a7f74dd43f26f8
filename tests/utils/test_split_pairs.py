"""Index pairs that went through a splitter of rows are refused, whatever way they took."""

import joblib
import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import BaseEstimator, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_wine
from sklearn.ensemble import BaggingClassifier
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
    permutation_test_score,
    validation_curve,
)
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

from skdml import DITMLTransformer, GMMLTransformer, PairClassifier
from skdml.constraints import make_pairs, make_triplets

MESSAGE = r"pairs went through cross-validation.*PairClassifier\(learner, preprocessor=X\)"
GMML = GMMLTransformer(geodesic=0.3)
X, CLASSES = load_wine(return_X_y=True)
X = (X - X.mean(axis=0)) / X.std(axis=0)


def make(n_pairs):
    pairs, labels = make_pairs(CLASSES, 2 * n_pairs, random_state=0)
    order = np.random.default_rng(0).permutation(len(labels))[:n_pairs]
    return pairs[order], labels[order]


def constant(model, X, y=None):
    return 0.0


def given(n_pairs, prefix=""):
    pairs, labels = make(n_pairs)
    return {f"{prefix}pairs": pairs, f"{prefix}pair_labels": labels}


# As many pairs as rows: scikit-learn takes a part of them, too.
every_number = pytest.mark.parametrize("n_pairs", [100, len(X)])


@every_number
@pytest.mark.parametrize("learner", [GMML, DITMLTransformer(gamma=1.0)], ids=["GMML", "DITML"])
def test_cross_validate(n_pairs, learner):
    for options in ({"error_score": "raise"}, {}):  # all fits fail: raised anyway
        with pytest.raises(ValueError, match=MESSAGE):
            cross_validate(learner, X, CLASSES, params=given(n_pairs), scoring=constant, **options)


@every_number
def test_a_search(n_pairs):
    search = GridSearchCV(GMML, {"reg": [0.01, 1.0]}, scoring=constant)
    with pytest.raises(ValueError, match=MESSAGE):
        search.fit(X, CLASSES, **given(n_pairs))


@every_number
def test_a_pipeline(n_pairs):
    pipeline = make_pipeline(GMML, KNeighborsClassifier())
    arguments = given(n_pairs, "gmmltransformer__")
    with pytest.raises(ValueError, match=MESSAGE):
        cross_val_score(pipeline, X, CLASSES, params=arguments)
    with pytest.raises(ValueError, match=MESSAGE):
        GridSearchCV(pipeline, {"gmmltransformer__reg": [0.1]}).fit(X, CLASSES, **arguments)
    assert pipeline.fit(X, CLASSES, **arguments).score(X, CLASSES) > 0.9


@every_number
@pytest.mark.parametrize("alias", [True, "links"])
def test_metadata_routing(n_pairs, alias):
    pairs, labels = make(n_pairs)
    arguments = {"pairs" if alias is True else alias: pairs, "pair_labels": labels}
    with config_context(enable_metadata_routing=True):
        learner = clone(GMML).set_fit_request(pairs=alias, pair_labels=True)
        for model in (learner, make_pipeline(learner, KNeighborsClassifier())):
            with pytest.raises(ValueError, match=MESSAGE):
                cross_validate(model, X, CLASSES, params=arguments, scoring=constant)
            with pytest.raises(ValueError, match=MESSAGE):
                GridSearchCV(model, {}, scoring=constant).fit(X, CLASSES, **arguments)


def test_other_splitters():
    arguments = given(100, "gmmltransformer__")
    pipeline = make_pipeline(GMML, KNeighborsClassifier())
    plain = {"params": arguments}
    for split in (cross_val_predict, permutation_test_score):
        with pytest.raises(ValueError, match=MESSAGE):
            split(pipeline, X, CLASSES, **plain)
    plain["error_score"] = "raise"  # by default these give NaN
    with pytest.raises(ValueError, match=MESSAGE):
        learning_curve(pipeline, X, CLASSES, **plain)
    plain |= {"param_name": "kneighborsclassifier__n_neighbors", "param_range": [1, 3]}
    with pytest.raises(ValueError, match=MESSAGE):
        validation_curve(pipeline, X, CLASSES, **plain)
    with pytest.raises(ValueError, match=MESSAGE):
        CalibratedClassifierCV(pipeline).fit(X, CLASSES, **arguments)
    with config_context(enable_metadata_routing=True):
        learner = clone(GMML).set_fit_request(pairs=True, pair_labels=True)
        bagging = BaggingClassifier(make_pipeline(learner, KNeighborsClassifier()))
        with pytest.raises(ValueError, match=MESSAGE):
            bagging.fit(X, CLASSES, **given(100))


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_workers(backend):
    with joblib.parallel_config(backend, n_jobs=2), pytest.raises(ValueError, match=MESSAGE):
        cross_validate(GMML, X, CLASSES, params=given(100), scoring=constant)


@every_number
@pytest.mark.parametrize("name", ["pairs", "triplets"])
def test_networks(n_pairs, name):
    skdml = pytest.importorskip("skdml.deep")
    arguments = given(n_pairs)
    if name == "triplets":
        arguments = {"triplets": make_triplets(CLASSES, n_pairs, random_state=0)}
    model = skdml.DeepMetricEmbedder("mlp", max_epochs=1)
    message = MESSAGE.replace("pairs", name, 1)
    with pytest.raises(ValueError, match=message):
        cross_validate(model, X, CLASSES, params=arguments, scoring=constant, error_score="raise")


class DrawsPairs(BaseEstimator):
    """Makes pairs of the rows that it is given."""

    def fit(self, X, y):
        pairs, labels = make_pairs(y, 100, random_state=0)
        self.learner_ = GMMLTransformer(geodesic=0.3).fit(X, pairs=pairs, pair_labels=labels)
        return self

    def score(self, X, y):
        pairs, labels = make_pairs(y, 100, random_state=1)
        return np.mean((self.learner_.pair_distance(pairs, X=X) < 4) == (labels > 0))


def test_right_uses_pass():
    pairs, labels = make(100)
    GMML.fit(X, pairs=pairs, pair_labels=labels)
    model = PairClassifier(GMML, preprocessor=X, cv=2, random_state=0)
    scores = cross_validate(model, pairs, labels, error_score="raise")["test_score"]
    assert np.mean(scores) > 0.8
    folds = KFold(3, shuffle=True, random_state=0)
    assert np.isfinite(cross_val_score(DrawsPairs(), X, CLASSES, cv=folds)).all()
    assert np.isfinite(cross_validate(GMML, X, CLASSES, scoring=constant)["test_score"]).all()
