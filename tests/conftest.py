"""What all tests share: clusters of real processes that are gone afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from distributed import Client, LocalCluster

# distributed's tests put back the configuration that was there when they were loaded
import clustertune.settings  # noqa: F401

pytest_plugins = ["distributed.utils_test"]


@pytest.fixture
def local_cluster() -> Iterator[Callable[..., tuple[LocalCluster, Client]]]:
    """Start clusters of worker processes with one thread each; closed afterwards."""
    opened: list[Any] = []

    def start(n_workers: int, **options: Any) -> tuple[LocalCluster, Client]:
        settings = {
            "threads_per_worker": 1,
            "processes": True,
            # port 8787 may be taken, and distributed then leaks a socket
            "dashboard_address": "127.0.0.1:0",
            "memory_limit": "2GiB",
        }
        cluster = LocalCluster(n_workers=n_workers, **(settings | options))
        opened.append(cluster)
        client = Client(cluster)
        opened.append(client)
        return cluster, client

    yield start
    for thing in reversed(opened):
        thing.close()
