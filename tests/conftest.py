"""Fixtures of all tests: clusters of real processes, which are closed afterwards."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import dask
import hypothesis
import pytest
from distributed import Client, LocalCluster, core

# distributed's tests put back the configuration that was there when they were loaded
import clustertune.core.settings  # noqa: F401
from tests.processes import IN_PROCESS, LOCAL, fork_workers

fork_workers()

# calls of tests are not added to the history of the user
os.environ["DASK_CLUSTERTUNE__HISTORY__ENABLED"] = "False"
dask.config.set({"clustertune.history.enabled": False})

# processes of pytest-xdist have it, and reports obey it without a terminal
os.environ.pop("COLUMNS", None)

# A LocalCluster looks this long after each loss whether the worker is there, and closes
# it if it has been lost again meanwhile: tests kill the same worker more than once.
dask.config.set({"distributed.deploy.lost-worker-timeout": "20 minutes"})

# where gilknocker is installed, it raises a warning when the machine is busy
dask.config.set({"distributed.admin.system-monitor.gil.enabled": False})

# how long an example takes says something about the machine, and fails where it is busy
hypothesis.settings.register_profile("clustertune", deadline=None)
hypothesis.settings.load_profile("clustertune")

# a shell has its jobs in the background ignore ^C, which tests send to themselves
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["distributed.utils_test"]


def pytest_configure() -> None:
    """Leave the time limit to pytest: that of ``gen_cluster`` is 30 s.

    It has none in a debugger. A busy machine may need longer.
    """
    sys.modules["distributed.utils_test"].is_debugging = lambda: True


def pytest_report_teststatus(report: Any) -> tuple[str, str, str] | None:
    """Name a failed test at once: a run that is cut off never comes to its summary."""
    if not report.failed:
        return None
    kind, letter = ("failed", "F") if report.when == "call" else ("error", "E")
    return kind, f"\n{letter} {report.nodeid}\n", kind.upper()


def pytest_collection_finish() -> None:
    """Freeze imported objects, so that the garbage collector skips them."""
    gc.freeze()


def pytest_runtest_teardown() -> None:
    """Clear a cache of distributed that keeps all servers."""
    core._expects_comm.cache_clear()


@pytest.fixture
def local_cluster() -> Iterator[Callable[..., tuple[LocalCluster, Client]]]:
    """Start clusters of workers with one thread each, and close them."""
    opened: list[Any] = []

    def start(n_workers: int, **options: Any) -> tuple[LocalCluster, Client]:
        defaults = LOCAL if options.get("processes", True) else IN_PROCESS
        cluster = LocalCluster(n_workers=n_workers, **(defaults | options))
        opened.append(cluster)
        client = Client(cluster)
        opened.append(client)
        return cluster, client

    yield start
    for thing in reversed(opened):
        thing.close()
