"""Kubernetes clusters with dask_kubernetes's own class and real workers.

The API server and the operator are simulated.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import pytest
from dask_kubernetes.operator import KubeCluster
from distributed import Client, wait

import clustertune
from clustertune.core.model import Unknown
from clustertune.errors import NoWorkersError
from clustertune.integrations import managers
from clustertune.integrations.managers import MAX_WORKERS, Kubernetes
from tests.integrations.managers.serving import Answer, Backend, serving
from tests.processes import workers_of

# the manager's object and what stands for its server both watch the same scheduler
pytestmark = pytest.mark.filterwarnings(
    "ignore:Scheduler already contains a plugin with name worker-status"
)

NAME = "some"
DASK = "/apis/kubernetes.dask.org/v1/namespaces/default"
CORE = "/api/v1/namespaces/default"
APPS = "/apis/apps/v1/namespaces/default"


def kinds(*names: str) -> dict[str, Any]:
    """Return the resource kinds of one API version."""
    return {
        "resources": [
            {"kind": n, "name": f"{n.lower()}s", "singularName": n.lower()}
            | {"namespaced": True}
            for n in names
        ]
    }


VERSIONS = ("apps/v1", "kubernetes.dask.org/v1")
ABOUT: dict[str, Any] = {
    "/version/": {"gitVersion": "v1.34.0"},
    "/api/": {"versions": ["v1"]},
    "/api//v1": kinds("Pod", "Service"),
    "/apis/": {
        "groups": [
            {"name": v.split("/")[0], "versions": [{"groupVersion": v}]}
            for v in VERSIONS
        ]
    },
    "/apis//apps/v1": kinds("Deployment"),
    "/apis//kubernetes.dask.org/v1": kinds(
        "DaskCluster", "DaskWorkerGroup", "DaskAutoscaler"
    ),
}
ABOUT |= {path.replace("//", "/"): found for path, found in ABOUT.items()}


def resource(kind: str, name: str, **others: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"} | others.pop("metadata", {})
    return {"kind": kind, "metadata": metadata} | others


class Operator:
    """The resources of the API server, and the actions of the operator."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.replicas = len(backend.worker_spec)
        self.autoscaler: dict[str, Any] | None = None
        self.down = False
        self.answers = threading.Event()
        self.answers.set()

    def __call__(
        self, method: str, path: str, query: dict[str, str], body: Any
    ) -> Answer:
        self.answers.wait(100)
        if self.down:
            return 500, {"message": "down"}
        if path in ABOUT:
            return 200, ABOUT[path]
        known = self.resources()
        if method == "POST":
            self.autoscaler = body["spec"]
            return 201, body
        if path in known:
            return 200, {"items": [r for r in known[path] if _selected(r, query)]}
        folder, _, name = path.rpartition("/")
        found = next((r for r in known.get(folder, []) if _name(r) == name), None)
        if found is None:
            return 404, {"message": f"{path} is not there"}
        if method == "PATCH":
            self.patch(folder, body["spec"])
        elif method == "DELETE":
            self.delete(folder, name)
        return 200, found

    def patch(self, folder: str, spec: Any) -> None:
        if folder.endswith("daskautoscalers"):
            self.autoscaler = self.autoscaler | spec
            return
        self.replicas = spec["worker"]["replicas"]
        if self.replicas > len(
            self.backend.worker_spec
        ):  # as daskworkergroup_replica_update
            self.backend.scale(self.replicas)

    def delete(self, folder: str, name: str) -> None:
        if folder.endswith("deployments"):
            self.backend.forget(name)
        else:
            self.autoscaler = None

    def resources(self) -> dict[str, list[dict[str, Any]]]:
        worker = {"replicas": self.replicas, "spec": {"containers": [{"image": "i"}]}}
        scheduler = {"spec": {"containers": [{"args": []}]}}
        ready = [{"type": t, "status": "True"} for t in ("Ready", "ContainersReady")]
        ports = [
            {"name": "tcp-comm", "port": self.backend.scheduler.port},
            {"name": "http-dashboard", "port": 8787},
        ]
        pods = [
            resource(
                "Pod",
                name,
                metadata={"labels": _labels(component)},
                status={"phase": "Running", "conditions": ready},
            )
            for name, component in [
                (f"{NAME}-scheduler", "scheduler"),
                *((name, "worker") for name in self.backend.worker_spec),
            ]
        ]
        bounds = self.autoscaler
        return {
            f"{DASK}/daskclusters": [
                resource(
                    "DaskCluster", NAME, spec={"worker": worker, "scheduler": scheduler}
                )
            ],
            f"{DASK}/daskworkergroups": [
                resource(
                    "DaskWorkerGroup",
                    f"{NAME}-default",
                    spec={"cluster": NAME, "worker": worker},
                )
            ],
            f"{DASK}/daskautoscalers": []
            if bounds is None
            else [resource("DaskAutoscaler", NAME, spec=bounds)],
            f"{CORE}/pods": pods,
            f"{CORE}/services": [
                resource(
                    "Service",
                    f"{NAME}-scheduler",
                    spec={
                        "type": "LoadBalancer",
                        "ports": ports,
                        "selector": _labels("scheduler"),
                    },
                    status={"loadBalancer": {"ingress": [{"ip": "127.0.0.1"}]}},
                )
            ],
            f"{APPS}/deployments": [
                resource("Deployment", name, metadata={"labels": _labels("worker")})
                for name in self.backend.worker_spec
            ],
        }


def _labels(component: str) -> dict[str, str]:
    group = {"dask.org/workergroup-name": f"{NAME}-default"}
    labels = {"dask.org/cluster-name": NAME, "dask.org/component": component}
    return labels | (group if component == "worker" else {})


def _selected(found: dict[str, Any], query: dict[str, str]) -> bool:
    """Select like the API server, by labels and by name."""
    wanted = dict(
        part.split("=") for part in query.get("labelSelector", "").split(",") if part
    )
    fields = dict(
        part.split("=") for part in query.get("fieldSelector", "").split(",") if part
    )
    labels = found["metadata"].get("labels", {})
    return wanted.items() <= labels.items() and fields.get(
        "metadata.name", _name(found)
    ) == _name(found)


def _name(found: dict[str, Any]) -> str:
    return str(found["metadata"]["name"])


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    file: Path = tmp_path_factory.mktemp("kubernetes") / "config"
    with Backend(NAME) as backend, pytest.MonkeyPatch.context() as patch:
        operator = Operator(backend)
        with serving(operator) as url:
            file.write_text(json.dumps(configuration(url)))
            patch.setenv("KUBECONFIG", str(file))
            yield operator


def configuration(url: str) -> dict[str, Any]:
    context = {"cluster": "c", "user": "u", "namespace": "default"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "here", "context": context}],
    }


@pytest.fixture
def cluster(operator: Operator) -> Iterator[KubeCluster]:
    with KubeCluster.from_name(NAME, quiet=True) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: KubeCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        yield client


def names(client: Client) -> set[str]:
    workers = workers_of(client).values()
    return {w["name"] for w in workers}


def test_up_and_down(operator: Operator, cluster: KubeCluster, client: Client) -> None:
    """Only the deployment of the removed worker is deleted."""
    assert isinstance(managers.find(cluster), Kubernetes)
    assert clustertune.scale(client, 3).status == "done"
    assert operator.replicas == 3
    X = client.persist(da.ones((300, 10), chunks=(10, 10)) * 2)
    wait(X)
    report = clustertune.scale(client, 2, X)
    assert report.status == "done", str(report)
    assert operator.replicas == 2
    assert set(operator.backend.worker_spec) == names(client)
    assert len(names(client)) == 2
    assert float(X.sum().compute()) == 6000.0


def test_adaptive_scaling(
    operator: Operator, cluster: KubeCluster, client: Client
) -> None:
    """It is a resource, which can be set, changed, and survives a scale."""
    clustertune.scale(client, 2)
    assert client.sync(managers.find(cluster).bounds) is None
    with pytest.raises(NoWorkersError, match="does not scale by itself"):
        client.sync(managers.find(cluster).adapt, 1, 4)
    cluster.adapt(minimum=0, maximum=5)
    assert client.sync(managers.find(cluster).bounds) == (0, 5)
    with pytest.raises(NoWorkersError, match="scaling by hand would end that"):
        client.sync(Kubernetes(cluster).scale, 3, 2)
    client.sync(Kubernetes(cluster).scale, 0, 2)  # the autoscaler sees to them
    client.sync(managers.find(cluster).adapt, 2, math.inf)
    assert client.sync(managers.find(cluster).bounds) == (2, MAX_WORKERS)
    operator.autoscaler = None


def test_a_server_that_fails(
    operator: Operator, cluster: KubeCluster, client: Client
) -> None:
    """A look continues without the answer of the server."""
    operator.down = True
    try:
        found = client.sync(managers.find(cluster).bounds)
        assert isinstance(found, Unknown)
        assert "Kubernetes did not answer" in found.reason
        with pytest.raises(NoWorkersError, match="did not answer"):
            client.sync(Kubernetes(cluster).scale, 3, 2)
    finally:
        operator.down = False


def test_a_server_without_an_answer(
    operator: Operator,
    cluster: KubeCluster,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Looks at the cluster do not use up the threads of the client."""
    monkeypatch.setattr(managers, "ANSWER_TIMEOUT", 0.1)
    operator.answers.clear()
    try:
        for _ in range(min(32, (os.cpu_count() or 1) + 4) + 1):
            found = client.sync(managers.find(cluster).bounds)
            assert "Kubernetes did not answer" in found.reason
        client.sync(asyncio.to_thread, int, callback_timeout=30)
    finally:
        operator.answers.set()
