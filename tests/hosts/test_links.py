"""Links that fail during a call: nothing is lost, and the call ends as it should."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    pause,
    scatter,
    sent,
    unplugged,
    when,
)
from tests.processes import until

#: hosts take part in a move of X from h1: source, target
SOURCE, TARGET = "h1", "h2"


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """Three hosts with one worker each, and slow links."""
    client = cluster.start(h1=1, h2=1, h3=1)
    # after a fault of the test before, a worker may leave once more, and join again
    until(lambda: cluster.on(client, SOURCE) and cluster.on(client, TARGET))
    yield client
    assert_settled(client)


def prepare(client: Client, X: Any, y: Any, **options: Any) -> Any:
    """Spread rows; the report must have a good end."""
    p = clustertune.prepare(
        client, X, y, estimator="xgboost", progress=False, timeout="100 s", **options
    )
    assert p.report.status == "done", str(p.report)
    return p


FAULTS: dict[str, Callable[[Cluster], list[Any]]] = {
    "cable of the target": lambda c: unplugged(c.lab[TARGET], 4),
    "cable of the source": lambda c: unplugged(c.lab[SOURCE], 4),
    "interface of the target": lambda c: [
        c.lab[TARGET].switch_off,
        pause(4),
        c.lab[TARGET].switch_on,
    ],
    "frozen target": lambda c: [c.lab[TARGET].freeze, pause(4), c.lab[TARGET].thaw],
    "slow target": lambda c: [lambda: c.lab[TARGET].rate("10mbit")],
    "lossy target": lambda c: [lambda: c.lab[TARGET].lose(10)],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_move_survives(cluster: Cluster, client: Client, fault: str) -> None:
    """All rows arrive, each host has its share, and scattered data is there."""
    X, y = load(client, workers=cluster.on(client, SOURCE))
    kept = scatter(client, *cluster.on(client, TARGET))
    cluster.slow_links()
    with when(sent(cluster.lab, 2 * MIB, SOURCE), *FAULTS[fault](cluster)):
        X, y = prepare(client, X, y, rechunk=False)
    assert cluster.partitions(client, X) == {"h1": 6, "h2": 6, "h3": 6}
    assert_intact(client, X, y)
    assert_scattered(client, kept)


@pytest.mark.parametrize("fault", ["cable of the target", "frozen target"])
def test_a_cut_survives(cluster: Cluster, client: Client, fault: str) -> None:
    """Partitions are cut by tasks, whose transfers Dask repeats."""
    X, y = load(client, workers=cluster.on(client, SOURCE))
    cluster.slow_links()
    with when(sent(cluster.lab, 2 * MIB, SOURCE), *FAULTS[fault](cluster)):
        X, y = prepare(client, X, y, rechunk=24)
    assert cluster.partitions(client, X) == {"h1": 8, "h2": 8, "h3": 8}
    assert_intact(client, X, y)
