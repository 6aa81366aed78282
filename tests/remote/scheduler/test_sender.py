"""The mover sends keys alone, and always ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from distributed import Event

from clustertune.remote.ending import end_tasks
from clustertune.remote.scheduler.mover import ManagerHold, MovePolicy, move_keys
from tests.in_process import gen_cluster
from tests.processes import soon
from tests.remote.scheduler.test_mover import FOUR, bound, holders, load


def alone(key: Any, address: str) -> MovePolicy:
    """Return a policy whose key is sent alone."""
    policy = MovePolicy([], {}, total=1)
    policy.alone.append((key, address))
    return policy


async def is_ending(moving: asyncio.Task[None]) -> bool:
    """Whether a move ends soon; cancel it otherwise."""
    done, _ = await asyncio.wait([moving], timeout=20)
    await end_tasks(moving)
    return bool(done)


async def wait_at_gate(name: str) -> int:
    await Event(name).wait()
    return 1


@pytest.mark.parametrize("stopped", [False, True])
def test_a_key_without_holders(stopped: bool) -> None:
    """A key that is computed again has none; the move ends, also if it is stopped."""

    @gen_cluster(client=True, nthreads=FOUR)
    async def run(c: Any, s: Any, *workers: Any) -> None:
        future = c.submit(wait_at_gate, "gate", workers=[workers[0].address])
        await soon(lambda: s.workers[workers[0].address].processing)
        policy = alone(future.key, workers[1].address)
        moving = asyncio.ensure_future(move_keys(s, policy, ManagerHold(s)))
        await soon(
            lambda: not policy.alone and (policy.sender is None or policy.sender.done())
        )
        policy.stopped = stopped
        ended = await is_ending(moving)
        await Event("gate").set()
        assert ended
        assert policy.left == ({} if stopped else {"not in memory": 1})
        assert policy.nbytes == 0
        assert await future == 1

    run()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_key_that_never_arrives(stopped: bool) -> None:
    """Its transfer hangs; the move ends without it, also if it is stopped."""

    @gen_cluster(client=True, nthreads=FOUR)
    async def run(c: Any, s: Any, *workers: Any) -> None:
        data = await load(c, [workers[0].address], n=1)
        policy = alone(data[0].key, workers[1].address)
        with pytest.MonkeyPatch.context() as patch:
            bound(patch, "STALL_TIMEOUT", 0.5)
            patch.setattr(s, "gather_on_worker", lambda *_: asyncio.Event().wait())
            moving = asyncio.ensure_future(move_keys(s, policy, ManagerHold(s)))
            await soon(lambda: policy.sender is not None)
            policy.stopped = stopped
            assert await is_ending(moving)
        late = {"did not arrive for 0.5 s or more": 1}
        assert policy.left == ({} if stopped else late)
        assert holders(s, data) == [{workers[0].address}]
        assert s.extensions["amm"].running

    run()
