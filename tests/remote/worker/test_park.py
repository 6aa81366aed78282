from __future__ import annotations

import copy
import gc
import logging
import os
import pickle
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from distributed import Nanny, Status, Worker, WorkerPlugin, wait
from distributed.utils import offload

import clustertune
from clustertune.remote import ship
from clustertune.remote.scheduler.mover import ManagerHold, MovePolicy, move_keys
from clustertune.remote.scheduler.restart import WorkerRestart
from clustertune.remote.scheduler.state import PARKING_PREFIX
from clustertune.remote.worker import park
from tests.in_process import gen_cluster
from tests.processes import soon

ONE: dict[str, Any] = {
    "client": True,
    "Worker": Nanny,
    "nthreads": [("127.0.0.1", 1)],
    "worker_kwargs": {"memory_limit": "1 GiB"},
}
NAME = f"{PARKING_PREFIX}test"


def parked(s: Any) -> Any:
    return s.workers[s.aliases[NAME]]


async def closed(s: Any) -> None:
    await s.remove_worker(s.aliases[NAME], stimulus_id="test", expected=True)
    await soon(lambda: all(w.status.name == "closed" for w in Worker._instances))


def restarting(s: Any, timeout: float = 30) -> WorkerRestart:
    """Restart the only worker."""
    (address,) = s.workers
    code = ship.pickled(park.act)
    hold = ManagerHold(s)
    return WorkerRestart(s, hold, address, {}, {}, 10, timeout, parking=code)


def of_the_process() -> list[Any]:
    gc.collect()  # a worker's handler of logs goes with it
    workers = logging.getLogger("distributed.worker")
    return [
        list(sys.path),
        dict(os.environ),
        copy.deepcopy(dask.config.config),
        list(workers.handlers),
        Path.cwd(),
    ]


def running() -> Counter[str]:
    """Return threads and workers of the process, also of earlier tests."""
    return Counter(
        [t.name for t in threading.enumerate()]
        + [w.id for w in Worker._instances if w.status.name != "closed"]
    )


@gen_cluster(client=True, nthreads=[])
async def test_the_process_is_as_it_was(c: Any, s: Any, tmp_path: Path) -> None:
    """The parking worker leaves the process of its nanny unchanged."""
    pids = tmp_path / "pids"
    preload = tmp_path / "preload.py"
    preload.write_text(
        f"import os; open({str(pids)!r}, 'a').write(f'{{os.getpid()}} ')"
    )
    options = {"nthreads": 1, "local_directory": str(tmp_path)}
    with dask.config.set({"distributed.worker.preload": [str(preload)]}):
        async with Nanny(s.address, **options):
            kept = await c.scatter([np.full(10, i) for i in range(5)], hash=False)
            await offload(int)  # its thread stays, whatever uses it first
            before, ran = of_the_process(), running()
            work = restarting(s)
            assert await work.run() == ""
            assert of_the_process() == before
            await soon(lambda: not running() - ran)
            loaded = set(pids.read_text().split())
            assert len(loaded) == 2  # by two processes of workers
            assert str(os.getpid()) not in loaded
            (worker,) = s.workers.values()
            folder = Path(worker.local_directory)
            there = {path.name for path in folder.parent.glob("*-*")}
            assert there == {folder.name, f"{folder.name}.dirlock"}
            assert (len(work.held), work.lost) == (5, 0)
            assert [int(v[0]) for v in await c.gather(kept)] == list(range(5))


class Loud(WorkerPlugin):
    """Records changes of the process."""

    def setup(self, worker: Any) -> None:
        sys.loud = os.getpid()  # type: ignore[attr-defined]


@gen_cluster(**ONE)
async def test_it_takes_no_tasks(c: Any, s: Any, nanny: Any) -> None:
    """It gets no waiting tasks, and sets up no plugins."""
    await c.register_plugin(Loud())
    (address,) = s.workers
    s.handle_worker_status_change("closing_gracefully", address, "test")
    waiting = c.submit(os.getpid)
    await soon(lambda: s.queued or s.unrunnable)
    await park.open_parking(nanny, NAME, 0, 60)
    await c.register_plugin(Loud(), name="later")
    assert parked(s) not in s.running
    assert not parked(s).processing
    assert not hasattr(sys, "loud")
    s.handle_worker_status_change("running", address, "test")
    assert await waiting != os.getpid()
    await closed(s)


@gen_cluster(**ONE)
async def test_more_than_memory(c: Any, s: Any, nanny: Any, monkeypatch: Any) -> None:
    """Large data is written to the nanny's disk, and read from there."""
    monkeypatch.setattr(park, "MEMORY_SHARE", 0.0)
    (address,) = s.workers
    kept = await c.scatter([np.full(10**6, i) for i in range(5)], hash=False)
    await park.open_parking(nanny, NAME, 10**7, 60)
    (worker,) = (w for w in Worker._instances if w.name == NAME)
    there = [(f.key, worker.address) for f in kept]
    policy = MovePolicy(there, {}, {address}, {worker.address})
    await move_keys(s, policy, ManagerHold(s))
    assert not policy.left
    assert len(worker.data.disk) == 5
    assert not worker.data.memory
    await move_keys(s, MovePolicy([(f.key, address) for f in kept], {}), ManagerHold(s))
    await closed(s)
    assert [int(v[-1]) for v in await c.gather(kept)] == list(range(5))


@gen_cluster(**ONE)
async def test_forgotten(c: Any, s: Any, nanny: Any, monkeypatch: Any) -> None:
    """It closes after a while if it holds nothing."""
    monkeypatch.setattr(park, "EMPTY_TIMEOUT", 1)
    await park.open_parking(nanny, NAME, 0, 60)
    await soon(lambda: NAME not in s.aliases)


@gen_cluster(**ONE)
async def test_no_room(c: Any, s: Any, nanny: Any) -> None:
    """It is not opened, and the worker continues."""
    with pytest.raises(RuntimeError, match="of disk are free there"):
        await park.open_parking(nanny, NAME, 2**60, 60)
    assert len(s.workers) == 1


@gen_cluster(**ONE)
async def test_left_and_brought_back(c: Any, s: Any, nanny: Any) -> None:
    """Keys of a worker that does not return stay parked.

    A later restart moves them to the worker.
    """
    kept = await c.scatter([np.full(10, i) for i in range(5)], hash=False)
    nanny.close_gracefully()  # it will not start its worker again
    work = restarting(s, timeout=2)
    problem = await work.run()
    assert "did not come back within 2 s" in problem
    assert "5 keys are still on the parking worker clustertune-parking-" in problem
    assert "restart again" in problem
    assert work.lost == 0
    async with Nanny(s.address, nthreads=1, name="new"):
        await c.wait_for_workers(1)
        found = await clustertune.check(c)
        (finding,) = [f for f in found.found if f.check == "unfinished_restarts"]
        assert "keeps " in finding.message
        report = await clustertune.restart_workers(c)
        assert report.status == "done", str(report)
        assert "bring back 5 keys" in report.steps[0].summary
        assert [ws.name for ws in s.workers.values()] == ["new"]
        assert [int(v[0]) for v in await c.gather(kept)] == list(range(5))


@gen_cluster(**ONE | {"nthreads": [("127.0.0.1", 1)] * 2})
async def test_left_and_moved_to_others(c: Any, s: Any, *nannies: Any) -> None:
    """Keys of a worker that does not return move to workers that have room by then."""
    first, other = (nanny.worker_address for nanny in nannies)
    some = [np.full(10, i) for i in range(5)]
    kept = await c.scatter(some, hash=False, workers=[first])
    s.workers[first].status = Status.paused  # its keys are parked first
    nannies[0].close_gracefully()  # it will not start its worker again
    work = WorkerRestart(
        s, ManagerHold(s), first, {}, {other: 0}, 10, 2,
        parking=ship.pickled(park.act),
    )  # fmt: skip
    problem = await work.run()
    assert "did not come back within 2 s" in problem
    assert "5 keys moved to other workers" in problem
    assert list(s.workers) == [other]
    assert [int(v[0]) for v in await c.gather(kept)] == list(range(5))


@gen_cluster(**ONE | {"nthreads": [("127.0.0.1", 1)] * 2})
async def test_a_replica_that_does_not_count(c: Any, s: Any, *nannies: Any) -> None:
    """A worker has its replica again, if the other holder may get no keys."""
    await c.amm.stop()
    first, other = (nanny.worker_address for nanny in nannies)
    some = [np.full(10, i) for i in range(5)]
    kept = await c.scatter(some, hash=False, workers=[first])
    await c.replicate(kept, n=2)
    work = WorkerRestart(
        s, ManagerHold(s), first, {}, {}, 10, 30, parking=ship.pickled(park.act)
    )
    assert await work.run() == ""
    there = {ts.key for ts in s.workers[work.new_address].has_what}
    assert {future.key for future in kept} <= there
    assert list(s.workers[other].has_what)
    assert {*s.workers} == {other, work.new_address}


@gen_cluster(**ONE)
async def test_checks_while_it_is_there(c: Any, s: Any, nanny: Any) -> None:
    """Checks do not report it as a worker without nanny, limit or work."""
    X = c.persist(dask.array.ones((100, 10), chunks=(10, 10)))
    await wait(X)
    before = await clustertune.check(c, X)
    await park.open_parking(nanny, NAME, 0, 60)
    after = await clustertune.check(c, X)
    known = {f.check for f in before.found}
    new = [f for f in after.found if f.check not in known or NAME in f.subject]
    new = [f for f in new if f.check != "blocked_event_loops"]  # on a busy machine
    assert [f.check for f in new] == ["unfinished_restarts"], new
    await closed(s)


@gen_cluster(client=True, nthreads=[])
async def test_what_only_the_worker_can_read(c: Any, s: Any, tmp_path: Path) -> None:
    """The nanny keeps bytes without reading them: they may need modules or a GPU."""
    (tmp_path / "only_there.py").write_text(
        "import os\n"
        "class Value:\n"
        "    def __init__(self): self.number = 7\n"
        "    def __setstate__(self, state):\n"
        "        assert os.environ['ONLY_THERE'] == '1'\n"
        "        self.__dict__.update(state)\n"
    )
    preload = tmp_path / "path.py"
    preload.write_text(f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    options = {"nthreads": 1, "env": {"ONLY_THERE": "1"}, "preload": [str(preload)]}
    async with Nanny(s.address, **options):
        value = c.submit(lambda: __import__("only_there").Value(), key="value")
        await wait(value)
        assert value.status == "finished"
        work = restarting(s)
        assert await work.run() == ""
        assert (len(work.held), work.lost) == (1, 0)
        assert await c.submit(lambda v: v.number, value) == 7
        assert "only_there" not in sys.modules


@gen_cluster(**ONE)
async def test_bytes_of_many_kinds(c: Any, s: Any, nanny: Any) -> None:
    """Arrays, frames, small values and compressed data return unchanged."""
    values = [
        np.arange(10**6).reshape(1000, 1000)[::2],
        np.zeros(10**6),
        pd.DataFrame({"a": range(1000), "b": list("xy") * 500}),
        {"some": [1, None, "text"]},
        b"",
    ]
    kept = await c.scatter(values, hash=False)
    work = restarting(s)
    assert await work.run() == ""
    found = await c.gather(kept)
    for value, now in zip(values, found, strict=True):
        assert type(now) is type(value)
        if isinstance(value, pd.DataFrame):  # equal texts may be one object or several
            pd.testing.assert_frame_equal(now, value)
        else:
            assert pickle.dumps(now) == pickle.dumps(value)
