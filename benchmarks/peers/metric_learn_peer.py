"""metric-learn's algorithms; runs in the environment of `benchmarks.environments.METRIC_LEARN`.

SDML does not work there: it passes `cov_init` to a scikit-learn function that lost it.
"""

import time

import metric_learn
import numpy as np


def itml(pairs, y, bounds=None, X_new=None, **parameters):
    """Fit ITML to pairs (n, 2, n_features) with y of 1 (similar) and -1, and given bounds.

    The bounds limit squared distances, as in metric-learn's solver. `_fit` is the solver
    without the search of a threshold for pairs, which `fit` would add to the peer's time.
    """
    estimator = metric_learn.ITML(**parameters)
    estimator._fit(np.asarray(pairs, dtype=float), y, bounds=bounds)
    return _outputs(estimator, X_new)


def supervised(algorithm, X, y, X_new=None, **parameters):
    """Fit an estimator to labelled rows: "ITML_Supervised", "LMNN", "SCML_Supervised", ..."""
    estimator = getattr(metric_learn, algorithm)(**parameters)
    start = time.process_time()
    estimator.fit(X, y)
    seconds = time.process_time() - start
    return {**_outputs(estimator, X_new), "processor_seconds": seconds}


def lfda_with_local_scales(X, y, **parameters):
    """Fit LFDA with the distance of the k-th neighbour as the scale of a row.

    metric-learn sorts the columns of the distances and then takes column k in place of line k:
    the distances of the k-th row, for all rows.
    """
    partition = np.partition
    np.partition = lambda values, k, axis: partition(values, k, axis=axis).T
    try:
        return _outputs(metric_learn.LFDA(**parameters).fit(X, y), None)
    finally:
        np.partition = partition


def _outputs(estimator, X_new):
    """Return the learnt map and, where `X_new` is given, its image (part of the time)."""
    outputs = {"components": estimator.components_}
    for name in ("n_iter", "bounds"):
        if hasattr(estimator, name + "_"):
            outputs[name] = getattr(estimator, name + "_")
    if X_new is not None:
        outputs["transformed"] = X_new @ estimator.components_.T
    return outputs
