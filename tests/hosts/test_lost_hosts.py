"""Hosts that die during a call: no row is lost that can be computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import xgboost
from distributed import Client, get_worker
from xgboost import dask as dxgb

import clustertune
from clustertune.errors import IncompleteError
from tests.hosts.clusters import (
    MIB,
    Cluster,
    assert_intact,
    assert_settled,
    load,
    scatter,
    sent,
    unplugged,
    when,
)
from tests.processes import workers_of


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """Three hosts with one worker each."""
    client = cluster.start(h1=1, h2=1, h3=1)
    yield client
    assert_settled(client)


def prepare(client: Client, X: Any, y: Any, **options: Any) -> Any:
    options = {"progress": False, "timeout": "100 s", "rechunk": False} | options
    return clustertune.prepare(client, X, y, estimator="xgboost", **options)


class KillOnce:
    """A progress function that kills a host when a text has these words."""

    def __init__(self, cluster: Cluster, host: str, *words: str) -> None:
        self.cluster, self.host, self.words = cluster, host, words
        self.killed = False

    def __call__(self, text: str, fraction: float) -> None:
        if not self.killed and all(word in text for word in self.words):
            self.killed = True
            self.cluster.lab[self.host].kill()


def lost(report: Any) -> int:
    """Return the keys that the call has lost."""
    lost = sum(step.lost or 0 for step in report.steps)
    return lost + sum(x.keys for x in report.lost)


# --- prepare --------------------------------------------------------------------------


@pytest.mark.parametrize("rechunk", [False, 24], ids=["move", "cut"])
def test_a_target_dies(cluster: Cluster, client: Client, rechunk: Any) -> None:
    """Its rows are on the others. The next call uses the host when it is back."""
    X, y = load(client, workers=cluster.on(client, "h1"))
    cluster.slow_links()
    with when(sent(cluster.lab, 2 * MIB, "h1"), cluster.lab["h2"].kill):
        X, y = prepare(client, X, y, rechunk=rechunk)
    assert cluster.partitions(client, X).keys() <= {"h1", "h3"}
    assert_intact(client, X, y)

    cluster.bring_back(client, "h2")
    X, y = prepare(client, X, y)
    share = len(X.chunks[0]) // 3
    assert cluster.partitions(client, X) == dict.fromkeys(("h1", "h2", "h3"), share)
    assert_intact(client, X, y)


def test_prepare_names_lost_scattered_keys(cluster: Cluster, client: Client) -> None:
    X, y = load(client, workers=cluster.on(client, "h1"))
    kept = scatter(client, *cluster.on(client, "h3"))
    cluster.slow_links()
    with when(sent(cluster.lab, 2 * MIB, "h1"), cluster.lab["h3"].kill):
        X, y = p = prepare(client, X, y)
    (name,) = {w.worker for w in p.report.lost}
    assert_intact(client, X, y)
    assert (
        f"lost {len(kept)} keys with worker {name}, which ended meanwhile"
        in " ".join(str(p.report).split())
    )


# --- restarts -------------------------------------------------------------------------


def test_a_host_dies_between_two_restarts(cluster: Cluster, client: Client) -> None:
    """Scattered keys that it alone had are counted as lost."""
    X, y = load(client, workers=cluster.on(client, "h1", "h2"))
    kept = scatter(client, *cluster.on(client, "h3"))
    kill = KillOnce(cluster, "h3", "restart")
    report = clustertune.restart_workers(client, X, y, progress=kill, timeout="120 s")
    assert kill.killed
    assert lost(report) == len(kept)
    assert_intact(client, X, y)


def test_a_host_dies_while_its_process_starts(cluster: Cluster, client: Client) -> None:
    """The other workers are restarted; the loss is counted."""
    X, y = load(client, workers=cluster.on(client, "h1", "h3"))
    kept = scatter(client, *cluster.on(client, "h2"), n=2)
    (worker,) = cluster.on(client, "h2")
    nanny = workers_of(client)[worker]["nanny"].partition("://")[2]
    kill = KillOnce(cluster, "h2", nanny, "starting its next")
    report = clustertune.restart_workers(client, X, y, progress=kill, timeout="120 s")
    assert kill.killed
    assert lost(report) == len(kept)
    assert_intact(client, X, y)


# --- fits -----------------------------------------------------------------------------


class Rounds(xgboost.callback.TrainingCallback):
    """Logs each round."""

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        get_worker().log_event("rounds", epoch)
        return False


def during_fit(client: Client) -> Callable[[], bool]:
    """Return a condition: a fit that begins now has ended a round."""
    before = len(client.get_events("rounds"))
    return lambda: len(client.get_events("rounds")) > before


def test_a_host_dies_in_a_fit(cluster: Cluster, client: Client) -> None:
    """The error names the worker; no row is lost; the next fit uses all hosts."""
    X, y = clustertune.prepare(client, *load(client), estimator="xgboost")
    model = dxgb.DaskXGBRegressor(n_estimators=2000, callbacks=[Rounds()])
    with (
        when(during_fit(client), cluster.lab["h2"].kill),
        pytest.raises(IncompleteError, match="the fit lost worker"),
    ):
        clustertune.fit(client, model, X, y, progress=False)
    assert_intact(client, X, y)

    cluster.bring_back(client, "h2")
    model = dxgb.DaskXGBRegressor(n_estimators=2)
    clustertune.fit(client, model, X, y, progress=False)
    assert model.get_booster().num_boosted_rounds() == 2
    assert cluster.partitions(client, X) == {"h1": 6, "h2": 6, "h3": 6}


def test_a_link_fails_in_a_fit(cluster: Cluster, client: Client) -> None:
    """The fit waits for the link, and ends."""
    X, y = clustertune.prepare(client, *load(client), estimator="xgboost")
    model = dxgb.DaskXGBRegressor(n_estimators=300, callbacks=[Rounds()])
    with when(during_fit(client), *unplugged(cluster.lab["h2"], 3)):
        clustertune.fit(client, model, X, y, progress=False)
    assert model.get_booster().num_boosted_rounds() == 300
    assert cluster.partitions(client, X) == {"h1": 6, "h2": 6, "h3": 6}
    assert_intact(client, X, y)


# --- workers that leave ---------------------------------------------------------------
# last, because each of them needs another cluster


def test_a_host_dies_in_a_merge(cluster: Cluster) -> None:
    client = cluster.start(h1=2, h2=2, h3=2)
    X, y = load(client, workers=cluster.on(client, "h1", "h2"))
    kept = scatter(client, cluster.on(client, "h3")[0])
    kill = KillOnce(cluster, "h3", "resize")
    report = clustertune.merge_workers(client, X, y, progress=kill, timeout="120 s")
    assert kill.killed
    assert lost(report) == len(kept)
    assert_intact(client, X, y)
    assert_settled(client)
    cluster.stop()


def test_a_host_dies_while_workers_retire(cluster: Cluster) -> None:
    client = cluster.start(h1=2, h2=2, h3=2)
    X, y = load(client)
    cluster.slow_links()
    # two workers are on two hosts at most, so that data leaves the third one
    with when(sent(cluster.lab, 2 * MIB, "h1", "h2", "h3"), cluster.lab["h3"].kill):
        clustertune.scale(client, 2, X, y, timeout="100 s")
    assert_intact(client, X, y)
    assert_settled(client)
    cluster.stop()
