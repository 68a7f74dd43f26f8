"""A client belongs to its process: clones share it, and pickles leave it out."""

import copy
import pickle

from sklearn.base import clone

from skdml.utils._bases import BaseEstimator
from skdml.utils._sklearn import ClientMixin


class Estimator(ClientMixin, BaseEstimator):
    def __init__(self, client=None, alpha=1.0):
        self.client = client
        self.alpha = alpha


def test_clones_share_the_client():
    client = object()
    found = clone(Estimator(client, alpha=2.0))
    assert found.client is client
    assert found.alpha == 2.0


def test_nothing_that_is_stored_has_the_client():
    model = Estimator(lambda: None, alpha=2.0)  # cannot be pickled
    for found in (pickle.loads(pickle.dumps(model)), copy.copy(model)):
        assert found.client is None
        assert found.alpha == 2.0
    assert model.client is not None
