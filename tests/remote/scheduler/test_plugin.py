"""The scheduler plugin: one lease, answers about given keys only, a clean end."""

from __future__ import annotations

import array
import asyncio
import logging
import re
from pathlib import Path
from time import time

import numpy as np
import pytest
from distributed import Client, wait
from distributed.utils_test import captured_logger
from prometheus_client import REGISTRY

import clustertune
from clustertune.errors import (
    ConnectionLostError,
    LeaseHeldError,
    RefusedError,
    VersionMismatchError,
)
from clustertune.monitor import monitor
from clustertune.remote import keys
from clustertune.remote.scheduler import jobs, lease, plugin
from clustertune.remote.scheduler.plugin import NAME, ClustertunePlugin
from clustertune.remote.scheduler.telemetry import Metrics
from tests.in_process import TWO, gen_cluster
from tests.processes import soon


def noted(handler, heard):
    """Wrap the handler, and record the bytes of code that it receives."""

    async def handle(comm, function, **kwargs):
        heard.append(len(function))
        return await handler(comm, function=function, **kwargs)

    return handle


@gen_cluster(client=True, nthreads=TWO)
async def test_installed_once(c, s, a, b):
    """A second client finds the plugin of the first, and sends no code."""
    await monitor.install_plugin(c, await monitor.identify(c))
    first = s.plugins[NAME]
    second, heard = Client(s.address, asynchronous=True), []
    s.handlers["run_function"] = noted(s.handlers["run_function"], heard)
    async with second:
        await monitor.install_plugin(second, await monitor.identify(second))
    assert s.plugins[NAME] is first
    assert len(heard) == 1
    assert heard[0] < 2000  # bytes: a question, not the plugin


@pytest.mark.parametrize("preloaded", [False, True])
@pytest.mark.parametrize("change", [-1, 1])
@gen_cluster(client=True, nthreads=TWO)
async def test_another_release(c, s, a, b, change, preloaded):
    """Its plugin is neither used nor replaced; the error names both releases."""
    other = ClustertunePlugin(s)
    other.protocol, other.version = plugin.PROTOCOL + change, "9.9"
    other.preloaded = preloaded
    other.attach()
    fix = "where the scheduler starts" if preloaded else "unregister_scheduler_plugin"
    for call in (clustertune.check, clustertune.trim_memory, clustertune.schedules):
        with pytest.raises(VersionMismatchError, match=fix) as error:
            await call(c)
        assert f"9.9 (protocol {other.protocol})" in str(error.value)
        assert f"{clustertune.__version__} (protocol" in str(error.value)
    assert s.plugins[NAME] is other


@gen_cluster(client=True, nthreads=TWO)
async def test_the_fix_for_another_release(c, s, a, b):
    """A removed plugin ends with its tasks, and the next call installs this one's."""
    old = ClustertunePlugin(s)
    old.protocol = plugin.PROTOCOL - 1
    old.attach()
    old.schedules.add(terms(c.id))
    waiting = old.schedules.task
    await c.unregister_scheduler_plugin(NAME)
    await clustertune.check(c)
    new = s.plugins[NAME]
    assert new is not old
    assert s.handlers[NAME].__self__ is new
    assert metrics() == [new.metrics]
    assert waiting.done()
    assert all(watch.done() for watch in old.watches)


def metrics():
    """Return the collectors of clustertune's metrics in this process."""
    found = REGISTRY._names_to_collectors
    return list({found[n] for n in found if n.startswith("clustertune_")})


@gen_cluster(client=True, nthreads=TWO)
async def test_metrics_of_two_schedulers_in_a_process(c, s, a, b):
    """Only the first has them, until it has ended."""
    await clustertune.check(c)
    first, second = s.plugins[NAME].metrics, Metrics(s.plugins[NAME])
    second.register()
    second.close()
    assert metrics() == [first]
    first.close()
    second.register()
    assert metrics() == [second]
    second.close()
    assert metrics() == []


@gen_cluster(client=True, nthreads=TWO)
async def test_refused_calls_are_logged(c, s, a, b):
    """The event has the author and the reason; nothing was changed."""
    with pytest.raises(RefusedError):
        await clustertune.restart_workers(c)
    (event,) = [e for _, e in s.get_events(NAME) if e["action"] == "restart"]
    assert (event["status"], list(event["steps"])) == ("refused", [])
    assert "it has no nanny" in event["problem"]
    assert event["by"]
    counted = s.plugins[NAME].metrics.counted["operations"]
    assert +counted == {("restart", "refused"): 1}
    await clustertune.restart_workers(c, dry_run=True)
    assert len([e for _, e in s.get_events(NAME) if e["action"] == "restart"]) == 1


def terms(owner):
    """A restart that waits for a long time."""
    found = {"owner": owner, "reason": "weekly", "idle_for": 600.0, "instants": []}
    found |= {"if_needed": False, "workers": [0], "thresholds": [(0, {"spill": 0.7})]}
    return found | {"expires": time() + 3600}


@gen_cluster(client=True, nthreads=TWO)
async def test_look_answers_for_given_keys_only(c, s, a, b):
    """Holders and bytes are in the requested order; unknown keys have no holder."""
    await monitor.install_plugin(c, await monitor.identify(c))
    here = c.submit(np.ones, 10, workers=[a.address], key=("x", 0))
    there = c.submit(np.ones, 20, workers=[b.address], key=("x", 1))
    await wait([here, there])
    packed = keys.pack([("x", 1), ("x", 0), ("x", 7)])
    answer = await monitor.ask(c, "look", collections=[packed])
    (found,) = answer["collections"]
    assert found.pop("scattered") == 0
    read = {name: array.array("q", found[name]).tolist() for name in found}
    order = answer["workers"]
    assert read["partitions"] == [0, 1]
    assert [order[i] for i in read["holders"]] == [b.address, a.address]
    assert read["nbytes"] == [s.tasks["x", 1].nbytes, s.tasks["x", 0].nbytes, 0]


@gen_cluster(client=True, nthreads=TWO)
async def test_all_requests_are_in_one_table(c, s, a, b):
    """Clients send no others, and each request is sent by some client."""
    sent = {
        name
        for path in Path(clustertune.__file__).parent.rglob("*.py")
        if path.name != "plugin.py"
        for name in re.findall(r'"([a-z_]+)"', path.read_text())
    }
    requests = ClustertunePlugin(s).requests
    assert requests.keys() <= sent
    assert requests.keys() >= monitor.REPEATABLE
    assert len(requests) <= 24


@gen_cluster(client=True, nthreads=TWO)
async def test_one_lease(c, s, a, b):
    """A second plan gets the holder's name; after its release the lease is free."""
    await monitor.install_plugin(c, await monitor.identify(c))
    first = await monitor.ask(c, "acquire", owner=c.id, label="one", token="1")
    second = await monitor.ask(c, "acquire", owner=c.id, label="two", token="2")
    assert second["holder"]["label"] == "one"
    assert "token" not in second["holder"]
    await monitor.ask(c, "release", token="of another client")
    assert "holder" in await monitor.ask(
        c, "acquire", owner=c.id, label="two", token="2"
    )
    await monitor.ask(c, "release", token=first["token"])
    assert "token" in await monitor.ask(
        c, "acquire", owner=c.id, label="two", token="2"
    )


@gen_cluster(client=True, nthreads=TWO)
async def test_the_lease_ends_with_its_client(c, s, a, b):
    """The lease of a client that disconnects is free."""
    await monitor.install_plugin(c, await monitor.identify(c))
    other = await Client(s.address, asynchronous=True, set_as_default=False)
    await monitor.ask(other, "acquire", owner=other.id, label="other", token="o")
    await other.close()
    await soon(lambda: s.plugins[NAME].lease.current is None, seconds=lease.GRACE / 3)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_lost_client_has_a_grace_period(c, s, a, b):
    """Its lease is free after that period, unless it returns."""
    await monitor.install_plugin(c, await monitor.identify(c))
    there = s.plugins[NAME]
    mine = {"owner": c.id, "label": "mine", "token": "m"}
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        theirs = {"owner": other.id, "label": "theirs", "token": "t"}
        await monitor.ask(other, "acquire", **theirs)
        first = s.clients[other.id]
        other.scheduler_comm.comm.abort()
        await soon(lambda: s.clients.get(other.id) is not first)
        assert "holder" in await monitor.ask(c, "acquire", **mine)
        await soon(lambda: other.status == "running")
        assert await monitor.ask(other, "is_held", name="t")
        there.owners.grace = 1.0
        other._reconnect = other._close  # it does not come back
        other.scheduler_comm.comm.abort()
        await soon(lambda: other.id not in s.clients)
        assert "holder" in await monitor.ask(c, "acquire", **mine)
        await soon(lambda: there.lease.current is None)
    (lost,) = [e for _, e in s.get_events(NAME) if e["action"] == "lease lost"]
    assert (lost["label"], lost["client"]) == ("theirs", other.id)
    assert "token" in await monitor.ask(c, "acquire", **mine)
    assert there.owners.timers == {}


@gen_cluster(client=True, nthreads=TWO)
async def test_a_scheduler_that_was_suspended_keeps_leases(c, s, a, b, monkeypatch):
    """It first reads the messages that wait; without any, the lease ends later."""
    await monitor.install_plugin(c, await monitor.identify(c))
    there, passed = s.plugins[NAME], 0.0
    await monitor.ask(c, "acquire", owner=c.id, label="mine", token="m")
    hold = {"owner": c.id, "label": "a fit", "token": "h", "hold": True}
    await monitor.ask(c, "acquire", **hold)
    # the plugin has its own copy of the module
    owned = there.owners.is_alive.__globals__
    monkeypatch.setitem(owned, "time", lambda: time() + passed)
    there.owners.grace, passed = 2.0, 3600.0
    await soon(lambda: there.owners.resumed > time() + 3000)
    assert (there.lease.holder() or {})["label"] == "mine"
    assert [hold["label"] for hold in there.holds.active()] == ["a fit"]
    await soon(lambda: not there.holds.active() and there.lease.holder() is None)


@gen_cluster(client=True, nthreads=TWO)
async def test_an_expected_end_is_no_traceback(c, s, a, b):
    """The lease of a call, or its client, has ended."""
    await monitor.install_plugin(c, await monitor.identify(c))
    future = c.submit(np.ones, 1000, workers=[a.address])
    await wait(future)
    with captured_logger("distributed", level=logging.WARNING) as log:
        async with Client(s.address, asynchronous=True, set_as_default=False) as other:
            await monitor.ask(other, "acquire", owner=other.id, label="x", token="t")
            job = await monitor.ask(
                other,
                "move",
                token="t",
                workers=[b.address],
                ceilings=[1],  # byte: there is never room
                moves=[
                    (keys.pack([future.key]), np.zeros(1, dtype=np.int64).tobytes())
                ],
                deadline=30,
            )
            asked = {"method": "progress", "job": job, "token": "t", "wait": 1.0}
            answer = asyncio.ensure_future(s.plugins[NAME].handle(**asked))
            await asyncio.sleep(0)
        assert "lease_ended" in await answer
        with pytest.raises(LeaseHeldError, match="Run the call again"):
            await monitor.ask(c, "unpin", token="t", name="x")
    assert "Traceback" not in log.getvalue()


@gen_cluster(client=True, nthreads=TWO)
async def test_the_lease_of_a_frozen_client_can_be_taken(c, s, a, b):
    """A client without a sign for 15 s loses its lease to the next client."""
    await monitor.install_plugin(c, await monitor.identify(c))
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        await monitor.ask(other, "acquire", owner=other.id, label="frozen", token="f")
        s.clients[other.id].last_seen -= lease.GRACE - 1
        s.plugins[NAME].owners.seen[other.id] -= lease.GRACE - 1
        assert "holder" in await monitor.ask(
            c, "acquire", owner=c.id, label="mine", token="m"
        )
        s.clients[other.id].last_seen -= 2
        s.plugins[NAME].owners.seen[other.id] -= 2
        assert "token" in await monitor.ask(
            c, "acquire", owner=c.id, label="mine", token="m"
        )


@gen_cluster(client=True, nthreads=TWO)
async def test_requests_that_are_refused(c, s, a, b):
    """Unknown methods, moves without the lease, and late requests.

    No call or block would end a lease or hold that comes after its release.
    """
    await monitor.install_plugin(c, await monitor.identify(c))
    with pytest.raises(VersionMismatchError, match="has no method"):
        await monitor.ask(c, "attach")
    move = {"workers": [], "ceilings": [], "moves": [], "deadline": 1}
    with pytest.raises(LeaseHeldError, match="lease"):
        await monitor.ask(c, "move", token="", **move)
    await monitor.ask(c, "release", token="late lease")
    with pytest.raises(LeaseHeldError, match="released"):
        await monitor.ask(c, "acquire", owner=c.id, label="x", token="late lease")
    assert s.plugins[NAME].lease.holder() is None
    hold = {"owner": c.id, "label": "x", "hold": True}
    await monitor.ask(c, "acquire", token="ended", **hold)
    await monitor.ask(c, "release", token="ended")
    await monitor.ask(c, "release", token="late")
    for token in ("ended", "late"):
        with pytest.raises(LeaseHeldError, match="hold was released before"):
            await monitor.ask(c, "acquire", token=token, **hold)
    assert s.plugins[NAME].holds.active() == []


@gen_cluster(client=True, nthreads=TWO)
async def test_plans_get_the_lease_in_turn(c, s, a, b):
    """A client that fits again and again does not shut out the others."""
    await monitor.install_plugin(c, await monitor.identify(c))
    holder = s.plugins[NAME]
    async with (
        Client(s.address, asynchronous=True) as one,
        Client(s.address, asynchronous=True) as two,
    ):
        holder.acquire(c.id, "a fit", "hold", hold=True)
        # a schedule asks with another token each time, so it does not queue
        refused = holder.acquire(lease.SCHEDULER_OWNER, "a scheduled restart", "s")
        assert refused["holder"]["label"] == "a fit"
        assert "waits" not in refused["holder"]
        assert holder.acquire(one.id, "one", "1")["holder"]["label"] == "a fit"
        assert holder.acquire(two.id, "two", "2")["holder"]["label"] == "a fit"
        # the others wait for this client
        assert "token" in holder.acquire(c.id, "prepare", "p")
        await holder.release("p")
        await holder.release("hold")
        first = holder.acquire(c.id, "prepare", "q")["holder"]
        assert (first["label"], first["waits"]) == ("one", True)
        assert holder.acquire(two.id, "two", "2")["holder"]["label"] == "one"
        # what frees threads waits for no one
        assert "token" in holder.acquire(c.id, "restart", "r", despite_holds=True)
        await holder.release("r")
        assert "token" in holder.acquire(one.id, "one", "1")
        await holder.release("1")
        await holder.release("2")  # it has been given up
        assert "token" in holder.acquire(c.id, "prepare", "q")


@gen_cluster(client=True, nthreads=TWO)
async def test_a_scheduler_without_a_plugin(c, s, a, b):
    """A scheduler that was started again has no plugin; the error states it."""
    with pytest.raises(ConnectionLostError, match="started again"):
        await monitor.ask(c, "report")


@gen_cluster(client=True, nthreads=TWO)
async def test_the_deadline_of_a_move(c, s, a, b):
    """A move ends at its deadline, and starts the memory manager again."""
    await monitor.install_plugin(c, await monitor.identify(c))
    future = c.submit(np.ones, 1000, workers=[a.address])
    await wait(future)
    token = (await monitor.ask(c, "acquire", owner=c.id, label="x", token="x"))["token"]
    job = await monitor.ask(
        c,
        "move",
        token=token,
        workers=[b.address],
        ceilings=[1],  # byte: there is never room
        moves=[(keys.pack([future.key]), np.zeros(1, dtype=np.int64).tobytes())],
        deadline=0.2,
    )
    asked = {"job": job, "token": token}
    state = await monitor.ask(c, "progress", **asked, wait=0)
    assert not state["finished"]
    state = await monitor.ask(c, "progress", **asked, wait=jobs.MAX_WAIT)
    assert state["finished"]  # the answer came with the end
    assert "deadline" in state["error"]
    assert state["done"] == 0
    assert s.extensions["amm"].running
    assert {w.address for w in s.tasks[future.key].who_has} == {a.address}


@gen_cluster(client=True, nthreads=TWO)
async def test_a_report_is_kept(c, s, a, b):
    """Any client can read the last report; too long reports are refused."""
    await monitor.install_plugin(c, await monitor.identify(c))
    assert await monitor.ask(c, "report") == ""
    await monitor.ask(c, "report", text='{"x": 1}')
    assert await monitor.ask(c, "report") == '{"x": 1}'
    with pytest.raises(VersionMismatchError, match="not kept"):
        await monitor.ask(c, "report", text=" " * (plugin.MAX_REPORT + 1))


@gen_cluster(client=True, nthreads=TWO)
async def test_who_wants_keys(c, s, a, b):
    """Keys that other clients or published names hold are counted."""
    look = ClustertunePlugin(s).requests["look_at_keys"]

    async def wanted(packed, owner):
        return (await look(owner, packed))["others"]

    futures = c.map(int, range(4))
    await wait(futures)
    packed = keys.pack([f.key for f in futures])
    assert await wanted(packed, c.id) == 0
    assert await wanted(packed, "another") == 4
    await c.publish_dataset(futures[:1], name="one")
    assert await wanted(packed, c.id) == 1
