"""Tasks that never end: a restart ends them and keeps the data of their worker."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import dask
import dask.array as da
import psutil
import pytest
from click.testing import CliRunner
from distributed import Client, Event, Nanny, wait
from distributed.nanny import WorkerProcess

import clustertune
from clustertune.cli import main
from clustertune.remote import ship
from clustertune.remote.scheduler.mover import ManagerHold
from clustertune.remote.scheduler.release import failed_fits
from clustertune.remote.scheduler.restart import WorkerRestart
from clustertune.remote.worker import park
from tests.in_process import TWO, gen_cluster
from tests.processes import endless, soon

NANNIES: dict[str, Any] = {
    "client": True,
    "Worker": Nanny,
    "worker_kwargs": {"memory_limit": "1 GiB"},
}


def until_open(name: str, *_: Any) -> int:
    """Run until the event is set; return the process."""
    Event(name).wait()
    return os.getpid()


def fail(*_: Any) -> None:
    raise ValueError("a member of a fit that fails")


async def data(c: Any) -> tuple[Any, list[Any], float]:
    await clustertune.check(c)  # the scheduler plugin is there
    X = c.persist(da.random.default_rng(0).random((400, 4), chunks=(20, 4)))
    await wait(X)
    scattered = await c.scatter(list(range(10)), hash=False)
    return X, scattered, await c.compute(X.sum())


def parked(s: Any) -> list[str]:
    return [ws.name for ws in s.workers.values() if "parking" in str(ws.name)]


@pytest.mark.parametrize("direct", [True, False])
def test_tasks_end_and_data_stays(direct: bool) -> None:
    """All stuck workers restart at once; tasks of a living client run again."""
    resources = {} if direct else {"resources": {"a": 1}}
    options = NANNIES | {"worker_kwargs": NANNIES["worker_kwargs"] | resources}

    @gen_cluster(nthreads=[("127.0.0.1", 1)] * (2 if direct else 3), **options)
    async def test(c: Any, s: Any, *_: Any) -> None:
        X, scattered, total = await data(c)
        gate = Event("gate")
        parts = c.compute([X.blocks[0], X.blocks[1]])
        await wait(parts)  # a worker that waits for the gate computes no part
        tasks = [
            c.submit(until_open, "gate", part, pure=False, workers=[address])
            for part, address in zip(parts, s.workers)
        ]
        keys = [task.key for task in tasks]
        await soon(lambda: all(k in s.tasks and s.tasks[k].processing_on for k in keys))
        before = set((await c.run(os.getpid)).values())
        busy = [w.name for w in s.workers.values() if w.processing]
        assert len(busy) == 2
        workers = busy if direct else busy[:1]
        report = await clustertune.restart_workers(
            c, X, workers=workers, end_tasks=True
        )
        assert report.status == "done", report
        assert sum("ended 1 task" in step.details for step in report.steps) == len(
            workers
        )
        assert all(step.lost == 0 for step in report.steps)
        assert len(before & set((await c.run(os.getpid)).values())) == len(
            s.workers
        ) - len(workers)
        assert not parked(s)
        await gate.set()
        assert len(await c.gather(tasks)) == 2
        assert await c.gather(scattered) == list(range(10))
        assert await c.compute(X.sum()) == total

    test()


def test_endless_tasks_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask would ask their process to end, and wait 4 s before it kills it."""
    asked = []

    async def kill(process: Any, *_: Any, **options: Any) -> None:
        asked.append(process)
        await original(process, *_, **options)

    original = WorkerProcess.kill
    monkeypatch.setattr(WorkerProcess, "kill", kill)

    @gen_cluster(nthreads=TWO, **NANNIES)
    async def test(c: Any, s: Any, nanny: Any, _: Any) -> None:
        former = psutil.Process(nanny.pid)
        _, scattered, _ = await data(c)
        task = c.submit(endless, pure=False, workers=[nanny.worker_address])
        await soon(lambda: any(ws.processing for ws in s.workers.values()))
        report = await clustertune.restart_workers(
            c, workers=[nanny.worker_address], end_tasks=True
        )
        assert report.status == "done", report
        await soon(lambda: not former.is_running())
        assert not asked
        assert await c.gather(scattered) == list(range(10))
        del task

    test()


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_training_within_a_graph(c: Any, s: Any, a: Any) -> None:
    """No client wants its task, only a later one; it is the member of no fit."""
    inner = dask.delayed(until_open)("gate", dask_key_name="_train_part-1")
    outer = c.compute(dask.delayed(int)(inner), optimize_graph=False)
    worker = s.workers[a.address]
    await soon(lambda: worker.processing)
    assert failed_fits(s, worker) == []
    await Event("gate").set()
    await outer


@gen_cluster(nthreads=TWO, **NANNIES)
async def test_next_processes_start_at_once(c: Any, s: Any, *_: Any) -> None:
    """A worker does not wait for the restart of another one."""
    _, scattered, _ = await data(c)
    async with s.plugins["clustertune"].turn:  # as if another restart had its turn
        report = await clustertune.restart_workers(c, end_tasks=True)
    assert report.status == "done", report
    assert await c.gather(scattered) == list(range(10))


@gen_cluster(nthreads=TWO, **NANNIES)
async def test_keys_that_arrive_late(c: Any, s: Any, *_: Any) -> None:
    """A former process gets keys until it ends, and they move to its next process."""
    scattered = await c.scatter(list(range(10)), hash=False)
    first, second = s.workers
    work = WorkerRestart(
        s, ManagerHold(s), first, {}, {second: 0}, 0, 60,
        parking=ship.pickled(park.act), end_tasks=True,
    )  # fmt: skip

    async def none_yet(worker: Any) -> None:
        """No key has arrived when the keys to bring back are listed."""

    work.evacuation.note_kept = none_yet  # type: ignore[method-assign]
    held = {ts.key for ts in s.workers[first].has_what}
    assert held
    assert await work.run() == ""
    assert not parked(s)
    assert {ts.key for ts in s.workers[work.new_address].has_what} == held
    assert await c.gather(scattered) == list(range(10))


@gen_cluster(nthreads=TWO, **NANNIES)
async def test_a_failed_fit_does_not_run_again(c: Any, s: Any, *_: Any) -> None:
    """Tasks of a fit that has lost a member are cancelled, and their socket dropped."""
    X, scattered, total = await data(c)
    first, second = s.workers
    held = c.submit(socket.socket, pure=False, workers=[first])
    stuck = c.submit(endless, held, key="_train_part-1", workers=[first])
    torn = c.submit(fail, key="_train_part-2", workers=[second])
    await wait(torn)
    await soon(lambda: s.workers[first].processing)
    report = await clustertune.restart_workers(
        c, X, workers=[s.workers[first].name], end_tasks=True
    )
    assert "lost 0" in str(report)
    assert stuck.cancelled()
    assert not parked(s)
    assert not any(ws.processing for ws in s.workers.values())
    assert await c.submit(int, "3") == 3
    assert await c.gather(scattered) == list(range(10))
    assert await c.compute(X.sum()) == total


@gen_cluster(nthreads=TWO, **NANNIES)
async def test_without_the_option_a_busy_worker_is_skipped(
    c: Any, s: Any, *_: Any
) -> None:
    future = c.submit(endless, pure=False)
    await soon(lambda: any(ws.processing for ws in s.workers.values()))
    (busy,) = [ws for ws in s.workers.values() if ws.processing]
    report = await clustertune.restart_workers(c, workers=[busy.name], wait="0.1s")
    assert report.steps[0].status == "skipped"
    assert future.status == "pending"
    report = await clustertune.restart_workers(
        c, workers=[busy.name], end_tasks=True, dry_run=True
    )
    assert report.status == "planned"
    with pytest.raises(TypeError, match="does not combine"):
        await clustertune.restart_workers(c, end_tasks=True, drop_data=True)
    for option in ("end_tasks", "drop_data"):
        at_once: Any = {option: True, "max_unavailable": 2}
        with pytest.raises(TypeError, match="at once; leave max_unavailable out"):
            await clustertune.restart_workers(c, **at_once)
    # the end of the cluster does not wait for the task
    await clustertune.restart_workers(c, drop_data=True)
    await asyncio.sleep(0)


@gen_cluster(nthreads=TWO, **NANNIES)
async def test_a_drop_counts_what_dask_cannot_compute_again(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """Dask has forgotten the scattered inputs, although the results have a graph."""
    await clustertune.check(c)
    inputs = await c.scatter([1, 2, 3], workers=[a.worker_address], hash=False)
    made = c.map(str, inputs, workers=[a.worker_address], allow_other_workers=True)
    await wait(made)
    inputs.clear()
    await soon(lambda: all(s.tasks[f.key].has_lost_dependencies for f in made))
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        report = await clustertune.restart_workers(
            other, workers=[s.workers[a.worker_address].name], drop_data=True
        )
    assert f"client {c.id} wants data" in str(report)
    assert await c.gather(made) == ["1", "2", "3"]
    report = await clustertune.restart_workers(
        c, workers=[s.workers[a.worker_address].name], drop_data=True
    )
    assert [step.lost for step in report.steps] == [3]


def test_from_the_shell() -> None:
    asked = ["restart", "tcp://127.0.0.1:1", "--end-tasks", "--drop-data"]
    assert CliRunner().invoke(main, asked).exit_code == 2


@gen_cluster(
    nthreads=[("127.0.0.1", 1)],
    **NANNIES | {"worker_kwargs": NANNIES["worker_kwargs"] | {"resources": {"a": 1}}},
)
async def test_the_only_worker_that_cannot_run_twice(c: Any, s: Any, n: Any) -> None:
    """Its parking worker has the keys while the process with the stuck task ends."""
    kept = await c.scatter([1, 2], hash=False)
    stuck = c.submit(until_open, "gate", pure=False)
    (worker,) = s.workers.values()
    await soon(lambda: worker.processing)
    work = WorkerRestart(
        s, ManagerHold(s), worker.address, {}, {}, 0.1, 30,
        parking=ship.pickled(park.act), end_tasks=True,
    )  # fmt: skip
    assert await work.run() == ""
    assert work.detour
    assert (work.ended_tasks, work.lost) == (1, 0)
    assert await c.gather(kept) == [1, 2]
    await Event("gate").set()
    assert await stuck != worker.pid
