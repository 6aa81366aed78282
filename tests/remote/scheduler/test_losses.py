"""Lost keys are counted, also after a loss by others; unknown losses are not 0."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, Event, Nanny, wait

import clustertune
from clustertune.remote.scheduler.jobs import Jobs
from clustertune.remote.scheduler.mover import ManagerHold
from clustertune.remote.scheduler.plugin import NAME
from clustertune.remote.scheduler.release import DataDrop
from clustertune.remote.scheduler.restart import WorkerRestart
from tests.actions.cluster.test_lease import opened, quietly
from tests.in_process import THREE, TWO, gen_cluster
from tests.processes import at_gate, endless, soon

NANNIES: dict[str, Any] = {"client": True, "Worker": Nanny}
# two processes would count the resources twice, so the keys move to other workers
DETOUR = {"worker_kwargs": {"memory_limit": "1 GiB", "resources": {"a": 1}}}


def bound(address: str) -> dict[str, Any]:
    return {"workers": [address], "allow_other_workers": True}


@gen_cluster(nthreads=THREE, **NANNIES, **DETOUR)
async def test_a_worker_dies_while_it_restarts(c: Any, s: Any, *nannies: Any) -> None:
    """Keys that Dask computes again are not lost."""
    address = nannies[0].worker_address
    values = c.map(np.full, [9] * 40, range(40), pure=False, **bound(address))
    await wait(values)
    there = len(s.workers[address].has_what)
    restarting = asyncio.ensure_future(
        clustertune.restart_workers(c, workers=[s.workers[address].name])
    )
    await soon(lambda: s.workers[address].status.name == "closing_gracefully")
    await s.remove_worker(address, stimulus_id="test")
    (step,) = (await restarting).steps
    assert there
    assert step.lost == 0
    assert "lost" not in step.reason
    assert [int(v[0]) for v in await c.gather(values)] == list(range(40))


@gen_cluster(nthreads=TWO, **NANNIES)
async def test_inputs_that_are_dropped_with_their_results(
    c: Any, s: Any, *nannies: Any
) -> None:
    """Dask cannot compute a result again if its scattered input is lost, too."""
    await c.amm.stop()  # it would delete either replica of the kept input
    first, second = (nanny.worker_address for nanny in nannies)
    lost = await c.scatter([1, 2], workers=[first], hash=False)
    kept = await c.scatter([3], workers=[second], hash=False)
    middle = c.map(abs, [*lost, *kept], workers=[first])
    last = c.map(str, middle, workers=[first])
    await wait(last)
    keys = [future.key for future in middle]
    middle.clear()
    await soon(lambda: all(s.tasks[key].state == "released" for key in keys))
    report = await clustertune.restart_workers(
        c, workers=[s.workers[first].name], drop_data=True
    )
    (step,) = report.steps
    assert step.lost == 2 * 2
    assert await last[2] == "3"
    assert {f.status for f in (*lost, *last[:2])} <= {"cancelled", "lost"}


@gen_cluster(nthreads=TWO, **NANNIES)
async def test_another_worker_dies_during_a_drop(c: Any, s: Any, *nannies: Any) -> None:
    """Its keys are lost as well, and the report has them apart."""
    first, other = (nanny.worker_address for nanny in nannies)
    mine = await c.scatter([1, 2], workers=[first], hash=False)
    theirs = await c.scatter([1, 2, 3], workers=[other], hash=False)
    dropping = asyncio.ensure_future(
        clustertune.restart_workers(c, workers=[s.workers[first].name], drop_data=True)
    )
    await soon(lambda: NAME in s.plugins and s.plugins[NAME].jobs.kept)
    (job,) = s.plugins[NAME].jobs.kept.values()
    await soon(lambda: job.work.began)
    await s.remove_worker(other, stimulus_id="test")
    report = await dropping
    assert [step.lost for step in report.steps] == [2]
    assert sum(loss.keys for loss in report.lost or ()) == 3
    assert report.status == "left"
    del mine, theirs


def fail_if(file: Path) -> int:
    assert not file.exists()
    return 7


def test_keys_that_fail_as_they_are_computed_again(tmp_path: Path) -> None:
    file = tmp_path / "broken"

    @gen_cluster(client=True, nthreads=TWO)
    async def test(c: Any, s: Any, a: Any, b: Any) -> None:
        future = c.submit(fail_if, file, **bound(a.address))
        await wait(future)
        lease = await opened(c)
        async with lease.held("x", quietly):
            file.touch()
            await s.remove_worker(a.address, stimulus_id="test")
            await soon(lambda: future.status == "error")
        assert lease.lost == {a.address: (1, 0)}

    test()


@gen_cluster(client=True, nthreads=TWO)
async def test_keys_that_are_computed_again_at_the_end(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """They are reported apart from lost keys."""
    gate = Event("gate", client=c)
    await gate.set()
    future = c.submit(at_gate, gate.name, **bound(a.address))
    await wait(future)
    lease = await opened(c)
    async with lease.held("x", quietly):
        await gate.clear()
        await s.remove_worker(a.address, stimulus_id="test")
        await soon(lambda: s.tasks[future.key].state == "processing")
    assert lease.lost == {a.address: (0, 1)}
    await gate.set()
    await future


@gen_cluster(nthreads=TWO, **NANNIES, **DETOUR)
async def test_another_client_restarts_the_cluster(
    c: Any, s: Any, *nannies: Any
) -> None:
    """All keys are lost, and their number is unknown, in all accounts."""
    address = nannies[0].worker_address
    values = await c.scatter([1, 2, 3], hash=False)
    busy = c.submit(at_gate, "gate", workers=[address])
    await soon(lambda: s.workers[address].processing)
    restarting = asyncio.ensure_future(
        clustertune.restart_workers(c, workers=[s.workers[address].name])
    )
    await soon(lambda: s.workers[address].status.name == "closing_gracefully")
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        await other.restart()
    report = await restarting
    assert [step.lost for step in report.steps] == [None]
    assert report.lost is None
    assert report.status == "left"
    assert "a client restarted the cluster" in report.steps[0].reason
    events = [e for _, e in s.get_events(NAME) if e["action"] == "restart"]
    assert [e["lost"] for e in events if "lost" in e] == [None, None]
    del values, busy


@gen_cluster(client=True, nthreads=TWO)
async def test_a_removal_without_its_event(c: Any, s: Any, a: Any, b: Any) -> None:
    """The number of its lost keys is unknown, also for a running restart."""
    gate, jobs = Event("gate", client=c), Jobs(s, ManagerHold(s))
    work = WorkerRestart(s, jobs.manager, a.address, {}, {b.address: 0}, 60, 60, True)
    jobs.begin("me")
    busy = c.submit(at_gate, gate.name, workers=[a.address])
    await soon(lambda: s.workers[a.address].processing)
    name = jobs.restart(work)
    jobs.worker_removed(b.address, "test")
    await gate.set()
    await jobs.kept[name].task
    assert work.lost is None
    assert await jobs.end() is None
    del busy


@gen_cluster(nthreads=TWO, **NANNIES)
async def test_a_drop_of_all_workers_counts_its_keys(
    c: Any, s: Any, *nannies: Any
) -> None:
    """It uses Dask's restart of the cluster, after it has counted."""
    values = await c.scatter([1, 2, 3], hash=False)
    report = await clustertune.restart_workers(c, drop_data=True)
    assert [step.lost for step in report.steps] == [3]
    assert report.lost == ()
    assert report.status == "done"
    del values


@pytest.mark.parametrize(
    ("named", "late"), [(False, "task"), (True, "task"), (True, "key")]
)
@gen_cluster(nthreads=TWO, **NANNIES)
async def test_what_others_start_during_the_count_of_a_drop(
    c: Any, s: Any, *nannies: Any, named: bool, late: str, monkeypatch: Any
) -> None:
    """It refuses the drop, so nothing is lost."""
    address, came = nannies[0].worker_address, []
    (value,) = await c.scatter([1], workers=[address], hash=False)

    async def in_slow_turns(items: Any) -> Any:
        item = None
        async for item in in_turns(items):
            yield item
        if item is None or came:
            return
        if late == "key":
            came.extend(await other.scatter([2], workers=[address], hash=False))
        else:
            came.append(other.submit(endless, workers=[address], pure=False))
            await soon(lambda: s.workers[address].processing)

    names = DataDrop._count.__globals__
    in_turns = names["in_turns"]
    monkeypatch.setitem(names, "in_turns", in_slow_turns)
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        workers = [address] if named else None
        drop = DataDrop(s, c.id, False, workers, 0, 30, b"")
        assert f"client {other.id} wants" in await drop.run()
        assert not drop.began
    assert came
    assert await value == 1


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_drop_reads_long_graphs_in_turns(
    c: Any, s: Any, a: Any, monkeypatch: Any
) -> None:
    """The walks over inputs, and over tasks that wait, let the event loop run."""
    done, length = c.submit(int, 1), 40
    for _ in range(length):
        done = c.submit(abs, done)
    await done
    first = waiting = c.submit(at_gate, "gate")
    for _ in range(length):
        waiting = c.submit(str, waiting)
    await soon(lambda: len(s.tasks) == 2 * length + 2)
    names = DataDrop._count.__globals__
    monkeypatch.setitem(names["in_turns"].__globals__, "TURN", 0)
    drop = DataDrop(s, c.id, False, [a.address], 0, 30, b"")
    for work, least in (
        (drop._count(), 2 * length),
        (names["cancel"](s, [s.tasks[first.key]]), length),
    ):
        turns, task = 0, asyncio.ensure_future(work)
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > least
