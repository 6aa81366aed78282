"""Runs: times with work, and the memory of workers after each."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

from distributed.utils_test import captured_logger
from hypothesis import given
from hypothesis import strategies as st

from clustertune.checks.memory import memory_growth
from clustertune.core import rules
from clustertune.monitor import inquiry, monitor
from clustertune.remote.scheduler import lease
from clustertune.remote.scheduler.lease import (
    GAP,
    MAX_RUNS,
    Holds,
    Owners,
    Runs,
    SampledMemory,
    growth,
)
from clustertune.remote.scheduler.state import worker_id
from tests.builders import runs as past
from tests.builders import view, worker
from tests.in_process import gen_cluster
from tests.processes import soon


def told(*moments):
    """Return runs from (time, whether there was work, unmanaged memory)."""
    runs = Runs()
    for now, busy, unmanaged in moments:
        runs.note(now, busy, {"w": SampledMemory(unmanaged + 100, unmanaged, now)})
    return list(runs.kept)


def test_no_work_is_no_run():
    """Without work there is no run, however long it takes."""
    assert told((0, False, 10), (100, False, 10)) == []


def test_a_run_ends_with_a_gap():
    """A pause does not end a run. The least memory in the gap counts for the run."""
    short = [(0, True, 10), (2, False, 50), (4, True, 90), (6, False, 60)]
    assert told(*short) == []
    (run,) = told(*short, (7, False, 40), (4 + GAP, False, 45))
    assert (run["began"], run["ended"], run["ended_by"]) == (0, 4, "gap")
    assert run["floors"] == [("w", 40)]
    assert run["peaks"] == [("w", 190)]


def test_what_a_run_leaves_is_seen_in_the_gap():
    """Unmanaged memory during work does not count; it may grow later."""
    (run,) = told((0, True, 10), (3, True, 20), (5, False, 60), (3 + GAP, False, 70))
    assert run["floors"] == [("w", 60)]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_failure_is_a_gap_and_not_the_end(c, s, a, monkeypatch):
    """A failed look is logged, and observation continues."""
    monkeypatch.setattr(lease, "TICK", 0.01)
    told = []

    class Odd(Runs):
        def note(self, now, busy, memory, held=False):
            told.append(now)
            if len(told) == 1:
                raise ZeroDivisionError

    with captured_logger("distributed.clustertune") as log:
        task = asyncio.ensure_future(lease.watch_runs(s, Odd(), Holds(Owners(s))))
        await soon(lambda: len(told) > 2)
        task.cancel()
    assert "ZeroDivisionError" in log.getvalue()


def test_each_run_has_its_own_peak():
    """The peak of a run does not count for the next one."""
    first = [(0, True, 900), (1, False, 50), (40, False, 50)]
    second = [(100, True, 60), (101, False, 55), (140, False, 55)]
    found = told(*first, *second)
    assert [run["peaks"] for run in found] == [[("w", 1000)], [("w", 160)]]
    assert [run["floors"] for run in found] == [[("w", 50)], [("w", 55)]]


def test_the_last_ones_are_kept():
    """The last runs are kept, not all since the start of the scheduler."""
    moments = []
    for i in range(MAX_RUNS + 5):
        moments += [(i * 100, True, i), (i * 100 + 50, False, i)]
    found = told(*moments)
    assert len(found) == MAX_RUNS
    assert found[-1]["began"] == (MAX_RUNS + 4) * 100


def both(now, process, unmanaged):
    return {0: SampledMemory(process, unmanaged, now), 1: SampledMemory(90, 80, now)}


def test_what_an_old_process_left_is_forgotten():
    """Otherwise a worker that leaked would be restarted repeatedly."""
    runs = Runs()
    for i in range(4):
        runs.note(i * 100, True, {})
        runs.note(i * 100 + 50, False, both(i * 100 + 50, 900 * i, 800 * i))
    runs.note(400, True, {})
    runs.note(401, False, both(401, 5000, 4000))
    runs.forget(0)
    assert runs.floors == {1: (80, 10)}
    assert [dict(run["floors"]) for run in runs.kept] == [{1: 80}] * 4
    assert [dict(run["managed"]) for run in runs.kept] == [{1: 10}] * 4
    assert [dict(run["peaks"])[0] for run in runs.kept] == [0, 900, 1800, 2700]
    runs.note(450, False, both(450, 300, 200))
    assert dict(runs.kept[-1]["floors"]) == {0: 200, 1: 80}
    assert dict(runs.kept[-1]["peaks"]) == {0: 5000, 1: 90}


def test_ids_survive_a_restart():
    """The id is a given name, else the nanny, else the address."""
    assert worker_id("tcp://a", 3, "tcp://n") == 3
    assert worker_id("tcp://a:1", "tcp://a:1", "tcp://a:2") == "a:2"
    assert worker_id("tcp://a:1", "", None) == "a:1"
    assert worker_id("tcp://a:1", ("odd",), "tcp://a:2") == "a:2"


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_work_between_two_looks_is_seen(c, s, a):
    """Short work between two looks counts."""
    await monitor.install_plugin(c, await monitor.identify(c))
    runs = s.plugins["clustertune"].runs
    runs.gap = 0.1
    assert await c.submit(sum, [1, 2]) == 3
    assert runs.began is not None or runs.kept
    await soon(lambda: runs.kept)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_the_plugin_keeps_them(c, s, a, b):
    """The plugin observes runs by itself, and answers requests for them."""
    await monitor.install_plugin(c, await monitor.identify(c))
    plugin = s.plugins["clustertune"]
    plugin.runs.gap = 0.3
    assert await inquiry.past_runs(c) == ()
    plugin.runs.note(0.0, True, {0: SampledMemory(200, 100, 0.0)})
    await soon(lambda: plugin.runs.kept)
    (run,) = await inquiry.past_runs(c)
    assert set(run.floors) == {0, 1}
    assert run.began == 0.0


def end(runs, now, unmanaged, how, heard=None):
    """Work until now, and end the run; the last heartbeat may be older."""
    memory = {
        "w": SampledMemory(unmanaged + 100, unmanaged, now if heard is None else heard)
    }
    runs.note(now, True, memory)
    runs.end(how, memory)


def test_runs_without_a_gap():
    """The least memory until the end of the next run counts for a run."""
    runs = Runs()
    end(runs, 1.0, 10, "training")
    runs.note(1.5, False, {"w": SampledMemory(160, 60, 1.5)})
    end(runs, 2.0, 90, "training")
    runs.note(2.5, False, {"w": SampledMemory(210, 110, 2.5)})
    assert [run["floors"] for run in runs.kept] == [[("w", 60)], [("w", 110)]]
    assert [run["ended_by"] for run in runs.kept] == ["training"] * 2
    assert not runs.recent[-1].pending


def test_a_heartbeat_from_before_the_end_does_not_count():
    """The worker has no value for a run after which it sent no heartbeat."""
    runs = Runs()
    end(runs, 1.0, 10, "hold", heard=0.5)
    runs.note(1.2, False, {"w": SampledMemory(110, 10, 0.5)})
    assert runs.recent[-1].pending == {"w"}
    end(runs, 1.3, 10, "hold", heard=0.5)
    assert [run["floors"] for run in runs.kept] == [[], []]


def test_a_late_heartbeat_counts_for_the_run_before():
    """The time at which the worker measured its memory counts."""
    runs = Runs()
    end(runs, 1.0, 10, "training", heard=0.5)
    end(runs, 2.0, 10, "training", heard=0.5)
    runs.note(2.2, False, {"w": SampledMemory(130, 30, 1.5)})
    runs.note(2.8, False, {"w": SampledMemory(150, 50, 2.5)})
    assert [run["floors"] for run in runs.kept] == [[("w", 30)], [("w", 50)]]


def test_a_gap_in_a_hold_ends_no_run():
    """The end of the hold ends the run."""
    runs = Runs()
    memory = {"w": SampledMemory(110, 10, 0.0)}
    runs.note(0.0, True, memory, held=True)
    runs.note(10 * GAP, False, memory, held=True)
    assert not runs.kept
    runs.note(10 * GAP + 1, False, memory)
    assert runs.kept


def test_the_last_training_task_ends_a_run():
    """Other tasks do not end a run, and neither does one of several training tasks."""
    runs = Runs()
    for key in ("_train_part-1", "_train_part-2", "sum-3", ("x", 4)):
        assert not runs.transition(key, "waiting", "processing", 1.0)
    assert not runs.transition("_train_part-1", "processing", "memory", 2.0)
    assert not runs.transition("sum-3", "processing", "memory", 2.5)
    assert not runs.transition("sum-3", "memory", "released", 2.6)
    assert runs.transition("_train_part-2", "processing", "memory", 3.0)
    assert runs.worked == 3.0


def test_growth_of_a_few_runs_is_unknown() -> None:
    """Two runs that ended alike are no trend; each way to end counts by itself."""
    two = [{"floors": [("a", n)], "ended_by": "hold"} for n in (5, 9)]
    assert growth(two) == {}
    assert growth([*two, {"floors": [("a", 20)], "ended_by": "gap"}]) == {}


def test_growth_lasts_as_long_as_memory_grows() -> None:
    """It is that of a run, by worker; a restart begins it again."""
    grows = [{"floors": [("a", 100 * n), ("b", 7)]} for n in range(4)]
    assert growth(grows) == {"a": 100, "b": 0}
    assert growth(grows, {"a": 101}) == {"a": 0, "b": 0}
    ends = [*grows, *[{"floors": [("a", 300), ("b", 7)]}] * 6]
    assert growth(ends)["a"] == 0
    runs = Runs()
    runs.kept.extend(grows)
    runs.forget("a")
    assert growth(runs.kept) == {"b": 0}


@given(
    floors=st.lists(st.integers(0, 400), max_size=8),
    least=st.sampled_from([0.01, 0.1]),
)
def test_growth_is_that_of_the_check(floors: list[int], least: float) -> None:
    """The scheduler cannot run checks; both have the same rule."""
    floors = [n * 2**20 for n in floors]
    it = worker(0)
    seen = view([it], runs=past(*({0: n} for n in floors)))
    with patch.object(rules, "LEAST_GROWTH", least):
        found = list(memory_growth(seen))
    ours = growth([{"floors": [(0, n)]} for n in floors], {0: least * it.memory_limit})
    assert any(f.subject == (0,) for f in found) == bool(ours.get(0))
