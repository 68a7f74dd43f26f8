"""Displays of searches: recall against k, and what was found as images."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError

from skdml import GMMLTransformer
from skdml.metrics import recall_at_k
from skdml.plot import RecallCurveDisplay, RetrievalDisplay
from skdml.plot._retrieval_display import as_images, choose_queries
from skdml.plot._style import RIGHT, WRONG


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:200], y[:200]


@pytest.fixture(scope="module")
def model(digits):
    return GMMLTransformer(random_state=0).fit(*digits)


class TwoMaps(BaseEstimator):
    """Queries are turned around, and the database is not."""

    def fit(self, X, y=None):
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X):
        return -X

    def transform_database(self, X):
        return X


def test_recall_is_that_of_the_mapped_rows(model, digits):
    X, y = digits
    display = RecallCurveDisplay.from_estimator(model, X, y, k=[8, 1])
    expected = recall_at_k(model.transform(X), y, [1, 8])
    np.testing.assert_array_equal(display.line_.get_xdata(), [1, 8])
    np.testing.assert_array_equal(display.line_.get_ydata(), expected)
    assert display.name == "GMMLTransformer"
    assert display.ax_.get_legend() is None
    assert [tick.get_text() for tick in display.ax_.get_xticklabels()] == ["1", "8"]


def test_recall_curves_share_axes_and_all_of_them_are_seen(model, digits):
    X, y = digits
    first = RecallCurveDisplay.from_estimator(model, X, y, name="learned")
    noise = np.random.default_rng(0).normal(size=X.shape)
    second = RecallCurveDisplay.from_predictions(noise, y, name="noise", ax=first.ax_)
    assert first.ax_ is second.ax_
    assert [text.get_text() for text in first.ax_.get_legend().get_texts()] == ["learned", "noise"]
    assert first.line_.get_color() != second.line_.get_color()
    assert first.line_.get_marker() != second.line_.get_marker()
    low, high = first.ax_.get_ylim()
    assert low < second.recall.min()
    assert high > 1


def test_recall_takes_as_many_neighbours_as_there_are():
    display = RecallCurveDisplay.from_predictions(np.eye(6), [0, 0, 1, 1, 2, 2])
    assert display.k.tolist() == [1, 2, 4]
    display = RecallCurveDisplay.from_predictions(
        np.eye(6), [0, 0, 1, 1, 2, 2], gallery=np.eye(6)[:2], gallery_labels=[0, 0]
    )
    assert display.k.tolist() == [1, 2]


def test_recall_of_two_maps_uses_both():
    X, y = np.array([[1.0], [-1.0]]), [0, 1]
    display = RecallCurveDisplay.from_estimator(
        TwoMaps().fit(X), X, y, gallery=-X, gallery_labels=y, k=[1]
    )
    assert display.recall.tolist() == [1.0]


@pytest.mark.parametrize("display", [RecallCurveDisplay, RetrievalDisplay])
def test_estimator_must_be_fitted(display, digits):
    with pytest.raises(NotFittedError):
        display.from_estimator(GMMLTransformer(), *digits)


def test_retrieval_marks_right_and_wrong():
    points, y = np.array([[0.0], [0.1], [0.2], [5.0]]), np.array(["a", "b", "a", "a"])
    images = np.arange(4 * 6).reshape(4, 2, 3)
    display = RetrievalDisplay.from_predictions(points, y, images, queries=[0], k=2)
    assert display.right.tolist() == [[False, True]]
    np.testing.assert_array_equal(display.found[0], images[[1, 2]])
    frames = display.ax_.patches
    assert [frame.get_linewidth() for frame in frames] == [3, 1.2]
    assert [frame.get_edgecolor()[:3] for frame in frames] == [
        pytest.approx([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])
        for color in (WRONG, RIGHT)
    ]
    assert [text.get_text() for text in display.ax_.texts] == ["×"]
    assert len(display.ax_.images) == 3
    assert [tick.get_text() for tick in display.ax_.get_yticklabels()] == ["a"]
    assert [tick.get_text() for tick in display.ax_.get_xticklabels()] == ["query", "1", "2"]


def test_retrieval_of_an_estimator(model, digits, pyplot):
    X, y = digits
    _, axes = pyplot.subplots()
    display = RetrievalDisplay.from_estimator(model, X, y, n_queries=3, k=4, ax=axes)
    assert display.ax_ is axes
    assert display.found.shape == (3, 4, 8, 8)
    assert display.labels == ["0", "4", "9"]
    first = model.metric_.pairwise(X[:1], X[1:])[0].argmin() + 1
    np.testing.assert_array_equal(display.found[0, 0].ravel(), X[first])


def test_retrieval_from_a_gallery():
    X, y = np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0]]), [0, 1]
    display = RetrievalDisplay.from_estimator(
        TwoMaps().fit(X), X, y, gallery=-X, gallery_labels=y, k=1
    )
    assert display.right.all()
    np.testing.assert_array_equal(display.found[:, 0].reshape(2, 4), -X)


def test_images_of_all_layouts():
    assert as_images(np.zeros((5, 16))).shape == (5, 4, 4)
    assert as_images(np.zeros((5, 12)), (3, 4)).shape == (5, 3, 4)
    assert as_images(np.zeros((5, 1, 7, 6))).shape == (5, 7, 6)
    assert as_images(np.zeros((5, 3, 7, 6))).shape == (5, 7, 6, 3)
    assert as_images(np.zeros((5, 7, 6, 3))).shape == (5, 7, 6, 3)
    with pytest.raises(ValueError, match="rows have 12 values"):
        as_images(np.zeros((5, 12)))
    with pytest.raises(ValueError, match="1 or 3 channels"):
        as_images(np.zeros((5, 7, 6, 2)))


def test_images_in_colour_are_drawn():
    images = np.random.default_rng(0).random((4, 3, 5, 5))
    display = RetrievalDisplay.from_predictions(np.eye(4), [0, 0, 1, 1], images, k=2)
    assert display.ax_.images[0].get_array().shape == (5, 5, 3)


def test_queries_are_of_different_classes():
    y = np.repeat(np.arange(10), 3)
    assert y[choose_queries(y, 4)].tolist() == [0, 3, 6, 9]
    assert len(choose_queries(y, 40)) == 10


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"k": 4}, "k must be a whole number from 1 .* which is 3, got 4"),
        ({"k": 1.5}, "k must be a whole number"),
        ({"n_queries": 0}, "n_queries must be 1 or more, got 0"),
        ({"queries": [9]}, r"queries must be .* between 0 and 3, .* got \[9\]"),
        ({"queries": [-1]}, "queries must be"),
        ({"queries": [0.5]}, "queries must be"),
        ({"queries": []}, "queries must be"),
        ({"gallery": np.eye(4)}, "gallery_labels and gallery_images belong together"),
    ],
    ids=str,
)
def test_retrieval_bad_input(params, message):
    with pytest.raises(ValueError, match=message):
        RetrievalDisplay.from_predictions(
            np.eye(4), [0, 0, 1, 1], np.zeros((4, 9)), **{"k": 2, **params}
        )


def test_retrieval_of_unequal_lengths():
    with pytest.raises(ValueError, match="inconsistent"):
        RetrievalDisplay.from_predictions(np.eye(4), [0, 0, 1], np.zeros((4, 9)))
