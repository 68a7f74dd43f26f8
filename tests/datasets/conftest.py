import gzip
import socket

import numpy as np
import pytest

from skdml.datasets import get_data_home


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Whatever is tested here must not reach the network."""

    def refuse(*args, **kwargs):
        raise AssertionError("skdml.datasets tried to reach the network")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)


@pytest.fixture
def need():
    """Skip the test unless the data home has a folder."""

    def need(folder):
        if not (get_data_home() / folder).is_dir():
            pytest.skip(f"needs the folder {folder} in the data home (set SKDML_DATA)")

    return need


def idx_bytes(array, code):
    shape = np.array(array.shape, ">u4").tobytes()
    return bytes([0, 0, code, array.ndim]) + shape + array.tobytes()


@pytest.fixture
def write_idx(tmp_path):
    """Write an array (in big-endian order) as an idx file, compressed if its name says so."""

    def write(name, array, code=0x08):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = idx_bytes(array, code)
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write


@pytest.fixture
def tiny_home(tmp_path, write_idx):
    """A data home with a few samples of every set."""
    rng = np.random.RandomState(0)

    def npz(name, **arrays):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        np.savez(path, **arrays)

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
            write_idx(f"{folder}/{prefix}-images-idx3-ubyte{end}", images)
            write_idx(f"{folder}/{prefix}-labels-idx1-ubyte{end}", np.arange(n, dtype=np.uint8))

    for name, end in (("mq2008", ".gz"), ("ohsumed", "")):
        folder = tmp_path / f"letor_{name}"
        folder.mkdir()
        for part in range(1, 6):
            text = f"2 qid:{part}0 1:0.5 #docid = A inc = 1\n0 qid:{part}1 2:{part} #docid = B\n"
            content = text.encode()
            path = folder / f"S{part}.txt{end}"
            path.write_bytes(gzip.compress(content) if end else content)

    bits = rng.randint(2, size=(6, 105 * 105)).astype(np.uint8)
    npz(
        "omniglot/omniglot.npz",
        images28=rng.randint(256, size=(6, 28, 28)).astype(np.uint8),
        images105_packed=np.packbits(bits, axis=1),
        character=np.array([0, 2, 0, 1, 2, 1]),
        alphabet=np.array(["Greek", "Tagalog", "Greek", "Greek", "Tagalog", "Greek"]),
        train=np.array([True, False, True, True, False, True]),
    )
    npz("microarray/golub.npz", X=rng.uniform(size=(3, 9)), y=np.array(["ALL", "AML", "ALL"]))
    npz("uci/sonar.npz", X=rng.uniform(size=(3, 60)), y=np.array(["R", "M", "R"]))
    npz("cub_features/cub10.npz", **split(1024))
    npz("usps/usps.npz", **split(256))
    return tmp_path
