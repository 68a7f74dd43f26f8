import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_home():
    """The folder with the real data sets; tests that use it skip where there is none."""
    folder = os.environ.get("SKDML_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs the data sets: set SKDML_DATA to their folder")
    return Path(folder)


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
