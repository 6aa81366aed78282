"""Hosts that differ: checks see the limits of each, and remedies work for all."""

from __future__ import annotations

import re
from typing import Any

from distributed import Client

import clustertune
from tests.hosts.clusters import MIB, Cluster, assert_intact, assert_settled, load
from tests.processes import workers_of


def messages(client: Client, check: str, *data: Any) -> list[str]:
    found = clustertune.check(client, *data, deep=True).found
    return [f.message for f in found if f.check == check]


def limits_of(client: Client) -> list[int]:
    return sorted(w["memory_limit"] // MIB for w in workers_of(client).values())


def test_limits_of_hosts(cluster: Cluster, limits: None) -> None:
    """Memory limits, quotas and affinities are those of each host's cgroups."""
    cluster.lab["h1"].limit(memory=600 * MIB)
    cluster.lab["h2"].limit(cpus=1)
    client = cluster.start(
        h1={"n": 2, "memory": "500MiB"}, h2={"threads": 3}, h3={"memory": "2GiB"}
    )
    X, y = load(client)
    (memory,) = messages(client, "memory_settings", X, y)
    assert "host-h1" in memory
    assert "host-h2" not in memory
    assert any("host-h2" in m for m in messages(client, "thread_count", X, y))

    X, y = p = clustertune.prepare(client, X, y, estimator="xgboost", progress=False)
    assert p.report.status in ("done", "fine"), str(p.report)
    assert_intact(client, X, y)

    report = clustertune.resize_workers(client, nthreads=1, memory_limit="280 MiB")
    assert report.status == "done", str(report)
    assert limits_of(client) == [280] * 4
    assert set(client.nthreads().values()) == {1}
    assert messages(client, "memory_settings", X, y) == []
    assert_intact(client, X, y)
    assert_settled(client)
    cluster.stop()


def test_the_remedy_for_threads(cluster: Cluster) -> None:
    """Its line is applied until no host has fewer threads than CPUs."""
    client = cluster.start(h1=1, h2=1, h3=1)
    X, y = load(client)
    for _ in range(3):
        found = clustertune.check(client, X, y).found
        lines = [f.remedy for f in found if f.check == "thread_count"]
        if not lines:
            break
        code = re.search(r"`(clustertune\.resize_workers\(.*\))`", lines[0])
        assert code, lines
        eval(code[1], {"clustertune": clustertune, "client": client})
    else:
        raise AssertionError(f"the finding stays after its remedy: {lines}")
    assert_intact(client, X, y)
    assert_settled(client)
    cluster.stop()
