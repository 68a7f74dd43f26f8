import importlib.util

import pytest

# A script that real ranks run; it cannot be looked through for examples without torch.
collect_ignore = [] if importlib.util.find_spec("torch") else ["deep/rank_toys.py"]


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
