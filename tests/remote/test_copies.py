from __future__ import annotations

from typing import Any

from distributed import Client, wait
from distributed.active_memory_manager import ReduceReplicas
from distributed.utils_test import async_poll_for, gen_cluster, inc

from clustertune.remote import copies, ship

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
    """Others are deleted as before; two that keep do not end each other."""
    kept, other = [await everywhere(c, s, key) for key in ("kept", "other")]
    manager = s.extensions["amm"]
    before = set(manager.policies)
    await ship.on_scheduler(c, copies.keep, name="1", owner=c.id, prefix="ke")
    await ship.on_scheduler(c, copies.keep, name="2", owner=c.id, prefix="ke")
    for _ in range(2):
        manager.run_once()
        await async_poll_for(lambda: len(s.tasks["other"].who_has) == 1, 5)
        assert len(s.tasks["kept"].who_has) == 2
        await ship.on_scheduler(c, copies.let_go, name="1")
    await ship.on_scheduler(c, copies.let_go, name="2")
    assert set(manager.policies) == before
    assert copies.NAME not in s.plugins
    manager.run_once()
    await async_poll_for(lambda: len(s.tasks["kept"].who_has) == 1, 5)


@gen_cluster(client=True, config=STILL)
async def test_it_ends_with_its_client(c: Any, s: Any, a: Any, b: Any) -> None:
    async with Client(s.address, asynchronous=True) as other:
        await ship.on_scheduler(c, copies.keep, name="1", owner=other.id, prefix="ke")
        assert copies.NAME in s.plugins
    await async_poll_for(lambda: copies.NAME not in s.plugins, 5)
    assert {type(p) for p in s.extensions["amm"].policies} == {ReduceReplicas}
