"""Runs: spans of work between two gaps, and what they leave behind."""

from __future__ import annotations

import asyncio

from distributed.utils_test import captured_logger, gen_cluster

from clustertune.cluster import inquiry, monitor
from clustertune.remote import runs as module
from clustertune.remote.runs import GAP, MOST, Runs, worker_id
from tests.processes import soon


def told(*moments):
    """From (time, whether there was work, unmanaged memory)."""
    runs = Runs()
    for now, busy, unmanaged in moments:
        runs.tell(now, busy, {"w": (unmanaged + 100, unmanaged)})
    return list(runs.kept)


def test_no_work_is_no_run():
    """However long."""
    assert told((0, False, 10), (100, False, 10)) == []


def test_a_run_ends_with_a_gap():
    """Not with a pause; what it left is the least that was seen in the gap."""
    short = [(0, True, 10), (10, False, 50), (20, True, 90), (30, False, 60)]
    assert told(*short) == []
    (run,) = told(*short, (40, False, 40), (20 + GAP, False, 45))
    assert (run["began"], run["ended"]) == (0, 20)
    assert run["floors"] == [("w", 40)]
    assert run["peaks"] == [("w", 190)]


def test_what_a_run_leaves_is_seen_in_the_gap():
    """Not while it works: unmanaged memory may be low then, before it grows."""
    (run,) = told((0, True, 10), (10, True, 20), (12, False, 60), (10 + GAP, False, 70))
    assert run["floors"] == [("w", 60)]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_failure_is_a_gap_and_not_the_end(c, s, a, monkeypatch):
    """It is in the scheduler's log."""
    monkeypatch.setattr(module, "TICK", 0.01)
    told = []

    class Odd(Runs):
        def tell(self, now, busy, memory):
            told.append(now)
            if len(told) == 1:
                raise ZeroDivisionError

    with captured_logger("distributed.clustertune") as log:
        task = asyncio.ensure_future(module.watch(s, Odd()))
        await soon(lambda: len(told) > 2)
        task.cancel()
    assert "ZeroDivisionError" in log.getvalue()


def test_each_run_has_its_own_peak():
    """What one needed is no matter of the next."""
    first = [(0, True, 900), (1, False, 50), (40, False, 50)]
    second = [(100, True, 60), (101, False, 55), (140, False, 55)]
    found = told(*first, *second)
    assert [run["peaks"] for run in found] == [[("w", 1000)], [("w", 160)]]
    assert [run["floors"] for run in found] == [[("w", 50)], [("w", 55)]]


def test_the_last_ones_are_kept():
    """Not all since the scheduler started."""
    moments = []
    for i in range(MOST + 5):
        moments += [(i * 100, True, i), (i * 100 + 50, False, i)]
    found = told(*moments)
    assert len(found) == MOST
    assert found[-1]["began"] == (MOST + 4) * 100


def test_what_an_old_process_left_is_forgotten():
    """Else a worker that leaked would be restarted again and again."""
    runs = Runs()
    for i in range(4):
        runs.tell(i * 100, True, {})
        runs.tell(i * 100 + 50, False, {0: (900 * i, 800 * i), 1: (90, 80)})
    runs.tell(400, True, {})
    runs.tell(401, False, {0: (5000, 4000), 1: (90, 80)})
    runs.forget(0)
    assert runs.floors == {1: 80}
    assert [dict(run["floors"]) for run in runs.kept] == [{1: 80}] * 4
    assert [dict(run["peaks"])[0] for run in runs.kept] == [0, 900, 1800, 2700]
    runs.tell(450, False, {0: (300, 200), 1: (90, 80)})
    assert dict(runs.kept[-1]["floors"]) == {0: 200, 1: 80}
    assert dict(runs.kept[-1]["peaks"]) == {0: 5000, 1: 90}


def test_ids_survive_a_restart():
    """A name that was given, else the nanny, else the address."""
    assert worker_id("tcp://a", 3, "tcp://n") == 3
    assert worker_id("tcp://a", "tcp://a", "tcp://n") == "tcp://n"
    assert worker_id("tcp://a", "", None) == "tcp://a"
    assert worker_id("tcp://a", ("odd",), "tcp://n") == "tcp://n"


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_work_between_two_looks_is_seen(c, s, a, monkeypatch):
    """However short it was."""
    monkeypatch.setattr(module, "TICK", 0.3)
    runs = Runs(gap=0.1)
    task = asyncio.ensure_future(module.watch(s, runs))
    await soon(lambda: runs.floors)
    assert await c.submit(sum, [1, 2]) == 3
    await soon(lambda: runs.kept)
    task.cancel()


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_the_resident_keeps_them(c, s, a, b):
    """It watches by itself, and tells who asks."""
    await monitor.open_door(c, await monitor.identify(c))
    resident = s.plugins["clustertune"]
    resident.runs.gap = 0.3
    assert await inquiry.past_runs(c) == ()
    resident.runs.tell(0.0, True, {0: (200, 100)})
    await soon(lambda: resident.runs.kept)
    (run,) = await inquiry.past_runs(c)
    assert set(run.floors) == {0, 1}
    assert run.began == 0.0
