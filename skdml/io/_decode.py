"""From plain data and arrays back to an estimator: the way back of `_encode.py`.

Objects are made without their constructor and get their attributes from the file. Nothing that the
file says is called.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.neighbors import KNeighborsClassifier

from ._encode import MODULE_STATE
from ._registry import find_class, find_network


class LoadedNet:
    """Stands in `net_` for the net of a training, of which a file has the network alone."""

    def __init__(self, module: Any, device: str) -> None:
        self.module_, self.device = module, device

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"net_.{name} is not there: this estimator was loaded, and optimizer, loss and history "
            "of its training are not stored."
        )


class Decoder:
    """Decodes values.

    Parameters
    ----------
    arrays : dict
        The tensors of the file.
    own : dict of str to class
        Networks of the caller, by name.
    """

    def __init__(self, arrays: dict[str, NDArray], own: dict[str, type]) -> None:
        self._arrays, self._own = arrays, own
        self._seen: dict[int, Any] = {}

    def decode(self, value: Any) -> Any:
        """Return the value that plain data stands for."""
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "same":
            return self._seen[content]
        return getattr(self, f"_decode_{kind}")(content)

    def _decode_float(self, content):
        return float(content)

    def _decode_tuple(self, content):
        return tuple(self.decode(content))

    def _decode_set(self, content):
        return set(self.decode(content))

    def _decode_frozenset(self, content):
        return frozenset(self.decode(content))

    def _decode_slice(self, content):
        return slice(*self.decode(content))

    def _decode_dict(self, content):
        return {self.decode(key): self.decode(item) for key, item in content}

    def _decode_dtype(self, content):
        return np.dtype(content)

    def _decode_scalar(self, content):
        return self._decode_array(content)[()]

    def _decode_array(self, content):
        dtype, second, third = np.dtype(content[0]), content[1], content[2]
        if dtype.kind in "USO":
            array = np.empty(len(third), dtype=dtype)
            array[:] = self.decode(third)
            return array.reshape(second)
        array = self._arrays[third]
        if dtype.kind in "mM":
            array = array.view(dtype)
        if array.dtype.newbyteorder("=") != dtype.newbyteorder("="):
            raise ValueError(f"{third} is of dtype {array.dtype}, not {dtype}")
        return array.T if second == "F" else array

    def _decode_csr_matrix(self, content, cls=sparse.csr_matrix):
        parts = [self._decode_array(part) for part in content[1:]]
        rows = cls(tuple(parts), shape=tuple(content[0]))
        rows.check_format(full_check=True)
        return rows

    def _decode_csr_array(self, content):
        return self._decode_csr_matrix(content, sparse.csr_array)

    def _decode_object(self, content):
        number, name, state = content
        cls: Any = find_class(name)
        found = self._seen[number] = cls.__new__(cls)
        found.__dict__.update(self._attributes(state))
        if name == "DeepMetricEmbedder" and "module_" in vars(found):
            from ..utils._torch import choose_device

            found.net_ = LoadedNet(found.module_, choose_device(found.device))
            found.module_.to(found.net_.device)
        if name == "VectorIndex":
            found.__setstate__({})
            found._check_parameters()
        if hasattr(found, "_validate_params"):
            found._validate_params()
        return found

    def _attributes(self, items):
        state = {key: self.decode(item) for key, item in items}
        for key in state:
            if not isinstance(key, str) or key.startswith("__"):
                raise ValueError(f"{key!r} is no attribute")
        return state

    def _decode_neighbors(self, content):
        number, params, rows, labels = content
        neighbors = KNeighborsClassifier(**self._attributes(params))
        neighbors.fit(self._decode_array(rows), self._decode_array(labels))
        self._seen[number] = neighbors
        return neighbors

    def _decode_class(self, content):
        number, name = content
        found = self._seen[number] = self._network_class(name)
        return found

    def _network_class(self, name):
        try:
            return find_network(name, self._own)
        except LookupError:
            raise UnknownNetwork(name) from None

    def _decode_device(self, content):
        found = self._seen[content[0]] = importlib.import_module("torch").device(content[1])
        return found

    def _decode_tensor(self, content):
        torch = importlib.import_module("torch")
        number, kind, is_parameter, requires_grad, strides, array = content
        tensor = torch.from_numpy(np.array(self._decode_array(array)))
        if strides is not None:
            if sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True)) >= max(
                tensor.numel(), 1
            ):
                raise ValueError(f"strides {strides} are not of shape {tuple(tensor.shape)}")
            tensor = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
        if kind == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        if is_parameter:
            tensor = torch.nn.Parameter(tensor, requires_grad=requires_grad)
        self._seen[number] = tensor
        return tensor

    def _decode_network(self, content):
        torch = importlib.import_module("torch")
        number, name, plain, *parts, not_persistent = content
        cls = self._network_class(name)
        found = self._seen[number] = cls.__new__(cls)
        torch.nn.Module.__init__(found)
        for key, item in self._attributes(plain).items():
            if key in MODULE_STATE or "_hooks" in key:
                raise ValueError(f"{key!r} is no attribute of a network")
            found.__dict__[key] = item
        kinds = torch.nn.Parameter, torch.Tensor, torch.nn.Module
        for field, part, kind in zip(
            ("_parameters", "_buffers", "_modules"), parts, kinds, strict=True
        ):
            values = self._attributes(part)
            if not all(value is None or isinstance(value, kind) for value in values.values()):
                raise TypeError(f"{field[1:]} of {name} must be of {kind.__name__}")
            found.__dict__[field].update(values)
        found._non_persistent_buffers_set.update(not_persistent)
        return found


class UnknownNetwork(ValueError):
    """A class that is neither of this package, nor of torch.nn, nor given."""
