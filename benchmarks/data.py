"""Real data sets of the benchmarks and tests, read from a folder; nothing is downloaded.

The folder is named by the environment variable ``SKDML_DATA``, by default ``~/skdml_data``. Each
set is in a folder of its own below it; ``SOURCES`` says where the files come from. All loaders
return ``(X, y)``, that of LETOR ``(X, y, qid)``.
"""

import os
from pathlib import Path

import numpy as np

from skdml.datasets import read_idx, read_letor, read_npz

LETOR_PAGE = "microsoft.com/en-us/research/project/letor-learning-rank-information-retrieval"
LETOR_FEATURES = {"mq2008": 46, "ohsumed": 45}
N_FOLDS = 5
# Which of the parts S1 to S5 a subset takes, counted from the fold's own number.
FOLD_PARTS = {"train": (0, 1, 2), "validation": (3,), "test": (4,)}

# Folder -> what users have to get, and in which form.
SOURCES = {
    "mnist": "the MNIST files from yann.lecun.com/exdb/mnist",
    "fashion_mnist": "the Fashion-MNIST files from github.com/zalandoresearch/fashion-mnist",
    "usps": "zip.train and zip.test from hastie.su.domains/ElemStatLearn, and write X_train, "
    "y_train, X_test and y_test, pixels in [0, 1], with numpy.savez",
    "omniglot": "the images from github.com/brendenlake/omniglot, and write images28 (uint8, of "
    "shape (n_samples, 28, 28), 255 for ink), character (the class), alphabet and train (bool: "
    "alphabets to train on) with numpy.savez",
    "images": "pictures of CIFAR-100 from cs.toronto.edu/~kriz/cifar.html, and write X (uint8, of "
    "shape (n_samples, 32, 32, 3)) and y with numpy.savez",
    "letor_mq2008": f"S1.txt to S5.txt of MQ2008 (supervised ranking) from {LETOR_PAGE}",
    "letor_ohsumed": f"S1.txt to S5.txt of OHSUMED (query-level normalised) from {LETOR_PAGE}",
    "microarray": "the set from github.com/ramhiser/datamicroarray, and write X and y with "
    "numpy.savez",
    "cub_features": "the images from vision.caltech.edu/datasets/cub_200_2011, compute features "
    "of ten classes with a pretrained network, and write X_train, y_train, X_test and y_test with "
    "numpy.savez",
    "embeddings": "the pictures from vision.caltech.edu/datasets/cub_200_2011 or the sentences of "
    "banking77 from github.com/PolyAI-LDN/task-specific-datasets, compute vectors with a "
    "pretrained network, and write X, y and, where X is to be multiplied, scale with numpy.savez",
    "tables": "adult, credit_default or shuttle from archive.ics.uci.edu, or diamonds from the R "
    "package ggplot2, and write it with a header to tab_NAME.csv.gz",
    "uci": "the set from archive.ics.uci.edu, and write X and y with numpy.savez",
}


def data_home():
    """Return the folder of the data sets; it need not exist."""
    return Path(os.environ.get("SKDML_DATA") or "~/skdml_data").expanduser()


def locate(folder, *names):
    """Return the first of the named files that exists; if none does, say where to get it."""
    place = data_home() / folder
    for name in names:
        if (place / name).is_file():
            return place / name
    raise FileNotFoundError(
        f"{' or '.join(names)} was not found in the folder {place}. Nothing is downloaded: get "
        f"{SOURCES[folder]}, and put the file into that folder. If it is elsewhere, set the "
        f"environment variable SKDML_DATA to the folder that contains {folder}/."
    )


def load_mnist(subset, folder="mnist"):
    """Return images of 28 x 28 pixels in [0, 1] as rows; `subset` is "train" or "test"."""
    prefix = {"train": "train", "test": "t10k"}[subset]

    def read(kind, shape):
        name = f"{prefix}-{kind}-ubyte"
        path = locate(folder, f"{name}.gz", name)
        array = read_idx(path)
        if array.ndim == 0 or array.shape[1:] != shape:
            raise ValueError(
                f"{path} has an array of shape {array.shape}, not (n_samples, *{shape})"
            )
        return array

    y = read("labels-idx1", ()).astype(np.int64)
    images = read("images-idx3", (28, 28))
    if len(images) != len(y):
        raise ValueError(f"{folder}: {len(images)} images and {len(y)} labels; get all files again")
    return _unit_interval(images), y


def load_fashion_mnist(subset):
    """Return clothes of 10 classes, in the format of `load_mnist`."""
    return load_mnist(subset, "fashion_mnist")


def load_colour_images(subset):
    """Return 4,000 pictures of CIFAR-100 as rows of 3 x 32 x 32 in [0, 1]; "test" has a quarter."""
    path = locate("images", "cifar100_raw.npz")
    X, y = read_npz(path, ("X", "y")).values()
    chosen = (np.arange(len(X)) % 4 == 0) == (subset == "test")
    return _unit_interval(X[chosen].transpose(0, 3, 1, 2)), y[chosen].astype(np.int64)


def load_omniglot(subset, labels="character"):
    """Return drawings of 28 x 28 pixels in [0, 1] as rows, and their characters or alphabets.

    "train" has 136 characters of 5 alphabets, "test" 106 characters of 3 others.
    """
    path = locate("omniglot", "omniglot.npz")
    arrays = read_npz(path, ("images28", labels, "train"))
    if arrays.images28.shape != (len(arrays.train), 28, 28):
        raise ValueError(f"{path} has images28 of shape {arrays.images28.shape}")
    chosen = {"train": arrays.train, "test": ~arrays.train}[subset]
    codes = np.unique(getattr(arrays, labels), return_inverse=True)[1]
    return _unit_interval(arrays.images28[chosen]), codes[chosen]


def load_usps(subset):
    """Return digits of 16 x 16 pixels in [0, 1] as rows."""
    return _load_npz("usps", "usps", f"_{subset}")


def load_cub_features(subset):
    """Return 1,024 deep features of pictures of ten kinds of birds."""
    return _load_npz("cub_features", "cub10", f"_{subset}")


def load_embeddings(name):
    """Return vectors of a pretrained network, and classes from 0.

    Parameters
    ----------
    name : {"cub200_mnv2", "text_banking77_minilm"}
        11,788 pictures of 200 kinds of birds with 1,280 features, or 13,083 questions to a bank of
        77 kinds with 384.
    """
    X, y = _load_npz("embeddings", name)
    with np.load(locate("embeddings", f"{name}.npz")) as arrays:
        scale = arrays.get("scale", 1)
    return np.multiply(X, scale, dtype=np.float32), y


def load_graded_pairs():
    """Return pairs of sentences of the STS benchmark, with a grade of their similarity.

    Returns
    -------
    X : array of shape (9010, 384)
        Vectors of the sentences by a pretrained network.
    pairs : array of shape (4879, 2)
        Rows of X.
    grades : array of shape (4879,)
        From 0 to 5.
    split : array of shape (4879,)
        "train", "dev" or "test".
    """
    path = locate("embeddings", "pairs_stsb_minilm.npz")
    X, pairs, grades, split = read_npz(path, ("X", "pairs", "y", "split")).values()
    return X.astype(np.float32), pairs.astype(np.int64), grades.astype(np.float64), split


def load_uci(name):
    """Return a classification set of the UCI repository, not scaled.

    The first three features of "vowel" are not measurements: they tell whether the sample was for
    training, who spoke, and the speaker's sex.
    """
    return _load_npz("uci", name)


def load_table(name):
    """Return a pandas frame: "adult", "diamonds", "credit_default" or "shuttle"."""
    import pandas

    return pandas.read_csv(locate("tables", f"tab_{name}.csv.gz"))


def load_microarray(name):
    """Return a gene-expression set: 50 to 181 samples, 2,000 to 22,283 features."""
    return _load_npz("microarray", name)


def load_letor(name, fold, subset):
    """Return documents, relevance and query ids of a part of a published fold.

    Fold i trains on the parts Si, Si+1 and Si+2, validates on Si+3 and tests on Si+4, where S1
    follows S5. The subset "all" is all five parts, whatever the fold.

    Parameters
    ----------
    name : {"mq2008", "ohsumed"}
        The set.
    fold : int
        1 to 5.
    subset : {"train", "validation", "test", "all"}
        The part of the fold.
    """
    steps = range(1 - fold, 1 - fold + N_FOLDS) if subset == "all" else FOLD_PARTS[subset]
    parts = [(fold - 1 + step) % N_FOLDS + 1 for step in steps]
    folder = f"letor_{name}"
    paths = [locate(folder, f"S{part}.txt", f"S{part}.txt.gz") for part in parts]
    return read_letor(paths, n_features=LETOR_FEATURES[name])


def _load_npz(folder, name, end=""):
    path = locate(folder, f"{name}.npz")
    X, y = read_npz(path, (f"X{end}", f"y{end}")).values()
    if X.ndim != 2 or y.shape != (len(X),):
        raise ValueError(f"{path} has X{end} of shape {X.shape} and y{end} of shape {y.shape}")
    return X, y.astype(np.int64) if y.dtype.kind in "iu" else y


def _unit_interval(images):
    """Return images of bytes as rows of numbers from 0 to 1."""
    return np.divide(images, np.float32(255), dtype=np.float32).reshape(len(images), -1)
