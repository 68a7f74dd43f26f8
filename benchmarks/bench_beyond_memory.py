"""A network trained from a file of 40 GB by two ranks: memory of each process, and unseen classes.

The file is made on disk (``--gigabytes``, in ``--folder``) and removed afterwards. The same
training from a smaller file and from memory shows that nothing else changes.
"""

import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil

from benchmarks.harness import Column, Report, Target, progress
from skdml import DeepMetricEmbedder
from skdml.metrics import recall_at_k

REPEATS = 1
N_FEATURES, N_INFORMATIVE = 10_240, 64
N_CLASSES, N_UNSEEN, UNSEEN_ROWS = 1_000, 100, 40
BLOCK = 4_096
RANKS = 2
SMALL = 1.0  # gigabytes of the comparison with memory


def add_arguments(parser):
    parser.add_argument("--gigabytes", type=float, default=40.0, help="size of the file")
    parser.add_argument("--folder", default=None, help="where the file goes")


class Source:
    """Rows of classes that differ in a few directions, made block by block."""

    def __init__(self, n_features, seed=0):
        rng = np.random.default_rng(seed)
        n_classes = N_CLASSES + N_UNSEEN
        maps = rng.standard_normal((N_INFORMATIVE, n_features), dtype=np.float32)
        self.centers = rng.standard_normal((n_classes, N_INFORMATIVE), dtype=np.float32) @ maps / 20
        self.noise = rng.standard_normal((BLOCK, n_features), dtype=np.float32)
        self.rng = rng

    def rows(self, labels):
        order = self.rng.integers(0, BLOCK, len(labels))
        noise = np.roll(self.noise[order], int(self.rng.integers(self.noise.shape[1])), axis=1)
        return noise + self.centers[labels]


def make_file(path, gigabytes, source):
    """Write rows of the first classes, and return their labels."""
    n_features = source.noise.shape[1]
    n_rows = max(4 * N_CLASSES, round(gigabytes * 1e9 / (4 * n_features)))
    labels = np.arange(n_rows) % N_CLASSES
    X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n_rows, n_features))
    offset = X.offset
    del X
    # written, not mapped: pages of a map would count as memory of this process
    with open(path, "r+b") as file:
        file.seek(offset)
        for start in range(0, n_rows, BLOCK):
            file.write(source.rows(labels[start : start + BLOCK]).data)
    return labels


class Watch:
    """The largest resident memory of each child process, twice a second."""

    def __enter__(self):
        self.largest, self._end = {}, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self):
        own = psutil.Process()
        while not self._end.wait(0.5):
            for process in [own, *own.children(recursive=True)]:
                try:
                    size = process.memory_info().rss / 2**20
                except psutil.Error:
                    continue
                self.largest[process.pid] = max(size, self.largest.get(process.pid, 0.0))

    def __exit__(self, *exc_info):
        self._end.set()
        self._thread.join()


def fit(X, labels, unseen, epochs):
    start = time.perf_counter()
    with Watch() as watch:
        model = DeepMetricEmbedder("mlp", n_workers=RANKS, max_epochs=epochs, random_state=0)
        model.fit(X, labels)
    X_unseen, y_unseen = unseen
    return {
        "seconds": time.perf_counter() - start,
        "peak": max(watch.largest.values()),
        "recall": 100 * float(recall_at_k(model.transform(X_unseen), y_unseen, k=1)),
    }


def run(options):
    gigabytes = options.pick(options.extra["gigabytes"], 0.05)
    source = Source(options.pick(N_FEATURES, 512))
    y_unseen = np.repeat(N_CLASSES + np.arange(N_UNSEEN), UNSEEN_ROWS)
    unseen = source.rows(y_unseen), y_unseen
    rows = []
    with tempfile.TemporaryDirectory(dir=options.extra["folder"]) as folder:
        path = Path(folder) / "rows.npy"
        small = options.pick(SMALL, 0.02)
        labels = make_file(path, small, source)
        for name, X in (("in memory", np.load(path)), ("file", np.load(path, mmap_mode="r"))):
            progress(f"{name}, {small:g} GB")
            rows.append({"X": f"{name}, {small:g} GB", **fit(X, labels, unseen, 2)})
            del X
        progress(f"a file of {gigabytes:g} GB")
        labels = make_file(path, gigabytes, source)
        progress(f"file, {gigabytes:g} GB")
        X = np.load(path, mmap_mode="r")
        rows.append({"X": f"file, {gigabytes:g} GB", **fit(X, labels, unseen, 1)})
    raw = 100 * float(recall_at_k(unseen[0], y_unseen, k=1))
    memory, file, large = rows
    return Report(
        name="beyond-memory",
        title=f"training from a file by {RANKS} ranks",
        columns=[
            Column("X", "X"),
            Column("seconds", "fit s", ".0f"),
            Column("peak", "peak MB of a process", ".0f", plot=True),
            Column("recall", "recall@1 of unseen classes", ".2f"),
        ],
        rows=rows,
        targets=[
            Target.at_most(f"{gigabytes:g} GB: peak of a process", 4_000, large["peak"], unit="MB"),
            Target.at_most(
                "recall@1 from memory less that from the file, points",
                1.0,
                abs(memory["recall"] - file["recall"]),
            ),
        ],
        parameters={"raw": raw},
        notes=[
            f"Rows of {source.noise.shape[1]:,} columns and {N_CLASSES:,} classes, float32; one "
            f"epoch of the largest, two of the others. Unseen: {N_UNSEEN} further classes; the "
            f"rows themselves have a recall@1 of {raw:.1f}. The peak is of the resident memory of "
            "any of the processes, with the pages of the file that are resident at that time."
        ],
    )
