"""What a page of `explore` holds: arrays, columns, pictures and texts, as JSON."""

from __future__ import annotations

import base64
import math
import os
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..utils.validation import as_array, check_vector

# Most cells of a table, and most bytes of pictures, that a page holds.
MAX_CELLS = 8_000_000
MAX_IMAGE_BYTES = 24 * 2**20
MAX_TEXT = 500
# A cell is stored as one of so many steps of its column; the one after them is a missing cell.
_STEPS = 65_534
_MISSING = 65_535
_PICTURES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}


def pack(array: NDArray, dtype: str) -> dict[str, str]:
    """Return an array as compressed bytes in base64, with their type."""
    content = np.ascontiguousarray(array, dtype=np.dtype(dtype).newbyteorder("<")).tobytes()
    return {"type": dtype, "data": base64.b64encode(zlib.compress(content, 4)).decode("ascii")}


def unpack(block: dict[str, str]) -> NDArray:
    """Return the numbers of a packed array, in one dimension."""
    dtype = np.dtype(block["type"]).newbyteorder("<")
    return np.frombuffer(zlib.decompress(base64.b64decode(block["data"])), dtype)


# Columns


def read_columns(X: Any, names: Sequence[str] | None) -> tuple[list[str], list[NDArray]]:
    """Return the names and the columns of a frame or of a table."""
    if hasattr(X, "columns"):
        columns = [np.asarray(X[label]) for label in X.columns]
        found = [str(label) for label in X.columns]
    else:
        array = np.asarray(X) if not hasattr(X, "toarray") else X.toarray()
        if array.ndim != 2:
            raise ValueError(f"X must have rows and columns, got shape {array.shape}.")
        columns, found = list(array.T), [f"feature {j}" for j in range(array.shape[1])]
    if names is None:
        return found, columns
    names = list(names)
    if len(names) != len(columns):
        raise ValueError(
            f"feature_names must have one name for each of the {len(columns)} columns of X, got "
            f"{len(names)}."
        )
    return [str(name) for name in names], columns


def pack_columns(names: list[str], columns: list[NDArray]) -> dict[str, Any]:
    """Return columns as steps of 16 bits, row by row, and what the steps of each one mean."""
    cells = np.empty((len(columns[0]), len(columns)), dtype=np.uint16)
    meanings = []
    for j, (name, column) in enumerate(zip(names, columns, strict=True)):
        cells[:, j], meaning = _pack_column(column)
        meanings.append({"name": name, **meaning})
    return {"columns": meanings, "cells": pack(cells, "uint16")}


def _pack_column(column):
    kind = "number"
    if column.dtype.kind == "M":
        column, kind = column.astype("datetime64[ms]"), "date"
        column = np.where(np.isnat(column), np.nan, column.astype(np.int64).astype(float))
    try:
        values = column.astype(float) if column.dtype.kind != "b" else None
    except (TypeError, ValueError):
        values = None
    if values is None:
        return _pack_categories(column)
    known = np.isfinite(values)
    low = float(values[known].min()) if known.any() else 0.0
    high = float(values[known].max()) if known.any() else 0.0
    whole = kind == "number" and bool((values[known] == np.round(values[known])).all())
    step = 1.0 if whole and high - low <= _STEPS else (high - low) / _STEPS or 1.0
    steps = np.full(len(values), _MISSING, dtype=np.uint16)
    steps[known] = np.round((values[known] - low) / step)
    return steps, {"kind": kind, "low": low, "step": step, "whole": whole}


def _pack_categories(column):
    is_missing = np.array([v is None or v != v or str(v) in ("<NA>", "NaT") for v in column])
    texts = np.array([str(value) for value in column], dtype=object)
    labels, codes = np.unique(texts[~is_missing].astype(str), return_inverse=True)
    if len(labels) > _STEPS:
        raise ValueError(f"X has a column of {len(labels)} different texts: pass them as texts=.")
    steps = np.full(len(column), _MISSING, dtype=np.uint16)
    steps[~is_missing] = codes
    return steps, {"kind": "category", "labels": [label[:MAX_TEXT] for label in labels.tolist()]}


# Pictures, texts, labels


def pack_texts(texts: Any, n_rows: int) -> list[str]:
    """Return one text for each row, of which long ones are cut."""
    if isinstance(texts, str):
        raise TypeError("texts must be a list with one text for each row, got one text.")
    texts = list(texts)
    if len(texts) != n_rows:
        raise ValueError(f"texts must have one entry for each of {n_rows} rows, got {len(texts)}.")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts must hold strings, got {text!r} for row {i}.")
    return [text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…" for text in texts]


def pack_images(images: Any, n_rows: int) -> dict[str, Any]:
    """Return pictures of the rows: pixels, or files as they are."""
    if isinstance(images, Sequence) and images and isinstance(images[0], (str, os.PathLike)):
        return _pack_files(images, n_rows)
    try:
        pixels = np.asarray(images)
    except ValueError as error:
        raise ValueError(f"images must all have the same shape: {error}") from error
    if pixels.dtype.kind not in "buif" or pixels.ndim not in (3, 4):
        raise ValueError(
            "images must be numbers of shape (n_rows, height, width[, 3]), "
            f"or paths of files; got {pixels.shape} of {pixels.dtype}."
        )
    if len(pixels) != n_rows:
        raise ValueError(f"images must be one for each of {n_rows} rows, got {len(pixels)}.")
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    elif pixels.shape[1] in (1, 3) and pixels.shape[3] not in (1, 3):  # channels first
        pixels = pixels.transpose(0, 2, 3, 1)
    if pixels.shape[3] not in (1, 3):
        raise ValueError(f"images must have 1 or 3 channels, got shape {np.shape(images)}.")
    if not np.isfinite(pixels).all():
        raise ValueError("images must have no NaN and no infinity.")
    pixels = _shrink(pixels)
    if pixels.dtype != np.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        pixels = np.round((pixels - low) * (255 / ((high - low) or 1)))
    _, height, width, channels = pixels.shape
    size = {"height": height, "width": width, "channels": channels}
    return {**size, "pixels": pack(pixels, "uint8")}


def _shrink(pixels):
    """Return pictures small enough for the page: means of squares of pixels."""
    factor = max(1, math.ceil(math.sqrt(pixels.size / MAX_IMAGE_BYTES)))
    if factor == 1:
        return pixels
    n, height, width, channels = pixels.shape
    height, width = height // factor, width // factor
    if min(height, width) < 4:
        raise ValueError(
            f"images of {n} rows need more than {MAX_IMAGE_BYTES // 2**20} MiB: pass fewer rows."
        )
    small = np.empty((n, height, width, channels), dtype=pixels.dtype)
    for start in range(0, n, 1000):
        part = pixels[start : start + 1000, : height * factor, : width * factor]
        blocks = part.reshape(len(part), height, factor, width, factor, channels)
        small[start : start + 1000] = blocks.mean(axis=(2, 4))
    return small


def _pack_files(paths, n_rows):
    if len(paths) != n_rows:
        raise ValueError(f"images must be one for each of {n_rows} rows, got {len(paths)}.")
    urls, size = [], 0
    for path in paths:
        with open(path, "rb") as file:
            content = file.read()
        kind = next((k for start, k in _PICTURES.items() if content.startswith(start)), None)
        if kind is None:
            raise ValueError(f"images: {os.fspath(path)} is no PNG, JPEG, GIF or WebP file.")
        size += len(content)
        if size > MAX_IMAGE_BYTES:
            raise ValueError(
                f"images: the files have more than {MAX_IMAGE_BYTES // 2**20} MiB. Pass fewer "
                "rows, or small pictures as an array."
            )
        urls.append(f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}")
    return {"urls": urls}


def pack_labels(y: ArrayLike | None, n_rows: int, is_partly: bool, name: str = "y") -> Any:
    """Return classes and the number of each row's class, or numbers; -1 is no class."""
    if y is None:
        return None
    labels = check_vector(y, name, n_rows)
    if labels.dtype.kind == "f" and not (labels == np.round(labels)).all():
        if not np.isfinite(labels).all():
            raise ValueError(f"{name} must have no NaN and no infinity.")
        return {"values": pack(np.clip(labels, -3e38, 3e38), "float32")}
    if any(isinstance(label, (list, tuple, dict, set, np.ndarray, np.void)) for label in labels):
        raise TypeError(f"{name} must hold classes or numbers, one for each row.")
    has_none = np.array([label is None or label != label for label in labels])
    if is_partly:
        has_none |= np.asarray(labels == -1, dtype=bool)
    known = as_array(labels[~has_none].tolist())
    try:
        classes, codes = np.unique(known, return_inverse=True)
    except TypeError:  # numbers and texts
        classes, codes = np.unique(known.astype(str), return_inverse=True)
    numbers = np.full(n_rows, -1, dtype=np.int32)
    numbers[~has_none] = codes
    names = [str(label)[:MAX_TEXT] for label in classes.tolist()]
    return {"classes": names, "codes": pack(numbers, "int32")}
