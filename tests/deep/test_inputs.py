"""Samples that are read when a batch needs them, tokens, and networks that exist already."""

import gc
import pickle
import weakref

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

torch = pytest.importorskip("torch")
pytest.importorskip("skorch")

from torch import nn  # noqa: E402
from torch.utils.data import Dataset, IterableDataset, TensorDataset  # noqa: E402

import skdml.deep._train  # noqa: E402
from skdml import DeepMetricEmbedder, SSDMLEmbedder  # noqa: E402
from skdml.deep._samples import ReadSamples, find_file  # noqa: E402
from skdml.deep.modules import freeze_parts  # noqa: E402
from skdml.utils._torch import mixed_precision  # noqa: E402
from tests.deep.test_adapter import make_vectors  # noqa: E402
from tests.systems import needs_fork  # noqa: E402

N_TOKENS = 60


def make_rows(n_classes=3, n_each=30, n_features=6, seed=0):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(n_classes), n_each)
    X = rng.normal(size=(len(y), n_features)) + 3 * np.eye(n_classes, n_features)[y]
    return X.astype(np.float32), y


def make_tokens(n_classes=12, n_each=8, length=7, seed=0):
    """Sequences whose class decides most of the tokens, filled up with zeros."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(n_classes), n_each)
    words = rng.integers(1, N_TOKENS, size=(n_classes, length))
    noise = rng.integers(1, N_TOKENS, size=(len(y), length))
    tokens = np.where(rng.random(noise.shape) < 0.8, words[y], noise)
    tokens[np.arange(length) >= rng.integers(4, length + 1, size=(len(y), 1))] = 0
    kept = np.sort(np.unique(tokens, axis=0, return_index=True)[1])  # arrays count equal rows once
    return tokens[kept], y[kept]


class Sequences(nn.Module):
    """The mean of the vectors of tokens, without those of zeros."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(N_TOKENS, 16, padding_idx=0)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 8)

    def forward(self, tokens):
        assert tokens.dtype == torch.int64
        mask = (tokens > 0).float().unsqueeze(2)
        mean = (self.words(tokens) * mask).sum(dim=1) / mask.sum(dim=1)
        return self.head(self.norm(mean))


class Counted(Dataset):
    """Pairs (sample, label) that count how many were read."""

    def __init__(self, X, y):
        self.X, self.y, self.n_read = X, y, 0

    def __len__(self):
        return len(self.X)

    def __getitem__(self, row):
        self.n_read += 1
        return self.X[row], int(self.y[row])


def quick(*args, **params):
    params = {"max_epochs": 1, "random_state": 0, "early_stopping": False, **params}
    return DeepMetricEmbedder(*args, **params)


def read_row(path):
    return np.load(path)


@pytest.fixture(scope="module")
def rows():
    return make_rows()


@pytest.fixture(scope="module")
def expected(rows):
    return quick("mlp").fit(*rows).transform(rows[0])


# Datasets


def test_a_dataset_gives_what_an_array_gives(rows, expected):
    X, y = rows
    pairs = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    model = quick("mlp").fit(pairs)
    assert_array_equal(model.transform(pairs), expected)
    assert_array_equal(model.transform(X), expected)
    assert model.n_features_in_ == X.shape[1]
    assert_array_equal(model.classes_, [0, 1, 2])
    assert model.score(pairs) == model.score(X, y)
    samples = TensorDataset(torch.from_numpy(X))
    assert_array_equal(quick("mlp").fit(samples, y).transform(samples), expected)


def test_samples_are_read_by_batch_and_not_all_at_once(monkeypatch):
    X, y = make_rows(n_each=200)
    at_once, read = [], ReadSamples.__getitem__

    def noted(samples, index):
        at_once.append(len(read(samples, index)))
        return read(samples, index)

    monkeypatch.setattr(ReadSamples, "__getitem__", noted)
    data = Counted(X, y)
    params = {"classes_per_batch": 3, "samples_per_class": 5, "validation_fraction": 0.2}
    model = quick("mlp", **params).fit(data, y)
    # twice, as they are noted: 60 batches of 15, 120 held out, and a few to know their shape
    assert data.n_read < 2 * (60 * 15 + 120 + 40)
    before = data.n_read
    model.transform(data)
    assert data.n_read - before < 2 * (len(X) + 10)
    assert max(at_once) <= 64


def test_nothing_of_a_dataset_stays_in_the_fitted_estimator(rows):
    data = Counted(*rows)
    model = quick("mlp").fit(data)
    gone = weakref.ref(data)
    del data
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.transform(rows[0]), model.transform(rows[0]))
    gc.collect()
    assert gone() is None


def test_images_of_a_dataset_go_to_the_convnet():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 8)
    X = (rng.random((len(y), 1, 8, 8)) * 255 * (1 + y[:, None, None, None]) / 3).astype(np.uint8)
    data = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    model = quick(module__channels=(4,), n_components=4).fit(data)
    assert type(model.module_).__name__ == "ConvNet"
    assert_array_equal(model.transform(data), model.transform(X.astype(np.float32)))


def test_vectors_of_a_dataset_are_tuned_by_the_adapter():
    X, y = make_vectors(n_classes=15, n_each=6)
    data = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    model = DeepMetricEmbedder(max_epochs=2, random_state=0)
    expected = clone(model).fit(X, y).transform(X)
    assert_array_equal(model.fit(data).transform(data), expected)
    assert "valid_map" in model.history_


def test_held_out_samples_coresets_pairs_and_triplets_work_with_datasets(rows):
    X, y = rows
    data = TensorDataset(torch.from_numpy(X))
    for params in ({"early_stopping": True}, {"coreset": 0.5}, {"validation_fraction": 0.2}):
        model = quick("mlp", **params)
        assert_array_equal(
            clone(model).fit(data, y).transform(X), clone(model).fit(X, y).transform(X)
        )
    pairs = np.column_stack([np.arange(89), np.arange(89)[::-1] + 1])[:40]
    labels = np.where(y[pairs[:, 0]] == y[pairs[:, 1]], 1, -1)
    ours = quick("mlp").fit(data, pairs=pairs, pair_labels=labels)
    theirs = quick("mlp").fit(X, pairs=pairs, pair_labels=labels)
    assert_array_equal(ours.transform(X), theirs.transform(X))
    assert_array_equal(ours.pair_distance(pairs, data), theirs.pair_distance(pairs, X))


class Wrong(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, row):
        return self.items[row]


class Endless(IterableDataset):
    def __iter__(self):
        yield np.zeros(3)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "X has no samples"),
        ([np.zeros(2)], "X has 1 sample"),
        ([np.zeros(2), np.ones(3)] * 2, r"X\[1\] has shape \(3,\), but X\[0\] has \(2,\)"),
        ([np.zeros(2), np.array([1, np.nan])] * 2, r"X\[1\] contains NaN or infinity"),
        ([{"a": 1}, {"a": 2}], r"X\[0\]: the Dataset must return an array.*got dict"),
        ([np.float64(1), np.float64(2)], r"X\[0\]: the Dataset must return an array of one"),
        ([np.zeros((4, 4))] * 4, r"shape \(4, 4\): module='mlp' takes vectors, or images"),
        ([np.zeros((8, 8, 3))] * 4, "channels come first"),
    ],
)
def test_wrong_items_are_named(items, message):
    with pytest.raises(ValueError, match=message):
        quick("mlp").fit(Wrong(items), np.arange(len(items)) // 2)


def test_wrong_datasets_are_named(rows):
    X, y = rows
    data = TensorDataset(torch.from_numpy(X))
    with pytest.raises(TypeError, match="X must be a map-style Dataset"):
        quick().fit(Endless())
    with pytest.raises(ValueError, match=r"X\[0\] of the Dataset has no label: give y"):
        quick("mlp").fit(data)
    with pytest.raises(ValueError, match="loader is for a list of paths"):
        quick("mlp", loader=read_row).fit(data, y)
    with pytest.raises(ValueError, match=r"samples of shape \(2,\), but .* with \(6,\)"):
        quick("mlp").fit(X, y).transform(Wrong([np.zeros(2)]))
    with pytest.raises(ValueError, match="requires y"):
        quick("mlp").fit(X, y).score(X)
    with pytest.raises((ValueError, TypeError)):
        SSDMLEmbedder().fit(data, y)


# Items and a loader


@pytest.fixture
def paths(rows, tmp_path):
    names = [tmp_path / f"{row}.npy" for row in range(len(rows[0]))]
    for path, sample in zip(names, rows[0], strict=True):
        np.save(path, sample)
    return names


def test_paths_and_a_loader_give_what_an_array_gives(rows, expected, paths):
    y = rows[1]
    model = quick("mlp", loader=read_row)
    assert model.get_params()["loader"] is read_row
    for items in (paths, np.array([str(path) for path in paths])):
        assert_array_equal(clone(model).fit(items, y).transform(items), expected)
    fitted = pickle.loads(pickle.dumps(model.fit(paths, y)))
    assert_array_equal(fitted.transform(paths[:3]), fitted.transform(paths)[:3])
    assert_array_equal(quick("mlp").set_params(loader=read_row).fit(paths, y).classes_, [0, 1, 2])


def test_paths_are_split_by_cross_validation(rows, paths):
    scores = cross_val_score(quick("mlp", loader=read_row), paths, rows[1], cv=2)
    assert np.all(scores > 0.8)


def test_what_a_loader_cannot_read_is_named(rows, paths):
    y = rows[1]
    with pytest.raises(ValueError, match="X has strings or paths: give loader"):
        quick("mlp").fit(paths, y)
    with pytest.raises(ValueError, match="'loader' parameter"):
        quick("mlp", loader="numpy").fit(paths, y)
    with pytest.raises(ValueError, match="X must be a list or an array of one dimension"):
        quick("mlp", loader=read_row).fit(rows[0], y)
    with pytest.raises(ValueError, match="requires y"):
        quick("mlp", loader=read_row).fit(paths)
    with pytest.raises(FileNotFoundError) as caught:
        quick("mlp", loader=read_row).fit(["nowhere.npy", *paths[1:]], y)
    assert caught.value.__notes__ == ["This was while X[0] was read."]
    with pytest.raises(TypeError, match="has no parameter 'loaders'"):
        quick("mlp", loaders=read_row).fit(paths, y)


# Tokens


def test_integers_stay_integers_for_a_network_of_the_users_own():
    tokens, y = make_tokens()
    model = quick(Sequences, lr=0.02).fit(tokens, y)
    embeddings = model.transform(tokens)
    assert embeddings.dtype == np.float32
    assert model.score(tokens, y) > 0.6
    assert_array_equal(model.transform(tokens.astype(np.int32)), embeddings)
    assert_array_equal(model.transform(torch.from_numpy(tokens)), embeddings)
    data = TensorDataset(torch.from_numpy(tokens), torch.from_numpy(y))
    assert_array_equal(quick(Sequences, lr=0.02).fit(data).transform(data), embeddings)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.transform(tokens), embeddings)
    with pytest.raises(ValueError, match=r"X has values of float64, but .* with integers"):
        model.transform(tokens / 2)
    with pytest.raises(ValueError, match=r"X has values of float32, but .* with integers"):
        model.transform(Wrong([np.zeros(7)]))


def test_the_loader_may_make_tokens_of_texts():
    tokens, y = make_tokens()
    texts = [" ".join(map(str, row)) for row in tokens]
    model = quick(Sequences, loader=lambda text: np.array(text.split(), dtype=int)).fit(texts, y)
    expected = quick(Sequences).fit(tokens, y)
    assert_array_equal(model.transform(texts), expected.transform(tokens))


def test_tokens_are_no_embedding_to_compare_with():
    tokens, y = make_tokens()
    model = quick(Sequences, early_stopping=True, validation="classes").fit(tokens, y)
    assert isinstance(model.module_, Sequences)


def test_tables_of_integers_are_numbers_for_the_named_networks(rows):
    X, y = rows
    X = np.round(X).astype(int)
    assert_array_equal(
        quick("mlp").fit(X, y).transform(X), quick("mlp").fit(X * 1.0, y).transform(X)
    )


# Networks that exist already


def test_a_given_network_is_the_start_and_stays_as_it_is():
    tokens, y = make_tokens()
    network = Sequences()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    model = quick(network, lr=1e-30).fit(tokens, y)
    for name, value in network.named_parameters():
        assert torch.equal(value, before[name])
        assert_allclose(model.module_.state_dict()[name], before[name], atol=1e-6)
    assert model.module_ is not network
    assert clone(model).module is not None
    clone(model).fit(tokens, y)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_given_network_has_a_low_rate_held_out_classes_and_its_start_as_a_candidate():
    tokens, y = make_tokens()
    torch.manual_seed(0)
    model = DeepMetricEmbedder(Sequences(), max_epochs=1, random_state=0).fit(tokens, y)
    assert model.net_.lr == 1e-4
    assert "valid_map" in model.history_
    assert model.net_.best_epoch_ in (0, 1)


def test_frozen_parts_stay_as_they_are_and_in_evaluation_mode():
    tokens, y = make_tokens()
    network = Sequences()
    model = quick(network, freeze=("words.*", "norm"), lr=0.01).fit(tokens, y)
    trained = model.module_.state_dict()
    for name, value in network.state_dict().items():
        assert torch.equal(trained[name], value) == name.startswith(("words", "norm")), name
    assert not model.module_.words.weight.requires_grad
    assert network.words.weight.requires_grad
    moved = quick(network, freeze="words.*", lr=0.01).fit(tokens, y).module_
    assert not torch.equal(moved.norm.running_mean, network.norm.running_mean)
    assert clone(model).freeze == ("words.*", "norm")
    assert clone(model).set_params(freeze=None).freeze is None


def test_frozen_parts_are_found_by_their_names():
    network = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Dropout()), nn.Linear(2, 2))
    assert freeze_parts(network, "0.*") == ["0", "0.0"]
    network[0].train(False)
    assert [p.requires_grad for p in network.parameters()] == [False, False, True, True]
    assert freeze_parts(nn.Sequential(nn.Linear(2, 2)), "0.bias") == []


@pytest.mark.parametrize(
    ("freeze", "message"),
    [
        ("word.*", "freeze='word.*' is the name of no parameter.*words.weight"),
        (["head", "tail"], "freeze='tail' is the name of no parameter"),
        ("*", "leaves no parameter of the network to train"),
        (3, "'freeze' parameter"),
    ],
)
def test_wrong_names_of_frozen_parts_are_named(freeze, message):
    with pytest.raises(ValueError, match=message):
        quick(Sequences, freeze=freeze).fit(*make_tokens())


def test_parts_have_learning_rates_of_their_own():
    tokens, y = make_tokens()
    network = Sequences()
    groups = [("head.*", {"lr": 0.01}), ("words.*", {"lr": 0.0})]
    model = quick(network, lr=1e-3, optimizer__param_groups=groups).fit(tokens, y)
    rates = [group["initial_lr"] for group in model.net_.optimizer_.param_groups]
    assert rates == [0.01, 0.0, 1e-3]
    assert torch.equal(model.module_.words.weight, network.words.weight)
    assert not torch.equal(model.module_.norm.weight, network.norm.weight)
    with pytest.raises(ValueError, match="optimizer__param_groups: 'tail' is the name of no"):
        quick(network, optimizer__param_groups=[("tail", {"lr": 1})]).fit(tokens, y)


@needs_fork
def test_frozen_parts_and_tokens_work_in_ranks():
    tokens, y = make_tokens()
    network = Sequences()
    model = quick(network, freeze=("words", "norm"), lr=0.01, n_workers=2, classes_per_batch=4).fit(
        tokens, y
    )
    assert torch.equal(model.module_.words.weight, network.words.weight)
    assert torch.equal(model.module_.norm.running_mean, network.norm.running_mean)
    assert not torch.equal(model.module_.head.weight, network.head.weight)


@needs_fork
def test_ranks_read_files_and_datasets_themselves(rows, tmp_path):
    X, y = rows
    np.save(tmp_path / "X.npy", np.vstack([X[:5], X]))
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")[5:]  # not from the beginning of the file
    model = quick("mlp", n_workers=2, classes_per_batch=2)
    expected = clone(model).fit(Counted(X, y), y).transform(X)
    assert_array_equal(model.fit(mapped, y).transform(X), expected)


def test_where_the_rows_of_a_memory_map_are(rows, tmp_path):
    X, _ = rows
    path = tmp_path / "X"
    X.tofile(path)
    row = X[0].nbytes
    mapped = np.memmap(path, np.float32, "r", offset=3 * row, shape=(20, X.shape[1]))
    for some, offset in ((mapped, 3), (mapped[4:], 7), (mapped.reshape(20, 1, 2, 3)[2:9], 5)):
        file = find_file(some)
        assert file.offset == offset * row
        assert_array_equal(file.open(), some)
    assert find_file(mapped[::2]) is None
    assert find_file(X) is None
    assert find_file(np.memmap(path, np.float32, "c")) is None
    path.unlink()
    with pytest.raises(FileNotFoundError, match="a folder that all machines share"):
        file.open()


def test_dask_arrays_are_stored_block_by_block(rows, expected):
    da = pytest.importorskip("dask.array")
    X, y = rows
    largest = []

    def watch(block):
        largest.append(len(block))
        return block

    lazy = da.from_array(X, chunks=(20, 4)).map_blocks(watch, meta=X[:0])
    found = quick("mlp").fit(lazy, da.from_array(y, chunks=50)).transform(X)
    assert_array_equal(found, expected)
    assert max(largest) <= 20
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        quick("mlp").fit(lazy[lazy[:, 0] > 0], y)


# Mixed precision


class Watched(nn.Module):
    """Notes the precision of its products in training and in use."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.seen = set()

    def forward(self, X):
        output = self.head(X)
        self.seen.add((self.training, output.dtype))
        return output


def test_products_of_a_users_network_are_of_bfloat16_where_the_device_has_it(rows, monkeypatch):
    X, y = rows
    plain = quick(Watched).fit(X, y)
    assert {dtype for _, dtype in plain.module_.seen} == {torch.float32}
    on_device = torch.autocast("cpu", torch.bfloat16)
    monkeypatch.setattr(skdml.deep._train, "mixed_precision", lambda device: on_device)
    seen = []

    def loss(embeddings, labels):
        seen.append(embeddings.dtype)
        return embeddings.square().sum()

    model = quick(Watched, loss=loss).fit(X, y)
    assert model.module_.seen == {(True, torch.bfloat16), (False, torch.float32)}
    assert set(seen) == {torch.float32}
    assert model.module_.head.weight.dtype == torch.float32
    assert model.transform(X).dtype == np.float32


def test_only_gpus_with_bfloat16_mix_precision(monkeypatch):
    def is_mixed(device):
        return isinstance(mixed_precision(device), torch.autocast)

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not is_mixed("cpu")
    assert not is_mixed("cuda:0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch, "autocast", Autocast)
    assert not is_mixed("cpu")
    assert mixed_precision("cuda:0").given == ("cuda", torch.bfloat16)


class Autocast:
    def __init__(self, *given):
        self.given = given


def test_read_samples_have_the_shape_and_type_of_the_first():
    samples = ReadSamples([np.arange(3), np.ones(3, dtype=np.int32)], lambda x: x, True)
    assert (len(samples), samples.shape, samples.dtype) == (2, (3,), np.int64)
    assert samples[torch.tensor([1, 0])].tolist() == [[1, 1, 1], [0, 1, 2]]
    samples = ReadSamples([[True, False], [False, True]], list, True)
    assert samples[:1].dtype == torch.float32


def test_weights_of_samples_that_are_read(rows):
    X, y = rows
    weights = np.where(np.arange(len(y)) % 3 == 0, 0.0, 1.0)
    expected = quick("mlp").fit(TensorDataset(torch.from_numpy(X[weights > 0])), y[weights > 0])
    model = quick("mlp").fit(TensorDataset(torch.from_numpy(X)), y, sample_weight=weights)
    assert_array_equal(model.transform(X), expected.transform(X))
    weights[1] = 3.0
    other = quick("mlp").fit(TensorDataset(torch.from_numpy(X)), y, sample_weight=weights)
    assert not np.array_equal(other.transform(X), expected.transform(X))
