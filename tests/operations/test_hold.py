"""Holds on real clusters: protection, warnings and measurements."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import time
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, Nanny, performance_report, wait
from distributed.core import Status

import clustertune
from clustertune.errors import LeaseHeldError
from clustertune.operations.hold import Measures
from clustertune.operations.surviving import UNKNOWN, FitWatch
from tests.builders import snapshot, worker
from tests.in_process import TWO, gen_cluster
from tests.processes import local_workers, soon, until, workers_of


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if r.name == "clustertune"]


@gen_cluster(client=True, nthreads=TWO)
async def test_measures(c: Any, s: Any, a: Any, b: Any) -> None:
    """One line follows the block, with the measured figures."""
    async with clustertune.hold(c, label="mine") as held:
        assert held.measures is None
        assert s.plugins["clustertune"].holds.active()[0]["label"] == "mine"
        await c.gather(c.map(np.ones, range(1000, 1010)))
    assert s.plugins["clustertune"].holds.active() == []
    measures = held.measures
    assert measures is not None
    assert measures.peaks.keys() == {0, 1}
    assert measures.seconds > 0
    assert str(measures).startswith("held for ")
    assert "; peak memory " in repr(held)


def test_parking_workers_are_not_measured() -> None:
    """A hold may begin during a restart; the parking worker then ends as it should."""
    measures = Measures()
    parking = worker("clustertune-parking-1", parking=True, process=9, spilled=9)
    assert measures.take(snapshot([worker(0, process=1), parking])) == []
    assert measures.take(snapshot([worker(0, process=2)])) == []
    assert (measures.peaks, measures.gone, measures.spilled) == ({0: 2}, [], 0)
    (text,) = measures.take(snapshot([]))
    assert text.startswith("worker 0 is gone")


def test_a_worker_that_comes_back_between_two_snapshots() -> None:
    """A nanny starts the next process within a second; the fit has lost its worker."""
    measures = Measures()
    assert measures.take(snapshot([worker(0, address="tcp://a:1"), worker(1)])) == []
    (text,) = measures.take(snapshot([worker(0, address="tcp://a:2"), worker(1)]))
    assert text.startswith("worker 0 is gone")
    assert measures.gone == [0]
    assert measures.take(snapshot([worker(0, address="tcp://a:2"), worker(1)])) == []


@gen_cluster(client=True, nthreads=TWO)
async def test_with_prepare(c: Any, s: Any, a: Any, b: Any) -> None:
    """``with prepare`` holds the prepared data, and measures the predicted memory."""
    X = da.random.random((1000, 20), chunks=(100, 20))
    async with await clustertune.prepare(c, X, X[:, 0]) as prepared:
        X, y = prepared
        assert s.plugins["clustertune"].holds.active()
        await c.compute(X.sum())
    assert s.plugins["clustertune"].holds.active() == []
    assert "(predicted " in str(prepared.hold.measures)


def test_with_a_synchronous_client(local_cluster: Any, tmp_path: Path) -> None:
    """The example of the documentation, with Dask's performance report."""
    _, client = local_cluster(2, processes=False, protocol="tcp://")
    X = da.random.random((1000, 20), chunks=(100, 20))
    with clustertune.prepare(client, X, X[:, 0], progress=False) as (X, y):
        assert float(X.sum().compute()) > 0
    report = performance_report(str(tmp_path / "fit.html"))
    with report, clustertune.hold(client) as held:
        client.submit(sum, [1, 2]).result()
    assert held.measures is not None
    assert "<html" in (tmp_path / "fit.html").read_text().lower()


@gen_cluster(client=True, nthreads=TWO)
async def test_plans_of_others_wait(c: Any, s: Any, a: Any, b: Any) -> None:
    """Other clients' plans wait for the end of the hold; the holder's run."""
    X = c.persist(da.random.random((100, 4), chunks=(10, 4)), workers=[a.address])
    await wait(X)
    async with Client(s.address, asynchronous=True) as other:
        same = other.persist(X)
        await wait(same)
        async with clustertune.hold(c, label="a night's training"):
            with pytest.raises(LeaseHeldError, match="a night's training"):
                await clustertune.prepare(other, same, timeout="3 s")
            await clustertune.prepare(c, X)
        await clustertune.prepare(other, same, timeout="60 s")


def test_adaptive_scaling_waits(local_cluster: Any) -> None:
    """Idle workers stay during the block."""
    cluster, client = local_cluster(3, processes=False)
    client.wait_for_workers(3)
    with clustertune.hold(client):
        cluster.adapt(minimum=1, maximum=3, interval="50 ms", wait_count=2)
        adaptive = cluster._adaptive
        n = len(adaptive.log)

        async def asked() -> None:
            for _ in range(20):
                assert await cluster.scheduler_comm.workers_to_close(target=1) == []

        client.sync(asked)
        assert len(workers_of(client)) == 3
    until(lambda: len(workers_of(client)) == 1)
    assert len(adaptive.log) > n
    cluster.adapt(minimum=1, maximum=1)


@gen_cluster(client=True, nthreads=TWO)
async def test_what_happens_is_said(
    c: Any, s: Any, a: Any, b: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Warnings name a paused and a lost worker, with a fix."""
    with caplog.at_level(logging.WARNING, "clustertune"):
        async with clustertune.hold(c) as held:
            held.monitor.interval = 0.05
            held.monitor._watch.hold = 0.1
            a.memory_manager.memory_pause_fraction = 1e-9
            a.status = Status.paused
            await soon(lambda: any("worker 0 is paused" in m for m in messages(caplog)))
            await b.close()
            await soon(lambda: any("worker 1 is gone" in m for m in messages(caplog)))
    assert held.measures is not None
    assert held.measures.gone == [1]
    assert "worker 1 left meanwhile" in str(held.measures)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_worker_that_pauses_again(
    c: Any, s: Any, a: Any, b: Any, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    """The second pause is reported, too, after the end of the first one."""
    monkeypatch.setattr("clustertune.operations.watch.HOLD_SECONDS", 0.1)
    monkeypatch.setattr("clustertune.operations.watch.GONE_SECONDS", 0.2)

    def reports(kind: str) -> int:
        begin = f"{kind}: critical worker 0 is paused"
        return sum(text.startswith(begin) for text in messages(caplog))

    with caplog.at_level(logging.WARNING, "clustertune"):
        async with clustertune.hold(c) as held:
            held.monitor.interval = 0.05
            for n in (1, 2):
                a.memory_manager.memory_pause_fraction = 1e-9
                a.status = Status.paused
                await soon(lambda n=n: reports("began") == n)
                a.memory_manager.memory_pause_fraction = False
                a.status = Status.running
                await soon(lambda n=n: reports("ended") == n)


@gen_cluster(client=True, nthreads=TWO, Worker=Nanny)
async def test_a_killed_worker_that_came_back(
    c: Any, s: Any, a: Any, b: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The next snapshot shows that another process has its place."""
    with caplog.at_level(logging.WARNING, "clustertune"):
        async with clustertune.hold(c) as held:
            before = a.worker_address
            os.kill(a.pid, signal.SIGKILL)
            await soon(lambda: before not in s.workers and len(s.workers) == 2)
            text = "worker 0 is gone"
            await soon(lambda: any(text in m for m in messages(caplog)))
    assert held.measures is not None
    assert held.measures.gone == [0]


HOLDER = """
import sys, time
import dask
from distributed import Client
import clustertune
dask.config.set({"distributed.client.heartbeat": "200 ms"})
client = Client(sys.argv[1])
with clustertune.hold(client, label="theirs"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_a_holder_that_dies_or_freezes(local_cluster: Any, fate: int) -> None:
    """The hold ends at once, or after 15 s."""
    local, client = local_cluster(1, processes=False, protocol="tcp://")
    command = [sys.executable, "-c", HOLDER, client.scheduler.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        holds = local.scheduler.plugins["clustertune"].holds
        assert [h["label"] for h in holds.active()] == ["theirs"]
        assert holds.owners.grace == 15
        holds.owners.grace = 3  # a heartbeat comes every 200 ms here
        other.send_signal(fate)
        until(lambda: not holds.active())
        other.kill()


@gen_cluster(
    client=True, nthreads=TWO, config={"distributed.client.heartbeat": "1 hour"}
)
async def test_a_client_with_a_slow_heartbeat(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests of the hold itself keep it."""
    monkeypatch.setattr("clustertune.operations.hold.REFRESH", 0.1)
    async with clustertune.hold(c) as held:
        held.monitor.interval = 3600.0
        plugin = s.plugins["clustertune"]
        plugin.owners.grace = 2.0  # a busy process may stand still for a second
        began = s.clients[c.id].last_seen
        await soon(lambda: time() - began > 4)
        assert plugin.holds.active()
        assert s.clients[c.id].last_seen == began
    assert held.measures is not None
    assert held.measures.unheld == 0


@gen_cluster(client=True, nthreads=TWO)
async def test_a_broken_connection(c: Any, s: Any, a: Any, b: Any) -> None:
    """A client that reconnects with the same id keeps its hold."""
    async with clustertune.hold(c, label="mine") as held:
        holds = s.plugins["clustertune"].holds
        name, first = held._name, s.clients[c.id]
        c.scheduler_comm.comm.abort()
        await soon(lambda: s.clients.get(c.id) is not first)
        assert name in holds.kept
        async with Client(s.address, asynchronous=True) as other:
            with pytest.raises(LeaseHeldError, match="mine"):
                await clustertune.trim_memory(other, timeout="3 s")
        await soon(lambda: c.status == "running")
        assert name in holds.kept
    assert holds.kept == {}
    assert held.measures is not None
    assert held.measures.unheld == 0


@gen_cluster(client=True, nthreads=TWO)
async def test_a_connection_that_is_broken_as_the_block_ends(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """The hold is given back after the client has reconnected."""
    async with clustertune.hold(c):
        holds = s.plugins["clustertune"].holds
        reconnect, network = c._reconnect, asyncio.Event()

        async def late() -> None:
            await network.wait()
            await reconnect()

        c._reconnect = late
        c.scheduler_comm.comm.abort()
        await soon(lambda: c.status == "connecting")
    assert holds.kept
    network.set()
    await soon(lambda: not holds.kept)
    await soon(lambda: c.status == "running")


@gen_cluster(client=True, nthreads=TWO)
async def test_a_hold_that_is_lost(
    c: Any,
    s: Any,
    a: Any,
    b: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A warning is logged at once, and the hold is taken again when possible."""
    monkeypatch.setattr("clustertune.operations.hold.REFRESH", 0.1)
    async with clustertune.hold(c) as held:
        plugin = s.plugins["clustertune"]
        async with Client(s.address, asynchronous=True) as other:
            plugin.holds.forget(c.id, "frozen")
            plugin.acquire(other.id, "a plan", "t")
            await soon(lambda: any("ended this hold" in m for m in messages(caplog)))
            assert plugin.holds.kept == {}
            plugin.lease.release("t")
            await soon(lambda: any("taken again" in m for m in messages(caplog)))
        assert list(plugin.holds.kept) == [held._name]
    assert held.measures is not None
    assert held.measures.unheld > 0
    assert "the hold was lost for up to" in str(held.measures)
    lost = [e for _, e in s.get_events("clustertune") if e["action"] == "hold lost"]
    assert [(e["label"], e["problem"]) for e in lost] == [("a hold", "frozen")]
    assert len([m for m in messages(caplog) if "ended this hold" in m]) == 1


@gen_cluster(client=True, nthreads=TWO)
async def test_an_error_in_the_block(c: Any, s: Any, a: Any, b: Any) -> None:
    """The error is raised, and the hold ends."""
    with pytest.raises(ZeroDivisionError):
        async with clustertune.hold(c):
            raise ZeroDivisionError
    assert s.plugins["clustertune"].holds.active() == []
    assert not [t for t in asyncio.all_tasks() if "Hold" in t.get_coro().__qualname__]


@gen_cluster(client=True, nthreads=[])
async def test_wrong_use(c: Any, s: Any) -> None:
    """Without ``async`` the block would not be held, without an error.

    A label that is no text would make the record in the history unreadable.
    """
    with pytest.raises(TypeError, match="block: async with"):
        clustertune.hold(c).__enter__()
    with pytest.raises(ValueError, match=r"label=3 .*a text"):
        clustertune.hold(c, label=3)  # type: ignore[arg-type]


def test_an_async_block_with_a_synchronous_client() -> None:
    """Its connections are those of another event loop."""
    with (
        local_workers(0, processes=False) as client,
        pytest.raises(TypeError, match="block: with"),
    ):
        asyncio.run(clustertune.hold(client).__aenter__())


@gen_cluster(client=True, nthreads=TWO)
async def test_a_client_that_is_closed_in_the_block(
    c: Any, s: Any, a: Any, b: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with Client(s.address, asynchronous=True) as other:
        held = await clustertune.hold(other).__aenter__()
    await held.__aexit__(None, None, None)
    said = "the hold could not be given back: ConnectionLostError('the client is closed"
    assert [text for text in messages(caplog) if text.startswith(said)]


def test_a_client_that_is_closed_in_a_block(caplog: pytest.LogCaptureFixture) -> None:
    """As after its scheduler has ended: the end of the block reports it."""
    with local_workers(1, processes=False) as client, clustertune.hold(client):
        client.close()
    assert [text for text in messages(caplog) if "was closed in the block" in text]


@gen_cluster(client=True, nthreads=TWO)
async def test_a_plan_that_is_going_on(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hold waits for it, up to a time limit."""
    await clustertune.check(c)
    plugin = s.plugins["clustertune"]
    async with Client(s.address, asynchronous=True) as other:
        plugin.acquire(other.id, "a long plan", "t")
        with monkeypatch.context() as patch:
            patch.setattr("clustertune.operations.hold.WAIT_SECONDS", 0.3)
            with pytest.raises(LeaseHeldError, match="a long plan"):
                async with clustertune.hold(c):
                    raise AssertionError
        assert plugin.holds.active() == []
        asked: list[dict[str, Any]] = []
        begin = plugin.acquire
        plugin.requests["acquire"] = lambda **k: asked.append(begin(**k)) or asked[-1]
        block = asyncio.ensure_future(_held(c))
        await soon(lambda: any("holder" in answer for answer in asked))
        plugin.lease.release("t")
        assert await asyncio.wait_for(block, 10)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_member_that_leaves_while_the_hold_waits(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """The loss has its id, so another attempt does not name it, and its reason."""
    X = da.ones((100, 2), chunks=(10, 2))
    prepared = await clustertune.prepare(c, X)
    prepared.watch = FitWatch(c, workers=prepared.members)
    plugin = s.plugins["clustertune"]
    async with Client(s.address, asynchronous=True) as other:
        plugin.acquire(other.id, "a plan", "t")
        asked: list[dict[str, Any]] = []
        begin = plugin.acquire
        plugin.requests["acquire"] = lambda **k: asked.append(begin(**k)) or asked[-1]
        block = asyncio.ensure_future(prepared.__aenter__())
        await soon(lambda: any("holder" in answer for answer in asked))
        await b.close()
        plugin.lease.release("t")
        await block
        loss = await prepared.lost(RuntimeError())
        await prepared.__aexit__(None, None, None)
    assert loss is not None
    assert loss.workers == (1,)
    assert 1 in loss.gone
    assert loss.reasons != (UNKNOWN,)


async def _held(c: Any) -> bool:
    async with clustertune.hold(c):
        return True


@gen_cluster(client=True, nthreads=TWO)
async def test_a_watch_that_fails_is_said(
    c: Any, s: Any, a: Any, b: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The block continues without it."""
    async with clustertune.hold(c) as held:
        held.monitor.interval = 0.05
        with dask.config.set({"clustertune.checks.paused_workers.most": 1}):
            await soon(
                lambda: any("the hold stopped watching" in m for m in messages(caplog))
            )
    assert held.measures is not None


@gen_cluster(client=True, nthreads=TWO)
async def test_stopped_before_the_answer_came(c: Any, s: Any, a: Any, b: Any) -> None:
    """A hold that was granted meanwhile is given back."""
    await clustertune.check(c)
    plugin = s.plugins["clustertune"]
    begin = plugin.acquire

    async def taken(**arguments: Any) -> None:
        begin(**arguments)
        await asyncio.sleep(60)

    plugin.requests["acquire"] = taken
    block = asyncio.ensure_future(_held(c))
    await soon(plugin.holds.active)
    block.cancel()
    with pytest.raises(asyncio.CancelledError):
        await block
    assert plugin.holds.active() == []


@gen_cluster(client=True, nthreads=TWO)
async def test_stopped_before_the_request_came(c: Any, s: Any, a: Any, b: Any) -> None:
    """The release overtakes the request, which then gets no hold."""
    await clustertune.check(c)
    plugin = s.plugins["clustertune"]
    begin, sent, ended = plugin.acquire, asyncio.Event(), asyncio.Event()
    answers: list[Any] = []

    async def late(**arguments: Any) -> None:
        sent.set()
        await ended.wait()
        answers.append("refused")
        answers.append(begin(**arguments))

    plugin.requests["acquire"] = late
    block = asyncio.ensure_future(_held(c))
    await sent.wait()
    block.cancel()
    with pytest.raises(asyncio.CancelledError):
        await block
    ended.set()
    await soon(lambda: answers)
    assert answers == ["refused"]
    assert plugin.holds.active() == []


class GoneTerminal:
    """A terminal that was closed."""

    def isatty(self) -> bool:
        return True

    def write(self, _text: str) -> int:
        raise OSError(5, "Input/output error")


@gen_cluster(client=True, nthreads=TWO)
async def test_a_terminal_that_is_gone(
    c: Any,
    s: Any,
    a: Any,
    b: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The messages are logged, and the end of the block raises no error."""
    async with clustertune.hold(c):
        monkeypatch.setattr(sys, "stderr", GoneTerminal())
    assert any(m.startswith("held for ") for m in messages(caplog))
