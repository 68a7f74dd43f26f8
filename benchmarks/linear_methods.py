"""The methods of the benchmark `linear`, and how one of them is chosen and scored on a fold.

Runs in this environment and in that of metric-learn: at the top it imports what both have.
"""

import warnings

import numpy as np
from sklearn.metrics import pairwise_distances
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

NEIGHBOURS = (1, 5)
SELECTED_WITH = 5
N_PAIRS = [400, 1000]
# GMML draws its matrices to the prior; with so much of it, the metric is the prior.
ONLY_PRIOR = 1e6


def whitening():
    """Distance whitened by the Ledoit-Wolf covariance, in the span where there are few rows."""
    from skdml import GMMLTransformer

    return GMMLTransformer(prior="covariance", reg=ONLY_PRIOR, random_state=0)


def gmml():
    from skdml import GMMLTransformer

    return GMMLTransformer(random_state=0)


def ditml():
    from skdml import DITMLTransformer

    return DITMLTransformer(random_state=0)


def ditml_local():
    """DITML on pairs of near rows."""
    from skdml import DITMLTransformer
    from skdml.constraints import make_local_pairs

    class LocalDITML(DITMLTransformer):
        def fit(self, X, y):
            pairs, labels = make_local_pairs(
                X, y, self.n_constraints, random_state=self.random_state
            )
            return super().fit(X, pairs=pairs, pair_labels=labels)

    return LocalDITML(random_state=0)


def itml():
    """metric-learn's ITML with the number of all pairs and percentiles for bounds as parameters.

    Its own `n_constraints` counts each kind of pair, and its own bounds (`bound_percentiles` of
    None) are percentiles of distances, which the solver holds against squared distances; other
    percentiles are those of squared distances.
    """
    from metric_learn import ITML_Supervised

    class BoundedITML(ITML_Supervised):
        def __init__(self, gamma=1.0, n_pairs=400, bound_percentiles=None, random_state=None):
            super().__init__(gamma=gamma, random_state=random_state)
            self.n_pairs = n_pairs
            self.bound_percentiles = bound_percentiles

        def fit(self, X, y):
            self.n_constraints = self.n_pairs // 2
            bounds = None
            if self.bound_percentiles is not None:
                squared = pairwise_distances(X, metric="sqeuclidean")
                bounds = np.percentile(squared[squared > 0], self.bound_percentiles)
            return super().fit(X, y, bounds=bounds)

    return BoundedITML(random_state=0)


def lmnn():
    from metric_learn import LMNN

    return LMNN(random_state=0)


def scml():
    from metric_learn import SCML_Supervised

    return SCML_Supervised(random_state=0)


MAKERS = {
    "Euclidean": lambda: "passthrough",
    "whitening": whitening,
    "NCA": lambda: NeighborhoodComponentsAnalysis(random_state=0),
    "ITML": itml,
    "LMNN": lmnn,
    "SCML": scml,
    "GMML": gmml,
    "DITML": ditml,
    "DITML, local pairs": ditml_local,
}


METHODS = tuple(MAKERS)


def grids(gammas, quick):
    """Return the candidates of each method.

    DITML has one gamma more than ITML, beyond the end of the grid that it chose most often.
    """
    n_pairs = [50, 100] if quick else N_PAIRS
    more = [*gammas, 10 * gammas[-1]]
    found = {
        "ITML": {"gamma": gammas, "n_pairs": n_pairs, "bound_percentiles": [None, [5, 95]]},
        "LMNN": {"n_neighbors": [3, 5]},
        "GMML": {"geodesic": [0.25, 0.5], "reg": [0.1, 1.0], "n_constraints": n_pairs},
        "DITML": {
            "gamma": more,
            "n_constraints": n_pairs,
            "bound_percentiles": [[5, 95], [20, 80]],
        },
        "DITML, local pairs": {
            "gamma": gammas,
            "n_constraints": n_pairs,
            "bound_percentiles": ["median", [5, 95]],
        },
    }
    if quick:
        for grid in found.values():
            for name, values in grid.items():
                grid[name] = values if values is n_pairs else values[:1]
    return {method: found.get(method, {}) for method in METHODS}


def search(method, grid, X, y, X_test, y_test, n_folds=3):
    """Choose the parameters of a method on the training rows and score it on the test rows.

    Parameters
    ----------
    method : str
        A key of `MAKERS`.
    grid : dict of str to list
        The candidates for its parameters; one candidate in all is taken without a search.
    X, y, X_test, y_test : ndarray
        Rows and integer classes.
    n_folds : int
        Folds of the search on the training rows.

    Returns
    -------
    dict
        Under "accuracy" that of the test rows for each k of `NEIGHBOURS`, under "chosen" the
        chosen parameters.
    """
    model = Pipeline(
        [
            ("scale", StandardScaler()),
            ("metric", MAKERS[method]()),
            ("neighbours", KNeighborsClassifier(SELECTED_WITH)),
        ]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows of a class, few pairs, sweeps that end early
        if any(len(values) > 1 for values in grid.values()):
            model = GridSearchCV(
                model,
                {f"metric__{name}": values for name, values in grid.items()},
                cv=StratifiedKFold(n_folds, shuffle=True, random_state=0),
            )
            model.fit(X, y)
            chosen = {
                name.removeprefix("metric__"): value for name, value in model.best_params_.items()
            }
            model = model.best_estimator_
        else:
            chosen = {name: values[0] for name, values in grid.items()}
            model.set_params(**{f"metric__{name}": value for name, value in chosen.items()})
            model.fit(X, y)
    Z, Z_test = model[:-1].transform(X), model[:-1].transform(X_test)
    accuracy = [KNeighborsClassifier(k).fit(Z, y).score(Z_test, y_test) for k in NEIGHBOURS]
    return {"accuracy": dict(zip(map(str, NEIGHBOURS), accuracy, strict=True)), "chosen": chosen}
