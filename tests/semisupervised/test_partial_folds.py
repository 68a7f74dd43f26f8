import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.model_selection import cross_val_score

pytest.importorskip("torch")
pytest.importorskip("skorch")

from skdml.semisupervised import PartiallyLabelledKFold


@pytest.fixture
def y():
    return np.where(np.arange(40) % 4 == 0, np.arange(40) % 3, -1)


@pytest.mark.parametrize("shuffle", [False, True])
def test_unlabelled_rows_are_always_trained_on_and_never_scored(y, shuffle):
    splitter = PartiallyLabelledKFold(3, shuffle=shuffle, random_state=0 if shuffle else None)
    scored = []
    for train, test in splitter.split(y, y):
        assert set(np.flatnonzero(y == -1)) <= set(train)
        assert not set(train) & set(test)
        assert len(train) + len(test) == 40
        assert len(np.unique(y[test])) == 3
        scored.extend(test)
    assert sorted(scored) == list(np.flatnonzero(y != -1))
    assert splitter.get_n_splits() == 3


def test_labels_may_be_names_beside_minus_one(y):
    names = np.array(["a", "b", "c", -1], dtype=object)[y]
    expected = list(PartiallyLabelledKFold(3).split(y, y))
    actual = list(PartiallyLabelledKFold(3).split(names, names))
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros((4, 2)), "y should be a 1d array"),
        (np.array(3), "y should be a 1d array"),
        ([0, 1, 0], "y: Found input variables with inconsistent numbers"),
        ([0.0, np.nan, 0.0, 0.0], "y must not contain NaN"),
        (np.array(["a", "b", "a", "-1"]), "y has the text '-1'"),
    ],
)
def test_wrong_labels_are_named(y, message):
    with pytest.raises(ValueError, match=message):
        next(PartiallyLabelledKFold(2).split(np.zeros(4), y))


def test_no_label_is_an_error():
    with pytest.raises(ValueError, match="y is -1 everywhere"):
        next(PartiallyLabelledKFold(2).split(np.zeros(4), np.full(4, -1)))


def test_cross_validation_scores_labelled_rows(y):
    class Counter(BaseEstimator):
        def fit(self, X, y):
            self.n_ = int((y == -1).sum())
            return self

        def score(self, X, y):
            assert (y != -1).all()
            return self.n_

    scores = cross_val_score(Counter(), y[:, None], y, cv=PartiallyLabelledKFold(2))
    np.testing.assert_array_equal(scores, 30)


def test_labels_that_cannot_be_compared_are_named():
    labels = np.empty(6, dtype=object)
    labels[:] = [np.zeros((), dtype=[("a", float), ("b", int)])[()]] * 6
    with pytest.raises((TypeError, ValueError), match="y"):
        list(PartiallyLabelledKFold(n_splits=2).split(np.zeros((6, 1)), labels))
