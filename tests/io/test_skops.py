"""skops, with the types that the documentation tells to trust."""

import numpy as np
import pytest
from scipy import sparse

from skdml import GMMLTransformer
from skdml.io import PlainModel, skops_trusted_types
from skdml.utils._checks_common import calls, fit, fresh
from skdml.utils.estimator_checks import all_estimators
from tests.test_common import QUICK

skops = pytest.importorskip("skops.io")


def test_a_metric_over_sparse_rows():
    X = sparse.random(30, 900, density=0.02, format="csr", random_state=0)
    model = GMMLTransformer(geodesic=0.5).fit(X, np.arange(30) % 2)
    again = skops.loads(skops.dumps(model), trusted=skops_trusted_types())
    np.testing.assert_array_equal(again.transform(X), model.transform(X))


NETWORKS = ("DeepMetricEmbedder", "SSDMLEmbedder", "WassersteinGenerator")
ALL = all_estimators()


@pytest.mark.parametrize(("name", "cls"), ALL, ids=[name for name, _ in ALL])
def test_the_documented_list_is_enough(name, cls):
    model = fit(fresh(cls(**QUICK.get(name, {}))))
    stored = skops.dumps(PlainModel(model) if name in NETWORKS else model)
    assert set(skops.get_untrusted_types(data=stored)) <= set(skops_trusted_types())
    again = skops.loads(stored, trusted=skops_trusted_types())
    again = calls(again.restore() if name in NETWORKS else again)
    for output, call in calls(model).items():
        np.testing.assert_array_equal(again[output](), call())


def test_a_plain_model_is_refused_where_it_does_not_describe_an_estimator():
    plain = PlainModel(GMMLTransformer())
    plain.content = "[1]"
    with pytest.raises(ValueError, match="This PlainModel does not describe an estimator"):
        plain.restore()
    with pytest.raises(TypeError, match="estimator must be an estimator of skdml"):
        PlainModel("GMML")
