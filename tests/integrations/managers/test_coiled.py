"""Coiled clusters with coiled's own class and real workers. The server is simulated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import coiled
import dask
import dask.array as da
import pytest
from distributed import Client, wait
from distributed.security import Security

import clustertune
from clustertune.errors import NoWorkersError
from clustertune.integrations import managers
from clustertune.integrations.managers import Coiled
from tests.integrations.managers.serving import Answer, Backend, serving
from tests.processes import workers_of

# the manager's object and what stands for its server both watch the same scheduler
pytestmark = pytest.mark.filterwarnings(
    "ignore:Scheduler already contains a plugin with name worker-status"
)

NAME = "some"
STARTED = {"state": "started", "reason": ""}
MACHINE = {
    "current_state": STARTED,
    "public_ip_address": "127.0.0.1",
    "private_ip_address": "127.0.0.1",
}


class Cloud:
    """The state and the actions of Coiled's server."""

    def __init__(self, backend: Backend, security: Security) -> None:
        self.backend = backend
        self.security = security
        self.unknown: list[str] = []
        self.deleted = False

    def __call__(
        self, method: str, path: str, query: dict[str, str], body: Any
    ) -> Answer:
        here = {"slug": "here", "name": "here", "active": True}
        if path == "/api/v2/user/me":
            return 200, {"username": "user"}
        if path == "/api/v2/user/me/memberships":
            member = {"account": here, "is_admin": True, "is_default_account": True}
            return 200, [member]
        if path.startswith("/api/v2/workers/"):
            return self.workers(method, query, body)
        if path.startswith("/api/v2/clusters/"):
            return self.clusters(method, path, query)
        self.unknown.append(f"{method} {path}")
        return 200, {}

    def workers(self, method: str, query: dict[str, str], body: Any) -> Answer:
        spec = self.backend.worker_spec
        if method == "POST":
            before = set(spec)
            self.backend.scale(len(spec) + body["n_workers"])
            return 200, [{"name": name} for name in set(spec) - before]
        if method == "DELETE":
            self.backend.forget(query["name"])
            return 200, {}
        page = list(spec) if query["offset"] == "0" else []
        return 200, [{"name": name, "current_state": STARTED} for name in page]

    def clusters(self, method: str, path: str, query: dict[str, str]) -> Answer:
        if path.endswith(f"/name/{NAME}"):
            return 200, {"id": 1}
        if "/name/" in path:
            return 404, {}
        if path.endswith("/states"):
            return 200, {}
        if path.endswith("/id/1"):
            self.deleted |= method == "DELETE"
            return 200, self.details()
        return 200, [{"name": NAME}] if query.get("offset") == "0" else []

    def details(self) -> dict[str, Any]:
        config = self.security.get_tls_config_for_role("client")
        workers = [
            {"name": name, "current_state": STARTED, "instance": MACHINE}
            for name in self.backend.worker_spec
        ]
        return {
            "id": 1,
            "desired_workers": len(workers),
            "current_state": {"state": "ready", "reason": ""},
            "scheduler": {
                "current_state": STARTED,
                "instance": MACHINE,
                "dashboard_address": "http://127.0.0.1",
            },
            "workers": workers,
            "cluster_options": {"tls_cert": config["cert"], "tls_key": config["key"]},
            "scheduler_port": self.backend.scheduler.port,
            "cluster_infra": {"give_scheduler_public_ip": True},
        }


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    security = Security.temporary()
    with Backend(NAME, security=security, protocol="tls") as backend:
        found = Cloud(backend, security)
        with serving(found) as url:
            settings = {"coiled.server": url, "coiled.token": "token"}
            with dask.config.set(settings | {"coiled.user": "user"}):
                yield found


@pytest.fixture
def cluster(cloud: Cloud) -> Iterator[coiled.Cluster]:
    options = {"show_widget": False, "credentials": None, "shutdown_on_close": False}
    with (
        coiled.Cloud() as connection,
        coiled.Cluster(name=NAME, cloud=connection, **options) as cluster,
    ):
        yield cluster


@pytest.fixture
def client(cluster: coiled.Cluster) -> Iterator[Client]:
    with Client(cluster) as client:
        yield client


def names(client: Client) -> set[str]:
    workers = workers_of(client).values()
    return {w["name"] for w in workers}


def test_up_and_down(cloud: Cloud, cluster: coiled.Cluster, client: Client) -> None:
    """Only the machine of the removed worker is stopped."""
    assert isinstance(managers.find(cluster), Coiled)
    assert clustertune.scale(client, 3).status == "done"
    X = client.persist(da.ones((300, 10), chunks=(10, 10)) * 2)
    wait(X)
    report = clustertune.scale(client, 2, X)
    assert report.status == "done", str(report)
    assert set(cloud.backend.worker_spec) == names(client)
    assert len(names(client)) == 2
    assert float(X.sum().compute()) == 6000.0
    assert not cloud.deleted


def test_adaptive_scaling(cluster: coiled.Cluster, client: Client) -> None:
    """It runs in this process, and continues after a request for workers."""
    assert client.sync(managers.find(cluster).bounds) is None
    with pytest.raises(NoWorkersError, match="does not scale by itself"):
        client.sync(managers.find(cluster).adapt, 1, 4)
    cluster.adapt(minimum=1, maximum=5)
    with pytest.raises(NoWorkersError, match="scaling by hand would end that"):
        client.sync(Coiled(cluster).scale, 3, 2)
    client.sync(managers.find(cluster).adapt, 3, math.inf)
    client.sync(Coiled(cluster).scale, 3, 2)
    assert client.sync(managers.find(cluster).bounds) == (3, math.inf)
    cluster._adaptive.stop()
    assert client.sync(managers.find(cluster).bounds) is None
