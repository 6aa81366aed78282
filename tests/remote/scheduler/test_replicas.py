from __future__ import annotations

from typing import Any

from distributed import Client, wait
from distributed.active_memory_manager import ReduceReplicas
from distributed.utils_test import inc

from clustertune.remote import ship
from clustertune.remote.scheduler import bindings
from tests.in_process import gen_cluster
from tests.processes import soon

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
