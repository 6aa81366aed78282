"""Clusters with TLS only: every command, and actions on their workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import dask
import dask.array as da
import numpy as np
import pytest
import yaml
from distributed import Client, LocalCluster, wait
from distributed.security import Security

import clustertune
from clustertune.cli import COMMANDS
from tests.certificates import Authority
from tests.cli.test_cli import no_address, one_line, run  # noqa: F401 (a fixture)
from tests.processes import free_ports, process, until, workers_of

#: what is typed before options and address; without --yes, a cluster stays as it is
TYPED: dict[str, tuple[str, ...]] = {
    "check": (),
    "history": ("--last",),
    "dashboard": (),
    "merge": ("--dry-run",),
    "resize": ("--memory-limit", "1 GiB", "--dry-run"),
    "restart": ("--worker", "0", "--yes"),
    "run": ("observe",),
    "scale": ("1", "--dry-run"),
    "schedule": ("list",),
    "trim": ("--yes",),
    "watch": ("--for", "100ms", "--interval", "50ms"),
}
#: ask no scheduler, have a cluster of their own, or one that is no address
ELSEWHERE = {"demo", "explain", "size"}
VALUES = np.random.default_rng(1).random((400, 3))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def shown(authority: Authority) -> Security:
    """Return certificates for each kind of process; no other one is accepted."""
    files = {role: authority.issue(role) for role in ("scheduler", "worker", "client")}
    named = {f"tls_{role}_cert": cert for role, (cert, _) in files.items()}
    named |= {f"tls_{role}_key": key for role, (_, key) in files.items()}
    return Security(require_encryption=True, tls_ca_file=authority.file, **named)


@pytest.fixture(scope="module")
def cluster(authority: Authority) -> Iterator[LocalCluster]:
    """Two worker processes with these certificates."""
    options: dict[str, Any] = {"threads_per_worker": 1, "memory_limit": "2 GiB"}
    options |= {"dashboard_address": "127.0.0.1:0", "protocol": "tls://"}
    with LocalCluster(2, security=shown(authority), **options) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client that has published X and y, both on one worker."""
    with Client(cluster) as client:
        first = next(iter(workers_of(client)))
        X = da.from_array(VALUES, chunks=(50, 3))
        bound: dict[str, Any] = {"workers": [first], "allow_other_workers": True}
        X, y = client.persist([X, X[:, 0] * 2], **bound)
        wait([X, y])
        client.publish_dataset(X=X, y=y)
        yield client
        for name in client.list_datasets():
            client.unpublish_dataset(name)


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clustertune.cli.running.CONNECT", 1.0)


@pytest.fixture
def typed(authority: Authority) -> list[str]:
    """Return the options of a command for its certificate."""
    certificate, key = authority.issue("operator")
    named = ["--tls-ca-file", authority.file]
    return [*named, "--tls-cert", certificate, "--tls-key", key]


def is_whole(client: Client) -> None:
    """Assert that rows and labels are the published ones."""
    data = [client.get_dataset("X"), client.get_dataset("y")]
    X, y = client.compute(data, sync=True)
    np.testing.assert_array_equal(X, VALUES)
    np.testing.assert_array_equal(y, VALUES[:, 0] * 2)


def test_no_command_is_left_out() -> None:
    """A new command needs a test here."""
    assert TYPED.keys() | ELSEWHERE == COMMANDS.keys()


@pytest.mark.parametrize("command", TYPED)
def test_a_command(command: str, client: Client, typed: list[str]) -> None:
    """Each command works, and no connection is unencrypted."""
    address = client.scheduler.address
    assert address.startswith("tls://")
    if command == "history":  # it shows the last report
        clustertune.trim_memory(client, progress=False)
    with dask.config.set({"distributed.comm.require-encryption": True}):
        result = run(command, *TYPED[command], *typed, address)
    assert result.exit_code == 0, result.output
    is_whole(client)


def test_the_page_is_served(client: Client, typed: list[str]) -> None:
    """Its process has a certificate for the scheduler; readers need none."""
    code = "from clustertune.cli import main; main()"
    options = ["dashboard", "--serve", "--port", "0", *typed, client.scheduler.address]
    with subprocess.Popen(
        [sys.executable, "-c", code, *options], stdout=subprocess.PIPE, text=True
    ) as serving:
        try:
            assert serving.stdout is not None
            url = serving.stdout.readline().split()[0]
            with urlopen(url) as page:
                assert "clustertune" in page.read().decode()
        finally:
            serving.send_signal(signal.SIGINT)
        assert serving.wait(20) == 130


def test_certificates_of_the_configuration(
    client: Client, authority: Authority
) -> None:
    """Dask's configuration has the certificates."""
    certificate, key = authority.issue("operator")
    named = {"ca-file": authority.file, "client.cert": certificate, "client.key": key}
    given: dict[str, Any] = {f"distributed.comm.tls.{k}": v for k, v in named.items()}
    with dask.config.set(given | {"distributed.comm.require-encryption": True}):
        result = run("check", client.scheduler.address)
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.usefixtures("quickly")
def test_a_certificate_of_somebody_else(client: Client, tmp_path: Path) -> None:
    """The connection fails with an error of one line."""
    other = Authority(tmp_path)
    certificate, key = other.issue("stranger")
    named = ("--tls-ca-file", other.file, "--tls-cert", certificate, "--tls-key", key)
    result = run("check", *named, client.scheduler.address)
    assert result.exit_code == 3
    assert "another CA has signed the certificate of tls://" in one_line(result)


@pytest.mark.usefixtures("quickly")
def test_a_file_that_is_no_certificate(client: Client) -> None:
    """The error is one line, like that of a missing scheduler."""
    result = run("check", "--tls-ca-file", __file__, client.scheduler.address)
    assert result.exit_code == 3
    assert len(result.stderr.splitlines()) == 1


def test_a_worker_that_is_alone(authority: Authority) -> None:
    """It restarts; its keys are parked in its nanny over TLS."""
    options: dict[str, Any] = {"threads_per_worker": 1, "memory_limit": "2 GiB"}
    options |= {"dashboard_address": "127.0.0.1:0", "protocol": "tls://"}
    with (
        LocalCluster(1, security=shown(authority), **options) as cluster,
        Client(cluster) as client,
    ):
        kept = client.scatter([np.arange(9) + i for i in range(4)], hash=False)
        before = client.run(os.getpid)
        report = clustertune.restart_workers(client, progress=False)
        assert report.status == "done", str(report)
        assert "lost 0" in report.steps[0].details
        after = client.run(os.getpid)
        assert set(before.values()).isdisjoint(after.values())
        assert all(address.startswith("tls://") for address in after)
        for i, values in enumerate(client.gather(kept)):
            np.testing.assert_array_equal(values, np.arange(9) + i)


def test_configured_schedules(authority: Authority, tmp_path: Path) -> None:
    """A scheduler that got its files by options makes them with these files."""
    (port,) = free_ports(1)
    address = f"tls://127.0.0.1:{port}"
    settings = {"clustertune": {"schedules": [{"cron": "0 3 * * *"}]}}
    (tmp_path / "dask.yaml").write_text(yaml.safe_dump(settings))

    def files(role: str) -> list[str]:
        certificate, key = authority.issue(role)
        named = ["--tls-ca-file", authority.file, "--tls-cert", certificate]
        return [*named, "--tls-key", key]

    dask_ = (sys.executable, "-m", "dask")
    with (
        process(
            *dask_, "scheduler", "--host", address, "--dashboard-address",
            "127.0.0.1:0", "--preload", "clustertune.preload", *files("scheduler"),
            DASK_CONFIG=str(tmp_path / "dask.yaml"),
        ),
        process(
            *dask_, "worker", address, "--nthreads", "1", "--memory-limit", "1GiB",
            "--no-dashboard", "--local-directory", str(tmp_path), *files("worker"),
        ),
        Client(address, security=shown(authority), timeout=200) as client,
    ):  # fmt: skip
        (made,) = until(lambda: clustertune.schedules(client))
        assert made.state == "waiting"
        assert made.instants
