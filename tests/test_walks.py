"""A fit runs through few files of the package, so that a reader can follow it."""

import sys
from pathlib import Path

import pytest
from sklearn.datasets import load_iris

import skdml
from skdml import (
    AsymmetricMetricClassifier,
    DITMLTransformer,
    GMMLTransformer,
    LocalGMMLRanker,
)
from skdml.constraints import make_pairs
from skdml.datasets import make_ranking

ROOT = Path(skdml.__file__).parent


def files_of(fit):
    """The files whose functions run, but for `utils`, which every fit uses."""
    found = set()

    def note(frame, event, arg):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT) and path.name != "__init__.py":
            found.add(path.relative_to(ROOT).as_posix())

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        fit()
    finally:
        sys.setprofile(before)
    return sorted(name for name in found if not name.startswith("utils/"))


def fit_ditml():
    X, y = load_iris(return_X_y=True)
    DITMLTransformer(random_state=0).fit(X, y)


def fit_ditml_to_pairs():
    X, y = load_iris(return_X_y=True)
    pairs, pair_labels = make_pairs(y, 100, random_state=0)
    return lambda: DITMLTransformer(random_state=0).fit(X, pairs=pairs, pair_labels=pair_labels)


def fit_gmml():
    GMMLTransformer(random_state=0).fit(*load_iris(return_X_y=True))


def fit_ranker():
    X, y, qid = make_ranking(n_queries=20, n_features=5, random_state=0)
    return lambda: LocalGMMLRanker(max_epochs=2, random_state=0).fit(X, y, qid)


def fit_classifier():
    AsymmetricMetricClassifier(max_iter=2, random_state=0).fit(*load_iris(return_X_y=True))


def fit_embedder():
    pytest.importorskip("torch")
    pytest.importorskip("skorch")
    model, data = skdml.DeepMetricEmbedder(max_epochs=1, random_state=0), load_iris(return_X_y=True)
    return lambda: model.fit(*data)


@pytest.mark.parametrize(
    ("fit", "most"),
    [
        (fit_ditml, 7),
        (fit_ditml_to_pairs, 7),
        (fit_gmml, 5),
        (fit_ranker, 7),
        (fit_classifier, 6),
        (fit_embedder, 8),
    ],
    ids=["DITML", "DITML, pairs", "GMML", "LocalGMML", "Asymmetric", "Deep"],
)
def test_a_fit_runs_through_few_files(fit, most):
    files = files_of(fit() or fit)  # some are prepared first
    assert len(files) <= most, files
