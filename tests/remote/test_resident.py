"""The resident: one lease, answers about given keys only, and a clean end."""

from __future__ import annotations

import array

import dask
import numpy as np
import pytest
from dask._task_spec import Task
from distributed import Client, Event, wait
from distributed.core import Status
from distributed.utils_test import gen_cluster

from clustertune import monitor
from clustertune.errors import (
    ConnectionLostError,
    LeaseHeldError,
    VersionMismatchError,
)
from clustertune.remote import keys, resident
from clustertune.remote.resident import NAME, Resident, install
from tests.processes import soon

TWO = [("127.0.0.1", 1)] * 2


def noted(handler, heard):
    """The handler, which keeps how many bytes of code it was given."""

    async def handle(comm, function, **kwargs):
        heard.append(len(function))
        return await handler(comm, function=function, **kwargs)

    return handle


@gen_cluster(client=True, nthreads=TWO)
async def test_installed_once(c, s, a, b):
    """A second client finds the resident of the first, and code travels no more."""
    await monitor.open_door(c, await monitor.identify(c))
    first = s.plugins[NAME]
    second, heard = Client(s.address, asynchronous=True), []
    s.handlers["run_function"] = noted(s.handlers["run_function"], heard)
    async with second:
        await monitor.open_door(second, await monitor.identify(second))
    assert s.plugins[NAME] is first
    assert len(heard) == 1
    assert heard[0] < 2000  # bytes: a question, not the resident


@gen_cluster(client=True, nthreads=TWO)
async def test_an_older_one_is_replaced(c, s, a, b):
    """An older resident gives way, its handler and its tasks with it."""
    old = Resident(s)
    old.protocol = resident.PROTOCOL - 1
    old.attach()
    assert (await install(s))["protocol"] == resident.PROTOCOL
    assert s.plugins[NAME] is not old
    assert s.handlers[NAME].__self__ is s.plugins[NAME]


@gen_cluster(client=True, nthreads=TWO)
async def test_an_older_one_at_work_is_left(c, s, a, b):
    """An older resident that carries out a plan is not taken away under it."""
    old = Resident(s)
    old.protocol = resident.PROTOCOL - 1
    old.attach()
    old.acquire(c.id, "prepare", "t")
    with pytest.raises(LeaseHeldError, match="older clustertune"):
        await monitor.open_door(c, await monitor.identify(c))
    assert s.plugins[NAME] is old


@gen_cluster(client=True, nthreads=TWO)
async def test_a_newer_one_is_left_alone_and_said(c, s, a, b):
    """A newer resident stays; the client is told to upgrade."""
    new = Resident(s)
    new.protocol = resident.PROTOCOL + 1
    new.attach()
    with pytest.raises(VersionMismatchError, match="upgrade clustertune here"):
        await monitor.open_door(c, await monitor.identify(c))
    assert s.plugins[NAME] is new


@gen_cluster(client=True, nthreads=TWO)
async def test_look_answers_for_given_keys_only(c, s, a, b):
    """Holders and bytes come in the order asked; unknown keys have no holder."""
    await monitor.open_door(c, await monitor.identify(c))
    here = c.submit(np.ones, 10, workers=[a.address], key=("x", 0))
    there = c.submit(np.ones, 20, workers=[b.address], key=("x", 1))
    await wait([here, there])
    packed = keys.pack([("x", 1), ("x", 0), ("x", 7)])
    answer = await monitor.ask(c, "look", collections=[packed])
    (found,) = answer["collections"]
    assert found.pop("scattered") == 0
    read = {name: array.array("q", found[name]).tolist() for name in found}
    order = answer["workers"]
    assert read["pieces"] == [0, 1]
    assert [order[i] for i in read["holders"]] == [b.address, a.address]
    assert read["nbytes"] == [s.tasks["x", 1].nbytes, s.tasks["x", 0].nbytes, 0]


@gen_cluster(client=True, nthreads=TWO)
async def test_unknown_requests_are_refused(c, s, a, b):
    """Only the listed methods can be called through the handler."""
    await monitor.open_door(c, await monitor.identify(c))
    with pytest.raises(VersionMismatchError, match="does not know"):
        await monitor.ask(c, "attach")


@gen_cluster(client=True, nthreads=TWO)
async def test_one_lease(c, s, a, b):
    """A second plan learns who holds the lease; released, it can be taken."""
    await monitor.open_door(c, await monitor.identify(c))
    first = await monitor.ask(c, "acquire", owner=c.id, label="one", token="1")
    second = await monitor.ask(c, "acquire", owner=c.id, label="two", token="2")
    assert second["holder"]["label"] == "one"
    assert "token" not in second["holder"]
    await monitor.ask(c, "release", token="somebody else's")
    assert "holder" in await monitor.ask(
        c, "acquire", owner=c.id, label="two", token="2"
    )
    await monitor.ask(c, "release", token=first["token"])
    assert "token" in await monitor.ask(
        c, "acquire", owner=c.id, label="two", token="2"
    )


@gen_cluster(client=True, nthreads=TWO)
async def test_the_lease_ends_with_its_client(c, s, a, b):
    """A client that disconnects holds nothing any more."""
    await monitor.open_door(c, await monitor.identify(c))
    other = await Client(s.address, asynchronous=True, set_as_default=False)
    await monitor.ask(other, "acquire", owner=other.id, label="other", token="o")
    await other.close()
    await soon(lambda: s.plugins[NAME].lease is None)


@gen_cluster(client=True, nthreads=TWO)
async def test_the_lease_of_a_frozen_client_can_be_taken(c, s, a, b):
    """A client that was not heard of for 15 s loses its lease to whoever asks."""
    await monitor.open_door(c, await monitor.identify(c))
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        await monitor.ask(other, "acquire", owner=other.id, label="frozen", token="f")
        s.clients[other.id].last_seen -= resident.FROZEN - 1
        s.plugins[NAME].lease["seen"] -= resident.FROZEN - 1
        assert "holder" in await monitor.ask(
            c, "acquire", owner=c.id, label="mine", token="m"
        )
        s.clients[other.id].last_seen -= 2
        s.plugins[NAME].lease["seen"] -= 2
        assert "token" in await monitor.ask(
            c, "acquire", owner=c.id, label="mine", token="m"
        )


@gen_cluster(client=True, nthreads=TWO)
async def test_a_move_needs_the_lease(c, s, a, b):
    """Without the lease, or with one that has ended, nothing moves."""
    await monitor.open_door(c, await monitor.identify(c))
    with pytest.raises(LeaseHeldError, match="lease"):
        await monitor.ask(
            c, "move", token="", workers=[], ceilings=[], moves=[], deadline=1
        )


@gen_cluster(client=True, nthreads=TWO)
async def test_a_lease_that_was_released_before_it_came(c, s, a, b):
    """A request for the lease that comes after its release is void: nobody would end
    it."""
    await monitor.open_door(c, await monitor.identify(c))
    await monitor.ask(c, "release", token="late")
    with pytest.raises(LeaseHeldError, match="released"):
        await monitor.ask(c, "acquire", owner=c.id, label="x", token="late")
    assert s.plugins[NAME].holder() is None


@gen_cluster(client=True, nthreads=TWO)
async def test_a_scheduler_without_a_resident(c, s, a, b):
    """A scheduler that was started again has no resident: said, not guessed."""
    with pytest.raises(ConnectionLostError, match="started again"):
        await monitor.ask(c, "recall")


@gen_cluster(client=True, nthreads=TWO)
async def test_the_deadline_of_a_move(c, s, a, b):
    """A move that cannot end ends with its deadline, and gives the manager back."""
    await monitor.open_door(c, await monitor.identify(c))
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
    state = await monitor.ask(c, "progress", **asked, wait=resident.LONGEST)
    assert state["finished"]  # the answer came with the end
    assert "deadline" in state["error"]
    assert state["done"] == 0
    assert s.extensions["amm"].running
    assert {w.address for w in s.tasks[future.key].who_has} == {a.address}


@gen_cluster(client=True, nthreads=TWO)
async def test_a_report_is_kept(c, s, a, b):
    """The last report is handed out to anybody; one that is too long is refused."""
    await monitor.open_door(c, await monitor.identify(c))
    assert await monitor.ask(c, "recall") == ""
    await monitor.ask(c, "keep", report='{"x": 1}')
    assert await monitor.ask(c, "recall") == '{"x": 1}'
    with pytest.raises(VersionMismatchError, match="not kept"):
        await monitor.ask(c, "keep", report=" " * (resident.MOST_REPORT + 1))


async def bound(c, s, where, count=3):
    """Tasks that run on one worker only, and the lease of the plan that bound them."""
    lease = Resident(s)
    lease.attach()
    lease.acquire(c.id, "prepare", "t")
    name = await lease.pin("t", keys.pack([("bound", i) for i in range(count)]))
    with dask.annotate(workers=[where], allow_other_workers=False):
        graph = {("bound", i): Task(("bound", i), int, i) for i in range(count)}
        futures = c.get(graph, list(graph), sync=False)
    await soon(lambda: ("bound", 0) in s.tasks)
    return lease, name, futures


@gen_cluster(client=True, nthreads=TWO)
async def test_tasks_are_let_go(c, s, a, b):
    """Unpinned, no task is bound any more, nor by what it is computed again from."""
    lease, name, futures = await bound(c, s, a.address)
    await wait(futures)
    tasks = [s.tasks[f.key] for f in futures]
    assert all(ts.worker_restrictions == {a.address} for ts in tasks)
    await lease.unpin("t", name)
    assert not any(ts.worker_restrictions or ts.loose_restrictions for ts in tasks)
    assert not any("workers" in ts.annotations for ts in tasks)
    await a.close()
    assert await c.gather(futures) == [0, 1, 2]


@gen_cluster(client=True, nthreads=TWO)
async def test_stuck_tasks_are_let_go(c, s, a, b):
    """Tasks that wait for a worker that is gone run elsewhere; others stay bound."""
    lease, name, futures = await bound(c, s, "tcp://127.0.0.1:9")
    await soon(lambda: len(s.unrunnable) == 3)
    assert await lease.free_stuck("t", name) == 3
    assert await c.gather(futures) == [0, 1, 2]
    assert await lease.free_stuck("t", name) == 0


def at_gate(name):
    Event(name).wait(30)


@gen_cluster(client=True, nthreads=TWO)
async def test_tasks_of_a_paused_worker_are_let_go(c, s, a, b):
    """What it has been given and has not begun runs elsewhere."""
    gate = Event("gate", client=c)
    blocker = c.submit(at_gate, gate.name, workers=[a.address], key="blocker")
    await soon(lambda: a.state.executing)
    lease, name, futures = await bound(c, s, a.address)
    await soon(lambda: len(s.workers[a.address].processing) == 4)
    a.status = Status.paused
    await soon(lambda: s.workers[a.address].status is Status.paused)
    assert await lease.free_stuck("t", name) == 3
    assert await c.gather(futures) == [0, 1, 2]
    assert all(f.key in b.data for f in futures)
    await gate.set()
    a.status = Status.running
    await blocker


@gen_cluster(client=True, nthreads=TWO)
async def test_what_bound_tasks_are_made_of_is_let_go(c, s, a, b):
    """A paused worker was given it, unbound, and it would wait; others' work stays."""
    gate = Event("gate", client=c)
    blocker = c.submit(at_gate, gate.name, workers=[a.address], key="blocker")
    await soon(lambda: a.state.executing)
    lease = Resident(s)
    lease.attach()
    lease.acquire(c.id, "prepare", "t")
    name = await lease.pin("t", keys.pack(["bound"]))
    elsewhere = {"workers": [a.address], "allow_other_workers": True}
    source = c.submit(int, 7, key="source", **elsewhere)
    others = c.submit(int, 8, key="others", **elsewhere)
    made = c.submit(str, source, workers=[b.address], key="bound")
    await soon(lambda: len(s.workers[a.address].processing) == 3)
    a.status = Status.paused
    await soon(lambda: s.workers[a.address].status is Status.paused)
    assert await lease.free_stuck("t", name) == 1
    assert await made == "7"
    assert s.tasks["others"].processing_on.address == a.address
    await gate.set()
    a.status = Status.running
    assert await others == 8
    await blocker


@gen_cluster(client=True, nthreads=TWO)
async def test_a_lease_that_ends_lets_tasks_go(c, s, a, b):
    """Nobody else would: the plan that bound them has gone."""
    lease, _, futures = await bound(c, s, "tcp://127.0.0.1:9")
    lease.release("t")
    assert await c.gather(futures) == [0, 1, 2]
    assert not lease.pinned


@gen_cluster(client=True, nthreads=TWO)
async def test_who_wants_keys(c, s, a, b):
    """Keys that another client wants too are counted, also published ones."""
    lease = Resident(s)
    futures = c.map(int, range(4))
    await wait(futures)
    packed = keys.pack([f.key for f in futures])
    assert await lease.wanted(packed, c.id) == 0
    assert await lease.wanted(packed, "another") == 4
    await c.publish_dataset(futures[:1], name="one")
    assert await lease.wanted(packed, c.id) == 1
