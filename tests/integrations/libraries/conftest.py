"""A cluster of two worker processes for all fits of a file."""

from __future__ import annotations

from collections.abc import Iterator

import dask
import pytest
from distributed import Client, LocalCluster


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    # Workers copy the configuration. Clients of earlier files that close in the order
    # of their creation leave the name of a scheduler in it, and then tasks of a worker
    # cannot compute collections.
    with (
        dask.config.set(scheduler=None),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            memory_limit="2GiB",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client
