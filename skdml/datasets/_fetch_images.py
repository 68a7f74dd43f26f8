"""Fetchers of image sets."""

from __future__ import annotations

import os
from numbers import Integral
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch

from skdml.datasets._base import SUBSET_CONSTRAINTS, locate, make_bunch, read_split
from skdml.datasets._readers import read_idx, read_npz
from skdml.utils._sklearn import Options, validate_params

_FASHION_NAMES = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
]
_OMNIGLOT_SIDE = 105
_USPS_SIDE = 16
_MNIST_SIDE = 28


def _image_bunch(
    folder: str, images: NDArray, target: NDArray, return_X_y: bool, **others: Any
) -> Any:
    data = images.reshape(len(images), -1)
    return make_bunch(folder, data, target, return_X_y, images=images, **others)


def _bytes_to_unit(images: NDArray) -> NDArray:
    return np.divide(images, np.float32(255), dtype=np.float32)


def _fetch_idx(
    folder: str,
    subset: str,
    data_home: str | os.PathLike | None,
    return_X_y: bool,
    target_names: list[str],
) -> Bunch | tuple[NDArray, ...]:
    prefixes = {"train": ["train"], "test": ["t10k"], "all": ["train", "t10k"]}[subset]

    def read(kind: str, shape: tuple[int, ...]) -> NDArray:
        names = [f"{prefix}-{kind}-ubyte" for prefix in prefixes]
        paths = [locate(folder, data_home, f"{name}.gz", name) for name in names]
        arrays = [read_idx(path) for path in paths]
        for path, array in zip(paths, arrays, strict=True):
            if array.shape[1:] != shape or array.ndim == 0 or array.dtype != np.uint8:
                raise ValueError(
                    f"{path} has an array of shape {array.shape} and dtype {array.dtype}: bytes of "
                    f"shape {('n_samples', *shape)} are needed."
                )
        return np.concatenate(arrays)

    # Labels first: a missing or wrong file is found before the images are read.
    target = read("labels-idx1", ()).astype(np.int64)
    images = _bytes_to_unit(read("images-idx3", (_MNIST_SIDE, _MNIST_SIDE)))
    return _image_bunch(folder, images, target, return_X_y, target_names=target_names)


@overload
def fetch_mnist(
    *,
    subset: str = "train",
    data_home: str | os.PathLike | None = None,
    return_X_y: Literal[False] = False,
) -> Bunch: ...


@overload
def fetch_mnist(
    *,
    subset: str = "train",
    data_home: str | os.PathLike | None = None,
    return_X_y: Literal[True],
) -> tuple[NDArray, ...]: ...


@validate_params(SUBSET_CONSTRAINTS, prefer_skip_nested_validation=True)
def fetch_mnist(
    *,
    subset: str = "train",
    data_home: str | os.PathLike | None = None,
    return_X_y: bool = False,
) -> Bunch | tuple[NDArray, ...]:
    """Load MNIST: handwritten digits, 28 x 28 pixels.

    The folder ``mnist`` of the data home has to hold the four original files
    ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, ``t10k-images-idx3-ubyte`` and
    ``t10k-labels-idx1-ubyte``, each plain or with ``.gz``. Nothing is downloaded.

    Parameters
    ----------
    subset : {"train", "test", "all"}, default="train"
        The 60,000 training images, the 10,000 test images, or the former followed by the latter.

    data_home : str or path-like, default=None
        The folder that contains ``mnist``; see :func:`get_data_home`.

    return_X_y : bool, default=False
        If True, return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch or (ndarray, ndarray)
        - data : ndarray of shape (n_samples, 784), float32; the stored bytes divided by 255,
          so 0 is background and 1 is ink
        - target : ndarray of shape (n_samples,), int64; the digit
        - images : ndarray of shape (n_samples, 28, 28); a view of ``data``
        - target_names : list of str
        - DESCR : str

    See Also
    --------
    read_idx : Read one of the files as it is, in bytes.

    Examples
    --------
    >>> from skdml.datasets import fetch_mnist
    >>> digits = fetch_mnist(subset="test")  # doctest: +SKIP
    >>> digits.data.shape, digits.images.shape  # doctest: +SKIP
    ((10000, 784), (10000, 28, 28))

    A file that is not there is an error that says where it was expected:

    >>> fetch_mnist(data_home="no_such_folder")
    Traceback (most recent call last):
    ...
    FileNotFoundError: train-labels-idx1-ubyte.gz or train-labels-idx1-ubyte was not found ...
    """
    names = [str(digit) for digit in range(10)]
    return _fetch_idx("mnist", subset, data_home, return_X_y, names)


@overload
def fetch_fashion_mnist(
    *,
    subset: str = "train",
    data_home: str | os.PathLike | None = None,
    return_X_y: Literal[False] = False,
) -> Bunch: ...


@overload
def fetch_fashion_mnist(
    *,
    subset: str = "train",
    data_home: str | os.PathLike | None = None,
    return_X_y: Literal[True],
) -> tuple[NDArray, ...]: ...


@validate_params(SUBSET_CONSTRAINTS, prefer_skip_nested_validation=True)
def fetch_fashion_mnist(
    *,
    subset: str = "train",
    data_home: str | os.PathLike | None = None,
    return_X_y: bool = False,
) -> Bunch | tuple[NDArray, ...]:
    """Load Fashion-MNIST: articles of clothing, 28 x 28 pixels, 10 classes.

    The folder ``fashion_mnist`` of the data home has to hold the four original files, which
    have the same names as those of MNIST; see :func:`fetch_mnist`. Nothing is downloaded.

    Parameters
    ----------
    subset : {"train", "test", "all"}, default="train"
        The 60,000 training images, the 10,000 test images, or the former followed by the latter.

    data_home : str or path-like, default=None
        The folder that contains ``fashion_mnist``; see :func:`get_data_home`.

    return_X_y : bool, default=False
        If True, return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch or (ndarray, ndarray)
        - data : ndarray of shape (n_samples, 784), float32; the stored bytes divided by 255
        - target : ndarray of shape (n_samples,), int64; the class, 0 to 9
        - images : ndarray of shape (n_samples, 28, 28); a view of ``data``
        - target_names : list of str; the names of the classes
        - DESCR : str

    Examples
    --------
    >>> from skdml.datasets import fetch_fashion_mnist
    >>> clothes = fetch_fashion_mnist(subset="test")  # doctest: +SKIP
    >>> clothes.target_names[clothes.target[0]]  # doctest: +SKIP
    'Ankle boot'
    """
    return _fetch_idx("fashion_mnist", subset, data_home, return_X_y, list(_FASHION_NAMES))


@overload
def fetch_usps(
    *,
    subset: str = "train",
    data_home: str | os.PathLike | None = None,
    return_X_y: Literal[False] = False,
) -> Bunch: ...


@overload
def fetch_usps(
    *,
    subset: str = "train",
    data_home: str | os.PathLike | None = None,
    return_X_y: Literal[True],
) -> tuple[NDArray, ...]: ...


@validate_params(SUBSET_CONSTRAINTS, prefer_skip_nested_validation=True)
def fetch_usps(
    *,
    subset: str = "train",
    data_home: str | os.PathLike | None = None,
    return_X_y: bool = False,
) -> Bunch | tuple[NDArray, ...]:
    """Load USPS: handwritten digits, 16 x 16 pixels.

    The folder ``usps`` of the data home has to hold ``usps.npz`` with the arrays ``X_train``
    and ``X_test``, one image of 256 pixels in [0, 1] in each row, and ``y_train`` and
    ``y_test``, the digits. Nothing is downloaded.

    Parameters
    ----------
    subset : {"train", "test", "all"}, default="train"
        The 7,291 training images, the 2,007 test images, or the former followed by the latter.

    data_home : str or path-like, default=None
        The folder that contains ``usps``; see :func:`get_data_home`.

    return_X_y : bool, default=False
        If True, return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch or (ndarray, ndarray)
        - data : ndarray of shape (n_samples, 256), float32; 0 is background and 1 is ink
        - target : ndarray of shape (n_samples,), int64; the digit
        - images : ndarray of shape (n_samples, 16, 16); a view of ``data``
        - DESCR : str

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from skdml.datasets import fetch_usps
    >>> with tempfile.TemporaryDirectory() as home:
    ...     Path(home, "usps").mkdir()
    ...     np.savez(Path(home, "usps", "usps.npz"), X_test=np.zeros((3, 256)), y_test=[7, 0, 1])
    ...     digits = fetch_usps(subset="test", data_home=home)
    >>> digits.images.shape
    (3, 16, 16)
    """
    X, y = read_split("usps", "usps.npz", subset, data_home, _USPS_SIDE**2)
    images = X.astype(np.float32, copy=False).reshape(-1, _USPS_SIDE, _USPS_SIDE)
    return _image_bunch("usps", images, y, return_X_y)


@overload
def fetch_omniglot(
    *,
    subset: str = "train",
    size: int = 28,
    data_home: str | os.PathLike | None = None,
    return_X_y: Literal[False] = False,
) -> Bunch: ...


@overload
def fetch_omniglot(
    *,
    subset: str = "train",
    size: int = 28,
    data_home: str | os.PathLike | None = None,
    return_X_y: Literal[True],
) -> tuple[NDArray, ...]: ...


@validate_params(
    {**SUBSET_CONSTRAINTS, "size": [Options(Integral, {28, _OMNIGLOT_SIDE})]},
    prefer_skip_nested_validation=True,
)
def fetch_omniglot(
    *,
    subset: str = "train",
    size: int = 28,
    data_home: str | os.PathLike | None = None,
    return_X_y: bool = False,
) -> Bunch | tuple[NDArray, ...]:
    """Load a part of Omniglot: 20 drawings of each of 242 characters of 8 alphabets.

    No character of the test alphabets occurs in training, as zero-shot retrieval needs it.

    The folder ``omniglot`` of the data home has to hold ``omniglot.npz`` with the arrays

    - ``images28`` of shape (n_samples, 28, 28), uint8: the ink from 0 to 255;
    - ``images105_packed`` of shape (n_samples, 1379), uint8: the 105 x 105 pixels of the original
      drawing, 1 for ink, row by row, each sample packed with :func:`numpy.packbits`;
    - ``character`` of shape (n_samples,): the number of the character;
    - ``alphabet`` of shape (n_samples,): the name of the alphabet;
    - ``train`` of shape (n_samples,), bool: whether the sample is for training.

    Nothing is downloaded.

    Parameters
    ----------
    subset : {"train", "test", "all"}, default="train"
        The 5 training alphabets (136 characters), the 3 test alphabets (106 characters), or all
        in the order of the file.

    size : {28, 105}, default=28
        The height and width of the images.

    data_home : str or path-like, default=None
        The folder that contains ``omniglot``; see :func:`get_data_home`.

    return_X_y : bool, default=False
        If True, return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch or (ndarray, ndarray)
        - data : ndarray of shape (n_samples, size * size), float32; 0 is background and 1 is ink
        - target : ndarray of shape (n_samples,), int64; the number of the character
        - images : ndarray of shape (n_samples, size, size); a view of ``data``
        - alphabet : ndarray of shape (n_samples,), str
        - train : ndarray of shape (n_samples,), bool
        - DESCR : str

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from skdml.datasets import fetch_omniglot
    >>> with tempfile.TemporaryDirectory() as home:
    ...     Path(home, "omniglot").mkdir()
    ...     np.savez(
    ...         Path(home, "omniglot", "omniglot.npz"),
    ...         images28=np.zeros((3, 28, 28), np.uint8),
    ...         character=[0, 0, 1],
    ...         alphabet=["Greek", "Greek", "Tagalog"],
    ...         train=[True, True, False],
    ...     )
    ...     drawings = fetch_omniglot(subset="test", data_home=home)
    >>> drawings.data.shape, drawings.alphabet.tolist()
    ((1, 784), ['Tagalog'])
    """
    stored = "images28" if size == 28 else "images105_packed"
    path = locate("omniglot", data_home, "omniglot.npz")
    arrays = read_npz(path, (stored, "character", "alphabet", "train"))
    shape = (28, 28) if size == 28 else (-(-(_OMNIGLOT_SIDE**2) // 8),)
    for name, rest, kinds in (
        (stored, shape, "u"),
        ("character", (), "iu"),
        ("alphabet", (), "U"),
        ("train", (), "b"),
    ):
        wanted = (len(np.atleast_1d(arrays.train)), *rest)
        if arrays[name].shape != wanted or arrays[name].dtype.kind not in kinds:
            raise ValueError(
                f"{path} has {name} of shape {arrays[name].shape} and dtype {arrays[name].dtype}, "
                f"which is not what the documentation of fetch_omniglot lists."
            )
    train = arrays.train
    chosen = {"train": train, "test": ~train, "all": np.ones_like(train)}[subset]

    images = arrays[stored][chosen]
    if size == 28:
        images = _bytes_to_unit(images)
    else:
        bits = np.unpackbits(images, axis=1, count=_OMNIGLOT_SIDE**2)
        images = bits.astype(np.float32).reshape(-1, _OMNIGLOT_SIDE, _OMNIGLOT_SIDE)
    return _image_bunch(
        "omniglot",
        images,
        arrays.character[chosen].astype(np.int64),
        return_X_y,
        alphabet=arrays.alphabet[chosen],
        train=train[chosen],
    )
