"""A cluster of two worker processes for all fits of a file."""

from __future__ import annotations

from collections.abc import Iterator

import dask
import pytest
from distributed import Client

from tests.processes import local_workers


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    # Workers copy the configuration. Clients of earlier files that close in the order
    # of their creation leave the name of a scheduler in it, and then tasks of a worker
    # cannot compute collections.
    with dask.config.set(scheduler=None), local_workers() as client:
        yield client
