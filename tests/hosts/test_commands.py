"""Commands, the page, and TLS, from another host that has the address only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from bokeh.client import pull_session
from distributed import Security

import clustertune
from tests.certificates import Authority
from tests.hosts.clusters import (
    Cluster,
    assert_intact,
    assert_scattered,
    assert_settled,
    load,
    scatter,
)
from tests.processes import until, workers_of


def command(cluster: Cluster, *arguments: str) -> int:
    """Run ``clustertune`` on h4, and return its exit code."""
    host = cluster.lab["h4"]
    return host.start(sys.executable, "-m", "clustertune", *arguments).wait(100)


def test_commands(cluster: Cluster) -> None:
    """They reach the cluster, or end with the exit code for that."""
    client = cluster.start(h1=2, h2=2)
    X, y = load(client)
    kept = scatter(client, cluster.on(client, "h2")[0])
    assert command(cluster, "check", cluster.address) == 0
    assert command(cluster, "merge", cluster.address, "--yes", "-q") == 0
    assert sorted(client.nthreads().values()) == [2, 2]
    assert_intact(client, X, y)
    assert_scattered(client, kept)
    cluster.lab["h4"].pull()
    assert command(cluster, "check", cluster.address) == 3
    cluster.lab["h4"].plug()
    assert command(cluster, "check", cluster.address) == 0
    assert_settled(client)
    cluster.stop()


def test_the_page(cluster: Cluster) -> None:
    """The page on the scheduler's host."""
    client = cluster.start(h1=1, h2=1)
    page = clustertune.dashboard_page(client)
    assert cluster.lab["scheduler"].address in page.url
    shown(page.url)


def shown(url: str) -> None:
    """Open the page, and a session over a websocket, when it is served."""
    assert until(lambda: status(url)) == 200
    with pull_session(url=url) as session:
        assert session.document.roots


def status(url: str) -> int | None:
    try:
        with urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except OSError:
        return None


def test_tls(cluster: Cluster, tmp_path: Path) -> None:
    """Rows move and workers restart over encrypted connections."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("host")
    files = ("--tls-ca-file", authority.file, "--tls-cert", certificate)
    files = (*files, "--tls-key", key)
    security = Security(
        tls_ca_file=authority.file,
        tls_client_cert=certificate,
        tls_client_key=key,
        require_encryption=True,
    )
    plain = cluster.address
    cluster.stop()
    cluster.address = plain.replace("tcp", "tls")
    try:
        cluster.start_scheduler("--protocol", "tls", *files)
        for name in ("h1", "h2"):
            cluster.start_workers(name, extra=files)
        client = cluster.connect(security=security)
        client.wait_for_workers(2)
        assert all(w.startswith("tls:") for w in workers_of(client))
        _prepare_and_restart(cluster, client)
        assert command(cluster, "check", cluster.address, *files) == 0
        assert command(cluster, "check", cluster.address) == 3
    finally:
        cluster.address = plain
        cluster.repair()
        cluster.stop()


def _prepare_and_restart(cluster: Cluster, client: Any) -> None:
    X, y = load(client, workers=cluster.on(client, "h1"))
    X, y = clustertune.prepare(client, X, y, estimator="xgboost", progress=False)
    assert cluster.partitions(client, X) == {"h1": 9, "h2": 9}
    report = clustertune.restart_workers(client, X, y)
    assert report.status == "done", str(report)
    assert [step.lost for step in report.steps] == [0, 0]
    assert_intact(client, X, y)
    assert_settled(client)
