"""The managers' own configuration, whichever tests have run before."""

from __future__ import annotations

import coiled  # noqa: F401
import dask.config
import dask_gateway  # noqa: F401
import dask_jobqueue  # noqa: F401
import dask_kubernetes  # noqa: F401
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """``gen_cluster`` puts back what was set before these libraries were imported."""
    for defaults in dask.config.defaults:
        dask.config.update(dask.config.config, defaults, priority="old")
