"""Ranks that are killed, that hang, and dask workers that die: for real."""

import os
import random
import shutil
import signal
import socket
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

torch = pytest.importorskip("torch")
pytest.importorskip("skorch")
psutil = pytest.importorskip("psutil")

from skorch.callbacks import Callback  # noqa: E402

from skdml.deep.distributed._hosts import Copies, RankError  # noqa: E402
from skdml.deep.distributed._rank_net import Checkpoints  # noqa: E402
from skdml.utils._cluster import find_workers  # noqa: E402
from tests.deep import rank_toys as toys  # noqa: E402
from tests.sockets import Listeners  # noqa: E402


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:400] / 16, y[:400], X[400:800] / 16


class Harm(Callback):
    """Does something to one rank in a given step of epoch 2, a number of times; notes epochs."""

    def __init__(self, folder, rank=1, how="kill", times=1, step=5):
        self.folder, self.rank, self.how, self.times = str(folder), rank, how, times
        self.step = step

    def on_epoch_begin(self, net, **kwargs):
        if os.environ.get("RANK") == "0":
            with open(Path(self.folder) / "epochs", "a") as file:
                file.write(f"{len(net.history)} ")

    def on_batch_begin(self, net, **kwargs):
        is_there = len(net.history) == 2 and len(net.history[-1]["batches"]) == self.step
        if not is_there or os.environ.get("RANK") != str(self.rank):
            return
        done = len(list(Path(self.folder).glob("harm-*")))
        if done >= self.times:
            return
        (Path(self.folder) / f"harm-{done}").write_text(repr(time.time()))
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.how == "kill worker":
            time.sleep(3)  # the checkpoint of epoch 1 is on its way
            host = psutil.Process(os.getppid())
            host.parent().kill()
            time.sleep(60)


def quick(**params):
    defaults = {
        "max_epochs": 3,
        "module__hidden": (32,),
        "classes_per_batch": 3,  # classes of their own for three ranks
        "n_workers": 3,
        "random_state": 0,
        "timeout": 60,
    }
    return toys.make_embedder(**{**defaults, **params})


def weights_of(model):
    return {name: value.numpy() for name, value in model.module_.state_dict().items()}


def assert_same_weights(one, other):
    for name, value in weights_of(one).items():
        np.testing.assert_array_equal(value, weights_of(other)[name])


def assert_same_fit(one, other):
    assert_same_weights(one, other)
    assert one.history_["loss"] == other.history_["loss"]
    np.testing.assert_array_equal(one.consensus_, other.consensus_)


# A fit that depends on all that a rank keeps for a restart: its batches, the steps of the loss, and
# the three generators from which callbacks and augmentation may draw.


class Seeds(Callback):
    """Seeds the generators that nobody else seeds."""

    def on_train_begin(self, net, **kwargs):
        np.random.seed(int(os.environ["RANK"]))  # noqa: NPY002
        random.seed(int(os.environ["RANK"]))


def shake(X):
    scale = 1 + 0.1 * random.random() + 0.1 * np.random.random_sample()  # noqa: NPY002
    return scale * X + 0.1 * torch.randn(X.shape)


def at_random(**params):
    drawn = {"augment": shake, "loss": "margin", "loss__miner": "distance-weighted"}
    defaults = {"max_epochs": 2, "n_workers": 2, "callbacks": [Seeds()]}
    return quick(**{**defaults, **drawn, **params})


@pytest.fixture(scope="module")
def whole_and_listeners(digits):
    with (
        pytest.MonkeyPatch.context() as patch,
        Listeners([os.getpid()], "skdml.deep.distributed._worker") as listeners,
    ):
        patch.setenv("GLOO_SOCKET_IFNAME", "no such interface")  # what clusters may need
        return at_random().fit(*digits[:2]), listeners


@pytest.fixture(scope="module")
def whole(whole_and_listeners):
    return whole_and_listeners[0]


def test_ranks_of_one_machine_listen_on_loopback_alone(whole_and_listeners):
    assert whole_and_listeners[1].addresses == {"127.0.0.1"}


def test_a_killed_rank_goes_on_with_its_batches_and_random_numbers(
    digits, whole, tmp_path, monkeypatch
):
    mark = toys.new_mark(monkeypatch)
    with pytest.warns(RuntimeWarning, match="rank 1 was killed by SIGKILL.*restart 1 of 1"):
        model = at_random(callbacks=[Seeds(), Harm(tmp_path)]).fit(*digits[:2])
    assert_same_fit(model, whole)
    assert (tmp_path / "epochs").read_text().split() == ["1", "2", "2"]
    assert toys.marked(mark) == []


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_workers": 64, "classes_per_batch": 2}, "n_workers=64, but this machine has 2 cores"),
        ({"n_workers": 2, "samples_per_class": 90}, "270 samples take 540 samples.* X has 400"),
    ],
)
def test_ranks_that_cannot_be_fed_are_named(params, message, digits, monkeypatch):
    monkeypatch.setattr("joblib.cpu_count", lambda: 2)
    monkeypatch.setattr(
        "skdml.deep.distributed._supervise.make_job", lambda *args: 1 / 0
    )  # before it starts
    with pytest.warns(UserWarning, match=message), pytest.raises(ZeroDivisionError):
        quick(**params).fit(*digits[:2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"sync": "allreduce", "remote_grad": False, "loss": "class-anchor"},
        {"ring": "gradients", "gather": False, "early_stopping": True, "loss": "proxy-anchor"},
    ],
)
def test_a_killed_rank_starts_again_and_the_weights_are_the_same(
    params, digits, tmp_path, monkeypatch
):
    mark = toys.new_mark(monkeypatch)
    whole = quick(**params).fit(*digits[:2])
    with pytest.warns(RuntimeWarning, match="rank 1 was killed by SIGKILL.*restart 1 of 1"):
        model = quick(callbacks=[Harm(tmp_path)], **params).fit(*digits[:2])
    assert_same_fit(model, whole)
    assert toys.marked(mark) == []


@pytest.mark.slow
def test_one_clear_error_when_it_may_not_start_again(digits, tmp_path, monkeypatch):
    mark = toys.new_mark(monkeypatch)
    with (
        pytest.warns(RuntimeWarning, match="rank 2 was killed"),
        pytest.raises(RankError, match=r"rank 2 was killed by SIGKILL[\s\S]*max_restarts=1"),
    ):
        quick(callbacks=[Harm(tmp_path, rank=2, times=2)]).fit(*digits[:2])
    assert time.time() - last_harm(tmp_path) < 60 + 10
    assert toys.marked(mark) == []


def last_harm(folder):
    return max(float(path.read_text()) for path in Path(folder).glob("harm-*"))


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["hybrid", "allreduce"])
def test_a_rank_that_hangs_is_found_and_named(sync, digits, tmp_path, monkeypatch):
    mark = toys.new_mark(monkeypatch)
    model = quick(callbacks=[Harm(tmp_path, how="stop")], sync=sync, timeout=6, max_restarts=0)
    with pytest.raises(RankError, match="rank 1 did not answer for 6 s"):
        model.fit(*digits[:2])
    assert 6 <= time.time() - last_harm(tmp_path) < 6 + 10
    assert not hasattr(model, "net_")
    assert toys.marked(mark) == []


@pytest.mark.slow
def test_a_rank_that_hangs_once_costs_time_only(digits, tmp_path):
    whole = quick().fit(*digits[:2])
    with pytest.warns(RuntimeWarning, match="rank 1 did not answer for 6 s"):
        model = quick(callbacks=[Harm(tmp_path, how="stop")], timeout=6).fit(*digits[:2])
    assert_same_weights(model, whole)


# On a cluster


def test_checkpoints_of_ranks_outlive_a_worker_and_its_folder(tmp_path):
    pytest.importorskip("distributed")
    from distributed import Client, LocalCluster, wait

    options = {"threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with LocalCluster(n_workers=3, **options) as cluster, Client(cluster) as client:
        workers = find_workers(client, 3)
        folders = [tmp_path / "0", tmp_path / "1"]
        again = [tmp_path / "2", tmp_path / "3"]
        for folder in (*folders, *again):
            folder.mkdir()
        copies = Copies(client, 2)
        for epochs, last in (([1], []), 0), (([2], [1]), 1), (([3, 4], [2, 3]), 3):
            for rank, (folder, own) in enumerate(zip(folders, epochs, strict=True)):
                for epoch in own:
                    Checkpoints(folder).write(rank, epoch, f"{rank} in {epoch}".encode())
                copies.take(rank, own, str(folder), workers[:2])
            wait([copy for own in copies._found for both in own.values() for copy in both])
            assert copies.last() == last
        for folder in folders:
            shutil.rmtree(folder)
        lost = next(one for one in cluster.workers.values() if one.address == workers[0])
        client.sync(lost.close)
        assert copies.last() == 3
        assert copies.give(3, list(map(str, again)), workers[1:]) == []
        found = [Checkpoints(folder).read(rank, 3) for rank, folder in enumerate(again)]
        assert found == [b"0 in 3", b"1 in 3"]
        assert [sorted(own) for own in copies._found] == [[3], [2, 3]]  # 4 comes again
        assert copies.give(2, list(map(str, again)), workers[1:]) == [0]


def ranks_of(client):
    """Count the processes of ranks under the workers of a cluster."""
    return sum(
        "skdml.deep.distributed._worker" in " ".join(child.cmdline())
        for worker in client.run(os.getpid).values()
        for child in psutil.Process(worker).children(recursive=True)
    )


@pytest.mark.slow
def test_ranks_on_dask_workers_give_what_ranks_on_one_machine_give(cluster_client, digits):
    import joblib

    here = quick(n_workers=2).fit(*digits[:2])
    there = quick(n_workers=2, client=cluster_client).fit(*digits[:2])
    assert_same_weights(there, here)
    with joblib.parallel_config(backend="dask"):
        assert_same_weights(quick(n_workers=2).fit(*digits[:2]), here)
    assert ranks_of(cluster_client) == 0
    with pytest.raises(ValueError, match=r"n_workers=3 needs as many workers.*but it has 2"):
        quick(n_workers=3, client=cluster_client).fit(*digits[:2])


@pytest.mark.slow
def test_a_rank_that_dies_on_a_cluster_starts_again(cluster_client, digits, tmp_path):
    whole = quick(n_workers=2).fit(*digits[:2])
    with pytest.warns(RuntimeWarning, match="rank 1 was killed by SIGKILL"):
        model = quick(n_workers=2, client=cluster_client, callbacks=[Harm(tmp_path)]).fit(
            *digits[:2]
        )
    assert_same_weights(model, whole)
    assert ranks_of(cluster_client) == 0


@pytest.mark.slow
def test_a_dask_worker_that_dies_costs_time_only(cluster_client, digits, whole, tmp_path):
    harm = Harm(tmp_path, how="kill worker")
    model = at_random(client=cluster_client, callbacks=[Seeds(), harm])
    workers = cluster_client.run(os.getpid).values()
    with (
        Listeners(workers, "skdml.deep.distributed._worker") as listeners,
        pytest.warns(RuntimeWarning, match="rank 1 was lost with its dask worker"),
    ):
        model.fit(*digits[:2])
    assert_same_fit(model, whole)
    assert (tmp_path / "epochs").read_text().split() == ["1", "2", "2"]
    assert listeners.addresses == {"127.0.0.1"}
    cluster_client.wait_for_workers(2, timeout=60)
    assert ranks_of(cluster_client) == 0


@pytest.mark.slow
def test_ranks_of_a_cluster_listen_at_the_address_of_their_workers_alone(digits):
    distributed = pytest.importorskip("distributed")
    found = [
        one.address
        for addresses in psutil.net_if_addrs().values()
        for one in addresses
        if one.family == socket.AF_INET and not one.address.startswith("127.")
    ]
    if not found:
        pytest.skip("this machine has no network beside its own")
    with (
        distributed.LocalCluster(
            2, threads_per_worker=1, host=found[0], dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
        Listeners(client.run(os.getpid).values(), "skdml.deep.distributed._worker") as listeners,
    ):
        quick(n_workers=2, max_epochs=1, client=client).fit(*digits[:2])
    assert listeners.addresses == {found[0]}


@pytest.mark.slow
def test_a_dask_worker_that_dies_again_is_an_error(cluster_client, digits, tmp_path):
    harm = Harm(tmp_path, how="kill worker")
    model = quick(n_workers=2, client=cluster_client, callbacks=[harm], max_restarts=0)
    with (
        warnings.catch_warnings(),
        pytest.raises(RankError, match="rank 1 was lost with its dask worker tcp://"),
    ):
        model.fit(*digits[:2])
    assert time.time() - last_harm(tmp_path) < 60 + 10
    cluster_client.wait_for_workers(2, timeout=60)
    assert ranks_of(cluster_client) == 0


@pytest.mark.slow
def test_errors_on_a_cluster_come_up_as_they_are(cluster_client, digits):
    with pytest.raises(ZeroDivisionError):
        quick(n_workers=2, client=cluster_client, loss=lambda embeddings, labels: 1 / 0).fit(
            *digits[:2]
        )
    assert ranks_of(cluster_client) == 0
