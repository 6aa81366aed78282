"""Restarts on several hosts: ports, full disks and little memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import clustertune
from tests.hosts.clusters import (
    MIB,
    Cluster,
    assert_intact,
    assert_scattered,
    assert_settled,
    load,
    scatter,
)
from tests.hosts.lab import sh

SCATTERED = 4 * MIB
#: workers cannot start next to their predecessor, whose port they need
FIXED: dict[str, Any] = {"extra": ("--worker-port", "9001")}


def restart(cluster: Cluster, client: Client, X: Any, y: Any, **options: Any) -> Any:
    """Restart; nothing is lost. Return the report and the bytes that hosts sent."""
    kept = scatter(client, cluster.on(client, "h2")[0], n=SCATTERED // MIB)
    before = cluster.homes(client, X)
    with cluster.lab.crossing() as crossed:
        report = clustertune.restart_workers(client, X, y, timeout="90 s", **options)
    assert [step.lost for step in report.steps] == [0] * len(report.steps)
    # of a partition with two replicas one is enough
    now = cluster.homes(client, X)
    assert all(now[key] and now[key] <= hosts for key, hosts in before.items()), now
    assert_intact(client, X, y)
    assert_scattered(client, kept)
    assert_settled(client)
    return report, sum(crossed[name] for name in ("h1", "h2", "h3", "h4"))


def test_keys_stay_on_their_host(cluster: Cluster) -> None:
    """They move to the next process of the worker: nothing crosses between hosts."""
    client = cluster.start(h1=2, h2=2)
    X, y = load(client)
    report, crossed = restart(cluster, client, X, y)
    assert report.status == "done", str(report)
    assert crossed < 3 * MIB


def test_fixed_ports(cluster: Cluster) -> None:
    """Keys go to other hosts and back, because no second process can start."""
    client = cluster.start(h1=FIXED, h2=FIXED, h3=FIXED)
    X, y = load(client)
    report, crossed = restart(cluster, client, X, y)
    assert report.status == "done", str(report)
    assert crossed < 2 * 1.05 * (X.nbytes + y.nbytes + SCATTERED)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 30 MB that is full."""
    sh(f"mount -t tmpfs -o size=30m tmpfs {tmp_path}")
    yield tmp_path
    sh(f"umount -l {tmp_path}")


def test_a_full_disk(cluster: Cluster, small_disk: Path) -> None:
    """``check`` finds it, and the keys make a detour over other hosts."""
    local = ("--local-directory", str(small_disk))
    options = {"memory": "400MiB"}
    client = cluster.start(
        h1=options, h2={**options, "extra": (*FIXED["extra"], *local)}, h3=options
    )
    X, y = load(client, mib=90)
    sh(f"head -c 100M /dev/zero > {small_disk}/fill || true")
    found = clustertune.check(client, X, y).found
    (finding,) = (f for f in found if "0 B are free on the disk" in f.message)
    assert cluster.lab["h2"].address in finding.message
    report, _ = restart(cluster, client, X, y)
    assert report.status == "done", str(report)


def test_little_room_on_the_others(cluster: Cluster) -> None:
    """Keys make a detour in parts over the hosts that have room for them."""
    little = {"memory": "300MiB"}
    client = cluster.start(h1=little, h2={"memory": "600MiB", **FIXED}, h3=little)
    X, y = load(client, mib=96, workers=cluster.on(client, "h2"))
    report, _ = restart(cluster, client, X, y, workers=cluster.on(client, "h2"))
    assert report.status == "done", str(report)


def test_a_host_with_little_memory(cluster: Cluster, limits: None) -> None:
    """Two processes of a worker do not exceed the limit of its host."""
    cluster.stop()
    cluster.lab["h2"].limit(memory=500 * MIB)
    client = cluster.start(h1=1, h2={"memory": "500MiB"}, h3=1)
    X, y = load(client, mib=180)
    report, _ = restart(cluster, client, X, y)
    assert report.status == "done", str(report)
    group = Path("/sys/fs/cgroup/memory", cluster.lab["h2"].namespace)
    assert (group / "memory.failcnt").read_text() == "0\n"
