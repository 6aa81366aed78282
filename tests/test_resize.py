"""Workers of another size, without losing data; what was set outlives a crash."""

from __future__ import annotations

import os
import signal
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, Event, LocalCluster, wait

import clustertune
from clustertune.adapters import spec_cluster
from clustertune.errors import RefusedError
from clustertune.model import Size
from tests.processes import cluster, until, workers_of

GIB = 2**30


def facts(dask_worker: Any) -> tuple[int, int, str | None, list[int]]:
    from threadpoolctl import threadpool_info

    limit = dask_worker.memory_manager.memory_limit
    pools = [p["num_threads"] for p in threadpool_info()]
    variable = os.environ.get("OPENBLAS_NUM_THREADS")
    return dask_worker.state.nthreads, limit, variable, pools


@pytest.fixture
def two(local_cluster: Any) -> tuple[LocalCluster, Client]:
    found: tuple[LocalCluster, Client] = local_cluster(2, memory_limit="1 GiB")
    return found


def test_threads_and_memory(two: Any) -> None:
    """Asked of the workers themselves, seen by check, and kept after a crash."""
    local, client = two
    X = client.persist(da.random.default_rng(0).random((1000, 100), chunks=(50, 100)))
    kept = client.scatter([np.full(9, i) for i in range(4)], hash=False)
    wait(X)
    threads = {w["nthreads"] for w in workers_of(client).values()}
    assert threads == {1}
    report = clustertune.resize(client, X, nthreads=2, memory_limit="1.5 GiB")
    assert report.status == "done", str(report)
    assert all("lost 0" in step.reason for step in report.steps)
    assert {f[:2] for f in client.run(facts).values()} == {(2, int(1.5 * GIB))}
    expected = da.random.default_rng(0).random((1000, 100), chunks=(50, 100))
    np.testing.assert_array_equal(X.compute(), expected.compute(scheduler="sync"))
    assert [int(v[0]) for v in client.gather(kept)] == [0, 1, 2, 3]
    address, pid = next(iter(client.run(os.getpid).items()))
    os.kill(pid, signal.SIGKILL)
    until(lambda: address not in workers_of(client))
    client.wait_for_workers(2)
    assert {f[:2] for f in client.run(facts).values()} == {(2, int(1.5 * GIB))}
    assert clustertune.resize(client, nthreads=2).status == "fine"
    local.scale(3)  # a later worker is like them
    client.wait_for_workers(3)
    assert {f[:2] for f in client.run(facts).values()} == {(2, int(1.5 * GIB))}


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="pools have one thread anyway")
def test_variables(spawned: None, two: Any) -> None:
    """Native pools take them; the user's own process has what it had."""
    _, client = two
    before = dict(os.environ)
    env = {"OPENBLAS_NUM_THREADS": "2"}
    report = clustertune.resize(client, env=env, workers=[1])
    assert report.status == "done", str(report)
    found = client.run(facts)
    assert sorted(str(f[2]) for f in found.values()) == ["1", "2"]
    pools = [f[3] for f in found.values() if f[2] == "2"]
    assert all(n == 2 for n in pools[0]), pools
    assert dict(os.environ) == before


def test_any_variable(two: Any) -> None:
    """A caller in Python may set it; reports and the event log hide its value."""
    _, client = two
    env = {"CLUSTERTUNE_TEST_TOKEN": "hunter2"}
    report = clustertune.resize(client, env=env, workers=[1], allow_any_env=True)
    assert report.status == "done", str(report)
    found = client.run(os.getenv, "CLUSTERTUNE_TEST_TOKEN")
    assert sorted(map(str, found.values())) == ["None", "hunter2"]
    assert "CLUSTERTUNE_TEST_TOKEN=(hidden)" in str(report)
    events = client.get_events("clustertune")
    assert events
    for text in (str(report), report.to_json(), repr(events)):
        assert "hunter2" not in text


def test_a_limit_that_is_too_low(two: Any) -> None:
    """Refused before anything is touched."""
    _, client = two
    first = next(iter(workers_of(client)))
    big = client.submit(np.ones, 200_000_000 // 8, workers=[first])
    wait(big)
    pids = client.run(os.getpid)
    with pytest.raises(RefusedError, match="would write some of it to disk"):
        clustertune.resize(client, memory_limit="250 MiB")
    assert client.run(os.getpid) == pids


def test_a_restart_that_does_not_come_about(two: Any) -> None:
    """The nanny is told what was before: later it starts the worker as ever."""
    _, client = two
    first = next(iter(workers_of(client)))
    gate = Event("gate", client=client)
    busy = client.submit(at_gate, gate.name, workers=[first], pure=False)
    until(lambda: any(client.processing().values()))
    report = clustertune.resize(client, nthreads=3, wait="200 ms")
    assert report.status == "left"
    gate.set()
    wait(busy)
    client.restart_workers([first])
    assert {f[0] for f in client.run(facts).values()} == {1}


def at_gate(name: str) -> None:
    Event(name).wait(30)


def test_started_by_hand(tmp_path: Any) -> None:
    """With an address only, and nannies in other processes."""
    with cluster(tmp_path, 2) as file, Client(scheduler_file=file) as client:
        client.wait_for_workers(2)
        report = clustertune.resize(client, nthreads=2)
        assert report.status == "done", str(report)
        assert {f[0] for f in client.run(facts).values()} == {2}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, TypeError),
        ({"nthreads": 0}, ValueError),
        ({"memory_limit": "much"}, ValueError),
        ({"memory_limit": 5}, ValueError),
        ({"env": {"A": 1}}, ValueError),
        ({"env": {"A=B": "1"}}, ValueError),
        ({"env": {"A": "1"}}, ValueError),
        ({"env": {"A;B": "1"}, "allow_any_env": True}, ValueError),
        ({"env": {"A": "1"}, "allow_any_env": "yes"}, ValueError),
        ({"env": "A=B"}, ValueError),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception]) -> None:
    """Before anything is asked."""
    with pytest.raises(error):
        clustertune.resize(Client.__new__(Client), **options)


def test_what_later_workers_are_like() -> None:
    """Like those that are there once all of these have the size, and not before."""
    options: dict[str, Any] = {"processes": False, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=2, threads_per_worker=1, **options) as local:
        size = Size(nthreads=3, memory_limit=2**30, env={"A": "1"})
        spec_cluster.resized(local, 0, size)
        assert local.worker_spec[0]["options"]["nthreads"] == 3
        assert local.worker_spec[1]["options"]["nthreads"] == 1
        assert local.new_spec["options"]["nthreads"] == 1
        spec_cluster.resized(local, "gone", size)
        spec_cluster.resized(local, 1, size)
        new = local.new_spec["options"]
        assert (new["nthreads"], new["memory_limit"]) == (3, 2**30)
        assert new["env"]["A"] == "1"
