from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import clustertune
from clustertune.errors import NoWorkersError
from clustertune.integrations import managers
from clustertune.integrations.managers import SpecCluster
from tests.processes import until, workers_of


def test_the_most_general_comes_last() -> None:
    """Specific managers derive from the general one."""
    kinds = list(managers.ADAPTERS)
    assert kinds[-1] == ("distributed", "SpecCluster")
    assert kinds[:-1] == sorted(kinds[:-1])


def test_no_library_of_a_manager_is_imported() -> None:
    """Neither the import nor the choice of a manager imports its library."""
    code = (
        "import sys, clustertune.cli; from clustertune.integrations import managers; "
        "assert type(managers.find(object())) is managers.Adapter; "
        "print({m.split('.')[0] for m in sys.modules} & {'coiled', 'dask_gateway', "
        "'dask_jobqueue', 'dask_kubernetes', 'dask_saturn', 'aiohttp', 'kr8s'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "set()"


def test_adaptive_scaling_of_a_local_cluster(local_cluster: Any) -> None:
    """It keeps new bounds and its settings while it runs."""
    local, client = local_cluster(1, processes=False, protocol="tcp://")
    assert isinstance(managers.find(local), SpecCluster)
    assert client.sync(managers.find(local).bounds) is None
    with pytest.raises(NoWorkersError, match="does not scale by itself"):
        client.sync(managers.find(local).adapt, 1, 2)
    adaptive = local.adapt(minimum=1, maximum=4, interval="50ms", wait_count=1)
    client.sync(managers.find(local).adapt, 2, 2)
    until(lambda: len(workers_of(client)) == 2)
    client.sync(managers.find(local).adapt, 1, 4)
    until(lambda: len(workers_of(client)) == 1)
    assert local._adaptive is adaptive
    assert client.sync(managers.find(local).bounds) == (1, 4)
    adaptive.stop()
    assert client.sync(managers.find(local).bounds) is None
    # with an unknown cluster object, the error has the call to use
    client.cluster = object()
    assert client.sync(managers.find(client.cluster).bounds) is None
    assert managers.find(client.cluster).restart_obstacle() is None
    with pytest.raises(NoWorkersError, match=r"scale\(3\) and wait for the workers$"):
        clustertune.scale(client, 3)
