import numpy as np
import pytest
from scipy import sparse

from skdml.utils.validation import check_scale, check_varies, varying_columns


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
