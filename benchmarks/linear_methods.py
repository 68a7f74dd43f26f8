"""The methods of the benchmark `linear`, and how one of them is fitted and scored on a fold.

Runs in this environment and in that of metric-learn: at the top it imports what both have.
"""

import time
import warnings
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

NEIGHBOURS = (1, 5)
# Of results of our own methods that have no version of their own.
VERSION = "3"


@dataclass(frozen=True)
class Method:
    """Where an estimator is found, its parameters, and what is known of it.

    `is_dense` marks maps of all features to all features, which are not learned from thousands;
    `version` is that of the results of our own methods: with another one they are computed again.
    """

    module: str
    name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    is_classifier: bool = False
    is_dense: bool = False
    version: str | None = None

    @property
    def is_ours(self):
        """Whether this package has the method."""
        return self.version is not None

    def find(self):
        """Return the class, None where its module has none of this name."""
        return getattr(import_module(self.module), self.name, None)


def _ours(name, version=VERSION, is_seeded=True, **parameters):
    seed = {"random_state": 0} if is_seeded else {}
    return Method("skdml.linear", name, {**seed, **parameters}, version=version)


PEER = "metric-learn LMNN"  # in an environment of its own
METHODS = {
    "Euclidean": Method("sklearn.preprocessing", "FunctionTransformer"),
    "NCA": Method(
        "sklearn.neighbors",
        "NeighborhoodComponentsAnalysis",
        {"max_iter": 50, "random_state": 0},
        is_dense=True,
    ),
    PEER: Method("metric_learn", "LMNN", {"random_state": 0}, is_dense=True),
    "logistic": Method(
        "sklearn.linear_model", "LogisticRegression", {"max_iter": 1000}, is_classifier=True
    ),
    "forest": Method(
        "sklearn.ensemble", "RandomForestClassifier", {"random_state": 0}, is_classifier=True
    ),
    "LMNN": _ours("LMNN", "1"),
    "RCA": _ours("RCA", "2", is_seeded=False),
    "LFDA": _ours("LFDA", "2", is_seeded=False),
    "GMML": _ours("GMMLTransformer"),
    "DITML": _ours("DITMLTransformer"),
    "gerrymandering": _ours("NeighborhoodGerrymandering", "4"),
    "GMML random": _ours("GMMLTransformer", geodesic=0.5, reg=0.1, pairs="random"),
    "DITML random": _ours("DITMLTransformer", gamma=1.0, pairs="random"),
}
PLAIN, OURS = "Euclidean", ("gerrymandering", "DITML")
# The defaults of the first version.
FORMER = {"GMML": "GMML random", "DITML": "DITML random"}


def fit_and_score(method, X, y, X_test, y_test):
    """Fit a method on the training rows and score it on the test rows.

    Parameters
    ----------
    method : str
        A key of `METHODS`.
    X, y, X_test, y_test : ndarray
        Rows and integer classes.

    Returns
    -------
    dict
        Under "accuracy" that of nearest neighbours for each k of `NEIGHBOURS`, or of a classifier
        the same for each; under "seconds" the processor time of the fit, without the scaling.
    """
    known = METHODS[method]
    scaler = StandardScaler().fit(X)
    X, X_test = scaler.transform(X), scaler.transform(X_test)
    estimator = known.find()(**known.parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows of a class, steps that end early
        # Results of several runs are compared: the load of the machine must not count.
        start = time.process_time()
        estimator.fit(X, y)
        seconds = time.process_time() - start
    if known.is_classifier:
        accuracy = [estimator.score(X_test, y_test)] * len(NEIGHBOURS)
    else:
        Z, Z_test = estimator.transform(X), estimator.transform(X_test)
        accuracy = [KNeighborsClassifier(k).fit(Z, y).score(Z_test, y_test) for k in NEIGHBOURS]
    return {
        "accuracy": dict(zip(map(str, NEIGHBOURS), map(float, accuracy), strict=True)),
        "seconds": seconds,
    }
