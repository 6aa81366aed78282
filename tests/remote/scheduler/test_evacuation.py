"""Targets for the keys of a worker before its restart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from distributed import wait
from distributed.core import Status

from clustertune.remote.scheduler.evacuation import (
    Evacuation,
    HeldKeys,
    NotEnoughMemory,
)
from clustertune.remote.scheduler.nanny import Parking
from tests.in_process import gen_cluster

HOSTS = [("127.0.0.1", 1), ("127.0.0.2", 1), ("127.0.0.1", 1)]


def evacuation(s: Any, worker: Any, limits: dict[str, int]) -> Evacuation:
    """Return that of a worker, to others below these limits."""
    parking, held = SimpleNamespace(worker=None), HeldKeys(s, worker.address)
    return Evacuation(s, worker.address, {}, limits, parking, held)


@gen_cluster(client=True, nthreads=HOSTS)
async def test_keys_stay_on_the_host(c: Any, s: Any, a: Any, b: Any, near: Any) -> None:
    """They cross to another host only if the workers of this one are full."""
    keys = [c.submit(bytes, 10**6, pure=False, workers=[a.address]) for _ in range(4)]
    await wait(keys)
    worker = s.workers[a.address]

    async def targets(room: int) -> list[str]:
        used = {
            w.address: w.memory.process
            for w in (s.workers[x.address] for x in (b, near))
        }
        limits = {b.address: 10**12, near.address: used[near.address] + room}
        return sorted(t for _, t in await evacuation(s, a, limits).assign(worker))

    assert await targets(10**12) == [near.address] * 4
    assert set(await targets(0)) == {b.address}
    with pytest.raises(NotEnoughMemory):
        await evacuation(s, a, {}).assign(worker)


@gen_cluster(client=True, nthreads=HOSTS)
async def test_a_replica_on_a_silent_worker_does_not_count(
    c: Any, s: Any, a: Any, b: Any, near: Any
) -> None:
    """A key whose other holder may be frozen moves to another worker."""
    await c.amm.stop()
    (future,) = await c.scatter([1], workers=[a.address])
    await c.replicate([future], workers=[a.address, b.address])
    b.periodic_callbacks["heartbeat"].stop()
    s.workers[b.address].last_seen -= 60
    limits = {b.address: 0, near.address: 0}
    targets = await evacuation(s, a, limits).assign(s.workers[a.address])
    assert targets == [(future.key, near.address)]


@gen_cluster(client=True, nthreads=HOSTS)
async def test_a_replica_that_disappears(
    c: Any, s: Any, a: Any, b: Any, near: Any
) -> None:
    """Its key moves in the next round, and counts once."""
    await c.amm.stop()
    (future,) = await c.scatter([1], workers=[a.address])
    await c.replicate([future], workers=[a.address, b.address])
    found = evacuation(s, a, {b.address: 0, near.address: 0})
    await found.assign(s.workers[a.address])
    s.remove_replica(s.tasks[future.key], s.workers[b.address])
    await found.assign(s.workers[a.address])
    assert len(found.held) == len(found.held.away) == 1


@gen_cluster(client=True, nthreads=HOSTS)
async def test_a_silent_worker_gets_no_keys(
    c: Any, s: Any, a: Any, b: Any, near: Any
) -> None:
    """It would take none, and it is the emptiest, so every round would choose it."""
    await c.amm.stop()
    sent = await c.scatter(list(range(4)), hash=False, workers=[a.address])
    near.periodic_callbacks["heartbeat"].stop()
    s.workers[near.address].last_seen -= 60
    limits = {b.address: 10**12, near.address: 2 * 10**12}
    targets = await evacuation(s, a, limits).assign(s.workers[a.address])
    assert sorted(targets) == sorted((future.key, b.address) for future in sent)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_keys_of_a_former_process(c: Any, s: Any, a: Any, b: Any) -> None:
    """A holder that restarts, is paused or frozen does not count."""
    await c.amm.stop()
    (future,) = await c.scatter([1], workers=[a.address])
    await c.replicate([future], workers=[a.address, b.address])
    parking, other = Parking(s, b""), s.workers[b.address]
    parking.worker = s.workers[a.address]
    assert parking.alone() == 0
    for status in (Status.closing_gracefully, Status.paused):
        s.handle_worker_status_change(status, other, "test")
        assert parking.alone() == 1
        assert parking.alone([future.key]) == 0
        assert parking.alone(process=other) == 0
    s.handle_worker_status_change(Status.running, other, "test")
    s.workers[b.address].last_seen -= 60
    b.periodic_callbacks["heartbeat"].stop()
    assert parking.alone() == 1
