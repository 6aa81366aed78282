"""CPUs and memory are read at every cgroup level, thresholds from the worker itself."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from distributed.utils_test import gen_cluster

from clustertune.remote import probe


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cgroup file system of which this process is in ``/jobs/one``."""
    root = tmp_path / "cgroup"
    (root / "jobs/one").mkdir(parents=True)
    membership = tmp_path / "membership"
    membership.write_text("0::/jobs/one\n")
    monkeypatch.setattr(probe, "ROOT", str(root))
    monkeypatch.setattr(probe, "MEMBERSHIP", str(membership))
    return root


def test_no_quota_is_no_quota(cgroups: Path) -> None:
    """A cgroup without a limit says ``max``, and that is none."""
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


def test_transfers_side_by_side_are_no_slower() -> None:
    """Bytes of what is large, over the time in which any of it was received."""
    log = [
        {"total": 3 * 10**7, "start": 10.0, "stop": 10.2, "duration": 0.2},
        {"total": 10**7, "start": 10.1, "stop": 10.15, "duration": 0.05},
        {"total": 10**7, "start": 11.0, "stop": 11.3, "duration": 0.3},
        {"total": 10**3, "start": 12.0, "stop": 13.0, "duration": 1.0},
    ]
    worker = SimpleNamespace(transfer_incoming_log=log)
    assert probe.bandwidth(worker) == pytest.approx(1e8)
    nothing = SimpleNamespace(transfer_incoming_log=log[3:])
    assert probe.bandwidth(nothing) == 0.0


def test_version_1(cgroups: Path) -> None:
    """The old hierarchy, one for each controller, is read as well."""
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
async def test_row_counts_leave_spilled_pieces_on_disk(c, s, a):
    """Rows are counted of what is in memory; a piece on disk is not read."""
    here, there = await c.scatter([np.zeros((7, 2)), np.zeros((9, 2))])
    a.data.evict()
    on_disk = next(iter(a.data.disk))
    in_memory = ({here.key, there.key} - {on_disk}).pop()
    counts = probe.row_counts(a, [in_memory, on_disk, "nowhere"])
    assert counts == [7 if in_memory == here.key else 9, -1, -1]
    assert on_disk in a.data.disk
