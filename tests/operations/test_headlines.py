"""Headlines of reports have measured facts, however a call ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Event, wait

import clustertune
from clustertune.core.report import Report
from clustertune.core.results import summary_line
from clustertune.core.sections import headlines
from clustertune.errors import TimedOutError
from tests.processes import at_gate, empty_cluster, local_workers, until, workers_of
from tests.processes import cluster as processes
from tests.remote.scheduler.test_faults_restart import begin_restart


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Client of two workers that are killed, and come back."""
    with local_workers() as client:
        yield client


def start(client: Client, busy: int) -> tuple[list[Any], Event, list[Any]]:
    """Two workers with ten keys; one of them runs a task until the event is set.

    They are restarted in the order in which they have registered, as the first one
    holds fewer bytes: ``busy`` is a place in this order.
    """
    empty_cluster(client, 2)
    clustertune.check(client)  # the first one takes longer
    addresses = list(workers_of(client))
    data = [
        client.submit(bytes, 10_000 + i, workers=[addresses[i % 2]]) for i in range(10)
    ]
    wait(data)
    gate = Event("gate", client=client)
    gate.clear()
    task = client.submit(at_gate, "gate", workers=[addresses[busy]], pure=False)
    until(lambda: any(client.processing().values()))
    return data, gate, [task]


def names(report: Report) -> list[str | int]:
    return [worker for step in report.steps for worker in step.workers]


@pytest.mark.parametrize("busy", [0, 1])
def test_a_busy_worker_does_not_stop_the_others(client: Client, busy: int) -> None:
    """It is skipped, the other one is restarted, and headline and JSON report that."""
    data, gate, tasks = start(client, busy)
    report = clustertune.restart_workers(client, wait="0.3s")
    assert report.status == "left"
    line = summary_line(report.steps)
    skipped = names(report)[busy]
    begin = f"restarted 1 of 2 workers; skipped {skipped}: 1 task still runs after"
    assert line.startswith(begin)
    assert line.endswith("; lost 0 keys")
    found = [(s.status, s.count, s.total, s.lost) for s in report.steps]
    expected = [("done", 1, 1, 0), ("skipped", 0, 1, 0)]
    assert found == (expected if busy else expected[::-1])
    assert {*names(report)} == {w["name"] for w in workers_of(client).values()}
    assert Report.from_json(report.to_json()) == report
    assert client.gather(data) == [bytes(10_000 + i) for i in range(10)]
    gate.set()
    wait(tasks)


def test_a_worker_that_ends_does_not_stop_the_others(client: Client) -> None:
    """The next one is restarted, and the lost keys are in the headline."""
    data, gate, _ = start(client, busy=0)
    workers = workers_of(client)
    address = next(iter(workers))
    kept = [
        client.scatter([b"x"], workers=[each], hash=False)  # no task can compute it
        for each in workers
    ]
    wait(kept)
    pids = client.run(os.getpid)
    restarting = begin_restart(client, wait="1 minute", timeout="2 minutes")
    until(lambda: workers_of(client)[address]["status"] == "closing_gracefully")
    os.kill(pids[address], signal.SIGKILL)
    restarting.join(120)
    report = restarting.result
    assert isinstance(report, Report), report
    assert [s.status for s in report.steps] == ["failed", "done"], str(report)
    line = summary_line(report.steps)
    begin = (
        f"restarted 1 of 2 workers; failed {workers[address]['name']}: it "
        "ended during the wait for its tasks"
    )
    assert line.startswith(begin)
    # six keys were there only
    assert "lost 1 key; 5 keys recomputed, because their workers ended" in line
    assert line.endswith("; lost 1 key")
    gate.set()
    # the others are bound to the address of the worker that has ended
    assert client.gather(data[1::2]) == [bytes(10_001 + i) for i in range(0, 10, 2)]


def test_a_busy_worker_while_another_one_ends(client: Client) -> None:
    """The busy worker is unchanged and skipped; the headline has the lost keys."""
    data, gate, tasks = start(client, busy=0)
    workers = workers_of(client)
    first, other = workers
    other_name = workers[other]["name"]
    (kept,) = client.scatter([b"x"], workers=[other], hash=False)
    del data  # only this value is lost with the other worker
    wait(kept)
    until(lambda: len(client.run_on_scheduler(known_keys)) == 2)
    pids = client.run(os.getpid)
    restarting = begin_restart(client, workers=[workers[first]["name"]], wait="5 s")
    until(lambda: workers_of(client)[first]["status"] == "closing_gracefully")
    os.kill(pids[other], signal.SIGKILL)
    restarting.join(120)
    report = restarting.result
    assert isinstance(report, Report), report
    assert [(s.status, s.lost) for s in report.steps] == [("skipped", 0)], str(report)
    assert [(x.worker, x.keys) for x in report.lost or ()] == [(other_name, 1)]
    line = summary_line(report.steps, lost=report.lost)
    assert line.endswith(f"lost 1 key with worker {other_name}, which ended meanwhile")
    assert client.run(os.getpid)[first] == pids[first]
    gate.set()
    wait(tasks)


def known_keys(dask_scheduler: Any) -> list[Any]:
    return list(dask_scheduler.tasks)


def test_nothing_was_restarted(client: Client) -> None:
    """All workers are busy: the headline has each of them, and 0 of 2."""
    _, gate, tasks = start(client, busy=0)
    other = list(workers_of(client))[1]
    tasks.append(client.submit(at_gate, "gate", workers=[other], pure=False))
    until(lambda: all(client.processing().values()))
    report = clustertune.restart_workers(client, wait="0.3s")
    line = summary_line(report.steps)
    first, second = names(report)
    begin = f"restarted 0 of 2 workers; skipped {first}: 1 task still runs after"
    assert line.startswith(begin)
    assert f"; skipped {second}: 1 task still runs after" in line
    assert line.endswith("; lost 0 keys")
    gate.set()
    wait(tasks)


def test_the_time_is_over(client: Client) -> None:
    """The error names what was finished, undone and not begun."""
    data, gate, tasks = start(client, busy=0)
    with pytest.raises(TimedOutError) as stop:
        clustertune.restart_workers(client, timeout="10s")
    text, report = str(stop.value), stop.value.report
    assert report is not None
    first, second = names(report)
    assert f"; restarted 0 of 2 workers; skipped {first}: " in text, text
    assert f"and undone; skipped {second}: not begun; lost 0 keys" in text
    assert headlines(report)[0].endswith("lost 0 keys")
    assert [s.status for s in report.steps] == ["skipped", "skipped"]
    assert client.gather(data) == [bytes(10_000 + i) for i in range(10)]
    gate.set()
    wait(tasks)


def test_the_time_is_over_after_a_loss(client: Client) -> None:
    """The error has the loss, and what to do."""
    data, gate, tasks = start(client, busy=0)
    first, other = workers_of(client)
    (kept,) = client.scatter([b"x"], workers=[other], hash=False)
    del data
    wait(kept)
    pids = client.run(os.getpid)
    restarting = begin_restart(client, workers=[first], timeout="10 s")
    until(lambda: workers_of(client)[first]["status"] == "closing_gracefully")
    os.kill(pids[other], signal.SIGKILL)
    restarting.join(120)
    assert isinstance(restarting.result, TimedOutError), restarting.result
    text = str(restarting.result)
    assert ". The report lists what was done. Give a longer timeout" in text
    assert "which ended meanwhile" in text
    gate.set()
    wait(tasks)


def test_every_operation_counts(local_cluster: Any) -> None:
    """Scale, resize, trim, release and a restart that drops data."""
    cluster, client = local_cluster(2)
    data = client.map(lambda i: bytes(10_000 + i), range(10))
    wait(data)
    done = {
        "trimmed 2 of 2 workers": clustertune.trim_memory(client),
        "resized 1 of 1 worker; lost 0 keys": clustertune.resize_workers(
            client, nthreads=2, workers=[0]
        ),
        "removed 1 of 1 worker; lost 0 keys": clustertune.scale(client, 1),
        "scaled to 2 of 2 workers": clustertune.scale(client, 2),
        "restarted 2 of 2 workers; lost 10 keys": clustertune.restart_workers(
            client, drop_data=True
        ),
    }
    for text, report in done.items():
        assert summary_line(report.steps) == text
    data = client.map(lambda i: bytes(20_000 + i), range(10), key="more")
    wait(data)
    report = clustertune.release_data(client, data)
    assert summary_line(report.steps) == "released 10 keys"


@pytest.mark.parametrize("ways", [("^C", "ended"), ("killed",)])
def test_a_command_that_is_stopped(ways: tuple[str, ...], tmp_path: Path) -> None:
    """^C, and a scheduler that ends: one last line, and the documented code."""
    with processes(tmp_path, 2) as file, Client(scheduler_file=file) as client:
        client.wait_for_workers(2)
        data = client.map(lambda i: bytes(10_000 + i), range(10))
        wait(data)
        gate = Event("gate", client=client)
        for how in ways:
            gate.clear()
            busy = sorted(workers_of(client))[1]
            task = client.submit(at_gate, "gate", workers=[busy], pure=False)
            code, written = stopped(client, file, busy, how)
            line = written.splitlines()[-1]
            assert "Traceback" not in written
            assert "restarted " in line
            if how == "^C":
                assert code == 130
                assert "interrupted, and undone" in line
                assert line.endswith("lost 0 keys")
                gate.set()
                wait([task])
                assert client.gather(data) == [bytes(10_000 + i) for i in range(10)]
            else:
                assert code == 3
                assert written.splitlines() == [line]
                assert "does not answer any more" in line
                assert "; failed " in line
                assert "unknown for " in line


def stopped(client: Client, file: str, busy: str, how: str) -> tuple[int, str]:
    """Stop a command while it waits for a worker; return its exit code and stderr."""
    pid = client.run_on_scheduler(os.getpid)
    command = [sys.executable, "-m", "clustertune", "restart", "--yes"]
    running = subprocess.Popen(
        [*command, "--scheduler-file", file],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: busy in client.run_on_scheduler(leaving), 200)
        if how == "^C":
            running.send_signal(signal.SIGINT)
        else:
            os.kill(pid, signal.SIGTERM if how == "ended" else signal.SIGKILL)
        _, written = running.communicate(timeout=100)
    finally:
        running.kill()
    return running.returncode, written


def leaving(dask_scheduler: Any) -> list[str]:
    """Return the addresses of workers that a restart is waiting for."""
    return [
        w.address
        for w in dask_scheduler.workers.values()
        if w.status.name == "closing_gracefully" and w.processing
    ]
