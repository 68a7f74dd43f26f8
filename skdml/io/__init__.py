"""Fitted estimators as files: safetensors and JSON, and export to ONNX."""

from __future__ import annotations

from ._store import load, save

__all__ = ["load", "save"]
