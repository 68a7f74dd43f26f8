"""Checks of input that several parts of the package share."""

import warnings

import numpy as np
import pytest

from skdml.utils.validation import (
    check_class_labels,
    check_named_array,
    encode,
    naming,
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
