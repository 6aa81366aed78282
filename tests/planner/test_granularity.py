"""Into how many pieces data is cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from distributed import SchedulerPlugin
from distributed.utils_test import async_poll_for, gen_cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from clustertune import checks
from clustertune.actions import rechunk
from clustertune.core.model import Profile, View
from clustertune.monitor import monitor, overhead
from clustertune.planner import granularity
from clustertune.testing import MemoryCluster, layout, snapshot, view, worker
from tests.test_loop import run

MIB = 2**20


def seen(
    overhead: float | None, threads: list[int] | None = None, **profile: Any
) -> View:
    """Workers of 64 GiB with these threads, on which a task takes so long."""
    workload = Profile(name="p", title="P", memory_multiple={8: 1.0}, **profile)
    some = [
        worker(i, nthreads=n, memory_limit=2**36) for i, n in enumerate(threads or [1])
    ]
    now = snapshot(some, overhead=overhead)
    return view(snapshots=[now], workload=workload)


def test_one_for_every_thread_where_pieces_are_small() -> None:
    """A pass over 10 MiB takes 5 ms, which is little beside tasks of 1 ms."""
    assert granularity.wanted(40 * MIB, seen(1e-3), 4) == 4


@pytest.mark.parametrize(
    ("gib", "expected"), [(0.5, 4), (0.8, 8), (1.2, 12), (1.9, 16), (40, 80)]
)
def test_more_while_their_tasks_are_long(gib: float, expected: int) -> None:
    """At 0.5 ms a task a piece has 100 MB at least; and half a GiB at most."""
    assert granularity.wanted(gib * 2**30, seen(5e-4), 4) == expected


def test_where_nothing_was_timed_a_few() -> None:
    """The profile says how many; so it does where the model depends on the number."""
    assert granularity.wanted(40 * MIB, seen(None), 4) == 16
    assert granularity.wanted(None, seen(1e-3), 4) == 16
    kept = seen(1e-3, keeps_pieces=True, pieces_per_thread=1)
    assert granularity.wanted(40 * MIB, kept, 4) == 4
    assert granularity.wanted(2**40, kept, 4) == 2**40 // 2**29
    assert not granularity.said(kept)


def test_no_piece_is_larger_than_a_tenth_of_a_worker() -> None:
    """Nor than the library can use, whatever a task costs."""
    one = seen(1.0)
    small = [replace(w, memory_limit=1000 * MIB) for w in one.now.workers]
    full = replace(one, snapshots=(replace(one.now, workers=tuple(small)),))
    assert granularity.wanted(400 * MIB, full, 1) == 4
    assert granularity.wanted(400 * MIB, one, 1) == 1
    assert granularity.wanted(400 * MIB, seen(1.0, max_piece_bytes=50 * MIB), 1) == 8


@given(
    st.floats(1, 1e12),
    st.floats(1e-6, 1.0),
    st.integers(1, 64),
    st.integers(1, 8),
)
def test_the_rule(nbytes: float, overhead: float, threads: int, few: int) -> None:
    """As many for every thread; one, unless tasks stay long or pieces would be too
    large; never more than a few of which none is too large."""
    now = seen(overhead, [threads], pieces_per_thread=few)
    n = granularity.wanted(nbytes, now, threads)
    each = n // threads
    assert n == each * threads
    assert nbytes / n <= granularity.largest(now)
    fits_with_less = (
        nbytes / (n - threads) <= granularity.largest(now) if each > 1 else 0
    )
    if each > 1 and fits_with_less:
        assert nbytes / n / granularity.PASS >= granularity.LONG * overhead
        assert each <= few


@given(st.floats(1, 1e12), st.floats(1e-6, 1.0), st.floats(1, 10))
def test_cheaper_tasks_never_make_fewer_pieces(
    nbytes: float, overhead: float, times: float
) -> None:
    """Nor does more data."""
    fewer = granularity.wanted(nbytes, seen(overhead * times), 4)
    assert fewer <= granularity.wanted(nbytes, seen(overhead), 4)
    assert fewer <= granularity.wanted(nbytes * times, seen(overhead * times), 4)


@given(st.lists(st.integers(1, 5), min_size=2, max_size=5), st.integers(10**4, 10**6))
@settings(deadline=None, max_examples=30)
def test_rows_lie_evenly_over_unlike_workers(threads: list[int], rows: int) -> None:
    """With one piece a thread every worker has its share."""
    data = layout([rows], [0])
    start = replace(seen(1e-3, threads), layouts=(data,))
    (step,) = rechunk.propose(checks.run(start), start)
    assert len(step.args.rows) == sum(threads)
    assert np.bincount(step.args.targets).tolist() == threads
    assert "a task costs 1 ms here" in step.gain


class Timed(MemoryCluster):
    """Counts how often it was asked what a task costs."""

    timed = 0

    async def overhead(self, view: View) -> float | None:
        self.timed += 1
        return await super().overhead(view)


def test_it_is_measured_where_pieces_are_cut() -> None:
    """Once for a cut; what was found is said again with what came of it."""
    start = replace(seen(None, [1, 3]), layouts=(layout([100_000], [0]),))
    cluster = Timed(start, overhead=1e-3)
    journal = run(cluster)
    assert cluster.timed == 1
    assert [c for c in cluster.calls if c.startswith("recut")] == ["recut 4"]
    (few,) = (f for f in journal.findings[0] if f.check == "too_few_pieces")
    assert "X.rechunk({0: 25000})" in few.remedy
    assert "(a task costs 1 ms here)" in journal.outcomes[0].step.gain


@pytest.mark.parametrize("homes", [[0, 1] * 4, [0] * 8])
def test_it_is_not_measured_for_anything_else(homes: list[int]) -> None:
    """Neither where nothing is wrong, nor where whole pieces move."""
    cluster = Timed(replace(seen(None, [1, 1]), layouts=(layout([10] * 8, homes),)))
    run(cluster)
    assert cluster.timed == 0


@pytest.mark.parametrize(
    ("found", "enough"),
    [([1.0], False), ([1.0, 1.0], False), ([1.0, 0.8, 1.2], True), ([1, 1, 1.3], False),
     ([-1.0, -1.0, -1.0], False)],
)  # fmt: skip
def test_measurements_that_agree_are_enough(found: list[float], enough: bool) -> None:
    """Three of them; one far from the others asks for more."""
    assert overhead.agree(found) == enough


# --- live -----------------------------------------------------------------------------


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_tasks_are_timed_where_they_are_bound(c: Any, s: Any, a: Any, b: Any):
    """As those on pieces are: the scheduler would hold others back."""
    bound: list[frozenset[str]] = []

    class Watch(SchedulerPlugin):
        def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
            if finish == "processing" and str(key[0]).startswith(overhead.PREFIX):
                bound.append(frozenset(s.tasks[key].worker_restrictions or ()))

    s.add_plugin(Watch(), name="watch")
    await monitor.open_door(c, await monitor.identify(c))
    now, _ = await monitor.look(c, [])
    await overhead.per_task(c, now)
    assert set(bound) == {frozenset([a.address]), frozenset([b.address])}


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_task_is_timed(c: Any, s: Any, a: Any, b: Any) -> None:
    """In seconds, without a trace in the scheduler; once for the same workers, and not
    while they have work."""
    await monitor.open_door(c, await monitor.identify(c))
    now, _ = await monitor.look(c, [])
    working = replace(now, workers=tuple(replace(w, processing=1) for w in now.workers))
    assert await overhead.per_task(c, working) is None
    first = await overhead.per_task(c, now)
    assert first is not None
    assert 0 < first < overhead.PATIENCE
    assert await overhead.per_task(c, working) == first
    await overhead.per_task(c, replace(now, workers=now.workers[:1]))
    assert monitor.known(c).overhead[1] == {now.workers[0].address}
    assert await overhead.per_task(c, replace(now, workers=())) is None
    await async_poll_for(lambda: not c.futures and not s.tasks, timeout=10)
    assert {len(a.data), len(b.data)} == {0}
