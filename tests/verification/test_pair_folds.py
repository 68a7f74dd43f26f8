import numpy as np
import pytest
from sklearn import config_context
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, cross_val_score

from skdml import GMMLTransformer, PairClassifier
from skdml.constraints import make_pairs
from skdml.verification import PairGroupKFold


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return X, y, *make_pairs(y, 2000, random_state=0)


def slow_parts(pairs, fold_of, n_splits):
    """Parts by a loop over pairs, given the fold of each row."""
    for fold in range(n_splits):
        inside = [sum(fold_of[row] == fold for row in pair) for pair in pairs]
        yield (
            [i for i, n in enumerate(inside) if n == 0],
            [i for i, n in enumerate(inside) if n == 2],
        )


@pytest.mark.parametrize("shuffle", [False, True])
def test_no_row_is_on_both_sides(wine, shuffle):
    _, _, pairs, labels = wine
    splitter = PairGroupKFold(4, shuffle=shuffle, random_state=0 if shuffle else None)
    parts = list(splitter.split(pairs, labels))
    assert len(parts) == splitter.get_n_splits() == 4
    fold_of = {}
    for number, (train, test) in enumerate(parts):
        assert not set(pairs[train].ravel()) & set(pairs[test].ravel())
        fold_of |= dict.fromkeys(pairs[test].ravel().tolist(), number)
    for (train, test), slow in zip(parts, slow_parts(pairs, fold_of, 4), strict=True):
        assert (train.tolist(), test.tolist()) == slow
    sizes = np.bincount(list(fold_of.values()))
    assert sizes.max() - sizes.min() <= 1


def test_vectors_and_groups_split_as_indices_do(wine):
    X, _, pairs, labels = wine
    splitter = PairGroupKFold(3, shuffle=True, random_state=0)
    expected = list(splitter.split(pairs, labels))
    names = np.char.add("row ", pairs.astype(str))
    for given in ((X[pairs], labels), (X[pairs], labels, pairs), (X[pairs], labels, names)):
        for one, other in zip(splitter.split(*given), expected, strict=True):
            np.testing.assert_array_equal(one[0], other[0])
            np.testing.assert_array_equal(one[1], other[1])


def test_linked_rows_stay_together():
    rng = np.random.default_rng(0)
    islands = [rng.integers(10, size=(20, 2)) + 10 * number for number in range(6)]
    pairs = rng.permutation(np.concatenate(islands))
    for shuffle in (False, True):
        parts = list(PairGroupKFold(3, shuffle=shuffle).split(pairs))
        assert sum(len(test) for _, test in parts) == len(pairs)


def test_groups_keep_similar_pairs(wine):
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(30), 4)
    pairs = rng.integers(120, size=(3000, 2))
    labels = np.where(person[pairs[:, 0]] == person[pairs[:, 1]], 1, -1)
    parts = list(PairGroupKFold(3).split(pairs, labels, person[pairs]))
    assert sum(np.sum(labels[test] == 1) for _, test in parts) == np.sum(labels == 1)


def test_in_cross_validation_and_search(wine):
    X, _, pairs, labels = wine
    model = PairClassifier(GMMLTransformer(geodesic=0.3), preprocessor=X, cv=2, random_state=0)
    splitter = PairGroupKFold(3)
    assert cross_val_score(model, pairs, labels, cv=splitter).min() > 0.8
    grid = {"learner__geodesic": [0.1, 0.5]}
    search = GridSearchCV(model, grid, cv=splitter, error_score="raise").fit(pairs, labels)
    grouped = GridSearchCV(model, grid, cv=splitter).fit(pairs, labels, groups=pairs)
    assert grouped.best_score_ == search.best_score_
    with config_context(enable_metadata_routing=True):
        routed = GridSearchCV(model, grid, cv=splitter).fit(pairs, labels, groups=pairs)
    assert routed.best_score_ == search.best_score_


def test_as_the_folds_of_a_classifier(wine):
    X, _, pairs, labels = wine
    learner = GMMLTransformer(geodesic=0.3)
    by_rows = PairClassifier(learner, X, cv=PairGroupKFold(3)).fit(pairs, labels)
    by_pairs = PairClassifier(learner, X, cv=3, random_state=0).fit(pairs, labels)
    assert by_rows.threshold_ == pytest.approx(by_pairs.threshold_, rel=0.2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([[0, 1], [1, 2]],), ValueError, "n_splits=5 is more than the 3 entities"),
        (([[0, 1], [2, 3], [4, 5]] * 2,), ValueError, "there is no pair to score in fold 2"),
        (([[i, i + 1] for i in range(0, 40, 2)], [1] * 20), ValueError, "all of one kind, y = 1"),
        (([[0, 1], [1, 2]], None, [0, 1]), ValueError, r"groups must have shape \(2, 2\)"),
        (([[0, 1], [1, 2]], None, [[0, np.nan], [1, 2]]), ValueError, "groups must not contain"),
        (([[0, 1], [2, 3], [4, 5]], [1] * 2), ValueError, "y must have one entry"),
        ((np.zeros((4, 5)),), ValueError, "pairs must be an array of shape"),
    ],
)
def test_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        list(PairGroupKFold().split(*arguments))


def test_bad_number_of_folds():
    with pytest.raises(ValueError, match="n_splits must be at least 2"):
        PairGroupKFold(1)
    with pytest.raises(TypeError, match="n_splits must be an integer"):
        PairGroupKFold("many")
