"""Workers and schedulers of dask clusters that are killed while they are spoken to."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.datasets import load_iris

from skdml.utils._cluster import WorkerLost, lost_workers, repeat_if_lost
from skdml.utils._parallel import computed, make_shards
from tests.systems import KILL, needs_fork

distributed = pytest.importorskip("distributed")
BLOCKS = [np.full((3, 2), float(i)) for i in range(4)]


class KillsFirst:
    """Kills the worker that data is about to be sent to, the first `times` times."""

    def __init__(self, client, monkeypatch, times=1, skip=0):
        self.client, self.times, self.skip = client, times, skip
        self.scatter = client.scatter
        monkeypatch.setattr(client, "scatter", self)

    def __call__(self, data, workers=None, **options):
        self.skip -= 1
        if self.skip < 0 and self.times:
            self.times -= 1
            processes = self.client.run(os.getpid)
            address = workers[0] if workers else next(iter(processes))
            os.kill(processes[address], KILL)
        return self.scatter(data, workers=workers, **options)


def total(block, weights):
    return (block * weights.sum()).sum()


@pytest.mark.parametrize("skip", [0, 2, 4])  # the first block, a later one, the large argument
def test_a_worker_that_dies_while_data_is_sent(cluster_client, monkeypatch, skip):
    weights = np.ones(50_000)
    expected = [total(block, weights) for block in BLOCKS]
    killer = KillsFirst(cluster_client, monkeypatch, skip=skip)
    with make_shards(BLOCKS, client=cluster_client) as shards:
        assert shards.map(total, weights) == expected
        assert killer.times == 0
        assert shards.sum(total, weights) == sum(expected)


def test_a_worker_that_dies_while_its_critics_start(cluster_client, monkeypatch):
    pytest.importorskip("torch")
    from skdml import WassersteinGenerator

    X = load_iris().data
    model = WassersteinGenerator(max_iter=3, n_critics=2, batch_size=16, random_state=0)
    whole = model.fit(X).sample(5, random_state=0)
    KillsFirst(cluster_client, monkeypatch)
    model.set_params(client=cluster_client)
    with pytest.warns(RuntimeWarning, match="critics 0.* were lost, with their dask worker"):
        model.fit(X)
    np.testing.assert_array_equal(model.sample(5, random_state=0), whole)


@needs_fork
def test_a_worker_that_dies_before_its_rank_is_waited_for(cluster_client, monkeypatch):
    pytest.importorskip("torch")
    from skdml.deep import Distributed
    from skdml.deep.distributed import _hosts
    from skdml.deep.distributed._hosts import Hosts

    monkeypatch.setattr(_hosts, "PATIENCE", 600.0)  # of a machine that has other work
    X, y = load_iris(return_X_y=True)
    cluster_client.wait_for_workers(2, timeout=60)  # one may still come back from another test
    processes = list(cluster_client.run(os.getpid).values())
    os.kill(processes[0], KILL)
    while len(cluster_client.scheduler_info(n_workers=-1)["workers"]) == 2:
        time.sleep(0.01)
    hosts = Hosts(cluster_client, (b"", X, y), Distributed(2))
    try:
        assert hosts.start() == 0
    finally:
        hosts.close()


def test_dask_arrays_are_computed_in_spite_of_a_death(cluster_client):
    da = pytest.importorskip("dask.array")
    processes = list(cluster_client.run(os.getpid).values())
    killer = threading.Timer(0.3, os.kill, (processes[0], KILL))
    slow = da.from_array(np.arange(6.0), chunks=1).map_blocks(_slowly, dtype=float)
    killer.start()
    np.testing.assert_array_equal(computed(slow), np.arange(6.0))
    killer.join()


def _slowly(block):
    time.sleep(0.3)
    return block


def test_errors_of_the_work_are_not_repeated(cluster_client):
    calls = []

    def fail():
        calls.append(1)
        with lost_workers(cluster_client):
            raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        repeat_if_lost(cluster_client, fail)
    assert len(calls) == 1


def test_a_cluster_that_loses_everything_is_named(cluster_client, monkeypatch):
    monkeypatch.setattr("skdml.utils._cluster.time.sleep", lambda seconds: None)

    def lose():
        raise WorkerLost("on purpose")

    with pytest.raises(RuntimeError, match=r"at tcp://127.* 6 times in a row, at last: on purpose"):
        repeat_if_lost(cluster_client, lose)


# Schedulers

CLUSTER = """
import sys, time
from distributed import LocalCluster
if __name__ == "__main__":
    cluster = LocalCluster(2, threads_per_worker=1, dashboard_address=":0")
    print(cluster.scheduler_address, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def mortal_client(tmp_path):
    """A client of a cluster in another process, and that process."""
    if not hasattr(os, "killpg"):
        pytest.skip("the cluster is ended as a group of processes, which is POSIX")
    script = tmp_path / "cluster.py"
    script.write_text(CLUSTER)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},  # for these functions
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        address = process.stdout.readline().strip()
        with distributed.Client(address, timeout=5) as client:
            client.wait_for_workers(2, timeout=60)
            yield client, process
    finally:
        os.killpg(process.pid, KILL)
        process.wait()


def run_shards(client):
    with make_shards(BLOCKS, client=client) as shards:
        while True:
            shards.map(total, np.ones(3))


def run_ranker(client):
    from skdml import LocalGMMLRanker
    from skdml.datasets import make_ranking

    X, y, qid = make_ranking(n_queries=20, random_state=0)[:3]
    with joblib.parallel_config(backend="dask"):
        while True:
            LocalGMMLRanker(random_state=0).fit(X, y, qid)


def run_generator(client):
    from skdml import WassersteinGenerator

    WassersteinGenerator(max_iter=10**6, n_critics=2, random_state=0, client=client).fit(
        load_iris().data
    )


def run_embedder(client):
    from skdml import DeepMetricEmbedder
    from skdml.deep import Distributed

    X, y = load_iris(return_X_y=True)
    options = Distributed(2, client=client)
    DeepMetricEmbedder(max_epochs=10**6, distributed=options, random_state=0).fit(X, y)


@pytest.mark.parametrize(
    "run",
    [
        run_shards,
        pytest.param(run_ranker, marks=pytest.mark.slow),
        pytest.param(run_generator, marks=pytest.mark.slow),
        pytest.param(run_embedder, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:critics")
def test_a_dead_scheduler_is_one_error_that_names_it(run, mortal_client):
    client, process = mortal_client
    address = client.scheduler.address
    if run is not run_shards:
        pytest.importorskip("torch")
    deaths = []

    def kill():
        os.kill(process.pid, KILL)
        deaths.append(time.monotonic())

    killer = threading.Timer(3 if run is run_shards else 10, kill)
    killer.start()
    with pytest.raises(RuntimeError, match=rf"scheduler .* at {address} .*[Ss]tart the cluster"):
        run(client)
    killer.join()
    assert time.monotonic() - deaths[0] < 60
