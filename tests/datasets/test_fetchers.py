from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skdml import datasets
from skdml.datasets import (
    fetch_cub_features,
    fetch_fashion_mnist,
    fetch_letor,
    fetch_microarray,
    fetch_mnist,
    fetch_omniglot,
    fetch_uci,
    fetch_usps,
    get_data_home,
)

# Every fetcher with what it needs besides data_home, the file it looks for first, and a word of
# where that file comes from.
FETCHERS = [
    (fetch_mnist, {}, "mnist", "train-labels-idx1-ubyte.gz", "yann.lecun.com"),
    (fetch_fashion_mnist, {}, "fashion_mnist", "train-labels-idx1-ubyte.gz", "zalandoresearch"),
    (fetch_letor, {}, "letor_mq2008", "S1.txt", "Microsoft"),
    (fetch_letor, {"name": "ohsumed", "fold": 3}, "letor_ohsumed", "S3.txt", "Microsoft"),
    (fetch_omniglot, {}, "omniglot", "omniglot.npz", "brendenlake"),
    (fetch_microarray, {"name": "golub"}, "microarray", "golub.npz", "datamicroarray"),
    (fetch_cub_features, {}, "cub_features", "cub10.npz", "caltech"),
    (fetch_uci, {"name": "sonar"}, "uci", "sonar.npz", "archive.ics.uci.edu"),
    (fetch_usps, {}, "usps", "usps.npz", "ElemStatLearn"),
]
FETCHER_IDS = [folder for _, _, folder, _, _ in FETCHERS]


def test_every_fetcher_is_tested_here():
    public = {name for name in datasets.__all__ if name.startswith("fetch_")}
    assert {fetch.__name__ for fetch, *_ in FETCHERS} == public


def test_get_data_home(monkeypatch, tmp_path):
    monkeypatch.setenv("SKDML_DATA", str(tmp_path / "variable"))
    assert get_data_home() == tmp_path / "variable"
    assert get_data_home(tmp_path / "argument") == tmp_path / "argument"
    assert get_data_home("~/elsewhere") == Path.home() / "elsewhere"
    assert not (tmp_path / "variable").exists()


def test_get_data_home_without_the_variable(monkeypatch):
    monkeypatch.setenv("SKDML_DATA", "")
    assert get_data_home() == Path.home() / "skdml_data"
    monkeypatch.delenv("SKDML_DATA")
    assert get_data_home() == Path.home() / "skdml_data"


@pytest.mark.parametrize(("fetch", "params", "folder", "file", "origin"), FETCHERS, ids=FETCHER_IDS)
def test_a_missing_file_is_named_with_its_folder_and_source(
    fetch, params, folder, file, origin, tmp_path, monkeypatch
):
    monkeypatch.setenv("SKDML_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError) as caught:
        fetch(**params)
    message = str(caught.value)
    for part in (file, f"folder {tmp_path / folder}.", "data_home", "SKDML_DATA", origin):
        assert part in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("fetch", "params", "folder", "file", "origin"), FETCHERS, ids=FETCHER_IDS)
def test_bunch_and_tuple_hold_the_same(fetch, params, folder, file, origin, tiny_home):
    bunch = fetch(**params, data_home=tiny_home)
    data, target, *qid = fetch(**params, data_home=str(tiny_home), return_X_y=True)
    assert_array_equal(bunch.data, data)
    assert_array_equal(bunch.target, target)
    assert data.ndim == 2
    assert len(data) == len(target) > 0
    assert bunch.DESCR
    assert len(qid) == (fetch is fetch_letor)
    if "images" in bunch:
        assert bunch.data.dtype == np.float32
        assert bunch.images.shape[0] == len(data)
        assert np.shares_memory(bunch.images, bunch.data)
        assert data.min() >= 0
        assert data.max() <= 1


@pytest.mark.parametrize(
    ("fetch", "n_train", "n_test"),
    [
        (fetch_mnist, 4, 2),
        (fetch_fashion_mnist, 4, 2),
        (fetch_usps, 4, 2),
        (fetch_cub_features, 4, 2),
        (fetch_omniglot, 4, 2),
    ],
)
def test_subsets(fetch, n_train, n_test, tiny_home):
    train, test, both = (
        fetch(subset=subset, data_home=tiny_home) for subset in ("train", "test", "all")
    )
    assert (len(train.data), len(test.data), len(both.data)) == (n_train, n_test, n_train + n_test)
    assert train.target.dtype == test.target.dtype == both.target.dtype == np.int64
    if fetch is not fetch_omniglot:
        assert_array_equal(both.data, np.concatenate([train.data, test.data]))
        assert_array_equal(both.target, np.concatenate([train.target, test.target]))


def test_bytes_become_the_unit_interval(tiny_home):
    digits = fetch_mnist(data_home=tiny_home)
    assert_array_equal(digits.images[0, 0, :2], [0, 1])


def test_files_that_do_not_belong_together(tiny_home, write_idx):
    write_idx("mnist/train-labels-idx1-ubyte.gz", np.zeros(9, np.uint8))
    with pytest.raises(ValueError, match=r"files of mnist do not belong together: 4 .* 9"):
        fetch_mnist(data_home=tiny_home)


def test_a_file_without_its_arrays(tiny_home):
    np.savez(tiny_home / "usps" / "usps.npz", X_train=np.zeros((2, 256)))
    with pytest.raises(ValueError, match=r"usps\.npz lacks the arrays y_train; it has X_train"):
        fetch_usps(data_home=tiny_home)


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
    for subset, parts in (("train", train), ("validation", validation), ("test", test)):
        bunch = fetch_letor(name, fold=fold, subset=subset, data_home=tiny_home)
        assert_array_equal(bunch.qid, [10 * part + row for part in parts for row in (0, 1)])
        assert bunch.data.shape == (2 * len(parts), {"mq2008": 46, "ohsumed": 45}[name])
        assert_array_equal(bunch.data[1::2, 1], parts)
        assert_array_equal(bunch.target, [2, 0] * len(parts))


def test_letor_all_is_the_same_for_every_fold(tiny_home):
    first, fourth = (
        fetch_letor(fold=fold, subset="all", data_home=tiny_home, return_X_y=True)
        for fold in (1, 4)
    )
    assert_array_equal(first[2], [10, 11, 20, 21, 30, 31, 40, 41, 50, 51])
    for one, other in zip(first, fourth, strict=True):
        assert_array_equal(one, other)


def test_omniglot_parts_and_sizes(tiny_home):
    stored = np.load(tiny_home / "omniglot" / "omniglot.npz")
    test = fetch_omniglot(subset="test", size=105, data_home=tiny_home)
    assert test.images.shape == (2, 105, 105)
    assert_array_equal(test.target, [2, 2])
    assert_array_equal(test.alphabet, ["Tagalog", "Tagalog"])
    assert not test.train.any()
    packed = np.packbits(test.data.astype(np.uint8), axis=1)
    assert_array_equal(packed, stored["images105_packed"][[1, 4]])

    small = fetch_omniglot(subset="train", data_home=tiny_home)
    assert_array_equal(np.rint(small.images * 255), stored["images28"][[0, 2, 3, 5]])
    assert_array_equal(small.target, [0, 0, 1, 1])


@pytest.mark.parametrize(
    ("fetch", "params", "message"),
    [
        (fetch_letor, {"name": "mq2007"}, "'name' parameter.*'mq2008'.*Got 'mq2007'"),
        (fetch_letor, {"fold": 6}, "'fold' parameter"),
        (fetch_letor, {"subset": "vali"}, "'subset' parameter.*'validation'"),
        (fetch_microarray, {"name": "Golub"}, "'name' parameter.*'golub'"),
        (fetch_uci, {"name": "iris"}, "'name' parameter.*'ionosphere'"),
        (fetch_mnist, {"subset": "tset"}, "'subset' parameter.*'test'"),
        (fetch_omniglot, {"size": 64}, "'size' parameter.*105"),
        (fetch_usps, {"data_home": 3}, "'data_home' parameter"),
        (fetch_cub_features, {"return_X_y": "yes"}, "'return_X_y' parameter"),
    ],
)
def test_bad_parameters(fetch, params, message):
    with pytest.raises(ValueError, match=message):
        fetch(**params)


def write_npz(home, folder, name, **arrays):
    (home / folder).mkdir(exist_ok=True)
    np.savez(home / folder / name, **arrays)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.zeros((3, 255)), np.arange(3), r"X_train of shape \(3, 255\).*\(n_samples, 256\)"),
        (np.zeros((3, 512)), np.arange(3), r"X_train of shape \(3, 512\)"),
        (np.zeros((3, 16, 16)), np.arange(3), r"X_train of shape \(3, 16, 16\)"),
        (np.full((3, 256), "a"), np.arange(3), "X_train of shape .* dtype <U1"),
        (np.zeros((3, 256)), np.arange(4), r"y_train of shape \(4,\) for 3 rows"),
        (np.zeros((3, 256)), np.array(["a", "b", "c"]), "classes that are not whole numbers"),
        (np.zeros((3, 256)), np.array([0.5, 1, np.nan]), "classes that are not whole numbers"),
    ],
)
def test_usps_of_another_shape_is_refused_by_name(tmp_path, X, y, message):
    write_npz(tmp_path, "usps", "usps.npz", X_train=X, y_train=y)
    with pytest.raises(ValueError, match=rf"usps\.npz has {message}"):
        fetch_usps(data_home=tmp_path)


def test_parts_of_different_width_are_refused(tmp_path):
    X, y = np.zeros((2, 9)), np.zeros(2, int)
    write_npz(
        tmp_path, "cub_features", "cub10.npz", X_train=X, y_train=y, X_test=X[:, 1:], y_test=y
    )
    with pytest.raises(ValueError, match=r"cub10\.npz .*different width: \[8, 9\]"):
        fetch_cub_features(subset="all", data_home=tmp_path)


def test_tables_and_drawings_of_another_shape_are_refused_by_name(tmp_path):
    write_npz(tmp_path, "uci", "sonar.npz", X=np.zeros(3), y=np.zeros(3))
    with pytest.raises(ValueError, match=r"sonar\.npz has X of shape \(3,\)"):
        fetch_uci("sonar", data_home=tmp_path)
    arrays = {"character": np.arange(2), "alphabet": ["a", "b"], "train": [True, False]}
    images = np.zeros((2, 28, 27), np.uint8)
    write_npz(tmp_path, "omniglot", "omniglot.npz", images28=images, **arrays)
    with pytest.raises(ValueError, match=r"omniglot\.npz has images28 of shape \(2, 28, 27\)"):
        fetch_omniglot(data_home=tmp_path)


def test_idx_files_of_another_shape_are_refused_by_name(tmp_path):
    (tmp_path / "mnist").mkdir()
    path = tmp_path / "mnist" / "train-labels-idx1-ubyte"
    path.write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 1, 7]))
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte has an array of shape \(1, 1\)"):
        fetch_mnist(data_home=tmp_path)
