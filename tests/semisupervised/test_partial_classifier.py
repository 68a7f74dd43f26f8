"""A classifier of scikit-learn on partly labelled rows."""

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_classifiers_classes, parametrize_with_checks

pytest.importorskip("torch")
pytest.importorskip("skorch")

from skdml.semisupervised import PartiallyLabelledClassifier


@parametrize_with_checks([PartiallyLabelledClassifier(LogisticRegression(), propagate=True)])
def test_scikit_learn_check(estimator, check):
    if check.func is check_classifiers_classes:  # -1 is no class to a semi-supervised classifier
        check_classifiers_classes("LabelSpreading", estimator)
    else:
        check(estimator)


@pytest.fixture
def iris():
    X, y = load_iris(return_X_y=True)
    return X, np.where(np.arange(150) % 10 == 0, y, -1), y


def test_rows_without_a_label_are_left_out(iris):
    X, partly, _ = iris
    known = partly != -1
    model = PartiallyLabelledClassifier(LogisticRegression()).fit(X, partly)
    plain = LogisticRegression().fit(X[known], partly[known])
    np.testing.assert_array_equal(model.predict_proba(X), plain.predict_proba(X))
    np.testing.assert_array_equal(model.transduction_, partly)
    np.testing.assert_array_equal(model.classes_, [0, 1, 2])
    assert model.score(X, partly) == plain.score(X[known], partly[known])


def test_propagated_labels_count_as_much_as_they_are_certain(iris):
    X, partly, y = iris
    model = PartiallyLabelledClassifier(LogisticRegression(), propagate=True).fit(X, partly)
    assert np.mean(model.transduction_ == y) > 0.85
    unweighted = LogisticRegression().fit(X, model.transduction_)
    assert not np.allclose(model.predict_proba(X), unweighted.predict_proba(X))


def test_methods_are_those_of_the_classifier(iris):
    X, partly, _ = iris
    assert not hasattr(PartiallyLabelledClassifier(LinearSVC()), "predict_proba")
    model = PartiallyLabelledClassifier(LinearSVC()).fit(X, partly)
    assert model.decision_function(X).shape == (150, 3)
    assert not hasattr(PartiallyLabelledClassifier(), "decision_function")


def test_names_as_labels(iris):
    X, partly, _ = iris
    names = np.array(["a", "b", "c"], dtype=object)
    names = np.where(partly == -1, -1, names[partly])
    model = PartiallyLabelledClassifier().fit(X, names)
    assert set(model.predict(X)) == {"a", "b", "c"}
    assert model.transduction_[1] is None


def test_wrong_estimators_and_labels_are_named(iris):
    X, partly, _ = iris
    with pytest.raises(TypeError, match="estimator must be a classifier, got LinearRegression"):
        PartiallyLabelledClassifier(LinearRegression()).fit(X, partly)
    names = np.where(partly == -1, "-1", "a")
    with pytest.raises(ValueError, match="y has the text '-1'"):
        PartiallyLabelledClassifier().fit(X, names)
    for y, message in ((np.full(150, -1), "-1 everywhere"), (np.zeros(150), "only one class")):
        with pytest.raises(ValueError, match=message):
            PartiallyLabelledClassifier().fit(X, y)
