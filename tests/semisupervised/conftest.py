"""Digits of which some have a label, and a model of them."""

import numpy as np
import pytest
from sklearn.datasets import load_digits


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits():
    """Rows, labels of the first 40 beside -1, and all labels."""
    X, y = load_digits(return_X_y=True)
    X, y = X[:400] / 16, y[:400]
    return X, np.where(np.arange(400) < 40, y, -1), y


@pytest.fixture(scope="module")
def fitted(digits):
    from tests.semisupervised.quick_ssdml import quick

    return quick().fit(*digits[:2])
