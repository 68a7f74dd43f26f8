"""Rows of dask arrays are worked on when they are needed, block by block."""

import numpy as np
import pytest

from skdml.utils._checks_common import fit, fit_arguments, fresh
from tests.test_common import instances_to_test

da = pytest.importorskip("dask.array")

METHODS = ("transform", "transform_database", "predict", "predict_proba", "decision_function")


def never(block):
    raise AssertionError("computed")


@pytest.mark.filterwarnings("ignore")  # of few iterations, and all labels known
@pytest.mark.parametrize("estimator", instances_to_test(), ids=lambda e: type(e).__name__)
def test_dask_arrays_are_taken_lazily(estimator):
    methods = [name for name in METHODS if hasattr(estimator, name)]
    if not methods:
        pytest.skip("no method of rows")
    model = fit(fresh(estimator))
    arguments = fit_arguments(model)
    X = np.asarray(arguments.get("X", arguments.get("pairs")), dtype=np.float64)
    more = {"qid": arguments["qid"]} if "qid" in arguments else {}
    rows = da.from_array(X, chunks=(7, *X.shape[1:-1], 2))
    for method in (getattr(model, name) for name in methods):
        lazy = method(rows.map_blocks(never, meta=X[:0]), **more)
        assert isinstance(lazy, da.Array)
        with pytest.raises(AssertionError, match="computed"):
            lazy.compute(scheduler="synchronous")
        expected, found = method(X, **more), method(rows, **more)
        assert lazy.shape == found.shape == expected.shape
        assert found.dtype == expected.dtype
        found = found.compute(scheduler="synchronous")
        assert found.dtype == expected.dtype
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(found, expected)
        with pytest.raises(ValueError, match="feature"):
            method(rows[..., :-1], **more)
