"""Data sets for the leaderboard: whatever lies in a folder, in plain layouts.

A set is one file, or one folder, anywhere below the folder that is given:

- ``NAME.npz`` with X and y, or X_train, y_train, X_test and y_test, which are put together; with
  qid it is a set for ranking. X may be images, (n, height, width[, channels]). A number `scale`
  multiplies X.
- ``NAME.csv`` or ``NAME.csv.gz``, a table with a header. The target is the column "target",
  "class" or "label", in any case, or that of `TARGETS`, or the last.
- A folder with parts of LETOR, ``S1.txt`` and so on (also ``.gz``), or with images in the idx
  format of MNIST.

Files of other layouts are passed over, with a line that says so. Folders called `RESERVE` are not
opened unless they are named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from skdml.datasets import read_idx, read_letor

RESERVE = "reserve"
TARGETS = {"adult": "income", "diamonds": "price"}
TARGET_NAMES = ("target", "class", "label")
# Whole numbers with more values, few rows of each, are no classes.
MOST_CLASSES = 150
# A set with as many classes is searched among unseen classes.
MANY_CLASSES = 50
# Numbers with as many values are no classes.
MOST_VALUES = 30


@dataclass
class DataSet:
    """Rows with a target, of a kind: "classes", "many classes", "numbers" or "ranking"."""

    name: str
    kind: str
    X: Any  # an array, of images too, or a frame
    y: np.ndarray
    qid: np.ndarray | None = None

    @property
    def n_features(self) -> int:
        """Return the columns of a table, or the values of an image."""
        return int(np.prod(self.X.shape[1:]))


def find_sets(
    home: Path, folders: Sequence[str] | None = None, say: Callable[[str], None] = print
) -> Iterator[tuple[str, Callable[[], DataSet | None]]]:
    """Yield the name of every set below `home`, and a function that loads it.

    Parameters
    ----------
    home : Path
        The folder.
    folders : sequence of str, default=None
        Folders below it; None takes all, and files beside them, but not a folder called `RESERVE`.
    say : callable, default=print
        Gets a line for every file that is passed over.
    """
    home = Path(home)
    if folders is not None:
        missing = [name for name in folders if not (home / name).is_dir()]
        if missing:
            raise SystemExit(f"--folders: {', '.join(missing)} not in {home}")
        starts = [home / name for name in folders]
    else:
        if not home.is_dir():
            raise SystemExit(f"the folder of data sets, {home}, is not there; set SKDML_DATA")
        entries = sorted(home.iterdir())
        yield from _in_folder(home, [path for path in entries if path.is_file()], say)
        starts = [path for path in entries if path.is_dir() and path.name != RESERVE]
    for start in starts:
        yield from _below(start, say)


def _below(folder, say):
    entries = sorted(folder.iterdir())
    yield from _in_folder(folder, [path for path in entries if path.is_file()], say)
    for path in entries:
        if path.is_dir() and path.name != RESERVE:
            yield from _below(path, say)


def _in_folder(folder, files, say):
    plain = {path.name.removesuffix(".gz"): path for path in files}
    parts = [path for name, path in plain.items() if name[:1] == "S" and name[1:-4].isdigit()]
    if parts:
        yield folder.name, partial(_read_letor, folder.name, parts)
        return
    idx = {name: path for name, path in plain.items() if name.endswith("-ubyte")}
    if idx:
        yield folder.name, partial(_read_idx_folder, folder.name, idx)
        return
    for name, path in plain.items():
        stem = Path(name).stem.removeprefix("tab_").removeprefix("ltr_")
        if name.endswith(".npz"):
            yield stem, partial(_read_npz, stem, path, say)
        elif name.endswith(".csv"):
            yield stem, partial(_read_frame, stem, path)
        elif not name.endswith((".md", ".txt")):
            say(f"{path}: not a layout that is known")


def kind_of(y: np.ndarray) -> str:
    """Tell what a target is: "numbers", "classes" or "many classes"."""
    values, counts = np.unique(y, return_counts=True)
    if y.dtype.kind == "f" and (len(values) > MOST_VALUES or (values != values.round()).any()):
        return "numbers"
    if y.dtype.kind in "iu" and len(values) > MOST_CLASSES and np.median(counts) < 4:
        return "numbers"
    return "many classes" if len(values) >= MANY_CLASSES else "classes"


def _read_npz(name, path, say):
    with np.load(path, allow_pickle=False) as arrays:
        keys = set(arrays.files)
        if {"images28", "character"} <= keys:  # Omniglot
            X, y, qid = arrays["images28"], arrays["character"], None
        elif {"X", "y"} <= keys and not {"pairs"} & keys:
            X, y = arrays["X"], arrays["y"]
            qid = arrays["qid"] if "qid" in keys else None
        elif {"X_train", "y_train", "X_test", "y_test"} <= keys:
            X, y = (np.concatenate([arrays[f"{key}_train"], arrays[f"{key}_test"]]) for key in "Xy")
            qid = None
        else:
            say(f"{path}: has {', '.join(sorted(keys))}; X and y are needed")
            return None
        scale = arrays["scale"] if "scale" in keys else 1
    if X.ndim not in (2, 3, 4) or y.shape != (len(X),):
        say(f"{path}: X of shape {X.shape} and y of shape {y.shape}")
        return None
    images = X.ndim > 2
    X = np.multiply(X, 1 / 255 if images and X.dtype == np.uint8 else scale, dtype=np.float32)
    if X.ndim == 3:
        X = X[:, None]
    elif X.ndim == 4:
        X = X.transpose(0, 3, 1, 2)
    if qid is not None:
        order = np.argsort(qid, kind="stable")
        return DataSet(name, "ranking", X[order], y[order], qid[order])
    return DataSet(name, kind_of(y), X, y)


def _read_frame(name, path):
    import pandas

    frame = pandas.read_csv(path)
    own = [column for column in frame if str(column).lower() in TARGET_NAMES]
    target = TARGETS.get(name) or (own[0] if own else frame.columns[-1])
    frame = frame[frame[target].notna()]
    y = frame[target].to_numpy()
    y = y if y.dtype.kind in "iuf" else y.astype(str)
    if y.dtype.kind in "iu" and len(np.unique(y)) > MOST_VALUES:
        y = y.astype(float)  # amounts
    return DataSet(name, kind_of(y), frame.drop(columns=target), y)


def _read_letor(name, parts):
    X, y, qid = read_letor(sorted(parts))
    return DataSet(name, "ranking", np.asarray(X), y, qid)


def _read_idx_folder(name, files):
    images = sorted(path for file, path in files.items() if "images-idx3" in file)
    labels = sorted(path for file, path in files.items() if "labels-idx1" in file)
    X = np.concatenate([read_idx(path) for path in images])
    y = np.concatenate([read_idx(path) for path in labels]).astype(np.int64)
    X = np.divide(X[:, None], 255, dtype=np.float32)
    return DataSet(name, kind_of(y), X, y)
