"""Keys that cannot be sent stop only themselves."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Client, Nanny, wait
from distributed.spill import SpillBuffer

import clustertune
from clustertune.remote.scheduler.mover import ManagerHold, MovePolicy, move_keys
from clustertune.remote.worker import park
from clustertune.remote.worker.probe import unsendable
from tests.in_process import TWO, gen_cluster
from tests.processes import soon

NANNIES: dict[str, Any] = {"client": True, "Worker": Nanny}
OPTIONS = {"worker_kwargs": {"memory_limit": "1 GiB"}}


class Bad:
    """A value that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("a value of the test")


async def data(c: Client, address: str) -> list[Any]:
    """Keys that can be sent."""
    keys = c.map(np.arange, range(1000, 1012), pure=False, workers=[address])
    await wait(keys)
    return keys


def places(s: Any, futures: list[Any]) -> list[set[str]]:
    return [{ws.address for ws in s.tasks[f.key].who_has} for f in futures]


@gen_cluster(client=True, nthreads=TWO)
async def test_others_move(c: Any, s: Any, a: Any, b: Any) -> None:
    """A key whose value cannot be pickled does not keep the keys of its message."""
    good = await data(c, a.address)
    bad = c.submit(Bad, pure=False, workers=[a.address])
    await wait(bad)
    keys = [bad.key, *(f.key for f in good)]
    policy = MovePolicy([(key, b.address) for key in keys], {})
    await move_keys(s, policy, ManagerHold(s))
    assert policy.done == len(good)
    assert policy.left == {"cannot be sent": 1}
    assert policy.unsent == [bad.key]
    assert places(s, good) == [{b.address}] * len(good)
    assert places(s, [bad]) == [{a.address}]
    assert [len(x) for x in await c.gather(good)] == list(range(1000, 1012))


def test_they_are_found() -> None:
    """The test names keys and reasons; it trusts values of well-known packages."""
    data = {"bad": Bad(), "array": np.array([Bad()]), "good": np.arange(3)}
    worker = SimpleNamespace(data=data)
    found = {key: (why, there) for key, why, there in asyncio.run(unsendable(worker))}
    assert found.keys() == {"bad", "array"}
    assert "a value of the test" in found["bad"][0]
    assert all(readable for _, readable in found.values())
    assert asyncio.run(unsendable(worker, ["good", "gone"])) == []


def hide(data: Any) -> list[Any]:
    """Delete the files of spilled keys."""
    for path in Path(data._slow_uncached.d.directory).iterdir():
        path.unlink()
    return list(data.slow)


def test_files_that_are_gone_are_found(tmp_path: Path) -> None:
    data = SpillBuffer(str(tmp_path), 2**30)
    for i in range(3):
        data[f"k{i}"] = np.zeros(10)
    for _ in range(2):
        data.evict()
    gone = hide(data)
    found = asyncio.run(unsendable(SimpleNamespace(data=data)))
    assert sorted(key for key, *_ in found) == sorted(gone) == ["k0", "k1"]
    assert all("spill file is gone" in why for _, why, _ in found)
    assert not any(readable for *_, readable in found)


@pytest.mark.parametrize("make", [socket.socket, threading.Lock])
def test_a_needed_key_is_named_before_anything_stops(make: Any) -> None:
    @gen_cluster(nthreads=TWO, **NANNIES, **OPTIONS)
    async def test(c: Any, s: Any, a: Any, b: Any) -> None:
        good = await data(c, a.worker_address)
        bad = c.submit(make, pure=False, workers=[a.worker_address])
        await wait(bad)
        processes = await c.run(os.getpid)
        report = await clustertune.restart_workers(c)
        (step,) = [x for x in report.steps if x.status == "skipped"]
        assert bad.key[:40] in step.reason
        assert "cannot be sent" in step.reason
        assert "socket" in step.reason or "lock" in step.reason
        assert (await c.run(os.getpid))[a.worker_address] == processes[a.worker_address]
        assert places(s, good) == [{a.worker_address}] * len(good)
        assert {ws.status.name for ws in s.workers.values()} == {"running"}
        assert not any("parking" in str(ws.name) for ws in s.workers.values())
        del bad
        await soon(lambda: not any("socket" in str(k) for k in s.tasks))
        report = await clustertune.restart_workers(c)
        assert report.status == "done"
        assert len(await c.gather(good)) == len(good)

    test()


def fail(*_: Any) -> None:
    raise ValueError("a fit that failed")


@gen_cluster(nthreads=TWO, **NANNIES, **OPTIONS)
async def test_what_a_failed_fit_leaves_is_dropped(c: Any, s: Any, *_: Any) -> None:
    """A socket that only failed tasks used does not stop a restart."""
    first = next(iter(s.workers))
    good = await data(c, first)
    left = c.submit(socket.socket, pure=False, workers=[first])
    fit = c.submit(fail, left, pure=False, workers=[first])
    await wait(fit)
    report = await clustertune.restart_workers(c)
    assert report.status == "done", report
    assert fit.status == "error"
    assert left.key not in s.tasks or not s.tasks[left.key].who_has
    assert len(await c.gather(good)) == len(good)
    assert len(s.workers) == 2


def spill_and_hide(dask_worker: Any) -> list[Any]:
    for _ in range(min(5, len(dask_worker.data.fast))):
        dask_worker.data.evict()
    return hide(dask_worker.data)


@gen_cluster(nthreads=TWO, **NANNIES, **OPTIONS)
async def test_lost_files_are_computed_again(c: Any, s: Any, *_: Any) -> None:
    """Keys whose spill files are gone do not keep the others."""
    first = next(iter(s.workers))
    good = await data(c, first)
    gone = (await c.run(spill_and_hide, workers=[first]))[first]
    assert len(gone) == 5
    report = await clustertune.restart_workers(c, workers=[s.workers[first].name])
    assert [len(x) for x in await c.gather(good)] == list(range(1000, 1012))
    assert not any("parking" in str(ws.name) for ws in s.workers.values())
    (step,) = report.steps
    assert step.reason == "5 keys recomputed, because they could not be sent"


@gen_cluster(nthreads=TWO, **NANNIES, **OPTIONS)
async def test_a_lost_file_of_a_scattered_key(c: Any, s: Any, *_: Any) -> None:
    """A value that only its file had is named, and the worker goes on."""
    first = next(iter(s.workers))
    (lost,) = await c.scatter([np.arange(10)], workers=[first], hash=False)
    await c.run(spill_and_hide, workers=[first])
    report = await clustertune.restart_workers(c, workers=[s.workers[first].name])
    assert lost.key[:20] in repr(report)
    assert "spill file is gone" in repr(report)


def test_an_error_instead_of_a_value() -> None:
    """A parking worker does not keep the error that Dask sends instead of a value."""
    header = {"sub-headers": [{"serializer": "error"}], "is-collection": True}
    assert park._sending_error(header, [b"no socket"]) == "no socket"
    assert not park._sending_error({"serializer": "pickle"}, [b""])
