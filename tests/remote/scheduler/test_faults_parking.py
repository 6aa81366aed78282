"""The only worker is restarted, and processes are killed meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait
from distributed.client import Future

import clustertune
from tests.operations.test_faults import quickly, slowly
from tests.processes import (
    blocking,
    leak,
    process,
    scheduler,
    until,
    worker_command,
    workers_of,
)
from tests.remote.scheduler.test_faults_restart import (
    CLIENT,
    DETOUR,
    _named,
    addresses_by_name,
    assert_equal,
    assert_whole,
    begin_restart,
    doing,
    is_free,
    lose_clients_soon,
    lose_nannies_soon,
    source,
    statuses,
)

WAYS = pytest.mark.parametrize(
    ("options", "when"), [({}, "moving its"), (DETOUR, "moving away")]
)


def data(
    client: Client, where: Mapping[str, Any] = MappingProxyType({})
) -> tuple[da.Array, list[Any]]:
    """Published data that can be recomputed, and scattered data."""
    clustertune.check(client)  # the scheduler plugin is there
    # and elsewhere, if it has to be computed again
    X = client.persist(source(), allow_other_workers=bool(where), **where)
    wait(X)
    client.publish_dataset(X, name="X")
    return X, client.scatter([np.full(10, i) for i in range(5)], hash=False, **where)


def names(dask_scheduler: Any) -> list[str]:
    return [str(ws.name) for ws in dask_scheduler.workers.values()]


def events(dask_scheduler: Any) -> list[dict[str, Any]]:
    every = [event for _, event in dask_scheduler.get_events("clustertune")]
    return [event for event in every if "state" in event]  # else it is of a call


def assert_alone(client: Client) -> None:
    """Assert that there is one worker and no parking worker."""
    # a lambda: a function of this module would be imported, and clustertune with it
    found = client.run_on_scheduler(
        lambda dask_scheduler: [str(w.name) for w in dask_scheduler.workers.values()]
    )
    assert len(found) == 1
    assert "parking" not in found[0]


def assert_computable(client: Client, X: da.Array) -> None:
    """Assert that no key is left over, and that computable data is equal."""
    assert_whole(client, X, [])


def lost(values: list[Future]) -> int:
    """Return the number of lost values; the others must be equal."""
    there = [f for f in values if f.status == "finished"]
    expected = [i for i, f in enumerate(values) if f.status == "finished"]
    assert [int(f.result()[0]) for f in there] == expected
    return len(values) - len(there)


@contextmanager
def workers(folder: Path, n: int, *arguments: str, **environment: str) -> Iterator[Any]:
    """A scheduler and workers, each nanny a separate process: client, processes."""
    with ExitStack() as stack:
        file = stack.enter_context(scheduler(folder, **environment))
        worker = worker_command(file, folder, *arguments)
        nannies = [
            stack.enter_context(process(*worker, "--name", f"w{i}", **environment))
            for i in range(n)
        ]
        client = stack.enter_context(Client(scheduler_file=file))
        client.wait_for_workers(n)
        yield client, nannies


def test_a_worker_alone(tmp_path: Path) -> None:
    """It gets another size; scheduler and worker have no clustertune."""
    with workers(tmp_path, 1, **blocking(tmp_path)) as (client, _):
        X, kept = data(client)
        (pid,) = client.run(os.getpid).values()
        report = clustertune.resize_workers(client, X, nthreads=2)
        assert report.status == "done", str(report)
        assert "move to its new process" in report.steps[0].summary
        assert "101 keys moved to its new process; lost 0" in report.steps[0].details
        assert pid not in client.run(os.getpid).values()
        assert list(client.nthreads().values()) == [2]
        assert_alone(client)
        assert_equal(client, client.get_dataset("X"))
        assert lost(kept) == 0
        until(lambda: not list((tmp_path / "dask-scratch-space").glob("parking-*")))


@pytest.mark.parametrize("when", ["moving away", "moving its"])
def test_the_worker_is_killed(local_cluster: Any, when: str) -> None:
    """Its nanny starts it again, and the parked keys return to it."""
    _, client = local_cluster(1, **DETOUR)
    X, kept = data(client)
    restarting = begin_restart(client, timeout="2 minutes")
    until(lambda: client.run_on_scheduler(doing).startswith(when))
    workers = workers_of(client).items()
    (address,) = [a for a, w in workers if "parking" not in str(w["name"])]
    (pid,) = client.run(os.getpid, workers=[address]).values()
    os.kill(pid, signal.SIGKILL)
    restarting.join(100)
    assert isinstance(restarting.result, clustertune.Report), restarting.result
    (step,) = restarting.result.steps
    gone = client.run_on_scheduler(events)[-1]["lost"]
    # killed before it was empty, or it may have had nothing yet
    assert step.status == ("partly" if gone or when == "moving away" else "done")
    assert (f"lost {gone:,} keys" in step.reason) == (gone > 0)
    assert_computable(client, X)
    assert_alone(client)
    assert lost(kept) <= gone


@pytest.mark.parametrize("victim", ["former", "new"])
def test_a_process_of_a_worker_alone_is_killed(local_cluster: Any, victim: str) -> None:
    """The new process gets the keys that only the former one had left."""
    _, client = local_cluster(1)
    X, kept = data(client)
    restarting = begin_restart(client, timeout="2 minutes")
    until(lambda: client.run_on_scheduler(doing).startswith("moving its"))
    workers = workers_of(client).items()
    (address,) = [
        a for a, w in workers if ("parking" in str(w["name"])) == (victim == "former")
    ]
    (pid,) = client.run(os.getpid, workers=[address]).values()
    os.kill(pid, signal.SIGKILL)
    restarting.join(100)
    assert isinstance(restarting.result, clustertune.Report), restarting.result
    (step,) = restarting.result.steps
    gone = client.run_on_scheduler(events)[-1]["lost"]
    # keys of X that Dask computes again are not lost, and are named, too
    again = "keys recomputed" in step.reason
    assert step.status == ("partly" if gone or again else "done")
    assert (f"lost {gone:,} keys" in step.reason) == (gone > 0)
    assert_computable(client, X)
    assert_alone(client)
    assert lost(kept) <= gone
    (step,) = clustertune.restart_workers(client).steps  # two processes can run again
    assert "moved to its new process" in step.details


@WAYS
def test_the_client_is_killed(local_cluster: Any, options: Any, when: str) -> None:
    """The scheduler completes the restart: nothing is lost or left over."""
    _, client = local_cluster(1, **options)
    X, kept = data(client)
    (pid,) = client.run(os.getpid).values()
    command = [sys.executable, "-c", CLIENT, client.scheduler.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        until(lambda: client.run_on_scheduler(doing).startswith(when))
        client.run_on_scheduler(lose_clients_soon)
        other.kill()
        until(lambda: client.run_on_scheduler(is_free))
    ended = client.run_on_scheduler(events)[-1]
    assert ended["state"] == "ended"
    assert ended["lost"] == 0
    assert_whole(client, X, kept)
    assert_alone(client)


@WAYS
def test_its_nanny_is_killed(tmp_path: Path, options: Any, when: str) -> None:
    """The keys in its processes are lost, and the report states it."""
    with workers(tmp_path, 1, *resources(options)) as (client, (nanny,)):
        X, kept = data(client)
        restarting = begin_restart(client, timeout="2 minutes")
        until(lambda: client.run_on_scheduler(doing).startswith(when))
        client.run_on_scheduler(lose_nannies_soon)
        nanny.kill()
        restarting.join(100)
        assert not restarting.is_alive()
        ended = client.run_on_scheduler(events)[-1]
        assert ended["state"] == "ended"
        assert ended["lost"] > 0
        assert f"lost {ended['lost']:,} keys" in str(restarting.result)
        until(lambda: client.run_on_scheduler(is_free))
        until(lambda: not client.run_on_scheduler(names))


def resources(options: Any) -> list[str]:
    return ["--resources", "a=1"] if options else []


@WAYS
def test_a_nanny_of_three_is_killed(tmp_path: Path, options: Any, when: str) -> None:
    """The nanny is killed while its worker restarts.

    Moved keys stay, the others are recomputed, and the report names the lost worker.
    """
    with workers(tmp_path, 3, *resources(options)) as (client, nannies):
        addresses = client.run_on_scheduler(addresses_by_name)
        first = {"workers": [addresses["w0"]]}
        X, kept = data(client, first)
        safe = client.scatter(
            [np.full(10, i) for i in range(5)], hash=False, workers=[addresses["w1"]]
        )
        restarting = begin_restart(client, workers=["w0"], timeout="2 minutes")
        until(lambda: client.run_on_scheduler(doing).startswith(when))
        client.run_on_scheduler(lose_nannies_soon)
        nannies[0].kill()
        restarting.join(100)
        assert isinstance(restarting.result, clustertune.Report), restarting.result
        assert restarting.result.steps[0].status == "partly"
        assert_whole(client, X, safe)
        assert sorted(client.run_on_scheduler(names)) == ["w1", "w2"]
        ended = client.run_on_scheduler(events)[-1]
        assert lost(kept) <= ended["lost"]


def test_a_receiver_pauses(local_cluster: Any, request: pytest.FixtureRequest) -> None:
    """A target of keys pauses, and another one gets them."""
    cluster, client = local_cluster(3, memory_limit="1GiB", **DETOUR)
    addresses = [cluster.workers[i].worker_address for i in range(3)]
    X, kept = data(client, {"workers": [addresses[0]]})
    # some may have been computed elsewhere: that was allowed
    held = set(client.has_what()[addresses[0]])
    client.run_on_scheduler(slowly)
    request.addfinalizer(lambda: client.run_on_scheduler(quickly))
    restarting = begin_restart(client, workers=[0], timeout="2 minutes")
    until(lambda: client.run_on_scheduler(doing).startswith("moving away"))
    client.run(leak, nbytes=int(0.85 * 2**30), workers=[addresses[1]])
    until(lambda: "paused" in client.run_on_scheduler(statuses))
    assert client.run_on_scheduler(doing).startswith("moving away")
    client.run_on_scheduler(quickly)  # the rest
    restarting.join(100)
    assert isinstance(restarting.result, clustertune.Report), restarting.result
    assert restarting.result.status == "done", str(restarting.result)
    assert len(client.has_what()) == 3
    assert held <= set(client.has_what()[_named(client, 0)])
    client.run(_empty, workers=[addresses[1]])
    assert_whole(client, X, kept)


def _empty(dask_worker: Any) -> None:
    del dask_worker.leak
