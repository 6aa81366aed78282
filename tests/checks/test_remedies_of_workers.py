"""Faults of real clusters: checks find them, and the printed remedies end them.

A test of a remedy has the name of its check.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
import pytest
from click.testing import CliRunner
from distributed import Client, Event, LocalCluster, wait

import clustertune
from clustertune import checks
from clustertune.checks import scheduler as scheduler_checks
from clustertune.checks import threads
from clustertune.cli import main
from clustertune.core.model import Finding, Severity, View
from clustertune.remote.scheduler.state import PARKING_PREFIX
from clustertune.remote.worker import park
from tests.checks import test_remedies_of_data as of_data
from tests.checks.applying import Situation, code
from tests.processes import (
    LOCAL,
    local_workers,
    process,
    scheduler,
    until,
    worker_command,
    workers_of,
)

MIB = 2**20

#: checks whose remedy no test can apply, and why
NOT_APPLIED = {
    "adaptive_scaling": "a hold keeps the workers, and the bounds stay: test_hold",
    "blocked_event_loops": "the code of a user's task has to change",
    "changed_partitions": "rechunk= is applied in integrations: test_dask_ml",
    "fit_memory": "it has several ways, whose effects are in test_forecast",
    "no_rows": "the user has to correct the source of the data",
    "several_workers_per_host": "it is applied in actions: test_merge",
    "software_versions": "it installs packages, or retires workers: test_foreign",
    "spill_space": "a disk of a real host is full in tests/hosts: test_a_full_disk",
    "unreadable_values": "the user has to correct the source of the data",
    "unresponsive_workers": "the scheduler has to start with another setting",
}


def test_every_check_has_a_case() -> None:
    """A new check needs a test that applies its remedy."""
    own = {name.removeprefix("test_") for name in globals()}
    cases = own | of_data.CASES.keys() | NOT_APPLIED.keys()
    assert not checks.available().keys() - cases
    assert not NOT_APPLIED.keys() & (own | of_data.CASES.keys())
    assert NOT_APPLIED.keys() <= checks.available().keys()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Client of two workers, for the tests that leave them as they are."""
    with local_workers() as client:
        yield client


@contextmanager
def settings(**values: Any) -> Iterator[None]:
    """Set settings of checks: ``stuck_tasks=dict(min_seconds=9)``."""
    with dask.config.set({f"clustertune.checks.{k}": v for k, v in values.items()}):
        yield


def run_command(situation: Situation, name: str, line: int = 0) -> None:
    """Run a command of a remedy in its own process, as a shell would."""
    finding, *_ = situation.found(name)
    address = situation.client.scheduler.address
    words = shlex.split(code(finding.as_command(address).remedy)[line])
    assert words.pop(0) == "clustertune"
    result = CliRunner().invoke(main, [*words, "--yes"])
    assert result.exit_code == 0, result.output


# --- faults, on a worker --------------------------------------------------------------

KEPT: list[Any] = []  # memory that no key of Dask's accounts for


def keep(nbytes: int) -> None:
    KEPT.append(np.ones(nbytes, dtype="u1"))


def fill(dask_worker: Any, fraction: float) -> None:
    """Fill a worker to this fraction of its memory limit."""
    wanted = int(fraction * dask_worker.memory_manager.memory_limit)
    keep(wanted - psutil.Process().memory_info().rss)


def block_loop() -> None:
    """Block the event loop of a worker, in which functions of ``run`` run."""
    time.sleep(1.5)


# --- threads and size -----------------------------------------------------------------


@pytest.mark.parametrize("as_command", [False, True])
def test_thread_count(local_cluster: Any, as_command: bool) -> None:
    """The call is for all workers of all hosts with too many threads."""
    _, client = local_cluster(2, threads_per_worker=64)
    situation = Situation(client)
    run = partial(run_command, situation) if as_command else situation.apply
    run("thread_count")
    if os.cpu_count() < 2:  # as many workers as CPUs
        run("thread_count")
    assert not [f for f in situation.found("thread_count") if f.severity > 1]


@pytest.mark.skipif(os.cpu_count() < 2, reason="a pool of one thread is right then")
def test_thread_pools(tmp_path: Path) -> None:
    """Workers that start with the printed variables have smaller pools."""
    n = os.cpu_count() * 5 // 4 + 1
    with scheduler(tmp_path) as file, Client(scheduler_file=file) as client:

        def found(**variables: str) -> list[Finding]:
            until(lambda: not workers_of(client))  # of the former call
            worker = worker_command(file, tmp_path, "--nworkers", str(n))
            with process(*worker, **variables):
                client.wait_for_workers(n)
                client.run(np.dot, np.ones((9, 9)), np.ones((9, 9)))  # loads a library
                return Situation(client).found("thread_pools")

        (finding,) = found(OPENBLAS_NUM_THREADS=str(os.cpu_count()))
        assert finding.evidence["pool_threads"] == os.cpu_count()
        words = code(finding.remedy)[0].split()
        assert not found(**dict(word.split("=") for word in words))


@pytest.mark.parametrize("limit", ["100 TiB", 0])
def test_memory_settings(local_cluster: Any, limit: Any) -> None:
    """Workers get the memory of the host, or a limit at all."""
    _, client = local_cluster(2, memory_limit=limit)
    situation = Situation(client)
    situation.apply("memory_settings")
    assert not situation.found("memory_settings")


def test_missing_workers(local_cluster: Any) -> None:
    """The cluster has no worker, and gets one."""
    local, client = local_cluster(0)
    situation = Situation(client)
    situation.apply("missing_workers")
    client.wait_for_workers(1)
    assert not situation.found("missing_workers")


# --- memory ---------------------------------------------------------------------------


@pytest.mark.parametrize("as_command", [False, True])
def test_unmanaged_memory(local_cluster: Any, as_command: bool) -> None:
    """Memory that a worker still uses cannot be trimmed, so it restarts."""
    _, client = local_cluster(2, memory_limit="1GiB")
    first = next(iter(workers_of(client)))
    situation = Situation(client)
    with settings(unmanaged_memory={"max_fraction": 0.1}):
        client.run(fill, fraction=0.55, workers=[first])
        until(lambda: situation.found("unmanaged_memory"))
        run = partial(run_command, situation) if as_command else situation.apply
        run("unmanaged_memory", 0)
        run("unmanaged_memory", 1)
        assert not situation.found("unmanaged_memory")


def test_paused_workers(local_cluster: Any) -> None:
    """A worker that is full of unmanaged memory restarts."""
    _, client = local_cluster(2, memory_limit="2GiB")
    first = next(iter(workers_of(client)))
    client.run(fill, fraction=0.87, workers=[first])
    situation = Situation(client)

    def process_bytes() -> int:
        found = situation.found("paused_workers")
        return max((f.evidence["process_bytes"] for f in found), default=0)

    # its status arrives before the heartbeat with its memory
    until(lambda: process_bytes() > 0.8 * 2**31)
    (finding,) = situation.found("paused_workers")
    assert "unmanaged" in finding.message
    situation.apply("paused_workers", 1)
    assert not situation.found("paused_workers")


def test_memory_pressure(local_cluster: Any) -> None:
    """Other data is released."""
    with dask.config.set({"distributed.worker.memory.target": 0.3}):
        _, client = local_cluster(1, memory_limit="1GiB")
    X = client.persist(da.ones((100, 2), chunks=50))
    old = client.map(lambda i: np.full(40 * MIB, i, "u1"), range(9))
    wait([X, old])
    situation = Situation(client, {"X": X})
    until(lambda: max(severities(situation, "memory_pressure"), default=0) >= 2)
    situation.apply("memory_pressure", 1)
    until(lambda: not situation.found("memory_pressure"))


def severities(situation: Situation, name: str) -> list[Severity]:
    return [finding.severity for finding in situation.found(name)]


def test_memory_growth(local_cluster: Any) -> None:
    """A new process begins without the leaks of the former one."""
    local, client = local_cluster(1, memory_limit="2GiB")
    situation = Situation(client)
    assert not situation.found("memory_growth")
    runs = local.scheduler.plugins["clustertune"].runs
    runs.gap = 1.0
    for i in range(1, 6):
        client.submit(keep, 60 * MIB, pure=False).result()
        until(lambda i=i: len(runs.kept) >= i)
    (finding,) = situation.found("memory_growth")
    assert 30 * MIB < finding.evidence["bytes_per_run"] < 90 * MIB
    situation.apply("memory_growth")
    assert not situation.found("memory_growth")


# --- tasks ----------------------------------------------------------------------------


def until_open(now: bool) -> None:
    if not now:
        Event("open").wait()


def test_stuck_tasks(local_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker restarts, and the task runs again."""
    monkeypatch.setattr(scheduler_checks, "TIMES", 0.01)
    _, client = local_cluster(1)
    client.submit(until_open, True).result()
    stuck = client.submit(until_open, False, pure=False)
    situation = Situation(client)
    with settings(stuck_tasks={"min_seconds": 0.01}):
        until(lambda: situation.found("stuck_tasks"))
        (pid,) = client.run(os.getpid).values()
        situation.apply("stuck_tasks")
    assert set(client.run(os.getpid).values()) != {pid}
    Event("open").set()
    assert stuck.result() is None
    assert not situation.found("stuck_tasks")


def test_tasks_that_no_client_waits_for(local_cluster: Any) -> None:
    """The worker that runs them restarts."""
    _, client = local_cluster(2)
    with Client(client.scheduler.address, set_as_default=False) as other:
        future = other.submit(until_open, False, pure=False)
        until(lambda: any(client.processing().values()))
        del future
    situation = Situation(client)
    with settings(stuck_tasks={"min_seconds": 0.01}):
        until(lambda: situation.found("stuck_tasks"))
        situation.apply("stuck_tasks")
        assert not situation.found("stuck_tasks")


def test_unrunnable_tasks(client: Client) -> None:
    """The tasks are cancelled."""
    futures = [client.submit(sum, [1], workers=["misspelt"], pure=False)]
    situation = Situation(client, {"futures": futures})
    until(lambda: situation.found("unrunnable_tasks"))
    situation.apply("unrunnable_tasks")
    until(lambda: not situation.found("unrunnable_tasks"))


def test_data_from_client(client: Client, tmp_path: Path) -> None:
    """Workers read the data from storage."""
    frame = pd.DataFrame({"a": np.zeros(3 * MIB)})
    situation = Situation(client, {"X": dd.from_pandas(frame, npartitions=2)})
    (finding,) = situation.found("data_from_client")
    situation.names["path"] = str(tmp_path / "data")
    frame.to_parquet(situation.names["path"])
    line = code(finding.remedy)[0]
    situation.names["X"] = eval(line, situation.names)
    assert not situation.found("data_from_client")


# --- workers --------------------------------------------------------------------------


def test_no_nanny() -> None:
    """A new cluster has nannies."""
    options = LOCAL | {"n_workers": 1, "processes": False}
    with LocalCluster(**options) as inside, Client(inside) as client:
        situation = Situation(client)
        (finding,) = situation.found("no_nanny")
    names = {"LocalCluster": partial(LocalCluster, **options)}
    with eval(code(finding.remedy)[0], names) as other, Client(other) as client:
        assert not Situation(client).found("no_nanny")


def test_worker_lifetime(local_cluster: Any) -> None:
    """A longer lifetime is information."""
    _, client = local_cluster(1, lifetime="10 minutes")
    (finding,) = Situation(client).found("worker_lifetime")
    assert finding.severity is Severity.warning
    assert finding.evidence["seconds"] < 600
    words = shlex.split(code(finding.remedy)[0])
    lifetime = words[words.index("--lifetime") + 1]
    _, client = local_cluster(1, lifetime=lifetime)
    (finding,) = Situation(client).found("worker_lifetime")
    assert finding.severity is Severity.info


def test_unfinished_restarts(local_cluster: Any) -> None:
    """The keys of a parking worker move to a running worker."""
    _, client = local_cluster(1)
    situation = Situation(client)
    situation.found("unfinished_restarts")
    client.run(
        park.open_parking,
        nanny=True,
        workers=list(workers_of(client)),
        name=f"{PARKING_PREFIX}test",
        nbytes=0,
        timeout=60,
    )
    until(lambda: situation.found("unfinished_restarts"))
    situation.apply("unfinished_restarts")
    assert not situation.found("unfinished_restarts")


# --- faults without a remedy that a test can apply -----------------------------------


def test_a_blocked_loop(client: Client) -> None:
    """The next heartbeat has the delay, so the monitor has to watch."""
    first = next(iter(workers_of(client)))
    with clustertune.Monitor(client, interval=0.1) as monitor:

        def found() -> list[Any]:
            views = [View(snapshots=(s,), goal=monitor.goal) for s in monitor.snapshots]
            return [f for view in views for f in threads.blocked_event_loops(view)]

        assert not found()
        # one block may fall between two heartbeats
        until(lambda: found() or client.run(block_loop, workers=[first]) is None)


def test_adaptive(local_cluster: Any) -> None:
    """A cluster that may close workers during a fit."""
    local, client = local_cluster(1)
    assert not Situation(client).found("adaptive_scaling")
    local.adapt(minimum=1, maximum=3)
    assert Situation(client).found("adaptive_scaling")
    local.adapt(minimum=1, maximum=1)


# --- the model ------------------------------------------------------------------------


def test_missing_estimator(client: Client) -> None:
    """The call with the model has no finding."""
    pytest.importorskip("lightgbm")
    X, y = (da.zeros(shape, chunks=50) for shape in ((100, 2), 100))
    p = clustertune.prepare(client, X, y)
    (finding,) = [f for f in p.report.left if f.check == "missing_estimator"]
    names = {"X": p.X, "y": p.y, "model": "lightgbm"}
    exec(code(finding.remedy)[0], Situation(client, names).names)
    assert "missing_estimator" not in {
        f.check for f in clustertune.last_report(client).left
    }


def test_eval_sets(client: Client) -> None:
    """Each worker gets some rows, and the variable has the new eval set."""
    worker = next(iter(workers_of(client)))
    X, y = (da.ones(shape, chunks=50) for shape in ((100, 2), 100))
    valid = tuple(client.persist([X + 1, y + 1], workers=[worker]))
    wait(valid)
    names = {"X": X, "y": y, "eval_set": [valid]}
    situation = Situation(client, names, estimator="xgboost")
    situation.apply("eval_sets")
    assert not situation.found("eval_sets")


def test_versions_that_differ(tmp_path: Path, client: Client) -> None:
    """One side has another version of a distribution."""
    info = tmp_path / "lightgbm-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: lightgbm\nVersion: 0.1\n"
    )
    situation = Situation(client)
    assert not situation.found("software_versions")
    client.run(lambda: sys.path.insert(0, str(tmp_path)))
    try:
        (finding,) = situation.found("software_versions")
        assert "lightgbm" in finding.message
    finally:
        client.run(lambda: sys.path.remove(str(tmp_path)))


def test_large_partitions(local_cluster: Any) -> None:
    """``prepare`` cuts them."""
    _, client = local_cluster(2, memory_limit="1GiB")
    X = da.ones((6 * MIB, 6), chunks=(6 * MIB, 6))  # 288 MiB
    situation = Situation(client, {"X": X})
    situation.apply("large_partitions")
    assert not situation.found("large_partitions")
