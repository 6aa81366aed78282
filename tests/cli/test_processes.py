"""The command line as a process: ^C, full disks, files without an end, widths."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import dask
import pytest
from distributed import Client, LocalCluster

from tests.cli.test_cli import run as here

DEADLINE = 60.0  # seconds until a process must have ended
COMMAND = [sys.executable, "-m", "clustertune"]


def run(*words: str, stdout: int | IO[bytes] = subprocess.PIPE) -> str:
    """Run a command without a terminal; return exit code and stderr as one text."""
    done = subprocess.run(
        [*COMMAND, *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        timeout=DEADLINE,
        check=False,
    )
    return f"{done.returncode}: {done.stderr.decode()}"


@contextmanager
def begun(
    moment: str, folder: Path, rest: str, *shell: str
) -> Iterator[tuple[subprocess.Popen[str], ExitStack]]:
    """Start a command; yield it once it imports or connects, and its connection.

    The module that it imports instead of click goes on with the rest.
    """
    env = os.environ.copy()
    if moment == "imports":
        (folder / "click.py").write_text(
            "import os, sys, time\nsys.stdout.write('here')\nsys.stdout.flush()\n"
            f"{rest}\n"
        )
        env["PYTHONPATH"] = os.pathsep.join([str(folder), *sys.path])
    with ExitStack() as connection:
        silent = connection.enter_context(socket.create_server(("127.0.0.1", 0)))
        silent.settimeout(DEADLINE)
        host, port = silent.getsockname()
        with subprocess.Popen(
            [*shell, *COMMAND, "check", f"tcp://{host}:{port}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        ) as process:
            assert process.stdout is not None
            if moment == "imports":
                assert process.stdout.read(4) == "here"
            else:
                connection.enter_context(silent.accept()[0])
            yield process, connection


@pytest.mark.parametrize("moment", ["imports", "connects"])
def test_interrupted_in_the_first_seconds(moment: str, tmp_path: Path) -> None:
    """The exit code is 130, and one line is printed, while it imports or connects."""
    with begun(moment, tmp_path, f"time.sleep({DEADLINE})") as (process, _):
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=DEADLINE)
    assert (process.returncode, error) == (130, "interrupted\n")


@pytest.mark.parametrize("moment", ["imports", "connects"])
def test_a_job_in_the_background(moment: str, tmp_path: Path) -> None:
    """The shell has it ignore ^C, which is for the command in the foreground."""
    shell = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
    rest = "sys.stdin.read()\nos._exit(3)"
    with begun(moment, tmp_path, rest, *shell) as (process, connection):
        process.send_signal(signal.SIGINT)
        connection.close()
        process.communicate(timeout=DEADLINE)
    assert process.returncode == 3  # the connection was lost


@pytest.mark.parametrize(
    "words", [("explain",), ("size", "--rows", "1000", "--columns", "3")]
)
def test_a_full_disk(words: tuple[str, ...]) -> None:
    """Output that cannot be written is an error in one line."""
    with Path("/dev/full").open("wb") as full:
        assert run(*words, stdout=full) == (
            "5: clustertune: the output cannot be written: No space left on device\n"
        )


@pytest.mark.parametrize("words", [
    ("check", "--scheduler-file"),
    ("run", "--lint"),
    ("run",),
    ("history",),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["endless", "pipe"])
def test_files_that_are_none(words: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    """Neither is read: one line has the problem, and the command ends."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    path = "/dev/zero" if kind == "endless" else str(pipe)
    if words == ("history",):
        with dask.config.set({"clustertune.history.path": path}):
            done = here(*words)
    else:
        done = here(*words, path)
    assert done.exit_code in (1, 2, 5)
    if words != ("run", "--lint"):  # it prints problems to stdout
        assert "not a regular file" in done.stderr


def test_a_scheduler_file_without_an_end_of_text(tmp_path: Path) -> None:
    """Only the beginning of a huge file is read."""
    file = tmp_path / "scheduler.json"
    with file.open("wb") as huge:
        huge.truncate(2**34)
    done = run("check", "--scheduler-file", str(file))
    assert done.startswith(f"3: clustertune: no scheduler answers at {file}: ")


@pytest.mark.parametrize("number", ["1e308", "9" * 30, "0", "2.5"])
def test_numbers_of_workers(number: str, tmp_path: Path) -> None:
    """A playbook with a number that no cluster can have is refused by its line."""
    file = tmp_path / "p.yaml"
    step = f"  - do: scale\n    with: {{n_workers: {number}}}\n"
    file.write_text(f"version: 1\nname: p\nsteps:\n{step}")
    done = here("run", str(file), "tcp://127.0.0.1:9", "--yes")
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("p.yaml:5: steps[0].with.n_workers")
    scale = here("scale", number, "tcp://127.0.0.1:9", "--yes")
    assert scale.exit_code == 2
    assert scale.stderr.startswith("Usage: ")


def test_unknown_names_are_wrong_usage(cluster: str) -> None:
    """Each has exit code 2, whatever it names."""
    for words in (
        ("explain", "nothing"),
        ("run", "nothing", cluster),
        ("run", "--show", "nothing"),
        ("schedule", "cancel", "nothing", cluster),
        ("trim", "--worker", "nothing", "--yes", cluster),
        ("check", "--estimator", "nothing", cluster),
        ("nothing",),
    ):
        assert here(*words).exit_code == 2, words


@pytest.fixture(scope="module")
def cluster() -> str:
    """The address of a cluster that lives as long as these tests."""
    options = {"processes": False, "protocol": "tcp://", "dashboard_address": None}
    with LocalCluster(n_workers=1, threads_per_worker=1, **options) as made:
        yield made.scheduler_address


def test_a_key_with_a_long_name(cluster: str) -> None:
    """No line of a report grows with the names of keys."""
    with Client(cluster, set_as_default=False) as client:
        kept = client.submit(int, key="k" * 10_000)
        kept.result()
        found = here("check", "--fail-on", "never", cluster)
        refused = here("restart", "--drop-data", "--dry-run", cluster)
    assert found.exit_code == 0
    assert max(map(len, found.stdout.splitlines())) < 500
    assert max(map(len, refused.output.splitlines())) < 3000


def test_a_closed_stdin(cluster: str) -> None:
    """No question can be answered."""
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "trim", cluster],
        capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "give --yes or --dry-run" in done.stderr


def test_columns_without_a_terminal(cluster: str) -> None:
    """COLUMNS sets the width of reports, also in a pipe."""
    done = subprocess.run(
        [*COMMAND, "check", "--fail-on", "never", cluster],
        capture_output=True, text=True, timeout=DEADLINE,
        env=os.environ | {"COLUMNS": "60"}, check=True,
    )  # fmt: skip
    longest = max(map(len, done.stdout.splitlines()))
    assert 40 < longest <= 60
