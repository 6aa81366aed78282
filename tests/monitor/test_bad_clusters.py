"""Clusters that do not answer, send garbage, or send hostile text."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, Nanny, Scheduler, Worker, wait
from distributed.core import Status
from distributed.protocol import to_serialize

import clustertune
from clustertune.core.model import Severity
from clustertune.errors import ConnectionLostError, VersionMismatchError
from clustertune.monitor import monitor
from tests.in_process import TWO, gen_cluster, gen_test
from tests.processes import soon, until


def of(report: clustertune.Report, name: str) -> list[Any]:
    return [f for f in report.found if f.check == name]


# --- workers --------------------------------------------------------------------------


@gen_cluster(client=True, nthreads=[])
async def test_no_workers(c: Any, s: Any) -> None:
    """A cluster without workers gives findings, not an error."""
    (finding,) = of(await clustertune.check(c), "missing_workers")
    assert finding.severity is Severity.critical


@gen_cluster(client=True, nthreads=TWO)
async def test_all_paused(c: Any, s: Any, a: Any, b: Any) -> None:
    """All workers are paused, also with data."""
    X = c.persist(da.random.random((100, 4), chunks=(10, 4)))
    await wait(X)
    for worker in (a, b):
        worker.memory_manager.memory_pause_fraction = 1e-9
        worker.status = Status.paused
    await soon(lambda: all(w.status is Status.paused for w in s.workers.values()))
    report = await clustertune.check(c, X)
    assert of(report, "missing_workers")
    assert of(report, "paused_workers")


async def garbage(**_: Any) -> dict[str, Any]:
    return {"status": "OK", "result": to_serialize("garbage")}


async def fail(**_: Any) -> dict[str, Any]:
    raise ValueError(EVIL)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_worker_answers_garbage(c: Any, s: Any, a: Any, b: Any) -> None:
    """Its facts are unknown with a reason; the other worker's are known."""
    await clustertune.check(c)
    monitor.known(c).facts.clear()
    monitor.known(c).requested.clear()
    a.handlers["run"] = garbage
    report = await clustertune.check(c)
    (finding,) = of(report, "memory_pressure")
    assert finding.severity is Severity.unknown
    assert finding.subject == (0,)
    assert "the worker's answer cannot be read" in finding.message


@gen_cluster(client=True, nthreads=TWO[:1], Worker=Nanny)
async def test_a_nanny_that_did_not_answer(c: Any, s: Any, a: Any) -> None:
    """It is asked again after a minute, with its worker."""
    answer, a.handlers["run"] = a.handlers["run"], fail
    (finding,) = of(await clustertune.check(c), "memory_pressure")
    assert "terminate threshold of worker 0 unknown" in finding.message
    a.handlers["run"] = answer
    monitor.known(c).requested.clear()
    assert not of(await clustertune.check(c), "memory_pressure")


@gen_cluster(client=True, nthreads=TWO)
async def test_a_new_worker_answers_garbage(c: Any, s: Any, a: Any, b: Any) -> None:
    """It gets no code, because its versions are unknown."""
    a.handlers["versions"] = garbage
    report = await clustertune.check(c)
    assert {address for address, _ in monitor.known(c).approved} == {b.address}
    (finding,) = of(report, "memory_pressure")
    assert "the worker did not report its versions" in finding.message


@gen_cluster(client=True, nthreads=TWO)
async def test_a_worker_dies_in_mid_poll(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that ends between two requests of a look is not in the snapshot."""
    identify = monitor.identify

    async def then_close(client: Client) -> Any:
        identity = await identify(client)
        await b.close()
        return identity

    async with clustertune.Monitor(c, interval=0.05) as watched:
        n = len(watched.snapshots)
        monkeypatch.setattr(monitor, "identify", then_close)
        await soon(lambda: len(watched.snapshots) > n)
        assert [w.id for w in watched.snapshots[-1].workers] == [0]
        assert watched.unknown_since is None


@gen_cluster(client=True, nthreads=TWO)
async def test_bytes_of_lost_keys(c: Any, s: Any, a: Any, b: Any) -> None:
    """The scheduler forgets scattered data that was lost; the other data counts."""
    here = await c.scatter(1, workers=[a.address])
    there = await c.scatter(2, workers=[b.address])
    await b.close()
    await soon(lambda: there.key not in s.tasks)
    (found,) = await monitor.held_bytes(c, [[here.key, there.key]])
    assert found == {a.address: s.tasks[here.key].nbytes}


def test_a_worker_that_hangs_while_it_is_watched(local_cluster: Any) -> None:
    """Snapshots continue, and have the duration of its silence."""
    _, client = local_cluster(2)
    pids = list(client.run(os.getpid).values())
    with clustertune.Monitor(client, interval=0.1) as watched:
        os.kill(pids[0], signal.SIGSTOP)
        try:
            n = len(watched.snapshots)
            until(lambda: len(watched.snapshots) > n + 10)
            until(
                lambda: max(w.heartbeat_age for w in watched.snapshots[-1].workers) > 2
            )
        finally:
            os.kill(pids[0], signal.SIGCONT)


# --- schedulers -----------------------------------------------------------------------


@gen_cluster(client=True, nthreads=TWO)
async def test_code_that_fails_on_the_scheduler(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any error on the scheduler becomes an error of one line."""

    async def broken(**_: Any) -> None:
        raise ZeroDivisionError("a\x1b[31mred")

    await clustertune.check(c)
    with monkeypatch.context() as patch:
        patch.setitem(s.handlers, "clustertune", broken)
        with pytest.raises(VersionMismatchError, match="failed on the sch") as caught:
            await clustertune.check(c)
    assert "ZeroDivisionError" in str(caught.value)
    assert "\x1b" not in str(caught.value)
    monkeypatch.setattr(s, "add_plugin", None)
    await s.plugins["clustertune"].close()
    del s.plugins["clustertune"]
    with pytest.raises(VersionMismatchError, match="TypeError"):
        await clustertune.check(c)


@gen_test()
async def test_a_scheduler_that_is_gone() -> None:
    """The error names the address, and the client ends."""
    async with Scheduler(port=0, dashboard_address="127.0.0.1:0") as s:
        client = await Client(s.address, asynchronous=True, timeout="10s")
    with pytest.raises(ConnectionLostError):
        await clustertune.check(client)
    await client.close()


@gen_cluster(nthreads=[])
async def test_a_client_that_was_not_awaited(s: Any) -> None:
    """The error does not advise to make another one."""
    client = Client(s.address, asynchronous=True)
    with pytest.raises(ConnectionLostError, match="client = await client"):
        await clustertune.check(client)
    async with client:
        await clustertune.check(client)


# --- names and texts that want to harm ------------------------------------------------

EVIL = "\x1b[2J<script>alert(1)</script>\r\n\u202e"


@gen_cluster(client=True, nthreads=[])
async def test_hostile_names(c: Any, s: Any) -> None:
    """Text is harmless in terminals and HTML; JSON contains it unchanged."""
    async with (
        # their process is that of all tests
        Worker(s.address, nthreads=1, name=EVIL + "1", memory_limit="16 GiB") as a,
        Worker(s.address, nthreads=7, name=EVIL + "2", memory_limit="4 GiB") as b,
    ):
        kept = c.submit(len, "abc", key=EVIL + "-1")
        X = c.persist(da.from_array(np.ones((100, 4)), chunks=(10, 4), name=EVIL))
        await wait([kept, X])
        await c.publish_dataset(X, name=EVIL)
        s.client_releases_keys(
            [k for k in s.tasks if EVIL in str(k)], f"published-{EVIL}"
        )
        other = await Client(s.address, asynchronous=True, name=EVIL)
        theirs = other.map(abs, range(9))
        await wait(theirs)
        running = await clustertune.check(c, X)
        for worker in (a, b):
            worker.memory_manager.memory_pause_fraction = 1e-9
            worker.status = Status.paused
        await soon(lambda: all(w.status is Status.paused for w in s.workers.values()))
        paused = await clustertune.check(c, X)
        async with clustertune.Monitor(c, interval=0.05) as watched:
            watched._watch.hold = 0.1
            await soon(lambda: watched.events)
        reports = (running, paused)
        texts = [*map(str, reports), *map(str, watched.events), repr(watched)]
        found = {f.check for r in reports for f in r.found}
        assert "paused_workers" in found
        for text in texts:
            assert all(x.isprintable() or x == "\n" for x in text), text
        for report in reports:
            assert "<script" not in report._repr_html_()
            assert json.loads(report.to_json())["status"] == "checked"
        assert json.loads(json.dumps([asdict(e) for e in watched.events]))
        await other.close()


@gen_cluster(client=True, nthreads=TWO)
async def test_hostile_answers(c: Any, s: Any, a: Any, b: Any) -> None:
    """Facts and errors of a worker are escaped."""
    answers = {
        "pools": None,
        "disk_free": 1,
        "lifetime": 60.0,
        "paused": None,
        "cancelled": None,
        "packages": {EVIL: EVIL, "dask": EVIL},
    }

    async def lie(**_: Any) -> dict[str, Any]:
        return {"status": "OK", "result": to_serialize(answers)}

    await clustertune.check(c)
    a.handlers["run"], b.handlers["run"] = lie, fail
    report = await clustertune.check(c)
    found = {f.check for f in report.found}
    assert {"worker_lifetime", "software_versions", "spill_space"} <= found
    assert all(x.isprintable() or x == "\n" for x in str(report))
    assert "<script" not in report._repr_html_()
