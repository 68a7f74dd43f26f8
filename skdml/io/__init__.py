"""Fitted estimators as files: safetensors and JSON, and export to ONNX."""

from __future__ import annotations

from ._onnx import register_onnx_converters, to_onnx
from ._registry import SKOPS_TRUSTED
from ._store import load, save

__all__ = ["SKOPS_TRUSTED", "load", "register_onnx_converters", "save", "to_onnx"]
