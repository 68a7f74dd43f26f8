"""Loaders of the benchmarks' real data: on tiny files, and the facts of the real sets."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from benchmarks import data
from tests.datasets.conftest import idx_bytes

# Every loader with its arguments, the folder and the file it looks for first, and a word of where
# that file comes from.
LOADERS = [
    (data.load_mnist, ("train",), "mnist", "train-labels-idx1-ubyte.gz", "yann.lecun.com"),
    (
        data.load_fashion_mnist,
        ("test",),
        "fashion_mnist",
        "t10k-labels-idx1-ubyte.gz",
        "zalandoresearch",
    ),
    (data.load_letor, ("mq2008", 1, "train"), "letor_mq2008", "S1.txt", "microsoft"),
    (data.load_letor, ("ohsumed", 3, "train"), "letor_ohsumed", "S3.txt", "microsoft"),
    (data.load_omniglot, ("train",), "omniglot", "omniglot.npz", "brendenlake"),
    (data.load_microarray, ("golub",), "microarray", "golub.npz", "datamicroarray"),
    (data.load_cub_features, ("test",), "cub_features", "cub10.npz", "caltech"),
    (
        data.load_embeddings,
        ("cub200_mnv2",),
        "embeddings",
        "cub200_mnv2.npz",
        "caltech",
    ),
    (data.load_uci, ("sonar",), "uci", "sonar.npz", "archive.ics.uci.edu"),
    (data.load_usps, ("train",), "usps", "usps.npz", "ElemStatLearn"),
]
FOLDERS = [folder for _, _, folder, _, _ in LOADERS]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SKDML_DATA", str(tmp_path))
    return tmp_path


def write_idx(path, array):
    path.parent.mkdir(exist_ok=True)
    content = idx_bytes(array, 0x08)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_npz(path, **arrays):
    path.parent.mkdir(exist_ok=True)
    np.savez(path, **arrays)


@pytest.fixture
def tiny_home(home):
    """A few samples of every set."""
    rng = np.random.RandomState(0)

    def split(n_features):
        return {
            "X_train": rng.uniform(size=(4, n_features)).astype(np.float32),
            "y_train": np.array([0, 1, 2, 3], np.int32),
            "X_test": rng.uniform(size=(2, n_features)).astype(np.float32),
            "y_test": np.array([1, 0], np.int32),
        }

    for folder, end in (("mnist", ".gz"), ("fashion_mnist", "")):
        for prefix, n in (("train", 4), ("t10k", 2)):
            images = rng.randint(256, size=(n, 28, 28)).astype(np.uint8)
            images[0, 0, :2] = 0, 255
            write_idx(home / folder / f"{prefix}-images-idx3-ubyte{end}", images)
            labels = np.arange(n, dtype=np.uint8)
            write_idx(home / folder / f"{prefix}-labels-idx1-ubyte{end}", labels)
    for name, end in (("mq2008", ".gz"), ("ohsumed", "")):
        folder = home / f"letor_{name}"
        folder.mkdir()
        for part in range(1, 6):
            text = f"2 qid:{part}0 1:0.5 #docid = A inc = 1\n0 qid:{part}1 2:{part} #docid = B\n"
            content = text.encode()
            path = folder / f"S{part}.txt{end}"
            path.write_bytes(gzip.compress(content) if end else content)
    write_npz(
        home / "omniglot" / "omniglot.npz",
        images28=rng.randint(256, size=(6, 28, 28)).astype(np.uint8),
        character=np.array([0, 2, 0, 1, 2, 1]),
        train=np.array([True, False, True, True, False, True]),
    )
    genes = {"X": rng.uniform(size=(3, 9)), "y": np.array(["ALL", "AML", "ALL"])}
    write_npz(home / "microarray" / "golub.npz", **genes)
    table = {"X": rng.uniform(size=(3, 60)), "y": np.array(["R", "M", "R"])}
    write_npz(home / "uci" / "sonar.npz", **table)
    vectors = {"X": np.array([[0, 2], [4, 255]], np.uint8), "y": np.array([0, 1], np.int16)}
    write_npz(home / "embeddings" / "cub200_mnv2.npz", scale=np.float32(0.5), **vectors)
    write_npz(home / "embeddings" / "text_banking77_minilm.npz", **vectors)
    graded = {"X": np.eye(4, 3, dtype=np.float16), "pairs": np.array([[0, 1], [2, 3]], np.int32)}
    graded |= {"y": np.array([0, 4.5], np.float32), "split": np.array(["train", "test"])}
    write_npz(home / "embeddings" / "pairs_stsb_minilm.npz", **graded)
    write_npz(home / "cub_features" / "cub10.npz", **split(1024))
    write_npz(home / "usps" / "usps.npz", **split(256))
    return home


def test_every_loader_is_tested_here():
    loaders = {name for name in vars(data) if name.startswith("load_")}
    others = {"load_graded_pairs", "load_table", "load_colour_images"}
    assert {load.__name__ for load, *_ in LOADERS} == loaders - others
    assert {*FOLDERS, "tables", "images"} == set(data.SOURCES)


def test_tables(home):
    with pytest.raises(FileNotFoundError, match=r"tab_adult\.csv\.gz .*archive\.ics\.uci\.edu"):
        data.load_table("adult")
    (home / "tables").mkdir()
    (home / "tables" / "tab_adult.csv.gz").write_bytes(gzip.compress(b"age,sex\n39,\n50,Male\n"))
    assert data.load_table("adult")["sex"].isna().tolist() == [True, False]


def test_colour_images(home):
    with pytest.raises(FileNotFoundError, match=r"cifar100_raw\.npz"):
        data.load_colour_images("train")
    images = np.random.default_rng(0).integers(256, size=(8, 32, 32, 3), dtype=np.uint8)
    write_npz(home / "images" / "cifar100_raw.npz", X=images, y=np.arange(8))
    X, y = data.load_colour_images("test")
    assert y.tolist() == [0, 4]
    np.testing.assert_allclose(X[1], images[4].transpose(2, 0, 1).ravel() / 255, rtol=1e-6)
    assert data.load_colour_images("train")[1].tolist() == [1, 2, 3, 5, 6, 7]


def test_data_home(monkeypatch, tmp_path):
    monkeypatch.setenv("SKDML_DATA", str(tmp_path / "variable"))
    assert data.data_home() == tmp_path / "variable"
    assert not (tmp_path / "variable").exists()
    monkeypatch.setenv("SKDML_DATA", "~/elsewhere")
    assert data.data_home() == Path.home() / "elsewhere"
    monkeypatch.setenv("SKDML_DATA", "")
    assert data.data_home() == Path.home() / "skdml_data"
    monkeypatch.delenv("SKDML_DATA")
    assert data.data_home() == Path.home() / "skdml_data"


@pytest.mark.parametrize(("load", "args", "folder", "file", "origin"), LOADERS, ids=FOLDERS)
def test_a_missing_file_is_named_with_its_folder_and_source(load, args, folder, file, origin, home):
    with pytest.raises(FileNotFoundError) as caught:
        load(*args)
    for part in (file, f"folder {home / folder}.", "SKDML_DATA", origin):
        assert part in str(caught.value)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(("load", "args", "folder", "file", "origin"), LOADERS, ids=FOLDERS)
def test_rows_with_a_class_each(load, args, folder, file, origin, tiny_home):
    X, y, *qid = load(*args)
    assert X.ndim == 2
    assert len(X) == len(y) > 0
    assert len(qid) == (load is data.load_letor)
    if folder in ("mnist", "fashion_mnist", "omniglot", "usps"):
        assert X.dtype == np.float32
        assert X.min() >= 0
        assert X.max() <= 1


@pytest.mark.parametrize(
    "load",
    [
        data.load_mnist,
        data.load_fashion_mnist,
        data.load_usps,
        data.load_cub_features,
        data.load_omniglot,
    ],
)
def test_subsets(load, tiny_home):
    X, y = load("train")
    X_test, y_test = load("test")
    assert (len(X), len(X_test)) == (4, 2)
    assert y.dtype == y_test.dtype == np.int64
    assert X.shape[1] == X_test.shape[1]
    assert not (X[:2] == X_test).all()


def test_bytes_become_the_unit_interval(tiny_home):
    assert_array_equal(data.load_mnist("train")[0][0, :2], [0, 1])


def test_embeddings_are_multiplied_by_their_scale(tiny_home):
    X, y = data.load_embeddings("cub200_mnv2")
    assert X.dtype == np.float32
    assert_array_equal(X, [[0, 1], [2, 127.5]])
    assert_array_equal(y, [0, 1])
    assert_array_equal(data.load_embeddings("text_banking77_minilm")[0], 2 * X)


def test_graded_pairs(tiny_home):
    X, pairs, grades, split = data.load_graded_pairs()
    assert X.shape == (4, 3)
    assert X.dtype == np.float32
    assert_array_equal(pairs, [[0, 1], [2, 3]])
    assert_array_equal(grades, [0, 4.5])
    assert_array_equal(split, ["train", "test"])


def test_omniglot_parts(tiny_home):
    stored = np.load(tiny_home / "omniglot" / "omniglot.npz")
    X, y = data.load_omniglot("train")
    assert_array_equal(np.rint(X * 255).reshape(-1, 28, 28), stored["images28"][[0, 2, 3, 5]])
    assert_array_equal(y, [0, 0, 1, 1])
    assert_array_equal(data.load_omniglot("test")[1], [2, 2])


@pytest.mark.parametrize("name", ["mq2008", "ohsumed"])
@pytest.mark.parametrize(
    ("fold", "train", "validation", "test"),
    [
        (1, [1, 2, 3], [4], [5]),
        (2, [2, 3, 4], [5], [1]),
        (3, [3, 4, 5], [1], [2]),
        (4, [4, 5, 1], [2], [3]),
        (5, [5, 1, 2], [3], [4]),
    ],
)
def test_letor_folds(name, fold, train, validation, test, tiny_home):
    subsets = {"train": train, "validation": validation, "test": test, "all": [1, 2, 3, 4, 5]}
    for subset, parts in subsets.items():
        X, y, qid = data.load_letor(name, fold, subset)
        assert_array_equal(qid, [10 * part + row for part in parts for row in (0, 1)])
        assert X.shape == (2 * len(parts), {"mq2008": 46, "ohsumed": 45}[name])
        assert_array_equal(X[1::2, 1], parts)
        assert_array_equal(y, [2, 0] * len(parts))


def test_files_that_do_not_belong_together(tiny_home):
    write_idx(tiny_home / "mnist" / "train-labels-idx1-ubyte.gz", np.zeros(9, np.uint8))
    with pytest.raises(ValueError, match=r"mnist: 4 images and 9 labels"):
        data.load_mnist("train")


def test_files_of_another_shape_are_refused_by_name(tiny_home):
    write_idx(tiny_home / "mnist" / "train-labels-idx1-ubyte.gz", np.zeros((1, 1), np.uint8))
    with pytest.raises(
        ValueError, match=r"train-labels-idx1-ubyte.gz has an array of shape \(1, 1"
    ):
        data.load_mnist("train")
    drawings = {"character": np.arange(2), "train": [True, False]}
    images = np.zeros((2, 28, 27), np.uint8)
    write_npz(tiny_home / "omniglot" / "omniglot.npz", images28=images, **drawings)
    with pytest.raises(ValueError, match=r"omniglot\.npz has images28 of shape \(2, 28, 27\)"):
        data.load_omniglot("train")
    write_npz(tiny_home / "uci" / "sonar.npz", X=np.zeros(3), y=np.zeros(3))
    with pytest.raises(ValueError, match=r"sonar\.npz has X of shape \(3,\)"):
        data.load_uci("sonar")
    write_npz(tiny_home / "usps" / "usps.npz", X_train=np.zeros((3, 256)), y_train=np.zeros(4))
    with pytest.raises(ValueError, match=r"usps\.npz has .* y_train of shape \(4,\)"):
        data.load_usps("train")
    write_npz(tiny_home / "usps" / "usps.npz", X_train=np.zeros((2, 256)))
    with pytest.raises(ValueError, match=r"usps\.npz lacks the arrays y_train; it has X_train"):
        data.load_usps("train")


# The real sets


def need(folder):
    if not (data.data_home() / folder).is_dir():
        pytest.skip(f"needs the folder {folder} in the data home (set SKDML_DATA)")


@pytest.mark.needs_data
def test_mnist():
    need("mnist")
    X, y = data.load_mnist("train")
    assert X.shape == (60_000, 784)
    assert_array_equal(y[:5], [5, 0, 4, 1, 9])
    assert (X[:100].min(), X[:100].max()) == (0, 1)
    assert_array_equal(data.load_mnist("test")[1][:5], [7, 2, 1, 0, 4])


@pytest.mark.needs_data
def test_fashion_mnist():
    need("fashion_mnist")
    X, y = data.load_fashion_mnist("test")
    assert X.shape == (10_000, 784)
    assert_array_equal(np.bincount(y), [1000] * 10)
    assert y[0] == 9  # an ankle boot


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("name", "shape", "n_queries"), [("mq2008", (15_211, 46), 784), ("ohsumed", (16_140, 45), 106)]
)
def test_letor(name, shape, n_queries):
    need(f"letor_{name}")
    X, y, qid = data.load_letor(name, 1, "all")
    assert X.shape == shape
    assert len(np.unique(qid)) == n_queries
    assert_array_equal(np.unique(y), [0, 1, 2])
    assert np.isfinite(X).all()
    if name == "mq2008":
        assert_array_equal(np.flatnonzero(np.ptp(X, axis=0) == 0) + 1, [6, 7, 8, 9, 10, 43])
        assert len(set(qid) - set(qid[y > 0])) == 220

    parts = [data.load_letor(name, 2, subset) for subset in ("train", "validation", "test")]
    assert sum(len(part[0]) for part in parts) == len(X)
    queries = [set(part[2]) for part in parts]
    assert sum(len(part) for part in queries) == n_queries
    assert set.union(*queries) == set(qid)


@pytest.mark.needs_data
def test_omniglot():
    need("omniglot")
    X, y = data.load_omniglot("train")
    X_test, y_test = data.load_omniglot("test")
    assert len(X) + len(X_test) == 4_840
    assert_array_equal(np.bincount(np.append(y, y_test)), [20] * 242)
    assert len(np.unique(y)) == 136
    assert len(np.unique(y_test)) == 106
    assert not set(y) & set(y_test)


@pytest.mark.needs_data
def test_usps():
    need("usps")
    X, y = data.load_usps("train")
    assert X.shape == (7_291, 256)
    assert_array_equal(np.unique(y), np.arange(10))
    assert X.min() >= 0
    assert X.max() <= 1
    assert len(data.load_usps("test")[0]) == 2_007


@pytest.mark.needs_data
def test_cub_features():
    need("cub_features")
    assert data.load_cub_features("train")[0].shape == (480, 1024)
    X, y = data.load_cub_features("test")
    assert X.shape == (120, 1024)
    assert_array_equal(np.unique(y), np.arange(1, 11))


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("name", "shape", "n_classes"),
    [
        ("alon", (62, 2000), 2),
        ("chowdary", (104, 22283), 2),
        ("golub", (72, 7129), 2),
        ("gordon", (181, 12533), 2),
        ("khan", (63, 2308), 4),
        ("nakayama", (105, 22283), 10),
        ("singh", (102, 12600), 2),
        ("su", (102, 5565), 4),
        ("subramanian", (50, 10100), 2),
    ],
)
def test_microarray(name, shape, n_classes):
    need("microarray")
    X, y = data.load_microarray(name)
    assert X.shape == shape
    assert len(np.unique(y)) == n_classes


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("name", "shape", "n_classes"),
    [("cub200_mnv2", (11_788, 1280), 200), ("text_banking77_minilm", (13_083, 384), 77)],
)
def test_embeddings(name, shape, n_classes):
    need("embeddings")
    X, y = data.load_embeddings(name)
    assert X.shape == shape
    assert_array_equal(np.unique(y), np.arange(n_classes))


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("name", "shape", "n_classes"),
    [
        ("balance", (625, 4), 3),
        ("ionosphere", (351, 33), 2),
        ("letter", (20000, 16), 26),
        ("optdigits", (5620, 64), 10),
        ("penbased", (10992, 16), 10),
        ("satimage", (6435, 36), 6),
        ("segment", (2310, 19), 7),
        ("sonar", (208, 60), 2),
        ("vehicle", (846, 18), 4),
        ("vowel", (990, 13), 11),
    ],
)
def test_uci(name, shape, n_classes):
    need("uci")
    X, y = data.load_uci(name)
    assert X.shape == shape
    assert len(np.unique(y)) == n_classes
    assert np.isfinite(X).all()
