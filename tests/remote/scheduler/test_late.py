"""A restart at the end of its time: nothing is lost, and the report is true."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from distributed import Nanny, Status
from distributed.nanny import WorkerProcess

import clustertune
from clustertune.actions.cluster.workers import _restarted
from clustertune.core.model import Retire
from clustertune.errors import TimedOutError
from clustertune.remote.scheduler.mover import ManagerHold
from clustertune.remote.scheduler.nanny import Refused
from clustertune.remote.scheduler.restart import WorkerRestart
from clustertune.remote.scheduler.state import identity
from tests.in_process import gen_cluster
from tests.processes import soon
from tests.remote.scheduler.test_mover import bound, freeze

TWO: dict[str, Any] = {"client": True, "nthreads": [("127.0.0.1", 1)] * 2}
LIMIT = {"memory_limit": "1 GiB"}


@gen_cluster(Worker=Nanny, worker_kwargs=LIMIT, **TWO)
async def test_a_worker_without_keys(c: Any, s: Any, a: Any, b: Any) -> None:
    """Dask would close the worker and its nanny if no time is left."""
    first, other = a.worker_address, b.worker_address
    pid = a.pid
    work = WorkerRestart(s, ManagerHold(s), first, {}, {other: 0}, 1, 0)
    assert await work.run() == "its process still ran after 0 s"
    assert work.state()["unchanged"]
    assert (a.status, a.pid) == (Status.running, pid)
    assert s.workers[first].status is Status.running
    assert await c.submit(int, 3, workers=[first]) == 3


@gen_cluster(Worker=Nanny, worker_kwargs=LIMIT, **TWO)
async def test_the_end_of_a_process_has_its_own_time(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """A process that began to end comes back, although the caller's time is over."""
    first, other = a.worker_address, b.worker_address
    pid = a.pid
    work = WorkerRestart(s, ManagerHold(s), first, {}, {other: 0}, 1, 0)
    work.process = s.workers[first]
    problem = await work._restart(identity(work.process), work.end)
    assert "did not come back within 0 s (its nanny has ended it)" in problem
    await soon(lambda: len(s.running) == 2)
    assert a.status is Status.running
    assert a.pid != pid


@pytest.mark.parametrize("all_end", [True, False])
def test_a_drop_that_takes_too_long(
    all_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error and the report of the time limit have the dropped keys."""

    @gen_cluster(Worker=Nanny, worker_kwargs=LIMIT, **TWO)
    async def test(c: Any, s: Any, a: Any, b: Any) -> None:
        async def kill(process: Any, *_: Any, **options: Any) -> None:
            """Kill the process after the time limit of the call."""
            jobs = s.plugins["clustertune"].jobs.kept.values()
            await soon(lambda: all(job.work.stopped for job in jobs))
            await original(process, *_, **options)

        original = WorkerProcess.kill
        monkeypatch.setattr(WorkerProcess, "kill", kill)
        workers = [a.worker_address, b.worker_address]
        dropped = await c.scatter([1, 2, 3], workers=workers[:1], hash=False)
        with pytest.raises(TimedOutError) as caught:
            await clustertune.restart_workers(
                c,
                workers=None if all_end else workers[:1],
                drop_data=True,
                timeout="8s",
            )
        assert [step.lost for step in caught.value.report.steps] == [3]
        await soon(lambda: len(s.running) == 2)
        del dropped

    test()


@gen_cluster(**TWO)
async def test_keys_that_do_not_return(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal after the keys have moved names the keys that are not back."""
    kept = await c.scatter([1, 2, 3], workers=[a.address], hash=False)
    work = WorkerRestart(s, ManagerHold(s), a.address, {}, {b.address: 0}, 1, 60, True)
    silent = work._refuse_silent_nanny

    async def refuse(worker: Any) -> None:
        """Refuse once the keys have moved; a frozen worker takes no keys back."""
        if not work.held:
            return await silent(worker)
        await freeze(s, a, 60)
        bound(monkeypatch, "STALL_TIMEOUT", 0.5)
        raise Refused("its nanny does not answer")

    work._refuse_silent_nanny = refuse  # type: ignore[method-assign]
    problem = await work.run()
    assert problem == (
        "its nanny does not answer; 3 keys are still on other workers "
        f"(3 keys: {a.address} sends no heartbeats)"
    )
    state = work.state() | {"finished": True, "error": problem}
    assert state["unchanged"] is False
    assert work.lost == 0
    args = Retire(id="a", address=a.address, process_limits={}, wait=1)
    assert _restarted(args, state, {}).details == "3 keys to move away; lost 0"
    assert await c.gather(kept) == [1, 2, 3]


@gen_cluster(**TWO)
async def test_keys_return_after_moves_of_dask(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for a move that does not end is limited, and reported."""
    kept = await c.scatter([1, 2, 3], workers=[b.address], hash=False)
    work = WorkerRestart(s, ManagerHold(s), a.address, {}, {b.address: 0}, 1, 0)
    work.held.note_away({future.key: b.address for future in kept})
    monkeypatch.setitem(WorkerRestart._bring_home.__globals__, "GRACE", 0.5)
    async with s._replica_lock(("test", object())):
        returning = asyncio.ensure_future(work._bring_home(a.address))
        await asyncio.wait([returning], timeout=20)
        assert returning.done()
    assert "3 keys are still on other workers (3 keys: another move" in await returning
    assert await work._bring_home(a.address) == ""
    assert {ts.key for ts in s.workers[a.address].has_what} == {f.key for f in kept}
    assert await c.gather(kept) == [1, 2, 3]


@gen_cluster(**TWO)
async def test_a_retirement_beside_a_move_that_never_ends(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for the scheduler is limited, and the worker is as before."""
    work = WorkerRestart(s, ManagerHold(s), a.address, {}, {b.address: 0}, 1, 0.5, True)
    monkeypatch.setitem(WorkerRestart._undo_end.__globals__, "GRACE", 0.5)
    async with s._replica_lock(("test", object())):
        assert "did not close it" in await asyncio.wait_for(work.run(), 20)
    assert s.workers[a.address].status is Status.running
    assert work.state()["unchanged"]
