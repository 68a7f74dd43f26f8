"""Ranks on several hosts: network namespaces with a scheduler and workers of their own."""

import json
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("skorch")
pytest.importorskip("distributed")

from tests.deep import host_fit
from tests.hosts import Hosts, NoHosts

pytestmark = pytest.mark.slow

_GUIDE = Path(__file__).parents[2] / "doc" / "guide" / "distributed.md"


@pytest.fixture
def hosts():
    try:
        with Hosts(3) as hosts:
            yield hosts
    except NoHosts as reason:
        pytest.skip(f"no network namespaces here: {reason}")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The weights of the same fit on one machine."""
    module = host_fit.fit(tmp_path_factory.mktemp("alone")).module_
    return {name: value.numpy() for name, value in module.state_dict().items()}


def start_cluster(hosts, workers, patience=300):
    """Start a scheduler on the first host and workers on others; return the scheduler's address.

    A worker that says nothing for `patience` seconds is dead to the scheduler.
    """
    scheduler = f"tcp://{hosts.addresses[0]}:8786"
    quiet = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{patience}s"}
    words = "dask", "scheduler", "--host", hosts.addresses[0], "--no-dashboard"
    hosts.start(0, *words, **quiet)
    for host in workers:
        words = "dask", "worker", scheduler, "--host", hosts.addresses[host], "--nthreads", "1"
        hosts.start(host, *words, "--no-dashboard")
    return scheduler


def start_fit(hosts, scheduler, folder, **options):
    words = "-m", "tests.deep.host_fit", scheduler, str(folder), json.dumps(options)
    return hosts.start(0, sys.executable, *words)


def outcome(process, folder, seconds):
    output = process.communicate(timeout=seconds)[0]
    assert process.returncode == 0, output
    return np.load(folder / "weights.npz"), (folder / "warnings").read_text()


def assert_same_weights(found, expected):
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)


def test_ranks_on_two_hosts(hosts, alone, tmp_path):
    scheduler = start_cluster(hosts, (1, 2))
    found, warned = outcome(start_fit(hosts, scheduler, tmp_path), tmp_path, 120)
    assert_same_weights(found, alone)
    assert "starts again" not in warned
    assert (tmp_path / "rank-1-epoch-1").read_text() == hosts.addresses[1]


def test_a_host_that_is_cut_off_is_a_dead_worker(hosts, alone, tmp_path):
    scheduler = start_cluster(hosts, (0, 1, 2), patience=20)
    fit = start_fit(hosts, scheduler, tmp_path, seconds=1.0, timeout=6)
    while not (tmp_path / "rank-1-epoch-1").exists():
        assert fit.poll() is None, fit.communicate()[0]
        time.sleep(0.05)
    hosts.cut_off(1)
    found, warned = outcome(fit, tmp_path, 200)
    assert_same_weights(found, alone)
    assert "restart 1 of 1" in warned


def test_the_guide_s_torchrun_commands_on_two_hosts(hosts, tmp_path):
    text = _GUIDE.read_text(encoding="utf-8")
    script = re.search(r"```python\n(# train.py.*?)```", text, flags=re.S)[1]
    (tmp_path / "train.py").write_text(script)
    command = re.search(r"```sh\n(HOST=.*?)```", text, flags=re.S)[1]
    command = command.replace("HOST=node1", f"HOST={hosts.addresses[0]}")
    started = [
        hosts.start(host, "bash", "-c", command, folder=tmp_path, GLOO_SOCKET_IFNAME="eth0")
        for host in (0, 1)
    ]
    outputs = [process.communicate(timeout=240)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs
    recalls = re.findall(r"recall@1 ([0-9.]+)", "".join(outputs))
    assert len(recalls) == 1  # rank 0 tells it
    assert float(recalls[0]) > 0.9
    assert (tmp_path / "model.joblib").exists()
