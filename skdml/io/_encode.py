"""From a fitted estimator to plain data for JSON, and arrays.

Numbers, strings, None and lists stand for themselves. Anything else is a list in a dict with one
key that says what it is, such as ``{"tuple": [...]}``; `_decode.py` has the way back.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.neighbors import KNeighborsClassifier

from ._registry import name_of_class, name_of_network

# What torch.nn.Module has for itself: hooks, which are code, and the parts that are stored by name.
MODULE_STATE = {
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_is_full_backward_hook",
}
ARRAY_KINDS = "biuf"


class Encoder:
    """Encodes values; `arrays` fills with what goes into tensors."""

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray] = {}
        self._seen: dict[int, tuple[int, Any]] = {}

    def encode(self, value: Any, where: str) -> Any:
        """Return a value as plain data; `where` names it in errors."""
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if type(value) is list:
            return [self.encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
        if type(value) in (tuple, set, frozenset):
            name, items = type(value).__name__, value if type(value) is tuple else sorted(value)
            return {name: [self.encode(item, f"{where}[{i}]") for i, item in enumerate(items)]}
        if type(value) is dict:
            return {"dict": self._items(value, where)}
        if type(value) is slice:
            parts = value.start, value.stop, value.step
            return {"slice": [self.encode(part, where) for part in parts]}
        if isinstance(value, np.dtype):
            return {"dtype": self._dtype(value, where)}
        if isinstance(value, np.generic):
            return {"scalar": self._array(np.asarray(value), where)}
        if type(value) is np.ndarray or type(value) is np.memmap:
            return {"array": self._array(np.asarray(value), where)}
        if sparse.issparse(value):
            rows = value.tocsr()
            parts = rows.data, rows.indices, rows.indptr
            kind = "csr_matrix" if sparse.isspmatrix(value) else "csr_array"
            return {kind: [list(value.shape), *(self._array(part, where) for part in parts)]}
        return self._shared(value, where)

    def _items(self, mapping, where):
        return [
            [self.encode(key, where), self.encode(item, f"{where}.{key}")]
            for key, item in mapping.items()
        ]

    def _dtype(self, dtype, where):
        if dtype.kind not in ARRAY_KINDS + "USMmO":
            raise TypeError(f"{where} has the dtype {dtype}, which cannot be stored.")
        return dtype.newbyteorder("<").str if dtype.byteorder == ">" else dtype.str

    def _array(self, array, where):
        """Return what an array is made of: its dtype, its shape and its values."""
        dtype = self._dtype(array.dtype, where)
        if array.dtype.kind in "USO":
            values = [self.encode(item, where) for item in array.ravel().tolist()]
            return [dtype, list(array.shape), values]
        # The order in memory decides the order of sums in products, so it is kept.
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        array = array.T if order == "F" else array
        if array.dtype.kind in "mM":
            array = array.view(np.int64)
        if array.dtype.kind == "f" and array.dtype.itemsize > 8:
            raise TypeError(f"{where} has the dtype {array.dtype}, which cannot be stored.")
        name = f"{len(self.arrays)}:{where}"
        shape = list(array.shape)  # of 0 dimensions too, which ascontiguousarray makes 1
        array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
        self.arrays[name] = array.reshape(shape)
        return [dtype, order, name]

    def _shared(self, value, where):
        """Encode an object once, and its later occurrences by a number."""
        if id(value) in self._seen:
            return {"same": self._seen[id(value)][0]}
        number = len(self._seen)
        self._seen[id(value)] = (number, value)  # kept, so that no other gets its id
        kind, content = self._object(value, where)
        return {kind: [number, *content]}

    def _object(self, value, where):
        name = name_of_class(value)
        if name is not None:
            return "object", [name, self._state(value, name, where)]
        if type(value) is KNeighborsClassifier:
            arrays = value._fit_X, value.classes_[value._y]
            params = self._items(value.get_params(deep=False), where)
            return "neighbors", [params, *(self._array(array, where) for array in arrays)]
        torch = sys.modules.get("torch")
        if torch is not None:
            if isinstance(value, torch.nn.Module):
                return "network", self._network(value, where)
            if isinstance(value, torch.Tensor):
                return "tensor", self._tensor(value, where)
            if isinstance(value, torch.device):
                return "device", [str(value)]
            if isinstance(value, type) and issubclass(
                value, torch.nn.Module | torch.optim.Optimizer
            ):
                return "class", [name_of_network(value)]
        raise TypeError(
            f"{where} is {value!r}, which cannot be stored without code. Set it to a plain value "
            "first (set_params), such as its default or an int for random_state: what a fit has "
            "learned does not change by that."
        )

    def _state(self, value, name, where):
        state = dict(vars(value))
        if name == "DeepMetricEmbedder":
            state.pop("net_", None)  # optimizer, callbacks and loss of the training
        if name == "VectorIndex":
            state = value.__getstate__()
        return self._items(state, where)

    def _network(self, module, where):
        torch = sys.modules["torch"]
        if torch.nn.utils.parametrize.is_parametrized(module):
            raise TypeError(
                f"{where} has parametrized weights: call "
                "torch.nn.utils.parametrize.remove_parametrizations on it first."
            )
        plain = {
            key: item
            for key, item in vars(module).items()
            if key not in MODULE_STATE
            and not key.endswith(("_hooks", "_hooks_with_kwargs"))
            and "_hooks_" not in key
        }
        parts = (plain, module._parameters, module._buffers, module._modules)
        fields = [self._items(dict(part), where) for part in parts]
        return [
            name_of_network(type(module)),
            *fields,
            sorted(module._non_persistent_buffers_set),
        ]

    def _tensor(self, tensor, where):
        torch = sys.modules["torch"]
        kind = str(tensor.dtype).removeprefix("torch.")
        array = tensor.detach().cpu()
        if kind == "bfloat16":
            array = array.view(torch.int16)
        # The order in memory decides the order of sums, here too.
        strides = list(array.stride()) if _is_dense(array) else None
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        values = self._array(array.contiguous().numpy(), where)
        return [kind, is_parameter, tensor.requires_grad, strides, values]


def _is_dense(tensor: Any) -> bool:
    """Tell whether the elements of a tensor fill a range of memory without gaps or overlaps."""
    order = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    extent = 1
    for stride, size in order:
        if size != 1 and stride != extent:
            return False
        extent *= size
    return True
