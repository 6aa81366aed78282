"""Faults put into real clusters, and seen as they are: what Dask says is not guessed.

``test_recordings`` changes what was seen; here clusters themselves are made faulty.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
import pytest
from distributed import Client, LocalCluster, Worker, wait

import clustertune
from clustertune.checks.threads import blocked_event_loops
from clustertune.core.model import Finding, Severity, View
from clustertune.core.report import Report
from tests.in_process import gen_cluster
from tests.processes import cluster, until, workers_of

TWO = [("127.0.0.1", 1)] * 2
MIB = 2**20


def of(report: Report, name: str) -> list[Finding]:
    return [f for f in report.found if f.check == name]


def only(report: Report, name: str) -> Finding:
    (finding,) = of(report, name)
    return finding


def seen(client: Client, name: str) -> Finding | None:
    return next(iter(of(clustertune.check(client), name)), None)


# --- memory, in processes of their own ------------------------------------------------

KEPT: list[Any] = []  # on a worker: memory that no key of Dask's accounts for


def keep(nbytes: int) -> None:
    KEPT.append(np.ones(nbytes, dtype="u1"))


def fill(dask_worker: Any, fraction: float) -> None:
    """Fill a worker to this fraction of its memory limit."""
    wanted = int(fraction * dask_worker.memory_manager.memory_limit)
    keep(wanted - psutil.Process().memory_info().rss)


def test_memory_of_a_worker(local_cluster: Any) -> None:
    """Spilled keys, unmanaged memory, and a worker that pauses because of it."""
    _, client = local_cluster(2, memory_limit="2GiB")
    first = next(iter(workers_of(client)))
    assert not seen(client, "memory_pressure")
    data = [
        client.submit(np.ones, 80 * MIB // 8, workers=[first], pure=False)
        for _ in range(16)
    ]
    wait(data)
    assert until(lambda: seen(client, "memory_pressure")).severity >= 2
    del data
    until(lambda: not client.run(lambda dask_worker: len(dask_worker.data))[first])
    client.run(fill, fraction=0.6, workers=[first])
    until(lambda: seen(client, "unmanaged_memory"))
    client.run(fill, fraction=0.87, workers=[first])
    finding = until(lambda: full(seen(client, "paused_workers")))
    assert 0 < finding.evidence["paused_seconds"] < 60


def full(finding: Finding | None) -> Finding | None:
    """Wait until a worker's heartbeat has its memory."""
    told = finding is not None and "unmanaged" in finding.message
    return finding if told else None


def test_memory_counted_twice(local_cluster: Any) -> None:
    """Keys that are views of one array count several times."""
    _, client = local_cluster(1)
    whole = client.submit(np.ones, 50 * MIB // 8)
    parts = [client.submit(lambda x, i: x[i:], whole, i) for i in range(20)]
    wait(parts)
    finding = until(lambda: seen(client, "overcounted_memory"))
    assert finding.evidence["counted_bytes"] == pytest.approx(21 * 50 * MIB, rel=0.1)


CHILD = "x = bytearray(300 * 2**20); input()"


def have_children() -> None:
    KEPT.append(subprocess.Popen([sys.executable, "-c", CHILD], stdin=-1))


def end_children() -> None:
    for child in KEPT:
        child.communicate(b"\n")


def test_child_processes(local_cluster: Any) -> None:
    """The nanny does not count the memory of child processes."""
    _, client = local_cluster(1, memory_limit="400MiB")
    client.run(have_children)
    try:
        until(lambda: seen(client, "child_processes").severity is Severity.warning)
    finally:
        client.run(end_children)


def leak(nbytes: int) -> None:
    keep(nbytes)


def test_memory_that_grows_from_run_to_run(local_cluster: Any) -> None:
    """A leaking task leaves memory after each run, as the scheduler plugin records."""
    local, client = local_cluster(1, memory_limit="2GiB")
    assert only(clustertune.check(client), "memory_growth").severity == 0
    runs = local.scheduler.plugins["clustertune"].runs
    runs.gap = 1.0
    for i in range(1, 6):
        client.submit(leak, 60 * MIB, pure=False).result()
        until(lambda i=i: len(runs.kept) >= i)
    finding = only(clustertune.check(client), "memory_growth")
    assert 30 * MIB < finding.evidence["bytes_per_run"] < 90 * MIB


# --- settings, threads, disks ---------------------------------------------------------


def test_settings_of_workers(local_cluster: Any) -> None:
    """Inconsistent thresholds, limits above the memory, and a lifetime."""
    wrong = {"distributed.worker.memory.spill": 0.9}
    with dask.config.set(wrong):
        _, client = local_cluster(2, memory_limit="100TiB", lifetime="10 minutes")
        report = clustertune.check(client)
    assert of(report, "memory_settings")
    assert of(report, "memory_settings")
    assert only(report, "worker_lifetime").evidence["seconds"] < 600
    assert not of(report, "heterogeneous_workers")


@pytest.mark.skipif(os.cpu_count() < 2, reason="a pool of one thread is right then")
def test_thread_pools(tmp_path: Path) -> None:
    """Variables of the workers' environment set the pools."""
    n = os.cpu_count() * 5 // 4 + 1  # as few as are too many
    with (
        cluster(tmp_path, n, OPENBLAS_NUM_THREADS=str(os.cpu_count())) as file,
        Client(scheduler_file=file) as client,
    ):
        client.wait_for_workers(n)
        client.run(np.dot, np.ones((9, 9)), np.ones((9, 9)))
        report = clustertune.check(client)
    assert only(report, "thread_pools").evidence["pool_threads"] == os.cpu_count()
    assert of(report, "thread_count")


def test_threads_and_disk(local_cluster: Any) -> None:
    """More threads than CPUs, and spilling to a disk in memory."""
    _, client = local_cluster(1, threads_per_worker=64, local_directory="/dev/shm")
    report = clustertune.check(client)
    assert of(report, "thread_count")
    assert only(report, "spill_space").evidence["file_system"] == "tmpfs"


def test_heterogeneous_workers() -> None:
    """One worker has more threads and memory than the others."""

    @gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3)
    async def test(c: Any, s: Any, *workers: Any) -> None:
        assert not of(await clustertune.check(c), "heterogeneous_workers")
        async with Worker(s.address, nthreads=3, memory_limit="9 GiB"):
            assert of(await clustertune.check(c), "heterogeneous_workers")

    test()


# --- workers that do not answer -------------------------------------------------------


@pytest.mark.slow
def test_a_silent_worker(local_cluster: Any) -> None:
    """A stopped process is found by its silence; the check does not hang."""
    _, client = local_cluster(2)
    clustertune.check(client)
    pids = list(client.run(os.getpid).values())
    os.kill(pids[0], signal.SIGSTOP)
    try:
        with dask.config.set(
            {"clustertune.checks.unresponsive_workers.max_seconds": 1.0}
        ):
            finding = until(lambda: seen(client, "unresponsive_workers"))
        assert finding.evidence["silent_seconds"] > 1
    finally:
        os.kill(pids[0], signal.SIGCONT)


def block_loop() -> None:
    """Block the event loop of a worker, in which functions of ``run`` run."""
    time.sleep(1.5)


def test_a_blocked_loop(local_cluster: Any) -> None:
    """The next heartbeat has the delay, so the monitor has to watch."""
    _, client = local_cluster(2)
    first = next(iter(workers_of(client)))
    with clustertune.Monitor(client, interval=0.1) as monitor:

        def found() -> list[Any]:
            views = [View(snapshots=(s,), goal=monitor.goal) for s in monitor.snapshots]
            return [f for view in views for f in blocked_event_loops(view)]

        assert not found()
        # one block may fall between two heartbeats
        until(lambda: found() or client.run(block_loop, workers=[first]) is None)


# --- tasks ----------------------------------------------------------------------------


# --- data -----------------------------------------------------------------------------


@gen_cluster(client=True, nthreads=TWO)
async def test_what_is_kept_beside_the_data(c: Any, s: Any, a: Any, b: Any) -> None:
    """Other keys and replicas."""
    X = c.persist(da.random.random((1000, 10), chunks=(100, 10)))
    old = c.persist(da.random.random((200_000, 10), chunks=(100_000, 10)))
    await wait([X, old])
    settings = {
        "clustertune.checks.unrelated_keys": {
            "info_fraction": 1e-6,
            "warning_fraction": 1e-5,
        }
    }
    with dask.config.set(settings):
        finding = only(await clustertune.check(c, X), "unrelated_keys")
    assert finding.evidence["bytes"] == 200_000 * 80
    assert "15.3 MiB" in finding.message
    await c.amm.stop()  # it would drop them within two seconds
    await c.replicate(X)
    assert of(await clustertune.check(c, X), "surplus_replicas")


@gen_cluster(client=True, nthreads=TWO)
async def test_values(c: Any, s: Any, a: Any, b: Any) -> None:
    """Wide and mixed numbers, different categories, and cut groups."""
    frame = pd.DataFrame({"a": np.ones(40, "f4"), "n": np.arange(40)})
    frame["b"] = frame["a"]
    with dask.config.set({"clustertune.checks.wide_dtypes.min_bytes": 1}):
        wide = da.ones((40, 2), chunks=(10, 2))
        report = await clustertune.check(c, wide, estimator="xgboost")
        assert of(report, "wide_dtypes")
        mixed = dd.from_pandas(frame, npartitions=2)
        report = await clustertune.check(c, mixed, estimator="xgboost")
        assert of(report, "wide_dtypes")

    def partition(i: int) -> pd.DataFrame:
        values = pd.Categorical(["u", "v"] if i else ["v", "w"])
        return pd.DataFrame({"c": values, "q": [i // 2] * 2})

    X = dd.from_map(partition, range(4), meta=partition(0))
    report = await clustertune.check(c, X[["c"]], qid=X["q"], deep=True)
    assert of(report, "differing_categories")
    assert only(report, "query_groups").evidence == {"groups": 2}


# --- software -------------------------------------------------------------------------


def test_versions_that_differ(tmp_path: Path, local_cluster: Any) -> None:
    """One side has another version of a distribution."""
    info = tmp_path / "lightgbm-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: lightgbm\nVersion: 0.1\n"
    )
    _, client = local_cluster(1)
    assert not seen(client, "software_versions")
    client.run(lambda: sys.path.insert(0, str(tmp_path)))
    finding = only(clustertune.check(client), "software_versions")
    assert "lightgbm" in finding.message


def test_adaptive() -> None:
    """A cluster that may close workers during a fit."""
    options = {
        "n_workers": 1,
        "threads_per_worker": 1,
        "dashboard_address": "127.0.0.1:0",
    }
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        cluster.adapt(minimum=1, maximum=3)
        report = clustertune.check(client)
        assert of(report, "adaptive_scaling")
        cluster.adapt(minimum=1, maximum=1)
