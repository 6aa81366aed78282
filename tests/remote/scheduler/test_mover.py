"""The mover: every key ends on its target alone, and nothing is lost on the way."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from distributed import Event, wait
from distributed.active_memory_manager import RetireWorker

from clustertune.remote.scheduler import mover
from clustertune.remote.scheduler.mover import ManagerHold, MovePolicy, move_keys
from tests.in_process import gen_cluster
from tests.processes import soon

FOUR = [("127.0.0.1", 1)] * 4


async def load(
    c: Any, where: Iterable[str], n: int = 20, size: int = 1000
) -> list[Any]:
    """Persist n partitions on given workers, so that they can be recomputed."""
    data = c.map(
        np.full, range(1, n + 1), pure=False, fill_value=1, workers=list(where)
    )
    data = c.map(np.resize, data, new_shape=(size,), workers=list(where), pure=False)
    await wait(data)
    return data


def bound(patch: pytest.MonkeyPatch, name: str, value: float) -> None:
    """Set a bound of the mover.

    Where a cluster ran in this process, the classes were shipped by value to where they
    came from, and their methods have globals of their own since.
    """
    methods = [*vars(MovePolicy).values(), *vars(ManagerHold).values()]
    for function in (move_keys, *methods):
        if inspect.isfunction(function):
            patch.setitem(function.__globals__, name, value)
    patch.setattr(mover, name, value)


def holders(s: Any, futures: Iterable[Any]) -> list[set[str]]:
    return [{ws.address for ws in s.tasks[f.key].who_has} for f in futures]


def manager_timer(s):
    """Return the timer of the default memory manager; None if it is stopped."""
    return s.periodic_callbacks.get(f"amm-{id(s.extensions['amm'])}")


@gen_cluster(client=True, nthreads=FOUR)
async def test_every_key_ends_on_its_target_alone(c, s, *workers):
    """Keys move, values and keys stay, and the memory manager runs as before."""
    data = await load(c, [workers[0].address])
    values = await c.gather(data)
    targets = [workers[i % 4].address for i in range(len(data))]
    policy = MovePolicy(zip([f.key for f in data], targets), {})
    hold = ManagerHold(s)
    await move_keys(s, policy, hold)
    assert holders(s, data) == [{t} for t in targets]
    assert policy.done == policy.total == 20
    assert not policy.left
    assert policy.nbytes == 15 * s.tasks[data[0].key].nbytes
    assert s.extensions["amm"].running
    assert all(map(np.array_equal, values, await c.gather(data)))


@gen_cluster(
    client=True,
    nthreads=FOUR,
    config={"distributed.scheduler.active-memory-manager.start": False},
)
async def test_a_stopped_manager_stays_stopped(c, s, *workers):
    """A memory manager that the user has stopped is not started by a move."""
    data = await load(c, [workers[0].address], n=2)
    policy = MovePolicy([(data[0].key, workers[1].address)], {})
    await move_keys(s, policy, ManagerHold(s))
    assert policy.done == 1
    assert not s.extensions["amm"].running


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_paused_manager_runs(c, s, *workers):
    """Only its timer stops, until the end of the move."""
    hold, timer = ManagerHold(s), manager_timer(s)
    async with hold.epoch():
        assert not timer.is_running()
        assert hold.running()
    assert timer.is_running()
    assert s.extensions["amm"].running


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_manager_stopped_during_a_move_stays_stopped(c, s, *workers):
    """A client stops it during a move, and it stays stopped."""
    data = await load(c, [workers[0].address], n=50)
    policy = MovePolicy([(f.key, workers[1].address) for f in data], {})
    moving = asyncio.ensure_future(move_keys(s, policy, ManagerHold(s)))
    await soon(lambda: policy.requested)
    assert await c.amm.running()
    await c.amm.stop()
    await moving
    assert policy.done == 50
    assert not await c.amm.running()
    assert manager_timer(s) is None


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_manager_started_during_a_move_runs(c, s, *workers):
    """A client stops and starts it during a move, and it runs afterwards."""
    data = await load(c, [workers[0].address], n=50)
    policy = MovePolicy([(f.key, workers[1].address) for f in data], {})
    moving = asyncio.ensure_future(move_keys(s, policy, ManagerHold(s)))
    await soon(lambda: policy.requested)
    await c.amm.stop()
    await c.amm.start()
    await moving
    assert policy.done == 50
    assert manager_timer(s).is_running()


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_paused_target_is_given_up_at_once(c, s, *workers):
    """Keys for a worker that pauses stay, with the reason."""
    data = await load(c, [workers[0].address])
    workers[1].memory_manager.memory_pause_fraction = 1e-9  # pauses at once
    await soon(lambda: len(s.running) == 3)
    policy = MovePolicy([(f.key, workers[1].address) for f in data], {})
    await move_keys(s, policy, ManagerHold(s))
    assert policy.left == {f"{workers[1].address} is gone or paused": 20}
    assert holders(s, data) == [{workers[0].address}] * 20


async def freeze(s: Any, worker: Any, seconds: float) -> None:
    """Let a worker send no more heartbeats, since some time ago."""
    worker.periodic_callbacks["heartbeat"].stop()
    await worker.heartbeat()  # so that no earlier one is on its way
    s.workers[worker.address].last_seen -= seconds


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_silent_target_is_not_left_with_the_only_replica(c, s, *workers):
    """Its keys wait and keep their other replicas; other keys arrive."""
    data = await load(c, [workers[0].address], n=6)
    await c.amm.stop()
    await c.replicate(data[:2], n=2, workers=[w.address for w in workers[:2]])
    await freeze(s, workers[1], 60)
    targets = [workers[1].address] * 4 + [workers[2].address] * 2
    policy = MovePolicy(zip([f.key for f in data], targets), {})
    with pytest.MonkeyPatch.context() as patch:
        bound(patch, "STALL_TIMEOUT", 0.5)
        await move_keys(s, policy, ManagerHold(s))
    assert policy.left == {f"{workers[1].address} sends no heartbeats": 4}
    first, second, third = (w.address for w in workers[:3])
    expected = [{first, second}] * 2 + [{first}] * 2 + [{third}] * 2
    assert holders(s, data) == expected


@pytest.mark.parametrize("seconds", [0, 60])
def test_a_replica_is_dropped_after_a_heartbeat_of_the_target(seconds: float) -> None:
    """What a target had before counts only while it answers."""

    @gen_cluster(client=True, nthreads=FOUR)
    async def run(c, s, *workers):
        data = await load(c, [workers[0].address], n=2)
        both = {w.address for w in workers[:2]}
        await c.amm.stop()
        await c.replicate(data, n=2, workers=list(both))
        await freeze(s, workers[1], seconds)
        policy = MovePolicy([(f.key, workers[1].address) for f in data], {})
        moving = asyncio.ensure_future(move_keys(s, policy, ManagerHold(s)))
        before = policy.last_run
        await soon(lambda: policy.last_run > before + 10 * mover.CYCLE)
        assert holders(s, data) == [both] * 2
        workers[1].periodic_callbacks["heartbeat"].start()
        await moving
        assert policy.done == 2
        assert holders(s, data) == [{workers[1].address}] * 2

    run()


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_suspended_scheduler_gives_up_no_keys(c, s, *workers):
    """After a long gap, keys wait for the heartbeats of their targets."""
    data = await load(c, [workers[0].address], n=2)
    await freeze(s, workers[1], 60)
    policy = MovePolicy([(f.key, workers[1].address) for f in data], {})
    policy.last_progress = policy.last_run = policy.last_run - 60
    moving = asyncio.ensure_future(move_keys(s, policy, ManagerHold(s)))
    await soon(lambda: policy.queued)
    await workers[1].heartbeat()
    await moving
    assert not policy.left
    assert holders(s, data) == [{workers[1].address}] * 2


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_target_that_leaves(c, s, *workers):
    """The target closes during the move; nothing is lost, and the move ends."""
    data = await load(c, [workers[0].address], n=100, size=20_000)
    policy = MovePolicy([(f.key, workers[1].address) for f in data], {})
    with pytest.MonkeyPatch.context() as patch:
        bound(patch, "MAX_KEYS", 2)
        moving = asyncio.ensure_future(move_keys(s, policy, ManagerHold(s)))
        await soon(lambda: policy.done > 0)
        await workers[1].close()
        bound(patch, "MAX_KEYS", 100)  # the rest
        await moving
    assert policy.left
    await wait(data)
    assert all(f.status == "finished" for f in data)
    assert all(v.sum() == 20_000 for v in await c.gather(data))
    assert s.extensions["amm"].running


@gen_cluster(client=True, nthreads=FOUR)
async def test_the_ceiling_of_a_target_holds(c, s, *workers):
    """A worker gets no more keys than its limit allows."""
    data = await load(c, [workers[0].address], n=10, size=100_000)
    one = s.tasks[data[0].key].nbytes
    target = s.workers[workers[1].address]
    limit = target.memory.process + 3 * one + one // 2
    policy = MovePolicy(
        [(f.key, target.address) for f in data], {target.address: limit}
    )
    for _ in policy_steps(s, policy):
        pass
    assert len(policy.requested) == 3
    assert len(policy.queued) == 7


def policy_steps(s: Any, policy: MovePolicy) -> Iterable[Any]:
    """Run a policy once, and apply its suggestions."""
    manager = mover.ActiveMemoryManagerExtension(
        s, policies={policy}, register=False, start=False
    )
    assert policy.manager is manager
    return policy.run()


@gen_cluster(client=True, nthreads=FOUR)
async def test_not_too_much_is_in_flight(c, s, *workers):
    """The bytes and keys in flight are limited."""
    data = await load(c, [workers[0].address], n=30, size=1000)
    with pytest.MonkeyPatch.context() as patch:
        bound(patch, "MAX_KEYS", 5)
        policy = MovePolicy([(f.key, workers[1].address) for f in data], {})
        list(policy_steps(s, policy))
        assert len(policy.requested) == 5
        bound(patch, "MAX_KEYS", 100)
        bound(patch, "MAX_BYTES", 3 * s.tasks[data[0].key].nbytes)
        bound(patch, "RETRY", 0.2)  # the suggestions were not carried out here
        policy = MovePolicy([(f.key, workers[1].address) for f in data], {})
        list(policy_steps(s, policy))
        assert len(policy.requested) == 3
        await move_keys(s, policy, ManagerHold(s))
    assert policy.done == 30


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_run_is_short(c, s, *workers):
    """It requests and checks few keys, and reads the memory of their workers only."""
    data = await load(c, [workers[0].address], n=30, size=1000)
    read = set()

    class Policy(MovePolicy):
        def run(self) -> Any:
            yield from super().run()
            read.update(ws.address for ws in self.manager.workers_memory)

    with pytest.MonkeyPatch.context() as patch:
        bound(patch, "KEYS_PER_CYCLE", 2)
        policy = Policy([(f.key, workers[1].address) for f in data], {})
        first = MovePolicy([(f.key, workers[1].address) for f in data], {})
        assert len(list(policy_steps(s, first))) == 2
        await move_keys(s, policy, ManagerHold(s))
    assert policy.done == 30
    assert read == {w.address for w in workers[:2]}


def test_a_pause_grows_with_a_run():
    """The mover uses less than a tenth of the event loop."""
    assert mover.pause(0.0) == mover.CYCLE
    assert 0.5 / (0.5 + mover.pause(0.5)) < 0.1


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_key_that_is_released_in_mid_move(c, s, *workers):
    """A key that its owner releases counts as released; the others arrive."""
    data = await load(c, [workers[0].address], n=50, size=20_000)
    policy = MovePolicy([(f.key, workers[1].address) for f in data], {})
    moving = asyncio.ensure_future(move_keys(s, policy, ManagerHold(s)))
    for future in data[10:]:
        future.release()
    await moving
    assert policy.done + sum(policy.left.values()) == 50
    assert holders(s, data[:10]) == [{workers[1].address}] * 10


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_copy_in_use_is_not_dropped(c, s, *workers):
    """While a task on the old holder uses a key, its copy there stays."""
    data = await load(c, [workers[0].address], n=1)
    event = Event()
    await event.clear()

    async def use(x: Any, event: Event) -> None:
        await event.wait()

    task = c.submit(use, data[0], event, workers=[workers[0].address])
    await soon(lambda: getattr(s.tasks.get(task.key), "state", "") == "processing")
    policy = MovePolicy([(data[0].key, workers[1].address)], {})
    moving = asyncio.ensure_future(move_keys(s, policy, ManagerHold(s)))
    await soon(lambda: holders(s, data)[0] == {w.address for w in workers[:2]})
    await event.set()
    await moving
    assert policy.done == 1
    assert holders(s, data) == [{workers[1].address}]


@gen_cluster(client=True, nthreads=FOUR)
async def test_stopped_it_lands_what_is_in_flight(c, s, *workers):
    """A stopped move starts no more copies; keys in flight arrive."""
    data = await load(c, [workers[0].address], n=100, size=10_000)
    with pytest.MonkeyPatch.context() as patch:
        bound(patch, "MAX_KEYS", 4)
        policy = MovePolicy([(f.key, workers[1].address) for f in data], {})
        moving = asyncio.ensure_future(move_keys(s, policy, ManagerHold(s)))
        await soon(lambda: policy.done > 0)
        policy.stopped = True
        await moving
    assert not policy.requested
    assert policy.waiting
    assert all(len(places) == 1 for places in holders(s, data))


@gen_cluster(client=True, nthreads=FOUR)
async def test_epochs_let_the_manager_run(c, s, *workers):
    """A long move lets the default manager run in between, and still arrives."""
    data = await load(c, [workers[0].address], n=60, size=1000)
    with pytest.MonkeyPatch.context() as patch:
        bound(patch, "EPOCH", 0.05)
        bound(patch, "MAX_KEYS", 3)
        runs = []
        default = s.extensions["amm"]
        run_once = default.run_once
        patch.setattr(default, "run_once", lambda: runs.append(run_once()))
        policy = MovePolicy([(f.key, workers[1].address) for f in data], {})
        await move_keys(s, policy, ManagerHold(s))
    assert runs
    assert policy.done == 60
    assert holders(s, data) == [{workers[1].address}] * 60


@gen_cluster(client=True, nthreads=FOUR)
async def test_cancelled_it_gives_the_manager_back(c, s, *workers):
    """After a cancelled move the manager runs, and the lock is free."""
    data = await load(c, [workers[0].address], n=50)
    policy = MovePolicy([(f.key, workers[1].address) for f in data], {})
    moving = asyncio.ensure_future(move_keys(s, policy, ManagerHold(s)))
    await soon(lambda: policy.requested)
    moving.cancel()
    with suppress(asyncio.CancelledError):
        await moving
    assert s.extensions["amm"].running
    await asyncio.wait_for(c.rebalance(), 10)
    assert all(f.status == "finished" for f in data)


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_move_that_cannot_go_on_is_given_up(c, s, *workers):
    """A move without room on its target ends after some epochs."""
    data = await load(c, [workers[0].address], n=3)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("EPOCH", 0.1), ("DRAIN", 0.05), ("STALL_TIMEOUT", 0.5)):
            bound(patch, name, value)
        target = workers[1].address
        policy = MovePolicy([(f.key, target) for f in data], {target: 1})
        await asyncio.wait_for(move_keys(s, policy, ManagerHold(s)), 10)
    assert policy.left == {"its target has no room below its memory limit": 3}
    assert holders(s, data) == [{workers[0].address}] * 3
    assert s.extensions["amm"].running


@gen_cluster(client=True, nthreads=FOUR)
async def test_bytes_of_a_large_key_are_progress(c, s, *workers):
    """A slow transfer goes on while bytes arrive, and heartbeats are no such bytes."""
    (key,) = [f.key for f in await load(c, [workers[0].address], n=1, size=2**20)]
    target = s.workers[workers[1].address]

    def is_given_up(read_bps: float, n_heartbeats: int) -> bool:
        policy = MovePolicy([(key, target.address)], {})
        list(policy_steps(s, policy))  # its request is not carried out here
        for _ in range(n_heartbeats):
            target.metrics["host_net_io"] = {"read_bps": read_bps}
            target.last_seen += 1.0
            policy.last_progress -= 2 * mover.STALL_TIMEOUT
            list(policy_steps(s, policy))
        return not policy.requested

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "metrics", dict(target.metrics))
        assert not is_given_up(2**20, 10)
        assert is_given_up(5_000, 1)
        assert is_given_up(0, 1)
        assert is_given_up(2**20, 100)  # other traffic of the host


@gen_cluster(client=True, nthreads=FOUR)
async def test_waiting_for_the_lock_is_no_fault(c, s, *workers):
    """A move that waits long for a rebalance still moves its keys."""
    data = await load(c, [workers[0].address], n=3)
    lock, held = s._replica_lock(("test", object())), asyncio.Event()
    with pytest.MonkeyPatch.context() as patch:
        bound(patch, "STALL_TIMEOUT", 0.3)
        policy = MovePolicy([(f.key, workers[1].address) for f in data], {})
        async with lock:
            moving = asyncio.ensure_future(move_keys(s, policy, ManagerHold(s)))
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(held.wait(), 0.6)  # twice its patience
        await moving
    assert policy.done == 3
    assert not policy.left


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_cancelled_retirement_moves_no_more_keys(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """Dask's policy would go on, also after the worker runs again."""
    manager = s.extensions["amm"]
    for worker in (a, b):
        manager.add_policy(RetireWorker(worker.address))
    mover.drop_retirement(s, a.address)
    left = [p for p in manager.policies if isinstance(p, RetireWorker)]
    assert [policy.address for policy in left] == [b.address]
