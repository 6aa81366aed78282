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


@pytest.mark.parametrize(
    ("now", "then", "process", "on_disk", "found"),
    [
        pytest.param(0, 100, 250, 0, (150, 0, 0, 0), id="left: not unmanaged"),
        pytest.param(100, 0, 150, 0, (250, 100, 0, 100), id="came: not of the rest"),
        pytest.param(100, 100, 190, 60, (190, 40, 60, 40), id="on disk"),
        pytest.param(300, 300, 200, 0, (200, 200, 0, 300), id="counted twice"),
    ],
)
def test_memory(now: int, then: int, process: int, on_disk: int, found: Any) -> None:
    """Changes since the heartbeat count; so does the excess of Dask's count."""
    assert state.memory_of(worker(now, then, process, on_disk)) == found


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
