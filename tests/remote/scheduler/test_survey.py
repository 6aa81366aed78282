"""The scheduler's survey of clients, names and tasks, in bounded time."""

from __future__ import annotations

import dask.array as da
from distributed import Client, Event, Queue, Variable, wait
from distributed.utils_test import gen_cluster

import clustertune
from clustertune.remote.scheduler import survey as module
from clustertune.remote.scheduler.survey import survey
from tests.processes import soon

TWO = [("127.0.0.1", 1)] * 2


class Counter:
    """An actor."""

    n = 0


def increment(x):
    return x + 1


@gen_cluster(client=True, nthreads=TWO)
async def test_a_quiet_scheduler(c, s, a, b):
    """One client and no tasks."""
    found = await survey(s, c.id, ["dask"])
    (client,) = (x for x in found["clients"] if x[0] == c.id)
    assert client[1] == 0
    assert client[2] < 60
    assert (found["queued"], found["unrunnable"], found["actors"]) == (0, 0, 0)
    assert found["published"] == found["prefixes"] == []
    assert found["worker_ttl"] == s.worker_ttl
    assert set(found["packages"]) == {"dask"}


@gen_cluster(client=True, nthreads=TWO)
async def test_tasks_by_prefix(c, s, a, b):
    """Tasks in memory, failed tasks, and finished tasks, by prefix."""
    futures = c.map(increment, range(20))
    bad = c.submit(increment, "text", key="bad-1")
    await wait([*futures, bad])
    found = {row[0]: row[1:] for row in (await survey(s, c.id, []))["prefixes"]}
    memory, waiting, processing, erred, finished, seconds, nbytes, inputs = found[
        "increment"
    ]
    assert (memory, waiting, processing, erred) == (20, 0, 0, 0)
    assert finished == 20
    assert seconds >= 0
    assert nbytes > 0
    assert inputs == 0
    assert found["bad"][3] == 1


@gen_cluster(client=True, nthreads=TWO)
async def test_bytes_are_those_in_memory(c, s, a, b):
    """Released results do not count; inputs of waiting tasks do."""
    X = c.persist(da.random.random((4, 100), chunks=(1, 100)))
    await wait(X)
    gate = Event("gate", client=c)
    lazy = X.map_blocks(_after, gate=gate.name, meta=X._meta)
    sums = c.compute(lazy.sum())
    await soon(lambda: a.state.executing_count and b.state.executing_count)
    found = {row[0]: row for row in (await survey(s, c.id, []))["prefixes"]}
    (source,) = (row for row in found.values() if row[1] == 4)
    assert source[7] == 3200
    assert found["sum"][7:] == [0, 3200]
    await gate.set()
    await wait(sums)


def _after(x, gate):
    Event(gate).wait(10)
    return x


@gen_cluster(client=True, nthreads=TWO)
async def test_shared_names_are_no_clients(c, s, a, b):
    """Variables, queues and data sets hold keys; a client may have the same name."""
    future = c.submit(increment, 1)
    await c.publish_dataset([future], name="X")
    await Variable("v", client=c).set(future)
    await (await Queue("q", client=c)).put(future)
    async with Client(s.address, asynchronous=True, name="variable") as other:
        theirs = other.submit(increment, 2)
        await wait([future, theirs])
        assert {"published-X", "variable-v", "queue-q"} <= set(s.clients)
        rows = (await survey(s, c.id, []))["clients"]
        keys = {"fire-and-forget": 0, c.id: 1, other.id: 1}
        assert {row[0]: row[1] for row in rows} == keys
        report = await clustertune.check(c)
        (found,) = [f for f in report.found if f.check == "other_clients"]
        assert found.evidence == {"clients": 1, "keys": 1}
        del theirs


@gen_cluster(client=True, nthreads=TWO)
async def test_other_clients_and_actors(c, s, a, b):
    """Each other client, with its keys."""
    async with Client(s.address, asynchronous=True) as other:
        theirs = other.map(increment, range(5))
        future = c.submit(Counter, actor=True)
        await wait(future)
        await wait(theirs)
        found = await survey(s, c.id, [])
        keys = {name: n for name, n, _ in found["clients"]}
        assert keys[other.id] == 5
        assert found["actors"] == 1
        del future


@gen_cluster(client=True, nthreads=TWO)
async def test_published_names(c, s, a, b):
    """Names with data, and names that lost it in a restart."""
    X = c.persist(da.ones(10, chunks=5))
    await wait(X)
    await c.publish_dataset(X, name="X")
    assert (await survey(s, c.id, []))["published"] == [["X", 2, 0]]
    # as a restart does: keys go, names stay
    s.client_releases_keys(X.__dask_keys__(), "published-X")
    del X
    await soon(lambda: not s.tasks)
    assert (await survey(s, c.id, []))["published"] == [["X", 2, 2]]


@gen_cluster(client=True, nthreads=TWO)
async def test_only_so_many_are_read(c, s, a, b, monkeypatch):
    """Only some of a million kinds of tasks are read; the answer is incomplete."""
    monkeypatch.setattr(module, "MOST", 3)
    futures = [c.submit(increment, i, key=f"kind{'x' * i}-{i}") for i in range(6)]
    await wait(futures)
    found = await survey(s, c.id, [])
    assert len(found["prefixes"]) == 3
    assert not found["complete"]
