"""Memory of workers at one time, from heartbeats that are older than the keys."""

from __future__ import annotations

from time import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import wait

from clustertune.remote.scheduler import state
from tests.in_process import gen_cluster

MB = 10**6


def worker(now: int, then: int, process: int, on_disk: int = 0) -> Any:
    """Return a worker with these bytes of keys, and bytes at its heartbeat."""
    return SimpleNamespace(
        nbytes=now,
        metrics={
            "memory": process,
            "managed_bytes": then,
            "spilled_bytes": {"memory": on_disk},
        },
        memory=SimpleNamespace(spilled=on_disk),
    )


def test_what_has_left_is_not_unmanaged() -> None:
    found = state.memory_of(worker(now=0, then=100, process=250))
    assert (found.process, found.managed, found.unmanaged) == (150, 0, 150)


def test_what_has_come_is_not_taken_from_the_rest() -> None:
    found = state.memory_of(worker(now=100, then=0, process=150))
    assert (found.process, found.managed, found.unmanaged) == (250, 100, 150)


def test_keys_on_disk_are_not_in_the_process() -> None:
    found = state.memory_of(worker(now=100, then=100, process=190, on_disk=60))
    assert (found.process, found.managed, found.counted) == (190, 40, 40)


def test_keys_that_are_counted_twice_stay_visible() -> None:
    """The excess of Dask's count over process memory stays visible."""
    found = state.memory_of(worker(now=300, then=300, process=200))
    assert (found.process, found.managed, found.counted) == (200, 200, 300)


def test_a_worker_that_is_not_heard_of_yet_has_nothing() -> None:
    silent = worker(now=100, then=0, process=0)
    silent.metrics = {}
    assert state.memory_of(silent)[:2] == (0, 0)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_between_two_heartbeats(c: Any, s: Any, a: Any) -> None:
    """Without changes the figures are Dask's own; with changes they do not jump."""
    await a.heartbeat()
    (ws,) = s.workers.values()
    before = state.memory_of(ws)
    assert before[:3] == (ws.memory.process, ws.memory.managed, ws.memory.spilled)
    a.periodic_callbacks["heartbeat"].stop()
    future = c.submit(np.ones, 10 * MB)
    await wait(future)
    after = state.memory_of(ws)
    assert after.managed >= 80 * MB > ws.metrics["managed_bytes"]
    assert after.unmanaged == before.unmanaged


@pytest.mark.parametrize(("n_workers", "late"), [(3, True), (4000, False)])
def test_heartbeats_are_rare_in_large_clusters(n_workers: int, late: bool) -> None:
    """Dask asks each of 4,000 workers for one in 21 seconds."""
    worker = SimpleNamespace(last_seen=time() - 15)
    scheduler = SimpleNamespace(workers=range(n_workers))
    assert state.is_late(worker, scheduler) is late
