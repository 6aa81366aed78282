"""Workers get another size without losing data, and keep it after a crash."""

from __future__ import annotations

import os
import re
import signal
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, Event, LocalCluster, Nanny, wait

import clustertune
from clustertune.core.model import WorkerSize
from clustertune.errors import RefusedError
from clustertune.integrations.managers import SpecCluster
from clustertune.remote import ship
from clustertune.remote.scheduler.mover import ManagerHold
from clustertune.remote.scheduler.restart import WorkerRestart
from clustertune.remote.worker import park
from clustertune.remote.worker import process as remote
from tests.in_process import gen_cluster
from tests.processes import at_gate, until, workers_of

GIB = 2**30


def facts(dask_worker: Any) -> tuple[int, int]:
    return dask_worker.state.nthreads, dask_worker.memory_manager.memory_limit


@pytest.fixture
def two(local_cluster: Any) -> tuple[LocalCluster, Client]:
    found: tuple[LocalCluster, Client] = local_cluster(2, memory_limit="1 GiB")
    return found


def test_threads_and_memory(two: Any) -> None:
    """The workers report their size, check finds it, and a crash does not change it."""
    local, client = two
    X = client.persist(da.random.default_rng(0).random((1000, 100), chunks=(50, 100)))
    kept = client.scatter([np.full(9, i) for i in range(4)], hash=False)
    wait(X)
    threads = {w["nthreads"] for w in workers_of(client).values()}
    assert threads == {1}
    report = clustertune.resize_workers(client, X, nthreads=2, memory_limit="1.5 GiB")
    assert report.status == "done", str(report)
    assert all("lost 0" in step.details for step in report.steps)
    assert set(client.run(facts).values()) == {(2, int(1.5 * GIB))}
    expected = da.random.default_rng(0).random((1000, 100), chunks=(50, 100))
    np.testing.assert_array_equal(X.compute(), expected.compute(scheduler="sync"))
    assert [int(v[0]) for v in client.gather(kept)] == [0, 1, 2, 3]
    address, pid = next(iter(client.run(os.getpid).items()))
    os.kill(pid, signal.SIGKILL)
    until(lambda: address not in workers_of(client))
    client.wait_for_workers(2)
    assert set(client.run(facts).values()) == {(2, int(1.5 * GIB))}
    assert clustertune.resize_workers(client, nthreads=2).status == "fine"
    local.scale(3)  # a later worker is like them
    client.wait_for_workers(3)
    assert set(client.run(facts).values()) == {(2, int(1.5 * GIB))}


@gen_cluster(client=True, nthreads=[])
async def test_variables_of_the_nanny_stay(c: Any, s: Any) -> None:
    """A restart, also with another size, starts the next process with them."""
    options = {"nthreads": 1, "memory_limit": "1 GiB", "env": {"ONLY_THERE": "1"}}
    async with Nanny(s.address, **options) as nanny:
        given = dict(nanny.process.env), dict(nanny.process.pre_spawn_env)
        assert given[0]["ONLY_THERE"] == "1"
        assert "OMP_NUM_THREADS" in given[1]
        for change in (
            partial(clustertune.restart_workers, c),
            partial(clustertune.resize_workers, c, nthreads=2),
        ):
            pids = await c.run(os.getpid)
            report = await change()
            assert report.status == "done", str(report)
            new = await c.run(os.getpid)
            assert set(new.values()).isdisjoint(pids.values())
            assert (nanny.process.env, nanny.process.pre_spawn_env) == given
            assert set((await c.run(os.getenv, "ONLY_THERE")).values()) == {"1"}


def test_a_restart_that_does_not_come_about(two: Any) -> None:
    """The nanny of a busy worker keeps its size for later starts."""
    _, client = two
    first, second = workers_of(client)
    name, _ = (w["name"] for w in infos(client))
    gate = Event("gate", client=client)
    busy = client.submit(at_gate, gate.name, workers=[first], pure=False)
    until(lambda: any(client.processing().values()))
    report = clustertune.resize_workers(client, nthreads=3, wait="200 ms")
    assert report.status == "left"
    gate.set()
    wait(busy)
    client.restart_workers([first])
    threads = {w["name"]: w["nthreads"] for w in infos(client)}
    assert threads.pop(name) == 1
    assert list(threads.values()) == [3]  # the other worker was not busy
    assert second not in client.run(facts)


def infos(client: Any) -> list[Any]:
    return list(workers_of(client).values())


def held(dask_scheduler: Any) -> dict[str, set[Any]]:
    """Return the keys by worker name."""
    workers = dask_scheduler.workers.values()
    return {str(ws.name): {ts.key for ts in ws.has_what} for ws in workers}


def bloat(dask_worker: Any) -> None:
    """Allocate unmanaged memory, which ends with the process."""
    dask_worker.bloat = np.ones(350 * 2**20 // 8)


def scattered(client: Client, mib: int = 120) -> list[Any]:
    """Scatter so many MiB on each worker."""
    some = [np.full(10 * 2**20 // 8, i) for i in range(mib // 10)]
    found: list[Any] = []
    for address in workers_of(client):
        found += client.scatter(some, hash=False, workers=[address])
    return found


def assert_equal(client: Client, futures: list[Any], mib: int = 120) -> None:
    expected = list(range(mib // 10)) * (len(futures) // (mib // 10))
    assert [int(v[0]) for v in client.gather(futures)] == expected


@pytest.mark.parametrize("alone", [False, True])
def test_a_lower_limit(local_cluster: Any, alone: bool) -> None:
    """Its process exceeds the new limit, but its nanny must not kill it.

    The nanny gets the limit when the worker is empty and has a new process.
    """
    _, client = local_cluster(1 if alone else 3, memory_limit="1 GiB")
    futures = scattered(client)
    first = next(iter(workers_of(client)))
    client.run(bloat, workers=[first])
    name = workers_of(client)[first]["name"]
    until(lambda: workers_of(client)[first]["metrics"]["memory"] > 500 * 2**20)
    before = client.run_on_scheduler(held)
    report = clustertune.resize_workers(client, workers=[name], memory_limit="480 MiB")
    assert report.status == "done", str(report)
    assert "lost 0" in report.steps[0].details
    assert client.run_on_scheduler(held) == before
    (address,) = [a for a, w in workers_of(client).items() if w["name"] == name]
    limits = client.run(limit, workers=[address], nanny=True)
    limits |= {"worker": workers_of(client)[address]["memory_limit"]}
    assert set(limits.values()) == {480 * 2**20}
    assert_equal(client, futures)


def limit(dask_worker: Any) -> int:
    found: int = dask_worker.memory_manager.memory_limit
    return found


def test_a_limit_that_is_too_low(two: Any) -> None:
    """It is refused with figures before any change.

    Below a new process, its nanny would kill it repeatedly.
    """
    _, client = two
    pids = client.run(os.getpid)
    first = next(iter(workers_of(client)))
    big = client.submit(np.ones, 200_000_000 // 8, workers=[first])
    wait(big)
    with pytest.raises(RefusedError, match="would write some of it to disk"):
        clustertune.resize_workers(client, memory_limit="250 MiB")
    del big
    until(lambda: not any(client.run_on_scheduler(held).values()))
    futures = scattered(client)
    for wanted in ("50 MiB", "200 MiB"):
        with pytest.raises(RefusedError, match=r"set at least \d+ MiB") as caught:
            clustertune.resize_workers(client, workers=[0], memory_limit=wanted)
        assert client.run(os.getpid) == pids
        enough = re.search(r"set at least (\d+ MiB)", str(caught.value))
        assert enough is not None
        plan = clustertune.resize_workers(
            client, workers=[0], memory_limit=enough[1], dry_run=True
        )
        assert plan.status == "planned"
        assert len(plan.steps) == 1
    assert_equal(client, futures)


def test_later_workers_are_emptied_below_the_new_limit(two: Any) -> None:
    """Workers that already have the lower limit are not filled to the old one."""
    _, client = two
    futures = scattered(client, 240)
    report = clustertune.resize_workers(client, memory_limit="620 MiB")
    assert report.status == "done", str(report)
    assert "move to its new process" in report.steps[1].summary
    assert not any(client.run_on_scheduler(spilled))
    assert_equal(client, futures, 240)


def spilled(dask_scheduler: Any) -> list[int]:
    return [ws.memory.spilled for ws in dask_scheduler.workers.values()]


@pytest.mark.parametrize("direct", [False, True])
@gen_cluster(client=True, Worker=Nanny, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_new_process_that_is_too_large(
    c: Any, s: Any, a: Any, b: Any, direct: bool
) -> None:
    """It restarts again with its former size, and gets its keys back."""
    address, other = a.worker_address, b.worker_address
    # an empty process is small enough, and is too large with these keys
    line, count = (300 * 2**20, 250 * 2**17) if direct else (2**20, 9)
    future = (await c.scatter([np.arange(count)], workers=[address], hash=False))[0]
    was = a.memory_manager.memory_limit
    terms = {
        "change": ship.pickled(remote.change),
        "settle": ship.pickled(remote.settle),
        "wanted": {"nthreads": 3, "memory_limit": was // 2},
        "line": line,
        "most": line,
    }
    parking = ship.pickled(park.act) if direct else b""
    hold, options = ManagerHold(s), {"parking": parking, "resizing": terms}
    work = WorkerRestart(s, hold, address, {}, {other: 0}, 10, 60, **options)
    problem = await work.run()
    assert work.state()["direct"] is direct
    assert "it was restarted with its former size" in problem
    assert work.state()["resized"] is False
    (worker,) = (ws for ws in s.workers.values() if ws.nanny == a.address)
    assert (worker.nthreads, worker.memory_limit) == (1, was)
    assert a.process.worker_kwargs["memory_limit"] == was
    assert s.tasks[future.key].who_has == {worker}
    assert (await future)[-1] == count - 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, TypeError),
        ({"nthreads": 0}, ValueError),
        ({"memory_limit": "much"}, ValueError),
        ({"memory_limit": 5}, ValueError),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception]) -> None:
    """Errors are raised before any request."""
    with pytest.raises(error):
        clustertune.resize_workers(Client.__new__(Client), **options)


def test_what_later_workers_are_like() -> None:
    """New workers have the size once all existing ones have it."""
    options: dict[str, Any] = {"processes": False, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=2, threads_per_worker=1, **options) as local:
        size = WorkerSize(nthreads=3, memory_limit=2**30)
        SpecCluster(local).resized(0, size)
        assert local.worker_spec[0]["options"]["nthreads"] == 3
        assert local.worker_spec[1]["options"]["nthreads"] == 1
        assert local.new_spec["options"]["nthreads"] == 1
        SpecCluster(local).resized("gone", size)
        SpecCluster(local).resized(1, size)
        new = local.new_spec["options"]
        assert (new["nthreads"], new["memory_limit"]) == (3, 2**30)
