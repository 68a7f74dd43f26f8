"""Readers for the file formats in which the data sets are published."""

from __future__ import annotations

import gzip
import math
import os
import zipfile
import zlib
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.datasets import load_svmlight_file
from sklearn.utils import Bunch

from skdml.utils._sklearn import Interval, validate_params

_IDX_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"


@validate_params({"path": [str, os.PathLike]}, prefer_skip_nested_validation=True)
def read_idx(path: str | os.PathLike) -> NDArray:
    """Read an array from an idx file, the format of the MNIST files.

    Parameters
    ----------
    path : str or path-like
        The file, plain or compressed with gzip; its content tells which, not its name.

    Returns
    -------
    ndarray
        The array as stored, in the machine's byte order.

    Raises
    ------
    ValueError
        If the file is not an idx file, or is shorter or longer than its header says.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from skdml.datasets import read_idx
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "labels-idx1-ubyte")
    ...     _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 0, 4]))
    ...     read_idx(path)
    array([5, 0, 4], dtype=uint8)
    """
    path = Path(path)
    content = path.read_bytes()
    if content.startswith(_GZIP_MAGIC):
        try:
            content = gzip.decompress(content)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is damaged or truncated: {error}; get it again") from error

    if len(content) < 4 or content[:2] != b"\0\0":
        raise ValueError(f"{path} is not an idx file: it starts with {content[:4]!r}")
    code, n_dims = content[2], content[3]
    if code not in _IDX_DTYPES:
        known = ", ".join(f"0x{known:02X}" for known in _IDX_DTYPES)
        raise ValueError(f"{path} has the idx type code 0x{code:02X}; known codes are {known}")
    dtype = np.dtype(_IDX_DTYPES[code])

    start = 4 + 4 * n_dims
    if len(content) < start:
        raise ValueError(f"{path} is truncated: its header needs {start} bytes, got {len(content)}")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", n_dims, offset=4))
    expected = start + dtype.itemsize * math.prod(shape)
    if len(content) != expected:
        what = "is truncated" if len(content) < expected else "has data beyond its end"
        raise ValueError(
            f"{path} {what}: shape {shape} of {dtype.name} needs {expected} bytes, "
            f"got {len(content)}"
        )
    flat = np.frombuffer(content, dtype, offset=start)
    return flat.astype(dtype.newbyteorder("=")).reshape(shape)


def _read_letor_file(path: Path) -> tuple[sparse.csr_matrix, NDArray, NDArray]:
    try:
        X, y, qid = load_svmlight_file(path, zero_based=False, query_id=True)
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a LETOR (svmlight with qid) file: {error}") from error
    if len(y) == 0:
        raise ValueError(f"{path} has no documents")
    if len(qid) != len(y):
        raise ValueError(
            f"{path} has {len(y)} documents but {len(qid)} query ids: "
            "each line needs one, as in '2 qid:10 1:0.5'"
        )
    return X, y, qid


@validate_params(
    {
        "paths": [str, os.PathLike, list, tuple],
        "n_features": [Interval(Integral, 1, None, closed="left"), None],
    },
    prefer_skip_nested_validation=True,
)
def read_letor(
    paths: str | os.PathLike | Sequence[str | os.PathLike], *, n_features: int | None = None
) -> tuple[NDArray, NDArray, NDArray]:
    r"""Read documents, relevance and query ids from LETOR files.

    Each line is one document: ``relevance qid:query feature:value ... # comment``, where
    features are counted from 1 and a feature that is left out is 0.

    Parameters
    ----------
    paths : str, path-like, or list or tuple of them
        One file, or several to be read one after the other. A name that ends in ``.gz`` or
        ``.bz2`` is uncompressed on the fly.

    n_features : int, default=None
        The number of features. If None, the highest number that occurs in any of the files:
        give it when training and test documents are read in separate calls.

    Returns
    -------
    X : ndarray of shape (n_documents, n_features), float64
        The documents.

    y : ndarray of shape (n_documents,)
        Their relevance: int64 when all values are whole numbers, as in LETOR, else float64.

    qid : ndarray of shape (n_documents,), int64
        The query each document was retrieved for, as in the files: the same id in two files
        is the same query.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from skdml.datasets import read_letor
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "S1.txt")
    ...     _ = path.write_text("2 qid:10 1:0.5 3:1 #docid = A\n0 qid:10 2:0.25 #docid = B\n")
    ...     X, y, qid = read_letor(path)
    >>> X
    array([[0.5 , 0.  , 1.  ],
           [0.  , 0.25, 0.  ]])
    >>> y, qid
    (array([2, 0]), array([10, 10]))
    """
    files = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not files:
        raise ValueError("paths is empty: give at least one LETOR file")
    parts = [_read_letor_file(Path(path)) for path in files]

    found = max(X.shape[1] for X, _, _ in parts)
    if n_features is None:
        n_features = found
    elif n_features < found:
        raise ValueError(f"n_features={n_features}, but the files have {found} features")
    for X, _, _ in parts:
        X.resize(X.shape[0], n_features)

    y = np.concatenate([y for _, y, _ in parts])
    if np.array_equal(y, np.rint(y)):
        y = y.astype(np.int64)
    qid = np.concatenate([qid for _, _, qid in parts])
    return sparse.vstack([X for X, _, _ in parts]).toarray(), y, qid


@validate_params(
    {"path": [str, os.PathLike], "required": ["array-like"]},
    prefer_skip_nested_validation=True,
)
def read_npz(path: str | os.PathLike, required: Sequence[str] = ("X", "y")) -> Bunch:
    """Read named arrays from an npz file.

    Parameters
    ----------
    path : str or path-like
        The file, as written by :func:`numpy.savez` or :func:`numpy.savez_compressed`.

    required : sequence of str, default=("X", "y")
        The arrays to read. Others in the file are left alone.

    Returns
    -------
    Bunch
        The required arrays by name.

    Raises
    ------
    ValueError
        If the file is not an npz file, lacks a required array, or holds it as pickled
        objects, which are never loaded.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from skdml.datasets import read_npz
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "tiny.npz")
    ...     np.savez(path, X=np.eye(2), y=np.array(["a", "b"]))
    ...     arrays = read_npz(path)
    >>> arrays.X.shape, arrays.y.tolist()
    ((2, 2), ['a', 'b'])
    """
    path = Path(path)
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{path} is not an npz file, or is truncated; get or write it again")
    with np.load(path, allow_pickle=False) as archive:
        missing = [name for name in required if name not in archive.files]
        if missing:
            raise ValueError(
                f"{path} lacks the arrays {', '.join(missing)}; "
                f"it has {', '.join(archive.files) or 'none'}"
            )
        try:
            return Bunch(**{name: archive[name] for name in required})
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
