"""Scheduled restarts on a scheduler: obstacles, needs and progress."""

from __future__ import annotations

import asyncio
import os
from time import monotonic, time
from typing import Any

import numpy as np
import pytest
from distributed import Event, Nanny, Worker, wait

import clustertune
from clustertune.remote import ship
from clustertune.remote.scheduler import schedule_runner
from clustertune.remote.scheduler.plugin import ClustertunePlugin
from clustertune.remote.scheduler.restart import WorkerRestart
from clustertune.remote.worker import park
from tests.in_process import TWO, gen_cluster
from tests.processes import soon

PLAIN: dict[str, Any] = {"client": True, "nthreads": TWO}
NANNIES: dict[str, Any] = PLAIN | {
    "Worker": Nanny,
    "worker_kwargs": {"memory_limit": "1 GiB"},
}


def terms(**others: Any) -> dict[str, Any]:
    """Return the terms as the client sends them."""
    given = {
        "owner": "me",
        "reason": "a test",
        "idle_for": 0.2,
        "instants": [],
        "expires": time() + 60,
        "if_needed": False,
        "fresh": 0,
        "workers": None,
        "collections": [],
        "thresholds": [],
        "parking": b"",
        "timeout": 30.0,
    }
    return given | others


def begin(s: Any, **others: Any) -> tuple[ClustertunePlugin, Any]:
    """Install a plugin of the imported modules, with one schedule."""
    plugin = ClustertunePlugin(s)
    plugin.schedules.poll = plugin.schedules.again = 0.05
    plugin.schedules.pause = 0.3
    plugin.attach()
    name = plugin.schedules.add(terms(**others))["id"]
    return plugin, plugin.schedules.kept[name]


def results(s: Any, it: Any) -> list[dict[str, Any]]:
    """Return the results of the gaps so far, from Dask's event log."""
    events = (e for _, e in s.get_events("clustertune"))
    return [e for e in events if e.get("id") == it.name and "outcome" in e]


def waits(it: Any, text: str) -> Any:
    return soon(lambda: text in it.waits)


def at_gate(name: str) -> None:
    Event(name).wait(30)


@gen_cluster(**PLAIN)
async def test_why_it_has_not_run_yet(c: Any, s: Any, *workers: Any) -> None:
    """It waits for tasks, a hold, a plan, and workers without a nanny."""
    gate = Event("gate", client=c)
    busy = c.submit(at_gate, gate.name)
    await soon(lambda: any(ws.processing for ws in s.workers.values()))
    plugin, it = begin(s)
    await waits(it, "not idle: 1 task running")
    await gate.set()
    await busy
    plugin.acquire(c.id, "training", "h", hold=True)
    await waits(it, "held by training since 20")
    assert (await plugin.release("h"))["held"]
    plugin.acquire(c.id, "prepare", "t")
    await waits(it, "held by prepare since ")
    await plugin.release("t")
    await waits(it, "worker 0: it has no nanny")
    assert plugin.schedules.cancel(it.name)["state"] == "cancelled"
    await soon(plugin.schedules.task.done)
    assert plugin.schedules.cancel("unknown") is None


@gen_cluster(**NANNIES)
async def test_a_worker_that_cannot_be_restarted(c: Any, s: Any, *nannies: Any) -> None:
    """It is left as it is and named, and the others restart."""
    first, second = sorted(s.workers.values(), key=lambda ws: ws.name)
    actor = await c.submit(dict, actor=True, workers=[first.address])
    pids = {a: (await c.run(os.getpid, workers=[a]))[a] for a in s.workers}
    plugin, it = begin(s)
    await soon(lambda: it.ended)
    (result,) = results(s, it)
    assert (result["outcome"], result["status"]) == ("done", "left")
    assert (result["restarted"], result["left"]) == ([second.name], [first.name])
    assert "worker 0 not restarted; worker 0: it holds 1 actor, which" in it.last
    assert (await c.run(os.getpid))[first.address] == pids[first.address]
    assert pids[second.address] not in (await c.run(os.getpid)).values()

    # a restart of this worker only waits until it can be done
    name = plugin.schedules.add(terms(workers=[first.name]))["id"]
    it = plugin.schedules.kept[name]
    await waits(it, "worker 0: it holds 1 actor, which")
    await soon(lambda: it.again > monotonic())  # it has tried again
    assert (it.left, results(s, it)) == (None, [])
    del actor
    await soon(lambda: it.ended)
    assert (it.state, results(s, it)[-1]["restarted"]) == ("done", [first.name])
    assert set(pids.values()).isdisjoint((await c.run(os.getpid)).values())


@gen_cluster(**NANNIES)
async def test_cancelled_while_no_worker_can_be_restarted(
    c: Any, s: Any, *nannies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends, also if it was cancelled during an attempt."""
    first = min(s.workers.values(), key=lambda ws: ws.name)
    actor = await c.submit(dict, actor=True, workers=[first.address])
    plugin, it = begin(s, workers=[first.name])
    turn = plugin.schedules._turn

    async def cancelled(schedule: Any, *others: Any) -> Any:
        assert plugin.schedules.cancel(schedule.name)["state"] == "running"
        return await turn(schedule, *others)

    monkeypatch.setattr(plugin.schedules, "_turn", cancelled)
    await soon(lambda: it.ended)
    assert (it.state, results(s, it)[-1]["restarted"]) == ("cancelled", [])
    del actor


@gen_cluster(**NANNIES)
async def test_a_worker_without_a_nanny(c: Any, s: Any, *nannies: Any) -> None:
    """A restart of all workers leaves it out, names it, and ends."""
    async with Worker(s.address, name="alone", nthreads=1) as worker:
        pids = set((await c.run(os.getpid)).values()) - {os.getpid()}
        _, it = begin(s)
        await soon(lambda: it.ended)
        assert it.state == "done"
        assert results(s, it)[-1]["problem"].startswith("worker alone: it has no nanny")
        assert sorted(results(s, it)[-1]["restarted"]) == [0, 1]
        assert worker.address in s.workers
        assert pids.isdisjoint((await c.run(os.getpid)).values())


@gen_cluster(**NANNIES)
async def test_a_worker_that_came_later(c: Any, s: Any, *nannies: Any) -> None:
    """Its former process keeps its keys, and a worker of another Python is left out."""
    plugin, it = begin(s, parking=ship.pickled(park.act))
    plugin.acquire(c.id, "training", "h", hold=True)
    options: dict[str, Any] = {"name": "later", "nthreads": 1, "memory_limit": "1 GiB"}
    async with Nanny(s.address, **options) as later:
        pids = await c.run(os.getpid)
        unlike = next(ws for ws in s.workers.values() if ws.name == 0)
        unlike.versions = {
            "packages": unlike.versions["packages"] | {"python": "3.9.1"}
        }
        x = c.submit(np.arange, 1000, workers=[later.worker_address])
        await wait(x)
        await plugin.release("h")
        await soon(lambda: it.ended)
        assert (it.state, sorted(results(s, it)[-1]["restarted"], key=str)) == (
            "done",
            [1, "later"],
        )
        assert "worker 0: it runs Python 3.9.1, the scheduler " in str(
            results(s, it)[-1]
        )
        assert (await c.run(os.getpid))[unlike.address] == pids[unlike.address]
        done = [job.work.state() for job in jobs(plugin) if job.work.state()["keys"]]
        assert [(state["detour"], state["lost"]) for state in done] == [("", 0)]
        assert done[0]["nbytes"] > 0  # to its next process
        assert len(await x) == 1000


@gen_cluster(**PLAIN)
async def test_process_limits_of_the_others(c: Any, s: Any, *workers: Any) -> None:
    """A worker that came later spills where the others do."""
    plugin, it = begin(s, thresholds=[(0, {"pause": 0.8, "spill": 0.7})])
    plugin.schedules.cancel(it.name)
    first, second = s.workers.values()
    second.memory_limit = 1000
    assert plugin.schedules._ceilings(it, first) == {second.address: 700}


@gen_cluster(**PLAIN)
async def test_a_worker_without_thresholds(c: Any, s: Any, *workers: Any) -> None:
    """It is not restarted for the thresholds of another worker, and has no limit."""
    lines = [(0, {"pause": 0.8, "spill": 0.7}), (1, {})]
    plugin, it = begin(s, if_needed=True, thresholds=lines)
    plugin.schedules.cancel(it.name)
    first, second = sorted(s.workers.values(), key=lambda ws: ws.name)
    for ws in (first, second):
        ws.nanny, ws.memory_limit = "tcp://nanny", 1000
        ws.metrics["memory"], ws.metrics["managed_bytes"] = 850, 0
    assert list(plugin.schedules._due(it)[0]) == [0]
    assert plugin.schedules._ceilings(it, first) == {second.address: 0}
    first.nanny = second.nanny = None


@gen_cluster(**PLAIN)
async def test_only_workers_that_need_it(c: Any, s: Any, *workers: Any) -> None:
    """A gap or a time is not used while no worker needs a restart."""
    lines = [(id, {"pause": 0.8, "spill": 0.7}) for id in (0, 1)]
    plugin, it = begin(s, if_needed=True, thresholds=lines)
    await waits(it, "no worker needs a restart")
    first, second = sorted(s.workers.values(), key=lambda ws: ws.name)
    first.nanny = second.nanny = "tcp://nanny"
    due = plugin.schedules._due
    assert due(it) == ({}, {})
    for ws in (first, second):
        ws.memory_limit = 1000
        ws.metrics["memory"] = ws.metrics["managed_bytes"] = 0
    first.metrics["memory"] = 710
    assert list(due(it)[0]) == [0]
    # a new process would be above the threshold, too, or hardly below it
    for fresh in (705, 650):
        it.terms = it.terms | {"fresh": fresh}
        assert due(it) == ({}, {})
    it.terms = it.terms | {"fresh": 200}
    assert list(due(it)[0]) == [0]
    first.metrics["memory"] = 690
    assert due(it) == ({}, {})
    # growth of a run takes it above the threshold
    plugin.runs.kept.extend({"floors": [(0, 20 * n)]} for n in range(4))
    assert list(due(it)[0]) == [0]
    plugin.runs.kept.clear()
    first.nanny = second.nanny = None
    then = time() + 0.3
    name = plugin.schedules.add(
        terms(if_needed=True, thresholds=lines, instants=[then, then + 900])
    )["id"]
    it = plugin.schedules.kept[name]
    await soon(lambda: results(s, it))
    assert (results(s, it)[0]["outcome"], results(s, it)[0]["problem"]) == (
        "done",
        "no worker needs a restart",
    )
    assert list(it.instants) == [then + 900]
    await plugin.close()


@gen_cluster(**PLAIN)
async def test_it_expires(c: Any, s: Any, *workers: Any) -> None:
    """It expires during any wait, and Dask's event log has it."""
    plugin, it = begin(s, expires=time() + 0.2)
    await soon(lambda: it.ended)
    assert it.state == "expired"
    events = [e for _, e in s.get_events("clustertune")]
    assert [e["state"] for e in events] == ["made", "expired"]
    assert {(e["owner"], e["reason"]) for e in events} == {("me", "a test")}


@pytest.mark.parametrize("shift", [-3600.0, 3600.0], ids=["back", "forward"])
@gen_cluster(**PLAIN)
async def test_a_clock_that_is_set(
    c: Any, s: Any, *workers: Any, shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The idle time is the same."""
    plugin, it = begin(s, idle_for=0.2 if shift < 0 else 600.0, expires=time() + 1e5)
    plugin.schedules._moment()  # it has counted the earlier transitions
    monkeypatch.setattr(schedule_runner, "time", lambda: time() + shift)
    if shift < 0:
        await soon(lambda: "worker 0: it has no nanny" in it.waits, 30)
    else:
        reason = it.obstacle(plugin.schedules._moment())
        assert reason.startswith("idle for ")
        assert reason.endswith(" of 10 min")
    plugin.schedules.cancel(it.name)


@gen_cluster(**NANNIES)
async def test_a_failure(
    c: Any, s: Any, *nannies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with the reasons. Workers that are still there do not stop others."""

    async def fails(*_: Any) -> str:
        raise OSError("no answer")

    monkeypatch.setattr(WorkerRestart, "run", fails)
    plugin, it = begin(s)
    await soon(lambda: it.ended)
    assert it.state == "failed"
    (result,) = results(s, it)
    assert (result["status"], len(result["steps"])) == ("failed", 2)
    for name in (0, 1):
        text = f"worker {name}: the restart failed: OSError('no answer')"
        assert text in result["problem"]
    assert plugin.lease.current is None
    assert {ws.status.name for ws in s.workers.values()} == {"running"}


@gen_cluster(**NANNIES)
async def test_kept_keys(
    c: Any, s: Any, *nannies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost keys do not count, nor keys of workers that were not restarted."""

    async def restart(self: Any) -> str:
        self.touched = False
        self.held.note_away(dict.fromkeys("abc", "other"))
        if refuses.pop():
            return "not now"
        self.lost, self.new_address = 1, "new"
        return ""

    refuses = [False, True]
    monkeypatch.setattr(WorkerRestart, "run", restart)
    _, it = begin(s)
    await soon(lambda: it.ended)
    assert "restarted, 2 keys (0 B moved) kept, 1 lost" in it.last


@gen_cluster(**PLAIN)
async def test_how_many_are_kept(c: Any, s: Any, *workers: Any) -> None:
    """All waiting schedules and the last ended ones are kept."""
    plugin, it = begin(s, idle_for=60.0)
    plugin.schedules.max_ended = 3
    plugin.schedules.add(terms(idle_for=60.0))
    for _ in range(5):
        plugin.schedules.cancel(it.name)
        it = plugin.schedules.kept[plugin.schedules.add(terms(idle_for=60.0))["id"]]
    states = [answer["state"] for answer in plugin.schedules.listed()]
    assert sorted(states) == ["cancelled"] * 3 + ["waiting"] * 2
    await plugin.close()
    assert all(s.ended for s in plugin.schedules.kept.values())
    assert plugin.schedules.task.done()


@gen_cluster(**NANNIES)
async def test_work_that_comes_between(c: Any, s: Any, *nannies: Any) -> None:
    """New work waits for one worker at most; the other restarts in the next gap."""
    x = c.submit(np.arange, 1000, workers=[next(iter(s.workers))])
    scattered = await c.scatter([np.arange(10) + i for i in range(4)], hash=False)
    await wait(x)
    pids = await c.run(os.getpid)
    before = {ws.name: {ts.key for ts in ws.has_what} for ws in s.workers.values()}
    plugin, it = begin(s)
    await soon(lambda: it.left is not None and len(it.left) == 1)
    gate = Event("gate", client=c)
    fit = c.submit(at_gate, gate.name)
    await soon(lambda: results(s, it))
    assert results(s, it)[0]["outcome"] == "interrupted"
    assert len(results(s, it)[0]["restarted"]) == len(results(s, it)[0]["left"]) == 1
    assert it.state == "waiting"
    assert plugin.lease.current is None  # others may have it
    await waits(it, "not idle")
    await gate.set()
    await fit
    await soon(lambda: it.ended)
    assert (it.state, results(s, it)[-1]["outcome"]) == ("done", "done")
    assert sum(result["lost"] for result in results(s, it)) == 0
    counted = {name: +counts for name, counts in plugin.metrics.counted.items()}
    assert counted["operations"] == {("restart", "done"): 2}  # neither has failed
    moved = sum(result["nbytes"] for result in results(s, it))
    assert counted["moved_bytes"] == {(): moved}
    assert counted["operation_seconds"]["restart",] > 0
    (listed,) = await clustertune.schedules(c)
    assert ": done; worker " in listed.last
    assert listed.last.endswith(" kept, 0 lost")  # of the second attempt
    assert await clustertune.last_report(c) is None  # it was no call
    assert set(pids.values()).isdisjoint((await c.run(os.getpid)).values())
    after = {ws.name: {ts.key for ts in ws.has_what} for ws in s.workers.values()}
    assert all(before[name] <= after[name] for name in before)
    np.testing.assert_array_equal(await x, np.arange(1000))
    for i, part in enumerate(await c.gather(scattered)):
        np.testing.assert_array_equal(part, np.arange(10) + i)


@gen_cluster(**NANNIES)
async def test_cancelled_in_mid_restart(c: Any, s: Any, *nannies: Any) -> None:
    """The current worker returns with its keys, and no other one is restarted."""
    parts = await c.scatter([np.arange(10) + i for i in range(4)], hash=False)
    pids = set((await c.run(os.getpid)).values())
    plugin, it = begin(s)
    first = next(iter(s.workers.values())).name
    await soon(lambda: any(job.work.doing == "restarting" for job in jobs(plugin)))
    assert plugin.schedules.cancel(it.name)["state"] == "running"
    await soon(lambda: it.ended)
    assert it.state == "cancelled"
    assert results(s, it)[0]["restarted"] == [first]
    assert len(pids & set((await c.run(os.getpid)).values())) == 1
    assert len(await c.gather(parts)) == 4
    await asyncio.wait_for(plugin.schedules.task, 10)


def jobs(plugin: ClustertunePlugin) -> list[Any]:
    return list(plugin.jobs.kept.values())


@gen_cluster(**NANNIES)
async def test_a_client_restarts_the_cluster_meanwhile(
    c: Any, s: Any, *nannies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of lost keys is unknown, and the rest waits for the next gap."""
    run, restarted = WorkerRestart.run, []

    async def interrupted(self: Any) -> str:
        if not restarted:
            restarted.append(True)
            await s.restart(timeout=60, stimulus_id="test")
        return await run(self)

    monkeypatch.setattr(WorkerRestart, "run", interrupted)
    plugin, it = begin(s)
    await soon(lambda: it.ended)
    assert [r["outcome"] for r in results(s, it)] == ["interrupted", "done"]
    assert [r["lost"] for r in results(s, it)] == [None, 0]
    events = [e for _, e in s.get_events("clustertune") if "outcome" in e]
    assert [(e["status"], e["lost"]) for e in events] == [("left", None), ("done", 0)]
    (listed,) = await clustertune.schedules(c)
    assert listed.last == it.last
    assert ": done; " in str(listed)
    assert "a client restarted the cluster" in results(s, it)[0]["problem"]
