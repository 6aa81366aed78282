"""A monitor shows thresholds and memory, and threads against CPUs."""

from __future__ import annotations

from typing import Any

import dask
import pytest
from dask.system import CPU_COUNT

import clustertune
from tests.acceptance.helpers import assert_intact, load, pids
from tests.processes import leak, until

LIMIT = 2**30


def test_thresholds(local_cluster: Any) -> None:
    with dask.config.set({"distributed.worker.memory.spill": 0.5}):
        _, client = local_cluster(2, memory_limit=LIMIT)
    with clustertune.Monitor(client, interval="100 ms") as monitor:
        workers = monitor.snapshots[-1].workers
        assert [w.memory_limit for w in workers] == [LIMIT] * 2
        # as the workers use them: one was configured, the others are Dask's defaults
        assert [w.thresholds.spill for w in workers] == [0.5] * 2
        assert [w.thresholds.pause for w in workers] == [0.8] * 2

        # one worker grows beyond its threshold
        client.run(leak, nbytes=int(0.6 * LIMIT), workers=[workers[0].address])
        until(lambda: monitor.snapshots[-1].workers[0].process > 0.5 * LIMIT)
        event = until(lambda: first_event(monitor, "memory_pressure"))
        assert event.kind == "began"
        assert event.finding.subject == (workers[0].id,)
        assert monitor.snapshots[-1].workers[1].process < 0.5 * LIMIT


def first_event(monitor: clustertune.Monitor, check: str) -> Any:
    return next((e for e in monitor.events if e.finding.check == check), None)


@pytest.mark.skipif(CPU_COUNT < 2, reason="one CPU needs no second thread")
def test_threads_against_cpus(local_cluster: Any) -> None:
    _, client = local_cluster(1)
    X, y = load(client)
    with clustertune.Monitor(client) as monitor:
        (worker,) = monitor.snapshots[-1].workers
        assert worker.nthreads == 1
        assert len(worker.facts.affinity) == CPU_COUNT
    (finding,) = (f for f in clustertune.check(client).found if is_thread_count(f))
    assert "fewer threads than usable CPUs" in finding.message
    assert "resize" in finding.remedy

    # the remedy of the finding restarts the worker with its data
    before = pids(client)
    clustertune.resize_workers(client, X, y, nthreads=CPU_COUNT)
    assert list(client.nthreads().values()) == [CPU_COUNT]
    assert not before & pids(client)
    assert not any(is_thread_count(f) for f in clustertune.check(client).found)
    assert_intact(X, y)


def is_thread_count(finding: Any) -> bool:
    return bool(finding.check == "thread_count")
