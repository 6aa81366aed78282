"""What tasks wait for that no worker has."""

from __future__ import annotations

from distributed import wait
from distributed.core import Status
from distributed.utils_test import gen_cluster

from clustertune.remote import unmet
from tests.processes import soon

TWO = [("127.0.0.1", 1, {"resources": {"GPU": 2}}), ("127.0.0.1", 1)]
GONE = ["tcp://127.0.0.1:9"]


@gen_cluster(client=True, nthreads=TWO)
async def test_workers_and_hosts(c, s, a, b):
    """Of all, or of given keys and what they are made of; not what has a choice."""
    here = c.submit(int, 1, workers=[a.address], key="here")
    await wait(here)
    assert await unmet.summary(s) == await unmet.of_keys(s, ["here"]) == []
    first = c.submit(int, 1, workers=GONE, key="first")
    last = c.submit(abs, c.submit(abs, first, key="second"), key="last")
    host = c.submit(int, 3, workers=["misspelt"], key="host")
    own = c.submit(int, 3, workers=["127.0.0.1"], key="own")
    either = c.submit(int, 4, workers=[*GONE, a.address], key="either")
    loose = c.submit(int, 5, workers=GONE, allow_other_workers=True, key="loose")
    assert await c.gather([own, either, loose]) == [3, 4, 5]
    await soon(lambda: len(s.unrunnable) == 2)
    found = sorted(await unmet.summary(s))
    assert found == [["host", ["misspelt"], 1], ["worker", GONE, 1]]
    assert await unmet.of_keys(s, ["last", "here"]) == [["worker", GONE, 1]]
    assert await unmet.of_keys(s, ["here", "not there"]) == []
    del last, host


@gen_cluster(client=True, nthreads=TWO)
async def test_resources(c, s, a, b):
    """All of them on one worker that the task may run on."""
    futures = c.map(int, range(3), resources={"GPU": 4})
    both = c.submit(int, 7, resources={"GPU": 1, "disk": 1}, key="both")
    other = c.submit(int, 8, resources={"GPU": 1}, workers=[b.address], key="other")
    assert await c.submit(int, 9, resources={"GPU": 2}) == 9
    text = c.submit(int, 10, resources={"TPU": "many"}, key="text")
    await soon(lambda: len(s.unrunnable) == 6)
    first, *others = await unmet.summary(s)
    assert first == ["resources", ["GPU: 4"], 3]
    assert sorted(others) == [
        ["resources", ["GPU: 1"], 1],
        ["resources", ["GPU: 1", "disk: 1"], 1],
        ["resources", ["TPU: many"], 1],
    ]
    del futures, both, other, text


@gen_cluster(client=True, nthreads=[])
async def test_without_workers(c, s):
    """What any worker could run waits for no worker in particular."""
    tasks = c.submit(int, 1, key="any"), c.submit(int, 1, workers=GONE, key="bound")
    await soon(lambda: "bound" in s.tasks and s.unrunnable)
    await soon(lambda: s.tasks["bound"] in s.unrunnable)
    assert await unmet.summary(s) == [["worker", GONE, 1]]
    del tasks


@gen_cluster(client=True, nthreads=TWO)
async def test_workers_that_are_paused(c, s, a, b):
    """Will run it later; that they are paused is said elsewhere."""
    a.memory_manager.memory_pause_fraction = 1e-9
    await soon(lambda: s.workers[a.address].status is Status.paused)
    task = c.submit(int, 1, workers=[a.address], resources={"GPU": 1})
    await soon(lambda: s.unrunnable)
    assert await unmet.summary(s) == []
    del task


@gen_cluster(client=True, nthreads=TWO)
async def test_bounds(c, s, a, b, monkeypatch):
    """So many tasks are looked at, and so many wants told: those of most tasks."""
    monkeypatch.setattr(unmet, "SHOWN", 1)
    monkeypatch.setattr(unmet, "YIELD", 2)
    some = c.map(float, range(3), workers=GONE)
    more = c.map(int, range(5), workers=["misspelt"])
    await soon(lambda: len(s.unrunnable) == 8)
    assert await unmet.summary(s) == [["host", ["misspelt"], 5]]
    monkeypatch.setattr(unmet, "MOST", 4)
    ((_, _, count),) = await unmet.summary(s)
    assert count <= 4
    del some, more
