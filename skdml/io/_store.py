"""One file for an estimator: tensors by safetensors, with the rest as JSON in its header."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from .._optional import optional_import
from .._version import __version__
from ._decode import Decoder, UnknownNetwork
from ._encode import Encoder
from ._registry import name_of_class

FORMAT = 1


def save(estimator: Any, path: str | os.PathLike[str]) -> None:
    """Write an estimator to a file that holds data and no code.

    Parameters
    ----------
    estimator : estimator or VectorIndex
        One of this package, with what it has learned.
    path : path
        The file, such as "model.safetensors". It is written beside and moved there when it is
        complete.

    See Also
    --------
    load : Reads it.

    Notes
    -----
    Arrays and weights are tensors of safetensors; parameters and structure are JSON in its header.
    The optimizer and the callbacks of a training are not stored: what was loaded predicts, and
    is fitted anew. A parameter that is code, such as a function or a callback, is an error.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skdml import GMMLTransformer
    >>> from skdml.io import load, save
    >>> X, y = load_iris(return_X_y=True)
    >>> model = GMMLTransformer(geodesic=0.5).fit(X, y)
    >>> save(model, "model.safetensors")  # doctest: +SKIP
    >>> load("model.safetensors")  # doctest: +SKIP
    GMMLTransformer(geodesic=0.5)
    """
    safetensors = optional_import("safetensors.numpy", "skdml.io.save")
    content, arrays = _encode(estimator)
    header = {
        "format": FORMAT,
        "version": __version__,
        "sha256": _digest(content, arrays),
        "content": content,
    }
    path = Path(path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(safetensors.save(arrays, metadata={"skdml": json.dumps(header)}))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def load(path: str | os.PathLike[str], *, module: Any = None) -> Any:
    """Read an estimator; no code of the file is executed.

    Parameters
    ----------
    path : path
        A file of `save`.
    module : class or list of classes, default=None
        Networks of your own, subclasses of ``torch.nn.Module``, that the estimator was given. The
        networks of this package and the layers of ``torch.nn`` are known.

    Returns
    -------
    estimator : estimator or VectorIndex
        Its outputs equal those of the estimator that was saved.

    Raises
    ------
    ValueError
        If the file is damaged, was changed, is of another kind, or names a class that is not known.

    See Also
    --------
    save : Writes the file.

    Examples
    --------
    >>> from skdml.io import load
    >>> model = load("model.safetensors")  # doctest: +SKIP
    """
    safetensors = optional_import("safetensors", "skdml.io.load")
    own = _own_networks(module)
    arrays: dict[str, NDArray] = {}
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        with safetensors.safe_open(os.fspath(path), framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("skdml", "null"))
            if isinstance(header, dict) and header.get("format") == FORMAT:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no complete file of safetensors: {error}.") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path} was not written by skdml.io.save.")
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {header.get('format')} and was written by skdml "
            f"{header.get('version')}; this is skdml {__version__}, which reads format {FORMAT}."
        )
    content = str(header.get("content"))
    if header.get("sha256") != _digest(content, arrays):
        raise ValueError(f"{path} is damaged or was changed: its checksum is another one.")
    return _decode(content, arrays, own, path)


class PlainModel:
    """An estimator as text and arrays, for tools that cannot store its networks, such as skops.

    Parameters
    ----------
    estimator : estimator or VectorIndex
        One of this package, with what it has learned.

    Attributes
    ----------
    content : str
        Parameters and structure, as JSON.
    arrays : dict of str to ndarray
        Arrays, and weights of networks.

    See Also
    --------
    save : The same in a file, without another tool.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skdml import GMMLTransformer
    >>> from skdml.io import PlainModel
    >>> X, y = load_iris(return_X_y=True)
    >>> model = GMMLTransformer(geodesic=0.5).fit(X, y)
    >>> PlainModel(model).restore()
    GMMLTransformer(geodesic=0.5)
    """

    def __init__(self, estimator: Any) -> None:
        self.content, self.arrays = _encode(estimator)

    def restore(self, *, module: Any = None) -> Any:
        """Return the estimator; nothing that the content says is called.

        Parameters
        ----------
        module : class or list of classes, default=None
            Networks of your own, as in `load`.

        Returns
        -------
        estimator : estimator or VectorIndex
            Its outputs equal those of the estimator that was given.
        """
        return _decode(self.content, self.arrays, _own_networks(module), "This PlainModel")


def _encode(estimator: Any) -> tuple[str, dict[str, NDArray]]:
    name = name_of_class(estimator)
    if name is None:
        raise TypeError(f"estimator must be an estimator of skdml, got {estimator!r}.")
    encoder = Encoder()
    return json.dumps(encoder.encode(estimator, name), allow_nan=False), encoder.arrays


def _decode(content: str, arrays: dict[str, NDArray], own: dict[str, type], path: Any) -> Any:
    try:
        found = Decoder(arrays, own).decode(json.loads(content))
    except UnknownNetwork as error:
        raise ValueError(
            f"{path} has the network {error}, which is not of skdml or torch.nn: give its class to "
            "load, as module=..."
        ) from None
    except ImportError:
        raise
    except Exception as error:  # whatever wrong content leads to
        raise ValueError(f"{path} does not describe an estimator: {error!r}.") from error
    if name_of_class(found) is None:
        raise ValueError(f"{path} does not describe an estimator.")
    return found


def _own_networks(module: Any) -> dict[str, type]:
    if module is None:
        return {}
    classes = list(module) if isinstance(module, Iterable) else [module]
    if not all(isinstance(cls, type) for cls in classes):
        raise TypeError(f"module must be a class or a list of classes, got {module!r}.")
    return {cls.__qualname__: cls for cls in classes}


def _digest(content: str, arrays: dict[str, NDArray]) -> str:
    digest = hashlib.sha256(content.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
