"""Two workers for all fits of a file, and two others for a fit that never ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import dask
import pytest
from distributed import Client

from tests.processes import local_workers


@contextmanager
def two_workers(memory_limit: int = 2**31) -> Iterator[Client]:
    with (
        # on a busy machine, Dask would move tasks from the worker that a test chose
        dask.config.set({"distributed.scheduler.work-stealing": False}),
        local_workers(memory_limit=memory_limit) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with two_workers() as client:
        yield client


@pytest.fixture
def doomed() -> Iterator[Client]:
    """Workers for a fit that never ends; they are killed, as they would not close."""
    with two_workers() as client:
        pids = set(client.run(os.getpid).values())
        yield client
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
