"""CPUs and memory are read at every cgroup level, thresholds from the worker itself."""

from __future__ import annotations

import os
import sys
import tracemalloc
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
import scipy.sparse
import threadpoolctl
from distributed import Event

from clustertune.core.model import Details, Unknown
from clustertune.monitor import inquiry, monitor
from clustertune.remote.worker import content, probe
from tests.in_process import ONE, gen_cluster
from tests.processes import local_workers, soon


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cgroup file system; this process is in ``/jobs/one``."""
    root = tmp_path / "cgroup"
    (root / "jobs/one").mkdir(parents=True)
    membership = tmp_path / "membership"
    membership.write_text("0::/jobs/one\n")
    monkeypatch.setattr(probe, "ROOT", str(root))
    monkeypatch.setattr(probe, "MEMBERSHIP", str(membership))
    return root


def test_no_quota_is_no_quota(cgroups: Path) -> None:
    """``max`` in a cgroup means no limit."""
    (cgroups / "jobs/one/cpu.max").write_text("max 100000\n")
    (cgroups / "jobs/one/memory.max").write_text("max\n")
    assert list(probe.cpu_quotas()) == []
    assert list(probe.memory_limits()) == []


def test_a_parents_quota_counts(cgroups: Path) -> None:
    """A quota is found at every level, also where Dask does not look."""
    (cgroups / "jobs/cpu.max").write_text("150000 100000\n")
    (cgroups / "jobs/one/cpu.max").write_text("400000 100000\n")
    (cgroups / "jobs/memory.max").write_text("1073741824\n")
    found = {name.rpartition(":")[2]: cpus for name, cpus in probe.cpu_quotas()}
    assert found == {"/jobs/one": 4.0, "/jobs": 1.5}
    assert [n for _, n in probe.memory_limits()] == [2**30]


def transfer(start: float, seconds: float, nbytes: int = 10**7, key: Any = "x") -> Any:
    return {
        "total": nbytes,
        "start": start,
        "stop": start + seconds,
        "duration": seconds,
        "keys": {key: nbytes},
    }


def test_version_1(cgroups: Path) -> None:
    """The old hierarchy, with a folder for each controller, is read too."""
    Path(probe.MEMBERSHIP).write_text("4:cpu,cpuacct:/pod\n2:memory:/pod\n1:name=x:/\n")
    for folder, file, text in (
        ("cpu,cpuacct/pod", "cpu.cfs_quota_us", "50000"),
        ("cpu,cpuacct/pod", "cpu.cfs_period_us", "100000"),
        ("cpu,cpuacct", "cpu.cfs_quota_us", "-1"),
        ("memory/pod", "memory.limit_in_bytes", "4096"),
    ):
        (cgroups / folder).mkdir(parents=True, exist_ok=True)
        (cgroups / folder / file).write_text(text)
    assert [cpus for _, cpus in probe.cpu_quotas()] == [0.5]
    assert [n for _, n in probe.memory_limits()] == [4096]


def test_a_folder_of_the_host_that_is_not_here(cgroups: Path) -> None:
    """In a container whose cgroup path is the host's, the root of the mount counts."""
    Path(probe.MEMBERSHIP).write_text("0::/kubepods/pod1\n")
    (cgroups / "cpu.max").write_text("200000 100000\n")
    assert [cpus for _, cpus in probe.cpu_quotas()] == [2.0]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_tasks_that_have_ended_since_the_last_heartbeat(c, s, a):
    """They are not counted, or restarts by need would wait for them.

    Nor are those for which no client waits any more.
    """
    gate = Event("gate", client=c)
    await monitor.install_plugin(c, await monitor.identify(c))

    async def seen() -> int:
        """Return the executing tasks, as a look has them."""
        snapshot, _ = await monitor.look(c, [])
        executing: int = snapshot.workers[0].executing
        return executing

    def wait_there() -> None:
        Event("gate").wait(60)

    a.periodic_callbacks["heartbeat"].stop()
    task = c.submit(wait_there, pure=False)
    await soon(lambda: a.state.executing_count)
    await a.heartbeat()
    assert await seen() == 1
    await gate.set()
    await task
    assert await seen() == 0
    await gate.clear()
    task = c.submit(wait_there, pure=False)
    await soon(lambda: a.state.executing_count)
    await a.heartbeat()
    key = task.key
    del task
    await soon(lambda: a.state.tasks[key].state == "cancelled")
    assert await seen() == 0
    unreadable = SimpleNamespace(current_count=lambda **_: {"executing": "x"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(a.state, "task_counter", unreadable)
        assert await seen() == 1
    await gate.set()


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)],
    worker_kwargs={"memory_limit": "8 GiB"},  # its process is that of all tests
    config={"distributed.worker.memory.spill": 0.5},
)
async def test_worker_facts(c, s, a):
    """Thresholds are those of the running worker, not of a configuration."""
    a.memory_manager.memory_pause_fraction = 0.77
    facts = probe.worker_facts(a)
    assert facts["target"] == 0.6
    assert facts["spill"] == 0.5
    assert facts["pause"] == 0.77
    assert facts["affinity"] == sorted(os.sched_getaffinity(0))
    assert 0 < facts["host_memory"] <= psutil.virtual_memory().total


@gen_cluster(
    client=True, nthreads=[("127.0.0.1", 1)], worker_kwargs={"memory_limit": 0}
)
async def test_no_limit_nothing_spills(c, s, a):
    """A worker without a memory limit has no threshold at which it spills."""
    facts = probe.worker_facts(a)
    assert facts["target"] is facts["spill"] is None


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)],
    worker_kwargs={"memory_limit": "8 GiB"},  # its process is that of all tests
)
async def test_row_counts_leave_spilled_partitions_on_disk(c, s, a):
    """Rows of partitions in memory are counted; spilled ones are not read."""
    here, there = await c.scatter([np.zeros((7, 2)), np.zeros((9, 2))])
    a.data.evict()
    on_disk = next(iter(a.data.disk))
    in_memory = ({here.key, there.key} - {on_disk}).pop()
    found = await content.in_memory(a, [in_memory, on_disk, "nowhere"], ["X"] * 3)
    assert [n for n, _ in found] == [7 if in_memory == here.key else 9, -1, -1]
    assert on_disk in a.data.disk


PACKAGES = ["dask", "distributed", "no-such-distribution"]


@gen_cluster(client=True, nthreads=ONE)
async def test_of_this_process(c, s, a):
    """The worker is in this process, so its answer can be checked."""
    found = probe.worker_details(a, PACKAGES)
    assert set(found["packages"]) == {"dask", "distributed"}
    assert found["lifetime"] is None
    assert 0 < found["disk_free"] <= psutil.disk_usage(a.local_directory).total


@gen_cluster(client=True, nthreads=ONE, worker_kwargs={"lifetime": "1 hour"})
async def test_a_lifetime(c, s, a):
    """Remaining seconds do not depend on clocks."""
    left = probe.worker_details(a, [])["lifetime"]
    assert 0 < left < 3600
    await monitor.install_plugin(c, await monitor.identify(c))
    snapshot, _ = await monitor.look(c, [])
    (seen,) = (await inquiry.with_details(c, snapshot)).workers
    assert seen.details.expires == pytest.approx(snapshot.time + left, abs=5)


@gen_cluster(client=True, nthreads=ONE)
async def test_thread_pools(c, s, a, monkeypatch):
    """Pools are those of threadpoolctl; without it they are unknown."""
    pools = probe.worker_details(a, [])["pools"]
    assert all(n >= 1 for n in pools)
    # as of a FlexiBLAS without a backend
    unknown = {"user_api": "blas", "prefix": "libflexiblas", "num_threads": None}
    known = {"user_api": "blas", "prefix": "libopenblas", "num_threads": 2}
    with monkeypatch.context() as patch:
        patch.setattr(threadpoolctl, "threadpool_info", lambda: [unknown, known])
        pools = probe.worker_details(a, [])["pools"]
        assert pools == [2]
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    assert probe.worker_details(a, [])["pools"] is None


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_asked_through_a_client(c, s, a, b):
    """All workers and the scheduler answer to both kinds of clients."""
    await monitor.install_plugin(c, await monitor.identify(c))
    snapshot, _ = await monitor.look(c, [])
    assert all(w.details is None for w in snapshot.workers)
    asked = await inquiry.with_details(c, snapshot)
    assert all(isinstance(w.details, Details) for w in asked.workers)
    assert asked.survey.packages["client"] == asked.survey.packages["scheduler"]


@gen_cluster(client=True, nthreads=ONE)
async def test_a_worker_that_cannot_say(c, s, a, monkeypatch):
    """Its error is reported; the other answers count."""
    await monitor.install_plugin(c, await monitor.identify(c))
    snapshot, _ = await monitor.look(c, [])
    monkeypatch.setattr(a, "lifetime", "an hour")
    asked = await inquiry.with_details(c, snapshot)
    (worker,) = asked.workers
    assert isinstance(worker.details, Unknown)
    assert "TypeError" in worker.details.reason


GARBAGE = {
    "pools": [],
    "lifetime": None,
    "disk_free": "much",
    "packages": {},
    "cancelled": None,
}


@pytest.mark.parametrize("answer", [None, 7, "text", {}, GARBAGE])
def test_garbage(answer):
    """Wrong answers make values unknown, with a reason."""
    found = monitor.read_answer(answer, partial(inquiry._details, now=0.0))
    assert isinstance(found, Unknown)
    assert "cannot be read" in found.reason
    facts = monitor.read_answer(answer, partial(monitor._worker_facts, terminate=None))
    assert isinstance(facts, Unknown)
    assert "cannot be read" in facts.reason


def test_what_the_nanny_sets():
    """In its own process the worker has pools of one thread."""
    with local_workers(1) as client:

        async def ask():
            await monitor.install_plugin(client, await monitor.identify(client))
            snapshot, _ = await monitor.look(client, [])
            return await inquiry.with_details(client, snapshot)

        (worker,) = client.sync(ask).workers
        assert {*worker.details.thread_pools} == {1}


@pytest.mark.parametrize("path", ["/", "/proc", "/tmp"])
def test_disks(path):
    """The nearest mount counts."""
    kind, free = probe.disk(path)
    assert (kind == "proc") is (path == "/proc")
    assert 0 <= free <= psutil.disk_usage(path).total


def test_an_automounted_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the place of its automount, which is listed before."""
    (tmp_path / "self").mkdir()
    mounts = ("sda / ext4 rw 0 0", "a /tmp autofs rw 0 0", "nas:/t /tmp nfs4 rw 0 0")
    (tmp_path / "self/mounts").write_text("".join(f"{x}\n" for x in mounts))
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert probe.disk("/tmp")[0] == "nfs4"


def test_digests_of_rows_do_not_depend_on_partitions() -> None:
    """Another number of workers may cut the same rows otherwise."""
    values = np.arange(40, dtype="f4").reshape(10, 4)
    values[3, 2] = np.nan
    frame = pd.DataFrame(values).assign(c=pd.Series(["a", "b"] * 5, dtype="category"))
    kinds = {
        "array": values,
        "labels": values[:, 0].astype("i8"),
        "sparse": scipy.sparse.csr_matrix(values),
        "frame": frame,
        "series": frame["c"],
        "unknown": object(),
    }
    for name, whole in kinds.items():
        take = getattr(whole, "iloc", whole)
        parts = {} if name == "unknown" else {"a": take[:6], "b": take[6:]}
        worker = SimpleNamespace(data={"whole": whole, **parts})
        (own,) = probe.row_digests(worker, ["whole"], [[0, 3, 6, 9]])
        parted = probe.row_digests(worker, ["a", "b"], [[0, 3], [0, 3]])
        assert own == [*parted[0], *parted[1]], name
        assert len(set(own)) == (2 if name == "series" else 4) * (name != "unknown")


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia"])
def test_digests_of_sparse_matrices(form: str) -> None:
    """COO matrices and others take no rows by number."""
    values = np.arange(40.0).reshape(10, 4)
    data = {
        "a": scipy.sparse.csr_matrix(values).asformat(form),
        "b": scipy.sparse.csr_matrix(values + 1).asformat(form),
        "bad": SimpleNamespace(shape=(3,)),
        "array": values,
        "empty": values[:0],
    }
    worker = SimpleNamespace(data=data)
    a, b, bad, array, empty = probe.digests(worker, [*data])
    assert a
    assert b
    assert array
    assert empty  # an eval set may have no rows on a worker
    assert a != b
    assert bad == ""  # the digests of the others are there
    assert probe.digests(worker, ["a"]) == [a]
    dense, own = probe.row_digests(worker, ["array", "a"], [[0, 3]] * 2)
    assert dense == own


def test_digests_of_rows_do_not_depend_on_types() -> None:
    """Files without a missing value have whole numbers, others do not."""
    counts = pd.DataFrame({"n": [1.0, 2.0, np.nan], "city": ["a", "b", "c"]})
    parts = {
        "some": counts,
        "none": counts[:2].astype({"n": "int64"}),
        "nullable": counts.astype({"n": "Int64", "city": "object"}),
        "last digit": counts.assign(n=counts["n"] * (1 + 1e-12)),
    }
    worker = SimpleNamespace(data=parts)
    first, *others = probe.row_digests(worker, [*parts], [[0, 1]] * len(parts))
    assert all(first == other for other in others)
    assert len({*first}) == 2


def test_digests_of_wide_rows() -> None:
    """Some columns of a row suffice, so the memory of a worker does."""
    wide = scipy.sparse.random(20, 2**20, density=1e-4, format="csr", random_state=0)
    worker = SimpleNamespace(data={"wide": wide})
    tracemalloc.start()
    (found,) = probe.row_digests(worker, ["wide"], [[*range(20)]])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 20
    assert most < 2**23


@gen_cluster(client=True, config={"distributed.admin.low-level-log-length": 3})
async def test_bytes_that_arrived_since(c: Any, s: Any, a: Any, b: Any) -> None:
    """Earlier transfers of the same keys do not count; a full log is unknown."""
    made = []

    async def send(n: int) -> None:
        for _ in range(n):
            x = c.submit(bytes, 1000, key=("x", len(made)), workers=[a.address])
            made.append(x)
            await c.submit(len, x, workers=[b.address])

    await monitor.approve(c, (await monitor.identify(c))["workers"])
    await c.amm.stop()
    await send(2)
    before = await inquiry.last_transfers(c)
    assert before is not None
    assert await inquiry.received(c, ["x"], before) == 0
    await send(1)
    one = s.tasks[made[0].key].nbytes
    assert await inquiry.received(c, ["x"], before) == one
    assert await inquiry.received(c, ["y"], before) == 0
    await send(3)
    assert await inquiry.received(c, ["x"], before) is None
