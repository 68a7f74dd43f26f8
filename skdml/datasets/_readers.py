"""Readers for the file formats in which the data sets are published."""

from __future__ import annotations

import bz2
import gzip
import math
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from numbers import Integral
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.lib.format import MAGIC_PREFIX
from numpy.typing import NDArray
from scipy import sparse
from sklearn.datasets import load_svmlight_file
from sklearn.utils import Bunch

from skdml.utils._sklearn import Interval, validate_params
from skdml.utils.validation import refuse_if_too_large

_IDX_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"
# Bytes that one byte of a gzip file can stand for, at most.
_MOST_DEFLATED = 1032
# As many as all versions of numpy have.
_MOST_DIMENSIONS = 32
# Whole numbers up to this are exact.
_LARGEST_GRADE = 2.0**53
# Bytes of a line of text, and of text that is read without a look at the memory.
_LONGEST_LINE = 2**24
_CHECKED_TEXT = 2**26


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
    with _open_binary(path) as file, _named_errors(path, "is damaged or truncated"):
        is_gzip = file.read(2) == _GZIP_MAGIC
        file.seek(0)
        # No more bytes can come out of a file than its size times what deflate packs at best.
        most = os.fstat(file.fileno()).st_size * (_MOST_DEFLATED if is_gzip else 1)
        with gzip.GzipFile(fileobj=file) if is_gzip else nullcontext(file) as content:
            return _read_idx(content, path, most)


def _read_idx(file: Any, path: Path, most: int) -> NDArray:
    """Read an array from an open file which has at most that many bytes."""
    header = file.read(4)
    if len(header) < 4 or header[:2] != b"\0\0":
        raise ValueError(f"{path} is not an idx file: it starts with {header!r}")
    code, n_dims = header[2], header[3]
    if code not in _IDX_DTYPES:
        known = ", ".join(f"0x{known:02X}" for known in _IDX_DTYPES)
        raise ValueError(f"{path} has the idx type code 0x{code:02X}; known codes are {known}")
    if n_dims > _MOST_DIMENSIONS:
        raise ValueError(f"{path} has {n_dims} dimensions, more than {_MOST_DIMENSIONS}")
    dtype = np.dtype(_IDX_DTYPES[code])
    sizes = file.read(4 * n_dims)
    start = 4 + 4 * n_dims
    if len(sizes) < 4 * n_dims:
        found = f"its header needs {start} bytes, got {4 + len(sizes)}"
        raise ValueError(f"{path} is truncated: {found}")
    shape = tuple(int(n) for n in np.frombuffer(sizes, ">u4"))
    n_bytes = dtype.itemsize * math.prod(shape)
    needs = f"shape {shape} of {dtype.name} needs {start + n_bytes} bytes"
    if start + n_bytes > most:
        raise ValueError(f"{path} is truncated: {needs}, and it cannot have more than {most}")
    _refuse_large(path, n_bytes)
    content = file.read(n_bytes)
    if len(content) < n_bytes:
        raise ValueError(f"{path} is truncated: {needs}, got {start + len(content)}")
    if file.read(1):
        raise ValueError(f"{path} has data beyond its end: {needs}, got more")
    flat = np.frombuffer(content, dtype)
    return flat.astype(dtype.newbyteorder("=")).reshape(shape)


def _open_binary(path):
    if path.is_dir():
        raise ValueError(f"{path} is a folder, and a file is needed")
    return path.open("rb")


@contextmanager
def _named_errors(path: Path, problem: str) -> Iterator[None]:
    """Turn whatever the libraries raise on a broken file into a ValueError that names it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path} {problem}: {error}") from error


def _refuse_large(path: Path, n_bytes: int) -> None:
    """Raise before an array would not fit into half of the machine's memory."""
    try:
        refuse_if_too_large((n_bytes // 8, 1), "is an array", "Read it on a larger machine.")
    except MemoryError as error:
        raise ValueError(f"{path} {error}") from error


class _Lines:
    """The lines of a file, of which neither one nor all together fill the memory.

    Parameters
    ----------
    file : file
        Open for reading, in binary mode.
    path : Path
        Named in errors.
    """

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self.read = file.read  # how load_svmlight_file tells an open file from a name
        self._file, self._path = file, path

    def __iter__(self) -> Iterator[bytes]:
        total = 0
        while line := self._file.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE:
                raise ValueError(f"{self._path} has a line of more than {_LONGEST_LINE} bytes")
            total += len(line)
            # Arrays take up to about three bytes for each byte of text.
            if total > _CHECKED_TEXT:
                _refuse_large(self._path, 3 * total)
            yield line


def _read_letor_file(path, n_features, max_features):
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
    with _open_binary(path) as file, _named_errors(path, "is not a LETOR (svmlight with qid) file"):
        with openers.get(path.suffix, nullcontext)(file) as content:
            X, y, qid = load_svmlight_file(_Lines(content, path), zero_based=False, query_id=True)
        if len(y) == 0:
            raise ValueError(f"{path} has no documents")
        if len(qid) != len(y):
            found = f"{len(y)} documents but {len(qid)} query ids"
            raise ValueError(f"{path} has {found}: each line needs one, as in '2 qid:10 1:0.5'")
        if n_features is None and X.shape[1] > max_features:
            found = f"a feature number {X.shape[1]}, above max_features={max_features}"
            raise ValueError(f"{path} has {found}: raise it if that is no mistake")
        for what, values in (("relevance", y), ("feature", X.data)):
            if not np.isfinite(values).all():
                raise ValueError(f"{path} has a {what} that is NaN or infinite")
        largest = float(np.abs(y).max())
        if largest > _LARGEST_GRADE:
            raise ValueError(f"{path} has a relevance of {largest:.3g}, above {_LARGEST_GRADE:.3g}")
    return X, y, qid


@validate_params(
    {
        "paths": [str, os.PathLike, list, tuple],
        "n_features": [Interval(Integral, 1, None, closed="left"), None],
        "max_features": [Interval(Integral, 1, None, closed="left")],
    },
    prefer_skip_nested_validation=True,
)
def read_letor(
    paths: str | os.PathLike | Sequence[str | os.PathLike],
    *,
    n_features: int | None = None,
    max_features: int = 10_000,
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

    max_features : int, default=10_000
        Without `n_features`, a higher number of a feature in a file is an error: the array of the
        documents has a column for each, and a single wrong number could fill the memory.

    Returns
    -------
    X : ndarray of shape (n_documents, n_features), float64
        The documents.

    y : ndarray of shape (n_documents,)
        Their relevance: int64 when all values are whole numbers, as in LETOR, else float64.

    qid : ndarray of shape (n_documents,), int64
        The query each document was retrieved for, as in the files: the same id in two files
        is the same query.

    Raises
    ------
    ValueError
        If a file is not a LETOR file or is damaged, has a grade, an id or a number of a feature
        that is out of range, or would not fit into half of the memory.

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
    parts = [_read_letor_file(Path(path), n_features, max_features) for path in files]

    matrices, grades, ids = zip(*parts, strict=True)
    found = max(X.shape[1] for X in matrices)
    if n_features is None:
        n_features = found
    elif n_features < found:
        raise ValueError(f"n_features={n_features}, but the files have {found} features")
    y, qid = np.concatenate(grades), np.concatenate(ids)
    _refuse_large(Path(files[0]), 8 * n_features * len(y))
    for X in matrices:
        X.resize(X.shape[0], n_features)
    if np.array_equal(y, np.rint(y)):
        y = y.astype(np.int64)
    return sparse.vstack(matrices).toarray(), y, qid


@validate_params(
    {"path": [str, os.PathLike], "required": ["array-like"]}, prefer_skip_nested_validation=True
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
        If the file is not an npz file or is damaged, lacks a required array, holds it as pickled
        objects, which are never loaded, or as something else than an array.

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
    with _open_binary(path) as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{path} is not an npz file, or is truncated; get or write it again")
        with _named_errors(path, "cannot be read"), zipfile.ZipFile(file) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            missing = [name for name in required if name not in members]
            if missing:
                lacking, found = ", ".join(map(str, missing)), ", ".join(members) or "none"
                raise ValueError(f"{path} lacks the arrays {lacking}; it has {found}")
            arrays = {name: _read_member(archive, members[name], path, name) for name in required}
            return Bunch(**arrays)


def _read_member(archive, member, path, name):
    """Read an array, after a look at what its header says of its size."""
    with archive.open(member) as file:
        if file.read(len(MAGIC_PREFIX)) != MAGIC_PREFIX:
            raise ValueError(f"{path} has {name}, which is not an array of numpy")
        file.seek(0)
        old = npy_format.read_magic(file) == (1, 0)
        read_header = npy_format.read_array_header_1_0 if old else npy_format.read_array_header_2_0
        shape, _, dtype = read_header(file)
        n_bytes = math.prod(shape) * dtype.itemsize
        if n_bytes > archive.getinfo(member).file_size:
            found = f"{name} of shape {shape} and {dtype} needs {n_bytes} bytes"
            raise ValueError(f"{path} is damaged: {found}")
        _refuse_large(path, n_bytes)
        file.seek(0)
        return npy_format.read_array(file, allow_pickle=False)
