"""Rolling restarts on real clusters: nothing is lost, keys return to their workers."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, Event, Nanny, Status, Worker, wait

import clustertune
from clustertune.core.report import is_refused
from clustertune.core.results import summary_line
from clustertune.errors import RefusedError
from clustertune.monitor import monitor
from clustertune.remote import ship
from clustertune.remote.scheduler import mover
from clustertune.remote.scheduler.mover import ManagerHold
from clustertune.remote.scheduler.restart import WorkerRestart
from clustertune.remote.worker import park
from tests.in_process import THREE, gen_cluster
from tests.processes import soon, until
from tests.remote.scheduler.test_faults_restart import frozen_constants

NANNIES: dict[str, Any] = {"client": True, "Worker": Nanny}
OPTIONS = {"worker_kwargs": {"memory_limit": "1 GiB"}}
# two processes would count the resources twice, so the keys move to other workers
DETOUR = {"worker_kwargs": {"memory_limit": "1 GiB", "resources": {"a": 1}}}
#: the event log keeps a single event
ONE_EVENT = {"distributed.admin.low-level-log-length": 1}


class Counter:
    """An actor."""

    n = 0


def fill(dask_worker: Any) -> None:
    """Allocate unmanaged memory that only a restart frees."""
    dask_worker.ballast = np.ones(25 * 2**20)


def statuses(s: Any) -> set[str]:
    return {ws.status.name for ws in s.workers.values()}


def layout(s: Any) -> dict[str, set[Any]]:
    """Return the keys by worker name."""
    return {ws.name: {ts.key for ts in ws.has_what} for ws in s.workers.values()}


async def data(c: Client) -> tuple[da.Array, da.Array, list[Any]]:
    """Row-aligned partitions, and scattered values."""
    X = da.random.default_rng(0).random((1200, 50), chunks=(100, 50))
    X, y = c.persist([X, X[:, 0] * 2])
    await wait([X, y])
    X, y = await clustertune.prepare(c, X, y)
    scattered = await c.scatter([np.arange(1000) + i for i in range(6)], hash=False)
    return X, y, scattered


@pytest.mark.parametrize("data", ["computed again", "moved", "copied"])
def test_another_worker_ends_with_what_was_moved(data: str) -> None:
    """Keys that were lost with another worker do not count as returned."""
    again = data == "computed again"
    config = ONE_EVENT if data == "moved" else {}

    @gen_cluster(nthreads=THREE, config=config, **NANNIES, **DETOUR)
    async def test(c: Any, s: Any, *nannies: Any) -> None:
        name, other = nannies[0].worker_address, nannies[1].worker_address
        where: dict[str, Any] = {"workers": [name], "allow_other_workers": True}
        if again:
            values = [c.submit(np.full, 100, i, pure=False, **where) for i in range(40)]
        else:
            some = [np.full(100, i) for i in range(40)]
            values = await c.scatter(some, hash=False, workers=[name])
        if data == "copied":
            s.extensions["amm"].stop()  # which would delete either copy before
            await c.replicate(values, workers=[name, other])
        await wait(values)
        restarting = asyncio.ensure_future(
            clustertune.restart_workers(c, workers=[s.workers[name].name])
        )
        # all of it is elsewhere, and the worker is not back
        await soon(lambda: name not in s.workers)
        keys = {f.key for f in values}
        held = {
            ws.address: {ts.key for ts in ws.has_what} & keys
            for ws in s.workers.values()
        }
        gone, taken = max(held.items(), key=lambda item: len(item[1]))
        assert taken
        (nanny,) = (n for n in nannies if n.worker_address == gone)
        os.kill(nanny.pid, signal.SIGKILL)
        report = await restarting
        (step,) = report.steps
        if again:
            assert f"lost {len(taken)}" not in step.reason
            await wait(values)
        else:
            assert (step.status, report.status) == ("partly", "left")
            assert f"lost {len(taken)} keys with worker" in step.reason
        there = {key for key in keys if key in s.tasks and s.tasks[key].who_has}
        assert keys - there == (set() if again else taken)

    test()


@gen_cluster(nthreads=THREE, **NANNIES, **OPTIONS)
async def test_nothing_is_lost(c: Any, s: Any, *nannies: Any) -> None:
    """New processes have the old names and the old keys."""
    X, y, scattered = await data(c)
    before = layout(s)
    pids = set((await c.run(os.getpid)).values())
    report = await clustertune.restart_workers(c, X, y)
    assert report.status == "done", str(report)
    assert [step.status for step in report.steps] == ["done"] * 3
    assert all("lost 0" in step.details for step in report.steps)
    assert pids.isdisjoint((await c.run(os.getpid)).values())
    assert layout(s) == before
    expected = da.random.default_rng(0).random((1200, 50), chunks=(100, 50))
    expected = expected.compute(scheduler="sync")
    np.testing.assert_array_equal(await c.compute(X), expected)
    for i, future in enumerate(scattered):
        np.testing.assert_array_equal(await future, np.arange(1000) + i)
    assert statuses(s) == {"running"}
    assert s.extensions["amm"].running
    plugin = s.plugins["clustertune"]
    assert plugin.lease.current is None
    events = [e for _, e in s.get_events("clustertune") if e["action"] == "restart"]
    assert [e.get("state", "called") for e in events] == [
        *["began", "ended"] * 3,
        "called",
    ]
    # workers are named as numbers or texts, and a dry run changes nothing
    pids = await c.run(os.getpid)
    plan = await clustertune.restart_workers(c, workers=[1], dry_run=True)
    assert plan.status == "planned"
    assert (plan.steps[0].predicted_bytes or 0) > X.nbytes / 3
    assert await c.run(os.getpid) == pids
    report = await clustertune.restart_workers(c, workers=["1"])
    assert len(report.steps) == 1
    now = set((await c.run(os.getpid)).values())
    assert len(now & set(pids.values())) == 2
    with pytest.raises(ValueError, match="there is no absent in this cluster"):
        await clustertune.restart_workers(c, workers=["absent"])


@pytest.mark.parametrize("way", ["direct", "resources", "data"])
def test_predicted_bytes_are_those_that_are_sent(way: str) -> None:
    """A detour sends keys twice, and copies of keys once; copies stay.

    A job may take as long as its call, without another constant.
    """
    options = dict(OPTIONS["worker_kwargs"])
    if way == "resources":
        options = DETOUR["worker_kwargs"]
    elif way == "data":  # its nanny cannot run two processes
        options["data"] = dict

    @gen_cluster(nthreads=THREE, **NANNIES, worker_kwargs=options)
    async def test(c: Any, s: Any, *nannies: Any) -> None:
        await c.amm.stop()
        X, y, scattered = await data(c)
        copied = await c.scatter(np.arange(5000), broadcast=True)
        plan = await clustertune.restart_workers(c, X, y, dry_run=True)
        former = set(s.plugins["clustertune"].jobs.kept)
        report = await clustertune.restart_workers(c, X, y, timeout="20 minutes")
        assert report.status == "done", str(report)
        assert len(s.tasks[copied.key].who_has) == 3
        assert not s.extensions["amm"].running
        jobs = s.plugins["clustertune"].jobs.kept.items()
        limits = [job.work.timeout for name, job in jobs if name not in former]
        assert {900 < limit < 1200 for limit in limits} == {True}
        moved = [step.nbytes for step in report.steps]
        assert [step.predicted_bytes for step in plan.steps] == moved
        assert [step.predicted_bytes for step in report.steps] == moved
        once = X.nbytes + y.nbytes + sum(s.tasks[f.key].nbytes for f in scattered)
        times = 1 if way == "direct" else 2
        assert sum(moved) == times * once + 3 * s.tasks[copied.key].nbytes
        text = "other workers and back" if times == 2 else "its new process"
        assert all(step.summary.endswith(text) for step in plan.steps)

    test()


@gen_cluster(nthreads=THREE[:2], **NANNIES, **OPTIONS)
async def test_running_tasks_are_waited_for(c: Any, s: Any, *nannies: Any) -> None:
    """Tasks of any client finish; at the deadline the restart is undone."""
    X, y, _ = await data(c)
    before = layout(s)
    address = next(iter(s.workers))
    name = s.workers[address].name
    busy = c.submit(at_gate, "gate", workers=[address])
    await soon(lambda: s.workers[address].processing)
    report = await clustertune.restart_workers(c, workers=[name], wait="200 ms")
    assert report.status == "left"
    assert "1 task still runs after 0.2 s" in report.steps[0].reason
    assert statuses(s) == {"running"}
    assert layout(s) == before
    await Event("gate").set()
    report = await clustertune.restart_workers(c, workers=[name])
    assert report.status == "done", str(report)
    assert await busy == -3


@gen_cluster(nthreads=THREE[:2], **NANNIES, **OPTIONS)
async def test_what_is_bound_to_it(c: Any, s: Any, *nannies: Any) -> None:
    """Partitions and waiting tasks are bound to the new address."""
    a, b = list(s.workers)[:2]
    name = s.workers[a].name
    partition = c.submit(np.arange, 9, workers=[a], key="partition")
    await wait(partition)
    bound = c.submit(abs, c.submit(at_gate, "gate", workers=[b]), workers=[a])
    await soon(lambda: s.workers[b].processing)
    restarting = asyncio.ensure_future(clustertune.restart_workers(c, workers=[name]))
    await soon(lambda: a not in s.workers)
    await Event("gate").set()
    report = await restarting
    assert report.status == "done", str(report)
    assert await bound == 3
    (now,) = (ws.address for ws in s.workers.values() if ws.name == name)
    assert s.tasks["partition"].worker_restrictions == {now}
    assert s.tasks[bound.key].worker_restrictions == {now}


@gen_cluster(nthreads=THREE, **NANNIES, **DETOUR)
async def test_another_worker_leaves_meanwhile(c: Any, s: Any, *nannies: Any) -> None:
    """The restart does not wait for it, and reports the restarted worker."""
    X, y, _ = await data(c)
    a, b = list(s.workers)[:2]
    name = s.workers[a].name
    restarting = asyncio.ensure_future(clustertune.restart_workers(c, workers=[name]))
    await soon(lambda: a not in s.workers)
    assert await s.retire_workers([b], stimulus_id="other-client")
    report = await asyncio.wait_for(restarting, 60)  # of the minutes that it may take
    assert report.status == "done", str(report)
    assert name in {ws.name for ws in s.workers.values()}
    assert len(s.workers) == 2
    X, y = await c.gather(c.compute([X, y]))
    assert (X[:, 0] * 2 == y).all()


def at_gate(name: str) -> int:
    Event(name).wait(60)
    return -3


@gen_cluster(nthreads=THREE[:2], **NANNIES, **OPTIONS)
async def test_one_worker_without_a_nanny(c: Any, s: Any, *nannies: Any) -> None:
    """It is skipped and named with the fix, and the others restart."""
    async with Worker(s.address, name="bare", nthreads=1) as bare:
        before = {ws.name: ws.address for ws in s.workers.values()}
        report = await clustertune.restart_workers(c)
        assert report.status == "left"
        assert {ws.name for ws in s.workers.values()} == before.keys()
        kept = [ws.name for ws in s.workers.values() if before[ws.name] == ws.address]
        assert kept == ["bare"]
        (skipped,) = (x for x in report.steps if x.status == "skipped")
        assert skipped.summary.startswith("restart worker bare")
        assert "start it with dask worker --nanny" in skipped.reason
        assert "skipped bare: it has no nanny" in " ".join(str(report).split())
        assert [x.status for x in report.steps if x is not skipped] == ["done", "done"]
        logged = len(s.get_events("clustertune"))
        planned = await clustertune.restart_workers(c, dry_run=True)
        assert len(s.get_events("clustertune")) == logged
        assert "it has no nanny" in str(planned)
        states = [x.status for x in planned.steps]
        assert sorted(states) == ["planned", "planned", "skipped"]
        assert not is_refused(planned)  # the command asks, and then restarts the others
        now = {ws.name: ws.address for ws in s.workers.values()}
        for call in (
            clustertune.restart_workers(c, workers=["bare"]),
            clustertune.restart_workers(c, workers=[*before]),
        ):
            with pytest.raises(RefusedError, match="it has no nanny"):
                await call
        assert {ws.name: ws.address for ws in s.workers.values()} == now
        assert bare.status is Status.running


@gen_cluster(nthreads=[("127.0.0.1", 1)], **NANNIES, **OPTIONS)
async def test_one_worker_alone(c: Any, s: Any, nanny: Any, monkeypatch: Any) -> None:
    """Its nanny keeps the keys; without room the restart is refused."""
    X = c.persist(da.ones((100, 10), chunks=10))
    await wait(X)
    with monkeypatch.context() as patch:
        patch.setattr(ship, "_codes", {})  # the patched code is sent, too
        patch.setattr(park, "MEMORY_SHARE", 0.0)
        patch.setattr(park, "DISK_SHARE", 0.0)
        with pytest.raises(
            RefusedError, match="may fill 0 B of memory and 0 B of disk"
        ):
            await clustertune.restart_workers(c)
    assert len(s.workers) == 1
    plan = await clustertune.restart_workers(c, dry_run=True)
    assert "move to its new process" in plan.steps[0].summary
    (before,) = s.workers
    assert (await clustertune.restart_workers(c)).status == "done"
    assert before not in s.workers
    assert len(s.workers) == 1
    assert s.extensions["amm"].running
    told = s.plugins["clustertune"].page_data.facts["workers"]
    assert (
        told.keys() == s.workers.keys()
    )  # so the dashboard page knows their thresholds
    assert (await c.compute(X.sum())) == 1000
    del X
    await soon(lambda: not s.tasks)
    assert (await clustertune.restart_workers(c)).status == "done"


@gen_cluster(nthreads=THREE[:2], worker_kwargs={"memory_limit": "500 MiB"}, **NANNIES)
async def test_no_room_on_the_others(
    c: Any, s: Any, *nannies: Any, monkeypatch: Any
) -> None:
    """Its nanny keeps the keys, because the others would spill or pause."""
    some = [
        c.submit(np.ones, 20_000_000 // 8, workers=[w], pure=False)
        for w in s.workers
        for _ in range(11)
    ]
    await wait(some)
    before = layout(s)
    with monkeypatch.context() as patch:
        patch.setattr(ship, "_codes", {})  # the patched code is sent, too
        patch.setattr(park, "MEMORY_SHARE", 0.0)
        patch.setattr(park, "DISK_SHARE", 0.0)
        with pytest.raises(
            RefusedError,
            match=r"have room for .* below their thresholds, 209.8 MiB of keys need a "
            r"place, and its nanny may fill 0 B of memory and 0 B of disk only",
        ):
            await clustertune.restart_workers(c, workers=[0])
    assert layout(s) == before
    report = await clustertune.restart_workers(c, workers=[0])
    assert report.status == "done", str(report)
    assert "move to its new process" in report.steps[0].summary
    assert layout(s) == before


@gen_cluster(nthreads=THREE, **NANNIES, **OPTIONS)
async def test_keys_that_come_and_go_meanwhile(c: Any, s: Any, *nannies: Any) -> None:
    """Keys that are computed during a restart are kept too."""
    X, y, scattered = await data(c)
    working = True
    made: list[Any] = []

    async def work() -> None:
        while working:
            made.append(c.submit(np.full, 1000, len(made), pure=False))
            if len(made) % 7 == 0:
                made.pop(0)
            more = await c.scatter(np.full(10, len(made)), hash=False)
            made.append(more)
            await asyncio.sleep(0.01)

    task = asyncio.ensure_future(work())
    report = await clustertune.restart_workers(c, X, y)
    working = False
    await task
    assert report.status == "done", str(report)
    assert len(await c.gather(made)) == len(made)
    assert len(await c.gather(scattered)) == 6


def _until_told(_i: int) -> bool:
    return bool(Event("go on").wait(60))


@gen_cluster(nthreads=THREE[:2], **NANNIES, **OPTIONS)
async def test_one_that_is_interrupted(c: Any, s: Any, *nannies: Any) -> None:
    """The event log has a call that was interrupted, and none that was refused."""

    def stop(text: str, _done: float | None) -> None:
        if text.startswith("restarting worker"):
            work.cancel()

    first = next(iter(s.workers))
    (busy,) = c.map(_until_told, [0], workers=[first])
    work = asyncio.ensure_future(
        clustertune.restart_workers(c, workers=[first], progress=stop)
    )
    with pytest.raises(asyncio.CancelledError):
        await work
    await Event("go on").set()
    assert await busy
    report = await clustertune.last_report(c)
    assert (report.status, "interrupted" in report.error) == ("failed", True)
    assert report.steps[0].action == "restart"
    with pytest.raises(ValueError, match="there is no absent"):
        await clustertune.restart_workers(c, workers=["absent"])
    assert await clustertune.last_report(c) == report


@gen_cluster(nthreads=THREE[:2], **NANNIES, **OPTIONS)
async def test_one_that_is_interrupted_at_its_begin(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is undone, although the client did not know yet that it had begun."""
    await clustertune.check(c)
    plugin = s.plugins["clustertune"]
    begun, answers = asyncio.Event(), asyncio.Event()
    begin = plugin.restart_workers

    async def late(**arguments: Any) -> str:
        name: str = await begin(**arguments)
        begun.set()
        await answers.wait()
        return name

    monkeypatch.setitem(plugin.requests, "restart", late)
    task = c.submit(at_gate, "gate", workers=[a.worker_address])
    await soon(lambda: s.workers[a.worker_address].processing)
    restarting = asyncio.ensure_future(clustertune.restart_workers(c, workers=[a.name]))
    await begun.wait()
    restarting.cancel()
    asyncio.get_running_loop().call_later(0.1, answers.set)
    with pytest.raises(asyncio.CancelledError) as stop:
        await restarting
    (line,) = stop.value.args
    assert "interrupted, and undone" in line
    await soon(lambda: statuses(s) == {"running"})
    await Event("gate", client=c).set()
    await task


@gen_cluster(nthreads=THREE[:2], **NANNIES, **OPTIONS)
async def test_one_that_is_undone_after_the_call(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line states that the scheduler continues."""
    monkeypatch.setattr("clustertune.actions.cluster.lease.LANDING", 2.0)
    await clustertune.check(c)
    plugin = s.plugins["clustertune"]
    undo, worker = asyncio.Event(), s.workers[a.worker_address]
    task = c.submit(at_gate, "gate", workers=[worker.address])
    await soon(lambda: worker.processing)
    restarting = asyncio.ensure_future(
        clustertune.restart_workers(c, workers=[worker.name])
    )
    await soon(lambda: "closing_gracefully" in statuses(s))
    (job,) = plugin.jobs.kept.values()
    begun = job.work._undo

    async def late(*args: Any) -> None:
        await undo.wait()
        await begun(*args)

    job.work._undo = late
    restarting.cancel()
    with pytest.raises(asyncio.CancelledError) as stop:
        await restarting
    (line,) = stop.value.args
    assert line == (
        "restarted 0 of 1 worker; partly 0: the scheduler continues after this call: "
        "undoing what it has begun; lost 0 keys, unknown for 0"
    )
    undo.set()
    await soon(lambda: statuses(s) == {"running"})
    await Event("gate", client=c).set()
    assert await task == -3


@gen_cluster(nthreads=THREE[:2], **NANNIES, **OPTIONS)
async def test_actors(c: Any, s: Any, *nannies: Any) -> None:
    """Actors cannot be moved, so the restart is refused before any change.

    A trim moves nothing. Its report has the memory of each worker before and after.
    """
    actor = await c.submit(Counter, actor=True)
    before = layout(s)
    with pytest.raises(RefusedError, match="1 actor, which cannot be moved") as caught:
        await clustertune.restart_workers(c)
    assert caught.value.report is not None
    assert layout(s) == before
    report = await clustertune.trim_memory(c)
    assert report.status == "done", str(report)
    (step,) = report.steps
    assert step.details.count(" MiB to ") == 2
    report = await clustertune.trim_memory(c, workers=[0], dry_run=True)
    assert report.status == "planned"
    del actor


@gen_cluster(client=True, nthreads=THREE[:2])
async def test_the_scheduler_hears_of_a_trim_at_once(c: Any, s: Any, *two: Any) -> None:
    """The next forecast uses the memory after the trim."""
    for worker in two:
        worker.periodic_callbacks["heartbeat"].stop()
    before = {a: ws.metrics["time"] for a, ws in s.workers.items()}
    report = await clustertune.trim_memory(c)
    assert report.status == "done", str(report)
    assert all(ws.metrics["time"] > before[a] for a, ws in s.workers.items())


@gen_cluster(nthreads=THREE[:2], **NANNIES, **OPTIONS)
async def test_prepare_restarts(c: Any, s: Any, *nannies: Any) -> None:
    """All workers restart on request, or with "auto" workers near their limit."""
    X = da.random.default_rng(0).random((1200, 50), chunks=(100, 50))
    X = c.persist(X, workers=[next(iter(s.workers))])
    await wait(X)
    pids = set((await c.run(os.getpid)).values())
    p = await clustertune.prepare(c, X, restart="auto")
    assert set((await c.run(os.getpid)).values()) == pids
    (first,) = (ws.address for ws in s.workers.values() if ws.name == 0)
    await c.run(fill, workers=[first])
    runs = s.plugins["clustertune"].runs
    for i in range(5):
        floors = [(0, (i + 1) * 650 * 2**20), (1, 2**20)]
        run = {"began": i, "ended": i + 0.5, "floors": floors, "peaks": floors}
        runs.kept.append(run | {"managed": [], "ended_by": "gap"})
    p = await clustertune.prepare(c, X, restart="auto")
    assert [plan.phase for plan in p.plan] == ["trim", "restart"]
    assert "restart worker 0" in p.report.steps[1].summary
    now = set((await c.run(os.getpid)).values())
    assert len(now & pids) == 1
    p = await clustertune.prepare(c, X, restart=True)
    assert len(p.report.steps) == 2
    assert not now & set((await c.run(os.getpid)).values())
    expected = da.random.default_rng(0).random((1200, 50), chunks=(100, 50))
    np.testing.assert_array_equal(
        await c.compute(X), expected.compute(scheduler="sync")
    )
    with pytest.raises(ValueError, match="restart='always' must be False"):
        await clustertune.prepare(c, X, restart="always")


@gen_cluster(nthreads=THREE[:1], **NANNIES, **OPTIONS)
async def test_after_a_restart_no_old_trend_is_found(c: Any, s: Any, a: Any) -> None:
    """Runs of the ended process are not part of the trend of the new one."""
    await clustertune.check(c)
    runs = s.plugins["clustertune"].runs
    for i in range(5):
        floors = [(0, (i + 1) * 60 * 2**20)]
        run = {"began": i, "ended": i + 0.5, "floors": floors, "peaks": floors}
        runs.kept.append(run | {"managed": [], "ended_by": "gap"})

    async def grows() -> Any:
        found = (await clustertune.check(c)).found
        return [str(f.severity) for f in found if f.check == "memory_growth"]

    assert await grows() in (["info"], ["warning"])
    await clustertune.restart_workers(c)
    assert await grows() == []


@gen_cluster(client=True, nthreads=THREE[:2])
async def test_a_copy_of_an_earlier_round(c: Any, s: Any, a: Any, b: Any) -> None:
    """A replica of an earlier round holds the key, and is no replica from before."""
    await c.amm.stop()
    (future,) = await c.scatter([np.arange(9)], workers=[a.address], hash=False)
    work = WorkerRestart(s, None, a.address, {}, {b.address: 0}, 1, 1)
    worker = s.workers[a.address]
    assert await work.evacuation.assign(worker) == [(future.key, b.address)]
    await c.replicate([future], workers=[b.address])
    assert await work.evacuation.assign(worker) == [(future.key, b.address)]
    assert work.held.away == {future.key: b.address}
    assert work.held.copied == set()


def test_a_restart_that_takes_longer_than_its_manager_waits(local_cluster: Any) -> None:
    """Which would close the nanny of a worker that is not there for so long, or that
    is not there again so long after it was away: and start it again once asked to."""
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "50ms"}):
        cluster, client = local_cluster(2)
        names = set(cluster.workers)
        for _ in range(2):
            report = clustertune.restart_workers(client, workers=[0])
            assert report.status == "done", str(report)
        assert set(cluster.workers) == names == cluster.observed
        assert clustertune.restart_workers(client, drop_data=True).status == "done"
        assert set(cluster.workers) == names == cluster.observed
    assert all(a.startswith("tcp") for a in cluster.scheduler_info["workers"])


def test_a_scheduled_restart_that_takes_longer_than_the_manager_waits(
    local_cluster: Any,
) -> None:
    """The scheduler restarts the workers, and no client has the cluster object."""
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "50ms"}):
        cluster, client = local_cluster(2, resources={"a": 1})  # so it makes a detour
        kept = client.scatter(list(range(4)), hash=False)
        names, pids = set(cluster.workers), set(client.run(os.getpid).values())
        clustertune.schedule_restart(client, idle_for=0.1)
        until(lambda: clustertune.schedules(client)[0].ended)
        assert set(cluster.workers) == names == cluster.observed
        assert pids.isdisjoint(client.run(os.getpid).values())
        with Client(cluster.scheduler_address, set_as_default=False) as other:
            assert clustertune.restart_workers(other).status == "done"
        assert set(cluster.workers) == names == cluster.observed
        assert client.gather(kept) == list(range(4))
    assert all(a.startswith("tcp") for a in cluster.scheduler_info["workers"])


@gen_cluster(nthreads=THREE[:2], **NANNIES, **OPTIONS)
async def test_the_time_of_the_caller_ends(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: Any
) -> None:
    """The restart is undone: keys are on their workers, without replicas."""
    # slow, so that the time is too short; what was shipped in this process before has
    # given the class functions with other globals
    monkeypatch.setitem(mover.MovePolicy._send.__globals__, "MAX_KEYS", 2)
    await c.amm.stop()  # it would delete copies
    source, other = s.workers
    some = [np.full(10_000, i) for i in range(300)]
    values = await c.scatter(some, workers=[source], hash=False)
    work = WorkerRestart(s, ManagerHold(s), source, {}, {other: 0}, 10, 0.5)
    problem = await work.run()
    assert "keys were still there after 0 s" in problem
    assert work.held.away
    assert [len(s.tasks[f.key].who_has) for f in values] == [1] * 300
    assert len(s.workers[source].has_what) == 300
    assert statuses(s) == {"running"}
    assert [int(v[0]) for v in await c.gather(values)] == list(range(300))


@gen_cluster(nthreads=THREE[:2], **NANNIES, **OPTIONS)
async def test_a_frozen_worker(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named and skipped, and the others restart."""
    values = await c.scatter(list(range(10)), hash=False)
    await clustertune.check(c)
    monkeypatch.setitem(frozen_constants(s), "FROZEN", 5.0)
    monkeypatch.setattr(monitor, "PATIENCE", 3.0)
    monkeypatch.setitem(monitor.ask_workers.__kwdefaults__, "timeout", 3.0)
    address = a.worker_address
    name = s.workers[address].name
    os.kill(a.pid, signal.SIGSTOP)
    try:
        report = await clustertune.restart_workers(c, timeout="10 minutes")
    finally:
        os.kill(a.pid, signal.SIGCONT)
    left = {step.summary.partition(";")[0]: step for step in report.steps}
    frozen = left.pop(f"restart worker {name}")
    assert (frozen.status, frozen.lost) == ("skipped", 0)
    assert "it does not answer" in frozen.reason
    assert "drop_data=True" in frozen.reason
    assert [step.status for step in left.values()] == ["done"]
    assert statuses(s) == {"running"}
    assert address in s.workers
    assert await c.gather(values) == list(range(10))


@gen_cluster(nthreads=THREE, config=ONE_EVENT, **NANNIES, **OPTIONS)
async def test_losses_do_not_depend_on_the_event_log(
    c: Any, s: Any, *nannies: Any
) -> None:
    """It may keep a single event. The worker ends, and the keys that it had count."""
    name = nannies[0].worker_address
    some = [np.full(100, i) for i in range(40)]
    values = await c.scatter(some, hash=False, workers=[name])
    restarting = asyncio.ensure_future(
        clustertune.restart_workers(c, workers=[s.workers[name].name])
    )
    await soon(lambda: s.workers[name].status.name == "closing_gracefully")
    taken = [ts.key for ts in s.workers[name].has_what if len(ts.who_has) == 1]
    await s.remove_worker(name, stimulus_id="test")
    report = await restarting
    lost = sum(f.key not in s.tasks for f in values)
    assert lost >= len(taken) > 0
    assert report.status == "left"
    assert f"lost {lost} keys" in report.steps[0].reason


@pytest.mark.parametrize("at_once", [1, 2])
def test_keys_that_others_lose_meanwhile(at_once: int) -> None:
    """Each lost key counts once, also keys that the restarted workers never had."""

    @gen_cluster(nthreads=THREE, **NANNIES, **DETOUR)
    async def test(c: Any, s: Any, *nannies: Any) -> None:
        first, gone = nannies[0].worker_address, nannies[2].worker_address
        some = [np.full(100, i) for i in range(10)]
        values = await c.scatter(some, hash=False, workers=[gone])
        computed = c.map(
            abs, range(5), workers=[gone], allow_other_workers=True, pure=False
        )
        await wait(computed)
        names = [s.workers[n.worker_address].name for n in nannies[:at_once]]
        restarting = asyncio.ensure_future(
            clustertune.restart_workers(c, workers=names, max_unavailable=at_once)
        )
        await soon(lambda: first not in s.workers)
        assert not any(s.workers[gone].processing)
        os.kill(nannies[2].pid, signal.SIGKILL)
        report = await restarting
        await wait(computed)
        assert {f.key in s.tasks for f in values} == {False}
        assert [step.lost for step in report.steps] == [0] * at_once
        assert [(x.worker, x.keys) for x in report.lost] == [(2, len(values))]
        assert report.status == "left"
        done = summary_line(report.steps, lost=report.lost)
        assert done.endswith("; lost 10 keys with worker 2, which ended meanwhile")

    test()


def rows(part: int, name: str) -> Any:
    """Return a partition; the last one waits for an event."""
    if part == 7:
        Event(name).wait(60)
    return pd.DataFrame({"a": np.arange(part, part + 100) % 10, "part": part})


@gen_cluster(nthreads=THREE, **NANNIES, **OPTIONS)
async def test_a_shuffle_that_runs(c: Any, s: Any, *nannies: Any) -> None:
    """Its rows are in the process of a worker without tasks and keys."""
    frame = dd.from_map(rows, range(8), name="gate", meta=rows(0, "gate"))
    shuffled = frame.shuffle("a", shuffle_method="p2p", npartitions=6)
    result = c.compute(shuffled.groupby("part").size())
    plugin = s.plugins["shuffle"]
    await soon(lambda: plugin.active_shuffles)
    (state,) = plugin.active_shuffles.values()
    taking_part = [s.workers[a] for a in state.participating_workers]
    await soon(lambda: not all(w.processing for w in taking_part))
    name = next(w.name for w in taking_part if not w.processing)
    report = await clustertune.restart_workers(c, workers=[name], wait="300 ms")
    assert report.status == "left"
    assert "1 P2P shuffles still keep rows in its process" in report.steps[0].reason
    assert statuses(s) == {"running"}
    restarting = asyncio.ensure_future(clustertune.restart_workers(c, workers=[name]))
    jobs = s.plugins["clustertune"].jobs.kept
    await soon(lambda: any(not job.task.done() for job in jobs.values()))
    await Event("gate").set()
    assert (await result).tolist() == [100] * 8
    report = await restarting
    assert report.status == "done", str(report)
    (shuffle_runs,) = plugin._shuffles.values() or [{state}]
    assert shuffle_runs == {state}  # Dask did not begin it again
