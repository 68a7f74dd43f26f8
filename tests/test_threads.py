"""Searches in threads give what they give one fit after the other."""

import joblib
import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from skdml.utils._checks_common import fresh, make_data, outputs, takes_pair_samples
from skdml.utils.estimator_checks import all_estimators

SETTINGS: dict[str, dict] = {
    "AsymmetricMetricClassifier": {"max_iter": 2},
    "NeighborhoodGerrymandering": {"max_iter": 2},
    "LMNN": {"max_iter": 5},
    "MLKR": {"max_iter": 5, "tol": 0.1},
    "DeepMetricEmbedder": {"max_epochs": 1, "n_components": 8},
    "SSDMLEmbedder": {"max_epochs": 1, "n_components": 4, "n_neighbors": 4},
    "WassersteinGenerator": {"max_iter": 5, "batch_size": 16},
}


def mean_of_outputs(model, X, y):
    return float(np.mean([np.mean(value) for value in outputs(model, X).values()]))


@pytest.mark.filterwarnings("ignore")  # of few iterations, and all labels known
@pytest.mark.parametrize(
    "estimator",
    [
        pytest.param(cls(**SETTINGS.get(name, {})), id=name)
        for name, cls in all_estimators()
        if not takes_pair_samples(cls())
    ],
)
def test_a_search_in_threads_equals_one_without(estimator):
    X, y, _ = make_data()

    def scores():
        is_seeded = "random_state" in estimator.get_params()
        grid = {"random_state": [0, 1]} if is_seeded else {"n_components": [None, 1]}
        search = GridSearchCV(fresh(estimator), grid, cv=2, scoring=mean_of_outputs, refit=False)
        results = search.fit(X, y).cv_results_
        return [results[f"split{i}_test_score"] for i in range(2)]

    expected = scores()
    with joblib.parallel_config("threading", n_jobs=4):
        np.testing.assert_allclose(scores(), expected, rtol=1e-5)
