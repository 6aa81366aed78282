"""The managers' own configuration, whichever tests have run before."""

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
    """``gen_cluster`` puts back what was set before these libraries were imported."""
    for defaults in dask.config.defaults:
        dask.config.update(dask.config.config, defaults, priority="old")


@pytest.fixture(autouse=True)
def _connections_of_managers() -> Iterator[None]:
    """A manager's client leaves a connection open now and then, as it is closed.

    It is collected here: else it would be an unclosed one of some later test.
    """
    yield
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Unclosed connection", ResourceWarning)
        gc.collect()
