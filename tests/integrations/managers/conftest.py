"""The managers' own configuration, independent of earlier tests."""

from __future__ import annotations

import gc
import signal
import warnings
from collections.abc import Iterator

import coiled  # noqa: F401
import dask.config
import dask_gateway  # noqa: F401
import pytest

_interrupt = signal.getsignal(signal.SIGINT)
import dask_jobqueue  # noqa: E402, F401
import dask_kubernetes  # noqa: E402, F401

# dask_jobqueue makes ^C a SystemExit when it is imported
signal.signal(signal.SIGINT, _interrupt)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """``gen_cluster`` restores settings from before the import of these libraries."""
    for defaults in dask.config.defaults:
        dask.config.update(dask.config.config, defaults, priority="old")


@pytest.fixture(autouse=True)
def _connections_of_managers() -> Iterator[None]:
    """Collect connections that a manager's client sometimes leaves open.

    Otherwise a later test would report them.
    """
    yield
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Unclosed connection", ResourceWarning)
        gc.collect()
