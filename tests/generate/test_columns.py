"""Columns come back in their units and of their kinds."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("ot")

from skdml.generate._columns import learn_columns


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    return np.column_stack(
        [
            rng.standard_normal(50),
            rng.integers(3, 9, 50),
            np.full(50, 7.5),
            np.clip(rng.normal(0.5, 0.5, 50), 0, 1),
            rng.lognormal(size=50),
            1000 * rng.standard_normal(50),
        ]
    )


@pytest.mark.parametrize("scaling", ["auto", "common", "columns"])
def test_decode_is_the_inverse_of_encode(table, scaling):
    columns = learn_columns(table, scaling)
    np.testing.assert_allclose(columns.decode(columns.encode(table)), table, rtol=1e-4, atol=1e-4)


def test_kinds_of_columns(table):
    columns = learn_columns(table)
    wild = columns.decode(5 * np.random.default_rng(1).standard_normal((1000, 6)))
    np.testing.assert_array_equal(wild[:, 1], np.round(wild[:, 1]))
    assert (wild[:, 1].min(), wild[:, 1].max()) == (3, 8)
    np.testing.assert_array_equal(wild[:, 2], 7.5)
    assert (wild[:, 3].min(), wild[:, 3].max()) == (0, 1)
    assert wild[:, 4].min() == 0
    assert wild[:, 4].max() > table[:, 4].max()
    assert wild[:, 0].min() < table[:, 0].min() < table[:, 0].max() < wild[:, 0].max()
    assert not (wild[:, 0] == np.round(wild[:, 0])).any()


def test_scalings(table):
    encoded = learn_columns(table, "columns").encode(table)[:, [0, 1, 3, 4, 5]]
    np.testing.assert_allclose(encoded.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(encoded.std(axis=0), 1, atol=1e-5)
    pixels = np.random.default_rng(0).integers(0, 17, size=(40, 5)) * [1, 1, 1, 1, 0]
    columns = learn_columns(pixels)
    assert columns.unit == 8
    encoded = columns.encode(pixels)
    assert (encoded.min(), encoded.max()) == (-1, 1)
    np.testing.assert_array_equal(encoded[:, 4], -1)  # as dark as the darkest pixel
    pixels[:, 4] = 9999
    assert (learn_columns(pixels).encode(pixels)[:, 4] == 1).all()


def test_auto_takes_one_scale_for_columns_of_one_unit(table):
    assert learn_columns(table).unit == 1
    np.testing.assert_array_equal(
        learn_columns(table).encode(table), learn_columns(table, "columns").encode(table)
    )
    narrow = np.delete(table, 5, axis=1)
    np.testing.assert_array_equal(
        learn_columns(narrow).encode(narrow), learn_columns(narrow, "common").encode(narrow)
    )


def test_all_columns_constant():
    X = np.full((4, 3), [1.0, -2.5, 0.0])
    columns = learn_columns(X)
    np.testing.assert_array_equal(columns.encode(X), 0)
    np.testing.assert_array_equal(columns.decode(np.ones((2, 3))), X[:2])


def test_values_that_rows_share_come_back_exactly():
    rng = np.random.default_rng(0)
    X = rng.normal(100, 1, (50, 2))
    X[:20, 0], X[20:40, 0], X[:9, 1] = 0.1, 99.7, 1 / 3
    columns = learn_columns(X, "columns")
    found = columns.decode(columns.encode(X))
    for value, j in ((0.1, 0), (99.7, 0), (1 / 3, 1)):
        np.testing.assert_array_equal(found[:, j] == value, X[:, j] == value)
