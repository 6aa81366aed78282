"""The monitor on real clusters: snapshots, events, and its end."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from dataclasses import replace

import dask
import dask.array as da
import pytest
from distributed import Client, Scheduler, Worker
from distributed.core import Status

import clustertune
from clustertune.core.model import Finding, Severity
from clustertune.errors import ConnectionLostError
from clustertune.monitor import monitor as monitor_module
from clustertune.operations import watch as watcher
from clustertune.operations.watch import Watch
from clustertune.remote.scheduler import telemetry
from tests.in_process import TWO, gen_cluster, gen_test
from tests.processes import local_workers, process, soon, until, workers_of


@gen_cluster(client=True, nthreads=TWO)
async def test_snapshots_come(c, s, a, b):
    """Iteration yields each snapshot once; a bounded number is kept."""
    seen = []
    async with clustertune.Monitor(c, interval=0.05, window=0.2) as monitor:
        async for snapshot in monitor:
            seen.append(snapshot)
            if len(seen) == 8:
                break
        assert "watching" in repr(monitor)
    assert len({x.time for x in seen}) == 8
    assert {w.id for w in seen[-1].workers} == {0, 1}
    assert monitor.snapshots[-1].time - monitor.snapshots[0].time <= 0.2
    assert "closed" in repr(monitor)


@gen_cluster(client=True, nthreads=TWO)
async def test_each_block_needs_its_own(c, s, a, b):
    """A monitor or hold that has ended would watch nothing."""
    for used in (clustertune.Monitor(c), clustertune.hold(c)):
        async with used:
            pass
        with pytest.raises(RuntimeError, match="make a new one for each block"):
            async with used:
                pass


@gen_cluster(client=True, nthreads=[])
async def test_a_cluster_without_workers(c, s):
    """Its snapshots have no workers; iteration outside a block would never end."""
    async with clustertune.Monitor(c, interval=0.05) as monitor:
        assert monitor.snapshots[-1].workers == ()
    with pytest.raises(RuntimeError, match="in a block of this monitor"):
        await anext(aiter(clustertune.Monitor(c)))


@gen_cluster(client=True, nthreads=TWO)
async def test_no_call_on_workers_after_the_first_look(c, s, a, b):
    """Facts that do not change are read once."""
    async with clustertune.Monitor(c, interval=0.05) as monitor:
        calls = []
        original = c.run

        def run(*arguments, **options):
            calls.append(arguments)
            return original(*arguments, **options)

        c.run = run
        n = len(monitor.snapshots)
        await soon(lambda: len(monitor.snapshots) >= n + 5)
        assert calls == []
        del c.run


def _is_paused(event):
    return event.finding.check == "paused_workers"


@gen_cluster(client=True, nthreads=TWO)
async def test_events(c, s, a, b, monkeypatch):
    """A pause of a worker is an event after it has lasted, and at its end."""
    monkeypatch.setattr("clustertune.operations.watch.GONE_SECONDS", 0.2)
    async with clustertune.Monitor(c, interval=0.05) as monitor:
        a.memory_manager.memory_pause_fraction = 1e-9
        a.status = Status.paused
        await soon(lambda: any(_is_paused(e) for e in monitor.events))
        (event,) = (e for e in monitor.events if _is_paused(e))
        assert event.kind == "began"
        assert event.finding in monitor.findings
        a.memory_manager.memory_pause_fraction = False
        a.status = Status.running
        await soon(lambda: sum(map(_is_paused, monitor.events)) == 2)
        assert [e.kind for e in monitor.events if _is_paused(e)] == ["began", "ended"]
        taken = monitor.take_events()
        assert list(taken) == list(monitor.events)
        assert monitor.take_events() == ()


@gen_cluster(client=True, nthreads=TWO)
async def test_an_event_outlasts_a_request_that_fails(c, s, a, b, monkeypatch):
    """What begins at a look whose last request fails is an event of the next one."""
    monkeypatch.setattr("clustertune.operations.watch.HOLD_SECONDS", 0.0)
    ask = monitor_module.ask
    failing = []

    async def failing_ask(client, method, **arguments):
        if (
            method == "worker_changes"
            and len(failing) < 3
            and a.status.name == "paused"
        ):
            failing.append(method)
            raise ConnectionLostError("gone")
        return await ask(client, method, **arguments)

    monkeypatch.setattr(monitor_module, "ask", failing_ask)
    async with clustertune.Monitor(c, interval=0.05) as monitor:
        a.memory_manager.memory_pause_fraction = 1e-9
        a.status = Status.paused
        await soon(lambda: any(_is_paused(e) for e in monitor.events))
    assert len(failing) == 3


@gen_cluster(client=True, nthreads=[])
async def test_an_interval_beyond_what_the_scheduler_keeps(c, s):
    """Workers that died between two looks would be forgotten."""
    with pytest.raises(ValueError, match="must be at most 5 min"):
        clustertune.Monitor(c, interval="15 minutes")
    assert 2 * watcher.LONGEST <= telemetry.WATCHED


@gen_cluster(client=True, nthreads=TWO)
async def test_workers_come_and_go(c, s, a, b):
    """Each snapshot has the present workers."""
    async with clustertune.Monitor(c, interval=0.05) as monitor:
        await a.close()
        await soon(lambda: len(monitor.snapshots[-1].workers) == 1)
        async with Worker(s.address, nthreads=1):
            await soon(lambda: len(monitor.snapshots[-1].workers) == 2)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_scheduler_that_does_not_answer(c, s, a, b, monkeypatch):
    """It gets fewer requests until it answers again."""
    monkeypatch.setattr(watcher, "MAX_INTERVAL", 0.2)
    async with clustertune.Monitor(c, interval=0.05) as monitor:
        handler = s.handlers.pop("clustertune")
        await soon(lambda: monitor.unknown_since)
        n = len(monitor.snapshots)
        s.handlers["clustertune"] = handler
        await soon(lambda: monitor.unknown_since is None)
        await soon(lambda: len(monitor.snapshots) > n)


@gen_test()
async def test_a_scheduler_that_is_gone_at_the_beginning():
    """The first iteration raises the error."""
    async with Scheduler(port=0, dashboard_address="127.0.0.1:0") as s:
        client = await Client(s.address, asynchronous=True, timeout="10s")
    with pytest.raises(ConnectionLostError):
        async with clustertune.Monitor(client):
            pass
    await client.close()


def test_with_a_synchronous_client():
    """The monitor runs in a block while other code runs."""
    with local_workers(1, processes=False) as client:
        with clustertune.Monitor(client, interval=0.05) as monitor:
            assert client.submit(sum, [1, 2]).result() == 3
            n = len(monitor.snapshots)

            async def more():
                await soon(lambda: len(monitor.snapshots) > n)

            client.sync(more)
            with pytest.raises(RuntimeError, match="in a block of this monitor"):
                asyncio.run(_add_all(monitor, []))  # in another event loop
        assert monitor.snapshots


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"interval": "soon"}, ValueError),
        ({"window": 0}, ValueError),
        ({"estimator": "x"}, ValueError),
    ],
)
def test_wrong_arguments(options, error):
    """Errors are raised before any request."""
    with pytest.raises(TypeError, match=r"must be a dask\.distributed\.Client"):
        clustertune.Monitor("tcp://127.0.0.1:1")
    client = Client.__new__(Client)
    with pytest.raises(error):
        clustertune.Monitor(client, **options)


@gen_cluster(client=True, nthreads=TWO)
async def test_it_ends_with_its_client(c, s, a, b):
    """Nothing continues after the block, or after the client is closed."""
    async with clustertune.Monitor(c, interval=0.05) as monitor:
        seen = []
        iterating = asyncio.ensure_future(_add_all(monitor, seen))
        await soon(lambda: len(seen) > 2)
        await c.close()
        await soon(monitor._task.done)
        await asyncio.wait_for(iterating, 20)
    assert "closed" in repr(monitor)
    assert monitor.failure is None
    assert not _watching()


@gen_test()
async def test_a_scheduler_that_does_not_come_back(monkeypatch):
    """Dask closes the client then, and iteration raises the error."""
    monkeypatch.setattr(watcher, "MAX_INTERVAL", 0.2)
    options = {"port": 0, "dashboard_address": "127.0.0.1:0"}
    async with (
        Scheduler(**options) as s,
        Client(s.address, asynchronous=True, timeout=2) as client,
        clustertune.Monitor(client, interval=0.05) as monitor,
    ):
        seen = []
        iterating = asyncio.ensure_future(_add_all(monitor, seen))
        await soon(lambda: seen)
        await s.close()
        with pytest.raises(ConnectionLostError, match="could not connect again"):
            await iterating
        await soon(lambda: client.status == "closed")
        assert "failed (ConnectionLostError" in repr(monitor)


async def _add_all(monitor, seen):
    async for snapshot in monitor:
        seen.append(snapshot)


def _watching():
    names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]
    return [name for name in names if "Monitor" in name]


@gen_cluster(client=True, nthreads=TWO)
async def test_what_ends_the_watch_is_told(c, s, a, b):
    """Iteration raises the error that ends the monitor, such as a wrong setting."""
    async with clustertune.Monitor(c, interval=0.05) as monitor:
        assert _watching()
        seen = asyncio.ensure_future(_add_all(monitor, []))
        wrong = {"clustertune.checks.paused_workers.most": 1}
        text = "has no setting 'most'"
        with dask.config.set(wrong), pytest.raises(ValueError, match=text):
            await asyncio.wait_for(seen, 20)
        assert isinstance(monitor.failure, ValueError)
        assert "failed (ValueError" in repr(monitor)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_scheduler_that_hangs(c, s, a, b, monkeypatch):
    """The monitor reports since when it has no answer."""
    monkeypatch.setattr(watcher, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(watcher, "MAX_INTERVAL", 0.2)
    asked = asyncio.Event()

    async def hang(**_):
        asked.set()
        await asyncio.sleep(30)

    async with clustertune.Monitor(c, interval=0.05) as monitor:
        with monkeypatch.context() as patch:
            patch.setitem(s.handlers, "clustertune", hang)
            await asyncio.wait_for(asked.wait(), 20)
            await soon(lambda: monitor.unknown_since)
            assert "unknown for" in repr(monitor)
        await soon(lambda: monitor.unknown_since is None)


@gen_cluster(client=True, nthreads=TWO)
async def test_past_runs_are_asked_now_and_then(c, s, a, b):
    """They are not read at each look, because they are large."""
    async with clustertune.Monitor(c, interval=0.02) as monitor:
        plugin = s.plugins["clustertune"]
        asked = []
        past = plugin.requests["past_runs"]
        plugin.requests["past_runs"] = lambda: asked.append(1) or past()
        n = len(monitor.snapshots)
        await soon(lambda: len(monitor.snapshots) >= n + 5)
        assert asked == []
        monitor._runs_read = -math.inf
        await soon(lambda: asked)


def _of(monitor, kind):
    return [event for event in monitor.events if event.kind == kind]


def test_workers_that_die_and_join(local_cluster):
    """One event for each, with the reason, and the rows of prepared data."""
    cluster, client = local_cluster(2)
    X = da.arange(80, chunks=20)[:, None]
    X, y = clustertune.prepare(client, X, da.arange(80, chunks=20), persist=True)
    workers = workers_of(client)
    with clustertune.Monitor(client, interval=0.05) as monitor:
        killed = next(a for a, entry in workers.items() if entry["name"] == 1)
        os.kill(client.run(os.getpid, workers=[killed])[killed], signal.SIGKILL)
        until(lambda: _of(monitor, "restarted"))
        cluster.scale(3)
        until(lambda: _of(monitor, "joined"))
        kinds = [event.kind for event in monitor.events if event.worker]
        assert kinds == ["restarted", "joined"]
        (restarted,), (joined,) = _of(monitor, "restarted"), _of(monitor, "joined")
    assert restarted.worker.worker == 1
    assert restarted.worker.reason == "killed by signal 9 (SIGKILL)"
    assert restarted.worker.computed == 4  # two partitions of X, and two of y
    (data,) = restarted.worker.data
    assert (data.names, data.rows, data.only_there) == (("X", "y"), 80, 40)
    assert data.held[1] == 0
    assert "worker 1 restarted after" in str(restarted)
    assert "only it had 40 of 80 rows of X and y" in str(restarted)
    assert joined.worker.worker == 2
    assert "worker 2 joined (3 workers now); it holds no rows of X and y" in str(joined)
    assert joined.finding.remedy.startswith("Run `X, y = clustertune.prepare(")
    del X, y


def test_a_worker_without_a_nanny_that_dies(local_cluster):
    """Dask records no reason."""
    cluster, client = local_cluster(1, processes=False, protocol="tcp://")
    command = [sys.executable, "-m", "distributed.cli.dask_worker", "--no-nanny"]
    name = ["--name", "alone", "--no-dashboard", cluster.scheduler_address]
    with process(*command, *name) as worker:
        until(lambda: len(workers_of(client)) == 2)
        with clustertune.Monitor(client, interval=0.05) as monitor:
            worker.kill()
            until(lambda: _of(monitor, "died"))
            (died,) = _of(monitor, "died")
    assert died.worker.reason is None
    assert "worker alone died: reason unknown" in str(died)


# --- events ---------------------------------------------------------------------------


GIB = 2**30


def finding(check="memory_pressure", subject=(1,), severity=Severity.warning, text=""):
    return Finding(check=check, subject=subject, severity=severity, message=text)


def told(*looks):
    """Return events as (kind, time), from (time, found)."""
    watch, events = Watch(), []
    for now, found in looks:
        events += watch.events(now, found)
    return [(e.kind, e.time) for e in events], watch


def test_a_moment_is_no_event():
    """A finding that ends within the hold is no event."""
    f = finding()
    events, watch = told((0, [f]), (1, [f]), (2, []), (9, []))
    assert events == []
    assert watch.current == ()


def test_what_holds_begins_and_ends():
    """Events have the times of the first and the last snapshot with the finding."""
    f = finding()
    looks = [(t, [f]) for t in range(5)] + [(t, []) for t in range(5, 16)]
    events, watch = told(*looks)
    assert events == [("began", 0), ("ended", 4)]
    assert watch.current == ()


def test_a_gap_shorter_than_the_hold_does_not_end_it():
    """A shorter gap neither ends nor begins an event."""
    f = finding()
    looks = [(t, [f]) for t in range(5)]
    looks += [(t, []) for t in range(5, 13)] + [(13, [f]), (18, [f])]
    assert told(*looks)[0] == [("began", 0)]


def test_information_is_no_event():
    """Information and unknown results are no events."""
    some = [finding(severity=s) for s in (Severity.info, Severity.unknown)]
    assert told(*((t, some) for t in range(9)))[0] == []


def test_a_worker_that_stays_holds_it():
    """On a large cluster others come and go at each look."""
    looks = [(t, [finding(subject=(1, 2 + t))]) for t in range(5)]
    looks += [(t, []) for t in range(5, 16)]
    assert told(*looks)[0] == [("began", 0), ("ended", 4)]


def test_another_worker_does_not_end_it():
    """The finding is about both then, and ends with the last of them."""
    one, both = finding(), finding(subject=(1, 2))
    looks = [(t, [one]) for t in range(5)]
    looks += [(t, [both]) for t in range(5, 20)]
    assert told(*looks)[0] == [("began", 0), ("began", 5)]
    looks += [(t, [one]) for t in range(20, 40)]
    looks += [(t, []) for t in range(40, 50)]
    assert told(*looks)[0] == [("began", 0), ("began", 5), ("ended", 39)]


def test_another_problem_of_the_same_workers():
    """The findings of one check with other evidence do not hide each other."""
    low, high = finding(), replace(finding(), evidence={"limit_bytes": 1})
    looks = [(t, [low, high]) for t in range(5)] + [(t, [low]) for t in range(5, 16)]
    events, watch = told(*looks)
    assert events == [("began", 0), ("began", 0), ("ended", 4)]
    assert watch.current == (low,)


def test_another_threshold_does_not_end_it():
    """Its evidence has another name then, and the memory is no lower."""
    low, high = (
        replace(finding(), evidence={name: 1})
        for name in ("managed_bytes", "process_bytes")
    )
    looks = [(t, [(low, high)[t % 2]]) for t in range(20)]
    assert told(*looks)[0] == [("began", 0)]


def test_each_subject_for_itself():
    """The latest finding of each subject is current, worst first."""
    a, b = finding(text="old"), finding(subject=(2,), severity=Severity.critical)
    new = finding(text="new")
    _, watch = told((0, [a, b]), (3, [a, b]), (4, [new, b]))
    assert watch.current == (b, new)
