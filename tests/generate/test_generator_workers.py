"""Critics in other processes: the same result, little traffic, and killed ones come back."""

import os
import threading
import time

import joblib
import numpy as np
import pytest
from sklearn.datasets import load_iris

torch = pytest.importorskip("torch")
pytest.importorskip("ot")
psutil = pytest.importorskip("psutil")

from torch import nn  # noqa: E402

from skdml import WassersteinGenerator  # noqa: E402
from skdml._actors import ProcessActors  # noqa: E402
from skdml.generate._critics import Critic, CriticSettings  # noqa: E402
from tests.sockets import Listeners  # noqa: E402
from tests.systems import KILL  # noqa: E402

PARAMS = [
    {"coupling": "shared", "cost": "learned", "n_critic_steps": 2},
    {"coupling": "shared", "cost": "squared"},
    {},
]


def quick(**params):
    defaults = {"max_iter": 25, "random_state": 0, "batch_size": 16, "n_critics": 3}
    return WassersteinGenerator(**{**defaults, **params})


@pytest.fixture(scope="module")
def iris():
    return load_iris().data


def assert_same(model, other):
    np.testing.assert_array_equal(model.history_["wasserstein"], other.history_["wasserstein"])
    np.testing.assert_array_equal(model.sample(5, random_state=0), other.sample(5, random_state=0))
    for one, two in zip(model.critics_, other.critics_, strict=True):
        for name, value in one.state_dict().items():
            assert torch.equal(value, two.state_dict()[name])
    assert model.traffic_ == other.traffic_


# For real


@pytest.mark.slow
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_processes_give_the_same_result(params, iris):
    before = critic_processes()
    assert_same(quick(n_jobs=2, **params).fit(iris), quick(**params).fit(iris))
    assert critic_processes(before) == []


def test_processes_end_after_errors_which_come_up_as_they_are(iris):
    before = critic_processes()
    settings = CriticSettings(Fails, power=1, debias=False, batch_size=8, lr=0.1, seed=0)
    rows = iris.astype(np.float32)
    with (
        Listeners([os.getpid()], "loky") as listeners,
        ProcessActors(Critic, [(0, rows, settings)]) as critics,
        pytest.raises(ZeroDivisionError),
    ):
        critics.ask("step", 1, rows[None, :8])
    assert critic_processes(before) == []
    assert listeners.n_looks > 0
    assert listeners.addresses == set()


class Fails(nn.Linear):
    """A critic that fails on any batch."""

    def __init__(self):
        super().__init__(4, 2)

    def forward(self, X):
        return X / (1 // 0)


def critic_processes(before=()):
    """The processes of critics that are not among those before; not loky's own tracker."""
    return [
        child.pid
        for child in psutil.Process().children(recursive=True)
        if child.pid not in before
        and child.status() != psutil.STATUS_ZOMBIE
        and "resource_tracker" not in " ".join(child.cmdline())
    ]


class Killer:
    """Kills a process once, when a fit has come to a given update."""

    def __init__(self, find, update):
        self.find, self.update, self.n_seen, self.killed = find, update, 0, None

    def __call__(self, latent_dim, n_features):
        return KillerModule(self, latent_dim, n_features)


class KillerModule(nn.Linear):
    """A generator that counts its calls for a `Killer`."""

    def __init__(self, killer, *sizes):
        super().__init__(*sizes)
        self.killer = killer

    def forward(self, Z):
        self.killer.n_seen += 1
        if self.killer.n_seen == self.killer.update:
            self.killer.killed = self.killer.find()
            os.kill(self.killer.killed, KILL)
        return super().forward(Z)


def test_a_killed_process_costs_time_only_where_every_update_is_kept(iris, monkeypatch):
    monkeypatch.setattr("skdml.generate._generator_training._CHECKPOINT_EVERY", 1)
    before = critic_processes()
    killer = Killer(lambda: critic_processes(before)[0], 16)  # two calls in an update
    with pytest.warns(RuntimeWarning, match="were lost, with their process"):
        model = quick(module=killer, n_jobs=2, max_iter=12, **PARAMS[0]).fit(iris)
    assert_same(model, quick(module=nn_linear, max_iter=12, **PARAMS[0]).fit(iris))
    assert critic_processes(before) == []


@pytest.mark.slow
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_a_killed_process_is_started_again_from_its_checkpoint(params, iris):
    before = critic_processes()
    params = {"max_iter": 80, "n_jobs": 2, **params}
    killer = Killer(lambda: critic_processes(before)[0], 70)
    with pytest.warns(RuntimeWarning, match="were lost, with their process"):
        model = quick(module=killer, **params).fit(iris)
    whole = quick(module=nn_linear, **params).fit(iris)
    assert model.n_iter_ == 80
    if not model.critics_:  # nothing but the network of a critic goes back to a checkpoint
        assert_same(model, whole)
    assert model.score(iris) == pytest.approx(whole.score(iris), rel=0.2)
    assert critic_processes(before) == []


def nn_linear(latent_dim, n_features):
    return nn.Linear(latent_dim, n_features)


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_works_is_started_again(iris):
    before = critic_processes()

    def kill():
        while not (found := critic_processes(before)):
            time.sleep(0.01)
        time.sleep(1)
        os.kill(found[0], KILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.warns(RuntimeWarning, match="were lost, with their process"):
        model = quick(n_jobs=2, max_iter=200, n_potential_steps=3).fit(iris)
    thread.join()
    assert model.n_iter_ == 200


@pytest.mark.slow
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_dask_workers_give_the_same_result(params, iris, cluster_client):
    whole = quick(**params).fit(iris)
    assert_same(quick(client=cluster_client, **params).fit(iris), whole)
    with joblib.parallel_config(backend="dask"):
        assert_same(quick(**params).fit(iris), whole)


def test_a_dask_worker_that_dies_costs_time_only(iris, cluster_client):
    pids = list(cluster_client.run(os.getpid).values())
    killer = Killer(lambda: pids[0], 8)
    with pytest.warns(RuntimeWarning, match="were lost, with their dask worker"):
        model = quick(module=killer, client=cluster_client, max_iter=10).fit(iris)
    assert_same(model, quick(module=nn_linear, max_iter=10).fit(iris))
    cluster_client.wait_for_workers(2, timeout=60)
