"""Fitted estimators as files: safetensors and JSON, and export to ONNX."""

from __future__ import annotations

from ._onnx import register_onnx_converters, to_onnx
from ._registry import skops_trusted_types
from ._store import PlainModel, load, save

__all__ = [
    "PlainModel",
    "load",
    "register_onnx_converters",
    "save",
    "skops_trusted_types",
    "to_onnx",
]
