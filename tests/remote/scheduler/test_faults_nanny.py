"""The nanny of a worker is frozen, while its worker runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from distributed import Client

import clustertune
from clustertune.monitor import monitor
from tests.processes import cluster, process, until, worker_command
from tests.remote.scheduler.test_faults_restart import (
    begin_restart,
    doing,
    find_frozen_soon,
    is_free,
    lose_nannies_soon,
    statuses,
)

PRELOAD = "import os, time\nwhile os.path.exists({file!r}): time.sleep(0.1)"


@contextmanager
def two_nannies(folder: Path) -> Iterator[tuple[Client, int, Path]]:
    """Start workers of two nannies; yield the pid of the second nanny.

    Its next worker process starts only while the returned file does not exist.
    """
    blocked, preload = folder / "blocked", folder / "preload.py"
    preload.write_text(PRELOAD.format(file=str(blocked)))
    with (
        cluster(folder, 1) as file,
        process(
            *worker_command(file, folder, "--name", "frozen"),
            *("--preload", str(preload)),
        ) as nanny,
        Client(scheduler_file=file, set_as_default=False) as client,
        pytest.MonkeyPatch.context() as monkeypatch,
    ):
        client.wait_for_workers(2)
        clustertune.check(client)  # the scheduler plugin is there
        client.run_on_scheduler(find_frozen_soon)
        monkeypatch.setattr(monitor, "PATIENCE", 3.0)
        monkeypatch.setitem(monitor.ask_workers.__kwdefaults__, "timeout", 3.0)
        try:
            yield client, nanny.pid, blocked
        finally:
            blocked.unlink(missing_ok=True)
            os.kill(nanny.pid, signal.SIGCONT)


def address_of(dask_scheduler: Any, name: str) -> str:
    return str(dask_scheduler.aliases[name])


@pytest.mark.parametrize("when", ["before", "starting its next process"])
def test_a_frozen_nanny(tmp_path: Path, when: str) -> None:
    """It is named, its worker stays as it is, and the other worker restarts."""
    with two_nannies(tmp_path) as (client, nanny, blocked):
        frozen = client.run_on_scheduler(address_of, name="frozen")
        there = client.scatter(list(range(5)), hash=False, workers=[frozen])
        pids = client.run(os.getpid)
        if when != "before":
            blocked.touch()
        else:
            os.kill(nanny, signal.SIGSTOP)
        # the frozen one is the second, because it has more data
        restarting = begin_restart(client, timeout="3 minutes")
        if when != "before":
            until(lambda: client.run_on_scheduler(doing) == when)
            os.kill(nanny, signal.SIGSTOP)
            client.run_on_scheduler(lose_nannies_soon)
        start = monotonic()
        restarting.join(300)
        seconds = monotonic() - start
        report = restarting.result
        assert isinstance(report, clustertune.Report), report
        left = {step.workers[0]: step for step in report.steps}
        assert (left["frozen"].status, left["frozen"].lost) == ("skipped", 0)
        assert "its nanny tcp://" in left["frozen"].reason
        assert "does not answer" in left["frozen"].reason
        assert sorted(step.status for step in left.values()) == ["done", "skipped"]
        assert seconds < 100
        assert client.run_on_scheduler(is_free)
        assert client.run_on_scheduler(statuses) == {"running"}
        assert client.run(os.getpid)[frozen] == pids[frozen]
        assert client.gather(there) == list(range(5))


def test_a_frozen_nanny_and_dropped_data(tmp_path: Path) -> None:
    """The call ends soon, names the nanny, and no data is lost."""
    with two_nannies(tmp_path) as (client, nanny, _):
        there = client.scatter(list(range(5)), hash=False)
        os.kill(nanny, signal.SIGSTOP)
        restarting = begin_restart(client, drop_data=True, timeout="3 minutes")
        start = monotonic()
        restarting.join(300)
        assert monotonic() - start < 100
        (step,) = restarting.result.steps
        assert (step.status, step.lost) == ("skipped", 0)
        assert "nanny tcp://" in step.reason
        assert client.gather(there) == list(range(5))
