"""Measures of generated tables, against values that are computed by hand or by loops."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from skdml.metrics import (
    c2st,
    column_similarity,
    energy_distance,
    membership_auc,
    pair_similarity,
    tstr,
)

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((40, 3)), rng.standard_normal((30, 3)) + 0.5


def test_energy_distance_is_that_of_its_definition():
    def mean(A, B, same=False):
        pairs = [
            np.linalg.norm(a - b)
            for i, a in enumerate(A)
            for j, b in enumerate(B)
            if not (same and i == j)
        ]
        return np.mean(pairs)

    expected = 2 * mean(X, Y) - mean(X, X, True) - mean(Y, Y, True)
    assert energy_distance(X, Y) == pytest.approx(expected)
    assert energy_distance(1e6 * X + 5e6, 1e6 * Y + 5e6) == pytest.approx(1e6 * expected)


def test_energy_distance_in_blocks(monkeypatch):
    expected = energy_distance(X, Y)
    monkeypatch.setattr("skdml.metrics._generation._BLOCK", 70)
    assert energy_distance(X, Y) == pytest.approx(expected)


def test_energy_distance_has_mean_zero_and_is_not_won_by_averages():
    draw = np.random.default_rng(1).standard_normal
    same = [energy_distance(draw((50, 4)), draw((50, 4))) for _ in range(200)]
    assert abs(np.mean(same)) < 4 * np.std(same) / np.sqrt(200)
    real = draw((300, 4))
    averages = draw((300, 8, 4)).mean(axis=1)
    assert energy_distance(real, averages) > 10 * np.std(same)
    with pytest.raises(ValueError, match="Y"):
        energy_distance(X, Y[:1])
    with pytest.raises(ValueError, match="same number of features"):
        energy_distance(X, Y[:, :2])


@pytest.fixture
def frames():
    real = pd.DataFrame(
        {
            "number": [0.0, 1.0, 2.0, np.nan],
            "kind": ["a", "a", "b", None],
            "flag": [True, True, False, False],
            "day": pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-04"]),
        }
    )
    return real, real.iloc[[0, 0, 1, 3]].reset_index(drop=True)


def test_similarity_of_columns(frames):
    np.testing.assert_allclose(column_similarity(frames[0], frames[0]), 1)
    found = column_similarity(*frames)
    # Numbers: shares at most 0 are 1/3 and 2/3. Categories: a 2/4 and 3/4, b 1/4 and 0.
    np.testing.assert_allclose(found, [1 - 1 / 3, 0.75, 0.75, 0.75])
    assert np.isnan(column_similarity([[np.nan], [np.nan]], [[1.0], [2.0]])[0])
    with pytest.raises(ValueError, match="same number of columns"):
        column_similarity(X, Y[:, :2])
    with pytest.raises(ValueError, match="real must have a row"):
        column_similarity(X[:0], Y)


def test_polars_frames_have_the_same_similarity(frames):
    polars = pytest.importorskip("polars")
    others = [polars.DataFrame(frame.to_dict("list"), strict=False) for frame in frames]
    np.testing.assert_allclose(column_similarity(*others), column_similarity(*frames))


def test_similarity_of_pairs(frames):
    np.testing.assert_allclose(pair_similarity(frames[0], frames[0]), 1)
    found = pair_similarity(X, Y)
    for i in range(3):
        for j in range(3):
            corr = [np.corrcoef(A[:, i], A[:, j])[0, 1] for A in (X, Y)]
            assert found[i, j] == pytest.approx(1 - abs(corr[0] - corr[1]) / 2)
    # Pairs (kind, flag): real aT aT bF -F, generated aT aT aT -F.
    assert pair_similarity(*frames)[1, 2] == pytest.approx(0.75)
    # Numbers in bins beside categories: real 0a 1a 2b ?-, generated 0a 0a 1a ?-.
    assert pair_similarity(*frames)[0, 1] == pytest.approx(0.75)


def test_a_classifier_tells_rows_apart_or_not():
    draw = np.random.default_rng(2).standard_normal
    assert 0.3 < c2st(draw((150, 3)), draw((150, 3)), random_state=0) < 0.7
    assert c2st(X, Y + 9, random_state=0) == 1
    same = [c2st(X, Y, estimator=LogisticRegression(), random_state=3) for _ in range(2)]
    assert same[0] == same[1]
    kinds = [pd.DataFrame({"kind": [kind] * 20}) for kind in "ab"]
    assert c2st(*kinds, random_state=0) == 1
    with pytest.raises(ValueError, match="cv=50 rows at least"):
        c2st(X, Y, cv=50)


def test_a_model_of_generated_rows_on_real_ones():
    y, labels = (A[:, 0] > 0 for A in (X, Y))
    assert tstr(X, y, Y, labels, random_state=0) > 0.9
    assert tstr(X, ~y, Y, labels, random_state=0) < 0.1
    assert tstr(X, X[:, 0], Y, Y[:, 0], random_state=0) > 0.5  # numbers
    model = LogisticRegression()
    assert tstr(X, y, Y, labels, estimator=model) == model.fit(X, y).score(Y, labels)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        tstr(X, y[:3], Y, labels)


def test_an_attack_finds_copies():
    other = rng.standard_normal((40, 3))
    assert membership_auc(X, other, X) == 1
    assert 0.3 < membership_auc(X, other, rng.standard_normal((40, 3))) < 0.7
