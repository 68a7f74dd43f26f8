import numpy as np
import pytest
from sklearn.datasets import load_wine

from skdml import GMMLTransformer, PairClassifier
from skdml.constraints import make_pairs
from skdml.metrics import equal_error_rate
from skdml.plot import VerificationDisplay


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    pairs, labels = make_pairs(y, 600, random_state=0)
    model = PairClassifier(GMMLTransformer(geodesic=0.3), X, cv=2, random_state=0)
    return model.fit(pairs[::2], labels[::2]), pairs[1::2], labels[1::2]


def test_panels_of_an_estimator(wine):
    model, pairs, y = wine
    display = VerificationDisplay.from_estimator(model, pairs, y)
    roc, det, histogram = display.axes_
    rate = 100 * equal_error_rate(y, model.pair_score(pairs))
    (text,) = (text.get_text() for text in roc.get_legend().get_texts())
    assert text == f"GMMLTransformer\nAUC {model.score(pairs, y):.3f}, EER {rate:.1f} %"
    assert det.get_legend().get_texts()[0].get_text() == f"EER {rate:.1f} %"
    names = [text.get_text() for text in histogram.get_legend().get_texts()]
    assert names == [f"similar ({np.sum(y > 0)})", f"dissimilar ({np.sum(y < 0)})", "threshold"]
    assert histogram.lines[0].get_xdata()[0] == model.threshold_
    # the dot at the threshold is on the curve
    predicted = model.predict(pairs)
    dot = roc.lines[-1].get_xydata()[0]
    assert dot.tolist() == [np.mean(predicted[y < 0] > 0), np.mean(predicted[y > 0] > 0)]
    assert np.abs(roc.lines[0].get_xydata() - dot).sum(axis=1).min() < 1e-12


def test_bars_are_shares_of_each_kind(wine):
    model, pairs, y = wine
    histogram = VerificationDisplay.from_estimator(model, pairs, y).axes_[2]
    bars = [sum(bar.get_height() for bar in group) for group in histogram.containers[::2]]
    assert bars[0] == pytest.approx(100)


def test_a_second_display_adds_its_curves(wine):
    model, pairs, y = wine
    first = VerificationDisplay.from_estimator(model, pairs, y)
    n_bars = len(first.axes_[2].patches)
    distances = model.pair_distance(pairs)[::-1]
    second = VerificationDisplay.from_predictions(y, distances, name="other", ax=first.axes_)
    assert len(first.axes_[0].get_legend().get_texts()) == 2
    assert len(second.axes_[2].patches) == n_bars
    with pytest.raises(ValueError, match="ax must be 3 axes"):
        second.plot(ax=first.axes_[:2])


def test_extreme_distances_can_be_drawn():
    y = np.array([1, 1, -1, -1])
    for distances in ([0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]):
        for threshold in (None, -1.0, 2.0):
            display = VerificationDisplay.from_predictions(y, distances, threshold=threshold)
            display.figure_.canvas.draw()


def test_errors():
    with pytest.raises(ValueError, match="y_true must have 1"):
        VerificationDisplay.from_predictions([1, 1], [1.0, 2.0])
    with pytest.raises(ValueError, match="distances must be finite"):
        VerificationDisplay.from_predictions([1, -1], [1.0, np.inf])
