"""A restart at the end of its time: nothing is lost, and the report is true."""

from __future__ import annotations

from typing import Any

import pytest
from distributed import Nanny, Status
from distributed.nanny import WorkerProcess

import clustertune
from clustertune.errors import TimedOutError
from clustertune.remote.scheduler.mover import ManagerHold
from clustertune.remote.scheduler.restart import WorkerRestart
from clustertune.remote.scheduler.state import identity
from tests.in_process import gen_cluster
from tests.processes import soon

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
        assert "is complete" not in str(caught.value)
        assert [step.lost for step in caught.value.report.steps] == [3]
        await soon(lambda: len(s.running) == 2)
        del dropped

    test()
