"""Addresses at which no usable scheduler answers: one line and exit code 3."""

from __future__ import annotations

import logging
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster

from clustertune.cli import running
from clustertune.monitor import connection
from tests.certificates import Authority
from tests.cli.test_cli import (
    every,
    no_address,  # noqa: F401 (a fixture)
    one_line,
    run,
)
from tests.cli.test_tls import shown

#: arguments that a command requires
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "merge": ("--yes",),
    "history": ("--last",),
    "resize": ("--nthreads", "1", "--yes"),
    "restart": ("--yes",),
    "run": ("observe",),
    "scale": ("2", "--yes"),
    "schedule cancel": ("abc",),
    "trim": ("--yes",),
}
#: commands with an address; a new one is tried without further work
CONTACTING = [
    name
    for name, command in every()
    if any(p.name == "scheduler_file" for p in command.params)
]

Answer = Callable[[socket.socket], object]


def ssh(peer: socket.socket) -> None:
    """Send the greeting of sshd."""
    peer.sendall(b"SSH-2.0-OpenSSH_9.6p1 Ubuntu-3ubuntu13\r\n")
    peer.recv(2**16)


def http(peer: socket.socket) -> None:
    peer.recv(2**16)
    peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def zeros(peer: socket.socket) -> None:
    peer.sendall(bytes(4096))
    peer.recv(2**16)


def huge(peer: socket.socket) -> None:
    """Send a length that no array can have."""
    peer.sendall(struct.pack("Q", 2**64 - 1) * 64)
    peer.recv(2**16)


def closed(_peer: socket.socket) -> None:
    """Close the connection at once."""


def silent(peer: socket.socket) -> None:
    """Accept, read, and never answer."""
    while peer.recv(2**16):
        pass


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    """A server that is no scheduler; yields its host and port."""

    def serve(peer: socket.socket) -> None:
        with peer:
            try:
                answer(peer)
            except OSError:
                return  # the client has closed the connection

    def listen() -> None:
        while True:
            try:
                peer, _ = listening.accept()
            except OSError:
                return  # the test is over
            threading.Thread(target=serve, args=(peer,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield "{}:{}".format(*listening.getsockname())
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize("command", CONTACTING)
def test_the_port_of_an_ssh_server(command: str) -> None:
    """Every command prints one line without a traceback, and exits with 3."""
    given = ARGUMENTS.get(command, ())
    with server(ssh) as address:
        result = run(*command.split(), *given, f"tcp://{address}")
    assert result.exit_code == 3, result.output
    assert f"tcp://{address} does not answer as a scheduler does" in one_line(result)


def test_commands_that_contact_a_cluster_are_found() -> None:
    """The list above has all options that name a cluster."""
    assert {"check", "restart", "schedule list"} <= {*CONTACTING}
    assert "explain" not in CONTACTING
    assert ARGUMENTS.keys() <= {*CONTACTING}


@pytest.mark.parametrize("protocol", ["tcp", "tls"])
def test_another_server(protocol: str, tmp_path: Path) -> None:
    """The command runs as a process, so Dask's log lines appear too."""
    named: list[str] = []
    if protocol == "tls":
        authority = Authority(tmp_path)
        certificate, key = authority.issue("operator")
        named = ["--tls-ca-file", str(authority.file)]
        named += ["--tls-cert", certificate, "--tls-key", key]
    with ExitStack() as stack:
        answers = (http, zeros, huge, closed, silent)
        addresses = [stack.enter_context(server(answer)) for answer in answers]
        done = shell("check", *named, to=[f"{protocol}://{a}" for a in addresses])
    assert done.stdout.splitlines() == ["3"] * 5, done.stderr
    lines = done.stderr.splitlines()
    assert [a in line for a, line in zip(addresses, lines, strict=True)] == [True] * 5


def shell(*words: str, to: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command with each address in one other process; it prints exit codes."""
    code = f"""
from clustertune.cli import main, running
running.CONNECT = 1.0
for address in {to}:
    try:
        main([*{words}, address], prog_name="clustertune")
    except SystemExit as end:
        print(end.code)
"""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )


def test_connecting_takes_no_longer_than_the_command_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``--timeout`` limits the whole command."""
    monkeypatch.setattr(running, "CONNECT", 1e4)
    with server(silent) as address:
        result = run("restart", "--yes", "--timeout", "1s", f"tcp://{address}")
    assert result.exit_code == 3
    one_line(result)


def test_nothing_is_logged_less_while_connected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Only Dask's records about the connection are suppressed."""
    logger = logging.getLogger("distributed.worker")
    with connection.no_connection_logs():
        try:
            raise ConnectionResetError("gone")
        except OSError:
            logger.exception("noise")
            logging.getLogger("clustertune").exception("ours")
        logger.error("a real error")
    logger.error("later")
    assert [r.message for r in caplog.records] == ["ours", "a real error", "later"]


# --- TLS ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Authority]]:
    """A scheduler with TLS."""
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    options: dict[str, Any] = {"dashboard_address": "127.0.0.1:0", "protocol": "tls://"}
    with LocalCluster(0, security=shown(authority), **options) as cluster:
        yield cluster.scheduler_address, authority


def test_tls_without_certificates(secure: tuple[str, Authority]) -> None:
    """The line names the options to give."""
    result = run("check", secure[0])
    assert result.exit_code == 3
    assert "needs certificates" in one_line(result)
    assert "Give --tls-ca-file, --tls-cert and --tls-key" in one_line(result)


def test_tls_by_an_address_without(secure: tuple[str, Authority]) -> None:
    """The line names the address to give."""
    result = run("check", secure[0].replace("tls://", "tcp://"))
    assert result.exit_code == 3
    assert f"give {secure[0]} and certificates" in one_line(result)


def test_certificates_for_a_scheduler_without_tls(tmp_path: Path) -> None:
    """The line names the address to give."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("operator")
    named = ("--tls-ca-file", str(authority.file))
    named += ("--tls-cert", certificate, "--tls-key", key)
    with LocalCluster(0, dashboard_address="127.0.0.1:0", protocol="tcp://") as cluster:
        address = cluster.scheduler_address.partition("://")[2]
        # a process: now and then a TLS connection to a server without TLS leaves its
        # socket to the garbage collector, and a later test fails for it
        done = shell("check", *named, to=[f"tls://{address}"])
    (line,) = done.stderr.splitlines()
    assert f"give tcp://{address}" in line
    assert done.stdout == "3\n"
