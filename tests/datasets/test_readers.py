import gzip
import io
import os
import tracemalloc
import zipfile

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skdml.datasets import read_idx, read_letor, read_npz


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize(
    ("code", "dtype"),
    [(0x08, "u1"), (0x09, "i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")],
)
def test_read_idx_returns_what_was_written(write_idx, code, dtype, end):
    array = np.array([[0, 1, 2], [100, 101, 127]], dtype)
    read = read_idx(write_idx(f"array{end}", array, code))
    assert_array_equal(read, array)
    assert read.dtype == np.dtype(dtype).newbyteorder("=")
    assert read.flags.writeable


def test_read_idx_goes_by_the_content_not_the_name(write_idx):
    path = write_idx("labels.gz", np.arange(3, dtype=np.uint8))
    assert_array_equal(read_idx(str(path.rename(path.with_suffix("")))), [0, 1, 2])


def test_read_idx_without_elements(write_idx):
    assert read_idx(write_idx("empty", np.empty((0, 28, 28), np.uint8))).shape == (0, 28, 28)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
        (b"\x00\x01\x08\x01\x00\x00\x00\x00", "not an idx file"),
        (b"<html>", "not an idx file"),
        (b"\x00\x00\x0a\x01\x00\x00\x00\x01\x05", "type code 0x0A"),
        (b"\x00\x00\x08\x02\x00\x00\x00\x02\x00", "truncated: its header"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x03\x05\x00", "truncated"),
        (b"\x00\x00\x08\x03" + b"\xff" * 12, "truncated"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x01\x05\x00", "beyond its end"),
    ],
)
def test_read_idx_refuses_a_bad_file_by_name(tmp_path, content, message):
    path = tmp_path / "bad-idx1-ubyte"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"bad-idx1-ubyte .*{message}"):
        read_idx(path)


def test_read_idx_refuses_a_damaged_gzip_file(write_idx):
    path = write_idx("images.gz", np.arange(200, dtype=np.uint8))
    content = path.read_bytes()
    changed = content[:50] + bytes([content[50] ^ 0xFF]) + content[51:]
    for damaged in (content[:-12], content[:100], changed):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"images\.gz is damaged or truncated"):
            read_idx(path)


def test_read_idx_refuses_what_is_not_a_path():
    with pytest.raises(ValueError, match="'path' parameter"):
        read_idx(3)


LETOR = """\
# a comment line
2 qid:10 1:0.5 4:-1.25 #docid = GX000-00-0000000 inc = 1 prob = 0.08
0 qid:10 2:0 3:1e-3 # docid = GX1
1 qid:7 3:2
"""


@pytest.fixture
def letor_file(tmp_path):
    def write(text, name="S1.txt"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write


@pytest.mark.parametrize("name", ["S1.txt", "S1.txt.gz"])
def test_read_letor(letor_file, name):
    X, y, qid = read_letor(letor_file(LETOR, name))
    assert_array_equal(X, [[0.5, 0, 0, -1.25], [0, 0, 1e-3, 0], [0, 0, 2, 0]])
    assert_array_equal(y, [2, 0, 1])
    assert_array_equal(qid, [10, 10, 7])
    assert X.dtype == np.float64
    assert y.dtype == qid.dtype == np.int64


def test_read_letor_files_of_different_width(letor_file):
    short = letor_file("0 qid:3 1:1\n", "S1.txt")
    wide = letor_file("1 qid:4 5:1\n", "S2.txt.gz")
    X, y, qid = read_letor([str(short), wide])
    assert_array_equal(X, [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1]])
    assert_array_equal(y, [0, 1])
    assert_array_equal(qid, [3, 4])


def test_read_letor_n_features(letor_file):
    path = letor_file(LETOR)
    assert read_letor(path, n_features=6)[0].shape == (3, 6)
    with pytest.raises(ValueError, match=r"n_features=3.* 4 features"):
        read_letor(path, n_features=3)
    with pytest.raises(ValueError, match="'n_features' parameter"):
        read_letor(path, n_features="four")


def test_read_letor_keeps_fractional_relevance(letor_file):
    _, y, _ = read_letor(letor_file("0.5 qid:1 1:1\n1 qid:1 1:2\n"))
    assert_array_equal(y, [0.5, 1.0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no documents"),
        ("# nothing\n", "no documents"),
        ("1 qid:1 1:2\n0 1:3\n", "2 documents but 1 query ids"),
        ("1 qid:1 0:3\n", "not a LETOR"),
        ("1 qid:1 1:NULL\n", "not a LETOR.*NULL"),
        ("1 qid:one 1:2\n", "not a LETOR.*one"),
        ("1 qid:1 2:1 1:3\n", "not a LETOR.*sorted"),
    ],
)
def test_read_letor_refuses_a_bad_file_by_name(letor_file, text, message):
    good = letor_file(LETOR, "S1.txt")
    with pytest.raises(ValueError, match=rf"S2\.txt .*{message}"):
        read_letor([good, letor_file(text, "S2.txt")])


def test_read_letor_refuses_a_truncated_gzip_file(letor_file):
    path = letor_file(LETOR, "S1.txt.gz")
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(ValueError, match=r"S1\.txt\.gz is not a LETOR"):
        read_letor(path)


def test_read_letor_needs_a_file(tmp_path):
    with pytest.raises(ValueError, match="paths is empty"):
        read_letor([])
    with pytest.raises(FileNotFoundError, match="absent"):
        read_letor(tmp_path / "absent.txt")


@pytest.fixture
def npz_file(tmp_path):
    path = tmp_path / "set.npz"
    np.savez_compressed(
        path,
        X=np.eye(3, dtype=np.float32),
        y=np.array(["a", "b", "a"]),
        pickled=np.array([{}, None], dtype=object),
    )
    return path


def test_read_npz_reads_only_what_is_required(npz_file):
    arrays = read_npz(npz_file)
    assert set(arrays) == {"X", "y"}
    assert_array_equal(arrays.X, np.eye(3))
    assert arrays.X.dtype == np.float32
    assert_array_equal(read_npz(str(npz_file), required=["y"]).y, ["a", "b", "a"])


def test_read_npz_names_the_missing_arrays(npz_file):
    with pytest.raises(ValueError, match=r"set\.npz lacks the arrays qid, z; it has X, y, pickled"):
        read_npz(npz_file, required=("X", "qid", "z"))


def test_read_npz_never_unpickles(npz_file):
    with pytest.raises(ValueError, match=r"set\.npz cannot be read: .*allow_pickle=False"):
        read_npz(npz_file, required=("pickled",))


def test_read_npz_refuses_other_and_damaged_files(npz_file, tmp_path):
    other = tmp_path / "other.npz"
    with other.open("wb") as file:
        np.save(file, np.eye(2))
    with pytest.raises(ValueError, match=r"other\.npz is not an npz file"):
        read_npz(other)
    content = npz_file.read_bytes()
    npz_file.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"set\.npz is not an npz file, or is truncated"):
        read_npz(npz_file)
    # One byte inside the first array is changed: the checksum no longer fits.
    npz_file.write_bytes(content[:60] + bytes([content[60] ^ 0xFF]) + content[61:])
    with pytest.raises(ValueError, match=r"set\.npz cannot be read"):
        read_npz(npz_file)


def test_read_npz_refuses_a_bare_name(npz_file):
    with pytest.raises(ValueError, match="'required' parameter"):
        read_npz(npz_file, required="X")


# Broken and hostile files


def broken_variants(content, rng, n_variants):
    """Yield a file cut short, with bits flipped, with bytes taken out, and with more at its end."""
    for number in range(n_variants):
        data = bytearray(content)
        at = int(rng.integers(len(data)))
        if number % 4 == 0:
            data = data[:at]
        elif number % 4 == 1:
            for place in rng.integers(len(data), size=1 + number % 7):
                data[place] ^= 1 << int(rng.integers(8))
        elif number % 4 == 2:
            del data[at : at + 1 + number % 30]
        else:
            data += rng.bytes(1 + number % 20)
        yield bytes(data)


def read_or_refuse(read, path, content):
    """Read a file: either it can be read, or a ValueError begins with its name."""
    path.write_bytes(content)
    try:
        read(path)
    except ValueError as error:
        assert str(error).startswith(str(path)), error  # noqa: PT017


@pytest.mark.parametrize("name", ["array-idx3-ubyte", "array.gz", "S1.txt", "S1.txt.gz", "set.npz"])
def test_broken_files_give_a_value_error_with_their_path(tmp_path, write_idx, npz_file, name):
    rng = np.random.default_rng(0)
    text = LETOR.encode()
    content, read = {
        "array-idx3-ubyte": lambda: (write_idx("a", np.arange(8, dtype=np.uint8)), read_idx),
        "array.gz": lambda: (write_idx("a.gz", np.arange(8, dtype=np.uint8)), read_idx),
        "S1.txt": lambda: (text, read_letor),
        "S1.txt.gz": lambda: (gzip.compress(text), read_letor),
        "set.npz": lambda: (npz_file, read_npz),
    }[name]()
    content = content if isinstance(content, bytes) else content.read_bytes()
    for variant in broken_variants(content, rng, 300):
        read_or_refuse(read, tmp_path / name, variant)


@pytest.mark.parametrize("read", [read_idx, read_letor, read_npz])
def test_a_folder_is_no_file(tmp_path, read):
    with pytest.raises(ValueError, match=f"{tmp_path.name} is a folder"):
        read(tmp_path)


def peak_memory(call):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="bomb") as caught:
            call()
        return tracemalloc.get_traced_memory()[1], str(caught.value)
    finally:
        tracemalloc.stop()


def test_read_idx_stops_at_the_declared_size(tmp_path):
    path = tmp_path / "bomb.gz"
    header = bytes([0, 0, 8, 1, 0, 0, 0, 10])
    path.write_bytes(gzip.compress(header + bytes(2**26)))
    peak, message = peak_memory(lambda: read_idx(path))
    assert "beyond its end" in message
    assert peak < 2**22
    # A size that no file of this length can have is not allocated.
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 2]) + b"\x00\xff\xff\xff" * 2))
    peak, message = peak_memory(lambda: read_idx(path))
    assert "truncated" in message
    assert peak < 2**22


def test_read_letor_stops_in_a_line_without_end(tmp_path):
    path = tmp_path / "bomb.txt.gz"
    path.write_bytes(gzip.compress(b"1 qid:1 " + b" " * 2**26))
    peak, message = peak_memory(lambda: read_letor(path))
    assert "a line of more than" in message
    assert peak < 2**26


def test_read_npz_believes_no_header(tmp_path):
    path = tmp_path / "bomb.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (2**33, 100)}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", header.getvalue() + bytes(80))
        archive.writestr("y.npy", header.getvalue())
    peak, message = peak_memory(lambda: read_npz(path))
    assert "is damaged: X of shape (8589934592, 100)" in message
    assert peak < 2**22


def test_files_larger_than_the_memory_are_refused(tmp_path, monkeypatch, write_idx, letor_file):
    sizes = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 100}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    path = tmp_path / "set.npz"
    np.savez(path, X=np.eye(9), y=np.arange(9))
    for read, wrong in (
        (read_npz, path),
        (read_idx, write_idx("images", np.zeros(99, np.uint8))),
        (read_letor, letor_file("1 qid:1 30:1\n")),
    ):
        with pytest.raises(ValueError, match=f"{wrong.name} is an array .*this machine's memory"):
            read(wrong)


def test_read_npz_refuses_members_that_are_no_arrays(tmp_path):
    path = tmp_path / "set.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", b"text")
        archive.writestr("y", b"")
    with pytest.raises(ValueError, match=r"set\.npz has X, which is not an array"):
        read_npz(path)
    with pytest.raises(ValueError, match=r"set\.npz has y, which is not an array"):
        read_npz(path, required=["y"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nan qid:1 1:2\n", "relevance that is NaN or infinite"),
        ("1e400 qid:1 1:2\n", "relevance that is NaN or infinite"),
        ("1e300 qid:1 1:2\n", r"relevance of 1e\+300"),
        ("1 qid:1 1:nan\n", "feature that is NaN or infinite"),
        ("1 qid:99999999999999999999 1:2\n", "not a LETOR"),
        ("1 qid:1 99999999999999999999:2\n", "not a LETOR"),
        ("1 qid:1 10001:2\n", "feature number 10001, above max_features=10000"),
        ("1 qid:1 2000000000:2\n", "feature number 2000000000, above max_features=10000"),
    ],
)
def test_read_letor_refuses_what_is_out_of_range(letor_file, text, message):
    with pytest.raises(ValueError, match=rf"S1\.txt .*{message}"):
        read_letor(letor_file(text))


def test_read_letor_max_features(letor_file):
    path = letor_file("1 qid:1 10001:2\n0 qid:1 1:1\n")
    assert read_letor(path, max_features=10001)[0].shape == (2, 10001)
    assert read_letor(path, n_features=10002)[0].shape == (2, 10002)
    with pytest.raises(ValueError, match="max_features=5"):
        read_letor(path, max_features=5)
