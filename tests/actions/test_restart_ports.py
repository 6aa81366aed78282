"""New processes with former addresses: fixed ports and port ranges."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, closing
from socket import socket
from typing import Any

import numpy as np
from distributed import Nanny, wait

import clustertune
from clustertune.remote.scheduler.mover import ManagerHold
from clustertune.remote.scheduler.release import DataDrop
from clustertune.remote.scheduler.restart import WorkerRestart
from tests.in_process import gen_cluster
from tests.processes import free_ports, soon

NONE: dict[str, Any] = {"client": True, "nthreads": []}
LIMIT = {"nthreads": 1, "memory_limit": "1 GiB"}


def free_range(count: int) -> str:
    """Return consecutive free ports, for ``--worker-port``."""
    while True:
        (first,) = free_ports(1)
        some: list[int] = []
        for port in range(first, min(first + count, 2**16)):
            with closing(socket()) as one:
                if one.connect_ex(("127.0.0.1", port)) != 0:
                    some.append(port)
        if len(some) == count:
            return f"{first}:{first + count - 1}"


async def values(c: Any, count: int = 20) -> list[Any]:
    """Scatter values."""
    return list(await c.scatter([np.full(99, i) for i in range(count)], hash=False))


async def assert_equal(c: Any, futures: list[Any]) -> None:
    found = await c.gather(futures)
    assert [int(value[0]) for value in found] == list(range(len(futures)))


def held(s: Any) -> dict[Any, tuple[str, set[Any]]]:
    """Return address and keys by worker name."""
    workers = s.workers.values()
    return {ws.name: (ws.address, {ts.key for ts in ws.has_what}) for ws in workers}


@gen_cluster(**NONE)
async def test_fixed_ports(c: Any, s: Any) -> None:
    """New processes are recognized although all have their former addresses."""
    async with AsyncExitStack() as stack:
        for name, port in enumerate(free_ports(2)):
            nanny = Nanny(s.address, worker_port=port, name=name, **LIMIT)
            await stack.enter_async_context(nanny)
        futures, pids = await values(c), await c.run(os.getpid)
        before = held(s)
        report = await clustertune.restart_workers(c, timeout="60 s")
        assert report.status == "done", str(report)
        assert held(s) == before
        new = await c.run(os.getpid)
        assert new.keys() == pids.keys()
        assert set(new.values()).isdisjoint(pids.values())
        report = await clustertune.resize_workers(c, nthreads=2, timeout="60 s")
        assert report.status == "done", str(report)
        assert held(s) == before
        assert {ws.nthreads for ws in s.workers.values()} == {2}
        await assert_equal(c, futures)


@gen_cluster(**NONE)
async def test_a_fixed_port_alone(c: Any, s: Any) -> None:
    """Parked keys return, and the parking worker closes."""
    (port,) = free_ports(1)
    async with Nanny(s.address, worker_port=port, **LIMIT):
        futures = await values(c)
        before = held(s)
        report = await clustertune.restart_workers(c, timeout="60 s")
        assert report.status == "done", str(report)
        assert held(s) == before
        await assert_equal(c, futures)


@gen_cluster(**NONE)
async def test_a_port_range(c: Any, s: Any) -> None:
    """Two restart at once, and the new process of one may have the address of the
    other.
    """
    ports = free_range(3)
    async with AsyncExitStack() as stack:
        for name in range(3):
            nanny = Nanny(s.address, worker_port=ports, name=name, **LIMIT)
            await stack.enter_async_context(nanny)
        futures = await values(c, 60)
        bound = [
            c.submit(np.full, 9, name, workers=[ws.address], key=f"bound-{ws.name}")
            for name, ws in enumerate(list(s.workers.values()))
        ]
        await wait(bound)
        before = {name: keys for name, (_, keys) in held(s).items()}
        report = await clustertune.restart_workers(
            c, max_unavailable=2, timeout="100 s"
        )
        assert report.status == "done", str(report)
        assert {name: keys for name, (_, keys) in held(s).items()} == before
        for name, (address, _) in held(s).items():
            assert s.tasks[f"bound-{name}"].worker_restrictions == {address}
        await assert_equal(c, futures)


SLOW = "import time; time.sleep(4)"  # a preload: the new process registers late


@gen_cluster(**NONE)
async def test_a_process_that_comes_too_late(c: Any, s: Any) -> None:
    """The process has the former address, but the restart has changed the cluster."""
    async with AsyncExitStack() as stack:
        nannies = []
        for name, port in enumerate(free_ports(2)):
            nanny = Nanny(s.address, worker_port=port, name=name, **LIMIT)
            nannies.append(await stack.enter_async_context(nanny))
        first, other = (nanny.worker_address for nanny in nannies)
        nannies[0].process.worker_kwargs |= {"preload": [SLOW], "preload_argv": [[]]}
        work = WorkerRestart(s, ManagerHold(s), first, {}, {other: 0}, 1, 1)
        assert work.state()["unchanged"] is False  # unknown before it has run
        assert "did not come back within 1 s" in await work.run()
        await soon(lambda: first in s.workers)
        assert work.state()["unchanged"] is False


@gen_cluster(**NONE)
async def test_dropped_and_too_late(c: Any, s: Any) -> None:
    """All addresses exist again, but the data is lost."""
    async with AsyncExitStack() as stack:
        for name, port in enumerate(free_ports(2)):
            nanny = Nanny(s.address, worker_port=port, name=name, **LIMIT)
            await stack.enter_async_context(nanny)
            nanny.process.worker_kwargs |= {"preload": [SLOW], "preload_argv": [[]]}
        there = set(s.workers)
        kept = await values(c)
        work = DataDrop(s, c.id, False, None, wait=1, timeout=1, parking=b"")
        assert work.state()["began"] is False
        assert "2 workers did not come back" in await work.run()
        await soon(lambda: there <= set(s.workers))
        assert work.state()["began"] is True
        assert work.state()["keys"] == len(kept) == 20
