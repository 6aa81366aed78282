"""Scheduled restarts on a scheduler: conditions and progress."""

from __future__ import annotations

import asyncio
import os
from time import time
from typing import Any

import numpy as np
from distributed import Event, Nanny, wait
from distributed.utils_test import gen_cluster

from clustertune.remote.scheduler import schedule as one
from clustertune.remote.scheduler import schedule_runner
from clustertune.remote.scheduler.plugin import ClustertunePlugin
from tests.processes import soon

TWO = [("127.0.0.1", 1)] * 2
PLAIN: dict[str, Any] = {"client": True, "nthreads": TWO}
NANNIES: dict[str, Any] = PLAIN | {
    "Worker": Nanny,
    "worker_kwargs": {"memory_limit": "1 GiB"},
    "timeout": 120,
}


def terms(**others: Any) -> dict[str, Any]:
    """Return the terms as the client sends them."""
    given = {
        "owner": "me",
        "reason": "a test",
        "idle_for": 0.2,
        "instants": [],
        "expires": time() + 60,
        "condition": None,
        "workers": None,
        "collections": [],
        "lines": [],
        "nannies": [],
        "parking": b"",
        "wait": 5.0,
        "timeout": 30.0,
    }
    return given | others


def begin(s: Any, **others: Any) -> tuple[ClustertunePlugin, Any]:
    """Install a plugin of the imported modules, with one schedule."""
    plugin = ClustertunePlugin(s)
    plugin.schedules.again, plugin.schedules.pause = 0.05, 0.3
    plugin.attach()
    name = plugin.schedules.add(terms(**others))["id"]
    return plugin, plugin.schedules.kept[name]


def tell(plugin: ClustertunePlugin, found: list[Any]) -> None:
    facts = {"findings": {"time": time(), "found": found}}
    plugin.store_facts(facts, diagnosis=True)


def waits(it: Any, kind: str) -> Any:
    return soon(lambda: it.waits.get("for") == kind)


def at_gate(name: str) -> None:
    Event(name).wait(30)


@gen_cluster(**PLAIN)
async def test_why_it_has_not_run_yet(c: Any, s: Any, *workers: Any) -> None:
    """It waits for tasks, a hold, a plan, and workers without a nanny."""
    gate = Event("gate", client=c)
    busy = c.submit(at_gate, gate.name)
    await soon(lambda: any(ws.processing for ws in s.workers.values()))
    plugin, it = begin(s)
    await waits(it, "busy")
    assert it.waits["tasks"] == 1
    await gate.set()
    await busy
    plugin.begin_hold(c.id, "training", "h")
    await waits(it, "held")
    assert it.waits["label"] == "training"
    plugin.end_hold("h")
    plugin.acquire(c.id, "prepare", "t")
    await soon(lambda: it.waits.get("label") == "prepare")
    plugin.release("t")
    await waits(it, "room")
    assert "has no nanny" in it.waits["text"]
    assert plugin.schedules.cancel(it.name)["state"] == "cancelled"
    await soon(plugin.schedules.task.done)
    assert plugin.schedules.cancel("unknown") is None


@gen_cluster(**PLAIN)
async def test_what_is_in_the_way(c: Any, s: Any, *workers: Any) -> None:
    """Obstacles as text: actors, too little memory, a new worker."""
    plugin, it = begin(s, lines=[(0, {"spill": 0.7, "pause": 0.8})])
    plugin.schedules.cancel(it.name)
    first, second = s.workers.values()
    first.nanny = second.nanny = "tcp://nanny"
    check = plugin.schedules._obstacle
    assert await check(it, {0: first}) == ""
    x = c.submit(np.ones, 1000, workers=[first.address])
    await wait(x)
    # the one that came later spills where the other does
    second.memory_limit = 1000
    assert plugin.schedules._ceilings(it, first) == {second.address: 700}
    found = await check(it, {0: first})
    assert "no headroom for worker 0: the others have room for 0 B" in found
    assert "7.8 KiB of keys need a place" in found
    s.running.discard(second)
    found = await check(it, {0: first})
    assert "no other worker runs" in found
    assert "the worker came after the restart was scheduled" in found
    actor = await c.submit(dict, actor=True, workers=[first.address])
    assert "holds 1 actors" in await check(it, {0: first})
    assert await check(it, {}) == "none of its workers is on the cluster"
    s.running.add(second)
    first.nanny = second.nanny = None
    del actor


@gen_cluster(**PLAIN)
async def test_conditions(c: Any, s: Any, *workers: Any) -> None:
    """A gap before the condition holds is not used, and neither is a time."""
    found = {"kind": "check", "check": "x", "severity": 2, "text": "x:warning"}
    plugin, it = begin(s, condition=found)
    await waits(it, "condition")
    assert it.waits["text"].startswith("no check has run yet")
    row = {"check": "x", "severity": "warning", "message": "it is so"}
    tell(plugin, [row])
    await waits(it, "room")  # and not the condition any more
    tell(plugin, [])
    soon_ = time() + 0.3
    it = plugin.schedules.kept[
        plugin.schedules.add(terms(condition=found, instants=[soon_, soon_ + 900]))[
            "id"
        ]
    ]
    await soon(lambda: it.results)
    assert (it.results[0]["outcome"], it.results[0]["problem"]) == (
        "not needed",
        "x:warning was not found",
    )
    assert list(it.instants) == [soon_ + 900]
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


@gen_cluster(**PLAIN)
async def test_three_failures(c: Any, s: Any, *workers: Any, monkeypatch: Any) -> None:
    """It stops after three failures with their reasons; the cluster is unchanged."""

    async def nothing(*_: Any) -> str:
        return ""

    monkeypatch.setattr(schedule_runner.ScheduleRunner, "_obstacle", nothing)
    plugin, it = begin(s)
    await soon(lambda: it.ended)
    assert it.state == "failed"
    assert len(it.results) == one.MAX_FAILURES
    assert "it has no nanny" in it.results[-1]["problem"]
    assert plugin.lease.current is None
    assert {ws.status.name for ws in s.workers.values()} == {"running"}


@gen_cluster(**PLAIN)
async def test_how_many_are_kept(c: Any, s: Any, *workers: Any) -> None:
    """The number of waiting schedules is limited, and the last ended ones are kept."""
    plugin, it = begin(s, idle_for=60.0)
    plugin.schedules.max_waiting, plugin.schedules.max_ended = 2, 3
    plugin.schedules.add(terms(idle_for=60.0))
    assert "2 restarts wait already" in plugin.schedules.add(terms())["refused"]
    for _ in range(5):
        plugin.schedules.cancel(it.name)
        it = plugin.schedules.kept[plugin.schedules.add(terms(idle_for=60.0))["id"]]
    states = [answer["state"] for answer in plugin.list_schedules()["schedules"]]
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
    await soon(lambda: it.results)
    assert it.results[0]["outcome"] == "interrupted"
    assert len(it.results[0]["restarted"]) == len(it.results[0]["left"]) == 1
    assert it.state == "waiting"
    assert plugin.lease.current is None  # others may have it
    await waits(it, "busy")
    await gate.set()
    await fit
    await soon(lambda: it.ended)
    assert (it.state, it.results[-1]["outcome"]) == ("done", "done")
    assert sum(result["lost"] for result in it.results) == 0
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
    assert it.results[0]["restarted"] == [first]
    assert len(pids & set((await c.run(os.getpid)).values())) == 1
    assert len(await c.gather(parts)) == 4
    await asyncio.wait_for(plugin.schedules.task, 10)


def jobs(plugin: ClustertunePlugin) -> list[Any]:
    return list(plugin.jobs.kept.values())
