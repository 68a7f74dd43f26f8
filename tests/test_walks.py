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
# What is around every fit.
AROUND = {"utils/_fit.py", "utils/_bases.py", "utils/_sklearn.py"}


def files_of(fit):
    """The files whose functions run."""
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
    return sorted(found - AROUND)


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


@pytest.mark.parametrize(
    ("fit", "most"),
    [
        (fit_ditml, 7),
        (fit_ditml_to_pairs(), 6),
        (fit_gmml, 6),
        (fit_ranker(), 7),
        (fit_classifier, 6),
    ],
    ids=["DITML", "DITML, pairs", "GMML", "LocalGMML", "Asymmetric"],
)
def test_a_fit_runs_through_few_files(fit, most):
    files = files_of(fit)
    assert len(files) <= most, files
