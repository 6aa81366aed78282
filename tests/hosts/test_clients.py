"""A client that dies or is cut off during a call: another client goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
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
    sent,
    unplugged,
    when,
)
from tests.processes import until
from tests.remote.scheduler.test_faults_restart import be_patient, lose_clients_soon

HOSTS = ("h1", "h2", "h3")
#: the call of the client that dies, which runs on host h4 on published data
CALLS = {
    "move": "clustertune.prepare(client, X, y, estimator='xgboost', rechunk=False)",
    "cut": "clustertune.prepare(client, X, y, rechunk=24, release_inputs=False)",
    "restart": "clustertune.restart_workers(client, X, y)",
    "hold": "clustertune.hold(client).__enter__(); threading.Event().wait()",
}
SCRIPT = """
import sys, threading
from distributed import Client
import clustertune
client = Client(sys.argv[1])
X, y = client.get_dataset("X"), client.get_dataset("y")
client.log_event("victim", "begins")
"""


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """Three hosts with one worker each."""
    client = cluster.start(h1=1, h2=1, h3=1)
    yield client
    for name in client.list_datasets():
        client.unpublish_dataset(name)
    assert_settled(client)


def prepare(client: Client, X: Any, y: Any) -> tuple[Any, Any]:
    options = {"estimator": "xgboost", "rechunk": False, "progress": False}
    X, y = p = clustertune.prepare(client, X, y, timeout="90 s", **options)
    assert p.report.status in ("done", "fine"), str(p.report)
    return X, y


@pytest.mark.parametrize("call", CALLS)
def test_the_host_of_a_client_dies(cluster: Cluster, client: Client, call: str) -> None:
    """Another client prepares the same data, and restarts the workers."""
    one = call in ("move", "cut")
    X, y = load(client, workers=cluster.on(client, "h1") if one else None)
    kept = scatter(client, *cluster.on(client, "h2"))
    client.publish_dataset(X=X, y=y)
    cluster.slow_links()
    begun = len(client.get_events("victim"))
    cluster.lab["h4"].start(sys.executable, "-c", SCRIPT + CALLS[call], cluster.address)
    until(lambda: len(client.get_events("victim")) > begun)
    if one:
        until(sent(cluster.lab, 2 * MIB, "h1"))
    cluster.lab["h4"].kill()
    if one:
        client.run_on_scheduler(lose_clients_soon)
        assert_settled(client)
        client.run_on_scheduler(be_patient)

    X, y = prepare(client, X, y)
    assert cluster.partitions(client, X) == dict.fromkeys(HOSTS, 6)
    assert_intact(client, X, y)
    report = clustertune.restart_workers(client, X, y, timeout="90 s")
    assert report.status == "done", str(report)
    assert [step.lost for step in report.steps] == [0, 0, 0]
    assert_intact(client, X, y)
    assert_scattered(client, kept)


@pytest.mark.parametrize("call", ["prepare", "restart"])
def test_a_client_is_cut_off(cluster: Cluster, client: Client, call: str) -> None:
    """Its call goes on on the cluster; nothing is lost, and the next call works."""
    X, y = load(client, workers=cluster.on(client, "h1"))
    kept = scatter(client, *cluster.on(client, "h2"))
    cluster.slow_links()
    moved = sent(cluster.lab, 2 * MIB, "h1")
    with when(moved if call == "prepare" else lambda: True, *cut(cluster)):
        if call == "prepare":
            X, y = prepare(client, X, y)
        else:
            clustertune.restart_workers(client, X, y, timeout="90 s")
    X, y = prepare(client, X, y)
    assert cluster.partitions(client, X) == dict.fromkeys(HOSTS, 6)
    assert_intact(client, X, y)
    assert_scattered(client, kept)


def cut(cluster: Cluster) -> list[Any]:
    return unplugged(cluster.lab["client"], 4)
