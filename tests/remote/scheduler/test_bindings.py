"""Tasks bound to workers are unbound when the worker or the plan is gone."""

from __future__ import annotations

from typing import Any

import dask
import pytest
from dask._task_spec import Task
from distributed import Client, Event, Worker, wait
from distributed.active_memory_manager import ReduceReplicas
from distributed.core import Status
from distributed.utils_test import inc

from clustertune.remote import keys, ship
from clustertune.remote.scheduler import bindings
from clustertune.remote.scheduler.bindings import bound_to, follow
from clustertune.remote.scheduler.plugin import ClustertunePlugin
from clustertune.remote.scheduler.state import PARKING_PREFIX
from tests.in_process import TWO, gen_cluster
from tests.processes import at_gate, soon


async def bound(c, s, where, count=3):
    """Return tasks that run on one worker only, and the lease of their plan."""
    lease = ClustertunePlugin(s)
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
    """After unpin neither tasks nor their inputs are bound."""
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
    """Tasks of a lost worker run on others; the rest stays bound."""
    lease, name, futures = await bound(c, s, "tcp://127.0.0.1:9")
    await soon(lambda: len(s.unrunnable) == 3)
    assert await lease.unpin("t", name, stuck=True) == 3
    assert await c.gather(futures) == [0, 1, 2]
    assert await lease.unpin("t", name, stuck=True) == 0


@gen_cluster(client=True, nthreads=TWO)
async def test_tasks_of_a_paused_worker_are_let_go(c, s, a, b):
    """Its tasks that have not begun run on other workers."""
    gate = Event("gate", client=c)
    blocker = c.submit(at_gate, gate.name, workers=[a.address], key="blocker")
    await soon(lambda: a.state.executing)
    lease, name, futures = await bound(c, s, a.address)
    await soon(lambda: len(s.workers[a.address].processing) == 4)
    a.status = Status.paused
    await soon(lambda: s.workers[a.address].status is Status.paused)
    assert await lease.unpin("t", name, stuck=True) == 3
    assert await c.gather(futures) == [0, 1, 2]
    assert all(f.key in b.data for f in futures)
    await gate.set()
    a.status = Status.running
    await blocker


@gen_cluster(client=True, nthreads=TWO)
async def test_what_bound_tasks_are_made_of_is_let_go(c, s, a, b):
    """Unbound inputs on a paused worker run elsewhere; other clients' tasks stay."""
    gate = Event("gate", client=c)
    blocker = c.submit(at_gate, gate.name, workers=[a.address], key="blocker")
    await soon(lambda: a.state.executing)
    lease = ClustertunePlugin(s)
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
    assert await lease.unpin("t", name, stuck=True) == 1
    assert await made == "7"
    assert s.tasks["others"].processing_on.address == a.address
    await gate.set()
    a.status = Status.running
    assert await others == 8
    await blocker


@gen_cluster(client=True, nthreads=TWO)
async def test_a_lease_that_ends_lets_tasks_go(c, s, a, b):
    """The plan that bound them has ended."""
    lease, _, futures = await bound(c, s, "tcp://127.0.0.1:9")
    await lease.release("t")
    assert await c.gather(futures) == [0, 1, 2]
    assert not lease.bindings.kept


@pytest.mark.parametrize("plugin", ["", "before", "later"])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_no_worker_in_the_moment(c, s, a, plugin):
    """What may run elsewhere does so when a worker comes, if none was there at first.

    By itself Dask goes on waiting for the worker that is gone: if it no longer does,
    ``wake`` has nothing to do.
    """
    ours = ClustertunePlugin(s)
    if plugin == "before":
        ours.attach()
    elsewhere = {"workers": [a.address], "allow_other_workers": True}
    future = c.submit(int, 7, **elsewhere, key="lost")
    other = c.submit(int, 8, workers=[a.address], key="bound")
    await wait([future, other])
    await a.close()
    await soon(lambda: len(s.unrunnable) == 2)
    if plugin == "later":
        ours.attach()
    async with Worker(s.address, nthreads=1):
        assert await c.submit(int, 9, key="new") == 9
        if plugin:
            assert await future == 7
        waiting = {ts.key for ts in s.unrunnable}
        assert waiting == ({"bound"} if plugin else {"bound", "lost"})
    assert "bound" not in {ts.key for ts in ours.bindings.waiting}


@gen_cluster(client=True, nthreads=TWO)
async def test_tasks_follow_a_worker_to_its_new_address(c, s, a, b):
    """Waiting tasks run there; other tasks stay bound to their workers."""
    gone = "tcp://127.0.0.1:9"
    graph = {("waits", i): Task(("waits", i), int, i) for i in range(3)}
    with dask.annotate(workers=[gone], allow_other_workers=False):
        waiting = c.get(graph, list(graph), sync=False)
    other = c.submit(int, 7, workers=[a.address], key="other")
    await soon(lambda: len(s.unrunnable) == 3)
    await wait(other)
    await follow(s, (), {gone}, b.address)
    assert await c.gather(waiting) == [0, 1, 2]
    assert all(s.tasks[f.key].worker_restrictions == {b.address} for f in waiting)
    assert s.tasks["other"].worker_restrictions == {a.address}


@gen_cluster(client=True, nthreads=TWO)
async def test_tasks_that_are_bound_to_a_former_process(c, s, a, b):
    """They are bound to the next process although the former one is registered."""
    name = f"{PARKING_PREFIX}test"
    async with Worker(s.address, nthreads=1, name=name) as former:
        task = c.submit(int, 7, workers=[former.address], key="task")
        await wait(task)
        await follow(s, (), {former.address}, b.address)
        assert s.tasks["task"].worker_restrictions == {b.address}


@gen_cluster(client=True, nthreads=[])
async def test_a_waiting_task_with_the_key_of_an_earlier_one(c, s):
    """The newer task counts."""
    plugin = ClustertunePlugin(s)
    plugin.attach()
    elsewhere = {"workers": ["tcp://127.0.0.1:9"], "allow_other_workers": True}
    first = c.submit(int, 7, **elsewhere, key="task")
    await soon(lambda: plugin.bindings.waiting)
    (old,) = plugin.bindings.waiting
    first.release()
    await soon(lambda: "task" not in s.tasks)
    plugin.bindings.waiting.add(old)  # until the next look
    second = c.submit(int, 7, **elsewhere, key="task")
    await soon(lambda: s.unrunnable)
    (kept,) = plugin.bindings.waiting
    assert kept is s.tasks["task"]
    del second


@gen_cluster(client=True, nthreads=TWO)
async def test_two_workers_that_swap_their_addresses(c, s, a, b):
    """Each worker in a port range is followed by its own tasks only."""
    one = c.submit(abs, -1, workers=[a.address], key="one")
    two = c.submit(abs, -2, workers=[b.address], key="two")
    await wait([one, two])
    of_a, of_b = (await bound_to(s, [a.address, b.address])).values()
    assert (of_a, of_b) == ({"one"}, {"two"})
    # both have been restarted, and each has what was the other's
    await follow(s, of_a, {a.address}, b.address)
    await follow(s, of_b, {b.address}, a.address)
    assert s.tasks["one"].worker_restrictions == {b.address}
    assert s.tasks["two"].worker_restrictions == {a.address}
    # one that was bound later to an address that no worker has any more
    s.tasks["two"].worker_restrictions = {"tcp://127.0.0.1:1"}
    await follow(s, (), {"tcp://127.0.0.1:1"}, a.address)
    assert s.tasks["two"].worker_restrictions == {a.address}


WITH_GPU = [("127.0.0.1", 1, {"resources": {"GPU": 2}}), ("127.0.0.1", 1)]
GONE = ["tcp://127.0.0.1:9"]


@gen_cluster(client=True, nthreads=WITH_GPU)
async def test_workers_and_hosts(c, s, a, b):
    """The list has restrictions of all or given keys and their inputs."""
    here = c.submit(int, 1, workers=[a.address], key="here")
    await wait(here)
    assert (
        await bindings.unmet_summary(s)
        == await bindings.unmet_of_keys(s, ["here"])
        == []
    )
    first = c.submit(int, 1, workers=GONE, key="first")
    last = c.submit(abs, c.submit(abs, first, key="second"), key="last")
    host = c.submit(int, 3, workers=["misspelt"], key="host")
    own = c.submit(int, 3, workers=["127.0.0.1"], key="own")
    either = c.submit(int, 4, workers=[*GONE, a.address], key="either")
    loose = c.submit(int, 5, workers=GONE, allow_other_workers=True, key="loose")
    assert await c.gather([own, either, loose]) == [3, 4, 5]
    await soon(lambda: len(s.unrunnable) == 2)
    found = sorted(await bindings.unmet_summary(s))
    assert found == [["host", ["misspelt"], 1], ["worker", GONE, 1]]
    assert await bindings.unmet_of_keys(s, ["last", "here"]) == [["worker", GONE, 1]]
    assert await bindings.unmet_of_keys(s, ["here", "not there"]) == []
    del last, host


@gen_cluster(client=True, nthreads=WITH_GPU)
async def test_resources(c, s, a, b):
    """One worker that may run the task needs all its resources."""
    futures = c.map(int, range(3), resources={"GPU": 4})
    both = c.submit(int, 7, resources={"GPU": 1, "disk": 1}, key="both")
    other = c.submit(int, 8, resources={"GPU": 1}, workers=[b.address], key="other")
    assert await c.submit(int, 9, resources={"GPU": 2}) == 9
    text = c.submit(int, 10, resources={"TPU": "many"}, key="text")
    await soon(lambda: len(s.unrunnable) == 6)
    first, *others = await bindings.unmet_summary(s)
    assert first == ["resources", ["GPU: 4"], 3]
    assert sorted(others) == [
        ["resources", ["GPU: 1"], 1],
        ["resources", ["GPU: 1", "disk: 1"], 1],
        ["resources", ["TPU: many"], 1],
    ]
    del futures, both, other, text


@gen_cluster(client=True, nthreads=[])
async def test_without_workers(c, s):
    """Unrestricted tasks wait for no particular worker."""
    tasks = c.submit(int, 1, key="any"), c.submit(int, 1, workers=GONE, key="bound")
    await soon(lambda: "bound" in s.tasks and s.unrunnable)
    await soon(lambda: s.tasks["bound"] in s.unrunnable)
    assert await bindings.unmet_summary(s) == [["worker", GONE, 1]]
    del tasks


@gen_cluster(client=True, nthreads=WITH_GPU)
async def test_workers_that_are_paused(c, s, a, b):
    """They will run their tasks later; another check reports the pause."""
    a.memory_manager.memory_pause_fraction = 1e-9
    await soon(lambda: s.workers[a.address].status is Status.paused)
    task = c.submit(int, 1, workers=[a.address], resources={"GPU": 1})
    await soon(lambda: s.unrunnable)
    assert await bindings.unmet_summary(s) == []
    del task


@gen_cluster(client=True, nthreads=WITH_GPU)
async def test_bounds(c, s, a, b, monkeypatch):
    """The number of tasks and of reported restrictions is limited."""
    monkeypatch.setattr(bindings, "MAX_SHOWN", 1)
    monkeypatch.setattr(keys, "TURN", 0.0)
    some = c.map(float, range(3), workers=GONE)
    more = c.map(int, range(5), workers=["misspelt"])
    await soon(lambda: len(s.unrunnable) == 8)
    assert await bindings.unmet_summary(s) == [["host", ["misspelt"], 5]]
    monkeypatch.setattr(bindings, "MAX_TASKS", 4)
    ((_, _, count),) = await bindings.unmet_summary(s)
    assert count <= 4
    del some, more


# --- replicas -------------------------------------------------------------------------


#: it runs when a test says so
STILL = {"distributed.scheduler.active-memory-manager.start": False}


async def everywhere(c: Any, s: Any, key: str) -> Any:
    future = c.submit(inc, 1, key=key)
    await wait(future)
    await c.replicate([future])
    assert len(s.tasks[key].who_has) == 2
    return future


@gen_cluster(client=True, config=STILL)
async def test_named_copies_are_kept(c: Any, s: Any, a: Any, b: Any) -> None:
    """Other replicas are deleted as before; two policies do not end each other."""
    kept_on, other = [await everywhere(c, s, key) for key in ("kept", "other")]
    manager = s.extensions["amm"]
    before = set(manager.policies)
    await ship.on_scheduler(c, bindings.keep, name="1", owner=c.id, prefix="ke")
    await ship.on_scheduler(c, bindings.keep, name="2", owner=c.id, prefix="ke")
    for _ in range(2):
        manager.run_once()
        await soon(lambda: len(s.tasks["other"].who_has) == 1)
        assert len(s.tasks["kept"].who_has) == 2
        await ship.on_scheduler(c, bindings.stop_keeping, name="1")
    await ship.on_scheduler(c, bindings.stop_keeping, name="2")
    assert set(manager.policies) == before
    assert bindings.NAME not in s.plugins
    manager.run_once()
    await soon(lambda: len(s.tasks["kept"].who_has) == 1)


@gen_cluster(client=True, config=STILL)
async def test_it_ends_with_its_client(c: Any, s: Any, a: Any, b: Any) -> None:
    async with Client(s.address, asynchronous=True) as other:
        await ship.on_scheduler(c, bindings.keep, name="1", owner=other.id, prefix="ke")
        assert bindings.NAME in s.plugins
    await soon(lambda: bindings.NAME not in s.plugins)
    assert {type(p) for p in s.extensions["amm"].policies} == {ReduceReplicas}


# --- prepared keys --------------------------------------------------------------------


def holders(s: Any, key: str) -> set[str]:
    return {ws.address for ws in s.tasks[key].who_has}


async def one_left(s: Any, *names: str) -> None:
    """Run the memory manager until each key has one replica."""
    manager = s.extensions["amm"]

    def is_left() -> bool:
        manager.run_once()
        return all(len(holders(s, name)) == 1 for name in names)

    await soon(is_left)


@gen_cluster(client=True, config=STILL)
async def test_a_prepared_key_keeps_its_place(c: Any, s: Any, a: Any, b: Any) -> None:
    """Surplus replicas are dropped on other workers, fuller or not."""
    futures = [await everywhere(c, s, name) for name in ("on-a", "on-b", "other")]
    prepared = bindings.PreparedKeys(s)
    prepared.put("on-a", a.address)
    prepared.put("on-b", b.address)
    prepared.begin()
    prepared.begin()
    assert len(s.extensions["amm"].policies) == 1
    for _ in range(2):
        await one_left(s, "on-a", "on-b", "other")
        assert holders(s, "on-a") == {a.address}
        assert holders(s, "on-b") == {b.address}
        await c.replicate(futures)


@gen_cluster(client=True, config=STILL)
async def test_a_silent_place_is_not_the_only_one(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """All replicas stay while the prepared worker sends no heartbeats."""
    future = await everywhere(c, s, "x")
    prepared = bindings.PreparedKeys(s)
    prepared.put("x", a.address)
    prepared.begin()
    a.periodic_callbacks["heartbeat"].stop()
    s.workers[a.address].last_seen -= 60
    s.extensions["amm"].run_once()
    assert holders(s, future.key) == {a.address, b.address}
    await a.heartbeat()
    await one_left(s, "x")
    assert holders(s, future.key) == {a.address}


@gen_cluster(client=True, config=STILL)
async def test_a_forgotten_key_leaves_nothing(c: Any, s: Any, a: Any, b: Any) -> None:
    future = await everywhere(c, s, "x")
    manager = s.extensions["amm"]
    before = set(manager.policies)
    prepared = bindings.PreparedKeys(s)
    prepared.put("x", a.address)
    prepared.put("unknown", a.address)
    prepared.begin()
    assert set(manager.policies) != before
    del future
    await soon(lambda: "x" not in s.tasks)
    await soon(lambda: not prepared.workers)
    manager.run_once()
    assert set(manager.policies) == before


@gen_cluster(client=True, config=STILL)
async def test_a_later_place_counts(c: Any, s: Any, a: Any, b: Any) -> None:
    future = await everywhere(c, s, "x")
    prepared = bindings.PreparedKeys(s)
    prepared.put("x", a.address)
    prepared.put("x", b.address)
    prepared.begin()
    await one_left(s, "x")
    assert holders(s, future.key) == {b.address}


@gen_cluster(client=True, nthreads=[("", 1)] * 3, config=STILL)
async def test_a_worker_that_leaves_gives_its_keys_away(
    c: Any, s: Any, a: Any, b: Any, d: Any
) -> None:
    """Retiring a worker moves prepared keys too, and leaves no surplus replica."""
    future = c.submit(inc, 1, key="x", workers=[a.address])
    await wait(future)
    prepared = bindings.PreparedKeys(s)
    prepared.put("x", a.address)
    prepared.begin()
    s.extensions["amm"].start()
    await c.retire_workers([a.address], close_workers=False, remove=False)
    await c.replicate([future], workers=[b.address, d.address])
    await one_left(s, "x")
    assert a.address not in holders(s, "x")
    assert await future == 2


@gen_cluster(client=True, nthreads=[("", 1)] * 3, config=STILL)
async def test_dask_rebalances_prepared_keys(
    c: Any, s: Any, a: Any, b: Any, d: Any
) -> None:
    """``rebalance`` drops replicas without the policy, after its copy."""
    future = c.submit(inc, 1, key="x", workers=[a.address])
    await c.replicate([future], workers=[a.address, b.address])
    prepared = bindings.PreparedKeys(s)
    prepared.put("x", a.address)
    prepared.begin()
    manager = s.extensions["amm"]
    async with s._replica_lock(("rebalance", object())):
        assert len(holders(s, "x")) == 2
        manager.run_once()
        # the worker answers after the scheduler has asked it to drop: so asked, it has
        await c.run(lambda: None)
        assert len(holders(s, "x")) == 2
    await one_left(s, "x")
    assert holders(s, future.key) == {a.address}


@gen_cluster(client=True, config=STILL)
async def test_kept_copies_of_prepared_keys(c: Any, s: Any, a: Any, b: Any) -> None:
    """A block that keeps all replicas and one that keeps placement coexist."""
    future = await everywhere(c, s, "kept")
    prepared = bindings.PreparedKeys(s)
    prepared.put("kept", a.address)
    prepared.begin()
    await ship.on_scheduler(c, bindings.keep, name="1", owner=c.id, prefix="ke")
    prepared.begin()
    manager = s.extensions["amm"]
    manager.run_once()
    await c.run(lambda: None)
    assert len(holders(s, "kept")) == 2
    await ship.on_scheduler(c, bindings.stop_keeping, name="1")
    await one_left(s, "kept")
    assert holders(s, future.key) == {a.address}
    assert len(manager.policies) == 1
