"""Full clusters: workers that are paused or spill are restarted; real processes."""

from __future__ import annotations

import os
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, Event, get_worker, wait

import clustertune
from clustertune.errors import LeaseHeldError
from tests.processes import leak, until, workers_of
from tests.remote.scheduler.test_faults_restart import begin_restart

MIB = 2**20


def states(client: Client) -> list[str]:
    return [w["status"] for w in workers_of(client).values()]


def spilled(dask_scheduler: Any) -> list[int]:
    return [ws.memory.spilled for ws in dask_scheduler.workers.values()]


def processes(client: Client) -> list[int]:
    return [w["metrics"]["memory"] for w in workers_of(client).values()]


def values(client: Client, cluster: Any, each: int, nbytes: int) -> list[Any]:
    """Scatter values, which are lost with the only worker that has them."""
    found = []
    for i in range(len(cluster.workers)):
        some = [np.full(nbytes, 10 * i + k, dtype="u1") for k in range(each)]
        address = cluster.workers[i].worker_address
        found += client.scatter(some, hash=False, workers=[address])
    wait(found)
    return found


def assert_there(client: Client, kept: list[Any], each: int, nbytes: int) -> None:
    """Assert that each value is on its own worker, one worker at a time."""
    first = client.map(lambda x: (int(x[0]), int(x[-1]), len(x)), kept, pure=False)
    expected = [10 * (i // each) + i % each for i in range(len(kept))]
    assert client.gather(first) == [(n, n, nbytes) for n in expected]


def test_all_are_full(local_cluster: Any) -> None:
    """All spill; later all are paused."""
    cluster, client = local_cluster(3, memory_limit="1GiB")
    kept = values(client, cluster, 2, 10 * MIB)
    client.run(leak, nbytes=750 * MIB)
    until(lambda: all(client.run_on_scheduler(spilled)))
    report = clustertune.restart_workers(client, timeout="3 minutes")
    assert report.status == "done", str(report)
    assert [step.lost for step in report.steps] == [0] * 3
    assert_there(client, kept, 2, 10 * MIB)
    client.run(leak, nbytes=880 * MIB)
    until(lambda: states(client) == ["paused"] * 3)
    report = clustertune.trim_memory(client)
    assert report.status == "done", str(report)
    report = clustertune.restart_workers(client, timeout="3 minutes")
    assert report.status == "done", str(report)
    assert [step.lost for step in report.steps] == [0] * 3
    assert states(client) == ["running"] * 3
    assert_there(client, kept, 2, 10 * MIB)


def test_all_are_paused_and_have_spilled_a_collection(local_cluster: Any) -> None:
    """Rows on disk are counted by tasks, and paused workers run none."""
    _, client = local_cluster(2, memory_limit="1GiB")
    X = client.persist(da.arange(40_000, chunks=4_000))
    wait(X)
    client.run(leak, nbytes=880 * MIB)
    until(lambda: states(client) == ["paused"] * 2)
    until(lambda: all(client.run_on_scheduler(spilled)))
    found = clustertune.check(client, X, timeout="1 minute").found
    assert "paused_workers" in {f.check for f in found}
    report = clustertune.restart_workers(client, X, timeout="3 minutes")
    assert report.status == "done", str(report)
    assert [step.lost for step in report.steps] == [0] * 2
    np.testing.assert_array_equal(X.compute(), np.arange(40_000))


@pytest.mark.parametrize(("restart", "workload"), [("auto", "lightgbm"), (True, None)])
def test_prepare_restarts_paused_workers(
    local_cluster: Any, restart: Any, workload: Any
) -> None:
    """It counts rows, reads values and cuts partitions when a worker runs again."""
    _, client = local_cluster(2, memory_limit="1GiB")
    rows = np.arange(20_000)
    values = np.stack([rows, rows], axis=1)
    X = client.persist(da.from_array(values, chunks=(5_000, 2)))
    y = client.persist(da.from_array(rows % 2, chunks=4_000))
    wait([X, y])
    client.run(leak, nbytes=880 * MIB)
    until(lambda: states(client) == ["paused"] * 2)
    until(lambda: all(client.run_on_scheduler(spilled)))
    options = {"estimator": workload, "restart": restart, "timeout": "3 minutes"}
    first = "trim" if restart == "auto" else "restart"
    plan = clustertune.prepare(client, X, y, dry_run=True, **options).report
    assert {step.action for step in plan.steps} == {first}
    X, y = p = clustertune.prepare(client, X, y, **options)
    assert p.report.status == "done", str(p.report)
    assert states(client) == ["running"] * 2
    assert "rechunk" in [step.action for step in p.report.steps]
    np.testing.assert_array_equal(X.compute(), values)
    np.testing.assert_array_equal(y.compute(), rows % 2)


def counted(dask_scheduler: Any) -> dict[str, int]:
    """Return tasks by state: on workers, and without one."""
    given = sum(len(ws.processing) for ws in dask_scheduler.workers.values())
    left = len(dask_scheduler.unrunnable) + len(dask_scheduler.queued)
    return {"given": given, "left": left}


def test_a_paused_worker_with_queued_tasks(local_cluster: Any) -> None:
    """They run after the restart, and a task that was begun runs once.

    Another client waits for that restart, and gets the name of the plan.
    """
    cluster, client = local_cluster(1, memory_limit="1GiB")
    kept = values(client, cluster, 2, 10 * MIB)
    address = cluster.workers[0].worker_address
    first = client.submit(run_and_count, "begun", pure=False)
    until(lambda: client.get_events("begun"))
    here = {"workers": [address], "pure": False}
    tasks = client.map(run_and_count, ["queued"] * 20, **here)
    until(lambda: client.run_on_scheduler(counted)["given"] == 21)
    client.run(leak, nbytes=880 * MIB)
    until(lambda: states(client) == ["paused"])
    restarting = begin_restart(client, wait="1 minute", timeout="3 minutes")
    until(lambda: client.run_on_scheduler(counted) == {"given": 1, "left": 20})
    until(lambda: states(client) == ["closing_gracefully"])
    with (
        Client(cluster.scheduler_address, set_as_default=False) as other,
        pytest.raises(LeaseHeldError, match="another plan runs on this cluster"),
    ):
        clustertune.restart_workers(other, timeout="10 s")
    Event("go on", client=client).set()
    restarting.join(170)
    assert restarting.result.status == "done", str(restarting.result)
    assert client.gather([first, *tasks]) == [1] * 21
    assert len(client.get_events("begun")) == 1
    assert len(client.get_events("queued")) == 20
    assert_there(client, kept, 2, 10 * MIB)


def run_and_count(topic: str) -> int:
    get_worker().log_event(topic, "ran")
    return int(topic != "begun" or Event("go on").wait(100))


def test_spilled_data_larger_than_memory(local_cluster: Any) -> None:
    """The nanny takes over files as links: no spilled key travels."""
    limit, each, nbytes = 512 * MIB, 40, 20 * MIB
    _, client = local_cluster(1, memory_limit=limit)
    kept = []
    for i in range(each):  # one at a time, so that the worker can spill between them
        kept += client.scatter([np.full(nbytes, i, dtype="u1")], hash=False)
        wait(kept)
    until(lambda: client.run_on_scheduler(spilled)[0] > limit)
    on_disk = client.run_on_scheduler(spilled)[0]
    (pid,) = client.run(os.getpid).values()
    report = clustertune.restart_workers(client, timeout="3 minutes")
    assert report.status == "done", str(report)
    (step,) = report.steps
    assert step.lost == 0
    assert step.nbytes is not None
    # the keys that were in memory travel to the nanny and back
    assert step.nbytes <= 2 * (each * nbytes - on_disk + MIB)
    assert list(client.run(os.getpid).values()) != [pid]
    first = client.map(lambda x: (int(x[0]), int(x[-1]), len(x)), kept, pure=False)
    assert client.gather(first) == [(i, i, nbytes) for i in range(each)]
