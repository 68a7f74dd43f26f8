import gzip
import socket

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Whatever is tested here must not reach the network."""

    def refuse(*args, **kwargs):
        raise AssertionError("skdml.datasets tried to reach the network")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)


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
