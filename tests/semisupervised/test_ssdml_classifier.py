"""SSDMLEmbedder as a classifier: predictions, scores, pipelines and searches."""

import warnings

import numpy as np
import pytest
from sklearn.base import is_classifier
from sklearn.datasets import load_digits, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import make_scorer
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier

pytest.importorskip("torch")
pytest.importorskip("skorch")

from skdml.semisupervised import (
    PartiallyLabelledClassifier,
    PartiallyLabelledKFold,
)
from tests.semisupervised.quick_ssdml import quick


def test_score_is_the_accuracy_of_labelled_rows(fitted, digits):
    X, _, y = digits
    known = np.arange(400) % 2 == 0
    predicted = fitted.predict(X)
    some = np.where(known, y, -1)
    assert fitted.score(X, some) == np.mean(predicted[known] == y[known])
    weights = np.where(y == 3, 2.0, 1.0)
    expected = np.average(predicted == y, weights=weights)
    assert fitted.score(X, y, sample_weight=weights) == pytest.approx(expected)
    with pytest.raises(ValueError, match="y is -1 everywhere"):
        fitted.score(X, np.full(400, -1))
    with pytest.raises(ValueError, match="y contains NaN"):
        fitted.score(X, np.full(400, np.nan))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], "sample_weight must have 400 entries, got 1"),
        (np.full(400, np.nan), "sample_weight must be finite"),
        (np.full(400, -1.0), "sample_weight must not be negative"),
        (np.zeros(400), "sample_weight is zero everywhere"),
        (np.arange(400) > 200, "sample_weight is zero for all labelled samples"),
    ],
    ids=["one", "NaN", "negative", "zero", "of unlabelled samples alone"],
)
def test_wrong_weights_of_a_score_are_named(fitted, digits, weights, message):
    X, partly, _ = digits
    with pytest.raises(ValueError, match=message):
        fitted.score(X, partly, sample_weight=weights)


def test_a_classifier_of_new_samples(fitted, digits):
    X, partly, y = digits
    probabilities = fitted.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[probabilities.argmax(axis=1)])
    new, answers = (part[400:600] for part in load_digits(return_X_y=True))
    assert fitted.score(new / 16, answers) > 0.65
    assert is_classifier(fitted)
    np.testing.assert_array_equal(fitted.transduction_, fitted.propagated_labels_)
    np.testing.assert_array_equal(fitted.transduction_[:40], y[:40])
    linear = quick(module=None, method="lrml").fit(X, partly)
    assert linear.score(new / 16, answers) > 0.7


def test_score_takes_a_column_and_refuses_other_shapes(fitted, digits):
    X, _, y = digits
    assert fitted.score(X, y[:, None]) == fitted.score(X, y)
    for wrong, message in (
        (y[:-3], rf"y has shape \({len(y) - 3},\) for {len(y)} samples"),
        (np.append(y, 1), rf"y has shape \({len(y) + 1},\) for {len(y)} samples"),
        (np.column_stack([y, y]), rf"y has shape \({len(y)}, 2\) for {len(y)} samples"),
        (None, "the target y is None"),
    ):
        with pytest.raises(ValueError, match=message):
            fitted.score(X, wrong)


# Pipelines and search


def test_grid_search_in_a_pipeline_scores_labelled_rows():
    X, y = (part[::2] for part in load_wine(return_X_y=True))
    partly = np.where(np.arange(len(y)) % 3 == 0, y, -1)
    scored = []

    def accuracy(truth, prediction):
        scored.append(len(truth))
        return np.mean(truth == prediction)

    last = PartiallyLabelledClassifier()
    model = make_pipeline(StandardScaler(), quick(max_epochs=1), last)
    grid = {"ssdmlembedder__loss__angle": [30, 45], "ssdmlembedder__module__hidden": [(16,)]}
    search = GridSearchCV(
        model,
        grid,
        cv=PartiallyLabelledKFold(2),
        scoring=make_scorer(accuracy),
        error_score="raise",
    )
    search.fit(X, partly)
    assert search.best_score_ > 0.85
    assert sum(scored) == 2 * (partly != -1).sum()


def test_cross_validation_of_the_classifier_itself(digits):
    X, partly, _ = digits
    folds = PartiallyLabelledKFold(2)
    scores = cross_validate(quick(max_epochs=1), X, partly, cv=folds, error_score="raise")
    assert scores["test_score"].min() > 0.5


def warned(model, X, y):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.fit(X, y)
    return [str(one.message) for one in found if "takes -1 for a class" in str(one.message)]


@pytest.mark.parametrize(
    "make",
    [
        lambda model, last: make_pipeline(StandardScaler(), model, last),
        lambda model, last: make_pipeline(make_pipeline(StandardScaler(), model), last),
        lambda model, last: make_pipeline(make_union(model, StandardScaler()), last),
        lambda model, last: make_pipeline(model, make_pipeline(StandardScaler(), last)),
        lambda model, last: make_pipeline(model, one_fit(last)),
        lambda model, last: one_fit(make_pipeline(model, last)),
    ],
    ids=["pipeline", "pipeline before", "union", "pipeline behind", "search behind", "search"],
)
def test_a_classifier_that_takes_minus_one_for_a_class_is_found(digits, make):
    X, partly, _ = (part[:80] for part in digits)
    model = quick(max_epochs=1)
    found = warned(make(model, KNeighborsClassifier(1)), X, partly)
    assert found
    assert all("PartiallyLabelledClassifier(KNeighborsClassifier())" in text for text in found)
    assert not warned(make(model, PartiallyLabelledClassifier()), X, partly)


def one_fit(model):
    """Return a search of a single candidate."""
    return GridSearchCV(model, {}, cv=PartiallyLabelledKFold(2))


def test_right_pipelines_are_not_warned_of(digits):
    X, partly, y = (part[:150] for part in digits)
    model = quick(max_epochs=1)
    for last in (model, one_fit(model), SelfTrainingClassifier(LogisticRegression())):
        before = StandardScaler() if last is not model else "passthrough"
        pipeline = make_pipeline(before, last)
        assert not warned(pipeline, X, partly)
        assert pipeline.score(X, y) > 0.4
    behind = make_pipeline(model, SelfTrainingClassifier(LogisticRegression()))
    assert not warned(behind, X, partly)
    assert not warned(make_pipeline(model, "passthrough"), X, partly)
