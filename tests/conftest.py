import importlib.util
import os
import signal

import pytest

# Programs in the background of a shell ignore interrupts, and so would those that tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A script that real ranks run; it cannot be looked through for examples without torch.
collect_ignore = [] if importlib.util.find_spec("torch") else ["deep/rank_toys.py"]
if not importlib.util.find_spec("psutil"):
    collect_ignore += ["kills/run.py", "kills/drive.py", "sockets.py"]
if not hasattr(os, "fork"):  # ranks are forked
    ranks = ("distributed", "distributed_faults", "distributed_gradients", "hosts")
    collect_ignore += [f"deep/test_{name}.py" for name in ranks]


@pytest.fixture(scope="module")
def cluster_client():
    """A client of a real dask cluster: two worker processes with one thread each."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client
