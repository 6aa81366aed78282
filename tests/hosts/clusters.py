"""A cluster on the hosts of a lab, its data, and faults during calls."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import create_connection
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, futures_of, wait

from tests.chaos import live
from tests.hosts.lab import Host, Lab
from tests.processes import start_stealing, stop_stealing, until, workers_of

MIB = 2**20
PORT = 8786
#: nothing that a call needs for a time remains: leases, holds, parking workers, ...
SETTLED = {
    "parking workers": 0,
    "lease": None,
    "jobs": 0,
    "manager held by": 0,
    "holds": 0,
    "paused": 0,
}
LABELS_OF = 2  # the label of a row is its number times this


class Cluster:
    """A scheduler on its host, and workers on others; tests of a module share it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.address = f"tcp://{lab['scheduler'].address}:{PORT}"
        self.wanted: dict[str, dict[str, Any]] = {}
        self.clients: list[Client] = []

    def start(self, **wanted: int | dict[str, Any]) -> Client:
        """Connect to a cluster with these workers by host, like ``h1=2``.

        The cluster of the test before is used again if it has them.
        """
        spec = {
            name: value if isinstance(value, dict) else {"n": value}
            for name, value in wanted.items()
        }
        if spec != self.wanted or not self.lab["scheduler"].pids:
            self.stop()
            self.start_scheduler()
            self.wanted = spec
        client = self.connect()
        present = Counter(host_of(self.lab, w) for w in workers_of(client))
        for name, options in spec.items():
            if present[name] != options.get("n", 1):
                self.lab[name].kill()
                self.start_workers(name, **options)
        self.wait_for_workers(client)
        return client

    def connect(self, **options: Any) -> Client:
        client = Client(self.address, timeout=30, **options)
        self.clients.append(client)
        return client

    def start_scheduler(self, *options: str) -> None:
        host = self.lab["scheduler"]
        host.start(
            *(sys.executable, "-m", "dask", "scheduler", "--host", host.address),
            *("--port", PORT, "--dashboard-address", ":8787", *options),
        )
        until(lambda: _listens(host.address, PORT))

    def start_workers(
        self, name: str, n: int = 1, threads: int = 1, memory: str = "1GiB",
        extra: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """Start worker processes on a host with ``dask worker``."""
        host = self.lab[name]
        host.start(
            *(sys.executable, "-m", "dask", "worker", self.address),
            *("--nworkers", n, "--nthreads", threads, "--memory-limit", memory),
            *("--no-dashboard", "--local-directory", host.folder, *extra),
        )

    def wait_for_workers(self, client: Client) -> None:
        """Wait until the cluster has the workers that were asked for, and no others."""
        total = sum(options.get("n", 1) for options in self.wanted.values())
        until(lambda: len(workers_of(client)) == total)

    def bring_back(self, client: Client, name: str) -> None:
        """Start the workers of a host that was killed."""
        self.start_workers(name, **self.wanted[name])
        self.wait_for_workers(client)

    def slow_links(self) -> None:
        """Make calls on three hosts last long enough for a fault."""
        for name in ("h1", "h2", "h3"):
            self.lab[name].rate("50mbit")

    def repair(self) -> None:
        """Undo faults, and close clients, so that the next test can begin."""
        for host in self.lab.hosts.values():
            host.repair()
        while self.clients:
            self.clients.pop().close()

    def stop(self) -> None:
        for name, host in self.lab.hosts.items():
            if name != "client":
                host.kill()
        self.wanted = {}

    def on(self, client: Client, *names: str) -> list[str]:
        """Addresses of the workers on these hosts."""
        return sorted(w for w in workers_of(client) if host_of(self.lab, w) in names)

    def partitions(self, client: Client, collection: Any) -> Counter[str]:
        """Partitions on each host; one with two replicas counts twice."""
        held = client.who_has(futures_of(collection)).values()
        return Counter(host_of(self.lab, w) for workers in held for w in workers)

    def homes(self, client: Client, collection: Any) -> dict[Any, set[str]]:
        """Hosts that hold each partition."""
        held = client.who_has(futures_of(collection))
        return {k: {host_of(self.lab, w) for w in on} for k, on in held.items()}


def _listens(address: str, port: int) -> bool:
    try:
        create_connection((address, port), 1).close()
    except OSError:
        return False
    return True


def host_of(lab: Lab, worker: str) -> str:
    """Name of the host of a worker's address."""
    (name,) = (n for n, host in lab.hosts.items() if f"//{host.address}:" in worker)
    return name


# --- data -----------------------------------------------------------------------------


def load(
    client: Client,
    *,
    mib: int = 24,
    partitions: int = 18,
    workers: list[str] | None = None,
) -> tuple[Any, Any]:
    """X and y in memory; X has so many MiB, and each label follows from its row."""
    columns, rows = 32, mib * MIB // 32 // 8
    numbers = da.arange(rows, chunks=-(-rows // partitions), dtype="f8")

    def features(some: Any) -> Any:
        return some[:, None] + np.arange(columns) * 0.5

    X = numbers.map_blocks(features, new_axis=1, chunks=(numbers.chunks[0], (columns,)))
    y = X[:, 0] * LABELS_OF
    where = {"workers": workers, "allow_other_workers": True} if workers else {}
    client.run_on_scheduler(stop_stealing)
    X, y = client.persist([X, y], **where)
    wait([X, y])
    client.run_on_scheduler(start_stealing)
    return X, y


def scatter(client: Client, worker: str, n: int = 4) -> list[Any]:
    """Values that only this worker has, and that cannot be computed again."""
    values = [np.full(MIB // 8, float(i)) for i in range(n)]
    return list(client.scatter(values, workers=[worker], hash=False))


def assert_intact(client: Client, X: Any, y: Any) -> None:
    """Every row is at its place, complete, and has its own label."""
    columns = X.shape[1]
    found = client.compute([X[:, 0], X.sum(axis=1), y])
    wait(found, timeout=60)
    numbers, sums, labels = client.gather(found)
    expected = np.arange(X.shape[0], dtype="f8")
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_array_equal(labels, expected * LABELS_OF)
    np.testing.assert_allclose(
        sums, expected * columns + 0.25 * columns * (columns - 1)
    )


def assert_scattered(client: Client, values: list[Any]) -> None:
    first = client.map(lambda x: float(x[-1]), values, pure=False)
    assert client.gather(first) == list(map(float, range(len(values))))


def assert_settled(client: Client) -> None:
    """No call has left a lease, a hold, a job, a parking or paused worker."""

    def rest() -> dict[str, Any]:
        state = client.run_on_scheduler(live.state)
        return {k: v for k, v in state.items() if v != SETTLED.get(k, v)}

    until(lambda: not rest())


# --- faults during a call -------------------------------------------------------------


@contextmanager
def when(happened: Callable[[], Any], *actions: Callable[[], Any]) -> Iterator[None]:
    """Act in a thread when something has happened in the block, which must happen."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            until(happened, 100)
            for act in actions:
                act()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(150)
    assert not thread.is_alive(), "the fault is still going on"
    assert not errors, errors


def sent(lab: Lab, nbytes: int, *names: str) -> Callable[[], bool]:
    """Return a condition: from now on, these hosts have sent so many bytes."""
    start = lab.traffic()
    return lambda: sum(lab.traffic()[n] - start[n] for n in names) >= nbytes


def pause(seconds: float) -> Callable[[], Any]:
    """Return an action: wait, while a fault lasts."""
    return lambda: threading.Event().wait(seconds)


def unplugged(host: Host, seconds: float) -> list[Callable[[], Any]]:
    return [host.pull, pause(seconds), host.plug]
