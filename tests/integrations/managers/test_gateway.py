"""Gateway clusters: a real gateway with its server, proxy and workers."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import dask.array as da
import pytest
from dask_gateway import Gateway, GatewayCluster
from distributed import Client, wait

import clustertune
from clustertune.core.model import Severity, Unknown
from clustertune.errors import NoWorkersError, RefusedError
from clustertune.integrations import managers
from tests.processes import free_ports, process, until, workers_of

CONFIGURATION = """
import sys
c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
c.Proxy.address = "127.0.0.1:{web}"
c.Proxy.tcp_address = "127.0.0.1:{tcp}"
c.UnsafeLocalBackend.clusters_directory = "{folder}"
c.ClusterConfig.scheduler_cmd = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
c.ClusterConfig.worker_cmd = [sys.executable, "-m", "distributed.cli.dask_worker"]
c.ClusterConfig.worker_memory = "1 G"
"""

# dask_gateway fails where what was closed is collected
KEPT: list[Any] = []


def answers(port: int) -> bool:
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> Iterator[None]:
    """The scheduler cannot import these tests."""
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("gateway")
    web, tcp = free_ports(1)[0], free_ports(1)[0]
    text = CONFIGURATION.format(web=web, tcp=tcp, folder=folder / "clusters")
    (folder / "configuration.py").write_text(text)
    command = (sys.executable, "-m", "dask_gateway_server", "-f")
    settings = {
        "gateway.address": f"http://127.0.0.1:{web}",
        "gateway.proxy-address": tcp,
        "gateway.auth.type": "basic",
    }
    with (
        process(*command, str(folder / "configuration.py")),
        dask.config.set(settings),
    ):
        until(lambda: answers(web))
        with Gateway() as gateway:
            until(lambda: _serves(gateway))
            KEPT.append(gateway)
            yield gateway


def _serves(gateway: Gateway) -> bool:
    """The proxy answers before it has the server's address."""
    try:
        gateway.list_clusters()
    except ValueError:  # so the client says 404
        return False
    return True


@pytest.fixture(scope="module")
def cluster(server: Gateway) -> Iterator[GatewayCluster]:
    with server.new_cluster() as cluster:
        KEPT.append(cluster)
        yield cluster


@pytest.fixture
def client(cluster: GatewayCluster) -> Iterator[Client]:
    with cluster.get_client() as client:
        yield client


def there(client: Client) -> int:
    return len(workers_of(client))


def test_up_and_down(cluster: GatewayCluster, client: Client) -> None:
    """No data is lost, and the server does not replace the removed worker."""
    assert isinstance(managers.find(cluster), managers.Gateway)
    assert clustertune.scale(client, 3).status == "done"
    X = client.persist(da.ones((300, 10), chunks=(10, 10)) * 2)
    wait(X)
    report = clustertune.scale(client, 2, X)
    assert report.status == "done", str(report)
    assert "lost 0" in report.steps[0].details
    assert float(X.sum().compute()) == 6000.0
    assert there(client) == 2
    # the server begins a worker for one that went unasked; it is asked not to
    assert client.run_on_scheduler(_count) == 2


def _count(dask_scheduler: Any) -> int:
    """Return the number of workers that the gateway's scheduler part requests."""
    (plugin,) = (
        p
        for p in dask_scheduler.plugins.values()
        if type(p).__name__ == "GatewayPlugin"
    )
    return int(plugin.service.count)


def test_a_restart_is_refused(cluster: GatewayCluster, client: Client) -> None:
    """The server would end a worker that is away, and start another."""
    workers = set(workers_of(client))
    for call in (
        clustertune.restart_workers,
        partial(clustertune.resize_workers, nthreads=2),
    ):
        with pytest.raises(
            RefusedError, match="a gateway ends a worker that its nanny"
        ):
            call(client)
    assert set(workers_of(client)) == workers


def test_a_cluster_object_that_lost_its_scheduler(
    cluster: GatewayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many workers are left is unknown, so no number is requested."""
    monkeypatch.setattr(cluster, "scheduler_info", {})
    with pytest.raises(NoWorkersError, match="does not know its workers"):
        asyncio.run(managers.find(cluster).retired("absent"))


def test_adaptive_scaling(cluster: GatewayCluster, client: Client) -> None:
    """Its bounds cannot be read, as the message explains."""
    assert isinstance(client.sync(managers.find(cluster).bounds), Unknown)
    (found,) = (
        f for f in clustertune.check(client).found if f.check == "adaptive_scaling"
    )
    assert found.severity is Severity.unknown
    assert "only the gateway's server knows" in found.message


def test_a_cluster_that_was_closed(server: Gateway, cluster: GatewayCluster) -> None:
    """Only this object is closed; the cluster continues."""
    with server.connect(cluster.name) as other:
        KEPT.append(other)
        adapter = managers.find(other)
        assert adapter.obstacle(3) is None
    assert "closed; connect to the cluster again" in str(adapter.obstacle(3))
