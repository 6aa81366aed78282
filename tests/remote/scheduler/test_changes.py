"""Changes of workers as the scheduler plugin records them."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from distributed import Client, Nanny, Worker, wait

import clustertune
from clustertune.monitor import monitor
from clustertune.remote.keys import pack
from clustertune.remote.scheduler.telemetry import MAX_READS
from tests.in_process import gen_cluster
from tests.processes import soon

TWO = [("127.0.0.1", 1)] * 2


async def begun(c: Client) -> int:
    """Begin to watch; return the number of the last change."""
    await monitor.install_plugin(c, await monitor.identify(c))
    answer = await monitor.ask(c, "worker_changes", after=None)
    assert not answer["changes"]
    return int(answer["last"])


async def coming(c: Client, s: Any, after: int) -> Any:
    """Return the answer with the next changes, once it is known what became of them."""
    changes = s.plugins["clustertune"].changes
    await soon(lambda: changes.last > after)
    await monitor.ask(c, "worker_changes", after=after)
    await soon(lambda: all(change.is_known() for change in changes.kept))
    return await monitor.ask(c, "worker_changes", after=after)


@gen_cluster(client=True, nthreads=TWO)
async def test_nothing_is_recorded_before_a_client_asks(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """Neither processes nor lost keys."""
    await monitor.install_plugin(c, await monitor.identify(c))
    await b.close()
    changes = s.plugins["clustertune"].changes
    assert not changes.kept
    last = await begun(c)
    assert list(changes.processes) == [a.address]
    async with Worker(s.address, name="new"):
        (change,) = (await coming(c, s, last))["changes"]
        assert (change["worker"], change["stimulus"]) == ("new", None)
        changes.watched = float("-inf")  # no client has asked for a long time
        assert not changes.is_watched()
        assert (changes.processes, list(changes.kept)) == ({}, [])


@gen_cluster(client=True, nthreads=TWO)
async def test_retired(c: Any, s: Any, a: Any, b: Any) -> None:
    """Each client gets each change once."""
    last = await begun(c)
    await c.retire_workers([b.address])
    answer = await coming(c, s, last)
    (change,) = answer["changes"]
    assert (change["worker"], change["n_workers"]) == (1, 1)
    assert change["stimulus"].startswith("retire-workers-")
    assert (change["computed"], change["scattered"]) == (0, 0)
    again = await monitor.ask(c, "worker_changes", after=answer["last"])
    assert (again["changes"], again["last"]) == ((), answer["last"])
    other = await monitor.ask(c, "worker_changes", after=last)
    assert other["changes"] == (change,)


@gen_cluster(client=True, nthreads=TWO)
async def test_lost_keys_and_rows(c: Any, s: Any, a: Any, b: Any) -> None:
    """Computed keys are computed again, scattered keys are not."""
    last = await begun(c)
    computed = c.submit(
        abs, -1, key=("X", 0), workers=[b.address], allow_other_workers=True
    )
    kept = await c.scatter({("X", 1): 1}, workers=[b.address])
    there = await c.scatter({("X", 2): 1}, workers=[a.address])
    await wait([computed, *kept.values(), *there.values()])
    layout = {
        "label": "training data",
        "names": ["X"],
        "members": [pack([("X", 0), ("X", 1), ("X", 2)])],
        "rows": [10, 20, 30],
        "alike": True,
    }
    await monitor.ask(c, "report", facts={"collections": [layout]})
    await s.remove_worker(b.address, stimulus_id="test")
    await soon(lambda: s.tasks["X", 0].who_has)
    answer = await coming(c, s, last)
    (change,) = answer["changes"]
    assert (change["computed"], change["scattered"]) == (1, 1)
    assert change["rows"] == (30,)
    (data,) = answer["data"]
    assert (data["names"], data["rows"], data["lost"]) == (("X",), 60, 20)
    assert dict(zip(data["workers"], data["held"], strict=True)) == {0: 40}
    assert not answer["leased"]


@gen_cluster(client=True, nthreads=[])
async def test_a_restart_is_one_change(c: Any, s: Any) -> None:
    """The next process has the same name; its nanny logged the end of the last one."""
    async with Nanny(s.address, name="one", nthreads=1) as nanny:
        await c.wait_for_workers(1)
        last = await begun(c)
        os.kill(nanny.pid, signal.SIGKILL)
        answer = await coming(c, s, last)
        (change,) = answer["changes"]
        assert change["worker"] == "one"
        assert change["returned"] > 0
        assert change["recorded"] == {"exit": "was killed by signal 9"}
        assert len(s.workers) == 1
        await c.restart_workers([*s.workers])
        (change,) = (await coming(c, s, answer["last"]))["changes"]
        assert change["returned"] > 0
        assert change["recorded"]["closing"].startswith("client-restart-workers-")


@gen_cluster(client=True, nthreads=[])
async def test_a_restart_with_two_processes_is_one_change(c: Any, s: Any) -> None:
    """The next process registers before the former one ends."""
    async with (
        Nanny(s.address, name="one", nthreads=1),
        Nanny(s.address, name="two", nthreads=1),
    ):
        await c.wait_for_workers(2)
        last = await begun(c)
        kept = await c.scatter({"x": 1}, workers=["one"])
        report = await clustertune.restart_workers(c, workers=["one"])
        assert "to its new process" in report.details
        changes = s.plugins["clustertune"].changes
        await soon(lambda: any(x.stimulus is not None for x in changes.kept))
        (change,) = (await coming(c, s, last))["changes"]
        assert (change["worker"], change["returned"]) == ("one", 0.0)
        assert change["stimulus"].startswith("clustertune-unpark-")
        assert (change["computed"], change["scattered"]) == (0, 0)
        assert await c.gather(kept["x"]) == 1


@gen_cluster(client=True, nthreads=[])
async def test_few_logs_are_read_at_the_same_time(c: Any, s: Any) -> None:
    """A client may restart all workers at once."""
    async with Nanny(s.address, name="one", nthreads=1) as nanny:
        await c.wait_for_workers(1)
        await begun(c)
        changes = s.plugins["clustertune"].changes
        (process,) = changes.processes.values()
        handler, begun_reads, released = nanny.handlers["get_logs"], [], asyncio.Event()

        async def get_logs(**options: Any) -> Any:
            begun_reads.append(released.is_set())
            await released.wait()
            return handler(**options)

        nanny.handlers["get_logs"] = get_logs
        reads = [changes._read_log(process) for _ in range(MAX_READS + 5)]
        answers = asyncio.gather(*reads)
        await soon(lambda: len(begun_reads) == MAX_READS)
        released.set()
        assert all(await answers)
        assert begun_reads.count(False) == MAX_READS


@gen_cluster(client=True, nthreads=TWO)
async def test_events_that_a_client_made_up(c: Any, s: Any, a: Any, b: Any) -> None:
    """They cannot remove a worker, and garbage ends nothing."""
    last = await begun(c)
    for topic, event in (
        ("all", {"action": "remove-worker", "worker": a.address}),
        ("worker-restart-memory", {"worker": [], "rss": "x"}),
        ("scheduler", {"action": "worker-ttl-timed-out", "workers": 1, "ttl": []}),
        ("scheduler", {"action": "worker-ttl-timed-out", "workers": [[]], "ttl": 1}),
        (a.address, {"action": "closing-worker", "reason": [1] * 1000}),
    ):
        await c.log_event(topic, event)
    assert not (await monitor.ask(c, "worker_changes", after=last))["changes"]
    await a.close()
    (change,) = (await coming(c, s, last))["changes"]
    assert change["worker"] == 0
