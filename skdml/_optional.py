"""Optional dependencies: imported where they are used, with a clear error where they are not."""

from __future__ import annotations

import importlib
from types import ModuleType

# What to import -> the extra of this package that installs it.
EXTRAS = {
    "torch": "deep",
    "skorch": "deep",
    "ot": "deep",
    "pytorch_metric_learning": "deep",
    "dask": "distributed",
    "distributed": "distributed",
    "matplotlib": "plot",
    "faiss": "search",
    "hnswlib": "search",
    "usearch": "search",
    "safetensors": "io",
    "skl2onnx": "onnx",
    "onnx": "onnx",
    "onnxscript": "onnx",
}


def optional_import(module: str, user: str) -> ModuleType:
    """Import a module of an extra, or say how to install it.

    Parameters
    ----------
    module : str
        What to import, such as "matplotlib.pyplot".
    user : str
        The part of skdml that needs it, named in the error.

    Returns
    -------
    module : module
        The imported module.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        extra = EXTRAS[package]
        raise ImportError(
            f"{user} needs {package}, which is not installed. Install it with: "
            f'pip install "skdml[{extra}]"'
        ) from error
