"""The scheduler's survey of kinds of tasks, in bounded time."""

from __future__ import annotations

import dask.array as da
from distributed import wait

from clustertune.remote.scheduler import survey as module
from clustertune.remote.scheduler.survey import survey
from tests.in_process import gen_cluster
from tests.processes import soon

TWO = [("127.0.0.1", 1)] * 2


def increment(x):
    return x + 1


@gen_cluster(client=True, nthreads=TWO)
async def test_a_quiet_scheduler(c, s, a, b):
    """There are no tasks."""
    found = await survey(s, ["dask"])
    assert found["prefixes"] == []
    assert found["worker_ttl"] == s.worker_ttl
    assert set(found["packages"]) == {"dask"}


@gen_cluster(client=True, nthreads=TWO)
async def test_keys_by_prefix(c, s, a, b):
    """Keys in memory and their bytes; failed and released results do not count."""
    X = c.persist(da.random.random((4, 100), chunks=(1, 100)))
    bad = c.submit(increment, "text", key="bad-1")
    sums = c.compute(X.sum())
    await wait([X, bad, sums])
    found = {row[0]: row[1:] for row in (await survey(s, []))["prefixes"]}
    assert [4, 3200] in found.values()
    assert found["bad"] == [0, 0]
    await c.close()
    await soon(lambda: not s.tasks)
    found = {row[0]: row[1:] for row in (await survey(s, []))["prefixes"]}
    assert {tuple(row) for row in found.values()} <= {(0, 0)}


@gen_cluster(client=True, nthreads=TWO)
async def test_only_so_many_are_read(c, s, a, b, monkeypatch):
    """Only some of a million kinds of tasks are read; the answer is incomplete."""
    monkeypatch.setattr(module, "MOST", 3)
    futures = [c.submit(increment, i, key=f"kind{'x' * i}-{i}") for i in range(6)]
    await wait(futures)
    found = await survey(s, [])
    assert len(found["prefixes"]) == 3
    assert not found["complete"]
