"""What the fetchers share: where the data lie on this machine and where users get them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch

from skdml.datasets._readers import read_npz
from skdml.utils._sklearn import StrOptions

_VARIABLE = "SKDML_DATA"
_LETOR_PAGE = (
    "the LETOR page of Microsoft Research "
    "(microsoft.com/en-us/research/project/letor-learning-rank-information-retrieval)"
)
_SAVE_SPLIT = "write X_train, y_train, X_test and y_test with numpy.savez"

# Parameters that several fetchers have, for validate_params.
COMMON_CONSTRAINTS = {"data_home": [str, os.PathLike, None], "return_X_y": ["boolean"]}
SUBSET_CONSTRAINTS = {"subset": [StrOptions({"train", "test", "all"})], **COMMON_CONSTRAINTS}


class _Source(NamedTuple):
    description: str
    origin: str


# Folder below the data home -> what is in it and where users get it.
_SOURCES = {
    "mnist": _Source(
        "MNIST: handwritten digits, 28 x 28 pixels, 60,000 for training and 10,000 for testing.",
        "the MNIST files from yann.lecun.com/exdb/mnist (also mirrored as `mnist_784` on OpenML)",
    ),
    "fashion_mnist": _Source(
        "Fashion-MNIST: articles of clothing in 10 classes, 28 x 28 pixels, 60,000 for training "
        "and 10,000 for testing.",
        "the Fashion-MNIST files from github.com/zalandoresearch/fashion-mnist",
    ),
    "usps": _Source(
        "USPS: handwritten digits of ZIP codes, 16 x 16 pixels, 7,291 for training and 2,007 for "
        "testing.",
        "the USPS digits (zip.train, zip.test) from the page of The Elements of Statistical "
        f"Learning (hastie.su.domains/ElemStatLearn), scale the pixels to [0, 1] and {_SAVE_SPLIT}",
    ),
    "omniglot": _Source(
        "Omniglot: handwritten characters, 20 drawings of each of 242 characters of 8 alphabets; "
        "the alphabets for training and for testing have no character in common.",
        "the images from github.com/brendenlake/omniglot and write the arrays that the "
        "documentation of fetch_omniglot lists with numpy.savez",
    ),
    "letor_mq2008": _Source(
        "LETOR 4.0 MQ2008: 15,211 documents with 46 features of 784 queries, relevance 0 to 2.",
        f"S1.txt to S5.txt of MQ2008 (supervised ranking) from {_LETOR_PAGE}",
    ),
    "letor_ohsumed": _Source(
        "LETOR OHSUMED: 16,140 documents with 45 features of 106 queries, relevance 0 to 2.",
        f"S1.txt to S5.txt of OHSUMED (query-level normalised) from {_LETOR_PAGE}",
    ),
    "microarray": _Source(
        "Gene-expression sets: few samples (50 to 181) of many genes (2,000 to 22,283).",
        "the set from the R package datamicroarray (github.com/ramhiser/datamicroarray) and write "
        "X and y with numpy.savez",
    ),
    "cub_features": _Source(
        "Ten classes of Caltech-UCSD Birds-200-2011 as 1,024 features of a deep network, 480 for "
        "training and 120 for testing.",
        "the images from vision.caltech.edu/datasets/cub_200_2011, compute features with a "
        f"pretrained network and {_SAVE_SPLIT}",
    ),
    "uci": _Source(
        "A classification set of the UCI repository.",
        "the set from the UCI repository, archive.ics.uci.edu, and write X and y with numpy.savez",
    ),
}


def get_data_home(data_home: str | os.PathLike | None = None) -> Path:
    """Return the folder in which the fetchers look for data sets.

    Parameters
    ----------
    data_home : str or path-like, default=None
        The folder; ``~`` stands for the user's home. If None, the environment variable
        ``SKDML_DATA``, or ``~/skdml_data`` where that is not set.

    Returns
    -------
    pathlib.Path
        The folder. It is not created and need not exist.

    Examples
    --------
    >>> from skdml.datasets import get_data_home
    >>> get_data_home("some/folder").as_posix()
    'some/folder'
    """
    if data_home is None:
        data_home = os.environ.get(_VARIABLE) or "~/skdml_data"
    return Path(data_home).expanduser()


def locate(folder: str, data_home: str | os.PathLike | None, *names: str) -> Path:
    """Return the first of the named files that exists; if none does, say where to get it."""
    place = get_data_home(data_home) / folder
    for name in names:
        if (place / name).is_file():
            return place / name
    raise FileNotFoundError(
        f"{' or '.join(names)} was not found in the folder {place}. Nothing is downloaded: get "
        f"{_SOURCES[folder].origin}, and put the file into that folder. If it lies elsewhere, give "
        f"the folder that contains {folder}/ as data_home or in the environment variable "
        f"{_VARIABLE}."
    )


def read_split(
    folder: str,
    name: str,
    subset: str,
    data_home: str | os.PathLike | None,
    n_features: int | None = None,
) -> tuple[NDArray, NDArray]:
    """Return X and y from an npz file with X_train, y_train, X_test and y_test."""
    parts = ("train", "test") if subset == "all" else (subset,)
    path = locate(folder, data_home, name)
    arrays = read_npz(path, [f"{kind}_{part}" for part in parts for kind in "Xy"])
    for part in parts:
        check_table(path, arrays[f"X_{part}"], arrays[f"y_{part}"], n_features, f"_{part}")
    widths = {arrays[f"X_{part}"].shape[1] for part in parts}
    if len(widths) > 1:
        raise ValueError(f"{path} has X_train and X_test of different width: {sorted(widths)}.")
    X = np.concatenate([arrays[f"X_{part}"] for part in parts])
    y = np.concatenate([arrays[f"y_{part}"] for part in parts])
    if y.dtype.kind not in "iub" and not (y.dtype.kind == "f" and np.array_equal(y, np.rint(y))):
        raise ValueError(f"{path} has classes that are not whole numbers, of dtype {y.dtype}.")
    return X, y.astype(np.int64)


def check_table(
    path: Path, X: NDArray, y: NDArray, n_features: int | None = None, end: str = ""
) -> None:
    """Check that the arrays of a file are rows of numbers and a class for each."""
    if X.ndim != 2 or X.dtype.kind not in "fiub" or n_features not in (None, X.shape[1]):
        columns = "n_features" if n_features is None else n_features
        raise ValueError(
            f"{path} has X{end} of shape {X.shape} and dtype {X.dtype}: numbers of shape "
            f"(n_samples, {columns}) are needed."
        )
    if y.shape != (len(X),):
        raise ValueError(
            f"{path} has y{end} of shape {y.shape} for {len(X)} rows of X{end}: one class for each "
            "is needed."
        )


def make_bunch(
    folder: str, data: NDArray, target: NDArray, return_X_y: bool, **others: Any
) -> Bunch | tuple[NDArray, ...]:
    """Return what a fetcher returns: a Bunch, or data, target and the qid if there is one."""
    if len(data) != len(target):
        raise ValueError(
            f"The files of {folder} do not belong together: {len(data)} samples, "
            f"{len(target)} targets. Get all of them again."
        )
    if return_X_y:
        return (data, target, others["qid"]) if "qid" in others else (data, target)
    return Bunch(data=data, target=target, DESCR=_SOURCES[folder].description, **others)
