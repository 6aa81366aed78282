"""What a worker says when it is asked for a diagnosis: of itself, not of settings."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest
from distributed import LocalCluster
from distributed.utils_test import gen_cluster

from clustertune.core.model import Details, Unknown
from clustertune.monitor import inquiry, monitor
from clustertune.remote import details

ONE = [("127.0.0.1", 1)]
PACKAGES = ["dask", "distributed", "no-such-distribution"]


@gen_cluster(client=True, nthreads=ONE)
async def test_of_this_process(c, s, a):
    """The worker is in this process: what it says can be checked."""
    sleeping = [sys.executable, "-c", "input()"]
    child = await asyncio.create_subprocess_exec(*sleeping, stdin=-1)
    found = details.worker_details(a, PACKAGES)
    await child.communicate(b"\n")
    assert found["pid"] == os.getpid()
    count, memory = found["children"]
    assert count >= 1
    assert memory > 0
    assert set(found["packages"]) == {"dask", "distributed"}
    kind, total, free = found["disk"]
    assert isinstance(kind, str)
    assert 0 <= free <= total
    assert found["lifetime"] == [None, False]
    assert found["daemon"] is False


@gen_cluster(client=True, nthreads=ONE, worker_kwargs={"lifetime": "1 hour"})
async def test_a_lifetime(c, s, a):
    """Seconds that are left, by which no clocks need agree."""
    left, returns = details.worker_details(a, [])["lifetime"]
    assert 0 < left < 3600
    assert returns is False
    await monitor.open_door(c, await monitor.identify(c))
    snapshot, _ = await monitor.look(c, [])
    (seen,) = (await inquiry.with_details(c, snapshot)).workers
    assert seen.details.expires == pytest.approx(snapshot.time + left, abs=5)


@gen_cluster(client=True, nthreads=ONE)
async def test_thread_pools(c, s, a, monkeypatch):
    """As threadpoolctl sees them; without it, nothing is known."""
    pools = details.worker_details(a, [])["pools"]
    assert all(n >= 1 for _, _, n in pools)
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    assert details.worker_details(a, [])["pools"] is None


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_asked_through_a_client(c, s, a, b):
    """All workers and the scheduler, in one inquiry; client and scheduler alike."""
    await monitor.open_door(c, await monitor.identify(c))
    snapshot, _ = await monitor.look(c, [])
    assert all(w.details is None for w in snapshot.workers)
    asked = await inquiry.with_details(c, snapshot)
    assert all(isinstance(w.details, Details) for w in asked.workers)
    assert asked.survey.me == c.id
    assert asked.survey.packages["client"] == asked.survey.packages["scheduler"]
    assert asked.survey.complete


@gen_cluster(client=True, nthreads=ONE)
async def test_a_worker_that_cannot_say(c, s, a, monkeypatch):
    """Its answer is an error, and that is said; the others are heard."""
    await monitor.open_door(c, await monitor.identify(c))
    snapshot, _ = await monitor.look(c, [])
    a.local_directory = "/no/such/folder"
    asked = await inquiry.with_details(c, snapshot)
    (worker,) = asked.workers
    assert isinstance(worker.details, Unknown)
    assert "FileNotFoundError" in worker.details.reason


@pytest.mark.parametrize("answer", [None, 7, "text", {}, {"pid": 1, "disk": 3}])
def test_garbage(answer):
    """Is no knowledge; why is said."""
    found = inquiry._read_details(answer, 0.0)
    assert isinstance(found, Unknown)
    assert "cannot be read" in found.reason
    facts = monitor._read_facts(answer, None)
    assert isinstance(facts, Unknown)
    assert "cannot be read" in facts.reason


def test_what_the_nanny_sets():
    """In a process of its own the worker has pools of one, and is daemonic."""
    options = {
        "n_workers": 1,
        "threads_per_worker": 1,
        "dashboard_address": "127.0.0.1:0",
    }
    with LocalCluster(**options) as cluster, cluster.get_client() as client:

        async def ask():
            await monitor.open_door(client, await monitor.identify(client))
            snapshot, _ = await monitor.look(client, [])
            return await inquiry.with_details(client, snapshot)

        (worker,) = client.sync(ask).workers
        assert worker.details.daemon
        assert worker.details.variables["OMP_NUM_THREADS"] == "1"
        assert worker.details.pid != os.getpid()


@pytest.mark.parametrize("path", ["/", "/proc", "/tmp"])
def test_disks(path):
    """The nearest mount counts."""
    kind, total, free = details.disk(path)
    assert (kind == "proc") is (path == "/proc")
    assert free <= total
