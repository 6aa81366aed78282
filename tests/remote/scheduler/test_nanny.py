"""The former process of a worker keeps its keys while the next one runs."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
from typing import Any

import numpy as np
import psutil
from distributed import LocalCluster, Nanny, Worker
from distributed.core import Status
from distributed.utils_test import captured_logger

from clustertune.remote import ship
from clustertune.remote.scheduler import nanny as calls
from clustertune.remote.scheduler.nanny import MARK, Parking, expecting, set_status
from clustertune.remote.scheduler.release import DataDrop
from clustertune.remote.worker import park
from clustertune.remote.worker.process import SECOND
from tests.in_process import gen_cluster, gen_test
from tests.processes import soon

ONE: dict[str, Any] = {
    "client": True,
    "Worker": Nanny,
    "nthreads": [("127.0.0.1", 1)],
    "timeout": 60,
    "worker_kwargs": {"memory_limit": "1 GiB"},
}


async def replaced(s: Any, code: Any = park.act) -> tuple[Parking, Any, Any]:
    """Start the next process of the only worker.

    Return the parking, the former process, and the answer.
    """
    (worker,) = s.workers.values()
    set_status(s, worker, Status.closing_gracefully)
    parking = Parking(s, ship.pickled(code))
    return parking, worker, await parking.replace(worker, 0, 40)


def pause_and_continue(dask_worker: Any) -> None:
    """Do what the memory monitor does; an event then arrives after the statuses."""
    dask_worker.status = Status.paused
    dask_worker.status = Status.running
    dask_worker.log_event("test-statuses", "sent")


@gen_cluster(**ONE)
async def test_a_former_process_gets_no_tasks(c: Any, s: Any, nanny: Any) -> None:
    """It stays excluded when it is no longer paused."""
    kept = await c.scatter(np.arange(9))
    parking, former, answer = await replaced(s)
    assert answer == ("", "")
    function = pickle.dumps(pause_and_continue)
    await s.rpc(former.address).run(function=function)
    await soon(lambda: s.get_events("test-statuses"))
    assert parking.is_open()
    assert former.status is Status.closing_gracefully
    assert former not in s.running
    del kept


@gen_cluster(**ONE)
async def test_a_former_process_that_does_not_answer(
    c: Any, s: Any, nanny: Any, monkeypatch: Any
) -> None:
    """It ends without its nanny, which still restarts its worker."""
    monkeypatch.setattr(calls, "ANSWER_TIMEOUT", 0)
    parking, _, answer = await replaced(s)
    assert answer == ("", "")
    assert await parking.close() == ""
    await soon(lambda: SECOND not in nanny.plugins)
    assert nanny.status is Status.running
    assert [ws.name for ws in s.workers.values()] == [nanny.name]


@gen_cluster(**ONE)
async def test_a_nanny_that_closes_waits_for_its_former_process(
    c: Any, s: Any, nanny: Any
) -> None:
    """Otherwise the process's folder and a thread would stay."""
    await replaced(s)
    former = nanny.plugins[SECOND].process
    await nanny.plugin_remove(SECOND)  # as its close does
    assert former.status is Status.stopped


@gen_cluster(**ONE)
async def test_a_former_process_that_ends_as_its_nanny_closes(
    c: Any, s: Any, nanny: Any
) -> None:
    """The nanny removes each of its plugins once, and logs no error."""
    await replaced(s)
    former = nanny.plugins[SECOND].process
    with captured_logger("distributed.nanny", level=logging.ERROR) as log:
        closing = asyncio.ensure_future(nanny.close())
        # once the nanny has listed its plugins
        asyncio.get_running_loop().call_soon(former.on_exit, 0)
        await closing
    assert log.getvalue() == ""


@gen_cluster(**ONE)
async def test_a_drop_ends_a_former_process(c: Any, s: Any, nanny: Any) -> None:
    """Its nanny ends it, because a frozen process does not end by itself."""
    former = psutil.Process(nanny.pid)
    await replaced(s)
    assert nanny.pid != former.pid
    os.kill(former.pid, signal.SIGSTOP)
    drop = DataDrop(s, c.id, False, None, 1, 60, ship.pickled(park.act))
    with captured_logger("distributed.clustertune", level=logging.WARNING) as log:
        assert await drop.run() == ""
    assert log.getvalue() == ""
    await soon(lambda: not former.is_running(), 60)
    await soon(lambda: SECOND not in nanny.plugins)
    assert [ws.name for ws in s.workers.values()] == [nanny.name]


async def lose_answer(dask_worker: Any, what: str, **arguments: Any) -> bytes:
    """Do the step, and close the connection of the caller."""
    answer = await park.act(dask_worker, what, **arguments)
    if what == "replace":
        for comm in list(dask_worker._comms):
            comm.abort()
    return answer


@gen_cluster(client=True, nthreads=[])
async def test_a_lost_answer(c: Any, s: Any) -> None:
    """An unnamed worker's next process has another name, and is found."""
    async with Nanny(s.address, nthreads=1, memory_limit="1 GiB"):
        parking, worker, _ = await replaced(s, lose_answer)
        assert parking.worker is worker
        assert len(s.workers) == 2


async def fail_with_name(dask_worker: Any, what: str, **arguments: Any) -> None:
    """Raise an error while a process that ends still has the name."""
    options = {"nthreads": 1, "name": dask_worker.name}
    second = await Worker(dask_worker.scheduler_addr, **options)
    asyncio.get_running_loop().call_later(
        0.5, lambda: asyncio.ensure_future(second.close())
    )
    raise RuntimeError("no memory")


@gen_cluster(**ONE)
async def test_a_next_process_that_fails(c: Any, s: Any, nanny: Any) -> None:
    """The worker gets its name back once the other process has left."""
    parking, worker, (_, failure) = await replaced(s, fail_with_name)
    assert "no memory" in failure
    assert parking.worker is None
    assert worker.name == nanny.name
    assert s.aliases[nanny.name] == worker.address


@gen_test()
async def test_a_cluster_object_that_reads_all_workers_anew() -> None:
    """Its ``wait_for_workers`` drops the mark of a restart; it goes on watching."""
    options: dict[str, Any] = {"processes": False, "asynchronous": True}
    async with LocalCluster(1, dashboard_address=None, **options) as cluster:
        scheduler = cluster.scheduler

        def known() -> list[str]:
            return list(cluster.scheduler_info["workers"])

        with expecting(scheduler, [*scheduler.workers.values()]):
            await soon(lambda: any(name.startswith(MARK) for name in known()))
            await cluster.wait_for_workers(1)
            assert not any(name.startswith(MARK) for name in known())
        cluster.scale(2)
        await soon(lambda: len(known()) == 2)
        assert sorted(known()) == sorted(scheduler.workers)
        assert not cluster._watch_worker_status_task.done()


@gen_cluster(**ONE)
async def test_a_nanny_that_cannot_read_the_code(c: Any, s: Any, nanny: Any) -> None:
    """The drop goes on; the log has the reason."""
    drop = DataDrop(s, c.id, True, None, 0, 10, b"no pickle")
    with captured_logger("distributed.clustertune") as log:
        await drop._end_former(nanny.address)
    assert f"the nanny {nanny.address} did not end a former process: " in log.getvalue()
