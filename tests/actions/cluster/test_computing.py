"""Partitions that workers compute for a call."""

from __future__ import annotations

import pytest
from distributed import wait
from distributed.core import Status

from clustertune.actions.cluster import lease as leases
from clustertune.actions.cluster.lease import Computing, Lease
from clustertune.collections import graphs
from clustertune.errors import IncompleteError
from clustertune.monitor import monitor
from tests.in_process import gen_cluster
from tests.processes import soon

TWO = [("127.0.0.1", 1)] * 2


@gen_cluster(client=True, nthreads=TWO)
async def test_small_arrays_of_paused_workers_are_made_elsewhere(c, s, a, b):
    """Small constants, such as sizes of groups, do not wait for a paused worker."""
    await monitor.install_plugin(c, await monitor.identify(c))
    lease = Lease(c, lambda: 30.0)
    lease.opened = True
    graph = graphs.constants("qid", [[1], [2, 3]], [a.address, b.address])
    a.memory_manager.memory_pause_fraction = 1e-9
    await soon(lambda: s.workers[a.address].status is Status.paused)
    async with lease.held("prepare", lambda *_: None):
        futures = await Computing(lease).partitions(graph, lambda *_: None, "counting")
    assert [f.tolist() for f in await c.gather(list(futures.values()))] == [[1], [2, 3]]
    assert all(key in b.data for key in futures)
    assert not any(s.tasks[key].worker_restrictions for key in futures)


@gen_cluster(client=True, nthreads=TWO)
async def test_partitions_that_may_run_on_a_worker_that_is_gone_only(
    c, s, a, b, monkeypatch
):
    """The error names these partitions, without waiting forever."""
    monkeypatch.setattr(leases, "UNMET_INTERVAL", 0.0)
    monkeypatch.setattr(leases, "RETURN_SECONDS", 0.2)
    await monitor.install_plugin(c, await monitor.identify(c))
    lease, told = Lease(c, lambda: 30.0), []
    lease.opened = True
    gone = a.address
    partitions = c.map(abs, range(3), workers=[gone])
    await wait(partitions)
    await a.close()
    await soon(lambda: all(f.status == "lost" for f in partitions))
    with pytest.raises(IncompleteError, match=f"3 tasks may run on {gone} only"):
        await Computing(lease).settle(
            partitions, lambda text, _: told.append(text), "loading"
        )
    assert told[-1] == (
        f"loading 3 partitions; 3 tasks may run on {gone} only, which is gone"
    )
