import contextlib
import os
import subprocess
import sys
import threading
import time

import joblib
import numpy as np
import pytest
import scipy.linalg  # noqa: F401 - its BLAS is limited too
from threadpoolctl import ThreadpoolController, threadpool_info

from skdml.utils._parallel import find_client, is_dask_array, limit_threads, make_shards
from tests.systems import KILL

BLOCKS = [np.full((3, 2), float(i)) for i in range(5)]


def scaled(block, factor):
    return block * factor


def process_id(block):
    time.sleep(0.05)
    return os.getpid()


def blas_threads(block):
    return max((lib["num_threads"] for lib in threadpool_info()), default=1)


def worker_of(block):
    from distributed import get_worker

    return get_worker().address


def slow_sum(block, seconds):
    time.sleep(seconds)
    return block.sum()


def find_client_inside(block):
    with joblib.parallel_config(backend="threading"):
        return find_client() is None


@pytest.mark.parametrize("n_jobs", [None, 1, 2, -1])
@pytest.mark.parametrize("backend", [None, "threading", "loky"])
def test_local_map_and_sum(n_jobs, backend):
    config = joblib.parallel_config(backend=backend) if backend else contextlib.nullcontext()
    with config, make_shards(BLOCKS, n_jobs=n_jobs) as shards:
        results = shards.map(scaled, 2)
        assert np.array_equal(results, [2 * block for block in BLOCKS])
        assert np.array_equal(shards.sum(scaled, 2), 2 * sum(BLOCKS))


def test_blocks_are_not_changed_by_sum():
    blocks = [np.ones(3), np.ones(3)]
    with make_shards(blocks) as shards:
        shards.sum(lambda block: block.copy())
    assert np.array_equal(blocks[0], np.ones(3))


def test_the_users_backend_decides():
    with make_shards(BLOCKS, n_jobs=2) as shards:
        assert set(shards.map(process_id)) == {os.getpid()}
        with joblib.parallel_config(backend="loky"):
            assert os.getpid() not in shards.map(process_id)


def test_n_jobs_comes_from_the_configuration(monkeypatch):
    asked = []
    original = joblib.Parallel.__init__

    def spy(self, *args, **kwargs):
        asked.append(joblib.effective_n_jobs(kwargs.get("n_jobs")))
        original(self, *args, **kwargs)

    monkeypatch.setattr(joblib.Parallel, "__init__", spy)
    with make_shards(BLOCKS) as shards:
        shards.map(scaled, 1)
        assert asked == []  # one job: no pool at all
        with joblib.parallel_config(n_jobs=2, backend="threading"):
            shards.map(scaled, 1)
    assert asked == [2]


def test_cores_are_not_oversubscribed():
    n_cores = os.cpu_count()
    with make_shards(BLOCKS, n_jobs=n_cores) as shards:
        assert max(shards.map(blas_threads)) == 1
        with joblib.parallel_config(backend="loky"):
            assert max(shards.map(blas_threads)) == 1


def test_limit_threads_puts_back_what_was_there():
    before = [lib["num_threads"] for lib in threadpool_info()]
    with limit_threads(1):
        assert {lib["num_threads"] for lib in threadpool_info()} <= {1}
    assert [lib["num_threads"] for lib in threadpool_info()] == before


def test_overlapping_limits_of_two_threads_put_back_what_torch_had():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    with limit_threads(2):
        inside, leave, after = threading.Event(), threading.Event(), []

        def hold():
            with limit_threads(1):
                inside.set()
                leave.wait(30)
            after.append(torch.get_num_threads())

        other = threading.Thread(target=hold)
        with limit_threads(1):
            other.start()
            assert inside.wait(30)
            with limit_threads(3):
                assert torch.get_num_threads() == 3
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        leave.set()
        other.join()
    fresh = threading.Thread(target=lambda: after.append(torch.get_num_threads()))
    fresh.start()
    fresh.join()
    assert [torch.get_num_threads(), *after] == [before] * 3


def test_limit_threads_puts_back_those_of_torch(monkeypatch):
    torch = pytest.importorskip("torch")
    # As where torch came after the libraries were looked for: its OpenMP is not among them.
    known = ThreadpoolController().select(user_api="blas")
    monkeypatch.setattr("skdml.utils._parallel._controller", lambda n_modules: known)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with limit_threads(2):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 3
        with pytest.raises(ZeroDivisionError), limit_threads(1):
            raise ZeroDivisionError
        assert torch.get_num_threads() == 3
        with limit_threads(None):
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_no_dask_is_imported_for_local_work():
    code = (
        "import sys, numpy as np\n"
        "from skdml import GMMLTransformer\n"
        "GMMLTransformer(n_jobs=2).fit(np.random.rand(20, 3), np.arange(20) % 2)\n"
        "assert not {'dask', 'distributed', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_client_of_the_wrong_type():
    pytest.importorskip("distributed")
    with pytest.raises(TypeError, match=r"client must be a distributed\.Client or None, got str"):
        find_client("tcp://somewhere")


# On a real cluster


def test_which_client_is_found(cluster_client):
    da = pytest.importorskip("dask.array")
    assert find_client() is None  # an active client alone changes nothing
    assert find_client(cluster_client) is cluster_client
    assert find_client(None, np.ones(3)) is None
    assert is_dask_array(da.ones(3))
    assert find_client(None, da.ones(3)) is cluster_client
    with joblib.parallel_config(backend="dask"):
        assert find_client() is cluster_client


def test_inside_a_dask_task_work_stays_on_the_worker(cluster_client):
    assert cluster_client.submit(find_client_inside, 0, pure=False).result()


def test_cluster_map_and_sum(cluster_client):
    large = np.full((3, 2, 20_000), 2.0)  # large enough to be sent to each worker once
    with make_shards(BLOCKS, client=cluster_client) as shards:
        assert np.array_equal(shards.map(scaled, 2), [2 * block for block in BLOCKS])
        assert np.array_equal(shards.sum(scaled, 2), 2 * sum(BLOCKS))
        before = shards.bytes_moved
        assert shards.sum(_largest, large) == 2.0 * len(BLOCKS)
        assert large.nbytes * 2 <= shards.bytes_moved - before < large.nbytes * 2 + 1000
        assert max(shards.map(blas_threads)) == 1


def _largest(block, array):
    return float(array.max())


def test_blocks_stay_on_their_workers(cluster_client):
    with make_shards(BLOCKS, client=cluster_client) as shards:
        first = shards.map(worker_of)
        assert len(set(first)) == 2  # both workers are used
        held = cluster_client.who_has(shards._futures)
        assert all(len(workers) == 1 for workers in held.values())


def test_delayed_blocks_are_computed_on_the_workers(cluster_client):
    dask = pytest.importorskip("dask")
    blocks = [dask.delayed(np.full)(4, i) for i in range(3)]
    with make_shards(blocks, client=cluster_client) as shards:
        assert shards.map(np.sum) == [0, 4, 8]
    with make_shards(blocks) as shards:  # the same without a cluster
        assert shards.map(np.sum) == [0, 4, 8]


def test_an_error_in_the_work_is_raised_as_it_is(cluster_client):
    for client in (None, cluster_client):
        with make_shards(BLOCKS, client=client) as shards, pytest.raises(ZeroDivisionError):
            shards.map(_divide)


def _divide(block):
    raise ZeroDivisionError("on purpose")


@pytest.mark.parametrize("reduce", ["map", "sum"])
def test_a_killed_worker_costs_time_not_the_result(reduce):
    distributed = pytest.importorskip("distributed")
    blocks = [np.full(1000, float(i)) for i in range(6)]
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
        make_shards(blocks, client=client) as shards,
    ):
        victim = next(iter(client.run(os.getpid).values()))
        killer = threading.Timer(0.5, os.kill, (victim, KILL))
        killer.start()
        result = getattr(shards, reduce)(slow_sum, 0.4)
        killer.join()
        expected = [block.sum() for block in blocks]
        assert result == (expected if reduce == "map" else sum(expected))
        # and the shards are whole again
        assert shards.map(slow_sum, 0) == expected
