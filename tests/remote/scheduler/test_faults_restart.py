"""Processes are killed and frozen while workers restart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.core import flatten
from distributed import Client, wait

import clustertune
from tests.processes import (
    Call,
    empty_cluster,
    interrupted_when,
    local_workers,
    until,
)

# two processes would count the resources twice, so the keys move to other workers
DETOUR = {"resources": {"a": 1}}
ROWS, COLUMNS, CHUNK = 240_000, 100, 2_500
SEED = 5


def source() -> da.Array:
    """Return 190 MB that can be recomputed."""
    return da.random.default_rng(SEED).random((ROWS, COLUMNS), chunks=(CHUNK, COLUMNS))


@cache
def checksums() -> list[int]:
    """Return the checksum of each partition of the source."""
    values = source().compute(scheduler="sync")
    return [zlib.crc32(part) for part in np.split(values, ROWS // CHUNK)]


def doing(dask_scheduler: Any) -> str:
    """Return the current stage of the restart."""
    plugin = dask_scheduler.plugins.get("clustertune")
    jobs = [] if plugin is None else plugin.jobs.kept.values()
    return next(
        (j.work.doing for j in jobs if hasattr(j.work, "doing") and not j.task.done()),
        "",
    )


def statuses(dask_scheduler: Any) -> set[str]:
    return {ws.status.name for ws in dask_scheduler.workers.values()}


def is_free(dask_scheduler: Any) -> bool:
    """Whether the lease is free, no job runs, and the memory manager is on."""
    plugin = dask_scheduler.plugins["clustertune"]
    jobs = any(not job.task.done() for job in plugin.jobs.kept.values())
    running = dask_scheduler.extensions["amm"].running
    return plugin.lease.holder() is None and not jobs and bool(running)


def lose_clients_soon(dask_scheduler: Any) -> None:
    """Count a client as lost after 3 s; during a restart it asks every second."""
    owners = dask_scheduler.plugins["clustertune"].owners
    assert owners.grace == 15
    owners.grace = 3


def be_patient(dask_scheduler: Any) -> None:
    """Undo ``lose_clients_soon``: a client sends a heartbeat every 5 s."""
    dask_scheduler.plugins["clustertune"].owners.grace = 15


def lose_nannies_soon(dask_scheduler: Any) -> None:
    """Count the nanny of the restart as lost after 3 s instead of 30 s."""
    jobs = dask_scheduler.plugins["clustertune"].jobs.kept.values()
    (work,) = [job.work for job in jobs if not job.task.done()]
    watch = type(work)._returns.__globals__["NannyWatch"]
    constants = watch.is_silent.__globals__
    assert constants["NANNY_TIMEOUT"] == 30
    constants["NANNY_TIMEOUT"] = 3.0


def frozen_constants(dask_scheduler: Any) -> dict[str, Any]:
    """Return the globals of the scheduler's code that finds frozen processes.

    The plugin has its own copy of the module.
    """
    plugin = dask_scheduler.plugins["clustertune"]
    restart = type(plugin).restart_workers.__globals__["WorkerRestart"]
    silence = restart._wait_for_tasks.__globals__["silence"]
    constants: dict[str, Any] = silence.__globals__
    assert constants["FROZEN"] == 20
    return constants


def find_frozen_soon(dask_scheduler: Any) -> None:
    """Count a process as frozen after 5 s without an answer instead of 20 s."""
    frozen_constants(dask_scheduler)["FROZEN"] = 5.0


begin_restart = partial(Call, clustertune.restart_workers)


def assert_whole(client: Client, X: da.Array, kept: list[Any]) -> None:
    """Assert that every partition and value is equal, and no key is left over."""
    until(lambda: client.run_on_scheduler(is_free))
    until(lambda: client.run_on_scheduler(statuses) == {"running"})
    assert_equal(client, X)
    assert [int(v[0]) for v in client.gather(kept)] == list(range(len(kept)))


def assert_equal(client: Client, X: da.Array) -> None:
    """Assert that every partition is that of the source; workers read the values."""
    partitions = [X.dask[key] for key in flatten(X.__dask_keys__())]
    found = client.gather(client.map(zlib.crc32, partitions, pure=False))
    assert found == checksums()


@pytest.fixture(scope="module")
def plain() -> Iterator[Client]:
    """Client of three workers that are killed, and come back."""
    with local_workers(3, set_as_default=False) as client:
        yield client


@pytest.fixture(scope="module")
def detour() -> Iterator[Client]:
    """Client of three workers whose keys move to other workers."""
    with local_workers(3, set_as_default=False, **DETOUR) as client:
        yield client


@pytest.fixture(params=["moving its", "moving away"])
def way(request: Any) -> tuple[Client, str]:
    """Return both clients, each with a stage of its restarts."""
    name = "plain" if request.param == "moving its" else "detour"
    return request.getfixturevalue(name), request.param


def start(client: Client) -> tuple[da.Array, list[int], list[str]]:
    """Return data, and the pids and addresses of the workers, by name."""
    until(lambda: set(client.run_on_scheduler(addresses_by_name)) == {0, 1, 2})
    empty_cluster(client, 3)
    clustertune.check(client)  # the scheduler plugin is there
    X = client.persist(source())
    with client.as_current():
        wait(X)
    addresses = [_named(client, i) for i in range(3)]
    pids = client.run(os.getpid)
    return X, [pids[a] for a in addresses], addresses


@pytest.mark.parametrize(
    ("when", "victim"),
    [("moving away", 0), ("moving away", 1), ("restarting", 1), ("moving its", 0)],
)
def test_a_worker_is_killed(detour: Client, when: str, victim: int) -> None:
    """The emptied worker is killed, or a target, or the restarted process."""
    client = detour
    X, pids, addresses = start(client)
    # scattered, so lost with the only worker that has it: on one that is not killed
    kept = client.scatter(
        [np.full(10, i) for i in range(5)], hash=False, workers=[addresses[2]]
    )
    restarting = begin_restart(client, workers=[0], timeout="2 minutes")
    until(lambda: client.run_on_scheduler(doing).startswith(when))
    if victim == 0 and when == "moving its":  # it has another process by now
        (pids[0],) = client.run(os.getpid, workers=[_named(client, 0)]).values()
    assert restarting.is_alive()
    os.kill(pids[victim], signal.SIGKILL)
    restarting.join(150)
    assert not restarting.is_alive()
    assert isinstance(restarting.result, clustertune.Report), restarting.result
    assert_whole(client, X, kept)


@pytest.mark.parametrize(
    ("when", "victim"),
    [
        ("starting", "former"),
        ("moving its", "former"),
        ("moving its", "new"),
        ("moving its", "other"),
    ],
)
def test_a_process_is_killed(plain: Client, when: str, victim: str) -> None:
    """While two processes of one worker run: the other one continues."""
    client = plain
    X, pids, addresses = start(client)
    kept = client.scatter(
        [np.full(10, i) for i in range(5)],
        hash=False,
        workers=[addresses[2 if victim == "other" else 1]],
    )
    restarting = begin_restart(client, workers=[0], timeout="2 minutes")
    until(lambda: client.run_on_scheduler(doing).startswith(when))
    pid = {"former": pids[0], "other": pids[1]}.get(victim)
    if pid is None:
        (pid,) = client.run(os.getpid, workers=[_named(client, 0)]).values()
    assert pid not in (pids[0], pids[1]) or victim != "new"
    os.kill(pid, signal.SIGKILL)
    restarting.join(150)
    assert not restarting.is_alive()
    assert isinstance(restarting.result, clustertune.Report), restarting.result
    assert_whole(client, X, kept)
    until(lambda: set(client.run_on_scheduler(addresses_by_name)) == {0, 1, 2})
    assert pids[0] not in client.run(os.getpid).values() or when == "starting"
    # its nanny can run a second process again
    assert clustertune.restart_workers(client, workers=[0]).status == "done"


def _named(client: Client, name: int) -> str:
    return str(client.run_on_scheduler(addresses_by_name)[name])


def addresses_by_name(dask_scheduler: Any) -> dict[Any, str]:
    return {ws.name: ws.address for ws in dask_scheduler.workers.values()}


CLIENT = """
import sys
from distributed import Client
import clustertune
client = Client(sys.argv[1])
print("ready", flush=True)
clustertune.restart_workers(client)
"""


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_the_client_dies_or_freezes(way: tuple[Client, str], fate: int) -> None:
    """The scheduler finishes the current worker, and then frees the cluster."""
    client, when = way
    X, _, _ = start(client)
    kept = client.scatter([np.full(10, i) for i in range(5)], hash=False)
    address = client.scheduler.address
    command = [sys.executable, "-c", CLIENT, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        until(lambda: client.run_on_scheduler(doing).startswith(when))
        client.run_on_scheduler(lose_clients_soon)
        try:
            other.send_signal(fate)
            assert_whole(client, X, kept)
        finally:
            client.run_on_scheduler(be_patient)
            other.kill()


def test_interrupted(way: tuple[Client, str]) -> None:
    """^C undoes the restart, or the keys arrive in the new process."""
    client, when = way
    X, _, _ = start(client)
    kept = client.scatter([np.full(10, i) for i in range(5)], hash=False)
    with (
        interrupted_when(lambda: client.run_on_scheduler(doing).startswith(when)),
        pytest.raises(KeyboardInterrupt),
    ):
        clustertune.restart_workers(client)
    assert_whole(client, X, kept)


def test_a_process_that_does_not_start(local_cluster: Any, tmp_path: Path) -> None:
    """The former process keeps the keys and its name, and runs tasks."""
    broken, preload = tmp_path / "broken", tmp_path / "preload.py"
    preload.write_text(f"import os; assert not os.path.exists({str(broken)!r})")
    _, client = local_cluster(3, preload=[str(preload)])
    X, pids, _ = start(client)
    kept = client.scatter([np.full(10, i) for i in range(5)], hash=False)
    before = client.run_on_scheduler(addresses_by_name)
    broken.touch()
    report = clustertune.restart_workers(client, workers=[0])
    assert report.status == "left"
    assert "its next process did not start" in report.steps[0].reason
    assert client.run_on_scheduler(addresses_by_name) == before
    assert sorted(client.run(os.getpid).values()) == sorted(pids)
    broken.unlink()
    assert_whole(client, X, kept)
    assert clustertune.restart_workers(client, workers=[0]).status == "done"
    assert_whole(client, X, kept)


def test_two_at_once(plain: Client) -> None:
    """The second call waits for the first."""
    client = plain
    X, _, _ = start(client)
    kept = client.scatter([np.full(10, i) for i in range(5)], hash=False)
    with Client(client.scheduler.address, set_as_default=False) as other:
        both = [begin_restart(c, workers=[i]) for i, c in enumerate((client, other))]
        for one in both:
            one.join(120)
        assert [one.result.status for one in both] == ["done", "done"]
    assert_whole(client, X, kept)
