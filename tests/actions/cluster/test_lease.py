"""The lease of a call: refreshed, given back, and kept when a connection breaks."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from distributed import Client, wait

from clustertune.actions.cluster import lease as leases
from clustertune.actions.cluster.lease import Computing, Lease
from clustertune.collections import graphs
from clustertune.errors import ConnectionLostError, LeaseHeldError
from clustertune.monitor import monitor
from clustertune.remote import keys
from clustertune.remote.scheduler.plugin import NAME
from tests.in_process import TWO, gen_cluster
from tests.processes import soon


async def opened(client: Any) -> Lease:
    await monitor.install_plugin(client, await monitor.identify(client))
    lease = Lease(client, lambda: 60.0)
    lease.opened = True
    return lease


async def stuck_move(c: Any, a: Any, b: Any) -> tuple[Any, dict[str, Any]]:
    """A key, and the arguments of its move without an end: there is never room."""
    future = c.submit(np.ones, 1000, workers=[a.address])
    await wait(future)
    move = (keys.pack([future.key]), np.zeros(1, dtype=np.int64).tobytes())
    return future, {"workers": [b.address], "ceilings": [1], "moves": [move]}


def quietly(*_: Any) -> None:
    """Ignore progress."""


@gen_cluster(client=True, nthreads=TWO)
async def test_a_job_whose_client_loses_its_connections(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """The job continues, and the call learns its result."""
    _key, stuck = await stuck_move(c, a, b)
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        lease = await opened(other)
        async with lease.held("a move", quietly):
            job = asyncio.ensure_future(
                lease.job("move", quietly, **stuck, deadline=2.0)
            )
            await soon(lambda: s.plugins[NAME].jobs.kept)
            first = s.clients[other.id]
            for pool in (other.rpc.available, other.rpc.occupied):
                for comm in [comm for comms in pool.values() for comm in comms]:
                    comm.abort()
            other.scheduler_comm.comm.abort()
            state = await asyncio.wait_for(job, 20)
            assert "deadline" in state["error"]
            assert s.clients[other.id] is not first
            assert s.plugins[NAME].lease.current["label"] == "a move"
        assert s.plugins[NAME].lease.current is None


@gen_cluster(client=True, nthreads=TWO)
async def test_a_job_that_is_cancelled_twice(c: Any, s: Any, a: Any, b: Any) -> None:
    """The call learns how it ended; two limits of time may end a call."""
    _key, stuck = await stuck_move(c, a, b)
    lease, ended = await opened(c), list[dict[str, Any]]()
    async with lease.held("a move", quietly):
        job = asyncio.ensure_future(
            lease.job("move", quietly, ended, **stuck, deadline=100.0)
        )
        await soon(lambda: s.plugins[NAME].jobs.kept)
        for _ in range(2):
            job.cancel()
            for _ in range(3):  # it begins to wait for the end
                await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await job
    (state,) = ended
    assert state["finished"]


@gen_cluster(
    client=True, nthreads=TWO, config={"distributed.client.heartbeat": "1 hour"}
)
async def test_a_call_that_asks_nothing_for_long(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is refreshed, whatever the interval of the client's heartbeat is."""
    monkeypatch.setattr("clustertune.actions.cluster.lease.REFRESH", 0.1)
    lease = await opened(c)
    plugin = s.plugins[NAME]
    async with lease.held("loading", quietly):
        plugin.owners.grace = 2.0  # a busy machine may stop this process for a second
        loop = asyncio.get_running_loop()
        end = loop.time() + 5
        await soon(lambda: loop.time() > end)
        assert plugin.lease.holder()["label"] == "loading"
    assert plugin.lease.current is None


@gen_cluster(client=True, nthreads=TWO)
async def test_a_lease_that_ends_while_the_client_reconnects(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """The lease is given back after the client has reconnected."""
    lease = await opened(c)
    reconnect, network = c._reconnect, asyncio.Event()

    async def late() -> None:
        await network.wait()
        await reconnect()

    c._reconnect = late
    async with lease.held("x", quietly):
        c.scheduler_comm.comm.abort()
        await soon(lambda: c.status == "connecting")
    assert s.plugins[NAME].lease.current is not None
    network.set()
    await soon(lambda: s.plugins[NAME].lease.current is None)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_job_that_ends_with_the_scheduler(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """A job that ends with the scheduler raises an error, because it has no result."""
    _key, stuck = await stuck_move(c, a, b)
    lease = await opened(c)
    async with lease.held("a move", quietly):
        job = asyncio.ensure_future(lease.job("move", quietly, **stuck, deadline=60.0))
        await soon(lambda: s.plugins[NAME].jobs.kept)
        await s.plugins[NAME].close()
        with pytest.raises(ConnectionLostError):
            await asyncio.wait_for(job, 20)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_plan_that_waits_does_not_run(c: Any, s: Any, a: Any, b: Any) -> None:
    """The error of the next plan in the queue has the right verb."""
    lease, plugin = await opened(c), s.plugins[NAME]
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        plugin.acquire(c.id, "a fit", "hold", hold=True)
        plugin.acquire(other.id, "one", "1")
        await plugin.release("hold")
        with pytest.raises(LeaseHeldError, match="plan waits for this cluster: one"):
            async with lease.held("two", quietly, patience=0.0):
                raise AssertionError
        plugin.acquire(other.id, "one", "1")
        with pytest.raises(LeaseHeldError, match="plan runs on this cluster: one"):
            async with lease.held("two", quietly, patience=0.0):
                raise AssertionError


@gen_cluster(client=True, nthreads=TWO)
async def test_a_request_without_an_answer_keeps_no_lease(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that was busy for a while still gets the lease back."""
    monkeypatch.setattr(leases, "LANDING", 0.2)
    lease = await opened(c)
    answered = asyncio.Event()

    async def unpin(**_: Any) -> None:
        await answered.wait()

    monkeypatch.setitem(s.plugins[NAME].requests, "unpin", unpin)
    graph = graphs.constants("qid", [[1], [2, 3]], [a.address, b.address])
    async with lease.held("prepare", quietly):
        await Computing(lease).partitions(graph, quietly, "counting")
        assert s.plugins[NAME].lease.current is not None
    answered.set()
    await soon(lambda: s.plugins[NAME].lease.current is None)
