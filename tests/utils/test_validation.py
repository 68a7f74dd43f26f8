"""Checks of input that several parts of the package share."""

import warnings

import numpy as np
import pytest
from scipy import sparse

from skdml.utils.validation import (
    check_class_labels,
    check_named_array,
    check_scale,
    check_varies,
    encode,
    naming,
    varying_columns,
)


def test_the_name_is_put_before_a_message_without_it():
    with pytest.raises(TypeError, match=r"^margin: it is too wide"), naming("margin"):
        raise TypeError("it is too wide")
    for message in ("margin is too wide", "Input margin contains NaN", "the 'margin' parameter"):
        with pytest.raises(ValueError, match=f"^{message}$"), naming("margin"):
            raise ValueError(message)
    for name, message in (("real", "must be a real number"), ("b", "cannot be b'bytes'")):
        with pytest.raises(ValueError, match=f"^{name}: {message}$"), naming(name):
            raise ValueError(message)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ([1.0, 2.0], ValueError),
        (np.zeros((2, 2, 2)), ValueError),
        (np.asmatrix(np.eye(2)), TypeError),
        ({1, 2}, TypeError),
        ("abc", ValueError),
        ([[1.0], [1.0, 2.0]], ValueError),
        (np.eye(2) + 1j, ValueError),
    ],
)
@pytest.mark.parametrize("name", ["prior", "real"])
def test_arrays_are_named(values, error, name):
    with pytest.raises(error, match=rf"\b{name}(:|\b)"):
        check_named_array(values, name, dtype=np.float64)


@pytest.mark.parametrize(
    ("y", "error"),
    [
        (np.zeros((4, 2)), ValueError),
        (np.zeros((4, 1, 1)), ValueError),
        ([[1], [1, 2]], ValueError),
        ([0.5, 1.5, 2.5], ValueError),
        ([1e200, -1e200], ValueError),
        ([b"a", b"b"], TypeError),
        ([1, "a"], TypeError),
        ([1, None], TypeError),
        ([1.0, np.nan], ValueError),
        ([1.0, np.inf], ValueError),
        ([1 + 1j, 2], ValueError),
        (np.zeros(2, dtype="V4"), TypeError),
        (np.array([[1], 2], dtype=object), (TypeError, ValueError)),
    ],
)
def test_class_labels_are_named(y, error):
    with warnings.catch_warnings(action="error"), pytest.raises(error, match=r"\by\b"):
        check_class_labels(y, "y")


@pytest.mark.filterwarnings("error")
def test_infinities_are_summed_up_without_a_warning():
    with pytest.raises(ValueError, match="prior contains infinity"):
        check_named_array([[np.inf, -np.inf]], "prior")


def test_infinity_is_no_name():
    with pytest.raises(ValueError, match="qid must not contain NaN or infinity"):
        encode(np.array([1.0, np.inf]), "qid")


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("factor", [1e-250, 1e-80, 1e80, 1e250])
def test_numbers_out_of_range_are_refused_by_name(make, factor):
    X = make(np.array([[1.0, 0.0], [-2.0, 0.5]]) * factor)
    with pytest.raises(ValueError, match=r"rows has .*2e.* leave the range of float64.*MaxAbsS"):
        check_scale(X, "rows")


@pytest.mark.parametrize("factor", [0.0, 1e-60, 1.0, 1e60])
def test_numbers_in_range_pass(factor):
    X = np.array([[1.0, 1e-300], [-2.0, 0.5]]) * factor
    check_scale(X)
    check_scale(sparse.csr_array(X))
    check_scale(sparse.csr_array((3, 2)))
    check_scale(np.empty((0, 2)))


def test_the_range_of_single_precision():
    check_scale(np.array([[1e17]]), dtype=np.float32)
    for value in (1e19, 1e-19):
        with pytest.raises(ValueError, match="float32"):
            check_scale(np.array([[value]]), dtype=np.float32)


def test_dask_arrays_are_checked():
    da = pytest.importorskip("dask.array")
    X = da.from_array(np.full((6, 2), 3.7), chunks=(2, 2))
    check_scale(X)
    with pytest.raises(ValueError, match="no value above"):
        check_scale(X * 1e-200)
    with pytest.raises(ValueError, match="same values"):
        check_varies(X)


@pytest.mark.parametrize("constant", [0.0, 3.7, -1e-9, 1e30, 1 / 3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_constant_rows_are_refused(constant, dtype):
    X = np.full((7, 3), constant, dtype)
    noisy = X * (1 + np.finfo(dtype).eps * np.arange(7)[:, None] % 3).astype(dtype)
    for rows in (X, noisy, sparse.csr_array(X)):
        with pytest.raises(ValueError, match="Z has the same values in every row"):
            check_varies(rows, "Z")


def test_columns_that_vary_by_more_than_rounding():
    X = np.array([[1e8, 1e8, 5.0, 0.0], [1e8 + 1e-6, 1e8, 5.0, 1e-300]])
    assert varying_columns(X).tolist() == [True, False, False, True]
    assert varying_columns(sparse.csr_array(X)).tolist() == [True, False, False, True]
    check_varies(X)


def test_rows_that_single_precision_cannot_tell_apart():
    X = np.random.default_rng(0).standard_normal((30, 2))
    check_varies(X + 1e3, dtype=np.float32)
    check_varies(np.column_stack([X[:, 0], X[:, 1] + 1e8]), dtype=np.float32)
    with pytest.raises(ValueError, match=r"1e\+08, that float32.*StandardScaler"):
        check_varies(X + 1e8, dtype=np.float32)
