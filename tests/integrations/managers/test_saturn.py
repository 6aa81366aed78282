"""Saturn clusters with dask_saturn's own class and real workers.

The server is simulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.array as da
import dask_saturn
import pytest
from distributed import Client, wait

import clustertune
from clustertune.core.model import Unknown, WorkerSize
from clustertune.errors import RefusedError
from clustertune.integrations import managers
from tests.builders import worker
from tests.integrations.managers.serving import Answer, Backend, serving
from tests.processes import workers_of

# the manager's object and what stands for its server both watch the same scheduler
pytestmark = pytest.mark.filterwarnings(
    "ignore:Scheduler already contains a plugin with name worker-status"
)


class SaturnCluster(dask_saturn.SaturnCluster):
    """A class without distributed's warnings: its status is a text, never closed."""

    def __del__(self) -> None:
        """The object needs no cleanup."""


class Saturn:
    """The requests to the server, and its actions."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def __call__(
        self, method: str, path: str, query: dict[str, str], body: Any
    ) -> Answer:
        backend, verb = self.backend, path.rpartition("/")[2]
        if verb == "info":
            address = backend.scheduler_address
            return 200, {"dashboard_link": "none", "scheduler_address": address}
        if verb == "status":
            return 200, {"status": backend.status.name}
        if verb == "scheduler_info":
            found = backend.scheduler_info["workers"]
            return 200, {"workers": {a: {"name": w["name"]} for a, w in found.items()}}
        if verb == "scale":
            self.scale(body["n"])
        else:
            return 404, {"message": f"{method} {path} is not there"}
        return 200, {}

    def scale(self, n: int) -> None:
        """Forget lost workers first, because the backend may learn of them later."""
        spec = self.backend.worker_spec
        there = {ws.name for ws in self.backend.scheduler.workers.values()}
        gone = [name for name in spec if name not in there]
        for name in gone[: max(0, len(spec) - n)]:
            del spec[name]
        self.backend.scale(n)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Saturn, str]]:
    with Backend("saturn") as backend:
        found = Saturn(backend)
        with serving(found) as url:
            monkeypatch.setenv("SATURN_BASE_URL", url)
            monkeypatch.setenv("SATURN_TOKEN", "token")
            monkeypatch.setenv("SATURN_IS_INTERNAL", "true")
            yield found, url


def test_a_cluster(server: tuple[Saturn, str]) -> None:
    """It scales up, and down without loss; its own call closes it."""
    asked, url = server
    cluster = SaturnCluster(cluster_url=f"{url}/api/dask_clusters/1")
    with Client(cluster) as client:
        assert isinstance(managers.find(cluster), managers.Saturn)
        assert clustertune.scale(client, 3).status == "done"
        X = client.persist(da.ones((300, 10), chunks=(10, 10)) * 2)
        wait(X)
        report = clustertune.scale(client, 2, X)
        assert report.status == "done", str(report)
        assert float(X.sum().compute()) == 6000.0
        workers = workers_of(client).values()
        assert {w["name"] for w in workers} == set(asked.backend.worker_spec)
        assert len(workers) == 2

        with pytest.raises(RefusedError) as refused:
            clustertune.resize_workers(client, X, nthreads=2, memory_limit="1 TiB")
        line = 'cluster = cluster.reset(n_workers=2, worker_size="NAME", nthreads=2)'
        assert f"run `{line}`" in str(refused.value)
        assert {w["nthreads"] for w in workers_of(client).values()} == {1}

        assert isinstance(client.sync(managers.find(cluster).bounds), Unknown)
    adapter = managers.find(cluster)
    assert adapter.obstacle(3) is None
    cluster.cluster_url = None
    assert adapter.obstacle(3) == "the cluster was closed; make a new one"


@pytest.mark.parametrize(
    ("size", "nthreads"),
    [
        (WorkerSize(nthreads=1), None),
        (WorkerSize(memory_limit=2**20), None),
        (WorkerSize(nthreads=4), 4),
        (WorkerSize(memory_limit=2**40), 1),
    ],
)
def test_another_size(size: WorkerSize, nthreads: int | None) -> None:
    """Only more threads and more memory need another cluster."""
    reason = managers.Saturn(None).resize_obstacle(size, [worker(0), worker(1)])
    call = f'cluster.reset(n_workers=2, worker_size="NAME", nthreads={nthreads})'
    assert (reason is None) is (nthreads is None)
    assert reason is None or call in reason
