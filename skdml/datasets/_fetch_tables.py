"""Fetchers of ranking sets and of classification sets that are not images."""

from __future__ import annotations

import os
from numbers import Integral
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch

from skdml.datasets._base import (
    COMMON_CONSTRAINTS,
    SUBSET_CONSTRAINTS,
    check_table,
    locate,
    make_bunch,
    read_split,
)
from skdml.datasets._readers import read_letor, read_npz
from skdml.utils._sklearn import Interval, StrOptions, validate_params

_LETOR_FEATURES = {"mq2008": 46, "ohsumed": 45}
_N_FOLDS = 5
# Which of the parts S1 to S5 a subset takes, counted from the fold's own number.
_FOLD_PARTS = {"train": (0, 1, 2), "validation": (3,), "test": (4,)}

_MICROARRAY_NAMES = {
    "alon",
    "chowdary",
    "golub",
    "gordon",
    "khan",
    "nakayama",
    "singh",
    "su",
    "subramanian",
}
_UCI_NAMES = {
    "balance",
    "ionosphere",
    "letter",
    "optdigits",
    "penbased",
    "satimage",
    "segment",
    "sonar",
    "vehicle",
    "vowel",
}


def _letor_parts(fold: int, subset: str) -> list[int]:
    if subset == "all":
        return list(range(1, _N_FOLDS + 1))
    return [(fold - 1 + step) % _N_FOLDS + 1 for step in _FOLD_PARTS[subset]]


@overload
def fetch_letor(
    name: str = "mq2008",
    *,
    fold: int = 1,
    subset: str = "train",
    data_home: str | os.PathLike | None = None,
    return_X_y: Literal[False] = False,
) -> Bunch: ...


@overload
def fetch_letor(
    name: str = "mq2008",
    *,
    fold: int = 1,
    subset: str = "train",
    data_home: str | os.PathLike | None = None,
    return_X_y: Literal[True],
) -> tuple[NDArray, ...]: ...


@validate_params(
    {
        "name": [StrOptions(set(_LETOR_FEATURES))],
        "fold": [Interval(Integral, 1, _N_FOLDS, closed="both")],
        "subset": [StrOptions({*_FOLD_PARTS, "all"})],
        **COMMON_CONSTRAINTS,
    },
    prefer_skip_nested_validation=True,
)
def fetch_letor(
    name: str = "mq2008",
    *,
    fold: int = 1,
    subset: str = "train",
    data_home: str | os.PathLike | None = None,
    return_X_y: bool = False,
) -> Bunch | tuple[NDArray, ...]:
    r"""Load a ranking set of LETOR with its published five folds.

    The folder ``letor_mq2008`` or ``letor_ohsumed`` of the data home has to hold the five parts
    ``S1.txt`` to ``S5.txt`` of the set, each plain or with ``.gz``. Where only the folds are at
    hand: the test set of fold 1 is S5, that of fold 2 is S1, and so on. Nothing is downloaded.

    Parameters
    ----------
    name : {"mq2008", "ohsumed"}, default="mq2008"
        MQ2008 has 15,211 documents with 46 features of 784 queries, OHSUMED 16,140 documents with
        45 features of 106 queries. Relevance is 0, 1 or 2 in both.

    fold : int, default=1
        The fold, 1 to 5. Fold i trains on the parts Si, Si+1 and Si+2, validates on Si+3 and tests
        on Si+4, where S1 follows S5.

    subset : {"train", "validation", "test", "all"}, default="train"
        The part of the fold, or all five parts in order, whatever the fold.

    data_home : str or path-like, default=None
        The folder that contains the set's folder; see :func:`get_data_home`.

    return_X_y : bool, default=False
        If True, return ``(data, target, qid)`` instead of a Bunch.

    Returns
    -------
    Bunch or (ndarray, ndarray, ndarray)
        - data : ndarray of shape (n_documents, n_features), float64
        - target : ndarray of shape (n_documents,), int64; the relevance
        - qid : ndarray of shape (n_documents,), int64; the query of each document
        - DESCR : str

    Notes
    -----
    Features are normalised within each query. In MQ2008, 220 queries have no relevant document
    and six features (6 to 10 and 43, counted from 1) are constant; in OHSUMED some are zero
    throughout.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from skdml.datasets import fetch_letor
    >>> with tempfile.TemporaryDirectory() as home:
    ...     folder = Path(home, "letor_mq2008")
    ...     folder.mkdir()
    ...     _ = Path(folder, "S5.txt").write_text("2 qid:7 1:0.5 #docid = A\n0 qid:7 2:1\n")
    ...     documents = fetch_letor("mq2008", fold=1, subset="test", data_home=home)
    >>> documents.data.shape, documents.target.tolist(), documents.qid.tolist()
    ((2, 46), [2, 0], [7, 7])
    """
    folder = f"letor_{name}"
    paths = [
        locate(folder, data_home, f"S{part}.txt", f"S{part}.txt.gz")
        for part in _letor_parts(fold, subset)
    ]
    X, y, qid = read_letor(paths, n_features=_LETOR_FEATURES[name])
    return make_bunch(folder, X, y, return_X_y, qid=qid)


def _fetch_table(
    folder: str, name: str, data_home: str | os.PathLike | None, return_X_y: bool
) -> Bunch | tuple[NDArray, ...]:
    path = locate(folder, data_home, f"{name}.npz")
    arrays = read_npz(path)
    check_table(path, arrays.X, arrays.y)
    return make_bunch(folder, arrays.X, arrays.y, return_X_y, target_names=np.unique(arrays.y))


@overload
def fetch_microarray(
    name: str,
    *,
    data_home: str | os.PathLike | None = None,
    return_X_y: Literal[False] = False,
) -> Bunch: ...


@overload
def fetch_microarray(
    name: str,
    *,
    data_home: str | os.PathLike | None = None,
    return_X_y: Literal[True],
) -> tuple[NDArray, ...]: ...


@validate_params(
    {"name": [StrOptions(_MICROARRAY_NAMES)], **COMMON_CONSTRAINTS},
    prefer_skip_nested_validation=True,
)
def fetch_microarray(
    name: str,
    *,
    data_home: str | os.PathLike | None = None,
    return_X_y: bool = False,
) -> Bunch | tuple[NDArray, ...]:
    """Load a gene-expression set: few samples of many genes.

    The folder ``microarray`` of the data home has to hold ``<name>.npz`` with the arrays ``X``,
    one sample in each row, and ``y``, the classes. Nothing is downloaded.

    Parameters
    ----------
    name : {"alon", "chowdary", "golub", "gordon", "khan", "nakayama", "singh", "su", "subramanian"}
        The set, by its first author. They have 50 (subramanian) to 181 (gordon) samples and
        2,000 (alon) to 22,283 (chowdary, nakayama) features.

    data_home : str or path-like, default=None
        The folder that contains ``microarray``; see :func:`get_data_home`.

    return_X_y : bool, default=False
        If True, return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch or (ndarray, ndarray)
        - data : ndarray of shape (n_samples, n_features); expression levels as published, on
          very different scales from set to set
        - target : ndarray of shape (n_samples,), str; the class
        - target_names : ndarray of shape (n_classes,)
        - DESCR : str

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from skdml.datasets import fetch_microarray
    >>> with tempfile.TemporaryDirectory() as home:
    ...     Path(home, "microarray").mkdir()
    ...     np.savez(Path(home, "microarray", "golub.npz"), X=np.ones((2, 9)), y=["ALL", "AML"])
    ...     leukemia = fetch_microarray("golub", data_home=home)
    >>> leukemia.data.shape, leukemia.target.tolist()
    ((2, 9), ['ALL', 'AML'])
    """
    return _fetch_table("microarray", name, data_home, return_X_y)


@overload
def fetch_uci(
    name: str,
    *,
    data_home: str | os.PathLike | None = None,
    return_X_y: Literal[False] = False,
) -> Bunch: ...


@overload
def fetch_uci(
    name: str,
    *,
    data_home: str | os.PathLike | None = None,
    return_X_y: Literal[True],
) -> tuple[NDArray, ...]: ...


@validate_params(
    {"name": [StrOptions(_UCI_NAMES)], **COMMON_CONSTRAINTS},
    prefer_skip_nested_validation=True,
)
def fetch_uci(
    name: str,
    *,
    data_home: str | os.PathLike | None = None,
    return_X_y: bool = False,
) -> Bunch | tuple[NDArray, ...]:
    """Load a classification set of the UCI repository.

    The folder ``uci`` of the data home has to hold ``<name>.npz`` with the arrays ``X``, one
    sample in each row, and ``y``, the classes. Nothing is downloaded.

    Parameters
    ----------
    name : {"balance", "ionosphere", "letter", "optdigits", "penbased", "satimage", "segment", \
            "sonar", "vehicle", "vowel"}
        The set.

    data_home : str or path-like, default=None
        The folder that contains ``uci``; see :func:`get_data_home`.

    return_X_y : bool, default=False
        If True, return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch or (ndarray, ndarray)
        - data : ndarray of shape (n_samples, n_features); not scaled
        - target : ndarray of shape (n_samples,), str; the class
        - target_names : ndarray of shape (n_classes,)
        - DESCR : str

    Notes
    -----
    The first three features of the original vowel set are not measurements: they tell whether
    the sample was for training, who spoke, and the speaker's sex.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from skdml.datasets import fetch_uci
    >>> with tempfile.TemporaryDirectory() as home:
    ...     Path(home, "uci").mkdir()
    ...     np.savez(Path(home, "uci", "sonar.npz"), X=np.ones((2, 60)), y=["R", "M"])
    ...     X, y = fetch_uci("sonar", data_home=home, return_X_y=True)
    >>> X.shape, y.tolist()
    ((2, 60), ['R', 'M'])
    """
    return _fetch_table("uci", name, data_home, return_X_y)


@overload
def fetch_cub_features(
    *,
    subset: str = "train",
    data_home: str | os.PathLike | None = None,
    return_X_y: Literal[False] = False,
) -> Bunch: ...


@overload
def fetch_cub_features(
    *,
    subset: str = "train",
    data_home: str | os.PathLike | None = None,
    return_X_y: Literal[True],
) -> tuple[NDArray, ...]: ...


@validate_params(SUBSET_CONSTRAINTS, prefer_skip_nested_validation=True)
def fetch_cub_features(
    *,
    subset: str = "train",
    data_home: str | os.PathLike | None = None,
    return_X_y: bool = False,
) -> Bunch | tuple[NDArray, ...]:
    """Load deep features of ten classes of Caltech-UCSD Birds-200-2011.

    The folder ``cub_features`` of the data home has to hold ``cub10.npz`` with the arrays
    ``X_train`` and ``X_test``, the features of one image in each row, and ``y_train`` and
    ``y_test``, the numbers of the classes. Nothing is downloaded.

    Parameters
    ----------
    subset : {"train", "test", "all"}, default="train"
        The 480 training images, the 120 test images, or the former followed by the latter.

    data_home : str or path-like, default=None
        The folder that contains ``cub_features``; see :func:`get_data_home`.

    return_X_y : bool, default=False
        If True, return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch or (ndarray, ndarray)
        - data : ndarray of shape (n_samples, 1024), float32
        - target : ndarray of shape (n_samples,), int64; the class, 1 to 10
        - DESCR : str

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from skdml.datasets import fetch_cub_features
    >>> with tempfile.TemporaryDirectory() as home:
    ...     folder = Path(home, "cub_features")
    ...     folder.mkdir()
    ...     np.savez(folder / "cub10.npz", X_test=np.zeros((2, 1024)), y_test=[1, 10])
    ...     X, y = fetch_cub_features(subset="test", data_home=home, return_X_y=True)
    >>> X.shape, y
    ((2, 1024), array([ 1, 10]))
    """
    X, y = read_split("cub_features", "cub10.npz", subset, data_home)
    return make_bunch("cub_features", X, y, return_X_y)
